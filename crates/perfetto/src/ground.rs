//! What is known beside the captures.

use latpath_model::{Ns, Point, PointId, PointInfo, StreamId, StreamSpec};
use latpath_run::Manifest;
use latpath_vms::Vm;

/// What is known beside the captures.
#[derive(Clone, Debug, Default)]
pub struct Ground {
    /// The run's points.
    pub points: Vec<PointInfo>,
    /// The run's streams.
    pub streams: Vec<StreamSpec>,
    /// Each stream's way.
    pub ways: Vec<Vec<PointId>>,
    /// Segments by their names.
    pub segments: Vec<Segment>,
    /// The host's virtual machines.
    pub vms: Vec<Vm>,
    /// Machines, each with its kernel's release.
    pub kernels: Vec<(String, String)>,
    /// One instant in the host's `CLOCK_MONOTONIC`, and in UTC since 1970.
    pub utc: Option<(Ns, Ns)>,
}

/// A part of the way that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// `Thyp`.
    pub name: String,
    /// Where it begins.
    pub from: PointId,
    /// Where it ends.
    pub to: PointId,
}

impl Ground {
    /// What a run knows. `points` are its points, `vms` its virtual machines.
    pub fn of(manifest: &Manifest, points: &[PointInfo], vms: Vec<Vm>) -> Self {
        let id = |point: &Point| points.iter().position(|p| p.point == *point).and_then(|n| PointId::try_from(n).ok());
        let segment =
            |s: &latpath_run::NamedSegment| Some(Segment { name: s.name.clone(), from: id(&s.from)?, to: id(&s.to)? });
        Self {
            points: points.to_vec(),
            streams: manifest.streams.clone(),
            ways: manifest.routes.iter().map(|way| way.iter().filter_map(id).collect()).collect(),
            segments: manifest.segments.iter().filter_map(segment).collect(),
            vms,
            kernels: manifest.machines.iter().map(|m| (m.machine.clone(), m.kernel.clone())).collect(),
            utc: (manifest.start.utc_ns > 0).then_some((manifest.start.monotonic_ns, manifest.start.utc_ns)),
        }
    }

    /// A stream's way; empty where it is not known.
    pub(crate) fn way(&self, stream: StreamId) -> &[PointId] {
        self.ways.get(usize::from(stream)).map_or(&[], Vec::as_slice)
    }
}
