//! The two trace excerpts printed in the automotive study yield the ladders that were computed from them by hand.

use latpath_ladder::trace_text::import;
use latpath_ladder::{Direction, LadderFigures, QueueReport, Step, Variant};
use latpath_model::{Ns, Observation};
use latpath_testkit::{equal, trial, Failed, Lack};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

const STANDARD: &str = "ladder-standard-virtio.trace.txt";
const RELAYED: &str = "ladder-vhost-relayed.trace.txt";

fn main() -> ExitCode {
    latpath_testkit::main(vec![
        trial("standard_virtio_takes_571_us_of_which_most_is_qemu", &[need(STANDARD)], standard),
        trial("vhost_with_a_relayed_interrupt_takes_190_us", &[need(RELAYED)], relayed),
    ])
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name)
}

fn need(name: &str) -> Lack {
    (!file(name).exists()).then(|| format!("../shared/data/{name} is not there"))
}

fn ladder(name: &str) -> Result<Observation<LadderFigures>, Failed> {
    let mut input = BufReader::new(File::open(file(name))?);
    Ok(import(&mut input, &AtomicBool::new(false))?.report)
}

/// The rungs of the only transfer, in µs.
fn rungs(report: &Observation<LadderFigures>, variant: Variant) -> Result<Vec<(Step, Ns)>, Failed> {
    equal("causality violations", report.figures.causality_violations, 0)?;
    let [QueueReport { ladders, direction, .. }] = &report.figures.queues[..] else {
        return Err(format!("not one queue: {report:#?}").into());
    };
    let [ladder] = &ladders[..] else { return Err(format!("not one ladder: {ladders:#?}").into()) };
    equal("the direction", *direction, Direction::FromGuest)?;
    equal("the variant", ladder.variant, variant)?;
    equal("transfers", ladder.total.count, 1)?;
    equal("the vCPU left for", ladder.exit_reasons[0].reason.as_str(), "DABT_LOW")?;
    equal("the rungs' sum", ladder.rungs.iter().map(|rung| rung.time.sum_ns).sum(), ladder.total.sum_ns)?;
    Ok(ladder.rungs.iter().map(|rung| (rung.step, rung.time.sum_ns / 1000)).collect())
}

fn standard() -> Result<(), Failed> {
    let got = rungs(&ladder(STANDARD)?, Variant::NoVhost)?;
    let want = [
        // These two rungs make up the study's first one, 29 µs: from the exit until the I/O thread runs.
        (Step::Woken, 12),
        (Step::Runs, 17),
        (Step::Packet, 193),
        (Step::Raised, 248),
        (Step::Reached, 25),
        (Step::Handled, 76),
    ];
    equal("the rungs", got, want.to_vec())
}

fn relayed() -> Result<(), Failed> {
    let got = rungs(&ladder(RELAYED)?, Variant::Relayed)?;
    let want = [
        (Step::Woken, 17),
        (Step::Runs, 13),
        (Step::Packet, 8),
        (Step::RelayWoken, 35),
        (Step::RelayRuns, 16),
        (Step::Raised, 65),
        (Step::Reached, 17),
        (Step::Handled, 19),
    ];
    equal("the rungs", got, want.to_vec())
}
