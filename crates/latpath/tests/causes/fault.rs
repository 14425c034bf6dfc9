//! Faults made on purpose: this test program, started anew with [`WORD`], does one of them again and again, and prints when
//! (`begin end`, CLOCK_MONOTONIC of the machine it runs on, a line for each time).

use crate::{application, storm::Storm};
use latpath_traffic::kernel::{monotonic, pin, set_fifo, set_name};
use latpath_words::Ns;
use nix::{
    sys::signal::{kill, Signal},
    unistd::Pid,
};
use std::{
    collections::HashMap,
    fmt, fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    str::FromStr,
    sync::{
        atomic::{AtomicBool, AtomicI64, Ordering},
        Arc,
    },
    thread,
    time::Duration,
};

/// Makes this program one that does a fault.
pub const WORD: &str = "--fault";

/// Once that a fault was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    pub begin: Ns,
    pub end: Ns,
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.begin, self.end)
    }
}

impl FromStr for Injection {
    type Err = String;
    fn from_str(line: &str) -> Result<Self, String> {
        let times: Vec<Ns> = line.split(' ').map_while(|w| w.trim().parse().ok()).collect();
        match times[..] {
            [begin, end] if begin < end => Ok(Self { begin, end }),
            _ => Err(format!("{line:?} is no injection")),
        }
    }
}

/// `KIND key=value …`
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

    /// A value that must be there.
    pub fn get<T: FromStr>(&self, key: &str) -> io::Result<T> {
        let value = self.values.get(key).and_then(|v| v.parse().ok());
        value.ok_or_else(|| io::Error::other(format!("{}: {key}=… is missing or wrong", self.kind)))
    }

    fn time(&self, key: &str) -> io::Result<Duration> {
        Ok(Duration::from_micros(self.get(key)?))
    }
}

/// How often a fault is done, how long each time, and in what distance.
pub struct Rounds {
    times: u32,
    busy: Duration,
    every: Duration,
}

impl Rounds {
    /// From `times=`, `busy=` and `every=` (µs).
    pub fn of(words: &Words) -> io::Result<Self> {
        Ok(Self { times: words.get("times")?, busy: words.time("busy")?, every: words.time("every")? })
    }

    /// When the next one shall be: not in step with anything that goes by milliseconds.
    pub fn pause(&self, round: u32) -> Duration {
        self.every + Duration::from_micros(u64::from(round * 7919 % 5000))
    }

    pub fn times(&self) -> u32 {
        self.times
    }

    pub fn busy(&self) -> Duration {
        self.busy
    }

    /// Does it so often, and prints each. What was not as it should be (other work of this machine took the CPU from the fault)
    /// is done again.
    pub fn each(&self, mut fault: impl FnMut(Duration) -> io::Result<Done>) -> io::Result<()> {
        let mut told = Vec::new();
        for round in 0..MOST_TRIES * self.times {
            if told.len() == self.times as usize {
                break;
            }
            thread::sleep(self.pause(round));
            let begin = monotonic();
            match fault(self.busy)? {
                Done::Now => told.push(Injection { begin, end: monotonic() }),
                Done::At(end) => told.push(Injection { begin, end }),
                Done::Disturbed => {}
            }
        }
        tell(&told)
    }
}

/// How a fault went.
pub enum Done {
    /// As it should; it is over now.
    Now,
    /// It was over then.
    At(Ns),
    /// Other work took the CPU from it.
    Disturbed,
}

/// Times that a fault is tried, for each time that it shall be done.
const MOST_TRIES: u32 = 4;

/// CPU time of this thread.
fn cpu_time() -> Ns {
    use nix::time::{clock_gettime, ClockId};
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(0, |t| t.tv_sec() * 1_000_000_000 + t.tv_nsec())
}

/// Prints what was done.
pub fn tell(told: &[Injection]) -> io::Result<()> {
    let lines: String = told.iter().map(|i| format!("{i}\n")).collect();
    io::stdout().write_all(lines.as_bytes())
}

/// What the words say was printed by [`tell`].
pub fn told(text: &str) -> Result<Vec<Injection>, String> {
    text.lines().filter(|l| !l.trim().is_empty()).map(str::parse).collect()
}

/// If this program was started to do a fault, does it.
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
    // Not where the victim is, unless that is the fault: the publisher's CPU.
    let _ = pin(0);
    match words.kind.as_str() {
        "hog" => {
            set_name("hog");
            pin(words.get("cpu")?).map_err(io::Error::other)?;
            set_fifo(words.get("fifo")?).map_err(io::Error::other)?;
            rounds.each(|busy| {
                let before = cpu_time();
                spin_until(monotonic() + ns(busy));
                Ok(if is_most(cpu_time() - before, busy) { Done::Now } else { Done::Disturbed })
            })
        }
        "crowd" => {
            let crowd = Crowd::gather(words.get("cpu")?, words.get("threads")?)?;
            rounds.each(|busy| {
                let end = monotonic() + ns(busy);
                Ok(if is_most(crowd.busy_for(busy), busy) { Done::At(end) } else { Done::Disturbed })
            })
        }
        "stop" => {
            let pid = Pid::from_raw(words.get("pid")?);
            rounds.each(|busy| {
                kill(pid, Signal::SIGSTOP)?;
                thread::sleep(busy);
                kill(pid, Signal::SIGCONT)?;
                Ok(Done::Now)
            })
        }
        "throttle" => {
            let group: PathBuf = words.get("group")?;
            rounds.each(|busy| {
                quota(&group, Some(Duration::from_millis(1)))?;
                thread::sleep(busy);
                quota(&group, None)?;
                Ok(Done::Now)
            })
        }
        "storm" => {
            let storm = Storm::new(words.get("cpu")?, words.time("period")?)?;
            rounds.each(|busy| storm.rage(busy).map(|()| Done::Now))
        }
        // Frames from one device to all that is behind another.
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
                thread::sleep(Duration::from_nanos((end - monotonic()).max(0) as u64));
                Ok(Done::Now)
            })
        }
        // One qdisc's rate, to and fro.
        "gate" => {
            let device: String = words.get("device")?;
            let set = |rate: &str| {
                let words = format!("qdisc change dev {device} root tbf rate {rate} burst 4000 limit 4000000");
                let ended = Command::new("tc").args(words.split(' ')).status()?;
                ended.success().then_some(()).ok_or_else(|| io::Error::other(format!("tc {words}: {ended}")))
            };
            rounds.each(|busy| {
                set("8kbit")?;
                thread::sleep(busy);
                set("10gbit")?;
                Ok(Done::Now)
            })
        }
        other => Err(io::Error::other(format!("{other}: no such fault"))),
    }
}

pub fn ns(time: Duration) -> Ns {
    time.as_nanos() as Ns
}

pub fn spin_until(t: Ns) {
    while monotonic() < t {
        std::hint::spin_loop();
    }
}

/// Nine tenths and more.
fn is_most(time: Ns, of: Duration) -> bool {
    time * 10 >= ns(of) * 9
}

/// Gives a control group so much time in each tenth of a second, or all that there is.
fn quota(group: &Path, quota: Option<Duration>) -> io::Result<()> {
    let second = group.join("cpu.max");
    if second.exists() {
        let text = quota.map_or("max 100000".into(), |q| format!("{} 100000", q.as_micros()));
        return fs::write(second, text);
    }
    fs::write(group.join("cpu.cfs_quota_us"), quota.map_or("-1".into(), |q| q.as_micros().to_string()))
}

/// Threads of the usual kind that want a CPU all at once.
struct Crowd {
    until: Arc<AtomicI64>,
    /// CPU time of all of them.
    spent: Arc<AtomicI64>,
    members: Vec<thread::JoinHandle<()>>,
    over: Arc<AtomicBool>,
}

impl Crowd {
    fn gather(cpu: usize, threads: usize) -> io::Result<Self> {
        let (until, over) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicBool::new(false)));
        let spent = Arc::new(AtomicI64::new(0));
        let member = || {
            let (until, spent, over) = (until.clone(), spent.clone(), over.clone());
            thread::spawn(move || {
                set_name("crowd");
                pin(cpu).expect("the CPU was there before");
                // SAFETY: takes numbers alone.
                unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
                while !over.load(Ordering::SeqCst) {
                    thread::park();
                    let before = cpu_time();
                    spin_until(until.load(Ordering::SeqCst));
                    spent.fetch_add(cpu_time() - before, Ordering::SeqCst);
                }
            })
        };
        let members = (0..threads).map(|_| member()).collect();
        thread::sleep(Duration::from_millis(50));
        Ok(Self { until, spent, members, over })
    }

    /// Returns the CPU time that they had.
    fn busy_for(&self, time: Duration) -> Ns {
        self.spent.store(0, Ordering::SeqCst);
        let end = monotonic() + ns(time);
        self.until.store(end, Ordering::SeqCst);
        self.members.iter().for_each(|m| m.thread().unpark());
        thread::sleep(Duration::from_nanos((end - monotonic()).max(0) as u64));
        // All of them see that it is over once they have had the CPU again.
        let mut spent = -1;
        while spent != self.spent.load(Ordering::SeqCst) {
            spent = self.spent.load(Ordering::SeqCst);
            thread::sleep(Duration::from_millis(3));
        }
        spent
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
