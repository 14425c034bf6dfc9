//! The built-in studies with a guest, each by one command: five ways into the guest and back, and a profile of settings
//! against the machine as it is.
//!
//! ```text
//!  namespace study-wire: publish      hypervisor                        relay: agent, subscribe, publish, iperf3
//!  wire0 ─────────────── veth ─────── eno1 ── the way ── tap or vhost-user ── eth0
//! ```

use crate::{Outcome, Scale, Test};
use anyhow::{ensure, Context, Result};
use latpath_lab::{path_of, GuestFiles, Lab, OpenVswitch, WITH_DPDK};
use latpath_testkit::program;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Instant,
};

pub const WAYS: Test = Test { name: "study_ways", smoke: false, only_whole: true, seconds: 6000, run: ways };
pub const ISOLATION: Test =
    Test { name: "study_isolation", smoke: false, only_whole: true, seconds: 1800, run: isolation };

const FOLDER: &str = "/srv/study";
/// Copied out of the hypervisor.
const OUT: &str = "/out";
/// What the guest does from its boot on: it receives a stream, sends one, and is the far end of the load.
const SERVICES: &str = "#!/bin/sh
ip addr add 192.0.2.2/24 dev eth0
while [ ! -e /dev/virtio-ports/latpath.agent ]; do sleep 0.1; done
latpath agent --device /dev/virtio-ports/latpath.agent &
latpath subscribe -i eth0 --stream svid:MU01 --name relay >/dev/null &
latpath publish -i eth0 --svid RELAY --rate 250 >/dev/null &
exec iperf3 -s
";
/// Three flows of UDP into the guest, as the bridge study's three netperf. A frame that XDP redirects carries no request
/// for a checksum, so the sender makes it.
const LOAD: &str = "ip -n study-wire addr add 192.0.2.1/24 dev wire0 2>/dev/null
ip netns exec study-wire ethtool -K wire0 tx off >/dev/null
exec ip netns exec study-wire iperf3 -c 192.0.2.2 -u -P 3 -b 1M -l 1000 -t 0
";
/// Flags of both studies. The emulated hypervisor's delays are milliseconds.
const COMMON: &str = "--into svid:MU01 --publish-on wire0%study-wire --rate 500 --warm-for 1s --record-for 4s \
                      --threshold 20ms";

/// The files of a guest, and the topology that starts it.
struct Bench {
    files: GuestFiles,
    topology: PathBuf,
}

impl Bench {
    /// `host` has the topology's devices, and Open vSwitch with its database.
    fn new(lab: &Lab, host: Option<(&str, &str)>) -> Result<Self> {
        fs::create_dir_all(FOLDER)?;
        let file = |name: &str| Path::new(FOLDER).join(name);
        fs::write(file("services"), SERVICES)?;
        fs::write(file("load.sh"), LOAD)?;
        let iperf3 = path_of("iperf3").context("iperf3 is not installed")?;
        let programs = [
            (lab.stripped(program(), "latpath"), "/bin/latpath".into()),
            (iperf3, "/bin/iperf3".into()),
            (file("services"), "/bin/services".into()),
        ];
        let files = GuestFiles::build(lab, "relay", &programs, &mut |line| eprintln!("{line}"), &|| false)?;
        let (namespace, switch) = match host {
            None => (String::new(), String::new()),
            Some((host, database)) => {
                (format!("namespace = {host:?}\n"), format!("[ovs]\ndatabase = {database:?}\npmd_cpu_mask = \"0x2\"\n"))
            }
        };
        let arguments: Vec<String> = files.arguments.iter().map(|word| format!("{word:?}")).collect();
        let text = format!(
            "name = \"study\"\nway = \"bridge\"\n{namespace}\
             [uplink]\ndevice = \"eno1\"\ncable = {{ namespace = \"study-wire\", device = \"wire0\" }}\n\
             {switch}\
             [[guest]]\nname = \"relay\"\ntap = \"tap0\"\n\
             [guest.qemu]\nmemory_mib = {}\nkernel = {:?}\ninitrd = {:?}\nappend = {:?}\narguments = [{}]\n",
            files.memory_mib,
            files.kernel,
            files.initramfs,
            files.append,
            arguments.join(", ")
        );
        let topology = file("relay.toml");
        fs::write(&topology, text)?;
        Ok(Self { files, topology })
    }

    /// The flag that names the guest's agent.
    fn machine(&self) -> String {
        format!("--machine relay=unix:{}", self.files.agent_socket().display())
    }
}

/// Runs latpath, whose messages appear as they come.
fn latpath(words: &str) -> Result<Output> {
    latpath_with(words, &[])
}

/// [`latpath`] with a load, whose command has spaces.
fn latpath_with(words: &str, load: &[&str]) -> Result<Output> {
    let mut command = Command::new(program());
    command.args(words.split_whitespace()).args(load).current_dir(FOLDER).stdin(Stdio::null());
    Ok(command.stdout(Stdio::piped()).stderr(Stdio::inherit()).output()?)
}

/// Makes a study; keeps its table as text, page and AsciiDoc, and returns it as JSON.
fn study(name: &str, words: &str, load: &str) -> Result<Value> {
    let began = Instant::now();
    let made = latpath_with(&format!("study {words} -o {FOLDER}/{name}"), &["--load", load])?;
    let text = String::from_utf8_lossy(&made.stdout).into_owned();
    fs::write(format!("{OUT}/{name}.txt"), &text)?;
    eprintln!("latpath study {words}: {:.0} s\n{text}", began.elapsed().as_secs_f64());
    ensure!(made.status.success(), "latpath study {words}: {}", made.status);
    let documents = format!("--html {OUT}/{name}.html --asciidoc {OUT}/{name}.adoc");
    let shown = latpath(&format!("study report {FOLDER}/{name} --json {documents}"))?;
    ensure!(shown.status.success(), "latpath study report: {}", shown.status);
    fs::write(format!("{OUT}/{name}.json"), &shown.stdout)?;
    Ok(serde_json::from_slice(&shown.stdout)?)
}

/// Five ways, without and with load, in both directions.
fn ways(scale: &Scale) -> Outcome {
    let lab = Lab::new()?;
    let host = lab.namespace("host")?;
    let switch = OpenVswitch::without_bridge(&lab, &host, WITH_DPDK)?;
    let bench = Bench::new(&lab, Some((host.name(), &switch.database())))?;
    let (repetitions, chosen, cells) = match scale.whole {
        true => (5, "", 5 * 2 * 2),
        false => (1, "--way bridge", 2 * 2),
    };
    let table = study(
        "ways",
        &format!(
            "ways {} {chosen} {COMMON} --out-of svid:RELAY {} --repetitions {repetitions}",
            bench.topology.display(),
            bench.machine()
        ),
        "iperf3=sh load.sh",
    )?;
    let trials = cells * repetitions;
    ensure!((&table["trials"], &table["complete"]) == (&trials.into(), &trials.into()), "{:#}", table["failed"]);
    let rows = table["cells"].as_array().context("no cells")?;
    ensure!(rows.len() == cells && rows.iter().all(|row| row["figures"]["packets"].as_u64() > Some(0)), "{rows:#?}");
    let left = latpath("net status --json")?;
    ensure!(!String::from_utf8_lossy(&left.stdout).contains("\"study\""), "left behind: {left:?}");
    Ok(())
}

/// The profile sv-hypervisor against the machine as it is, without load and while other programs want all CPUs.
fn isolation(_: &Scale) -> Outcome {
    let lab = Lab::new()?;
    let bench = Bench::new(&lab, None)?;
    let up = latpath(&format!("net up {}", bench.topology.display()))?;
    ensure!(up.status.success(), "net up: {}", up.status);
    let words = format!("isolation sv-hypervisor --isolated 1 {COMMON} {} --repetitions 5", bench.machine());
    let table = study("isolation", &words, "stress-ng=exec stress-ng --cpu 2");
    let down = latpath("net down study")?;
    let table = table?;
    ensure!(down.status.success(), "net down: {}", down.status);
    ensure!((&table["trials"], &table["complete"]) == (&20.into(), &20.into()), "{:#}", table["failed"]);
    let differences = table["differences"].as_array().context("no differences")?;
    let cells = table["cells"].as_array().context("no cells")?;
    let of = |difference: &Value, key: &str| cells[difference["cell"].as_u64().unwrap_or(0) as usize][key].clone();
    let tuned = |load: &str| {
        differences.iter().find(|one| of(one, "settings") == "tuned" && of(one, "load") == load).context("no row")
    };
    for load in ["idle", "stress-ng"] {
        let changed = tuned(load)?["settings"].to_string();
        for setting in ["thread-cpus", "thread-priority", "rt-runtime"] {
            ensure!(changed.contains(setting), "under {load} the table does not name {setting}: {changed}");
        }
    }
    // Beside programs that want every CPU, the profile helps: by more than the runs of one cell differ.
    let figures = tuned("stress-ng")?["figures"].as_array().context("no figures")?;
    let helped = figures.iter().any(|figure| {
        let noise = figure["difference_per_noise"].as_f64().unwrap_or(0.0).abs();
        noise >= 2.0 && figure["difference"].as_f64().unwrap_or(0.0) < 0.0
    });
    ensure!(helped, "no figure is better by 2 x noise: {figures:#?}");
    Ok(())
}
