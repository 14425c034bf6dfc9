//! Losses by LAN of redundant networks (PRP, HSR): a packet that arrived via the other LAN is not lost.

use crate::batch::Batch;
use latpath_journey::copies::{self, CopyPoints};
use latpath_model::point::Lan;
use latpath_model::{PointId, PointInfo};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Copies of packets via one LAN of redundant networks, at one place on their route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LanFigures {
    /// The place, named by the point of the first copies: `host/nic-rx@copy:first`.
    pub place: String,
    /// The LAN: `A` or `B`.
    pub lan: String,
    /// Its points at this place; empty if no packet came via this LAN.
    pub points: Vec<String>,
    /// Number of packets with a copy seen via this LAN.
    pub packets: u64,
    /// Number of packets without a copy seen via this LAN, whether the other copy was seen or not.
    pub lost: u64,
    /// Number of packets for which the copy via this LAN was the first.
    pub first: u64,
}

/// Counts of one stream at one place.
#[derive(Clone, Debug)]
struct AtPlace {
    at: CopyPoints,
    seen: [u64; 2],
    first: [u64; 2],
}

/// Counts of one stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lans {
    places: Vec<AtPlace>,
    packets: u64,
}

impl Lans {
    pub fn of_points(points: &[PointInfo]) -> Self {
        let mut lans = Self::default();
        lans.extend(points);
        lans
    }

    /// Adds places, and further LANs of known places.
    pub fn extend(&mut self, points: &[PointInfo]) {
        for at in copies::of_points(points) {
            match self.places.iter_mut().find(|known| known.at.first == at.first) {
                Some(known) => known.at = at,
                None => self.places.push(AtPlace { at, seen: [0; 2], first: [0; 2] }),
            }
        }
    }

    pub fn add(&mut self, batch: &Batch) {
        let Batch { rows, ref range, .. } = *batch;
        self.packets += range.len() as u64;
        for place in &mut self.places {
            for row in range.clone() {
                let seen = rows.seen[row];
                let time = |lan: u64| {
                    let mut points = (0..rows.t.len()).filter(|p| seen & lan & 1 << p != 0);
                    points.next().map(|first| points.fold(rows.t[first][row], |t, p| t.min(rows.t[p][row])))
                };
                let [a, b] = place.at.lans.map(time);
                place.seen[0] += u64::from(a.is_some());
                place.seen[1] += u64::from(b.is_some());
                match (a, b) {
                    (Some(a), b) if b.is_none_or(|b| a <= b) => place.first[0] += 1,
                    (_, Some(_)) => place.first[1] += 1,
                    _ => {}
                }
            }
        }
    }

    pub fn merge(&mut self, other: &Self) {
        self.packets += other.packets;
        for place in &other.places {
            match self.places.iter_mut().find(|own| own.at.first == place.at.first) {
                Some(own) => {
                    own.seen.iter_mut().zip(place.seen).for_each(|(own, other)| *own += other);
                    own.first.iter_mut().zip(place.first).for_each(|(own, other)| *own += other);
                }
                None => self.places.push(place.clone()),
            }
        }
    }

    /// Sums the figures of all streams whose packets came via any LAN.
    pub fn sum<'a>(streams: impl Iterator<Item = &'a Self>) -> Self {
        let mut all = Self::default();
        streams.filter(|lans| lans.places.iter().any(AtPlace::is_used)).for_each(|lans| all.merge(lans));
        all
    }

    /// The figures; empty for a stream without any copy seen via a LAN.
    pub fn figures(&self, point: impl Fn(PointId) -> String) -> Vec<LanFigures> {
        let of_place = |place: &AtPlace| {
            let of_lan = |lan: Lan| {
                let (at, points) = (lan as usize, place.at.lans[lan as usize]);
                LanFigures {
                    place: point(place.at.first),
                    lan: lan.name().into(),
                    points: (0..64).filter(|p| points >> p & 1 == 1).map(|p| point(p as PointId)).collect(),
                    packets: place.seen[at],
                    lost: self.packets.saturating_sub(place.seen[at]),
                    first: place.first[at],
                }
            };
            Lan::ALL.map(of_lan)
        };
        self.places.iter().filter(|place| place.is_used()).flat_map(of_place).collect()
    }
}

impl AtPlace {
    fn is_used(&self) -> bool {
        self.seen != [0; 2]
    }
}

/// Number of packets lost on a LAN, at the place where most are missing; `None` without redundant networks.
pub fn lost_on(lans: &[LanFigures], lan: Lan) -> Option<u64> {
    lans.iter().filter(|figures| figures.lan == lan.name()).map(|figures| figures.lost).max()
}
