//! Management messages over ptp4l's unix socket.

use crate::management::{parse, request, Answer, Content, DataSet};
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time to wait for an answer; ptp4l sends it within a millisecond unless it does not get its CPU.
const ANSWER: Duration = Duration::from_millis(200);
/// Requests sent at once while searching for the domain; the queue of ptp4l's socket holds at least 10.
const BATCH: usize = 8;
/// Time to wait for an answer to a batch.
const BATCH_ANSWER: Duration = Duration::from_millis(15);
/// Maximum number of ports read per instance.
const MAX_PORTS: usize = 64;
/// Length of the longest answer, bytes.
const MAX_MESSAGE: usize = 1500;

/// Number of sockets that this process has opened so far; makes their names unique.
static SOCKETS: AtomicU32 = AtomicU32::new(0);

/// A domain and a transportSpecific: ptp4l ignores messages whose values differ from its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Domain {
    /// domainNumber.
    pub number: u8,
    /// transportSpecific (majorSdoId): 1 for gPTP.
    pub transport_specific: u8,
}

/// A connection to one ptp4l socket. Dropping it removes the client's own socket.
#[derive(Debug)]
pub struct Client {
    socket: UnixDatagram,
    /// Path of the client's socket in the file system; `None` if its name is abstract.
    path: Option<PathBuf>,
    domain: Domain,
    sequence: u16,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.path.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

impl Client {
    /// Connects to the socket at `server`, and finds the domain: the configured one, or any in which ptp4l answers.
    ///
    /// # Errors
    /// The socket does not exist, belongs to a dead ptp4l, requires other permissions, or nothing answers.
    pub fn connect(server: &Path, configured: Option<Domain>) -> io::Result<Self> {
        // An abstract name leaves no file and works across mount namespaces, but only within one network namespace; a
        // path is tried next.
        let mut silent = None;
        for bind in [bind_abstract, bind_path] {
            let (socket, path) = bind()?;
            let mut client = Self { socket, path, domain: configured.unwrap_or_default(), sequence: 0 };
            client.socket.connect(server)?;
            if client.answers()? || client.find_domain()? {
                return Ok(client);
            }
            silent = Some(client);
        }
        drop(silent);
        Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in any domain"))
    }

    /// The domain in which ptp4l answers.
    pub fn domain(&self) -> Domain {
        self.domain
    }

    fn answers(&mut self) -> io::Result<bool> {
        Ok(!self.get(DataSet::Default, 1)?.is_empty())
    }

    fn find_domain(&mut self) -> io::Result<bool> {
        let all =
            (0..=1u8).flat_map(|transport_specific| (0..=127).map(move |number| Domain { number, transport_specific }));
        let all: Vec<Domain> = all.collect();
        for batch in all.chunks(BATCH) {
            self.sequence = self.sequence.wrapping_add(1);
            for domain in batch {
                match self.socket.send(&request(
                    DataSet::Default,
                    domain.number,
                    domain.transport_specific,
                    self.sequence,
                )) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            if let [Content::Default { domain: number, .. }, ..] = self.collect(DataSet::Default, 1, BATCH_ANSWER)?[..]
            {
                let transport_specific = batch.iter().find(|d| d.number == number).map_or(0, |d| d.transport_specific);
                self.domain = Domain { number, transport_specific };
                return self.answers();
            }
        }
        Ok(false)
    }

    /// Requests a data set: one for the whole clock or, if it is a port's, one per port, at most `expected`. Empty if
    /// ptp4l does not have it or does not answer.
    ///
    /// # Errors
    /// The socket cannot be used, because ptp4l has ended.
    pub fn get(&mut self, set: DataSet, expected: usize) -> io::Result<Vec<Content>> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&request(set, self.domain.number, self.domain.transport_specific, self.sequence))?;
        self.collect(set, expected.clamp(1, MAX_PORTS), ANSWER)
    }

    fn collect(&self, set: DataSet, expected: usize, within: Duration) -> io::Result<Vec<Content>> {
        let until = Instant::now() + within;
        let mut found = Vec::new();
        let mut buffer = [0; MAX_MESSAGE];
        while found.len() < expected {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match self.socket.recv(&mut buffer) {
                Ok(length) => match parse(&buffer[..length], set, self.sequence) {
                    Answer::Content(content) => found.push(content),
                    Answer::Refused(_) => break,
                    Answer::Other => {}
                },
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

type Bound = (UnixDatagram, Option<PathBuf>);

fn next() -> String {
    format!("latpath-ptp-{}-{}", std::process::id(), SOCKETS.fetch_add(1, Ordering::Relaxed))
}

fn bind_abstract() -> io::Result<Bound> {
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(next())?)?;
    socket.set_write_timeout(Some(ANSWER))?;
    Ok((socket, None))
}

/// Binds a socket in the file system; once connected, it accepts datagrams only from ptp4l.
fn bind_path() -> io::Result<Bound> {
    let directory = directory();
    remove_left(&directory);
    let path = directory.join(next());
    let socket = UnixDatagram::bind(&path)?;
    socket.set_write_timeout(Some(ANSWER))?;
    // ptp4l may run as another user.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    Ok((socket, Some(path)))
}

/// Directory of the client's socket: for root `/run`, as for pmc's, because services often see another `/tmp`.
fn directory() -> PathBuf {
    match nix::unistd::geteuid().is_root() {
        true => "/run".into(),
        false => std::env::temp_dir(),
    }
}

/// Removes sockets that killed processes left behind.
fn remove_left(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid =
            name.to_str().and_then(|name| name.strip_prefix("latpath-ptp-")?.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
