//! Properties that hold for any events in any order.

use crate::event::{Device, Direction, Doorbell, Event, EventKind, Line};
use crate::ladder::{Join, Ladder};
use crate::report::LadderFigures;
use crate::threads::Identity;
use latpath_model::Observation;
use proptest::prelude::*;

fn what() -> impl Strategy<Value = EventKind> {
    let pid = 0..6u32;
    let eventfd = 0..5u64;
    let device = (0..2u32).prop_map(|ifindex| Device { ifindex, netns: 0 });
    let direction = prop_oneof![Just(Direction::FromGuest), Just(Direction::ToGuest)];
    let vector = 32..35u32;
    let line = prop_oneof![(32..35u64).prop_map(Line::Message), (0..2u64).prop_map(Line::Wire)];
    prop_oneof![
        (pid.clone(), any::<bool>()).prop_map(|(next, asleep)| EventKind::Switch { next, asleep }),
        pid.prop_map(|pid| EventKind::Waking { pid }),
        (0..3u16).prop_map(EventKind::Exit),
        Just(EventKind::Entry),
        (0..3u64).prop_map(|value| EventKind::Write(Doorbell { is_port: false, address: 0x1000, value })),
        Just(EventKind::Read),
        eventfd.clone().prop_map(EventKind::Signal),
        eventfd.clone().prop_map(EventKind::Take),
        (eventfd.clone(), eventfd.clone(), direction.clone()).prop_map(|(kick, call, direction)| EventKind::Serve {
            kick,
            call,
            direction
        }),
        eventfd.prop_map(EventKind::Irqfd),
        device.clone().prop_map(EventKind::Arrive),
        (direction, proptest::option::of(device))
            .prop_map(|(direction, device)| EventKind::Packet { direction, device }),
        line.prop_map(EventKind::Raise),
        vector.clone().prop_map(|vector| EventKind::Accept { vector }),
        vector.clone().prop_map(|vector| EventKind::Posted { vector }),
        vector.clone().prop_map(|vector| EventKind::Inject { vector }),
        vector.prop_map(|vector| EventKind::Eoi { vector }),
        (0..3u64).prop_map(EventKind::Lost),
    ]
}

fn ladder(join: Join, events: &[Event]) -> Ladder {
    let mut ladder = Ladder::new(join);
    for pid in 1..3 {
        let identity = Identity { name: format!("vhost-{pid}"), process: None, is_vhost: true };
        ladder.identify(pid, identity);
    }
    events.iter().for_each(|event| ladder.push(event));
    ladder
}

fn check(report: &Observation<LadderFigures>) -> Result<(), TestCaseError> {
    for means in report.figures.queues.iter().flat_map(|queue| &queue.ladders) {
        let rungs: i64 = means.rungs.iter().map(|rung| rung.time.sum_ns).sum();
        prop_assert_eq!(rungs, means.total.sum_ns, "the rungs sum to the transfers");
        prop_assert!(means.rungs.iter().all(|rung| rung.time.min_ns >= 0), "no rung is negative");
        prop_assert!(means.total.count > 0 && means.drawn.len() >= 2);
        let drawn: i64 = means.drawn.iter().map(|step| step.rung_ns).sum();
        prop_assert_eq!(drawn, means.drawn.last().map_or(0, |step| step.at_ns));
    }
    Ok(())
}

/// Events with increasing times; with `back`, sometimes decreasing.
fn events(back: bool) -> impl Strategy<Value = Vec<Event>> {
    let step = if back { -50..100i64 } else { 0..100i64 };
    let event = (step, 0..2u32, 0..6u32, what());
    proptest::collection::vec(event, 0..400).prop_map(|events| {
        let mut t = 1000;
        let mut at = |(step, cpu, pid, what): (i64, u32, u32, EventKind)| {
            t += step;
            Event { t, cpu, pid, what }
        };
        events.into_iter().map(&mut at).collect()
    })
}

proptest! {
    #[test]
    fn rungs_sum_to_their_transfer_whatever_events_come(events in events(true), eventfds: bool) {
        let join = if eventfds { Join::Eventfds } else { Join::Wakeups };
        check(&ladder(join, &events).finish())?;
    }

    #[test]
    fn in_order_no_step_is_before_the_one_that_causes_it(events in events(false), eventfds: bool) {
        let join = if eventfds { Join::Eventfds } else { Join::Wakeups };
        // Threads that run without a wakeup would be counted too, so no thread sleeps here.
        let awake: Vec<Event> = events
            .into_iter()
            .map(|event| match event.what {
                EventKind::Switch { next, .. } => Event { what: EventKind::Switch { next, asleep: false }, ..event },
                _ => event,
            })
            .collect();
        prop_assert_eq!(ladder(join, &awake).finish().figures.causality_violations, 0);
    }
}

#[test]
fn memory_is_bounded_where_nothing_ever_ends() {
    let mut ladder = Ladder::new(Join::Eventfds);
    for n in 0..200_000u32 {
        let event = |what| Event { t: n.into(), cpu: 0, pid: 1 + n, what };
        let doorbell = Doorbell { is_port: false, address: n.into(), value: 0 };
        let device = Device { ifindex: n, netns: 0 };
        let line = Line::Message(n.into());
        let whats = [
            EventKind::Exit(0),
            EventKind::Write(doorbell),
            EventKind::Signal(n.into()),
            EventKind::Arrive(device),
            EventKind::Serve { kick: n.into(), call: u64::from(n) + 1_000_000, direction: Direction::FromGuest },
            EventKind::Packet { direction: Direction::FromGuest, device: Some(device) },
            EventKind::Raise(line),
            EventKind::Accept { vector: n },
        ];
        whats.into_iter().for_each(|what| ladder.push(&event(what)));
        ladder.reason(&format!("reason {n}"));
        ladder.name_device(device, "x");
    }
    let sizes = [ladder.open.len(), ladder.lanes.len(), ladder.calls(), ladder.vectors.len(), ladder.reasons.len()];
    assert!(sizes.iter().zip([1024, 512, 4096, 4096, 256]).all(|(size, most)| *size <= most), "{sizes:?}");
    let report = ladder.finish();
    assert!(report.notes.iter().any(|note| note.contains("beyond the first 512")), "{:?}", report.notes);
}
