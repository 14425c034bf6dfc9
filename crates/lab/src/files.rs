//! Files of running labs.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Directory of the sockets, consoles and images of running labs.
pub(crate) use latpath_linux::RUN_DIRECTORY as FOLDERS;

/// File of a result that is remembered until the next boot, next to the labs' folders.
pub(crate) fn remembered(what: &str) -> PathBuf {
    Path::new(FOLDERS).join(what)
}

/// The last non-empty lines of a file that may not exist.
pub(crate) fn last_lines(file: &Path, lines: usize) -> Vec<String> {
    let bytes = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().map(str::trim_end).filter(|l| !l.is_empty()).collect();
    all[all.len().saturating_sub(lines)..].iter().map(|line| line.to_string()).collect()
}

/// The last lines of a file as text for the user.
pub(crate) fn tail(file: &Path, lines: usize) -> String {
    match last_lines(file, lines) {
        none if none.is_empty() => "(nothing)".into(),
        last => last.join("\n"),
    }
}
