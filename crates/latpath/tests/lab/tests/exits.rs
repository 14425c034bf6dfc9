//! Exits of a guest that makes a known number of them: latpath's count equals KVM's own, and the intervals of the
//! vCPU's time have no gap or overlap.

use crate::{Outcome, Scale, Test};
use anyhow::{ensure, Context};
use latpath_lab::{BareGuest, Interrupt};
use latpath_model::Observation;
use latpath_observe::exits::{ExitsFigures, VcpuExits, VmExits};
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc, Arc,
    },
    thread,
};

pub const TEST: Test = Test { name: "exits", smoke: true, only_whole: false, seconds: 120, run };

const CPUIDS: u16 = 300;

fn run(scale: &Scale) -> Outcome {
    let outs = scale.frames(1000, 60_000) as u16;
    // The guest is created before latpath starts to watch, or afterwards.
    for known in [true, false] {
        let guest = known.then(BareGuest::new).transpose()?;
        let mut watching = Watching::start()?;
        let (ran, has_run) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        // The thread must exist until the end: KVM names the VM after it.
        let vcpu = thread::spawn(move || -> anyhow::Result<()> {
            let mut guest = guest.map_or_else(BareGuest::new, Ok)?;
            ran.send(guest.run(outs, CPUIDS)?)?;
            let _ = ended.recv();
            Ok(())
        });
        let returns = has_run.recv().map_err(|_| anyhow::anyhow!("the guest did not run to its end"));
        let seen = watching.end()?;
        drop(end);
        vcpu.join().map_err(|_| anyhow::anyhow!("the guest's thread panicked"))??;
        check(&seen, outs.into(), returns?.into()).with_context(|| format!("known beforehand: {known}: {seen:#?}"))?;
    }
    runs_already()?;
    interrupts()
}

/// A guest that already runs when latpath starts to watch is accounted for during the whole window.
fn runs_already() -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let vcpu = thread::spawn(move || -> anyhow::Result<()> {
        let mut guest = BareGuest::new()?;
        while !stopped.load(Ordering::SeqCst) {
            guest.run(10, 10)?;
        }
        Ok(())
    });
    let seen = Watching::start().and_then(|mut watching| watching.end());
    stop.store(true, Ordering::SeqCst);
    vcpu.join().map_err(|_| anyhow::anyhow!("the guest's thread panicked"))??;
    let seen = seen?;
    let vcpu = seen.figures.vms.first().and_then(|vm| vm.vcpus.first()).context("no vCPU")?;
    ensure!(vcpu.figures.exits > 0, "the guest made no exits: {seen:#?}");
    ensure!(vcpu.window_ns == seen.window_ns, "it was watched for another time: {seen:#?}");
    adds_up(vcpu).with_context(|| format!("{seen:#?}"))
}

/// Interrupts are attributed to the vCPU whose APIC accepts them, even if another thread delivers them.
fn interrupts() -> Outcome {
    const SENT: [(u8, u64); 2] = [(0x41, 40), (0xec, 7)];
    const NMIS: u64 = 3;
    let mut guest = BareGuest::with_apic()?;
    let mut watching = Watching::start()?;
    guest.enter()?;
    let send = move || -> std::io::Result<BareGuest> {
        for (vector, count) in SENT {
            (0..count).try_for_each(|_| guest.interrupt(Interrupt::Vector(vector)))?;
        }
        (0..NMIS).try_for_each(|_| guest.interrupt(Interrupt::Nmi))?;
        Ok(guest)
    };
    let sent = thread::spawn(send).join();
    let seen = watching.end()?;
    let _guest = sent.map_err(|_| anyhow::anyhow!("the sender panicked"))??;
    check_interrupts(&seen, &SENT, NMIS).with_context(|| format!("{seen:#?}"))
}

fn check_interrupts(seen: &Observation<ExitsFigures>, sent: &[(u8, u64)], nmis: u64) -> Outcome {
    let vm = own_vm(seen)?;
    let apic = vm.all.apic.as_ref().context("no interrupts")?;
    let vectors: Vec<_> = apic.vectors.iter().map(|figures| (figures.vector, figures.accepted)).collect();
    ensure!(vectors == sent, "the APIC took {vectors:?}, not {sent:?}");
    let sum: u64 = sent.iter().map(|(_, count)| count).sum();
    ensure!(apic.accepted == sum && apic.nmis == nmis && apic.other == 0, "{apic:?}");
    let of_all = seen.figures.apic_interrupts;
    ensure!(of_all == Some(sum + nmis), "of all VMs: {of_all:?}");
    for name in ["kvm_msi_set_irq", "kvm_apic_accept_irq"] {
        ensure!(event(vm, name) == (sum + nmis, 0), "{name}: {:?}", event(vm, name));
    }
    Ok(())
}

/// Number of occurrences of an event, and how many of them were in vCPU threads.
fn event(vm: &VmExits, name: &str) -> (u64, u64) {
    let found = vm.events.iter().find(|event| event.event == name);
    found.map_or((0, 0), |event| (event.count, event.in_vcpus))
}

fn own_vm(seen: &Observation<ExitsFigures>) -> anyhow::Result<&VmExits> {
    seen.figures.vms.iter().find(|vm| vm.pid == std::process::id()).context("this VM is not among them")
}

fn adds_up(vcpu: &VcpuExits) -> Outcome {
    let sum = vcpu.figures.tiles.sum();
    ensure!(sum == vcpu.window_ns, "the tiles are {sum} ns of {}", vcpu.window_ns);
    Ok(())
}

fn check(seen: &Observation<ExitsFigures>, outs: u64, returns: u64) -> Outcome {
    let vm = own_vm(seen)?;
    let all = &vm.all;
    let count = |name: &str| -> u64 {
        all.reasons
            .iter()
            .filter(|reason| reason.reason.as_deref() == Some(name))
            .map(|reason| reason.times.count)
            .sum()
    };
    ensure!(count("io") == outs, "{} exits for I/O, not {outs}", count("io"));
    ensure!(count("cpuid") == u64::from(CPUIDS), "{} exits for CPUID", count("cpuid"));
    // The guest's first instruction fetch finds its nested page tables empty.
    ensure!(count("npf") > 0, "no nested page fault");
    ensure!(all.exits_to_qemu >= returns, "{} returns to user space", all.exits_to_qemu);
    ensure!(all.exits == all.entries, "{} exits of {} entries", all.exits, all.entries);
    let kvms = vm.kvm.context("KVM's own counters are missing")?.exits;
    ensure!(kvms == all.exits, "KVM counted {kvms} exits, latpath {}", all.exits);
    // KVM's events for the guest's instructions, and the events that occur once per exit.
    for (name, count) in [("kvm_pio", outs), ("kvm_cpuid", CPUIDS.into()), ("kvm_exit", kvms), ("kvm_entry", kvms)] {
        ensure!(event(vm, name) == (count, count), "{name}: {:?}, not {count}", event(vm, name));
    }
    let vcpu = vm.vcpus.first().context("no vCPU")?;
    adds_up(vcpu)?;
    let tiles = vcpu.figures.tiles;
    ensure!(tiles.guest_ns > 0 && tiles.kvm_ns > 0 && tiles.qemu_ns > 0, "no time for one of these: {tiles:?}");
    ensure!(seen.lost_events == 0 && seen.figures.events_without_room == 0, "events are missing");
    Ok(())
}

/// A running `latpath exits --json`.
struct Watching {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Watching {
    fn start() -> anyhow::Result<Self> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_latpath"))
            .args(["exits", "--events", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stderr = BufReader::new(child.stderr.take().context("no stderr")?);
        let mut said = String::new();
        while !said.contains("watching") {
            ensure!(stderr.read_line(&mut said)? > 0, "it ended: {said}");
        }
        Ok(Self { child, stderr })
    }

    fn end(&mut self) -> anyhow::Result<Observation<ExitsFigures>> {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), nix::sys::signal::Signal::SIGINT)?;
        let mut stdout = self.child.stdout.take().context("no stdout")?;
        let document = std::io::read_to_string(&mut stdout)?;
        let status = self.child.wait()?;
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.stderr, &mut said)?;
        ensure!(status.success(), "{status}: {said}");
        serde_json::from_str(&document).with_context(|| document)
    }
}
