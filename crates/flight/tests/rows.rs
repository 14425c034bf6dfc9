//! Checks the timelines of CPUs and threads for given events, and that any events yield valid timelines.

use latpath_flight::*;
use latpath_model::Ns;
use proptest::prelude::*;

const NORMAL: Class = Class { prio: 120, policy: 0 };
const ASLEEP: Left = Left::Asleep(Sleep::Interruptible);
const PREEMPTED: Left = Left::Ready { preempted: true, throttled: false };

fn at(t: Ns, pid: u32, what: EventKind) -> Event {
    Event { t, pid, what }
}

fn switch(t: Ns, prev: u32, left: Left, next: u32) -> Event {
    at(t, prev, EventKind::Switch { next, left, prev: NORMAL, next_class: NORMAL })
}

fn waking(t: Ns, waker: u32, pid: u32) -> Event {
    at(t, waker, EventKind::Waking { pid, cpu: 0, class: NORMAL })
}

fn wakeup(t: Ns, here: u32, pid: u32, cpu: u32) -> Event {
    at(t, here, EventKind::Wakeup { pid, cpu, class: NORMAL, throttled: false })
}

/// Records that begin at 0, and a window from 100 to 1000.
fn window(cpus: Vec<Vec<Event>>) -> Window {
    let record = |(cpu, events)| CpuRecord { cpu, events, ..CpuRecord::default() };
    Window { from: 100, to: 1000, cpus: (0..).zip(cpus).map(record).collect() }
}

fn rows(timeline: &Timeline, cpu: u32) -> Vec<(Ns, Ns, Doing)> {
    let row = timeline.cpu(cpu).unwrap().between(timeline.from, timeline.to);
    row.into_iter()
        .map(|t| match t.doing {
            Doing::Thread(r) => (t.from, t.to, Doing::Thread(Running { class: None, ..r })),
            doing => (t.from, t.to, doing),
        })
        .collect()
}

fn runs(pid: u32) -> Doing {
    Doing::Thread(Running { pid, class: None, guest: false, work: None })
}

#[test]
fn a_thread_whose_policy_is_changed_while_it_runs_has_the_new_one() {
    let fifo = Class { prio: 9, policy: 1 };
    let events = vec![
        switch(50, 0, ASLEEP, 7),
        at(200, 7, EventKind::IrqEntry(25)),
        at(230, 7, EventKind::IrqExit(25)),
        at(600, 7, EventKind::Switch { next: 8, left: ASLEEP, prev: fifo, next_class: NORMAL }),
    ];
    let timeline = Timeline::of(&window(vec![events]));
    let classes = timeline.cpu(0).unwrap().between(100, 1000).into_iter().map(|tile| match tile.doing {
        Doing::Thread(running) => running.class,
        _ => None,
    });
    assert_eq!(classes.collect::<Vec<_>>(), [Some(fifo), None, Some(fifo), Some(NORMAL)]);
}

#[test]
fn interrupts_are_cut_out_of_the_thread_they_interrupt() {
    let events = vec![
        switch(50, 0, ASLEEP, 7),
        at(200, 7, EventKind::IrqEntry(25)),
        at(230, 7, EventKind::IrqExit(25)),
        at(230, 7, EventKind::SoftirqEntry(3)),
        at(250, 7, EventKind::VectorEntry(Vector::LocalTimer)),
        at(255, 7, EventKind::HrtimerEntry(0xf00)),
        at(260, 7, EventKind::HrtimerExit),
        at(270, 7, EventKind::VectorExit(Vector::LocalTimer)),
        at(300, 7, EventKind::SoftirqExit(3)),
        at(450, 7, EventKind::Nmi { took: 40 }),
        switch(600, 7, ASLEEP, 0),
        at(610, 0, EventKind::Idle(Some(2))),
        at(900, 0, EventKind::Idle(None)),
    ];
    let timeline = Timeline::of(&window(vec![events]));
    let tick = Doing::Vector(Vector::LocalTimer);
    assert_eq!(
        rows(&timeline, 0),
        [
            (100, 200, runs(7)),
            (200, 230, Doing::Irq(25)),
            (230, 250, Doing::Softirq(3)),
            (250, 255, tick),
            (255, 260, Doing::Timer(0xf00)),
            (260, 270, tick),
            (270, 300, Doing::Softirq(3)),
            (300, 410, runs(7)),
            (410, 450, Doing::Nmi),
            (450, 600, runs(7)),
            (600, 610, Doing::Idle { state: None }),
            (610, 900, Doing::Idle { state: Some(2) }),
            (900, 1000, Doing::Idle { state: None }),
        ]
    );
    assert_eq!(timeline.cpus[0].garbled, 0);
    let shares = timeline.shares(0, 100, 610);
    assert_eq!((shares[0].doing.thread(), shares[0].ns), (Some(7), 100 + 110 + 150));
    assert_eq!(shares.iter().map(|s| s.ns).sum::<Ns>(), 510);
}

#[test]
fn activities_from_before_the_record_are_known_by_their_end() {
    let events = vec![at(200, 7, EventKind::VectorExit(Vector::Reschedule)), at(300, 7, EventKind::SoftirqExit(1))];
    let timeline = Timeline::of(&window(vec![events]));
    assert_eq!(
        rows(&timeline, 0),
        [(100, 200, Doing::Vector(Vector::Reschedule)), (200, 300, Doing::Softirq(1)), (300, 1000, runs(7))]
    );
}

/// The kernel does not nest a tracing program in itself: if a timer interrupts the recording of another timer, its
/// beginning is lost.
#[test]
fn a_timer_with_a_missed_beginning_does_not_end_the_interrupted_one() {
    let tick = Vector::LocalTimer;
    let events = vec![
        switch(10, 0, ASLEEP, 7),
        at(150, 7, EventKind::SoftirqEntry(8)),
        at(200, 7, EventKind::HrtimerEntry(0xf00)),
        at(210, 7, EventKind::VectorEntry(tick)),
        at(230, 7, EventKind::HrtimerExit),
        at(240, 7, EventKind::VectorExit(tick)),
        at(300, 7, EventKind::HrtimerExit),
        at(310, 7, EventKind::SoftirqExit(8)),
    ];
    let timeline = Timeline::of(&window(vec![events]));
    let (soft, timer) = (Doing::Softirq(8), Doing::Timer(0xf00));
    assert_eq!(
        rows(&timeline, 0),
        [
            (100, 150, runs(7)),
            (150, 200, soft),
            (200, 210, timer),
            (210, 240, Doing::Vector(tick)),
            (240, 300, timer),
            (300, 310, soft),
            (310, 1000, runs(7))
        ]
    );
    assert_eq!(timeline.cpus[0].garbled, 1);
}

#[test]
fn softirqs_of_preempt_rt_continue_with_their_thread() {
    let events = vec![
        switch(10, 0, ASLEEP, 7),
        at(150, 7, EventKind::SoftirqEntry(3)),
        switch(200, 7, PREEMPTED, 9),
        switch(300, 9, ASLEEP, 7),
        at(400, 7, EventKind::SoftirqExit(3)),
    ];
    let timeline = Timeline::of(&window(vec![events]));
    let net = Doing::Softirq(3);
    assert_eq!(
        rows(&timeline, 0),
        [(100, 150, runs(7)), (150, 200, net), (200, 300, runs(9)), (300, 400, net), (400, 1000, runs(7))]
    );
}

#[test]
fn a_threads_guests_and_work_are_shown() {
    let events = vec![
        switch(10, 0, ASLEEP, 7),
        at(150, 7, EventKind::KvmEntry { vcpu: Some(0) }),
        at(250, 7, EventKind::KvmExit { vcpu: Some(0), reason: Some(0x78), isa: 2 }),
        switch(300, 7, ASLEEP, 8),
        at(310, 8, EventKind::WorkStart(0xabc)),
        switch(400, 8, ASLEEP, 0),
        switch(500, 0, ASLEEP, 8),
        at(600, 8, EventKind::WorkEnd),
    ];
    let timeline = Timeline::of(&window(vec![events]));
    let row = timeline.cpu(0).unwrap();
    let thread = |t| match row.at(t) {
        Doing::Thread(r) => (r.pid, r.guest, r.work),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        [120, 200, 260, 350, 550, 700].map(thread),
        [
            (7, false, None),
            (7, true, None),
            (7, false, None),
            (8, false, Some(0xabc)),
            (8, false, Some(0xabc)),
            (8, false, None)
        ]
    );
}

#[test]
fn a_thread_sleeps_is_woken_waits_runs_and_is_preempted() {
    let cpu0 = vec![
        switch(50, 7, ASLEEP, 9),
        wakeup(310, 9, 7, 0),
        switch(500, 9, ASLEEP, 7),
        switch(700, 7, PREEMPTED, 9),
        switch(800, 9, ASLEEP, 7),
    ];
    let cpu1 = vec![
        switch(20, 0, ASLEEP, 4),
        at(290, 4, EventKind::SoftirqEntry(3)),
        waking(300, 4, 7),
        at(320, 4, EventKind::SoftirqExit(3)),
    ];
    let timeline = Timeline::of(&window(vec![cpu0, cpu1]));
    let woken = Since::Woken(Waker { t: 300, cpu: 1, pid: 4, context: Doing::Softirq(3) });
    let ready = |since| State::Ready { cpu: Some(0), since, throttled: false };
    let row: Vec<_> = timeline.thread(7).into_iter().map(|t| (t.from, t.to, t.state)).collect();
    assert_eq!(
        row,
        [
            (100, 300, State::Asleep(Sleep::Interruptible)),
            (300, 500, ready(woken)),
            (500, 700, State::Running { cpu: 0 }),
            (700, 800, ready(Since::Preempted)),
            (800, 1000, State::Running { cpu: 0 }),
        ]
    );
}

#[test]
fn a_wake_up_of_a_thread_about_to_sleep_counts_from_its_sleep() {
    // The thread's CPU notices the wakeup only after it has left an idle state.
    let cpu0 = vec![
        switch(10, 0, ASLEEP, 7),
        switch(305, 7, ASLEEP, 0),
        at(306, 0, EventKind::Idle(Some(1))),
        at(380, 0, EventKind::Idle(None)),
        wakeup(390, 0, 7, 0),
        switch(400, 0, ASLEEP, 7),
    ];
    let cpu1 = vec![waking(300, 4, 7)];
    let row = Timeline::of(&window(vec![cpu0, cpu1])).thread(7);
    let Some(ThreadTile { from: 305, to: 400, state: State::Ready { cpu: Some(0), since: Since::Woken(by), .. } }) =
        row.get(1)
    else {
        panic!("{row:?}")
    };
    assert_eq!((by.pid, by.t), (4, 300));
}

#[test]
fn a_thread_that_was_woken_before_it_slept_sleeps_the_next_time() {
    let cpu0 = vec![
        switch(10, 0, ASLEEP, 7),
        switch(305, 7, ASLEEP, 0),
        switch(400, 0, ASLEEP, 7),
        switch(500, 7, ASLEEP, 0),
        // The thread was woken while it still ran, so it does not sleep.
        switch(600, 0, ASLEEP, 7),
        switch(700, 7, ASLEEP, 0),
    ];
    let cpu1 = vec![waking(300, 4, 7), waking(550, 4, 7), waking(650, 4, 7), wakeup(651, 4, 7, 0)];
    let row = Timeline::of(&window(vec![cpu0, cpu1])).thread(7);
    let states: Vec<_> = row.iter().skip(1).map(|t| (t.from, matches!(t.state, State::Asleep(_)))).collect();
    assert_eq!(
        states,
        [(305, false), (400, false), (500, true), (550, false), (600, false), (700, true)],
        "asleep, but for where it was woken: {row:?}"
    );
}

#[test]
fn a_wake_up_before_a_cpus_record_does_not_count_as_missing() {
    let mut window = window(vec![vec![switch(120, 7, ASLEEP, 9), switch(900, 9, ASLEEP, 7)], vec![]]);
    let states =
        |window: &Window| Timeline::of(window).thread(7).iter().map(|t| (t.from, t.to, t.state)).collect::<Vec<_>>();
    let asleep = State::Asleep(Sleep::Interruptible);
    assert_eq!(states(&window)[1], (120, 900, asleep), "all CPUs were seen, and none has woken it");
    window.cpus[1].since = 400;
    let ready = State::Ready { cpu: Some(0), since: Since::Unknown, throttled: false };
    assert_eq!(
        states(&window)[1..3],
        [(120, 400, State::Unknown), (400, 900, ready)],
        "ready at the latest from then on"
    );
}

#[test]
fn throttled_and_stopped_threads_are_reported_as_such() {
    let throttled = Left::Ready { preempted: true, throttled: true };
    let stop = Left::Asleep(Sleep::Stopped);
    let events = vec![switch(200, 7, throttled, 0), switch(500, 0, ASLEEP, 7), switch(600, 7, stop, 0)];
    let row = Timeline::of(&window(vec![events])).thread(7);
    assert_eq!(row[0].state, State::Running { cpu: 0 }, "by its first switch");
    assert!(matches!(row[1].state, State::Ready { throttled: true, since: Since::Preempted, .. }));
    assert_eq!(row[3].state, State::Asleep(Sleep::Stopped));
}

#[test]
fn times_and_threads_without_events_are_unknown() {
    let mut given = window(vec![vec![switch(500, 0, ASLEEP, 7)], vec![at(600, 3, EventKind::Idle(None))]]);
    given.cpus[0].since = 400;
    let timeline = Timeline::of(&given);
    assert_eq!(rows(&timeline, 0)[0], (100, 400, Doing::Unknown));
    let whole = |pid| timeline.thread(pid).iter().map(|t| (t.from, t.to, t.state)).collect::<Vec<_>>();
    assert_eq!(whole(77), [(100, 1000, State::Unknown)]);
    assert_eq!(whole(7)[0], (100, 400, State::Unknown));
    assert!(!given.is_complete());
    assert_eq!(Timeline::of(&Window { from: 5, to: 9, cpus: Vec::new() }).thread(1).len(), 1);
}

#[test]
fn where_a_switch_is_missing_the_last_thread_switched_to_is_assumed() {
    let events = vec![switch(50, 0, ASLEEP, 7), at(200, 7, EventKind::WorkEnd), at(400, 3, EventKind::SoftirqRaise(3))];
    let timeline = Timeline::of(&window(vec![events]));
    assert_eq!(rows(&timeline, 0), [(100, 200, runs(7)), (200, 400, runs(7)), (400, 1000, runs(3))]);
    let cpu = &timeline.cpus[0];
    let assumed: Vec<_> = cpu.between(100, 1000).iter().map(CpuTile::is_assumed).collect();
    assert_eq!(assumed, [false, true, false]);
    assert_eq!(cpu.at(300), Doing::Unknown, "it is not recorded");
    assert!(cpu.shares(200, 400).iter().all(|share| share.doing == Doing::Unknown));
    assert_eq!(timeline.cpus[0].missed_switches, 1);
    let row: Vec<_> = timeline.thread(7).iter().map(|t| (t.from, t.to, t.state)).collect();
    assert_eq!(row, [(100, 200, State::Running { cpu: 0 }), (200, 1000, State::Unknown)]);
}

#[test]
fn an_unknown_cpu_does_not_hide_others_events() {
    let mut given = window(vec![vec![switch(200, 0, ASLEEP, 7)], Vec::new()]);
    given.cpus[1].since = Ns::MAX;
    let row = Timeline::of(&given).thread(7);
    assert_eq!(row.last().map(|t| (t.from, t.state)), Some((200, State::Running { cpu: 0 })));
    assert!(!given.is_complete());
}

fn any_class() -> impl Strategy<Value = Class> {
    (any::<i16>(), any::<u8>()).prop_map(|(prio, policy)| Class { prio, policy })
}

fn any_pid() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0u32..6, 1 => any::<u32>()]
}

fn any_vector() -> impl Strategy<Value = Vector> {
    prop_oneof![Just(Vector::LocalTimer), Just(Vector::Reschedule), any::<u32>().prop_map(Vector::Other)]
}

fn any_left() -> impl Strategy<Value = Left> {
    prop_oneof![
        (any::<bool>(), any::<bool>()).prop_map(|(preempted, throttled)| Left::Ready { preempted, throttled }),
        prop_oneof![Just(Sleep::Interruptible), Just(Sleep::Stopped), Just(Sleep::Unknown)].prop_map(Left::Asleep),
    ]
}

fn any_what() -> impl Strategy<Value = EventKind> {
    prop_oneof![
        3 => (any_pid(), any_left(), any_class(), any_class())
            .prop_map(|(next, left, prev, next_class)| EventKind::Switch { next, left, prev, next_class }),
        2 => (any_pid(), any::<u32>(), any_class()).prop_map(|(pid, cpu, class)| EventKind::Waking { pid, cpu, class }),
        2 => (any_pid(), any::<u32>(), any_class(), any::<bool>())
            .prop_map(|(pid, cpu, class, throttled)| EventKind::Wakeup { pid, cpu, class, throttled }),
        1 => (any_pid(), 0u32..4, 0u32..4).prop_map(|(pid, from, to)| EventKind::Migrate { pid, from, to }),
        2 => (0u32..3).prop_map(EventKind::IrqEntry),
        2 => (0u32..3).prop_map(EventKind::IrqExit),
        2 => (0u32..3).prop_map(EventKind::SoftirqEntry),
        2 => (0u32..3).prop_map(EventKind::SoftirqExit),
        1 => any_vector().prop_map(EventKind::VectorEntry),
        1 => any_vector().prop_map(EventKind::VectorExit),
        1 => prop_oneof![0..300i64, any::<i64>()].prop_map(|took| EventKind::Nmi { took }),
        1 => any::<u64>().prop_map(EventKind::TimerEntry),
        1 => Just(EventKind::TimerExit),
        1 => any::<u64>().prop_map(EventKind::HrtimerEntry),
        1 => Just(EventKind::HrtimerExit),
        1 => prop::option::of(0u32..3).prop_map(EventKind::Idle),
        1 => Just(EventKind::KvmEntry { vcpu: None }),
        1 => Just(EventKind::KvmExit { vcpu: None, reason: None, isa: 9 }),
        1 => any::<u64>().prop_map(EventKind::WorkStart),
        1 => Just(EventKind::WorkEnd),
        1 => any::<u16>().prop_map(EventKind::Other),
    ]
}

fn any_record() -> impl Strategy<Value = CpuRecord> {
    let time = prop_oneof![20 => 0..1200i64, 1 => any::<i64>()];
    let event = (time, any_pid(), any_what()).prop_map(|(t, pid, what)| Event { t, pid, what });
    let since = prop_oneof![3 => 0..1100i64, 1 => Just(Ns::MAX), 1 => any::<i64>()];
    (0u32..4, prop::collection::vec(event, 0..60), since, any::<bool>()).prop_map(|(cpu, mut events, since, sorted)| {
        if sorted {
            events.sort_by_key(|e| e.t);
        }
        CpuRecord { cpu, events, since, ..CpuRecord::default() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn rows_never_overlap_and_sum_to_the_window(
        cpus in prop::collection::vec(any_record(), 0..4),
        from in prop_oneof![5 => 0..600i64, 1 => any::<i64>()],
        len in 0..600i64,
    ) {
        let to = from.saturating_add(len);
        let timeline = Timeline::of(&Window { from, to, cpus });
        for row in &timeline.cpus {
            let tiles = row.between(from, to);
            let ends: Vec<_> = tiles.iter().map(|t| (t.from, t.to)).collect();
            whole(&ends, from, to)?;
            prop_assert_eq!(row.shares(from, to).iter().map(|s| s.ns).sum::<Ns>(), to - from);
        }
        for pid in 0..6 {
            let ends: Vec<_> = timeline.thread(pid).iter().map(|t| (t.from, t.to)).collect();
            whole(&ends, from, to)?;
        }
    }
}

/// Checks that the tiles are contiguous and not empty, and cover the whole interval.
fn whole(tiles: &[(Ns, Ns)], from: Ns, to: Ns) -> Result<(), TestCaseError> {
    let mut cursor = from;
    for (begin, end) in tiles {
        prop_assert_eq!(*begin, cursor);
        prop_assert!(end > begin);
        cursor = *end;
    }
    prop_assert_eq!(cursor, to);
    Ok(())
}
