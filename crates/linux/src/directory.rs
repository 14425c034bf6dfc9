//! A directory, identified by its descriptor. The owner of its parent directory can rename it and replace it with a
//! link; all operations here affect the directory that was opened.

use crate::files;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{openat, renameat, AtFlags, OFlag};
use nix::sys::stat::{mkdirat, Mode};
use nix::unistd::{linkat, unlinkat, UnlinkatFlags};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open directory, in which names are looked up even if it is renamed.
#[derive(Clone, Debug)]
pub struct Directory {
    descriptor: Arc<File>,
    /// The path by which the directory was opened, for messages.
    path: Arc<Path>,
}

impl Directory {
    /// Opens an existing directory; an empty path means the working directory.
    ///
    /// # Errors
    /// The path is not a directory, or this user may not open it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let opened = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let descriptor = match nix::fcntl::open(opened, flags, Mode::empty()) {
            // A directory in which this user may look up and create names but not list them.
            Err(Errno::EACCES) => nix::fcntl::open(opened, flags | OFlag::O_PATH, Mode::empty())?,
            opened => opened?,
        };
        Ok(Self { descriptor: Arc::new(descriptor.into()), path: path.into() })
    }

    /// Opens the directory of a file, and returns the file's name in it.
    ///
    /// # Errors
    /// The directory cannot be opened, or the path does not end in a name.
    pub fn of_file(path: &Path) -> io::Result<(Self, OsString)> {
        let name = path.file_name();
        let name = name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
        Ok((Self::open(path.parent().unwrap_or(Path::new("")))?, name.into()))
    }

    /// Creates a directory that only this user may enter.
    ///
    /// # Errors
    /// The directory cannot be created or opened; `AlreadyExists` also if another directory replaced it before it was
    /// opened.
    pub fn make(path: &Path) -> io::Result<Self> {
        let (above, name) = Self::of_file(path)?;
        above.make_directory(&name)
    }

    /// Creates a subdirectory that only this user may enter.
    ///
    /// # Errors
    /// The directory cannot be created or opened; `AlreadyExists` also if another directory replaced it before it was
    /// opened.
    pub fn make_directory(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let name = name.as_ref();
        mkdirat(&self.descriptor, name, Mode::S_IRWXU)?;
        let made = self.open_directory(name)?;
        // Users with write permission in the parent may have replaced the directory since.
        let found = made.metadata()?;
        let is_ours = found.uid() == nix::unistd::geteuid().as_raw() && found.mode() & 0o077 == 0;
        match is_ours && made.names()?.is_empty() {
            true => Ok(made),
            false => Err(io::Error::new(io::ErrorKind::AlreadyExists, "another directory was put in its place")),
        }
    }

    /// Opens a subdirectory without following a link.
    ///
    /// # Errors
    /// The entry is not a directory, or this user may not open it.
    pub fn open_directory(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let file = self.open_at(name.as_ref(), flags, Mode::empty())?;
        Ok(Self { descriptor: Arc::new(file), path: self.join(name).into() })
    }

    /// The path by which the directory was opened, only for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the file with this name, only for messages.
    pub fn join(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// The open directory, for locking.
    ///
    /// # Errors
    /// The directory cannot be opened again.
    pub fn try_clone_file(&self) -> io::Result<File> {
        // A separate open file, because locks belong to open files.
        self.open_at(OsStr::new("."), OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())
    }

    /// Returns why others could create links in the directory; `None` if they cannot.
    ///
    /// # Errors
    /// The directory's metadata cannot be read.
    pub fn why_shared(&self) -> io::Result<Option<&'static str>> {
        Ok(files::why_others_write(&self.metadata()?))
    }

    /// Whether the path still leads to this directory.
    pub fn has_its_name(&self) -> bool {
        let identity = |found: Metadata| (found.dev(), found.ino());
        self.path.metadata().ok().map(identity) == self.metadata().ok().map(identity)
    }

    /// Owner, mode and times of the directory.
    ///
    /// # Errors
    /// The metadata cannot be read.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.descriptor.metadata()
    }

    /// Creates a file that only its owner can read, replacing leftovers of a killed writer; a link is removed and not
    /// followed.
    ///
    /// # Errors
    /// The leftover cannot be removed, or the file cannot be created.
    pub fn new_file(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        match self.remove(name.as_ref()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        self.create_new(name, 0o600)
    }

    /// Creates a new file with this mode, as far as the umask permits.
    ///
    /// # Errors
    /// The file cannot be created, e.g. because the name exists.
    pub fn create_new(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL;
        self.open_at(name.as_ref(), flags, Mode::from_bits_truncate(mode))
    }

    /// Opens a regular file for reading, and rejects anything else.
    ///
    /// # Errors
    /// The file cannot be opened, or is not a regular file.
    pub fn open_file(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        files::regular(self.open_at(name.as_ref(), OFlag::O_RDONLY | files::NONBLOCKING, Mode::empty())?)
    }

    /// Opens a regular file for appending, or creates one that only its owner can read. Links and files with several
    /// names are rejected: they might be files of another directory.
    ///
    /// # Errors
    /// The file cannot be opened or created, or is rejected.
    pub fn append(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT | OFlag::O_NOFOLLOW | files::NONBLOCKING;
        let file = files::regular(self.open_at(name.as_ref(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?)?;
        match file.metadata()?.nlink() {
            0 | 1 => Ok(file),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "the file has other names too")),
        }
    }

    fn open_at(&self, name: &OsStr, flags: OFlag, mode: Mode) -> io::Result<File> {
        Ok(openat(&self.descriptor, name, flags | OFlag::O_CLOEXEC, mode)?.into())
    }

    /// Renames a file, replacing any file with the new name.
    ///
    /// # Errors
    /// The file cannot be renamed.
    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(renameat(&self.descriptor, from.as_ref(), &self.descriptor, to.as_ref())?)
    }

    /// Gives a file a second, unused name.
    ///
    /// # Errors
    /// The link cannot be created, e.g. because the name is in use.
    pub fn link(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(linkat(&self.descriptor, from.as_ref(), &self.descriptor, to.as_ref(), AtFlags::empty())?)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// The file does not exist, or cannot be removed.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unlinkat(&self.descriptor, name.as_ref(), UnlinkatFlags::NoRemoveDir)?)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The directory does not exist, is not empty, or cannot be removed.
    pub fn remove_directory(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unlinkat(&self.descriptor, name.as_ref(), UnlinkatFlags::RemoveDir)?)
    }

    /// Removes all files in the directory and its subdirectories, to undo a failed creation.
    pub fn clear(&self) {
        for name in self.names().unwrap_or_default() {
            if self.remove(&name).is_err() {
                if let Ok(inner) = self.open_directory(&name) {
                    inner.clear();
                    let _ = self.remove_directory(&name);
                }
            }
        }
    }

    /// Names of all entries.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut entries = Dir::openat(&self.descriptor, ".", flags, Mode::empty())?;
        let name = |entry: nix::Result<nix::dir::Entry>| -> io::Result<OsString> {
            Ok(OsStr::from_bytes(entry?.file_name().to_bytes()).into())
        };
        let names: io::Result<Vec<_>> = entries.iter().map(name).collect();
        Ok(names?.into_iter().filter(|name| name != "." && name != "..").collect())
    }

    /// Makes renames and removals in the directory durable (fsync).
    ///
    /// # Errors
    /// The fsync fails, except on file systems that do not support it.
    pub fn sync(&self) -> io::Result<()> {
        match self.descriptor.sync_all() {
            // Some network file systems do not support fsync of a directory.
            Err(e) if !matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOTSUP | libc::EBADF)) => Err(e),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::fs::{symlink, OpenOptionsExt};

    #[test]
    fn operations_in_a_directory_stay_in_it_after_a_rename() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("run"), folder.path().join("victim"));
        fs::create_dir(&victim).unwrap();
        for name in ["a", "b", "c"] {
            fs::write(victim.join(name), "mine").unwrap();
        }
        let made = Directory::make(&path).unwrap();
        made.new_file("a").unwrap().write_all(b"its own").unwrap();
        fs::rename(&path, folder.path().join("elsewhere")).unwrap();
        symlink(&victim, &path).unwrap();

        made.new_file("c").unwrap();
        made.rename("c", "b").unwrap();
        made.append("a").unwrap().write_all(b"!").unwrap();
        made.make_directory("inner").unwrap().new_file("d").unwrap();
        assert!(!made.has_its_name());
        let mut text = String::new();
        made.open_file("a").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "its own!");
        let mut names = made.names().unwrap();
        names.sort();
        assert_eq!(names, ["a", "b", "inner"]);
        made.clear();
        assert!(made.names().unwrap().is_empty());
        let mine = |name: &str| fs::read_to_string(victim.join(name)).unwrap() == "mine";
        assert!(["a", "b", "c"].into_iter().all(mine) && fs::read_dir(&victim).unwrap().count() == 3);
    }

    #[test]
    fn existing_entries_do_not_count_as_created_directories() {
        let folder = tempfile::tempdir().unwrap();
        let (there, link) = (folder.path().join("there"), folder.path().join("link"));
        fs::create_dir(&there).unwrap();
        symlink(&there, &link).unwrap();
        for path in [&there, &link] {
            assert_eq!(Directory::make(path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        }
        let above = Directory::open(folder.path()).unwrap();
        assert!(above.open_directory("link").is_err() && above.open_directory("there").is_ok());
    }

    #[test]
    fn only_a_regular_file_with_one_name_is_appended_to_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::open(folder.path()).unwrap();
        nix::unistd::mkfifo(&folder.path().join("pipe"), Mode::S_IRWXU).unwrap();
        symlink(folder.path().join("new"), folder.path().join("link")).unwrap();
        fs::write(folder.path().join("one"), "").unwrap();
        fs::hard_link(folder.path().join("one"), folder.path().join("two")).unwrap();
        for name in ["pipe", "link", "one"] {
            assert!(directory.append(name).is_err(), "{name}");
        }
        // If it has a reader, opening the FIFO succeeds, so its type must be checked.
        let _reader =
            File::options().read(true).custom_flags(libc::O_NONBLOCK).open(folder.path().join("pipe")).unwrap();
        assert!(directory.append("pipe").is_err() && directory.open_file("pipe").is_err());
        assert!(directory.append("own").is_ok() && !folder.path().join("new").exists());
    }
}
