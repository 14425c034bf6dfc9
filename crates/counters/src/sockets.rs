//! Drops of a namespace's sockets: the sum over all UDP sockets, and those of each packet socket (AF_PACKET).

use latpath_linux::would_load_module;
use latpath_net::{
    netlink::{attributes, u16_at, u32_at, Socket},
    Netns, Result,
};
use nix::sys::socket::SockProtocol;
use serde::{Deserialize, Serialize};
use std::fs;

const WHAT: &str = "list packet sockets (sock_diag)";
/// include/uapi/linux/sock_diag.h, packet_diag.h
const BY_FAMILY: u16 = 20;
const AF_PACKET: u8 = 17;
const SHOW_INFO_AND_MEMORY: u32 = 0x1 | 0x10;
const MESSAGE: usize = 16;
const INFO: u16 = 0;
const MEMORY: u16 = 6;
/// SK_MEMINFO_DROPS
const DROPS: usize = 8;

/// Drops since the creation of the namespace or, for a packet socket, of the socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sockets {
    /// Number of datagrams dropped because a UDP socket's buffer was full (RcvbufErrors, IPv4 and IPv6).
    pub udp_buffer_full: u64,
    /// Number of datagrams for a port without a listener (NoPorts).
    pub udp_no_listener: u64,
    /// Number of datagrams with a wrong checksum (InCsumErrors).
    pub udp_checksum: u64,
    /// The packet sockets; `None` if the kernel does not report them, because its module packet_diag is missing or not
    /// loaded (latpath loads no module).
    pub packet: Option<Vec<PacketSocket>>,
}

/// A packet socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketSocket {
    /// The socket's inode number: `socket:[N]` in `/proc/PID/fd`.
    pub inode: u32,
    /// EtherType that the socket receives; 3 (ETH_P_ALL) for all.
    pub protocol: u16,
    /// Index of the device to which the socket is bound; 0 if it receives from all devices.
    pub ifindex: u32,
    /// Number of packets dropped because the socket's buffer was full. Mapped rings (PACKET_RX_RING) have a separate
    /// counter that only their owner can read (PACKET_STATISTICS).
    pub dropped: u32,
}

/// Reads the drops of a namespace's sockets.
///
/// # Errors
/// If the namespace cannot be entered, or the kernel does not list its sockets.
pub fn sockets(netns: &Netns) -> Result<Sockets> {
    let [v4, v6] =
        netns.inside(|| ["snmp", "snmp6"].map(|f| fs::read_to_string(format!("/proc/thread-self/net/{f}"))))?;
    let (v4, v6) = (v4.unwrap_or_default(), v6.unwrap_or_default());
    let sum = |name: &str| column(&v4, "Udp", name) + line(&v6, &format!("Udp6{name}"));
    Ok(Sockets {
        udp_buffer_full: sum("RcvbufErrors"),
        udp_no_listener: sum("NoPorts"),
        udp_checksum: sum("InCsumErrors"),
        packet: if would_load_module("packet_diag") { None } else { packet_sockets(netns).ok() },
    })
}

fn packet_sockets(netns: &Netns) -> Result<Vec<PacketSocket>> {
    let socket = Socket::open(netns, SockProtocol::NetlinkSockDiag, WHAT)?;
    // struct packet_diag_req
    let mut question = vec![AF_PACKET, 0, 0, 0];
    for word in [0, SHOW_INFO_AND_MEMORY, 0, 0] {
        question.extend(u32::to_ne_bytes(word));
    }
    let answer = socket.list(BY_FAMILY, &question)?;
    Ok(answer.iter().filter(|m| m.kind == BY_FAMILY).filter_map(|m| packet_socket(&m.payload)).collect())
}

/// Parses struct packet_diag_msg and its attributes.
fn packet_socket(payload: &[u8]) -> Option<PacketSocket> {
    let mut found = PacketSocket { inode: u32_at(payload, 4)?, protocol: u16_at(payload, 2)?, ifindex: 0, dropped: 0 };
    for (kind, value) in attributes(payload.get(MESSAGE..)?) {
        match kind {
            INFO => found.ifindex = u32_at(value, 0)?,
            MEMORY => found.dropped = u32_at(value, 4 * DROPS).unwrap_or(0),
            _ => {}
        }
    }
    Some(found)
}

/// Reads a counter from `/proc/net/snmp`: a line of names, then a line of values.
fn column(text: &str, group: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(": "));
    let (Some(names), Some(numbers)) = (lines.next(), lines.next()) else { return 0 };
    let found = names.split(' ').zip(numbers.split(' ')).find(|(n, _)| *n == name);
    found.and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
}

/// Reads a counter from `/proc/net/snmp6`: a name and a value per line.
fn line(text: &str, name: &str) -> u64 {
    let mut words = text.lines().map(str::split_ascii_whitespace);
    let found = words.find_map(|mut line| (line.next() == Some(name)).then(|| line.next())?);
    found.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_net::netlink::attribute;

    #[test]
    fn counters_of_udp_are_read_by_their_names() {
        let text =
            "Tcp: A B\nTcp: 1 2\nUdp: InDatagrams NoPorts RcvbufErrors\nUdp: 10 20 30\nUdpLite: NoPorts\nUdpLite: 9\n";
        assert_eq!((column(text, "Udp", "NoPorts"), column(text, "Udp", "RcvbufErrors")), (20, 30));
        assert_eq!((column(text, "Udp", "InCsumErrors"), column("", "Udp", "NoPorts")), (0, 0));
        assert_eq!(line("Ip6InReceives  3\nUdp6RcvbufErrors \t 7\n", "Udp6RcvbufErrors"), 7);
    }

    #[test]
    fn a_packet_socket_is_read_from_its_message() {
        let mut bytes = vec![AF_PACKET, 3];
        bytes.extend(0x88bau16.to_ne_bytes());
        bytes.extend(4711u32.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes
            .extend(attribute(INFO, &[5u32, 0, 0, 0, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<_>>()));
        bytes.extend(attribute(MEMORY, &(0u32..9).flat_map(u32::to_ne_bytes).collect::<Vec<_>>()));
        let requested = PacketSocket { inode: 4711, protocol: 0x88ba, ifindex: 5, dropped: 8 };
        assert_eq!(packet_socket(&bytes), Some(requested));
        assert_eq!(packet_socket(&bytes[..7]), None);
    }
}
