//! The time from the wire to the driver: from the NIC's timestamp of a received frame to the kernel's.

use crate::ArrivalClock;
use latpath_linux::monotonic;
use latpath_model::text::printable;
use latpath_model::Ns;
use latpath_nic_timestamps::{Caps, HardwareStamps, NicClock, RxHardware};
use latpath_wire::SendClock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

/// Maximum number of frames that wait for readings of the NIC's clock; further frames are skipped.
const MAX_WAITING: usize = 1 << 20;
/// Pause before each of the final readings.
const LAST_PAUSE: Duration = Duration::from_millis(1);

/// Counts of received frames, by the use of their NIC timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WireCounts {
    /// Frames whose time from the wire to the driver is known.
    pub measured: u64,
    /// Frames without a NIC timestamp.
    pub unstamped: u64,
    /// Frames whose NIC timestamp is not used, because the clock was set, cannot be read, or is not the device's.
    pub skipped: u64,
    /// Maximum error of the measured times, ns.
    #[serde(rename = "error_bound_ns")]
    pub bound_ns: Ns,
}

impl WireCounts {
    /// The sums of the counts, and the greater of the two bounds.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            measured: self.measured + other.measured,
            unstamped: self.unstamped + other.unstamped,
            skipped: self.skipped + other.skipped,
            bound_ns: self.bound_ns.max(other.bound_ns),
        }
    }
}

struct Waiting<K> {
    stream: K,
    nic: Ns,
    /// The kernel's timestamp, `CLOCK_MONOTONIC`, ns.
    had: Ns,
}

/// Measures frames; `K` identifies the stream of each.
pub struct WireTimes<K> {
    device: String,
    clock: NicClock,
    monotonic: ArrivalClock,
    waiting: VecDeque<Waiting<K>>,
    counts: WireCounts,
    notes: Vec<String>,
    on: Option<HardwareStamps>,
}

impl<K> WireTimes<K> {
    /// Switches on the timestamps of a device in this thread's network namespace, using the journal; dropping the value
    /// restores the setting. Returns `None` if the NIC does not timestamp received frames, or has no clock.
    ///
    /// # Errors
    /// The NIC's clock cannot be used, or its setting cannot be changed; the error is a sentence.
    pub fn begin(device: &str) -> Result<Option<Self>, String> {
        let shown = printable(device);
        let caps = Caps::of(device).map_err(|e| e.to_string())?;
        if caps.rx_nic() == RxHardware::Nothing {
            return Ok(None);
        }
        let Some(clock) = NicClock::open(&caps).map_err(|why| format!("{shown}: {why}"))? else { return Ok(None) };
        let Some(on) = HardwareStamps::switch_on(&caps).map_err(|e| e.to_string())? else { return Ok(None) };
        let mut times = Self::new(&shown, clock);
        if !on.rx() {
            times.notes.push(format!("{shown}: its NIC stamps no received frames but those of PTP"));
        }
        times.on = Some(on);
        Ok(Some(times))
    }

    /// Creates the measurement with this clock of a device's NIC.
    fn new(device: &str, mut clock: NicClock) -> Self {
        clock.read(monotonic());
        Self {
            device: device.to_owned(),
            clock,
            monotonic: ArrivalClock::new(SendClock::Monotonic),
            waiting: VecDeque::new(),
            counts: WireCounts::default(),
            notes: Vec::new(),
            on: None,
        }
    }

    /// Adds a frame with its timestamps: the NIC's, and the kernel's (`CLOCK_REALTIME`), ns.
    pub fn push(&mut self, stream: K, nic: Option<Ns>, arrival: Option<Ns>) {
        match nic.zip(arrival) {
            None => self.counts.unstamped += 1,
            Some(_) if self.waiting.len() == MAX_WAITING => self.counts.skipped += 1,
            Some((nic, arrival)) => {
                self.waiting.push_back(Waiting { stream, nic, had: self.monotonic.of(arrival) });
            }
        }
    }

    /// Reads the clock when a reading is due, and calls `each` with the times from the wire to the driver that are
    /// known by then, ns. `is_last` means that no further frames follow.
    pub fn round(&mut self, is_last: bool, mut each: impl FnMut(K, Ns)) {
        self.monotonic.follow();
        let now = monotonic();
        if is_last && !self.waiting.is_empty() {
            for _ in 0..3 {
                std::thread::sleep(LAST_PAUSE);
                self.clock.read(monotonic());
            }
        } else if now >= self.clock.due {
            self.clock.read(now);
        }
        while let Some(first) = self.waiting.front() {
            if !is_last && !self.clock.has_failed(now) && !self.clock.is_known_at(first.had) {
                break;
            }
            let Some(Waiting { stream, nic, had }) = self.waiting.pop_front() else { break };
            match self.clock.place(nic, had) {
                Some((t, bound)) => {
                    self.counts.measured += 1;
                    self.counts.bound_ns = self.counts.bound_ns.max(bound.saturating_add(self.monotonic.error()));
                    each(stream, had.saturating_sub(t));
                }
                None => self.counts.skipped += 1,
            }
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> WireCounts {
        self.counts
    }

    /// Notes for the user on timestamps that are not used.
    pub fn notes(&self) -> Vec<String> {
        self.notes.iter().cloned().chain(self.clock.notes(&self.device, monotonic())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_clock::phc::{Reader, Reading};
    use latpath_clock::ClockTie;

    const AHEAD: Ns = 37_000_000_000;

    /// A clock that is ahead of `CLOCK_MONOTONIC`.
    struct Simulated;

    impl Reader for Simulated {
        fn read(&mut self) -> std::io::Result<Reading> {
            let now = monotonic();
            Ok(Reading { phc_ns: now + AHEAD, monotonic_ns: now, uncertainty_ns: 100 })
        }
    }

    #[test]
    fn the_time_from_the_wire_is_known_after_later_readings_and_every_frame_is_counted() {
        let mut times = WireTimes::new("eth0", NicClock::new(3, Box::new(Simulated)));
        // The frame comes after the first reading of the clock.
        latpath_testkit::waits::pace(std::time::Duration::from_millis(10));
        let tie = ClockTie::read();
        let arrival = Some(tie.realtime_ns);
        times.push("A", Some(tie.monotonic_ns + AHEAD - 5_000_000), arrival);
        times.push("A", None, arrival);
        times.push("B", Some(12_345), arrival);
        let mut found = Vec::new();
        times.round(true, |stream, time| found.push((stream, time)));
        let counts = times.counts();
        assert_eq!((counts.measured, counts.unstamped, counts.skipped), (1, 1, 1));
        let [("A", time)] = found[..] else { panic!("{found:?}") };
        let error = counts.bound_ns + tie.uncertainty_ns;
        assert!((time - 5_000_000).abs() <= error, "{time} ± {error}");
        assert!(times.notes()[0].starts_with("eth0: the NIC's clock /dev/ptp3: 1 of 2 times"), "{:?}", times.notes());
    }
}
