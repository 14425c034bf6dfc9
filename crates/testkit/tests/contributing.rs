//! CONTRIBUTING.md says what is so: it lists every crate, each below those that it uses, and the files that it names are there.

use std::{collections::BTreeSet, fs, path::Path};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn read(file: impl AsRef<Path>) -> String {
    let file = root().join(file);
    fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// The crates of the table, in its order.
fn listed() -> Vec<String> {
    let page = read("CONTRIBUTING.md");
    let row = |line: &str| Some(line.strip_prefix("| `crates/")?.split_once('`')?.0.to_owned());
    page.lines().filter_map(row).collect()
}

#[test]
fn every_crate_is_listed_once() {
    let folders = fs::read_dir(root().join("crates")).expect("the crates").flatten();
    let there: BTreeSet<String> = folders
        .filter(|folder| folder.path().join("Cargo.toml").exists())
        .map(|folder| folder.file_name().to_string_lossy().into_owned())
        .collect();
    let listed = listed();
    assert_eq!(listed.iter().cloned().collect::<BTreeSet<_>>(), there);
    assert_eq!(listed.len(), there.len());
}

#[test]
fn a_crate_uses_only_crates_above_it() {
    let listed = listed();
    for (place, name) in listed.iter().enumerate() {
        let manifest = read(format!("crates/{name}/Cargo.toml"));
        let sections = manifest.split("\n[").filter(|s| s.starts_with("dependencies]"));
        for used in sections.flat_map(str::lines).filter_map(|line| line.strip_prefix("latpath-")) {
            let used = used.split(['.', ' ']).next().unwrap_or_default().replace('-', "_");
            assert!(listed[..place].contains(&used), "{name} uses {used}, which stands below it");
        }
    }
}

#[test]
fn the_files_that_it_names_are_there() {
    let page = read("CONTRIBUTING.md");
    let quoted = page.split('`').skip(1).step_by(2);
    let top = ["crates/", "docs/", "scripts/", "fuzz/", ".ci/"];
    for path in quoted.filter(|text| top.iter().any(|folder| text.starts_with(folder))) {
        // A NAME in capitals is the reader's to fill in.
        let known = path.split('/').take_while(|part| !part.chars().take(4).all(|c| c.is_ascii_uppercase()));
        let path = known.collect::<Vec<_>>().join("/");
        assert!(root().join(&path).exists(), "{path} is not there");
    }
}

/// The dependencies of what cargo builds by these options, with their features.
fn built(options: &[&str]) -> BTreeSet<String> {
    let words = ["tree", "--offline", "--prefix", "none", "--format", "{p} {f}"];
    let cargo =
        std::process::Command::new(env!("CARGO")).current_dir(root()).args(words).args(options).output().unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    let printed = String::from_utf8(cargo.stdout).unwrap();
    printed.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).filter(|line| !line.is_empty()).collect()
}

/// Who builds the program and then its tests waits for no dependency twice: crates/latpath/Cargo.toml asks for the features that tests add.
#[test]
fn what_the_program_shares_with_tests_is_built_once() {
    let program = built(&["-p", "latpath", "-e", "normal,no-proc-macro"]);
    let tests = built(&["--workspace", "-e", "normal,dev,no-proc-macro"]);
    let twice: Vec<_> = program.difference(&tests).collect();
    assert!(program.len() > 50 && twice.is_empty(), "with other features in tests: {twice:?}");
}

/// Each `sleep(` in the tests, by file: how many, and what they stand for, which is no wait for what another does.
const SLEEPS: [(&str, usize, &str); 50] = [
    ("agent/tests/sessions.rs", 2, "the pace of sightings"),
    ("agent/tests/windows.rs", 1, "a recorder that takes its time"),
    ("flight/tests/frozen.rs", 1, "what is recorded: a thread's sleeps"),
    (
        "flight/tests/recording.rs",
        7,
        "what is recorded, a window, a process that waits to be killed, the pace of polls",
    ),
    ("lab/tests/lab.rs", 1, "a process that waits to be killed"),
    ("latpath/tests/demo/main.rs", 1, "the pace of polls at a report"),
    ("latpath/tests/follow/breaks.rs", 1, "the moment of a kill"),
    ("latpath/tests/follow/spikes.rs", 1, "a fault"),
    ("latpath/tests/lab/causes/application.rs", 1, "a fault"),
    ("latpath/tests/lab/causes/fault.rs", 10, "faults, and their pace"),
    ("latpath/tests/lab/causes/fixed.rs", 6, "how long faults last, before and after their end"),
    ("latpath/tests/lab/causes/in_guest.rs", 1, "a fault"),
    ("latpath/tests/lab/causes/on_host.rs", 2, "a recording's length, a fault"),
    ("latpath/tests/lab/causes/stalls.rs", 3, "faults"),
    ("latpath/tests/lab/causes/storm.rs", 1, "the pace of timers"),
    ("latpath/tests/lab/linked.rs", 2, "the pace of packets, and of polls for a stamp"),
    ("latpath/tests/lab/stage.rs", 3, "the pace of polls, what a guest takes from its device to its application"),
    ("latpath/tests/lab/tests/cause_fixed.rs", 2, "how long faults last"),
    ("latpath/tests/lab/tests/cause_guest.rs", 1, "a fault"),
    ("latpath/tests/lab/tests/cause_idle.rs", 4, "faults, and their pace"),
    ("latpath/tests/lab/tests/cause_ovs.rs", 4, "faults, and their pace"),
    ("latpath/tests/lab/tests/exits_guest.rs", 1, "a window"),
    ("latpath/tests/lab/tests/flight_recorder.rs", 1, "the pace of faults"),
    ("latpath/tests/lab/tests/ovs_upcall.rs", 1, "the pace of faults"),
    ("latpath/tests/lab/tests/path_ovs_upcall.rs", 1, "the pace of faults"),
    ("latpath/tests/lab/tests/phc_followed.rs", 1, "the pace of readings of a clock"),
    ("latpath/tests/lab/tests/ping_clocks.rs", 2, "the moments of faults"),
    ("latpath/tests/lab/tests/ping_hardware.rs", 1, "a fault"),
    ("latpath/tests/lab/tests/stamping_nics.rs", 1, "how long a clock is slewed"),
    ("latpath/tests/lab/tests/udp_read.rs", 1, "the pace of packets"),
    ("latpath/tests/ping/breach_context.rs", 3, "a fault, the pace of faults, and a switch"),
    ("latpath/tests/ping/ends.rs", 1, "a fault"),
    ("latpath/tests/probe/agent.rs", 1, "what is recorded: a thread's sleeps"),
    ("latpath/tests/probe/changes.rs", 2, "the pace of packets"),
    ("latpath/tests/probe/guest.rs", 2, "the pace of packets, and of polls for sightings"),
    ("latpath/tests/probe/live.rs", 1, "the pace of packets"),
    ("latpath/tests/probe/main.rs", 1, "the pace of polls for sightings"),
    ("latpath/tests/probe/many.rs", 1, "the pace of packets"),
    ("latpath/tests/probe/taps.rs", 1, "the pace of packets"),
    ("latpath/tests/profile/debug_files.rs", 1, "the pace of a slow server"),
    ("latpath/tests/publish/receives.rs", 1, "a fault"),
    ("ping/tests/faults/ends.rs", 1, "a fault"),
    ("ping/tests/faults/run.rs", 1, "the pace of a reflector's restarts"),
    ("ping/tests/survival.rs", 2, "the pace of rows"),
    ("run/tests/crash.rs", 2, "the pace of journeys, and of polls for a file"),
    ("run/tests/run.rs", 1, "the pace of journeys"),
    ("session/tests/follow.rs", 1, "the pace of packets"),
    ("testkit/src/busy.rs", 1, "the part of the time in which a process is not busy"),
    ("testkit/src/waits.rs", 1, "the pace of polls"),
    ("tracefs/tests/kernel.rs", 2, "a process that waits to be killed, the pace of polls"),
];

/// All files of tests, and of what tests share.
fn tests(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => tests(&path, found),
            path if path.extension().is_some_and(|end| end == "rs") => found.push(path),
            _ => {}
        }
    }
}

#[test]
fn a_test_waits_for_what_it_must_see_and_never_for_a_while() {
    let mut files = Vec::new();
    for folder in fs::read_dir(root().join("crates")).expect("the crates").flatten() {
        tests(&folder.path().join("tests"), &mut files);
    }
    tests(&root().join("crates/testkit/src"), &mut files);
    let sleeps = |path: &Path| {
        let is_call = |before: &str| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let text = read(path);
        let calls = text.match_indices("sleep(").filter(|(at, _)| is_call(&text[..*at]));
        calls.count()
    };
    let short = |path: &Path| path.strip_prefix(root().join("crates")).expect("a crate's").display().to_string();
    // This file says the word too.
    files.retain(|path| !path.ends_with("testkit/tests/contributing.rs"));
    for (file, count) in files.iter().map(|path| (short(path), sleeps(path))) {
        let known = SLEEPS.iter().find(|(name, ..)| *name == file).map_or(0, |(_, count, _)| *count);
        assert!(
            count == known,
            "{file} sleeps {count} times, not {known}: wait for what must be seen (latpath_testkit::waits); only the \
             length of a fault or the pace of traffic is listed here"
        );
    }
}

/// Files of the kind `rs`, `h` or `c` below a folder, without tests and examples.
fn sources(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        match path.extension().and_then(|e| e.to_str()) {
            _ if path.is_dir() && !["tests", "examples", "testkit"].contains(&&name[..]) => sources(&path, found),
            Some("rs" | "h" | "c") if name != "tests.rs" => found.push(path),
            _ => {}
        }
    }
}

/// The code of a file: no comments, no unit tests.
fn code(path: &Path) -> String {
    let text = read(path);
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let is_code = |line: &&str| !["//", "/*", "*", " *"].iter().any(|start| line.trim_start().starts_with(start));
    text.lines().filter(is_code).collect::<Vec<_>>().join("\n")
}

fn files_that_say(words: &[&str]) -> BTreeSet<String> {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    let says = |path: &std::path::PathBuf| words.iter().any(|word| code(path).contains(word));
    let short = |path: &std::path::PathBuf| path.strip_prefix(root()).expect("below the root").display().to_string();
    files.iter().filter(|path| says(path)).map(short).collect()
}

#[test]
fn a_protocol_stands_in_its_module_its_header_and_the_table() {
    for (name, words) in [
        ("goose", &["goose", "Goose", "GOOSE"][..]),
        ("ptp", &["ptp::Ptp", "ProtocolId::Ptp", "Matcher::Ptp", "protocols::ptp", "match_ptp", "Protocol for Ptp"]),
    ] {
        let named = [format!("crates/protocols/src/{name}.rs"), format!("crates/bpf/protocols/{name}.h")];
        let mut named = BTreeSet::from(named);
        named.insert("crates/protocols/src/lib.rs".into());
        assert_eq!(files_that_say(words), named, "to add {name} took more files than CONTRIBUTING.md says");
    }
}

/// The text of all files of a crate's folder, comments and unit tests left out.
fn text_of(folder: &str) -> String {
    let mut files = Vec::new();
    sources(&root().join(folder), &mut files);
    files.iter().map(|path| code(path)).collect::<Vec<_>>().join("\n")
}

/// The name `OvsSlow` as the kernel's programs and docs/points.md write it: `OVS_SLOW`, `ovs-slow`.
fn joined(kind: &str, by: char) -> String {
    let starts = |(at, c): (usize, char)| if at > 0 && c.is_uppercase() { vec![by, c] } else { vec![c] };
    kind.chars().enumerate().flat_map(starts).collect()
}

#[test]
fn each_kind_of_point_has_a_program_and_a_row_in_its_page() {
    let kinds = read("crates/model/src/point.rs");
    let kinds = kinds.split_once("\nkinds! {").expect("the list").1.split_once("\n}").expect("its end").0;
    let kinds: Vec<_> = kinds.lines().filter_map(|line| Some(line.trim().split_once(" = \"")?.0)).collect();
    assert!(kinds.contains(&"OvsSlow") && kinds.len() > 10, "{kinds:?}");
    let (programs, page) = (text_of("crates/probe/bpf"), read("docs/points.md"));
    for kind in kinds {
        let program = format!("POINT_{}", joined(kind, '_').to_uppercase());
        // Samples are computed; vm-write is nic-rx or tx on a VM's own device.
        let is_derived = ["Sampled", "VmWrite"].contains(&kind);
        let words = programs.split(|c: char| !c.is_alphanumeric() && c != '_');
        assert!(is_derived || words.clone().any(|word| word == program), "no program has {program}");
        let row = format!("\n| `{}` |", joined(kind, '-').to_lowercase());
        assert!(page.contains(&row), "docs/points.md has no row for {kind}");
    }
}

#[test]
fn each_program_with_a_place_in_the_kernel_is_named_by_what_loads_it() {
    // Those of queues are made by macros of their own.
    for name in ["exits", "flight", "probe", "profile"] {
        let (programs, loader) = (text_of(&format!("crates/{name}/bpf")), text_of(&format!("crates/{name}/src")));
        let names = programs.split("int BPF_PROG(").skip(1).filter_map(|rest| rest.split([',', ')']).next());
        let names: Vec<_> = names.filter(|name| !name.contains('#') && *name != "name").collect();
        assert!(!names.is_empty(), "{name} has no programs");
        for program in names {
            assert!(loader.contains(&format!("\"{program}\"")), "{name} never loads its program {program}");
        }
    }
}

#[test]
fn a_point_stands_in_its_list_its_program_and_the_table_of_hooks() {
    let named = ["crates/model/src/point.rs", "crates/probe/bpf/probe.bpf.c"];
    assert_eq!(files_that_say(&["OvsSlow = \"", "POINT_OVS_SLOW"]), BTreeSet::from(named.map(Into::into)));
    assert_eq!(
        files_that_say(&["\"ovs-upcall and ovs-slow\""]),
        BTreeSet::from(["crates/probe/src/hooks.rs".to_owned()])
    );
    // What is said of one kind alone elsewhere: the path that it makes, the queue before it, and what `latpath path` calls it.
    let others = ["crates/cause/src/queue.rs", "crates/journey/src/paths.rs", "crates/path/src/packet.rs"];
    let all = BTreeSet::from(others.map(Into::into)).union(&BTreeSet::from([named[0].to_owned()])).cloned().collect();
    assert_eq!(files_that_say(&["OvsSlow"]), all);
}

#[test]
fn lines_of_pages_wrap_at_120_columns() {
    let folder = fs::read_dir(root().join("docs")).expect("the pages").flatten();
    let pages = folder.map(|page| page.path()).filter(|path| path.extension().is_some_and(|end| end == "md"));
    let top = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|page| root().join(page));
    let mut long = Vec::new();
    for path in pages.chain(top) {
        // A row of a table is one line, and so are a heading and what a program prints.
        let mut is_quoted = false;
        for (at, line) in read(&path).lines().enumerate() {
            is_quoted ^= line.trim_start().starts_with("```");
            let is_whole = is_quoted || line.starts_with(['|', '#']) || line.starts_with("    ");
            if !is_whole && line.chars().count() > 120 {
                long.push(format!("{}:{}", path.display(), at + 1));
            }
        }
    }
    assert!(long.is_empty(), "longer than 120 columns: {}", long.join(" "));
}
