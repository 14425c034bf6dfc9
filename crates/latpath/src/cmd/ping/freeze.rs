//! What is frozen when a round trip breaks the threshold: the kernel's trace.

use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_ping::breach::{BreachOptions, BreachReport, BreachTrace};
use latpath_tracefs::{Instance, Options};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Events that say most of a late packet, on any kernel.
pub(crate) const EVENTS: &str =
    "sched:sched_switch,sched:sched_wakeup,irq:*,net:netif_receive_skb,net:net_dev_start_xmit,napi:napi_poll";

/// Flags of the trace.
#[derive(ClapArgs, Debug)]
pub struct Freeze {
    /// Record the kernel's events in this tracefs instance; a breach writes a mark, takes a snapshot, stops it and saves it. An
    /// instance of this name that is there already is used as it is, else one is made, and removed at the end
    #[arg(long, value_name = "INSTANCE")]
    trace: Option<String>,
    /// Events to record, as sched:sched_switch or irq:* [default: sched_switch, sched_wakeup, irq, napi_poll, and packets
    /// in and out; in an instance of your own: those that are on]
    #[arg(long, value_name = "EVENTS", value_delimiter = ',', requires = "trace")]
    trace_events: Vec<String>,
    /// Tracer to use, as function or function_graph
    #[arg(long, value_name = "TRACER", requires = "trace")]
    tracer: Option<String>,
    /// Memory for events, KiB for each CPU
    #[arg(long, value_name = "KIB", requires = "trace")]
    trace_buffer: Option<u64>,
    /// Record these CPUs alone
    #[arg(long, value_name = "CPUS", value_delimiter = ',', requires = "trace")]
    trace_cpus: Vec<u32>,
    /// Take no snapshot
    #[arg(long, requires = "trace")]
    no_snapshot: bool,
    /// File for the trace [default: ping-breach.trace]
    #[arg(long, value_name = "FILE", requires = "trace")]
    trace_file: Option<PathBuf>,
    /// After a breach wait for Enter or Ctrl-C, so that the stopped instance can be looked at
    #[arg(long, requires = "trace")]
    hold: bool,
}

impl Freeze {
    /// Whether anything is to be recorded.
    pub fn is_requested(&self) -> bool {
        self.trace.is_some()
    }

    /// Starts recording. `freeze`: the first breach stops it; else the trace goes on, with a mark for each breach.
    pub fn prepare(&self, freeze: bool) -> Result<Option<BreachTrace>> {
        let Some(instance) = &self.trace else { return Ok(None) };
        // Who made an instance, or names a tracer, has said what to record.
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
                cpus: self.trace_cpus.clone(),
                snapshot: !self.no_snapshot,
            },
            save: self.trace_file.clone().unwrap_or_else(|| "ping-breach.trace".into()),
            most_bytes: BreachOptions::MOST_BYTES,
            freeze,
        })?;
        breach.notes().iter().for_each(|note| eprintln!("latpath: {note}"));
        Ok(Some(breach))
    }

    /// Saves what was frozen, holds it where that was asked for, and puts everything back.
    pub fn end(&self, breach: Option<BreachTrace>, stop: &AtomicBool) -> BreachReport {
        let Some(breach) = breach else { return BreachReport::default() };
        // A Ctrl-C that ended the run does not end what comes after it.
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
