//! Checks CONTRIBUTING.md: it lists every crate, each below the crates that it uses, and the files that it names exist.

use latpath_model::{Passage, PointKind, StreamSpec};
use latpath_protocols::ProtocolId;
use latpath_testkit::pages;
use std::{collections::BTreeSet, fs, path::Path};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn read(file: impl AsRef<Path>) -> String {
    let file = root().join(file);
    fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// The crates in the page's table, in order.
fn listed() -> Vec<String> {
    let page = read("CONTRIBUTING.md");
    let row = |line: &str| Some(line.strip_prefix("| `crates/")?.split_once('`')?.0.to_owned());
    // Rows that contain a path belong to the tables in the sections on extensions.
    page.lines().filter_map(row).filter(|name| !name.contains('/')).collect()
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

/// A library sets `doctest = false` exactly if its documentation has no code block, because building its examples takes
/// seconds.
#[test]
fn examples_of_documentation_run() {
    let is_example = |line: &str| {
        let fence = line.trim().strip_prefix("//!").or(line.trim().strip_prefix("///")).map(str::trim);
        let language = fence.and_then(|fence| fence.strip_prefix("```"));
        language.is_some_and(|language| ["", "rust", "no_run", "should_panic", "compile_fail"].contains(&language))
    };
    for name in listed().iter().filter(|name| root().join(format!("crates/{name}/src/lib.rs")).exists()) {
        let mut files = Vec::new();
        sources(&root().join(format!("crates/{name}/src")), &mut files);
        let text: String = files.iter().map(read).collect();
        let has_examples = text.lines().any(is_example);
        let is_off = read(format!("crates/{name}/Cargo.toml")).contains("doctest = false");
        assert_eq!(is_off, !has_examples, "{name}");
    }
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
        // A NAME in capitals is a placeholder.
        let known = path.split('/').take_while(|part| !part.chars().take(4).all(|c| c.is_ascii_uppercase()));
        let path = known.collect::<Vec<_>>().join("/");
        assert!(root().join(&path).exists(), "{path} is not there");
    }
}

/// The dependencies that cargo builds with these options, and their features.
fn built(options: &[&str]) -> BTreeSet<String> {
    let words = ["tree", "--offline", "--prefix", "none", "--format", "{p} {f}"];
    let cargo =
        std::process::Command::new(env!("CARGO")).current_dir(root()).args(words).args(options).output().unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    let printed = String::from_utf8(cargo.stdout).unwrap();
    printed.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).filter(|line| !line.is_empty()).collect()
}

/// Building the program and then its tests builds no dependency twice, because crates/latpath/Cargo.toml enables the
/// features that the tests add.
#[test]
fn what_the_program_shares_with_tests_is_built_once() {
    let program = built(&["-p", "latpath", "-e", "normal,no-proc-macro"]);
    let tests = built(&["--workspace", "-e", "normal,dev,no-proc-macro"]);
    let twice: Vec<_> = program.difference(&tests).collect();
    assert!(program.len() > 50 && twice.is_empty(), "with other features in tests: {twice:?}");
}

/// All Rust files below a folder.
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
        let text = without_texts(&read(path));
        ["sleep(", "use std::thread::sleep"].iter().any(|call| {
            let is_call = |(at, _): (usize, &str)| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            text.match_indices(call).any(is_call)
        })
    };
    // waits.rs has the only permitted sleep. clippy.toml forbids `std::thread::sleep` in forms that this search does
    // not find.
    files.retain(|path| !path.ends_with("testkit/src/waits.rs") && sleeps(path));
    assert!(
        files.is_empty(),
        "{files:?}: wait for what must be seen (latpath_testkit::waits::until); the length of a fault is `fault_for`, the \
         pace of traffic or polls is `pace`"
    );
}

/// Files with the extension `rs`, `h` or `c` below a folder, except tests and examples.
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

/// The code of a file without comments and unit tests.
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

/// The files to edit according to the section "To add a … NAME", with `name` substituted for NAME.
fn files_to_write(section: &str, name: &str) -> BTreeSet<String> {
    let page = read("CONTRIBUTING.md");
    let (_, text) = page.split_once(&format!("\n## To add {section}\n")).unwrap_or_else(|| panic!("no {section:?}"));
    let text = text.split("\n## ").next().unwrap_or_default();
    let rows = text.lines().skip_while(|line| *line != "| file | what you write |").skip(2);
    let rows = rows.take_while(|line| line.starts_with("| `"));
    let files: BTreeSet<String> = rows.filter_map(|row| Some(row.split('`').nth(1)?.replace("NAME", name))).collect();
    assert!((1..=3).contains(&files.len()), "{section} takes {} files", files.len());
    // The tests that the section's commands run must exist.
    for command in text.lines().filter(|line| line.starts_with("    ") && line.contains("cargo test")) {
        let words: Vec<&str> = command.split('#').next().unwrap_or_default().split_whitespace().collect();
        let after = |flag: &str| words.iter().position(|word| *word == flag).and_then(|at| words.get(at + 1).copied());
        let name = after("-p").expect("a crate");
        let folder = match name.strip_prefix("latpath-") {
            Some("fuzz") => "fuzz".to_owned(),
            Some(short) => format!("crates/{}", short.replace('-', "_")),
            None => "crates/latpath".to_owned(),
        };
        let is_there = |file: String| root().join(file).exists();
        assert!(is_there(format!("{folder}/Cargo.toml")), "{command}: no such crate");
        if let Some(test) = after("--test") {
            let files = [format!("{folder}/tests/{test}.rs"), format!("{folder}/tests/{test}/main.rs")];
            assert!(files.into_iter().any(is_there), "{command}: no such test");
        }
    }
    files
}

#[test]
fn a_protocol_takes_the_files_that_the_page_names() {
    for (name, words) in [
        ("goose", &["goose", "Goose", "GOOSE"][..]),
        ("ptp", &["ptp::Ptp", "ProtocolId::Ptp", "Matcher::Ptp", "protocols::ptp", "match_ptp", "Protocol for Ptp"]),
    ] {
        assert_eq!(files_that_say(words), files_to_write("a protocol", name), "to add {name}");
    }
}

#[test]
fn a_point_takes_the_files_that_the_page_names() {
    // Samples of a point on the route, an optional one, and one at its end. packet.rs is left out because `latpath
    // path` names its points itself, and xdp.h because XDP has its own programs.
    for (kind, lost) in [
        (PointKind::VmRead, "\"vm-read and app-read\""),
        (PointKind::OvsSlow, "\"ovs-upcall and ovs-slow\""),
        (PointKind::TxDone, "\"tx-done\""),
    ] {
        let row = format!("{kind:?}: KindInfo");
        let mut named = files_that_say(&[&row, lost]);
        named.extend(files_that_name(&format!("POINT_{}", in_c(kind))));
        named.extend(files_that_name(&format!("PointKind::{kind:?}")));
        named.retain(|file| file != "crates/path/src/packet.rs" && file != "crates/probe/bpf/xdp.h");
        assert_eq!(named, files_to_write("a point", ""), "to add {kind}");
    }
}

#[test]
fn a_cause_takes_the_files_that_the_page_names() {
    let files = files_to_write("a cause", "");
    for (name, id) in [("QdiscHeld", "qdisc-held"), ("Stopped", "stopped"), ("SoftirqWait", "softirq-wait")] {
        let mut named = files_that_name(&format!("Cause::{name}"));
        named.extend(files_that_say(&[&format!("{name} \"{id}\"")]));
        // Left out: a rule may query its own cause again, and the text printed for a queueing discipline depends on its
        // kind.
        named.retain(|file| !file.contains("/explain/") && !file.ends_with("cause/src/cross_machine.rs"));
        let is_listed = |file: &String| files.iter().any(|listed| file.starts_with(listed.trim_end_matches('/')));
        let others: Vec<_> = named.iter().filter(|file| !is_listed(file)).collect();
        assert!(others.is_empty() && named.len() >= 2, "to add {name}: {others:?} beside {files:?}");
    }
}

#[test]
fn a_setting_takes_the_files_that_the_page_names() {
    let named = files_that_say(&["Smt \"smt\"", "Swappiness \"", "preempt-mode\""]);
    let files = files_to_write("a setting", "");
    let others: Vec<_> = named.iter().filter(|file| !files.contains(*file)).collect();
    assert!(others.is_empty() && !named.is_empty(), "{others:?} beside {files:?}");
}

#[test]
fn an_instrument_takes_the_files_that_the_page_names() {
    let named = files_that_say(&["impl Instrument for Ladder", "entry::<Ladder>()", "pub use ladder::{Ladder, "]);
    assert_eq!(named, files_to_write("an instrument", "ladder"), "to add ladder");
}

#[test]
fn an_exporter_takes_the_files_that_the_page_names() {
    let named = files_that_say(&["jsonl::", "name: \"jsonl\""]);
    let files = files_to_write("an exporter", "jsonl");
    let others: Vec<_> = named.iter().filter(|file| !files.contains(*file)).collect();
    assert!(others.is_empty() && !named.is_empty(), "to add jsonl: {others:?} beside {files:?}");
}

/// The text of all files in a crate's folder, except comments and unit tests.
fn text_of(folder: &str) -> String {
    let mut files = Vec::new();
    sources(&root().join(folder), &mut files);
    files.iter().map(|path| code(path)).collect::<Vec<_>>().join("\n")
}

/// The command that runs these tests, for messages about a differing page.
const THIS_TEST: &str = "cargo test --release -p latpath-testkit --test contributing";

/// The name of a kind in the kernel programs: `OVS_SLOW` for `ovs-slow`.
fn in_c(kind: PointKind) -> String {
    kind.name().replace('-', "_").to_uppercase()
}

#[test]
fn the_page_of_points_has_the_table_of_kinds() {
    let row = |kind: PointKind| {
        let info = kind.info();
        format!("`{}` | {} | {} | {}", info.name, info.packet, info.place, info.device)
    };
    let head = "| kind | the packet … | kernel place | device |";
    pages::holds_table("docs/points.md", head, &PointKind::ALL.map(row), THIS_TEST);
}

#[test]
fn the_pages_of_streams_have_the_table_of_protocols() {
    let about = ProtocolId::ALL.iter().flat_map(|protocol| protocol.info().about).map(|row| row.join(" | "));
    let rows: Vec<String> = about.collect();
    pages::holds_table("docs/record.md", "| written | packets | key |", &rows, THIS_TEST);
    let fields = |protocol: ProtocolId| {
        let stream: StreamSpec = protocol.info().example.parse().expect("a stream");
        let details =
            stream.matcher.details(&stream.rebuild(1).expect("a frame of a protocol whose streams are listed"));
        let fields = details.name.iter().chain(&details.newest).map(|field| format!("`{}`", field.json));
        format!("{} (`{}`) | {}", protocol.info().title, protocol.info().prefix, fields.collect::<Vec<_>>().join(", "))
    };
    let rows: Vec<String> = ProtocolId::listed().into_iter().map(fields).collect();
    pages::holds_table("docs/streams.md", "| protocol | its own fields |", &rows, THIS_TEST);
}

/// Only tables list all protocols; sentences link to the table. The README gives examples.
#[test]
fn no_sentence_of_a_page_lists_the_protocols_by_hand() {
    let pages = fs::read_dir(root().join("docs")).expect("the pages").flatten().map(|page| page.path());
    for page in pages.filter(|page| page.extension().is_some_and(|end| end == "md")) {
        let text = read(&page);
        for sentence in
            text.split("\n\n").filter(|part| !part.starts_with(['|', ' '])).flat_map(|part| part.split(". "))
        {
            let sentence = sentence.replace('\n', " ");
            let named = ["Sampled Values", "GOOSE", "PTP"].iter().filter(|name| sentence.contains(**name)).count();
            assert!(named < 3, "{}: link to record.md#streams instead of listing: {sentence}", page.display());
        }
    }
}

#[test]
fn each_kind_of_point_has_a_program_and_a_test_that_sees_it() {
    let programs = text_of("crates/probe/bpf");
    let mut files = Vec::new();
    tests(&root().join("crates/latpath/tests"), &mut files);
    let expected: String = files.iter().map(read).collect();
    for kind in PointKind::ALL {
        // No program is expected for points whose times are computed or come from other events, for packets from a VM
        // (they are nic-rx or tx on the VM's own device), or for ping's points (ping takes the times itself).
        let is_taken_elsewhere = matches!(kind.info().passage, Passage::FromVm | Passage::FromApplication);
        let is_derived = kind.is_computed() || is_taken_elsewhere || kind.is_at_door();
        let program = format!("POINT_{}", in_c(kind));
        let mut words = programs.split(|c: char| !c.is_alphanumeric() && c != '_');
        assert!(is_derived || words.any(|word| word == program), "no program of crates/probe/bpf has {program}");
        let is_expected = ["/", "\""].iter().any(|before| expected.contains(&format!("{before}{kind}@")));
        assert!(is_expected, "no test of crates/latpath/tests expects a sighting at {kind}: add one in tests/probe");
    }
}

#[test]
fn each_program_with_a_place_in_the_kernel_is_named_by_what_loads_it() {
    // Macros generate the programs of queues.
    for name in ["exits", "flight", "probe", "profile"] {
        let (programs, loader) = (text_of(&format!("crates/{name}/bpf")), text_of(&format!("crates/{name}/src")));
        // The crate `bpf` names the programs attached to interrupt vectors.
        let loader = loader + &text_of("crates/bpf/src");
        let names = programs.split("int BPF_PROG(").skip(1).filter_map(|rest| rest.split([',', ')']).next());
        // Programs that take an untyped context.
        let plain =
            programs.split("\nSEC(\"").skip(1).filter_map(|rest| rest.split_once("\nint ")?.1.split('(').next());
        // The program for perf events is loaded separately.
        let plain = plain.filter(|plain| *plain != "BPF_PROG" && name != "profile");
        let names: Vec<_> = names.chain(plain).filter(|name| !name.contains('#') && *name != "name").collect();
        assert!(!names.is_empty(), "{name} has no programs");
        for program in names {
            assert!(loader.contains(&format!("\"{program}\"")), "{name} never loads its program {program}");
        }
    }
}

/// Files that create points: from events at a guest's door, from samples, from send times, from ping's stamps, from the
/// events of `latpath path`, and from the kernel's table.
const MAKERS: [&str; 6] = [
    "crates/follow/src/door.rs",
    "crates/journey/src/sampling.rs",
    "crates/journey/src/send_plan.rs",
    "crates/model/src/round_trip.rs",
    "crates/path/src/packet.rs",
    "crates/probe/src/points.rs",
];
/// Files with the programs that record points.
const PROGRAMS: [&str; 2] = ["crates/probe/bpf/probe.bpf.c", "crates/probe/bpf/xdp.h"];

/// The files whose code contains this as a whole word.
fn files_that_name(word: &str) -> BTreeSet<String> {
    let has = |file: &String| {
        let code = code(&root().join(file));
        let mut ends = code.match_indices(word).map(|(at, _)| code[at + word.len()..].chars().next());
        ends.any(|next| !next.is_some_and(|c| c.is_alphanumeric() || c == '_'))
    };
    files_that_say(&[word]).into_iter().filter(has).collect()
}

#[test]
fn nothing_decides_by_the_name_of_a_kind_of_point() {
    // All kinds: on the route, off the route, optional, and at its end.
    for kind in PointKind::ALL {
        for (word, allowed) in
            [(format!("PointKind::{kind:?}"), &MAKERS[..]), (format!("POINT_{}", in_c(kind)), &PROGRAMS)]
        {
            let by_name: Vec<_> = files_that_name(&word).into_iter().filter(|f| !allowed.contains(&&f[..])).collect();
            assert!(
                by_name.is_empty(),
                "{by_name:?} name {word}: ask a field of the table in crates/model/src/point.rs, or a set that \
                 crates/bpf/src/compile.rs makes of it"
            );
        }
    }
    assert_eq!(files_that_say(&["use PointKind::", "PointKind::{", "PointKind::*"]), BTreeSet::new());
}

/// The code with strings and comments removed.
fn without_texts(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(c) = rest.chars().next() {
        let ends = |end: &str| rest[1..].find(end).map_or(rest.len(), |at| 1 + at + end.len());
        let skip = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '"' => {
                let bytes = rest.as_bytes();
                let mut at = 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                (at + 1).min(rest.len())
            }
            '\'' if rest[1..].starts_with('\\') => 2 + rest[2..].char_indices().nth(1).map_or(0, |(at, _)| at) + 1,
            // A character literal, not a lifetime.
            '\'' if rest.chars().nth(2) == Some('\'') => ends("'"),
            _ => 0,
        };
        match skip {
            0 => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
            // If the skip ends within a multi-byte character, the rest is dropped.
            skip => rest = rest.get(skip..).unwrap_or_default(),
        }
    }
    out
}

/// The patterns of the arms of each `match` in some code.
fn arms(code: &str) -> Vec<Vec<String>> {
    let starts = code.match_indices("match ").filter(|(at, _)| !code[..*at].ends_with(|c: char| c.is_alphanumeric()));
    let of_match = |(at, _): (usize, &str)| {
        let (mut depth, mut open, mut patterns) = (0_i32, None, Vec::new());
        // Start of the current pattern; `None` while inside an arm's value.
        let mut pattern: Option<usize> = None;
        let mut before = ' ';
        for (i, c) in code[at..].char_indices().map(|(i, c)| (at + i, c)) {
            match c {
                '{' if open.is_none() && depth == 0 => (open, pattern, depth) = (Some(i), Some(i + 1), 1),
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => {
                    depth -= 1;
                    if open.is_some() && depth == 0 {
                        break;
                    }
                    // A block ends its arm, with or without a comma.
                    if c == '}' && depth == 1 && open.is_some() && pattern.is_none() {
                        pattern = Some(i + 1);
                    }
                }
                '>' if before == '=' && depth == 1 && open.is_some() => {
                    patterns
                        .extend(pattern.take().map(|from| code[from..i - 1].trim_matches([',', ' ', '\n']).to_owned()));
                }
                ',' if depth == 1 && open.is_some() && pattern.is_none() => pattern = Some(i + 1),
                _ => {}
            }
            before = c;
        }
        patterns
    };
    starts.map(of_match).collect()
}

#[test]
fn arms_are_found() {
    let code = "match x { A::B(_) if y => { 1 } A::C { .. } => f(|a| match a { _ => 2 }), _ => 3 }";
    assert_eq!(arms(code), [vec!["A::B(_) if y", "A::C { .. }", "_"], vec!["_"]]);
    assert_eq!(without_texts("a(\"{\\\"\", '{', '\\n', &'a str) // {\nb"), "a(, , , &'a str) \nb");
}

/// Enums that are expected to grow: a match that names some of their variants must name all of them.
const GROWING: [&str; 11] = [
    "PointKind",
    "Passage",
    "PathMark",
    "RoutePart",
    "NamedBy",
    "FrameAt",
    "Cause",
    "Culprit",
    "OfHolder",
    "ProtocolId",
    "ActorState",
];

#[test]
fn no_arm_decides_for_points_causes_and_protocols_that_are_to_come() {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    let mut matches = 0;
    for path in files.iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        for patterns in arms(&without_texts(&code(path))) {
            // Guards are cut off, because a guard may test for a variant.
            let before_guard = |pattern: &String| pattern.split(" if ").next().unwrap_or_default().to_owned();
            let bare: Vec<String> = patterns.iter().map(before_guard).collect();
            let names = |list: &&str| bare.iter().any(|pattern| pattern.contains(&format!("{list}::")));
            let Some(list) = GROWING.iter().find(|list| names(list)) else { continue };
            matches += 1;
            let is_rest = |pattern: &String| pattern == "_" || pattern.starts_with("_ if") || pattern == "(_, _)";
            let rest = patterns.iter().find(|pattern| is_rest(pattern));
            assert!(
                rest.is_none(),
                "{}: a match names members of {list} and has an arm {rest:?}: name all, or ask a property of theirs",
                path.display()
            );
        }
    }
    assert!(matches > 1, "{matches} such matches were found");
}

#[test]
fn lines_of_pages_wrap_at_120_columns() {
    let folder = fs::read_dir(root().join("docs")).expect("the pages").flatten();
    let pages = folder.map(|page| page.path()).filter(|path| path.extension().is_some_and(|end| end == "md"));
    let top = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|page| root().join(page));
    let mut long = Vec::new();
    for path in pages.chain(top) {
        // Table rows, headings and program output are not wrapped.
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
