//! Checks that no counter of the programs wraps within a week at 1,000,000 events per second: it has 64 bits, or its
//! value is limited.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Narrower fields that programs increment (`FILE: FIELD`), each with the reason why it does not wrap.
const LIMITED: [(&str, &str); 15] = [
    ("exits/bpf/exits.bpf.c: next_slot", "a slot is taken below `slots_max` only"),
    ("exits/bpf/exits.bpf.c: next_row", "set back to REASONS above it"),
    ("exits/bpf/exits.bpf.c: seq", "no counter: its lowest bit says whether the vCPU is being written"),
    ("exits/bpf/vcpu_time.h: depth", "interrupts within each other"),
    ("flight/bpf/flight.bpf.c: stacks", "set to 0 every STACKS_NS"),
    ("path/bpf/filter.h: pc", "a place in a filter of limited length"),
    ("path/bpf/follow.h: alive", "skbs that exist at one moment"),
    ("path/bpf/follow.h: chosen", "a packet is chosen below `requested` only"),
    ("probe/bpf/handle_packet.h: len", "the length of one frame"),
    (
        "profile/bpf/profile.bpf.c: calls",
        "entries of a table of limited size: those of threads that have ended are taken out and not counted",
    ),
    (
        "profile/bpf/profile.bpf.c: threads",
        "threads in a table of limited size: those that have ended are taken out and not counted",
    ),
    ("queues/bpf/driver.h: entries", "the buffers of one request"),
    ("queues/bpf/driver.h: list", "the lists of one request"),
    ("queues/bpf/host.h: buffers", "of one call of vhost's"),
    ("queues/bpf/queue.h: next", "a place is taken below `queues_max` only"),
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All C sources of the programs, by their path below `crates`.
fn sources() -> BTreeMap<String, String> {
    let folders = fs::read_dir(crates()).unwrap().flatten().map(|entry| entry.path());
    let folders = folders.flat_map(|folder| [folder.join("bpf"), folder.join("include")]);
    let files = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten().map(|entry| entry.path());
    let is_c = |file: &PathBuf| file.extension().is_some_and(|end| end == "c" || end == "h");
    let named = |file: PathBuf| {
        let name = file.strip_prefix(crates()).unwrap().to_string_lossy().into_owned();
        (name, fs::read_to_string(file).unwrap())
    };
    files.filter(is_c).map(named).collect()
}

fn last_word(text: &str) -> Option<&str> {
    let text = text.trim_end().trim_end_matches([')', '(']);
    let text = if text.ends_with(']') { &text[..text.rfind('[')?] } else { text };
    let word = text.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()?;
    // A field, not a local variable.
    let before = &text[..text.len() - word.len()];
    (!word.is_empty() && (before.ends_with("->") || before.ends_with('.') || before.ends_with('&'))).then_some(word)
}

/// Fields that a line increments.
fn added(line: &str) -> Vec<&str> {
    let line = line.split("/*").next().unwrap_or_default();
    let atomics = line.match_indices("__sync_fetch_and_add(").filter_map(|(at, call)| {
        let argument = line[at + call.len()..].split(", ").next()?;
        last_word(argument.rsplit('?').next()?.rsplit(':').next()?)
    });
    let increments = line.match_indices("++").filter_map(|(at, _)| last_word(&line[..at]));
    let prefixed = line.match_indices("++").filter_map(|(at, _)| {
        let end = line[at + 2..].find(|c: char| !c.is_ascii_alphanumeric() && !"_->.".contains(c))?;
        last_word(&line[at + 2..at + 2 + end])
    });
    let sums = line.match_indices(" += ").filter_map(|(at, _)| last_word(&line[..at]));
    atomics.chain(increments).chain(prefixed).chain(sums).collect()
}

/// Width in bits of each field and global variable that a crate's sources declare with one of the kernel's integer
/// types; if several share a name, the smallest width.
fn bits(sources: &BTreeMap<String, String>, place: &str) -> BTreeMap<String, u32> {
    let mut bits = BTreeMap::new();
    for (_, text) in sources.iter().filter(|(file, _)| file.starts_with(place)) {
        let mut is_in_struct = false;
        for line in text.lines() {
            // The sources are formatted: a line without indentation is outside of functions.
            is_in_struct = match line {
                line if line.starts_with("struct ") && line.ends_with('{') => true,
                line if line.starts_with('}') => false,
                _ => is_in_struct,
            };
            if line.starts_with('\t') && !is_in_struct {
                continue;
            }
            let line = line.split("/*").next().unwrap_or_default().trim();
            let line = line.trim_start_matches("volatile ").trim_start_matches("const volatile ");
            let Some((kind, names)) = line.split_once(' ') else { continue };
            let Some(width) =
                kind.strip_prefix("__u").or(kind.strip_prefix("__s")).and_then(|width| width.parse::<u32>().ok())
            else {
                continue;
            };
            if !line.ends_with(';') {
                continue;
            }
            for name in names.trim_end_matches(';').split(',') {
                let name = name.split(['[', '=', ':']).next().unwrap_or_default().trim();
                let known = bits.entry(name.to_owned()).or_insert(width);
                *known = width.min(*known);
            }
        }
    }
    bits
}

#[test]
fn counters_have_64_bits_or_a_limit() {
    let sources = sources();
    assert!(sources.len() > 30, "{:?}", sources.keys());
    let mut narrow = BTreeSet::new();
    let mut wide = 0;
    for (file, text) in &sources {
        // A declaration in the same file takes precedence over one in the crate, which takes precedence over the shared
        // headers'.
        let places = [file.as_str(), &file[..=file.find('/').unwrap()], "bpf/include/"];
        let mut known = BTreeMap::new();
        places.into_iter().rev().for_each(|place| known.extend(bits(&sources, place)));
        for field in text.lines().flat_map(added) {
            match known.get(field) {
                Some(64) => wide += 1,
                Some(_) => _ = narrow.insert(format!("{file}: {field}")),
                None => {}
            }
        }
    }
    assert!(wide > 40, "{wide} counters were found");
    let limited: BTreeSet<String> = LIMITED.iter().map(|(name, _)| (*name).to_owned()).collect();
    let new: Vec<_> = narrow.difference(&limited).collect();
    assert!(new.is_empty(), "these wrap within a week, unless something limits them: {new:?}");
    let gone: Vec<_> = limited.difference(&narrow).collect();
    assert!(gone.is_empty(), "nothing adds to these any more: {gone:?}");
}

#[test]
fn each_way_to_add_is_found() {
    let found = |line| added(line);
    assert_eq!(found("\t__sync_fetch_and_add(&p->malformed, 1);"), ["malformed"]);
    assert_eq!(found("\t__sync_fetch_and_add(&taken->accepted[v], 1);"), ["accepted"]);
    assert_eq!(found("\th->buckets[at]++; /* x->y++ */"), ["buckets"]);
    assert_eq!(found("\tif (++adding->list >= adding->all)"), ["list"]);
    assert_eq!(found("\there->unattributed += took;"), ["unattributed"]);
    assert!(found("\tat += 8;").is_empty());
}
