//! Scheduling and CPUs of other threads.
#![allow(unsafe_code)]

use crate::Cpus;
use std::io;
use std::mem::{size_of, zeroed};

/// Number of bits in a word of an affinity mask.
const BITS: usize = libc::c_ulong::BITS as usize;

/// Sets policy (`SCHED_*`), real-time priority and nice value of a thread. The nice value is only set for policies that
/// use it.
///
/// # Errors
/// The system's error: ESRCH if the thread has ended, EPERM without CAP_SYS_NICE.
pub fn set_scheduling(tid: u32, policy: i32, priority: i32, nice: i32) -> io::Result<()> {
    // SAFETY: all zeros is a valid sched_param; musl's has more fields than glibc's.
    let mut param: libc::sched_param = unsafe { zeroed() };
    param.sched_priority = priority;
    // SAFETY: `param` outlives the call.
    if unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, policy, &raw const param) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let has_nice = [libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&policy);
    // SAFETY: no pointers.
    if has_nice && unsafe { libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, tid, nice) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sets the CPUs on which a thread may run.
///
/// # Errors
/// The system's error: ESRCH if the thread has ended, EINVAL for a kernel thread that is bound to its CPU.
pub fn set_affinity(tid: u32, cpus: &Cpus) -> io::Result<()> {
    let most = cpus.iter().last().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no CPU is named"))?;
    let mut mask: Vec<libc::c_ulong> = vec![0; most as usize / BITS + 1];
    cpus.iter().for_each(|cpu| mask[cpu as usize / BITS] |= 1 << (cpu as usize % BITS));
    let bytes = mask.len() * size_of::<libc::c_ulong>();
    // SAFETY: the kernel reads `bytes` bytes of the mask.
    match unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, bytes, mask.as_ptr()) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::{cpus_allowed, Root, Stat};
    use std::path::Path;

    #[test]
    fn a_thread_gets_policy_nice_value_and_cpus() {
        let (mut child, root) =
            (std::process::Command::new("sleep").arg("60").spawn().unwrap(), Root::of(Path::new("/")));
        let folder = format!("proc/{}", child.id());
        let before = cpus_allowed(&root, &folder).unwrap();
        let first: Cpus = before.iter().take(1).collect();
        set_affinity(child.id(), &first).unwrap();
        set_scheduling(child.id(), libc::SCHED_BATCH, 0, 5).unwrap();
        let stat = Stat::read(&root, &folder).unwrap();
        let found = (cpus_allowed(&root, &folder), stat.policy, stat.nice);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, (Some(first), libc::SCHED_BATCH as u32, 5));
        assert!(set_affinity(child.id(), &Cpus::default()).is_err());
        assert_eq!(set_scheduling(child.id(), 0, 0, 0).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
