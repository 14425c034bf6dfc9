//! Words to write tests with, inside the hypervisor: a path, what is sent on it, who listens, who records.
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
use nix::sys::signal::Signal;
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

/// The guest's name as a machine.
pub const GUEST: &str = "guest0";
/// The application's receiving thread, and so the last point: `app-read@relay`.
pub const RELAY: &str = "relay";
/// More than anything here takes that ends by itself.
const PATIENCE: Duration = Duration::from_secs(120);
const NEVER: &dyn Fn() -> bool = &|| false;

/// How latpath in the hypervisor reaches the agent in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// A virtio-serial port.
    Serial,
    /// A vsock that the hypervisor's kernel serves.
    Vsock,
}

/// A stream of Sampled Values.
#[derive(Clone, Debug)]
pub struct Stream {
    pub svid: &'static str,
    pub rate: u64,
    pub frames: u64,
    /// More words for `latpath publish`.
    pub publish: String,
}

impl Stream {
    /// 1,000 frames/s, whose counter wraps at 4,000 as the 9-2LE profile for 50 Hz has it.
    pub fn sv(svid: &'static str, frames: u64) -> Self {
        Self { svid, rate: 1000, frames, publish: String::new() }
    }

    /// At another rate.
    pub fn rate(self, rate: u64) -> Self {
        Self { rate, ..self }
    }

    /// With more words for `latpath publish`.
    pub fn publish(self, words: &str) -> Self {
        Self { publish: format!("{} {words}", self.publish), ..self }
    }

    /// As `--stream` takes it.
    pub fn spec(&self) -> String {
        format!("svid:{}", self.svid)
    }

    /// How late a packet may be: most of the time in which the counter wraps, since the machine is slow.
    fn window(&self) -> Duration {
        Duration::from_millis(4000 * 1000 * 3 / 4 / self.rate).min(Duration::from_secs(4))
    }
}

/// A laid path with what runs on it. All of it goes with this value.
pub struct Stage {
    // Ends before the namespaces that it is in.
    guest: Option<Guest>,
    bench: Bench,
    reach: Reach,
    /// Runs are written to memory, and kept by [`keep`]: the route out of this machine disturbs all that goes on in it.
    pub in_memory: bool,
    /// By which means the guest's packets and interrupts go.
    pub service: NicService,
    /// The guest's vCPUs.
    pub cpus: u32,
}

impl Stage {
    /// Lays pub ─ hyp with the switch and the guest's tap.
    pub fn lay(switch: Switch) -> Result<Self> {
        Self::lay_to(Application::Guest, switch)
    }

    /// Lays pub ─ hyp ─ app, without a guest: the application is in a namespace.
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
        })
    }

    /// Boots the guest (KVM, vhost), with an agent.
    pub fn boot_guest(&mut self) -> Outcome {
        self.boot_guest_reached_by(Reach::Serial)
    }

    /// [`Stage::boot_guest`], its agent reached by other means.
    pub fn boot_guest_reached_by(&mut self, reach: Reach) -> Outcome {
        self.boot_guest_with(reach, Vec::new())
    }

    /// The same, with more programs in it: the file here, the path there.
    pub fn boot_guest_with(&mut self, reach: Reach, programs: Vec<(PathBuf, String)>) -> Outcome {
        let latpath = (self.bench.lab.stripped(program(), "latpath"), "/bin/latpath".into());
        let more = programs
            .into_iter()
            .map(|(file, path)| (self.bench.lab.stripped(file, path.trim_start_matches("/bin/")), path));
        let plan = GuestPlan {
            name: GUEST.into(),
            programs: std::iter::once(latpath).chain(more).collect(),
            cpus: self.cpus,
            memory_mib: 256,
            acceleration: Some(Acceleration::KvmVhost),
            vsock: (reach == Reach::Vsock).then_some(CID),
            service: self.service,
            console: Some(kept(&format!("{GUEST}.console"))),
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

    /// Gives the publisher 192.0.2.1 and the guest 192.0.2.2, and each the other's MAC address. Returns both MAC addresses.
    pub fn lay_addresses(&mut self) -> Result<[&'static str; 2]> {
        let guest = self.guest.as_mut().context("this test has booted no guest")?;
        Ok(guest.lay_addresses(&self.bench.path.publisher, NEVER)?)
    }

    /// Namespaces and switch.
    pub fn path(&self) -> &LabPath {
        &self.bench.path
    }

    /// The application's namespace, where there is no guest.
    pub fn application(&self) -> &Namespace {
        self.bench.application()
    }

    /// The guest, once it is booted.
    pub fn guest(&mut self) -> Result<&mut Guest> {
        self.guest.as_mut().context("this test has booted no guest")
    }

    /// Open vSwitch, where the path has it.
    pub fn open_vswitch(&self) -> Result<&OpenVswitch> {
        self.bench.path.open_vswitch.as_deref().context("this path has no Open vSwitch")
    }

    /// Sends a signal to ovs-vswitchd.
    pub fn signal_daemon(&self, signal: Signal) -> Outcome {
        let pid = self.open_vswitch()?.daemon();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), signal)?;
        Ok(())
    }

    /// What the kernel counted on a device of the hypervisor.
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

    /// Runs `latpath WORDS…` in the hypervisor to its end; it must succeed. Returns what it printed.
    pub fn latpath(&self, words: &str) -> Result<String> {
        let finished = self.start(&self.path().hypervisor, words)?.finish(PATIENCE).map_err(plain)?;
        match finished.code {
            Some(0) => Ok(finished.stdout),
            code => bail!("latpath {words}: exit code {code:?}: {}", finished.stderr.trim()),
        }
    }

    /// Lets the guest's application listen to the stream.
    pub fn subscribe(&mut self, stream: &Stream) -> Outcome {
        let words = format!("latpath subscribe -i {GUEST_DEVICE} --stream {} --name {RELAY} --json", stream.spec());
        Ok(self.guest()?.start(RELAY, &words, false, NEVER)?)
    }

    /// Ends the guest's application, and returns what it says of what it received.
    pub fn unsubscribe(&mut self) -> Result<Value> {
        let guest = self.guest()?;
        let output = guest.end(RELAY, PATIENCE, NEVER)?;
        if output.status != 0 {
            let said = guest.file(&format!("/run/{RELAY}.err"), NEVER).unwrap_or_default();
            bail!("latpath subscribe in the guest ended with status {}: {}", output.status, said.trim());
        }
        serde_json::from_str(&output.text).with_context(|| format!("read the JSON of subscribe: {:?}", output.text))
    }

    /// Starts `latpath record` in the hypervisor, with the guest where there is one; returns when it records.
    pub fn record(&mut self, stream: &Stream, words: &str) -> Result<Recording> {
        self.record_spec(&stream.spec(), stream.window(), words)
    }

    /// The same for any stream, as `--stream` takes it.
    pub fn record_spec(&mut self, stream: &str, window: Duration, words: &str) -> Result<Recording> {
        let run = match self.in_memory {
            true => self.bench.lab.folder().join(kept("run").file_name().context("a name for the run")?),
            false => kept("run"),
        };
        let machine = match (&self.guest, self.reach) {
            (None, _) => String::new(),
            (Some(guest), Reach::Serial) => format!("--machine {GUEST}=unix:{}", guest.agent_socket().display()),
            (Some(_), Reach::Vsock) => format!("--machine {GUEST}=vsock:{CID}:{PORT}"),
        };
        let window = window.as_millis();
        let words = format!("record --stream {stream} {machine} --window {window}ms {words} -o {}", run.display());
        let mut process = self.start(&self.path().hypervisor, &words)?;
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

    /// Starts to publish the stream.
    pub fn start_publishing(&self, stream: &Stream) -> Result<Started> {
        let Stream { svid, rate, frames, publish } = stream;
        let words = format!("publish -i {PUBLISHER} --svid {svid} --rate {rate} --count {frames} --json {publish}");
        self.start(&self.path().publisher, &words)
    }

    /// Publishes the stream to its end.
    pub fn publish(&self, stream: &Stream) -> Result<Value> {
        let limit = Duration::from_secs(2 * stream.frames / stream.rate) + PATIENCE;
        self.start_publishing(stream)?.finish(limit).map_err(plain)?.json().map_err(plain)
    }

    /// Waits until nothing more arrives: an emulated guest may be behind by a while.
    pub fn wait_for_quiet(&self) -> Outcome {
        let (quiet, limit) = (Duration::from_secs(1), Instant::now() + PATIENCE);
        let mut last = self.path().hypervisor.counters()?;
        loop {
            latpath_testkit::waits::fault_for(quiet);
            let now = self.path().hypervisor.counters()?;
            if now == last || Instant::now() >= limit {
                // What it still takes from the device to the application shows on no counter of this side.
                latpath_testkit::waits::fault_for(quiet);
                return Ok(());
            }
            last = now;
        }
    }

    /// The ordinary course: the application listens, latpath records, the stream is published, and all of it is reported.
    pub fn follow(&mut self, stream: &Stream) -> Result<Report> {
        self.subscribe(stream)?;
        let recording = self.record(stream, "")?;
        let published = self.publish(stream)?;
        self.wait_for_quiet()?;
        let report = recording.end(self)?;
        let received = self.unsubscribe()?;
        let (sent, received) = (&published["frames_sent"], &received["received"]);
        eprintln!("sent {sent}, received {received}, {}", report.in_short());
        Ok(report)
    }
}

/// The guest's context id, and the port at which its agent waits.
pub const CID: u32 = 42;
pub const PORT: u32 = 7400;

/// A recorder at work.
pub struct Recording {
    process: Started,
    run: PathBuf,
}

/// Keeps what is in memory beyond the end of this machine.
pub fn keep(run: &Path) -> Outcome {
    let ended = Command::new("cp").arg("-r").arg(run).arg("/out").status()?;
    ensure!(ended.success(), "cp -r {} /out: {ended}", run.display());
    Ok(())
}

impl Recording {
    /// Where it is, while the test runs.
    pub fn run(&self) -> &PathBuf {
        &self.run
    }

    /// Waits until so many journeys are on the disk. They are over: what is missing of them is lost, and no longer under way.
    pub fn has(&self, journeys: u64) -> Outcome {
        let stored = || Run::open(&self.run).is_ok_and(|run| run.journeys() >= journeys);
        until_within(PATIENCE, &format!("{journeys} journeys are on the disk"), stored).map_err(plain)
    }

    /// Ends it as Ctrl-C does, and reads `latpath report --json`.
    pub fn end(self, stage: &Stage) -> Result<Report> {
        self.process.interrupt();
        let ended = self.process.finish(PATIENCE).map_err(plain)?;
        if ended.code != Some(0) {
            bail!("latpath record ended with {:?}: {}", ended.code, ended.stderr.trim());
        }
        let shown = stage.latpath(&format!("report {} --json", self.run.display()))?;
        Ok(Report::new(serde_json::from_str(&shown).context("read the report's JSON")?))
    }
}

/// A new name in the folder that outlives the machine: when the test fails, what is there is kept.
fn kept(name: &str) -> PathBuf {
    static NAMES: AtomicU32 = AtomicU32::new(1);
    Path::new("/out").join(format!("{}-{}.{name}", process::id(), NAMES.fetch_add(1, Ordering::Relaxed)))
}

/// What failed, as an error.
pub fn plain(failed: Failed) -> anyhow::Error {
    anyhow!(failed.message().unwrap_or("failed").to_owned())
}
