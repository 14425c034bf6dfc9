//! Faults on one machine without a guest: the application runs in a namespace.

use super::{
    blame::{self, Blame},
    group::{need_group, need_old_group, Group, OldGroup},
    scenario::{tc, write_sysfs, Reader, Scenario, CPU, ITS_CPU, ROUNDS},
};
use latpath_cause::Cause;
use latpath_lab::{PUBLISHER, VETH};
use latpath_model::Ns;
use latpath_testkit::{program, trial, Lack};
use latpath_testkit::{Failed, Trial};
use std::{collections::BTreeMap, os::unix::fs::MetadataExt, process::Command, time::Duration};

/// Tests of the faults on one machine.
pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    let with = |lack: Lack| [needs, &[lack]].concat();
    let old = |controller, file| with(need_old_group(controller, file));
    vec![
        trial("without_a_fault_none_is_blamed", needs, none),
        trial("of_twenty_recordings_under_load_a_tenth_is_unexplained_at_most", needs, twenty),
        trial("a_real_time_hog_on_the_applications_cpu_is_blamed", needs, hog),
        trial("a_crowd_of_ordinary_threads_on_the_applications_cpu_is_blamed", needs, crowd),
        trial("a_timer_interrupt_that_lasts_is_blamed", needs, storm),
        trial("a_softirq_that_is_busy_with_other_frames_is_blamed", needs, flood),
        trial("an_application_that_sleeps_is_blamed", needs, sleeper),
        trial("a_burst_that_came_before_is_blamed", needs, burst),
        trial("a_queueing_discipline_that_holds_packets_is_blamed", needs, gate),
        trial("an_application_that_works_is_blamed", needs, || stalled("spin", &blame::OWN)),
        trial("an_application_that_meets_page_faults_is_blamed", needs, || stalled("faults", &blame::FAULTS)),
        trial("a_server_that_sleeps_is_blamed", needs, || stalled("server", &blame::SERVER)),
        trial("a_thread_that_holds_a_lock_is_blamed", needs, || locked("lock=futex", ROUNDS, &blame::HOLDER)),
        trial("what_keeps_a_locks_holder_from_its_cpu_is_blamed", needs, || {
            locked("lock=futex hog=1", ROUNDS, &blame::HOG)
        }),
        trial("what_keeps_a_kernel_locks_holder_from_its_cpu_is_blamed", needs, || {
            locked("lock=kernel hog=1", "times=30 busy=60000 every=150000", &blame::HOG)
        }),
        trial("an_application_that_is_stopped_is_blamed", needs, stop),
        trial("a_debugger_that_stops_the_application_is_blamed", needs, trace),
        trial("a_frozen_control_group_is_blamed", &old("freezer", "freezer.state"), freeze),
        trial("an_application_whose_group_has_used_up_its_time_is_blamed", &with(need_group()), throttle),
        trial("a_crowd_in_another_control_group_is_blamed", &old("cpu", "cpu.shares"), group_crowd),
        trial("an_application_that_used_up_its_runtime_is_blamed", needs, deadline),
        trial("a_real_time_group_that_used_up_its_time_is_blamed", &old("cpu", "cpu.rt_runtime_us"), real_time_group),
        trial("a_control_group_that_has_to_free_memory_is_blamed", &old("memory", "memory.limit_in_bytes"), reclaim),
        trial("a_disk_that_is_throttled_is_blamed", &old("blkio", "blkio.throttle.read_bps_device"), io),
    ]
}

/// Sets up the path, starts all processes, injects the fault, and checks which cause latpath blames.
fn judge(reader: &Reader, words: &str, blame: &Blame) -> Result<(), Failed> {
    let mut scenario = Scenario::lay(false)?;
    scenario.begin(reader)?;
    let truth = scenario.fault(&format!("{words} {ROUNDS}"))?;
    let (seen, _) = scenario.end()?;
    seen.expect(&truth, blame)
}

fn none() -> Result<(), Failed> {
    let mut scenario = Scenario::lay(false)?;
    scenario.begin(&Reader::URGENT)?;
    scenario.records(12_000)?;
    scenario.end()?.0.expect_no_fault()
}

/// Expects no fault to be blamed for the slowest packets of short recordings, while ordinary threads read directories
/// on both CPUs.
fn twenty() -> Result<(), Failed> {
    const RECORDINGS: usize = 20;
    const SLOWEST: &str = "--capture-worst 200";
    let mut scenario = Scenario::lay(false)?;
    let mut load = Vec::new();
    for _ in 0..3 {
        let mut shell = Command::new("sh");
        shell.args(["-c", "while :; do ls -lR /usr/lib /usr/share >/dev/null; done"]);
        load.push(scenario.bench.start(&scenario.bench.path.hypervisor, shell)?);
    }
    scenario.begin_with(&Reader::URGENT, SLOWEST)?;
    let (mut packets, mut excess, mut causes) = (0, 0, BTreeMap::<String, Ns>::new());
    for n in 0..RECORDINGS {
        if n > 0 {
            scenario.record(SLOWEST)?;
        }
        latpath_testkit::waits::fault_for(Duration::from_secs(3));
        let seen = scenario.recorded()?;
        seen.expect_no_fault()?;
        for late in &seen.explained {
            packets += 1;
            excess += late.attribution.excess_ns;
            for share in &late.attribution.shares {
                *causes.entry(share.cause.to_string()).or_default() += share.excess_ns;
            }
        }
    }
    let percent = |ns: Ns| ns as f64 * 100.0 / excess.max(1) as f64;
    let mut listed: Vec<_> = causes.iter().map(|(cause, ns)| (percent(*ns), cause)).collect();
    listed.sort_by(|a, b| b.0.total_cmp(&a.0));
    let said: Vec<String> = listed.iter().map(|(percent, cause)| format!("{cause} {percent:.1} %")).collect();
    let said =
        format!("{packets} packets of {RECORDINGS} recordings, {:.1} ms: {}", excess as f64 / 1e6, said.join(", "));
    eprintln!("{said}");
    let dark = causes.get(&Cause::Unexplained.to_string()).copied().unwrap_or(0);
    match packets >= 10 * RECORDINGS && percent(dark) <= 10.0 {
        true => Ok(()),
        false => Err(said.into()),
    }
}

fn hog() -> Result<(), Failed> {
    judge(&Reader::URGENT, &format!("hog cpu={CPU} fifo=90"), &blame::HOG)
}

fn crowd() -> Result<(), Failed> {
    judge(&Reader::ORDINARY, &format!("crowd cpu={CPU} threads=6"), &blame::CROWD)
}

fn storm() -> Result<(), Failed> {
    judge(&Reader::URGENT, &format!("storm cpu={CPU} period=100"), &blame::STORM)
}

/// Other frames keep the softirq of the application's CPU busy.
fn flood() -> Result<(), Failed> {
    let mut scenario = Scenario::lay(false)?;
    let space = &scenario.bench.path.hypervisor;
    for words in ["link add lpf0 type veth peer name lpf1", "link set lpf0 up", "link set lpf1 up"] {
        space.ip(words)?;
    }
    write_sysfs(space, "/sys/class/net/lpf1/queues/rx-0/rps_cpus", &format!("{:x}", 1 << CPU))?;
    scenario.begin(&Reader::URGENT)?;
    let truth = scenario.fault(&format!("flood cpu={ITS_CPU} device=lpf0 at=lpf1 frames=150 cost=100 {ROUNDS}"))?;
    let (seen, _) = scenario.end()?;
    seen.expect(&truth, &blame::FLOOD)
}

fn sleeper() -> Result<(), Failed> {
    by_itself(&Reader { rounds: ROUNDS, ..Reader::URGENT }, 6, &blame::SLEEPER, |_| Ok(()))
}

/// Tests a fault of the application itself.
fn by_itself(
    reader: &Reader,
    seconds: u64,
    blame: &Blame,
    prepare: impl FnOnce(&Scenario) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let mut scenario = Scenario::lay(false)?;
    scenario.begin(reader)?;
    prepare(&scenario)?;
    // The application's faults take this long in total.
    latpath_testkit::waits::fault_for(Duration::from_secs(seconds));
    let (seen, truth) = scenario.end()?;
    seen.expect(&truth, blame)
}

fn stalled(kind: &str, blame: &Blame) -> Result<(), Failed> {
    by_itself(&Reader { rounds: ROUNDS, does: format!("stall={kind}"), ..Reader::URGENT }, 6, blame, |_| Ok(()))
}

fn locked(kind: &'static str, rounds: &'static str, blame: &Blame) -> Result<(), Failed> {
    by_itself(&Reader { rounds, does: kind.into(), ..Reader::URGENT }, 6, blame, |_| Ok(()))
}

/// Injects a fault into the application's process, given its PID.
fn judge_process(
    reader: &Reader,
    rounds: &str,
    blame: &Blame,
    words: impl FnOnce(i32) -> Result<String, Failed>,
) -> Result<(), Failed> {
    let mut scenario = Scenario::lay(false)?;
    scenario.begin(reader)?;
    let words = words(scenario.application()?)?;
    let truth = scenario.fault(&format!("{words} {rounds}"))?;
    let (seen, _) = scenario.end()?;
    seen.expect(&truth, blame)
}

fn stop() -> Result<(), Failed> {
    judge_process(&Reader::URGENT, ROUNDS, &blame::STOP, |pid| Ok(format!("stop pid={pid}")))
}

fn trace() -> Result<(), Failed> {
    judge_process(&Reader::URGENT, ROUNDS, &blame::STOP, |pid| Ok(format!("trace pid={pid}")))
}

fn freeze() -> Result<(), Failed> {
    let group = OldGroup::new("freezer", &[])?;
    judge_process(&Reader::URGENT, ROUNDS, &blame::STOP, |pid| {
        group.take(pid)?;
        Ok(format!("freeze group={}", group.path().display()))
    })
}

fn throttle() -> Result<(), Failed> {
    let group = Group::new()?;
    // Real-time threads are not subject to this throttling.
    judge_process(
        &Reader { nice: -20, work: 20, ..Reader::ORDINARY },
        "times=25 busy=50000 every=300000",
        &blame::THROTTLE,
        |pid| {
            group.take(pid)?;
            Ok(format!("throttle group={}", group.path().display()))
        },
    )
}

fn group_crowd() -> Result<(), Failed> {
    let group = OldGroup::new("cpu", &[("cpu.shares", "262144".into())])?;
    let mut scenario = Scenario::lay(false)?;
    scenario.begin(&Reader { nice: 5, ..Reader::ORDINARY })?;
    let words = format!("crowd cpu={CPU} threads=6 group={}", group.path().display());
    let truth = scenario.fault(&format!("{words} times=160 busy=15000 every=120000"))?;
    let (seen, _) = scenario.end()?;
    seen.expect(&truth, &blame::CROWD)
}

/// Rounds of 14 ms of work, with a runtime of 12 ms per 100 ms.
const SHORT_WORK: &str = "times=44 busy=14000 every=300000";

fn deadline() -> Result<(), Failed> {
    let does = "stall=spin runtime=12000 period=100000 least=60000".into();
    by_itself(&Reader { rounds: SHORT_WORK, does, ..Reader::ORDINARY }, 20, &blame::THROTTLE, |_| Ok(()))
}

fn real_time_group() -> Result<(), Failed> {
    let group = OldGroup::new("cpu", &[("cpu.rt_period_us", "100000".into()), ("cpu.rt_runtime_us", "12000".into())])?;
    let reader = Reader { rounds: SHORT_WORK, does: "stall=spin least=60000".into(), ..Reader::URGENT };
    by_itself(&reader, 20, &blame::THROTTLE, |scenario| Ok(group.take(scenario.application()?)?))
}

fn reclaim() -> Result<(), Failed> {
    let group = OldGroup::new("memory", &[("memory.limit_in_bytes", (32 << 20).to_string())])?;
    let reader = Reader { rounds: ROUNDS, does: "stall=reclaim".into(), ..Reader::URGENT };
    by_itself(&reader, 6, &blame::RECLAIM, |scenario| Ok(group.take(scenario.application()?)?))
}

/// A limit on block I/O lets the application read 128 KiB/s.
fn io() -> Result<(), Failed> {
    let disk = std::fs::metadata(std::env::temp_dir())?.dev();
    let limit = format!("{}:{} 131072", libc::major(disk), libc::minor(disk));
    let group = OldGroup::new("blkio", &[("blkio.throttle.read_bps_device", limit)])?;
    let reader = Reader { rounds: ROUNDS, does: "stall=io".into(), ..Reader::URGENT };
    by_itself(&reader, 12, &blame::IO, |scenario| Ok(group.take(scenario.application()?)?))
}

/// Each frame costs the application 30 µs, and 600 frames of another stream arrive at once.
fn burst() -> Result<(), Failed> {
    let mut scenario = Scenario::lay(false)?;
    let other = format!("{}b", scenario.svid);
    scenario.begin_with(&Reader { work: 30, ..Reader::URGENT }, &format!("--stream svid:{other}"))?;
    let words =
        format!("publish,-i,{PUBLISHER},--svid,{other},--cpu,{ITS_CPU},--fifo,60,--rate,max,--count,600,--dst,01:0c:cd:04:00:77");
    let words = format!("burst program={} words={words} {ROUNDS}", program().display());
    let truth = scenario.fault_in(&scenario.bench.path.publisher.clone(), &words)?;
    let (seen, _) = scenario.end()?;
    seen.expect(&truth, &blame::BURST)
}

/// A token bucket on the route, which at times receives hardly any tokens.
fn gate() -> Result<(), Failed> {
    let mut scenario = Scenario::lay(false)?;
    tc(
        &scenario.bench.path.hypervisor,
        &format!("qdisc add dev {VETH} root tbf rate 10gbit burst 4000 limit 4000000"),
    )?;
    scenario.begin(&Reader::URGENT)?;
    let truth = scenario.fault(&format!("gate device={VETH} {ROUNDS}"))?;
    let (seen, _) = scenario.end()?;
    seen.expect(&truth, &blame::GATE)
}
