//! `latpath vms` with a guest under KVM: its tap on Open vSwitch, its vCPU, and one vhost worker each for network and
//! vsock; the workers are kernel threads up to Linux 6.3, and threads of QEMU from 6.4 on.

use crate::{
    stage::{plain, Reach, Stage},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context, Result};
use latpath_lab::{Switch, BRIDGE, TAP};
use latpath_testkit::{latpath, waits::until};
use latpath_vms::{Accel, FoundBy, Guests, Role, Thread, Vm};
use std::{fs, path::Path, time::Duration};

pub const TEST: Test = Test { name: "vms", smoke: false, only_whole: true, seconds: 200, run };

fn run(_: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::OpenVswitch)?;
    stage.boot_guest_reached_by(Reach::Vsock)?;
    let guest = stage.guest()?;
    let pid = guest.pid();
    let ovs = guest.agent_socket().with_file_name("ovs");

    let found = vms(&stage, &ovs)?;

    let vm = found.vms.iter().find(|vm| vm.pid == pid).context("it is not listed")?;
    ensure!(vm.accel == Accel::Kvm && vm.name == "latpath-guest0" && vm.vcpus == Some(1), "{vm:#?}");
    ensure!(vm.vhost_net == 1 && vm.vhost_vsock == 1 && vm.vsock_cid == Some(42), "{vm:#?}");
    let tap = vm.taps.first().context("no tap")?;
    ensure!(tap.device == TAP && tap.vhost == Some(true), "{tap:#?}");
    let bridge = tap.bridge.as_ref().context("no bridge")?;
    ensure!(bridge.name == BRIDGE && bridge.kind == "openvswitch", "{tap:#?}");

    // QEMU names the thread, but latpath must find it without the name.
    let [vcpu] = of_role(vm, Role::Vcpu)[..] else { anyhow::bail!("not one vCPU: {vm:#?}") };
    ensure!(vcpu.vcpu == Some(0) && vcpu.comm == "CPU 0/KVM" && vcpu.found_by != FoundBy::Name, "{vcpu:#?}");

    let in_process = release()? >= (6, 4);
    let (how, waits_in) =
        if in_process { (FoundBy::UserWorker, "vhost_task_fn") } else { (FoundBy::KernelThread, "vhost_worker") };
    let workers = of_role(vm, Role::Vhost);
    ensure!(workers.len() == 2, "not two vhost workers: {vm:#?}");
    for worker in &workers {
        ensure!(worker.found_by == how && worker.kernel, "{worker:#?}");
        let tid = worker.tid;
        // The kernel's own information, which latpath does not use. A worker that is running has no wait channel.
        let waits = || fs::read_to_string(format!("/proc/{tid}/wchan")).is_ok_and(|place| place.trim() == waits_in);
        until(&format!("thread {tid} waits in {waits_in}"), waits).map_err(plain)?;
    }
    if in_process {
        let serves: Vec<_> = workers.iter().filter_map(|worker| worker.serves.as_deref()).collect();
        ensure!(serves == [TAP, "vsock"] || serves == ["vsock", TAP], "they serve {serves:?}");
    }
    eprintln!("{} threads; vCPU by {}, vhost by {}", vm.threads.len(), vcpu.found_by.name(), how.name());
    Ok(())
}

/// `ovs`: directory of the lab's Open vSwitch.
fn vms(stage: &Stage, ovs: &Path) -> Result<Guests> {
    let mut command = latpath("vms --json");
    command.env("OVS_RUNDIR", ovs);
    let started = stage.start_command(&stage.path().hypervisor, command)?;
    let finished = started.finish(Duration::from_secs(30)).map_err(|e| anyhow::anyhow!("{e:?}"))?;
    finished.json().map_err(|e| anyhow::anyhow!("{e:?}"))
}

fn of_role(vm: &Vm, role: Role) -> Vec<&Thread> {
    vm.threads.iter().filter(|thread| thread.role == role).collect()
}

/// Version of the running kernel.
fn release() -> Result<(u32, u32)> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => anyhow::bail!("{text:?}: not a version"),
    }
}
