//! `latpath demo`: runs all of latpath on one machine. It sets up its own path (publisher ─ bridge ─ guest), sends
//! Sampled Values through it, records all journeys, reports, and checks the report against the kernel's counters.

mod processes;
mod verify;

use super::interrupt::stop_flag;
use super::progress::Progress;
use super::{ns, quoted, Outcome};
use anyhow::{bail, Context, Result};
use clap::Args as ClapArgs;
use latpath_lab::{Application, Guest, GuestPlan, Lab, LabPath};
use latpath_report::demo::{Check, Demo, DemoDocument, DemoGuest};
use latpath_stats::{
    text::Table,
    units::{count, duration},
};
use processes::{read_run, DemoProcesses, Ending, Scenario};
use std::{
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::Duration,
};
use verify::Evidence;

/// Follow Sampled Values from a publisher over a bridge into a real guest, all on this machine (requires root)
#[derive(ClapArgs)]
pub struct Args {
    /// Put the application in a network namespace instead of a QEMU guest
    #[arg(long)]
    no_guest: bool,
    /// Stop after this time (10s, 1h 30m)
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = crate::cmd::values::some_time)]
    duration: Duration,
    /// Streams to send: MU01, MU02 …
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = crate::cmd::values::whole::<u16>(1..=64))]
    streams: u16,
    /// What the publisher sends: 9-2le-50, 9-2le-60, 9-2le-50-meas, 9-2le-60-meas, f4800s2 or f14400s6
    #[arg(long, value_name = "PROFILE", default_value = "9-2le-50")]
    profile: String,
    /// Packets per second of each stream [default: the profile's]
    #[arg(long, value_name = "F")]
    rate: Option<String>,
    /// Packets are late if they take longer than this, e.g. 200us
    #[arg(long, value_name = "TIME", default_value = "200us")]
    threshold: String,
    /// Packets that take longer than this count as lost; must be shorter than the time in which smpCnt wraps
    #[arg(long, value_name = "TIME", default_value = "1s")]
    window: String,
    /// Keep the recording in this directory
    #[arg(short, long, value_name = "RUN")]
    output: Option<PathBuf>,
    /// Replace existing files: an earlier run
    #[arg(long, requires = "output")]
    force: bool,
    /// Show no progress on stderr
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON instead of text: the report and the checks
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    // A second signal ends the process at once; the next demo then cleans up.
    let stop = stop_flag()?;
    let stopped = || stop.load(Ordering::Relaxed);
    let say = |line: &str| {
        if !args.quiet {
            eprintln!("latpath demo: {line}");
        }
    };
    let application = if args.no_guest { Application::Namespace } else { Application::Guest };
    if let Some(missing) = latpath_lab::missing(application) {
        return Err(missing.into());
    }
    let lab = Lab::new()?;
    say("laying the path: lp-pub ─ nic0 ─ br0 ─ the application");
    let path = lab.lay(application)?;
    let program = std::env::current_exe().context("find latpath's own program file")?;
    let mut guest = match application {
        Application::Guest => Some(boot(&lab, &path, &program, say, &stopped)?),
        Application::Namespace => None,
    };
    let run = args.output.clone().unwrap_or_else(|| lab.folder().join("run"));
    let scenario = Scenario { args: &args, program: &program, run: &run };
    say(&format!("recording {}", scenario.streams().join(" ")));
    let mut processes = DemoProcesses::enter(&scenario, &lab, &path, guest.as_mut(), &stopped)?;
    let before = verify::count_devices(&path, guest.as_mut())?;
    processes.publish(&scenario)?;
    let mut progress = Progress::begin(args.quiet);
    let mut stopping = false;
    while processes.publishing()? {
        // Signals the publisher once only: a second signal would end it before its report.
        if stopped() && !std::mem::replace(&mut stopping, true) {
            processes.stop_publishing()?;
        }
        if let Some(status) = guest.as_mut().map(|guest| guest.ended()).transpose()?.flatten() {
            processes.keep_recording()?;
            let kept = match &args.output {
                Some(run) => format!("; what was recorded until then: latpath report {}", quoted(run)),
                None => String::new(),
            };
            bail!("guest0 ended while frames were on their way: its QEMU ended, {status}{kept}");
        }
        progress.show(|elapsed| line(elapsed, args.duration, &path))?;
        std::thread::sleep(Duration::from_millis(50));
    }
    progress.end();
    // After Ctrl-C, the packets so far are still reported.
    verify::wait_for_arrival(&path, guest.as_mut(), &before, &processes)?;
    let after = verify::count_devices(&path, guest.as_mut())?;
    let ending = processes.leave(guest.as_mut())?;

    let summary = read_run(&scenario, "report", &["--threshold", &args.threshold])?;
    let explanation = read_run(&scenario, "explain", &[])?;
    let evidence = Evidence::gather(&run, &before, &after, &ending)?;
    let checks = evidence.checks();
    let differing = checks.iter().filter(|check| !check.agree).count();
    let all = checks.len();
    if args.json {
        let document = document([&summary, &explanation], ending, guest.as_ref(), checks)?;
        println!("{}", serde_json::to_string(&document)?);
    } else {
        print!("{summary}");
        println!("\nWhy the worst were late (latpath explain)\n");
        explanation.lines().for_each(|line| println!("{}", format!("  {line}").trim_end()));
        print_checks(&checks);
        if let Some(kept) = &args.output {
            println!("\nThe recording: latpath report {0}, latpath explain {0}", quoted(kept));
        }
    }
    match differing {
        0 => Ok(Outcome::Done),
        n => bail!("{n} of {all} counts differ between the kernel and latpath (marked above)"),
    }
}

fn boot(
    lab: &Lab,
    path: &LabPath,
    program: &Path,
    mut say: impl FnMut(&str),
    stop: &dyn Fn() -> bool,
) -> Result<Guest> {
    let plan = GuestPlan { programs: vec![(program.into(), "/bin/latpath".into())], ..GuestPlan::default() };
    let guest = Guest::boot(lab, path, &plan, &mut say, stop)?;
    say(&format!(
        "guest0 is up: Linux {}, {}, after {}",
        guest.release(),
        guest.acceleration(),
        duration(ns(guest.boot_time()))
    ));
    Ok(guest)
}

fn line(elapsed: Duration, total: Duration, path: &LabPath) -> Result<String> {
    let counters = path.hypervisor.counters()?;
    let of = |device: &str| counters.get(device);
    let arrived = of(latpath_lab::NIC).map_or(0, |c| c.rx_packets);
    let port = of(latpath_lab::TAP).or_else(|| of(latpath_lab::VETH));
    let (passed, dropped) = port.map_or((0, 0), |c| (c.tx_packets, c.tx_dropped));
    Ok(format!(
        "{} s of {} s: {} frames at the host, {} on to the application, {} dropped",
        elapsed.as_secs(),
        total.as_secs(),
        count(arrived),
        count(passed),
        count(dropped)
    ))
}

fn print_checks(checks: &[Check]) {
    println!("\nChecked against what the kernel counted");
    let mut table = Table::new(&["<", "kernel", "latpath", "<counted by / seen at", "<"]);
    for check in checks {
        let mark = if check.agree { "" } else { "DIFFERS" };
        let (kernel, seen) = (count(check.kernel), check.latpath.map_or("not watched".into(), count));
        let places = format!("{} / {}", check.counter, check.point);
        table.row(vec![check.what.to_string(), kernel, seen, places, mark.into()]);
    }
    table.lines(2, usize::MAX, '…').iter().for_each(|line| println!("{line}"));
}

/// The document of a demo, from the JSON of `latpath report` and `latpath explain`.
fn document(
    [report, explanation]: [&str; 2],
    ending: Ending,
    guest: Option<&Guest>,
    checks: Vec<Check>,
) -> Result<DemoDocument> {
    let guest = guest.map(|g| DemoGuest {
        kernel: g.release().into(),
        acceleration: g.acceleration().to_string(),
        boot_ns: ns(g.boot_time()),
    });
    Ok(DemoDocument {
        report: serde_json::from_str(report).context("read latpath report's JSON")?,
        demo: Demo {
            guest,
            published: ending.published,
            application: ending.application,
            explanation: serde_json::from_str(explanation).context("read latpath explain's JSON")?,
            agree: checks.iter().all(|check| check.agree),
            checks,
        },
    })
}
