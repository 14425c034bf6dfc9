//! Several senders with one stream's name, as far as their packets can be distinguished: on separate islands.
//!
//! The packets of one sender are joined and handed out. Those of any other are joined too, until it is known which sender's packets the
//! route is of, and are then only counted: their numbers are unrelated to those of the first sender.

use crate::islands;
use crate::stream::Stream;
use latpath_model::{PointId, PointInfo};

/// The known senders of one stream.
#[derive(Default)]
pub(crate) struct Senders {
    /// The points that saw the stream, as bits `1 << PointId`.
    pub seen: u64,
    /// The points of the route, where it is known.
    pub route: u64,
    /// A point of the sender that is followed.
    followed: Option<PointId>,
    pub others: Vec<Other>,
    /// Sightings of other senders that turned out to be none.
    gone: u64,
}

/// A sender that is not followed.
pub(crate) struct Other {
    /// The points that see its packets.
    pub points: u64,
    pub joined: Stream,
}

impl Senders {
    pub fn of_others(&self) -> u64 {
        self.others.iter().fold(0, |points, other| points | other.points)
    }

    /// Sightings of packets that are not followed.
    pub fn sightings_of_others(&self) -> u64 {
        self.others.iter().fold(self.gone, |all, other| all.saturating_add(other.joined.totals.sightings))
    }

    /// Divides the points that saw the stream by senders; `stream` has the joined packets of the followed sender. Returns senders that
    /// turned out not to be separate.
    pub fn divide(&mut self, points: &[PointInfo], stream: &mut Stream, new: impl Fn() -> Stream) -> Vec<Other> {
        let islands = islands::with_senders(points, self.seen);
        let has = |mask: &u64| self.followed.is_some_and(|point| mask >> point & 1 == 1);
        // Journeys that were handed out remain those of one sender.
        let of_route = |mask: &u64| mask & self.route != 0 && (has(mask) || stream.totals.journeys == 0);
        let both = |mask: &u64| of_route(mask) && has(mask);
        let rules: [&dyn Fn(&u64) -> bool; 4] = [&both, &of_route, &has, &|_| true];
        let Some(followed) = rules.iter().find_map(|rule| islands.iter().copied().find(|mask| rule(mask))) else {
            return Vec::new();
        };
        let mut before = std::mem::take(&mut self.others);
        if let Some(point) = self.followed.filter(|point| followed >> point & 1 == 0) {
            // Another one was followed as long as the route was not known.
            let known = before.iter().position(|other| other.points & followed != 0);
            let mut joined = known.map_or_else(&new, |at| before.swap_remove(at).joined);
            (joined.expected, joined.reader) = (stream.expected, stream.reader);
            before.push(Other { points: 1 << point, joined: std::mem::replace(stream, joined) });
            self.followed = None;
        }
        self.followed = self.followed.or(Some(followed.trailing_zeros() as PointId));
        for mask in islands.into_iter().filter(|mask| *mask != followed) {
            let known = before.iter().position(|other| other.points & mask != 0).map(|at| before.swap_remove(at));
            let joined = known.map_or_else(&new, |other| other.joined);
            self.others.push(Other { points: mask, joined });
        }
        self.gone += before.iter().map(|other| other.joined.totals.sightings).sum::<u64>();
        before
    }
}
