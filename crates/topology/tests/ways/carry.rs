//! Sends a stream from the wire to a reader on the tap, which acts as the guest, and back.

use crate::machine::{node, Machine};
use latpath_linux::net::{open_tun, PacketSocket};
use latpath_net::Netns;
use latpath_testkit::{waits, Failed};
use latpath_topology::{Topology, Way};
use nix::{
    poll::{poll, PollFd, PollFlags},
    sys::socket::{recv, send, MsgFlags},
};
use std::{
    fs::File,
    io::{Read, Write},
    os::fd::{AsFd, AsRawFd},
    path::Path,
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Frames in the stream: half a second at the rate of Sampled Values at 50 Hz.
const FRAMES: u64 = 2000;
/// Interval between frames: 4,000 per second.
const PACE: Duration = Duration::from_micros(250);
/// Maximum number of frames in flight, so that they fit into the queue of a delayed reader (a macvtap's queue holds
/// 500).
const ON_THEIR_WAY: u64 = 200;
/// Time after which frames that have not come back count as lost.
const QUIET: Duration = Duration::from_secs(2);
/// include/uapi/linux/if_tun.h
const TUNSETSNDBUF: libc::c_ulong = 0x4004_54d4;
/// An ethertype for local experiments.
const ETHERTYPE: u16 = 0x88b5;
/// Offset of the frame's number: after the addresses and the ethertype.
const NUMBER: usize = 14;
const GUEST: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
const GROUP: [u8; 6] = [0x01, 0x0c, 0xcd, 0x04, 0, 1];
const WIRE: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A reader on the guest's tap that sends each frame of the stream back.
pub struct Tap {
    stop: Arc<AtomicBool>,
    reader: JoinHandle<Result<u64, String>>,
}

impl Tap {
    pub fn open(machine: &Machine, topology: &Topology) -> Result<Self, Failed> {
        let netns = Netns::named(topology.namespace.as_deref().ok_or("a namespace")?)?;
        let file = match topology.way {
            Way::Macvtap => {
                let index = latpath_net::Rtnetlink::open(&netns)?.device("tap0")?.ifindex;
                let made = node(topology, index);
                if made.exists() {
                    made
                } else {
                    format!("/dev/tap{index}").into()
                }
            }
            _ => Path::new("/dev/net/tun").to_owned(),
        };
        let tap = netns.inside(|| open_tun(&file, "tap0", libc::IFF_TAP))??;
        as_qemu_has_it(&tap)?;
        // Until the kernel has noticed that the tap is open, a bridge does not forward to its port.
        let host = topology.namespace.as_deref().ok_or("a namespace")?;
        waits::until("the tap is up", || {
            let shown = machine.ip(&format!("-n {host} -j link show tap0")).unwrap_or_default();
            ["UP", "UNKNOWN"].iter().any(|state| shown.contains(&format!("\"operstate\":\"{state}\"")))
        })?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let reader = std::thread::Builder::new().name("guest".into()).spawn(move || echo(tap, &stopped))?;
        Ok(Self { stop, reader })
    }

    /// Stops the reader; returns how many frames of the stream it read.
    pub fn end(self) -> Result<u64, Failed> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(self.reader.join().map_err(|_| "the reader panicked")??)
    }
}

/// Makes a tap's descriptor non-blocking and removes its send buffer limit, as QEMU does. Otherwise the kernel
/// allocates an skb for a written frame before the tap driver runs an XDP program (tun_can_build_skb).
fn as_qemu_has_it(tap: &File) -> std::io::Result<()> {
    let limit: libc::c_int = libc::c_int::MAX;
    // SAFETY: the request reads an integer, which outlives the call.
    latpath_linux::net::check(unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETSNDBUF as _, &limit) })?;
    // SAFETY: integers only.
    latpath_linux::net::check(unsafe { libc::fcntl(tap.as_raw_fd(), libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK) })?;
    Ok(())
}

fn echo(mut tap: File, stop: &AtomicBool) -> Result<u64, String> {
    let (mut frame, mut count) = ([0u8; 2048], 0);
    while !stop.load(Ordering::Relaxed) {
        let ready = poll(&mut [PollFd::new(tap.as_fd(), PollFlags::POLLIN)], 100u16);
        if ready != Ok(1) {
            continue;
        }
        let len = tap.read(&mut frame).map_err(|e| e.to_string())?;
        if len < NUMBER + 8 || frame[12..14] != ETHERTYPE.to_be_bytes() {
            continue;
        }
        count += 1;
        frame[..6].copy_from_slice(&WIRE);
        frame[6..12].copy_from_slice(&GUEST);
        tap.write_all(&frame[..len]).map_err(|e| e.to_string())?;
    }
    Ok(count)
}

/// Number of frames sent to the wire and received from it.
pub struct Sent {
    pub sent: u64,
    pub received: u64,
}

/// Sends the stream from the cable's other end, with this VLAN's tag, and waits for its return.
pub fn stream(machine: &Machine, topology: &Topology, vlan: Option<u16>) -> Result<Sent, Failed> {
    let _ = machine;
    let cable = topology.uplink.cable.as_ref().ok_or("a cable")?;
    let netns = Netns::named(&cable.namespace)?;
    let index = latpath_net::Rtnetlink::open(&netns)?.device(&cable.device)?.ifindex;
    let socket = netns.inside(|| -> std::io::Result<PacketSocket> {
        let socket = PacketSocket::open(libc::SOCK_NONBLOCK)?;
        latpath_linux::net::set_buffers(socket.as_fd(), 8 << 20)?;
        socket.bind(index, libc::ETH_P_ALL as u16)?;
        Ok(socket)
    })??;
    let guest = topology.guests[0].mac();
    let mut frame = [guest.as_slice(), &WIRE].concat();
    frame.extend(vlan.iter().flat_map(|id| [[0x81, 0x00], id.to_be_bytes()].concat()));
    frame.extend(ETHERTYPE.to_be_bytes());
    let number = frame.len();
    frame.resize(number + 100, 0);
    let (begin, mut lost, mut seen) = (Instant::now(), 0, std::collections::BTreeSet::new());
    for n in 0..FRAMES {
        // Alternates between unicast and multicast, which Sampled Values and GOOSE use.
        frame[..6].copy_from_slice(if n % 2 == 0 { &guest } else { &GROUP });
        frame[number..number + 8].copy_from_slice(&n.to_be_bytes());
        send(socket.as_fd().as_raw_fd(), &frame, MsgFlags::empty())?;
        collect(&socket, vlan, &mut seen);
        waits::pace((PACE * u32::try_from(n + 1)?).saturating_sub(begin.elapsed()));
        while (n + 1).saturating_sub(seen.len() as u64 + lost) >= ON_THEIR_WAY {
            let before = seen.len();
            waits::pace(QUIET);
            collect(&socket, vlan, &mut seen);
            // Frames that do not return within this time are lost, and missing from the result.
            lost += if seen.len() == before { ON_THEIR_WAY } else { 0 };
        }
    }
    // Lost frames are missing from the count.
    let mut quiet = 0;
    let mut last = 0;
    waits::until("the stream has come back, or nothing more comes", || {
        collect(&socket, vlan, &mut seen);
        quiet = if seen.len() == last { quiet + 1 } else { 0 };
        last = seen.len();
        seen.len() as u64 == FRAMES || quiet > 100
    })?;
    Ok(Sent { sent: FRAMES, received: seen.len() as u64 })
}

/// Collects the numbers of returned frames. If the kernel has stripped the tag, the frame no longer contains it.
fn collect(socket: &PacketSocket, vlan: Option<u16>, seen: &mut std::collections::BTreeSet<u64>) {
    let mut frame = [0u8; 2048];
    while let Ok(len) = recv(socket.as_fd().as_raw_fd(), &mut frame, MsgFlags::MSG_DONTWAIT) {
        let frame = &frame[..len];
        let tag: &[u8] = &vlan.map(|id| [[0x81, 0x00], id.to_be_bytes()].concat()).unwrap_or_default();
        let Some(rest) = frame.strip_prefix(&[&WIRE[..], &GUEST].concat()[..]) else { continue };
        let rest = rest.strip_prefix(tag).unwrap_or(rest);
        let Some(body) = rest.strip_prefix(&ETHERTYPE.to_be_bytes()) else { continue };
        seen.extend(body.first_chunk().map(|number| u64::from_be_bytes(*number)));
    }
}
