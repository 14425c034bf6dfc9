//! The priority of the threads of a process in the background. There is only one test, because priorities affect the
//! whole process.

use latpath_linux::background::{leave_at_exec, Background};
use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::{gettid, Pid};
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

fn priority_of(thread: Pid) -> (i32, i32) {
    // SAFETY: both calls take plain numbers.
    unsafe {
        let policy = libc::sched_getscheduler(thread.as_raw());
        (policy, libc::getpriority(libc::PRIO_PROCESS, thread.as_raw() as libc::id_t))
    }
}

/// Restricts the calling thread to the first of its CPUs.
fn stay_on_one_cpu() {
    let all = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let first = (0..CpuSet::count()).find(|cpu| all.is_set(*cpu).unwrap()).unwrap();
    let mut one = CpuSet::new();
    one.set(first).unwrap();
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
}

#[test]
fn threads_begin_in_the_background_rise_where_they_starve_and_return_at_the_end() {
    let (end, ended) = channel::<()>();
    let (announce, tid) = channel();
    let thread = std::thread::spawn(move || {
        announce.send(gettid()).unwrap();
        let _ = ended.recv();
    });
    let other = tid.recv().unwrap();
    let before = priority_of(other);
    let background = Background::begin();
    let began = priority_of(other);
    if began == before {
        // Without CAP_SYS_NICE, the kernel would not permit the threads to return to normal priority, so their priority
        // is unchanged.
        drop(background);
        assert_eq!(priority_of(other), before);
        return;
    }
    assert_eq!(began, (libc::SCHED_IDLE, before.1));

    let mut child = Command::new("sh");
    child.args(["-c", "chrt -p $$ || cat /proc/self/sched"]);
    leave_at_exec(&mut child);
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("SCHED_OTHER"), "a child has the policy that programs have: {text}");

    // A process of normal priority on the main loop's CPU starves the main loop.
    stay_on_one_cpu();
    let mut hog = Command::new("sh");
    hog.args(["-c", "while :; do :; done"]);
    leave_at_exec(&mut hog);
    let mut hog = hog.spawn().unwrap();
    let mut risen = false;
    let limit = Instant::now() + Duration::from_secs(60);
    while !risen && Instant::now() < limit {
        risen = priority_of(other).0 == libc::SCHED_OTHER;
    }
    let raised = priority_of(other);
    hog.kill().unwrap();
    hog.wait().unwrap();
    assert_eq!(raised, (libc::SCHED_OTHER, before.1.max(10)), "raised by the watchdog");

    drop(background);
    assert_eq!(priority_of(other), before);
    drop(end);
    thread.join().unwrap();
}
