//! Where an agent waits for its host.

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

/// The host's context identifier on vsock (`VMADDR_CID_HOST`).
const CID_HOST: u32 = 2;
/// How often a device without a host is looked at: the kernel says "no host" at once, again and again, so it cannot be waited for.
const DEVICE_PAUSE: Duration = Duration::from_millis(200);

/// How long one who has connected may take to open a session.
const OPENING: Duration = Duration::from_secs(10);

/// Where an agent waits for its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Standard input and output; one session.
    Stdio,
    /// A unix socket, made for its owner alone and removed in the end.
    Unix(PathBuf),
    /// A vsock port, for the host alone.
    Vsock(u32),
    /// A virtio-serial port, or any device that carries bytes in both directions.
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

/// Why an agent cannot wait for a host.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The place to wait at could not be made or opened.
    #[error("{at}: {why}")]
    Place {
        at: String,
        /// What went wrong, and what to do.
        why: String,
    },
    /// The only session failed.
    #[error(transparent)]
    Session(#[from] ServeError),
}

fn place(at: &Listen, why: impl fmt::Display) -> ListenError {
    ListenError::Place { at: at.to_string(), why: why.to_string() }
}

/// Serves one session after another, or one alone (`once`; always over standard input and output). Each gets its source
/// from a copy of `make_source`. `log` gets what happens, for people. Returns when `quit` becomes readable, or after the
/// one session.
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
    // A peer that connects and says nothing is disconnected, so that others can connect. On a device the host may come at any time.
    let is_connected = matches!(at, Listen::Unix(_) | Listen::Vsock(_));
    if is_connected {
        options.opening.get_or_insert(OPENING);
    }
    let commands = options.commands.clone();
    let last = once || *at == Listen::Stdio;
    // That was no session.
    let is_nobody = |e: &ServeError| is_connected && matches!(e, ServeError::NobodyCame(_));
    if *at != Listen::Stdio {
        log(&format!("waiting for the host at {at}"));
    }
    loop {
        let Some((mut stream, is_trusted)) = listener.next_host(quit, log)? else { return Ok(()) };
        options.commands = if is_trusted { commands.clone() } else { Commands::Refused };
        // A device stays open; bytes of the next session may have come with the last of this one.
        loop {
            let result = serve(&mut stream, options, quit, make_source.clone());
            match &result {
                Ok(Ended::Quit) => return Ok(()),
                Ok(Ended::NewSession) => log("the host began again"),
                Ok(Ended::Stopped) => log("the host is done"),
                Ok(Ended::HostGone) => log("the host closed the stream"),
                // The caller reports what ends the command.
                Err(e) if last && !is_nobody(e) => {}
                Err(e) => log(&e.to_string()),
            }
            if last && !result.as_ref().is_err_and(is_nobody) {
                return result.map(|_| ()).map_err(Into::into);
            }
            // On a device, what is wrong with one session says nothing of the next; elsewhere it takes a new connection.
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

/// Where hosts connect.
struct Listener<'l> {
    at: &'l Listen,
    /// Where the kernel accepts connections.
    socket: Option<OwnedFd>,
}

/// A socket that waits for connections, as `bind` has bound it.
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
                // Only looked at, so that a wrong name is reported at once.
                fs::metadata(path).map_err(|e| place(at, device_error(e)))?;
                None
            }
            Listen::Unix(path) => {
                remove_stale(path).map_err(|why| place(at, why))?;
                let socket = waiting(AddressFamily::Unix, |fd| {
                    // Linux gives the socket's file the mode of its descriptor: at no moment can others connect.
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

    /// The next host's stream, and whether it may have commands run: any user of a host can reach a guest's vsock, and only its root
    /// from a reserved port. `None` when it is to quit.
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
            // Somebody else may have removed it: then it is as it should be.
            let _ = fs::remove_file(path);
        }
    }
}

/// The next connection; `None` when `quit` becomes readable.
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
        // Woken for either of the two: this one does not block.
        match accept4(socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
            // SAFETY: accept4 returned a descriptor that nobody else owns.
            Ok(fd) => return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
            Err(Errno::EINTR | Errno::ECONNABORTED | Errno::EAGAIN) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Removes a socket that a killed agent left behind; refuses anything else that stands there.
fn remove_stale(path: &Path) -> Result<(), String> {
    let Ok(meta) = fs::symlink_metadata(path) else { return Ok(()) };
    if !meta.file_type().is_socket() {
        return Err("this file exists and is no socket; choose another path".into());
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(|e| e.to_string()),
        Ok(_) => Err("another agent waits here; stop it, or choose another path".into()),
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

/// Opens the device and waits until a host is at its other end.
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
                // A host in the middle of a session with a dead agent learns at once that this is another. No session has
                // number 0; whoever knocks passes it by.
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
