//! Studies with a guest, each run by one command: five ways into the guest and back, a profile of settings compared
//! with the unchanged machine, and a talker with scheduled send times, without and with gates.
//!
//! ```text
//!  namespace study-wire: publish      hypervisor                        relay: agent, subscribe, publish, iperf3
//!  wire0 ─────────────── veth ─────── eno1 ── the way ── tap or vhost-user ── eth0
//! ```

use crate::{linked::run, Outcome, Scale, Test};
use anyhow::{ensure, Context, Result};
use latpath_compare::Verdict;
use latpath_lab::{path_of, GuestFiles, Lab, OpenVswitch, WITH_DPDK};
use latpath_study::{Against, StudyTable};
use latpath_testkit::program;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Instant,
};

pub const WAYS: Test = Test { name: "study_ways", smoke: false, only_whole: true, seconds: 6000, run: ways };
pub const ISOLATION: Test =
    Test { name: "study_isolation", smoke: false, only_whole: true, seconds: 1800, run: isolation };
/// A talker with and without gates, whose stream enters the guest in three ways.
pub const GATES: Test = Test { name: "study_gates", smoke: false, only_whole: true, seconds: 3000, run: gates };

const FOLDER: &str = "/srv/study";
/// Directory that is copied out of the hypervisor.
const OUT: &str = "/out";
/// Script that the guest runs from boot on: it receives a stream, sends one, and is the peer of the load. The guest has
/// no agent, whose start takes a minute under emulation, since each trial boots a guest; the route therefore ends at
/// the tap. The guest gets its address once iperf3's port (5201) is open.
const SERVICES: &str = "#!/bin/sh
latpath subscribe -i eth0 --stream svid:MU01 --name relay >/dev/null &
latpath publish -i eth0 --svid RELAY --rate 100 >/dev/null &
iperf3 -s &
until grep -q ':1451 ' /proc/net/tcp*; do sleep 1; done
ip addr add 192.0.2.2/24 dev eth0
wait
";
/// Three UDP flows into the guest, like the three netperf flows of the bridge study. Checksums cannot be offloaded for
/// frames that XDP redirects, so the sender computes them.
const LOAD: &str = "ip netns exec study-wire ethtool -K wire0 tx off >/dev/null
exec ip netns exec study-wire iperf3 -c 192.0.2.2 -u -P 3 -b 400K -l 1000 -t 0
";
/// Flags of both studies. Delays on the emulated hypervisor are milliseconds, so its flight recorder would exceed its
/// budget, and would be attached and detached repeatedly.
const COMMON: &str = "--into svid:MU01 --publish-on wire0%study-wire --rate 200 --warm-for 1s --record-for 4s \
                      --threshold 20ms --no-flight";
/// Succeeds once the guest has booted; its services are ready as soon as it has its address.
const READY: &str = "ip -n study-wire addr replace 192.0.2.1/24 dev wire0
exec ip netns exec study-wire busybox ping -c 1 -W 1 192.0.2.2";

/// The topology that starts the guest. The guest's files are kept until this value is dropped.
struct Bench {
    _files: GuestFiles,
    topology: PathBuf,
}

/// The publisher's side of the uplink.
const CABLE: &str = "cable = { namespace = \"study-wire\", device = \"wire0\" }\n";

impl Bench {
    /// `host`: namespace of the topology's devices, and database of its Open vSwitch.
    fn new(lab: &Lab, host: Option<(&str, &str)>) -> Result<Self> {
        Self::with(lab, host, SERVICES, CABLE)
    }

    /// `services`: the guest's script; `uplink`: further keys of the uplink.
    fn with(lab: &Lab, host: Option<(&str, &str)>, services: &str, uplink: &str) -> Result<Self> {
        fs::create_dir_all(FOLDER)?;
        let file = |name: &str| Path::new(FOLDER).join(name);
        fs::write(file("services"), services)?;
        fs::write(file("load.sh"), LOAD)?;
        fs::write(file("ready.sh"), READY)?;
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
             [uplink]\ndevice = \"eno1\"\n{uplink}\
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
        Ok(Self { _files: files, topology })
    }
}

/// Runs latpath; its messages are shown while it runs.
fn latpath(words: &str) -> Result<Output> {
    latpath_with(words, &[])
}

/// Like [`latpath`], with further arguments, which may contain spaces.
fn latpath_with(words: &str, beside: &[&str]) -> Result<Output> {
    let mut command = Command::new(program());
    command.args(words.split_whitespace()).args(beside).current_dir(FOLDER).stdin(Stdio::null());
    Ok(command.stdout(Stdio::piped()).stderr(Stdio::inherit()).output()?)
}

/// Runs a study in the hypervisor's output directory, so that a later start can resume it, with a load in addition to
/// those of its plan. Saves its table as text, HTML and AsciiDoc, and returns the table read from JSON.
fn study(name: &str, words: &str, load: Option<&str>) -> Result<StudyTable> {
    let began = Instant::now();
    let beside: Vec<&str> = load.into_iter().flat_map(|load| ["--load", load, "--ready", "sh ready.sh"]).collect();
    let made = latpath_with(&format!("study {words} -o {OUT}/{name}"), &beside)?;
    let text = String::from_utf8_lossy(&made.stdout).into_owned();
    fs::write(format!("{OUT}/{name}.txt"), &text)?;
    eprintln!("latpath study {words}: {:.0} s\n{text}", began.elapsed().as_secs_f64());
    ensure!(made.status.success(), "latpath study {words}: {}", made.status);
    let documents = format!("--html {OUT}/{name}.html --asciidoc {OUT}/{name}.adoc");
    let shown = latpath(&format!("study report {OUT}/{name} --json {documents}"))?;
    ensure!(shown.status.success(), "latpath study report: {}", shown.status);
    fs::write(format!("{OUT}/{name}.json"), &shown.stdout)?;
    Ok(serde_json::from_slice(&shown.stdout)?)
}

/// Five ways, without and with load, in both directions. A guest on vhost-user takes minutes to boot while DPDK's
/// thread polls, so only the whole test includes that way.
fn ways(scale: &Scale) -> Outcome {
    let lab = Lab::new()?;
    let host = lab.namespace("host")?;
    let switch = OpenVswitch::without_bridge(&lab, &host, WITH_DPDK)?;
    let bench = Bench::new(&lab, Some((host.name(), &switch.database())))?;
    let (repetitions, chosen, ways) = match scale.whole {
        true => (5, "", 5),
        false => (3, "--way bridge --way macvtap --way xdp --way ovs", 4),
    };
    let cells = ways * 2 * 2;
    let table = study(
        "ways",
        &format!("ways {} {chosen} {COMMON} --out-of svid:RELAY --repetitions {repetitions}", bench.topology.display()),
        Some("iperf3=sh load.sh"),
    )?;
    let trials = cells * repetitions;
    ensure!((table.trials, table.complete) == (trials, trials), "{:#?}", table.failed);
    let rows = &table.cells;
    let has_packets = rows.iter().all(|row| row.figures.as_ref().is_some_and(|figures| figures.packets > 0));
    ensure!(rows.len() == cells && has_packets, "{rows:#?}");
    let left = latpath("net status --json")?;
    ensure!(!String::from_utf8_lossy(&left.stdout).contains("\"study\""), "left behind: {left:?}");
    Ok(())
}

/// Script of a guest that only receives.
fn listener(stream: &str) -> String {
    format!(
        "#!/bin/sh\nlatpath subscribe -i eth0 --stream {stream} --name relay >/dev/null &\niperf3 -s &\n\
         until grep -q ':1451 ' /proc/net/tcp*; do sleep 1; done\nip addr add 192.0.2.2/24 dev eth0\nwait\n"
    )
}

/// The gates of the talker's device: the stream's is open for the first 10 ms of 20.
const SCHEDULE: &str = "device = \"wire0\"
ptp = \"ptp\"
[[class]]
name = \"stream\"
priorities = [3]
[[class]]
name = \"ptp\"
priorities = [7]
[[class]]
name = \"rest\"
[[gate]]
open = [\"stream\"]
interval = \"10ms\"
[[gate]]
open = [\"ptp\"]
interval = \"1ms\"
[[gate]]
open = [\"rest\"]
interval = \"9ms\"
";

/// A talker with a cycle of 20 ms, which sends 2 ms after the start of each cycle, without and with gates on its
/// device, alone and beside UDP flows, by three ways into the guest. A packet is in its slot if it reaches the host
/// within 8 ms of its send time, which is when the gate closes.
fn gates(_: &Scale) -> Outcome {
    let lab = Lab::new()?;
    let _bench = Bench::with(&lab, None, &listener("svid:RT"), "")?;
    let file = |name: &str| format!("{FOLDER}/{name}");
    fs::write(file("gates.toml"), SCHEDULE)?;
    for line in [
        "ip netns add study-wire",
        "ip link add wire0 netns study-wire numtxqueues 4 type veth peer name eno1",
        // GRO enables NAPI, which a veth device needs to receive frames that XDP redirects to its peer.
        "ip netns exec study-wire ethtool -K wire0 gro on",
        "ip -n study-wire link set wire0 up",
        "ip link set eno1 up",
    ] {
        run(Command::new("sh").args(["-c", line]))?;
    }
    let ways = ["bridge", "macvtap", "xdp"];
    let topologies =
        ways.map(|way| format!("[[topology]]\nname = \"{way}\"\nfile = \"relay.toml\"\nway = \"{way}\"\n"));
    let gates = |verb: &str| format!("ip netns exec study-wire {} gates {verb}", program().display());
    let plan = format!(
        "name = \"tsn\"\nrepetitions = 2\nwarm_up = \"1s\"\nduration = \"6s\"\nthreshold = \"20ms\"\nready = \"sh ready.sh\"\nflight = false\nclock_error = \"0s\"\n\
         segments = [\"slot=talker/planned@send-time..host/*@eno1\"]\nsegment = \"slot\"\nband = \"0us..8ms\"\n\
         [[direction]]\nname = \"in\"\nstream = \"svid:RT,vlan=5\"\n\
         [direction.publish]\ndevice = \"wire0\"\nnamespace = \"study-wire\"\n\
         arguments = [\"--cycle\", \"20ms\", \"--send-offset\", \"2ms\", \"--pcp\", \"3\", \"--priority\", \"3\", \"--fifo\", \"80\"]\n\
         {}\
         [[settings]]\nname = \"no-gates\"\n\
         [[settings]]\nname = \"gates\"\napply = \"{}\"\nundo = \"{} || true\"\n\
         [[load]]\nname = \"idle\"\n[[load]]\nname = \"udp\"\ncommand = \"sh load.sh\"\n",
        topologies.concat(),
        gates("apply gates.toml"),
        gates("undo wire0"),
    );
    let path = file("plan.toml");
    fs::write(&path, &plan)?;
    fs::copy(&path, format!("{OUT}/tsn-plan.toml"))?;
    let table = study("tsn", &format!("run {path}"), None)?;
    ensure!(table.cells.len() == 12 && table.complete == 24, "{} trials: {:#?}", table.complete, table.failed);
    for figures in table.cells.iter().filter_map(|cell| cell.figures.as_ref()) {
        ensure!(figures.times.count > 0, "no packet has its send time: {figures:#?}");
    }
    // The time into the guest, from the same recordings.
    fs::write(&path, plan.replace("segment = \"slot\"", "segment = \"total\"").replace("band = \"0us..8ms\"\n", ""))?;
    let total = latpath(&format!("study run {path} -o {OUT}/tsn"))?;
    fs::write(format!("{OUT}/tsn-total.txt"), &total.stdout)?;
    ensure!(matches!(total.status.code(), Some(0 | 3)), "study run: {}", total.status);
    let left = run(Command::new("ip").args(["netns", "exec", "study-wire", "tc", "qdisc", "show", "dev", "wire0"]))?;
    ensure!(!left.contains("taprio"), "left behind: {left}");
    Ok(())
}

/// Verdicts that claim a difference.
const CLAIMS: [Verdict; 5] = [Verdict::Faster, Verdict::Slower, Verdict::Fewer, Verdict::More, Verdict::Differ];

/// The profile sv-hypervisor compared with the unchanged machine, without load, and while other programs compete for
/// the machine's two other CPUs.
fn isolation(_: &Scale) -> Outcome {
    let lab = Lab::new()?;
    let bench = Bench::with(&lab, None, &listener("svid:MU01"), CABLE)?;
    let up = latpath(&format!("net up {}", bench.topology.display()))?;
    ensure!(up.status.success(), "net up: {}", up.status);
    let words = format!("isolation sv-hypervisor --isolated 2 {COMMON} --repetitions 5");
    let table = study("isolation", &words, Some("stress-ng=exec stress-ng --cpu 2 --taskset 0,1 --cpu-load 60"));
    let down = latpath("net down study")?;
    let table = table?;
    ensure!(down.status.success(), "net down: {}", down.status);
    ensure!((table.trials, table.complete) == (20, 20), "{:#?}", table.failed);
    for load in ["idle", "stress-ng"] {
        let is_tuned = |one: &&Against| {
            let cell = &table.cells[one.cell];
            cell.settings == "tuned" && cell.load == load
        };
        let changed = &table.differences.iter().find(is_tuned).context("no row")?.settings;
        for setting in ["thread-cpus", "thread-priority", "rt-runtime"] {
            let is_named = changed.iter().flat_map(|one| &one.settings).any(|name| name == setting);
            ensure!(is_named, "under {load} the table does not name {setting}: {changed:#?}");
        }
    }
    // An emulated machine is noisy: the test does not expect the profile to help, but no difference below the noise may
    // be claimed.
    for figure in table.differences.iter().flat_map(|one| &one.figures) {
        let noise = figure.difference_per_noise.unwrap_or(0.0).abs();
        let is_claimed = CLAIMS.contains(&figure.row.verdict);
        ensure!(!is_claimed || noise >= 2.0, "a difference of {noise} x noise is claimed: {figure:#?}");
    }
    Ok(())
}
