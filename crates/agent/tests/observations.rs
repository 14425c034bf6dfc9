//! An instrument that an agent attaches for its host, from the start of its window to the observation.

mod fake;

use fake::{agent_with, patient, Agent};
use latpath_agent::{FindObserver, Machine, MakeObserver, Observer, ServeOptions, Stream, Timeouts, MAX_OBSERVATION};
use latpath_testkit::waits::until;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::time::Duration;

/// An observer that counts its steps and returns this many bytes.
struct Counts {
    steps: Arc<AtomicU32>,
    bytes: usize,
    ends: Option<Receiver<()>>,
}

impl Observer for Counts {
    fn step(&mut self) {
        self.steps.fetch_add(1, Ordering::SeqCst);
    }

    fn end(self: Box<Self>, _: &AtomicBool) -> Vec<u8> {
        let _ = self.ends.map(|ends| ends.recv());
        vec![b'7'; self.bytes]
    }
}

/// Connects to a machine whose agent has the instruments that `find` returns.
fn machine(find: Option<FindObserver>, timeouts: Timeouts) -> (Machine, Agent) {
    let (host, guest) = UnixStream::pair().unwrap();
    let agent = agent_with(guest, ServeOptions { observers: find, ..ServeOptions::default() });
    (Machine::on_stream("guest0", "socket pair", Stream::new(host).unwrap(), timeouts).unwrap(), agent)
}

/// Finds the instruments `short` and `long`, and `none`, which cannot be attached.
fn instruments(steps: &Arc<AtomicU32>) -> FindObserver {
    let steps = steps.clone();
    Box::new(move |name| {
        let bytes = match name {
            "short" => 5,
            "long" => MAX_OBSERVATION + 1,
            "none" => return Some(Box::new(|| Err("this kernel has no virtqueues".into()))),
            _ => return None,
        };
        let steps = steps.clone();
        let make: MakeObserver = Box::new(move || Ok(Box::new(Counts { steps, bytes, ends: None })));
        Some(make)
    })
}

#[test]
fn an_agent_that_runs_no_commands_observes_from_the_begin_of_a_window_to_its_end() {
    let steps = Arc::default();
    let (mut machine, agent) = machine(Some(instruments(&steps)), patient());
    assert!(machine.facts().observes && !machine.facts().runs_commands);
    for window in 1..=2 {
        machine.begin_observation("short").unwrap();
        let before = steps.load(Ordering::SeqCst);
        until("the instrument takes steps", || steps.load(Ordering::SeqCst) > before + 1).unwrap();
        assert_eq!(machine.end_observation(), Ok(b"77777".to_vec()), "window {window}");
    }
    machine.stop().unwrap();
    agent.thread.join().unwrap().unwrap();
}

#[test]
fn what_cannot_be_observed_says_why_and_the_session_goes_on() {
    let (mut machine, agent) = machine(Some(instruments(&Arc::default())), patient());
    let why = machine.begin_observation("none").unwrap_err().to_string();
    assert_eq!(why, "guest0 (socket pair): this kernel has no virtqueues");
    let why = machine.begin_observation("sh\x1b[2J").unwrap_err().to_string();
    assert!(why.contains("there is no instrument") && why.contains("install the same latpath on both"), "{why}");
    machine.begin_observation("long").unwrap();
    let why = machine.end_observation().unwrap_err().to_string();
    assert!(why.contains("the observation has 4194305 bytes (limit: 4194304)"), "{why}");
    machine.begin_observation("short").unwrap();
    assert!(machine.is_alive());
    machine.stop().unwrap();
    agent.thread.join().unwrap().unwrap();
}

#[test]
fn an_agent_without_instruments_is_not_asked() {
    let (mut machine, agent) = machine(None, patient());
    let why = machine.begin_observation("short").unwrap_err().to_string();
    assert!(why.contains("has no instruments: install the same latpath on both"), "{why}");
    machine.stop().unwrap();
    agent.thread.join().unwrap().unwrap();
}

#[test]
fn an_observation_that_does_not_come_in_time_is_given_up() {
    let (last, ends) = channel();
    let ends = std::sync::Mutex::new(Some(ends));
    let find: FindObserver = Box::new(move |_| {
        let ends = ends.lock().unwrap().take();
        let make: MakeObserver = Box::new(move || Ok(Box::new(Counts { steps: Arc::default(), bytes: 1, ends })));
        Some(make)
    });
    let (mut machine, agent) = machine(Some(find), Timeouts { profile: Duration::from_millis(300), ..patient() });
    machine.begin_observation("slow").unwrap();
    let why = machine.end_observation().unwrap_err().to_string();
    assert!(why.contains("did not hand over its observation within 300ms"), "{why}");
    last.send(()).unwrap();
    drop(machine);
    agent.thread.join().unwrap().unwrap();
}
