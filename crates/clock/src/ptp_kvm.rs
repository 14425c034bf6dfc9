//! The host's time of day, read inside a KVM guest through `/dev/ptp_kvm`.
//!
//! Its `PTP_SYS_OFFSET_PRECISE` returns a simultaneous reading of the host's and the guest's `CLOCK_REALTIME` (the
//! hypercall returns the counter's value, the kernel converts it: `drivers/ptp/ptp_kvm_common.c`). It is only available
//! to guests whose host uses the TSC as its clock source; latpath uses it if available, but never relies on it.

use crate::kernel;
use crate::tie::{ClockTie, RealtimeWatch};
use latpath_model::Ns;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// `clock_name` of the virtual clock in sysfs.
const CLOCK_NAME: &str = "KVM virtual PTP";
/// Error of the conversion from counter values, ns, on each side.
const CONVERSION_NS: Ns = 50;

/// A simultaneous reading of the guest's and the host's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtpPair {
    /// Guest's `CLOCK_MONOTONIC`, ns.
    pub guest_ns: Ns,
    /// Host's `CLOCK_REALTIME`, ns.
    pub host_realtime_ns: Ns,
    /// Maximum error between the two times, ns.
    pub uncertainty_ns: Ns,
}

/// A reading of the virtual clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Host's `CLOCK_REALTIME`, ns.
    pub host_realtime_ns: Ns,
    /// Guest's `CLOCK_REALTIME` at the same moment, ns.
    pub guest_realtime_ns: Ns,
}

/// A source of readings: the device, or a simulation in tests.
pub trait Reader: Send {
    /// Reads both clocks simultaneously.
    ///
    /// # Errors
    /// The kernel cannot read the clocks.
    fn read(&mut self) -> io::Result<Reading>;
}

/// Reads a pair, and converts the guest's time to `CLOCK_MONOTONIC`.
///
/// # Errors
/// The reading failed, or the guest's time of day was set during it.
pub fn read_pair(reader: &mut dyn Reader, watch: &mut RealtimeWatch) -> io::Result<PtpPair> {
    pair_from(reader.read()?, &ClockTie::read(), watch)
}

fn pair_from(reading: Reading, tie: &ClockTie, watch: &mut RealtimeWatch) -> io::Result<PtpPair> {
    if watch.observe(tie).is_some() {
        // The reading may precede the step, but the tie follows it.
        return Err(io::Error::other("the guest's time of day was set just now"));
    }
    let (guest_ns, uncertainty) = watch.to_monotonic(reading.guest_realtime_ns);
    let pair =
        PtpPair { guest_ns, host_realtime_ns: reading.host_realtime_ns, uncertainty_ns: uncertainty + CONVERSION_NS };
    Ok(pair)
}

/// The virtual clock's device.
#[derive(Debug)]
pub struct Device(File);

impl Device {
    /// Opens this guest's virtual clock; `None` if there is none that works.
    pub fn open() -> Option<Self> {
        let mut device = Self::open_in(Path::new("/sys/class/ptp"), Path::new("/dev"))?;
        device.read().is_ok().then_some(device)
    }

    fn open_in(sys: &Path, dev: &Path) -> Option<Self> {
        let named = |entry: &fs::DirEntry| {
            fs::read_to_string(entry.path().join("clock_name")).is_ok_and(|name| name.trim_end() == CLOCK_NAME)
        };
        let clock = fs::read_dir(sys).ok()?.flatten().find(named)?;
        File::open(dev.join(clock.file_name())).ok().map(Self)
    }
}

impl Reader for Device {
    fn read(&mut self) -> io::Result<Reading> {
        let (host_realtime_ns, guest_realtime_ns) = kernel::precise(self.0.as_fd())?;
        Ok(Reading { host_realtime_ns, guest_realtime_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_found_by_its_name_and_not_by_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let (sys, dev) = (dir.path().join("sys"), dir.path().join("dev"));
        for (clock, name) in [("ptp0", "igb clock\n"), ("ptp1", "KVM virtual PTP\n")] {
            fs::create_dir_all(sys.join(clock)).unwrap();
            fs::write(sys.join(clock).join("clock_name"), name).unwrap();
        }
        fs::create_dir(&dev).unwrap();
        assert!(Device::open_in(&sys, &dev).is_none(), "no device node");
        fs::write(dev.join("ptp1"), "").unwrap();
        assert!(Device::open_in(&sys, &dev).is_some());
        fs::write(sys.join("ptp1/clock_name"), "other\n").unwrap();
        assert!(Device::open_in(&sys, &dev).is_none());
    }

    #[test]
    fn a_reading_becomes_a_pair_of_the_guests_monotonic_time() {
        let tie = ClockTie { monotonic_ns: 1_000, realtime_ns: 900_000, tai_ns: 900_000, uncertainty_ns: 20 };
        let mut watch = RealtimeWatch::new(&tie);
        let reading = Reading { host_realtime_ns: 1_234, guest_realtime_ns: 900_500 };
        let pair = pair_from(reading, &tie, &mut watch).unwrap();
        assert_eq!((pair.guest_ns, pair.host_realtime_ns), (1_500, 1_234));
        assert!((20..200).contains(&pair.uncertainty_ns));
    }

    #[test]
    fn no_pair_is_made_while_the_guests_time_is_being_set() {
        let tie = ClockTie { monotonic_ns: 1_000, realtime_ns: 900_000, tai_ns: 900_000, uncertainty_ns: 20 };
        let mut watch = RealtimeWatch::new(&tie);
        let stepped = ClockTie { monotonic_ns: 2_000, realtime_ns: 5_900_000, ..tie };
        let reading = Reading { host_realtime_ns: 1_234, guest_realtime_ns: 900_500 };
        assert!(pair_from(reading, &stepped, &mut watch).is_err());
        assert!(pair_from(reading, &stepped, &mut watch).is_ok());
    }
}
