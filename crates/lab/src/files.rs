//! Files of running labs.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Sockets, consoles and images of running labs.
pub(crate) use latpath_linux::RUN_DIRECTORY as FOLDERS;

/// Where the remembered findings of this boot are kept, beside the labs' folders.
pub(crate) fn remembered(what: &str) -> PathBuf {
    Path::new(FOLDERS).join(what)
}

/// The last lines of a file that may not be there, without empty ones.
pub(crate) fn last_lines(file: &Path, lines: usize) -> Vec<String> {
    let bytes = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().map(str::trim_end).filter(|l| !l.is_empty()).collect();
    all[all.len().saturating_sub(lines)..].iter().map(|line| line.to_string()).collect()
}

/// The same for a person.
pub(crate) fn tail(file: &Path, lines: usize) -> String {
    match last_lines(file, lines) {
        none if none.is_empty() => "(nothing)".into(),
        last => last.join("\n"),
    }
}
