//! The sampling clock: a perf event on each CPU.

use libbpf_sys::{perf_event_attr, PERF_COUNT_SW_CPU_CLOCK, PERF_TYPE_SOFTWARE};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// `PERF_FLAG_FD_CLOEXEC`
const CLOSE_ON_EXEC: libc::c_ulong = 8;

/// Opens the clock of a CPU. It needs no hardware counter, so virtual machines have it too.
pub(crate) fn cpu_clock(cpu: u32, frequency: u32) -> io::Result<OwnedFd> {
    let mut attr = perf_event_attr {
        type_: PERF_TYPE_SOFTWARE,
        size: size_of::<perf_event_attr>() as u32,
        config: PERF_COUNT_SW_CPU_CLOCK.into(),
        ..Default::default()
    };
    attr.__bindgen_anon_1.sample_freq = frequency.into();
    attr.set_freq(1);
    // SAFETY: the kernel reads the struct, which contains its size, and keeps no pointer to it; the rest are plain
    // numbers.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &attr, -1 as libc::pid_t, cpu as libc::c_int, -1, CLOSE_ON_EXEC)
    };
    match fd {
        // SAFETY: a fresh descriptor, owned by nothing else.
        fd if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
        _ => Err(io::Error::last_os_error()),
    }
}
