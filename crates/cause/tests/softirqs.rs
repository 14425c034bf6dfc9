//! Causes of delay where softirqs, interrupts and timers had to act.

mod stage;

use latpath_flight::Vector;
use stage::{fifo, Stage, NET_RX, NET_TX};

const SENDER: u32 = 5;
const HOG: u32 = 9;
const DAEMON: u32 = 15;

fn stage() -> Stage {
    let threads = [(SENDER, "sender"), (HOG, "hog"), (DAEMON, "ksoftirqd/0"), (25, "irq/25-eth0"), (26, "irq/26-eth1")];
    let mut stage = Stage::new(&threads);
    stage.packet(&[("host/tx@veth0", 100, 0, SENDER), ("host/nic-rx@veth1", 300, 0, SENDER)]);
    stage
}

#[test]
fn a_softirq_that_the_sender_raises_runs_at_once() {
    let mut stage = stage();
    stage.cpu(|c| {
        c.runs(SENDER).at(50).irq(1).irq_ends(1).at(110).raises(NET_RX).at(120).softirq(NET_RX);
        c.at(310).softirq_ends(NET_RX);
    });
    assert_eq!(
        stage.explained(),
        ["100-110 work sender (5)", "110-120 softirq-wait softirq NET_RX < sender (5)", "120-300 work softirq NET_RX",]
    );
}

#[test]
fn a_softirq_waits_for_others_and_is_interrupted() {
    let mut stage = stage();
    stage.cpu(|c| {
        c.runs(SENDER).at(110).raises(NET_RX).at(120).softirq(NET_TX).at(200).softirq_ends(NET_TX).softirq(NET_RX);
        c.at(220).irq(25).at(240).irq_ends(25).at(310).softirq_ends(NET_RX);
    });
    assert_eq!(
        stage.explained(),
        [
            "100-110 work sender (5)",
            "110-120 softirq-wait softirq NET_RX < sender (5)",
            "120-200 softirq-wait softirq NET_RX < softirq NET_TX",
            "200-220 work softirq NET_RX",
            "220-240 interrupted softirq NET_RX < irq 25",
            "240-300 work softirq NET_RX",
        ]
    );
}

#[test]
fn a_softirq_in_one_go_is_work() {
    let mut stage = stage();
    stage.packet(&[("host/nic-rx@veth1", 100, 0, SENDER), ("host/tx@tap0", 300, 0, SENDER)]);
    stage.cpu(|c| {
        c.runs(SENDER).at(80).raises(NET_RX).softirq(NET_RX).at(310).polled(1).softirq_ends(NET_RX);
    });
    assert_eq!(stage.explained(), ["100-300 work softirq NET_RX"]);
}

#[test]
fn a_softirq_that_polls_others_first_queues_behind_them() {
    let mut stage = stage();
    stage.cpu(|c| {
        c.runs(SENDER).at(110).raises(NET_RX).softirq(NET_RX).at(180).polled(60).at(190).polled(0);
        c.at(260).polled(64).at(310).softirq_ends(NET_RX);
    });
    assert_eq!(
        stage.explained(),
        ["100-110 work sender (5)", "110-260 queued-behind softirq NET_RX #124", "260-300 work softirq NET_RX",]
    );
}

#[test]
fn packets_of_the_same_poll_that_were_seen_before_count() {
    let mut stage = stage();
    stage.capture.packets.clear();
    for at in [130, 200, 250] {
        stage.packet(&[("host/tx@veth0", 90, 0, SENDER), ("host/nic-rx@veth1", at, 0, SENDER)]);
    }
    stage.packet(&[("host/tx@veth0", 100, 0, SENDER), ("host/nic-rx@veth1", 300, 0, SENDER)]);
    stage.cpu(|c| {
        c.runs(SENDER).at(110).raises(NET_RX).softirq(NET_RX).at(310).polled(4).softirq_ends(NET_RX);
    });
    assert_eq!(
        stage.explained(),
        ["100-110 work sender (5)", "110-250 queued-behind softirq NET_RX #3", "250-300 work softirq NET_RX",]
    );
}

#[test]
fn a_softirq_that_raises_itself_again_continues_its_work() {
    let mut stage = stage();
    stage.cpu(|c| {
        c.runs(SENDER)
            .at(105)
            .raises(NET_RX)
            .softirq(NET_RX)
            .at(150)
            .polled(64)
            .raises(NET_RX)
            .at(160)
            .softirq_ends(NET_RX);
        c.at(170).softirq(NET_RX).at(250).polled(64).at(310).polled(1).softirq_ends(NET_RX);
    });
    assert_eq!(
        stage.explained(),
        [
            "100-105 work sender (5)",
            "105-150 work softirq NET_RX",
            "150-160 softirq-wait softirq NET_RX < softirq NET_RX",
            "160-170 softirq-wait softirq NET_RX < sender (5)",
            "170-250 queued-behind softirq NET_RX #64",
            "250-300 work softirq NET_RX",
        ]
    );
}

#[test]
fn a_softirq_handed_to_ksoftirqd_waits_as_that_thread_does() {
    let mut stage = stage();
    stage.cpu(|c| {
        c.class(HOG, fifo(50)).runs(SENDER).at(110).raises(NET_RX).at(115).wakes(DAEMON, 0);
        c.at(120).sleeps_then(HOG).at(250).sleeps_then(DAEMON).at(255).softirq(NET_RX).at(310).softirq_ends(NET_RX);
    });
    assert_eq!(
        stage.explained(),
        [
            "100-110 work sender (5)",
            "110-115 softirq-wait softirq NET_RX < sender (5)",
            "115-120 waiting-for-cpu ksoftirqd/0 (15) < sender (5)",
            "120-250 waiting-for-cpu ksoftirqd/0 (15) < hog (9)",
            "250-255 softirq-wait softirq NET_RX < ksoftirqd/0 (15)",
            "255-300 work softirq NET_RX",
        ]
    );
}

#[test]
fn with_preempt_rt_interrupts_and_softirqs_are_threads() {
    let mut stage = stage();
    stage.capture.packets.clear();
    stage.packet(&[("host/tx@eth1", 100, 1, SENDER), ("host/nic-rx@eth0", 300, 0, 25)]);
    stage.cpu(|c| {
        c.class(25, fifo(50)).class(HOG, fifo(80)).runs(HOG).at(120).irq(25).wakes(25, 0).at(125).irq_ends(25);
        c.at(220).sleeps_then(25).at(230).raises(NET_RX).at(235).softirq(NET_RX).at(240).preempted_by(HOG);
        c.at(280).sleeps_then(25).at(310).softirq_ends(NET_RX).at(320).sleeps_then(0);
    });
    assert_eq!(
        stage.explained(),
        [
            "100-120 device",
            "120-125 interrupted irq/25-eth0 (25) < irq 25",
            "125-220 waiting-for-cpu irq/25-eth0 (25) < hog (9)",
            "220-230 work irq/25-eth0 (25)",
            "230-235 softirq-wait softirq NET_RX < irq/25-eth0 (25)",
            "235-240 work softirq NET_RX",
            "240-280 waiting-for-cpu softirq NET_RX < hog (9)",
            "280-300 work softirq NET_RX",
        ]
    );
}

#[test]
fn an_interrupts_own_time_is_work_and_before_it_a_device_had_the_packet() {
    let mut stage = stage();
    stage.capture.packets.clear();
    stage.packet(&[("host/tx@eth1", 100, 1, SENDER), ("host/nic-rx@eth0", 300, 0, 0)]);
    stage.cpu(|c| {
        c.at(200).irq(25).at(205).raises(NET_RX).at(210).irq_ends(25).softirq(NET_RX).at(310).softirq_ends(NET_RX);
    });
    assert_eq!(
        stage.explained(),
        [
            "100-200 device",
            "200-205 work irq 25",
            "205-210 softirq-wait softirq NET_RX < irq 25",
            "210-300 work softirq NET_RX",
        ]
    );
    assert_eq!(stage.intervals()[0].note().as_deref(), Some("what sent irq 25 is not recorded"));
}

#[test]
fn a_queueing_discipline_holds_until_its_timer() {
    let mut stage = stage();
    stage.function(0xd00, "qdisc_watchdog");
    stage.capture.packets.clear();
    stage.packet(&[("host/nic-rx@veth1", 100, 0, SENDER), ("host/tx@eth0", 300, 0, 0)]);
    stage.cpu(|c| {
        c.runs(SENDER).at(110).sleeps_then(0).at(250).timer(0xd00).at(255).raises(NET_TX).at(260).timer_ends();
        c.softirq(NET_TX).at(310).softirq_ends(NET_TX);
    });
    assert_eq!(
        stage.explained(),
        [
            "100-255 qdisc-held softirq NET_TX < timer qdisc_watchdog",
            "255-260 softirq-wait softirq NET_TX < timer qdisc_watchdog",
            "260-300 work softirq NET_TX",
        ]
    );
}

#[test]
fn packets_sent_by_an_unnamed_timer_were_held_too() {
    let mut stage = stage();
    stage.capture.packets.clear();
    stage.packet(&[("host/nic-rx@veth1", 100, 0, SENDER), ("host/tx@eth0", 300, 0, 0)]);
    stage.cpu(|c| {
        c.runs(SENDER).at(110).sleeps_then(0).at(250).timer(0xd00).at(255).raises(NET_TX).at(260).timer_ends();
        c.softirq(NET_TX).at(310).softirq_ends(NET_TX);
    });
    assert_eq!(stage.explained()[0], "100-255 qdisc-held softirq NET_TX < timer 0xd00");
}

#[test]
fn packets_that_another_softirq_sends_were_held_by_a_queueing_discipline() {
    let mut stage = stage();
    stage.capture.packets.clear();
    stage.packet(&[("host/nic-rx@veth1", 100, 0, SENDER), ("host/tx@veth2", 500, 0, SENDER)]);
    stage.cpu(|c| {
        c.runs(SENDER).at(90).raises(NET_RX).softirq(NET_RX).at(120).softirq_ends(NET_RX).at(130).sleeps_then(0);
        c.at(300).timer(0xe00).wakes(SENDER, 0).at(310).timer_ends().sleeps_then(SENDER);
        // The softirq of the sender's next packet also transmits the held packets.
        c.at(450).raises(NET_RX).softirq(NET_RX).at(600).softirq_ends(NET_RX);
    });
    assert_eq!(
        stage.explained(),
        ["100-120 work softirq NET_RX", "120-450 qdisc-held softirq NET_RX", "450-500 work softirq NET_RX"]
    );
}

#[test]
fn a_packet_that_is_steered_to_another_cpu_comes_from_the_softirq_there() {
    let mut stage = stage();
    stage.capture.packets.clear();
    stage.packet(&[("host/tx@veth0", 100, 1, 0), ("host/nic-rx@veth1", 300, 0, 0)]);
    stage.cpu(|c| {
        c.at(250)
            .vector(Vector::CallFunctionSingle)
            .at(255)
            .raises(NET_RX)
            .at(260)
            .vector_ends(Vector::CallFunctionSingle);
        c.softirq(NET_RX).at(310).softirq_ends(NET_RX);
    });
    stage.cpu(|c| {
        c.at(80).raises(NET_RX).softirq(NET_RX).at(130).softirq_ends(NET_RX);
    });
    assert_eq!(
        stage.explained(),
        [
            "100-130 work softirq NET_RX",
            "130-250 irq-wait function call interrupt",
            "250-255 work function call interrupt",
            "255-260 softirq-wait softirq NET_RX < function call interrupt",
            "260-300 work softirq NET_RX",
        ]
    );
}

#[test]
fn a_packet_that_is_steered_to_an_idle_cpu_waits_until_that_has_left_its_idle_state() {
    let called = |c: &mut stage::Cpu| {
        c.at(60).idles(2).at(250).idles_no_more().at(252).vector(Vector::CallFunctionSingle).at(255).raises(NET_RX);
        c.at(260).vector_ends(Vector::CallFunctionSingle).softirq(NET_RX).at(310).softirq_ends(NET_RX);
    };
    // A CPU that polls in its idle state is called without an interrupt.
    let idle = |c: &mut stage::Cpu| {
        c.at(60).idles(2).at(250).idles_no_more().at(255).raises(NET_RX).at(260).softirq(NET_RX);
        c.at(310).softirq_ends(NET_RX);
    };
    let explained = |idle: &dyn Fn(&mut stage::Cpu)| {
        let mut stage = stage();
        stage.capture.packets.clear();
        stage.packet(&[("host/tx@veth0", 100, 1, 0), ("host/nic-rx@veth1", 300, 0, 0)]);
        stage.cpu(|c| idle(c));
        stage.cpu(|c| {
            c.at(80).raises(NET_RX).softirq(NET_RX).at(130).softirq_ends(NET_RX);
        });
        stage.explained()
    };
    assert_eq!(
        explained(&called),
        [
            "100-130 work softirq NET_RX",
            "130-252 idle-exit function call interrupt < idle (state 2) #2",
            "252-255 work function call interrupt",
            "255-260 softirq-wait softirq NET_RX < function call interrupt",
            "260-300 work softirq NET_RX",
        ]
    );
    assert_eq!(explained(&idle)[1], "130-255 idle-exit softirq NET_RX < idle (state 2) #2");
}

#[test]
fn a_packet_that_is_steered_on_its_way_to_a_device_was_held_by_no_queueing_discipline() {
    let mut stage = stage();
    stage.capture.packets.clear();
    stage.packet(&[("host/nic-rx@veth0", 100, 1, 0), ("host/tx@veth1", 300, 0, 0)]);
    stage.cpu(|c| {
        c.at(250).vector(Vector::CallFunctionSingle).at(255).raises(NET_RX).at(260);
        c.vector_ends(Vector::CallFunctionSingle).softirq(NET_RX).at(310).softirq_ends(NET_RX);
    });
    stage.cpu(|c| {
        c.at(80).raises(NET_RX).softirq(NET_RX).at(130).softirq_ends(NET_RX);
    });
    assert_eq!(stage.explained()[1], "130-250 irq-wait function call interrupt");
}

#[test]
fn without_a_recorded_raise_the_previous_executor_raised_the_softirq() {
    let mut stage = stage();
    stage.cpu(|c| {
        c.runs(SENDER).at(50).irq(1).irq_ends(1).at(120).softirq(NET_RX).at(310).softirq_ends(NET_RX);
    });
    assert_eq!(stage.explained(), ["100-120 work sender (5)", "120-300 work softirq NET_RX"]);
}

#[test]
fn many_intervals_are_summed_by_culprit() {
    let mut stage = stage();
    stage.capture.packets.clear();
    stage.packet(&[("host/nic-rx@veth1", 100, 0, SENDER), ("host/tx@tap0", 50_100, 0, SENDER)]);
    stage.cpu(|c| {
        c.runs(SENDER).at(80).raises(NET_RX).softirq(NET_RX);
        for n in 0..500 {
            c.at(110 + 100 * n).irq(25).at(140 + 100 * n).irq_ends(25);
        }
        c.at(60_000).softirq_ends(NET_RX);
    });
    assert_eq!(stage.explained(), ["100-35100 work softirq NET_RX", "35100-50100 interrupted softirq NET_RX < irq 25"]);
    assert_eq!(stage.intervals()[1].note().as_deref(), Some("500 times, put together"));
}
