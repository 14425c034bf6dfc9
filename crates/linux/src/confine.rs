//! Confines a process that parses files of other users: afterwards it can compute and use its open descriptors. It
//! cannot open files, execute programs, connect to anything, or signal other processes.

use nix::sys::resource::{setrlimit, Resource};
use std::io;

/// User and group of a process without rights (`nobody`).
const NOBODY: libc::c_long = 65_534;
/// Upper bound of `CAP_LAST_CAP` on any kernel.
const CAPABILITIES: libc::c_int = 64;

/// `CAP_DAC_READ_SEARCH`, `CAP_SYS_PTRACE`, `CAP_CHECKPOINT_RESTORE`: permit reading the files that any process has
/// mapped.
const OPEN_MAPPED_FILES: u64 = 1 << 2 | 1 << 19 | CHECKPOINT_RESTORE;
const CHECKPOINT_RESTORE: u64 = 1 << 40;
/// Kept if `CAP_CHECKPOINT_RESTORE`, which a container may lack, is missing: `CAP_SYS_ADMIN` implies it.
const SYS_ADMIN: u64 = 1 << 21;

/// Irrevocably removes all rights from this process: another user (`nobody`), no capabilities, no new privileges, no
/// paths (Landlock), and no system calls except those that compute and use open descriptors (seccomp). The process must
/// have only one thread.
///
/// The process ends with its parent, whose PID is `parent`.
///
/// The user of a process that does not run as root is not changed. A kernel without Landlock is accepted if it has
/// seccomp, and vice versa.
///
/// # Errors
/// The process would keep a capability, or the kernel has neither Landlock nor seccomp filters.
pub fn confine(parent: libc::pid_t) -> io::Result<()> {
    no_new_privileges()?;
    // SAFETY: system calls that take numbers, for this thread only; libc's wrappers would signal threads that this
    // process does not have.
    unsafe {
        // Failures are ignored: a process that may not change its user is not root's, and has no relevant capabilities
        // either.
        libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>());
        libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY);
        libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY);
    }
    // The change of user has reset the parent-death signal.
    ends_with(parent)?;
    keep_capabilities(0)?;
    for resource in [Resource::RLIMIT_CORE, Resource::RLIMIT_FSIZE, Resource::RLIMIT_NPROC, Resource::RLIMIT_MEMLOCK] {
        setrlimit(resource, 0, 0)?;
    }
    match (landlock(), seccomp()) {
        (Err(_), Err(e)) => Err(e),
        _ => Ok(()),
    }
}

/// Makes this process end together with the thread that created it, which belongs to the process `parent`.
///
/// # Errors
/// The parent has already ended.
pub fn ends_with(parent: libc::pid_t) -> io::Result<()> {
    // SAFETY: these calls take only numbers.
    let is_child = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::getppid() == parent
    };
    match is_child {
        true => Ok(()),
        false => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

/// Reduces the process's capabilities to those for opening files that other processes have mapped, without new
/// privileges. The process must have only one thread.
///
/// # Errors
/// The kernel rejects the change.
pub fn keep_opening_of_mapped_files() -> io::Result<()> {
    no_new_privileges()?;
    let own = crate::proc::capabilities();
    let admin = if own & CHECKPOINT_RESTORE == 0 { SYS_ADMIN } else { 0 };
    keep_capabilities(own & (OPEN_MAPPED_FILES | admin))
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn no_new_privileges() -> io::Result<()> {
    // SAFETY: takes only numbers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into()).map(drop)
}

/// Reduces all capability sets of this process to `kept`.
fn keep_capabilities(kept: u64) -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: libc::c_int,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Sets {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    /// `_LINUX_CAPABILITY_VERSION_3`: two words per set.
    const VERSION: u32 = 0x2008_0522;
    for capability in (0..CAPABILITIES).filter(|bit| kept & 1 << bit == 0) {
        // SAFETY: takes only numbers. Without CAP_SETPCAP the bounding set remains, but no_new_privs prevents the
        // process from gaining anything from it.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    let half = |word: u64| Sets { effective: word as u32, permitted: word as u32, inheritable: 0 };
    let (header, sets) = (Header { version: VERSION, pid: 0 }, [half(kept), half(kept >> 32)]);
    // SAFETY: the structs are the kernel's (linux/capability.h) and live during the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &header, sets.as_ptr()) }).map(drop)
}

/// Forbids everything that Landlock can forbid (linux/landlock.h), without exceptions.
fn landlock() -> io::Result<()> {
    #[repr(C)]
    struct Ruleset {
        fs: u64,
        net: u64,
        scoped: u64,
    }
    /// `LANDLOCK_CREATE_RULESET_VERSION`
    const VERSION: libc::c_long = 1;
    // SAFETY: with this flag the call takes neither a struct nor a length.
    let version =
        check(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<Ruleset>(), 0, VERSION) })?;
    // Bits by the version that introduced them: refer 2, truncate 3, TCP 4, ioctl of devices 5, abstract sockets and
    // signals 6.
    let bits = match version {
        1 => 13,
        2 => 14,
        3 | 4 => 15,
        _ => 16,
    };
    let all = |bits: u32, since: libc::c_long| if version >= since { (1u64 << bits) - 1 } else { 0 };
    let ruleset = Ruleset { fs: all(bits, 1), net: all(2, 4), scoped: all(2, 6) };
    let bytes = match version {
        1..=3 => 8,
        4 | 5 => 16,
        _ => size_of::<Ruleset>(),
    };
    // SAFETY: the struct outlives the call and has at least `bytes` bytes; this function owns the descriptor.
    unsafe {
        let fd = check(libc::syscall(libc::SYS_landlock_create_ruleset, &ruleset, bytes, 0))?;
        let result = check(libc::syscall(libc::SYS_landlock_restrict_self, fd, 0));
        libc::close(fd as libc::c_int);
        result.map(drop)
    }
}

/// System calls permitted to a confined process; all others return `EPERM`.
const CALLS: [libc::c_long; 29] = [
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_close,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_sched_yield,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

fn seccomp() -> io::Result<()> {
    /// Offsets in `struct seccomp_data` (linux/seccomp.h).
    const NUMBER: u32 = 0;
    const ARCHITECTURE: u32 = 4;
    /// `AUDIT_ARCH_*` (linux/audit.h): calls of another architecture have other numbers.
    const OWN: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let step = |code: u32, k: u32, jt: usize, jf: usize| libc::sock_filter {
        code: code as u16,
        jt: jt as u8,
        jf: jf as u8,
        k,
    };
    let mut filter = vec![
        step(LOAD, ARCHITECTURE, 0, 0),
        step(IF_EQUAL, OWN, 1, 0),
        step(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
        step(LOAD, NUMBER, 0, 0),
    ];
    let calls = CALLS.iter().enumerate();
    filter.extend(calls.map(|(at, call)| step(IF_EQUAL, *call as u32, CALLS.len() - at, 0)));
    filter.push(step(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0));
    filter.push(step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter and its instructions outlive the call.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program, 0, 0) }.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    /// Runs `work` in a child process; returns whether the child exited with status 0.
    fn apart(work: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls `work`, which does not depend on other threads, and exits.
        match unsafe { libc::fork() } {
            0 => {
                let failed = !work();
                // SAFETY: ends the child.
                unsafe { libc::_exit(failed.into()) }
            }
            child => {
                let mut status = 0;
                // SAFETY: the status lives during the call.
                unsafe { libc::waitpid(child, &mut status, 0) };
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
            }
        }
    }

    /// Attempts the actions of a compromised process; returns those that succeeded.
    fn ways_out(landlock_alone: bool) -> Vec<&'static str> {
        // SAFETY: the calls take static names and numbers.
        unsafe {
            let open = libc::open(c"/proc/version".as_ptr(), libc::O_RDONLY);
            let make = libc::open(c"/tmp/latpath-confined".as_ptr(), libc::O_WRONLY | libc::O_CREAT, 0o600);
            let tried = [
                ("opens", open >= 0),
                ("makes a file", make >= 0),
                ("gets a socket", !landlock_alone && libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) >= 0),
                ("signals", libc::kill(libc::getppid(), 0) == 0),
                ("is root", libc::setuid(0) == 0),
                ("forks", !landlock_alone && libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) >= 0),
                ("executes", libc::execv(c"/bin/false".as_ptr(), [std::ptr::null()].as_ptr()) == 0),
            ];
            tried.into_iter().filter(|(_, done)| *done).map(|(what, _)| what).collect()
        }
    }

    #[test]
    fn a_confined_process_reads_what_it_holds_and_does_nothing_else() {
        let file = File::open("/proc/self/stat").unwrap();
        let parent = std::process::id() as libc::pid_t;
        assert!(apart(|| {
            let mut byte = 0u8;
            // SAFETY: the byte lives during the call.
            let mut reads = || unsafe { libc::pread(file.as_raw_fd(), (&raw mut byte).cast(), 1, 0) == 1 };
            confine(parent).is_ok() && ways_out(false).is_empty() && reads()
        }));
    }

    #[test]
    fn landlock_and_seccomp_each_deny_all_paths() {
        assert!(apart(|| no_new_privileges().is_ok() && seccomp().is_ok() && ways_out(false).is_empty()));
        // A kernel may lack Landlock, or have it disabled.
        let has_landlock = apart(|| no_new_privileges().is_ok() && landlock().is_ok());
        assert!(
            !has_landlock
                || apart(|| {
                    let confined = keep_capabilities(0).and_then(|()| no_new_privileges()).and_then(|()| landlock());
                    let opens = |ways: Vec<&str>| {
                        ways.iter().any(|way| way.contains("open") || way.contains("file") || way.contains("exec"))
                    };
                    confined.is_ok() && !opens(ways_out(true))
                })
        );
    }

    #[test]
    fn a_process_that_opens_mapped_files_has_only_the_capabilities_for_it() {
        let before = crate::proc::capabilities();
        assert!(apart(|| {
            let kept = keep_opening_of_mapped_files().map(|()| crate::proc::capabilities());
            kept.is_ok_and(|kept| kept & !(OPEN_MAPPED_FILES | SYS_ADMIN) == 0 && kept & before == kept)
        }));
    }
}
