//! Exits of a Linux guest that receives a stream by vhost: its vCPU's time is tiled, exits agree with KVM's counters, and they are set
//! against what passed the tap.

use crate::{
    stage::{Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context};
use latpath_lab::Switch;
use serde_json::Value;

pub const TEST: Test = Test { name: "exits_guest", smoke: false, only_whole: false, seconds: 900, run };

/// Exits that may come between the looks at KVM's counters and the window, in a thousand.
const BETWEEN: u64 = 50;

fn run(scale: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.boot_guest()?;
    let seconds = scale.frames(8, 60);
    let stream = Stream::sv("MU01", 4000 * seconds);
    stage.subscribe(&stream)?;
    let publishing = stage.start_publishing(&stream)?;
    let seen: Value = serde_json::from_str(&stage.latpath(&format!("exits --duration {seconds}s --events --json"))?)?;
    let page = stage.latpath("exits --duration 2s --each")?;
    publishing.finish(std::time::Duration::from_secs(2 * seconds + 60)).map_err(|e| anyhow::anyhow!("{e:?}"))?;
    eprintln!("{page}");
    check(&seen).with_context(|| seen.to_string())
}

fn check(seen: &Value) -> Outcome {
    let vm = &seen["vms"][0];
    let number = |value: &Value, name: &str| value[name].as_u64().with_context(|| format!("no {name}"));
    for vcpu in vm["vcpus"].as_array().context("no vCPUs")? {
        let sum: i64 = vcpu["tiles"].as_object().context("no tiles")?.values().filter_map(Value::as_i64).sum();
        ensure!(Some(sum) == vcpu["window_ns"].as_i64(), "the tiles are {sum} ns of {}", vcpu["window_ns"]);
        ensure!(vcpu["window_ns"] == seen["window_ns"], "a vCPU that was there all the time has the whole window");
    }
    let all = &vm["all"];
    let (ours, kvms) = (number(all, "exits")?, number(&vm["kvm"], "exits")?);
    ensure!(
        ours > 100 && kvms.abs_diff(ours) <= kvms * BETWEEN / 1000 + 100,
        "KVM counted {kvms} exits, latpath {ours}"
    );
    ensure!(number(all, "exits")?.abs_diff(number(all, "entries")?) <= 1, "each exit but the last has its entry");
    ensure!(number(all, "halts")? > 0, "the guest had nothing to do at times");
    let apic = &all["apic"];
    let (accepted, nmis, other) = (number(apic, "accepted")?, number(apic, "nmis")?, number(apic, "other")?);
    let vectors = apic["vectors"].as_array().into_iter().flatten();
    let by_vector: u64 = vectors.filter_map(|vector| vector["accepted"].as_u64()).sum();
    ensure!(accepted > 100 && accepted == by_vector, "{accepted} interrupts, by vector {by_vector}");
    let events = vm["events"].as_array().context("no events")?;
    let event = |name: &str| events.iter().find(|event| event["event"] == name).and_then(|e| e["count"].as_u64());
    ensure!(event("kvm_exit") == Some(ours), "the event kvm_exit came {:?} times", event("kvm_exit"));
    // KVM's event says of none whose it is; some come while the CPU is idle.
    let idle = seen["other_events"]["counts"]["kvm_apic_accept_irq"].as_u64().unwrap_or(0);
    let shown = event("kvm_apic_accept_irq").unwrap_or(0) + idle;
    let taken = accepted + nmis + other;
    ensure!(shown.abs_diff(taken) <= taken * BETWEEN / 1000, "APICs took {taken}, KVM showed {shown}");
    let reasons: Vec<&str> =
        all["reasons"].as_array().into_iter().flatten().filter_map(|r| r["reason"].as_str()).collect();
    for reason in ["hlt", "interrupt"] {
        ensure!(reasons.contains(&reason), "no exit for {reason}: {reasons:?}");
    }
    let traffic = &vm["traffic"];
    ensure!(number(traffic, "to_guest_packets")? > 1000, "the stream passed the tap: {traffic}");
    ensure!(vm["per_work"]["exits_per_packet"].as_f64() > Some(0.0), "no exits for each packet");
    Ok(())
}
