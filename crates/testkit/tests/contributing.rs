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
