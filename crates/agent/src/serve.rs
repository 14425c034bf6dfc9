//! The agent's end of a session.

mod reporter;
mod session;

use crate::message::StartRequest;
use crate::observation::MakeObserver;
use crate::profile::MakeSampler;
use crate::stream::{Got, Stream};
use crate::{Commands, Facts};
use latpath_clock::ptp_kvm::Reader;
use latpath_flight::Record;
use latpath_linux::monotonic;
use latpath_model::{Ns, Source};
use latpath_timesync::SurveyOptions;
use latpath_vms::Vm;
use session::Session;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// The source of a session, with its recorder and sampler.
pub struct Attached<S> {
    /// The source of sightings.
    pub source: S,
    /// The flight recorder, if requested, or the reason for its absence.
    pub recorder: Option<Result<Box<dyn Record>, String>>,
    /// Constructor of the CPU sampler, if requested.
    pub sampler: Option<MakeSampler>,
}

impl<S: Source> From<S> for Attached<S> {
    fn from(source: S) -> Self {
        Self { source, recorder: None, sampler: None }
    }
}

/// Finds the instrument with a given name.
pub type FindObserver = Box<dyn Fn(&str) -> Option<MakeObserver> + Send>;

/// Options of an agent.
pub struct ServeOptions {
    /// Clock of the source's times: `CLOCK_MONOTONIC`, or another one in tests.
    pub clock: Box<dyn Fn() -> Ns + Send>,
    /// Facts about this machine for the hello.
    pub facts: Facts,
    /// Reader of the hypervisor's clock, if available.
    pub hypervisor: Option<Box<dyn Reader>>,
    /// How to reach this machine's clock daemons.
    pub clocks: SurveyOptions,
    /// Finds the virtual machines that this machine runs.
    pub vms: fn() -> Result<Vec<Vm>, String>,
    /// Maximum silence of the host before it counts as dead.
    pub silence: Duration,
    /// Maximum wait for a preamble; with `None`, 10 s after a connection to a socket, otherwise unlimited.
    pub opening: Option<Duration>,
    /// Interval at which the source is drained.
    pub every: Duration,
    /// Finds the instruments that the agent attaches for the host; the hello announces whether there are any.
    pub observers: Option<FindObserver>,
    /// Whether the host may run commands; announced in the hello.
    pub commands: Commands,
    /// Capacity of the source's rings, in sightings; the process then runs at background priority while the source
    /// runs. `None` in tests.
    pub background: Option<usize>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            clock: Box::new(monotonic),
            facts: Facts::of_this_machine(),
            hypervisor: None,
            clocks: SurveyOptions::default(),
            vms: || latpath_vms::find().map(|found| found.vms).map_err(|error| error.to_string()),
            silence: Duration::from_secs(10),
            opening: None,
            every: Duration::from_millis(10),
            observers: None,
            commands: Commands::Refused,
            background: None,
        }
    }
}

/// How a session ended regularly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The host requested a stop.
    Stopped,
    /// The host closed the stream.
    HostGone,
    /// Another session opened on the same stream, to be served next.
    NewSession,
    /// This process must end.
    Quit,
}

/// Errors of a session, reported to the host if possible.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// No host opened a session.
    #[error("no host opened a session within {0:?}")]
    NobodyCame(Duration),
    /// The host was silent for too long.
    #[error("no message from the host for {0:?}: considered dead")]
    Silent(Duration),
    /// The host did not read anything for too long.
    #[error("the host has read nothing for {0:?}: considered dead")]
    Stuck(Duration),
    /// Invalid bytes.
    #[error("the host sent an invalid message: {0}")]
    Frame(String),
    /// An unexpected message.
    #[error("the host broke the protocol: {0}")]
    Protocol(String),
    /// Incompatible versions.
    #[error("{0}")]
    Version(String),
    /// The probe could not be attached, or failed.
    #[error("{0}")]
    Source(String),
    /// Reading or writing failed.
    #[error("the stream to the host failed: {0}")]
    Io(#[from] std::io::Error),
}

/// Serves one session: waits for a host, attaches the source that `make_source` creates for the request, and forwards
/// its sightings until the host requests a stop or is gone. The source is dropped, and so detached, before this
/// returns; a source that is still being attached is dropped afterwards. Bytes left by an earlier session on this
/// stream are read first.
///
/// The session also ends when `quit` becomes readable.
///
/// # Errors
/// If the session fails.
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
        Ok(Ended::Quit) => Some("the agent was stopped".to_string()),
        Err(ServeError::Io(_) | ServeError::Stuck(_) | ServeError::NobodyCame(_)) => None,
        // The host may only be slow, or its guest was stopped; report the reason to it.
        Err(e) => Some(e.to_string()),
    };
    session.end(last_word);
    result
}

/// Returns the ID of the next session, or why the wait for it ended.
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
