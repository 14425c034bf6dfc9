use super::*;
use latpath_profile::{weigh, FrameId, Seen, Slice, Thread as SampledThread};
use serde_json::Value;
use std::collections::BTreeMap;

const MS: Ns = 1_000_000;

/// Samples of two processes, one of two threads; each thread ran 1 ms for each of its samples.
fn samples(tids: &[(u32, u32, &str)], base: u32) -> Samples {
    let (main, read, tun) = (FrameId::new(0, false), FrameId::new(1, true), FrameId::new(2, true));
    let stack = |mode, frames: &[FrameId]| Stack { mode, frames: frames.to_vec() };
    let thread = |(tid, tgid, name): &(u32, u32, &str)| SampledThread {
        tid: *tid,
        tgid: *tgid,
        process: (*name).to_owned(),
        comm: format!("{name}-{tid}"),
        ..SampledThread::default()
    };
    let seen = |thread: u32, stack: u32, count: usize| vec![Seen { t: 5 * MS, cpu: 0, thread, stack }; count];
    let counts: Vec<(u32, u32, usize)> =
        (0..tids.len() as u32).flat_map(|n| [(n, 1, 9), (n, 2, 10 + (base + n) as usize), (n, 0, 8)]).collect();
    let mut times = BTreeMap::new();
    counts.iter().for_each(|(thread, _, count)| *times.entry(*thread).or_default() += *count as Ns * MS);
    let slice = Slice {
        from: 0,
        until: 1000 * MS,
        names: ["main", "read \"<&>", "tun_get_user"].map(str::to_owned).to_vec(),
        threads: tids.iter().map(thread).collect(),
        stacks: vec![
            stack(Mode::Idle, &[]),
            stack(Mode::User, &[main]),
            stack(Mode::Kernel, &[tun, read, main]),
            stack(Mode::Guest, &[]),
        ],
        seen: counts.iter().flat_map(|(thread, stack, count)| seen(*thread, *stack, *count)).collect(),
        times: times.into_iter().collect(),
        ..Slice::default()
    };
    let mut samples = Samples::new(true);
    samples.take(slice).expect("a slice");
    samples
}

fn written(machines: &[Machine<'_>]) -> Value {
    let (header, mut out) = (Header { frequency: 1000, utc_ns: 7 * MS, ..Header::default() }, Vec::new());
    firefox(&header, machines, &mut out).expect("memory");
    serde_json::from_slice(&out).expect("JSON")
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number")) as usize
}

fn rows(table: &Value) -> usize {
    let length = number(&table["length"]);
    for (name, column) in table.as_object().expect("a table") {
        if let Some(column) = column.as_array() {
            assert_eq!(column.len(), length, "rows of the column {name}");
        }
    }
    length
}

/// Counts the samples by process and call chain, in the form of folded lines.
fn counts(profile: &Value) -> BTreeMap<String, usize> {
    let shared = &profile["shared"];
    let (stacks, frames, functions) = (&shared["stackTable"], &shared["frameTable"], &shared["funcTable"]);
    let mut counts = BTreeMap::new();
    for thread in profile["threads"].as_array().expect("threads") {
        for stack in thread["samples"]["stack"].as_array().expect("samples") {
            let (mut chain, mut at) = (Vec::new(), stack);
            while !at.is_null() {
                let frame = number(&stacks["frame"][number(at)]);
                let function = number(&frames["func"][frame]);
                let name = &shared["stringArray"][number(&functions["name"][function])];
                let mark = if frames["category"][frame] == KERNEL { "_[k]" } else { "" };
                chain.push(format!("{}{mark}", name.as_str().expect("a name")));
                at = &stacks["prefix"][number(at)];
            }
            chain.push(thread["processName"].as_str().expect("a name").to_owned());
            chain.reverse();
            *counts.entry(chain.join(";")).or_default() += 1;
        }
    }
    counts
}

#[test]
fn each_call_chain_has_as_many_samples_as_the_folded_profile_has_ms() {
    let samples = samples(&[(7, 7, "app"), (8, 7, "app"), (9, 9, "other")], 0);
    let header = Header::default();
    let folded: BTreeMap<String, usize> = weigh(&samples, &[], &[], &[], header)
        .folded()
        .map(|line| {
            let (chain, ns) = line.rsplit_once(' ').expect("a line");
            (chain.to_owned(), (ns.parse::<Ns>().expect("ns") / MS) as usize)
        })
        .collect();
    assert_eq!(folded["app;main;read \"<&>_[k];tun_get_user_[k]"], 10 + 11);
    let profile = written(&[Machine { guest: None, samples: &samples, offset_ns: 0 }]);
    assert_eq!(counts(&profile), folded);
}

#[test]
fn all_columns_of_a_table_have_the_same_length_and_rows_refer_to_rows() {
    let (host, guest) = (samples(&[(7, 7, "app"), (8, 7, "app"), (7, 7, "renamed")], 0), samples(&[(7, 7, "app")], 5));
    let profile = written(&[
        Machine { guest: None, samples: &host, offset_ns: 0 },
        Machine { guest: Some("relay".into()), samples: &guest, offset_ns: 2 * MS },
    ]);
    let shared = profile["shared"].as_object().expect("tables");
    let length: BTreeMap<&str, usize> = shared
        .iter()
        .filter(|(_, table)| table.is_object())
        .map(|(name, table)| (name.as_str(), rows(table)))
        .collect();
    assert_eq!((length["stackTable"], length["frameTable"], length["funcTable"]), (3, 3, 3));
    for (place, prefix) in shared["stackTable"]["prefix"].as_array().expect("a column").iter().enumerate() {
        assert!(prefix.is_null() || number(prefix) < place, "callers come before what they call");
    }
    let threads = profile["threads"].as_array().expect("threads");
    for thread in threads {
        assert_eq!((rows(&thread["markers"]), rows(&thread["samples"]) > 10), (0, true));
    }
    let names = |key: &str| threads.iter().map(|thread| thread[key].as_str().expect("text")).collect::<Vec<_>>();
    assert_eq!(names("tid"), ["7", "8", "7.1", "relay:7"]);
    assert_eq!(names("pid"), ["7", "7", "7", "relay:7"]);
    assert_eq!(names("processName"), ["app", "app", "renamed", "relay: app"]);
    let first = |thread: usize| threads[thread]["samples"]["time"][0].as_f64();
    assert_eq!((first(0), first(3)), (Some(5.0), Some(3.0)), "ms on the host's timeline");
    let category = &profile["meta"]["categories"][0];
    assert_eq!((&category["color"], &profile["meta"]["interval"]), (&json!("grey"), &json!(1.0)));
}
