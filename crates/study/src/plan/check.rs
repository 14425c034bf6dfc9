//! Checks the constraints on a plan that its types do not express.

use super::{filled_in, Direction, Load, Plan, Publish, UdpStream};
use latpath_analysis::{parse_duration, Limit};
use latpath_follow::{hypervisors, NamedMachine};
use latpath_linux::Cpus;
use latpath_model::{Ns, StreamSpec, HOST};
use latpath_stats::Band;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

/// Maximum number of trials of a study.
const MAX_TRIALS: usize = 100_000;
/// Maximum UDP payload, bytes.
const MAX_PAYLOAD: u16 = 65_507;
/// Minimum and maximum of the time after which packets count as lost.
const WINDOW: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(4));

impl Plan {
    /// Checks the constraints that the types do not express.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.directions.is_empty() {
            return Err("no [[direction]]: name at least one stream that is measured".into());
        }
        names("direction", self.directions.iter().map(|one| &one.name))?;
        names("topology", self.topologies.iter().map(|one| &one.name))?;
        names("settings", self.settings.iter().map(|one| &one.name))?;
        names("load", self.loads.iter().map(|one| &one.name))?;
        if !(1..=1000).contains(&self.repetitions) {
            return Err(format!("repetitions = {}: 1 to 1000", self.repetitions));
        }
        let cells = self.directions.len() * self.topologies.len() * self.settings.len() * self.loads.len();
        if cells.saturating_mul(self.repetitions as usize) > MAX_TRIALS {
            return Err(format!("{cells} cells × {} repetitions: at most {MAX_TRIALS} trials", self.repetitions));
        }
        if self.duration < Duration::from_millis(100) {
            return Err("duration: a recording takes 100 ms or longer".into());
        }
        if !(WINDOW.0..=WINDOW.1).contains(&self.window) {
            return Err("window is 1 ms to 4 s".into());
        }
        self.band()?;
        self.clock_error()?;
        self.limits()?;
        self.named_machines()?;
        for text in &self.segments {
            latpath_journey::segments::split(text)?;
        }
        for topology in &self.topologies {
            both(("topology", &topology.name), ("up", &topology.up), ("down", &topology.down))?;
            if topology.up.is_some() && (topology.file.is_some() || topology.text.is_some()) {
                return Err(format!("topology {}: file or text, or up and down; not both", topology.name));
            }
            if topology.way.is_some() && topology.file.is_none() && topology.text.is_none() {
                return Err(format!("topology {}: way without file or text", topology.name));
            }
            let variables = self.variables_of(topology);
            let fill = |text: &str| filled_in(text, &variables).map_err(|why| format!("{}: {why}", topology.name));
            self.directions.iter().try_for_each(|direction| direction.check(&fill))?;
            self.loads.iter().try_for_each(|load| load.check(&fill))?;
        }
        for settings in &self.settings {
            both(("settings", &settings.name), ("apply", &settings.apply), ("undo", &settings.undo))?;
            if settings.apply.is_some() && (settings.profile.is_some() || settings.profile_text.is_some()) {
                return Err(format!("settings {}: profile, or apply and undo; not both", settings.name));
            }
        }
        Ok(())
    }

    /// Maximum error of this host's clock, ns; `None` if the plan does not set it.
    ///
    /// # Errors
    /// If the text is not a time.
    pub fn clock_error(&self) -> Result<Option<Ns>, String> {
        let parse = |text: &String| {
            parse_duration(text)
                .ok_or_else(|| format!("clock_error = {text:?}: write a time, e.g. 1us, or 0s on one machine"))
        };
        self.clock_error.as_ref().map(parse).transpose()
    }

    /// The time band whose share is shown in the table.
    ///
    /// # Errors
    /// If the text is not a band.
    pub fn band(&self) -> Result<Option<Band>, String> {
        let Some(text) = &self.band else { return Ok(None) };
        let ends = text.split_once("..").and_then(|(from, to)| Some((parse_duration(from)?, parse_duration(to)?)));
        let band = ends.filter(|(from, to)| from <= to).map(|(from_ns, to_ns)| Band { from_ns, to_ns });
        band.map(Some).ok_or_else(|| format!("band = {text:?}: write a band as 40us..100us"))
    }

    /// The limits that each recording is checked against.
    ///
    /// # Errors
    /// If one of the texts is not a limit.
    pub fn limits(&self) -> Result<Vec<Limit>, String> {
        self.limits.iter().map(|text| text.parse().map_err(|e| format!("limits: {e}"))).collect()
    }

    /// The other machines, with the addresses of their agents.
    ///
    /// # Errors
    /// If a name or an address cannot be used.
    pub fn named_machines(&self) -> Result<Vec<NamedMachine>, String> {
        let one = |(names, address): (&String, &String)| {
            let one: NamedMachine = format!("{names}={address}").parse()?;
            if one.name == HOST || !is_plain(&one.name) {
                return Err(format!("{:?}: use another name, of letters, digits, - and _", one.name));
            }
            Ok(one)
        };
        let all = self.machines.iter().map(one).collect::<Result<Vec<_>, String>>();
        let all = all.and_then(|all| hypervisors(&all).map(|_| all));
        all.map_err(|why| format!("machines: {why}"))
    }
}

impl Direction {
    fn check(&self, fill: &dyn Fn(&str) -> Result<String, String>) -> Result<(), String> {
        let name = &self.name;
        let _: StreamSpec = fill(&self.stream)?.parse().map_err(|e| format!("direction {name}: {e}"))?;
        if self.publish.is_some() && self.publisher.is_some() {
            return Err(format!("direction {name}: publish and publisher are both named; use one"));
        }
        let Some(Publish { device, namespace, cpus, .. }) = &self.publish else { return Ok(()) };
        fill(device)?;
        namespace.as_deref().map(fill).transpose()?;
        cpu_list(cpus.as_deref()).map(drop).map_err(|why| format!("direction {name}: {why}"))
    }
}

impl Load {
    fn check(&self, fill: &dyn Fn(&str) -> Result<String, String>) -> Result<(), String> {
        let name = &self.name;
        let kinds =
            [self.udp_stream.is_some(), self.iperf3.is_some(), self.stress_ng.is_some(), self.command.is_some()];
        if kinds.into_iter().filter(|is_named| *is_named).count() > 1 {
            return Err(format!("load {name}: one of udp_stream, iperf3, stress_ng and command"));
        }
        cpu_list(self.cpus.as_deref()).map_err(|why| format!("load {name}: {why}"))?;
        let Some(UdpStream { to, streams, size, rate, namespace, sink }) = &self.udp_stream else { return Ok(()) };
        let to = fill(to)?;
        to.parse::<SocketAddr>()
            .map_err(|_| format!("load {name}: to = {to:?}: write ADDRESS:PORT, e.g. 10.0.0.2:5001"))?;
        [namespace, sink].into_iter().flatten().try_for_each(|text| fill(text).map(drop))?;
        match () {
            () if !(1..=256).contains(streams) => Err(format!("load {name}: streams = {streams}: 1 to 256")),
            () if !(1..=MAX_PAYLOAD).contains(size) => Err(format!("load {name}: size = {size}: 1 to {MAX_PAYLOAD}")),
            () if *rate == Some(0) => Err(format!("load {name}: rate = 0: 1 or more; leave it out for flat out")),
            () => Ok(()),
        }
    }
}

/// Parses a list of CPUs such as `2-3,6`.
///
/// # Errors
/// If the text is not a list of CPUs, or the list is empty.
pub fn cpu_list(text: Option<&str>) -> Result<Option<Cpus>, String> {
    let read = |text: &str| text.parse::<Cpus>().ok().filter(|cpus| !cpus.is_empty());
    text.map(|text| read(text).ok_or_else(|| format!("cpus = {text:?}: write CPUs as 2-3,6"))).transpose()
}

/// Whether a name can be part of a file name.
fn is_plain(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=32).contains(&name.len()) && name.chars().all(letter) && !name.starts_with('.')
}

fn names<'a>(what: &str, all: impl Iterator<Item = &'a String>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in all {
        if !is_plain(name) {
            return Err(format!("{what} {name:?}: a name has 1 to 32 letters, digits, - _ or ., and names a file"));
        }
        if !seen.insert(name) {
            return Err(format!("{what} {name:?} is named twice"));
        }
    }
    Ok(())
}

/// Rejects a command that lacks its counterpart.
fn both(
    (what, name): (&str, &str),
    (make, first): (&str, &Option<String>),
    (undo, second): (&str, &Option<String>),
) -> Result<(), String> {
    match (first, second) {
        (Some(_), None) => Err(format!("{what} {name}: {make} without {undo}: name the command that takes it back")),
        (None, Some(_)) => Err(format!("{what} {name}: {undo} without {make}")),
        _ => Ok(()),
    }
}
