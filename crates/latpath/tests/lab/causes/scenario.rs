//! The processes that run during a fault: an application, a publisher, a recorder, and a guest if needed.

use super::{
    blame::GUEST,
    fault::{self, Injection},
    verdict::Seen,
};
use latpath_lab::{Application, Guest, GuestPlan, Lab, APPLICATION, GUEST_DEVICE, PUBLISHER};
use latpath_model::{Point, PointKind};
use latpath_run::Run;
use latpath_testkit::waits::{all_read, has_read, listens, until};
use latpath_testkit::Failed;
use latpath_testkit::{boot, latpath, program, Bench, Started};
use nix::sched::{sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// Time limit of any step.
const LIMIT: Duration = Duration::from_secs(60);
const NEVER: &dyn Fn() -> bool = &|| false;
/// The publisher's CPU.
pub const ITS_CPU: usize = 0;
/// CPU of the victim, and therefore of the fault.
pub const CPU: usize = 1;
/// Latency above which a packet is late. On a busy machine some packets exceed it without an injected fault.
pub const THRESHOLD: Duration = Duration::from_millis(5);
/// The threshold on the way into a guest: faults last twice as long there, and in an emulated guest each frame's
/// own work takes 1 ms.
const GUEST_THRESHOLD: Duration = Duration::from_millis(10);
/// Number, duration and interval of the injections; the times in µs.
pub const ROUNDS: &str = "times=44 busy=15000 every=120000";
/// Rounds of an application without faults of its own.
pub const NO_ROUNDS: &str = "times=0 busy=0 every=0";

/// Settings of the application.
pub struct Reader {
    /// SCHED_FIFO priority; 0: ordinary scheduling.
    pub fifo: u8,
    pub nice: i32,
    /// CPU time per frame, µs.
    pub work: u32,
    /// Rounds in which the application does something else.
    pub rounds: &'static str,
    /// The activity in these rounds.
    pub does: String,
}

impl Reader {
    /// Higher priority than the machine's other work.
    pub const URGENT: Self = Self { fifo: 70, nice: 0, work: 0, rounds: NO_ROUNDS, does: String::new() };
    /// Ordinary priority.
    pub const ORDINARY: Self = Self { fifo: 0, nice: 0, work: 0, rounds: NO_ROUNDS, does: String::new() };

    fn words(&self, device: &str, cpu: usize) -> String {
        let Self { fifo, nice, work, rounds, does } = self;
        format!("application device={device} cpu={cpu} fifo={fifo} nice={nice} work={work} {rounds} after=2 {does}")
    }
}

/// Command line of a fault.
fn faulty(program: &str, words: &str) -> Command {
    let mut command = Command::new(program);
    command.arg(fault::WORD).args(words.split(' '));
    command
}

fn myself() -> Result<String, Failed> {
    Ok(std::env::current_exe()?.to_str().ok_or("this program's path is no text")?.to_owned())
}

/// A running scenario.
pub struct Scenario {
    // Dropped before the namespaces that it uses.
    guest: Option<Guest>,
    pub bench: Bench,
    pub svid: String,
    application: Option<Started>,
    recorder: Option<Started>,
    publisher: Option<Started>,
    run: PathBuf,
}

/// The same path serves several runs, one at a time.
impl Scenario {
    /// Sets up the path; with `in_guest`, the application runs in a guest.
    pub fn lay(in_guest: bool) -> Result<Self, Failed> {
        let lab = Lab::new()?;
        let at = if in_guest { Application::Guest } else { Application::Namespace };
        let path = lab.lay(at)?;
        let run = PathBuf::new();
        // Probes see all namespaces, so the stream's name must be unique to this process.
        let svid = format!("why.{}", std::process::id());
        let bench = Bench { lab, path };
        let mut scenario = Self { guest: None, bench, svid, application: None, recorder: None, publisher: None, run };
        if in_guest {
            scenario.boot()?;
        }
        Ok(scenario)
    }

    fn boot(&mut self) -> Result<(), Failed> {
        let small = |from: PathBuf, name: &str| {
            let to = self.bench.lab.folder().join(name);
            match Command::new("strip").arg("-g").arg("-o").arg(&to).arg(&from).status() {
                Ok(status) if status.success() => to,
                _ => from,
            }
        };
        let programs = vec![
            (small(program(), "latpath"), "/bin/latpath".into()),
            (small(std::env::current_exe()?, "faults"), "/bin/faults".into()),
        ];
        // With a single vCPU, its thread can be real-time without spinning for another vCPU that does not run.
        let plan = GuestPlan { programs, name: GUEST.into(), cpus: 1, ..GuestPlan::default() };
        let mut guest = boot(&self.bench.lab, &self.bench.path, &plan)?;
        guest.start("agent", "latpath agent --device /dev/virtio-ports/latpath.agent", true, NEVER)?;
        self.guest = Some(guest);
        Ok(())
    }

    /// PID of the application, if it does not run in a guest.
    pub fn application(&self) -> Result<i32, Failed> {
        Ok(self.application.as_ref().ok_or("no application runs here")?.pid() as i32)
    }

    /// The guest's QEMU process.
    pub fn qemu(&self) -> Result<Qemu, Failed> {
        let pid = self.guest.as_ref().ok_or("this scenario has no guest")?.pid();
        let mut threads = Vec::new();
        for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
            let name = fs::read_to_string(task.path().join("comm"))?.trim().to_owned();
            threads.push((task.file_name().to_string_lossy().parse()?, name));
        }
        Ok(Qemu { pid: pid as i32, threads })
    }

    /// Starts the application, the recorder and the publisher, and waits until the baseline is known.
    pub fn begin(&mut self, reader: &Reader) -> Result<(), Failed> {
        self.begin_with(reader, "")
    }

    /// Like [`Scenario::begin`], with further arguments of `latpath record`.
    pub fn begin_with(&mut self, reader: &Reader, recording: &str) -> Result<(), Failed> {
        match &mut self.guest {
            Some(guest) => {
                let words = reader.words(GUEST_DEVICE, 0);
                guest.start("relay", &format!("/bin/faults {} {words}", fault::WORD), false, NEVER)?;
            }
            None => {
                let command = faulty(&myself()?, &reader.words(APPLICATION, CPU));
                let mut application = self.bench.start(self.bench.application(), command)?;
                listens(&mut application)?;
                self.application = Some(application);
            }
        }
        self.record(recording)?;
        // At a higher rate, an emulated guest would need as long to drain the queue behind a fault as the fault lasted.
        let rate = match self.guest {
            Some(_) => 250,
            // At the full rate, the publisher and its timer would take 20 % of the time of the hog, which runs on the
            // same CPU.
            None if reader.does.contains("hog=1") => 1000,
            None => 4000,
        };
        let svid = &self.svid;
        let words =
            format!("publish -i {PUBLISHER} --svid {svid} --rate {rate} --fifo 98 --cpu {ITS_CPU} --duration 600s");
        self.publisher = Some(self.bench.start(&self.bench.path.publisher, latpath(&words))?);
        self.knows(rate)
    }

    /// Waits until the route to the reader is known and `packets` journeys are recorded, or until the recorder has
    /// ended.
    pub fn knows(&mut self, packets: u64) -> Result<(), Failed> {
        let is_reader = |point: &Point| point.kind == PointKind::AppRead;
        let knows = |run: Run| run.manifest().route.last().is_some_and(is_reader) && run.journeys() >= packets;
        // A recorder that stops at a spike may already have ended.
        let over = |recorder: &mut Option<Started>| recorder.as_mut().is_none_or(|recorder| !recorder.runs());
        until("the route is known", || Run::open(&self.run).is_ok_and(knows) || over(&mut self.recorder))
    }

    /// Waits until `packets` more packets of the stream have been recorded.
    pub fn records(&self, packets: u64) -> Result<(), Failed> {
        let stored = || Run::open(&self.run).map_or(0, |run| run.journeys());
        let before = stored();
        until(&format!("{packets} more packets are recorded"), || stored() >= before + packets)
    }

    /// Starts a recording with these arguments of `latpath record`; everything else continues.
    pub fn record(&mut self, recording: &str) -> Result<(), Failed> {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        self.run = self.bench.lab.folder().join(format!("run-{}", RUNS.fetch_add(1, Ordering::Relaxed)));
        let machine = |guest: &Guest| format!("--machine {GUEST}=unix:{}", guest.agent_socket().display());
        let machine = self.guest.as_ref().map(machine).unwrap_or_default();
        let threshold = if self.guest.is_some() { GUEST_THRESHOLD } else { THRESHOLD };
        let (run, svid, late) = (self.run.display(), &self.svid, threshold.as_micros());
        let words = format!("record --stream svid:{svid} {machine} --threshold {late}us {recording} -o {run}");
        let mut recorder = self.bench.start(&self.bench.path.hypervisor, latpath(&words))?;
        until("the recording begins", || Run::open(&self.run).is_ok() || !recorder.runs())?;
        if Run::open(&self.run).is_err() {
            return Err(format!("the recording did not begin: {}", recorder.said()).into());
        }
        self.recorder = Some(recorder);
        Ok(())
    }

    /// Ends the recording; everything else continues.
    pub fn recorded(&mut self) -> Result<Seen, Failed> {
        let recorder = self.recorder.take().ok_or("nothing is recorded")?;
        recorder.interrupt();
        let ended = recorder.finish(LIMIT)?;
        match ended.code {
            Some(0) => Seen::read(&self.run),
            code => Err(format!("record ended with {code:?}: {}", ended.stderr).into()),
        }
    }

    /// Starts a fault, which runs until all its rounds are done.
    pub fn start_fault(&self, space: &latpath_lab::Namespace, words: &str) -> Result<Started, Failed> {
        self.bench.start(space, faulty(&myself()?, words))
    }

    /// Runs all rounds of a fault in the hypervisor's namespace.
    pub fn fault(&self, words: &str) -> Result<Vec<Injection>, Failed> {
        self.fault_in(&self.bench.path.hypervisor, words)
    }

    /// Runs all rounds of a fault in another namespace.
    pub fn fault_in(&self, space: &latpath_lab::Namespace, words: &str) -> Result<Vec<Injection>, Failed> {
        let done = self.bench.run(space, faulty(&myself()?, words), LIMIT)?;
        match done.code {
            Some(0) => Ok(fault::parse(&done.stdout)?),
            code => Err(format!("{words}: {code:?}, {}", done.stderr).into()),
        }
    }

    /// Runs all rounds of a fault in the guest. The returned times are the guest's.
    pub fn fault_in_guest(&mut self, words: &str) -> Result<Vec<Injection>, Failed> {
        let guest = self.guest.as_mut().ok_or("this scenario has no guest")?;
        Ok(fault::parse(&guest.expect(&format!("/bin/faults {} {words}", fault::WORD), NEVER)?)?)
    }

    /// Whether the scenario has ended.
    pub fn is_over(&self) -> bool {
        self.recorder.is_none() && self.publisher.is_none()
    }

    /// Ends everything; returns the recording's contents and the application's stalls.
    pub fn end(&mut self) -> Result<(Seen, Vec<Injection>), Failed> {
        if let Some(publisher) = self.publisher.take() {
            publisher.interrupt();
            publisher.finish(LIMIT)?;
        }
        if let Some(application) = &self.application {
            has_read(application)?;
        }
        if let Some(guest) = &mut self.guest {
            let mut sockets = || guest.file("/proc/net/packet", NEVER);
            until("the guest's application has read what came", || sockets().is_ok_and(|all| all_read(&all)))?;
        }
        let mut seen = self.recorded()?;
        let slept = match (&mut self.guest, self.application.take()) {
            (Some(guest), _) => guest.end("relay", LIMIT, NEVER)?.text,
            (None, Some(application)) => {
                application.interrupt();
                application.finish(LIMIT)?.stdout
            }
            (None, None) => String::new(),
        };
        if let Ok(kept) = std::env::var("LATPATH_KEEP_RUNS") {
            let to = PathBuf::from(kept).join(self.svid.clone() + "." + &latpath_linux::monotonic().to_string());
            let _ = Command::new("cp").arg("-r").arg(&self.run).arg(&to).status();
            seen.kept = Some(to);
        }
        Ok((seen, fault::parse(&slept)?))
    }
}

/// QEMU's threads.
pub struct Qemu {
    pub pid: i32,
    threads: Vec<(i32, String)>,
}

impl Qemu {
    /// Pins its vCPU threads (`CPU n/…`) to CPU `vcpus`, and all others to CPU `main`.
    pub fn pin(&self, main: usize, vcpus: usize) -> Result<(), Failed> {
        for (tid, name) in &self.threads {
            let mut set = CpuSet::new();
            set.set(if name.starts_with("CPU ") { vcpus } else { main })?;
            sched_setaffinity(Pid::from_raw(*tid), &set)?;
        }
        Ok(())
    }

    /// Sets the SCHED_FIFO priority of the vCPU threads and of all others. Priority 0 means ordinary scheduling with
    /// the nice value `nice`.
    pub fn urgent(&self, vcpus: i32, others: i32, nice: i32) -> Result<(), Failed> {
        for (tid, name) in &self.threads {
            let priority = if name.starts_with("CPU ") { vcpus } else { others };
            let policy = if priority > 0 { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
            let param = libc::sched_param { sched_priority: priority };
            // SAFETY: the parameter outlives the call.
            let set = unsafe { libc::sched_setscheduler(*tid, policy, &param) };
            // SAFETY: takes only integers.
            let nice = unsafe { libc::setpriority(libc::PRIO_PROCESS, *tid as u32, nice) };
            if set != 0 || nice != 0 {
                return Err(std::io::Error::last_os_error().into());
            }
        }
        Ok(())
    }
}

/// Runs `tc WORDS…` in a namespace.
pub fn tc(space: &latpath_lab::Namespace, words: &str) -> Result<(), Failed> {
    let words: Vec<&str> = words.split(' ').collect();
    let ended = Command::new("tc").args(["-n", space.name()]).args(&words).output()?;
    match ended.status.success() {
        true => Ok(()),
        false => Err(format!("tc {words:?}: {}", String::from_utf8_lossy(&ended.stderr)).into()),
    }
}

/// Writes a file of a namespace's own /sys.
pub fn write_sysfs(space: &latpath_lab::Namespace, file: &str, text: &str) -> Result<(), Failed> {
    let script = format!("echo {text} > {file}");
    let ended = Command::new("ip").args(["netns", "exec", space.name(), "sh", "-c", &script]).output()?;
    match ended.status.success() {
        true => Ok(()),
        false => Err(format!("{file}: {}", String::from_utf8_lossy(&ended.stderr)).into()),
    }
}
