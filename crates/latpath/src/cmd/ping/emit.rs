//! `latpath ping emit`: sends probes, and reports their round trips.

mod breach_context;
mod one;
mod sweep;
mod text;
mod verdicts;

use super::freeze::Freeze;
use super::link::Link;
use super::target::Target;
use super::times::Drawn;
use crate::cmd::flags::{StopAfter, Tagging};
use crate::cmd::interrupt::stop_flag;
use crate::cmd::limits::{row_limits, Limits};
use crate::cmd::on_spike::SpikeCommand;
use crate::cmd::progress::Progress;
use crate::cmd::report::print_as;
use crate::cmd::sync::SyncArgs;
use crate::cmd::thread::OnTime;
use crate::cmd::{ns, Outcome, Usage};
use anyhow::{bail, Result};
use clap::Args as ClapArgs;
use latpath_model::Ns;
use latpath_ping::breach::BreachTrace;
use latpath_ping::breach_context::{Breach, ContextRecorder};
use latpath_ping::document::{EmitDocument, VERSION};
use latpath_ping::emit::{EndReason, Pacing, Plan, LONGEST};
use latpath_ping::log::Keep;
use latpath_ping::timeline::Relation;
use latpath_ping::wire::{FULL, HEADER};
use latpath_stats::units::{count, duration};
use latpath_wire::Pace;
use one::{Done, Now, Session};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use sweep::Sweep;

/// Send probes to a reflector, and show the time of each part of the round trip
#[derive(ClapArgs)]
#[command(
    after_help = "Examples:\n  latpath ping emit 192.168.1.11 --duration 60s --threshold 100us\n  latpath ping emit 10.0.0.2 --rate 4000 --spin --cpu 3 --fifo 80\n\n\
                        The other end runs: latpath ping reflect"
)]
pub struct Args {
    /// Reflectors: names or addresses, with or without a port (relay7, 10.0.0.2, [fd00::1]:7000), or MAC addresses
    /// (with -i); each gets a session and a thread
    #[arg(value_name = "HOST", required = true)]
    targets: Vec<Target>,
    /// Device to send on
    #[arg(short, long, value_name = "IF")]
    interface: Option<String>,
    /// Send the probes in Sampled Values instead of frames with latpath's own ethertype (to a MAC address)
    #[arg(long)]
    sv: bool,
    #[command(flatten)]
    tagging: Tagging,
    /// Source address of the probes
    #[arg(long = "source", value_name = "ADDRESS")]
    from: Option<std::net::IpAddr>,
    /// Size of a message, bytes; below 96, the reflector's kernel and NIC timestamps do not fit into its answer
    #[arg(long, value_name = "BYTES", default_value_t = FULL, value_parser = size)]
    size: usize,
    #[command(flatten)]
    sweep: Sweep,
    /// Packets per second, at fixed times, regardless of answers [default: each probe follows the answer to the
    /// previous one]
    #[arg(long, value_name = "F", conflicts_with = "flood")]
    rate: Option<Pace>,
    /// Send as fast as the kernel accepts probes, regardless of answers
    #[arg(long)]
    flood: bool,
    #[command(flatten)]
    stop_after: StopAfter,
    /// Send N probes first that are not counted
    #[arg(long, value_name = "N", default_value_t = 0)]
    warm_up: u64,
    /// A probe without an answer within this time is lost
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = crate::cmd::values::time)]
    lost_after: Duration,
    /// Fail if no answer arrives for this time
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = crate::cmd::values::time)]
    timeout: Duration,
    /// Do not start the flight recorder; this machine's activity around a breach is then unknown, but recording delays
    /// no wake-up
    #[arg(long, requires = "threshold")]
    no_flight: bool,
    /// Tie the ends' clocks by PTP if they follow one grandmaster (latpath clocks), which bounds the one-way times
    /// [default: one-way times are estimated from round trips]
    #[arg(long)]
    synchronised: bool,
    #[command(flatten)]
    link: Link,
    #[command(flatten)]
    sync: SyncArgs,
    #[command(flatten)]
    on_time: OnTime,
    /// Write single transactions to this file, FILE.parquet or FILE.csv
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Transactions to write: all, over:TIME, or last:TIME (before a breach, or the end)
    #[arg(long, value_name = "WHICH", default_value = "all", requires = "log")]
    log_keep: Keep,
    /// Keep the log's last:TIME, and AF_XDP's frames, in huge pages
    #[arg(long)]
    hugepages: bool,
    #[command(flatten)]
    freeze: Freeze,
    #[command(flatten)]
    drawn: Drawn,
    /// Also divide the round trip at every available timestamp
    #[arg(long)]
    detail: bool,
    /// Show the N worst transactions
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = crate::cmd::values::whole::<u16>(..=1000))]
    worst: u16,
    #[command(flatten)]
    limits: Limits,
    /// Show no progress on stderr
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> Result<usize, String> {
    let n: usize = text.parse().map_err(|_| "write a number of bytes")?;
    if (HEADER..=LONGEST).contains(&n) {
        return Ok(n);
    }
    Err(format!("a message has {HEADER} to {LONGEST} bytes"))
}

impl Args {
    fn pacing(&self) -> Pacing {
        match (self.rate, self.flood) {
            (Some(pace), _) => Pacing::Every(pace),
            (None, true) => Pacing::Flood,
            (None, false) => Pacing::AsAnswersCome,
        }
    }

    fn plan(&self, session: u32) -> Plan {
        Plan {
            session,
            size: self.size,
            pacing: self.pacing(),
            spin: self.link.spin,
            warm_up: self.warm_up,
            count: self.stop_after.count,
            duration: self.stop_after.duration.map(ns),
            lost_after: ns(self.lost_after),
            timeout: ns(self.timeout),
            by_ptp: self.synchronised,
            threshold: self.freeze.threshold.map(ns),
            stop_on_breach: self.freeze.stops(),
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> Result<Outcome> {
    let sync = args.sync.clone();
    sync.guard(|| measure(args))
}

fn measure(mut args: Args) -> Result<Outcome> {
    let on_device = |target: &Target| target.on(args.interface.as_deref());
    args.targets = args.targets.iter().map(on_device).collect::<Result<_, _>>().map_err(Usage)?;
    for (name, value) in [("--lost-after", args.lost_after), ("--timeout", args.timeout)] {
        if value.is_zero() {
            return Err(Usage(format!("{name} 0s: a time above 0 is needed")).into());
        }
    }
    if args.freeze.is_requested() && args.freeze.threshold.is_none() {
        return Err(Usage("--trace-instance needs --threshold".into()).into());
    }
    args.drawn.axis()?;
    let mut limits = args.limits.all(false)?;
    if args.sweep.is_requested() {
        let stop = stop_flag()?;
        let _awake = args.on_time.keep_awake()?;
        let unlocked = args.on_time.lock_memory();
        return sweep::run(&mut args, &mut limits, unlocked, &stop);
    }
    verdicts::refuse_others(&mut limits, args.freeze.threshold.is_some())?;
    let stop = stop_flag()?;
    let _awake = args.on_time.keep_awake()?;
    let breach = args.freeze.prepare(!args.freeze.keep_going)?;
    let recorder = breach_context::record(&args);
    let unlocked = args.on_time.lock_memory();
    let command = args.freeze.command(args.on_time.cpu)?;
    let reactions = Reactions { freeze: breach.as_ref(), recorder: recorder.as_ref(), command: command.as_ref() };
    let mut all = in_threads(&args, &row_limits(&limits), reactions, &stop);
    for done in all.iter_mut().flatten() {
        done.notes.extend(unlocked.clone());
    }
    let recorded = recorder.map(ContextRecorder::end);
    let frozen = args.freeze.end(breach, &stop);
    let mut breaches = recorded.unwrap_or_else(|| frozen.breached.iter().cloned().map(Breach::from).collect());
    let runs = command.map(SpikeCommand::end);
    let all = all?;
    let elsewhere = all.iter().filter(|done| done.report.clocks != Relation::SameKernel).map(|done| done.session);
    for session in elsewhere {
        breaches.iter_mut().filter(|b| b.probe.session == session).for_each(Breach::on_another_kernel);
    }
    // A session without an answer has only its error.
    let met = all.iter().filter(|done| done.ended.welcome.is_some());
    let shown = |done: &Done| text::session(done, &args, breach_context::of_session(&breaches, done.session));
    let text = || met.map(shown).collect::<Vec<_>>().join("\n");
    let document = || EmitDocument {
        version: VERSION,
        sessions: all.iter().map(|done| done.document(&args)).collect(),
        breaches: breaches.clone(),
        trace: frozen.saved.iter().flat_map(|saved| &saved.files).map(|file| file.path.clone()).collect(),
        on_spike: runs,
    };
    print_as(args.json, document, text)?;
    let failed: Vec<String> = all.iter().filter_map(Done::failure).collect();
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    let breached = all.iter().any(|done| done.report.over_threshold > 0 || done.ended.why == Ok(EndReason::Breach));
    let verdicts = verdicts::of(&all, &limits)?;
    let outcome = args.limits.announce("latpath ping emit", &verdicts, false)?;
    Ok(if breached { Outcome::LimitBroken } else { outcome })
}

/// What to do at a breach; `None` for what is not requested.
#[derive(Clone, Copy, Default)]
struct Reactions<'a> {
    freeze: Option<&'a BreachTrace>,
    recorder: Option<&'a ContextRecorder>,
    command: Option<&'a SpikeCommand>,
}

/// Runs each session in its own thread. The first breach that ends its session ends all of them.
fn in_threads(args: &Args, row_limits: &[Ns], reactions: Reactions, stop: &AtomicBool) -> Result<Vec<Done>> {
    let now: Vec<Mutex<Now>> = args.targets.iter().map(|_| Mutex::default()).collect();
    let run = |number: usize| {
        use std::hash::{BuildHasher, RandomState};
        // The keys of `RandomState` are random, and so is the session's number.
        let plan = args.plan(RandomState::new().hash_one(number) as u32);
        let target = args.targets[number];
        let done = Session { args, row_limits, target, plan, number, reactions, now: &now[number], stop }.run();
        // A breach ends all sessions, and so does a session that cannot start.
        if done.as_ref().map_or(true, |done| done.ended.why == Ok(EndReason::Breach)) {
            stop.store(true, Ordering::Relaxed);
        }
        done
    };
    let (main, over) = (std::thread::current(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let start = |number: usize| {
            let (run, main, over) = (&run, &main, &over);
            scope.spawn(move || {
                // Also counts a panicking thread, whose panic the main thread resumes.
                let _over = CountedWhenDropped { over, main };
                run(number)
            })
        };
        let threads: Vec<_> = (0..args.targets.len()).map(start).collect();
        let mut progress = Progress::begin(args.quiet);
        while over.load(Ordering::Acquire) < threads.len() {
            // Sleeps until the next progress line, so that the main thread does not disturb the probes.
            std::thread::park_timeout(progress.idle());
            progress.show(|elapsed| Ok::<_, anyhow::Error>(line(elapsed, &now)))?;
        }
        progress.end();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Counts a session's thread as finished on drop, and wakes the main thread.
struct CountedWhenDropped<'a> {
    over: &'a AtomicUsize,
    main: &'a std::thread::Thread,
}

impl Drop for CountedWhenDropped<'_> {
    fn drop(&mut self) {
        self.over.fetch_add(1, Ordering::Release);
        self.main.unpark();
    }
}

/// The progress line of all sessions.
fn line(elapsed: Duration, sessions: &[Mutex<Now>]) -> String {
    let all: Vec<Now> = sessions.iter().map(|s| *s.lock().unwrap_or_else(PoisonError::into_inner)).collect();
    let sum = |of: fn(&Now) -> u64| count(all.iter().map(of).sum());
    let most = |of: fn(&Now) -> i64| duration(all.iter().map(of).max().unwrap_or(0));
    let (sent, lost) = (sum(|n| n.sent), sum(|n| n.lost));
    format!(
        "{:>5} s  {sent} sent, {lost} lost, round trip p50 {}, max {}",
        elapsed.as_secs(),
        most(|n| n.p50),
        most(|n| n.max)
    )
}
