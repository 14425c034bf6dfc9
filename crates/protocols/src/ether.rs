//! Any ethertype: all frames with it are one stream.

use crate::protocol::{Contents, Info, KernelMatch, ProtocolBytes, Protocol};
use crate::options::{bad, number_u16, BadStream, Options};
use std::fmt;

/// The stream of all frames of an ethertype.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ether {
    /// The ethertype after any 802.1Q tag.
    pub ethertype: u16,
}

impl Protocol for Ether {
    const INFO: Info = Info {
        prefix: "ether",
        title: "any ethertype",
        form: "ether:0xTYPE",
        example: "ether:0x8892",
        about: &[["`ether:0x8892,hash=0:46`", "every frame of an ethertype", "hash of 46 bytes"]],
        options: &[],
        ethertypes: &[],
        udp_ports: &[],
        is_listed: false,
        contents: Contents::Nothing,
        key: None,
    };

    fn parse(name: &str, _: &mut Options<'_>) -> Result<Self, BadStream> {
        let ethertype = number_u16(name).filter(|t| *t >= 0x600 && name.starts_with("0x"));
        Ok(Self { ethertype: ethertype.ok_or_else(|| bad(name, "an ethertype is 0x0600 to 0xffff, written so"))? })
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.ethertype)
    }

    fn ethertypes(&self) -> Vec<u16> {
        vec![self.ethertype]
    }

    fn kernel(&self) -> KernelMatch {
        KernelMatch { name: None, protocol_bytes: ProtocolBytes::default().put(&self.ethertype.to_ne_bytes()) }
    }
}
