//! Raw frames, sent and captured without a transport.

use latpath_testkit::Failed;
use nix::libc;
use nix::sched::{sched_setaffinity, CpuSet};
use nix::sys::socket::{
    bind, recv, sendto, setsockopt, socket, sockopt, AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol,
    SockType, SockaddrLike,
};
use nix::sys::time::TimeVal;
use nix::unistd::Pid;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// Encodes struct sockaddr_ll.
fn address(protocol: u16, device: &str) -> LinkAddr {
    let all = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: nix::net::if_::if_nametoindex(device).expect("the device is there") as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0; 8],
    };
    // SAFETY: `all` is a complete sockaddr_ll of the given length.
    unsafe { LinkAddr::from_raw((&raw const all).cast(), Some(size_of_val(&all) as u32)) }.expect("it is one")
}

fn open(protocol: Option<SockProtocol>) -> OwnedFd {
    socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).expect("root may")
}

/// Sends a frame through a device in the calling thread's namespace.
pub fn send_frame(device: &str, frame: &[u8]) {
    let sent = sendto(open(None).as_raw_fd(), frame, &address(0, device), MsgFlags::empty());
    assert_eq!(sent, Ok(frame.len()));
}

/// Opens a socket that receives all frames that arrive at a device from now on.
pub fn hear_all(device: &str) -> OwnedFd {
    let fd = open(None);
    setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(60, 0)).expect("a time-out is allowed");
    bind(fd.as_raw_fd(), &address(libc::ETH_P_ALL as u16, device)).expect("root may");
    fd
}

/// Whether any frame has arrived.
pub fn has_frame(wire: &OwnedFd) -> bool {
    recv(wire.as_raw_fd(), &mut [0; 2048], MsgFlags::MSG_DONTWAIT).is_ok()
}

/// Writes this number of received frames to a pcap file.
pub fn capture(wire: &OwnedFd, count: usize, file: &Path) -> Result<(), Failed> {
    // Magic, version 2.4, no time zone, no accuracy, maximum length of a packet, Ethernet.
    let mut bytes: Vec<u8> =
        [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1].iter().flat_map(|w| w.to_le_bytes()).collect();
    for _ in 0..count {
        let mut frame = [0; 2048];
        let len = recv(wire.as_raw_fd(), &mut frame, MsgFlags::empty())?;
        bytes.extend([0, 0, len as u32, len as u32].iter().flat_map(|w| w.to_le_bytes()));
        bytes.extend(&frame[..len]);
    }
    Ok(std::fs::write(file, bytes)?)
}

/// Receives the next frame with this ethertype.
pub fn receive_of(wire: &OwnedFd, ethertype: &[u8]) -> Result<Vec<u8>, Failed> {
    let mut frame = [0; 2048];
    loop {
        let len = recv(wire.as_raw_fd(), &mut frame, MsgFlags::empty())?;
        if frame[12..14] == *ethertype {
            return Ok(frame[..len].to_vec());
        }
    }
}

/// Pins the calling thread to one of its CPUs, by index, which determines the queue that its frames use.
pub fn on_cpu(number: usize) {
    let mut set = CpuSet::new();
    let count = std::thread::available_parallelism().map_or(1, |n| n.get());
    set.set(number % count).expect("there are fewer CPUs than a set has room for");
    // If the machine does not permit this, frames use another queue.
    let _ = sched_setaffinity(Pid::from_raw(0), &set);
}

/// Undoes the pinning of the calling thread.
pub fn on_any_cpu() {
    let mut set = CpuSet::new();
    (0..CpuSet::count()).for_each(|cpu| set.set(cpu).expect("it is within the set"));
    let _ = sched_setaffinity(Pid::from_raw(0), &set);
}
