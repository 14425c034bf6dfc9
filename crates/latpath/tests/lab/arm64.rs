//! The vhost study's original setup on 64-bit ARM: a guest whose NIC is a virtio-mmio device, served by QEMU and by
//! vhost, on an emulated hypervisor. arm64.sh runs there, with a latpath built for it; the tests here check its output.

use crate::{outside::evidence, tests, Outcome};
use anyhow::{ensure, Context};
use latpath_lab::{Error, Hypervisor, Lab, LabKernel, Nics};
use latpath_ladder::{Direction, LadderFigures, Step, Variant};
use latpath_model::Observation;
use latpath_observe::{exits::ExitsFigures, queues::QueuesFigures};
use latpath_testkit::{trial, Failed, Trial};
use serde::de::DeserializeOwned;
use std::{fs, path::Path, path::PathBuf, time::Duration};

const NEVER: &dyn Fn() -> bool = &|| false;
const SCRIPT: &str = "tests/lab/arm64.sh";
const LIMIT: Duration = Duration::from_secs(900);
/// Echo requests to the guest, one at a time.
const PACKETS: u64 = 100;
/// Values of the `vhost` option, and the ladder's variant for each.
const SERVICES: [(&str, Variant); 2] = [("off", Variant::NoVhost), ("on", Variant::Relayed)];
/// Tolerated difference between KVM's exit count and latpath's, ‰: KVM's counters are not read exactly at the window's
/// bounds.
const BETWEEN: u64 = 50;

/// Path of latpath for arm64, if it has been built: see docs/lab.md.
fn program() -> Option<PathBuf> {
    let target = latpath_testkit::program().parent()?.parent()?.to_owned();
    Some(target.join("aarch64-unknown-linux-gnu/release/latpath")).filter(|program| program.is_file())
}

/// Returns the trial that runs on this kernel.
pub fn trial_on(kernel: LabKernel, is_asked: bool) -> Trial {
    let fetch = || kernel.fetch(&mut |line| eprintln!("{line}"), NEVER).err().map(|e| e.to_string());
    let lack = match program() {
        None => Some("no latpath for arm64: docs/lab.md says how to build it".into()),
        Some(_) if is_asked => fetch(),
        Some(_) => None,
    };
    trial(&name(kernel), &[lack], move || run(kernel).map_err(|e| Failed::from(format!("{e:?}")))).in_lab()
}

/// Name of the trial.
pub fn name(kernel: LabKernel) -> String {
    format!("{}::study", kernel.name)
}

fn run(kernel: LabKernel) -> Outcome {
    let lab = Lab::new()?;
    let mut hypervisor = Hypervisor::boot(&lab, kernel, Nics::default(), &mut |line| eprintln!("{line}"), NEVER)?;
    let program = program().context("no latpath for arm64")?;
    let inside = |file: &Path| hypervisor.path_of(file).display().to_string();
    let (script, program) = (inside(&fs::canonicalize(SCRIPT)?), inside(&fs::canonicalize(program)?));
    let ended = hypervisor.run(&format!("bash '{script}' '{program}' {PACKETS}"), LIMIT, NEVER);
    let checked = match ended {
        Ok(output) if output.status == 0 => {
            eprintln!("{}", output.text.trim());
            SERVICES.into_iter().try_for_each(|(vhost, variant)| {
                check(hypervisor.out(), vhost, variant).with_context(|| format!("vhost={vhost}"))
            })
        }
        Ok(output) => Err(anyhow::anyhow!("exit status {}: {}", output.status, output.text.trim())),
        Err(error @ Error::Interrupted) => Err(error.into()),
        Err(error) => Err(anyhow::anyhow!("{error}; the end of the console:\n{}", hypervisor.console_tail())),
    };
    let complaints = hypervisor.complaints();
    ensure!(complaints.is_empty(), "the kernel complains:\n{}", complaints.join("\n"));
    checked.or_else(|error| {
        let folder = evidence(&name(kernel).replace("::", "-"));
        fs::create_dir_all(&folder)?;
        for file in fs::read_dir(hypervisor.out())?.flatten() {
            fs::copy(file.path(), folder.join(file.file_name()))?;
        }
        Err(error.context(format!("what latpath printed is in {}", folder.display())))
    })
}

/// Parses the last line that a command printed, which is its JSON document.
fn printed<F: DeserializeOwned>(out: &Path, command: &str, vhost: &str) -> anyhow::Result<Observation<F>> {
    let text = fs::read_to_string(out.join(format!("{command}-{vhost}")))?;
    serde_json::from_str(text.lines().last().unwrap_or_default()).with_context(|| text.clone())
}

fn check(out: &Path, vhost: &str, variant: Variant) -> Outcome {
    let seen = printed::<ExitsFigures>(out, "exits", vhost)?;
    check_exits(&seen).with_context(|| format!("exits: {seen:#?}"))?;
    let ladder = printed::<LadderFigures>(out, "ladder", vhost)?;
    tests::ladder::expect_nothing_wrong(&ladder)?;
    for direction in Direction::ALL {
        // On this architecture KVM has no event for the injection of an interrupt.
        tests::ladder::expect_queue(&ladder.figures, direction, variant, Step::Handled, PACKETS)
            .with_context(|| format!("{direction:?}"))?;
    }
    let queues = printed::<QueuesFigures>(out, "queues", vhost)?;
    let devices = &queues.figures.devices;
    ensure!(queues.not_shown.is_empty(), "{queues:#?}");
    ensure!(devices.len() == usize::from(vhost == "on"), "vhost serves {} devices", devices.len());
    for queue in devices.iter().flat_map(|device| &device.queues) {
        ensure!(queue.counts.used_buffers >= PACKETS, "{queue:#?}");
    }
    Ok(())
}

fn check_exits(seen: &Observation<ExitsFigures>) -> Outcome {
    let vm = seen.figures.vms.first().context("no VM")?;
    let all = &vm.all;
    ensure!(seen.not_shown.is_empty(), "something is not shown");
    ensure!(!vm.vcpus.is_empty(), "no vCPUs");
    for vcpu in &vm.vcpus {
        let sum = vcpu.figures.tiles.sum();
        ensure!(sum == vcpu.window_ns, "the tiles are {sum} ns of {}", vcpu.window_ns);
    }
    let (ours, kvms) = (all.exits, vm.kvm.context("KVM's own counters are missing")?.exits);
    ensure!(ours > PACKETS && kvms.abs_diff(ours) <= kvms * BETWEEN / 1000, "KVM counted {kvms} exits, latpath {ours}");
    ensure!(ours.abs_diff(all.entries) <= 1, "each exit but the last has its entry");
    // `DABT_LOW`: the guest's writes to its NIC; `WFx`: its halts.
    for name in ["DABT_LOW", "WFx"] {
        let reason = all.reasons.iter().find(|reason| reason.reason.as_deref() == Some(name));
        ensure!(reason.is_some_and(|reason| reason.times.count > 0), "no {name}");
    }
    let event = |name: &str| vm.events.iter().find(|event| event.event == name).map(|event| event.count);
    ensure!(event("kvm_exit") == Some(ours), "the event kvm_exit came {:?} times", event("kvm_exit"));
    ensure!(event("kvm_guest_fault") >= Some(PACKETS), "the guest's writes are its faults: {:?}", vm.events);
    // One packet each way for each request, plus ARP.
    let traffic = vm.traffic.context("no traffic")?;
    ensure!(traffic.to_guest_packets >= PACKETS && traffic.from_guest_packets >= PACKETS, "{traffic:?}");
    Ok(())
}
