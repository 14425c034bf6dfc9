//! Captures around late packets: limits on those kept, and further actions at a spike.

use clap::Args as ClapArgs;
use latpath_capture::RetentionLimits;
use latpath_run::SpikesRecord;
use latpath_stats::units::count;
use std::time::Duration;

/// Maximum time for which a capture waits for packets in flight; after that they count as lost. Nothing else waits for
/// the capture.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// The same maximum if the recording ends with the capture.
const SHORT_WAIT: Duration = Duration::from_millis(300);

/// Flags for spikes.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Keep the N worst spikes: the time around late packets, on all machines
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = crate::cmd::values::whole::<u32>(1..=100_000), conflicts_with = "no_flight")]
    spikes: u32,
    /// Maximum disk space for spikes, MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = crate::cmd::values::whole::<u32>(1..=1 << 20), conflicts_with = "no_flight")]
    spike_size: u32,
    /// Stop at the first spike
    #[arg(long = "stop-on-spike", conflicts_with = "no_flight")]
    pub stop: bool,
    /// Also record the kernel's events in this tracefs instance. On the first spike, latpath writes a mark, takes a
    /// snapshot and stops the trace, which is saved as RUN/trace.txt. An existing instance is used as is; otherwise
    /// latpath creates one and removes it at the end
    #[arg(long, value_name = "NAME", conflicts_with = "no_flight")]
    pub trace_instance: Option<String>,
}

impl Args {
    /// Maximum time for which a capture waits for packets in flight.
    pub fn max_wait(&self) -> Duration {
        if self.stop {
            SHORT_WAIT
        } else {
            MAX_WAIT
        }
    }

    pub fn retention(&self, per_minute: Option<usize>) -> RetentionLimits {
        RetentionLimits { captures: self.spikes as usize, bytes: u64::from(self.spike_size) << 20, per_minute }
    }
}

/// Formats the counts, e.g. `17 late packets, 3 spikes kept`; `None` without late packets.
pub fn described(record: &SpikesRecord) -> Option<String> {
    let late: u64 = record.late.iter().sum();
    let s = |n: u64| if n == 1 { "" } else { "s" };
    let not_kept = match record.captures_not_kept {
        0 => String::new(),
        n => format!(" ({} less bad not kept)", count(n)),
    };
    let captures = record.captures;
    (late > 0).then(|| {
        format!("{} late packet{}, {} spike{} kept{not_kept}", count(late), s(late), count(captures), s(captures))
    })
}
