//! Faults on the way into a guest and in it, with QEMU's main loop reading the tap.

use super::{
    blame::{self, Blame},
    fault::Injection,
    group::{need_group, Group},
    scenario::{Reader, Scenario, CPU, ITS_CPU},
    verdict::Seen,
};
use latpath_testkit::{trial, Lack};
use latpath_testkit::{Failed, Trial};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Number, duration and interval of the injections, the times in µs. Longer than without a guest, since an emulated
/// guest takes some ms for every packet.
const ROUNDS: &str = "times=40 busy=30000 every=150000";

/// One guest shared by all tests; the last one drops it.
type Shared = Arc<Mutex<Option<Scenario>>>;

/// Tests of the faults with a guest.
pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    let shared = Shared::default();
    let one = |name, needs: &[Lack], fault: fn(&mut Scenario) -> Result<(), Failed>| {
        let shared = shared.clone();
        trial(name, needs, move || {
            let mut scenario = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let mut taken = match scenario.take() {
                Some(scenario) => scenario,
                None => Scenario::lay(true)?,
            };
            let outcome = fault(&mut taken);
            // A scenario that failed midway is not reused.
            *scenario = Some(taken).filter(Scenario::is_over);
            outcome
        })
    };
    let group = [needs, &[need_group()]].concat();
    vec![
        one("into_a_guest_without_a_fault_none_is_blamed", needs, none),
        one("a_hog_on_the_cpu_of_qemus_main_loop_is_blamed", needs, hog),
        one("a_crowd_on_the_cpu_of_qemus_main_loop_is_blamed", needs, crowd),
        one("a_hog_on_the_vcpus_cpu_is_blamed", needs, vcpu),
        one("a_qemu_that_is_stopped_is_blamed", needs, stop),
        one("a_control_group_whose_time_is_used_up_is_blamed", &group, throttle),
        one("a_hog_in_the_guest_is_blamed", needs, guest_hog),
        one("a_crowd_in_the_guest_is_blamed", needs, guest_crowd),
        one("a_timer_interrupt_in_the_guest_is_blamed", needs, guest_storm),
        one("an_application_in_the_guest_that_sleeps_is_blamed", needs, guest_sleeper),
    ]
}

/// Placement of QEMU's threads (main loop or vCPU beside the publisher) and their priorities.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Qemu {
    /// The main loop has a CPU of its own.
    MainAlone,
    /// The main loop has a CPU of its own and ordinary priority; the vCPU is real-time.
    OrdinaryMainAlone,
    /// The vCPU has a CPU of its own.
    VcpuAlone,
    /// The main loop has a CPU of its own, and no thread is real-time.
    Ordinary,
}

/// Sets the CPUs and priorities of QEMU's threads.
pub fn prepare(scenario: &Scenario, kind: Qemu) -> Result<(), Failed> {
    let qemu = scenario.qemu()?;
    match kind {
        Qemu::VcpuAlone => qemu.pin(ITS_CPU, CPU)?,
        _ => qemu.pin(CPU, ITS_CPU)?,
    }
    match kind {
        Qemu::MainAlone | Qemu::VcpuAlone => qemu.urgent(70, 70, 0),
        Qemu::OrdinaryMainAlone => qemu.urgent(70, 0, 0),
        Qemu::Ordinary => qemu.urgent(0, 0, -20),
    }
}

/// Runs the scenario with a fault, on the path that all tests share; returns the recording's contents and the
/// injections.
fn judge(
    scenario: &mut Scenario,
    kind: Qemu,
    reader: &Reader,
    fault: impl FnOnce(&mut Scenario) -> Result<Vec<Injection>, Failed>,
) -> Result<(Seen, Vec<Injection>), Failed> {
    prepare(scenario, kind)?;
    scenario.begin(reader)?;
    let truth = fault(scenario)?;
    let (seen, slept) = scenario.end()?;
    Ok((seen, if truth.is_empty() { slept } else { truth }))
}

fn on_host(scenario: &mut Scenario, kind: Qemu, words: &str, blame: &Blame) -> Result<(), Failed> {
    let words = format!("{words} {ROUNDS}");
    let (seen, truth) = judge(scenario, kind, &Reader::URGENT, |scenario| scenario.fault(&words))?;
    seen.expect(&truth, blame)
}

fn in_guest(scenario: &mut Scenario, reader: &Reader, words: &str, blame: &Blame) -> Result<(), Failed> {
    let words = format!("{words} {ROUNDS}");
    let (seen, truth) = judge(scenario, Qemu::VcpuAlone, reader, |scenario| scenario.fault_in_guest(&words))?;
    seen.expect(&seen.in_host_time(&truth), blame)
}

fn none(scenario: &mut Scenario) -> Result<(), Failed> {
    let wait = |scenario: &mut Scenario| scenario.records(750).map(|()| Vec::new());
    judge(scenario, Qemu::MainAlone, &Reader::URGENT, wait)?.0.expect_no_fault()
}

fn hog(scenario: &mut Scenario) -> Result<(), Failed> {
    on_host(scenario, Qemu::MainAlone, &format!("hog cpu={CPU} fifo=90"), &blame::HOG)
}

fn crowd(scenario: &mut Scenario) -> Result<(), Failed> {
    on_host(scenario, Qemu::OrdinaryMainAlone, &format!("crowd cpu={CPU} threads=6"), &blame::CROWD)
}

fn vcpu(scenario: &mut Scenario) -> Result<(), Failed> {
    on_host(scenario, Qemu::VcpuAlone, &format!("hog cpu={CPU} fifo=90"), &blame::VCPU)
}

fn stop(scenario: &mut Scenario) -> Result<(), Failed> {
    let words = format!("stop pid={}", scenario.qemu()?.pid);
    on_host(scenario, Qemu::MainAlone, &words, &blame::STOP)
}

fn throttle(scenario: &mut Scenario) -> Result<(), Failed> {
    let group = Group::new()?;
    // Real-time threads cannot be throttled, and cannot be moved to a group without a real-time runtime.
    let qemu = scenario.qemu()?;
    qemu.urgent(0, 0, -20)?;
    group.take(qemu.pid)?;
    on_host(scenario, Qemu::Ordinary, &format!("throttle group={}", group.path().display()), &blame::THROTTLE)
}

fn guest_hog(scenario: &mut Scenario) -> Result<(), Failed> {
    in_guest(scenario, &Reader::URGENT, "hog cpu=0 fifo=90", &blame::GUEST_HOG)
}

fn guest_crowd(scenario: &mut Scenario) -> Result<(), Failed> {
    in_guest(scenario, &Reader::ORDINARY, "crowd cpu=0 threads=4", &blame::GUEST_CROWD)
}

fn guest_storm(scenario: &mut Scenario) -> Result<(), Failed> {
    in_guest(scenario, &Reader::URGENT, "storm cpu=0 period=1000", &blame::GUEST_STORM)
}

fn guest_sleeper(scenario: &mut Scenario) -> Result<(), Failed> {
    let wait = |_: &mut Scenario| {
        // The application's stalls take this long in total.
        latpath_testkit::waits::fault_for(Duration::from_secs(6));
        Ok(Vec::new())
    };
    let (seen, truth) = judge(scenario, Qemu::VcpuAlone, &Reader { rounds: ROUNDS, ..Reader::URGENT }, wait)?;
    seen.expect(&seen.in_host_time(&truth), &blame::GUEST_SLEEPER)
}
