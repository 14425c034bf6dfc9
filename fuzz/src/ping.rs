//! Sends arbitrary frames to a reflector and to an emitter. Nothing panics or fails, an answer is never longer than its
//! request and fits into a frame, and each probe is either answered or lost.
//!
//! Input: a byte of options, then frames, each with its length in two bytes. If the lowest bit of the options is set,
//! the frames go to an emitter that requests a session; otherwise to a reflector.

use latpath_model::Ns;
use latpath_ping::clocks::Clocks;
use latpath_ping::emit::{emit, Observer, Pacing, Plan};
use latpath_ping::ethernet::{read, write, Framing, Peer, AROUND};
use latpath_ping::reflect::{reflect, ReflectPlan, Witness};
use latpath_ping::session::Session;
use latpath_ping::table::End;
use latpath_ping::transport::{Arrived, Got, Sent, SentStamp, Transport, Wait};
use latpath_ping::turnaround::Turnaround;
use latpath_ping::wire::{Header, Kind, CONTROL};
use latpath_ping::{Stamp, Transaction};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THEIRS: Peer = Peer { mac: [2, 0, 0, 0, 0, 2], framing: Framing::Own, tag: None };
/// MTU of the device, bytes.
const ROOM: usize = 1500;

#[derive(Debug, thiserror::Error, PartialEq)]
enum WireError {
    #[error("it does not fit")]
    TooLong,
    #[error("nothing more comes")]
    Over,
}

/// A device that receives the input's frames one by one.
struct Wire<'a> {
    rest: &'a [u8],
    /// Length of the last received message.
    asked: usize,
    is_emitter: bool,
    stop: Arc<AtomicBool>,
    sent: u64,
    left: Vec<(Vec<u8>, Stamp, Ns)>,
}

impl Transport for Wire<'_> {
    type Peer = Peer;
    type Error = WireError;

    fn send(&mut self, to: Peer, message: &[u8]) -> Result<Sent, WireError> {
        assert!(self.is_emitter || message.len() <= self.asked, "an answer is longer than what it answers");
        self.sent += 1;
        let mut frame = [0; ROOM + AROUND];
        if message.len() > latpath_ping::ethernet::room(to.framing, ROOM) {
            return Err(WireError::TooLong);
        }
        let len = write(&mut frame, &to, OURS, message).expect("what has room is written");
        let (from, at) = read(&frame[..len], None).expect("what was written is read");
        assert_eq!((&frame[at], from.mac), (message, OURS));
        if self.left.len() < 64 {
            self.left.push((message.to_vec(), Stamp::T1Driver, self.sent as Ns * 1_000_003));
        }
        Ok(Sent::Taken)
    }

    fn is_of_message(error: &WireError) -> bool {
        *error == WireError::TooLong
    }

    fn receive(&mut self, buffer: &mut [u8], _: Wait) -> Result<Got<Peer>, WireError> {
        let Some((head, tail)) = self.rest.split_first_chunk::<2>() else {
            self.stop.store(true, Ordering::Relaxed);
            // A reflector then checks its stop flag. An emitter would go on waiting for the session to be accepted, so
            // it gets an error.
            return if self.is_emitter { Err(WireError::Over) } else { Ok(Got::Nothing) };
        };
        let (frame, rest) = tail.split_at(usize::from(u16::from_be_bytes(*head)).min(tail.len()));
        self.rest = rest;
        let Some((from, at)) = read(frame, None) else { return Ok(Got::NobodyThere) };
        let message = &frame[at];
        self.asked = message.len();
        let len = message.len().min(buffer.len());
        buffer[..len].copy_from_slice(&message[..len]);
        let stamp = message.last_chunk().map(|time| Ns::from_be_bytes(*time));
        Ok(Got::Message(Arrived { from, len, kernel: stamp, nic: stamp }))
    }

    fn left(&mut self, each: &mut dyn FnMut(SentStamp<'_>)) -> Result<(), WireError> {
        self.left.drain(..).for_each(|(message, stamp, time)| each(SentStamp { message: &message, stamp, time }));
        Ok(())
    }

    fn takes(&self) -> u16 {
        Stamp::T1Driver.bit() | Stamp::T4Kernel.bit() | Stamp::T4Nic.bit()
    }

    fn dropped(&self) -> u64 {
        0
    }
}

struct Watching {
    sessions: i64,
    closed: u64,
}

impl Witness<Peer> for Watching {
    fn begins(&mut self, _: &Peer, _: u32) {
        self.sessions += 1;
        assert!(self.sessions <= 256);
    }

    fn ends(&mut self, _: &Peer, _: &Session) {
        self.sessions -= 1;
    }

    fn breach(&mut self, _: &Peer, _: &Session, _: u64) {}

    fn slow(&mut self, _: &Peer, _: u32, _: &Turnaround) {}
}

impl Observer for Watching {
    fn closed(&mut self, _: &Transaction, _: End) {
        self.closed += 1;
    }

    fn breach(&mut self, _: &Transaction) {}

    fn route(&mut self, _: u16) {}
}

/// The clocks, shared by all inputs because watching them takes a thread.
fn clocks() -> &'static Clocks {
    static CLOCKS: OnceLock<Clocks> = OnceLock::new();
    CLOCKS.get_or_init(|| Clocks::watch(None))
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let Some((options, rest)) = bytes.split_first() else { return };
    let is_emitter = options & 1 == 1;
    let stop = Arc::new(AtomicBool::new(false));
    let mut wire = Wire { rest, asked: 0, is_emitter, stop: stop.clone(), sent: 0, left: Vec::new() };
    let mut watching = Watching { sessions: 0, closed: 0 };
    if !is_emitter {
        let plan = ReflectPlan { threshold: (options & 2 == 2).then_some(0), ..ReflectPlan::default() };
        let ended = reflect(&mut wire, &plan, clocks(), &mut watching, &stop);
        let reflected = ended.expect("a reflector goes on, whatever comes");
        assert_eq!(watching.sessions, 0, "each session ends");
        assert!(reflected.foreign <= rest.len() as u64);
        return;
    }
    let plan = Plan {
        session: 0x1234_5678,
        size: 96,
        pacing: if options & 2 == 2 { Pacing::Flood } else { Pacing::AsAnswersCome },
        spin: true,
        warm_up: u64::from(options >> 4 & 1),
        count: Some(8),
        duration: None,
        lost_after: 1_000,
        timeout: 1_000_000,
        by_ptp: options & 4 == 4,
        threshold: (options & 8 == 8).then_some(0),
        stop_on_breach: false,
    };
    let ended = emit(&mut wire, THEIRS, &plan, clocks(), &mut watching, &AtomicBool::new(false));
    let c = ended.counts;
    assert!(c.answered + c.lost == c.sent, "{c:?}");
    assert!(watching.closed >= c.sent);
    let device = ended.welcome.map(|welcome| welcome.device).unwrap_or_default();
    assert!(!device.chars().any(char::is_control), "{device:?}");
}

/// A reflector's session, and the messages of a correct reflector to an emitter.
pub fn seeds() -> Vec<Vec<u8>> {
    let message = |kind, sequence, len: usize| {
        let mut message = vec![0; len];
        Header { kind, session: 0x1234_5678, sequence, first: 5, second: 6 }.write(&mut message);
        message
    };
    let framed = |options: u8, framing: Framing, messages: &[Vec<u8>]| {
        let mut input = vec![options];
        for message in messages {
            let mut frame = [0; ROOM + AROUND];
            let len = write(&mut frame, &Peer { framing, ..THEIRS }, THEIRS.mac, message).expect("it has room");
            input.extend((len as u16).to_be_bytes());
            input.extend(&frame[..len]);
        }
        input
    };
    let asks = [
        message(Kind::Hello, 1, CONTROL),
        message(Kind::Probe, 0, 96),
        message(Kind::Probe, 1, 32),
        message(Kind::Probe, 1, 40),
        message(Kind::Breach, 1, 32),
        message(Kind::Probe, 70_000, 1440),
        message(Kind::Hello, 2, CONTROL),
    ];
    let welcomes = (1..=16).map(|hello| message(Kind::Welcome, hello, CONTROL));
    let answers = (0..8).map(|sequence| message(Kind::Answer, sequence, 96));
    let hears: Vec<_> = welcomes.chain(answers).chain((17..20).map(|n| message(Kind::Welcome, n, CONTROL))).collect();
    vec![
        framed(0, Framing::Own, &asks),
        framed(2, Framing::Sv { appid: 0x4000 }, &asks),
        framed(1, Framing::Own, &hears),
        framed(11, Framing::Own, &hears),
    ]
}
