//! IP packets: on devices without an Ethernet header, and in fragments.

use crate::*;
use latpath_probe::RemarkKind;
use latpath_testkit::{bench, equal, trial, Lack};
use std::fs::File;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::path::Path;

pub fn trials(needs: &[Lack]) -> Vec<latpath_testkit::Trial> {
    vec![
        trial("udp_over_devices_without_an_ethernet_header_is_followed", needs, without_link),
        trial("packets_in_fragments_are_followed_and_reported", needs, fragments),
    ]
}

const PACKETS: u32 = 50;
const PORT: u16 = 5000;

/// Opens a tun device with the addresses of one end of the tunnel.
fn open_tun(space: &Namespace, name: &str, end: u8) -> Result<File, Failed> {
    let file = space.inside(|| latpath_linux::net::open_tun(Path::new("/dev/net/tun"), name, libc::IFF_TUN))??;
    space.ip(&format!("addr add 10.77.0.{end}/24 dev {name}"))?;
    space.inside(|| fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "0"))??;
    space.ip(&format!("addr add fd77::{end}/64 dev {name} nodad"))?;
    space.ip(&format!("link set {name} up"))?;
    Ok(file)
}

/// Sends numbered packets of this many bytes.
fn send_udp(space: &Namespace, from: &str, to: &str, bytes: usize) -> Result<(), Failed> {
    space.inside(|| -> std::io::Result<()> {
        let socket = UdpSocket::bind((from, 4000))?;
        for n in 0..PACKETS {
            let mut payload = vec![0; bytes];
            payload[..4].copy_from_slice(&n.to_be_bytes());
            socket.send_to(&payload, (to, PORT))?;
        }
        Ok(())
    })??;
    Ok(())
}

fn without_link() -> Result<(), Failed> {
    let bench = bench()?;
    let (near, far) = (&bench.path.publisher, bench.application());
    let (mut here, mut there) = (open_tun(near, "tun0", 1)?, open_tun(far, "tun1", 2)?);
    let both = streams(&["udp:10.77.0.2:5000,seq=0:4", "udp:[fd77::1]:4000>[fd77::2]:5000,seq=0:4"]);
    let probe = Probe::attach(ProbeOptions::new("host", both))?;
    // Counts only UDP packets: others are the kernel's own, such as neighbour and router discovery.
    let carry = |count: u32| -> std::io::Result<()> {
        let (mut packet, mut carried) = ([0; 2048], 0);
        while carried < count {
            let len = here.read(&mut packet)?;
            let next = if packet[0] >> 4 == 4 { packet[9] } else { packet[6] };
            carried += u32::from(next == 17);
            there.write_all(&packet[..len])?;
        }
        Ok(())
    };
    send_udp(near, "10.77.0.1", "10.77.0.2", 100)?;
    send_udp(near, "fd77::1", "fd77::2", 100)?;
    std::thread::scope(|scope| {
        let vpn = std::thread::Builder::new().name("vpn".into());
        vpn.spawn_scoped(scope, move || {
            let mut carry = carry;
            carry(2 * PACKETS)
        })?
        .join()
        .expect("no panic")
    })?;
    let all = 2 * PACKETS as usize;
    let seen = seen(&bench, probe, |seen| seen.at("host/nic-rx@tun1").len() >= all)?;
    let want: Vec<(u16, u32)> = [0, 1].into_iter().flat_map(|stream| (0..PACKETS).map(move |n| (stream, n))).collect();
    for point in ["host/tx@tun0", "host/nic-rx@tun1"] {
        equal(point, seen.at(point), want.clone())?;
    }
    // A VPN's process is not a VM.
    let others: Vec<String> = seen.keys().into_keys().filter(|p| p.contains("/vm-") || p.contains("@vpn")).collect();
    equal("other points", others, vec![])?;
    equal("malformed", seen.counters.malformed, 0)
}

fn fragments() -> Result<(), Failed> {
    let bench = bench()?;
    let (near, far) = (&bench.path.publisher, bench.application());
    for (space, device, end) in [(near, "lp-pub", 1), (far, "lp-app", 2)] {
        space.ip(&format!("addr add 10.78.0.{end}/24 dev {device}"))?;
    }
    // With a static neighbour entry, no packet waits for address resolution.
    let link = far.ip("-br link show lp-app")?;
    let mac = String::from_utf8_lossy(&link).split_whitespace().nth(2).map(str::to_owned).ok_or("no MAC")?;
    near.ip(&format!("neigh replace 10.78.0.2 lladdr {mac} dev lp-pub nud permanent"))?;
    let stream = "udp:10.78.0.1:4000>10.78.0.2:5000,seq=0:4";
    let mut probe = Probe::attach(ProbeOptions::new("host", streams(&[stream])))?;
    send_udp(near, "10.78.0.1", "10.78.0.2", 3000)?;
    let mut sightings = Vec::new();
    until("fragments are remarked", || {
        probe.drain(&mut sightings);
        let is_all = sightings.len() >= LINE.len() * PACKETS as usize;
        let counts = probe.remarks().iter().filter(|r| r.what == RemarkKind::Fragments && r.device == "lp-pub");
        counts.map(|r| r.count).max() == Some(u64::from(PACKETS)) && is_all
    })?;
    let note = probe.notes().into_iter().find(|note| note.contains("in fragments")).ok_or("no note")?;
    equal(&note, note.starts_with(&format!("{stream}: {PACKETS} of its packets")), true)?;
    let seen = Seen { sightings, points: probe.points(), counters: probe.counters() };
    let want: Vec<(u16, u32)> = (0..PACKETS).map(|n| (0, n)).collect();
    LINE.iter().try_for_each(|point| equal("the first fragments", seen.at(point), want.clone()))
}
