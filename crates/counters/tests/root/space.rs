//! Traffic, sockets and devices that cause packet loss in a namespace.

use latpath_counters::{Difference, Snapshot};
use latpath_linux::net::open_tun;
use latpath_testkit::{Failed, Space};
use nix::sys::socket::{
    recv, sendto, setsockopt, socket, sockopt, AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrLike,
};
use std::{
    fs::File,
    net::UdpSocket,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    process::Command,
};

/// The increments of the counters during `call`.
pub fn counted(space: &Space, call: impl FnOnce() -> Result<(), Failed>) -> Result<Difference, Failed> {
    let before = Snapshot::everywhere();
    call()?;
    let difference = Snapshot::everywhere().since(&before);
    if difference.namespaces.contains_key(&space.inode()) {
        return Ok(difference);
    }
    Err(format!("not read: {:?}", difference.unread).into())
}

/// EtherType of Sampled Values.
pub const SV: u16 = 0x88ba;

/// struct sockaddr_ll
fn address(protocol: u16, ifindex: u32) -> LinkAddr {
    let all = nix::libc::sockaddr_ll {
        sll_family: nix::libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: ifindex as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0; 8],
    };
    let length = size_of_val(&all) as u32;
    // SAFETY: `all` is a complete sockaddr_ll of the given length.
    unsafe { LinkAddr::from_raw((&raw const all).cast(), Some(length)) }.expect("it is a link address")
}

fn bind(fd: &OwnedFd, protocol: u16, ifindex: u32) {
    nix::sys::socket::bind(fd.as_raw_fd(), &address(protocol, ifindex)).expect("root may");
}

/// Sends `count` frames through a device of the calling thread's namespace; continues after drops.
pub fn send_frames(device: &str, count: u64) {
    send_frames_to([1, 0x0c, 0xcd, 4, 0, 1], device, count);
}

pub fn send_frames_to(destination: [u8; 6], device: &str, count: u64) {
    let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).expect("root may");
    let ifindex = nix::net::if_::if_nametoindex(device).expect("the device is there");
    let mut frame = [0; 120];
    frame[..6].copy_from_slice(&destination);
    frame[12..14].copy_from_slice(&SV.to_be_bytes());
    for _ in 0..count {
        // ENOBUFS reports a drop.
        let _ = sendto(fd.as_raw_fd(), &frame, &address(SV, ifindex), MsgFlags::empty());
    }
}

/// A tap that this process holds open, as QEMU does.
pub fn tap(space: &Space, name: &str) -> File {
    space.inside(|| open_tun(Path::new("/dev/net/tun"), name, nix::libc::IFF_TAP)).expect("root may")
}

/// Creates a veth pair. Frames sent on lpv0 arrive at lpv1 at once, in the sender's context.
pub fn pair(space: &Space) -> Result<(), Failed> {
    space.ip("link add lpv0 type veth peer name lpv1")?;
    space.ip("link set lpv0 up")?;
    space.ip("link set lpv1 up")?;
    Ok(())
}

/// A packet socket for a device's received frames, with a buffer for a few of them.
pub fn small_packet_socket(space: &Space, ifindex: u32) -> OwnedFd {
    space.inside(|| {
        let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).expect("root may");
        setsockopt(&fd, sockopt::RcvBuf, &4096).expect("a small buffer is allowed");
        bind(&fd, SV, ifindex);
        fd
    })
}

/// A UDP socket with a buffer for a few datagrams.
pub fn small_udp_socket(space: &Space, address: &str) -> OwnedFd {
    let socket = space.inside(|| UdpSocket::bind(address).expect("lo is up"));
    setsockopt(&socket, sockopt::RcvBuf, &4096).expect("a small buffer is allowed");
    socket.into()
}

/// Adds a queueing discipline that sends a frame every 12 s, queues ten, and drops further ones.
pub fn slow_qdisc(space: &Space, device: &str) -> Result<(), Failed> {
    let words = format!("-n {} qdisc add dev {device} root tbf rate 80bit burst 130 limit 1200", space.name());
    let output = Command::new("tc").args(words.split(' ')).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("tc: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// Reads all packets from the socket's buffer and returns their number.
pub fn waiting(fd: &OwnedFd) -> u64 {
    let mut buffer = [0; 2048];
    std::iter::from_fn(|| recv(fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT).ok()).count() as u64
}
