//! An untrusted guest: wherever its agent reports a name, it uses the path of a file that belongs to the host's root,
//! or a shell command.
//!
//! The agent is a process of its own: this executable, if the environment requests it.

use crate::hostile::{Bait, Running};
use latpath_agent::{
    serve, Attached, Commands, Facts, FindObserver, MakeObserver, Observer, Sampler, ServeOptions, StartRequest, Stream,
};
use latpath_flight::{Class, CpuRecord, Event, EventKind, Figures, Left, Record, Sleep, Snapshot, Window};
use latpath_linux::monotonic;
use latpath_model::{Counters, DropNote, Link, Ns, Observation, Point, PointInfo, PointKind, Sighting, Source};
use latpath_observe::queues::{Device, QueuesFigures};
use latpath_profile::{FrameId, Mode, Seen, Slice, Stack, Unnamed};
use latpath_testkit::{waits, Failed};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::{env, fs};

const SOCKET: &str = "LATPATH_TEST_HOSTILE_GUEST";
const BAIT: &str = "LATPATH_TEST_BAIT";

/// Interval of the packets, ns. One in `LATE_ONE_OF` takes `LATE`, the others `ON_TIME`.
const DISTANCE: Ns = 10_000_000;
const LATE_ONE_OF: Ns = 20;
const LATE: Ns = 5_000_000;
const ON_TIME: Ns = 20_000;
/// TIDs of the guest's application and of the thread that delays it.
const READER: u32 = 1001;
const HOG: u32 = 1002;

pub struct Guest {
    _agent: Running,
    pub address: String,
    _folder: tempfile::TempDir,
}

impl Guest {
    pub fn start(bait: &Bait) -> Result<Self, Failed> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("agent");
        let programs = folder.path().join("bin");
        fs::create_dir(&programs)?;
        write_load(&programs, bait.folder.path())?;
        let mut agent = Command::new(env::current_exe()?);
        let path = [programs.as_os_str(), &env::var_os("PATH").unwrap_or_default()].join(std::ffi::OsStr::new(":"));
        agent.env(SOCKET, &socket).env(BAIT, bait.folder.path()).env("PATH", path);
        let agent = Running(agent.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
        waits::until("the guest's agent listens", || socket.exists())?;
        Ok(Self { _agent: agent, address: format!("unix:{}", socket.display()), _folder: folder })
    }
}

/// Writes a program that prints the agent's names as an observation.
fn write_load(folder: &Path, bait: &Path) -> Result<(), Failed> {
    let said = folder.join("said");
    fs::write(&said, observed(&names(bait)))?;
    let program = folder.join("lp-load");
    fs::write(&program, format!("#!/bin/sh\ncat {}\nsleep 1\n", said.display()))?;
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755))?;
    Ok(())
}

/// Encodes an observation of the instrument `queues` whose devices and VMs have these names.
fn observed(names: &[String]) -> Vec<u8> {
    let device = |name: &String| Device {
        name: Some(name.clone()),
        known_as: names.to_vec(),
        driver: Some(name.clone()),
        vm: Some(name.clone()),
        pid: Some(1),
        ..Device::default()
    };
    let figures = QueuesFigures { devices: names.iter().map(device).collect(), ..QueuesFigures::default() };
    let (not_shown, notes) = (names.to_vec(), names.to_vec());
    let seen = Observation { window_ns: 1_000_000_000, not_shown, notes, figures, ..Observation::default() };
    serde_json::to_vec(&seen).expect("figures are JSON")
}

/// An instrument of the guest.
struct FixedInstrument(Vec<u8>);

impl Observer for FixedInstrument {
    fn step(&mut self) {}

    fn end(self: Box<Self>, _: &AtomicBool) -> Vec<u8> {
        self.0
    }
}

/// Paths that lead to a file that belongs to root, and shell text that creates a file there if a shell interprets it.
/// The names that are used most come first.
fn names(bait: &Path) -> Vec<String> {
    let (fifo, made) = (bait.join("fifo").display().to_string(), bait.join("executed").display().to_string());
    let commands = ["$(touch WHAT)", "`touch WHAT`", "; touch WHAT #", "'; touch WHAT; '", "\n|touch WHAT"];
    let mut names = commands.map(|text| text.replace("WHAT", &made)).to_vec();
    names.insert(0, fifo.clone());
    names.push(format!("{}{fifo}", "../".repeat(8).trim_end_matches('/')));
    names.push(format!("/proc/self/root{fifo}"));
    names.push(bait.join("file").display().to_string());
    names
}

/// To be called first in the test's `main`. If the environment requests it, this process is the guest's agent until it
/// is killed.
pub fn run_if_asked() {
    let (Some(socket), Some(bait)) = (env::var_os(SOCKET), env::var_os(BAIT)) else { return };
    // SAFETY: takes only integers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let names = names(&PathBuf::from(bait));
    let listener = UnixListener::bind(socket).expect("a socket");
    for stream in listener.incoming() {
        let (mut stream, names) = (Stream::new(stream.expect("a host")).expect("a stream"), names.clone());
        std::thread::spawn(move || {
            let commands = Commands::Allowed;
            let seen = observed(&names);
            let find = move |_: &str| -> Option<MakeObserver> {
                let seen = seen.clone();
                Some(Box::new(move || Ok(Box::new(FixedInstrument(seen)) as Box<dyn Observer>)))
            };
            let observers: Option<FindObserver> = Some(Box::new(find));
            let mut options = ServeOptions { facts: facts(&names), commands, observers, ..ServeOptions::default() };
            // The host decides how the session ends.
            drop(serve(&mut stream, &mut options, None, move |request: &StartRequest| Ok(attached(request, names))));
        });
    }
}

fn facts(names: &[String]) -> Facts {
    let [a, b, c, d, ..] = names else { panic!("there are more") };
    let own = Facts::of_this_machine();
    // Another kernel than the host's.
    let (program, kernel, hostname, clocksource) = (a.clone(), b.clone(), c.clone(), d.clone());
    Facts { program, kernel, hostname, clocksource, capabilities: names.join("\n"), boot_id: a.clone(), ..own }
}

fn attached(request: &StartRequest, names: Vec<String>) -> Attached<Packets> {
    let recorder =
        request.option(StartRequest::FLIGHT).map(|_| Ok(Box::new(Recorder(names.clone())) as Box<dyn Record>));
    let sampled = names.clone();
    let sampler = request.option(StartRequest::PROFILE).map(|_| {
        let make =
            move || Ok(Box::new(Samples { names: sampled, until: monotonic(), is_first: true }) as Box<dyn Sampler>);
        Box::new(make) as latpath_agent::MakeSampler
    });
    let next = (monotonic() / DISTANCE + 2) * DISTANCE;
    Attached { source: Packets { names, next, made: 0 }, recorder, sampler }
}

/// The time at which the packet sent at `t` is read.
fn read_at(t: Ns) -> Ns {
    t + if t / DISTANCE % LATE_ONE_OF == 0 { LATE } else { ON_TIME }
}

/// Packets of the first stream, at points named like files and commands.
struct Packets {
    names: Vec<String>,
    /// Send time of the next packet.
    next: Ns,
    made: u64,
}

impl Source for Packets {
    fn points(&mut self) -> Vec<PointInfo> {
        let point = |(number, device): (usize, &String)| PointInfo {
            link: Link::Nic,
            netns: 7,
            ifindex: number as u32 + 1,
            clock: device.clone(),
            ..Point {
                machine: device.clone(),
                kind: if number == 1 { PointKind::AppRead } else { PointKind::NicRx },
                device: device.clone(),
            }
            .into()
        };
        self.names.iter().enumerate().map(point).collect()
    }

    fn drop_notes(&mut self) -> Vec<DropNote> {
        let note = |name: &String| DropNote { reason: name.clone(), function: name.clone(), at: None };
        self.names.iter().map(note).collect()
    }

    fn drain(&mut self, out: &mut Vec<Sighting>) -> Ns {
        let now = monotonic();
        while read_at(self.next) < now {
            let (sent, key) = (self.next, (self.next / DISTANCE) as u32);
            let sighting = |t, point, tid| Sighting { t, key, tid, stream: 0, point, cpu: 0, note: 0 };
            out.extend([sighting(sent, 0, HOG), sighting(read_at(sent), 1, READER)]);
            self.next += DISTANCE;
            self.made += 2;
        }
        self.next
    }

    fn counters(&mut self) -> Counters {
        Counters { sightings: self.made, ..Counters::default() }
    }
}

/// A flight recorder in which the hog runs while late packets wait for the application.
struct Recorder(Vec<String>);

impl Record for Recorder {
    fn snapshot(&self, from: Ns, to: Ns) -> Snapshot {
        let class = Class { prio: 120, policy: 0 };
        let event = |t, pid, what| Event { t, pid, what };
        let switch = |next, left| EventKind::Switch { next, left, prev: class, next_class: class };
        let of_packet = |sent: Ns| {
            let read = read_at(sent) - 1_000;
            let woken = EventKind::Wakeup { pid: READER, cpu: 0, class, throttled: false };
            [
                event(sent + 1_000, HOG, woken),
                event(read, HOG, switch(READER, Left::Ready { preempted: true, throttled: false })),
                event(read + 3_000, READER, switch(HOG, Left::Asleep(Sleep::Interruptible))),
            ]
        };
        let sent = (from / DISTANCE..=to / DISTANCE).map(|number| number * DISTANCE);
        let events: Vec<Event> = sent.flat_map(of_packet).filter(|event| (from..to).contains(&event.t)).collect();
        let cpus = vec![CpuRecord { events, since: from, ..CpuRecord::default() }];
        let named = |from: u32| self.0.iter().cloned().enumerate().map(move |(at, name)| (from + at as u32, name));
        let thread = |(tid, name): (u32, String)| (tid, latpath_flight::Thread { name, tgid: READER });
        let functions = named(1).map(|(at, name)| (u64::from(at), name)).collect::<BTreeMap<_, _>>();
        Snapshot {
            window: Window { from, to, cpus },
            threads: named(READER).map(thread).collect(),
            units: named(READER).collect(),
            irqs: named(1).collect(),
            functions,
            missing: self.0.clone(),
            ..Snapshot::default()
        }
    }

    fn figures(&self) -> Figures {
        Figures { missing: self.0.clone(), ..Figures::default() }
    }
}

/// Samples of functions, threads and files with names like files and commands of the host.
struct Samples {
    names: Vec<String>,
    until: Ns,
    is_first: bool,
}

impl Samples {
    fn slice(&mut self) -> Slice {
        let (from, until) = (self.until, monotonic().max(self.until + 1));
        self.until = until;
        let seen = vec![Seen { t: from, cpu: 0, thread: 0, stack: 0 }];
        let slice = Slice { from, until, seen, times: vec![(0, until - from)], ..Slice::default() };
        if !std::mem::take(&mut self.is_first) {
            return slice;
        }
        let count = self.names.len() as u32;
        let thread = |name: &String| latpath_profile::Thread {
            tid: READER,
            tgid: READER,
            comm: name.clone(),
            process: name.clone(),
            ..latpath_profile::Thread::default()
        };
        // Files whose build IDs are these names.
        let unnamed = |(at, name): (usize, &String)| Unnamed {
            name: at as u32,
            build_id: name.bytes().take(latpath_profile::MAX_BUILD_ID).collect(),
            address: 0x1000,
        };
        Slice {
            unnamed: self.names.iter().enumerate().map(unnamed).collect(),
            threads: self.names.iter().map(thread).collect(),
            stacks: vec![Stack {
                mode: Mode::User,
                frames: (0..count).map(|name| FrameId::new(name, false)).collect(),
            }],
            names: self.names.clone(),
            ..slice
        }
    }
}

impl Sampler for Samples {
    fn step(&mut self) -> Option<Slice> {
        Some(self.slice())
    }

    fn end(&mut self, _: &AtomicBool) -> Slice {
        self.slice()
    }
}
