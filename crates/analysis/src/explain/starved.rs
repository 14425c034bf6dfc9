//! Finds what kept ptp4l from running while it was starved, in the captures that cover starvation events.

use crate::RunCaptures;
use latpath_capture::{Capture, CaptureKind};
use latpath_flight::{Snapshot, State, ThreadTile, Timeline};
use latpath_model::Ns;
use latpath_stats::units::duration;
use latpath_timesync::{SyncEvent, SyncEventKind};

/// Name of the PTP daemon's thread.
const PTP4L: &str = "ptp4l";
/// Maximum number of culprits that a note names.
const NAMED: usize = 3;
/// Maximum number of events with a note.
const MAX_NOTES: usize = 20;

impl RunCaptures<'_> {
    /// Adds a note for each event of PTP starvation that a capture covers: the threads that ran while ptp4l waited for
    /// its CPU.
    pub fn note_starvation(&mut self) {
        let start = self.run().manifest().start.monotonic_ns;
        let is_starvation = |event: &&SyncEvent| event.kind == SyncEventKind::Starvation;
        let events: Vec<SyncEvent> = self.run().sync().events.iter().filter(is_starvation).cloned().collect();
        let events = &events[..events.len().min(MAX_NOTES)];
        if events.is_empty() {
            return;
        }
        let mut found: Vec<Option<(Ns, String)>> = vec![None; events.len()];
        for kind in [CaptureKind::Spike, CaptureKind::Baseline] {
            self.each(kind, |capture| {
                for (event, known) in events.iter().zip(&mut found) {
                    let longer = |(waited, _): &(Ns, String)| known.as_ref().is_none_or(|(before, _)| waited > before);
                    if let Some(one) = in_capture(capture, event).filter(longer) {
                        *known = Some(one);
                    }
                }
            });
        }
        for (event, known) in events.iter().zip(found) {
            let at = duration(event.from_ns.saturating_sub(start));
            let why = known.map_or_else(
                || "no capture shows ptp4l waiting for a CPU then, so what kept it is not known".into(),
                |(_, text)| text,
            );
            self.files.notes.push(format!("PTP starvation at {at}: {why}"));
        }
    }
}

/// The longest wait of ptp4l for a CPU in a capture that covers the event, ns, and a sentence about it.
fn in_capture(capture: &Capture, event: &SyncEvent) -> Option<(Ns, String)> {
    let covers = capture.from <= event.noticed_ns && capture.to >= event.from_ns;
    let host = capture.machines.first().filter(|_| covers)?.record.as_ref().ok()?;
    let (waited, text) = longest_wait(host)?;
    Some((waited, format!("{text} (capture {})", capture.number)))
}

/// The longest wait of a thread named ptp4l in the window, ns, and a sentence that gives the reason: the threads that
/// ran on its CPU in the meantime, or the CPU quota of its control group.
fn longest_wait(snapshot: &Snapshot) -> Option<(Ns, String)> {
    let (names, timeline) = (snapshot.names(), Timeline::of(&snapshot.window));
    let tiles = names.called(PTP4L).into_iter().flat_map(|pid| timeline.thread(pid).into_iter().map(move |t| (pid, t)));
    let waits = tiles.filter_map(|(pid, tile)| match tile.state {
        State::Ready { cpu: Some(cpu), throttled, .. } => Some((pid, tile, cpu, throttled)),
        _ => None,
    });
    let (pid, ThreadTile { from, to, .. }, cpu, throttled) = waits.max_by_key(|(_, tile, ..)| tile.to - tile.from)?;
    let waited = to.saturating_sub(from);
    let shares = timeline.shares(cpu, from, to);
    let ran =
        shares.iter().take(NAMED).map(|share| format!("{} for {}", names.of_on(&share.doing, cpu), duration(share.ns)));
    let ran: Vec<String> = ran.collect();
    let (thread, waited_text) = (names.of_thread(pid), duration(waited));
    let text = match throttled {
        true => format!("{thread} waited {waited_text}: its control group had used up its CPU quota"),
        false => format!("{thread} waited {waited_text} for CPU {cpu}, where this ran: {}", ran.join(", ")),
    };
    Some((waited, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_flight::{Class, CpuRecord, Event, EventKind, Left, Thread, Window};

    #[test]
    fn the_thread_that_ran_while_ptp4l_waited_is_named() {
        let class = Class { prio: 120, policy: 0 };
        let switch = |t, pid, next, left| Event {
            t,
            pid,
            what: EventKind::Switch { next, left, prev: class, next_class: class },
        };
        let preempted = Left::Ready { preempted: true, throttled: false };
        let events = vec![
            switch(1_000, 0, 7, Left::Ready { preempted: false, throttled: false }),
            switch(2_000, 7, 9, preempted),
            switch(47_000_000, 9, 7, preempted),
            switch(48_000_000, 7, 0, preempted),
        ];
        let cpus = vec![CpuRecord { cpu: 3, events, since: 0, overwritten: 0, unfinished: 0 }];
        let mut snapshot = Snapshot { window: Window { from: 0, to: 50_000_000, cpus }, ..Snapshot::default() };
        for (pid, name) in [(7, "ptp4l"), (9, "stress-ng")] {
            snapshot.threads.insert(pid, Thread { name: name.into(), tgid: pid });
        }
        let (waited, text) = longest_wait(&snapshot).unwrap();
        assert_eq!(waited, 46_998_000);
        assert!(
            text.starts_with("ptp4l (7) waited 47.00 ms for CPU 3, where this ran: stress-ng (9) for 47.00 ms"),
            "{text}"
        );
        snapshot.threads.clear();
        assert_eq!(longest_wait(&snapshot), None, "no ptp4l");
    }
}
