//! Directories that only their owner may enter, and the directory of latpath's own files.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// Directory of latpath's files on this machine: the journal of its changes, and labs. The directory is empty after a
/// boot.
pub const RUN_DIRECTORY: &str = "/run/latpath";

/// Creates a directory that only its owner may enter, or makes an existing directory of this user private. Otherwise
/// other users could lock it, and thereby keep latpath from undoing its changes.
///
/// # Errors
/// The directory cannot be created, or the path is not a directory of this user.
pub fn private_directory(path: &Path) -> io::Result<()> {
    if let Err(error) = DirBuilder::new().mode(0o700).create(path) {
        if error.kind() != io::ErrorKind::AlreadyExists {
            return Err(error);
        }
    }
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() || found.uid() != nix::unistd::geteuid().as_raw() {
        let why = format!("{} is not a directory of this user: remove it", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    match found.mode() & 0o077 {
        0 => Ok(()),
        _ => fs::set_permissions(path, Permissions::from_mode(0o700)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_cannot_enter_created_or_existing_directories() {
        let place = tempfile::tempdir().unwrap();
        let (made, there, link) = (place.path().join("made"), place.path().join("there"), place.path().join("link"));
        fs::create_dir(&there).unwrap();
        fs::set_permissions(&there, Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(&there, &link).unwrap();
        for path in [&made, &made, &there] {
            private_directory(path).unwrap();
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o700);
        }
        assert!(private_directory(&link).unwrap_err().to_string().contains("remove it"));
    }
}
