//! The fixes that latpath advises end the delays. While a fault continues, a recording is made and `latpath
//! explain` advises a fix; its commands are run in a shell. In a second recording this cause must delay no packet,
//! although the fault continues.

use super::{
    blame::{self, Blame},
    fault::{self, Injection},
    group::{need_group, need_old_group, quota, Group, OldGroup},
    in_guest::{prepare, Qemu},
    scenario::{tc, Reader, Scenario, CPU, NO_ROUNDS},
    verdict::{Late, Seen},
};
use latpath_lab::{PUBLISHER, VETH};
use latpath_linux::monotonic;
use latpath_report::{explanation::FixDocument, ExplanationDocument};
use latpath_testkit::{equal, latpath, need_tool, trial, Failed, Lack, Started, Trial};
use std::{fs, os::unix::fs::MetadataExt, process::Command, time::Duration};

/// Tests of fixes on this host, and with the demo's guest.
pub fn trials(host: &[Lack], guest: &[Lack]) -> Vec<Trial> {
    let with = |lacks: &[Lack]| [host, lacks].concat();
    let old = |controller, file| with(&[need_tool("findmnt"), need_old_group(controller, file)]);
    let group = [need_tool("findmnt"), need_group()];
    vec![
        trial("a_priority_above_a_hogs_ends_what_it_delays", &with(&[need_tool("chrt")]), priority),
        trial("a_hog_that_is_moved_delays_no_more", &with(&[need_tool("taskset")]), moved),
        trial("in_real_time_no_crowd_delays_any_more", &with(&[need_tool("chrt")]), real_time),
        trial("packets_that_other_cpus_take_delay_this_one_no_more", &with(&[need_tool("bridge")]), steered),
        trial("a_queueing_discipline_that_is_taken_off_delays_no_more", &with(&[need_tool("tc")]), taken_off),
        trial("without_its_cpu_limit_a_control_group_delays_no_more", &with(&group), unlimited),
        trial("without_its_groups_cpu_limit_qemu_delays_no_more", &[guest, &group[..]].concat(), unlimited_qemu),
        trial("with_twice_its_runtime_a_thread_with_a_deadline_delays_no_more", &with(&[need_tool("chrt")]), runtime),
        trial(
            "without_limits_of_real_time_its_groups_delay_no_more",
            &[&old("cpu", "cpu.rt_runtime_us")[..], &[need_tool("sysctl")]].concat(),
            real_time_group,
        ),
        trial(
            "without_its_limit_of_block_io_a_group_delays_no_more",
            &old("blkio", "blkio.throttle.read_bps_device"),
            io,
        ),
    ]
}

/// Duration of the fault before it is judged, and of the recording after the fix.
const FAULT: Duration = Duration::from_secs(6);
const AFTER: Duration = Duration::from_secs(5);
/// Time after the fix in which packets that were already delayed may still arrive.
const SETTLES: Duration = Duration::from_secs(1);
/// Minimum number of packets delayed by the fault before the fix.
const HELD: usize = 20;
/// Rounds of a fault that outlast both recordings.
const GOES_ON: &str = "times=320 busy=15000 every=120000";
/// Minimum number of injections after the fix that delay no packet.
const STILL_THERE: usize = 10;
const LIMIT: Duration = Duration::from_secs(120);

/// Returns the commands advised for the first cause of a recording, from the fix that contains this word.
pub fn advised(seen: &Seen, blame: &Blame, word: &str) -> Result<Vec<String>, Failed> {
    let output = latpath(&format!("explain {} --json", seen.run.display())).output()?;
    let explained: ExplanationDocument = serde_json::from_slice(&output.stdout)?;
    let first = explained.causes.first().ok_or("no causes")?;
    equal(&format!("{} is blamed: {first:?}", blame.fault), blame.causes.include(first.share.cause), true)?;
    let has_it = |fix: &&FixDocument| fix.commands.iter().chain([&fix.what]).any(|text| text.contains(word));
    let found = first.advice.iter().find(has_it).map(|fix| fix.commands.clone());
    found.ok_or_else(|| format!("nothing with {word:?} is advised: {:?}", first.advice).into())
}

/// Runs the advised commands in this shell until one succeeds: they are alternatives.
pub fn follow(commands: &[String], shell: impl Fn() -> Command) -> Result<(), Failed> {
    let mut said = String::new();
    for command in commands {
        let ended = shell().args(["-c", command]).output()?;
        if ended.status.success() {
            eprintln!("  advised, and done: {command}");
            return Ok(());
        }
        said += &format!("{command}: {}\n", String::from_utf8_lossy(&ended.stderr));
    }
    Err(said.into())
}

/// Number of explained packets whose first cause is `blame`; with `cpu`, only those delayed on that CPU.
pub fn held(seen: &Seen, blame: &Blame, cpu: Option<usize>) -> usize {
    let is_held = |late: &&Late| {
        let on = late.attribution.first().and_then(|share| share.cpus.first()).map(|(cpu, _)| *cpu as usize);
        blame.is_first(&late.attribution) && (cpu.is_none() || on == cpu)
    };
    seen.explained.iter().filter(is_held).count()
}

/// A fault, its expected cause and the expected advice.
struct Case<'a> {
    blame: &'a Blame,
    /// A string that occurs in the expected fix.
    word: &'a str,
    /// CPU on which delays count; `None`: any.
    cpu: Option<usize>,
    /// The process that causes the fault, if any.
    goes_on: Option<Started>,
}

impl<'a> Case<'a> {
    fn of(blame: &'a Blame, word: &'a str) -> Self {
        Self { blame, word, cpu: None, goes_on: None }
    }
}

/// Expects the fault to delay packets, applies the advised fix, and expects no more delays while the fault continues.
fn is_fixed(scenario: &mut Scenario, case: Case) -> Result<(), Failed> {
    let Case { blame, word, cpu, goes_on } = case;
    latpath_testkit::waits::fault_for(FAULT);
    let before = scenario.recorded()?;
    follow(&advised(&before, blame, word)?, || Command::new("sh"))?;
    latpath_testkit::waits::fault_for(SETTLES);
    scenario.record("")?;
    let began = monotonic();
    latpath_testkit::waits::fault_for(AFTER);
    let ended = monotonic();
    let after = scenario.recorded()?;
    let (then, now) = (held(&before, blame, cpu), held(&after, blame, cpu));
    eprintln!(
        "{}: held {then} of {} late packets, then {now} of {} ({} journeys)",
        blame.fault,
        before.explained.len(),
        after.explained.len(),
        after.journeys
    );
    let is_there = |i: &&Injection| i.bounds().0 > began && i.bounds().1 < ended;
    let there = goes_on.map(|fault| -> Result<usize, Failed> {
        let ended = fault.finish(LIMIT)?;
        let truth = fault::parse(&ended.stdout)?;
        Ok(truth.iter().filter(is_there).count())
    });
    match there.transpose()? {
        Some(there) if there < STILL_THERE => {
            return Err(format!("the fault was there {there} times after it, which shows nothing").into());
        }
        _ => {}
    }
    match (then >= HELD, now, after.journeys > 500) {
        (true, 0, true) => Ok(()),
        _ => Err(format!(
            "{}: held {then} packets, and {now} of {} after what was advised; late then:{}",
            blame.fault,
            after.journeys,
            Seen::listed(after.explained.iter())
        )
        .into()),
    }
}

/// Tests the fix of a fault in the hypervisor's namespace, while this application runs.
fn beside(reader: &Reader, words: &str, blame: &Blame, word: &str) -> Result<(), Failed> {
    let mut scenario = Scenario::lay(false)?;
    scenario.begin(reader)?;
    let fault = scenario.start_fault(&scenario.bench.path.hypervisor, &format!("{words} {GOES_ON}"))?;
    is_fixed(&mut scenario, Case { goes_on: Some(fault), ..Case::of(blame, word) })
}

fn priority() -> Result<(), Failed> {
    beside(&Reader::URGENT, &format!("hog cpu={CPU} fifo=90"), &blame::HOG, "chrt -f -p 91 ")
}

fn moved() -> Result<(), Failed> {
    beside(&Reader::URGENT, &format!("hog cpu={CPU} fifo=90"), &blame::HOG, " off CPU ")
}

fn real_time() -> Result<(), Failed> {
    beside(&Reader::ORDINARY, &format!("crowd cpu={CPU} threads=6"), &blame::CROWD, "chrt -f -p 1 ")
}

/// Other frames, sent on the application's CPU, arrive through the stream's device; behind the bridge, each costs
/// softirq time. Once another CPU handles them, the stream's packets wait there, which is a different cause.
fn steered() -> Result<(), Failed> {
    let mut scenario = Scenario::lay(false)?;
    let (space, publisher) = (scenario.bench.path.hypervisor.clone(), scenario.bench.path.publisher.clone());
    for words in ["link add lpf0 type veth peer name lpf1", "link set lpf0 master br0 up", "link set lpf1 up"] {
        space.ip(words)?;
    }
    // The bridge forwards broadcasts to lpf0, but not the stream's packets.
    let only = Command::new("bridge")
        .args(["-n", space.name(), "link", "set", "dev", "lpf0", "flood", "off", "mcast_flood", "off"])
        .output()?;
    equal(&String::from_utf8_lossy(&only.stderr), only.status.success(), true)?;
    scenario.fault(&format!("costly at=lpf1 cost=15000 {NO_ROUNDS}"))?;
    scenario.begin(&Reader::URGENT)?;
    let fault = scenario.start_fault(&publisher, &format!("flood cpu={CPU} device={PUBLISHER} frames=1 {GOES_ON}"))?;
    let case = Case::of(&blame::FLOOD, "rps_cpus");
    is_fixed(&mut scenario, Case { cpu: Some(CPU), goes_on: Some(fault), ..case })
}

/// A rate limit below the stream's rate.
fn taken_off() -> Result<(), Failed> {
    let mut scenario = Scenario::lay(false)?;
    scenario.begin(&Reader::URGENT)?;
    let space = scenario.bench.path.hypervisor.clone();
    tc(&space, &format!("qdisc add dev {VETH} root tbf rate 2mbit burst 4000 limit 4000000"))?;
    is_fixed(&mut scenario, Case::of(&blame::GATE, "qdisc del "))
}

/// Rounds of 14 ms of work, with a quota ([`LITTLE`]) of 12 ms per 100 ms.
const SHORT_WORK: &str = "times=200 busy=14000 every=300000";
const LITTLE: Duration = Duration::from_millis(12);

fn unlimited() -> Result<(), Failed> {
    let group = Group::new()?;
    let mut scenario = Scenario::lay(false)?;
    scenario.begin(&Reader { nice: -20, rounds: SHORT_WORK, does: "stall=spin".into(), ..Reader::ORDINARY })?;
    group.take(scenario.application()?)?;
    quota(group.path(), Some(LITTLE))?;
    latpath_testkit::waits::fault_for(FAULT);
    is_fixed(&mut scenario, Case::of(&blame::THROTTLE, "cpu.max"))
}

/// The quota is 30 ms per 100 ms, less than an emulated guest needs.
fn unlimited_qemu() -> Result<(), Failed> {
    let group = Group::new()?;
    let mut scenario = Scenario::lay(true)?;
    prepare(&scenario, Qemu::Ordinary)?;
    group.take(scenario.qemu()?.pid)?;
    scenario.begin(&Reader::URGENT)?;
    quota(group.path(), Some(Duration::from_millis(30)))?;
    is_fixed(&mut scenario, Case::of(&blame::THROTTLE, "cpu.max"))
}

fn runtime() -> Result<(), Failed> {
    let mut scenario = Scenario::lay(false)?;
    let does = "stall=spin runtime=12000 period=100000 least=60000".into();
    scenario.begin(&Reader { rounds: SHORT_WORK, does, ..Reader::ORDINARY })?;
    latpath_testkit::waits::fault_for(FAULT);
    is_fixed(&mut scenario, Case::of(&blame::THROTTLE, "--sched-runtime"))
}

/// A kernel setting, restored on drop.
pub struct Setting(&'static str, String);

impl Setting {
    /// Saves the setting's value, which is restored on drop.
    pub fn keep(file: &'static str) -> Result<Self, Failed> {
        Ok(Self(file, fs::read_to_string(file)?))
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(self.0, &self.1);
    }
}

fn real_time_group() -> Result<(), Failed> {
    let _setting = Setting::keep("/proc/sys/kernel/sched_rt_runtime_us")?;
    let group = OldGroup::new("cpu", &[("cpu.rt_period_us", "100000".into()), ("cpu.rt_runtime_us", "12000".into())])?;
    let mut scenario = Scenario::lay(false)?;
    let does = "stall=spin least=60000".into();
    scenario.begin(&Reader { rounds: SHORT_WORK, does, ..Reader::URGENT })?;
    group.take(scenario.application()?)?;
    latpath_testkit::waits::fault_for(FAULT);
    is_fixed(&mut scenario, Case::of(&blame::THROTTLE, "sched_rt_runtime_us=-1"))
}

/// A limit on block I/O lets the application read 128 KiB/s.
fn io() -> Result<(), Failed> {
    let disk = fs::metadata(std::env::temp_dir())?.dev();
    let limit = format!("{}:{} 131072", libc::major(disk), libc::minor(disk));
    let group = OldGroup::new("blkio", &[("blkio.throttle.read_bps_device", limit)])?;
    let mut scenario = Scenario::lay(false)?;
    let rounds = "times=400 busy=15000 every=120000";
    scenario.begin(&Reader { rounds, does: "stall=io".into(), ..Reader::URGENT })?;
    group.take(scenario.application()?)?;
    is_fixed(&mut scenario, Case::of(&blame::IO, "blkio.throttle"))
}
