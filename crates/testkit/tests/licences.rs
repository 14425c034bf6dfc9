//! The licences that are distributed with the program cover all its parts.

use std::collections::BTreeSet;
use std::{fs, path::Path, process::Command};

type Packages = BTreeSet<(String, String)>;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Third-party packages of the program as built here, by name and version.
fn contained() -> Packages {
    let words = ["tree", "--offline", "-p", "latpath", "-e", "normal", "--prefix", "none", "--format", "{p}"];
    let cargo = Command::new(env!("CARGO")).current_dir(root()).args(words).output().expect("cargo tree");
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    let package = |line: &str| {
        let (name, rest) = line.split_once(" v")?;
        // Packages of the workspace show their folder.
        (!rest.contains("(/")).then(|| (name.to_owned(), rest.split(' ').next().unwrap_or_default().to_owned()))
    };
    String::from_utf8_lossy(&cargo.stdout).lines().filter_map(package).collect()
}

/// Packages that THIRD-PARTY.txt lists below the name of each licence.
fn listed() -> Packages {
    let text = read("THIRD-PARTY.txt");
    let rule = format!("\n{}\n", "-".repeat(80));
    // A licence's text may contain such a rule too, so a part must begin with a heading that ends in `)`.
    let parts = text.split(&rule).filter(|part| part.lines().next().is_some_and(|name| name.ends_with(')')));
    let packages = parts.flat_map(|part| part.split("\n\n").nth(1).unwrap_or_default().lines());
    let words = packages.filter(|line| line.starts_with("  ")).map(|line| line.split_whitespace().map(str::to_owned));
    words.filter_map(|mut words| Some((words.next()?, words.next()?))).collect()
}

#[test]
fn each_package_of_the_program_is_listed_with_its_licence() {
    let (contained, listed) = (contained(), listed());
    assert!(contained.len() > 50, "{contained:?}");
    let missing: Vec<_> = contained.difference(&listed).collect();
    assert!(missing.is_empty(), "run make licences: THIRD-PARTY.txt lacks {missing:?}");
    let lock = read("Cargo.lock");
    let is_known =
        |(name, version): &&(String, String)| lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"\n"));
    let gone: Vec<_> = listed.iter().filter(|package| !is_known(package)).collect();
    assert!(gone.is_empty(), "run make licences: THIRD-PARTY.txt still lists {gone:?}");
}

#[test]
fn licences_that_are_accepted_are_those_that_are_allowed() {
    let list = |file: &str, key: &str| {
        let text = read(file);
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{file} has no {key}"));
        line.split_once('=').map(|(_, list)| list.trim().to_owned())
    };
    assert_eq!(list("about.toml", "accepted = "), list("deny.toml", "allow = "));
}

#[test]
fn texts_that_the_notice_names_are_there() {
    let notice = read("NOTICE");
    let named = notice.split_whitespace().map(|word| word.trim_matches(['(', ')', ',', '.', ':', ';']));
    let texts: BTreeSet<_> = named.filter(|word| word.starts_with("licences/")).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    texts.iter().for_each(|text| assert!(!read(text).is_empty()));
    // The notice concerns the statically linked libraries.
    let features = read("Cargo.toml");
    assert!(features.contains("\"static-libelf\", \"static-zlib\""), "then NOTICE must say how libelf is linked");
}
