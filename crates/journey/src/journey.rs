//! One packet's journey.

use latpath_model::{Ns, PointId, StreamId};

/// Maximum number of points of a run: a journey's set of points is a `u64`.
pub const MAX_POINTS: usize = 64;

/// All sightings of one packet. Borrowed from the joiner or from a run, valid until the next one is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Journey<'a> {
    pub stream: StreamId,
    /// The packet's key in its stream (smpCnt for SV).
    pub key: u32,
    /// The packet's number in its stream, counted from 0 by first sighting; names the packet where keys wrap.
    pub number: u64,
    /// Points that saw it: bit `1 << PointId`.
    pub seen: u64,
    /// Those of them that are moments before the packet was made, when its sample was taken: no sighting of it.
    pub samples: u64,
    /// Time of the (first) sighting at each point, host timeline; meaningful where `seen` has the bit.
    pub t: &'a [Ns],
    /// CPU of each sighting, likewise.
    pub cpu: &'a [u16],
    /// Thread of each sighting, likewise.
    pub tid: &'a [u32],
    /// Times that the packet came again to the last point of the route.
    pub duplicates: u32,
    /// It reached that point behind a later packet of its sender (RFC 4737).
    pub out_of_order: bool,
    /// Where a `drop` point saw it: index of its note plus one, 0 for none.
    pub drop_note: u16,
    /// Packets of the stream right before it that no point saw, by its sequence numbers, as far as was known when it was handed out.
    pub missing_before: u32,
}

/// The bits of a set of points, rising.
pub(crate) fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(bit)
    })
}

impl Journey<'_> {
    /// The time at a point, if the point saw the packet.
    pub fn at(&self, point: PointId) -> Option<Ns> {
        (self.seen >> point & 1 == 1).then(|| self.t[usize::from(point)])
    }

    /// The time of the first sighting.
    pub fn first(&self) -> Option<Ns> {
        bits(self.seen & !self.samples).map(|point| self.t[point]).min()
    }

    /// Time from one point to another, if both saw it. May be negative: a clock fault to report, never clamped.
    pub fn between(&self, from: PointId, to: PointId) -> Option<Ns> {
        Some(self.at(to)? - self.at(from)?)
    }
}
