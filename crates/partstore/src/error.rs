//! Errors in writing and reading parts.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a part cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file cannot be written.
    #[error("{}: cannot write: {source}{}", path.display(), advice(source, path))]
    Write {
        /// The file.
        path: PathBuf,
        /// Error returned by the operating system.
        source: io::Error,
    },
    /// A file cannot be read.
    #[error("{}: cannot read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error returned by the operating system.
        source: io::Error,
    },
    /// The file's content is invalid.
    #[error("{}: damaged: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
}

fn advice(source: &io::Error, path: &Path) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull => "; free some space, or use -o to write to another disk",
        io::ErrorKind::QuotaExceeded => "; raise the quota, or use -o to write elsewhere",
        io::ErrorKind::PermissionDenied => "; use -o to write to a directory with write permission",
        io::ErrorKind::ReadOnlyFilesystem => "; use -o to write to another disk",
        io::ErrorKind::NotFound if !path.parent().is_none_or(Path::exists) => "; create the parent directory first",
        _ => "",
    }
}

impl StoreError {
    /// Converts an error that occurred when this file was written.
    pub fn write(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Write { path, source }
    }

    /// Converts an error that occurred when this file was read.
    pub fn read(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Read { path, source }
    }
}
