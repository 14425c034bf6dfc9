//! `latpath agent` as a process on this machine, reached over its Unix socket: its flight recorder shows this machine's
//! events.

use crate::*;
use latpath_agent::{Address, Machine, StartRequest, Timeouts};
use latpath_flight::{State, Timeline};
use latpath_linux::monotonic;
use latpath_model::Ns;
use latpath_testkit::{latpath, trial, Lack};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::path::PathBuf;
use std::process::{Child, Stdio};

pub fn trials(needs: &[Lack]) -> Vec<latpath_testkit::Trial> {
    vec![
        trial("an_agents_flight_recorder_shows_what_this_machine_did", needs, shows),
        trial("an_agent_that_is_killed_owes_its_windows", needs, killed),
    ]
}

/// A running agent; dropping it ends the process.
struct Agent {
    process: Child,
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl Agent {
    fn start() -> Result<Self, Failed> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("agent.sock");
        let mut command = latpath(&format!("agent --unix {}", socket.display()));
        let process = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Self { process, socket, _folder: folder })
    }

    fn machine(&self) -> Result<Machine, Failed> {
        let timeouts = Timeouts { connect: LIMIT, start: LIMIT, window: LIMIT, ..Timeouts::default() };
        let mut machine = Machine::connect("here", &Address::Unix(self.socket.clone()), timeouts)?;
        // Large enough that nothing is overwritten while this test does not run.
        let options = [(StartRequest::FLIGHT.into(), (32 << 20).to_string())].into();
        machine.start(&StartRequest { streams: streams(&["svid:latpath-none"]), options })?;
        Ok(machine)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a thread that sleeps a few times; returns its TID and the times of its begin and end.
fn naps() -> (u32, Ns, Ns) {
    let thread = std::thread::Builder::new().name("lp-naps".into()).spawn(|| {
        let from = monotonic();
        (0..20).for_each(|_| latpath_testkit::waits::pace(Duration::from_millis(1)));
        // SAFETY: takes no arguments and cannot fail.
        (unsafe { libc::gettid() as u32 }, from, monotonic())
    });
    thread.expect("a thread").join().expect("it naps")
}

fn shows() -> Result<(), Failed> {
    let agent = Agent::start()?;
    let mut machine = agent.machine()?;
    let (tid, from, to) = naps();
    let id = machine.request_window(from, to);
    let mut answer = None;
    until("the window comes", || {
        answer = machine.take_windows().pop();
        answer.is_some()
    })?;
    let (of, window) = answer.ok_or("no window")?;
    let window = window?;
    assert_eq!(of, id);
    let (offset, bound) = (window.offset_ns, window.error_bound_ns);
    assert!(offset.abs() <= bound, "it is one machine with one clock: {offset} ns, bound {bound} ns");
    let snapshot = &window.snapshot;
    assert_eq!(snapshot.threads[&tid].name, "lp-naps", "though it is gone");
    assert_eq!(snapshot.threads[&tid].tgid, std::process::id());
    let row = Timeline::of(&snapshot.window).thread(tid);
    let slept = row.iter().filter(|tile| matches!(tile.state, State::Asleep(_)));
    assert!(slept.count() >= 20, "{row:?}");
    // The cost is known a moment later.
    let mut known = None;
    until("what it costs is known", || {
        known = machine.recorder().and_then(Result::ok).filter(|f| f.ns_per_event.is_some()).zip(machine.cpu_percent());
        known.is_some()
    })?;
    let (figures, cost) = known.ok_or("nothing is known")?;
    assert!(figures.events > 0 && cost > 0.0, "{figures:?} {cost}");
    machine.stop()?;
    Ok(())
}

fn killed() -> Result<(), Failed> {
    let mut agent = Agent::start()?;
    let mut machine = agent.machine()?;
    // A stopped agent cannot answer the request before it is killed.
    kill(Pid::from_raw(agent.process.id() as i32), Signal::SIGSTOP)?;
    let now = monotonic();
    let id = machine.request_window(now, now + 500_000_000);
    agent.process.kill()?;
    let mut answers = Vec::new();
    until("an answer comes", || {
        answers = machine.take_windows();
        !answers.is_empty()
    })?;
    let (of, why) = answers.remove(0);
    assert_eq!(of, id);
    assert!(why.unwrap_err().contains("closed the stream"));
    Ok(())
}
