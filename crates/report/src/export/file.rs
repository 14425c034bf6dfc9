//! Files that appear when they are whole.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;

/// Refuses a path at which nothing may be written: a directory, or, without `force`, a file that exists. A device or a pipe is
/// written to as it is.
///
/// # Errors
/// The text says what to do.
pub fn check_target(path: &Path, force: bool) -> Result<(), String> {
    match path.symlink_metadata() {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Ok(found) if force && !found.is_dir() => Ok(()),
        Ok(found) if found.is_dir() => Err(format!("{}: is a directory; name a file", path.display())),
        Ok(_) if path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir()) => Ok(()),
        _ => Err(format!("{}: exists already; name another file, or replace it with --force", path.display())),
    }
}

/// Writes a file that appears under its name when it is whole, or to stdout for `-`. On a full disk, an error or Ctrl-C, what
/// was there before stays. Without `force`, a file that another program has made there by then stays too.
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
    // A device or a pipe is written to as it is.
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        let mut file = BufWriter::new(OpenOptions::new().write(true).open(path)?);
        let written = write(&mut file)?;
        file.flush()?;
        return Ok(written);
    }
    let name = path.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "the path names no file"))?;
    let mut part = name.to_owned();
    part.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(part);
    let written = (|| {
        let mut file = BufWriter::new(File::create_new(&part)?);
        let written = write(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        appear(&part, path, force)?;
        Ok(written)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    written
}

fn appear(part: &Path, path: &Path, force: bool) -> io::Result<()> {
    if !force {
        match std::fs::hard_link(part, path) {
            Ok(()) => return std::fs::remove_file(part),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => return Err(e),
            // Some file systems have no links.
            Err(_) => {}
        }
    }
    std::fs::rename(part, path)
}
