//! `latpath queues` from the command line.

use latpath_lab::{Application, Guest, GuestPlan, Lab, LabKernel, GUEST_DEVICE, PUBLISHER};
use latpath_model::Observation;
use latpath_observe::queues::{Agreement, Device, QueuesFigures};
use latpath_testkit::waits::{until, until_within};
use latpath_testkit::{boot, equal, latpath, need_btf, need_guest, need_root, program, start, trial, Failed};
use serde_json::Value;
use std::{process::ExitCode, time::Duration};

/// Time limit, for a guest emulated on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
const NEVER: &dyn Fn() -> bool = &|| false;

fn main() -> ExitCode {
    latpath_testkit::main(vec![
        trial("the_schema_describes_a_queue", &[], schema),
        trial("a_window_of_no_time_and_an_unknown_vm_are_wrong_usage", &[], wrong_usage),
        trial("it_watches_or_says_what_this_kernel_lacks", &[need_root(), need_btf()], watches),
        trial(
            "what_a_driver_of_premapped_buffers_passes_is_what_its_nic_counts",
            &[need_root(), need_guest()],
            premapped,
        )
        .in_lab(),
    ])
}

fn schema() -> Result<(), Failed> {
    let output = latpath("schema queues").output()?;
    let schema: Value = serde_json::from_slice(&output.stdout)?;
    let queue = &schema["$defs"]["QueueFigures"]["properties"];
    for key in ["posted_buffers", "used_buffers", "kicks_suppressed", "waited", "posted_index_difference"] {
        equal(key, queue[key]["description"].is_string(), true)?;
    }
    Ok(())
}

fn wrong_usage() -> Result<(), Failed> {
    equal("of no time", latpath("queues --duration 0s").output()?.status.code(), Some(2))?;
    let output = latpath("queues --vm no-such-vm").output()?;
    equal("of no VM", output.status.code(), Some(2))?;
    equal("its name", String::from_utf8(output.stderr)?.contains("--vm no-such-vm: no such VM"), true)
}

fn watches() -> Result<(), Failed> {
    let output = latpath("queues --duration 300ms --json").output()?;
    let said = String::from_utf8(output.stderr)?;
    if output.status.code() == Some(0) {
        let document: Observation<QueuesFigures> = serde_json::from_slice(&output.stdout)?;
        equal("the window", document.window_ns >= 300_000_000, true)?;
        for queue in document.figures.devices.iter().flat_map(|device| &device.queues) {
            equal(&format!("{queue:?}"), queue.posted_index_difference, 0)?;
        }
        return Ok(());
    }
    // If it cannot run, latpath prints the reason and the next step.
    equal("the exit code", output.status.code(), Some(1))?;
    equal(&said, said.contains("CONFIG_FUNCTION_TRACER") || said.contains("modprobe vhost_net"), true)
}

/// Counters of the guest's NIC: packets and bytes received, packets and bytes sent.
fn counted(guest: &mut Guest) -> Result<Vec<u64>, Failed> {
    let files = "rx_packets rx_bytes tx_packets tx_bytes";
    let text = guest.expect(&format!("cd /sys/class/net/{GUEST_DEVICE}/statistics && cat {files}"), NEVER)?;
    Ok(text.lines().map_while(|line| line.trim().parse().ok()).collect())
}

/// In newer kernels virtio_net maps its receive buffers itself, and adds them with separate functions.
fn premapped() -> Result<(), Failed> {
    const FRAMES: u64 = 2000;
    let lab = Lab::new()?;
    let path = lab.lay(Application::Guest)?;
    let programs = vec![(program(), "/bin/latpath".into())];
    let plan = GuestPlan { programs, kernel: LabKernel::named("6.18"), ..GuestPlan::default() };
    let mut guest = boot(&lab, &path, &plan)?;
    let has = guest.expect("grep -c ' virtqueue_add_inbuf_premapped$' /proc/kallsyms", NEVER)?;
    equal("the function in its kernel", has.trim(), "1")?;
    // Unless it is promiscuous, a virtual NIC delivers only multicast groups that have been joined.
    guest.expect(&format!("ip link set {GUEST_DEVICE} promisc on"), NEVER)?;
    guest.start("queues", "latpath queues --json", false, NEVER)?;
    let mut said = String::new();
    let watches = until("it watches", || {
        said = guest.file("/run/queues.err", NEVER).unwrap_or_default();
        said.contains("watching")
    });
    watches.map_err(|e| format!("{e:?}: {said}"))?;
    let before = counted(&mut guest)?;
    let send = |device: &str, svid: &str| format!("publish -i {device} --svid {svid} --rate 1000 --count {FRAMES}");
    let sent = start(&lab, &path.publisher, latpath(&send(PUBLISHER, "in")))?.finish(PATIENCE)?;
    equal(&sent.stderr, sent.code, Some(0))?;
    let sent = guest.run(&format!("latpath {}", send(GUEST_DEVICE, "out")), PATIENCE, NEVER)?;
    equal(&sent.text, sent.status, 0)?;
    let mut now = Vec::new();
    until_within(PATIENCE, "all frames have passed", || {
        let last = std::mem::replace(&mut now, counted(&mut guest).unwrap_or_default());
        last == now && now.len() == 4 && now[0] >= before[0] + FRAMES && now[2] >= before[2] + FRAMES
    })?;
    let output = guest.end("queues", PATIENCE, NEVER)?;
    equal(&guest.file("/run/queues.err", NEVER)?, output.status, 0)?;
    let document: Observation<QueuesFigures> = serde_json::from_str(&output.text)?;
    let is_nic = |device: &&Device| device.known_as.iter().any(|name| name == GUEST_DEVICE);
    let nic = document.figures.devices.iter().find(is_nic).ok_or("no NIC")?;
    let passed: Vec<u64> = before.iter().zip(&now).map(|(before, now)| now - before).collect();
    for (direction, at) in [(nic.to_guest, 0), (nic.from_guest, 2)] {
        let (packets, bytes) = (passed[at], passed[at + 1]);
        let counted = Agreement { packets: Some(packets), bytes, device_packets: packets, device_bytes: bytes };
        equal(&format!("{nic:#?}"), direction, Some(counted))?;
    }
    for queue in &nic.queues {
        equal(&format!("{queue:?}"), [queue.posted_index_difference, queue.used_index_difference], [0; 2])?;
    }
    let posted = nic.queues.iter().filter(|queue| queue.queue == "input.0").map(|queue| queue.posted_buffers);
    equal("receive buffers were posted", posted.sum::<u64>() >= FRAMES / 2, true)?;
    equal("events lost", document.lost_events, 0)
}
