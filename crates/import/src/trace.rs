//! Extracts the machines' activity around late packets from traces that were recorded together with the imported files.
//! The results are captures like the flight recorder's, so that `latpath explain` can name causes.
//!
//! While packets are joined, [`Late`] finds the late ones and the intervals that are needed
//! ([`latpath_capture::LateDetector`]). Then each trace is read once, and these intervals are extracted.

mod events;
mod sightings;
mod windows;

use crate::{clock::Offset, ImportError};
use latpath_capture::{
    Capture, CaptureKind, CaptureRequest, CapturedPackets, LateDetector, LatenessRule, MachineSnapshot, Options,
    Packet, RankedCapture, RetentionLimits, RetentionPolicy,
};
use latpath_flight::{Snapshot, Thread};
use latpath_journey::{Journey, Layout};
use latpath_model::{stream::MAX_STREAMS, text::printable, Ns, PointInfo, SegmentKind, HOST};
use latpath_run::{RunError, Writer};
use latpath_stats::units::{count, duration, number_of};
use std::{collections::BTreeMap, path::PathBuf, str::FromStr, sync::atomic::AtomicBool};
use windows::{cut_out, Cut, CutOut};

/// A trace of a machine, written `MACHINE=FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Name of the machine, as in points.
    pub machine: String,
    /// Output of `trace-cmd report` or `perf script`, or the kernel's `trace` file.
    pub path: PathBuf,
}

impl FromStr for Trace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((machine, path)) if !machine.is_empty() && !machine.contains('/') && !path.is_empty() => {
                Ok(Self { machine: machine.into(), path: path.into() })
            }
            _ => Err(format!("{text:?}: write MACHINE=FILE, e.g. relay=trace.txt")),
        }
    }
}

/// A trace, and the offset of its clock from the run's timeline.
pub(crate) struct PlacedTrace<'a> {
    pub trace: &'a Trace,
    /// The trace's clock minus the timeline, ns.
    pub ahead: Ns,
    /// Maximum error of `ahead`, ns, if known.
    pub bound: Option<Ns>,
}

/// Determines the offsets of the traces' clocks. `offset` returns a machine's clock minus the timeline, with its bound.
pub(crate) fn placed<'a>(
    traces: &'a [Trace],
    trace_offsets: &[Offset],
    points: &[PointInfo],
    offset: impl Fn(&str) -> (Ns, Option<Ns>),
) -> Result<Vec<PlacedTrace<'a>>, ImportError> {
    let has_trace = |machine: &String| traces.iter().any(|trace| trace.machine == *machine);
    let on_points = |machine: &String| points.iter().any(|info| info.point.machine == *machine);
    let machines = || points.iter().map(|info| info.point.machine.clone());
    if let Some(trace) = traces.iter().find(|trace| !on_points(&trace.machine)) {
        let mut there: Vec<String> = machines().collect();
        there.dedup();
        return Err(ImportError::NoMachine { machine: trace.machine.clone(), there: there.join(", ") });
    }
    if let Some(offset) = trace_offsets.iter().find(|offset| !has_trace(&offset.machine)) {
        let there: Vec<&str> = traces.iter().map(|trace| trace.machine.as_str()).collect();
        return Err(ImportError::NoMachine { machine: offset.machine.clone(), there: there.join(", ") });
    }
    if let Some(twice) = traces
        .iter()
        .enumerate()
        .find_map(|(at, t)| traces[..at].iter().any(|before| before.machine == t.machine).then_some(t))
    {
        return Err(ImportError::TwoTraces { machine: twice.machine.clone() });
    }
    let place = |trace: &'a Trace| {
        let given = trace_offsets.iter().rfind(|offset| offset.machine == trace.machine);
        let (of_machine, bound) = offset(&trace.machine);
        let of_trace = given.map_or(Some(0), |given| given.bound_ns);
        PlacedTrace {
            trace,
            ahead: given.map_or(0, |given| given.ns).saturating_add(of_machine),
            bound: bound.zip(of_trace).map(|(a, b)| a.saturating_add(b)),
        }
    };
    let mut all: Vec<PlacedTrace> = traces.iter().map(place).collect();
    // In a capture, the host comes first.
    all.sort_by_key(|placed| placed.trace.machine != HOST);
    Ok(all)
}

/// A capture whose interval has yet to be extracted from the traces.
#[derive(Debug)]
struct PendingCapture {
    request: CaptureRequest,
    packets: CapturedPackets,
}

/// Finds late packets, and the intervals of the traces that are needed.
pub(crate) struct Late {
    detector: LateDetector,
    limits: RetentionLimits,
    requests: BTreeMap<u32, CaptureRequest>,
    needed: Vec<PendingCapture>,
    /// Number of spikes omitted in favour of worse ones.
    left_out: u64,
}

impl Late {
    pub fn new(threshold: Ns, window: Ns, writer: &mut Writer) -> Result<Self, RunError> {
        let limits = RetentionLimits::default();
        let retention = RetentionPolicy::new(limits);
        writer.begin_spikes(retention.clone())?;
        let options =
            Options { rule: LatenessRule::Over(threshold), max_wait: window.saturating_mul(2), baselines: true };
        let detector = LateDetector::new(options, MAX_STREAMS, retention);
        Ok(Self { detector, limits, requests: BTreeMap::new(), needed: Vec::new(), left_out: 0 })
    }

    pub fn set_layout(&mut self, layout: &Layout, streams: usize) {
        // Tmu is excluded: a packet is not late because its sample was.
        let segments: Vec<_> = layout.segments.iter().filter(|s| s.kind != SegmentKind::Tmu).cloned().collect();
        self.detector.set_layout(&segments, &layout.route.by_streams(streams));
    }

    #[inline]
    pub fn take(&mut self, journey: &Journey) {
        self.detector.take(journey);
    }

    /// Call it when all journeys that began before `reached` have been added.
    pub fn advance(&mut self, now: Ns, reached: Ns) {
        self.detector.advance(now, reached);
        self.collect(reached);
    }

    fn collect(&mut self, reached: Ns) {
        while let Some(request) = self.detector.next_request() {
            self.requests.insert(request.number, request);
        }
        while let Some(packets) = self.detector.next_packets(reached) {
            if let Some(request) = self.requests.remove(&packets.number) {
                self.needed.push(PendingCapture { request, packets });
            }
        }
        let spikes = |needed: &PendingCapture| needed.request.kind == CaptureKind::Spike;
        while self.needed.iter().filter(|n| spikes(n)).count() > self.limits.captures {
            let least = self.needed.iter().enumerate().filter(|(_, n)| spikes(n)).min_by_key(|(_, n)| n.packets.worst);
            let Some((least, _)) = least else { break };
            self.needed.remove(least);
            self.left_out += 1;
        }
    }

    /// Reads the traces, and passes the captures to the writer. Returns notes for the reader.
    pub fn finish(
        mut self,
        placed: &[PlacedTrace],
        points: &[PointInfo],
        end: Ns,
        writer: &mut Writer,
        stop: &AtomicBool,
    ) -> Result<Vec<String>, ImportError> {
        self.detector.finish(end);
        self.collect(Ns::MAX / 2);
        let mut notes = Vec::new();
        let times: Vec<(Ns, Ns)> = self.needed.iter().map(|needed| (needed.request.from, needed.request.to)).collect();
        // Imported sightings have no CPUs or threads; they are added from the traces.
        self.needed.iter_mut().for_each(|needed| sightings::forget(&mut needed.packets.packets));
        let mut machines: Vec<Vec<MachineSnapshot>> = self.needed.iter().map(|_| Vec::new()).collect();
        for placed in placed {
            let found = cut_out(&placed.trace.path, &times, placed.ahead, stop)?;
            let resolution = if found.whole_microseconds { 1000 } else { 0 };
            self.check(placed, &found, end)?;
            notes.extend(notes_of(placed, &found, self.needed.len()));
            let CutOut { cuts, reader, .. } = found;
            let functions = reader.functions();
            let missing = missing(&reader);
            let within = placed.bound.unwrap_or(0).saturating_add(resolution);
            for ((cut, needed), machines) in cuts.into_iter().zip(&mut self.needed).zip(&mut machines) {
                let machine = placed.trace.machine.clone();
                let record = record(&cut, &reader, &functions, &missing);
                if let Ok(snapshot) = &record {
                    sightings::fill(&mut needed.packets.packets, points, &machine, snapshot, (&cut, &reader), within);
                }
                machines.push(MachineSnapshot { machine, offset_ns: 0, error_bound_ns: within, record });
            }
        }
        let mut counts = self.detector.counts().clone();
        counts.late.truncate(writer.manifest().streams.len());
        counts.passed_over += self.left_out;
        let streams = counts.late.len();
        for (needed, machines) in self.needed.into_iter().zip(machines) {
            let PendingCapture { request, packets } = needed;
            let CapturedPackets { worst, packets, more_late, mut late, .. } = packets;
            late.truncate(streams);
            let CaptureRequest { number, kind, from, to, .. } = request;
            let capture = Capture { number, kind, from, to, machines, packets, more_late };
            writer.spike_patiently(RankedCapture { capture, worst, late })?;
        }
        writer.count_spikes(&counts);
        Ok(notes)
    }

    /// Checks that the trace has usable events, and that they are from the right time.
    fn check(&self, placed: &PlacedTrace, found: &CutOut, end: Ns) -> Result<(), ImportError> {
        let path = placed.trace.path.clone();
        let Some((first, last)) = found.span else { return Err(ImportError::NoTrace { path }) };
        let reader = &found.reader;
        // If some lines name a source and others do not, the named ones are buffers of a single machine's trace.
        if reader.sources.len() > 1 && !reader.has_own_lines {
            let sources = reader.sources.iter().cloned().collect::<Vec<_>>().join(", ");
            return Err(ImportError::SeveralTraces { path, sources });
        }
        if !reader.kinds.switches && reader.unread_switches > 0 {
            let (lines, example) = (reader.unread_switches, reader.unread_switch.clone());
            return Err(ImportError::UnreadSwitches { path, lines, example });
        }
        if !reader.kinds.switches {
            return Err(ImportError::NoSwitches { path });
        }
        let overlaps =
            self.needed.is_empty() || self.needed.iter().any(|n| first <= n.request.to && last >= n.request.from);
        if overlaps || (first..=last).contains(&end) {
            return Ok(());
        }
        let begin = self.needed.iter().map(|n| n.request.from).min().unwrap_or(end);
        Err(ImportError::OtherTime { path, machine: placed.trace.machine.clone(), by: begin.saturating_sub(first) })
    }
}

/// A machine's events during a capture, with the names in its trace.
fn record(
    cut: &Cut,
    reader: &events::Reader,
    functions: &BTreeMap<u64, String>,
    missing: &[String],
) -> Result<Snapshot, String> {
    if cut.is_full {
        return Err("its trace has more events there than latpath keeps".into());
    }
    if cut.window.cpus.is_empty() {
        return Err("its trace has no event there".into());
    }
    let mut threads = BTreeMap::new();
    let mut name = |pid: u32| {
        if let Some((name, process)) = reader.threads.get(&pid) {
            threads.entry(pid).or_insert_with(|| Thread { name: name.clone(), tgid: process.unwrap_or(pid) });
        }
    };
    for event in cut.window.cpus.iter().flat_map(|record| &record.events) {
        use latpath_flight::EventKind::{Migrate, Switch, Wakeup, Waking};
        name(event.pid);
        match event.what {
            Switch { next: pid, .. } | Waking { pid, .. } | Wakeup { pid, .. } | Migrate { pid, .. } => name(pid),
            _ => {}
        }
    }
    Ok(Snapshot {
        window: cut.window.clone(),
        threads,
        irqs: reader.irqs.clone(),
        functions: functions.clone(),
        missing: missing.to_vec(),
        ..Snapshot::default()
    })
}

/// Kinds of events that a trace lacks, formatted for display.
fn missing(reader: &events::Reader) -> Vec<String> {
    let kinds = &reader.kinds;
    let all = [
        (kinds.wakings, "sched_waking: who woke whom is not known"),
        (kinds.irqs, "irq_handler_entry: devices' interrupts are not seen"),
        (kinds.softirqs, "softirq_entry: the network's softirqs are not seen"),
        (kinds.idle, "cpu_idle: idle states are not seen"),
    ];
    all.into_iter().filter(|(is_there, _)| !is_there).map(|(_, what)| format!("no {what}")).collect()
}

fn notes_of(placed: &PlacedTrace, found: &CutOut, needed: usize) -> Vec<String> {
    let path = printable(&placed.trace.path.display().to_string());
    let mut notes: Vec<String> = missing(&found.reader).into_iter().map(|what| format!("{path}: {what}")).collect();
    if !found.reader.kinds.packets {
        notes.push(format!(
            "{path}: no net_dev_start_xmit, netif_receive_skb and skb_copy_datagram_iovec: which CPU and thread had a packet is \
             known where scheduling alone shows it"
        ));
    }
    if placed.bound.is_none() {
        notes.push(format!(
            "{path}: nothing says how far its clock was off that of {}'s packets: causes are wrong by that (--trace-offset \
             {}=TIME±BOUND)",
            placed.trace.machine, placed.trace.machine
        ));
    }
    if found.lost > 0 {
        notes.push(format!("{path}: its recorder lost {}", number_of(found.lost, "event")));
    }
    if found.no_events > 0 {
        notes.push(format!("{path}: lines that are no events: {}", count(found.no_events)));
    }
    let without = found.cuts.iter().filter(|cut| cut.window.cpus.is_empty()).count();
    if without > 0 && needed > 0 {
        let span = found.span.map_or(0, |(first, last)| last.saturating_sub(first));
        notes.push(format!(
            "{path}: {without} of {needed} times around late packets and of the baseline are not in it: it covers {}",
            duration(span)
        ));
    }
    notes
}

/// Packets of a capture.
pub(crate) type Packets = Vec<Packet>;
