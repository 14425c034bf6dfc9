//! Taps and macvtaps, with a thread of the test in QEMU's place: frames that it reads have left the host for a VM,
//! frames that it writes are the VM's.

use crate::*;
use latpath_lab::{Lab, APPLICATION, BRIDGE, NIC};
use latpath_protocols::protocol::FrameLink;
use latpath_testkit::{bench, equal, trial, Lack};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

const MACVTAP: &str = "macvtap0";
const TAP: &str = "vnet0";
const FRAMES: u16 = 500;
const GROUP: [u8; 6] = [1, 12, 205, 4, 0, 1];

pub fn trials(needs: &[Lack]) -> Vec<latpath_testkit::Trial> {
    let mut needs_macvtap = needs.to_vec();
    needs_macvtap.push(needs.iter().all(Option::is_none).then(no_macvtap).flatten());
    vec![
        trial("what_a_macvtap_carries_is_a_vms", &needs_macvtap, macvtap),
        trial("what_a_macvtap_takes_off_a_cable_is_a_vms", &needs_macvtap, macvtap_alone),
        trial("what_a_tap_carries_is_a_vms", needs, tap),
        trial("a_tap_that_returns_under_another_name_is_the_same_point", needs, tap_returns),
        trial("a_macvtap_that_returns_under_another_name_is_the_same_point", &needs_macvtap, macvtap_returns),
    ]
}

/// Why this machine cannot create a macvtap.
fn no_macvtap() -> Lack {
    let tried = Lab::new().and_then(|lab| {
        let space = lab.namespace("try")?;
        space.ip("link add lp-try type veth peer name lp-peer")?;
        space.ip(&format!("link add link lp-try name {MACVTAP} type macvtap mode bridge"))
    });
    tried.err().map(|e| format!("needs macvtap: {e}"))
}

/// Opens a device like QEMU does: whole frames without a header.
pub fn open(node: &Path, name: &str) -> Result<File, Failed> {
    latpath_linux::net::open_tun(node, name, libc::IFF_TAP).map_err(|e| format!("{}: {e}", node.display()).into())
}

/// Reads `count` frames of the stream from the device.
fn take(mut file: &File, count: usize) -> Result<Vec<Vec<u8>>, String> {
    let mut taken = Vec::new();
    let mut buffer = [0; 2048];
    while taken.len() < count {
        let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, PollTimeout::from(60_000_u16)).map_err(|e| e.to_string())?;
        if ready == 0 {
            return Err(format!("{} of {count} frames came", taken.len()));
        }
        let len = file.read(&mut buffer).map_err(|e| e.to_string())?;
        taken.push(buffer[..len].to_vec());
    }
    Ok(taken)
}

/// Sends frames into the device and out of it; returns the probe's sightings.
fn both_ways(bench: &Bench, file: &File, to: [u8; 6]) -> Result<Seen, Failed> {
    let link = FrameLink { dst: Some(to), ..FrameLink::default() };
    let into: Vec<_> = (0..FRAMES).map(|n| bytes(&FrameSpec { link: link.clone(), ..frame("into", n) })).collect();
    let out: Vec<_> = (0..FRAMES).map(|n| bytes(&frame("out", n))).collect();
    let probe = Probe::attach(ProbeOptions::new("host", streams(&["svid:into", "svid:out"])))?;
    std::thread::scope(|scope| -> Result<(), Failed> {
        let vm = std::thread::Builder::new().name("vm".into());
        let vm = vm.spawn_scoped(scope, || {
            let taken = take(file, into.len())?;
            if taken != into {
                return Err("what was taken off the device is not what was sent".to_owned());
            }
            for frame in &out {
                let mut to = file;
                to.write_all(frame).map_err(|e| e.to_string())?;
            }
            Ok(())
        })?;
        for frames in into.chunks(50) {
            send(bench, frames)?;
            latpath_testkit::waits::pace(Duration::from_millis(5));
        }
        Ok(vm.join().map_err(|_| "the VM panicked")??)
    })?;
    // Frames that the VM writes arrive at lp-pub, from which the frames to the VM were sent.
    let came = |seen: &Seen| seen.at("host/nic-rx@lp-pub").len() >= out.len();
    seen(bench, probe, came)
}

/// Fails unless each of these points saw all frames of the stream once, in order.
fn expect_all(seen: &Seen, stream: u16, points: &[&str]) -> Result<(), Failed> {
    let want: Vec<_> = (0..FRAMES).map(|n| (stream, u32::from(n))).collect();
    for point in points {
        let got: Vec<_> = seen.at(point).into_iter().filter(|(s, _)| *s == stream).collect();
        if got != want {
            let all: Vec<_> = seen.keys().into_iter().map(|(p, keys)| format!("{p}: {}", keys.len())).collect();
            return Err(format!("{point} saw {} frames of {FRAMES}; {}", got.len(), all.join(", ")).into());
        }
    }
    Ok(())
}

/// Fails if a point whose name contains `part` saw any frame.
fn expect_none(seen: &Seen, part: &str) -> Result<(), Failed> {
    match seen.keys().into_iter().find(|(point, _)| point.contains(part)) {
        Some((point, keys)) => Err(format!("{point} saw {} frames", keys.len()).into()),
        None => Ok(()),
    }
}

fn macvtap() -> Result<(), Failed> {
    let bench = bench()?;
    let space = bench.application();
    space.ip(&format!("link add link {APPLICATION} name {MACVTAP} type macvtap mode bridge"))?;
    space.ip(&format!("link set {MACVTAP} allmulticast on up"))?;
    let node = space.macvtap_node(MACVTAP, bench.lab.folder())?;
    let file = open(&node, MACVTAP)?;
    let seen = both_ways(&bench, &file, GROUP)?;
    expect_all(&seen, 0, &["host/tx@lp-pub", "host/nic-rx@lp-app", "host/vm-read@macvtap0"])?;
    expect_all(&seen, 1, &["host/vm-write@macvtap0", "host/tx@lp-app", "host/nic-rx@veth0", "host/nic-rx@lp-pub"])?;
    expect_none(&seen, "app-read")?;
    expect_none(&seen, "tx@macvtap0")
}

/// Frames for this VM alone are not copied on the way: they still belong to the socket that sent them.
fn macvtap_alone() -> Result<(), Failed> {
    let bench = bench()?;
    let space = &bench.path.hypervisor;
    space.ip(&format!("link set {NIC} nomaster"))?;
    space.ip(&format!("link add link {NIC} name {MACVTAP} address 02:00:00:00:00:09 type macvtap mode bridge"))?;
    space.ip(&format!("link set {MACVTAP} up"))?;
    let node = space.macvtap_node(MACVTAP, bench.lab.folder())?;
    let file = open(&node, MACVTAP)?;
    let seen = both_ways(&bench, &file, [2, 0, 0, 0, 0, 9])?;
    expect_all(&seen, 0, &["host/tx@lp-pub", "host/nic-rx@nic0", "host/vm-read@macvtap0"])?;
    expect_all(&seen, 1, &["host/vm-write@macvtap0", "host/tx@nic0", "host/nic-rx@lp-pub"])?;
    expect_none(&seen, "app-read")
}

fn tap() -> Result<(), Failed> {
    let bench = bench()?;
    let space = &bench.path.hypervisor;
    space.ip(&format!("tuntap add dev {TAP} mode tap"))?;
    space.ip(&format!("link set {TAP} master {BRIDGE} up"))?;
    let file = space.inside(|| open(Path::new("/dev/net/tun"), TAP).map_err(|e| format!("{e:?}")))??;
    until("the bridge forwards to the tap", || {
        let port = space.ip(&format!("-d link show {TAP}"));
        port.is_ok_and(|port| String::from_utf8_lossy(&port).contains("state forwarding"))
    })?;
    let seen = both_ways(&bench, &file, GROUP)?;
    expect_all(&seen, 0, &["host/tx@lp-pub", "host/nic-rx@nic0", "host/tx@vnet0", "host/vm-read@vnet0"])?;
    expect_all(&seen, 1, &["host/vm-write@vnet0", "host/tx@nic0", "host/nic-rx@lp-pub"])?;
    expect_none(&seen, "app-read")?;
    expect_none(&seen, "nic-rx@vnet0")
}

/// Sends a frame, waits until the VM has read it, and drains the sightings up to then.
fn pass(bench: &Bench, probe: &mut Probe, stream: &str, file: &File) -> Result<(), Failed> {
    let frame = bytes(&frame(stream, 1));
    send(bench, std::slice::from_ref(&frame))?;
    until("the VM reads the frame", || take(file, 1).is_ok_and(|taken| taken[0] == frame))?;
    let read = latpath_linux::monotonic();
    until("its sightings are read", || probe.drain(&mut Vec::new()) > read)
}

/// The points of taps and macvtaps in this namespace, with their devices.
fn at_taps(probe: &mut Probe, netns: u32) -> Vec<(String, u32)> {
    let points = probe.points().into_iter();
    let taps = points.filter(|info| info.netns == netns && info.link == latpath_model::Link::Tap);
    taps.map(|info| (format!("{}@{}", info.point.kind, info.point.device_name()), info.ifindex)).collect()
}

/// Like libvirt, creates a VM's tap at each start with another name and the same MAC address. An address that the
/// kernel chose does not identify a VM.
fn tap_returns() -> Result<(), Failed> {
    let bench = bench()?;
    let stream = own("tap-returns");
    let space = &bench.path.hypervisor;
    let netns = space.netns().inode();
    let mut probe = Probe::attach(ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]))?;
    let mut indexes = Vec::new();
    for (name, address) in [("vnet7", true), ("random0", false), ("vnet8", true), ("random1", false)] {
        let file = space.inside(|| open(Path::new("/dev/net/tun"), name).map_err(|e| format!("{e:?}")))??;
        let address = if address { " address fe:54:00:00:00:09" } else { "" };
        space.ip(&format!("link set {name}{address} master {BRIDGE} up"))?;
        indexes.push(space.inside(|| nix::net::if_::if_nametoindex(name))??);
        pass(&bench, &mut probe, &stream, &file)?;
    }
    let mut points = at_taps(&mut probe, netns);
    points.retain(|(name, _)| name.starts_with("tx") || name.starts_with("vm-read"));
    points.sort();
    let at = |name: &str, index: usize| (name.to_owned(), indexes[index]);
    let expected = [
        at("tx@random0", 1),
        at("tx@random1", 3),
        at("tx@vnet7", 2),
        at("vm-read@random0", 1),
        at("vm-read@random1", 3),
        at("vm-read@vnet7", 2),
    ];
    equal("points", points, expected.to_vec())?;
    let notes = probe.notes();
    let note = "the tap vnet8 continues vnet7 (same MAC address fe:54:00:00:00:09)";
    let noted = notes.iter().filter(|text| text.contains(" MAC address")).count();
    equal(&format!("{notes:?}"), (noted, notes.iter().any(|text| text.starts_with(note))), (1, true))
}

fn macvtap_returns() -> Result<(), Failed> {
    let bench = bench()?;
    let stream = own("macvtap-returns");
    let space = bench.application();
    let mut probe = Probe::attach(ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]))?;
    for name in ["macvtap3", "macvtap4"] {
        space.ip(&format!(
            "link add link {APPLICATION} name {name} address 52:54:00:00:00:09 type macvtap mode bridge"
        ))?;
        space.ip(&format!("link set {name} allmulticast on up"))?;
        let file = open(&space.macvtap_node(name, bench.lab.folder())?, name)?;
        pass(&bench, &mut probe, &stream, &file)?;
        drop(file);
        space.ip(&format!("link delete {name}"))?;
    }
    let points = at_taps(&mut probe, space.netns().inode());
    let names = points.iter().map(|(name, _)| name.as_str());
    let read: Vec<_> = names.filter(|name| name.starts_with("vm-read")).collect();
    equal(&format!("{points:?}"), read, vec!["vm-read@macvtap3"])?;
    let notes = probe.notes();
    let note = "the tap macvtap4 continues macvtap3 (same MAC address 52:54:00:00:00:09)";
    equal(&format!("{notes:?}"), notes.iter().any(|text| text.starts_with(note)), true)
}
