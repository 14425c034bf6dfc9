//! Records of latpath's changes to the machine, so that the next latpath can undo them after a kill.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// Directory of these records. They are valid until the next boot.
pub const UNDO: &str = "/run/latpath";

/// Makes a directory that only its owner may enter.
pub fn make_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Makes a directory that only its owner may enter, or uses an existing one of this user, closed to others from then on.
/// What others could open they could lock, and so keep latpath from undoing.
pub fn private_directory(path: &Path) -> io::Result<()> {
    if let Err(error) = make_private(path) {
        if error.kind() != io::ErrorKind::AlreadyExists {
            return Err(error);
        }
    }
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() || found.uid() != nix::unistd::geteuid().as_raw() {
        let why = format!("{} is no directory of this user's: remove it", path.display());
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
    fn others_cannot_enter_what_is_made_nor_what_was_there() {
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
