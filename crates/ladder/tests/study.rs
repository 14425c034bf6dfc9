//! The two excerpts that the automotive study prints give the ladders that were computed from them by hand.

use latpath_ladder::trace_text::import;
use latpath_ladder::{LadderReport, QueueReport};
use latpath_model::Ns;
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

fn ladder(name: &str) -> Result<LadderReport, Failed> {
    let mut input = BufReader::new(File::open(file(name))?);
    Ok(import(&mut input, &AtomicBool::new(false))?.report)
}

/// The rungs of the one transfer, in µs.
fn rungs(report: &LadderReport, variant: &str) -> Result<Vec<(String, Ns)>, Failed> {
    equal("causality violations", report.causality_violations, 0)?;
    let [QueueReport { ladders, direction, .. }] = &report.queues[..] else {
        return Err(format!("not one queue: {report:#?}").into());
    };
    let [ladder] = &ladders[..] else { return Err(format!("not one ladder: {ladders:#?}").into()) };
    equal("the direction", direction.as_str(), "from_guest")?;
    equal("the variant", ladder.variant.as_str(), variant)?;
    equal("transfers", ladder.total.count, 1)?;
    equal("the vCPU left for", ladder.exit_reasons[0].reason.as_str(), "DABT_LOW")?;
    equal("the rungs' sum", ladder.rungs.iter().map(|rung| rung.time.sum_ns).sum(), ladder.total.sum_ns)?;
    Ok(ladder.rungs.iter().map(|rung| (rung.step.clone(), rung.time.sum_ns / 1000)).collect())
}

fn named(rungs: &[(&str, Ns)]) -> Vec<(String, Ns)> {
    rungs.iter().map(|(step, time)| ((*step).to_owned(), *time)).collect()
}

fn standard() -> Result<(), Failed> {
    let got = rungs(&ladder(STANDARD)?, "no_vhost")?;
    let want = [
        // The study's first rung, 29: exit until the I/O thread runs.
        ("server_woken", 12),
        ("server_runs", 17),
        ("packet", 193),
        ("interrupt_raised", 248),
        ("vcpu_reached", 25),
        ("guest_handler", 76),
    ];
    equal("the rungs", got, named(&want))
}

fn relayed() -> Result<(), Failed> {
    let got = rungs(&ladder(RELAYED)?, "vhost_relayed")?;
    let want = [
        ("server_woken", 17),
        ("server_runs", 13),
        ("packet", 8),
        ("relay_woken", 35),
        ("relay_runs", 16),
        ("interrupt_raised", 65),
        ("vcpu_reached", 17),
        ("guest_handler", 19),
    ];
    equal("the rungs", got, named(&want))
}
