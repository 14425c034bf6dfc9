//! `latpath study ways` and `study isolation`: plans that latpath writes.

use super::plan::{bad_plan, directory_of, make, Target};
use crate::cmd::report::print;
use crate::cmd::tune::VariableArgs;
use crate::cmd::values::{some_time, time, whole};
use crate::cmd::{Outcome, Usage};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_follow::NamedMachine;
use latpath_study::Plan;
use latpath_wire::Pace;
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Compare the five ways of latpath net into a VM, under each load, in both directions
///
/// All ways are built from one topology file (latpath net example): its uplink and guests, and the options of each way.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  latpath study ways relay.toml --into svid:MU01 --udp-load 10.0.0.2:5001 -o STUDY
  latpath study ways relay.toml --into svid:MU01 --way bridge --way macvtap --print-plan > plan.toml")]
pub struct Ways {
    /// The topology (docs/net.md)
    #[arg(value_name = "TOPOLOGY.toml")]
    topology: PathBuf,
    /// Only this way; can be repeated [default: bridge, macvtap, xdp, ovs, ovs-afxdp]
    #[arg(long = "way", value_name = "WAY", value_parser = ["bridge", "macvtap", "xdp", "ovs", "ovs-afxdp"])]
    ways: Vec<String>,
    #[command(flatten)]
    measured: Measured,
    #[command(flatten)]
    target: Target,
}

/// Compare the machine as it is with the machine under a profile of settings
///
/// The table names the settings that the profile changed, as read from the machine in each run.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  latpath study isolation sv-hypervisor --isolated 2-3 --into svid:MU01 -o STUDY")]
pub struct Isolation {
    /// The profile: its name, or a file (docs/tune.md)
    #[arg(value_name = "PROFILE")]
    profile: String,
    #[command(flatten)]
    variables: VariableArgs,
    #[command(flatten)]
    measured: Measured,
    #[command(flatten)]
    target: Target,
}

/// Streams, loads and lengths of a built-in plan.
#[derive(ClapArgs)]
struct Measured {
    /// The stream into the guest, e.g. svid:MU01
    #[arg(long, value_name = "STREAM")]
    into: String,
    /// The device, e.g. eth0 or eth0%NAMESPACE, on which latpath sends the stream into the guest [default: another
    /// program sends it]
    #[arg(long, value_name = "IF")]
    publish_on: Option<String>,
    /// Packets per second of the stream that latpath sends [default: the profile's 4000]
    #[arg(long, value_name = "F", requires = "publish_on", value_parser = pace)]
    rate: Option<String>,
    /// The application that reads the stream into the guest: a shell command that runs until it is stopped
    #[arg(long, value_name = "COMMAND")]
    reader: Option<String>,
    /// The stream out of the guest [default: only the direction into the guest is measured]
    #[arg(long, value_name = "STREAM")]
    out_of: Option<String>,
    /// Sender of the stream out of the guest: a shell command that runs until it is stopped [default: another program
    /// sends it]
    #[arg(long, value_name = "COMMAND", requires = "out_of")]
    guest_publisher: Option<String>,
    /// Add a load: three UDP flows of latpath's own to this address
    #[arg(long, value_name = "ADDRESS:PORT")]
    udp_load: Option<String>,
    /// Add a load, as NAME=COMMAND: a shell command that runs until it is stopped; can be repeated
    #[arg(long = "load", value_name = "NAME=COMMAND", value_parser = named)]
    loads: Vec<(String, String)>,
    /// Also watch this guest, where an agent runs, e.g. guest0=ssh:root@guest or guest0=vsock:CID:PORT; relay@b=ADDRESS
    /// for a guest that runs on machine b instead of this one; can be repeated
    #[arg(short, long = "machine", value_name = "NAME=ADDRESS")]
    machines: Vec<NamedMachine>,
    /// Start to measure when this shell command succeeds, e.g. "ping -c 1 -W 1 10.0.0.2"; it is repeated until then;
    /// for a guest without an agent that has to boot
    #[arg(long, value_name = "COMMAND")]
    ready: Option<String>,
    /// Trials of each cell
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = whole::<u32>(1..=1000))]
    repetitions: u32,
    /// Run stream and load for this time before each recording
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    warm_for: Duration,
    /// Record each trial for this time
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = some_time)]
    record_for: Duration,
    /// Packets are late if they take longer than this, e.g. 200us
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = some_time)]
    threshold: Duration,
    /// Do not start the flight recorder; the causes of late packets are then unknown
    #[arg(long)]
    no_flight: bool,
    /// Print the plan for editing, and run no trial
    #[arg(long)]
    print_plan: bool,
}

fn named(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty());
    parts.map(|(name, value)| (name.into(), value.into())).ok_or_else(|| "write NAME=COMMAND".into())
}

/// Checks a rate, in the form that `latpath publish` accepts.
fn pace(text: &str) -> Result<String, String> {
    text.parse::<Pace>().map(|_| text.to_owned()).map_err(|e| e.to_string())
}

/// A string in a TOML file: JSON's strings are TOML's basic strings.
fn text(value: &str) -> String {
    Value::from(value).to_string()
}

impl Measured {
    /// The plan's keys and directions.
    fn head(&self, name: &str) -> String {
        let time = |time: Duration| text(&humantime::format_duration(time).to_string());
        let mut out = format!(
            "name = {}\nrepetitions = {}\nwarm_up = {}\nduration = {}\nthreshold = {}\n",
            text(name),
            self.repetitions,
            time(self.warm_for),
            time(self.record_for),
            time(self.threshold)
        );
        if !self.machines.is_empty() {
            let one = |one: &NamedMachine| format!("{} = {}", text(&one.names()), text(&one.address.to_string()));
            let machines = self.machines.iter().map(one);
            let _ = writeln!(out, "machines = {{ {} }}", machines.collect::<Vec<_>>().join(", "));
        }
        if let Some(command) = &self.ready {
            let _ = writeln!(out, "ready = {}", text(command));
        }
        if self.no_flight {
            out.push_str("flight = false\n");
        }
        let _ = write!(out, "\n[[direction]]\nname = \"in\"\nstream = {}\n", text(&self.into));
        if let Some(device) = &self.publish_on {
            let (device, namespace) = device.split_once('%').map_or((device.as_str(), None), |(d, n)| (d, Some(n)));
            let namespace = namespace.map_or(String::new(), |name| format!(", namespace = {}", text(name)));
            let arguments =
                self.rate.as_ref().map_or(String::new(), |rate| format!(", arguments = [\"--rate\", {}]", text(rate)));
            let _ = writeln!(out, "publish = {{ device = {}{namespace}{arguments} }}", text(device));
        }
        if let Some(command) = &self.reader {
            let _ = writeln!(out, "reader = {}", text(command));
        }
        if let Some(stream) = &self.out_of {
            let _ = write!(out, "\n[[direction]]\nname = \"out\"\nstream = {}\n", text(stream));
            if let Some(command) = &self.guest_publisher {
                let _ = writeln!(out, "publisher = {}", text(command));
            }
        }
        out
    }

    fn loads(&self) -> String {
        let mut out = "\n[[load]]\nname = \"idle\"\n".to_owned();
        if let Some(to) = &self.udp_load {
            let _ = write!(out, "\n[[load]]\nname = \"udp\"\nudp_stream = {{ to = {}, streams = 3 }}\n", text(to));
        }
        for (name, command) in &self.loads {
            let _ = write!(out, "\n[[load]]\nname = {}\ncommand = {}\n", text(name), text(command));
        }
        out
    }

    /// Runs the trials of a plan, or prints the plan.
    fn go(&self, plan: &str, command: &str, directory: &Path, target: &Target) -> Result<Outcome> {
        if self.print_plan {
            print(plan)?;
            return Ok(Outcome::Done);
        }
        let mut parsed = Plan::parse(plan, command).map_err(bad_plan)?;
        parsed.read_files(directory).map_err(Usage)?;
        make(parsed, directory.to_owned(), target, &format!("latpath study {command} (with the same flags)"))
    }
}

pub fn ways(args: &Ways) -> Result<Outcome> {
    const ALL: [&str; 5] = ["bridge", "macvtap", "xdp", "ovs", "ovs-afxdp"];
    let chosen = |way: &&str| args.ways.is_empty() || args.ways.iter().any(|one| one == way);
    let directory = directory_of(&args.topology)?;
    let file = args.topology.canonicalize()?;
    let file = file.to_str().ok_or_else(|| Usage(format!("{}: its path is no text", file.display())))?;
    let mut plan = args.measured.head("ways");
    for way in ALL.iter().filter(|way| chosen(way)) {
        let _ = write!(plan, "\n[[topology]]\nname = \"{way}\"\nfile = {}\nway = \"{way}\"\n", text(file));
    }
    plan += &args.measured.loads();
    args.measured.go(&plan, "ways", &directory, &args.target)
}

pub fn isolation(args: &Isolation) -> Result<Outcome> {
    let mut plan = args.measured.head("isolation");
    plan += "\n[[settings]]\nname = \"nominal\"\n";
    let _ = write!(plan, "\n[[settings]]\nname = \"tuned\"\nprofile = {}\n", text(&args.profile));
    let variables = serde_json::to_value(args.variables.variables())?;
    if variables.as_object().is_some_and(|fields| !fields.is_empty()) {
        let _ = writeln!(plan, "variables = {}", inline(&variables));
    }
    plan += &args.measured.loads();
    args.measured.go(&plan, "isolation", &std::env::current_dir()?, &args.target)
}

/// A value as TOML: JSON's strings, numbers and lists are TOML's; an object becomes an inline table.
fn inline(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{} = {}", text(name), inline(value)));
            format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}
