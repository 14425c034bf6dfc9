//! The commands that `latpath explain` advises have the intended effect. Each is run in a shell, on the test's own
//! threads, groups and devices.

use super::{
    group::{need_group, need_old_group, Group, OldGroup},
    scenario::tc,
};
use latpath_cause::{advise, Actor, Advice, Cause, CauseShare, Note, RunContext};
use latpath_flight::{Class, Doing, Running};
use latpath_linux::Cpus;
use latpath_model::{Link, PointInfo};
use latpath_testkit::waits::is_in_state;
use latpath_testkit::{bench, need_lab, need_tool, trial, Failed, Lack, Trial};
use nix::{
    sched::{sched_getaffinity, sched_setaffinity, CpuSet},
    sys::signal::{kill, Signal},
    unistd::{gettid, Pid},
};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    process::{Child, Command},
    sync::mpsc,
    thread,
    time::Duration,
};

/// Tests of the commands.
pub fn trials() -> Vec<Trial> {
    let two = super::need_two_cpus();
    let (ip, tc) = (need_lab(), need_tool("tc"));
    let old = |controller, file| [need_tool("findmnt"), need_old_group(controller, file)];
    vec![
        trial("the_threads_that_were_seen_are_moved_and_no_others", &[two, need_tool("taskset")], moved),
        trial("a_stopped_process_is_seen_and_goes_on", &[need_tool("findmnt")], goes_on),
        trial("a_control_groups_limit_is_found_and_lifted", &[need_group(), need_tool("findmnt")], lifted),
        trial("a_frozen_control_group_is_thawed", &old("freezer", "freezer.state"), thawed),
        trial("a_memory_limit_is_lifted", &old("memory", "memory.limit_in_bytes"), has_memory),
        trial("limits_of_block_io_are_shown", &old("blkio", "blkio.throttle.read_bps_device"), shows_io),
        trial("a_thread_with_a_deadline_gets_twice_its_runtime", &[need_tool("chrt")], runs_longer),
        trial("a_queueing_discipline_is_shown_and_taken_off_in_its_namespace", &[ip, tc, need_namespaces()], taken_off),
    ]
}

fn need_namespaces() -> Lack {
    need_tool("nsenter").or(need_tool("find"))
}

fn actor(name: &str, pids: &[u32]) -> Actor {
    let pid = pids.last().copied().unwrap_or(0);
    let doing = Doing::Thread(Running { pid, class: None, guest: false, work: None });
    Actor { name: name.into(), doing, class: None, pids: pids.to_vec(), is_tool: false, process: None, threads: vec![] }
}

/// Advice on this host for a cause that delayed its actor on CPU 0.
fn advice(cause: Cause, actor: Option<Actor>, by: Option<Actor>, points: &[PointInfo]) -> Vec<Advice> {
    noted(cause, actor, by, points, None)
}

/// Like [`advice`], for a cause with a note.
fn noted(
    cause: Cause,
    actor: Option<Actor>,
    by: Option<Actor>,
    points: &[PointInfo],
    note: Option<Note>,
) -> Vec<Advice> {
    let held = CauseShare {
        cause,
        machine: "host".into(),
        actor,
        time_ns: 1,
        excess_ns: 1,
        by: by.into_iter().map(|by| (by, 1)).collect(),
        cpus: vec![(0, 1)],
        hops: vec![((0, 0), 1)],
        number: None,
        state: None,
        waiter: None,
        notes: note.into_iter().map(|note| (note, 1)).collect(),
    };
    let cpus: Cpus = "0-1".parse().unwrap_or_default();
    let known =
        RunContext { points: points.to_vec(), cpus: BTreeMap::from([("host".into(), cpus)]), ..RunContext::default() };
    advise(&held, Some(0), &known)
}

/// Commands of the first advice with a command that contains this word.
fn commands(all: Vec<Advice>, word: &str) -> Result<Vec<String>, Failed> {
    let found = all.iter().find(|advice| advice.commands.iter().any(|c| c.contains(word)));
    Ok(found.ok_or_else(|| format!("no command with {word:?}: {all:?}"))?.commands.clone())
}

/// Runs a command line; returns its output, or an error if it fails.
fn shell(line: &str) -> Result<String, Failed> {
    let ended = Command::new("sh").args(["-c", line]).output()?;
    let info = String::from_utf8_lossy(&ended.stderr);
    match ended.status.success() {
        true => Ok(String::from_utf8_lossy(&ended.stdout).into_owned()),
        false => Err(format!("{line}: {info}").into()),
    }
}

/// A process that sleeps until this value is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Result<Self, Failed> {
        Ok(Self(Command::new("sleep").arg("60").spawn()?))
    }

    /// Waits until the process reaches a state.
    fn comes_to(&self, state: char) -> Result<(), Failed> {
        is_in_state(self.0.id(), state)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The advised command moves the two threads that were seen, and no other thread of the process.
fn moved() -> Result<(), Failed> {
    const NAME: &str = "lp (x)+ .*y";
    let (sender, tids) = mpsc::channel();
    let stays = |name: &str| {
        let (end, sender) = (mpsc::channel::<()>(), sender.clone());
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            let mut here = CpuSet::new();
            let _ = here.set(0);
            let _ = sender.send(sched_setaffinity(Pid::from_raw(0), &here).map(|()| gettid()));
            let _ = end.1.recv();
        });
        thread.map(|thread| (thread, end.0))
    };
    let threads = [stays(NAME)?, stays(NAME)?, stays("lp x y")?];
    let mut all = Vec::new();
    for _ in &threads {
        all.push(tids.recv_timeout(Duration::from_secs(5))??);
    }
    let is_named = |tid: &&Pid| fs::read_to_string(format!("/proc/{tid}/comm")).is_ok_and(|name| name.trim() == NAME);
    let seen: Vec<u32> = all.iter().filter(is_named).map(|tid| tid.as_raw() as u32).collect();
    let by = actor(NAME, &seen);
    let line =
        commands(advice(Cause::WaitingForCpu, Some(actor("relay", &[77])), Some(by), &[]), "taskset -cp 1 $pid")?;
    let ran = shell(&line[0]);
    let mut on_one = Vec::new();
    for tid in &all {
        let name = fs::read_to_string(format!("/proc/{tid}/comm"))?;
        on_one.push((name.trim() == NAME, sched_getaffinity(*tid)?.is_set(1)?));
    }
    for (thread, end) in threads {
        drop(end);
        let _ = thread.join();
    }
    ran?;
    on_one.sort_unstable();
    match on_one.as_slice() {
        [(false, false), (true, true), (true, true)] => Ok(()),
        other => Err(format!("{line:?}: (has the name, is on CPU 1): {other:?}").into()),
    }
}

fn goes_on() -> Result<(), Failed> {
    let sleeper = Sleeper::new()?;
    let actor = || Some(actor("sleep", &[sleeper.0.id()]));
    kill(Pid::from_raw(sleeper.0.id() as i32), Signal::SIGSTOP)?;
    sleeper.comes_to('T')?;
    let shows = commands(advice(Cause::Stopped, actor(), None, &[]), "TracerPid")?;
    let shown = shell(&shows[0])?;
    if !shown.contains("T (stopped)") || !shown.contains("TracerPid:\t0") {
        return Err(format!("{shows:?} printed {shown}").into());
    }
    shell(&commands(advice(Cause::Stopped, actor(), None, &[]), "kill")?[0])?;
    sleeper.comes_to('S')
}

fn lifted() -> Result<(), Failed> {
    let (group, sleeper) = (Group::new()?, Sleeper::new()?);
    let pid = sleeper.0.id();
    group.take(pid as i32)?;
    let (new, old) = (group.path().join("cpu.max"), group.path().join("cpu.cfs_quota_us"));
    let is_new = new.exists();
    fs::write(if is_new { &new } else { &old }, if is_new { "50000 100000" } else { "50000" })?;
    let all = advice(Cause::Throttled, Some(actor("sleep", &[pid])), None, &[]);
    let shown = shell(&commands(all.clone(), "while")?[0])?;
    if !shown.contains(&format!("{}: 50000", group.path().display())) {
        return Err(format!("the limit is not in {shown}").into());
    }
    // The commands are alternatives: exactly the one for this cgroup version succeeds.
    let mut commands = commands(all, "cpu.max")?;
    commands.retain(|line| line.starts_with("echo "));
    let done: Vec<bool> = commands.iter().map(|line| shell(line).is_ok()).collect();
    if done != [is_new, !is_new] {
        return Err(format!("{commands:?} went well: {done:?}").into());
    }
    let left = fs::read_to_string(if is_new { &new } else { &old })?;
    match left.split_whitespace().next() {
        Some("max" | "-1") => Ok(()),
        _ => Err(format!("{commands:?} left {left}").into()),
    }
}

fn thawed() -> Result<(), Failed> {
    let (group, sleeper) = (OldGroup::new("freezer", &[])?, Sleeper::new()?);
    group.take(sleeper.0.id() as i32)?;
    fs::write(group.path().join("freezer.state"), "FROZEN")?;
    let all = commands(advice(Cause::Stopped, Some(actor("sleep", &[sleeper.0.id()])), None, &[]), "THAWED")?;
    let ran = all.iter().filter(|line| line.contains("THAWED")).try_for_each(|line| shell(line).map(drop));
    let state = fs::read_to_string(group.path().join("freezer.state"))?;
    fs::write(group.path().join("freezer.state"), "THAWED")?;
    ran?;
    match state.trim() {
        "THAWED" => Ok(()),
        other => Err(format!("{all:?} left it {other}").into()),
    }
}

fn has_memory() -> Result<(), Failed> {
    let group = OldGroup::new("memory", &[("memory.limit_in_bytes", (64 << 20).to_string())])?;
    let sleeper = Sleeper::new()?;
    group.take(sleeper.0.id() as i32)?;
    let actor = Some(actor("sleep", &[sleeper.0.id()]));
    let all = noted(Cause::Work, actor, None, &[], Some(Note::Reclaims));
    let line = commands(all, "memory.limit_in_bytes")?.into_iter().find(|line| line.contains("limit_in_bytes"));
    shell(&line.ok_or("no command of version 1")?)?;
    match fs::read_to_string(group.path().join("memory.limit_in_bytes"))?.trim().parse::<u64>()? {
        limit if limit > 1 << 40 => Ok(()),
        limit => Err(format!("the limit is {limit}").into()),
    }
}

fn shows_io() -> Result<(), Failed> {
    let group = OldGroup::new("blkio", &[])?;
    let sleeper = Sleeper::new()?;
    group.take(sleeper.0.id() as i32)?;
    let note = Some(Note::ThrottledIo);
    let all = noted(Cause::Blocked, Some(actor("sleep", &[sleeper.0.id()])), None, &[], note);
    let line = commands(all, "tail ")?.into_iter().find(|line| line.contains("blkio.throttle"));
    let shown = shell(&line.ok_or("no command of version 1")?)?;
    match shown.contains(&format!("{}/blkio.throttle.read_bps_device", group.path().display())) {
        true => Ok(()),
        false => Err(format!("it printed {shown}").into()),
    }
}

/// The advised command raises the runtime, at most to the deadline.
fn runs_longer() -> Result<(), Failed> {
    let sleeper = Sleeper::new()?;
    let pid = sleeper.0.id();
    let show = || shell(&format!("chrt -p {pid}"));
    shell(&format!("chrt -d --sched-runtime 2000000 --sched-deadline 6000000 --sched-period 20000000 -p 0 {pid}"))?;
    let mut actor = actor("sleep", &[pid]);
    actor.class = Some(Class { prio: -1, policy: 6 });
    let line = commands(advice(Cause::Throttled, Some(actor), None, &[]), "--sched-runtime")?;
    for parameters in ["4000000/6000000/20000000", "6000000/6000000/20000000"] {
        shell(&line[0])?;
        let shown = show()?;
        if !shown.contains(parameters) {
            return Err(format!("{line:?} left {shown}").into());
        }
    }
    Ok(())
}

/// The advised commands find the device, whether its namespace is given by name, by number or not at all.
fn taken_off() -> Result<(), Failed> {
    let bench = bench()?;
    let space = bench.application();
    space.ip("link add lpq0 type veth peer name lpq1")?;
    space.ip("link set lpq0 up")?;
    let netns = space.inside(|| fs::metadata("/proc/thread-self/ns/net"))??.ino() as u32;
    for device in [format!("lpq0%{}", space.name()), format!("lpq0%{netns}"), "lpq0".into()] {
        tc(space, "qdisc add dev lpq0 root tbf rate 1mbit burst 5kb latency 50ms")?;
        let point = format!("host/tx@{device}").parse()?;
        let point = PointInfo {
            point,
            link: Link::Veth,
            netns,
            ifindex: 0,
            peer: 0,
            peer_netns: 0,
            error_bound_ns: 0,
            clock: String::new(),
        };
        let all = advice(Cause::QdiscHeld, None, None, &[point]);
        let lines: Vec<String> = all.into_iter().flat_map(|advice| advice.commands).collect();
        let [show, off] = lines.as_slice() else { return Err(format!("{lines:?}").into()) };
        let before = shell(show)?;
        shell(off)?;
        let after = shell(show)?;
        if !before.contains("tbf") || after.contains("tbf") {
            return Err(format!("{lines:?}: before {before}, after {after}").into());
        }
    }
    Ok(())
}
