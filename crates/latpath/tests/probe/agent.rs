//! `latpath agent` as a process on this machine, reached by its unix socket: what its flight recorder says is what happened here.

use crate::support::{latpath, trial, Lack};
use crate::*;
use latpath_agent::{Address, Machine, StartRequest, Timeouts};
use latpath_flight::{State, Timeline};
use latpath_probe::monotonic;
use latpath_words::Ns;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Instant;

pub fn trials(needs: &[Lack]) -> Vec<libtest_mimic::Trial> {
    vec![
        trial("an_agents_flight_recorder_tells_what_this_machine_did", needs, tells),
        trial("an_agent_that_is_killed_owes_its_windows", needs, killed),
    ]
}

/// An agent, which goes with this.
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
        let timeouts = Timeouts { connect: Duration::from_secs(30), ..Timeouts::default() };
        let mut machine = Machine::connect("here", &Address::Unix(self.socket.clone()), timeouts)?;
        let options = vec![(StartRequest::FLIGHT.into(), (4 << 20).to_string())];
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

/// Sleeps a few times, and says when it began and ended.
fn naps() -> (u32, Ns, Ns) {
    let thread = std::thread::Builder::new().name("lp-naps".into()).spawn(|| {
        let from = monotonic();
        (0..20).for_each(|_| std::thread::sleep(Duration::from_millis(1)));
        // SAFETY: takes nothing and cannot fail.
        (unsafe { libc::gettid() as u32 }, from, monotonic())
    });
    thread.expect("a thread").join().expect("it naps")
}

fn tells() -> Result<(), Failed> {
    let agent = Agent::start()?;
    let mut machine = agent.machine()?;
    let (tid, from, to) = naps();
    let id = machine.request_window(from, to);
    let until = Instant::now() + Duration::from_secs(10);
    let (of, window) = loop {
        if let Some(answer) = machine.take_windows().pop() {
            break answer;
        }
        assert!(Instant::now() < until, "{:?}", machine.fault());
        std::thread::sleep(Duration::from_millis(5));
    };
    let window = window?;
    assert_eq!(of, id);
    assert!(window.offset_ns.abs() <= window.error_bound_ns, "it is one machine with one clock: {}", window.offset_ns);
    let snapshot = &window.snapshot;
    assert_eq!(snapshot.threads[&tid].name, "lp-naps", "though it is gone");
    assert_eq!(snapshot.threads[&tid].tgid, std::process::id());
    let row = Timeline::of(&snapshot.window).thread(tid);
    let slept = row.iter().filter(|tile| matches!(tile.state, State::Asleep(_)) && tile.to - tile.from > 900_000);
    assert!(slept.count() >= 19, "{row:?}");
    // What it costs is known a moment later.
    let cost = loop {
        let figures = machine.recorder().expect("it was asked for")?;
        assert!(figures.events > 0, "{figures:?}");
        if let (Some(cost), Some(_)) = (machine.cpu_percent(), figures.ns_per_event) {
            break cost;
        }
        assert!(Instant::now() < until, "{figures:?} {:?}", machine.cpu_percent());
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(cost > 0.0);
    machine.stop()?;
    Ok(())
}

fn killed() -> Result<(), Failed> {
    let mut agent = Agent::start()?;
    let mut machine = agent.machine()?;
    let now = monotonic();
    // Not before half a second from now.
    let id = machine.request_window(now, now + 500_000_000);
    std::thread::sleep(Duration::from_millis(50));
    agent.process.kill()?;
    let until = Instant::now() + Duration::from_secs(10);
    let mut answers = Vec::new();
    while answers.is_empty() {
        assert!(Instant::now() < until, "an answer");
        answers = machine.take_windows();
        std::thread::sleep(Duration::from_millis(5));
    }
    let (of, why) = answers.remove(0);
    assert_eq!(of, id);
    assert!(why.unwrap_err().contains("closed the stream"));
    Ok(())
}
