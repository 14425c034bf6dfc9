//! Round trips of `latpath ping`: a probe, its answer, and their stamps along the route, each of which is a sighting at a
//! point of the emitter or of the reflector.

use crate::{Ns, Point, PointKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Machine of the points at which the emitter's stamps are taken.
pub const EMITTER: &str = "emitter";
/// Machine of the points at which the reflector's stamps are taken.
pub const REFLECTOR: &str = "reflector";
/// Devices and threads in the names of the points; a log of round trips does not contain the real names.
const NIC: &str = "nic";
const THREAD: &str = "ping";

/// Stamps of a probe and its answer, in the order of the route.
///
/// `App` and `Kernel` stamps are in the `CLOCK_MONOTONIC` of their machine (the kernel's are converted from
/// `CLOCK_REALTIME`); `Nic` stamps are in the NIC's clock (PHC).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stamp {
    /// The emitter calls the kernel to send.
    T1App,
    /// The probe reaches the emitter's queueing discipline (`SOF_TIMESTAMPING_TX_SCHED`).
    T1Sched,
    /// The emitter's driver gets the probe (`SOF_TIMESTAMPING_TX_SOFTWARE`).
    T1Driver,
    /// The probe leaves the emitter's NIC (`SOF_TIMESTAMPING_TX_HARDWARE`).
    T1Nic,
    /// The probe arrives at the reflector's NIC (`SOF_TIMESTAMPING_RX_HARDWARE`).
    T2Nic,
    /// The probe enters the reflector's network stack (`SOF_TIMESTAMPING_RX_SOFTWARE`).
    T2Kernel,
    /// The reflector's program has received the probe.
    T2App,
    /// The reflector calls the kernel to send the answer.
    T3App,
    /// The answer reaches the reflector's queueing discipline.
    T3Sched,
    /// The reflector's driver gets the answer.
    T3Driver,
    /// The answer leaves the reflector's NIC.
    T3Nic,
    /// The answer arrives at the emitter's NIC.
    T4Nic,
    /// The answer enters the emitter's network stack.
    T4Kernel,
    /// The emitter's program has received the answer.
    T4App,
}

/// Source of a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// latpath itself, in user space: `CLOCK_MONOTONIC`.
    App,
    /// The kernel: `CLOCK_REALTIME`, converted to `CLOCK_MONOTONIC`.
    Kernel,
    /// The NIC: its PHC, converted to `CLOCK_MONOTONIC`.
    Nic,
}

impl Stamp {
    /// All stamps, in the order of the route.
    pub const ALL: [Self; 14] = {
        use Stamp::*;
        [
            T1App, T1Sched, T1Driver, T1Nic, T2Nic, T2Kernel, T2App, T3App, T3Sched, T3Driver, T3Nic, T4Nic, T4Kernel,
            T4App,
        ]
    };

    /// Display name, e.g. `T1 nic`.
    pub fn name(self) -> &'static str {
        match self {
            Self::T1App => "T1 app",
            Self::T1Sched => "T1 sched",
            Self::T1Driver => "T1 driver",
            Self::T1Nic => "T1 nic",
            Self::T2Nic => "T2 nic",
            Self::T2Kernel => "T2 kernel",
            Self::T2App => "T2 app",
            Self::T3App => "T3 app",
            Self::T3Sched => "T3 sched",
            Self::T3Driver => "T3 driver",
            Self::T3Nic => "T3 nic",
            Self::T4Nic => "T4 nic",
            Self::T4Kernel => "T4 kernel",
            Self::T4App => "T4 app",
        }
    }

    /// Column of the log and key of JSON, e.g. `t1_nic_ns`.
    pub fn column(self) -> String {
        self.name().to_lowercase().replace(' ', "_") + "_ns"
    }

    /// The clock that takes the stamp.
    pub fn source(self) -> Source {
        match self {
            Self::T1App | Self::T2App | Self::T3App | Self::T4App => Source::App,
            Self::T1Nic | Self::T2Nic | Self::T3Nic | Self::T4Nic => Source::Nic,
            _ => Source::Kernel,
        }
    }

    /// Whether the reflector takes the stamp.
    pub fn is_reflectors(self) -> bool {
        (Self::T2Nic..=Self::T3Nic).contains(&self)
    }

    /// The point at which the stamp is a sighting.
    pub fn point(self) -> Point {
        let (kind, device) = match self {
            Self::T1App | Self::T3App => (PointKind::AppSend, THREAD),
            Self::T1Sched | Self::T3Sched => (PointKind::Qdisc, NIC),
            Self::T1Driver | Self::T3Driver => (PointKind::Tx, NIC),
            Self::T1Nic | Self::T3Nic => (PointKind::NicHwTx, NIC),
            Self::T2Nic | Self::T4Nic => (PointKind::NicHwRx, NIC),
            Self::T2Kernel | Self::T4Kernel => (PointKind::NicRx, NIC),
            Self::T2App | Self::T4App => (PointKind::AppRead, THREAD),
        };
        let machine = if self.is_reflectors() { REFLECTOR } else { EMITTER };
        Point { machine: machine.into(), kind, device: device.into() }
    }

    /// Bit in a mask of stamps.
    pub fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// Times of stamps, ns; each may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps([Ns; Stamp::ALL.len()]);

/// Value of a missing stamp.
const ABSENT: Ns = Ns::MIN;

impl Default for Stamps {
    fn default() -> Self {
        Self([ABSENT; Stamp::ALL.len()])
    }
}

impl Stamps {
    /// Time of a stamp; `None` if missing.
    #[inline]
    pub fn get(&self, stamp: Stamp) -> Option<Ns> {
        let time = self.0[stamp as usize];
        (time != ABSENT).then_some(time)
    }

    /// Sets a stamp, ns.
    #[inline]
    pub fn set(&mut self, stamp: Stamp, time: Ns) {
        self.0[stamp as usize] = time;
    }

    /// Sets a stamp if `time` is given.
    #[inline]
    pub fn set_if(&mut self, stamp: Stamp, time: Option<Ns>) {
        if let Some(time) = time {
            self.set(stamp, time);
        }
    }

    /// Mask of the present stamps ([`Stamp::bit`]).
    pub fn mask(&self) -> u16 {
        Stamp::ALL.into_iter().filter(|s| self.0[*s as usize] != ABSENT).fold(0, |mask, s| mask | s.bit())
    }

    /// Time between two stamps; `None` if one is missing.
    #[inline]
    pub fn between(&self, from: Stamp, to: Stamp) -> Option<Ns> {
        Some(self.get(to)?.saturating_sub(self.get(from)?))
    }
}

/// One probe and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Sequence number of the probe in its session, from 0.
    pub sequence: u64,
    /// Stamps in their own clocks.
    pub raw: Stamps,
    /// Stamps on the common timeline, the emitter's `CLOCK_MONOTONIC`.
    pub mapped: Stamps,
}

impl Transaction {
    /// From T1 app to T4 app, ns of the emitter's `CLOCK_MONOTONIC`; `None` without an answer.
    pub fn round_trip(&self) -> Option<Ns> {
        self.raw.between(Stamp::T1App, Stamp::T4App)
    }

    /// From T1 nic to T4 nic, ns of the emitter's PHC alone.
    pub fn nic_round_trip(&self) -> Option<Ns> {
        self.raw.between(Stamp::T1Nic, Stamp::T4Nic)
    }

    /// From T2 nic to T3 nic, ns of the reflector's PHC alone.
    pub fn nic_turnaround(&self) -> Option<Ns> {
        self.raw.between(Stamp::T2Nic, Stamp::T3Nic)
    }

    /// Times of the segments of `route`. If no stamp of the route is missing, their sum is exactly the round trip.
    pub fn segments<'a>(&'a self, route: &'a Route) -> impl Iterator<Item = Option<Ns>> + 'a {
        route.segments().map(|segment| self.mapped.between(segment.from, segment.to))
    }
}

/// The stamps that divide a round trip into segments, from T1 app to T4 app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route(Vec<Stamp>);

/// The segment between two neighbouring stamps of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The earlier stamp.
    pub from: Stamp,
    /// The later stamp.
    pub to: Stamp,
}

impl Route {
    /// A route of all stamps in the mask `taken` ([`Stamp::bit`]): up to 13 segments.
    pub fn detailed(taken: u16) -> Self {
        let ends = Stamp::T1App.bit() | Stamp::T4App.bit();
        Self(Stamp::ALL.into_iter().filter(|s| s.bit() & (taken | ends) != 0).collect())
    }

    /// A route with one stamp at each edge of a machine, the NIC's if present: at most seven segments.
    pub fn of_seven(taken: u16) -> Self {
        use Stamp::*;
        let best = |candidates: &[Stamp]| candidates.iter().copied().find(|s| s.bit() & taken != 0);
        let inner = [
            best(&[T1Nic, T1Driver, T1Sched]),
            best(&[T2Nic, T2Kernel]),
            best(&[T2App]),
            best(&[T3App]),
            best(&[T3Nic, T3Driver, T3Sched]),
            best(&[T4Nic, T4Kernel]),
        ];
        Self([Some(T1App)].into_iter().chain(inner).chain([Some(T4App)]).flatten().collect())
    }

    /// The stamps of the route, in order.
    pub fn stamps(&self) -> &[Stamp] {
        &self.0
    }

    /// Index of the segment that exceeded its median by the most.
    pub fn longest(&self, transaction: &Transaction, medians: &[Ns]) -> Option<usize> {
        let medians = medians.iter().copied().chain(std::iter::repeat(0));
        let beyond = transaction.segments(self).zip(medians).enumerate();
        let beyond = beyond.filter_map(|(at, (time, median))| Some((at, time?.saturating_sub(median))));
        beyond.max_by_key(|(_, beyond)| *beyond).map(|(at, _)| at)
    }

    /// The segments between neighbouring stamps, in order.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = Segment> + '_ {
        self.0.windows(2).map(|pair| Segment { from: pair[0], to: pair[1] })
    }
}

impl Segment {
    /// All possible segments of routes with any stamps.
    pub fn all() -> impl Iterator<Item = Self> {
        let later = |from: Stamp| Stamp::ALL.into_iter().filter(move |to| *to > from);
        Stamp::ALL.into_iter().flat_map(move |from| later(from).map(move |to| Self { from, to }))
    }

    /// Display name, e.g. `app → NIC` or `wire there`.
    pub fn name(self) -> String {
        let (from, to) = (self.from, self.to);
        let side = |s: Stamp| if s.is_reflectors() { "reflector" } else { "emitter" };
        match (from.is_reflectors(), to.is_reflectors()) {
            _ if (from, to) == (Stamp::T2App, Stamp::T3App) => "processing".into(),
            _ if (from, to) == (Stamp::T1App, Stamp::T4App) => "round trip".into(),
            (false, true) if from.source() == Source::Nic && to.source() == Source::Nic => "wire there".into(),
            (true, false) if from.source() == Source::Nic && to.source() == Source::Nic => "wire back".into(),
            (false, true) => format!("there: {} → {}", place(from), place(to)),
            (true, false) => format!("back: {} → {}", place(from), place(to)),
            _ => format!("{} {} → {}", side(from), place(from), place(to)),
        }
    }

    /// Key of JSON and column of the log, e.g. `t1_app_to_t1_nic_ns`.
    pub fn column(self) -> String {
        format!("{}_to_{}", self.from.column().trim_end_matches("_ns"), self.to.column())
    }
}

fn place(stamp: Stamp) -> &'static str {
    stamp.name().split(' ').nth(1).unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn segments_of_any_route_sum_to_the_round_trip_exactly(
            times in prop::array::uniform14(-1i64 << 60..1i64 << 60), taken in any::<u16>(), seven in any::<bool>()
        ) {
            let mut t = Transaction::default();
            for (stamp, time) in Stamp::ALL.into_iter().zip(times) {
                t.mapped.set(stamp, time);
            }
            t.raw = t.mapped;
            let route = if seven { Route::of_seven(taken) } else { Route::detailed(taken) };
            let sum: Ns = t.segments(&route).map(|time| time.expect("no stamp is missing")).sum();
            prop_assert_eq!(Some(sum), t.round_trip());
        }
    }

    #[test]
    fn a_route_of_seven_has_the_nics_stamps_and_names_each_segment() {
        let names: Vec<String> = Route::of_seven(u16::MAX).segments().map(Segment::name).collect();
        let expected = [
            "emitter app → nic",
            "wire there",
            "reflector nic → app",
            "processing",
            "reflector app → nic",
            "wire back",
            "emitter nic → app",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn each_stamp_has_a_point_of_its_own() {
        let mut points = Stamp::ALL.map(|stamp| stamp.point().to_string());
        assert_eq!((points[0].as_str(), points[4].as_str()), ("emitter/app-send@ping", "reflector/nic-hw-rx@nic"));
        points.sort();
        assert!(points.windows(2).all(|two| two[0] != two[1]), "{points:?}");
    }

    #[test]
    fn without_hardware_stamps_the_kernels_are_used_and_named() {
        let nic = [Stamp::T1Nic, Stamp::T2Nic, Stamp::T3Nic, Stamp::T4Nic].iter().fold(0, |m, s| m | s.bit());
        let names: Vec<String> = Route::of_seven(!nic).segments().map(Segment::name).collect();
        assert_eq!(names[0], "emitter app → driver");
        assert_eq!(names[1], "there: driver → kernel");
        assert_eq!(Route::of_seven(0).stamps(), [Stamp::T1App, Stamp::T4App]);
    }

    #[test]
    fn a_missing_stamp_is_none_and_not_a_time() {
        let mut stamps = Stamps::default();
        stamps.set(Stamp::T1App, 0);
        stamps.set_if(Stamp::T1Nic, None);
        assert_eq!((stamps.get(Stamp::T1App), stamps.get(Stamp::T1Nic), stamps.mask()), (Some(0), None, 1));
    }
}
