//! Messages between latpath and the two processes that open and parse files. Each message is preceded by its length;
//! some carry an open file.

use super::elf::Image;
use latpath_linux::confine::ends_with;
use nix::cmsg_space;
use nix::sys::socket::{recvmsg, sendmsg, ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Maximum length of a message, bytes: 2^14 names of 256 bytes, as JSON.
pub(super) const MAX_MESSAGE: usize = 16 << 20;

/// A file to open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Open {
    /// A process's mapping between two addresses.
    Mapping { tgid: u32, from: u64, until: u64 },
    /// Names of code generated at run time (`perf-PID.map`, tools/perf/Documentation/jit-interface.txt).
    PerfMap { tgid: u32 },
    /// The program that a process runs.
    Program { tgid: u32 },
    /// A file of this machine, named by the user.
    Path(PathBuf),
    /// No file: the kernel's code in each process (vdso(7)).
    Vdso,
}

/// Content to read from the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Query {
    /// Functions at these offsets in an ELF file.
    Offsets(Vec<u64>),
    /// Functions at these addresses in an ELF file, if its build-id matches.
    Addresses { build_id: Vec<u8>, addresses: Vec<u64> },
    /// Functions at these addresses of a process, in its perf map.
    PerfMap(Vec<u64>),
    /// The first line of text that begins with this string.
    Text(String),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub open: Open,
    pub query: Query,
}

/// A request with an open file, for the parser.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Opened {
    pub query: Query,
    /// Device, inode, length and time of the last change, which together identify the file and its contents; `None` if
    /// the file could not be opened.
    pub file: Option<[i64; 5]>,
    pub is_vdso: bool,
}

/// The result; `None` if the file could not be opened or is not the requested file.
pub(super) type Answer = Option<ParserReply>;

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ParserReply {
    /// The names, in the order of the query's offsets or addresses.
    pub names: Vec<Option<String>>,
    /// Identity of the file, if a name is missing.
    pub image: Option<Image>,
    pub text: Option<String>,
}

/// Sends a message, optionally with an open file.
pub(super) fn send(to: &mut UnixStream, message: &impl Serialize, file: Option<&File>) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?.to_le_bytes();
    let fds: Vec<RawFd> = file.iter().map(|file| file.as_raw_fd()).collect();
    let with: Vec<ControlMessage> = fds.iter().map(|_| ControlMessage::ScmRights(&fds)).collect();
    // Four bytes are sent completely or not at all.
    sendmsg::<UnixAddr>(to.as_raw_fd(), &[IoSlice::new(&length)], &with, MsgFlags::MSG_NOSIGNAL, None)?;
    to.write_all(&bytes)
}

/// Waits for a message; `None` at the end of the stream.
pub(super) fn receive<T: for<'de> Deserialize<'de>>(from: &mut UnixStream) -> io::Result<Option<(T, Option<File>)>> {
    let mut length = [0; 4];
    let mut space = cmsg_space!(RawFd);
    let (got, file) = {
        let mut into = [IoSliceMut::new(&mut length)];
        let got = recvmsg::<UnixAddr>(from.as_raw_fd(), &mut into, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
        let fds = got.cmsgs()?.filter_map(|message| match message {
            ControlMessageOwned::ScmRights(fds) => Some(fds),
            _ => None,
        });
        // SAFETY: the kernel has just created the descriptor for this process.
        let mut files = fds.flatten().map(|fd| File::from(unsafe { OwnedFd::from_raw_fd(fd) }));
        (got.bytes, files.next())
    };
    if got == 0 {
        return Ok(None);
    }
    from.read_exact(&mut length[got..])?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    Ok(Some((serde_json::from_slice(&bytes)?, file)))
}

/// Sets up one of latpath's own child processes: it keeps only these two files, ends when its parent ends, and gets
/// this name.
pub(super) fn settle(name: &std::ffi::CStr, parent: libc::pid_t, kept: [UnixStream; 2]) -> io::Result<[UnixStream; 2]> {
    let done = |result: libc::c_long| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // Moves the two above the descriptors that are reused below; they stay open until the process ends.
    let kept = kept.map(|stream| {
        // SAFETY: a plain number; nothing else owns the descriptor.
        let fd = unsafe { libc::fcntl(stream.as_raw_fd(), libc::F_DUPFD, 64) };
        std::mem::forget(stream);
        fd
    });
    // SAFETY: numbers and static names. The closed descriptors belong to the parent's objects, none of which is dropped
    // here; /dev/null replaces the output of panics.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        // Ctrl-C must reach only the parent.
        libc::setpgid(0, 0);
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        done(null.into())?;
        done(kept[0].into())?;
        done(kept[1].into())?;
        (0..3).for_each(|fd| _ = libc::dup2(null, fd));
        (0..2).for_each(|at| _ = libc::dup2(kept[at], 3 + at as RawFd));
        done(libc::syscall(libc::SYS_close_range, 5, libc::c_uint::MAX, 0))?;
    }
    ends_with(parent)?;
    // SAFETY: created above, and owned by nothing else.
    Ok([3, 4].map(|fd| unsafe { UnixStream::from_raw_fd(fd) }))
}
