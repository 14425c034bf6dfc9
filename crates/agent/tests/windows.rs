//! Windows of the agent's flight recorder, with both ends in this process and a recorder that invents events.

mod fake;

use fake::{agent_recording, agent_with, drain, patient, recorded, request, Agent, Begun};
use latpath_agent::{Facts, GuestWindow, Machine, ServeOptions, Stream, Timeouts};
use latpath_flight::{CpuRecord, Event, EventKind, Figures, Record, Snapshot, Thread, Window};
use latpath_linux::monotonic;
use latpath_model::{Ns, Sighting, Source};
use latpath_testkit::waits::until;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MS: Ns = 1_000_000;

/// A recorder that reports this number of events in each window, which zstd cannot compress.
#[derive(Clone, Default)]
struct Invents {
    events: u64,
    takes: Duration,
    reported: Arc<AtomicU64>,
}

impl Invents {
    fn boxed(&self) -> Begun {
        Some(Ok(Box::new(self.clone())))
    }
}

fn noise(i: u64) -> u64 {
    (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl Record for Invents {
    fn snapshot(&self, from: Ns, to: Ns) -> Snapshot {
        latpath_testkit::waits::fault_for(self.takes);
        self.reported.fetch_add(1, Ordering::SeqCst);
        let step = (to - from) / self.events.max(1) as Ns;
        let event = |i: u64| Event { t: from + i as Ns * step, pid: 7, what: EventKind::TimerEntry(noise(i)) };
        let events = (0..self.events).map(event).collect();
        let cpus = vec![CpuRecord { cpu: 1, events, since: from, ..CpuRecord::default() }];
        let threads = [(7, Thread { name: "relay".into(), tgid: 7 })].into();
        Snapshot { window: Window { from, to, cpus }, threads, ..Snapshot::default() }
    }

    fn figures(&self) -> Figures {
        let missing = vec!["tracepoint nmi_handler: not here; not recorded: NMIs".into()];
        Figures { missing, events: 5, missed: 1, bytes: 1 << 20, ns_per_event: Some(90), ..Figures::default() }
    }
}

/// Starts a host and an agent with this recorder.
fn started(options: ServeOptions, recorder: Begun, timeouts: Timeouts) -> (Machine, Agent) {
    let (host, guest) = UnixStream::pair().unwrap();
    started_over(host, guest, options, recorder, timeouts)
}

fn started_over(
    host: UnixStream,
    guest: UnixStream,
    options: ServeOptions,
    recorder: Begun,
    timeouts: Timeouts,
) -> (Machine, Agent) {
    let agent = agent_recording(guest, options, || recorder);
    let mut machine = Machine::on_stream("guest0", "socket pair", Stream::new(host).unwrap(), timeouts).unwrap();
    machine.start(&recorded()).unwrap();
    (machine, agent)
}

/// Waits for the first `n` windows.
fn windows(machine: &mut Machine, n: usize) -> Vec<(u64, Result<GuestWindow, String>)> {
    let mut got = Vec::new();
    let waited = until(&format!("{n} windows come"), || {
        got.extend(machine.take_windows());
        got.len() >= n
    });
    waited.unwrap_or_else(|e| panic!("{e:?}; {} have; {:?}", got.len(), machine.fault()));
    got
}

fn only(machine: &mut Machine) -> Result<GuestWindow, String> {
    windows(machine, 1).remove(0).1
}

#[test]
fn a_window_has_the_requested_time_and_the_clocks_offset() {
    // The guest's clock is 100 s ahead and 80 ppm fast.
    let began = monotonic();
    let guest = move |host: Ns| host + 100_000_000_000 + (host - began) * 80 / 1_000_000;
    let options = ServeOptions { clock: Box::new(move || guest(monotonic())), ..ServeOptions::default() };
    let invents = Invents { events: 1000, ..Invents::default() };
    let (mut machine, agent) = started(options, invents.boxed(), patient());
    // Sightings determine the offset that is also applied to the window.
    let t = monotonic();
    agent.sightings.send(vec![Sighting { t: guest(t), ..Sighting::default() }]).unwrap();
    let seen = drain(&mut machine, 1)[0].t;
    let (from, to) = (seen - 30 * MS, seen);
    let id = machine.request_window(from, to);
    let (of, window) = windows(&mut machine, 1).remove(0);
    assert_eq!(of, id);
    let GuestWindow { offset_ns, error_bound_ns, snapshot } = window.unwrap();
    assert_eq!(snapshot, invents.snapshot(snapshot.window.from, snapshot.window.to), "as it was made there");
    assert!((offset_ns - (guest(t) - t)).abs() <= error_bound_ns, "{offset_ns} within {error_bound_ns}");
    // The window has the same offset as the sighting: they are on the same timeline.
    assert!((guest(t) - offset_ns - seen).abs() <= 1, "{} against {seen}", guest(t) - offset_ns);
    assert!((snapshot.window.to - guest(t)).abs() <= 1 && (snapshot.window.from - guest(t - 30 * MS)).abs() < 10_000);
}

#[test]
fn a_window_may_end_in_the_near_future_and_arrives_after_its_end() {
    let (mut machine, _agent) = started(ServeOptions::default(), Invents::default().boxed(), patient());
    let now = monotonic();
    machine.request_window(now, now + 200 * MS);
    let to = only(&mut machine).unwrap().snapshot.window.to;
    assert!(to > now + 150 * MS && monotonic() >= to, "both ends have one clock here");
    machine.request_window(now + 59_000 * MS, now + 60_000 * MS);
    assert!(only(&mut machine).unwrap_err().contains("far future"));
    machine.request_window(now, now);
    assert!(only(&mut machine).unwrap_err().contains("must end after it begins"));
    machine.request_window(now - 60_000 * MS, now);
    assert!(only(&mut machine).unwrap_err().contains("too long"));
}

#[test]
fn each_requested_window_is_answered_once() {
    let invents = Invents { events: 20_000, takes: Duration::from_millis(20), ..Invents::default() };
    let (mut machine, _agent) = started(ServeOptions::default(), invents.boxed(), patient());
    let now = monotonic();
    let mut ids: Vec<u64> = (0..40).map(|_| machine.request_window(now - 20 * MS, now)).collect();
    let mut got = windows(&mut machine, 40);
    let refused: Vec<_> = got.iter().filter_map(|(_, window)| window.as_ref().err()).collect();
    assert!(refused.iter().all(|why| why.contains("not fetched")), "{refused:?}");
    assert_eq!(refused.len(), 24, "16 may be under way");
    got.sort_by_key(|(id, _)| *id);
    ids.sort_unstable();
    assert_eq!(got.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
    assert_eq!(invents.reported.load(Ordering::SeqCst), 16);
    assert!(machine.take_windows().is_empty() && machine.is_alive());
    machine.request_window(now - 20 * MS, now);
    assert!(only(&mut machine).is_ok(), "those that were fetched make room");
}

/// The agent's stream to the host, on which only the allowed bytes pass; unlimited once the sender is dropped.
struct Line {
    more: Sender<usize>,
    left: Arc<AtomicUsize>,
}

impl Line {
    const STEP: usize = 16 << 10;

    fn new() -> (UnixStream, UnixStream, Self) {
        let (host, mut near) = UnixStream::pair().unwrap();
        let (mut far, guest) = UnixStream::pair().unwrap();
        let (mut back, mut there) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut back, &mut there));
        let (more, allowed) = channel();
        let left = Arc::new(AtomicUsize::new(0));
        let spent = left.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = far.read(&mut bytes) {
                while spent.load(Ordering::SeqCst) < n {
                    spent.fetch_add(allowed.recv().unwrap_or(usize::MAX / 2), Ordering::SeqCst);
                }
                spent.fetch_sub(n, Ordering::SeqCst);
                if near.write_all(&bytes[..n]).is_err() {
                    return;
                }
            }
        });
        (host, guest, Self { more, left })
    }

    /// Allows more bytes unless enough are left; returns how many.
    fn allow(&self) -> usize {
        if self.left.load(Ordering::SeqCst) >= 4096 {
            return 0;
        }
        self.more.send(Self::STEP).unwrap();
        Self::STEP
    }
}

#[test]
fn sightings_and_the_time_do_not_wait_for_a_window() {
    const EVENTS: u64 = 1 << 18;
    let (host, guest, line) = Line::new();
    let invents = Invents { events: EVENTS, ..Invents::default() };
    line.more.send(100 << 10).unwrap();
    let (mut machine, agent) = started_over(host, guest, ServeOptions::default(), invents.boxed(), patient());
    let now = monotonic();
    machine.request_window(now - 20 * MS, now);
    let mut allowed = 0;
    until("the window is made", || {
        allowed += line.allow();
        invents.reported.load(Ordering::SeqCst) == 1
    })
    .unwrap();
    let before = machine.clock().exchanges;
    for key in 0..4 {
        agent.sightings.send(vec![Sighting { t: monotonic(), key, ..Sighting::default() }]).unwrap();
        let mut seen = Vec::new();
        until("the sighting", || {
            allowed += line.allow();
            machine.drain(&mut seen);
            !seen.is_empty()
        })
        .unwrap();
        assert_eq!((seen.len(), seen[0].key), (1, key));
    }
    let mut none = Vec::new();
    until("an exchange of times", || {
        allowed += line.allow();
        machine.drain(&mut none);
        machine.clock().exchanges > before
    })
    .unwrap();
    // The window has about 2 MB; if the test machine paused, all of it may have been allowed through.
    assert!(allowed > 1 << 20 || machine.take_windows().is_empty(), "{allowed} bytes passed");
    drop(line);
    assert_eq!(only(&mut machine).unwrap().snapshot.window.cpus[0].events.len() as u64, EVENTS);
}

#[test]
fn a_recorders_missing_features_and_cost_are_reported() {
    let (mut machine, _agent) = started(ServeOptions::default(), Invents::default().boxed(), patient());
    let now = monotonic();
    machine.request_window(now - MS, now);
    only(&mut machine).unwrap();
    // Repeats the request until the figures count a window, however busy the machine is.
    until("the figures", || {
        machine.request_window(now - MS, now);
        drop(machine.take_windows());
        machine.recorder().unwrap().unwrap().windows > 0
    })
    .unwrap();
    let figures = machine.recorder().unwrap().unwrap();
    assert_eq!(Figures { windows: 0, ..figures }, Invents::default().figures());
    until("what it costs", || machine.cpu_percent().is_some_and(|percent| percent >= 0.0)).unwrap();
}

#[test]
fn without_a_recorder_a_window_is_an_error_with_the_reason() {
    let window = |mut machine: Machine| {
        let now = monotonic();
        machine.request_window(now - MS, now);
        let answer = only(&mut machine);
        assert!(machine.is_alive());
        (answer.unwrap_err(), machine.recorder())
    };
    let (host, guest) = UnixStream::pair().unwrap();
    let _agent = agent_with(guest, ServeOptions::default());
    let mut machine = Machine::on_stream("guest0", "socket pair", Stream::new(host).unwrap(), patient()).unwrap();
    machine.start(&request()).unwrap();
    assert_eq!(window(machine), ("its flight recorder was not started".into(), None));

    let (mut machine, _agent) = started(ServeOptions::default(), Some(Err("no BTF".into())), patient());
    until("the refusal", || machine.recorder() == Some(Err("no BTF".into()))).unwrap();
    let now = monotonic();
    machine.request_window(now - MS, now);
    assert_eq!(only(&mut machine), Err("no BTF".into()));

    // The agent does not support the option, so it reports no recorder.
    let (machine, _agent) = started(ServeOptions::default(), None, patient());
    assert_eq!(window(machine).0, "no flight recorder runs here");
}

#[test]
fn an_agent_older_than_recorders_gets_no_request_and_the_host_reports_it() {
    let facts = Facts { program: "0.0.9".into(), records: false, ..Facts::default() };
    let (mut machine, _agent) =
        started(ServeOptions { facts, ..ServeOptions::default() }, Invents::default().boxed(), patient());
    let now = monotonic();
    machine.request_window(now - MS, now);
    let why = only(&mut machine).unwrap_err();
    assert_eq!(why, "its agent (latpath 0.0.9) has no flight recorder: install the same latpath on both");
    assert_eq!(machine.recorder(), Some(Err(why)));
    assert!(machine.is_alive());
}

/// A recorder that blocks until a signal.
struct Waits(Invents, Mutex<Receiver<()>>);

impl Waits {
    /// Creates the recorder, and the sender whose drop releases it.
    fn boxed(invents: &Invents) -> (Begun, Sender<()>) {
        let (go_on, signal) = channel();
        (Some(Ok(Box::new(Self(invents.clone(), Mutex::new(signal))))), go_on)
    }
}

impl Record for Waits {
    fn snapshot(&self, from: Ns, to: Ns) -> Snapshot {
        let _ = self.1.lock().unwrap().recv();
        self.0.snapshot(from, to)
    }

    fn figures(&self) -> Figures {
        self.0.figures()
    }
}

#[test]
fn a_late_window_is_given_up_and_its_later_parts_are_discarded() {
    let invents = Invents { events: 50_000, ..Invents::default() };
    let (recorder, go_on) = Waits::boxed(&invents);
    let timeouts = Timeouts { window: Duration::from_millis(200), ..patient() };
    let (mut machine, _agent) = started(ServeOptions::default(), recorder, timeouts);
    let now = monotonic();
    machine.request_window(now - MS, now);
    assert_eq!(only(&mut machine).unwrap_err(), "the agent did not answer in time");
    drop(go_on);
    until("it has answered", || invents.reported.load(Ordering::SeqCst) == 1).unwrap();
    let exchanges = machine.clock().exchanges;
    until("what came later is read", || machine.clock().exchanges > exchanges + 10).unwrap();
    assert!(machine.take_windows().is_empty() && machine.is_alive(), "{:?}", machine.fault());
}

/// A recorder that panics.
struct Panics;

impl Record for Panics {
    fn snapshot(&self, _: Ns, _: Ns) -> Snapshot {
        panic!("on purpose, in a test")
    }

    fn figures(&self) -> Figures {
        Figures::default()
    }
}

#[test]
fn a_panicking_recorder_loses_its_windows_only() {
    let (mut machine, agent) = started(ServeOptions::default(), Some(Ok(Box::new(Panics))), patient());
    let now = monotonic();
    machine.request_window(now - MS, now);
    machine.request_window(now - MS, now);
    for (_, window) in windows(&mut machine, 2) {
        assert!(window.unwrap_err().contains("a panic"));
    }
    assert!(machine.recorder().unwrap().unwrap_err().contains("a panic"));
    agent.sightings.send(vec![Sighting { t: monotonic(), ..Sighting::default() }]).unwrap();
    drain(&mut machine, 1);
    machine.stop().unwrap();
}

#[test]
fn requests_to_a_dead_agent_end_with_an_error() {
    let (host, guest) = UnixStream::pair().unwrap();
    let cut = guest.try_clone().unwrap();
    let (recorder, _go_on) = Waits::boxed(&Invents::default());
    let (mut machine, _agent) = started_over(host, guest, ServeOptions::default(), recorder, patient());
    let now = monotonic();
    let ids = [0, 1, 2].map(|_| machine.request_window(now - MS, now));
    cut.shutdown(std::net::Shutdown::Both).unwrap();
    let got = windows(&mut machine, 3);
    assert_eq!(got.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
    assert!(got.iter().all(|(_, window)| window.as_ref().unwrap_err().contains("closed the stream")), "{got:?}");
    machine.request_window(now - MS, now);
    assert!(only(&mut machine).unwrap_err().contains("closed the stream"));
}

#[test]
fn a_stopped_session_answers_pending_requests() {
    let invents = Invents { takes: Duration::from_millis(100), ..Invents::default() };
    let (mut machine, agent) = started(ServeOptions::default(), invents.boxed(), patient());
    let now = monotonic();
    for _ in 0..5 {
        machine.request_window(now - MS, now);
    }
    machine.stop().unwrap();
    assert_eq!(windows(&mut machine, 5).len(), 5);
    assert!(agent.thread.join().unwrap().is_ok());
    assert_eq!(machine.fault(), None);
}
