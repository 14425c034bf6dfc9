//! How a search ends, and its exit code.

use crate::{equal, own, publish, start, until, LIMIT};
use latpath_testkit::{bench, latpath, trial, Finished, Lack};
use latpath_testkit::{Failed, Trial};
use std::path::Path;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    let pcap = latpath_path::compile("ip").err().map(|e| e.to_string());
    let kprobes = Path::new("/sys/bus/event_source/devices/kprobe/type").exists();
    let no_kprobes = kprobes.then(|| "this kernel has kprobes".to_string());
    vec![
        trial("enough_packets_end_it", needs, enough),
        trial("ctrl_c_ends_it_with_what_there_is", needs, interrupted),
        trial("no_packet_is_said_and_is_no_failure", needs, none),
        trial("a_bad_filter_is_wrong_usage_in_libpcaps_words", &[pcap], bad_filter),
        trial("wrong_words_are_wrong_usage", &[], wrong),
        trial("a_device_that_is_not_there_is_named_with_those_that_are", &[], no_device),
        trial("without_kprobes_it_says_what_is_not_shown", &[needs, std::slice::from_ref(&no_kprobes)].concat(), says),
        trial("kprobes_that_are_not_there_are_a_failure", &[needs, &[no_kprobes]].concat(), no_such_kind),
    ]
}

fn run(words: &str, expression: Option<&str>) -> Result<Finished, Failed> {
    let bench = bench()?;
    let mut command = latpath(words);
    command.args(expression);
    bench.run(&bench.path.hypervisor, command, LIMIT)
}

fn enough() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("enough");
    let path = start(&bench, &format!("--stream svid:{svid} --count 3 --settle 200ms"), None)?;
    publish(&bench, &format!("--svid {svid} --count 10"))?;
    let ended = path.finish(LIMIT)?;
    equal("code", ended.code, Some(0))?;
    for words in ["Packet 1 ", "Packet 3 ", "Routes of 3 packets", "--points host/tx@lp-pub", "Lost: 0 events"] {
        equal(&format!("{words:?} in {}", ended.stdout), ended.stdout.contains(words), true)?;
    }
    equal("only three", ended.stdout.contains("Packet 4 "), false)
}

fn interrupted() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("ctrl-c");
    let path = start(&bench, &format!("--stream svid:{svid} --count 100 --summary"), None)?;
    publish(&bench, &format!("--svid {svid} --count 4"))?;
    path.interrupt();
    let ended = path.finish(LIMIT)?;
    equal("code", ended.code, Some(0))?;
    equal(&ended.stdout, ended.stdout.starts_with("Routes of 4 packets"), true)
}

fn none() -> Result<(), Failed> {
    let bench = bench()?;
    let path = start(&bench, &format!("--stream svid:{} -i nic0 --json", own("nobody")), None)?;
    let is_missed = |said: &str| said.contains("no such packet on nic0 for ") && said.contains(" s; still waiting");
    until("it says that there is none", || is_missed(&path.said()))?;
    path.interrupt();
    let ended = path.finish(LIMIT)?;
    let all: latpath_path::PathDocument = ended.json()?;
    equal("packets", all.packets.len(), 0)?;
    equal("paths", all.paths.len(), 0)
}

fn bad_filter() -> Result<(), Failed> {
    for (expression, said) in [
        ("ether proto", "syntax error"),
        ("no-such-word 7", "no-such-word"),
        ("inbound", "not in the packet's bytes"),
        ("arp and ip", "expression rejects all packets"),
    ] {
        let ended = run("path", Some(expression))?;
        equal(&format!("code of {expression:?}: {}", ended.stderr), ended.code, Some(2))?;
        equal(&ended.stderr, ended.stderr.contains(said), true)?;
        equal("nothing on stdout", ended.stdout.is_empty(), true)?;
    }
    Ok(())
}

fn wrong() -> Result<(), Failed> {
    for words in [
        "path",
        "path --stream nonsense",
        "path --stream svid:A --count 0",
        "path --stream svid:A --count 5000",
        "path --stream svid:A --with magic",
        "path --stream svid:A --stream svid:A",
        "path --list --stream svid:A",
    ] {
        let output = latpath(words).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // The permission to trace is checked before the streams are, so without it this fault is not reported.
        if words.ends_with("--stream svid:A --stream svid:A") && said.contains("needs root") {
            continue;
        }
        equal(&format!("code of {words:?}: {said}"), output.status.code(), Some(2))?;
    }
    Ok(())
}

fn no_device() -> Result<(), Failed> {
    let output = latpath("path -i lp-none0 --stream svid:A").output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    equal("code", output.status.code(), Some(1))?;
    equal(&said, said.contains("lp-none0: no such device (devices here: "), true)
}

fn says() -> Result<(), Failed> {
    let ended = run(&format!("path --stream svid:{} --duration 100ms", own("says")), None)?;
    equal("code", ended.code, Some(0))?;
    equal(&ended.stderr, ended.stderr.contains("functions between tracepoints are not shown"), true)
}

fn no_such_kind() -> Result<(), Failed> {
    for kind in ["kprobes", "kprobe-multi"] {
        let ended = run(&format!("path --stream svid:A --with {kind}"), None)?;
        equal("code", ended.code, Some(1))?;
        equal(&ended.stderr, ended.stderr.contains("--with tracepoints"), true)?;
    }
    Ok(())
}
