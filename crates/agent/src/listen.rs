//! The agent's listener.

use crate::dial::{CID_ANY, RESERVED};
use crate::frame::{preamble, AGENT_MAGIC};
use crate::serve::{serve, Attached, Ended, ServeError, ServeOptions};
use crate::stream::Stream;
use crate::{Commands, StartRequest};
use latpath_model::Source;
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{
    accept4, bind, getpeername, listen as listen_on, socket, AddressFamily, Backlog, SockFlag, SockType, UnixAddr,
    VsockAddr,
};
use nix::sys::stat::{fchmod, Mode};
use std::fmt;
use std::fs::{self, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Context identifier of the host on vsock (`VMADDR_CID_HOST`).
const CID_HOST: u32 = 2;
/// Poll interval of a device while no host has opened it. poll(2) cannot wait for the host: the kernel reports a hangup
/// at once.
const DEVICE_PAUSE: Duration = Duration::from_millis(200);

/// Maximum time from connection to preamble.
const OPENING: Duration = Duration::from_secs(10);

/// Endpoint at which an agent waits for its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Standard input and output; one session.
    Stdio,
    /// A unix socket, accessible to its owner only, and removed at the end.
    Unix(PathBuf),
    /// A vsock port, for the host only.
    Vsock(u32),
    /// A virtio-serial port, or another bidirectional byte device.
    Device(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdio => f.write_str("standard input and output"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Vsock(port) => write!(f, "vsock port {port}"),
            Self::Device(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Errors of a listener.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The endpoint could not be created or opened.
    #[error("{at}: {why}")]
    Place {
        /// The endpoint as the user wrote it.
        at: String,
        /// Reason and next step.
        why: String,
    },
    /// The single session failed.
    #[error(transparent)]
    Session(#[from] ServeError),
}

fn place(at: &Listen, why: impl fmt::Display) -> ListenError {
    ListenError::Place { at: at.to_string(), why: why.to_string() }
}

/// Serves sessions one after another, or a single one (`once`; always on standard input and output). Each gets its
/// source from a copy of `make_source`. `log` receives human-readable events. Returns when `quit` becomes readable, or
/// after the single session.
///
/// # Errors
/// If the endpoint cannot be used, or the single session fails.
pub fn listen<S, F>(
    at: &Listen,
    once: bool,
    options: &mut ServeOptions,
    quit: Option<BorrowedFd>,
    log: &mut dyn FnMut(&str),
    make_source: F,
) -> Result<(), ListenError>
where
    S: Source + 'static,
    F: FnOnce(&StartRequest) -> Result<Attached<S>, String> + Clone + Send + 'static,
{
    let mut listener = Listener::open(at)?;
    // A silent peer is disconnected, so that others can connect. A device has no timeout: its host may appear at any
    // time.
    let is_connected = matches!(at, Listen::Unix(_) | Listen::Vsock(_));
    if is_connected {
        options.opening.get_or_insert(OPENING);
    }
    let commands = options.commands.clone();
    let last = once || *at == Listen::Stdio;
    // The peer connected but opened no session; this does not count as the single session.
    let is_nobody = |e: &ServeError| is_connected && matches!(e, ServeError::NobodyCame(_));
    if *at != Listen::Stdio {
        log(&format!("waiting for the host at {at}"));
    }
    loop {
        let Some((mut stream, is_trusted)) = listener.next_host(quit, log)? else { return Ok(()) };
        options.commands = if is_trusted { commands.clone() } else { Commands::Refused };
        // A device stays open between sessions: it may already have delivered bytes of the next one.
        loop {
            let result = serve(&mut stream, options, quit, make_source.clone());
            match &result {
                Ok(Ended::Quit) => return Ok(()),
                Ok(Ended::NewSession) => log("the host opened a new session"),
                Ok(Ended::Stopped) => log("the host ended the session"),
                Ok(Ended::HostGone) => log("the host closed the stream"),
                // The caller reports the error that ends the command.
                Err(e) if last && !is_nobody(e) => {}
                Err(e) => log(&e.to_string()),
            }
            if last && !result.as_ref().is_err_and(is_nobody) {
                return result.map(|_| ()).map_err(Into::into);
            }
            // On a device, an error of one session does not affect the next; elsewhere a new connection is required.
            let goes_on = match at {
                Listen::Device(_) => !matches!(result, Ok(Ended::HostGone) | Err(ServeError::Io(_))),
                _ => matches!(result, Ok(Ended::NewSession)),
            };
            if !goes_on {
                break;
            }
        }
    }
}

/// A listening endpoint.
struct Listener<'l> {
    at: &'l Listen,
    /// Listening socket, if any.
    socket: Option<OwnedFd>,
}

/// Creates a listening socket, bound by `bind`.
fn waiting(family: AddressFamily, bind: impl FnOnce(&OwnedFd) -> nix::Result<()>) -> nix::Result<OwnedFd> {
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    bind(&fd)?;
    listen_on(&fd, Backlog::new(4)?)?;
    Ok(fd)
}

impl<'l> Listener<'l> {
    fn open(at: &'l Listen) -> Result<Self, ListenError> {
        let socket = match at {
            Listen::Stdio => None,
            Listen::Device(path) => {
                // Checks the path now, to report a wrong name at once.
                fs::metadata(path).map_err(|e| place(at, device_error(e)))?;
                None
            }
            Listen::Unix(path) => {
                remove_stale(path).map_err(|why| place(at, why))?;
                let socket = waiting(AddressFamily::Unix, |fd| {
                    // Linux gives the socket's file the mode of its descriptor, so that other users cannot connect even
                    // for a moment.
                    fchmod(fd, Mode::S_IRUSR | Mode::S_IWUSR)?;
                    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)
                });
                Some(socket.map_err(|e| place(at, e.desc()))?)
            }
            Listen::Vsock(port) => {
                let socket = waiting(AddressFamily::Vsock, |fd| bind(fd.as_raw_fd(), &VsockAddr::new(CID_ANY, *port)));
                Some(socket.map_err(|e| match e {
                    Errno::EAFNOSUPPORT | Errno::ENODEV => place(
                        at,
                        "this machine has no vsock; give the guest a vhost-vsock device, or use --unix or --device",
                    ),
                    e => place(at, e.desc()),
                })?)
            }
        };
        Ok(Self { at, socket })
    }

    /// Returns the stream of the next host, and whether it may run commands: any user of a host can connect to a
    /// guest's vsock, but only root can do so from a reserved port. `None` on quit.
    fn next_host(
        &mut self,
        quit: Option<BorrowedFd>,
        log: &mut dyn FnMut(&str),
    ) -> Result<Option<(Stream, bool)>, ListenError> {
        let at = self.at;
        let Some(socket) = &self.socket else {
            let stream = match at {
                Listen::Device(path) => next_on_device(at, path, quit),
                _ => Stream::stdio().map(Some).map_err(|e| place(at, e)),
            };
            return stream.map(|stream| Some((stream?, true)));
        };
        loop {
            let Some(fd) = accept(socket, quit).map_err(|e| place(at, e.desc()))? else { return Ok(None) };
            let mut is_trusted = true;
            match getpeername::<VsockAddr>(fd.as_raw_fd()) {
                _ if !matches!(at, Listen::Vsock(_)) => {}
                Ok(peer) if peer.cid() == CID_HOST => is_trusted = peer.port() < RESERVED,
                Ok(peer) => {
                    log(&format!("refused a connection from context {}, which is not the host", peer.cid()));
                    continue;
                }
                Err(e) => {
                    log(&format!("refused a connection from nobody: {}", e.desc()));
                    continue;
                }
            }
            return Stream::new(fd).map(|stream| Some((stream, is_trusted))).map_err(|e| place(at, e));
        }
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        if let Listen::Unix(path) = self.at {
            // Someone else may already have removed the file.
            let _ = fs::remove_file(path);
        }
    }
}

/// Accepts the next connection; `None` if `quit` becomes readable.
fn accept(socket: &OwnedFd, quit: Option<BorrowedFd>) -> nix::Result<Option<OwnedFd>> {
    loop {
        let mut fds = vec![PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        fds.extend(quit.map(|q| PollFd::new(q, PollFlags::POLLIN)));
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            polled => polled?,
        };
        if fds.get(1).and_then(PollFd::any).unwrap_or(false) {
            return Ok(None);
        }
        // The socket is non-blocking, because poll may have woken for `quit` only.
        match accept4(socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
            // SAFETY: accept4 returned a descriptor without another owner.
            Ok(fd) => return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
            Err(Errno::EINTR | Errno::ECONNABORTED | Errno::EAGAIN) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Removes the socket left behind by a killed agent; refuses to remove any other file.
fn remove_stale(path: &Path) -> Result<(), String> {
    let Ok(meta) = fs::symlink_metadata(path) else { return Ok(()) };
    if !meta.file_type().is_socket() {
        return Err("this file exists and is not a socket; choose another path".into());
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(|e| e.to_string()),
        Ok(_) => Err("another agent listens here; stop it, or choose another path".into()),
        Err(e) => Err(e.to_string()),
    }
}

fn device_error(e: std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::NotFound => {
            let ports = fs::read_dir("/dev/virtio-ports").map(|entries| {
                entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>().join(", ")
            });
            match ports {
                Ok(ports) => format!("no such device (virtio-serial ports here: {ports})"),
                Err(_) => "no such device, and this machine has no virtio-serial ports".into(),
            }
        }
        std::io::ErrorKind::ResourceBusy => "another process has this port open; stop it first".into(),
        _ => e.to_string(),
    }
}

/// Opens the device and waits for a host at its other end.
fn next_on_device(at: &Listen, path: &Path, quit: Option<BorrowedFd>) -> Result<Option<Stream>, ListenError> {
    let open =
        OpenOptions::new().read(true).write(true).custom_flags(nix::libc::O_NOCTTY | nix::libc::O_NONBLOCK).open(path);
    let stream = Stream::new(open.map_err(|e| place(at, device_error(e)))?).map_err(|e| place(at, e))?;
    loop {
        let ready = stream.wait(false, quit, Duration::from_secs(60)).map_err(|e| place(at, e))?;
        if ready.other {
            return Ok(None);
        }
        if !ready.hangup {
            if ready.read {
                // A host whose session was with an agent that has died learns at once that this is a new agent. Session
                // ID 0 is never used, so a host that is opening a session ignores this preamble.
                let _ = stream.write(&preamble(AGENT_MAGIC, 0));
                return Ok(Some(stream));
            }
            continue;
        }
        match quit {
            Some(quit) => {
                let mut fds = [PollFd::new(quit, PollFlags::POLLIN)];
                let ms = DEVICE_PAUSE.as_millis() as u16;
                if poll(&mut fds, PollTimeout::from(ms)).is_ok_and(|n| n > 0) {
                    return Ok(None);
                }
            }
            None => std::thread::sleep(DEVICE_PAUSE),
        }
    }
}
