//! Checks the recorder in the running kernel: which thread delayed or woke which, which events were overwritten, and
//! that nothing remains attached.

use latpath_flight::{Doing, EventKind, Recorder, Scope, Since, Sleep, State, Tail, Tailed, Timeline, Window};
use latpath_testkit::waits::{is_in_state, until};
use latpath_testkit::{trial, Failed};
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Environment variable that makes this binary a child process, which records until it is killed.
const CHILD: &str = "LATPATH_FLIGHT_CHILD";

type Outcome = Result<(), Failed>;

/// Longer than any test needs, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    if std::env::var_os(CHILD).is_some() {
        let _recorder = Recorder::start(Recorder::BYTES_PER_CPU).expect("it could be started before");
        println!("ready");
        latpath_testkit::waits::fault_for(2 * LIMIT);
        return ExitCode::SUCCESS;
    }
    let lack = Recorder::start(Recorder::BYTES_PER_CPU).err().map(|e| e.to_string());
    let no_groups = || cpu_groups().is_none().then(|| "needs control groups with the cpu controller".into());
    let throttling = [lack.clone().or_else(no_groups)];
    let trial = |name: &str, test: fn() -> Outcome| trial(name, std::slice::from_ref(&lack), test);
    let tests = vec![
        trial("what_kept_a_ready_thread_from_its_cpu_is_named", hog),
        trial("what_woke_a_sleeping_thread_is_named", waker),
        trial("a_window_that_was_overwritten_says_so", overwritten),
        trial("rows_of_the_real_machine_have_no_gap", rows),
        trial("a_softirq_is_cut_out_of_the_time_of_the_thread_that_it_interrupts", softirq),
        trial("a_thread_that_is_gone_has_the_name_that_it_gave_itself", gone),
        trial("a_stopped_process_is_seen_to_be_stopped", stopped),
        trial("what_a_blocked_thread_waits_for_and_its_page_faults_are_recorded", in_the_kernel),
        trial("events_that_are_read_while_others_are_written_over_them_are_whole", torn),
        latpath_testkit::trial(
            "a_thread_whose_control_group_has_used_up_its_time_is_said_to_be_throttled",
            &throttling,
            throttled,
        ),
        trial("a_tail_hands_on_every_event_once_in_the_order_of_their_times", tail),
        trial("a_tail_that_comes_too_late_says_how_many_events_are_lost", late_tail),
        trial("what_it_costs_is_measured", cost),
        trial("a_recorder_over_its_budget_pauses_and_no_window_takes_that_for_silence", budget),
        trial("programs_that_are_refused_after_a_pause_are_missing_until_they_are_attached", refused),
        trial("after_kill_9_nothing_is_left_in_the_kernel", killed),
    ];
    latpath_testkit::main(tests)
}

fn start() -> Result<Recorder, Failed> {
    Ok(Recorder::start(32 << 20)?)
}

fn now() -> i64 {
    latpath_linux::monotonic()
}

fn tid() -> u32 {
    // SAFETY: the function takes no arguments and cannot fail.
    unsafe { libc::gettid() as u32 }
}

/// Whether a thread of this process sleeps.
fn sleeps(tid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// The last CPU that this process may use.
fn some_cpu() -> usize {
    // SAFETY: cpu_set_t is a set of bits, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set has the given size.
    unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
    // SAFETY: the number is below the set's size.
    (0..1024).rev().find(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).expect("it runs on some CPU")
}

fn pin(cpu: usize) {
    // SAFETY: as in `some_cpu`.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

fn fifo(priority: i32) -> bool {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameter outlives the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) == 0 }
}

fn spin(time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// Checks a thread that becomes ready every 300 µs, and loses its CPU to a more urgent one for 12 ms.
fn hog() -> Outcome {
    let recorder = start()?;
    let (cpu, over) = (some_cpu(), AtomicBool::new(false));
    let victim = AtomicU32::new(0);
    let (hog, from, to) = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpu);
            victim.store(tid(), Ordering::SeqCst);
            while !over.load(Ordering::SeqCst) {
                latpath_testkit::waits::fault_for(Duration::from_micros(300));
            }
        });
        let hog = scope.spawn(|| {
            until("the other one sleeps", || sleeps(victim.load(Ordering::SeqCst))).expect("it does");
            pin(cpu);
            assert!(fifo(7), "root may");
            // Let the CPU switch threads, because a thread's class is recorded at switches.
            latpath_testkit::waits::fault_for(Duration::from_micros(100));
            let from = now();
            spin(Duration::from_millis(12));
            (tid(), from, now())
        });
        let result = hog.join().expect("the hog");
        over.store(true, Ordering::SeqCst);
        result
    });
    let window = recorder.window(from, to);
    if !window.is_complete() {
        return Err("32 MiB a CPU were overwritten in some ms".into());
    }
    let timeline = Timeline::of(&window);
    let row = timeline.thread(victim.load(Ordering::SeqCst));
    let ready = row.iter().filter(|tile| matches!(tile.state, State::Ready { .. }));
    let longest = ready.max_by_key(|tile| tile.to - tile.from).ok_or("it was never ready")?;
    let State::Ready { cpu: Some(waited_for), .. } = longest.state else {
        return Err(format!("{longest:?}: for which CPU?").into());
    };
    assert_eq!(waited_for as usize, cpu);
    let shares = timeline.shares(waited_for, longest.from, longest.to);
    let Some(Doing::Thread(first)) = shares.first().map(|s| s.doing) else {
        return Err(format!("not held by a thread: {shares:?}").into());
    };
    assert_eq!(first.pid, hog, "{shares:?}");
    assert_eq!(first.class.map(|c| c.to_string()).as_deref(), Some("FIFO 7"));
    assert_eq!(shares.iter().map(|s| s.ns).sum::<i64>(), longest.to - longest.from);
    Ok(())
}

/// Checks a thread that sleeps in a read until another thread writes.
fn waker() -> Outcome {
    let recorder = start()?;
    let (mut here, mut there) = UnixStream::pair()?;
    let from = now();
    let begun = AtomicU32::new(0);
    let (reader, writer) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            begun.store(tid(), Ordering::SeqCst);
            let mut byte = [0];
            there.read_exact(&mut byte).expect("the byte");
            tid()
        });
        let writer = scope.spawn(|| {
            let waited = until("the reader sleeps", || sleeps(begun.load(Ordering::SeqCst)));
            here.write_all(&[1]).expect("room for a byte");
            waited.map(|()| tid())
        });
        (reader.join().expect("the reader"), writer.join().expect("the writer"))
    });
    let writer = writer?;
    let timeline = Timeline::of(&recorder.window(from, now()));
    let row = timeline.thread(reader);
    let woken = row.windows(2).find_map(|pair| match (pair[0].state, pair[1].state) {
        (State::Asleep(sleep), State::Ready { since: Since::Woken(by), .. }) if by.pid == writer => Some((sleep, by)),
        _ => None,
    });
    let (sleep, by) = woken.ok_or_else(|| format!("nobody woke it: {row:?}"))?;
    assert_eq!((sleep, by.context.thread()), (Sleep::Interruptible, Some(writer)));
    Ok(())
}

/// Two threads wake each other until a small ring has been overwritten many times.
fn overwritten() -> Outcome {
    let recorder = Recorder::start(0)?;
    let (mut here, mut there) = UnixStream::pair()?;
    let from = now();
    let (over, pinging) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            while there.read_exact(&mut byte).is_ok() && there.write_all(&byte).is_ok() {}
        });
        scope.spawn(|| {
            pinging.store(tid(), Ordering::SeqCst);
            let mut byte = [7];
            while !over.load(Ordering::SeqCst) {
                here.write_all(&byte).and_then(|()| here.read_exact(&mut byte)).expect("the other end");
            }
            here.shutdown(std::net::Shutdown::Both).expect("it is open");
        });
        // The ring is filled even if the two threads get no CPU: other threads cause events too.
        let known = until("a ring that was written over has what was last", || {
            let window = recorder.window(from, now());
            let lost = window.cpus.iter().filter(|cpu| cpu.overwritten > 0 && !cpu.is_complete(from)).count();
            let row = Timeline::of(&window).thread(pinging.load(Ordering::SeqCst));
            let first = row.first().map(|tile| (tile.from, tile.state));
            lost > 0 && !window.is_complete() && first == Some((from, State::Unknown)) && row.len() > 1
        });
        over.store(true, Ordering::SeqCst);
        known
    })
}

/// Runs a thread on each CPU, because CPUs that sleep all the time record nothing.
fn run_on_all_cpus() {
    for cpu in 0..=some_cpu() {
        std::thread::spawn(move || pin(cpu)).join().expect("it runs there");
    }
}

fn rows() -> Outcome {
    let recorder = start()?;
    let from = now();
    // The activity that this thread's timeline must show.
    latpath_testkit::waits::fault_for(Duration::from_millis(25));
    run_on_all_cpus();
    let to = now();
    run_on_all_cpus();
    let window = recorder.window(from, to);
    let timeline = Timeline::of(&window);
    let unknown: Vec<_> = window
        .cpus
        .iter()
        .flat_map(|cpu| &cpu.events)
        .filter(|event| matches!(event.what, EventKind::Other(_)))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    assert!(!timeline.cpus.is_empty());
    for cpu in &timeline.cpus {
        let tiles = cpu.between(from, to);
        assert_eq!((tiles[0].from, tiles[tiles.len() - 1].to), (from, to));
        assert!(tiles.windows(2).all(|pair| pair[0].to == pair[1].from));
        let known = tiles.iter().all(|tile| tile.doing != Doing::Unknown);
        assert!(known || cpu.missed_switches > 0, "CPU {}", cpu.cpu);
        // A consistent record has no interrupt without a beginning or an end.
        assert_eq!(cpu.garbled, 0, "CPU {}", cpu.cpu);
    }
    let row = timeline.thread(tid());
    assert_eq!((row[0].from, row[row.len() - 1].to), (from, to));
    assert!(row.iter().any(|tile| matches!(tile.state, State::Asleep(Sleep::Interruptible))));
    Ok(())
}

/// Checks a packet over lo, which is received in a softirq within the system call that sends it.
fn softirq() -> Outcome {
    let recorder = start()?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let from = now();
    for _ in 0..200 {
        socket.send_to(b"latpath", socket.local_addr()?)?;
    }
    let window = recorder.window(from, now());
    let timeline = Timeline::of(&window);
    let to = timeline.to;
    let mut tiles = timeline.cpus.iter().flat_map(|cpu| cpu.between(from, to));
    assert!(tiles.any(|tile| tile.doing == Doing::Softirq(3) && tile.thread == Some(tid())), "NET_RX in our own time");
    Ok(())
}

fn gone() -> Outcome {
    let recorder = start()?;
    let pid = std::thread::Builder::new().name("lp-short-lived".into()).spawn(tid)?.join().expect("it ends");
    let thread = recorder.thread(pid).ok_or("its name is forgotten")?;
    assert_eq!((thread.name.as_str(), thread.tgid), ("lp-short-lived", std::process::id()));
    Ok(())
}

fn stopped() -> Outcome {
    let recorder = start()?;
    let from = now();
    let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn()?;
    let pid = child.id();
    is_in_state(pid, 'R')?;
    // SAFETY: the PID of a child of this process that has not been waited for.
    unsafe { libc::kill(pid as i32, libc::SIGSTOP) };
    let is_stopped = |tile: &latpath_flight::ThreadTile| tile.state == State::Asleep(Sleep::Stopped);
    let mut row = Vec::new();
    let seen = until("the process is seen to be stopped", || {
        row = Timeline::of(&recorder.window(from, now())).thread(pid);
        row.iter().any(is_stopped)
    });
    child.kill()?;
    child.wait()?;
    seen.map_err(|e| format!("{}: {row:?}", e.message().unwrap_or_default()).into())
}

/// Causes page faults, and then blocks until a child has started a program; both must be recorded.
fn in_the_kernel() -> Outcome {
    const PAGES: usize = 1000;
    let recorder = start()?;
    recorder.learn();
    until("functions have names", || recorder.has_learnt())?;
    let (from, me) = (now(), tid());
    // SAFETY: the memory is private and has no other users.
    unsafe {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let memory = libc::mmap(std::ptr::null_mut(), PAGES << 12, access, flags, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        libc::madvise(memory, PAGES << 12, libc::MADV_NOHUGEPAGE);
        (0..PAGES).for_each(|page| memory.cast::<u8>().add(page << 12).write_volatile(1));
        libc::munmap(memory, PAGES << 12);
    }
    Command::new("true").status()?;
    let snapshot = recorder.snapshot(from, now());
    let own = || snapshot.window.cpus.iter().flat_map(|cpu| &cpu.events).filter(|event| event.pid == me);
    let faults = own().filter_map(|event| match event.what {
        EventKind::PageFaults(count) => Some(count),
        _ => None,
    });
    let faults: u64 = faults.sum();
    let places = own().filter_map(|event| match event.what {
        EventKind::BlockedAt(places) => Some(places),
        _ => None,
    });
    let places: Vec<String> = places.flatten().map(|place| snapshot.names().of_function(place)).collect();
    // Only half of the faults are required, because an event needs a minimum number of them.
    match faults > PAGES as u64 / 2 && places.iter().any(|place| place.contains("clone")) {
        true => Ok(()),
        false => Err(format!("{faults} page faults, blocked in {places:?}").into()),
    }
}

/// Reads windows from a small ring while two threads overwrite it many times per second; no event may be torn.
fn torn() -> Outcome {
    let recorder = Recorder::start(0)?;
    let (mut here, mut there) = UnixStream::pair()?;
    let over = AtomicBool::new(false);
    let started = recorder.started();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            while there.read_exact(&mut byte).is_ok() && there.write_all(&byte).is_ok() {}
        });
        scope.spawn(|| {
            let mut byte = [7];
            while !over.load(Ordering::SeqCst) {
                here.write_all(&byte).and_then(|()| here.read_exact(&mut byte)).expect("the other end");
            }
            here.shutdown(std::net::Shutdown::Both).expect("it is open");
        });
        // Only windows with new events count, because on a busy machine the two threads rarely get a CPU.
        let check = || -> Outcome {
            let (mut newest, mut fresh, limit) = (started, 0, Instant::now() + Duration::from_secs(60));
            while fresh < 1_000 {
                let window = recorder.window(started, now());
                let read = now();
                let mut last = newest;
                for event in window.cpus.iter().flat_map(|cpu| &cpu.events) {
                    let possible = match event.what {
                        EventKind::Switch { prev, next_class, .. } => {
                            (-1..140).contains(&prev.prio.min(next_class.prio))
                        }
                        EventKind::Waking { class, .. } | EventKind::Wakeup { class, .. } => {
                            (-1..140).contains(&class.prio)
                        }
                        EventKind::SoftirqEntry(vector) | EventKind::SoftirqExit(vector) => vector < 10,
                        EventKind::Other(_) => false,
                        _ => true,
                    };
                    if !possible || !(started..=read).contains(&event.t) {
                        return Err(format!("torn: {event:?}, read between {started} and {read}").into());
                    }
                    last = last.max(event.t);
                }
                fresh += usize::from(last > newest);
                newest = last;
                if Instant::now() > limit {
                    return Err(format!("two minutes had {fresh} windows with new events").into());
                }
            }
            Ok(())
        };
        let checked = check();
        over.store(true, Ordering::SeqCst);
        checked
    })
}

/// Directory for control groups with CPU time limits, for either cgroup version, and the file contents that limit a
/// group to 2 ms in each 50 ms.
fn cpu_groups() -> Option<(std::path::PathBuf, Vec<(&'static str, &'static str)>)> {
    let old = std::path::Path::new("/sys/fs/cgroup/cpu");
    if old.join("cpu.cfs_quota_us").exists() || old.join("tasks").exists() {
        return Some((old.into(), vec![("cpu.cfs_period_us", "50000"), ("cpu.cfs_quota_us", "2000")]));
    }
    let new = std::path::Path::new("/sys/fs/cgroup");
    let controllers = std::fs::read_to_string(new.join("cgroup.subtree_control")).unwrap_or_default();
    let has = controllers.split_whitespace().any(|c| c == "cpu");
    has.then(|| (new.into(), vec![("cpu.max", "2000 50000")]))
}

/// A temporary control group, removed on drop.
struct Group(std::path::PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        // The group may still contain a process that has just ended, so retry.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            latpath_testkit::waits::fault_for(Duration::from_millis(10));
        }
    }
}

fn throttled() -> Outcome {
    let (folder, limit) = cpu_groups().ok_or("it was there before")?;
    let group = Group(folder.join(format!("latpath-flight-{}", std::process::id())));
    std::fs::create_dir(&group.0)?;
    for (file, value) in limit {
        std::fs::write(group.0.join(file), value)?;
    }
    let recorder = start()?;
    let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn()?;
    let pid = child.id();
    let moved = std::fs::write(group.0.join("cgroup.procs"), pid.to_string());
    // The child may run for 4 % of the time, but on a busy machine it may get less for a while.
    let mut found = String::new();
    let seen = until("it is throttled for most of the time", || {
        let from = now();
        latpath_testkit::waits::fault_for(Duration::from_millis(300));
        let to = now();
        let row = Timeline::of(&recorder.window(from, to)).thread(pid);
        let held = row.iter().filter(|tile| matches!(tile.state, State::Ready { throttled: true, .. }));
        let ns: i64 = held.map(|tile| tile.to - tile.from).sum();
        found = format!("{ns} of {}: {row:?}", to - from);
        ns > (to - from) / 2
    });
    child.kill()?;
    child.wait()?;
    moved?;
    seen.map_err(|e| format!("{}: {found}", e.message().unwrap_or_default()).into())
}

fn cost() -> Outcome {
    let recorder = Recorder::start(Recorder::BYTES_PER_CPU)?;
    let sleeps =
        std::thread::spawn(|| (0..2000).for_each(|_| latpath_testkit::waits::fault_for(Duration::from_micros(20))));
    sleeps.join().map_err(|_| "a panic")?;
    let cost = recorder.figures();
    assert!(cost.events > 4000 && cost.bytes > 1 << 20, "{cost:?}");
    let each = cost.ns_per_event.ok_or("it is not measured")?;
    eprintln!("{} events, {each} ns each; missed {}", cost.events, cost.missed);
    for p in recorder.programs().iter().filter(|p| p.runs > 0) {
        eprintln!("  {:28} {:>8} runs, {:>5} ns each", p.name, p.runs, p.ns / p.runs);
    }
    for missing in recorder.missing() {
        eprintln!("  {missing}");
    }
    Ok(())
}

/// Starts a recorder whose budget is 0.01 % of the machine, and waits until it is used up.
fn paused() -> Result<Recorder, Failed> {
    let mut recorder = start()?;
    recorder.set_budget(100)?;
    until("the budget is used up", || {
        let _ = wake(500);
        recorder.figures().paused_ns > 0
    })?;
    Ok(recorder)
}

/// Whether this window has no event, and marks all CPUs as incomplete.
fn is_unknown(window: &Window) -> bool {
    window.cpus.iter().all(|cpu| cpu.since == i64::MAX && cpu.events.is_empty())
}

fn budget() -> Outcome {
    let mut recorder = paused()?;
    let mut paused = now();
    // The recorder resumes after half a second, so a window may include a time in which it records.
    until("a window lies within a pause", || {
        let events = recorder.figures().events;
        paused = now();
        let woken = wake(500);
        let window = recorder.window(paused, now());
        woken.is_ok() && recorder.figures().events == events && is_unknown(&window)
    })?;
    let note = recorder.figures().left_out().ok_or("nothing says so")?;
    if !note.contains("recorded nothing for") || !note.contains("0.01 %") {
        return Err(note.into());
    }

    // With a larger budget, records are complete, but only from now on.
    recorder.set_budget(1_000_000)?;
    let again = now();
    wake(500)?;
    let window = recorder.window(paused, now());
    let woken =
        window.cpus.iter().flat_map(|cpu| &cpu.events).filter(|e| matches!(e.what, EventKind::Wakeup { .. })).count();
    if woken < 500 || window.cpus.iter().any(|cpu| cpu.since <= paused) {
        return Err(
            format!("{woken} wakeups; complete since {:?}", window.cpus.iter().map(|c| c.since - paused)).into()
        );
    }
    match recorder.window(again, now()).is_complete() {
        true => Ok(()),
        false => Err("what came after the pause is not complete".into()),
    }
}

/// A limit on this process's file descriptors; the previous limit is restored on drop.
struct Descriptors(libc::rlimit);

impl Descriptors {
    fn limit(most: u64) -> Self {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `before` is a value of the expected type.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut before) }, 0);
        Self::set(libc::rlimit { rlim_cur: most, ..before });
        Self(before)
    }

    fn set(limit: libc::rlimit) {
        // SAFETY: the value outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        Self::set(self.0);
    }
}

fn refused() -> Outcome {
    let mut recorder = paused()?;
    let missing = |recorder: &Recorder| recorder.missing().iter().any(|missing| missing.tracepoint == "sched_switch");
    let without = now();
    // Attaching a program needs a new descriptor, which this limit prevents; existing ones stay open.
    let descriptors = Descriptors::limit(3);
    recorder.set_budget(1_000_000)?;
    let is_missing = missing(&recorder);
    let window = recorder.window(without, now());
    drop(descriptors);
    if !is_missing {
        return Err(format!("nothing says that switches are missing: {:?}", recorder.missing()).into());
    }
    if !is_unknown(&window) {
        return Err(format!("what happened without switches is taken for all: {window:?}").into());
    }
    until("the programs are attached again", || !missing(&recorder))?;
    let again = now();
    wake(500)?;
    match recorder.window(again, now()).is_complete() {
        true => Ok(()),
        false => Err("what came afterwards is not complete".into()),
    }
}

fn programs_of(pid: u32) -> Vec<u32> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let number = |text: String| text.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok());
    texts.filter_map(number).collect()
}

fn killed() -> Outcome {
    let mut child = Command::new(std::env::current_exe()?).env(CHILD, "1").stdout(Stdio::piped()).spawn()?;
    let mut word = [0; 5];
    let said = child.stdout.take().ok_or("no pipe")?.read_exact(&mut word);
    let programs = programs_of(child.id());
    child.kill()?;
    child.wait()?;
    said?;
    let stand = || libbpf_rs::query::ProgInfoIter::default().any(|p| programs.contains(&p.id));
    assert!(programs.len() > 5, "it holds {programs:?}");
    // The kernel releases the programs shortly after the process has ended.
    until("the kernel lets go of its programs", || !stand())
}

/// Wakes a thread `times` times from another one; returns its TID.
fn wake(times: u32) -> Result<u32, Failed> {
    let (mut here, mut there) = UnixStream::pair()?;
    let (say, hear) = std::sync::mpsc::channel();
    let woken = std::thread::spawn(move || {
        let _ = say.send(tid());
        let mut byte = [0];
        while there.read_exact(&mut byte).is_ok() && there.write_all(&byte).is_ok() {}
    });
    let pid = hear.recv()?;
    for _ in 0..times {
        here.write_all(&[1])?;
        here.read_exact(&mut [0])?;
    }
    drop(here);
    woken.join().map_err(|_| "the thread panicked")?;
    Ok(pid)
}

fn tail() -> Outcome {
    let recorder = Recorder::start_for(Scope::Transfers, 32 << 20)?;
    let (mut tail, mut events, mut lost) = (Tail::new(), Vec::new(), 0);
    let mut take = |tailed: &Tailed| match tailed {
        Tailed::Event(_, event) => events.push(*event),
        Tailed::Lost(_, n, _) => lost += n,
    };
    let mut pids = Vec::new();
    for round in 1..=5 {
        pids.push(wake(100 * round)?);
        tail.read(&recorder, &mut take);
    }
    tail.finish(&recorder, &mut take);
    let waking = |event: &latpath_flight::Event| {
        matches!(event.what, EventKind::Waking { pid, .. } if pids.contains(&pid)).then_some(event.t)
    };
    let times: Vec<_> = events.iter().filter_map(waking).collect();
    let in_order = events.windows(2).all(|pair| pair[0].t <= pair[1].t);
    // The kernel decides how often the thread is woken: a reader that is not asleep yet needs no waking, and space in
    // its socket's buffer also wakes it. It cannot be woken twice at the same time, so equal times are duplicates.
    let distinct = times.iter().collect::<std::collections::BTreeSet<_>>().len();
    match lost == 0 && in_order && times.len() >= 100 && distinct == times.len() {
        true => Ok(()),
        false => {
            let seen = times.len();
            Err(format!("{seen} wakings at {distinct} times, {lost} events lost, in order: {in_order}").into())
        }
    }
}

fn late_tail() -> Outcome {
    let recorder = Recorder::start_for(Scope::Transfers, 64 << 10)?;
    // Events from before all programs were attached are not returned, but they are counted.
    let before = recorder.figures().events;
    let (mut came, mut lost) = (0, 0);
    while recorder.figures().events < 100_000 {
        wake(5000)?;
    }
    let written = recorder.figures().events;
    Tail::new().finish(&recorder, &mut |tailed| match tailed {
        Tailed::Event(..) => came += 1,
        Tailed::Lost(_, n, _) => lost += n,
    });
    match lost > 0 && came > 0 && before + came + lost >= written {
        true => Ok(()),
        false => Err(format!("{written} written, {before} of them before, {came} came, {lost} lost").into()),
    }
}
