//! Tests of gate schedules: the meaning of a file, the findings of the check, and the cases in which an undo is
//! refused.

use latpath_gates::{check, Error, Gated, Report, Schedule, Severity, SpeedSource, Step, Surroundings, Tap};
use latpath_net::{PriorityFilter, Shaping};
use latpath_undo::{Outcome, Undo};
use proptest::prelude::*;
use std::path::Path;

/// A schedule of three classes and two streams, without a fault at 1 Gbit/s.
const EXAMPLE: &str = r#"
    device = "eth1"
    link_speed = 1000
    ptp = "ptp"
    tick = "4ms"
    [[class]]
    name = "stream"
    priorities = [3]
    [[class]]
    name = "ptp"
    priorities = [7]
    [[class]]
    name = "rest"
    queues = 2
    [[gate]]
    open = ["stream"]
    interval = "101us"
    [[gate]]
    open = ["ptp"]
    interval = "23us"
    [[gate]]
    mask = 4
    interval = "376us"
    [[stream]]
    name = "sv"
    class = "stream"
    size = 126
    vlan = true
    period = "250us"
    [[stream]]
    name = "video"
    class = "rest"
    size = 1514
    period = "1ms"
    frames = 5
"#;

fn parsed(text: &str) -> Result<Schedule, Error> {
    Schedule::parse(Path::new("gates.toml"), text)
}

#[test]
fn a_file_gives_the_queueing_discipline() {
    let schedule = parsed(EXAMPLE).unwrap();
    let Shaping::Taprio { classes, clockid, cycle_time_ns, flags, gates, .. } = schedule.taprio() else { panic!() };
    let classes = classes.unwrap();
    assert_eq!((clockid, cycle_time_ns, flags, schedule.queues()), (Some(11), 500_000, 0, 4));
    assert_eq!(classes.queues, [(1, 0), (1, 1), (2, 2)]);
    assert_eq!((classes.of_priority[3], classes.of_priority[7], classes.of_priority[0]), (0, 1, 2));
    assert_eq!(
        gates.iter().map(|g| (g.open, g.interval_ns)).collect::<Vec<_>>(),
        [(1, 101_000), (2, 23_000), (4, 376_000)]
    );
    assert_eq!(schedule.etf(), None);
}

#[test]
fn assisted_times_need_both_times_and_add_etf() {
    let text = format!("mode = \"txtime-assist\"\ntxtime_delay = \"300us\"\netf_delta = \"200us\"\n{EXAMPLE}");
    let schedule = parsed(&text).unwrap();
    assert_eq!(schedule.etf(), Some(Shaping::Etf { clockid: 11, delta_ns: 200_000, flags: 4 }));
    assert!(matches!(schedule.taprio(), Shaping::Taprio { flags: 1, txtime_delay_ns: 300_000, .. }));
    let offload = parsed(&format!("mode = \"offload\"\n{EXAMPLE}")).unwrap();
    assert!(matches!(offload.taprio(), Shaping::Taprio { flags: 2, clockid: None, .. }));
    for wrong in ["mode = \"txtime-assist\"", "txtime_delay = \"1us\"", "mode = \"offload\"\nclock = \"tai\""] {
        assert!(parsed(&format!("{wrong}\n{EXAMPLE}")).is_err(), "{wrong}");
    }
}

#[test]
fn faults_name_their_key_or_line() {
    let with = |from: &str, to: &str| parsed(&EXAMPLE.replace(from, to)).unwrap_err().to_string();
    assert!(with("open = [\"stream\"]", "open = [\"strem\"]").starts_with("gates.toml: gate.1.open: no class"));
    assert!(with("mask = 4", "mask = 8").contains("gate.3.mask"));
    assert!(with("priorities = [7]", "priorities = [3]").contains("3 belongs to two classes"));
    assert!(with("period = \"1ms\"", "period = \"soon\"").contains("write a time, e.g."));
    assert!(
        with("size = 126", "sise = 126").starts_with("gates.toml:27: unknown field"),
        "{}",
        with("size = 126", "sise = 126")
    );
    assert!(with("\"eth1\"", "\"../eth1\"").contains("device"));
    assert!(with("interval = \"23us\"", "interval = \"0us\"").contains("gate.2.interval"));
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in ".{0,200}", mask: u32, size: u32) {
        let _ = parsed(&text);
        let changed = EXAMPLE.replace("mask = 4", &format!("mask = {mask}")).replace("126", &size.to_string());
        let _ = parsed(&changed);
    }
}

fn checked(text: &str, around: &Surroundings) -> Report {
    check(&parsed(text).unwrap(), around)
}

fn faults(report: &Report) -> Vec<(&str, &str)> {
    let faults = report.findings.iter().filter(|finding| finding.severity == Severity::Fault);
    faults.map(|finding| (finding.subject.as_str(), finding.text.as_str())).collect()
}

#[test]
fn a_good_schedule_has_no_fault() {
    let report = checked(EXAMPLE, &Surroundings::default());
    assert_eq!(faults(&report), []);
    assert_eq!((report.link_speed_mbit, report.link_speed_from, report.cycle_ns), (1000, SpeedSource::File, 500_000));
    // A frame of 126 bytes, its tag and 24 bytes of overhead: 154 bytes at 8 ns each, plus 1 ns.
    assert_eq!((report.streams[0].frame_ns, report.streams[0].fits), (1233, true));
    assert_eq!(report.streams[1].group_ns, 5 * (1538 * 8 + 1));
    let windows = |class: usize| {
        (report.classes[class].open_ns, report.classes[class].longest_ns, report.classes[class].closed_ns)
    };
    assert_eq!(
        [windows(0), windows(1), windows(2)],
        [(101_000, 101_000, 399_000), (23_000, 23_000, 477_000), (376_000, 376_000, 124_000)]
    );
    assert_eq!(report.classes[0].needed_ns, 2 * 1233);
}

#[test]
fn frames_that_do_not_fit_are_faults() {
    let report = checked(&EXAMPLE.replace("link_speed = 1000", "link_speed = 10"), &Surroundings::default());
    let found = faults(&report);
    let has = |subject: &str, text: &str| found.iter().any(|(of, why)| *of == subject && why.contains(text));
    assert!(has("sv", "a frame takes 123.2"), "{found:?}");
    assert!(has("gate.2.interval", "too short for any frame"), "{found:?}");
    assert!(has("ptp", "PTP has no slot"), "{found:?}");
    let closed = checked(&EXAMPLE.replace("open = [\"stream\"]", "open = []"), &Surroundings::default());
    assert!(faults(&closed).iter().any(|(_, why)| why.contains("never opens")));
    let much = checked(&EXAMPLE.replace("frames = 5", "frames = 500"), &Surroundings::default());
    assert!(faults(&much).iter().any(|(of, why)| *of == "class rest" && why.contains("grows without end")));
    assert!(much.findings.iter().any(|finding| finding.text.contains("the last ones wait for a later slot")));
}

#[test]
fn a_window_may_cross_the_end_of_a_cycle() {
    let text = EXAMPLE.replace("mask = 4", "mask = 5");
    let report = checked(&text, &Surroundings::default());
    assert_eq!(
        (report.classes[0].open_ns, report.classes[0].longest_ns, report.classes[0].closed_ns),
        (477_000, 477_000, 23_000)
    );
    let always = EXAMPLE.replace("mask = 4", "mask = 7").replace("[\"ptp\"]", "[\"ptp\", \"stream\"]");
    let report = checked(&always, &Surroundings::default());
    assert_eq!((report.classes[0].longest_ns, report.classes[0].closed_ns), (500_000, 0));
}

#[test]
fn an_unknown_speed_is_a_fault_with_the_command_that_sets_it() {
    let tap = Surroundings {
        is_present: true,
        tx_queues: Some(4),
        tick: Some(4_000_000),
        speed: None,
        ..Surroundings::default()
    };
    let report = checked(EXAMPLE, &tap);
    let found = faults(&report);
    assert!(found[0].1.contains("assumes 10 Mbit/s") && found[0].1.ends_with("ethtool -s eth1 speed 1000 duplex full"));
    let offloaded = checked(&format!("mode = \"offload\"\n{EXAMPLE}"), &tap);
    assert_eq!(faults(&offloaded), []);
    let no_key = EXAMPLE.replace("link_speed = 1000", "");
    let report = checked(&no_key, &Surroundings::default());
    assert_eq!((report.link_speed_mbit, report.link_speed_from), (10, SpeedSource::Assumed));
    assert!(faults(&report).iter().any(|(_, why)| why.contains("write link_speed = MBIT")));
    let other = checked(EXAMPLE, &Surroundings { speed: Some(100), ..tap });
    assert!(faults(&other).iter().any(|(_, why)| why.contains("100 Mbit/s, not 1000")));
}

#[test]
fn a_device_needs_enough_queues() {
    let with = |queues| {
        checked(
            EXAMPLE,
            &Surroundings { is_present: true, speed: Some(1000), tx_queues: Some(queues), ..Surroundings::default() },
        )
    };
    assert!(faults(&with(1)).iter().any(|(_, why)| why.contains("numtxqueues")));
    assert!(faults(&with(2)).iter().any(|(_, why)| why.contains("have 4 queues, and eth1 has 2")));
    assert_eq!(faults(&with(4)), []);
}

#[test]
fn ptp_without_a_class_or_a_slot_is_a_fault() {
    let none = EXAMPLE.replace("ptp = \"ptp\"", "");
    assert!(faults(&checked(&none, &Surroundings::default()))
        .iter()
        .any(|(of, why)| *of == "ptp" && why.contains("socket_priority")));
    let shut = EXAMPLE.replace("open = [\"ptp\"]", "open = [\"stream\"]");
    assert!(faults(&checked(&shut, &Surroundings::default())).iter().any(|(_, why)| why.contains("PTP has no slot")));
}

#[test]
fn small_ratios_to_the_tick_and_ptp_are_warnings_and_prime_lengths_are_none() {
    let texts = |text: &str| -> Vec<String> {
        let report = checked(text, &Surroundings { tick: Some(4_000_000), ..Surroundings::default() });
        assert!(!report.has_fault());
        report.findings.into_iter().map(|finding| format!("{}: {}", finding.subject, finding.text)).collect()
    };
    let resonant = texts(EXAMPLE);
    let has = |all: &[String], words: &str| all.iter().any(|text| text.contains(words));
    assert!(has(&resonant, "cycle: the timer tick (4.000 ms) falls on one place of the cycle"), "{resonant:?}");
    assert!(has(&resonant, "cycle: PTP's Sync (125.0 ms) falls on one place"), "{resonant:?}");
    assert!(has(&resonant, "sv: the timer tick"), "{resonant:?}");
    assert!(has(&resonant, "is no multiple of the cycle"), "250 us in 500 us: {resonant:?}");
    let prime = EXAMPLE.replace("376us", "375979ns").replace("250us", "499979ns").replace("\"1ms\"", "\"999958ns\"");
    let quiet = texts(&prime);
    assert!(quiet.is_empty(), "{quiet:?}");
}

#[test]
fn a_cycle_of_another_length_than_its_entries_is_reported() {
    let with = |cycle: &str| checked(&format!("cycle = \"{cycle}\"\n{EXAMPLE}"), &Surroundings::default());
    assert!(faults(&with("400us")).iter().any(|(of, why)| *of == "cycle" && why.contains("cuts the rest")));
    assert_eq!(faults(&with("600us")), []);
    assert_eq!(with("600us").classes[2].longest_ns, 476_000);
}

#[test]
fn subjects_that_name_no_device_are_refused() {
    let step = [Step { device: "eth0".into() }];
    for subject in ["", "eth0", "1-", "-1", "a-b"] {
        assert!(matches!(Gated.undo(subject, &step), Outcome::Failed(_)), "{subject}");
    }
    assert_eq!(Gated.undo("1-2", &[]), Outcome::nothing());
    assert_eq!(Gated.undo("1-2", &step), Outcome::OutOfReach, "no namespace has this number");
}

#[test]
fn the_class_of_a_vms_frames_crosses_its_tap_by_the_pcp_and_a_filter() {
    let from =
        |more: &str| EXAMPLE.replace("period = \"250us\"", &format!("period = \"250us\"\nfrom = \"vnet0\"\n{more}"));
    let around = |has_clsact, filters: &[(u16, Option<u8>, u32)]| Surroundings {
        taps: vec![Tap {
            device: "vnet0".into(),
            has_clsact,
            filters: filters.iter().map(|&(order, pcp, priority)| PriorityFilter { order, pcp, priority }).collect(),
        }],
        ..Surroundings::default()
    };
    let class = |report: &Report| report.crossings.iter().map(|c| (c.priority, c.class.clone())).collect::<Vec<_>>();
    let stream = Some("stream".to_owned());

    let good = checked(&from("pcp = 6"), &around(Some(true), &[(1, Some(5), 7), (2, Some(6), 3)]));
    assert_eq!((faults(&good), class(&good)), (vec![], vec![(Some(3), stream.clone())]));
    let all = checked(&from("pcp = 6"), &around(Some(true), &[(1, None, 3)]));
    assert_eq!((faults(&all), class(&all)), (vec![], vec![(Some(3), stream)]));

    let none = checked(&from("pcp = 6"), &around(Some(false), &[]));
    let [(subject, text)] = faults(&none)[..] else { panic!("{:?}", none.findings) };
    assert_eq!(subject, "sv");
    assert!(text.contains("have priority 0 behind it: they belong to class rest, not stream"), "{text}");
    assert!(
        text.ends_with(
            "tc qdisc add dev vnet0 clsact; tc filter add dev vnet0 ingress protocol 802.1Q flower vlan_prio 6 action skbedit priority 3"
        ),
        "{text}"
    );
    let wrong = checked(&from("pcp = 6"), &around(Some(true), &[(1, Some(6), 7)]));
    let text = faults(&wrong)[0].1;
    assert!(text.contains("class ptp, not stream; set it: tc filter add"), "{text}");
    let sent = [PriorityFilter { order: 1, pcp: Some(6), priority: 3 }].to_vec();
    let by_device = checked(&from("pcp = 6"), &Surroundings { sent, ..around(None, &[]) });
    assert_eq!((faults(&by_device), class(&by_device)), (vec![], vec![(Some(3), Some("stream".into()))]));
    let untagged = checked(&from(""), &around(Some(true), &[(1, Some(6), 3)]));
    assert!(faults(&untagged)[0].1.contains("let the talker send --vlan VID --pcp N"), "{:?}", untagged.findings);
    let elsewhere = checked(&from("pcp = 6"), &around(None, &[]));
    assert_eq!((faults(&elsewhere), class(&elsewhere)), (vec![], vec![(None, None)]));
    assert!(elsewhere.findings.iter().any(|finding| finding.text.contains("vnet0 does not exist here")));
    assert!(parsed(&from("pcp = 8")).is_err());
}
