//! Files of running labs.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Sockets, consoles and images of running labs.
pub(crate) const FOLDERS: &str = "/run/latpath";

/// Where the remembered findings of this boot are kept, beside the labs' folders.
pub(crate) fn remembered(what: &str) -> PathBuf {
    Path::new(FOLDERS).join(what)
}

/// The last lines of a file that may not be there.
pub(crate) fn tail(file: &Path, lines: usize) -> String {
    let bytes = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().map(str::trim_end).filter(|l| !l.is_empty()).collect();
    match all.len() {
        0 => "(nothing)".into(),
        n => all[n.saturating_sub(lines)..].join("\n"),
    }
}
