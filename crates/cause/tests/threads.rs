//! Causes of delay where threads had to act.

mod stage;

use latpath_cause::{Cause, NoFlow};
use latpath_flight::{Class, EventKind, FlowLimits, FlowState, IdleStates, Left, Removal, Sleep, Thread, Upcall};
use stage::{fifo, Stage, NET_RX, OTHER};

const READER: u32 = 7;
const HOG: u32 = 9;

/// A reader that sleeps on CPU 0 and is woken at 120 by the softirq of a sender on CPU 1.
fn a_reader_is_woken() -> Stage {
    let mut stage = Stage::new(&[(READER, "qemu"), (HOG, "hog"), (5, "sender"), (11, "bash")]);
    stage.packet(&[("host/tx@tap0", 100, 1, 5), ("host/vm-read@tap0", 300, 0, READER)]);
    stage
}

fn sender_wakes_at_120(stage: &mut Stage) {
    stage.cpu(|c| {
        c.runs(5).at(80).raises(NET_RX).at(85).softirq(NET_RX).at(120).wakes(READER, 0).at(140).softirq_ends(NET_RX);
        c.at(400).sleeps_then(0);
    });
}

#[test]
fn an_immediate_reader_is_work_of_the_threads_that_passed_the_packet() {
    let mut stage = a_reader_is_woken();
    stage.cpu(|c| {
        c.runs(READER).at(10).sleeps_then(0).at(130).sleeps_then(READER).at(400).sleeps_then(0);
    });
    sender_wakes_at_120(&mut stage);
    assert_eq!(
        stage.explained(),
        ["100-120 work softirq NET_RX", "120-130 idle-exit qemu (7) < idle", "130-300 work qemu (7)",]
    );
}

#[test]
fn a_reader_waits_for_its_cpu_behind_one_that_is_more_urgent() {
    let mut stage = a_reader_is_woken();
    stage.cpu(|c| {
        c.class(HOG, fifo(80)).runs(READER).at(10).sleeps_then(HOG);
        c.at(200).irq(25).at(220).irq_ends(25).at(280).sleeps_then(READER).at(400).sleeps_then(0);
    });
    sender_wakes_at_120(&mut stage);
    assert_eq!(
        stage.explained(),
        [
            "100-120 work softirq NET_RX",
            "120-200 waiting-for-cpu qemu (7) < hog (9)",
            "200-220 interrupted qemu (7) < irq 25",
            "220-280 waiting-for-cpu qemu (7) < hog (9)",
            "280-300 work qemu (7)",
        ]
    );
    let behind = stage.intervals()[1].clone();
    assert_eq!(behind.by.unwrap().class.unwrap().to_string(), "FIFO 80");
    assert_eq!(behind.actor.unwrap().class.unwrap().to_string(), "SCHED_OTHER");
    assert_eq!(behind.cpu, Some(0));
}

#[test]
fn activity_of_a_locks_holder_before_the_wait_is_not_blamed() {
    let mut stage = a_reader_is_woken();
    stage.cpu(|c| {
        // The reader runs briefly after the hog, and must then wait for bash, which slept all the time before.
        c.class(HOG, fifo(80))
            .runs(READER)
            .at(10)
            .sleeps_then(HOG)
            .at(190)
            .timer(0xd00)
            .at(192)
            .wakes(11, 0)
            .timer_ends();
        c.at(200).sleeps_then(READER).at(210).sleeps_then(11).at(240).wakes(READER, 0).at(250).sleeps_then(READER);
        c.at(400).sleeps_then(0);
    });
    sender_wakes_at_120(&mut stage);
    assert_eq!(
        stage.explained(),
        [
            "100-120 work softirq NET_RX",
            "120-190 waiting-for-cpu qemu (7) < hog (9)",
            "190-192 interrupted qemu (7) < timer 0xd00",
            "192-200 waiting-for-cpu qemu (7) < hog (9)",
            "200-210 work qemu (7)",
            "210-240 work bash (11)",
            "240-250 waiting-for-cpu qemu (7) < bash (11)",
            "250-300 work qemu (7)",
        ]
    );
}

#[test]
fn a_reader_that_was_awake_has_had_the_packet_since_its_arrival() {
    let mut stage = a_reader_is_woken();
    stage.cpu(|c| {
        c.class(HOG, fifo(80)).runs(READER).at(10).preempted_by(HOG);
        c.at(200).sleeps_then(READER).at(210).sleeps_then(11).at(240).wakes(READER, 0).at(250).sleeps_then(READER);
        c.at(400).sleeps_then(0);
    });
    stage.cpu(|c| {
        c.runs(5).at(80).raises(NET_RX).at(85).softirq(NET_RX).at(140).softirq_ends(NET_RX).at(400).sleeps_then(0);
    });
    assert_eq!(
        stage.explained(),
        [
            "100-200 waiting-for-cpu qemu (7) < hog (9)",
            "200-210 work qemu (7)",
            "210-240 work bash (11)",
            "240-250 waiting-for-cpu qemu (7) < bash (11)",
            "250-300 work qemu (7)",
        ]
    );
}

#[test]
fn a_ready_reader_beside_an_idle_cpu_is_throttled() {
    let mut stage = a_reader_is_woken();
    stage.cpu(|c| {
        // No event at the wakeup shows the throttling: other threads of the reader's group use up the time at that
        // moment.
        c.runs(READER)
            .at(10)
            .sleeps_then(HOG)
            .at(150)
            .sleeps_then(0)
            .at(155)
            .idles(1)
            .at(180)
            .idles_no_more()
            .at(182)
            .idles(1);
        c.at(190).idles_no_more().at(195).sleeps_then(11).at(215).sleeps_then(0).at(220).idles(1);
        c.at(250).idles_no_more().at(255).sleeps_then(11).at(270).sleeps_then(READER).at(400).sleeps_then(0);
    });
    sender_wakes_at_120(&mut stage);
    assert_eq!(
        stage.explained(),
        [
            "100-120 work softirq NET_RX",
            "120-150 waiting-for-cpu qemu (7) < hog (9)",
            "150-255 throttled qemu (7)",
            "255-270 waiting-for-cpu qemu (7) < bash (11)",
            "270-300 work qemu (7)",
        ]
    );
}

/// A reader of this class that works from 130 on and leaves its CPU at 150 although it is still ready: the idle loop
/// runs until 200, then bash, an ordinary thread, until 280.
fn a_reader_leaves_its_cpu_while_it_works(class: Class, next: u32) -> Stage {
    let mut stage = a_reader_is_woken();
    stage.cpu(|c| {
        c.class(READER, class).runs(READER).at(10).sleeps_then(0).at(130).sleeps_then(READER);
        c.at(150).preempted_by(next);
        if next == 0 {
            c.at(200).sleeps_then(11);
        }
        c.at(280).sleeps_then(READER).at(400).sleeps_then(0);
    });
    sender_wakes_at_120(&mut stage);
    stage
}

#[test]
fn a_ready_reader_that_leaves_its_cpu_to_the_idle_loop_is_throttled() {
    let deadline = Class { prio: -1, policy: 6 };
    let throttled = "150-280 throttled qemu (7)";
    for class in [deadline, fifo(10)] {
        for next in [0, 11] {
            assert_eq!(a_reader_leaves_its_cpu_while_it_works(class, next).explained()[3], throttled, "{class} {next}");
        }
    }
    assert_eq!(
        a_reader_leaves_its_cpu_while_it_works(OTHER, 0).explained()[3..5],
        ["150-200 throttled qemu (7)", "200-280 waiting-for-cpu qemu (7) < bash (11)"]
    );
    assert_eq!(
        a_reader_leaves_its_cpu_while_it_works(OTHER, 11).explained()[3],
        "150-280 waiting-for-cpu qemu (7) < bash (11)"
    );
}

#[test]
fn a_deadline_may_come_before_real_time() {
    let mut stage = a_reader_is_woken();
    stage.cpu(|c| {
        c.class(READER, fifo(10)).class(HOG, Class { prio: -1, policy: 6 });
        c.runs(READER).at(10).sleeps_then(0).at(130).sleeps_then(READER);
        c.at(150).preempted_by(HOG).at(250).sleeps_then(READER).at(400).sleeps_then(0);
    });
    sender_wakes_at_120(&mut stage);
    assert_eq!(stage.explained()[3], "150-250 waiting-for-cpu qemu (7) < hog (9)");
}

#[test]
fn a_reader_that_is_preempted_while_it_works_waits_too() {
    let mut stage = a_reader_is_woken();
    stage.cpu(|c| {
        c.runs(READER).at(10).sleeps_then(0).at(130).sleeps_then(READER);
        c.at(150).preempted_by(HOG).at(250).preempted_by(11).at(290).sleeps_then(READER).at(400).sleeps_then(0);
    });
    sender_wakes_at_120(&mut stage);
    assert_eq!(
        stage.explained(),
        [
            "100-120 work softirq NET_RX",
            "120-130 idle-exit qemu (7) < idle",
            "130-150 work qemu (7)",
            "150-250 waiting-for-cpu qemu (7) < hog (9)",
            "250-290 waiting-for-cpu qemu (7) < bash (11)",
            "290-300 work qemu (7)",
        ]
    );
}

#[test]
fn interrupts_are_cut_out_of_a_readers_work() {
    let mut stage = a_reader_is_woken();
    stage.cpu(|c| {
        c.runs(READER).at(10).sleeps_then(0).at(130).sleeps_then(READER);
        c.at(150).irq(25).at(160).irq_ends(25).softirq(NET_RX).at(240).softirq_ends(NET_RX).at(400).sleeps_then(0);
    });
    sender_wakes_at_120(&mut stage);
    assert_eq!(
        stage.explained()[2..],
        [
            "130-150 work qemu (7)",
            "150-160 interrupted qemu (7) < irq 25",
            "160-240 interrupted qemu (7) < softirq NET_RX",
            "240-300 work qemu (7)",
        ]
    );
}

#[test]
fn an_idle_cpu_wakes_up_from_its_state() {
    let mut stage = a_reader_is_woken();
    stage.cpu(|c| {
        c.runs(READER).at(10).sleeps_then(0).at(12).idles(3).at(260).idles_no_more();
        c.at(270).sleeps_then(READER).at(400).sleeps_then(0);
    });
    sender_wakes_at_120(&mut stage);
    assert_eq!(
        stage.explained(),
        ["100-120 work softirq NET_RX", "120-270 idle-exit qemu (7) < idle (state 3) #3", "270-300 work qemu (7)",]
    );
    let names = |last: &str| vec!["POLL".into(), "C1".into(), "C1E".into(), last.into()];
    stage.snapshot().idle_states = IdleStates::named([(0, names("C6")), (1, names("C8"))]);
    assert_eq!(stage.explained()[1], "120-270 idle-exit qemu (7) < idle (C6) #3");
    assert_eq!(stage.intervals()[1].state.as_deref(), Some("C6"), "that of its CPU");
}

#[test]
fn a_throttled_reader_waits_for_its_groups_time() {
    let mut stage = a_reader_is_woken();
    stage.cpu(|c| {
        c.runs(READER).at(10).sleeps_then(0).at(280).sleeps_then(READER).at(400).sleeps_then(0);
    });
    stage.cpu(|c| {
        c.runs(5).at(80).raises(NET_RX).softirq(NET_RX).at(120).wakes_throttled(READER, 0).at(140).softirq_ends(NET_RX);
    });
    assert_eq!(
        stage.explained(),
        ["100-120 work softirq NET_RX", "120-280 throttled qemu (7)", "280-300 work qemu (7)",]
    );
}

#[test]
fn a_stopped_reader_stays_stopped_despite_other_events() {
    let mut stage = a_reader_is_woken();
    stage.cpu(|c| {
        c.runs(READER).at(10).leaves(Left::Asleep(Sleep::Stopped), 0).at(270).sleeps_then(READER);
        c.at(400).sleeps_then(0);
    });
    stage.cpu(|c| {
        c.runs(5).at(80).raises(NET_RX).softirq(NET_RX).at(140).softirq_ends(NET_RX).at(200).sleeps_then(11);
        c.at(260).wakes(READER, 0).at(400).sleeps_then(0);
    });
    assert_eq!(
        stage.explained(),
        ["100-260 stopped qemu (7)", "260-270 idle-exit qemu (7) < idle", "270-300 work qemu (7)",]
    );
    assert_eq!(stage.intervals()[0].note().as_deref(), Some("it went on by bash (11)"));
}

/// A reader that is woken, and then waits in the kernel for a lock from 140 to 250.
fn a_reader_waits_for_a_lock() -> Stage {
    let mut stage = a_reader_is_woken();
    stage.cpu(|c| {
        c.runs(READER).at(10).sleeps_then(0).at(130).sleeps_then(READER);
        c.at(140).leaves(Left::Asleep(Sleep::Blocked), 0).at(260).sleeps_then(READER).at(400).sleeps_then(0);
    });
    stage
}

#[test]
fn a_reader_that_waits_for_a_lock_is_blocked_until_its_holder_wakes_it() {
    let mut stage = a_reader_waits_for_a_lock();
    stage.cpu(|c| {
        c.runs(5).at(80).raises(NET_RX).softirq(NET_RX).at(120).wakes(READER, 0).at(140).softirq_ends(NET_RX);
        c.at(150).sleeps_then(11).at(250).wakes(READER, 0).at(400).sleeps_then(0);
    });
    assert_eq!(
        stage.explained(),
        [
            "100-120 work softirq NET_RX",
            "120-130 idle-exit qemu (7) < idle",
            "130-140 work qemu (7)",
            "140-150 waiting-for-cpu bash (11) < sender (5)",
            "150-250 blocked qemu (7) < bash (11)",
            "250-260 idle-exit qemu (7) < idle",
            "260-300 work qemu (7)",
        ]
    );
}

#[test]
fn a_readers_work_in_the_kernel_is_reported() {
    let mut stage = a_reader_is_woken();
    stage.function(1, "schedule").function(2, "folio_wait_bit_common").function(3, "filemap_fault");
    stage.cpu(|c| {
        c.runs(READER).at(130).event(EventKind::ReclaimBegin).at(180).event(EventKind::ReclaimEnd).at(200);
        c.event(EventKind::BlockedAt([1, 2])).event(EventKind::BlockedAt([3, 0]));
        c.leaves(Left::Asleep(Sleep::Blocked), 0).at(240).irq(25).at(245).wakes(READER, 0).at(248).irq_ends(25);
        c.at(250).sleeps_then(READER).at(400).event(EventKind::PageFaults(160)).sleeps_then(0);
    });
    sender_wakes_at_120(&mut stage);
    let said: Vec<_> = stage.intervals().iter().map(|p| (p.from, p.cause, p.note())).collect();
    let note = |text: &str| Some(text.to_owned());
    let blocked = note("it waited for a page from the disk, in folio_wait_bit_common");
    assert_eq!(
        said.iter().filter(|(_, cause, _)| matches!(cause, Cause::Work | Cause::Blocked)).cloned().collect::<Vec<_>>(),
        [
            (100, Cause::Work, None),
            (120, Cause::Work, None),
            (130, Cause::Work, note("it had to free memory before it got some")),
            (180, Cause::Work, None),
            (200, Cause::Blocked, blocked),
            (250, Cause::Work, note("100 page faults or more")),
        ]
    );
}

#[test]
fn a_kernel_locks_holder_that_waits_for_its_cpu_is_named_with_what_it_waits_for() {
    let mut stage = a_reader_waits_for_a_lock();
    stage.cpu(|c| {
        c.runs(5).at(80).raises(NET_RX).softirq(NET_RX).at(120).wakes(READER, 0).at(140).softirq_ends(NET_RX);
        c.at(400).sleeps_then(0);
    });
    stage.cpu(|c| {
        c.class(HOG, fifo(80)).runs(11).at(150).preempted_by(HOG).at(200).irq(25).at(220).irq_ends(25);
        c.at(240).sleeps_then(11).at(250).wakes(READER, 0).at(400).sleeps_then(0);
    });
    assert_eq!(
        stage.explained()[3..8],
        [
            "140-150 blocked qemu (7) < bash (11)",
            "150-200 waiting-for-cpu bash (11) < hog (9)",
            "200-220 interrupted bash (11) < irq 25",
            "220-240 waiting-for-cpu bash (11) < hog (9)",
            "240-250 blocked qemu (7) < bash (11)",
        ]
    );
}

#[test]
fn a_kernel_locks_holder_that_waits_for_a_disk_is_named_with_what_it_waits_for() {
    let mut stage = a_reader_waits_for_a_lock();
    stage.function(1, "schedule").function(2, "folio_wait_bit_common").function(3, "filemap_fault");
    stage.cpu(|c| {
        c.runs(5).at(80).raises(NET_RX).softirq(NET_RX).at(120).wakes(READER, 0).at(140).softirq_ends(NET_RX);
        c.at(400).sleeps_then(0);
    });
    stage.cpu(|c| {
        c.runs(11).at(160).event(EventKind::BlockedAt([1, 2])).event(EventKind::BlockedAt([3, 0]));
        c.leaves(Left::Asleep(Sleep::Blocked), 0).at(230).irq(25).at(235).wakes(11, 2).at(236).irq_ends(25);
        c.at(240).sleeps_then(11).at(250).wakes(READER, 0).at(400).sleeps_then(0);
    });
    let said = &stage.explained()[3..8];
    assert_eq!(
        said,
        [
            "140-160 blocked qemu (7) < bash (11)",
            "160-235 blocked bash (11) < irq 25",
            "235-236 interrupted bash (11) < irq 25",
            "236-240 idle-exit bash (11) < idle",
            "240-250 blocked qemu (7) < bash (11)",
        ]
    );
    let of_disk = stage.intervals().iter().find(|interval| interval.from == 160).and_then(|interval| interval.note());
    assert_eq!(of_disk.as_deref(), Some("it waited for a page from the disk, in folio_wait_bit_common"));
}

#[test]
fn a_reader_that_sleeps_by_its_own_timer_polls() {
    let mut stage = a_reader_is_woken();
    stage.function(0xf00, "hrtimer_wakeup");
    stage.cpu(|c| {
        c.runs(READER).at(10).sleeps_then(0).at(250).timer(0xf00).at(255).wakes(READER, 0).at(260).timer_ends();
        c.at(270).sleeps_then(READER).at(400).sleeps_then(0);
    });
    stage.cpu(|c| {
        c.runs(5).at(80).raises(NET_RX).softirq(NET_RX).at(140).softirq_ends(NET_RX);
    });
    assert_eq!(
        stage.explained(),
        [
            "100-255 poll-interval qemu (7) < timer hrtimer_wakeup #245",
            "255-260 interrupted qemu (7) < timer hrtimer_wakeup",
            "260-270 idle-exit qemu (7) < idle",
            "270-300 work qemu (7)",
        ]
    );
}

#[test]
fn the_walk_continues_along_the_chain_of_wakers() {
    let mut stage = a_reader_is_woken();
    // The sender wakes a helper, which waits behind the hog before waking the reader.
    stage.cpu(|c| {
        c.runs(READER).at(10).sleeps_then(0).at(260).sleeps_then(READER).at(400).sleeps_then(0);
    });
    stage.cpu(|c| {
        c.runs(5).at(110).wakes(11, 2).at(400).sleeps_then(0);
    });
    stage.cpu(|c| {
        c.runs(11).at(20).sleeps_then(HOG).at(230).preempted_by(11).at(250).wakes(READER, 0).at(400).sleeps_then(0);
    });
    assert_eq!(
        stage.explained(),
        [
            "100-110 work sender (5)",
            "110-230 waiting-for-cpu bash (11) < hog (9)",
            "230-250 work bash (11)",
            "250-260 idle-exit qemu (7) < idle",
            "260-300 work qemu (7)",
        ]
    );
    let waiters: Vec<_> = stage.intervals().into_iter().map(|p| p.waiter.map(|waiter| waiter.name)).collect();
    let waits = || Some("qemu (7)".to_owned());
    assert_eq!(waiters, [waits(), waits(), waits(), None, None]);
}

#[test]
fn an_earlier_burst_is_processed_first() {
    let mut stage = Stage::new(&[(READER, "qemu"), (5, "sender")]);
    stage.cpu(|c| {
        c.runs(READER).at(400).sleeps_then(0);
    });
    for at in [120, 180, 250] {
        stage.packet(&[("host/tx@tap0", 90, 1, 5), ("host/vm-read@tap0", at, 0, READER)]);
    }
    stage.packet(&[("host/tx@tap0", 90, 1, 5), ("host/vm-read@tap0", 260, 3, 99)]);
    stage.packet(&[("host/tx@tap0", 100, 1, 5), ("host/vm-read@tap0", 300, 0, READER)]);
    assert_eq!(stage.explained(), ["100-250 queued-behind qemu (7) #3", "250-300 work qemu (7)"]);
}

#[test]
fn a_burst_during_the_readers_work_waits_for_it_first() {
    let mut stage = Stage::new(&[(READER, "relay"), (5, "sender")]);
    stage.cpu(|c| {
        c.runs(READER).at(50_000).sleeps_then(0);
    });
    for n in 1..=20 {
        stage.packet(&[("host/tx@tap0", 1_000 + n, 1, 5), ("host/vm-read@tap0", 9_000 + n * 20, 0, READER)]);
    }
    assert_eq!(
        stage.explained(),
        ["1020-9000 work relay (7)", "9000-9380 queued-behind relay (7) #19", "9380-9400 work relay (7)"]
    );
}

#[test]
fn the_first_delay_of_the_reader_keeps_its_cause_before_a_queue() {
    let mut stage = a_reader_is_woken();
    stage.capture.packets.clear();
    stage.packet(&[("host/tx@tap0", 90, 1, 5), ("host/vm-read@tap0", 285, 0, READER)]);
    stage.packet(&[("host/tx@tap0", 100, 1, 5), ("host/vm-read@tap0", 300, 0, READER)]);
    stage.cpu(|c| {
        c.runs(READER).at(10).sleeps_then(HOG).at(280).sleeps_then(READER).at(400).sleeps_then(0);
    });
    stage.cpu(|c| {
        c.runs(5).at(85).softirq(NET_RX).at(95).wakes(READER, 0).at(140).softirq_ends(NET_RX);
    });
    assert_eq!(
        stage.explained(),
        ["100-280 waiting-for-cpu qemu (7) < hog (9)", "280-285 queued-behind qemu (7) #1", "285-300 work qemu (7)",]
    );
}

#[test]
fn steady_packets_during_a_readers_work_are_not_a_burst() {
    let mut stage = Stage::new(&[(READER, "relay"), (5, "sender")]);
    stage.cpu(|c| {
        c.runs(READER).at(50_000).sleeps_then(0);
    });
    for n in 1..=6 {
        let came = n * 1_000;
        let read = if n < 2 { came + 10 } else { 9_000 + (n - 1) * 20 };
        stage.packet(&[("host/tx@tap0", came, 1, 5), ("host/app-read@relay", read, 0, READER)]);
    }
    assert_eq!(stage.explained(), ["6000-9100 work relay (7)"]);
}

#[test]
fn a_slowly_drained_queue_still_counts_for_the_burst_that_filled_it() {
    let mut stage = Stage::new(&[(READER, "relay"), (HOG, "hog"), (5, "sender")]);
    stage.cpu(|c| {
        c.class(HOG, fifo(50)).runs(READER).at(1_500).preempted_by(HOG).at(9_000).sleeps_then(READER);
        c.at(50_000).sleeps_then(0);
    });
    for n in 1..=12 {
        let came = n * 1_000;
        let read = if n < 2 { came + 10 } else { 9_000 + (n - 1) * 600 };
        stage.packet(&[("host/tx@tap0", came, 1, 5), ("host/app-read@relay", read, 0, READER)]);
    }
    assert_eq!(
        stage.explained(),
        ["12000-12600 work relay (7)", "12600-15000 waiting-for-cpu relay (7) < hog (9)", "15000-15600 work relay (7)"]
    );
}

#[test]
fn a_burst_is_known_by_packets_that_come_closer_together_than_usual() {
    let mut stage = Stage::new(&[(READER, "relay"), (5, "sender")]);
    stage.cpu(|c| {
        c.runs(READER).at(50_000).sleeps_then(0);
    });
    for n in 1..=10 {
        stage.packet(&[("host/tx@tap0", n * 1_000, 1, 5), ("host/app-read@relay", n * 1_000 + 10, 0, READER)]);
    }
    for n in 1..=20 {
        stage.packet(&[("host/tx@tap0", 11_000 + n, 1, 5), ("host/app-read@relay", 11_000 + n * 300, 0, READER)]);
    }
    assert_eq!(stage.explained(), ["11020-16700 queued-behind relay (7) #19", "16700-17000 work relay (7)"]);
}

#[test]
fn the_switchs_daemon_works_on_packets_without_a_flow() {
    let mut stage = Stage::new(&[(READER, "handler3"), (HOG, "hog"), (5, "sender")]);
    stage.packet(&[("host/ovs-upcall@veth0", 100, 1, 5), ("host/ovs-return@veth0", 300, 0, READER)]);
    stage.cpu(|c| {
        c.class(HOG, fifo(80)).runs(READER).at(10).sleeps_then(HOG).at(220).sleeps_then(READER).at(400).sleeps_then(0);
    });
    stage.cpu(|c| {
        c.runs(5).at(105).wakes(READER, 0).at(400).sleeps_then(0);
    });
    assert_eq!(
        stage.explained(),
        ["100-105 work sender (5)", "105-220 waiting-for-cpu handler3 (7) < hog (9)", "220-300 upcall handler3 (7)",]
    );
}

/// The daemon handles a packet, as in the test above; the record of the upcall contains the times of the packet's visit
/// to the daemon.
fn a_packet_without_a_flow(read: Option<(u32, i64)>, answered: Option<i64>) -> Stage {
    let mut stage = Stage::new(&[(READER, "handler3"), (HOG, "hog"), (5, "sender")]);
    stage.packet(&[("host/ovs-upcall@veth0", 100, 1, 5), ("host/ovs-return@veth0", 300, 0, READER)]);
    stage.cpu(|c| {
        c.class(HOG, fifo(80)).runs(READER).at(10).sleeps_then(HOG).at(220).sleeps_then(READER).at(400).sleeps_then(0);
    });
    stage.cpu(|c| {
        c.runs(5).at(105).wakes(READER, 0).at(400).sleeps_then(0);
    });
    let by = Thread { name: "revalidator5".into(), tgid: 2 };
    let (packets, idle_ns) = (Some(5), Some(700_000_000));
    let removal = Removal { at: 20, pid: 4, by, flows: 3, all: false, installed: None, packets, idle_ns };
    let flow = FlowState::Removed(removal);
    let snapshot = stage.snapshot();
    snapshot.flow_limits = Some(FlowLimits { max_idle_ns: 500_000_000, flow_limit: 200_000 });
    snapshot.upcalls.push(Upcall { t: 101, cpu: 1, flows: 2, flow, missed_before: 0, read, answered });
    stage
}

#[test]
fn a_visit_to_the_switchs_daemon_has_its_reason_and_three_parts() {
    let timeline = a_packet_without_a_flow(Some((READER, 240)), Some(280)).timeline();
    let [visit] = &timeline.visits[..] else { panic!("{:?}", timeline.visits) };
    assert_eq!(visit.reason, NoFlow::Idle);
    let parts = visit.parts.as_ref().expect("all times are recorded");
    assert_eq!((parts.to_daemon_ns, parts.in_daemon_ns, parts.to_kernel_ns), (140, 40, 20));
    assert_eq!((parts.asleep_ns, parts.ready_ns, parts.running_ns), (5, 115, 20), "woken at 105, on its CPU at 220");
    assert_eq!(parts.handler.name, "handler3 (7)");
    let of_upcall: Vec<_> =
        timeline.intervals().filter(|(_, i)| i.cause == Cause::Upcall).map(|(_, i)| i.note()).collect();
    assert_eq!(of_upcall, [Some("its flow had been removed as idle".to_owned())]);
}

#[test]
fn parts_of_a_visit_that_contradict_the_sightings_are_not_shown() {
    let parts = |read, answered| a_packet_without_a_flow(read, answered).timeline().visits[0].parts.clone();
    assert!(parts(Some((READER, 240)), Some(280)).is_some());
    assert_eq!(parts(Some((HOG, 240)), Some(280)), None, "another thread returned the packet");
    assert_eq!(parts(Some((READER, 240)), Some(301)), None, "it returned before the answer");
    assert_eq!(parts(Some((READER, 99)), Some(280)), None, "it was read before it was sent");
    assert_eq!(parts(Some((READER, 240)), None), None);
    assert_eq!(parts(None, Some(280)), None);
    let mut stage = a_packet_without_a_flow(None, None);
    stage.snapshot().upcalls[0].cpu = 0;
    assert_eq!(stage.timeline().visits, [], "it was the upcall of another packet");
}

#[test]
fn without_a_record_the_reason_is_reported() {
    let mut stage = a_reader_is_woken();
    stage.cpu(|c| {
        c.runs(READER).at(150).runs(0);
        c.record.since = 200;
        c.record.overwritten = 10;
        c.at(400).runs(READER).sleeps_then(0);
    });
    let intervals = stage.intervals();
    assert_eq!(stage.explained(), ["100-200 unexplained", "200-300 work qemu (7)"]);
    assert_eq!(
        intervals[0].note().as_deref(),
        Some("what qemu (7) did is not known: the records of some CPUs had been overwritten (--flight-buffer keeps more)")
    );
    stage.capture.machines[0].record = Err("the ring was gone".into());
    let intervals = stage.intervals();
    assert_eq!((intervals.len(), intervals[0].cause), (1, Cause::Unexplained));
    assert_eq!(intervals[0].note().as_deref(), Some("no record of host: the ring was gone"));
}

#[test]
fn a_wait_without_a_culprit_is_unexplained() {
    let mut stage = a_reader_is_woken();
    // The CPU switches to bash, but the next event, after the softirq, belongs to another thread: from then on, the
    // current thread is unknown.
    stage.cpu(|c| {
        c.runs(READER).at(10).sleeps_then(11).at(180).softirq(NET_RX).at(190).softirq_ends(NET_RX);
        c.at(220).runs(HOG).irq(25).irq_ends(25).at(250).runs(5).irq(25).irq_ends(25);
        c.at(280).sleeps_then(READER).at(400).sleeps_then(0);
    });
    sender_wakes_at_120(&mut stage);
    assert_eq!(
        stage.explained()[1..],
        [
            "120-180 waiting-for-cpu qemu (7) < bash (11)",
            "180-190 interrupted qemu (7) < softirq NET_RX",
            "190-220 waiting-for-cpu qemu (7) < bash (11)",
            "220-250 unexplained qemu (7)",
            "250-280 waiting-for-cpu qemu (7) < sender (5)",
            "280-300 work qemu (7)",
        ]
    );
    let notes: Vec<_> = stage.intervals().iter().filter_map(|p| p.note()).collect();
    assert_eq!(notes, ["the switch away from bash (11) is not recorded", "the record does not say what CPU 0 did"]);
}

#[test]
fn times_after_the_end_of_the_record_are_reported_as_such() {
    let mut stage = a_reader_is_woken();
    stage.cpu(|c| {
        c.runs(READER).at(10).sleeps_then(0);
    });
    stage.packet(&[("host/tx@tap0", 100, 1, 5), ("host/vm-read@tap0", 200_000, 0, READER)]);
    assert_eq!(stage.explained(), ["100-200000 unexplained"]);
    let note = stage.intervals()[0].note();
    assert_eq!(note.as_deref(), Some("what qemu (7) did is not known: it was after the record's end"));
}

const TALKER: u32 = 21;

/// A talker on CPU 0 that was to send a packet at 100 and sent it at 300.
fn a_talker_sends_late() -> Stage {
    let mut stage = Stage::new(&[(TALKER, "talker"), (HOG, "hog")]);
    stage.function(0xf00, "hrtimer_wakeup");
    stage.packet(&[("talker/planned@send-time", 100, 0, 0), ("host/tx@eth0", 300, 0, TALKER)]);
    stage
}

#[test]
fn a_talker_whose_timer_comes_late_and_that_then_waits_for_its_cpu() {
    let mut stage = a_talker_sends_late();
    stage.cpu(|c| {
        c.class(HOG, fifo(80)).runs(TALKER).at(10).sleeps_then(HOG).at(150).timer(0xf00).at(155).wakes(TALKER, 0);
        c.at(160).timer_ends().at(260).sleeps_then(TALKER).at(400).sleeps_then(0);
    });
    assert_eq!(
        stage.explained(),
        [
            "100-155 late-timer talker (21) < timer hrtimer_wakeup",
            "155-160 interrupted talker (21) < timer hrtimer_wakeup",
            "160-260 waiting-for-cpu talker (21) < hog (9)",
            "260-300 work talker (21)",
        ]
    );
}

#[test]
fn a_talker_that_is_preempted_while_it_waits_actively() {
    let mut stage = a_talker_sends_late();
    stage.cpu(|c| {
        c.class(HOG, fifo(80)).runs(TALKER).at(80).preempted_by(HOG).at(200).irq(25).at(220).irq_ends(25);
        c.at(280).sleeps_then(TALKER).at(400).sleeps_then(0);
    });
    assert_eq!(
        stage.explained(),
        [
            "100-200 waiting-for-cpu talker (21) < hog (9)",
            "200-220 interrupted talker (21) < irq 25",
            "220-280 waiting-for-cpu talker (21) < hog (9)",
            "280-300 work talker (21)",
        ]
    );
}

#[test]
fn a_talker_that_sleeps_again_after_its_send_time_does_so_by_its_own_choice() {
    let mut stage = a_talker_sends_late();
    stage.cpu(|c| {
        c.runs(TALKER).at(120).sleeps_then(0).at(250).timer(0xf00).at(255).wakes(TALKER, 0).at(260).timer_ends();
        c.at(270).sleeps_then(TALKER).at(400).sleeps_then(0);
    });
    assert_eq!(
        stage.explained(),
        [
            "100-120 work talker (21)",
            "120-255 poll-interval talker (21) < timer hrtimer_wakeup #135",
            "255-260 interrupted talker (21) < timer hrtimer_wakeup",
            "260-270 idle-exit talker (21) < idle",
            "270-300 work talker (21)",
        ]
    );
}
