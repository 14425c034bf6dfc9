//! Supported link types, and the conversion of their packets to Ethernet frames.

/// A link type (pcap-linktype(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Ethernet,
    /// LINUX_SLL and LINUX_SLL2, written by `tcpdump -i any`.
    Cooked,
    Cooked2,
    /// Plain IP packets, e.g. of tunnels.
    Ip,
}

impl Link {
    /// The link type with this number; `None` if it carries no streams that latpath follows.
    pub fn of(number: u16) -> Option<Self> {
        match number {
            1 => Some(Self::Ethernet),
            113 => Some(Self::Cooked),
            276 => Some(Self::Cooked2),
            12 | 14 | 101 | 228 | 229 => Some(Self::Ip),
            _ => None,
        }
    }

    /// Converts the captured bytes of a packet of `len` bytes to an Ethernet frame; returns the frame and its length on
    /// the wire. Fields that the link type lacks are zero: the destination MAC of a cooked frame, both MACs of an IP
    /// packet.
    pub fn frame(self, bytes: Vec<u8>, len: usize) -> (Vec<u8>, usize) {
        let (header, address, ethertype) = match self {
            Self::Ethernet => return (bytes, len),
            Self::Cooked => (16, 6..12, 14..16),
            Self::Cooked2 => (20, 12..18, 0..2),
            Self::Ip => {
                let ethertype = if bytes.first().is_some_and(|b| b >> 4 == 6) { [0x86, 0xdd] } else { [0x08, 0x00] };
                return ([&[0; 12], &ethertype[..], &bytes].concat(), len.saturating_add(14));
            }
        };
        if bytes.len() < header {
            return (bytes, len);
        }
        let frame = [&[0; 6], &bytes[address], &bytes[ethertype], &bytes[header..]].concat();
        (frame, (len.saturating_sub(header)).saturating_add(14))
    }
}
