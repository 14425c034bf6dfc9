//! Two machines whose NICs' clocks are synchronised by ptp4l: `latpath clocks` agrees with pmc and reports injected
//! faults within two seconds, and the times of packets between the machines are correct within the stated bound.
//!
//! Both machines are namespaces of one kernel, so the true difference between their `CLOCK_MONOTONIC` is zero; the
//! second machine's agent has another boot ID.

use crate::{
    linked::{plain, run as command, Linked},
    stage::agent_of_another_machine,
    stamping::StampingNics,
    Outcome, Scale, Test,
};
use anyhow::{bail, ensure, Context, Result};
use latpath_linux::monotonic;
use latpath_run::{Run, Select};
use latpath_testkit::waits::{fault_for, until};
use latpath_testkit::{latpath, Started};
use latpath_timesync::{ClockReport, LinkState, SyncEvent, SyncEventKind};
use nix::sys::signal::Signal;
use serde::Deserialize;
use std::{path::Path, process::Command, time::Duration};

pub const TEST: Test = Test { name: "clocks_two_machines", smoke: false, only_whole: false, seconds: 400, run };

/// Time limit of a command.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time within which a fault has to be reported, ns.
const SOON: i64 = 2_000_000_000;
/// Offset below which the servo has settled, ns, and ([`STEADY`]) the number of successive readings below it.
const SETTLED: i64 = 2_000;
const STEADY: u32 = 24;
/// Maximum time of a packet from the first probe's program to the other machine's program at the same place in the
/// kernel, ns; it is long because the emulated CPU is slow. A packet takes longer if an interrupt occurs in between, at
/// most one packet in [`INTERRUPTED`].
const PROGRAMS_APART: i64 = 50_000;
const INTERRUPTED: u64 = 50;
const GRANDMASTERS: [&str; 2] = ["020000.fffe.00000a", "020000.fffe.00000b"];

fn run(scale: &Scale) -> Outcome {
    let nics = StampingNics::load("wire_ns=1000 phcs=2 offset_ns=0,5000000 drift_ppb=0,15000 precise=Y")?;
    let master = Ptp4l::start(&nics, 0, &format!("--clockIdentity={} --priority1=10", GRANDMASTERS[0]))?;
    let slave = Ptp4l::start(&nics, 1, "--slaveOnly=1")?;
    until("the clock follows its grandmaster", || slave.is_settled(&nics).unwrap_or(false)).map_err(plain)?;
    agrees_with_pmc(&nics, &slave)?;
    times_are_within_their_bound(&nics, &master, &slave, scale.frames(2_000, 20_000))?;
    faults_are_reported(&nics, master, &slave)
}

/// A ptp4l that uses its NIC's timestamps; it ends when this value is dropped.
struct Ptp4l {
    nic: usize,
    socket: String,
    process: Started,
}

impl Ptp4l {
    fn start(linked: &Linked, nic: usize, words: &str) -> Result<Self> {
        let socket = format!("/run/latpath-lab-ptp{nic}");
        // Eight messages per second, so that the servo settles quickly.
        let words = format!(
            "-i {} -2 -H -m --uds_address={socket} --tx_timestamp_timeout=500 --logAnnounceInterval=-1 \
             --logSyncInterval=-3 --logMinDelayReqInterval=-3 --summary_interval=3 --fault_reset_interval=1 {words}",
            linked.name(nic)
        );
        let mut ptp4l = Command::new("ptp4l");
        ptp4l.args(words.split_whitespace());
        let mut process = linked.start_command(nic, ptp4l)?;
        until("ptp4l listens", || Path::new(&socket).exists() || !process.runs()).map_err(plain)?;
        ensure!(process.runs(), "ptp4l ended: {} {}", process.printed(), process.said());
        Ok(Self { nic, socket, process })
    }

    /// latpath's report on the machine's clocks.
    fn clocks(&self, linked: &Linked) -> Result<ClockReport> {
        let words = format!("clocks --json --ptp-socket {}", self.socket);
        linked.latpath(self.nic, &words, PATIENCE)?.json().map_err(plain)
    }

    /// Whether the clock's offset from its grandmaster stays below [`SETTLED`].
    fn is_settled(&self, linked: &Linked) -> Result<bool> {
        for _ in 0..STEADY {
            let clocks = self.clocks(linked)?;
            let instance = clocks.ptp.first().context("no ptp4l")?;
            let offset = instance.offset_ns.filter(|_| instance.state == LinkState::Following);
            if offset.is_none_or(|offset| offset.abs() > SETTLED) {
                return Ok(false);
            }
            latpath_testkit::waits::pace(Duration::from_millis(125));
        }
        Ok(true)
    }

    /// A field of pmc's response to GET `set`.
    fn pmc(&self, linked: &Linked, set: &str, field: &str) -> Result<String> {
        let mut pmc = Command::new("pmc");
        pmc.args(["-u", "-b", "0", "-s", &self.socket, &format!("GET {set}")]);
        let ended = linked.start_command(self.nic, pmc)?.finish(PATIENCE).map_err(plain)?;
        let fields = ended.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let found =
            fields.filter(|words| words.len() == 2 && words[0] == field).map(|words| words[1].to_owned()).next();
        found.with_context(|| format!("no {field} in {}", ended.stdout))
    }
}

fn agrees_with_pmc(linked: &Linked, slave: &Ptp4l) -> Outcome {
    let clocks = slave.clocks(linked)?;
    let [instance] = &clocks.ptp[..] else { bail!("not one ptp4l: {clocks:?}") };
    let pmc = |set: &str, field: &str| slave.pmc(linked, set, field);
    let port = instance.following_port().context("no port follows")?;
    for (ours, set, field) in [
        (instance.grandmaster.to_string(), "PARENT_DATA_SET", "grandmasterIdentity"),
        (instance.grandmaster_class.to_string(), "PARENT_DATA_SET", "gm.ClockClass"),
        (instance.identity.to_string(), "DEFAULT_DATA_SET", "clockIdentity"),
        (instance.domain.to_string(), "DEFAULT_DATA_SET", "domainNumber"),
        (instance.steps_removed.to_string(), "CURRENT_DATA_SET", "stepsRemoved"),
        (format!("{:?}", port.state).to_uppercase(), "PORT_DATA_SET", "portState"),
    ] {
        let theirs = pmc(set, field)?;
        ensure!(ours == theirs, "{field}: latpath says {ours}, pmc {theirs}");
    }
    let theirs: f64 = pmc("CURRENT_DATA_SET", "meanPathDelay")?.parse()?;
    ensure!((instance.path_delay_ns as f64 - theirs).abs() < 1_000.0, "delay {} and {theirs}", instance.path_delay_ns);
    let (offset, bound) = instance.offset_ns.zip(instance.bound_ns).context("no offset")?;
    let theirs: i64 = pmc("TIME_STATUS_NP", "master_offset")?.parse()?;
    ensure!((offset - theirs).abs() <= 2 * SETTLED, "offset {offset} and {theirs}");
    ensure!(bound >= offset.abs(), "a bound of {bound} ns with an offset of {offset} ns");
    let time = clocks.grandmaster_time.context("no time of the grandmaster")?;
    ensure!(clocks.system_bound_ns.is_none() && time.bound_ns >= bound, "{time:?}");
    Ok(())
}

/// Sends packets from the first machine to the second, and compares the times at which both machines' probes saw each
/// of them.
fn times_are_within_their_bound(nics: &StampingNics, master: &Ptp4l, slave: &Ptp4l, frames: u64) -> Outcome {
    let run = "/tmp/latpath-lab-two-machines";
    let _ = std::fs::remove_dir_all(run);
    let agent = agent_of_another_machine(nics.space(1), &format!("--ptp-socket {}", slave.socket))?;
    let mut record = latpath("record -s svid:MU01 --no-flight");
    record.args(["--points", "host/tx@lpn0,host/nic-rx@lpn1*,b/nic-rx@lpn1", "--machine", &format!("b={agent}")]);
    record.args(["--ptp-socket", &master.socket, "-o", run]);
    let mut recording = nics.start_command(0, record)?;
    until("the recording has begun", || Run::open(Path::new(run)).is_ok() || !recording.runs()).map_err(plain)?;
    // The bound covers the servo's offsets of the last ten seconds.
    fault_for(Duration::from_secs(3));
    let words = format!("publish -i lpn0 --svid MU01 --rate 500 --wrap 65536 --count {frames} --json");
    nics.latpath(0, &words, PATIENCE.max(Duration::from_millis(4 * frames)))?;
    fault_for(Duration::from_secs(2));
    let servo = slave.clocks(nics)?.ptp.first().and_then(|instance| instance.bound_ns);
    recording.interrupt();
    let ended = recording.finish(PATIENCE).map_err(plain)?;
    ensure!(ended.code == Some(0), "the recording: {}", ended.stderr);

    let run = Run::open(Path::new(run))?;
    let manifest = run.manifest();
    let point = |machine: &str| {
        let mut points = manifest.points.iter().map(|info| &info.point);
        points.position(|point| point.machine == machine && point.device.starts_with("lpn1"))
    };
    let (here, there) = point("host").zip(point("b")).with_context(|| format!("points: {:?}", manifest.points))?;
    let machine = manifest
        .machines
        .iter()
        .map(|machine| &machine.clock)
        .find(|clock| clock.machine == "b")
        .context("no clock of b")?;
    let bound = machine.error_bound_ns;
    let (mut both, mut wrong, mut largest) = (0_u64, 0_u64, 0);
    run.for_each(&Select::default(), |journey| {
        if let Some((true_time, time)) = journey.at(here as u16).zip(journey.at(there as u16)) {
            let error = (time - true_time).abs();
            (both, largest) = (both + 1, largest.max(error));
            wrong += u64::from(error > bound + PROGRAMS_APART);
        }
        true
    });
    let (mut samples, mut beyond) = (0_u64, 0_u64);
    run.for_each_clock_sample(|sample| {
        if sample.clock == "b" {
            samples += 1;
            beyond += u64::from(sample.offset_ns.abs() > sample.error_bound_ns);
        }
    })?;
    eprintln!(
        "servo's bound {servo:?} ns; {both} packets: times wrong by {largest} ns at most (with the programs' own time), {wrong} beyond the bound of \
         {bound} ns ({}); {beyond} of {samples} offsets beyond theirs; exchanges: {machine:?}",
        machine.method
    );
    ensure!(machine.method == "PTP", "tied by {}: {machine:?}", machine.method);
    ensure!(both >= frames * 99 / 100, "{both} of {frames} packets were seen by both");
    ensure!(wrong * INTERRUPTED <= both && beyond == 0 && samples > 0, "beyond the bound");
    Ok(())
}

/// A line of `latpath clocks --watch --json`.
#[derive(Deserialize)]
struct Line {
    events: Vec<SyncEvent>,
}

fn events(watch: &Started) -> Vec<SyncEvent> {
    let printed = watch.printed();
    let whole = printed.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines = whole.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    lines.flat_map(|line| line.events).collect()
}

fn faults_are_reported(nics: &StampingNics, master: Ptp4l, slave: &Ptp4l) -> Outcome {
    let watch = nics.start(1, &format!("clocks --watch --json --ptp-socket {}", slave.socket))?;
    let settle = || {
        until("the servo has settled", || slave.is_settled(nics).unwrap_or(false)).map_err(plain)?;
        let open = |events: Vec<SyncEvent>| {
            let last = |number: u32| events.iter().rfind(|event| event.number == number);
            events.iter().any(|event| last(event.number).is_some_and(|last| last.until_ns.is_none()))
        };
        until("all events have ended", || !open(events(&watch))).map_err(plain)
    };
    settle()?;
    let before = events(&watch);
    ensure!(before.is_empty(), "events without a fault: {before:?}");

    let expect = |fault: &str, at: i64, kinds: &[SyncEventKind]| -> Outcome {
        let is_it = |event: &&SyncEvent| kinds.contains(&event.kind) && event.noticed_ns >= at;
        until(&format!("{fault} is reported"), || events(&watch).iter().any(|event| is_it(&event)))
            .map_err(|error| plain(error).context(format!("events: {:?}", events(&watch))))?;
        let all = events(&watch);
        let event = all.iter().find(is_it).context("no event")?;
        let after = event.noticed_ns - at;
        eprintln!("{fault}: {} after {} ms: {}", event.kind.name(), after / 1_000_000, event.text);
        ensure!(after <= SOON, "{fault} was reported after {after} ns: {event:?}");
        settle()
    };
    let at = monotonic();
    nics.phc_ctl(1, "adj 0.0005")?;
    expect("a step of the clock", at, &[SyncEventKind::Step])?;

    let at = monotonic();
    nics.phc_ctl(1, "freq 3000000")?; // ppb
    expect("a changed frequency", at, &[SyncEventKind::ServoSwing, SyncEventKind::Step])?;

    let at = monotonic();
    slave.process.signal(Signal::SIGSTOP);
    fault_for(Duration::from_secs(3));
    slave.process.signal(Signal::SIGCONT);
    expect("a stopped ptp4l", at, &[SyncEventKind::Starvation])?;

    // ptp4l then reports "timed out while polling for tx timestamp".
    let at = monotonic();
    nics.set("tx_lost", "0,1")?;
    fault_for(Duration::from_secs(3));
    nics.set("tx_lost", "0,0")?;
    expect("lost times of sent messages", at, &[SyncEventKind::Starvation])?;

    drop(master);
    let other = Ptp4l::start(nics, 0, &format!("--clockIdentity={} --priority1=10", GRANDMASTERS[1]))?;
    let follows =
        || slave.pmc(nics, "PARENT_DATA_SET", "grandmasterIdentity").is_ok_and(|name| name == GRANDMASTERS[1]);
    let mut at = monotonic();
    until("the other grandmaster is followed", || {
        let before = monotonic();
        let is_followed = follows();
        if !is_followed {
            at = before;
        }
        is_followed
    })
    .map_err(plain)?;
    expect("another grandmaster", at, &[SyncEventKind::GrandmasterChange])?;
    shown(nics, slave)?;
    drop(other);

    watch.interrupt();
    watch.finish(PATIENCE).map_err(plain).map(drop)
}

/// Prints the output that a user sees, as in docs/sync.md.
fn shown(nics: &StampingNics, slave: &Ptp4l) -> Outcome {
    let text = nics.latpath(1, &format!("clocks --ptp-socket {}", slave.socket), PATIENCE)?.stdout;
    eprintln!("{text}");
    ensure!(text.contains(GRANDMASTERS[1]), "{text}");
    let mut phc2sys = Command::new("phc2sys");
    phc2sys.args(["-s", "lpn1", "-c", "CLOCK_REALTIME", "-O", "0", "-R", "8", "-m"]);
    let mut phc2sys = nics.start_command(1, phc2sys)?;
    let close = || slave.clocks(nics).is_ok_and(|clocks| clocks.system_bound_ns.is_some());
    until("the system clock follows the NIC's", || close() || !phc2sys.runs()).map_err(plain)?;
    let clocks = slave.clocks(nics)?;
    let text = nics.latpath(1, &format!("clocks --ptp-socket {}", slave.socket), PATIENCE)?.stdout;
    eprintln!("{text}");
    ensure!(clocks.system_bound_ns.is_some(), "phc2sys: {} {}", phc2sys.printed(), phc2sys.said());
    ensure!(clocks.grandmaster.map(|name| name.to_string()).as_deref() == Some(GRANDMASTERS[1]), "{clocks:?}");
    let _ = command(Command::new("kill").arg(phc2sys.pid().to_string()));
    phc2sys.finish(PATIENCE).map_err(plain).map(drop)
}
