//! Building blocks of the tests inside the hypervisor: a path, traffic, an application and a recorder.
//!
//! ```text
//!  namespace pub       namespace hyp: record                      guest0: subscribe, agent
//!  lp-pub ────veth──── nic0 ── br0 (bridge or OVS) ── vnet0 ── vhost ── eth0 ── relay
//! ```

use crate::{expect::Report, Outcome};
use anyhow::{anyhow, bail, ensure, Context, Result};
use latpath_lab::{
    Acceleration, Application, Guest, GuestPlan, Lab, LabPath, Namespace, NicService, OpenVswitch, Switch,
    GUEST_DEVICE, PUBLISHER,
};
use latpath_run::Run;
use latpath_testkit::waits::until_within;
use latpath_testkit::{boot, latpath, program, Bench, Failed, Started};
use latpath_traffic::document::{PublishDocument, SubscribeDocument};
use nix::sys::signal::Signal;
use std::{
    path::{Path, PathBuf},
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

/// The guest's machine name.
pub const GUEST: &str = "guest0";
/// Name of the application's receiving thread; the last point is therefore `app-read@relay`.
pub const RELAY: &str = "relay";
/// Time limit of steps that end by themselves.
const PATIENCE: Duration = Duration::from_secs(120);
const NEVER: &dyn Fn() -> bool = &|| false;

/// Transport between latpath in the hypervisor and the agent in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// A virtio-serial port.
    Serial,
    /// A vsock served by the hypervisor's kernel.
    Vsock,
}

/// A stream of Sampled Values.
#[derive(Clone, Debug)]
pub struct Stream {
    pub svid: &'static str,
    pub rate: u64,
    pub frames: u64,
    /// Further arguments of `latpath publish`.
    pub publish: String,
}

impl Stream {
    /// 1,000 frames/s with a counter that wraps at 4,000, as in the 9-2LE profile for 50 Hz.
    pub fn sv(svid: &'static str, frames: u64) -> Self {
        Self { svid, rate: 1000, frames, publish: String::new() }
    }

    /// Sets the rate, frames/s.
    pub fn rate(self, rate: u64) -> Self {
        Self { rate, ..self }
    }

    /// Adds arguments of `latpath publish`.
    pub fn publish(self, words: &str) -> Self {
        Self { publish: format!("{} {words}", self.publish), ..self }
    }

    /// The stream in the format of `--stream`.
    pub fn spec(&self) -> String {
        format!("svid:{}", self.svid)
    }

    /// Maximum lateness of a packet: most of the counter's wrap time, because the machine may be emulated and therefore
    /// slow.
    fn window(&self) -> Duration {
        Duration::from_millis(4000 * 1000 * 3 / 4 / self.rate).min(Duration::from_secs(4))
    }
}

/// A path and everything that runs on it, which ends when this value is dropped.
pub struct Stage {
    // Dropped before the namespaces that it uses.
    guest: Option<Guest>,
    bench: Bench,
    reach: Reach,
    /// Whether recordings are written to memory, and saved by [`keep`]: writing them outside this machine would disturb
    /// everything in it.
    pub in_memory: bool,
    /// How the guest's packets and interrupts are transferred.
    pub service: NicService,
    /// Number of the guest's vCPUs.
    pub cpus: u32,
    /// Whether recordings do without the guest's agent.
    pub without_agent: bool,
    /// The guest's machine name and vsock context ID.
    pub identity: (&'static str, u32),
}

impl Stage {
    /// Sets up pub ─ hyp, with the switch and the guest's tap.
    pub fn lay(switch: Switch) -> Result<Self> {
        Self::lay_to(Application::Guest, switch)
    }

    /// Sets up pub ─ hyp ─ app without a guest: the application runs in a namespace.
    pub fn lay_without_guest(switch: Switch) -> Result<Self> {
        Self::lay_to(Application::Namespace, switch)
    }

    fn lay_to(application: Application, switch: Switch) -> Result<Self> {
        let lab = Lab::new()?;
        let path = lab.lay_through(switch, application)?;
        Ok(Self {
            guest: None,
            bench: Bench { lab, path },
            reach: Reach::Serial,
            in_memory: false,
            service: NicService::Default,
            cpus: 1,
            without_agent: false,
            identity: (GUEST, CID),
        })
    }

    /// Boots the guest (KVM, vhost) with an agent.
    pub fn boot_guest(&mut self) -> Outcome {
        self.boot_guest_reached_by(Reach::Serial)
    }

    /// Like [`Stage::boot_guest`], with another transport to the agent.
    pub fn boot_guest_reached_by(&mut self, reach: Reach) -> Outcome {
        self.boot_guest_with(reach, Vec::new())
    }

    /// Also copies programs into the guest: pairs of a local file and its path in the guest.
    pub fn boot_guest_with(&mut self, reach: Reach, programs: Vec<(PathBuf, String)>) -> Outcome {
        let latpath = (self.bench.lab.stripped(program(), "latpath"), "/bin/latpath".into());
        let more = programs
            .into_iter()
            .map(|(file, path)| (self.bench.lab.stripped(file, path.trim_start_matches("/bin/")), path));
        let (name, cid) = self.identity;
        let plan = GuestPlan {
            name: name.into(),
            programs: std::iter::once(latpath).chain(more).collect(),
            cpus: self.cpus,
            memory_mib: 256,
            acceleration: Some(Acceleration::KvmVhost),
            vsock: (reach == Reach::Vsock).then_some(cid),
            service: self.service,
            console: Some(kept(&format!("{name}.console"))),
            ..GuestPlan::default()
        };
        let mut guest = boot(&self.bench.lab, &self.bench.path, &plan)?;
        let at = match reach {
            Reach::Serial => "--device /dev/virtio-ports/latpath.agent".to_owned(),
            Reach::Vsock => format!("--allow-commands --vsock {PORT}"),
        };
        guest.start("agent", &format!("latpath agent {at}"), true, NEVER)?;
        self.reach = reach;
        self.guest = Some(guest);
        Ok(())
    }

    /// Assigns 192.0.2.1 to the publisher and 192.0.2.2 to the guest, and sets static ARP entries. Returns both MAC
    /// addresses.
    pub fn lay_addresses(&mut self) -> Result<[&'static str; 2]> {
        let guest = self.guest.as_mut().context("this test has booted no guest")?;
        Ok(guest.lay_addresses(&self.bench.path.publisher, NEVER)?)
    }

    /// The namespaces and the switch.
    pub fn path(&self) -> &LabPath {
        &self.bench.path
    }

    /// The application's namespace, if there is no guest.
    pub fn application(&self) -> &Namespace {
        self.bench.application()
    }

    /// The booted guest.
    pub fn guest(&mut self) -> Result<&mut Guest> {
        self.guest.as_mut().context("this test has booted no guest")
    }

    /// The path's Open vSwitch, if any.
    pub fn open_vswitch(&self) -> Result<&OpenVswitch> {
        self.bench.path.open_vswitch.as_deref().context("this path has no Open vSwitch")
    }

    /// Sends a signal to ovs-vswitchd.
    pub fn signal_daemon(&self, signal: Signal) -> Outcome {
        let pid = self.open_vswitch()?.daemon();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), signal)?;
        Ok(())
    }

    /// The kernel's counters of a device in the hypervisor.
    pub fn counters(&self, device: &str) -> Result<latpath_net::Statistics> {
        Ok(self.path().hypervisor.counters_of(device)?)
    }

    /// Starts `latpath WORDS…` in a namespace.
    pub fn start(&self, space: &Namespace, words: &str) -> Result<Started> {
        self.start_command(space, latpath(words))
    }

    /// Starts a command in a namespace.
    pub fn start_command(&self, space: &Namespace, command: Command) -> Result<Started> {
        self.bench.start(space, command).map_err(plain)
    }

    /// Runs `latpath WORDS…` in the hypervisor to completion; it must succeed. Returns its output.
    pub fn latpath(&self, words: &str) -> Result<String> {
        let finished = self.start(&self.path().hypervisor, words)?.finish(PATIENCE).map_err(plain)?;
        match finished.code {
            Some(0) => Ok(finished.stdout),
            code => bail!("latpath {words}: exit code {code:?}: {}", finished.stderr.trim()),
        }
    }

    /// Starts the guest's application, which receives the stream.
    pub fn subscribe(&mut self, stream: &Stream) -> Outcome {
        let words = format!("latpath subscribe -i {GUEST_DEVICE} --stream {} --name {RELAY} --json", stream.spec());
        Ok(self.guest()?.start(RELAY, &words, false, NEVER)?)
    }

    /// Stops the guest's application; returns its report of the packets received.
    pub fn unsubscribe(&mut self) -> Result<SubscribeDocument> {
        let guest = self.guest()?;
        let output = guest.end(RELAY, PATIENCE, NEVER)?;
        if output.status != 0 {
            let said = guest.file(&format!("/run/{RELAY}.err"), NEVER).unwrap_or_default();
            bail!("latpath subscribe in the guest ended with status {}: {}", output.status, said.trim());
        }
        serde_json::from_str(&output.text).with_context(|| format!("read the JSON of subscribe: {:?}", output.text))
    }

    /// Starts `latpath record` in the hypervisor, with the guest's agent if there is one; returns once recording has
    /// begun.
    pub fn record(&mut self, stream: &Stream, words: &str) -> Result<Recording> {
        self.record_spec(&stream.spec(), stream.window(), words)
    }

    /// Like [`Stage::record`], for any stream in the format of `--stream`.
    pub fn record_spec(&mut self, stream: &str, window: Duration, words: &str) -> Result<Recording> {
        let run = match self.in_memory {
            true => self.bench.lab.folder().join(kept("run").file_name().context("a name for the run")?),
            false => kept("run"),
        };
        let (name, cid) = self.identity;
        let machine = match (&self.guest, self.reach) {
            (None, _) => String::new(),
            (Some(_), _) if self.without_agent => String::new(),
            (Some(guest), Reach::Serial) => format!("--machine {name}=unix:{}", guest.agent_socket().display()),
            (Some(_), Reach::Vsock) => format!("--machine {name}=vsock:{cid}:{PORT}"),
        };
        let window = window.as_millis();
        let words = format!("record --stream {stream} {machine} --window {window}ms {words} -o {}", run.display());
        let mut command = latpath(&words);
        if let Ok(switch) = self.open_vswitch() {
            // Directory of the daemon's control socket, through which latpath queries max-idle and flow-limit.
            command.env("OVS_RUNDIR", switch.folder());
        }
        let mut process = self.start_command(&self.path().hypervisor, command)?;
        let until = Instant::now() + PATIENCE;
        while Run::open(&run).is_err() {
            let said = process.said();
            if Instant::now() >= until || !process.runs() {
                let agent = match &mut self.guest {
                    Some(guest) => guest.file("/run/agent.err", NEVER).unwrap_or_default(),
                    None => String::new(),
                };
                bail!("the recording did not begin: {}; the guest's agent: {}", said.trim(), agent.trim());
            }
            latpath_testkit::waits::fault_for(Duration::from_millis(50));
        }
        Ok(Recording { process, run })
    }

    /// Starts publishing the stream.
    pub fn start_publishing(&self, stream: &Stream) -> Result<Started> {
        let Stream { svid, rate, frames, publish } = stream;
        let words = format!("publish -i {PUBLISHER} --svid {svid} --rate {rate} --count {frames} --json {publish}");
        self.start(&self.path().publisher, &words)
    }

    /// Publishes the whole stream; returns the publisher's report.
    pub fn publish(&self, stream: &Stream) -> Result<PublishDocument> {
        let limit = Duration::from_secs(2 * stream.frames / stream.rate) + PATIENCE;
        self.start_publishing(stream)?.finish(limit).map_err(plain)?.json().map_err(plain)
    }

    /// Waits until no more packets arrive: an emulated guest may lag behind.
    pub fn wait_for_quiet(&self) -> Outcome {
        let (quiet, limit) = (Duration::from_secs(1), Instant::now() + PATIENCE);
        let mut last = self.path().hypervisor.counters()?;
        loop {
            latpath_testkit::waits::fault_for(quiet);
            let now = self.path().hypervisor.counters()?;
            if now == last || Instant::now() >= limit {
                // The hypervisor has no counter of packets between the guest's device and its application, so wait once
                // more.
                latpath_testkit::waits::fault_for(quiet);
                return Ok(());
            }
            last = now;
        }
    }

    /// The standard sequence: starts the application and the recorder, publishes the stream, and returns the
    /// report.
    pub fn follow(&mut self, stream: &Stream) -> Result<Report> {
        self.subscribe(stream)?;
        let recording = self.record(stream, "")?;
        let published = self.publish(stream)?;
        self.wait_for_quiet()?;
        let report = recording.end(self)?;
        let received = self.unsubscribe()?;
        let (sent, received) = (published.frames_sent, received.received);
        eprintln!("sent {sent}, received {received}, {}", report.in_short());
        Ok(report)
    }
}

/// The guest's vsock context ID, and ([`PORT`]) the port on which its agent listens.
pub const CID: u32 = 42;
pub const PORT: u32 = 7400;

/// A running recorder.
pub struct Recording {
    process: Started,
    run: PathBuf,
}

/// Copies a recording from memory to the directory that outlives the virtual machine.
pub fn keep(run: &Path) -> Outcome {
    let ended = Command::new("cp").arg("-r").arg(run).arg("/out").status()?;
    ensure!(ended.success(), "cp -r {} /out: {ended}", run.display());
    Ok(())
}

impl Recording {
    /// Path of the recording while the test runs.
    pub fn run(&self) -> &PathBuf {
        &self.run
    }

    /// Waits until this number of journeys is on disk. A journey on disk is final: a sighting missing from it is lost,
    /// not pending.
    pub fn has(&self, journeys: u64) -> Outcome {
        let stored = || Run::open(&self.run).is_ok_and(|run| run.journeys() >= journeys);
        until_within(PATIENCE, &format!("{journeys} journeys are on the disk"), stored).map_err(plain)
    }

    /// Stops the recorder with SIGINT; returns the output of `latpath report --json`.
    pub fn end(self, stage: &Stage) -> Result<Report> {
        self.process.interrupt();
        let ended = self.process.finish(PATIENCE).map_err(plain)?;
        if ended.code != Some(0) {
            bail!("latpath record ended with {:?}: {}", ended.code, ended.stderr.trim());
        }
        let shown = stage.latpath(&format!("report {} --json", self.run.display()))?;
        Report::parse(&shown)
    }
}

/// A new path in the directory that outlives the machine; its contents are kept if the test fails.
fn kept(name: &str) -> PathBuf {
    static NAMES: AtomicU32 = AtomicU32::new(1);
    Path::new("/out").join(format!("{}-{}.{name}", process::id(), NAMES.fetch_add(1, Ordering::Relaxed)))
}

/// Starts an agent in a namespace of this kernel, and returns its address in the format of `--machine`. The agent
/// reports another boot ID, and therefore counts as another machine.
pub fn agent_of_another_machine(space: &Namespace, arguments: &str) -> Result<String> {
    const BOOT_ID: &str = "22222222-3333-4444-5555-666666666666";
    let script = "/tmp/latpath-lab-agent.sh";
    std::fs::write(
        script,
        format!(
            "echo {BOOT_ID} > /run/latpath-lab-boot-id && mount --bind /run/latpath-lab-boot-id /proc/sys/kernel/random/boot_id && \
             exec {} agent --stdio {arguments}",
            program().display()
        ),
    )?;
    Ok(format!("exec:unshare --mount nsenter --net=/run/netns/{} sh {script}", space.name()))
}

/// Converts a failure to an error.
pub fn plain(failed: Failed) -> anyhow::Error {
    anyhow!(failed.message().unwrap_or("failed").to_owned())
}
