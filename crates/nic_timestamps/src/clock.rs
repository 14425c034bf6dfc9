//! A NIC's clock: regular readings of it are used to convert the NIC's packet times to `CLOCK_MONOTONIC`.

use crate::{verify, Caps, Check, Trial};
use latpath_clock::phc::{Phc, PhcMap, Reader, Unmapped};
use latpath_model::Ns;

/// Interval between two readings, ns.
const READ_EVERY: Ns = 50_000_000;
/// Maximum plausible time from the NIC's timestamp of a packet to the moment when the kernel has the packet, ns.
const PLAUSIBLE: Ns = 1_000_000_000;
/// Time without a successful reading after which a clock has failed, ns.
const FAILED: Ns = 1_000_000_000;

/// A clock used by one or several NICs.
pub struct NicClock {
    /// PHC index: N of `/dev/ptpN`.
    pub index: u32,
    /// Time of the next reading, `CLOCK_MONOTONIC`.
    pub due: Ns,
    /// Number of packet times that were converted.
    pub mapped: u64,
    /// Number of packet times not converted because the clock was disturbed or could not be read.
    pub disturbed: u64,
    /// Number of packet times rejected as too far from the moment when the kernel had the packet, or from the clock's
    /// readings.
    pub implausible: u64,
    /// Number of disturbances of the clock so far.
    pub disturbances: u64,
    /// Time since which the clock cannot be read, `CLOCK_MONOTONIC`, and the reason.
    pub failing: Option<(Ns, String)>,
    reader: Box<dyn Reader>,
    map: PhcMap,
    /// Description of the latest disturbance.
    latest: String,
}

impl NicClock {
    /// Creates the clock from a reader of it.
    pub fn new(index: u32, reader: Box<dyn Reader>) -> Self {
        Self {
            index,
            due: 0,
            mapped: 0,
            disturbed: 0,
            implausible: 0,
            disturbances: 0,
            failing: None,
            reader,
            map: PhcMap::default(),
            latest: String::new(),
        }
    }

    /// Opens the clock of a device; `None` if the device has none.
    ///
    /// # Errors
    /// If the clock cannot be opened or does not advance; the error is a sentence.
    pub fn open(caps: &Caps) -> Result<Option<Self>, String> {
        let Some(index) = caps.phc else { return Ok(None) };
        if let Check::Failed(why) = verify(caps, Trial::default()).clock {
            return Err(format!("its clock /dev/ptp{index} is not used: {why}"));
        }
        let phc = Phc::open(index).map_err(|error| error.to_string())?;
        Ok(Some(Self::new(index, Box::new(phc))))
    }

    /// Whether the clock has been unreadable for more than a second.
    pub fn has_failed(&self, now: Ns) -> bool {
        self.failing.as_ref().is_some_and(|(since, _)| now.saturating_sub(*since) > FAILED)
    }

    /// Whether packet times up to this time can be converted, and later readings will not improve the conversion.
    pub fn is_known_at(&self, monotonic: Ns) -> bool {
        self.map.is_known_at(monotonic)
    }

    /// Time of the latest reading up to which all packet times can be converted, `CLOCK_MONOTONIC`; 0 without one.
    pub fn settled(&self) -> Ns {
        self.map.settled().map_or(0, |reading| reading.monotonic_ns)
    }

    /// Reads the clock.
    pub fn read(&mut self, now: Ns) {
        self.due = now + READ_EVERY;
        match self.reader.read() {
            Ok(reading) => {
                for disturbance in self.map.observe(reading) {
                    self.disturbances += 1;
                    self.latest = disturbance.trouble.to_string();
                }
                self.failing = None;
            }
            // The time of day was set during this reading; the next one will succeed.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                self.failing.get_or_insert_with(|| (now, error.to_string()));
            }
        }
    }

    /// Converts the NIC's timestamp of a packet to `CLOCK_MONOTONIC`; returns the time and its error bound, ns. `had`
    /// is when the kernel had the packet. `None` if the clock was disturbed or could not be read, or the time is
    /// implausible.
    pub fn place(&mut self, nic_time: Ns, had: Ns) -> Option<(Ns, Ns)> {
        let mapped = match self.map.at(nic_time) {
            Ok(mapped) => mapped,
            Err(Unmapped::Elsewhere) if self.failing.is_none() => {
                self.implausible += 1;
                return None;
            }
            Err(_) => {
                self.disturbed += 1;
                return None;
            }
        };
        if mapped.t > had.saturating_add(mapped.bound_ns) || mapped.t < had.saturating_sub(PLAUSIBLE) {
            self.implausible += 1;
            return None;
        }
        self.mapped += 1;
        Some((mapped.t, mapped.bound_ns))
    }

    /// Notes for the user about times that were left out; `nics` names the devices.
    pub fn notes(&self, nics: &str, now: Ns) -> Vec<String> {
        let mut notes = Vec::new();
        let name = format!("{nics}: the NIC's clock /dev/ptp{}", self.index);
        if let Some((_, why)) = self.failing.as_ref().filter(|_| self.has_failed(now)) {
            notes.push(format!("{name} can no longer be read, and its times are left out: {why}"));
        }
        if self.disturbances > 0 {
            notes.push(format!(
                "{name} was disturbed {} times, and {} of its times are left out; at last it {}",
                self.disturbances, self.disturbed, self.latest
            ));
        }
        if self.implausible > 0 {
            notes.push(format!(
                "{name}: {} of {} times are left out, because they are not within a second before the kernel had the \
                 packet; does the NIC stamp by another clock?",
                self.implausible,
                self.implausible + self.mapped
            ));
        }
        notes
    }
}
