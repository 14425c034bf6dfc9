//! Requests to PTP clocks (`linux/ptp_clock.h`), and the CPU's time stamp counter. This module holds all unsafe code of
//! the crate.
#![allow(unsafe_code)]

use latpath_model::Ns;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `PTP_MAX_SAMPLES`.
const MAX_SAMPLES: usize = 25;

/// Reads the CPU's time stamp counter; `None` if the architecture has none.
pub fn tsc() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has both instructions. The fence orders the reading after earlier ones.
    return Some(unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    });
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// `struct ptp_clock_time`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ClockTime {
    sec: i64,
    nsec: u32,
    reserved: u32,
}

impl ClockTime {
    fn ns(self) -> io::Result<Ns> {
        let ns = self.sec.checked_mul(1_000_000_000).and_then(|s| s.checked_add(i64::from(self.nsec)));
        ns.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("an impossible time: {} s", self.sec)))
    }
}

/// `struct ptp_sys_offset_precise`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Precise {
    device: ClockTime,
    sys_realtime: ClockTime,
    sys_monoraw: ClockTime,
    reserved: [u32; 4],
}

/// `struct ptp_sys_offset_extended`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Extended {
    n_samples: u32,
    /// Field since Linux 6.13; earlier kernels require 0, which is `CLOCK_REALTIME`.
    clock: i32,
    reserved: [u32; 2],
    ts: [[ClockTime; 3]; MAX_SAMPLES],
}

/// `struct ptp_sys_offset`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Basic {
    n_samples: u32,
    reserved: [u32; 3],
    /// Alternating readings of the system clock and the PTP clock, beginning and ending with the system clock.
    ts: [ClockTime; 2 * MAX_SAMPLES + 1],
}

mod request {
    nix::ioctl_write_ptr!(basic, b'=', 5, super::Basic);
    nix::ioctl_readwrite!(precise, b'=', 8, super::Precise);
    nix::ioctl_readwrite!(extended, b'=', 9, super::Extended);
}

/// The system clock whose readings bracket those of a PTP clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SystemClock {
    Realtime = 0,
    /// Since Linux 6.13.
    Monotonic = 1,
}

/// A reading of the PTP clock between two readings of a system clock, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) before: Ns,
    pub(crate) phc: Ns,
    pub(crate) after: Ns,
}

/// Reads the PTP clock and `CLOCK_REALTIME` simultaneously (`PTP_SYS_OFFSET_PRECISE`).
pub(crate) fn precise(fd: BorrowedFd<'_>) -> io::Result<(Ns, Ns)> {
    let mut offset = Precise::default();
    // SAFETY: the request's size is that of the struct, which the kernel fills and which outlives the call; any bytes
    // are valid integers. For a descriptor of another file the call fails with ENOTTY.
    unsafe { request::precise(fd.as_raw_fd(), &mut offset) }?;
    Ok((offset.device.ns()?, offset.sys_realtime.ns()?))
}

/// Reads the PTP clock several times, each between two readings of a system clock (`PTP_SYS_OFFSET_EXTENDED`).
pub(crate) fn extended(fd: BorrowedFd<'_>, clock: SystemClock, samples: usize) -> io::Result<Vec<Sample>> {
    let samples = samples.clamp(1, MAX_SAMPLES);
    let none = [[ClockTime::default(); 3]; MAX_SAMPLES];
    let mut offset = Extended { n_samples: samples as u32, clock: clock as i32, reserved: [0; 2], ts: none };
    // SAFETY: as above.
    unsafe { request::extended(fd.as_raw_fd(), &mut offset) }?;
    let sample =
        |[before, phc, after]: &[ClockTime; 3]| Ok(Sample { before: before.ns()?, phc: phc.ns()?, after: after.ns()? });
    offset.ts[..samples].iter().map(sample).collect()
}

/// Like [`extended`] with `CLOCK_REALTIME` and wider brackets (`PTP_SYS_OFFSET`); every clock supports it.
pub(crate) fn basic(fd: BorrowedFd<'_>, samples: usize) -> io::Result<Vec<Sample>> {
    let samples = samples.clamp(1, MAX_SAMPLES);
    let none = [ClockTime::default(); 2 * MAX_SAMPLES + 1];
    let mut offset = Basic { n_samples: samples as u32, reserved: [0; 3], ts: none };
    // SAFETY: as above. The request is declared as write-only, but the kernel fills the struct, so the pointer is
    // derived from a mutable reference.
    unsafe { request::basic(fd.as_raw_fd(), std::ptr::from_mut(&mut offset).cast_const()) }?;
    let sample = |ts: &[ClockTime]| Ok(Sample { before: ts[0].ns()?, phc: ts[1].ns()?, after: ts[2].ns()? });
    offset.ts[..2 * samples + 1].windows(3).step_by(2).map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_structs_are_as_large_as_the_kernels() {
        assert_eq!((size_of::<Precise>(), size_of::<Extended>(), size_of::<Basic>()), (64, 1216, 832));
    }

    #[test]
    fn the_kernel_refuses_files_that_are_no_clocks() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let answers = [
            precise(null.as_fd()).err(),
            extended(null.as_fd(), SystemClock::Realtime, 5).err(),
            basic(null.as_fd(), 5).err(),
        ];
        let enotty = nix::errno::Errno::ENOTTY as i32;
        assert_eq!(answers.map(|e| e.and_then(|e| e.raw_os_error())), [Some(enotty); 3]);
    }

    #[test]
    fn a_time_beyond_all_years_is_an_error() {
        assert!(ClockTime { sec: i64::MAX, ..ClockTime::default() }.ns().is_err());
        assert_eq!(ClockTime { sec: -1, nsec: 1, reserved: 0 }.ns().unwrap(), -999_999_999);
    }
}
