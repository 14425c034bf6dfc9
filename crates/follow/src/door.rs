//! The points of guests' doors: for packets that the probe saw at taps, when KVM got their interrupts, and when a vCPU
//! then ran. These sightings are derived from the flight recorder's events a tenth of a second later, so they delay no
//! packet.

use crate::merge::Origin;
use latpath_flight::{EventKind, Recorder, Scope, StartError, Tail, Tailed, Transfer, SETTLED};
use latpath_ladder::door::{Door, DoorCounts, DoorStep, TakeStep};
use latpath_linux::monotonic;
use latpath_model::{
    Counters, DropNote, Link, Ns, Passage, PlannedSend, Point, PointId, PointInfo, PointKind, SenderAt, Sighting,
    Source, SourceNote, SourceNoteKind, SynchChange,
};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// Memory for each CPU's events, bytes; holds a tenth of a second of a CPU that does nothing but record.
const BYTES_PER_CPU: usize = 2 << 20;
/// Interval at which the events are read, ns; not shorter, because each reading sorts those of the last tenth of a
/// second.
const EVERY: Ns = 20_000_000;

/// An origin on this machine, extended by the points of guests' doors.
pub(crate) struct WithDoor<O> {
    origin: O,
    /// `None` once the origin was stopped and all events were read.
    events: Option<(Recorder, Tail)>,
    /// The final notes on the recorder, once it has ended.
    last_notes: Vec<String>,
    door: Door,
    /// When the events are read next; and the time before which all steps have been reported (`settled`).
    due: Ns,
    settled: Ns,
    /// When the origin was stopped.
    stopped: Option<Ns>,
    points: Vec<PointInfo>,
    /// Common IDs of the origin's points, by the origin's own.
    ids: Vec<PointId>,
    /// The points of a door, by the ID of the point at its tap and the step.
    doors: HashMap<(PointId, DoorStep), PointId>,
    /// Packets at taps, in order of time, whose events have not been read yet.
    packets: VecDeque<(Way, Sighting)>,
}

/// The direction of a packet at a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    ToGuest,
    FromGuest,
}

impl<O: Origin> WithDoor<O> {
    /// Starts to record the events.
    ///
    /// # Errors
    /// The kernel or the user's rights do not allow tracing.
    pub fn start(origin: O) -> Result<Self, StartError> {
        let recorder = Recorder::start_for(Scope::Door, BYTES_PER_CPU)?;
        Ok(Self::over(origin, Some((recorder, Tail::new()))))
    }

    fn over(origin: O, events: Option<(Recorder, Tail)>) -> Self {
        Self {
            origin,
            events,
            last_notes: Vec::new(),
            door: Door::default(),
            due: 0,
            settled: Ns::MIN,
            stopped: None,
            points: Vec::new(),
            ids: Vec::new(),
            doors: HashMap::new(),
            packets: VecDeque::new(),
        }
    }

    fn refresh(&mut self) {
        for (at, info) in self.origin.points().into_iter().enumerate() {
            match self.ids.get(at).copied() {
                Some(id) => self.points[usize::from(id)] = info,
                None => {
                    self.points.push(info);
                    self.ids.push((self.points.len() - 1) as PointId);
                }
            }
        }
        for ((tap, _), own) in &self.doors {
            self.points[usize::from(*own)].ifindex = self.points[usize::from(*tap)].ifindex;
        }
    }

    /// Replaces the origin's point ID in a sighting by the common one.
    fn map(&mut self, seen: &mut Sighting) {
        if usize::from(seen.point) >= self.ids.len() {
            self.refresh();
        }
        if let Some(id) = self.ids.get(usize::from(seen.point)) {
            seen.point = *id;
        }
    }

    /// The direction of a sighting at a tap; `None` at other points.
    fn way(&self, seen: &Sighting) -> Option<Way> {
        let info = self.points.get(usize::from(seen.point))?;
        let passage = info.point.kind.info().passage;
        if passage == Passage::ToVm {
            return Some(Way::ToGuest);
        }
        (passage == Passage::FromVm && info.link == Link::Tap).then_some(Way::FromGuest)
    }

    /// ID of the point for a step at the door of this tap; adds the point if it is new.
    fn point(&mut self, tap: PointId, step: DoorStep) -> PointId {
        if let Some(id) = self.doors.get(&(tap, step)) {
            return *id;
        }
        let kind = match step {
            DoorStep::Kicked => PointKind::DoorKick,
            DoorStep::Signalled => PointKind::DoorSignal,
            DoorStep::Entered => PointKind::DoorEnter,
        };
        let info = &self.points[usize::from(tap)];
        let point = Point { kind, ..info.point.clone() };
        self.points.push(PointInfo { point, ..info.clone() });
        let id = (self.points.len() - 1) as PointId;
        self.doors.insert((tap, step), id);
        id
    }

    /// Reads the events before `until`, and appends the steps' sightings to `out`. Returns the time before which they
    /// are complete.
    fn follow(&mut self, until: Ns, out: &mut Vec<Sighting>) -> Ns {
        let Some((recorder, tail)) = &mut self.events else { return until };
        let (door, packets) = (&mut self.door, &mut self.packets);
        let mut steps: Vec<(DoorStep, Sighting)> = Vec::new();
        let mut take = |step: DoorStep, seen: Sighting| steps.push((step, seen));
        let settled = tail.read_until(recorder, until, &mut |tailed| match tailed {
            Tailed::Lost(..) => door.lost(),
            Tailed::Event(cpu, event) => {
                while let Some(packet) = packets.front().copied().filter(|(_, seen)| seen.t <= event.t) {
                    packets.pop_front();
                    pass(door, recorder, packet, &mut take);
                }
                if is_of_vcpu_or_server(&event.what) {
                    identify(door, recorder, event.pid);
                }
                door.push(*cpu, event, &mut take);
            }
        });
        while let Some(packet) = packets.front().copied().filter(|(_, seen)| seen.t < settled) {
            packets.pop_front();
            pass(door, recorder, packet, &mut take);
        }
        door.advance(settled);
        let settled = door.settled(settled);
        for (step, seen) in steps {
            let point = self.point(seen.point, step);
            out.push(Sighting { point, ..seen });
        }
        settled
    }

    /// Reads the last events, after the origin was stopped at `end`, and detaches the recorder.
    fn finish(&mut self, end: Ns, out: &mut Vec<Sighting>) {
        let rest = (end + SETTLED).saturating_sub(monotonic());
        std::thread::sleep(Duration::from_nanos(u64::try_from(rest).unwrap_or(0)));
        self.follow(end, out);
        self.door.finish();
        self.last_notes = self.notes_of_recorder();
        self.events = None;
    }

    fn notes_of_recorder(&self) -> Vec<String> {
        let Some((recorder, _)) = &self.events else { return self.last_notes.clone() };
        let mut notes = Vec::new();
        let missing: BTreeSet<&str> = recorder.missing().iter().map(|missing| missing.lost).collect();
        if !missing.is_empty() {
            let missing: Vec<&str> = missing.into_iter().collect();
            notes.push(format!("--door: this kernel does not show {}", missing.join("; ")));
        }
        let figures = recorder.figures();
        let each = figures.ns_per_event.map_or(String::new(), |ns| format!(", {ns} ns each"));
        notes.push(format!("--door: {} events were recorded{each}", figures.events));
        if figures.missed > 0 {
            notes.push(format!(
                "--door: {} events were missed, because the same program was running already on their CPU",
                figures.missed
            ));
        }
        notes
    }
}

/// Whether the door needs to know the process of this event's thread.
fn is_of_vcpu_or_server(what: &EventKind) -> bool {
    matches!(what, EventKind::KvmEntry { .. } | EventKind::Transfer(Transfer::Round { .. } | Transfer::Read(_)))
}

fn identify(door: &mut Door, recorder: &Recorder, tid: u32) {
    if !door.is_identified(tid) {
        let thread = recorder.thread(tid);
        door.identify(tid, thread.as_ref().map(|thread| (thread.name.as_str(), thread.tgid)));
    }
}

fn pass(door: &mut Door, recorder: &Recorder, (way, seen): (Way, Sighting), take: TakeStep) {
    identify(door, recorder, seen.tid);
    match way {
        Way::ToGuest => door.read(seen, take),
        Way::FromGuest => door.written(seen, take),
    }
}

/// Describes the counts in a sentence; `None` without packets.
fn note_of(counts: DoorCounts) -> Option<String> {
    let DoorCounts { packets, first, shared, before_entry, polled, never_interrupted, unknown, not_taken, .. } = counts;
    let parts = [
        (first, "had an interrupt"),
        (shared, "shared the interrupt of an earlier one (coalesced)"),
        (before_entry, "came before the guest had taken the previous interrupt"),
        (polled, "came while the guest polled (no interrupt)"),
        (never_interrupted, "came by a queue without any interrupt: whether the guest polls is not known"),
        (unknown, "are not known, because events are missing"),
    ];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0);
    let mut text: Vec<String> = parts.map(|(count, what)| format!("{count} {what}")).collect();
    if not_taken > 0 {
        text.push(format!("of those with an interrupt, {not_taken} were not seen to be taken by a vCPU"));
    }
    (packets > 0).then(|| format!("--door: of {packets} packets for guests, {}", text.join("; ")))
}

/// Describes the counts of packets from guests in a sentence; `None` without such packets.
fn note_of_kicks(counts: DoorCounts) -> Option<String> {
    let DoorCounts { from_guests, kicked, .. } = counts;
    (from_guests > 0).then(|| {
        format!(
            "--door: of {from_guests} packets from guests, {kicked} were the first of a round of vhost after a kick"
        )
    })
}

impl<O: Origin> Source for WithDoor<O> {
    fn points(&mut self) -> Vec<PointInfo> {
        self.refresh();
        self.points.clone()
    }

    fn drop_notes(&mut self) -> Vec<DropNote> {
        self.origin.drop_notes()
    }

    fn drain(&mut self, out: &mut Vec<Sighting>) -> Ns {
        let before = out.len();
        let reached = self.origin.drain(out);
        for seen in &mut out[before..] {
            self.map(seen);
            if let Some(way) = self.way(seen) {
                // The sightings are nearly in order, so search from the end.
                let before = self.packets.iter().rposition(|(_, other)| other.t <= seen.t);
                self.packets.insert(before.map_or(0, |before| before + 1), (way, *seen));
            }
        }
        match self.stopped {
            Some(end) => {
                if self.events.is_some() {
                    self.finish(end, out);
                }
                reached
            }
            None => {
                let now = monotonic();
                if now >= self.due {
                    self.due = now + EVERY;
                    self.settled = self.follow(reached, out).max(self.settled);
                }
                reached.min(self.settled)
            }
        }
    }

    fn counters(&mut self) -> Counters {
        self.origin.counters()
    }

    fn source_notes(&mut self) -> Vec<SourceNote> {
        let mut notes = self.origin.source_notes();
        let counts = self.door.counts();
        let own = self.notes_of_recorder().into_iter().chain(note_of(counts)).chain(note_of_kicks(counts));
        notes.extend(own.map(|text| SourceNote::new(SourceNoteKind::Note, text)));
        notes
    }

    fn senders(&mut self) -> Vec<SenderAt> {
        self.refresh();
        let own = |at: SenderAt| Some(SenderAt { point: *self.ids.get(usize::from(at.point))?, ..at });
        self.origin.senders().into_iter().filter_map(own).collect()
    }
}

impl<O: Origin> Origin for WithDoor<O> {
    fn stop(&mut self) -> Result<(), String> {
        self.stopped = Some(monotonic());
        self.origin.stop()
    }

    fn sample(&mut self, n: u32) {
        self.origin.sample(n);
    }

    fn synch_changes(&mut self) -> Vec<SynchChange> {
        self.origin.synch_changes()
    }

    fn planned_sends(&mut self) -> Vec<PlannedSend> {
        self.origin.planned_sends()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// An origin whose points and sightings are set by the test.
    #[derive(Clone, Default)]
    struct FakeOrigin(Arc<Mutex<(Vec<PointInfo>, Vec<Sighting>)>>);

    impl Source for FakeOrigin {
        fn points(&mut self) -> Vec<PointInfo> {
            self.0.lock().unwrap().0.clone()
        }

        fn drop_notes(&mut self) -> Vec<DropNote> {
            Vec::new()
        }

        fn drain(&mut self, out: &mut Vec<Sighting>) -> Ns {
            out.append(&mut self.0.lock().unwrap().1);
            100
        }

        fn counters(&mut self) -> Counters {
            Counters::default()
        }
    }

    impl Origin for FakeOrigin {
        fn stop(&mut self) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn points_of_doors_are_added_between_those_of_the_probe_and_change_none() {
        let origin = FakeOrigin::default();
        let find = |name: &str| origin.0.lock().unwrap().0.push(name.parse::<Point>().unwrap().into());
        let see = |point: PointId, t: Ns| {
            origin.0.lock().unwrap().1.push(Sighting { point, t, ..Sighting::default() });
        };
        let mut with_door = WithDoor::over(origin.clone(), None);
        let drained = |with_door: &mut WithDoor<FakeOrigin>| {
            let mut out = Vec::new();
            assert_eq!(with_door.drain(&mut out), 100);
            let points = with_door.points();
            out.iter().map(|seen| points[usize::from(seen.point)].point.to_string()).collect::<Vec<_>>()
        };
        find("host/vm-read@tap0");
        see(0, 5);
        assert_eq!(drained(&mut with_door), ["host/vm-read@tap0"]);
        let entered = with_door.point(0, DoorStep::Entered);
        find("host/nic-rx@eth0");
        find("host/vm-read@tap1");
        see(2, 7);
        see(1, 6);
        see(0, 8);
        assert_eq!(drained(&mut with_door), ["host/vm-read@tap1", "host/nic-rx@eth0", "host/vm-read@tap0"]);
        assert_eq!(with_door.point(0, DoorStep::Entered), entered);
        let signalled = with_door.point(3, DoorStep::Signalled);
        let name = |at: PointId| with_door.points[usize::from(at)].point.to_string();
        assert_eq!([entered, signalled].map(name), ["host/door-enter@tap0", "host/door-signal@tap1"]);
        let reads: Vec<_> = with_door.packets.iter().map(|(_, read)| (read.t, name(read.point))).collect();
        let expected = [(5, "tap0"), (7, "tap1"), (8, "tap0")].map(|(t, tap)| (t, format!("host/vm-read@{tap}")));
        assert_eq!(reads, expected);
    }

    #[test]
    fn the_note_has_only_what_was_seen() {
        assert_eq!(note_of(DoorCounts::default()), None);
        let counts = DoorCounts { packets: 10, first: 7, shared: 2, polled: 1, not_taken: 1, ..DoorCounts::default() };
        assert_eq!(
            note_of(counts).unwrap(),
            "--door: of 10 packets for guests, 7 had an interrupt; 2 shared the interrupt of an earlier one (coalesced); 1 came \
             while the guest polled (no interrupt); of those with an interrupt, 1 were not seen to be taken by a vCPU"
        );
    }
}
