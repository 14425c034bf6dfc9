//! The whole vhost study by one command: two guests, one without vhost and one with it, transfer the same bytes; each
//! figure states what it was measured on, and none is omitted.

use crate::{Outcome, Scale, Test};
use anyhow::{ensure, Context};
use serde_json::Value;
use std::{fs, process::Command, time::Instant};

pub const TEST: Test = Test { name: "study", smoke: false, only_whole: false, seconds: 400, run };

fn run(_: &Scale) -> Outcome {
    let latpath = |words: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_latpath"));
        command.args(words.split(' ')).stderr(std::process::Stdio::inherit()).output()
    };
    let folder = tempfile::tempdir()?;
    let kept = folder.path().display();
    let began = Instant::now();
    let ended = latpath(&format!("study vhost --in-lab --repeat 1 --json -o {kept}"))?;
    ensure!(ended.status.success(), "{}", ended.status);
    // scripts/bench study judges the duration.
    eprintln!("the study took {:.0} s", began.elapsed().as_secs_f64());
    let all: Value = serde_json::from_slice(&ended.stdout)?;
    fs::write("/out/study.json", &ended.stdout)?;
    let [standard, vhost] = &all.as_array().context("no list")?[..] else { anyhow::bail!("not two: {all:#}") };
    for (one, name, variant) in [(standard, "standard", "no_vhost"), (vhost, "vhost", "vhost_irqfd")] {
        let notes = one["notes"].as_array().context("no notes")?;
        let is_measured = |note: &Value| note.as_str().is_some_and(|note| !note.contains("was not measured"));
        ensure!(one["name"] == name && notes.iter().all(is_measured), "{name}: {notes:?}");
        let parts = ["exits", "ladder", "queues", "profile"].map(|part| &one[part]["work"]);
        for part in parts.into_iter().chain([&one["alone"][0]]) {
            let sent = part["traffic"]["from_guest_bytes"].as_u64().context("no bytes")?;
            // 100 MiB with headers and few retransmissions.
            ensure!((104_857_600..130_000_000).contains(&sent), "{name}: {sent} bytes were sent: {part}");
            ensure!(part["reported_bits_per_second"].as_f64() > Some(0.0), "{name}: no rate of iperf3's: {part}");
        }
        ensure!(
            one["exits"]["figures"]["all"]["exits"].as_u64() > Some(100),
            "{name}: {}",
            one["exits"]["figures"]["all"]
        );
        let devices = one["queues"]["figures"].as_array().context("no virtqueues")?;
        let sent = |side: &str| -> u64 {
            let of = devices.iter().filter(|device| device["side"] == side);
            let queues = of.flat_map(|device| device["queues"].as_array()).flatten();
            queues.flat_map(|queue| [&queue["written_bytes"], &queue["read_bytes"]]).filter_map(Value::as_u64).sum()
        };
        ensure!(sent("driver") > 104_857_600, "the guest's driver sent less: {devices:#?}");
        ensure!((sent("vhost") > 104_857_600) == (name == "vhost"), "{name}: {devices:#?}");
        let profile = one["profile"]["figures"]["kept"].as_str().context("no profile")?;
        let writes = |frames: &str| profile.lines().any(|line| line.contains("tun_get_user") && line.contains(frames));
        let by = if name == "vhost" { "vhost of latpath-vhost" } else { "writev" };
        ensure!(writes(by), "{name}: nobody hands packets to the tap by {by}: {profile}");
        ensure!(profile.contains("[guest latpath-"), "{name}: no guest in the profile: {profile}");
        let queues = one["ladder"]["figures"]["queues"].as_array().context("no queues")?;
        for direction in ["from_guest", "to_guest"] {
            let of = queues.iter().filter(|queue| queue["direction"] == direction);
            let means: Vec<&Value> = of.flat_map(|queue| queue["ladders"].as_array().into_iter().flatten()).collect();
            let is_known = |one: &&Value| [variant, "no_interrupt"].map(Value::from).contains(&one["variant"]);
            ensure!(means.iter().any(|one| one["variant"] == variant), "{name} {direction}: {means:#?}");
            ensure!(means.iter().all(is_known), "{name} {direction}: {means:#?}");
        }
    }
    // The saved study yields the same page again.
    let page = latpath(&format!("study vhost -o {kept} --html {kept}/page.html"))?;
    ensure!(page.status.success(), "{}", page.status);
    let text = String::from_utf8_lossy(&page.stdout).into_owned();
    for says in ["vhost carries", "Exits, by reason", "One transfer from the guest", "VM latpath-standard"] {
        ensure!(text.contains(says), "the page does not say {says}: {text}");
    }
    fs::copy(folder.path().join("page.html"), "/out/study.html")?;
    let again = latpath(&format!("study vhost -o {kept} --html {kept}/page.html"))?;
    ensure!(again.status.code() == Some(1), "a page that exists was replaced: {}", again.status);
    for file in ["standard.profile", "vhost.svg", "standard-to-vhost.svg", "vhost-to-standard.svg"] {
        ensure!(fs::metadata(folder.path().join(file)).is_ok_and(|file| file.len() > 1000), "{file} was not kept");
    }
    for one in [standard, vhost] {
        let setup = &one["setup"];
        ensure!(setup["hypervisor"].as_str().is_some_and(|said| said.contains("QEMU")), "{setup}");
        ensure!(setup["vcpus"].as_array().is_some_and(|vcpus| vcpus.len() == 1), "{setup}");
    }
    Ok(())
}
