//! All code is used: each Rust file is a module of its crate, and each implementation of an extensible list is in its
//! table. Without these tests, new code could be left out unnoticed because of a forgotten line.

use std::{collections::BTreeSet, fs, path::Path, path::PathBuf};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn read(file: impl AsRef<Path>) -> String {
    let file = root().join(file);
    fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// All Rust files below a folder.
fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in entries(folder) {
        match path.extension() {
            _ if path.is_dir() => rust_files(&path, found),
            Some(end) if end == "rs" => found.push(path),
            _ => {}
        }
    }
}

/// The files that may declare a file as a module: the folder's own module file or, in a folder of tests or examples,
/// any program.
fn parents(file: &Path) -> Vec<PathBuf> {
    let folder = match file.ends_with("mod.rs") {
        true => file.parent().and_then(Path::parent).expect("a folder"),
        false => file.parent().expect("a folder"),
    };
    let own = ["lib.rs", "main.rs", "mod.rs"].map(|name| folder.join(name));
    let beside = folder.with_extension("rs");
    let is_program = ["tests", "examples"].iter().any(|name| folder.ends_with(name));
    let programs = entries(folder).into_iter().filter(|path| is_program && path.is_file());
    own.into_iter().chain([beside]).chain(programs).filter(|path| path.is_file() && path != file).collect()
}

#[test]
fn each_rust_file_is_a_program_or_a_module() {
    let crates = entries(&root().join("crates")).into_iter().chain([root().join("fuzz")]);
    let (mut files, mut left_out) = (Vec::new(), Vec::new());
    crates.for_each(|folder| {
        ["src", "tests", "examples"].iter().for_each(|part| rust_files(&folder.join(part), &mut files))
    });
    for file in &files {
        let folder = file.parent().expect("a folder");
        let is_source = folder.ends_with("src");
        let is_program = ["tests", "examples"].iter().any(|name| folder.ends_with(name));
        if is_program || file.ends_with("main.rs") || is_source && file.ends_with("lib.rs") {
            continue;
        }
        let name = if file.ends_with("mod.rs") { stem(folder) } else { stem(file) };
        // A protocol's module has no `mod` line: the table of protocols declares it.
        let declares = |text: &str| text.contains(&format!("mod {name};")) || text.contains(&format!("    {name}::"));
        if !parents(file).iter().any(|parent| declares(&read(parent))) {
            left_out.push(file.strip_prefix(root()).expect("below the root").display().to_string());
        }
    }
    assert!(files.len() > 500 && left_out.is_empty(), "no `mod` declares {left_out:?}, so nothing compiles them");
}

/// The types that implement a trait in the files of a folder.
fn implementing(name: &str, folder: &str) -> BTreeSet<String> {
    let mut files = Vec::new();
    rust_files(&root().join(folder), &mut files);
    let texts = files.iter().map(read).collect::<Vec<_>>();
    let lines = texts.iter().flat_map(|text| text.lines());
    let types = lines.filter_map(|line| line.strip_prefix(&format!("impl {name} for "))?.split([' ', '<']).next());
    types.map(str::to_owned).collect()
}

#[test]
fn each_instrument_is_in_the_table() {
    let table = read("crates/observe/src/instrument.rs");
    let implemented = implementing("Instrument", "crates/observe/src");
    let left_out: Vec<_> = implemented.iter().filter(|name| !table.contains(&format!("entry::<{name}>()"))).collect();
    assert!(implemented.len() >= 4 && left_out.is_empty(), "INSTRUMENTS of {left_out:?} lacks an entry");
}

#[test]
fn each_protocol_is_in_the_table() {
    let table = read("crates/protocols/src/lib.rs");
    let implemented = implementing("Protocol", "crates/protocols/src");
    let left_out: Vec<_> = implemented.iter().filter(|name| !table.contains(&format!("::{name},"))).collect();
    assert!(implemented.len() >= 5 && left_out.is_empty(), "protocols! lacks {left_out:?}");
}

#[test]
fn each_exporter_is_in_the_table() {
    let table = read("crates/export/src/lib.rs");
    let files = entries(&root().join("crates/export/src"));
    let writes = |path: &&PathBuf| read(path).contains("(request: &mut ExportRequest");
    let writers: Vec<String> = files.iter().filter(writes).map(|path| stem(path)).collect();
    let left_out: Vec<_> = writers.iter().filter(|name| !table.contains(&format!("write: {name}::write,"))).collect();
    assert!(writers.len() >= 6 && left_out.is_empty(), "EXPORTERS lacks {left_out:?}");
}
