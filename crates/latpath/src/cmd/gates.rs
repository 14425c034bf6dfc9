//! `latpath gates`: shows, checks, applies and removes schedules of gates (IEEE 802.1Qbv, taprio).

use super::report::print_as;
use super::{Outcome, Usage};
use anyhow::Result;
use clap::{Args as ClapArgs, Subcommand};
use latpath_caps::Config;
use latpath_gates::{
    apply, check, show, undo, Crossing, Error, Report, Schedule, Scheduler, Severity, SpeedSource, Surroundings, Tap,
};
use latpath_linux::proc::Root;
use latpath_model::text::printable;
use latpath_model::Ns;
use latpath_net::{interfaces, priority_filters, qdiscs, FilterHook, Netns, PriorityFilter, INGRESS};
use latpath_stats::text::Table;
use latpath_stats::units::{count, duration};
use latpath_undo::Journal;
use std::path::{Path, PathBuf};

/// Check and apply a schedule of a device's gates (802.1Qbv, taprio), and show the schedulers of devices
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  latpath gates check eth1.toml
  latpath gates apply eth1.toml
  latpath gates show eth1
  latpath gates undo eth1.toml")]
pub struct Args {
    #[command(subcommand)]
    gates: Gates,
}

#[derive(Subcommand)]
enum Gates {
    Show(Show),
    Check(Check),
    Apply(Apply),
    Undo(Undo),
}

/// Show the schedulers taprio, etf, mqprio and cbs of devices
#[derive(ClapArgs)]
struct Show {
    /// A network device [default: all]
    #[arg(value_name = "IF")]
    device: Option<String>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Check a schedule, and change nothing: whether frames fit, whether PTP has a slot, what resonates; exit code 3 if
/// there is a fault
#[derive(ClapArgs)]
struct Check {
    /// The schedule (docs/gates.md)
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Apply a schedule to its device; it stays until `latpath gates undo` or the next boot
#[derive(ClapArgs)]
struct Apply {
    /// The schedule (docs/gates.md)
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Remove the schedule that latpath has applied to a device
#[derive(ClapArgs)]
struct Undo {
    /// The schedule, or the name of its device
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub fn run(args: Args) -> Result<Outcome> {
    match args.gates {
        Gates::Show(args) => {
            let all = show(args.device.as_deref())?;
            print_as(args.json, || &all, || shown(&all))?;
            Ok(Outcome::Done)
        }
        Gates::Check(args) => {
            let report = checked(&read(&args.file)?);
            print_as(args.json, || &report, || text(&report))?;
            Ok(if report.has_fault() { Outcome::LimitBroken } else { Outcome::Done })
        }
        Gates::Apply(args) => {
            let schedule = read(&args.file)?;
            let report = checked(&schedule);
            for finding in &report.findings {
                say(&format!("{}: {}: {}", word(finding.severity), finding.subject, finding.text));
            }
            if latpath_linux::proc::kernel_release().starts_with("6.1.") {
                say("warning: removing taprio may crash Linux 6.1; a newer kernel is safer");
            }
            let applied = apply(&schedule, &Journal::of_this_machine())?;
            let etf = match applied.etf_queues {
                0 => String::new(),
                queues => {
                    format!(", with etf on {}", count(queues.into()) + if queues == 1 { " queue" } else { " queues" })
                }
            };
            let device = &schedule.device;
            say(&format!("{device}: gates applied{etf}; latpath gates undo {device} removes them"));
            Ok(Outcome::Done)
        }
        Gates::Undo(args) => {
            let device = match args.file.is_file() {
                true => read(&args.file)?.device,
                false => args.file.display().to_string(),
            };
            undo(&device, &Journal::of_this_machine())?.iter().for_each(|what| say(what));
            Ok(Outcome::Done)
        }
    }
}

fn say(line: &str) {
    eprintln!("latpath gates: {}", printable(line));
}

/// Reads a schedule; faults in it count as wrong usage.
fn read(path: &Path) -> Result<Schedule> {
    Schedule::read(path).map_err(|error| match error {
        Error::File { .. } | Error::Invalid { .. } => Usage(error.to_string()).into(),
        error => error.into(),
    })
}

fn checked(schedule: &Schedule) -> Report {
    check(schedule, &surroundings(schedule))
}

/// Facts about the device on this machine: its speed and queues, from sysfs, and the kernel's tick; and the taps of
/// streams.
fn surroundings(schedule: &Schedule) -> Surroundings {
    let at = Path::new("/sys/class/net").join(&schedule.device);
    let speed = std::fs::read_to_string(at.join("speed")).ok().and_then(|text| text.trim().parse::<i64>().ok());
    let queues = std::fs::read_dir(at.join("queues")).ok().map(|entries| {
        let is_tx = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("tx-");
        entries.flatten().filter(|entry| is_tx(&entry.file_name())).count() as u32
    });
    Surroundings {
        is_present: at.exists(),
        // The kernel shows -1 for an unknown speed, or refuses to read it.
        speed: speed.and_then(|mbit| u32::try_from(mbit).ok()).filter(|mbit| *mbit > 0),
        tx_queues: queues,
        tick: tick(),
        taps: taps(schedule),
        sent: filters_of_sent(&schedule.device).unwrap_or_default(),
    }
}

/// The filters of a device that set priorities of sent packets.
fn filters_of_sent(device: &str) -> latpath_net::Result<Vec<PriorityFilter>> {
    let netns = Netns::own()?;
    let found = interfaces(&netns)?.into_iter().find(|found| found.name == device);
    match found {
        Some(found) if can_filter(&netns, found.ifindex)? => priority_filters(&netns, found.ifindex, FilterHook::Sent),
        _ => Ok(Vec::new()),
    }
}

/// Whether a device can have filters: it has an ingress or clsact qdisc.
fn can_filter(netns: &Netns, ifindex: u32) -> latpath_net::Result<bool> {
    Ok(qdiscs(netns)?.iter().any(|qdisc| qdisc.ifindex == ifindex && qdisc.parent == INGRESS))
}

/// The taps through which streams enter, with their filters; taps that cannot be read are omitted.
fn taps(schedule: &Schedule) -> Vec<Tap> {
    let mut names: Vec<&String> = schedule.streams.iter().filter_map(|stream| stream.from.as_ref()).collect();
    names.dedup();
    let read = |name: &String| -> latpath_net::Result<Tap> {
        let netns = Netns::own()?;
        let device = name.clone();
        let Some(found) = interfaces(&netns)?.into_iter().find(|found| found.name == device) else {
            return Ok(Tap { device, ..Tap::default() });
        };
        let has_clsact = can_filter(&netns, found.ifindex)?;
        let read = || priority_filters(&netns, found.ifindex, FilterHook::Received);
        let filters = if has_clsact { read()? } else { Vec::new() };
        Ok(Tap { device, has_clsact: Some(has_clsact), filters })
    };
    names.into_iter().filter_map(|name| read(name).ok()).collect()
}

fn tick() -> Option<Ns> {
    let hz: Ns = Config::of_kernel(&Root::of(Path::new("/")))?.value("HZ")?.parse().ok()?;
    (hz > 0).then(|| 1_000_000_000 / hz)
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Fault => "fault",
        Severity::Warning => "warning",
    }
}

fn table(heads: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new(heads);
    rows.for_each(|row| table.row(row));
    table.lines(2, usize::MAX, '~').join("\n") + "\n"
}

fn text(report: &Report) -> String {
    let from = match report.link_speed_from {
        SpeedSource::File => "by the file",
        SpeedSource::Device => "by the device",
        SpeedSource::Assumed => "assumed",
    };
    let mut text = format!(
        "{}  {} Mbit/s ({from}), cycle {}\n\n",
        report.device,
        count(report.link_speed_mbit.into()),
        duration(report.cycle_ns)
    );
    let classes = report.classes.iter().map(|class| {
        let times = [class.open_ns, class.longest_ns, class.closed_ns, class.needed_ns].map(duration);
        [vec![class.class.clone()], times.into()].concat()
    });
    text += &table(&["<class", "open", "longest slot", "longest wait", "needed"], classes);
    if !report.streams.is_empty() {
        let streams = report.streams.iter().map(|fit| {
            let fits = if fit.fits { "yes" } else { "no" };
            vec![fit.stream.clone(), fit.class.clone(), duration(fit.frame_ns), duration(fit.group_ns), fits.into()]
        });
        text += "\n";
        text += &table(&["<stream", "<class", "frame", "together", "<fits"], streams);
    }
    report.crossings.iter().for_each(|crossing| text += &crossed(crossing));
    text += "\n";
    for finding in &report.findings {
        text += &format!("{:<8} {}: {}\n", word(finding.severity), finding.subject, finding.text);
    }
    if report.findings.is_empty() {
        text += "no fault was found\n";
    }
    text
}

/// A line on the PCP, priority and class with which a stream crosses a tap.
fn crossed(crossing: &Crossing) -> String {
    let Crossing { stream, from, pcp, priority, class } = crossing;
    let pcp = pcp.map_or("no tag".into(), |pcp| format!("PCP {pcp}"));
    let priority = priority.map_or("unknown priority".into(), |priority| format!("priority {priority}"));
    let class = class.as_ref().map_or(String::new(), |class| format!(", class {class}"));
    format!("  {stream} from {from}: {pcp}, {priority}{class}\n")
}

fn shown(all: &[Scheduler]) -> String {
    if all.is_empty() {
        return "no device has taprio, etf, mqprio or cbs\n".into();
    }
    let mut text = String::new();
    for one in all {
        text += &format!("{}  {} {}", one.device, one.at, one.kind);
        let mut also = |name: &str, value: Option<String>| {
            value.into_iter().for_each(|value| text += &format!("  {name} {value}"));
        };
        also("clock", one.clockid.map(clock));
        also(if one.kind == "etf" { "delta" } else { "base time" }, one.time_ns.map(|ns| format!("{ns} ns")));
        also("cycle", one.cycle_ns.map(duration));
        also("flags", one.flags.filter(|flags| *flags != 0).map(|flags| format!("{flags:#x}")));
        also("idle slope", one.idle_slope_kbit.map(|rate| format!("{rate} kbit/s")));
        also("dropped", one.dropped.filter(|dropped| *dropped > 0).map(|dropped| count(dropped.into())));
        also("queues", Some(one.queues.join(" ")).filter(|queues| !queues.is_empty()));
        let classes: Vec<String> = one.class_of_priority.iter().map(ToString::to_string).collect();
        also("classes of priorities", Some(classes.join(" ")).filter(|classes| !classes.is_empty()));
        text += "\n";
        let gates = one.gates.iter().map(|gate| vec![format!("{:#x}", gate.mask), duration(gate.interval_ns.into())]);
        if !one.gates.is_empty() {
            text += &table(&["<open", "interval"], gates);
        }
    }
    text
}

fn clock(id: i32) -> String {
    match id {
        0 => "CLOCK_REALTIME".into(),
        1 => "CLOCK_MONOTONIC".into(),
        11 => "CLOCK_TAI".into(),
        other => other.to_string(),
    }
}
