//! `latpath import` from the command line, and other commands on an imported run.

use crate::runs::{stderr, stdout, Bench};
use latpath_analysis::LimitVerdict;
use latpath_cause::Cause;
use latpath_compare::Comparison;
use latpath_report::ExplanationDocument;
use latpath_run::Manifest;
use latpath_stats::SegmentFigures;
use serde_json::Value;

const PUB: &str = "publisher/tx@eth0=pub.txt";
const SUB: &str = "relay/app-read@relay=sub.txt";

/// Two logs of 4,000 packets, one of which was lost.
fn logs() -> Bench {
    let bench = Bench::new();
    let log = |late: u64, lost: u64| -> String {
        let line = |n: u64| format!("0:MU01:{}:{}\n", n % 4000, 1_767_225_600_000_000 + n * 250 + late);
        (0..4000).filter(|n| *n != lost).map(line).collect()
    };
    std::fs::write(bench.dir.path().join("pub.txt"), log(0, u64::MAX)).unwrap();
    std::fs::write(bench.dir.path().join("sub.txt"), log(60, 1000)).unwrap();
    bench
}

#[test]
fn an_imported_run_is_reported_like_any_other() {
    let bench = logs();
    let manifest: Manifest = bench.json(&["import", PUB, SUB, "-o", "run", "-q"]);
    assert_eq!((manifest.journeys, manifest.imported[1].packets), (4000, 3999));
    let report = bench.figures(&[]);
    assert_eq!((report.complete, report.segments[0].times.max_ns), (3999, 60_000));
    let text = stdout(&bench.latpath(&["report", "run"]));
    for part in ["publisher/tx@eth0 from pub.txt, 4", "whole microseconds", "not known", "as their files have them"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(!text.contains("What tracing cost"));
    let explained = bench.latpath(&["explain", "run"]);
    assert_eq!(explained.status.code(), Some(1));
    assert!(stderr(&explained).contains("it was imported without a trace"), "{}", stderr(&explained));
    assert!(stderr(&explained).contains("import it again with --trace"), "{}", stderr(&explained));
    assert!(!stderr(&explained).contains("--no-flight"), "it was not recorded: {}", stderr(&explained));
    let again = stderr(&bench.latpath(&["import", PUB, SUB, "-o", "a run"]));
    assert!(again.contains("into a run; read them with: latpath report 'a run'\n"), "{again}");
    let explained = stderr(&bench.latpath(&["explain", "a run"]));
    assert!(explained.contains("latpath report 'a run' --worst 10"), "{explained}");
    let csv = stdout(&bench.latpath(&["export", "csv", "run", "-o", "-"]));
    let head =
        "stream,key,number,utc_ns,t_ns,publisher/tx@eth0,relay/app-read@relay,duplicates,out_of_order,drop_reason,path";
    assert_eq!(csv.lines().next(), Some(head));
    let limit = bench.latpath(&["report", "run", "--limit", "total:max<=1s"]);
    assert_eq!(limit.status.code(), Some(3));
    assert!(stderr(&limit).contains("cannot be judged: 60.00 µs, and how far the clocks were apart is not known"));
    let compared = bench.latpath(&["compare", "run", "--against", "run"]);
    assert!(compared.status.success());
    assert!(stdout(&compared).contains("mean of total: not comparable: how far the clocks were apart is not known"));
}

#[test]
fn wrong_usage_and_failures_have_their_codes() {
    let bench = logs();
    let code = |words: &[&str]| {
        let out = bench.latpath(&[&["import", "-o", "run"], words].concat());
        assert!(!bench.dir.path().join("run").exists(), "{words:?}");
        (out.status.code(), stderr(&out))
    };
    for (words, says) in [
        (&[][..], "POINT=FILE"),
        (&[PUB, "sub.txt"], "write POINT=FILE"),
        (&[PUB, PUB], "is named twice"),
        (&[PUB, SUB, "--offset", "guest=1ms"], "named here: relay"),
        (
            &[PUB, SUB, "--offset", "relay=1ms", "--estimate-offset", "relay=1us"],
            "either --offset or --estimate-offset",
        ),
        (&[PUB, SUB, "-s", "udp::5000"], "only streams that frames name"),
        (&[PUB, SUB, "--window", "1h"], "--window is 1ms to 4s"),
    ] {
        let (code, error) = code(words);
        assert_eq!(code, Some(2), "{words:?}: {error}");
        assert!(error.contains(says), "{says:?} is not in {error}");
    }
    let (code, error) = code(&[PUB, "relay/app-read@relay=none.txt"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("none.txt: No such file"), "{error}");
    std::fs::create_dir(bench.dir.path().join("run")).unwrap();
    std::fs::write(bench.dir.path().join("run/mine"), "").unwrap();
    assert_eq!(bench.latpath(&["import", "-o", "run", PUB, SUB]).status.code(), Some(1));
}

#[test]
fn an_earlier_run_is_replaced_by_a_whole_one_where_that_is_asked_for() {
    let bench = logs();
    let import = |words: &[&str]| {
        let out = bench.latpath(&[&["import", "-o", "run"], words].concat());
        (out.status.code(), stderr(&out))
    };
    let mine = bench.dir.path().join("run/mine");
    std::fs::create_dir(mine.parent().unwrap()).unwrap();
    std::fs::write(&mine, "").unwrap();
    assert_eq!(import(&["--force", PUB, SUB]).0, Some(1), "what is no run stays");
    std::fs::remove_file(&mine).unwrap();
    let first = import(&[PUB, SUB]);
    assert_eq!(first.0, Some(0), "{}", first.1);
    let (_, error) = import(&[PUB, SUB]);
    assert!(error.contains("or replace this one with --force"), "{error}");
    // If a new run cannot be created, the earlier one remains.
    assert_eq!(import(&["--force", PUB, "relay/app-read@relay=none.txt"]).0, Some(1));
    assert_eq!(bench.latpath(&["report", "run"]).status.code(), Some(0));
    assert_eq!(import(&["--force", PUB, SUB]), first);
    let directories = std::fs::read_dir(bench.dir.path()).unwrap().filter(|e| e.as_ref().unwrap().path().is_dir());
    assert_eq!(directories.count(), 1, "nothing is left of the earlier one");
}

/// Begin of the logs, µs since 1970.
const BEGIN: u64 = 1_767_225_600_000_000;
/// Time for which a hog occupies the reader's CPU, beginning when packet 2000 is sent, µs.
const HELD: u64 = 5000;
/// Number of packets that wait during that time. The last of them is still on time.
const WAITING: u64 = HELD / 250 + 1;

/// Send and read times of a packet, µs since [`BEGIN`].
fn sent_and_read(n: u64) -> (u64, u64) {
    let sent = n * 250;
    let is_held = (2000..2000 + WAITING).contains(&n);
    (sent, if is_held { 2000 * 250 + HELD + 30 + (n - 2000) * 5 } else { sent + 60 })
}

/// A hand-written kernel trace of the interval that the logs cover, on a clock `behind` µs behind UTC.
fn trace(behind: u64) -> String {
    let mut lines: Vec<(u64, String)> = Vec::new();
    let mut add = |at: u64, who: &str, cpu: u32, event: String| {
        let t = BEGIN + at - behind;
        lines.push((at, format!("  {who} [00{cpu}] d..2. {}.{:06}: {event}\n", t / 1_000_000, t % 1_000_000)));
    };
    let switch = |(prev, prio, state): (&str, u32, &str), (next, next_prio): (&str, u32)| {
        let pid = |name: &str| {
            if name == "swapper/1" {
                0
            } else if name == "relay" {
                77
            } else {
                88
            }
        };
        format!(
            "sched_switch: prev_comm={prev} prev_pid={} prev_prio={prio} prev_state={state} ==> next_comm={next} next_pid={} next_prio={next_prio}",
            pid(prev),
            pid(next)
        )
    };
    let (idle, relay, hog) = (("swapper/1", 120), ("relay", 89), ("hogger", 49));
    for n in 0..4000 {
        let (sent, read) = sent_and_read(n);
        add(sent + 1, "publish-66", 0, "net_dev_start_xmit: dev=va queue_mapping=0 skbaddr=0x1 len=120".into());
        let is_held = (2000..2000 + WAITING).contains(&n);
        if !is_held || n == 2000 {
            add(sent + 10, "publish-66", 0, "sched_waking: comm=relay pid=77 prio=89 target_cpu=001".into());
            add(sent + 11, "publish-66", 0, "sched_wakeup: comm=relay pid=77 prio=89 target_cpu=001".into());
        }
        if n == 2000 {
            add(sent - 100, "<idle>-0", 1, switch(("swapper/1", 120, "R"), hog));
            add(sent + HELD, "hogger-88", 1, switch(("hogger", 49, "S"), relay));
        } else if !is_held {
            add(sent + 20, "<idle>-0", 1, switch(("swapper/1", 120, "R"), relay));
        }
        add(read - 2, "relay-77", 1, "skb_copy_datagram_iovec: skbaddr=0x1 len=100".into());
        if !is_held || n == 2000 + WAITING - 1 {
            add(read + 10, "relay-77", 1, switch(("relay", 89, "S"), idle));
        }
    }
    lines.sort_by_key(|(at, _)| *at);
    lines.into_iter().fold("# tracer: nop\n".to_owned(), |text, (_, line)| text + &line)
}

#[test]
fn a_trace_beside_the_files_says_what_held_late_packets() {
    let bench = Bench::new();
    let write = |name: &str, text: String| std::fs::write(bench.dir.path().join(name), text).unwrap();
    let log = |at: fn(u64) -> u64| (0..4000).map(|n| format!("0:MU01:{n}:{}\n", BEGIN + at(n))).collect::<String>();
    write("pub.txt", log(|n| sent_and_read(n).0));
    write("sub.txt", log(|n| sent_and_read(n).1));
    // The trace's clock counts from the machine's boot.
    write("trace.txt", trace(BEGIN - 7_000_000));
    let (sent, read) = ("host/tx@va=pub.txt", "host/app-read@relay=sub.txt");
    let import = |more: &[&str]| {
        bench.latpath(&[&["import", sent, read, "--trace", "host=trace.txt", "-o", "run"], more].concat())
    };
    let out = import(&[]);
    assert_eq!(out.status.code(), Some(1));
    assert!(
        stderr(&out).contains("trace.txt: begins") && stderr(&out).contains("--trace-offset host="),
        "{}",
        stderr(&out)
    );
    assert!(!bench.dir.path().join("run").exists());
    let out = import(&["--trace-offset", "host=-1767225593s±1us"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    for note in ["no irq_handler_entry", "no softirq_entry", "no cpu_idle"] {
        assert!(stderr(&out).contains(&format!("trace.txt: {note}")), "{note:?} is not in {}", stderr(&out));
    }
    let explained: ExplanationDocument = bench.json(&["explain", "run"]);
    assert_eq!(explained.late, WAITING - 1, "{explained:?}");
    let first = &explained.causes[0].share;
    assert_eq!(first.cause, Cause::WaitingForCpu, "{first:?}");
    let worst = &explained.packets[0];
    let points: Vec<_> = worst.points.iter().map(|p| (p.cpu, p.tid)).collect();
    assert_eq!(points, [(Some(0), Some(66)), (Some(1), Some(77))], "{worst:?}");
    let text = stdout(&bench.latpath(&["explain", "run"]));
    assert!(text.contains("behind hogger (88, FIFO 50)"), "{text}");
    assert!(bench.latpath(&["export", "perfetto", "run", "-o", "t.pftrace"]).status.success());
}

#[test]
fn durations_alone_make_a_run_whose_losses_are_not_known() {
    let bench = Bench::new();
    // In svtrace's format: whole microseconds, an empty line, a value wrapped below 0, no newline at the end.
    let mut lines: Vec<String> = (0..40_000_u64).map(|n| (50 + n * 7919 % 40).to_string()).collect();
    lines[100] = "14612".into();
    lines.insert(200, String::new());
    lines.insert(300, "18446744073709551".into());
    std::fs::write(bench.dir.path().join("results"), lines.join("\n")).unwrap();
    let source = "host/nic-rx@enp7s0,host/vm-read@vnet0=results";
    let import = |run: &str| bench.latpath(&["import", "--format", "svtrace", source, "--rate", "4000", "-o", run]);
    let out = import("run");
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    for part in [
        "times of day and numbers of packets are made, of 4000 a second",
        "left out: 1 line of packets whose second time",
    ] {
        assert!(stderr(&out).contains(part), "{part:?} is not in {}", stderr(&out));
    }
    let out = bench.latpath(&[
        "report",
        "run",
        "--json",
        "--limit",
        "lost<=0",
        "--limit",
        "consecutive<=1",
        "--limit",
        "total:max<=20ms",
    ]);
    assert_eq!(out.status.code(), Some(3), "{}", stderr(&out));
    let report: Value = serde_json::from_str(&stdout(&out)).unwrap();
    assert_eq!((report["journeys"].as_u64(), report["durations_alone"].as_bool()), (Some(40_000), Some(true)));
    for key in ["lost", "incomplete", "duplicates", "out_of_order", "patterns"] {
        assert!(report.get(key).is_none(), "{key}: {}", report[key]);
    }
    for key in ["consecutive", "pacing", "never_seen"] {
        assert!(report["streams"][0].get(key).is_none(), "{key}: {}", report["streams"][0][key]);
    }
    let figures: SegmentFigures = serde_json::from_value(report["segments"][0].clone()).unwrap();
    assert_eq!((figures.times.max_ns, figures.times.min_ns), (14_612_000, 50_000));
    let limits: Vec<LimitVerdict> = serde_json::from_value(report["limits"].clone()).unwrap();
    let why = |at: usize| limits[at].cannot_be_judged.as_deref();
    assert!(why(0).is_some_and(|why| why.contains("durations alone")) && why(1).is_some() && why(2).is_none());
    for words in [&["report", "run"][..], &["report", "run", "--markdown", "-"]] {
        let text = stdout(&bench.latpath(words));
        assert!(text.contains("not known: the run was imported from durations alone"), "{text}");
        assert!(!text.contains("Pacing") && !text.contains("0 late"), "{text}");
    }
    let out = bench.latpath(&["report", "run", "--every", "1s"]);
    assert_eq!((out.status.code(), stderr(&out).contains("durations alone")), (Some(2), true), "{}", stderr(&out));
    std::fs::write(bench.dir.path().join("results"), lines[..30_000].join("\n")).unwrap();
    assert!(import("other").status.success());
    let compared: Comparison = bench.json(&["compare", "run", "--against", "other"]);
    assert!(compared.losses.is_empty() && !compared.segments.is_empty(), "{compared:?}");
    for (words, code, says) in [
        (&[source][..], 2, "as --rate 4000"),
        (&["host/nic-rx@a=results", "--rate", "4000"], 2, "write FROM,TO=FILE"),
        (&["host/nic-rx@a,guest0/app-read@b=results", "--rate", "4000"], 2, "of the same machine"),
        (&[source, source, "--rate", "4000"], 2, "a run of its own"),
        (&[source, "--rate", "4000", "--offset", "host=1s"], 2, "--offset"),
    ] {
        let out = bench.latpath(&[&["import", "--format", "svtrace", "-o", "none"], words].concat());
        assert_eq!(out.status.code(), Some(code), "{words:?}: {}", stderr(&out));
        assert!(stderr(&out).contains(says), "{says:?} is not in {}", stderr(&out));
    }
    for (text, says) in [("57\n6x\n", "results:2: \"6x\" is no whole number"), ("\n", "no line with a duration")] {
        std::fs::write(bench.dir.path().join("results"), text).unwrap();
        let out = import("none");
        assert_eq!(out.status.code(), Some(1));
        assert!(stderr(&out).contains(says), "{}", stderr(&out));
        assert!(!bench.dir.path().join("none").exists());
    }
}

#[test]
fn logs_of_rant_become_a_run_of_round_trips() {
    let bench = Bench::new();
    let row = |n: u64, took: u64| {
        let at = |t: u64| format!("{:>20}.{:09}", 1_774_000_037, n * 20_000 + t);
        format!("{n:>10} {} {} {} {} {:>15}\n", at(0), at(1000), at(took), at(took + 1000), took - 1000)
    };
    for (name, took) in [("a", 9000), ("b", 12_000)] {
        let rows: String = (0..2000).map(|n| row(n, took + n * 7919 % 1000)).collect();
        let head =
            format!("{:>10} {:>30} {:>30} {:>30} {:>30} {:>15}", "SEQ", "T1_SW", "T1_HW", "T4_HW", "T4_SW", "RTT");
        let text = format!("{head}\n{}\n{rows}", "-".repeat(head.len()));
        std::fs::write(bench.dir.path().join(format!("{name}.txt")), text).unwrap();
        let out = bench.latpath(&["import", "--format", "rant", &format!("emit={name}.txt"), "-o", name]);
        assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
        assert!(stderr(&out).contains("imported 2000 journeys into"), "{}", stderr(&out));
    }
    let compared = bench.latpath(&["compare", "b", "--against", "a"]);
    assert!(stdout(&compared).contains("nic_round_trip"), "{}{}", stdout(&compared), stderr(&compared));
    let report = stdout(&bench.latpath(&["report", "a"]));
    assert!(report.contains("emitter/nic-hw-tx@nic") && report.contains("round trips from a.txt"), "{report}");
    for (words, code, says) in [
        (&["a.txt"][..], 2, "name rant's logs emit=FILE"),
        (&["reflect=a.txt"], 2, "round trips are in the emitter's"),
        (&["emit=a.txt", "emit=a.txt"], 2, "each once"),
        (&["emit=a.txt", "--offset", "relay=1s"], 2, "--offset: rant's logs are round trips"),
        (&["emit=none.txt"], 1, "none.txt: No such file"),
    ] {
        let out = bench.latpath(&[&["import", "--format", "rant", "-o", "c"], words].concat());
        assert_eq!(out.status.code(), Some(code), "{words:?}");
        assert!(stderr(&out).contains(says), "{says:?} is not in {}", stderr(&out));
        assert!(!bench.dir.path().join("c").exists());
    }
    let out = bench.latpath(&["import", "--format", "rant", "emit=a.txt", "-o", "a"]);
    assert!(stderr(&out).contains("a: exists already"), "{}", stderr(&out));
    // A run is replaced only once the new one is complete.
    let figures = |name: &str| stdout(&bench.latpath(&["export", "csv", name, "-o", "-"]));
    let (a, b) = (figures("a"), figures("b"));
    let force = ["import", "--format", "rant", "-o", "a", "--force"];
    let failed = bench.latpath(&[&force[..], &["emit=none.txt"]].concat());
    assert!(failed.status.code() == Some(1) && figures("a") == a && a.lines().count() == 2001);
    let out = bench.latpath(&[&force[..], &["emit=b.txt"]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_eq!(figures("a"), b);
}

#[test]
fn what_a_logger_says_of_itself_is_one_note_however_often_it_says_it_and_commands_no_terminal() {
    let bench = logs();
    let file = bench.dir.path().join("sub.txt");
    let log = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, log + &"SV drop: \x1b]0;title\x07\x1b[2J\u{202e}\n".repeat(200_000)).unwrap();
    let out = bench.latpath(&["import", PUB, SUB, "-o", "run"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let said = stderr(&out);
    assert!(said.contains("its logger counted by itself, 200000 times, at last: SV drop: ?]0;title??[2J?"), "{said}");
    assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{said}");
    assert!(std::fs::metadata(bench.run().join("manifest.json")).unwrap().len() < 64 << 10);
    assert_eq!(bench.latpath(&["report", "run"]).status.code(), Some(0));
}
