//! Injects faults into a hypervisor tuned for a guest: each must be the first finding of `latpath doctor`, and be gone
//! once it is fixed. crates/doctor/tests/faults covers features that no emulated machine has (idle states, frequencies,
//! NUMA).

use crate::{Outcome, Scale, Test};
use anyhow::{ensure, Context, Result};
use latpath_doctor::{DoctorDocument, Finding};
use latpath_lab::{GuestFiles, Lab};
use latpath_linux::proc::{Root, Stat};
use latpath_testkit::{latpath, waits::until};
use latpath_vms::{Guests, Role};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

pub const TEST: Test = Test { name: "doctor_faults", smoke: false, only_whole: true, seconds: 900, run };

const FOLDER: &str = "/srv/faults";

/// A fault: the expected finding, the commands that cause it, and the commands that fix it. `$MAIN`, `$VCPU` and
/// `$VHOST` are the TIDs of the guest's threads, `$IRQS` the interrupts of the hypervisor's file systems.
type Fault = (&'static str, &'static str, &'static str);

const FAULTS: &[Fault] = &[
    ("main-loop-behind-vcpu", "taskset -p -c 2 $MAIN", "taskset -p -c 0,1 $MAIN"),
    (
        "vhost-behind-vcpu",
        "taskset -p -c 2 $VHOST; chrt -p -f 1 $VHOST",
        "taskset -p -c 0,1 $VHOST; chrt -p -f 2 $VHOST",
    ),
    ("thread-may-meet-vcpu", "taskset -p -c 0-2 $MAIN", "taskset -p -c 0,1 $MAIN"),
    ("vcpus-not-pinned", "taskset -p -c 0,1 $VCPU; chrt -p -o 0 $VCPU", "taskset -p -c 2 $VCPU; chrt -p -f 1 $VCPU"),
    ("thread-priority", "chrt -p -o 0 $VCPU", "chrt -p -f 1 $VCPU"),
    ("thread-priority", "chrt -p -o 0 $VHOST", "chrt -p -f 2 $VHOST"),
    ("tap-queue-short", "ip link set tap-relay1 txqueuelen 50", "ip link set tap-relay1 txqueuelen 1000"),
    (
        "vm-cpu-quota",
        "mkdir /sys/fs/cgroup/quota; echo +cpu >/sys/fs/cgroup/cgroup.subtree_control; \
         echo '50000 100000' >/sys/fs/cgroup/quota/cpu.max; echo $MAIN >/sys/fs/cgroup/quota/cgroup.procs",
        "echo $MAIN >/sys/fs/cgroup/cgroup.procs; rmdir /sys/fs/cgroup/quota",
    ),
    // The last command causes interrupts: an interrupt moves to its new CPU only when it occurs again.
    (
        "interrupt-on-vcpu",
        "for irq in $IRQS; do echo 2 >/proc/irq/$irq/smp_affinity_list; done; echo >/out/moves",
        "for irq in $IRQS; do echo 0-1 >/proc/irq/$irq/smp_affinity_list; done; echo >/out/moves",
    ),
    ("irqaffinity-covers-isolated", "echo 7 >/proc/irq/default_smp_affinity", "echo 3 >/proc/irq/default_smp_affinity"),
    (
        "kernel-work-on-vcpu",
        "echo 7 >/sys/devices/virtual/workqueue/cpumask",
        "echo 3 >/sys/devices/virtual/workqueue/cpumask",
    ),
    ("program-on-vcpu", "taskset -c 2 sleep 1000 & echo $! >sleeper", "kill $(cat sleeper)"),
    ("slow-clocksource", "echo acpi_pm >$CLOCK", "echo tsc >$CLOCK"),
    (
        "transparent-hugepages",
        "echo always >/sys/kernel/mm/transparent_hugepage/enabled",
        "echo never >/sys/kernel/mm/transparent_hugepage/enabled",
    ),
    ("ksm", "echo 1 >/sys/kernel/mm/ksm/run", "echo 2 >/sys/kernel/mm/ksm/run"),
    ("stat-interval", "sysctl vm.stat_interval=1", "sysctl vm.stat_interval=10"),
    ("swappiness", "sysctl vm.swappiness=60", "sysctl vm.swappiness=10"),
    ("timer-migration", "sysctl kernel.timer_migration=1", "sysctl kernel.timer_migration=0"),
    (
        "kvm-halt-poll",
        "echo 200000 >/sys/module/kvm/parameters/halt_poll_ns",
        "echo 0 >/sys/module/kvm/parameters/halt_poll_ns",
    ),
];

/// Faults in the guest's command line: the finding, and the keys in the topology that cause it.
const AT_START: &[(&str, &str)] = &[
    ("vm-emulated", "acceleration = \"tcg\"\nvhost = true"),
    ("vm-without-vhost", "acceleration = \"kvm\"\nvhost = false"),
];
const SOUND: &str = "acceleration = \"kvm\"\nvhost = true";

fn run(_: &Scale) -> Outcome {
    let lab = Lab::new()?;
    fs::create_dir_all(FOLDER)?;
    let files = GuestFiles::build(&lab, "relay1", &[], &mut |line| eprintln!("{line}"), &|| false)?;
    // A host whose clock is not synchronised would be a finding, so start chronyd.
    let clock = format!("chronyd -d -x -u root -f /dev/null >{FOLDER}/chronyd.log 2>&1 & echo $! >clock");
    shell(&clock, &[])?;
    start(&files, SOUND)?;
    let judged = trials(&files);
    // Runs even if a trial failed.
    end()?;
    shell("kill $(cat clock)", &[])?;
    judged
}

fn trials(files: &GuestFiles) -> Outcome {
    let threads = threads()?;
    let clean = findings()?;
    ensure!(clean.is_empty(), "the tuned host has findings: {clean:#?}");
    let mut wrong = Vec::new();
    for (finding, inject, mend) in FAULTS {
        shell(inject, &threads)?;
        let found = findings()?;
        shell(mend, &threads)?;
        judge(finding, inject, &found, &mut wrong);
        let mut left = diagnosis()?;
        if left.iter().any(|one| one.id == "interrupt-on-vcpu") {
            // The interrupt has not occurred since its affinity was changed: cause it.
            shell("sync; echo >/out/moves; sync", &threads)?;
            left = diagnosis()?;
        }
        if !left.is_empty() {
            let shown: Vec<_> = left.iter().map(|one| format!("{} of {}: {}", one.id, one.target, one.now)).collect();
            wrong.push(format!("{finding}: not mended by {mend}: {shown:?}"));
        }
    }
    for (finding, keys) in AT_START {
        end()?;
        start(files, keys)?;
        judge(finding, keys, &findings()?, &mut wrong);
    }
    ensure!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), FAULTS.len() + AT_START.len(), wrong.join("\n"));
    Ok(())
}

fn judge(finding: &str, fault: &str, found: &[String], wrong: &mut Vec<String>) {
    eprintln!("{finding}: {found:?}");
    if found.first().map(String::as_str) != Some(finding) {
        wrong.push(format!("{finding}, by {fault:?}: found {found:?}"));
    }
}

/// Starts the guest behind a bridge, and applies the profile.
fn start(files: &GuestFiles, keys: &str) -> Outcome {
    let arguments: Vec<String> = files.arguments.iter().map(|word| format!("{word:?}")).collect();
    let text = format!(
        "name = \"faults\"\nway = \"bridge\"\n[uplink]\ndevice = \"eno2\"\n\
         cable = {{ namespace = \"faults-wire\", device = \"wire0\" }}\n[[guest]]\nname = \"relay1\"\n\
         [guest.qemu]\n{keys}\nmemory_mib = {}\nkernel = {:?}\ninitrd = {:?}\nappend = {:?}\n\
         arguments = [\"-overcommit\", \"mem-lock=on\", {}]\n",
        files.memory_mib,
        files.kernel,
        files.initramfs,
        files.append,
        arguments.join(", ")
    );
    fs::write(Path::new(FOLDER).join("faults.toml"), text)?;
    done("net up faults.toml")?;
    // The last of KVM's helper threads starts when the guest executes its first instruction, and it starts on the
    // vCPU's CPUs, so wait for that before tuning.
    if keys == SOUND {
        until("the guest runs", || guest_ticks().is_ok_and(|ticks| ticks > 0)).map_err(crate::stage::plain)?;
    }
    done("tune apply sv-hypervisor --no-watch --yes").map(drop)
}

/// Time for which the guest's vCPU has run in the guest, clock ticks.
fn guest_ticks() -> Result<u64> {
    let threads = threads()?;
    let (_, vcpu) = threads.iter().find(|(name, _)| *name == "VCPU").context("no vCPU")?;
    let stat = Stat::read(&Root::of(Path::new("/")), &format!("proc/{vcpu}"));
    Ok(stat.context("the vCPU has ended")?.guest_ticks)
}

fn end() -> Outcome {
    done("tune undo sv-hypervisor")?;
    done("net down faults").map(drop)
}

/// Runs `latpath WORDS…`, which must succeed; returns its output.
fn done(words: &str) -> Result<Vec<u8>> {
    let output = latpath(words).current_dir(FOLDER).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "latpath {words}: {}: {said}", output.status);
    Ok(output.stdout)
}

/// Doctor's findings, in their order.
fn diagnosis() -> Result<Vec<Finding>> {
    let shown: DoctorDocument = serde_json::from_slice(&done("doctor --json")?)?;
    Ok(shown.diagnosis.findings)
}

/// The names of the findings.
fn findings() -> Result<Vec<String>> {
    Ok(diagnosis()?.into_iter().map(|finding| finding.id).collect())
}

/// The guest's threads and the interrupts, as variables of a shell.
fn threads() -> Result<Vec<(&'static str, String)>> {
    let shown: Guests = serde_json::from_slice(&done("vms --json")?)?;
    let vm = shown.vms.first().context("no guest")?;
    let of = |role: Role| -> Result<String> {
        let found = vm.threads.iter().find(|thread| thread.role == role);
        Ok(found.with_context(|| format!("no thread {}: {vm:#?}", role.name()))?.tid.to_string())
    };
    let interrupts = fs::read_to_string("/proc/interrupts")?;
    let of_files = interrupts.lines().filter(|line| line.contains("virtio") && line.ends_with("-requests"));
    let numbers: Vec<&str> = of_files.filter_map(|line| line.trim().split(':').next()).collect();
    Ok(vec![
        ("MAIN", vm.pid.to_string()),
        ("VCPU", of(Role::Vcpu)?),
        ("VHOST", of(Role::Vhost)?),
        ("IRQS", numbers.join(" ")),
        ("CLOCK", "/sys/devices/system/clocksource/clocksource0/current_clocksource".into()),
    ])
}

fn shell(script: &str, variables: &[(&str, String)]) -> Outcome {
    let mut command = Command::new("sh");
    command.args(["-e", "-c", script]).current_dir(FOLDER).stdin(Stdio::null()).stdout(Stdio::null());
    command.envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
    let ended = command.status()?;
    ensure!(ended.success(), "{script}: {ended}");
    Ok(())
}
