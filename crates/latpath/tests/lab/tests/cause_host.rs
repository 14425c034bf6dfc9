//! Causes of late packets on the way into a guest under KVM with vhost: faults on the host.

use crate::{
    blame::{self, Blame},
    faults::{all, listen, listen_no_more, myself, on_host, pin, record_during, vm, IN_GUEST, THRESHOLD},
    group::Group,
    stage::{Reach, Stage},
    Outcome, Scale, Test,
};
use anyhow::Result;
use latpath_lab::Switch;
use latpath_testkit::Failed;
use latpath_vms::{Role, Vm};

pub const CPU: Test = Test { name: "cause_host_cpu", smoke: false, only_whole: true, seconds: 400, run: cpu };
pub const STOPPED: Test =
    Test { name: "cause_host_stopped", smoke: false, only_whole: true, seconds: 400, run: stopped };

/// CPU of vhost, on which the fault runs, and CPU of the vCPU, on which the publisher runs.
const CPUS: (usize, usize) = (1, 0);

/// A guest with its application, and the verdict on each fault.
struct Faults {
    stage: Stage,
    vm: Vm,
    outcomes: Vec<Result<(), Failed>>,
}

impl Faults {
    fn begin() -> Result<Self> {
        let mut stage = Stage::lay(Switch::LinuxBridge)?;
        stage.boot_guest_with(Reach::Serial, vec![(myself()?, IN_GUEST.into())])?;
        listen(&mut stage, "fifo=0 nice=0 work=0 times=0 busy=0 every=0 after=1")?;
        Ok(Self { stage, vm: vm()?, outcomes: Vec::new() })
    }

    fn one(&mut self, words: &str, blame: &Blame) -> Outcome {
        pin(&self.vm, Role::Vhost, CPUS.0)?;
        pin(&self.vm, Role::Vcpu, CPUS.1)?;
        let (seen, truth) = record_during(&mut self.stage, THRESHOLD, |stage| on_host(stage, words))?;
        self.outcomes.push(seen.expect(&truth, blame));
        Ok(())
    }

    fn end(mut self) -> Outcome {
        listen_no_more(&mut self.stage)?;
        all(self.outcomes)
    }
}

/// Other threads occupy vhost's CPU. (No interrupt storm, and no hog on the vCPU's CPU: under emulation these crash the
/// guest or the machine around it.)
fn cpu(_: &Scale) -> Outcome {
    let mut faults = Faults::begin()?;
    faults.one("hog cpu=1 fifo=50", &blame::HOG)?;
    faults.one("crowd cpu=1 threads=6", &blame::CROWD)?;
    faults.end()
}

/// QEMU's threads are not allowed to run: they are stopped, or throttled.
fn stopped(_: &Scale) -> Outcome {
    let mut faults = Faults::begin()?;
    faults.one(&format!("stop pid={}", faults.vm.pid), &blame::STOP)?;
    let group = Group::new()?;
    group.take(faults.vm.pid as i32)?;
    faults.one(&format!("throttle group={}", group.path().display()), &blame::THROTTLE)?;
    drop(group);
    faults.end()
}
