//! The vhost study's original setup on 64-bit ARM: a guest whose NIC is a virtio-mmio device, served by QEMU and by
//! vhost, on an emulated hypervisor. arm64.sh runs there, with a latpath built for it; the tests here check its output.

use crate::{outside::evidence, tests, Outcome};
use anyhow::{ensure, Context};
use latpath_lab::{Error, Hypervisor, Lab, LabKernel, Nics};
use latpath_testkit::{trial, Failed, Trial};
use serde_json::Value;
use std::{fs, path::Path, path::PathBuf, time::Duration};

const NEVER: &dyn Fn() -> bool = &|| false;
const SCRIPT: &str = "tests/lab/arm64.sh";
const LIMIT: Duration = Duration::from_secs(900);
/// Echo requests to the guest, one at a time.
const PACKETS: u64 = 100;
/// Values of the `vhost` option, and the ladder's name for each.
const SERVICES: [(&str, &str); 2] = [("off", "no_vhost"), ("on", "vhost_relayed")];
/// Exits tolerated between the readings of KVM's counters and the window, ‰.
const BETWEEN: u64 = 50;

/// Path at which Cargo puts the program: see docs/lab.md.
fn program() -> Option<PathBuf> {
    let target = latpath_testkit::program().parent()?.parent()?.to_owned();
    Some(target.join("aarch64-unknown-linux-gnu/release/latpath")).filter(|program| program.is_file())
}

/// The trial on this kernel.
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

fn check(out: &Path, vhost: &str, variant: &str) -> Outcome {
    // Precedes the command's output.
    let printed = |command: &str| -> anyhow::Result<Value> {
        let text = fs::read_to_string(out.join(format!("{command}-{vhost}")))?;
        serde_json::from_str(text.lines().last().unwrap_or_default()).with_context(|| text.clone())
    };
    let seen = printed("exits")?;
    check_exits(&seen).with_context(|| format!("exits: {seen:#}"))?;
    let ladder = printed("ladder")?;
    for key in ["causality_violations", "lost_events", "ambiguous_packets"] {
        ensure!(ladder[key] == 0, "{key} is {}: {ladder:#}", ladder[key]);
    }
    for direction in ["from_guest", "to_guest"] {
        // On this architecture KVM does not report when it injects.
        tests::ladder::expect_queue(&ladder, direction, variant, "guest_handler", PACKETS)
            .with_context(|| direction.to_owned())?;
    }
    let queues = printed("queues")?;
    let devices = queues["devices"].as_array().context("no list of devices")?;
    ensure!(queues["not_shown"].as_array().is_some_and(Vec::is_empty), "{queues:#}");
    ensure!(devices.len() == usize::from(vhost == "on"), "vhost serves {} devices", devices.len());
    for queue in devices.iter().flat_map(|device| device["queues"].as_array().into_iter().flatten()) {
        ensure!(queue["used_buffers"].as_u64() >= Some(PACKETS), "{queue:#}");
    }
    Ok(())
}

fn check_exits(seen: &Value) -> Outcome {
    let vm = &seen["vms"][0];
    let all = &vm["all"];
    let number = |value: &Value, name: &str| value[name].as_u64().with_context(|| format!("no {name}"));
    ensure!(seen["not_shown"].as_array().is_some_and(Vec::is_empty), "something is not shown");
    for vcpu in vm["vcpus"].as_array().context("no vCPUs")? {
        let sum: i64 = vcpu["tiles"].as_object().context("no tiles")?.values().filter_map(Value::as_i64).sum();
        ensure!(Some(sum) == vcpu["window_ns"].as_i64(), "the tiles are {sum} ns of {}", vcpu["window_ns"]);
    }
    let (ours, kvms) = (number(all, "exits")?, number(&vm["kvm"], "exits")?);
    ensure!(ours > PACKETS && kvms.abs_diff(ours) <= kvms * BETWEEN / 1000, "KVM counted {kvms} exits, latpath {ours}");
    ensure!(ours.abs_diff(number(all, "entries")?) <= 1, "each exit but the last has its entry");
    let reasons = all["reasons"].as_array().context("no reasons")?;
    // The guest's writes to its NIC, and its halts.
    for name in ["DABT_LOW", "WFx"] {
        let reason = reasons.iter().find(|reason| reason["reason"] == name).with_context(|| format!("no {name}"))?;
        ensure!(number(reason, "count")? > 0, "no {name}");
    }
    let events = vm["events"].as_array().context("no events")?;
    let event = |name: &str| events.iter().find(|e| e["event"] == name).and_then(|e| e["count"].as_u64());
    ensure!(event("kvm_exit") == Some(ours), "the event kvm_exit came {:?} times", event("kvm_exit"));
    ensure!(event("kvm_guest_fault") >= Some(PACKETS), "the guest's writes are its faults: {events:?}");
    // One packet each way for each request, plus ARP.
    for name in ["to_guest_packets", "from_guest_packets"] {
        ensure!(number(&vm["traffic"], name)? >= PACKETS, "{}", vm["traffic"]);
    }
    Ok(())
}
