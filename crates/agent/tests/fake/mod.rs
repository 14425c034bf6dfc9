//! A source that returns the sightings received from a channel, and an agent that serves it over a socket pair.
#![allow(dead_code)] // each test file uses part of this module

use latpath_agent::{
    serve, Attached, Ended, Machine, MakeSampler, ServeError, ServeOptions, StartRequest, Stream, Timeouts,
};
use latpath_flight::Record;
use latpath_model::{
    Counters, DropNote, Link, Ns, Point, PointInfo, PointKind, SenderAt, Sighting, Source, SourceNote, SourceNoteKind,
};
use latpath_testkit::waits::until;
pub use latpath_testkit::waits::LIMIT;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;

pub struct FakeSource {
    pub from: Receiver<Vec<Sighting>>,
    pub points: usize,
    pub watermark: Ns,
    pub made: u64,
    pub alive: Arc<AtomicBool>,
}

impl Source for FakeSource {
    fn points(&mut self) -> Vec<PointInfo> {
        let point = |i: usize| PointInfo {
            point: Point { machine: "whatever".into(), kind: PointKind::NicRx, device: format!("eth{i}") },
            link: Link::Nic,
            netns: 7,
            ifindex: i as u32,
            peer: 0,
            peer_netns: 0,
            error_bound_ns: 0,
            clock: "monotonic".into(),
        };
        (0..self.points).map(point).collect()
    }

    fn drop_notes(&mut self) -> Vec<DropNote> {
        vec![DropNote { reason: "FULL_RING".into(), function: "tun_net_xmit".into(), at: None }]
    }

    fn drain(&mut self, out: &mut Vec<Sighting>) -> Ns {
        if let Ok(sightings) = self.from.try_recv() {
            self.watermark = sightings.last().map_or(self.watermark, |s| s.t);
            self.made += sightings.len() as u64;
            out.extend(sightings);
        }
        self.watermark
    }

    fn counters(&mut self) -> Counters {
        Counters { sightings: self.made, dropped: 3, ..Counters::default() }
    }

    fn source_notes(&mut self) -> Vec<SourceNote> {
        vec![SourceNote::new(SourceNoteKind::Fragments, format!("{} packets in fragments", self.made))]
    }

    fn senders(&mut self) -> Vec<SenderAt> {
        vec![SenderAt { stream: 1, sender: latpath_model::Sender::Mac([2, 0, 0, 0, 0, 1]), point: 3 }]
    }
}

impl Drop for FakeSource {
    fn drop(&mut self) {
        self.alive.store(false, Ordering::SeqCst);
    }
}

/// An agent in a thread of this process.
pub struct Agent {
    pub sightings: Sender<Vec<Sighting>>,
    /// Whether its source is attached.
    pub attached: Arc<AtomicBool>,
    pub thread: JoinHandle<Result<Ended, ServeError>>,
}

pub fn agent(stream: UnixStream, clock: impl Fn() -> Ns + Send + 'static) -> Agent {
    agent_with(stream, ServeOptions { clock: Box::new(clock), ..ServeOptions::default() })
}

pub fn agent_with(stream: UnixStream, options: ServeOptions) -> Agent {
    agent_recording(stream, options, || None)
}

/// Result of starting a flight recorder, if there is one.
pub type Begun = Option<Result<Box<dyn Record>, String>>;

pub fn agent_recording(
    stream: UnixStream,
    options: ServeOptions,
    recorder: impl FnOnce() -> Begun + Send + 'static,
) -> Agent {
    agent_doing(stream, options, recorder, None)
}

/// Starts an agent that samples its CPUs.
pub fn agent_sampling(stream: UnixStream, sampler: MakeSampler) -> Agent {
    agent_doing(stream, ServeOptions::default(), || None, Some(sampler))
}

fn agent_doing(
    stream: UnixStream,
    mut options: ServeOptions,
    recorder: impl FnOnce() -> Begun + Send + 'static,
    sampler: Option<MakeSampler>,
) -> Agent {
    let (sightings, from) = channel();
    let attached = Arc::new(AtomicBool::new(false));
    let alive = attached.clone();
    let thread = std::thread::spawn(move || {
        let make = move |request: &StartRequest| {
            alive.store(true, Ordering::SeqCst);
            let recorder = request.option(StartRequest::FLIGHT).and_then(|_| recorder());
            let source = FakeSource { from, points: 5, watermark: 0, made: 0, alive };
            Ok::<_, String>(Attached { source, recorder, sampler })
        };
        serve(&mut Stream::new(stream).unwrap(), &mut options, None, make)
    });
    Agent { sightings, attached, thread }
}

pub fn patient() -> Timeouts {
    Timeouts { connect: LIMIT, start: LIMIT, silence: LIMIT, stop: LIMIT, profile: LIMIT, window: LIMIT }
}

pub fn request() -> StartRequest {
    StartRequest {
        streams: vec!["svid:MU01".parse().unwrap(), "svid:MU02".parse().unwrap()],
        options: Default::default(),
    }
}

/// Like [`request`], but with a flight recorder.
pub fn recorded() -> StartRequest {
    StartRequest { options: [(StartRequest::FLIGHT.into(), (1 << 20).to_string())].into(), ..request() }
}

/// Drains until `n` sightings have arrived.
pub fn drain(machine: &mut Machine, n: usize) -> Vec<Sighting> {
    let mut out = Vec::new();
    let waited = until(&format!("{n} sightings come"), || {
        machine.drain(&mut out);
        out.len() >= n
    });
    waited.unwrap_or_else(|e| panic!("{e:?}; {} have; {:?}", out.len(), machine.fault()));
    out
}
