//! The process that opens files of observed processes, and does nothing else with them: an unresponsive file system,
//! e.g. another user's FUSE, blocks this process and not latpath. Requests identify files by numbers from the kernel;
//! names that are read from files are never opened.

use super::messages::{receive, send, Open, Opened, Request};
use latpath_linux::proc::field;
use std::ffi::CString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Opens the requested files and passes them to the parser, until there are no more requests.
pub(super) fn serve(mut requests: UnixStream, mut parser: UnixStream) -> io::Result<()> {
    while let Some((Request { open, query }, _)) = receive(&mut requests)? {
        let is_vdso = open == Open::Vdso;
        let opened = open_file(&open).ok();
        let file = opened.as_ref().map(|(_, found)| identity(found));
        send(&mut parser, &Opened { query, file, is_vdso }, opened.as_ref().map(|(file, _)| file))?;
    }
    Ok(())
}

fn identity(found: &Metadata) -> [i64; 5] {
    [found.dev() as i64, found.ino() as i64, found.len() as i64, found.mtime(), found.mtime_nsec()]
}

fn open_file(open: &Open) -> io::Result<(File, Metadata)> {
    match open {
        // These paths also open files that have been deleted since, or that are in a container.
        Open::Mapping { tgid, from, until } => regular(&path(format!("/proc/{tgid}/map_files/{from:x}-{until:x}"))?),
        Open::Program { tgid } => regular(&path(format!("/proc/{tgid}/exe"))?),
        Open::Path(named) => regular(&path(named)?),
        Open::PerfMap { tgid } => perf_map(*tgid),
        Open::Vdso => Err(io::ErrorKind::NotFound.into()),
    }
}

fn path(path: impl AsRef<Path>) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_PATH).open(path)
}

/// Reopens an `O_PATH` descriptor if it is a regular file: opening a device, a FIFO or a socket may have side effects.
fn regular(found: &File) -> io::Result<(File, Metadata)> {
    if !found.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    let found = file.metadata()?;
    Ok((file, found))
}

/// Opens a process's perf map if the process's own user owns it: any user can create files in `/tmp`.
fn perf_map(tgid: u32) -> io::Result<(File, Metadata)> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    let status = fs::read_to_string(format!("/proc/{tgid}/status"))?;
    // The last number is the process's PID in its own namespace.
    let number =
        field(&status, "NSpid").and_then(|numbers| numbers.split_whitespace().next_back()).ok_or_else(wrong)?;
    let number: u32 = number.parse().map_err(|_| wrong())?;
    let user: u32 =
        field(&status, "Uid").and_then(|users| users.split_whitespace().nth(1)?.parse().ok()).ok_or_else(wrong)?;
    let root = path(format!("/proc/{tgid}/root"))?;
    let found = below(&root, &format!("tmp/perf-{number}.map"))?;
    match found.metadata()?.uid() == user {
        true => regular(&found),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Opens a path below another process's root: links are resolved within that root, never outside.
fn below(root: &File, path: &str) -> io::Result<File> {
    let path = CString::new(Path::new(path).as_os_str().as_bytes())?;
    // SAFETY: the struct consists of plain numbers.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW) as u64;
    how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
    let bytes = size_of::<libc::open_how>();
    // SAFETY: the path and the struct outlive the call.
    let fd = unsafe { libc::syscall(libc::SYS_openat2, root.as_raw_fd(), path.as_ptr(), &how, bytes) };
    match fd {
        ..0 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel has just created it for this process.
        fd => Ok(unsafe { File::from_raw_fd(fd as libc::c_int) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_but_a_regular_file_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        let opens = |path: &Path| open_file(&Open::Path(path.into())).is_ok();
        assert!(opens(&file));
        assert!(!opens(&fifo) && !opens(folder.path()) && !opens(Path::new("/dev/null")));
    }

    #[test]
    fn a_link_in_anothers_root_leads_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let (outside, root) = (folder.path().join("outside"), folder.path().join("root"));
        fs::create_dir_all(root.join("real")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("map"), "outside").unwrap();
        symlink(&outside, root.join("absolute")).unwrap();
        symlink("../outside", root.join("relative")).unwrap();
        symlink("/real", root.join("tmp")).unwrap();
        fs::write(root.join("real/map"), "inside").unwrap();
        let at = path(&root).unwrap();
        let read = |name: &str| {
            below(&at, name).and_then(|found| regular(&found)).and_then(|(file, _)| io::read_to_string(file))
        };
        assert_eq!(read("tmp/map").unwrap(), "inside");
        assert!(read("absolute/map").is_err() && read("relative/map").is_err());
    }
}
