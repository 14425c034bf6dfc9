//! Why packets are late on the way into a guest under KVM with vhost: faults on the host.

use crate::{
    blame::{self, Blame},
    faults::{all, listen, listen_no_more, myself, on_host, pin, play, vm, IN_GUEST, THRESHOLD},
    group::Group,
    stage::{Reach, Stage},
    Outcome, Scale, Test,
};
use latpath_lab::Switch;
use latpath_vms::Role;

pub const TEST: Test = Test { name: "cause_host", only_whole: true, seconds: 600, run };

fn run(_: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.boot_guest_with(Reach::Serial, vec![(myself()?, IN_GUEST.into())])?;
    listen(&mut stage, "fifo=0 nice=0 work=0 times=0 busy=0 every=0 after=1")?;
    let vm = vm()?;
    let (vhost, vcpu) = ((1, 0), (0, 1));
    let mut outcomes = Vec::new();
    let mut fault = |stage: &mut Stage, cpus: (usize, usize), words: &str, blame: &Blame| -> Outcome {
        pin(&vm, Role::Vhost, cpus.0)?;
        pin(&vm, Role::Vcpu, cpus.1)?;
        let (seen, truth) = play(stage, THRESHOLD, |stage| on_host(stage, words))?;
        outcomes.push(seen.expect(&truth, blame));
        Ok(())
    };
    fault(&mut stage, vhost, "hog cpu=1 fifo=50", &blame::HOG)?;
    fault(&mut stage, vhost, "crowd cpu=1 threads=6", &blame::CROWD)?;
    // No storm of interrupts: in the emulation the guest does not outlive it.
    fault(&mut stage, vcpu, "hog cpu=1 fifo=50", &blame::VCPU)?;
    fault(&mut stage, vhost, &format!("stop pid={}", vm.pid), &blame::STOP)?;
    let group = Group::new()?;
    group.take(vm.pid as i32)?;
    fault(&mut stage, vhost, &format!("throttle group={}", group.path().display()), &blame::THROTTLE)?;
    drop(group);
    listen_no_more(&mut stage)?;
    all(outcomes)
}
