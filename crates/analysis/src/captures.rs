//! Captures of a run, read one by one, and the user's selections of them.

use crate::explain::Candidate;
use crate::{Explainer, PacketSelector};
use latpath_capture::{Capture, CaptureKind, Packet};
use latpath_cause::{send_time, RunContext};
use latpath_model::{Ns, StreamId};
use latpath_run::{Run, RunError, SpikeFile, SpikeFiles, StoreError};
use std::cmp::Reverse;
use std::collections::HashSet;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a selection is empty.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// No match, or several. The text lists the candidates.
    #[error("{0}")]
    Usage(String),
    /// The run has no captures. The text gives the reason.
    #[error("{0}")]
    Nothing(String),
    /// The capture was replaced while it was read.
    #[error("capture {0} changed while it was read; try again")]
    Changed(u32),
    /// The user interrupted the command.
    #[error("interrupted")]
    Interrupted,
    /// A file of the run cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Captures of a run, which are too large to be held in memory together.
pub struct RunCaptures<'a> {
    run: &'a Run,
    /// The captures' files, and notes about them.
    pub files: SpikeFiles,
    /// Number of unreadable captures.
    pub unread: usize,
}

/// A packet that the user selected.
pub struct SelectedPacket {
    /// The packet, in the capture with most of its route.
    pub packet: Candidate,
    /// Numbers of all captures with the packet, including this capture.
    pub captures: Vec<u32>,
}

/// A packet's stream, and its index in the stream.
type PacketId = (StreamId, u64);

/// A selection of captures.
#[derive(Clone, Debug)]
pub enum Selection {
    /// The captures of the N worst packets.
    Worst(usize),
    /// Captures by number.
    Spikes(Vec<u32>),
    /// The captures with this packet, late or not.
    Packet(PacketSelector),
}

/// The captures and packets that match a selection.
#[derive(Debug)]
pub struct Selected {
    /// Numbers of the captures, in order of time.
    pub captures: Vec<u32>,
    /// The selected packets; `None` for all.
    packets: Option<HashSet<PacketId>>,
}

impl Selected {
    /// Whether the selection includes the packet.
    pub fn matches(&self, packet: &Packet) -> bool {
        self.packets.as_ref().is_none_or(|packets| packets.contains(&(packet.stream, packet.number)))
    }
}

impl<'a> RunCaptures<'a> {
    /// Lists the captures of a run.
    pub fn new(run: &'a Run) -> Self {
        Self { run, files: run.spikes(), unread: 0 }
    }

    /// The run.
    pub(crate) fn run(&self) -> &'a Run {
        self.run
    }

    /// Reads all captures of a kind. Counts unreadable captures, and adds a note for each.
    pub fn each(&mut self, kind: CaptureKind, mut take: impl FnMut(&Capture)) {
        let of_kind = self.files.files.iter().filter(|f| f.head.kind() == kind);
        let numbers: Vec<u32> = of_kind.map(|f| f.head.number).collect();
        for number in numbers {
            match self.run.capture(number) {
                Ok(ranked) => take(&ranked.capture),
                // A recording in progress may have replaced the capture with a worse one.
                Err(RunError::Store(StoreError::Read { source, .. })) if source.kind() == ErrorKind::NotFound => {
                    self.files.files.retain(|f| f.head.number != number);
                }
                Err(error) => {
                    self.unread += 1;
                    self.files.notes.push(error.to_string());
                }
            }
        }
    }

    /// Learns the baseline; from captures with late packets if there are no others.
    pub fn learn(&mut self, explainer: &mut Explainer) {
        self.each(CaptureKind::Baseline, |capture| explainer.learn(capture));
        if explainer.learnt() > 0 {
            return;
        }
        self.each(CaptureKind::Spike, |capture| explainer.learn(capture));
        if explainer.learnt() > 0 {
            let note =
                "the baseline comes from on-time packets beside late ones: packets were late at all times of this run";
            self.files.notes.push(note.into());
        }
    }

    /// Finds a packet.
    ///
    /// # Errors
    /// If no packet matches, or more than one.
    pub fn find(&mut self, selector: &PacketSelector, context: &RunContext) -> Result<SelectedPacket, SelectError> {
        // If two captures contain a packet, the one with its whole route comes first.
        let (mut candidates, mut cut): (Vec<Candidate>, Vec<Candidate>) = (Vec::new(), Vec::new());
        for kind in [CaptureKind::Spike, CaptureKind::Baseline] {
            self.each(kind, |capture| {
                for packet in &capture.packets {
                    let Some(one) = candidate(capture, packet, context).filter(|c| selector.may_be(c, context)) else {
                        continue;
                    };
                    let whole = packet.sightings.iter().all(|s| s.t < capture.to);
                    if whole { &mut candidates } else { &mut cut }.push(one);
                }
            });
        }
        candidates.append(&mut cut);
        let packet = selector.choose(&candidates, context).map_err(SelectError::Usage)?;
        let is_it = |c: &&Candidate| (c.stream, c.number) == (packet.stream, packet.number);
        let captures = candidates.iter().filter(is_it).map(|c| c.capture).collect();
        Ok(SelectedPacket { packet, captures })
    }

    /// Reads a packet that was found, and its capture.
    ///
    /// # Errors
    /// If the capture can no longer be read.
    pub fn read(&self, selected: &SelectedPacket) -> Result<(Capture, Packet), SelectError> {
        let chosen = &selected.packet;
        let capture = self.run.capture(chosen.capture)?.capture;
        let is_it = |p: &&Packet| (p.stream, p.number) == (chosen.stream, chosen.number);
        let packet = capture.packets.iter().find(is_it).cloned();
        packet.map(|packet| (capture, packet)).ok_or(SelectError::Changed(chosen.capture))
    }

    /// Resolves a selection.
    ///
    /// # Errors
    /// If the run has no matching captures, or `stop` is set.
    pub fn select(
        &mut self,
        selection: &Selection,
        context: &RunContext,
        stop: &AtomicBool,
    ) -> Result<Selected, SelectError> {
        let path = self.run.path().display();
        let mut packets = None;
        let mut captures: Vec<u32> = match selection {
            Selection::Spikes(numbers) => {
                if let Some(missing) = numbers.iter().find(|number| !self.has(**number)) {
                    return Err(SelectError::Usage(match self.files.files.is_empty() {
                        true => format!("--spike {missing}: {path} has no spikes"),
                        false => format!("--spike {missing}: no such spike in {path} (there are: {})", self.listed()),
                    }));
                }
                numbers.clone()
            }
            _ if self.files.files.is_empty() => Vec::new(),
            Selection::Packet(selector) => {
                let found = self.find(selector, context)?;
                packets = Some(HashSet::from([(found.packet.stream, found.packet.number)]));
                found.captures
            }
            Selection::Worst(most) => {
                let (captures, worst) = self.worst(*most, stop)?;
                packets = Some(worst);
                captures
            }
        };
        if captures.is_empty() {
            let why = match &self.run.manifest().spikes {
                None => "nothing was captured around late packets (--no-flight, or an older latpath)",
                Some(_) => "no packet was late; record with a lower --threshold, or with --capture-worst",
            };
            return Err(SelectError::Nothing(format!("{path}: no spikes to export: {why}")));
        }
        let begin = |number: &u32| self.files.files.iter().find(|f| f.head.number == *number).map(|f| f.head.from);
        captures.sort_by_key(|number| (begin(number), *number));
        captures.dedup();
        Ok(Selected { captures, packets })
    }

    fn has(&self, number: u32) -> bool {
        self.files.files.iter().any(|file| file.head.number == number)
    }

    /// Numbers of the captures, for an error message.
    fn listed(&self) -> String {
        const LISTED: usize = 20;
        let all: Vec<String> = self.files.files.iter().map(|file| file.head.number.to_string()).collect();
        let shown = all.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
        match all.last() {
            Some(last) if all.len() > LISTED => format!("{shown}, … {last}"),
            _ => shown,
        }
    }

    /// Finds the worst packets and their captures. Reads a capture only if its worst packet may be among the `most`
    /// worst.
    fn worst(&self, most: usize, stop: &AtomicBool) -> Result<(Vec<u32>, HashSet<PacketId>), SelectError> {
        struct Late {
            took: Ns,
            packet: Option<PacketId>,
            capture: u32,
        }
        let is_spike = |file: &&SpikeFile| file.head.kind() == CaptureKind::Spike;
        let mut spikes: Vec<&SpikeFile> = self.files.files.iter().filter(is_spike).collect();
        spikes.sort_by_key(|file| (Reverse(file.head.worst), file.head.number));
        let mut worst: Vec<Late> = Vec::new();
        for file in spikes {
            if stop.load(Ordering::Relaxed) {
                return Err(SelectError::Interrupted);
            }
            if worst.len() >= most && worst[most - 1].took >= file.head.worst {
                break;
            }
            // A capture that is unreadable or has no late packets is represented by its recorded worst time.
            let capture = file.head.number;
            let packets = self.run.capture(capture).map(|ranked| ranked.capture.packets).unwrap_or_default();
            let late = packets.iter().filter(|packet| packet.late).filter_map(|packet| {
                let took = packet.sightings.last()?.t.saturating_sub(packet.sightings.first()?.t);
                Some(Late { took, packet: Some((packet.stream, packet.number)), capture })
            });
            let before = worst.len();
            worst.extend(late);
            if worst.len() == before {
                worst.push(Late { took: file.head.worst, packet: None, capture });
            }
            worst.sort_by_key(|late| (Reverse(late.took), late.capture));
            // A packet between two spikes may be a late packet of each.
            let mut seen = HashSet::new();
            worst.retain(|late| late.packet.is_none_or(|packet| seen.insert(packet)));
            worst.truncate(most);
        }
        Ok((worst.iter().map(|late| late.capture).collect(), worst.iter().filter_map(|late| late.packet).collect()))
    }
}

/// Converts a packet to a candidate for a selection; `None` if it has no sightings on its route.
fn candidate(capture: &Capture, packet: &Packet, context: &RunContext) -> Option<Candidate> {
    let route = context.route(packet.stream);
    let on_route = || packet.sightings.iter().filter(|s| route.is_empty() || route.contains(&s.point)).map(|s| s.t);
    let (seen, last) = (on_route().min()?, on_route().max()?);
    let first = send_time(packet, seen, &context.points).map_or(seen, |planned| planned.t);
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
