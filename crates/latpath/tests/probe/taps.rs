//! Taps and macvtaps, with a thread of the test in QEMU's place: frames that it reads have left the host for a VM,
//! frames that it writes are the VM's.

use crate::*;
use latpath_lab::{Lab, Namespace, APPLICATION, BRIDGE, NIC};
use latpath_protocols::protocol::FrameLink;
use latpath_testkit::{bench, trial, Lack};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::stat::{makedev, mknod, Mode as Permissions, SFlag};
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

/// The probe's sightings of frames into the device and out of it.
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
    let node = node_of_macvtap(&bench, space)?;
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
    let node = node_of_macvtap(&bench, space)?;
    let file = open(&node, MACVTAP)?;
    let seen = both_ways(&bench, &file, [2, 0, 0, 0, 0, 9])?;
    expect_all(&seen, 0, &["host/tx@lp-pub", "host/nic-rx@nic0", "host/vm-read@macvtap0"])?;
    expect_all(&seen, 1, &["host/vm-write@macvtap0", "host/tx@nic0", "host/nic-rx@lp-pub"])?;
    expect_none(&seen, "app-read")
}

/// Creates a node of its character device: /dev may belong to another machine than this namespace.
fn node_of_macvtap(bench: &Bench, space: &Namespace) -> Result<std::path::PathBuf, Failed> {
    let number = std::process::Command::new("ip")
        .args(["netns", "exec", space.name(), "sh", "-c", &format!("cat /sys/class/net/{MACVTAP}/tap*/dev")])
        .output()?;
    let text = String::from_utf8_lossy(&number.stdout).trim().to_owned();
    let parts = text.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let (major, minor) = parts.ok_or_else(|| format!("{MACVTAP} has no device: {text:?}"))?;
    let node = bench.lab.folder().join(MACVTAP);
    mknod(&node, SFlag::S_IFCHR, Permissions::S_IRUSR | Permissions::S_IWUSR, makedev(major, minor))?;
    Ok(node)
}

fn tap() -> Result<(), Failed> {
    let bench = bench()?;
    let space = &bench.path.hypervisor;
    space.ip(&format!("tuntap add dev {TAP} mode tap"))?;
    space.ip(&format!("link set {TAP} master {BRIDGE} up"))?;
    let file = space.inside(|| open(Path::new("/dev/net/tun"), TAP).map_err(|e| format!("{e:?}")))??;
    let seen = both_ways(&bench, &file, GROUP)?;
    expect_all(&seen, 0, &["host/tx@lp-pub", "host/nic-rx@nic0", "host/tx@vnet0", "host/vm-read@vnet0"])?;
    expect_all(&seen, 1, &["host/vm-write@vnet0", "host/tx@nic0", "host/nic-rx@lp-pub"])?;
    expect_none(&seen, "app-read")?;
    expect_none(&seen, "nic-rx@vnet0")
}
