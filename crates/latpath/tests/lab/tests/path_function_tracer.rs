//! `latpath path` names exactly the functions that the kernel's function tracer records on the packet's CPU while it
//! handles the packet, in the same order.

use crate::{
    search::Search,
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context, Result};
use latpath_lab::{Switch, BRIDGE};
use latpath_path::document::{PacketDocument, StepDocument, StepName};
use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    process,
};

pub const TEST: Test = Test { name: "path_function_tracer", smoke: false, only_whole: false, seconds: 240, run };

/// Number of packets to compare.
const PACKETS: usize = 5;

fn run(_: &Scale) -> Outcome {
    let stage = Stage::lay(Switch::LinuxBridge)?;
    // A third port, so that the bridge clones the packet.
    let hypervisor = &stage.path().hypervisor;
    for words in [
        "link add lpt0 type veth peer name lpt1".to_owned(),
        format!("link set lpt0 master {BRIDGE}"),
        "link set lpt0 up".into(),
        "link set lpt1 up".into(),
    ] {
        hypervisor.ip(&words)?;
    }
    let listed = stage.latpath("path --list")?;
    let listed: HashSet<&str> = listed.lines().filter_map(|l| l.split(' ').next()).collect();
    ensure!(listed.len() > 1000, "only {} functions take a packet", listed.len());

    let tracer = Tracer::new(&listed)?;
    let stream = Stream::sv("MU01", 20).rate(20);
    // Must precede the search: the bridge learns the sender from its first packet, and then sends packets of its own to
    // announce it.
    stage.publish(&stream)?;
    let search = Search::start(&stage, &format!("--stream {} --count {PACKETS}", stream.spec()), "")?;
    tracer.begin()?;
    stage.publish(&stream)?;
    let calls = tracer.end()?;
    let found = search.end()?;

    // With single kprobes, latpath covers only some of the functions; compare only those.
    let shown: Option<HashSet<&str>> =
        found.attached.functions_shown.as_ref().map(|names| names.iter().map(String::as_str).collect());
    let is_shown = |name: &str| shown.as_ref().map_or(listed.contains(name), |s| s.contains(name));
    let calls: Vec<&Call> = calls.iter().filter(|c| is_shown(&c.function)).collect();
    ensure!(found.packets.len() == PACKETS, "{} packets", found.packets.len());
    let mut compared = 0;
    for packet in &found.packets {
        compared += compare(packet, &calls)?;
    }
    eprintln!("{PACKETS} packets passed {compared} functions, as the function tracer has them");
    ensure!(compared >= PACKETS * 20, "only {compared} functions were compared");
    Ok(())
}

/// Compares a packet's functions with the tracer's calls in the same window; returns the number of functions compared.
fn compare(packet: &PacketDocument, calls: &[&Call]) -> Result<usize> {
    let cpus: HashSet<u16> = packet.steps.iter().map(|s| s.cpu).collect();
    let mut compared = 0;
    for cpu in cpus {
        let is_here = |s: &&StepDocument| s.cpu == cpu && s.kind == StepName::Function;
        let on_cpu: Vec<&StepDocument> = packet.steps.iter().filter(is_here).collect();
        let time = |s: &StepDocument| packet.monotonic_ns + s.since_first_ns;
        let (Some(first), Some(last)) = (on_cpu.first(), on_cpu.last()) else { continue };
        let ours: Vec<&str> = on_cpu.iter().map(|s| s.name.as_str()).collect();
        // The tracer's times are in whole microseconds and are taken before the programs' times, so the window is
        // widened at both ends.
        let window = time(first) / 1000 - EDGE..=time(last) / 1000 + 1;
        let theirs: Vec<&str> = calls
            .iter()
            .filter(|c| c.cpu == u64::from(cpu) && window.contains(&c.us))
            .map(|c| c.function.as_str())
            .collect();
        let same = theirs.windows(ours.len()).any(|w| w == ours);
        ensure!(same, "latpath path and the function tracer differ:\n{}", differ(&ours, &theirs));
        ensure!(
            theirs.len() <= ours.len() + 40,
            "{} calls for {} steps: the window is wrong",
            theirs.len(),
            ours.len()
        );
        compared += ours.len();
    }
    Ok(compared)
}

/// Maximum time between the tracer's clock reading and a program's on an emulated machine, µs.
const EDGE: i64 = 500;

/// Shows both lists from shortly before the first difference.
fn differ(ours: &[&str], theirs: &[&str]) -> String {
    let from = (0..theirs.len()).max_by_key(|at| theirs[*at..].iter().zip(ours).take_while(|(a, b)| a == b).count());
    let theirs = &theirs[from.unwrap_or(0)..];
    let same = theirs.iter().zip(ours).take_while(|(a, b)| a == b).count();
    let next =
        |list: &[&str]| list.iter().skip(same.saturating_sub(3)).take(12).map(|n| n.to_string()).collect::<Vec<_>>();
    format!("the same for {same} functions, then\n  latpath: {:?}\n  tracer:  {:?}", next(ours), next(theirs))
}

/// A call recorded by the function tracer.
struct Call {
    cpu: u64,
    /// CLOCK_MONOTONIC, µs.
    us: i64,
    function: String,
}

/// A function tracer in an instance of this test. Dropping it removes the instance.
struct Tracer {
    folder: PathBuf,
}

impl Tracer {
    /// Traces these functions.
    fn new(functions: &HashSet<&str>) -> Result<Self> {
        let tracing = Path::new("/sys/kernel/tracing");
        let folder = tracing.join(format!("instances/latpath-{}", process::id()));
        fs::create_dir(&folder).context("make a tracer's instance")?;
        let tracer = Self { folder };
        // Select functions by index: for each name, the kernel would search all its functions.
        let all = fs::read_to_string(tracing.join("available_filter_functions"))?;
        let selected =
            all.lines().enumerate().filter(|(_, l)| l.split(' ').next().is_some_and(|n| functions.contains(n)));
        let numbers: Vec<String> = selected.map(|(i, _)| (i + 1).to_string()).collect();
        tracer.set("set_ftrace_filter", &numbers.join(" "))?;
        tracer.set("trace_clock", "mono")?;
        tracer.set("buffer_size_kb", "4096")?;
        Ok(tracer)
    }

    fn set(&self, file: &str, text: &str) -> Result<()> {
        fs::write(self.folder.join(file), text).with_context(|| format!("write {file} of the tracer"))
    }

    fn begin(&self) -> Result<()> {
        self.set("current_tracer", "function")
    }

    /// Stops the tracer; returns the calls.
    fn end(&self) -> Result<Vec<Call>> {
        self.set("tracing_on", "0")?;
        let text = fs::read_to_string(self.folder.join("trace"))?;
        Ok(text.lines().filter_map(call).collect())
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.set("current_tracer", "nop");
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Parses a line such as `publish-233 [001] ..s1. 123.456789: veth_xmit <-dev_hard_start_xmit`.
fn call(line: &str) -> Option<Call> {
    let (_, rest) = line.split_once(" [")?;
    let (cpu, rest) = rest.split_once(']')?;
    let mut words = rest.split_whitespace().skip(1);
    let (seconds, micros) = words.next()?.trim_end_matches(':').split_once('.')?;
    let us = seconds.parse::<i64>().ok()? * 1_000_000 + micros.parse::<i64>().ok()?;
    Some(Call { cpu: cpu.parse().ok()?, us, function: words.next()?.to_owned() })
}
