//! What can go wrong with parts.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a part cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file cannot be written.
    #[error("{}: cannot write: {source}{}", path.display(), advice(source, path))]
    Write { path: PathBuf, source: io::Error },
    /// A file cannot be read.
    #[error("{}: cannot read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file's content is not what latpath writes.
    #[error("{}: damaged: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
}

fn advice(source: &io::Error, path: &Path) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull => "; free some space, or write to another disk with -o",
        io::ErrorKind::QuotaExceeded => "; raise the quota, or write elsewhere with -o",
        io::ErrorKind::PermissionDenied => "; write to a directory that you may write, with -o",
        io::ErrorKind::ReadOnlyFilesystem => "; write to another disk with -o",
        io::ErrorKind::NotFound if !path.parent().is_none_or(Path::exists) => "; make the directory above it first",
        _ => "",
    }
}

impl StoreError {
    /// For an error of writing this file.
    pub fn write(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Write { path, source }
    }

    /// For an error of reading this file.
    pub fn read(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Read { path, source }
    }
}
