//! The agent's end of a session.

mod reporter;
mod session;

use crate::message::StartRequest;
use crate::profile::MakeSampler;
use crate::stream::{Got, Stream};
use crate::{Commands, Facts};
use latpath_clock::ptp_kvm::Reader;
use latpath_flight::Record;
use latpath_linux::monotonic;
use latpath_model::{Ns, Source};
use session::Session;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

pub struct Attached<S> {
    pub source: S,
    /// The flight recorder, where the host asked for one; or why there is none.
    pub recorder: Option<Result<Box<dyn Record>, String>>,
    /// What samples this machine's CPUs, where the host asked for that.
    pub sampler: Option<MakeSampler>,
}

impl<S: Source> From<S> for Attached<S> {
    fn from(source: S) -> Self {
        Self { source, recorder: None, sampler: None }
    }
}

/// What an agent needs beside its stream and source.
pub struct ServeOptions {
    /// The clock that the source's times are taken from, `CLOCK_MONOTONIC`; another in tests.
    pub clock: Box<dyn Fn() -> Ns + Send>,
    /// What is reported about this machine.
    pub facts: Facts,
    /// The hypervisor's clock, where there is one.
    pub hypervisor: Option<Box<dyn Reader>>,
    /// The host is taken for dead when nothing came from it for this long.
    pub silence: Duration,
    /// How long to wait for a host to open the session; `None` for ever, or for 10 s of one who has connected to a socket.
    pub opening: Option<Duration>,
    /// How often the source is emptied.
    pub every: Duration,
    /// Whether it runs commands for the host; it says so in its hello.
    pub commands: Commands,
    /// The process runs in the background while the source does: the sightings that the source's rings hold. `None` in tests.
    pub background: Option<usize>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            clock: Box::new(monotonic),
            facts: Facts::of_this_machine(),
            hypervisor: None,
            silence: Duration::from_secs(10),
            opening: None,
            every: Duration::from_millis(10),
            commands: Commands::Refused,
            background: None,
        }
    }
}

/// How a session ended, when nothing failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The host said that it needs no more.
    Stopped,
    /// The host closed the stream.
    HostGone,
    /// Another session opened on the same stream: it is to be served next.
    NewSession,
    /// This process was asked to end.
    Quit,
}

/// Why a session failed. The host learns of it where possible.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Nobody opened a session.
    #[error("no host opened a session within {0:?}")]
    NobodyCame(Duration),
    /// Nothing came for too long.
    #[error("nothing was heard of the host for {0:?}: taken for dead")]
    Silent(Duration),
    /// The host does not take what is written.
    #[error("the host has taken nothing for {0:?}: taken for dead")]
    Stuck(Duration),
    /// Bytes that are no protocol.
    #[error("the host sent what is no message of latpath's: {0}")]
    Frame(String),
    /// A message that has no place here.
    #[error("the host broke the protocol: {0}")]
    Protocol(String),
    /// Versions that do not meet.
    #[error("{0}")]
    Version(String),
    /// The probe could not be attached, or failed.
    #[error("{0}")]
    Source(String),
    /// Reading or writing failed.
    #[error("the stream to the host failed: {0}")]
    Io(#[from] std::io::Error),
}

/// Serves one session: waits for a host, attaches what it asks for by `make_source`, hands on the sightings until the host asks it
/// to stop or the host is gone. The source is dropped, and so detached, before this returns; one that is still being attached
/// is dropped as soon as that is done. Bytes that an earlier session on this stream left come first.
///
/// `quit` becoming readable ends the session.
pub fn serve<S, F>(
    stream: &mut Stream,
    options: &mut ServeOptions,
    quit: Option<BorrowedFd>,
    make_source: F,
) -> Result<Ended, ServeError>
where
    S: Source + 'static,
    F: FnOnce(&StartRequest) -> Result<Attached<S>, String> + Send + 'static,
{
    let nonce = match wait_for_host(stream, options.opening, quit)? {
        Ok(nonce) => nonce,
        Err(ended) => return Ok(ended),
    };
    let mut session = Session::new(stream, options, nonce, make_source);
    let result = session.run(quit);
    let last_word = match &result {
        Ok(Ended::Stopped | Ended::HostGone | Ended::NewSession) => None,
        Ok(Ended::Quit) => Some("the agent was asked to end".to_string()),
        Err(ServeError::Io(_) | ServeError::Stuck(_) | ServeError::NobodyCame(_)) => None,
        // A host that was only slow, or whose guest stood still, learns why its agent has gone.
        Err(e) => Some(e.to_string()),
    };
    session.end(last_word);
    result
}

/// The number of the session that a host opens, or how the wait for it ended.
fn wait_for_host(
    stream: &mut Stream,
    within: Option<Duration>,
    quit: Option<BorrowedFd>,
) -> Result<Result<u64, Ended>, ServeError> {
    let began = Instant::now();
    loop {
        if let Some(nonce) = stream.reader.scan() {
            return Ok(Ok(nonce));
        }
        let left = within.map(|w| w.saturating_sub(began.elapsed()));
        if let (Some(Duration::ZERO), Some(within)) = (left, within) {
            return Err(ServeError::NobodyCame(within));
        }
        let ready = stream.wait(false, quit, left.unwrap_or(Duration::MAX))?;
        if ready.other {
            return Ok(Err(Ended::Quit));
        }
        if ready.read || ready.hangup {
            match stream.read()? {
                Got::Bytes | Got::Nothing => {}
                Got::End => return Ok(Err(Ended::HostGone)),
            }
        }
    }
}
