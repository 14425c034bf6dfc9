//! Tests of the scripts around cargo.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn ran(command: &mut Command) -> String {
    let output = command.output().expect("a program");
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{said}");
    said
}

fn sections(program: &Path) -> String {
    ran(Command::new("readelf").args(["-S", "--wide"]).arg(program))
}

/// A substitute for cargo that "builds" the program, and calls its runner for three test programs.
const CARGO: &str = r#"#!/bin/sh
case $1 in
--version) echo "cargo 99.0.0 (of a test)" ;;
test)
    mkdir -p "$CARGO_TARGET_DIR/release"
    cp "$BUILT" "$CARGO_TARGET_DIR/release/latpath"
    for program in plain turns killed; do
        CARGO_MANIFEST_DIR=$PWD "$TESTS" --later "$PROGRAMS/$program" "a word"
    done ;;
esac
"#;

/// A test program with two skipped tests and one that passes.
const PLAIN: &str = r#"#!/bin/sh
[ "$*" = "a word" ] && echo "test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out"
"#;
/// A test program with five tests, two of which run alone.
const TURNS: &str = r#"#!/bin/sh
case $LATPATH_TURN in
together) echo "left to run alone: 2"; echo "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out" ;;
alone) echo "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out" ;;
esac
"#;
/// A test program that is killed during its first test if `$KILLED` is set.
const KILLED: &str = r#"#!/bin/sh
[ -z "$KILLED" ] || { echo "test one ... "; kill -9 $$; }
"#;

#[test]
fn tests_leave_a_program_whose_debug_information_is_split_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("built.c"), "int main(void) { return 0; }\n").expect("a file");
    ran(Command::new("cc").arg("-g").arg(path("built.c")).arg("-o").arg(path("built")));
    assert!(sections(&path("built")).contains(".debug_line"));
    std::fs::create_dir(path("bin")).expect("a folder");
    for (name, script) in [("cargo", CARGO), ("plain", PLAIN), ("turns", TURNS), ("killed", KILLED)] {
        let file = path("bin").join(name);
        std::fs::write(&file, script).expect("a file");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).expect("its mode");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/test");
    let paths = format!("{}:{}", path("bin").display(), std::env::var("PATH").expect("PATH"));
    let mut tests = Command::new(script);
    tests.env("PATH", paths).env("CARGO_TARGET_DIR", path("target")).env("BUILT", path("built"));
    tests.env("TESTS", script).env("PROGRAMS", path("bin")).env("LATPATH_TIER", "test");
    let said = ran(&mut tests);
    assert!(said.ends_with("6 passed, 0 failed, 2 skipped\n"), "{said}");
    let (program, apart) = (path("target/release/latpath"), path("target/release/latpath.debug"));
    assert!(!sections(&program).contains(".debug_line") && sections(&program).contains(".gnu_debuglink"));
    assert!(sections(&apart).contains(".debug_line"));
    ran(&mut Command::new(program));

    let ended = tests.env("KILLED", "yes").output().expect("a program");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(!ended.status.success() && said.ends_with("6 passed, 1 failed, 2 skipped\n"), "{said}");
    assert!(said.contains("killed a\\ word ... FAILED: it ended with status 137"), "{said}");
}
