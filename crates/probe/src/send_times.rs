//! The send times at the end of talkers' frames, as `latpath publish --cycle` writes them.

use latpath_clock::{ClockTie, RealtimeWatch};
use latpath_model::{Ns, PlannedSend, StreamId};

/// Maximum difference between a send time and the time of a sighting of the packet, ns. Bytes that are not a send time
/// are unlikely to be that close to the current time.
const PLAUSIBLE: Ns = 1_000_000_000;
/// Interval between two readings of the clocks, ns.
const READ_EVERY: Ns = 100_000_000;
/// Maximum number of pending send times; until they are taken, further ones are dropped.
const MAX_PENDING: usize = 1 << 16;
/// Number of consecutive packets with increasing `CLOCK_MONOTONIC` times after which such times count. They are small
/// numbers, like measured samples, so single samples may be close to the current time by chance.
const SURE: u32 = 16;

/// Recognises send times by `CLOCK_TAI`, `CLOCK_REALTIME` and `CLOCK_MONOTONIC`.
pub(crate) struct SendTimes {
    realtime: RealtimeWatch,
    /// `CLOCK_TAI` minus `CLOCK_REALTIME`, ns.
    tai: Ns,
    due: Ns,
    streams: Vec<Sends>,
    pending: Vec<PlannedSend>,
}

/// The send times of a stream.
#[derive(Clone, Copy)]
struct Sends {
    /// The newest send time that counts, ns.
    newest: Ns,
    /// Number of packets with increasing `CLOCK_MONOTONIC` times since the last packet without one, and the latest of
    /// these times (`latest`), ns.
    run: u32,
    latest: Ns,
}

impl Sends {
    const NONE: Self = Self { newest: Ns::MIN, run: 0, latest: Ns::MIN };

    /// Whether `word`, from a sighting at `t`, counts as a `CLOCK_MONOTONIC` send time.
    fn is_monotonic(&mut self, t: Ns, word: Ns) -> bool {
        if word.saturating_sub(t).saturating_abs() > PLAUSIBLE {
            (self.run, self.latest) = (0, Ns::MIN);
            return false;
        }
        if word > self.latest {
            (self.run, self.latest) = (self.run.saturating_add(1), word);
        }
        self.run >= SURE
    }
}

impl SendTimes {
    pub fn new() -> Self {
        let tie = ClockTie::read();
        let realtime = RealtimeWatch::new(&tie);
        Self { realtime, tai: tai_offset(&tie), due: 0, streams: Vec::new(), pending: Vec::new() }
    }

    /// Reads the clocks if a reading is due.
    pub fn follow(&mut self, now: Ns) {
        if now >= self.due {
            let tie = ClockTie::read();
            self.realtime.observe(&tie);
            self.tai = tai_offset(&tie);
            self.due = now + READ_EVERY;
        }
    }

    /// Adds a sighting of a packet whose frame ends with `word`. Only the first sighting of each packet counts; it is
    /// recognised by its send time, as the send times of a stream increase.
    #[inline]
    pub fn see(&mut self, stream: StreamId, key: u32, t: Ns, word: u64) {
        let Ok(word) = Ns::try_from(word) else { return };
        let at = usize::from(stream);
        if at >= self.streams.len() {
            self.streams.resize(at + 1, Sends::NONE);
        }
        let sends = &mut self.streams[at];
        let offset = self.realtime.to_monotonic(0).0;
        let on_timeline = [word.saturating_add(offset).saturating_sub(self.tai), word.saturating_add(offset)];
        let is_near = |planned: &Ns| planned.saturating_sub(t).saturating_abs() <= PLAUSIBLE;
        let (planned, is_own_clock) = match on_timeline.into_iter().find(is_near) {
            Some(planned) => (planned, false),
            None if sends.is_monotonic(t, word) => (word, true),
            None => return,
        };
        // A large step back means that the clock was set or that there is a second talker, so send times start again.
        let is_new = planned > sends.newest || sends.newest.saturating_sub(planned) > PLAUSIBLE;
        if is_new && self.pending.len() < MAX_PENDING {
            sends.newest = planned;
            self.pending.push(PlannedSend { stream, key, t, planned, is_own_clock });
        }
    }

    /// Takes the send times found since the last call.
    pub fn take(&mut self) -> Vec<PlannedSend> {
        std::mem::take(&mut self.pending)
    }
}

/// Returns `CLOCK_TAI` minus `CLOCK_REALTIME`, ns, rounded to whole seconds: the kernel's offset is in whole seconds,
/// and the two clocks are read less than half a second apart.
fn tai_offset(tie: &ClockTie) -> Ns {
    const SECOND: Ns = 1_000_000_000;
    (tie.tai_ns - tie.realtime_ns + SECOND / 2).div_euclid(SECOND) * SECOND
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sighting_of_a_packet_with_a_plausible_send_time_counts() {
        let tie = ClockTie {
            monotonic_ns: 5_000_000_000,
            realtime_ns: 1_700_000_000_000_000_000,
            tai_ns: 1_700_000_037_000_000_000,
            uncertainty_ns: 20,
        };
        let realtime = RealtimeWatch::new(&tie);
        let mut times =
            SendTimes { realtime, tai: tai_offset(&tie), due: Ns::MAX, streams: Vec::new(), pending: Vec::new() };
        let t = tie.monotonic_ns;
        let words = [tie.tai_ns + 500, tie.realtime_ns + 600];
        for (key, word) in (0..).zip(words) {
            for sighting in [t + 1_000, t + 2_000] {
                times.see(1, key, sighting, word as u64);
            }
        }
        let of = |planned, key| PlannedSend { stream: 1, key, t: t + 1_000, planned, is_own_clock: false };
        let first = times.take();
        assert_eq!(first, [of(t + 500, 0), of(t + 600, 1)]);
        for word in [
            0,
            1,
            t as u64,
            u64::MAX,
            1 << 62,
            tie.tai_ns as u64 + 3_000_000_000,
            u64::from_be_bytes(*b"\0\0\x1f\x40\0\0\0\0"),
        ] {
            times.see(1, 9, t, word);
        }
        assert_eq!(times.take(), []);
        (0..2 * MAX_PENDING as Ns).for_each(|n| times.see(0, n as u32, t, (tie.tai_ns + n) as u64));
        assert_eq!(times.take().len(), MAX_PENDING);
    }

    #[test]
    fn times_by_the_monotonic_clock_count_once_many_in_a_row_increase() {
        let tie = ClockTie {
            monotonic_ns: 90_000_000_000_000,
            realtime_ns: 1_700_000_000_000_000_000,
            tai_ns: 1_700_000_000_000_000_000,
            uncertainty_ns: 20,
        };
        let (realtime, streams, pending) = (RealtimeWatch::new(&tie), Vec::new(), Vec::new());
        let mut times = SendTimes { realtime, tai: 0, due: Ns::MAX, streams, pending };
        const MS: Ns = 1_000_000;
        let start = 90_000_000 * MS;
        for n in 0..100 {
            let planned = start + n * MS;
            for late in [100, 2_000, 3 * MS] {
                times.see(0, n as u32, planned + late, planned as u64);
            }
        }
        let found = times.take();
        assert_eq!(found.iter().map(|send| send.key).collect::<Vec<_>>(), (SURE - 1..100).collect::<Vec<_>>());
        let of = |send: &PlannedSend| (send.planned - start, send.t - send.planned, send.is_own_clock);
        assert!(found.iter().all(|send| of(send) == (Ns::from(send.key) * MS, 100, true)), "{found:?}");
        // A constant sample that equals the current time for a second, a sine wave that comes near it now and then, and
        // words of which nine in ten are send times.
        let around = (start >> 32) << 32;
        for n in 0..4_000 {
            times.see(1, n as u32, around + n * MS / 4, around as u64);
            times.see(2, n as u32, around + n * MS / 4, (around + (n % 7 - 3) * (1 << 32)) as u64);
            let word = if n % 10 == 9 { 0 } else { start + n * MS };
            times.see(3, n as u32, start + n * MS + 100, word as u64);
        }
        assert_eq!(times.take(), []);
    }
}
