//! Files that appear only when they are complete.

use latpath_linux::Directory;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Paths that lead to a process's own descriptors.
const OWN: [&str; 4] = ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc/self/fd"];

/// Opens a device or a pipe for direct writing; returns `None` for other files. Symbolic links of other users are not
/// followed: anyone with write access to a directory could have made a link to a disk there.
fn open_as_it_is(path: &Path) -> io::Result<Option<File>> {
    if !is_written_as_it_is(path) {
        return Ok(None);
    }
    let no_link = if is_own(path) { 0 } else { libc::O_NOFOLLOW };
    OpenOptions::new().write(true).custom_flags(no_link).open(path).map(Some)
}

fn is_own(path: &Path) -> bool {
    OWN.iter().any(|own| path.starts_with(own))
}

fn is_written_as_it_is(path: &Path) -> bool {
    let found = if is_own(path) { path.metadata() } else { path.symlink_metadata() };
    found.is_ok_and(|found| !found.is_file() && !found.is_dir() && !found.is_symlink())
}

/// Checks that a path may be written to. Devices and pipes are written to directly.
///
/// # Errors
/// If it is a directory or, without `force`, an existing file. The message says what to do instead.
pub fn check_target(path: &Path, force: bool) -> Result<(), String> {
    match path.symlink_metadata() {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Ok(found) if force && !found.is_dir() => Ok(()),
        Ok(found) if found.is_dir() => Err(format!("{}: is a directory; name a file", path.display())),
        Ok(_) if is_written_as_it_is(path) => Ok(()),
        _ => Err(format!("{}: exists already; name another file, or replace it with --force", path.display())),
    }
}

/// Writes a file that appears under its name only when it is complete, or writes to stdout for `-`. If the disk is
/// full, an error occurs or the user presses Ctrl-C, a previous file remains. Without `force`, so does a file that
/// another program created in the meantime.
///
/// # Errors
/// If the file cannot be written, or `write` fails.
pub fn write_file<T, E: From<io::Error>>(
    path: &Path,
    force: bool,
    write: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    if path.as_os_str() == "-" {
        let mut out = BufWriter::new(io::stdout().lock());
        let written = write(&mut out)?;
        out.flush()?;
        return Ok(written);
    }
    if let Some(file) = open_as_it_is(path)? {
        let mut file = BufWriter::new(file);
        let written = write(&mut file)?;
        file.flush()?;
        return Ok(written);
    }
    let (directory, name) = Directory::of_file(path)?;
    write_file_in(&directory, &name, force, write)
}

/// Like [`write_file`], in an open directory, even if the directory is renamed in the meantime.
///
/// # Errors
/// If the file cannot be written, or `write` fails.
pub fn write_file_in<T, E: From<io::Error>>(
    directory: &Directory,
    name: &OsStr,
    force: bool,
    write: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    let mut part = name.to_owned();
    part.push(format!(".{}.part", std::process::id()));
    let written = (|| {
        let mut file = BufWriter::new(directory.create_new(&part, 0o666)?);
        let written = write(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        appear(directory, (&part, name), force)?;
        Ok(written)
    })();
    if written.is_err() {
        let _ = directory.remove(&part);
    }
    written
}

fn appear(directory: &Directory, (part, name): (&OsStr, &OsStr), force: bool) -> io::Result<()> {
    if !force {
        match directory.link(part, name) {
            Ok(()) => return directory.remove(part),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => return Err(e),
            // Some file systems have no hard links: rename the file instead.
            Err(_) => {}
        }
    }
    directory.rename(part, name)
}
