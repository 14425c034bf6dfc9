//! Kills an apply with `kill -9` before each call that changes a file of the machine or the journal: the next sweep, or
//! the user's undo, must restore the machine exactly. Runs for all profiles.

mod common;

use common::{differences, lay_out, snapshot, variables};
use latpath_testkit::machine_folder::MachineFolder;
use latpath_testkit::machine_nics::ICE;
use latpath_testkit::{trial, Failed};
use latpath_tune::{plan, ApplyOptions, Machine, NoWatch, Profile, Tuning, Variables};
use latpath_undo::Journal;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::AtomicBool;

const FOLDER: &str = "LATPATH_TEST_FOLDER";
const PROFILE: &str = "LATPATH_TEST_PROFILE";
/// Maximum number of file-changing calls per apply: with more, the test fails instead of never ending.
const MAX_CALLS: usize = 4096;

fn main() -> ExitCode {
    if let (Ok(folder), Ok(profile)) = (std::env::var(FOLDER), std::env::var(PROFILE)) {
        victim(Path::new(&folder), &profile);
        return ExitCode::SUCCESS;
    }
    let one = |profile: Profile| {
        let name = format!("{}_comes_back_whatever_call_its_apply_is_killed_at", profile.name.replace('-', "_"));
        trial(&name, &[], move || every_call(&profile.name)).side_by_side()
    };
    latpath_testkit::main(Profile::all().into_iter().map(one).collect())
}

fn machine(folder: &Path) -> Machine {
    let machine = lay_out(&folder.join("root"));
    ICE.lay_out(&MachineFolder::at(&folder.join("root")), "eth1");
    machine
}

fn journal(folder: &Path) -> Journal {
    Journal::at(&folder.join("journal"))
}

fn of_profile(profile: &str) -> Variables {
    match profile {
        "ping-interface" => Variables {
            interfaces: vec!["eth1".into()],
            irq_cpu: Some(2),
            app_cpu: Some(3),
            other: [("address".to_owned(), "10.0.0.1/24".to_owned())].into(),
            ..Variables::default()
        },
        _ => variables(),
    }
}

/// Applies a profile to the existing machine in the folder.
fn victim(folder: &Path, profile: &str) {
    let machine = Machine::below(&folder.join("root"), vec![common::guest()]).again();
    let plan = plan(&Profile::named(profile).expect("a profile"), &of_profile(profile), &machine).expect("a plan");
    let stop = AtomicBool::new(false);
    let tuning = Tuning::new(&machine, journal(folder));
    let applied = tuning.apply(&plan, &mut NoWatch, ApplyOptions::default(), &stop, &mut |_| ()).expect("applied");
    assert!(applied.stopped.is_none(), "{:?}", applied.stopped);
}

fn every_call(profile: &str) -> Result<(), Failed> {
    for calls in 0..MAX_CALLS {
        // In memory, because syncing thousands of journals to a disk would take minutes.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
        let root = folder.path().join("root");
        let machine = machine(folder.path());
        let before = snapshot(&root);
        let is_whole = !killed_at(calls, folder.path(), profile)?;
        let tuning = Tuning::new(&machine, journal(folder.path()));
        let swept = journal(folder.path()).sweep(&[&machine.undoer()]);
        if !tuning.applied()?.is_empty() {
            tuning.undo(profile)?;
        }
        let left = differences(&before, &snapshot(&root));
        if !left.is_empty() {
            return Err(format!("killed before call {calls}: {left:#?}; the sweep said {swept:#?}").into());
        }
        let entries = journal(folder.path()).entries().len();
        if entries > 0 {
            return Err(format!("killed before call {calls}: {entries} entries of the journal are left").into());
        }
        if is_whole {
            println!("{profile}: killed before each of {calls} calls");
            return if calls > 30 { Ok(()) } else { Err(format!("only {calls} calls change a file").into()) };
        }
    }
    Err(format!("an apply has more than {MAX_CALLS} calls").into())
}

/// Runs an apply, and kills it before its file-changing call number `calls`, from 0; returns false if it ended earlier.
fn killed_at(calls: usize, folder: &Path, profile: &str) -> Result<bool, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(FOLDER, folder).env(PROFILE, profile).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: both calls are async-signal-safe and allocate nothing.
    unsafe {
        command.pre_exec(|| {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            stop_at_changes()
        })
    };
    let child = command.spawn()?;
    let pid = i32::try_from(child.id())?;
    let mut seen = 0;
    loop {
        let mut status = 0;
        // SAFETY: waits for a child of this function.
        if unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
            return Err("waiting for the victim failed".into());
        }
        if libc::WIFEXITED(status) {
            let code = libc::WEXITSTATUS(status);
            return if code == 0 { Ok(false) } else { Err(format!("the victim failed: exit code {code}").into()) };
        }
        if libc::WIFSIGNALED(status) {
            return Ok(true);
        }
        let is_change = status >> 8 == libc::SIGTRAP | (libc::PTRACE_EVENT_SECCOMP << 8);
        if is_change && seen == calls {
            // SAFETY: the child is stopped, and has not been waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            continue;
        }
        seen += usize::from(is_change);
        // SAFETY: the child is stopped; the requests take integers.
        unsafe {
            libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, libc::PTRACE_O_TRACESECCOMP);
            libc::ptrace(libc::PTRACE_CONT, pid, 0, 0);
        }
    }
}

/// Makes the kernel stop this process before each call that creates, truncates, syncs, renames or removes a file.
fn stop_at_changes() -> std::io::Result<()> {
    const fn op(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt, jf, k }
    }
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const HAS: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    const NUMBER: u32 = 0;
    // Offset of the lower half of the third argument in struct seccomp_data (little-endian).
    const FLAGS: u32 = 16 + 2 * 8;
    let filter = [
        op(LOAD, NUMBER, 0, 0),
        op(IS, libc::SYS_openat as u32, 5, 0),
        op(IS, libc::SYS_fsync as u32, 6, 0),
        op(IS, libc::SYS_fdatasync as u32, 5, 0),
        op(IS, libc::SYS_renameat2 as u32, 4, 0),
        op(IS, libc::SYS_renameat as u32, 3, 0),
        op(IS, libc::SYS_unlinkat as u32, 2, 3),
        op(LOAD, FLAGS, 0, 0),
        op(HAS, (libc::O_TRUNC | libc::O_CREAT) as u32, 0, 1),
        op(RETURN, libc::SECCOMP_RET_TRACE, 0, 0),
        op(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program outlives the call, which copies it.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    match set {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
