//! A NIC's clock, followed by readings, which places the NIC's times of packets on `CLOCK_MONOTONIC`.

use crate::{verify, Caps, Check, Trial};
use latpath_clock::phc::{Phc, PhcMap, Reader, Unmapped};
use latpath_model::Ns;

/// Interval between two readings, ns.
const READ_EVERY: Ns = 50_000_000;
/// Maximum plausible time between the NIC's time of a packet and the moment when the kernel has it, ns.
const PLAUSIBLE: Ns = 1_000_000_000;
/// Time without a reading after which a clock has failed, ns.
const FAILED: Ns = 1_000_000_000;

/// A clock of one or several NICs.
pub struct NicClock {
    /// Its number: `/dev/ptpN`.
    pub index: u32,
    /// Time of the next reading, `CLOCK_MONOTONIC`.
    pub due: Ns,
    /// Times that were placed.
    pub mapped: u64,
    /// Times in a disturbance of the clock.
    pub disturbed: u64,
    /// Times far from the moment at which the kernel had the packet.
    pub implausible: u64,
    /// Disturbances so far.
    pub disturbances: u64,
    /// Since when it cannot be read, `CLOCK_MONOTONIC`, and why.
    pub failing: Option<(Ns, String)>,
    reader: Box<dyn Reader>,
    map: PhcMap,
    /// The latest disturbance.
    latest: String,
}

impl NicClock {
    /// The clock that this reads.
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
    /// The clock cannot be opened, or does not advance; as a sentence.
    pub fn open(caps: &Caps) -> Result<Option<Self>, String> {
        let Some(index) = caps.phc else { return Ok(None) };
        if let Check::Failed(why) = verify(caps, Trial::default()).clock {
            return Err(format!("its clock /dev/ptp{index} is not used: {why}"));
        }
        let phc = Phc::open(index).map_err(|error| error.to_string())?;
        Ok(Some(Self::new(index, Box::new(phc))))
    }

    /// Whether it was not readable for a second.
    pub fn has_failed(&self, now: Ns) -> bool {
        self.failing.as_ref().is_some_and(|(since, _)| now.saturating_sub(*since) > FAILED)
    }

    /// Whether readings enclose this time, so that times of packets around it can be placed.
    pub fn is_known_at(&self, monotonic: Ns) -> bool {
        self.map.is_known_at(monotonic)
    }

    /// Time of the latest reading before which all times can be placed, `CLOCK_MONOTONIC`; 0 without one.
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
            // The time of day was set during the reading: the next one succeeds.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                self.failing.get_or_insert_with(|| (now, error.to_string()));
            }
        }
    }

    /// Maps the NIC's time of a packet that the kernel had at `had` to this machine's clock, with its error bound.
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

    /// Notes for the user on times that are left out; `nics` names the devices.
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
