//! Deliberate faults: this test program, started with [`WORD`], injects one of them repeatedly, and prints a line
//! for each injection (`begin end`, in CLOCK_MONOTONIC of the machine it runs on).

use super::{
    application,
    group::quota,
    storm::{self, Storm},
};
use latpath_linux::monotonic;
use latpath_model::Ns;
use latpath_wire::thread::{pin, set_fifo, set_name};
use nix::{
    sys::signal::{kill, Signal},
    unistd::Pid,
};
use std::{
    collections::HashMap,
    fmt, fs,
    io::{self, Write},
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    str::FromStr,
    sync::{
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
        Arc, Mutex,
    },
    thread,
    time::Duration,
};

/// Argument that makes this program inject a fault.
pub const WORD: &str = "--fault";

/// One injection of a fault: the intervals in which it was active. There may be several, since other work can delay
/// the fault itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Injection(Vec<(Ns, Ns)>);

impl Injection {
    /// An injection without interruption.
    pub fn whole(begin: Ns, end: Ns) -> Self {
        Self(vec![(begin, end)])
    }

    /// An injection that was active in these intervals, the earliest first.
    pub fn in_pieces(pieces: Vec<(Ns, Ns)>) -> Self {
        Self(pieces)
    }

    /// Begin of the first interval and end of the last.
    pub fn bounds(&self) -> (Ns, Ns) {
        (self.0.first().map_or(0, |p| p.0), self.0.last().map_or(0, |p| p.1))
    }

    /// Time for which the injection was active between `begin` and `end`.
    pub fn during(&self, begin: Ns, end: Ns) -> Ns {
        self.0.iter().map(|piece| (piece.1.min(end) - piece.0.max(begin)).max(0)).sum()
    }

    /// The injection in the time of a clock that is `offset` behind.
    pub fn earlier_by(&self, offset: Ns) -> Self {
        Self(self.0.iter().map(|(begin, end)| (begin - offset, end - offset)).collect())
    }
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times: Vec<String> = self.0.iter().map(|(begin, end)| format!("{begin} {end}")).collect();
        f.write_str(&times.join(" "))
    }
}

impl FromStr for Injection {
    type Err = String;
    fn from_str(line: &str) -> Result<Self, String> {
        let times: Vec<Ns> = line.split(' ').map_while(|w| w.trim().parse().ok()).collect();
        let pieces: Vec<(Ns, Ns)> = times.chunks_exact(2).map(|c| (c[0], c[1])).collect();
        match times.len().is_multiple_of(2) && !pieces.is_empty() && times.is_sorted() {
            true => Ok(Self(pieces)),
            false => Err(format!("{line:?} is no injection")),
        }
    }
}

/// The parsed arguments of a fault: `KIND key=value …`
pub struct Words {
    kind: String,
    values: HashMap<String, String>,
}

impl Words {
    fn of(words: &[String]) -> Option<Self> {
        let at = words.iter().position(|w| w == WORD)?;
        let values = words[at + 2..].iter().filter_map(|w| w.split_once('='));
        let values = values.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        Some(Self { kind: words.get(at + 1)?.clone(), values })
    }

    /// A required value.
    pub fn get<T: FromStr>(&self, key: &str) -> io::Result<T> {
        let value = self.values.get(key).and_then(|v| v.parse().ok());
        value.ok_or_else(|| io::Error::other(format!("{}: {key}=… is missing or wrong", self.kind)))
    }

    /// A required duration, given in µs.
    pub fn time(&self, key: &str) -> io::Result<Duration> {
        Ok(Duration::from_micros(self.get(key)?))
    }
}

/// Number, duration and interval of the injections.
pub struct Rounds {
    times: u32,
    busy: Duration,
    every: Duration,
    gap: Ns,
}

impl Rounds {
    /// Reads `times=`, and `busy=`, `every=` and `gap=` in µs. A jump of the clock by `gap` or more means that other
    /// work took the CPU.
    pub fn of(words: &Words) -> io::Result<Self> {
        let gap = words.time("gap").map_or(GAP, ns);
        Ok(Self { times: words.get("times")?, busy: words.time("busy")?, every: words.time("every")?, gap })
    }

    /// Pause before the next injection, varied so that it does not align with periodic work.
    pub fn pause(&self, round: u32) -> Duration {
        self.every + Duration::from_micros(u64::from(round * 7919 % 5000))
    }

    /// Number of injections.
    pub fn times(&self) -> u32 {
        self.times
    }

    /// Duration of each injection.
    pub fn busy(&self) -> Duration {
        self.busy
    }

    /// Injects the fault in all rounds, and prints each injection. A round that other work on this machine
    /// disturbed is repeated.
    pub fn each(&self, mut fault: impl FnMut(Duration) -> io::Result<Done>) -> io::Result<()> {
        let mut injections = Vec::new();
        for round in 0..MAX_TRIES * self.times {
            if injections.len() == self.times as usize {
                break;
            }
            latpath_testkit::waits::fault_for(self.pause(round));
            let begin = monotonic();
            match fault(self.busy)? {
                Done::Now => injections.push(Injection::whole(begin, monotonic())),
                Done::In(pieces) if pieces.during(begin, Ns::MAX) * 10 >= ns(self.busy) * 9 => injections.push(pieces),
                Done::In(_) => {}
            }
        }
        print_injections(&injections)
    }
}

/// Result of one injection.
pub enum Done {
    /// Active from its begin until now.
    Now,
    /// Active in these intervals: other work took the CPU at times.
    In(Injection),
}

/// Maximum number of attempts for each injection.
const MAX_TRIES: u32 = 4;

/// Prints the injections.
pub fn print_injections(injections: &[Injection]) -> io::Result<()> {
    let lines: String = injections.iter().map(|i| format!("{i}\n")).collect();
    io::stdout().write_all(lines.as_bytes())
}

/// Parses the output of [`print_injections`].
pub fn parse(text: &str) -> Result<Vec<Injection>, String> {
    text.lines().filter(|l| !l.trim().is_empty()).map(str::parse).collect()
}

/// Runs the fault if this program was started for one.
pub fn main() -> Option<ExitCode> {
    let words: Vec<String> = std::env::args().collect();
    let words = Words::of(&words)?;
    match run(&words) {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("{}: {error}", words.kind);
            Some(ExitCode::FAILURE)
        }
    }
}

fn run(words: &Words) -> io::Result<()> {
    if words.kind == "application" {
        return application::run(words);
    }
    let rounds = Rounds::of(words)?;
    // On the publisher's CPU, away from the victim, unless the fault chooses its CPU itself.
    let _ = pin(0);
    match words.kind.as_str() {
        "hog" => {
            set_name("hog");
            pin(words.get("cpu")?).map_err(io::Error::other)?;
            set_fifo(words.get("fifo")?).map_err(io::Error::other)?;
            rounds.each(|busy| Ok(Done::In(Injection(take_cpu_until(monotonic() + ns(busy), rounds.gap)))))
        }
        "crowd" => {
            if let Ok(group) = words.get::<PathBuf>("group") {
                fs::write(group.join("cgroup.procs"), "0")?;
            }
            let crowd = Crowd::gather(words.get("cpu")?, words.get("threads")?, rounds.gap)?;
            rounds.each(|busy| Ok(Done::In(crowd.busy_for(busy))))
        }
        "stop" => {
            let pid = Pid::from_raw(words.get("pid")?);
            rounds.each(|busy| {
                kill(pid, Signal::SIGSTOP)?;
                latpath_testkit::waits::fault_for(busy);
                kill(pid, Signal::SIGCONT)?;
                Ok(Done::Now)
            })
        }
        "throttle" => {
            let group: PathBuf = words.get("group")?;
            rounds.each(|busy| {
                quota(&group, Some(Duration::from_millis(1)))?;
                latpath_testkit::waits::fault_for(busy);
                quota(&group, None)?;
                Ok(Done::Now)
            })
        }
        // The freezer of cgroup v1.
        "freeze" => {
            let state = words.get::<PathBuf>("group")?.join("freezer.state");
            rounds.each(|busy| {
                fs::write(&state, "FROZEN")?;
                latpath_testkit::waits::fault_for(busy);
                fs::write(&state, "THAWED")?;
                Ok(Done::Now)
            })
        }
        "trace" => {
            let pid = words.get("pid")?;
            rounds.each(|busy| trace(pid, busy).map(|()| Done::Now))
        }
        "storm" => {
            let piece = words.time("piece").ok();
            let storm = Storm::new(words.get("cpu")?, words.time("period")?, piece)?;
            rounds.each(|busy| storm.rage(busy).map(|()| Done::Now))
        }
        // Active as long as the device exists.
        "costly" => storm::make_costly(&words.get::<String>("at")?, words.time("cost")?),
        // The device's interrupt handler takes longer for each frame.
        "irq" => {
            let _costly = storm::CostlyIrq::new(words.get("irq")?, words.time("cost")?)?;
            application::flood(words, &rounds)
        }
        // Broadcasts frames from one device to all devices that they reach.
        "flood" => application::flood(words, &rounds),
        "burst" => {
            let (program, words): (PathBuf, String) = (words.get("program")?, words.get("words")?);
            let mut first = 0u32;
            rounds.each(|busy| {
                let end = monotonic() + ns(busy);
                let mut command = Command::new(&program);
                command.args(words.split(',')).args(["--first", &first.to_string()]);
                first = (first + 1000) % 4000;
                let ended = command.stdout(Stdio::null()).status()?;
                if !ended.success() {
                    return Err(io::Error::other(format!("the burst was not sent: {ended}")));
                }
                latpath_testkit::waits::fault_for(Duration::from_nanos((end - monotonic()).max(0) as u64));
                Ok(Done::Now)
            })
        }
        // Alternates the rate of a qdisc.
        "gate" => {
            let device: String = words.get("device")?;
            let set = |rate: &str| {
                let words = format!("qdisc change dev {device} root tbf rate {rate} burst 4000 limit 4000000");
                let ended = Command::new("tc").args(words.split(' ')).status()?;
                ended.success().then_some(()).ok_or_else(|| io::Error::other(format!("tc {words}: {ended}")))
            };
            rounds.each(|busy| {
                set("8kbit")?;
                latpath_testkit::waits::fault_for(busy);
                set("10gbit")?;
                Ok(Done::Now)
            })
        }
        other => Err(io::Error::other(format!("{other}: no such fault"))),
    }
}

/// Stops a process by ptrace, like a debugger.
fn trace(pid: i32, busy: Duration) -> io::Result<()> {
    let checked = |result: i64| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: these requests take only integers.
    let ask = |request| checked(unsafe { libc::ptrace(request, pid, 0, 0) });
    ask(libc::PTRACE_SEIZE)?;
    ask(libc::PTRACE_INTERRUPT)?;
    // SAFETY: a null status pointer is permitted.
    checked(unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) }.into())?;
    latpath_testkit::waits::fault_for(busy);
    ask(libc::PTRACE_DETACH)
}

/// A duration in ns.
pub fn ns(time: Duration) -> Ns {
    time.as_nanos() as Ns
}

/// Spins until this `CLOCK_MONOTONIC` time.
pub fn spin_until(t: Ns) {
    while monotonic() < t {
        std::hint::spin_loop();
    }
}

/// Gap that counts as an interruption, ns: in an emulated guest a thread switch takes more than 100 µs.
pub const GAP: Ns = 500_000;

/// Keeps the CPU busy until `end`; returns the intervals in which it really ran. Gaps shorter than `gap` do not count.
pub fn take_cpu_until(end: Ns, gap: Ns) -> Vec<(Ns, Ns)> {
    let mut pieces = Vec::new();
    loop {
        let now = monotonic();
        if now >= end {
            return pieces;
        }
        join(&mut pieces, (now, now), gap);
    }
}

/// Adds an interval that begins after all others, merging it with the last one across gaps shorter than `gap`.
fn join(pieces: &mut Vec<(Ns, Ns)>, (begin, end): (Ns, Ns), gap: Ns) {
    match pieces.last_mut() {
        Some(last) if begin - last.1 < gap => last.1 = last.1.max(end),
        _ => pieces.push((begin, end)),
    }
}

/// Threads of ordinary priority that all compete for a CPU at the same time.
struct Crowd {
    until: Arc<AtomicI64>,
    /// Number of threads that are busy.
    busy: Arc<AtomicUsize>,
    /// Intervals in which the threads had the CPU.
    pieces: Arc<Mutex<Vec<(Ns, Ns)>>>,
    members: Vec<thread::JoinHandle<()>>,
    over: Arc<AtomicBool>,
    gap: Ns,
}

impl Crowd {
    fn gather(cpu: usize, threads: usize, gap: Ns) -> io::Result<Self> {
        let mut crowd = Self {
            until: Arc::default(),
            busy: Arc::default(),
            pieces: Arc::default(),
            members: Vec::new(),
            over: Arc::default(),
            gap,
        };
        for _ in 0..threads {
            let (until, busy, pieces) = (crowd.until.clone(), crowd.busy.clone(), crowd.pieces.clone());
            let over = crowd.over.clone();
            crowd.members.push(thread::spawn(move || {
                set_name("crowd");
                pin(cpu).expect("the CPU was there before");
                // SAFETY: takes only integers.
                unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
                while !over.load(Ordering::SeqCst) {
                    thread::park();
                    let had = take_cpu_until(until.load(Ordering::SeqCst), gap);
                    pieces.lock().expect("nothing fails while it is held").extend(had);
                    let _ = busy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
                }
            }));
        }
        latpath_testkit::waits::fault_for(Duration::from_millis(50));
        Ok(crowd)
    }

    /// Keeps the threads busy for `time`; returns when they had the CPU.
    fn busy_for(&self, time: Duration) -> Injection {
        let end = monotonic() + ns(time);
        self.until.store(end, Ordering::SeqCst);
        self.busy.store(self.members.len(), Ordering::SeqCst);
        self.members.iter().for_each(|m| m.thread().unpark());
        latpath_testkit::waits::fault_for(Duration::from_nanos((end - monotonic()).max(0) as u64));
        // Each thread notices the end only when it has the CPU again.
        while self.busy.load(Ordering::SeqCst) > 0 {
            latpath_testkit::waits::fault_for(Duration::from_millis(1));
        }
        let mut all = std::mem::take(&mut *self.pieces.lock().expect("nothing fails while it is held"));
        all.sort_unstable();
        let mut joined = Vec::new();
        all.into_iter().for_each(|piece| join(&mut joined, piece, self.gap));
        Injection(joined)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        for member in self.members.drain(..) {
            member.thread().unpark();
            let _ = member.join();
        }
    }
}
