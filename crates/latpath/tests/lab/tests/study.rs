//! The whole vhost study by one command: two guests, one without vhost and one with it, transfer the same bytes; each
//! figure states its measurement, and none is omitted.

use crate::{Outcome, Scale, Test};
use anyhow::{bail, ensure};
use latpath_ladder::{Direction, Variant};
use latpath_observe::study::Configuration;
use latpath_queues::Side;
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
    // The duration is not checked here, but by scripts/bench study.
    eprintln!("the study took {:.0} s", began.elapsed().as_secs_f64());
    let all: Vec<Configuration> = serde_json::from_slice(&ended.stdout)?;
    fs::write("/out/study.json", &ended.stdout)?;
    let [standard, vhost] = &all[..] else { bail!("not two: {all:#?}") };
    for (one, name, variant) in [(standard, "standard", Variant::NoVhost), (vhost, "vhost", Variant::Irqfd)] {
        let notes = &one.notes;
        let is_measured = notes.iter().all(|note| !note.contains("was not measured"));
        ensure!(one.name == name && is_measured, "{name}: {notes:?}");
        let (Some(exits), Some(ladder), Some(queues), Some(profile), [alone, ..]) =
            (&one.exits, &one.ladder, &one.queues, &one.profile, &one.alone[..])
        else {
            bail!("{name}: a part is missing: {one:#?}")
        };
        for part in [exits.work, ladder.work, queues.work, profile.work, *alone] {
            let sent = part.traffic.from_guest_bytes;
            // 100 MiB with headers and few retransmissions.
            ensure!((104_857_600..130_000_000).contains(&sent), "{name}: {sent} bytes were sent: {part:?}");
            ensure!(part.reported_bits_per_second > Some(0.0), "{name}: no rate of iperf3's: {part:?}");
        }
        ensure!(exits.figures.all.exits > 100, "{name}: {:?}", exits.figures.all);
        let devices = &queues.figures;
        let sent = |side: Side| -> u64 {
            let queues = devices.iter().filter(|device| device.side == side).flat_map(|device| &device.queues);
            queues.map(|queue| queue.counts.written_bytes + queue.counts.read_bytes).sum()
        };
        ensure!(sent(Side::Driver) > 104_857_600, "the guest's driver sent less: {devices:#?}");
        ensure!((sent(Side::Vhost) > 104_857_600) == (name == "vhost"), "{name}: {devices:#?}");
        let profile = &profile.figures.kept;
        let writes = |frames: &str| profile.lines().any(|line| line.contains("tun_get_user") && line.contains(frames));
        let by = if name == "vhost" { "vhost of latpath-vhost" } else { "writev" };
        ensure!(writes(by), "{name}: nobody hands packets to the tap by {by}: {profile}");
        ensure!(profile.contains("[guest latpath-"), "{name}: no guest in the profile: {profile}");
        for direction in Direction::ALL {
            let of = ladder.figures.figures.queues.iter().filter(|queue| queue.direction == direction);
            let variants: Vec<Variant> = of.flat_map(|queue| &queue.ladders).map(|ladder| ladder.variant).collect();
            ensure!(variants.contains(&variant), "{name} {direction:?}: {variants:?}");
            let is_known = |one: &Variant| [variant, Variant::NoInterrupt].contains(one);
            ensure!(variants.iter().all(is_known), "{name} {direction:?}: {variants:?}");
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
        let setup = &one.setup;
        ensure!(setup.hypervisor.as_ref().is_some_and(|said| said.contains("QEMU")), "{setup:?}");
        ensure!(setup.vcpus.len() == 1, "{setup:?}");
    }
    Ok(())
}
