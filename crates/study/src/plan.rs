//! The plan of a study, a TOML file: docs/study.md describes it.

mod check;

pub use check::cpu_list;

use latpath_model::Ns;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum size of a plan, bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The user's variables: names, which a plan contains in braces (`{nic}`), and their values.
pub type Variables = BTreeMap<String, String>;

/// The plan of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Name of the study.
    pub name: String,
    /// Seed for the order of trials; `None` for one that is chosen and stored at the first start.
    pub seed: Option<u64>,
    /// Number of trials per cell.
    #[serde(default = "five")]
    pub repetitions: u32,
    /// Time for which the stream and the load run before a recording.
    #[serde(default = "seconds::<5>", with = "time")]
    pub warm_up: Duration,
    /// Length of a recording.
    #[serde(default = "seconds::<60>", with = "time")]
    pub duration: Duration,
    /// Time limit for each command that sets up or takes down.
    #[serde(default = "seconds::<120>", with = "time")]
    pub command_limit: Duration,
    /// Time above which packets are late.
    #[serde(default = "microseconds::<200>", with = "time")]
    pub threshold: Duration,
    /// Time above which packets count as lost.
    #[serde(default = "seconds::<1>", with = "time")]
    pub window: Duration,
    /// Maximum error of this host's clock relative to the clocks of sample and send times in packets; part of the error
    /// bounds of Tmu and Tsend. `None` for the kernel's estimate.
    pub clock_error: Option<String>,
    /// Time band whose share is shown in the table, e.g. `40us..100us`.
    pub band: Option<String>,
    /// The segment shown in the table; `None` for `total`.
    pub segment: Option<String>,
    /// User-defined segments: `NAME=FROM..TO`.
    #[serde(default)]
    pub segments: Vec<String>,
    /// Limits that each recording is checked against, e.g. `total:p99.9<=1ms`.
    #[serde(default)]
    pub limits: Vec<String>,
    /// Names of the other machines on the path, and the addresses of their agents.
    #[serde(default)]
    pub machines: Variables,
    /// Shell command that succeeds once a topology is ready to be measured; repeated until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// Whether to run the flight recorder, which finds the causes of late packets.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub flight: bool,
    /// Values that replace `{NAME}` in the plan.
    #[serde(default)]
    pub variables: Variables,
    /// The measured streams: into the guest, out of the guest.
    #[serde(default, rename = "direction")]
    pub directions: Vec<Direction>,
    /// The packets' paths through the host; empty for the machine as it is.
    #[serde(default, rename = "topology")]
    pub topologies: Vec<Topology>,
    /// Settings of the machine; empty for the machine as it is.
    #[serde(default)]
    pub settings: Vec<Settings>,
    /// Loads in addition to the stream; empty for no load.
    #[serde(default, rename = "load")]
    pub loads: Vec<Load>,
}

/// A measured stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Direction {
    /// Name in the table, e.g. `in`, `out`.
    pub name: String,
    /// The stream, in the syntax of `latpath record`.
    pub stream: String,
    /// Points to measure at; empty for all.
    #[serde(default)]
    pub points: Vec<String>,
    /// Options of latpath's own publisher, if it publishes the stream.
    pub publish: Option<Publish>,
    /// The user's publisher: a shell command that runs until it is terminated.
    pub publisher: Option<String>,
    /// The application that reads the stream: a shell command that runs until it is terminated.
    pub reader: Option<String>,
}

/// Options of latpath's own publisher of a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publish {
    /// The device on which to send.
    pub device: String,
    /// Network namespace of the device; `None` for latpath's own.
    pub namespace: Option<String>,
    /// Further arguments of `latpath publish`.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// CPUs that the publisher may use; `None` for all CPUs that are not isolated.
    pub cpus: Option<String>,
}

/// A path of the packets through the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Name in the table.
    pub name: String,
    /// File with a topology for `latpath net`, relative to the plan's directory.
    pub file: Option<String>,
    /// Way to use instead of the one in the file; only the file's options for this way apply.
    pub way: Option<latpath_topology::Way>,
    /// Text of a topology for `latpath net`. latpath stores the content of `file` here.
    pub text: Option<String>,
    /// Shell command that sets up the topology and exits.
    pub up: Option<String>,
    /// Shell command that takes the topology down, even if it was only partly set up, and exits.
    pub down: Option<String>,
    /// Values that replace `{NAME}`; they take precedence over the plan's.
    #[serde(default)]
    pub variables: Variables,
}

/// Settings of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Name in the table.
    pub name: String,
    /// Profile for `latpath tune`: its name, or a file relative to the plan's directory.
    pub profile: Option<String>,
    /// Text of the profile. latpath stores the content of a file here.
    pub profile_text: Option<String>,
    /// Values of the profile's variables.
    #[serde(default)]
    pub variables: latpath_tune::Variables,
    /// Shell command that applies the settings and exits.
    pub apply: Option<String>,
    /// Shell command that undoes the settings, even if only some were applied, and exits.
    pub undo: Option<String>,
}

/// A load in addition to the stream, of at most one kind; without any, there is no load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Name in the table.
    pub name: String,
    /// Options of latpath's own UDP load.
    pub udp_stream: Option<UdpStream>,
    /// Arguments of iperf3, except for the duration.
    pub iperf3: Option<String>,
    /// Arguments of stress-ng.
    pub stress_ng: Option<String>,
    /// Shell command that runs until it is terminated.
    pub command: Option<String>,
    /// CPUs that the load may use; `None` for all CPUs that are not isolated.
    pub cpus: Option<String>,
}

/// Options of latpath's own UDP load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpStream {
    /// Address and port to which the packets are sent.
    pub to: String,
    /// Number of flows, each with its own thread.
    #[serde(default = "one")]
    pub streams: u16,
    /// UDP payload, bytes.
    #[serde(default = "full_frame")]
    pub size: u16,
    /// Packets per second per flow; `None` for as many as possible.
    pub rate: Option<u32>,
    /// Network namespace of the sender; `None` for latpath's own.
    pub namespace: Option<String>,
    /// Network namespace in which latpath receives the packets; `None` if another program receives them.
    pub sink: Option<String>,
}

fn one() -> u16 {
    1
}

fn five() -> u32 {
    5
}

fn yes() -> bool {
    true
}

fn is_yes(value: &bool) -> bool {
    *value
}

/// Payload that fills an Ethernet frame of MTU 1500.
fn full_frame() -> u16 {
    1472
}

fn seconds<const N: u64>() -> Duration {
    Duration::from_secs(N)
}

fn microseconds<const N: u64>() -> Duration {
    Duration::from_micros(N)
}

/// Converts times such as `200us` or `1m 30s`.
mod time {
    use serde::{de::Error, Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*time))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        humantime::parse_duration(&text)
            .map_err(|_| D::Error::custom(format!("{text:?}: write a time, e.g. 200us, 10s or 1m 30s")))
    }
}

/// Why a plan cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadPlan {
    /// The file cannot be read.
    #[error("{}: cannot be read: {error}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// The file is not a plan.
    #[error("{name}, line {line}: {why} (docs/study.md, or: latpath study example)")]
    Form {
        /// The file's name.
        name: String,
        /// Line of the error, counted from 1.
        line: usize,
        /// The cause.
        why: String,
    },
    /// A part of the plan cannot be used.
    #[error("{name}: {why}")]
    Part {
        /// The file's name.
        name: String,
        /// The part, and the cause.
        why: String,
    },
}

impl Plan {
    /// Reads and checks a plan.
    ///
    /// # Errors
    /// If the file cannot be read, is not a plan, or contains a part that cannot be used.
    pub fn read(path: &Path) -> Result<Self, BadPlan> {
        let text = latpath_linux::read_text(path, MAX_BYTES);
        let text = text.map_err(|error| BadPlan::File { path: path.into(), error })?;
        let name = path.display().to_string();
        let mut plan = Self::parse(&text, &name)?;
        let directory = path.parent().unwrap_or(Path::new(""));
        plan.read_files(directory).map_err(|why| BadPlan::Part { name, why })?;
        Ok(plan)
    }

    /// Parses and checks the text of a plan; error messages start with `name`.
    ///
    /// # Errors
    /// If the text is not a plan, or contains a part that cannot be used.
    pub fn parse(text: &str, name: &str) -> Result<Self, BadPlan> {
        let mut plan: Self = toml::from_str(text).map_err(|error| BadPlan::Form {
            name: name.into(),
            line: error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1),
            why: error.message().trim().replace('\n', "; "),
        })?;
        plan.fill();
        plan.check().map_err(|why| BadPlan::Part { name: name.into(), why })?;
        Ok(plan)
    }

    /// If the plan contains no topologies, no settings or no loads, adds an entry for the machine as it is.
    fn fill(&mut self) {
        let as_it_is = || "as-is".to_owned();
        if self.topologies.is_empty() {
            self.topologies.push(Topology { name: as_it_is(), ..Topology::default() });
        }
        if self.settings.is_empty() {
            self.settings.push(Settings { name: "nominal".into(), ..Settings::default() });
        }
        if self.loads.is_empty() {
            self.loads.push(Load { name: "idle".into(), ..Load::default() });
        }
    }

    /// Threshold above which packets are late, ns.
    pub fn threshold_ns(&self) -> Ns {
        self.threshold.as_nanos().try_into().unwrap_or(Ns::MAX)
    }

    /// The segment shown in the table.
    pub fn segment(&self) -> &str {
        self.segment.as_deref().unwrap_or("total")
    }

    /// Values that replace `{NAME}` if this topology is set up.
    pub fn variables_of(&self, topology: &Topology) -> Variables {
        let mut all = self.variables.clone();
        all.extend(topology.variables.clone());
        all
    }
}

/// Replaces each `{NAME}` in a text with its value.
///
/// # Errors
/// If a name has no value, or a brace is not closed.
pub fn filled_in(text: &str, variables: &Variables) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, from)) = rest.split_once('{') {
        let (name, behind) = from.split_once('}').ok_or_else(|| format!("{text:?}: a brace is not closed"))?;
        let known = || variables.keys().cloned().collect::<Vec<_>>().join(", ");
        let value =
            variables.get(name).ok_or_else(|| format!("{text:?}: no variable {name:?} (there are: {})", known()))?;
        out += before;
        out += value;
        rest = behind;
    }
    Ok(out + rest)
}
