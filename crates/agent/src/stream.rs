//! A byte stream over one or two non-blocking descriptors.

use crate::frame::{FrameReader, HOST_MAGIC};
use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg, OFlag};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Size of a read, bytes: some 10,000 sightings.
const READ: usize = 64 << 10;

/// A byte stream to a peer: a socket, a device, or a pair of pipes.
#[derive(Debug)]
pub struct Stream {
    rx: OwnedFd,
    /// `None` if `rx` is also used for writing.
    tx: Option<OwnedFd>,
    /// Flags to restore on each descriptor, because other processes may share the open file (a terminal, a shell's
    /// pipe).
    flags: [Option<OFlag>; 2],
    scratch: Box<[u8]>,
    /// Framing of the received bytes.
    pub(crate) reader: FrameReader,
}

/// Result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// Bytes were added to the reader.
    Bytes,
    Nothing,
    /// The peer closed its end.
    End,
}

/// Result of a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    pub read: bool,
    pub write: bool,
    /// Whether the other descriptor is readable.
    pub other: bool,
    /// Whether the peer has hung up.
    pub hangup: bool,
}

impl Stream {
    /// Creates a stream from a socket or device that is open for reading and writing.
    ///
    /// # Errors
    /// The descriptor cannot be made non-blocking.
    pub fn new(fd: impl Into<OwnedFd>) -> io::Result<Self> {
        Self::from_parts(fd.into(), None)
    }

    /// Creates a stream from two pipes.
    ///
    /// # Errors
    /// A descriptor cannot be made non-blocking.
    pub fn from_pair(rx: impl Into<OwnedFd>, tx: impl Into<OwnedFd>) -> io::Result<Self> {
        Self::from_parts(rx.into(), Some(tx.into()))
    }

    /// Creates a stream from standard input and output.
    ///
    /// # Errors
    /// A descriptor cannot be copied or made non-blocking.
    pub fn stdio() -> io::Result<Self> {
        let stdin = io::stdin().as_fd().try_clone_to_owned()?;
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        Self::from_parts(stdin, Some(stdout))
    }

    fn from_parts(rx: OwnedFd, tx: Option<OwnedFd>) -> io::Result<Self> {
        let mut flags = [None; 2];
        for (fd, flags) in [Some(&rx), tx.as_ref()].into_iter().zip(&mut flags) {
            let Some(fd) = fd else { continue };
            let before = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
            fcntl(fd, FcntlArg::F_SETFL(before | OFlag::O_NONBLOCK))?;
            *flags = Some(before);
        }
        Ok(Self { rx, tx, flags, scratch: vec![0; READ].into(), reader: FrameReader::new(HOST_MAGIC) })
    }

    fn tx(&self) -> &OwnedFd {
        self.tx.as_ref().unwrap_or(&self.rx)
    }

    /// Reads available bytes into the reader.
    pub(crate) fn read(&mut self) -> io::Result<Got> {
        match nix::unistd::read(&self.rx, &mut self.scratch) {
            Ok(0) => Ok(Got::End),
            Ok(n) => {
                self.reader.push(&self.scratch[..n]);
                Ok(Got::Bytes)
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(Got::Nothing),
            Err(Errno::ECONNRESET | Errno::EPIPE) => Ok(Got::End),
            Err(e) => Err(e.into()),
        }
    }

    /// Writes as much as the stream accepts; 0 if it would block.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match nix::unistd::write(self.tx(), bytes) {
            Ok(n) => Ok(n),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(0),
            Err(e) => Err(e.into()),
        }
    }

    /// Waits until the stream is readable, writable (with `write`), or `other` is readable.
    pub(crate) fn wait(&self, write: bool, other: Option<BorrowedFd>, timeout: Duration) -> io::Result<Ready> {
        let mut fds = vec![PollFd::new(self.rx.as_fd(), PollFlags::POLLIN)];
        let tx_at = match (&self.tx, write) {
            (None, false) => 0,
            (None, true) => {
                fds[0] = PollFd::new(self.rx.as_fd(), PollFlags::POLLIN | PollFlags::POLLOUT);
                0
            }
            // Polled even without POLLOUT: a broken pipe is reported in any case.
            (Some(tx), write) => {
                fds.push(PollFd::new(tx.as_fd(), if write { PollFlags::POLLOUT } else { PollFlags::empty() }));
                1
            }
        };
        if let Some(fd) = other {
            fds.push(PollFd::new(fd, PollFlags::POLLIN));
        }
        // Rounded up: with less than a millisecond left, a caller would otherwise poll in a busy loop.
        let ms = timeout.as_nanos().div_ceil(1_000_000).min(60_000) as u16;
        match poll(&mut fds, PollTimeout::from(ms)) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Ready::default()),
            Err(e) => return Err(e.into()),
        }
        let has = |i: usize, flags: PollFlags| fds[i].revents().is_some_and(|r| r.intersects(flags));
        let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
        Ok(Ready {
            read: has(0, PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR),
            write: has(tx_at, PollFlags::POLLOUT),
            other: other.is_some() && has(fds.len() - 1, PollFlags::POLLIN),
            hangup: has(0, gone) || has(tx_at, gone),
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        for (fd, flags) in [Some(&self.rx), self.tx.as_ref()].into_iter().zip(self.flags) {
            if let (Some(fd), Some(flags)) = (fd, flags) {
                // An error is ignored: the peer may be gone.
                let _ = fcntl(fd, FcntlArg::F_SETFL(flags));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn nothing_to_read_and_no_room_to_write_do_not_block() {
        let (a, _b) = UnixStream::pair().unwrap();
        let mut stream = Stream::new(a).unwrap();
        assert_eq!(stream.read().unwrap(), Got::Nothing);
        while stream.write(&[0; 65536]).unwrap() > 0 {}
        assert!(!stream.wait(true, None, Duration::ZERO).unwrap().write);
    }

    #[test]
    fn the_peers_end_is_reported() {
        let (a, b) = UnixStream::pair().unwrap();
        let mut stream = Stream::new(a).unwrap();
        drop(b);
        assert!(stream.wait(false, None, Duration::ZERO).unwrap().hangup);
        assert_eq!(stream.read().unwrap(), Got::End);
    }

    #[test]
    fn bytes_pass_in_both_directions_over_two_pipes_and_the_other_descriptor_is_reported() {
        let (rx, mut to_us) = std::io::pipe().unwrap();
        let (mut from_us, tx) = std::io::pipe().unwrap();
        let (wake, mut waker) = UnixStream::pair().unwrap();
        let mut stream = Stream::from_pair(rx, tx).unwrap();
        to_us.write_all(b"abc").unwrap();
        waker.write_all(b"x").unwrap();
        let ready = stream.wait(true, Some(wake.as_fd()), Duration::ZERO).unwrap();
        assert_eq!(ready, Ready { read: true, write: true, other: true, hangup: false });
        assert_eq!(stream.read().unwrap(), Got::Bytes);
        assert_eq!(stream.reader.rest(), b"abc");
        assert_eq!(stream.write(b"de").unwrap(), 2);
        let mut got = [0; 2];
        from_us.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"de");
    }

    #[test]
    fn the_flags_are_as_before_once_the_stream_is_dropped() {
        let (a, _b) = UnixStream::pair().unwrap();
        let copy = a.try_clone().unwrap();
        let nonblocking =
            || OFlag::from_bits_retain(fcntl(&copy, FcntlArg::F_GETFL).unwrap()).contains(OFlag::O_NONBLOCK);
        let stream = Stream::new(a).unwrap();
        assert!(nonblocking());
        drop(stream);
        assert!(!nonblocking());
    }
}
