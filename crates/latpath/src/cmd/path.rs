//! `latpath path`: shows every kernel function that handles a packet.

mod text;

use super::choose::{choose, Choice};
use super::interrupt::stop_flag;
use super::report::print_as;
use super::{ns, Outcome, Usage};
use anyhow::Result;
use clap::{Args as ClapArgs, ValueEnum};
use latpath_clock::{ClockTie, RealtimeWatch, TimeOfDay};
use latpath_linux::background::Background;
use latpath_linux::monotonic;
use latpath_model::{stream, StreamSpec};
use latpath_path::{
    find_device, functions, CompileError, Counts, FunctionsDocument, Options, Packet, PathDocument, Remains, Search,
    SearchError, With, MAX_PACKETS,
};
use latpath_session::PATIENCE;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval between checks of the end conditions.
const ROUND: Duration = Duration::from_millis(50);

/// Follow a few packets through every kernel function that handles them, and show their routes.
#[derive(ClapArgs)]
#[command(
    after_help = "Examples:\n  latpath path -i enp7s0 --stream svid:MU01\n  latpath path -i vnet0 'ether proto 0x88ba and vlan 7'\n\n\
                        With --stream and an expression, packets must fit both."
)]
pub struct Args {
    /// Device to watch, in both directions, e.g. eth0 or eth0%NAMESPACE [default: any]
    #[arg(short, long, value_name = "IF")]
    interface: Option<String>,
    #[arg(short, long = "stream", value_name = "STREAM", help = format!("Only packets of this stream, as {}; can be repeated", stream::examples()))]
    streams: Vec<StreamSpec>,
    /// Packets that match this pcap filter (pcap-filter(7)), e.g. 'ether proto 0x88ba and vlan 7'; needs libpcap
    #[arg(value_name = "EXPRESSION")]
    expression: Vec<String>,
    /// Stop after N packets
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = crate::cmd::values::whole::<u32>(1..=u64::from(MAX_PACKETS)))]
    count: u32,
    /// Stop after this time, with the packets so far (10s, 1m)
    #[arg(long, value_name = "TIME", value_parser = crate::cmd::values::some_time)]
    duration: Option<Duration>,
    /// Wait this long for the last packets' next steps
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = crate::cmd::values::time)]
    settle: Duration,
    /// Treat a packet that leaves the kernel (to ovs-vswitchd, a guest) and returns with the same bytes within this
    /// time as the same packet
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = crate::cmd::values::time)]
    same: Duration,
    /// Probes to use [default: the best that the kernel supports]
    #[arg(long, value_name = "KIND", value_enum)]
    with: Option<Kind>,
    /// Show only the routes, without each packet's steps
    #[arg(long)]
    summary: bool,
    /// List the traceable functions that take a packet, each with the arguments that are packets, and exit
    #[arg(long, conflicts_with_all = ["interface", "streams", "expression", "with", "duration"])]
    list: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Show no progress on stderr
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Tracepoints alone
    Tracepoints,
    /// Tracepoints, and some functions one by one
    Kprobes,
    /// Tracepoints, and all functions at once (Linux 5.18 with CONFIG_FPROBE)
    KprobeMulti,
}

impl From<Kind> for With {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Tracepoints => Self::Tracepoints,
            Kind::Kprobes => Self::Kprobes,
            Kind::KprobeMulti => Self::KprobeMulti,
        }
    }
}

struct SearchResult {
    packets: Vec<Packet>,
    counts: Counts,
    how: latpath_path::How,
    time_of_day: TimeOfDay,
}

pub fn run(args: Args) -> Result<Outcome> {
    if args.list {
        print_as(args.json, || FunctionsDocument::new(functions()), list)?;
        return Ok(Outcome::Done);
    }
    let options = options(&args)?;
    let stop = stop_flag()?;
    let _background = Background::begin();
    let search = Search::start(&options).map_err(|e| match e {
        SearchError::Streams(e) => Usage(e.to_string()).into(),
        e => anyhow::Error::from(e),
    })?;
    if !args.quiet {
        say_how(&search);
    }
    let (found, remains) = follow(search, &args, &stop);
    let document = || PathDocument::new(&found.packets, &found.counts, &found.how, |t| found.time_of_day.utc(t));
    let printed = print_as(args.json, document, || text::render(&found, args.summary));
    if remains.kprobes() > 0 && !args.quiet {
        eprintln!("latpath: taking {} kprobes off, which takes a while", remains.kprobes());
    }
    drop(remains);
    printed?;
    Ok(Outcome::Done)
}

fn options(args: &Args) -> Result<Options> {
    let expression = args.expression.join(" ");
    if args.streams.is_empty() && expression.trim().is_empty() {
        let which = "which packets? Name a stream (--stream svid:MU01) or give a filter ('ether proto 0x88ba')";
        return Err(Usage(which.into()).into());
    }
    let code = match expression.trim() {
        "" => None,
        text => Some(latpath_path::compile(text).map_err(|e| match e {
            CompileError::Expression(e) => Usage(e.to_string()).into(),
            e => anyhow::Error::from(e),
        })?),
    };
    Ok(Options {
        streams: choose(&Choice {
            streams: &args.streams,
            all: false,
            devices: &[],
            other_users: false,
            quiet: args.quiet,
        })?,
        code,
        device: args.interface.as_deref().map(find_device).transpose()?,
        count: args.count,
        with: args.with.map(Into::into),
        same: ns(args.same),
    })
}

/// Prints the number of attached functions and tracepoints, and the notes.
fn say_how(search: &Search) {
    let how = search.how();
    let functions = match how.functions {
        0 => String::new(),
        n => format!("{n} functions ({}) and ", how.with.name()),
    };
    eprintln!("latpath: attached to {functions}{} tracepoints in {:.1} s", how.tracepoints, how.took.as_secs_f64());
    how.notes.iter().for_each(|note| eprintln!("latpath: {note}"));
}

/// Collects packets until the end conditions are met, or the user stops.
fn follow(mut search: Search, args: &Args, stop: &AtomicBool) -> (SearchResult, Remains) {
    let began = Instant::now();
    let (mut reported, mut enough) = (false, None::<Instant>);
    let tie = ClockTie::read();
    let (mut realtime, mut steps) = (RealtimeWatch::new(&tie), Vec::new());
    loop {
        let packets = search.wait(ROUND);
        steps.extend(realtime.observe(&ClockTie::read()));
        let quiet = monotonic() - search.last();
        if packets >= args.count {
            enough.get_or_insert_with(Instant::now);
        }
        if stop.load(Ordering::Relaxed)
            || args.duration.is_some_and(|d| began.elapsed() >= d)
            || (packets >= args.count && quiet >= ns(args.settle))
            // Ends even if a looping packet never becomes quiet.
            || enough.is_some_and(|at| at.elapsed() >= args.settle.saturating_mul(10))
        {
            break;
        }
        if packets == 0 && !reported && !args.quiet && began.elapsed() >= PATIENCE {
            reported = true;
            let where_ = args.interface.as_ref().map_or(String::new(), |i| format!(" on {i}"));
            let s = began.elapsed().as_secs();
            eprintln!("latpath: no such packet{where_} for {s} s; still waiting (latpath streams lists what is there)");
        }
    }
    let how = search.how().clone();
    let (packets, counts, remains) = search.stop();
    let time_of_day = TimeOfDay::new(tie.monotonic_ns, tie.realtime_ns, &steps);
    (SearchResult { packets, counts, how, time_of_day }, remains)
}

fn list() -> String {
    let line = |f: &latpath_path::Function| {
        let places: Vec<String> = f.arguments().map(|i| i.to_string()).collect();
        let module = f.module.as_ref().map_or(String::new(), |m| format!(" [{m}]"));
        format!("{}{module} {}\n", f.name, places.join(","))
    };
    functions().iter().map(line).collect()
}
