//! Imports files that cannot be imported: the error must name the file, the place, the cause and the next step, and no
//! run may be left.

use crate::captures::{frame, pcap};
use crate::{Bench, PUB, SUB};

const GOOD: &str = "0:MU01:1:1700000000000000\n0:MU01:2:1700000000000250\n0:MU01:3:1700000000000500\n";

fn error(sub: &[u8]) -> String {
    let bench = Bench::new();
    bench.write("pub.txt", GOOD);
    bench.write("sub.txt", sub);
    let error = bench.import(&bench.options(&[(PUB, "pub.txt"), (SUB, "sub.txt")])).unwrap_err().to_string();
    assert!(!bench.path("run").exists(), "{error}");
    error.replace(&format!("{}/", bench.path("").display()).replace("//", "/"), "")
}

#[test]
fn each_error_has_its_place_and_the_next_step() {
    for (sub, says) in [
        (&b"57\n61\n"[..], &["sub.txt: neither", "times alone name no packet", "--format"][..]),
        (b"", &["sub.txt: neither", "it is empty"]),
        (b"\x7fELF\x02\x01\x01\x00\xff", &["sub.txt: neither", "7f, 45"]),
        (b"0:MU01:1:1700000000000100\nhello\n", &["sub.txt:2: \"hello\" is no line", "no colon", "remove it"]),
        (b"0:MU01:1:1700000000000100\n0:MU01:2:1600000000000000\n", &["go back by", "at line 2", "sort -s -t: -k4,4n"]),
        (b"0:MU01:9:1700000000000100\n0:MU01:8:1700000000000300\n", &["no packet is in two", "--offset"]),
        (b"0:MU01:1:1800000000000100\n", &["sub.txt begins", "pub.txt ends", "--offset"]),
    ] {
        let error = error(sub);
        for part in says {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }
}

#[test]
fn a_truncated_log_is_imported_to_its_last_complete_line() {
    let bench = Bench::new();
    bench.write("pub.txt", GOOD);
    bench.write("sub.txt", "0:MU01:1:1700000000000100\n0:MU01:2:1700000000000350\n0:MU01:3:17000");
    let (manifest, packets) = bench.import(&bench.options(&[(PUB, "pub.txt"), (SUB, "sub.txt")])).unwrap();
    assert_eq!(packets.len(), 2);
    assert!(manifest.notes.iter().any(|note| note.contains("sub.txt:3: ends in the middle of this line")));
}

#[test]
fn points_and_machines_are_named_once_and_exist() {
    let bench = Bench::new();
    bench.write("pub.txt", GOOD);
    let mut options = bench.options(&[(PUB, "pub.txt"), (PUB, "pub.txt")]);
    assert!(bench.import(&options).unwrap_err().to_string().contains("publisher/tx@eth0 is named twice"));
    options = bench.options(&[(PUB, "pub.txt"), (SUB, "none.txt")]);
    assert!(bench.import(&options).unwrap_err().to_string().contains("none.txt: No such file"));
    options.offsets = vec!["guest=1ms".parse().unwrap()];
    assert!(bench.import(&options).unwrap_err().to_string().contains("named here: relay"));
}

#[test]
fn a_capture_of_other_protocols_is_reported() {
    let bench = Bench::new();
    bench.write("pub.pcap", pcap(&[(1, frame("MU01", 1, None))]));
    bench.write("sub.pcap", pcap(&[(1, vec![0; 60]), (2, vec![1; 60])]));
    let error = bench.import(&bench.options(&[(PUB, "pub.pcap"), (SUB, "sub.pcap")])).unwrap_err().to_string();
    assert!(error.contains("none of its 2 packets is of a stream that frames name"), "{error}");
}

/// A log of 4000 packets per second, from packet `from`, in the logger's format; each packet is `late` µs late.
fn log(seconds: u64, from: u64, late: i64) -> String {
    (from..seconds * 4000)
        .map(|n| format!("{}:MU01:{}:{}\n", n / 4000, n % 4000, 1_700_000_000_000_000 + n as i64 * 250 + late))
        .collect()
}

#[test]
fn a_clock_that_counts_tai_beside_one_that_counts_utc_is_noticed() {
    let bench = Bench::new();
    bench.write("pub.txt", log(40, 0, 37_000_000));
    // This logger was started later.
    bench.write("sub.txt", log(40, 900, 70));
    let mut options = bench.options(&[(PUB, "pub.txt"), (SUB, "sub.txt")]);
    let error = bench.import(&options).unwrap_err().to_string();
    for part in
        ["sub.txt: begins and ends 37 s before", "pub.txt, as TAI is ahead of UTC", "--offset relay=-37s", "relay=0s"]
    {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
    assert!(!bench.path("run").exists());
    options.offsets = vec!["relay=-37s".parse().unwrap()];
    let (_, packets) = bench.import(&options).unwrap();
    assert!(packets.len() > 150_000 && packets.iter().all(|p| p.t[1].unwrap() - p.t[0].unwrap() == 70_000));
    // The user may override the detection.
    options.offsets = vec!["relay=0s".parse().unwrap()];
    assert!(bench.import(&options).is_ok());
    // Both clocks are of the same machine.
    let options = bench.options(&[("relay/nic-rx@eth0", "pub.txt"), (SUB, "sub.txt")]);
    let error = bench.import(&options).unwrap_err().to_string();
    assert!(error.contains("need two names of machines, as relay-2; then --offset relay-2=-37s"), "{error}");
}

#[test]
fn files_that_begin_and_end_with_the_same_packets_whole_seconds_apart_are_noticed() {
    let bench = Bench::new();
    bench.write("pub.txt", log(5, 0, 0));
    bench.write("sub.txt", log(5, 0, 2_000_070));
    let options = bench.options(&[(PUB, "pub.txt"), (SUB, "sub.txt")]);
    let error = bench.import(&options).unwrap_err().to_string();
    assert!(error.contains("2 s after") && error.contains("--offset relay=2s") && !error.contains("TAI"), "{error}");
    // A script started and stopped one logger some seconds after the other, so this is no clock difference.
    bench.write("sub.txt", log(7, 8004, 70));
    assert!(bench.import(&options).is_ok());
}

#[test]
fn a_log_of_the_first_samples_of_seconds_is_refused() {
    let bench = Bench::new();
    let every_second = |count: u64| -> String {
        (0..count).map(|n| format!("{n}:MU01:0:{}\n", 1_700_000_000_000_000 + n * 1_000_000)).collect()
    };
    bench.write("pub.txt", log(10, 0, 0));
    for count in [3, 20_000] {
        bench.write("sub.txt", every_second(count));
        let error = bench.import(&bench.options(&[(PUB, "pub.txt"), (SUB, "sub.txt")])).unwrap_err().to_string();
        assert!(error.contains("sub.txt: each of its lines has smpCnt 0, as sv_timestamp_logger -l"), "{error}");
        assert!(!bench.path("run").exists());
    }
}
