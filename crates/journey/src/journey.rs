//! The journey of one packet.

use latpath_model::{Ns, PointId, StreamId};

/// Maximum number of points in a run: a journey's set of points is a `u64`.
pub const MAX_POINTS: usize = 64;

/// All sightings of one packet. Borrowed from the joiner or from a run, valid until the next journey.
#[derive(Clone, Copy, Debug, Default)]
pub struct Journey<'a> {
    /// The packet's stream.
    pub stream: StreamId,
    /// The packet's key in its stream (smpCnt for SV).
    pub key: u32,
    /// The packet's number in its stream, counted from 0 by first sighting; identifies the packet even if keys wrap.
    pub number: u64,
    /// Points that saw the packet: bit `1 << PointId`.
    pub seen: u64,
    /// The bits of `seen` that stand for computed times instead of sightings: the time of the packet's sample, or its
    /// planned send time.
    pub samples: u64,
    /// Time of the first sighting at each point, host timeline, ns; valid where `seen` has the bit.
    pub t: &'a [Ns],
    /// CPU of each sighting; valid where `t` is.
    pub cpu: &'a [u16],
    /// Thread of each sighting; valid where `t` is.
    pub tid: &'a [u32],
    /// Number of duplicate arrivals at the last point of the route.
    pub duplicates: u32,
    /// Whether the packet reached the last point of the route after a later packet of its sender (RFC 4737).
    pub out_of_order: bool,
    /// Index of the note of the `drop` point plus one; 0 for none.
    pub drop_note: u16,
    /// Number of packets directly before this one that no point saw, by sequence numbers, as known when the journey was
    /// handed out.
    pub missing_before: u32,
}

/// Indexes of the bits of a set, ascending.
pub(crate) fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(bit)
    })
}

impl Journey<'_> {
    /// Time at a point, if the point saw the packet.
    pub fn at(&self, point: PointId) -> Option<Ns> {
        (self.seen >> point & 1 == 1).then(|| self.t[usize::from(point)])
    }

    /// Time of the first sighting.
    pub fn first(&self) -> Option<Ns> {
        bits(self.seen & !self.samples).map(|point| self.t[point]).min()
    }

    /// Time from one point to another, if both saw the packet. A negative time shows a clock fault and is not clamped.
    pub fn between(&self, from: PointId, to: PointId) -> Option<Ns> {
        Some(self.at(to)? - self.at(from)?)
    }
}
