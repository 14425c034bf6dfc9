//! Reads a NIC's clock.

use crate::kernel::{self, Sample, SystemClock};
use crate::tie::{ClockTie, RealtimeWatch};
use latpath_model::Ns;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;

/// Number of readings per attempt; the tightest is kept. Each occupies the bus for 1 to 2 µs.
const SAMPLES: usize = 9;
/// Error of the conversion from counter values, ns, if the hardware reads both clocks simultaneously.
const CONVERSION_NS: Ns = 50;

/// A simultaneous reading of the NIC's clock and `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The NIC's clock, ns.
    pub phc_ns: Ns,
    /// `CLOCK_MONOTONIC`, ns.
    pub monotonic_ns: Ns,
    /// Maximum error between the two times, ns.
    pub uncertainty_ns: Ns,
}

/// Methods of reading a clock, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// The hardware latches both times simultaneously.
    Precise,
    /// The driver reads the system time directly before and after the register.
    Extended,
    /// The kernel reads the system time before and after it calls the driver.
    Basic,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Precise => "PTP_SYS_OFFSET_PRECISE",
            Self::Extended => "PTP_SYS_OFFSET_EXTENDED",
            Self::Basic => "PTP_SYS_OFFSET",
        })
    }
}

/// Why a clock cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PhcError {
    /// There is no clock with this PHC index.
    #[error("/dev/ptp{index}: no such clock (clocks here: {here})")]
    NoClock {
        /// PHC index: N of `/dev/ptpN`.
        index: u32,
        /// Names of the existing clocks.
        here: String,
    },
    /// Permission is missing.
    #[error("/dev/ptp{0}: reading a NIC's clock needs root, or read access to the device file; try with sudo")]
    NotAllowed(u32),
    /// Any other error.
    #[error("/dev/ptp{index}: {doing}: {cause}")]
    Os {
        /// PHC index: N of `/dev/ptpN`.
        index: u32,
        /// The operation that failed.
        doing: &'static str,
        /// Error returned by the kernel.
        cause: io::Error,
    },
}

/// A source of readings: a clock, or a simulation in tests.
pub trait Reader: Send {
    /// Reads both clocks.
    ///
    /// # Errors
    /// The kernel cannot read the clock, or the time of day was set during the reading.
    fn read(&mut self) -> io::Result<Reading>;
}

/// The kernel's interface for reading, replaced in tests.
trait Ask: Send {
    fn precise(&mut self) -> io::Result<(Ns, Ns)>;
    fn extended(&mut self, clock: SystemClock) -> io::Result<Vec<Sample>>;
    fn basic(&mut self) -> io::Result<Vec<Sample>>;
    fn tie(&mut self) -> ClockTie;
}

struct Device(File);

impl Ask for Device {
    fn precise(&mut self) -> io::Result<(Ns, Ns)> {
        kernel::precise(self.0.as_fd())
    }
    fn extended(&mut self, clock: SystemClock) -> io::Result<Vec<Sample>> {
        // In a time namespace, this request does not help: it returns the CLOCK_MONOTONIC of the initial one.
        if clock == SystemClock::Monotonic && in_time_namespace() {
            return Err(io::Error::from_raw_os_error(nix::libc::EOPNOTSUPP));
        }
        kernel::extended(self.0.as_fd(), clock, SAMPLES)
    }
    fn basic(&mut self) -> io::Result<Vec<Sample>> {
        kernel::basic(self.0.as_fd(), SAMPLES)
    }
    fn tie(&mut self) -> ClockTie {
        ClockTie::read()
    }
}

/// Whether this process is in a time namespace other than the initial one.
fn in_time_namespace() -> bool {
    /// `PROC_TIME_INIT_INO` of `linux/proc_ns.h`.
    const FIRST: u64 = 0xEFFF_FFFA;
    fs::metadata("/proc/self/ns/time").is_ok_and(|m| std::os::unix::fs::MetadataExt::ino(&m) != FIRST)
}

/// Methods in the order in which they are tried, best first, each with the system clock that brackets the readings.
const METHODS: [(Method, SystemClock); 4] = [
    (Method::Precise, SystemClock::Realtime),
    (Method::Extended, SystemClock::Monotonic),
    (Method::Extended, SystemClock::Realtime),
    (Method::Basic, SystemClock::Realtime),
];

/// A NIC's clock.
pub struct Phc {
    index: u32,
    ask: Box<dyn Ask>,
    realtime: RealtimeWatch,
    /// Index of the first of [`METHODS`] that has not proved to be unsupported by this clock and kernel.
    best: usize,
    method: Method,
}

impl fmt::Debug for Phc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/dev/ptp{} read by {}", self.index, self.method)
    }
}

impl Phc {
    /// Opens `/dev/ptp<index>` and reads it once to determine the best method. `index` is the PHC index from
    /// `ETHTOOL_GET_TS_INFO`. The clock is never set.
    ///
    /// # Errors
    /// The clock does not exist, permission is missing, or it cannot be read.
    pub fn open(index: u32) -> Result<Self, PhcError> {
        let file = File::open(format!("/dev/ptp{index}")).map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => PhcError::NoClock { index, here: clocks_here() },
            io::ErrorKind::PermissionDenied => PhcError::NotAllowed(index),
            _ => PhcError::Os { index, doing: "opening it", cause },
        })?;
        Self::with(index, Box::new(Device(file))).map_err(|cause| PhcError::Os {
            index,
            doing: "reading it (PTP_SYS_OFFSET)",
            cause,
        })
    }

    fn with(index: u32, mut ask: Box<dyn Ask>) -> io::Result<Self> {
        let realtime = RealtimeWatch::new(&ask.tie());
        let mut phc = Self { index, ask, realtime, best: 0, method: Method::Basic };
        phc.read()?;
        Ok(phc)
    }

    /// PHC index: N of `/dev/ptpN`.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Name that the driver gave the clock.
    pub fn name(&self) -> Option<String> {
        let name = fs::read_to_string(format!("/sys/class/ptp/ptp{}/clock_name", self.index)).ok()?;
        Some(name.trim_end().escape_debug().to_string())
    }

    /// Method of the last reading.
    pub fn method(&self) -> Method {
        self.method
    }

    fn by(&mut self, (method, clock): (Method, SystemClock)) -> io::Result<Reading> {
        let mut reading = match method {
            Method::Precise => {
                let (phc_ns, system) = self.ask.precise()?;
                Reading { phc_ns, monotonic_ns: system, uncertainty_ns: CONVERSION_NS }
            }
            Method::Extended => tightest(&self.ask.extended(clock)?)?,
            Method::Basic => tightest(&self.ask.basic()?)?,
        };
        if clock == SystemClock::Realtime {
            // Up to here, `reading.monotonic_ns` is a `CLOCK_REALTIME` time.
            if self.realtime.observe(&self.ask.tie()).is_some() {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "the time of day was set just now"));
            }
            let (monotonic_ns, bound) = self.realtime.to_monotonic(reading.monotonic_ns);
            reading.monotonic_ns = monotonic_ns;
            reading.uncertainty_ns += bound;
        }
        self.method = method;
        Ok(reading)
    }
}

impl Reader for Phc {
    fn read(&mut self) -> io::Result<Reading> {
        let mut at = self.best;
        let mut set_again = false;
        loop {
            match self.by(METHODS[at]) {
                Ok(reading) => return Ok(reading),
                // The time of day was set between reading the clock and tying it: try again, once.
                Err(e) if e.kind() == io::ErrorKind::Interrupted && !set_again => set_again = true,
                Err(e) if at + 1 == METHODS.len() => return Err(e),
                Err(e) => {
                    // After a temporary failure, the better method is tried again next time.
                    let never = [nix::libc::EOPNOTSUPP, nix::libc::ENOTTY, nix::libc::EINVAL];
                    if at == self.best && e.raw_os_error().is_some_and(|e| never.contains(&e)) {
                        self.best += 1;
                    }
                    at += 1;
                }
            }
        }
    }
}

/// The sample with the narrowest bracket, except samples whose bracket goes backward.
fn tightest(samples: &[Sample]) -> io::Result<Reading> {
    let width = |s: &&Sample| s.after.saturating_sub(s.before);
    let best = samples.iter().filter(|s| s.after >= s.before).min_by_key(width);
    let Some(best) = best else {
        return Err(io::Error::new(io::ErrorKind::Interrupted, "the time of day was set just now"));
    };
    let width = width(&best);
    Ok(Reading { phc_ns: best.phc, monotonic_ns: best.before + width / 2, uncertainty_ns: (width + 1) / 2 })
}

fn clocks_here() -> String {
    let entries = fs::read_dir("/sys/class/ptp").into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    if names.is_empty() {
        return "none".into();
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// A kernel that returns the configured result for each kind of request. The NIC's clock is 7 s ahead of
    /// `CLOCK_MONOTONIC`, `CLOCK_REALTIME` 100 s.
    #[derive(Default)]
    struct Kernel {
        precise: Option<i32>,
        monotonic: Option<i32>,
        extended: Option<i32>,
        basic: Option<i32>,
        /// Steps of the time of day, one per tie.
        steps: VecDeque<Ns>,
        stepped: Ns,
        now: Ns,
    }

    const PHC: Ns = 7_000_000_000;
    const REALTIME: Ns = 100_000_000_000;

    fn answer<T>(errno: Option<i32>, with: T) -> io::Result<T> {
        errno.map_or(Ok(with), |e| Err(io::Error::from_raw_os_error(e)))
    }

    impl Kernel {
        fn samples(&mut self, ahead: Ns, widths: [Ns; 3]) -> Vec<Sample> {
            let sample = |width| {
                self.now += 1_000;
                let before = self.now;
                Sample { before: before + ahead, phc: before + width / 2 + PHC, after: before + width + ahead }
            };
            widths.map(sample).to_vec()
        }
    }

    impl Ask for Kernel {
        fn precise(&mut self) -> io::Result<(Ns, Ns)> {
            answer(self.precise, (self.now + PHC, self.now + REALTIME + self.stepped))
        }
        fn extended(&mut self, clock: SystemClock) -> io::Result<Vec<Sample>> {
            match clock {
                SystemClock::Monotonic => answer(self.monotonic, self.samples(0, [300, 200, 500])),
                SystemClock::Realtime => answer(self.extended, self.samples(REALTIME + self.stepped, [300, 200, 500])),
            }
        }
        fn basic(&mut self) -> io::Result<Vec<Sample>> {
            answer(self.basic, self.samples(REALTIME + self.stepped, [3_000, 2_000, -5_000]))
        }
        fn tie(&mut self) -> ClockTie {
            self.stepped += self.steps.pop_front().unwrap_or(0);
            let realtime_ns = self.now + REALTIME + self.stepped;
            ClockTie { monotonic_ns: self.now, realtime_ns, tai_ns: realtime_ns, uncertainty_ns: 20 }
        }
    }

    const NO: Option<i32> = Some(nix::libc::EOPNOTSUPP);

    #[test]
    fn the_best_available_method_is_used_and_all_find_the_same_offset() {
        let cases = [
            (Kernel::default(), Method::Precise, 70..100),
            (Kernel { precise: NO, ..Kernel::default() }, Method::Extended, 100..101),
            (
                Kernel { precise: NO, monotonic: Some(nix::libc::EINVAL), ..Kernel::default() },
                Method::Extended,
                110..150,
            ),
            (Kernel { precise: NO, monotonic: NO, extended: NO, ..Kernel::default() }, Method::Basic, 1_010..1_050),
        ];
        for (kernel, method, uncertainty) in cases {
            let mut phc = Phc::with(0, Box::new(kernel)).unwrap();
            assert_eq!(phc.method(), method);
            for _ in 0..3 {
                let reading = phc.read().unwrap();
                let off = reading.phc_ns - reading.monotonic_ns - PHC;
                assert!(
                    off.abs() <= reading.uncertainty_ns,
                    "{method}: {off} ns off, said ± {}",
                    reading.uncertainty_ns
                );
                assert!(uncertainty.contains(&reading.uncertainty_ns), "{method}: {reading:?}");
            }
        }
    }

    #[test]
    fn a_method_that_failed_once_is_tried_again() {
        struct Busy(Kernel, u32);
        impl Ask for Busy {
            fn precise(&mut self) -> io::Result<(Ns, Ns)> {
                self.1 += 1;
                self.0.precise = (self.1 == 2).then_some(nix::libc::EBUSY);
                self.0.precise()
            }
            fn extended(&mut self, clock: SystemClock) -> io::Result<Vec<Sample>> {
                self.0.extended(clock)
            }
            fn basic(&mut self) -> io::Result<Vec<Sample>> {
                self.0.basic()
            }
            fn tie(&mut self) -> ClockTie {
                self.0.tie()
            }
        }
        let mut phc = Phc::with(0, Box::new(Busy(Kernel::default(), 0))).unwrap();
        let mut methods = Vec::new();
        for _ in 0..2 {
            phc.read().unwrap();
            methods.push(phc.method());
        }
        assert_eq!(methods, [Method::Extended, Method::Precise]);
    }

    #[test]
    fn a_clock_that_cannot_be_read_at_all_is_refused_with_the_kernels_reason() {
        let dead = Some(nix::libc::EIO);
        let kernel = Kernel { precise: dead, monotonic: dead, extended: dead, basic: dead, ..Kernel::default() };
        let error = Phc::with(0, Box::new(kernel)).unwrap_err();
        assert_eq!(error.raw_os_error(), dead);
    }

    #[test]
    fn the_offset_is_right_while_the_time_of_day_is_set() {
        let steps = [0, 0, 5_000_000_000, 0, 0, -3_600_000_000_000].into();
        let kernel = Kernel { precise: NO, monotonic: NO, steps, ..Kernel::default() };
        let mut phc = Phc::with(0, Box::new(kernel)).unwrap();
        for _ in 0..6 {
            let reading = phc.read().unwrap();
            let off = reading.phc_ns - reading.monotonic_ns - PHC;
            assert!(off.abs() <= reading.uncertainty_ns, "{reading:?}");
        }
    }

    #[test]
    fn a_missing_clock_is_named() {
        let error = Phc::open(4_000_000_000).unwrap_err().to_string();
        assert!(error.starts_with("/dev/ptp4000000000: no such clock (clocks here: "), "{error}");
    }
}
