//! Safe access to files of other users, and to files in directories that others can write: no write follows a link, and
//! no read blocks.

use crate::Directory;
use nix::fcntl::OFlag;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Flags of an open that neither blocks on a pipe nor acquires a controlling terminal.
pub(crate) const NONBLOCKING: OFlag = OFlag::O_NONBLOCK.union(OFlag::O_NOCTTY);

/// Creates a file that only its owner can read, replacing leftovers of a killed writer. Never writes through a link,
/// which another user might have created in the directory.
///
/// # Errors
/// The directory cannot be opened, the leftover cannot be removed, or the file cannot be created.
pub fn new_file(path: &Path) -> io::Result<File> {
    let (directory, name) = Directory::of_file(path)?;
    directory.new_file(name)
}

/// Opens a regular file for reading, and rejects anything else: opening a FIFO would block for ever.
///
/// # Errors
/// The file cannot be opened, or is not a regular file.
pub fn open_file(path: &Path) -> io::Result<File> {
    regular(File::options().read(true).custom_flags(NONBLOCKING.bits()).open(path)?)
}

/// Returns the file if it is a regular one.
pub(crate) fn regular(file: File) -> io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file")),
    }
}

/// Reads a text file of at most `most` bytes.
///
/// # Errors
/// The file cannot be opened, is not a regular file, is longer, or is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let mut text = String::new();
    open_file(path)?.take(most.saturating_add(1)).read_to_string(&mut text)?;
    match text.len() as u64 > most {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is longer than {most} bytes"))),
        false => Ok(text),
    }
}

/// The kind of a special file, which must not be moved away: a device, a pipe or a socket. `None` for files,
/// directories and links, and for missing files.
pub fn special(path: &Path) -> Option<&'static str> {
    let kind = fs::symlink_metadata(path).ok()?.file_type();
    match () {
        () if kind.is_char_device() || kind.is_block_device() => Some("a device"),
        () if kind.is_fifo() => Some("a pipe"),
        () if kind.is_socket() => Some("a socket"),
        () => None,
    }
}

/// Returns why others could create links in a directory or replace the directory, and thereby redirect this user's
/// writes; `None` if they cannot.
///
/// # Errors
/// The directory cannot be read.
pub fn why_shared(directory: &Path) -> io::Result<Option<&'static str>> {
    match fs::symlink_metadata(directory)?.uid() == ours() {
        true => Ok(why_others_write(&fs::metadata(directory)?)),
        false => Ok(Some(OF_ANOTHER)),
    }
}

/// Returns why another user could replace a directory; `None` if no other user can. The owner of each directory on the
/// path, and users with write permission in it, can rename its entries. Root may own any of them. A directory with the
/// sticky bit may be writable for all, since users can rename only their own files in it.
///
/// # Errors
/// One of the directories cannot be read.
pub fn why_replaceable(path: &Path) -> io::Result<Option<String>> {
    for directory in fs::canonicalize(path)?.ancestors() {
        let found = fs::symlink_metadata(directory)?;
        let is_sticky = found.mode() & libc::S_ISVTX != 0;
        if ![0, ours()].contains(&found.uid()) {
            return Ok(Some(format!("{} belongs to another user", directory.display())));
        }
        if found.mode() & 0o022 != 0 && !is_sticky {
            return Ok(Some(format!("other users may write in {}", directory.display())));
        }
    }
    Ok(None)
}

const OF_ANOTHER: &str = "the directory belongs to another user";

fn ours() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// Like [`why_shared`], for an open directory.
pub(crate) fn why_others_write(found: &fs::Metadata) -> Option<&'static str> {
    match () {
        () if found.uid() != ours() => Some(OF_ANOTHER),
        () if found.mode() & 0o022 != 0 => Some("other users may write in the directory"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_sockets_are_special_and_files_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("file"), "x").unwrap();
        std::os::unix::fs::symlink("/dev/null", path("link")).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        let found = ["file", "link", "socket", "nothing"].map(|name| special(&path(name)));
        assert_eq!(found, [None, None, Some("a socket"), None]);
        assert_eq!(special(Path::new("/dev/null")), Some("a device"));
    }

    #[test]
    fn reading_is_limited_in_length_and_to_regular_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("text");
        fs::write(&file, "four").unwrap();
        assert_eq!(read_text(&file, 4).unwrap(), "four");
        assert!(read_text(&file, 3).unwrap_err().to_string().contains("longer than 3 bytes"));
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(read_text(&pipe, 4).unwrap_err().to_string().contains("no file"));
        assert!(read_text(Path::new("/dev/zero"), 4).is_err());
    }

    #[test]
    fn owners_and_writers_of_a_parent_directory_can_replace_its_entries() {
        let folder = tempfile::tempdir().unwrap();
        let (above, path) = (folder.path().join("above"), folder.path().join("above/cache"));
        fs::create_dir_all(&path).unwrap();
        let set = |path: &Path, mode| {
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            why_replaceable(&folder.path().join("above/cache")).unwrap()
        };
        set(&above, 0o755);
        assert_eq!(set(&path, 0o755), None);
        assert!(set(&path, 0o775).is_some_and(|why| why.contains("may write in") && why.ends_with("cache")));
        set(&path, 0o755);
        assert!(set(&above, 0o777).is_some_and(|why| why.ends_with("above")));
        assert_eq!(set(&above, 0o1777), None);
        set(&above, 0o755);
        if std::os::unix::fs::chown(&above, Some(12345), None).is_ok() {
            assert!(why_replaceable(&path).unwrap().is_some_and(|why| why.ends_with("above belongs to another user")));
        }
    }

    #[test]
    fn a_directory_behind_another_users_link_counts_as_shared() {
        let folder = tempfile::tempdir().unwrap();
        let (own, link) = (folder.path().join("own"), folder.path().join("link"));
        fs::create_dir(&own).unwrap();
        fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(&own, &link).unwrap();
        assert_eq!((why_shared(&own).unwrap(), why_shared(&link).unwrap()), (None, None));
        if std::os::unix::fs::lchown(&link, Some(12345), None).is_ok() {
            assert!(why_shared(&link).unwrap().is_some());
        }
    }
}
