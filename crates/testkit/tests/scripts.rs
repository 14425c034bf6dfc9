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

/// A substitute for cargo that "builds" the program and "runs" one test.
const CARGO: &str = r#"#!/bin/sh
case $1 in
--version) echo "cargo 99.0.0 (of a test)" ;;
test)
    mkdir -p "$CARGO_TARGET_DIR/release"
    cp "$BUILT" "$CARGO_TARGET_DIR/release/latpath"
    echo "test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out" ;;
esac
"#;

#[test]
fn tests_leave_a_program_whose_debug_information_is_split_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("built.c"), "int main(void) { return 0; }\n").expect("a file");
    ran(Command::new("cc").arg("-g").arg(path("built.c")).arg("-o").arg(path("built")));
    assert!(sections(&path("built")).contains(".debug_line"));
    std::fs::create_dir(path("bin")).expect("a folder");
    std::fs::write(path("bin/cargo"), CARGO).expect("a file");
    std::fs::set_permissions(path("bin/cargo"), PermissionsExt::from_mode(0o755)).expect("its mode");
    let paths = format!("{}:{}", path("bin").display(), std::env::var("PATH").expect("PATH"));
    let said = ran(Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/test"))
        .env("PATH", paths)
        .env("CARGO_TARGET_DIR", path("target"))
        .env("BUILT", path("built")));
    assert!(said.ends_with("1 passed, 0 failed, 2 skipped\n"), "{said}");
    let (program, apart) = (path("target/release/latpath"), path("target/release/latpath.debug"));
    assert!(!sections(&program).contains(".debug_line") && sections(&program).contains(".gnu_debuglink"));
    assert!(sections(&apart).contains(".debug_line"));
    ran(&mut Command::new(program));
}
