//! Several senders of one stream, if their packets are on separate islands.
//!
//! The packets of one sender are joined and handed out. Packets of other senders are also joined until the route shows
//! which sender is followed; then they are only counted, since their numbers are unrelated.

use crate::islands;
use crate::stream::Stream;
use latpath_model::{PointId, PointInfo};

/// The known senders of one stream.
#[derive(Default)]
pub(crate) struct Senders {
    /// The points that saw the stream, as bits `1 << PointId`.
    pub seen: u64,
    /// The points of the route, if known.
    pub route: u64,
    /// A point of the followed sender.
    followed: Option<PointId>,
    pub others: Vec<OtherSender>,
    /// Number of sightings of other senders that turned out not to be separate.
    merged: u64,
}

/// A sender that is not followed.
pub(crate) struct OtherSender {
    /// The points that see its packets.
    pub points: u64,
    pub joined: Stream,
}

impl Senders {
    pub fn of_others(&self) -> u64 {
        self.others.iter().fold(0, |points, other| points | other.points)
    }

    /// Number of sightings of packets that are not followed.
    pub fn sightings_of_others(&self) -> u64 {
        self.others.iter().fold(self.merged, |all, other| all.saturating_add(other.joined.totals.sightings))
    }

    /// Assigns the points that saw the stream to senders; `stream` has the joined packets of the followed sender.
    /// Returns senders that turned out not to be separate.
    pub fn divide(&mut self, points: &[PointInfo], stream: &mut Stream, new: impl Fn() -> Stream) -> Vec<OtherSender> {
        let islands = islands::with_senders(points, self.seen);
        let has = |mask: &u64| self.followed.is_some_and(|point| mask >> point & 1 == 1);
        // A stream that has handed out journeys keeps its sender.
        let of_route = |mask: &u64| mask & self.route != 0 && (has(mask) || stream.totals.journeys == 0);
        let both = |mask: &u64| of_route(mask) && has(mask);
        let rules: [&dyn Fn(&u64) -> bool; 4] = [&both, &of_route, &has, &|_| true];
        let Some(followed) = rules.iter().find_map(|rule| islands.iter().copied().find(|mask| rule(mask))) else {
            return Vec::new();
        };
        let mut before = std::mem::take(&mut self.others);
        if let Some(point) = self.followed.filter(|point| followed >> point & 1 == 0) {
            // Another sender was followed while the route was unknown.
            let known = before.iter().position(|other| other.points & followed != 0);
            let mut joined = known.map_or_else(&new, |at| before.swap_remove(at).joined);
            (joined.expected, joined.reader) = (stream.expected, stream.reader);
            before.push(OtherSender { points: 1 << point, joined: std::mem::replace(stream, joined) });
            self.followed = None;
        }
        self.followed = self.followed.or(Some(followed.trailing_zeros() as PointId));
        for mask in islands.into_iter().filter(|mask| *mask != followed) {
            let known = before.iter().position(|other| other.points & mask != 0).map(|at| before.swap_remove(at));
            let joined = known.map_or_else(&new, |other| other.joined);
            self.others.push(OtherSender { points: mask, joined });
        }
        self.merged += before.iter().map(|other| other.joined.totals.sightings).sum::<u64>();
        before
    }
}
