//! An agent that invents sightings, 4,000 packets per second at three points, and needs neither permissions nor
//! packets. Tests use it to check a host against a dying or hostile agent. It serves standard input and output; with
//! `fake-agent device PATH`, a device.
//!
//! `fake-agent die-after N` aborts after it has reported N packets; `fake-agent refuse WHY` cannot attach its probe.
//! `fake-agent hostile` sends as much as the protocol permits, with the worst contents: endless sightings of any key
//! and time, names of points and notes with terminal control codes, overflowing counts, windows that unpack to the
//! host's limit. `fake-agent raw` does the same with a profile and a command's output: it writes messages without the
//! limits of an honest agent.

use latpath_agent::{listen, Attached, Facts, Listen, ServeOptions, StartRequest};
use latpath_flight::{CpuRecord, Event, EventKind, Figures, Record, Snapshot, Thread, Window};
use latpath_linux::monotonic;
use latpath_model::{
    Counters, DropNote, Link, Ns, Point, PointInfo, PointKind, SenderAt, Sighting, Source, SourceNote, SourceNoteKind,
};
use latpath_testkit::wire::{bytes, list, number, tag, zigzag};
use latpath_testkit::Noise;
use std::io::{self, Read, Write};
use std::sync::Mutex;

struct Invented {
    next: u32,
    began: Ns,
    last: u32,
}

impl Source for Invented {
    fn points(&mut self) -> Vec<PointInfo> {
        let point = |kind, device: &str| PointInfo {
            point: Point { machine: "self".into(), kind, device: device.into() },
            link: Link::Nic,
            netns: 1,
            ifindex: 2,
            peer: 0,
            peer_netns: 0,
            error_bound_ns: 0,
            clock: "monotonic".into(),
        };
        vec![point(PointKind::NicRx, "eth1"), point(PointKind::Tx, "eth1"), point(PointKind::AppRead, "relay")]
    }

    fn drop_notes(&mut self) -> Vec<DropNote> {
        vec![]
    }

    fn drain(&mut self, out: &mut Vec<Sighting>) -> Ns {
        // Aborts only here, on the next call, so that all earlier reports have been written.
        if self.next >= self.last {
            eprintln!("out of luck");
            std::process::abort();
        }
        let now = monotonic();
        loop {
            let t = self.began + Ns::from(self.next) * 250_000;
            if t + 100_000 >= now {
                return t;
            }
            let seen =
                |point| Sighting { t: t + Ns::from(point) * 20_000, key: self.next, point, ..Sighting::default() };
            out.extend([seen(0), seen(1), seen(2)]);
            self.next += 1;
        }
    }

    fn counters(&mut self) -> Counters {
        Counters { sightings: u64::from(self.next) * 3, ..Counters::default() }
    }
}

/// A source and flight recorder with the worst contents that the protocol permits (`fake-agent hostile`).
struct Hostile {
    chance: Noise,
}

const EVIL: &str = "\u{1b}[2J\u{202e}';reboot;'";

impl Source for Hostile {
    fn points(&mut self) -> Vec<PointInfo> {
        let point = |n: u32| PointInfo {
            point: Point { machine: EVIL.into(), kind: PointKind::ALL[n as usize % 7], device: format!("{EVIL}{n}") },
            link: Link::Tap,
            netns: n,
            ifindex: u32::MAX,
            peer: u32::MAX,
            peer_netns: 0,
            error_bound_ns: 0,
            clock: EVIL.into(),
        };
        (0..64).map(point).collect()
    }

    fn drop_notes(&mut self) -> Vec<DropNote> {
        (0..1_000).map(|n| DropNote { reason: format!("{EVIL}{n}"), function: EVIL.repeat(9), at: None }).collect()
    }

    fn drain(&mut self, out: &mut Vec<Sighting>) -> Ns {
        let now = monotonic();
        for _ in 0..8_192 {
            let n = self.chance.draw();
            let t = match n % 1_000 {
                0 => now - 1_790_000_000,
                1 => now + 900_000_000,
                _ => now - (n >> 34) as Ns % 1_500_000_000,
            };
            out.push(Sighting {
                t,
                key: n as u32,
                tid: n as u32,
                stream: 0,
                point: (n >> 32) as u16 % 64,
                cpu: n as u16,
                note: 0,
            });
        }
        // The watermark lies 1.8 s in the past, so that later sightings may have any time since then.
        now - 1_800_000_000
    }

    fn counters(&mut self) -> Counters {
        let all = u64::MAX;
        Counters {
            sightings: all,
            dropped: all,
            malformed: all,
            points_overflow: all,
            skipped: all,
            ..Counters::default()
        }
    }

    fn source_notes(&mut self) -> Vec<SourceNote> {
        let n = self.chance.draw();
        (0..99).map(|i| SourceNote::new(SourceNoteKind::Note, format!("{n} {i} {}", EVIL.repeat(99)))).collect()
    }

    fn senders(&mut self) -> Vec<SenderAt> {
        let sender = |n: u16| latpath_model::Sender::Mac([n as u8; 6]);
        (0..5000).map(|n| SenderAt { stream: n % 3, sender: sender(n), point: n }).collect()
    }
}

impl Record for Hostile {
    fn snapshot(&self, from: Ns, to: Ns) -> Snapshot {
        let events = vec![Event { t: from, pid: 1, what: EventKind::TimerExit }; 250_000];
        let record = CpuRecord { cpu: 0, events, since: from, overwritten: u64::MAX, unfinished: u64::MAX };
        let threads = (0..60_000).map(|pid| (pid, Thread { name: format!("{EVIL}{pid}"), tgid: pid })).collect();
        Snapshot { window: Window { from, to, cpus: vec![record] }, threads, ..Snapshot::default() }
    }

    fn figures(&self) -> Figures {
        Figures { events: u64::MAX, missed: u64::MAX, ..Figures::default() }
    }
}

/// Implements the protocol itself, without the limits of an honest agent (`fake-agent raw`).
fn raw() -> io::Result<()> {
    const OURS: &[u8] = b"\xfe\xfflatpth";
    let (mut host, out) = (io::stdin().lock(), Mutex::new(io::stdout()));
    let say = |kind: u64, content: &[Vec<u8>]| -> io::Result<()> {
        let message = bytes(kind, &content.concat());
        let mut out = out.lock().expect("nobody panics with it");
        out.write_all(&(message.len() as u32).to_le_bytes())?;
        out.write_all(&message)?;
        out.flush()
    };
    let mut opening = [0; 16];
    host.read_exact(&mut opening)?;
    out.lock().expect("nobody panics with it").write_all(&[OURS, &opening[8..]].concat())?;
    say(2, &[number(1, 1), bytes(2, EVIL.as_bytes()), number(10, 1), number(11, 1)])?;
    std::thread::scope(|scope| -> io::Result<()> {
        loop {
            let mut length = [0; 4];
            host.read_exact(&mut length)?;
            let mut message = vec![0; u32::from_le_bytes(length) as usize];
            host.read_exact(&mut message)?;
            let now = || zigzag(monotonic());
            match tag(&message) {
                // The reply repeats the request's id: the first field of the content, after the content's length.
                Some((9, content)) => say(10, &[content[1..].to_vec(), number(2, now()), number(3, now())])?,
                Some((3, _)) => {
                    say(4, &[])?;
                    scope.spawn(|| profile(&say));
                }
                Some((19, _)) => drop(scope.spawn(|| prints(&say))),
                // The host requests a stop. Exiting closes the stream and ends the flooding threads.
                Some((13, _)) => std::process::exit(0),
                _ => {}
            }
        }
    })
}

/// Sends a message of a kind (its protobuf tag), with the encoded fields of its content.
type Say<'a> = &'a (dyn Fn(u64, &[Vec<u8>]) -> io::Result<()> + Sync);

/// Sends endless slices of a profile: first slices with as many entries of one kind as the host accepts, then samples
/// that are all different.
fn profile(say: Say) -> io::Result<()> {
    const PIECE: usize = 512 << 10;
    let mut t = monotonic();
    let mut slice = |content: Vec<u8>| -> io::Result<()> {
        let begin = t;
        t += 1_000_000_000;
        let packed = [number(1, zigzag(begin)), number(2, zigzag(t)), content].concat();
        let reply = bytes(2, &packed);
        let last = reply.len().saturating_sub(1) / PIECE;
        for (n, piece) in reply.chunks(PIECE).enumerate() {
            say(18, &[bytes(1, piece), number(2, (n == last).into())])?;
        }
        Ok(())
    };
    let long = "\u{202e}".repeat(40);
    for _ in 0..12 {
        slice(bytes(3, b"x").repeat(20_000))?;
        slice(bytes(4, &[number(1, 7), bytes(4, long.as_bytes()), bytes(5, long.as_bytes())].concat()).repeat(5_000))?;
        slice(bytes(5, &[number(1, 1), list(2, &[0; 16])].concat()).repeat(10_000))?;
        slice(bytes(14, &[bytes(2, &[7; 64]), number(3, 1)].concat()).repeat(1_000))?;
    }
    let mut first = 0;
    loop {
        let rows = 100_000;
        let column = |of: &dyn Fn(u64) -> u64| (first..first + rows).map(of).collect::<Vec<u64>>();
        let threads = list(8, &column(&|n| n % 50_000));
        let samples = [list(6, &vec![0; rows as usize]), list(7, &column(&|n| n / 50_000 % 8192)), threads];
        slice([samples.concat(), list(9, &column(&|n| n % 100_000))].concat())?;
        first += rows;
    }
}

/// Sends endless output of a command.
fn prints(say: Say) -> io::Result<()> {
    let piece = vec![b'\x1b'; 1_000_000];
    loop {
        say(20, &[bytes(1, &piece)])?;
        say(20, &[bytes(1, &piece), number(2, 1)])?;
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (mut refusal, mut at, mut last, mut is_hostile) = (None, Listen::Stdio, u32::MAX, false);
    match args[..] {
        [] => {}
        ["hostile"] => is_hostile = true,
        ["raw"] => {
            // Returns when the host hangs up.
            let _ = raw();
            return;
        }
        ["die-after", packets] => last = packets.parse().expect("packets"),
        ["device", path] => at = Listen::Device(path.into()),
        ["refuse", why] => refusal = Some(why.to_string()),
        _ => panic!("fake-agent [device PATH | die-after N | refuse WHY | hostile | raw]"),
    }
    let mut log = |line: &str| eprintln!("fake-agent: {line}");
    // No boot ID, so that the host takes this agent for one on a separate machine.
    let facts = Facts { boot_id: String::new(), ..Facts::of_this_machine() };
    let mut options = ServeOptions { facts, ..ServeOptions::default() };
    let waits = at == Listen::Stdio;
    let listened = if is_hostile {
        let hostile = || Hostile { chance: Noise(0x9e37_79b9_7f4a_7c15) };
        let make = move |start: &StartRequest| {
            let recorder = start.option(StartRequest::FLIGHT).map(|_| Ok(Box::new(hostile()) as Box<dyn Record>));
            Ok::<_, String>(Attached { source: hostile(), recorder, sampler: None })
        };
        listen(&at, waits, &mut options, None, &mut log, make)
    } else {
        let make = move |_: &StartRequest| match &refusal {
            Some(why) => Err(String::clone(why)),
            None => Ok(Attached::from(Invented { next: 0, began: monotonic(), last })),
        };
        listen(&at, waits, &mut options, None, &mut log, make)
    };
    if let Err(e) = listened {
        eprintln!("fake-agent: {e}");
        std::process::exit(1);
    }
}
