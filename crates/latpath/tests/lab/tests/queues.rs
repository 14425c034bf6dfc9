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
use latpath_model::Observation;
use latpath_observe::queues::{Agreement, Device, Layout, QueueFigures, QueuesFigures};
use latpath_queues::Side;
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
    // QEMU forwards multicast only for groups that a process in the guest has joined.
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
    let driver: Observation<QueuesFigures> = serde_json::from_str(&output.text).with_context(|| output.text.clone())?;
    host.interrupt();
    let ended = host.finish(PATIENCE).map_err(|e| anyhow!("{e:?}"))?;
    ensure!(ended.code == Some(0), "in the host: {}", ended.stderr);
    let vhost: Observation<QueuesFigures> =
        serde_json::from_str(&ended.stdout).with_context(|| ended.stdout.clone())?;
    std::fs::write(
        format!("/out/queues-{service:?}.json"),
        format!("{}\n{}\n{said}\n{}", output.text, ended.stdout, ended.stderr),
    )?;

    let passed: Vec<u64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
    ensure!(passed[0] >= in_frames && passed[2] >= out_frames, "the guest's NIC counted {passed:?}");
    for document in [&driver, &vhost] {
        ensure!(document.lost_events == 0 && document.figures.buffers_untimed == 0, "{document:#?}");
        expect_indices(&document.figures)?;
    }
    let nic = expect_driver(&driver.figures, service, &passed).context("the driver's side")?;
    if let (Some(before), Some(after)) = (rings, rings_after) {
        after.expect_since(&before, nic).context("QEMU's side")?;
    }
    match service {
        NicService::Default | NicService::Relayed => {
            expect_vhost(&vhost.figures, nic, service).context("vhost's side")?;
            expect_pages(&mut stage)
        }
        NicService::Qemu | NicService::Packed => {
            let is_served = vhost.figures.devices.iter().any(|device| device.name.as_deref() == Some(TAP));
            ensure!(!is_served, "no vhost serves it: {vhost:#?}");
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

/// Starts `latpath queues` in the hypervisor; returns once it is attached.
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

/// Expects the rings' indices to advance by the counts.
fn expect_indices(figures: &QueuesFigures) -> Outcome {
    for queue in figures.devices.iter().flat_map(|device| &device.queues) {
        let is_exact = queue.posted_index_difference == 0 && queue.used_index_difference == 0;
        ensure!(is_exact, "the ring's index moved otherwise: {queue:#?}");
        let all = queue.posted_buffers + queue.counts.used_buffers;
        // Counting starts with the first event; for packed rings, buffers posted before it are unknown.
        let least = match queue.layout {
            Layout::Packed => 0,
            Layout::Split => all.saturating_sub(1 + queue.posted_buffers.min(1)),
        };
        ensure!(queue.index_moved >= least, "too little was compared: {queue:#?}");
    }
    Ok(())
}

fn queue<'a>(device: &'a Device, name: &str) -> Result<&'a QueueFigures> {
    device.queues.iter().find(|queue| queue.queue == name).with_context(|| format!("no queue {name}: {device:#?}"))
}

/// Checks the driver's counts; returns the guest's NIC.
fn expect_driver<'a>(figures: &'a QueuesFigures, service: NicService, passed: &[u64]) -> Result<&'a Device> {
    let is_nic = |device: &&Device| device.known_as.iter().any(|name| name == GUEST_DEVICE);
    let nic = figures.devices.iter().find(is_nic).with_context(|| format!("no {GUEST_DEVICE}: {figures:#?}"))?;
    ensure!(nic.driver.as_deref() == Some("virtio_net"), "its driver: {nic:#?}");
    let to_guest = nic.to_guest.context("no packets to the guest")?;
    let from_guest = nic.from_guest.context("no packets from the guest")?;
    for (direction, agreement, passed) in [("to", to_guest, &passed[..2]), ("from", from_guest, &passed[2..])] {
        let queues = [agreement.packets.context("no packets")?, agreement.bytes];
        ensure!(queues == passed, "{direction} the guest: {queues:?}, the NIC counted {passed:?}: {nic:#?}");
        let devices = [agreement.device_packets, agreement.device_bytes];
        ensure!(devices == queues, "{direction} the guest: latpath reads {devices:?}");
    }
    let layout = if service == NicService::Packed { Layout::Packed } else { Layout::Split };
    let [input, output] = [queue(nic, "input.0")?, queue(nic, "output.0")?];
    for queue in [input, output] {
        ensure!(queue.layout == layout, "its layout: {queue:#?}");
        // vhost needs no kicks for a receive queue that is never empty.
        ensure!(queue.counts.kicks + queue.counts.kicks_suppressed > 0, "no kicks: {queue:#?}");
        ensure!(queue.waited.count > 0 && queue.occupied.max > 0, "{queue:#?}");
        ensure!(queue.occupied.max <= u64::from(queue.counts.size), "more than the ring holds: {queue:#?}");
    }
    // A packet of many segments takes more than one buffer of the receive queue.
    let (packets, buffers) = (passed[0], input.counts.used_buffers);
    let mean = from_guest.bytes / passed[2];
    eprintln!("{service:?}: {packets} packets came in {buffers} buffers; those sent are of {mean} bytes");
    ensure!(buffers > packets, "{packets} packets came in {buffers} buffers: {nic:#?}");
    // A receive queue's buffers are larger than their contents.
    ensure!(input.counts.posted_write_bytes > input.counts.written_bytes, "{input:#?}");
    ensure!(input.counts.interrupts > 0, "no interrupt: {input:#?}");
    if service == NicService::Default {
        let name = input.interrupt_name.as_deref().unwrap_or_default();
        ensure!(name.ends_with("input.0"), "the interrupt is called {name:?}");
    }
    Ok(nic)
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
        let mut index = |queue: u32, key: &str| {
            let status = ask("x-query-virtio-queue-status", json!({ "path": path, "queue": queue }))?;
            status[key].as_u64().with_context(|| format!("no {key}: {status:#}"))
        };
        Ok(Self { used: index(0, "used-idx")?, taken: index(1, "last-avail-idx")? })
    }

    /// Expects the driver to have received the buffers that QEMU used, and QEMU to have taken all buffers that the
    /// driver posted for sending.
    fn expect_since(&self, before: &Self, nic: &Device) -> Outcome {
        let moved = |now: u64, then: u64| now.wrapping_sub(then) % (1 << 16);
        let (used, taken) = (moved(self.used, before.used), moved(self.taken, before.taken));
        let got = queue(nic, "input.0")?.counts.used_buffers;
        let posted = queue(nic, "output.0")?.posted_buffers;
        eprintln!("QEMU used {used} buffers and took {taken}");
        ensure!(used > 0 && used == got % (1 << 16), "QEMU used {used} buffers, the driver got {got} back: {nic:#?}");
        ensure!(taken > 0 && taken == posted % (1 << 16), "QEMU took {taken} buffers of {posted} posted: {nic:#?}");
        Ok(())
    }
}

/// Checks the pages that both sides print during a stream.
fn expect_pages(stage: &mut Stage) -> Outcome {
    // The stream runs until it is stopped, since the programs' load time is unknown. Its rate is low: an emulated guest
    // has no time for more.
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

/// Expects vhost's counts to equal the driver's.
fn expect_vhost(figures: &QueuesFigures, nic: &Device, service: NicService) -> Outcome {
    let is_tap = |device: &&Device| device.side == Side::Vhost && device.name.as_deref() == Some(TAP);
    let tap = figures.devices.iter().find(is_tap).with_context(|| format!("no {TAP}: {figures:#?}"))?;
    ensure!(tap.vm.as_deref() == Some("latpath-guest0"), "its VM: {tap:#?}");
    for (direction, ours, drivers) in [("to", tap.to_guest, nic.to_guest), ("from", tap.from_guest, nic.from_guest)] {
        let (ours, drivers) = (ours.context("no counts of vhost")?, drivers.context("no counts of the driver")?);
        let counts = |of: Agreement| (of.bytes, of.device_packets, of.device_bytes);
        ensure!(counts(ours) == counts(drivers), "{direction} the guest: {ours:?} at vhost, {drivers:?} at the driver");
        ensure!(ours.bytes == ours.device_bytes, "{direction} the guest: the tap counted otherwise: {ours:?}");
    }
    let all_signals: u64 = tap.queues.iter().map(|queue| queue.counts.interrupts).sum();
    for (at_vhost, at_driver) in [("rx 0", "input.0"), ("tx 0", "output.0")] {
        let (at_host, guest) = (queue(tap, at_vhost)?, queue(nic, at_driver)?.counts);
        let host = at_host.counts;
        for (what, ours, drivers) in
            [("kicks", host.kicks, guest.kicks), ("written bytes", host.written_bytes, guest.written_bytes)]
        {
            ensure!(ours == drivers, "{what} of {at_vhost}: {ours} at vhost, {drivers} at the driver");
        }
        let (used, got) = (host.used_buffers, guest.used_buffers);
        // Sent buffers are reclaimed when the next packet is sent.
        let is_same = if at_vhost == "rx 0" { used == got } else { used.abs_diff(got) <= u64::from(guest.size) };
        ensure!(is_same, "{at_vhost}: vhost used {used} buffers, the driver got {got}: {host:#?} {guest:#?}");
        ensure!(host.rounds > 0 && at_host.waited.count > 0, "{at_host:#?}");
        let (signals, by_kvm) = (host.interrupts, host.interrupts_by_irqfd);
        // On an interrupt line that queues share, an interrupt for one queue's buffers delivers the others' too.
        let most = if service == NicService::Relayed { all_signals } else { signals };
        ensure!(guest.interrupts <= most, "more interrupts than signals: {host:#?} {guest:#?}");
        let expected = if service == NicService::Default { signals } else { 0 };
        ensure!(by_kvm == expected, "{by_kvm} of {signals} signals by irqfd: {host:#?}");
    }
    Ok(())
}
