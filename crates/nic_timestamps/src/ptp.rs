//! Whether a PTP program uses a device.

use std::fs;

/// Ethertype of PTP (IEEE 1588, annex E).
const ETHERTYPE: u32 = 0x88f7;
/// UDP port of PTP's event messages, which are timestamped (annexes C and D).
const EVENT_PORT: u32 = 319;

/// Whether a program in this thread's network namespace receives PTP messages on the device with this index, as ptp4l
/// does: over Ethernet on this device, or over UDP on any device.
pub fn is_used_by_ptp(ifindex: u32) -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    has_packet_socket(&read("packet"), ifindex) || ["udp", "udp6"].iter().any(|name| has_event_socket(&read(name)))
}

/// Whether a table of packet sockets (/proc/net/packet) contains a PTP socket on the device.
fn has_packet_socket(table: &str, ifindex: u32) -> bool {
    table.lines().skip(1).any(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let protocol = columns.get(3).and_then(|text| u32::from_str_radix(text, 16).ok());
        let device = columns.get(4).and_then(|text| text.parse::<u32>().ok());
        protocol == Some(ETHERTYPE) && device.is_some_and(|device| device == 0 || device == ifindex)
    })
}

/// Whether a table of UDP sockets (/proc/net/udp) contains one bound to PTP's event port.
fn has_event_socket(table: &str) -> bool {
    table.lines().skip(1).any(|line| {
        let port = line.split_whitespace().nth(1).and_then(|local| local.rsplit(':').next());
        port.and_then(|port| u32::from_str_radix(port, 16).ok()) == Some(EVENT_PORT)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: &str = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n\
                          00000000f8f5fc8e 3      3    88f7   4     1 0      0      48131\n\
                          00000000f8f5fc8f 3      3    0003   2     1 0      0      48132\n";
    const UDP: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref\n \
                        1234: 00000000:013F 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2\n";

    #[test]
    fn ptp4l_is_found_by_its_sockets() {
        assert!(has_packet_socket(PACKET, 4) && !has_packet_socket(PACKET, 2) && !has_packet_socket("", 4));
        assert!(has_event_socket(UDP) && !has_event_socket(&UDP.replace("013F", "0140")));
    }

    #[test]
    fn a_device_without_such_a_program_is_free() {
        let lo = nix::net::if_::if_nametoindex("lo").unwrap();
        assert!(!is_used_by_ptp(lo));
        let Ok((device, socket)) = latpath_wire::Device::open("lo") else { return };
        socket.bind(device.index, ETHERTYPE as u16).unwrap();
        assert!(is_used_by_ptp(lo));
    }
}
