//! What was frozen in a run, read one by one, and the packet of it that the user means.

use super::Usage;
use anyhow::{bail, Result};
use latpath_capture::{Capture, CaptureKind, Packet};
use latpath_cause::RunContext;
use latpath_report::{Candidate, PacketSelector};
use latpath_run::{Run, RunError, SpikeFiles};
use std::io::ErrorKind;

/// A run's captures: they are too large to be held together.
pub struct Captures<'a> {
    run: &'a Run,
    /// Their files, and what is to be said of them.
    pub files: SpikeFiles,
    /// Those that cannot be read.
    pub unread: usize,
}

/// A packet that is meant.
pub struct Found {
    /// Where it is best told.
    pub packet: Candidate,
    /// All captures that have it, that one among them.
    pub captures: Vec<u32>,
}

impl<'a> Captures<'a> {
    /// Those of a run; `files` are what it says of them.
    pub fn new(run: &'a Run, files: SpikeFiles) -> Self {
        Self { run, files, unread: 0 }
    }

    /// Hands over all of a kind.
    pub fn each(&mut self, kind: CaptureKind, mut take: impl FnMut(&Capture)) {
        let numbers: Vec<u32> =
            self.files.files.iter().filter(|f| f.head.kind == kind).map(|f| f.head.number).collect();
        for number in numbers {
            match self.run.spike(number) {
                Ok(frozen) => take(&frozen.capture),
                // Of a recording that goes on it may just have made room for a worse one.
                Err(RunError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
                    self.files.files.retain(|f| f.head.number != number);
                }
                Err(error) => {
                    self.unread += 1;
                    self.files.notes.push(error.to_string());
                }
            }
        }
    }

    /// The packet that is meant.
    ///
    /// # Errors
    /// Where there is none, or more than one: wrong usage.
    pub fn find(&mut self, wanted: &PacketSelector, context: &RunContext) -> Result<Found> {
        // Of a packet that is in two captures the one that has all of its way comes first.
        let (mut candidates, mut cut): (Vec<Candidate>, Vec<Candidate>) = (Vec::new(), Vec::new());
        for kind in [CaptureKind::Spike, CaptureKind::Baseline] {
            self.each(kind, |capture| {
                for packet in &capture.packets {
                    let Some(one) = candidate(capture, packet, context).filter(|c| wanted.may_be(c, context)) else {
                        continue;
                    };
                    let whole = packet.sightings.iter().all(|s| s.t < capture.to);
                    if whole { &mut candidates } else { &mut cut }.push(one);
                }
            });
        }
        candidates.append(&mut cut);
        let packet = wanted.choose(&candidates, context).map_err(|e| Usage(e.to_string()))?;
        let is_it = |c: &&Candidate| (c.stream, c.number) == (packet.stream, packet.number);
        let captures = candidates.iter().filter(is_it).map(|c| c.capture).collect();
        Ok(Found { packet, captures })
    }

    /// That packet, and the capture that tells it best.
    ///
    /// # Errors
    /// Where it cannot be read any more.
    pub fn read(&self, found: &Found) -> Result<(Capture, Packet)> {
        let chosen = &found.packet;
        let capture = self.run.spike(chosen.capture)?.capture;
        let is_it = |p: &&Packet| (p.stream, p.number) == (chosen.stream, chosen.number);
        let packet = capture.packets.iter().find(is_it).cloned();
        match packet {
            Some(packet) => Ok((capture, packet)),
            None => bail!("capture {} changed while it was read; try again", chosen.capture),
        }
    }
}

/// A packet, as far as is told of it in a list.
fn candidate(capture: &Capture, packet: &Packet, context: &RunContext) -> Option<Candidate> {
    let route = context.route(packet.stream);
    let on_route = || packet.sightings.iter().filter(|s| route.is_empty() || route.contains(&s.point)).map(|s| s.t);
    let (first, last) = (on_route().min()?, on_route().max()?);
    Some(Candidate {
        capture: capture.number,
        stream: packet.stream,
        key: packet.key,
        number: packet.number,
        t: first,
        time_ns: last.saturating_sub(first),
        late: packet.late,
    })
}
