//! Faults on one machine, without a guest: the application is in a namespace.

use super::{
    blame::{self, Blame},
    scenario::{tc, write_sysfs, Reader, Scenario, CPU, ITS_CPU, ROUNDS},
};
use latpath_lab::{PUBLISHER, VETH};
use latpath_testkit::{program, trial, Lack};
use latpath_testkit::{Failed, Trial};
use std::{thread, time::Duration};

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial("without_a_fault_none_is_blamed", needs, none),
        trial("a_real_time_hog_on_the_applications_cpu_is_blamed", needs, hog),
        trial("a_crowd_of_ordinary_threads_on_the_applications_cpu_is_blamed", needs, crowd),
        trial("a_timer_interrupt_that_lasts_is_blamed", needs, storm),
        trial("a_softirq_that_is_busy_with_other_frames_is_blamed", needs, flood),
        trial("an_application_that_sleeps_is_blamed", needs, sleeper),
        trial("a_burst_that_came_before_is_blamed", needs, burst),
        trial("a_queueing_discipline_that_holds_packets_is_blamed", needs, gate),
    ]
}

/// Lays the path, starts all that runs, does the fault, and judges.
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
    thread::sleep(Duration::from_secs(3));
    scenario.end()?.0.expect_no_fault()
}

fn hog() -> Result<(), Failed> {
    judge(&Reader::URGENT, &format!("hog cpu={CPU} fifo=90"), &blame::HOG)
}

fn crowd() -> Result<(), Failed> {
    judge(&Reader::USUAL, &format!("crowd cpu={CPU} threads=6"), &blame::CROWD)
}

fn storm() -> Result<(), Failed> {
    judge(&Reader::URGENT, &format!("storm cpu={CPU} period=100"), &blame::STORM)
}

/// Other frames, which keep the softirq of the application's CPU busy.
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
    let mut scenario = Scenario::lay(false)?;
    scenario.begin(&Reader { rounds: ROUNDS, ..Reader::URGENT })?;
    thread::sleep(Duration::from_secs(6));
    let (seen, truth) = scenario.end()?;
    seen.expect(&truth, &blame::SLEEPER)
}

/// Each frame costs the application 30 µs, and 600 of another stream come at once.
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

/// A token bucket on the way, to which hardly any tokens come at times.
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
