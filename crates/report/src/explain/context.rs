//! What is known beside the captures: points, ways and their segments, streams, virtual machines, CPUs, clocks.

use super::Told;
use crate::layout::layout_of;
use latpath_capture::{Capture, Packet};
use latpath_cause::{advise, Analyst, Case, Explained, Folk, Ground, Surroundings, Usual, Verdict};
use latpath_journey::Segment;
use latpath_linux::Cpus;
use latpath_model::{Ns, PointId, PointInfo, SegmentKind, StreamId, StreamSpec, HOST};
use latpath_run::Run;
use latpath_vms::Vm;
use std::collections::BTreeMap;

/// Where packets passed.
#[derive(Clone, Debug, Default)]
pub struct RunContext {
    /// The points.
    pub points: Vec<PointInfo>,
    /// Each stream's way.
    pub lines: Vec<Vec<PointId>>,
    /// The named segments.
    pub segments: Vec<Segment>,
    /// The streams.
    pub streams: Vec<StreamSpec>,
    /// The host's virtual machines.
    pub vms: Vec<Vm>,
    /// Each machine's CPUs, as far as they are known.
    pub cpus: BTreeMap<String, Cpus>,
    /// The host's frequency governors.
    pub governors: Vec<String>,
    /// When the run began, on its own timeline.
    pub start_ns: Ns,
    /// What to add to a time for UTC.
    pub utc_offset_ns: Ns,
}

impl RunContext {
    /// That of a run.
    pub fn of_run(run: &Run) -> Self {
        let manifest = run.manifest();
        let layout = layout_of(run, &[]).unwrap_or_default();
        let host = &manifest.host;
        let cpus = host.cpus_online.parse().ok().filter(|cpus: &Cpus| !cpus.is_empty());
        Self {
            points: run.points().to_vec(),
            lines: layout.route.lines_of(manifest.streams.len()),
            segments: layout.segments,
            streams: manifest.streams.clone(),
            vms: run.vms(),
            cpus: cpus.map(|cpus| (HOST.to_owned(), cpus)).into_iter().collect(),
            governors: host.governors.clone(),
            start_ns: manifest.start.monotonic_ns,
            utc_offset_ns: manifest.utc_offset_ns(),
        }
    }

    /// A stream's way.
    pub fn line(&self, stream: StreamId) -> &[PointId] {
        self.lines.get(usize::from(stream)).map_or(&[], Vec::as_slice)
    }

    /// CPUs that a machine of a capture has shown.
    pub(crate) fn see(&mut self, capture: &Capture) {
        for machine in &capture.machines {
            let Ok(snapshot) = &machine.record else { continue };
            if machine.machine == HOST && self.cpus.contains_key(HOST) {
                continue;
            }
            let known = self.cpus.entry(machine.machine.clone()).or_default();
            for cpu in &snapshot.window.cpus {
                if !known.contains(cpu.cpu) {
                    cpu.cpu.to_string().parse().into_iter().for_each(|one| known.join(one));
                }
            }
        }
    }

    pub(crate) fn folk(&self) -> Folk<'_> {
        Folk { vms: &self.vms }
    }

    pub(crate) fn surroundings(&self) -> Surroundings<'_> {
        Surroundings {
            folk: self.folk(),
            points: &self.points,
            streams: &self.streams,
            cpus: self.cpus.clone(),
            governors: &self.governors,
        }
    }

    pub(crate) fn analyst<'a>(&'a self, capture: &'a Capture) -> Analyst<'a> {
        Analyst::new(capture, Ground { points: &self.points, vms: &self.vms })
    }

    /// Explains a packet, and weighs that against what is usual.
    pub(crate) fn judge(
        &self,
        analyst: &Analyst,
        capture: &Capture,
        packet: &Packet,
        usual: &Usual,
    ) -> (Explained, Verdict) {
        let way = self.line(packet.stream);
        let explained = Explained::of(analyst, capture, packet, way, &self.points);
        let verdict = Verdict::of(&explained, way, usual, &self.folk());
        (explained, verdict)
    }

    /// Adds what would cure it.
    pub(crate) fn told(&self, explained: Explained, verdict: Verdict) -> Told {
        let case = verdict.first().map(|first| Case::of_packet(first, explained.stream));
        let advice = case.map_or(Vec::new(), |case| advise(&case, &self.surroundings()));
        Told { explained, verdict, advice }
    }

    /// A point's name.
    pub fn point(&self, id: PointId) -> String {
        self.points.get(usize::from(id)).map_or_else(|| format!("point {id}"), |p| p.point.to_string())
    }

    /// A stream's short name.
    pub fn stream(&self, id: StreamId) -> String {
        self.streams.get(usize::from(id)).map_or_else(|| format!("stream {id}"), StreamSpec::short)
    }

    /// The classic segment that a part of the way lies in; its ends where there is none.
    pub fn segment(&self, (from, to): (PointId, PointId)) -> String {
        let place = |line: &[PointId], point| line.iter().position(|p| *p == point);
        let named = self.segments.iter().filter(|s| !matches!(s.kind, SegmentKind::Total | SegmentKind::Step));
        let mut best: Option<(usize, &str)> = None;
        for segment in named {
            for line in &self.lines {
                let places = [segment.from, from, to, segment.to].map(|p| place(line, p));
                if let [Some(a), Some(b), Some(c), Some(d)] = places {
                    let fits = a <= b && b <= c && c <= d;
                    if fits && best.is_none_or(|(width, _)| d - a < width) {
                        best = Some((d - a, &segment.name));
                    }
                }
            }
        }
        best.map_or_else(|| format!("{}→{}", self.point(from), self.point(to)), |(_, name)| name.to_owned())
    }

    /// A time as UTC, ns since 1970.
    pub(crate) fn utc(&self, t: Ns) -> Ns {
        t.saturating_add(self.utc_offset_ns)
    }
}
