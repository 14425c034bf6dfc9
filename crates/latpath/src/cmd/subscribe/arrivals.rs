//! `latpath subscribe --send-time`: when frames arrive after the send times in them.

use crate::cmd::limits::{check, Limits, Measures};
use crate::cmd::times::times_text;
use crate::cmd::values::{some_time, time};
use crate::cmd::{ns, Usage};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_analysis::{parse_duration, Limit, LimitVerdict};
use latpath_histogram::Histogram;
use latpath_model::Ns;
use latpath_stats::units::{count, duration, number_of};
use latpath_stats::{Loss, MachineFigures, SegmentFigures, StreamFigures, Summary, TimeFigures};
use latpath_traffic::{ArrivalOptions, Arrivals, SendTime, SlotRule, StreamReceived, Subscription, MAX_CYCLES};
use latpath_wire::SendClock;
use std::time::Duration;

/// Names of the times on which limits can be set.
const LATENCY: &str = "latency";
const SLOT_ERROR: &str = "slot_error";
/// Names of the ends of these times.
const TALKER: &str = "talker";
const LISTENER: &str = "listener";

/// Arrivals of frames with a send time.
#[derive(ClapArgs)]
pub(super) struct ArrivalArgs {
    /// Where frames contain their send time: publish (what publish --cycle sends), or OFFSET:FORMAT, e.g. 42:ns-be64
    #[arg(long, value_name = "PLACE")]
    send_time: Option<SendTime>,
    /// Clock of the send times: tai, realtime or monotonic
    #[arg(long, value_name = "CLOCK", default_value_t = SendClock::Tai)]
    clock: SendClock,
    /// Maximum error of the receiver's clock against the sender's, e.g. 1us; 0s on one machine [default: not known]
    #[arg(long, value_name = "TIME", value_parser = time, requires = "send_time")]
    clock_error: Option<Duration>,
    /// Length of a cycle of the sender: shows which frames are in their slot, early, or late by how many cycles
    #[arg(long, value_name = "TIME", value_parser = some_time, requires = "send_time")]
    cycle: Option<Duration>,
    /// When a frame is in its slot, after its send time [default: 0s..CYCLE]
    #[arg(long, value_name = "TIME..TIME", value_parser = slot, requires = "cycle")]
    slot: Option<(Ns, Ns)>,
    /// Count frames that arrive later than this after their send time
    #[arg(long, value_name = "TIME", value_parser = some_time, requires = "send_time")]
    deadline: Option<Duration>,
    #[command(flatten)]
    limits: Limits,
}

fn slot(text: &str) -> Result<(Ns, Ns), String> {
    let ends = text.split_once("..").and_then(|(from, to)| Some((parse_duration(from)?, parse_duration(to)?)));
    ends.filter(|(from, to)| from < to).ok_or_else(|| "write a slot, e.g. 0us..125us".into())
}

impl ArrivalArgs {
    pub(super) fn clock(&self) -> SendClock {
        self.clock
    }

    /// The measurements; `None` without send times.
    pub(super) fn options(&self) -> Result<Option<ArrivalOptions>, Usage> {
        let Some(send_time) = self.send_time else { return Ok(None) };
        let slots = self.cycle.map(ns).map(|cycle| {
            let (from, to) = self.slot.unwrap_or((0, cycle));
            if to - from > cycle {
                return Err(Usage("--slot: it is longer than the cycle".into()));
            }
            Ok(SlotRule { cycle, from, to })
        });
        let (deadline, bound) = (self.deadline.map(ns), self.clock_error.map(ns));
        Ok(Some(ArrivalOptions { send_time, slots: slots.transpose()?, deadline, bound }))
    }

    /// The limits, refused if they are on figures that are not measured.
    pub(super) fn limits(&self) -> Result<Vec<Limit>> {
        let mut limits = self.limits.all(false)?;
        let mut segments = Vec::new();
        segments.extend(self.send_time.map(|_| LATENCY.to_owned()));
        segments.extend(self.cycle.map(|_| SLOT_ERROR.to_owned()));
        let not = ["incomplete", "never_seen", "sightings_dropped", "consecutive", "pacing"];
        Measures { segments, steps: None, not: &not }.refuse_others(&mut limits)?;
        Ok(limits)
    }

    /// Prints the limits that are not kept.
    pub(super) fn announce(&self, interface: &str, verdicts: &[LimitVerdict]) -> Result<crate::cmd::Outcome> {
        self.limits.announce(&format!("latpath subscribe {interface}"), verdicts, false)
    }
}

/// The verdicts on limits.
pub(super) fn verdicts(limits: &[Limit], s: &Subscription, options: Option<&ArrivalOptions>) -> Vec<LimitVerdict> {
    if limits.is_empty() {
        return Vec::new();
    }
    check(limits, &summary(s, options))
}

/// The figures on which limits can be set. Without a bound on the clocks' difference, the talker is a machine with an
/// unknown clock.
fn summary(s: &Subscription, options: Option<&ArrivalOptions>) -> Summary {
    let bound = options.and_then(|options| options.bound);
    let threshold_ns = options.and_then(|options| options.deadline).unwrap_or(Ns::MAX);
    let row = |name: &str, times: &Histogram, over_threshold| SegmentFigures {
        name: name.into(),
        from: if bound == Some(0) { LISTENER } else { TALKER }.into(),
        to: LISTENER.into(),
        times: TimeFigures::of(times),
        over_threshold,
        error_bound_ns: bound.unwrap_or(0),
        ..SegmentFigures::default()
    };
    let lost =
        |count| Loss { place: String::new(), reason: None, meaning: None, dropped_at: None, kernel_count: None, count };
    let stream = |received: &StreamReceived| {
        let totals = received.totals();
        let segments = received.arrivals.as_ref().map_or(Vec::new(), |arrivals| {
            let latency = row(LATENCY, &arrivals.latency, arrivals.deadline_missed);
            let slots = options.and_then(|options| options.slots);
            let slot_error = slots.map(|_| row(SLOT_ERROR, &arrivals.slot_error, 0));
            [latency].into_iter().chain(slot_error).collect()
        });
        StreamFigures {
            stream: received.stream.to_string(),
            journeys: totals.received,
            complete: totals.received,
            lost: vec![lost(totals.lost)],
            duplicates: totals.duplicates,
            out_of_order: totals.out_of_order,
            segments,
            ..StreamFigures::default()
        }
    };
    let streams: Vec<_> = s.streams().iter().map(stream).collect();
    let machine = |name: &str| MachineFigures { machine: name.into(), ..MachineFigures::default() };
    let machines = [LISTENER].into_iter().chain(bound.map(|_| TALKER)).map(machine).collect();
    let sum = |f: fn(&StreamReceived) -> u64| s.streams().iter().map(f).sum::<u64>();
    Summary {
        threshold_ns,
        journeys: sum(|s| s.totals().received),
        lost: vec![lost(sum(|s| s.totals().lost))],
        duplicates: sum(|s| s.totals().duplicates),
        out_of_order: sum(|s| s.totals().out_of_order),
        malformed: s.unread.total(),
        streams,
        machines,
        ..Summary::default()
    }
}

/// Adds the lines of a stream's arrivals.
pub(super) fn add(lines: &mut Vec<String>, arrivals: &Arrivals, options: &ArrivalOptions) {
    let bound = options.bound.map_or("error of the clocks not known".into(), |b| format!("±{}", duration(b)));
    if let Some(figures) = times_text(&arrivals.latency) {
        lines.push(format!(
            "  latency      min {}, {figures} after the send time ({bound})",
            duration(arrivals.latency.min())
        ));
    }
    if let Some(rule) = options.slots {
        let slots = &arrivals.slots;
        let most = |cycles: u64| if cycles == MAX_CYCLES { " or more" } else { "" };
        let by = slots.late.iter().map(|(n, frames)| format!("{} by {n}{}", count(*frames), most(*n)));
        let by = by.collect::<Vec<_>>().join(", ");
        let late = if by.is_empty() { String::new() } else { format!(" (cycles: {by})") };
        let (from, to) = (duration(rule.from), duration(rule.to));
        lines.push(format!(
            "  slots        {} in slot ({from} to {to}), {} early, {} late{late}",
            count(slots.in_slot),
            count(slots.early),
            count(slots.late())
        ));
        if slots.uncertain > 0 {
            lines.push(format!(
                "  note         {} in another slot if the clocks differ as much as they can",
                number_of(slots.uncertain, "frame")
            ));
        }
    }
    if let Some(deadline) = options.deadline {
        let missed = number_of(arrivals.deadline_missed, "frame");
        lines.push(format!("  deadline     {missed} later than {}", duration(deadline)));
    }
    if arrivals.untimed > 0 {
        lines.push(format!(
            "  untimed      {} without a send time or an arrival time",
            number_of(arrivals.untimed, "frame")
        ));
    }
    if arrivals.latency.negatives() > 0 {
        let n = number_of(arrivals.latency.negatives(), "frame");
        lines.push(format!("  clock fault  {n} arrived before the send time: the clocks differ"));
    }
    let tagged =
        (0..8).filter(|pcp| arrivals.pcp[*pcp] > 0).map(|pcp| format!("{} with PCP {pcp}", count(arrivals.pcp[pcp])));
    let untagged = (arrivals.pcp[8] > 0).then(|| format!("{} without a tag", count(arrivals.pcp[8])));
    lines.push(format!("  priority     {}", tagged.chain(untagged).collect::<Vec<_>>().join(", ")));
}
