//! An application's read from a UDP socket is seen exactly once, however the kernel copies the datagram: in one piece,
//! from page fragments, with checksum verification during the copy, reassembled from IP fragments, and after a peek.

use crate::{stage::Stage, Outcome, Scale, Test};
use anyhow::{ensure, Context, Result};
use latpath_lab::{Switch, BRIDGE, PUBLISHER};
use nix::sys::socket::{recv, send, MsgFlags};
use std::{net::UdpSocket, ops::Range, os::fd::AsRawFd, process::Command, thread, time::Duration};

pub const TEST: Test = Test { name: "udp_read", smoke: false, only_whole: true, seconds: 150, run };

const TO: &str = "192.0.2.2:5000";
const READER: &str = "udp-reader";

/// How a datagram is sent or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// In one piece.
    Short,
    /// In IP fragments.
    Fragmented,
    /// Sent as two pieces, the second in a page of its own.
    Paged,
    /// Peeked before it is read.
    Peeked,
}

const KINDS: [Kind; 4] = [Kind::Short, Kind::Fragmented, Kind::Paged, Kind::Peeked];

fn run(scale: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.path().publisher.ip(&format!("addr add 192.0.2.1/24 dev {PUBLISHER}"))?;
    stage.path().hypervisor.ip(&format!("addr add 192.0.2.2/24 dev {BRIDGE}"))?;
    let each = scale.frames(200, 1_000) as u32;
    for checksums in ["on", "off"] {
        // Checksum offload is off, so the receiver verifies checksums while it copies.
        let mut ethtool = Command::new("ethtool");
        ethtool.args(["-K", PUBLISHER, "tx", checksums]);
        let set = stage.start_command(&stage.path().publisher, ethtool)?.finish(Duration::from_secs(10));
        let set = set.map_err(|e| anyhow::anyhow!("ethtool: {e:?}"))?;
        ensure!(set.code == Some(0), "ethtool: {}", set.stderr);
        let recording = stage.record_spec(&format!("udp:{TO},seq=0:4"), Duration::from_secs(3), "")?;
        let socket = stage.path().hypervisor.inside(|| UdpSocket::bind(TO))??;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        let reader = thread::Builder::new().name(READER.into()).spawn(move || {
            for kind in KINDS {
                read(&socket, each, kind).with_context(|| format!("{kind:?}"))?;
            }
            anyhow::Ok(())
        })?;
        let sender = stage.path().publisher.inside(|| UdpSocket::bind("192.0.2.1:7000"))??;
        sender.connect(TO)?;
        for (nth, kind) in (0..).zip(KINDS) {
            send_all(&sender, nth * each..(nth + 1) * each, kind)?;
        }
        reader.join().ok().context("the reader panicked")??;
        stage.wait_for_quiet()?;
        let report = recording.end(&stage)?;

        let duplicates = report.figures().duplicates;
        eprintln!("checksums {checksums}: {duplicates} seen twice; {}", report.in_short());
        report.expect_all_complete(u64::from(each) * KINDS.len() as u64)?;
        ensure!(duplicates == 0, "{duplicates} were seen twice");
        report.expect_route(&["host/tx@lp-pub", "host/nic-rx@nic0", "host/app-read@udp-reader"])?;
        report.expect_segments_to_add_up()?;
        report.expect_no_sighting_lost()?;
    }
    Ok(())
}

fn send_all(socket: &UdpSocket, numbers: Range<u32>, kind: Kind) -> Result<()> {
    let fd = socket.as_raw_fd();
    let len = if kind == Kind::Fragmented { 4000 } else { 1000 };
    for n in numbers {
        let mut datagram = vec![7; len];
        datagram[..4].copy_from_slice(&n.to_be_bytes());
        let (first, rest) = datagram.split_at(if kind == Kind::Paged { 100 } else { 0 });
        if !first.is_empty() {
            send(fd, first, MsgFlags::from_bits_retain(libc::MSG_MORE))?;
        }
        send(fd, rest, MsgFlags::empty())?;
        latpath_testkit::waits::pace(Duration::from_millis(2));
    }
    Ok(())
}

fn read(socket: &UdpSocket, count: u32, kind: Kind) -> Result<()> {
    let mut datagram = [0; 5000];
    for n in 0..count {
        if kind == Kind::Peeked {
            recv(socket.as_raw_fd(), &mut datagram, MsgFlags::MSG_PEEK)?;
        }
        socket.recv(&mut datagram).with_context(|| format!("after {n} datagrams"))?;
    }
    Ok(())
}
