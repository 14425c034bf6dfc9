//! The counts of a guest's driver and of the host's vhost agree with each other in buffers, bytes and kicks, and with
//! the kernels' packet and byte counters, to the byte; the rings' indices advance by the same amount. Tested with
//! vhost, with vhost whose interrupts QEMU relays, with QEMU (which reports its position in the rings), and with packed
//! rings; with small frames and with TCP, whose segments are passed as buffers of up to 64 KiB.

use crate::{
    stage::{plain, Reach, Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{anyhow, ensure, Context, Result};
use latpath_lab::{NicService, Switch, GUEST_DEVICE, PUBLISHER_ADDRESS, TAP};
use latpath_testkit::{waits, Started};
use serde_json::{json, Value};
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

pub const TEST: Test = Test { name: "queues", smoke: false, only_whole: false, seconds: 1500, run };

const PATIENCE: Duration = Duration::from_secs(60);
const NEVER: &dyn Fn() -> bool = &|| false;

fn run(scale: &Scale) -> Outcome {
    for service in [NicService::Default, NicService::Relayed, NicService::Qemu, NicService::Packed] {
        served(scale, service).with_context(|| format!("a NIC that is served so: {service:?}"))?;
    }
    Ok(())
}

fn served(scale: &Scale, service: NicService) -> Outcome {
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.service = service;
    let iperf3 = iperf3()?;
    stage.boot_guest_with(Reach::Serial, vec![(iperf3.clone(), "/bin/iperf3".into())])?;
    stage.lay_addresses()?;
    let (in_frames, out_frames) = (scale.frames(2000, 60_000), scale.frames(500, 20_000));

    let stream = Stream::sv("IN", in_frames);
    // QEMU only passes on groups that a process in the guest has joined.
    stage.subscribe(&stream)?;
    let host = watch_host(&stage)?;
    watch_guest(&mut stage)?;
    stage.wait_for_quiet()?;
    let before = guest_counters(&mut stage)?;
    let rings = (service == NicService::Qemu).then(|| Rings::of_qemu(&mut stage)).transpose()?;
    stage.publish(&stream)?;
    let words = format!("latpath publish -i {GUEST_DEVICE} --svid OUT --rate 1000 --count {out_frames}");
    stage.guest()?.run(&words, PATIENCE + Duration::from_millis(4 * out_frames), NEVER)?;
    both_ways(&mut stage, &iperf3, scale.frames(4, 64))?;
    stage.wait_for_quiet()?;
    let after = guest_counters(&mut stage)?;
    let rings_after = (service == NicService::Qemu).then(|| Rings::of_qemu(&mut stage)).transpose()?;
    let output = stage.guest()?.end("queues", PATIENCE, NEVER)?;
    let said = stage.guest()?.file("/run/queues.err", NEVER)?;
    ensure!(output.status == 0, "in the guest: status {}: {said}", output.status);
    let driver: Value = serde_json::from_str(&output.text).with_context(|| output.text.clone())?;
    host.interrupt();
    let ended = host.finish(PATIENCE).map_err(|e| anyhow!("{e:?}"))?;
    ensure!(ended.code == Some(0), "in the host: {}", ended.stderr);
    let vhost: Value = serde_json::from_str(&ended.stdout).with_context(|| ended.stdout.clone())?;
    std::fs::write(
        format!("/out/queues-{service:?}.json"),
        format!("{driver:#}\n{vhost:#}\n{said}\n{}", ended.stderr),
    )?;

    let passed: Vec<u64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
    ensure!(passed[0] >= in_frames && passed[2] >= out_frames, "the guest's NIC counted {passed:?}");
    for document in [&driver, &vhost] {
        ensure!(document["lost_events"] == 0 && document["buffers_untimed"] == 0, "{document:#}");
        expect_indices(document)?;
    }
    let nic = expect_driver(&driver, service, &passed).context("the driver's side")?;
    if let (Some(before), Some(after)) = (rings, rings_after) {
        after.expect_since(&before, &nic).context("QEMU's side")?;
    }
    match service {
        NicService::Default | NicService::Relayed => {
            expect_vhost(&vhost, &nic, service).context("vhost's side")?;
            expect_pages(&mut stage)
        }
        NicService::Qemu | NicService::Packed => {
            ensure!(list(&vhost, "devices").all(|device| device["name"] != TAP), "no vhost serves it: {vhost:#}");
            Ok(())
        }
    }
}

fn iperf3() -> Result<PathBuf> {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let mut all = std::env::split_paths(&places).map(|folder| folder.join("iperf3"));
    all.find(|file| file.is_file()).context("no iperf3")
}

/// Transfers `mib` MiB by TCP to the guest, and as much from it.
fn both_ways(stage: &mut Stage, iperf3: &Path, mib: u64) -> Outcome {
    let limit = PATIENCE + Duration::from_secs(4 * mib);
    for reverse in ["--reverse", ""] {
        let mut command = Command::new(iperf3);
        command.args(["--server", "--one-off", "--forceflush", "--bind", PUBLISHER_ADDRESS]);
        let mut server = stage.start_command(&stage.path().publisher, command)?;
        let listens = |server: &mut Started| server.printed().contains("listening") || !server.runs();
        waits::until_within(PATIENCE, "iperf3 listens", || listens(&mut server)).map_err(plain)?;
        let client = format!("iperf3 --client {PUBLISHER_ADDRESS} {reverse} --bytes {mib}M");
        let ended = stage.guest()?.run(&client, limit, NEVER)?;
        ensure!(ended.status == 0, "iperf3 in the guest: {}; the server: {}", ended.text, server.said());
        server.finish(PATIENCE).map_err(plain)?;
    }
    Ok(())
}

/// Starts `latpath queues` in the hypervisor; returns once it watches.
fn watch_host(stage: &Stage) -> Result<Started> {
    let mut host = stage.start(&stage.path().hypervisor, "queues --json")?;
    waits::says(&mut host, "watching").map_err(plain)?;
    Ok(host)
}

/// Starts `latpath queues` in the guest.
fn watch_guest(stage: &mut Stage) -> Outcome {
    let guest = stage.guest()?;
    guest.start("queues", "latpath queues --json", false, NEVER)?;
    let mut said = String::new();
    let watches = waits::until("it watches in the guest", || {
        said = guest.file("/run/queues.err", NEVER).unwrap_or_default();
        said.contains("watching")
    });
    watches.map_err(plain).context(said)
}

/// Counters of the guest's NIC: packets and bytes received, packets and bytes sent.
fn guest_counters(stage: &mut Stage) -> Result<Vec<u64>> {
    let script = format!("cd /sys/class/net/{GUEST_DEVICE}/statistics && cat rx_packets rx_bytes tx_packets tx_bytes");
    let text = stage.guest()?.expect(&script, NEVER)?;
    let numbers: Vec<u64> = text.lines().map_while(|line| line.trim().parse().ok()).collect();
    ensure!(numbers.len() == 4, "{GUEST_DEVICE} has no counters: {text}");
    Ok(numbers)
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn number(value: &Value, key: &str) -> Result<u64> {
    value[key].as_u64().with_context(|| format!("no {key}: {value:#}"))
}

/// Expects the rings' indices to advance by the counts.
fn expect_indices(document: &Value) -> Outcome {
    for device in list(document, "devices") {
        for queue in list(device, "queues") {
            let is_exact = queue["posted_index_difference"] == 0 && queue["used_index_difference"] == 0;
            ensure!(is_exact, "the ring's index moved otherwise: {queue:#}");
            let all = number(queue, "posted_buffers")? + number(queue, "used_buffers")?;
            // Counting starts with the first event; for packed rings, buffers posted before it are unknown.
            let least = if queue["layout"] == "packed" {
                0
            } else {
                all.saturating_sub(1 + number(queue, "posted_buffers")?.min(1))
            };
            ensure!(number(queue, "index_moved")? >= least, "too little was compared: {queue:#}");
        }
    }
    Ok(())
}

fn queue<'a>(device: &'a Value, name: &str) -> Result<&'a Value> {
    list(device, "queues").find(|queue| queue["queue"] == name).with_context(|| format!("no queue {name}: {device:#}"))
}

/// Checks the driver's counts; returns the guest's NIC.
fn expect_driver(document: &Value, service: NicService, passed: &[u64]) -> Result<Value> {
    let is_nic = |device: &&Value| list(device, "known_as").any(|name| name == GUEST_DEVICE);
    let nic = list(document, "devices").find(is_nic).with_context(|| format!("no {GUEST_DEVICE}: {document:#}"))?;
    ensure!(nic["driver"] == "virtio_net", "its driver: {nic:#}");
    for (direction, at) in [("to_guest", 0), ("from_guest", 2)] {
        let agreement = &nic[direction];
        let queues = [number(agreement, "packets")?, number(agreement, "bytes")?];
        ensure!(
            queues == passed[at..at + 2],
            "{direction}: {queues:?}, the NIC counted {:?}: {nic:#}",
            &passed[at..at + 2]
        );
        let devices = [number(agreement, "device_packets")?, number(agreement, "device_bytes")?];
        ensure!(devices == queues, "{direction}: latpath reads {devices:?}");
    }
    let layout = if service == NicService::Packed { "packed" } else { "split" };
    for name in ["input.0", "output.0"] {
        let queue = queue(nic, name)?;
        ensure!(queue["layout"] == layout, "its layout: {queue:#}");
        // vhost needs no kicks for a receive queue that is never empty.
        ensure!(number(queue, "kicks")? + number(queue, "kicks_suppressed")? > 0, "no kicks: {queue:#}");
        ensure!(number(&queue["waited"], "count")? > 0 && number(&queue["occupied"], "max")? > 0, "{queue:#}");
        ensure!(number(&queue["occupied"], "max")? <= number(queue, "size")?, "more than the ring holds: {queue:#}");
    }
    // A packet of many segments takes more than one buffer of the receive queue.
    let (packets, buffers) = (number(&nic["to_guest"], "packets")?, number(queue(nic, "input.0")?, "used_buffers")?);
    let mean = number(&nic["from_guest"], "bytes")? / number(&nic["from_guest"], "packets")?;
    eprintln!("{service:?}: {packets} packets came in {buffers} buffers; those sent are of {mean} bytes");
    ensure!(buffers > packets, "{packets} packets came in {buffers} buffers: {nic:#}");
    let input = queue(nic, "input.0")?;
    // A receive queue's buffers are larger than their contents.
    ensure!(number(input, "posted_write_bytes")? > number(input, "written_bytes")?, "{input:#}");
    ensure!(number(input, "interrupts")? > 0, "no interrupt: {input:#}");
    if service == NicService::Default {
        let name = input["interrupt_name"].as_str().unwrap_or_default();
        ensure!(name.ends_with("input.0"), "the interrupt is called {name:?}");
    }
    Ok(nic.clone())
}

/// QEMU's position in the NIC's rings, 16 bits each: buffers used in the receive ring, and taken from the transmit
/// ring.
struct Rings {
    used: u64,
    taken: u64,
}

impl Rings {
    fn of_qemu(stage: &mut Stage) -> Result<Self> {
        let stream = UnixStream::connect(stage.guest()?.monitor_socket())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut qemu = BufReader::new(stream);
        let mut ask = |command: &str, arguments: Value| -> Result<Value> {
            writeln!(qemu.get_mut(), "{}", json!({ "execute": command, "arguments": arguments }))?;
            loop {
                let mut line = String::new();
                ensure!(qemu.read_line(&mut line)? > 0, "QEMU ended the connection");
                let said: Value = serde_json::from_str(&line)?;
                ensure!(said["error"].is_null(), "{command}: {said}");
                // A greeting and events may precede the answer.
                if let Some(answer) = said.get("return") {
                    return Ok(answer.clone());
                }
            }
        };
        ask("qmp_capabilities", json!({}))?;
        let devices = ask("x-query-virtio", json!({}))?;
        let nic = devices.as_array().into_iter().flatten().find(|device| device["name"] == "virtio-net");
        let path = nic.with_context(|| format!("QEMU has no virtio-net: {devices}"))?["path"].clone();
        let mut status = |queue: u32| ask("x-query-virtio-queue-status", json!({ "path": path, "queue": queue }));
        Ok(Self { used: number(&status(0)?, "used-idx")?, taken: number(&status(1)?, "last-avail-idx")? })
    }

    /// The driver received the buffers that QEMU used, and QEMU took all buffers that the driver posted for sending.
    fn expect_since(&self, before: &Self, nic: &Value) -> Outcome {
        let moved = |now: u64, then: u64| now.wrapping_sub(then) % (1 << 16);
        let (used, taken) = (moved(self.used, before.used), moved(self.taken, before.taken));
        let got = number(queue(nic, "input.0")?, "used_buffers")?;
        let posted = number(queue(nic, "output.0")?, "posted_buffers")?;
        eprintln!("QEMU used {used} buffers and took {taken}");
        ensure!(used > 0 && used == got % (1 << 16), "QEMU used {used} buffers, the driver got {got} back: {nic:#}");
        ensure!(taken > 0 && taken == posted % (1 << 16), "QEMU took {taken} buffers of {posted} posted: {nic:#}");
        Ok(())
    }
}

/// The pages of both sides during a stream.
fn expect_pages(stage: &mut Stage) -> Outcome {
    // Runs until it is stopped: the programs' load time is unknown. An emulated guest has no time for more beside it.
    let stream = Stream::sv("IN", 120_000).rate(200);
    let publishing = stage.start_publishing(&stream)?;
    let in_guest = stage.guest()?.expect("latpath queues --cost -- sleep 1", NEVER)?;
    let in_host = stage.latpath("queues --vm latpath-guest0 --cost -- sleep 1")?;
    publishing.interrupt();
    publishing.finish(PATIENCE).map_err(|e| anyhow!("{e:?}"))?;
    std::fs::write("/out/queues-page.txt", format!("{in_guest}\n{in_host}"))?;
    for (page, words) in [(&in_guest, "as its driver sees it"), (&in_host, "latpath-guest0 (process ")] {
        let is_right = page.contains(words) && page.contains(": as counted") && page.contains("an event cost");
        ensure!(is_right && !page.contains("not as counted"), "{page}");
    }
    ensure!(!in_host.contains("driver sees it"), "--vm shows that VM alone: {in_host}");
    Ok(())
}

/// vhost's counts equal the driver's.
fn expect_vhost(document: &Value, nic: &Value, service: NicService) -> Outcome {
    let tap = list(document, "devices").find(|device| device["side"] == "vhost" && device["name"] == TAP);
    let tap = tap.with_context(|| format!("no {TAP}: {document:#}"))?;
    ensure!(tap["vm"] == "latpath-guest0", "its VM: {tap:#}");
    for direction in ["to_guest", "from_guest"] {
        let (ours, drivers) = (&tap[direction], &nic[direction]);
        for key in ["bytes", "device_packets", "device_bytes"] {
            ensure!(ours[key] == drivers[key], "{direction}: {key} differ: {ours} at vhost, {drivers} at the driver");
        }
        ensure!(ours["bytes"] == ours["device_bytes"], "{direction}: the tap counted otherwise: {ours}");
    }
    let all_signals: u64 = list(tap, "queues").filter_map(|queue| queue["interrupts"].as_u64()).sum();
    for (at_vhost, at_driver) in [("rx 0", "input.0"), ("tx 0", "output.0")] {
        let (host, guest) = (queue(tap, at_vhost)?, queue(nic, at_driver)?);
        for key in ["kicks", "written_bytes"] {
            ensure!(
                host[key] == guest[key],
                "{key} of {at_vhost}: {} at vhost, {} at the driver",
                host[key],
                guest[key]
            );
        }
        let (used, got) = (number(host, "used_buffers")?, number(guest, "used_buffers")?);
        // Sent buffers are reclaimed when the next packet is sent.
        let is_same = if at_vhost == "rx 0" { used == got } else { used.abs_diff(got) <= number(guest, "size")? };
        ensure!(is_same, "{at_vhost}: vhost used {used} buffers, the driver got {got}: {host:#} {guest:#}");
        ensure!(number(host, "rounds")? > 0 && number(&host["waited"], "count")? > 0, "{host:#}");
        let (signals, by_kvm) = (number(host, "interrupts")?, number(host, "interrupts_by_irqfd")?);
        // On a line that queues share, an interrupt for one queue's buffers delivers those of the others too.
        let most = if service == NicService::Relayed { all_signals } else { signals };
        ensure!(number(guest, "interrupts")? <= most, "more interrupts than signals: {host:#} {guest:#}");
        let expected = if service == NicService::Default { signals } else { 0 };
        ensure!(by_kvm == expected, "{by_kvm} of {signals} signals by irqfd: {host:#}");
    }
    Ok(())
}
