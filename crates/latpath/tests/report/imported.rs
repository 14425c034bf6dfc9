//! `latpath import` as users run it, and what other commands say of such a run.

use crate::runs::{stderr, stdout, Bench};
use serde_json::Value;

const PUB: &str = "publisher/tx@eth0=pub.txt";
const SUB: &str = "relay/app-read@relay=sub.txt";

/// Two logs of 4,000 packets, of which one was lost.
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
    let out = bench.latpath(&["import", PUB, SUB, "-o", "run", "--json", "-q"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let manifest: Value = serde_json::from_str(&stdout(&out)).unwrap();
    assert_eq!((manifest["journeys"].as_u64(), manifest["imported"][1]["packets"].as_u64()), (Some(4000), Some(3999)));
    let report: Value = serde_json::from_str(&stdout(&bench.latpath(&["report", "run", "--json"]))).unwrap();
    assert_eq!((report["complete"].as_u64(), report["segments"][0]["max_ns"].as_i64()), (Some(3999), Some(60_000)));
    let text = stdout(&bench.latpath(&["report", "run"]));
    for part in ["publisher/tx@eth0 from pub.txt, 4", "whole microseconds", "not known", "as their files have them"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(!text.contains("What tracing cost"));
    let explained = bench.latpath(&["explain", "run"]);
    assert_eq!(explained.status.code(), Some(1));
    assert!(stderr(&explained).contains("no record of what the machines did"));
    let csv = stdout(&bench.latpath(&["export", "csv", "run", "-o", "-"]));
    let head =
        "stream,key,number,utc_ns,t_ns,publisher/tx@eth0,relay/app-read@relay,duplicates,out_of_order,drop_reason,path";
    assert_eq!(csv.lines().next(), Some(head));
    let limit = bench.latpath(&["report", "run", "--limit", "total:max<=1s"]);
    assert_eq!(limit.status.code(), Some(3));
    assert!(stderr(&limit).contains("not shown: 60.00 µs, and how far the clocks were apart is not known"));
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
