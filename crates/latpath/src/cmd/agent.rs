//! `latpath agent`: observes this machine for a latpath on another one.

use super::Outcome;
use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use latpath_agent::{
    listen, Attached, CommandKey, Commands, Facts, Listen, MakeSampler, Sampler, ServeOptions, StartRequest,
};
use latpath_clock::ptp_kvm;
use latpath_flight::{Ppm, Record, Recorder, DEFAULT_BUDGET};
use latpath_model::{Counters, DropNote, Ns, PointInfo, SenderAt, Sighting, Source, SourceNote};
use latpath_probe::{Options, Probe, RECORD_BYTES};
use latpath_timesync::SurveyOptions;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Observe this machine for a latpath on another machine, which connects by --machine; opens no network port.
#[derive(ClapArgs)]
#[command(
    after_help = "latpath on the host starts 'latpath agent --stdio' by itself over ssh (--machine guest0=ssh:root@guest)."
)]
pub struct Args {
    #[command(flatten)]
    at: At,
    /// End after one session
    #[arg(long)]
    once: bool,
    /// Allow the host to run commands as this user (latpath exits --in); with KEYFILE, only a host that has the same
    /// key (--agent-key)
    #[arg(long, value_name = "KEYFILE", num_args = 0..=1, require_equals = true)]
    allow_commands: Option<Option<PathBuf>>,
    /// Query ptp4l at this socket, instead of the usual ones; can be repeated
    #[arg(long = "ptp-socket", value_name = "PATH")]
    sockets: Vec<PathBuf>,
}

#[derive(ClapArgs)]
#[group(required = true, multiple = false)]
struct At {
    /// Communicate over standard input and output, as the addresses ssh: and exec: require; one session
    #[arg(long)]
    stdio: bool,
    /// Listen on a unix socket that only its owner can access
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Listen on a vsock port, for the hypervisor only
    #[arg(long, value_name = "PORT")]
    vsock: Option<u32>,
    /// Listen on a virtio-serial port, e.g. /dev/virtio-ports/latpath.agent
    #[arg(long, value_name = "DEVICE")]
    device: Option<PathBuf>,
}

impl At {
    fn place(self) -> Listen {
        match self {
            Self { unix: Some(path), .. } => Listen::Unix(path),
            Self { vsock: Some(port), .. } => Listen::Vsock(port),
            Self { device: Some(path), .. } => Listen::Device(path),
            Self { .. } => Listen::Stdio,
        }
    }
}

pub fn run(args: Args) -> Result<Outcome> {
    let commands = match &args.allow_commands {
        None => Commands::Refused,
        Some(None) => Commands::Allowed,
        Some(Some(key)) => Commands::WithKey(CommandKey::read(key).map_err(anyhow::Error::msg)?),
    };
    let at = args.at.place();
    let (quit, signalled) = UnixStream::pair()?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::low_level::pipe::register(signal, signalled.try_clone()?).context("catching signals")?;
    }
    let device = ptp_kvm::Device::open();
    let mut options = ServeOptions {
        facts: Facts { capabilities: capabilities(), ..Facts::of_this_machine() },
        background: Some(Options::RING_BYTES / RECORD_BYTES),
        commands,
        observers: Some(Box::new(latpath_observe::observer)),
        hypervisor: device.map(|device| Box::new(device) as Box<dyn ptp_kvm::Reader>),
        clocks: SurveyOptions { sockets: args.sockets.clone(), ..SurveyOptions::default() },
        ..ServeOptions::default()
    };
    // Logs to stderr: standard output may carry the protocol.
    let mut log = |line: &str| eprintln!("latpath agent: {line}");
    listen(&at, args.once, &mut options, Some(quit.as_fd()), &mut log, attach)?;
    Ok(Outcome::Done)
}

/// Attaches the probe, the flight recorder and the sampler as the host requests. Missing or invalid options take their
/// defaults.
fn attach(request: &StartRequest) -> Result<Attached<Watched>, String> {
    let mut options = Options::new("here", request.streams.clone());
    let number = |name: &str| request.option(name).and_then(|text| text.parse::<i64>().ok());
    if let Some(bytes) = number("ring_bytes").filter(|b| (1 << 16..=1 << 28).contains(b)) {
        options.ring_bytes = bytes as usize;
    }
    let readers = request.option(StartRequest::READERS).unwrap_or_default();
    options.readers = readers.lines().map(str::to_owned).collect();
    options.nic_times = request.option(StartRequest::NIC_TIMES).is_some();
    let places = request.option(StartRequest::PLACES).is_some();
    let sampler = number(StartRequest::PROFILE).map(|hz| sampler(hz.clamp(1, MAX_HZ) as u32, places));
    let source = match request.streams.is_empty() && sampler.is_some() {
        true => Watched(None),
        false => Watched(Some(Box::new(Probe::attach(options).map_err(|e| e.to_string())?))),
    };
    let budget = number(StartRequest::FLIGHT_BUDGET).and_then(|ppm| Ppm::try_from(ppm).ok()).unwrap_or(DEFAULT_BUDGET);
    let recorder = number(StartRequest::FLIGHT).map(|bytes| record(bytes, budget).map_err(|e| e.to_string()));
    Ok(Attached { source, recorder, sampler })
}

/// Maximum sampling rate that a host may request, Hz.
const MAX_HZ: i64 = 10_000;

fn sampler(frequency: u32, places: bool) -> MakeSampler {
    Box::new(move || {
        let options = latpath_profile::Options { frequency, places, ..Default::default() };
        let recorder = latpath_profile::Recorder::start(&options).map_err(|e| e.to_string())?;
        Ok(Box::new(recorder) as Box<dyn Sampler>)
    })
}

/// The source of packets for the host; `None` if the host requests only a profile.
struct Watched(Option<Box<Probe>>);

impl Source for Watched {
    fn points(&mut self) -> Vec<PointInfo> {
        self.0.as_mut().map(|probe| probe.points()).unwrap_or_default()
    }

    fn drop_notes(&mut self) -> Vec<DropNote> {
        self.0.as_mut().map(|probe| probe.drop_notes()).unwrap_or_default()
    }

    fn drain(&mut self, out: &mut Vec<Sighting>) -> Ns {
        self.0.as_mut().map_or_else(latpath_linux::monotonic, |probe| probe.drain(out))
    }

    fn counters(&mut self) -> Counters {
        self.0.as_mut().map(|probe| probe.counters()).unwrap_or_default()
    }

    fn source_notes(&mut self) -> Vec<SourceNote> {
        self.0.as_mut().map(|probe| probe.source_notes()).unwrap_or_default()
    }

    fn senders(&mut self) -> Vec<SenderAt> {
        self.0.as_mut().map(|probe| probe.senders()).unwrap_or_default()
    }
}

fn record(bytes_per_cpu: i64, budget: Ppm) -> Result<Box<dyn Record>, latpath_flight::StartError> {
    // Limits the guest's memory that a host can claim.
    let bytes_per_cpu = bytes_per_cpu.clamp(1 << 16, 1 << 24) as usize;
    let mut recorder = Recorder::start(bytes_per_cpu)?;
    recorder.set_budget(budget)?;
    recorder.learn();
    Ok(Box::new(recorder))
}

/// Capabilities that the probe lacks on this machine, one per line.
fn capabilities() -> String {
    latpath_probe::lacks().map_or_else(|unable| unable.to_string(), |notes| notes.join("\n"))
}
