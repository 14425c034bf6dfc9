//! The kernel's trace, which stops when a round trip exceeds the threshold.

use crate::cmd::on_spike::{OnSpike, SpikeCommand};
use crate::cmd::Usage;
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_linux::Cpus;
use latpath_ping::breach::{BreachOptions, BreachReport, BreachTrace};
use latpath_tracefs::{Instance, Options};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Default events: those that explain most about a late packet, on any kernel.
pub(crate) const EVENTS: &str =
    "sched:sched_switch,sched:sched_wakeup,irq:*,net:netif_receive_skb,net:net_dev_start_xmit,napi:napi_poll";

/// Flags for breaches, and for the trace.
#[derive(ClapArgs, Debug)]
pub struct Freeze {
    /// Packets are late if they take longer than this: a longer round trip (reflect: a longer time from T2 app to T3
    /// app) is a breach and ends the run with exit code 3
    #[arg(long, value_name = "TIME", value_parser = crate::cmd::values::time)]
    pub threshold: Option<Duration>,
    /// Continue after a breach; the exit code is still 3
    #[arg(long, requires = "threshold")]
    pub keep_going: bool,
    #[command(flatten)]
    on_spike: OnSpike,
    /// Also record the kernel's events in this tracefs instance. On a breach, latpath writes a mark, takes a snapshot,
    /// stops the trace and saves it. An existing instance is used as is; otherwise latpath creates one and removes it
    /// at the end
    #[arg(long = "trace-instance", value_name = "NAME")]
    trace: Option<String>,
    /// Events to record, e.g. sched:sched_switch or irq:* [default: sched_switch, sched_wakeup, irq, napi_poll, and
    /// packets in and out; in your own instance: the enabled ones]
    #[arg(long, value_name = "EVENTS", value_delimiter = ',', requires = "trace")]
    trace_events: Vec<String>,
    /// Tracer to use, e.g. function or function_graph
    #[arg(long, value_name = "TRACER", requires = "trace")]
    tracer: Option<String>,
    /// Memory for events, KiB for each CPU
    #[arg(long, value_name = "KIB", requires = "trace")]
    trace_buffer: Option<u64>,
    /// Only events of these CPUs, e.g. 0-3,8
    #[arg(long, value_name = "LIST", requires = "trace")]
    trace_cpus: Option<Cpus>,
    /// Take no snapshot
    #[arg(long, requires = "trace")]
    no_snapshot: bool,
    /// File for the trace [default: ping-breach.trace]
    #[arg(long, value_name = "FILE", requires = "trace")]
    trace_file: Option<PathBuf>,
    /// After a breach, wait for Enter or Ctrl-C, so that you can inspect the stopped instance
    #[arg(long, requires = "trace")]
    hold: bool,
}

impl Freeze {
    /// Starts the thread that runs the user's command for breaches, if there is one, on other CPUs than the measuring
    /// thread's.
    pub fn command(&self, measuring: Option<usize>) -> Result<Option<SpikeCommand>> {
        if self.on_spike.is_requested() && self.threshold.is_none() {
            return Err(Usage("--on-spike needs --threshold".into()).into());
        }
        self.on_spike.begin(false, measuring)
    }

    /// Whether a breach ends the run.
    pub fn stops(&self) -> bool {
        self.threshold.is_some() && !self.keep_going
    }

    /// Whether a trace is requested.
    pub fn is_requested(&self) -> bool {
        self.trace.is_some()
    }

    /// Starts the trace. With `freeze`, the first breach stops it; otherwise it continues, with a mark for each breach.
    pub fn prepare(&self, freeze: bool) -> Result<Option<BreachTrace>> {
        let Some(instance) = &self.trace else { return Ok(None) };
        // An existing instance, or a named tracer, determines the recorded events.
        let is_there = Instance::is_there(instance);
        let mut events = self.trace_events.clone();
        if events.is_empty() && self.tracer.is_none() && !is_there {
            events = EVENTS.split(',').map(str::to_string).collect();
        }
        let breach = BreachTrace::prepare(BreachOptions {
            instance: instance.clone(),
            record: Options {
                events,
                tracer: self.tracer.clone(),
                buffer_kb: self.trace_buffer,
                cpus: self.trace_cpus.iter().flat_map(Cpus::iter).collect(),
                snapshot: !self.no_snapshot,
            },
            save: self.trace_file.clone().unwrap_or_else(|| "ping-breach.trace".into()),
            most_bytes: BreachOptions::MAX_BYTES,
            freeze,
        })?;
        breach.notes().iter().for_each(|note| eprintln!("latpath: {note}"));
        Ok(Some(breach))
    }

    /// Saves a stopped trace, holds it if requested, and undoes all changes.
    pub fn end(&self, breach: Option<BreachTrace>, stop: &AtomicBool) -> BreachReport {
        let Some(breach) = breach else { return BreachReport::default() };
        // A Ctrl-C that ended the run must not end the hold.
        stop.store(false, Ordering::Relaxed);
        let known = breach.notes().len();
        let report = breach.end(self.hold.then_some(stop), &mut std::io::stderr());
        report.notes.iter().skip(known).for_each(|note| eprintln!("latpath: {note}"));
        for file in report.saved.iter().flat_map(|s| &s.files) {
            eprintln!("latpath: the trace is in {}", file.path.display());
        }
        report
    }
}
