//! The virtual functions of a NIC (SR-IOV), as the NIC's driver reports them: settings and counters.

use crate::{
    interface::{GET_LINK, NEW_LINK},
    netlink::{attributes, find_attribute, number, text, u32_at, u64_at, Socket},
    Netns, Result,
};
use nix::sys::socket::SockProtocol;

const WHAT: &str = "list a NIC's virtual functions (rtnetlink)";
/// include/uapi/linux/if_link.h, rtnetlink.h
const INFO_MESSAGE: usize = 16;
const NAME: u16 = 3;
const FUNCTIONS: u16 = 22;
const FUNCTION: u16 = 1;
const EXTENSIONS: u16 = 29;
const WITH_FUNCTIONS: u32 = 1;
const MAC: u16 = 1;
const VLAN: u16 = 2;
const SPOOF_CHECK: u16 = 4;
const LINK_STATE: u16 = 5;
const RATE: u16 = 6;
const STATISTICS: u16 = 8;
const TRUST: u16 = 9;

/// A virtual function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtualFunction {
    /// Its index, from 0.
    pub number: u32,
    /// The MAC address that the NIC's driver set; all zero if the guest chooses it.
    pub address: [u8; 6],
    /// The VLAN whose tag the NIC adds and removes; 0 for none.
    pub vlan: u32,
    /// Whether the NIC drops the guest's frames that have another source address than `address`; `None` if the driver
    /// does not report it.
    pub spoof_check: Option<bool>,
    /// Whether the guest may change the MAC address and receive all frames; `None` if the driver does not report it.
    pub trusted: Option<bool>,
    /// State of its link.
    pub link: FunctionLink,
    /// Maximum rate, Mbit/s; 0 for no limit.
    pub max_rate: u32,
    /// Its counters; `None` if the driver does not count.
    pub counters: Option<FunctionCounters>,
}

/// State of a virtual function's link (`IFLA_VF_LINK_STATE_…`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FunctionLink {
    /// The link state of the NIC.
    #[default]
    Auto,
    /// Always up.
    Up,
    /// Always down.
    Down,
}

/// A virtual function's counters since its creation, packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionCounters {
    /// Received by the guest.
    pub rx_packets: u64,
    /// Sent by the guest.
    pub tx_packets: u64,
    /// Dropped on the way to the guest.
    pub rx_dropped: u64,
    /// Dropped on the way from the guest.
    pub tx_dropped: u64,
}

/// The virtual functions of a device in a namespace.
///
/// # Errors
/// If the device does not exist.
pub fn virtual_functions(netns: &Netns, device: &str) -> Result<Vec<VirtualFunction>> {
    let socket = Socket::open(netns, SockProtocol::NetlinkRoute, WHAT)?;
    let payload = [vec![0; INFO_MESSAGE], number(EXTENSIONS, WITH_FUNCTIONS), text(NAME, device)].concat();
    let answer = socket.get(GET_LINK, &payload)?;
    Ok(if answer.kind == NEW_LINK { functions(&answer.payload) } else { Vec::new() })
}

/// Parses an RTM_NEWLINK.
fn functions(payload: &[u8]) -> Vec<VirtualFunction> {
    let list = payload.get(INFO_MESSAGE..).and_then(|all| find_attribute(all, FUNCTIONS)).unwrap_or_default();
    attributes(list).filter(|(kind, _)| *kind == FUNCTION).filter_map(|(_, value)| function(value)).collect()
}

/// Parses one virtual function. Most of its attributes begin with its index.
fn function(bytes: &[u8]) -> Option<VirtualFunction> {
    let mac = find_attribute(bytes, MAC)?;
    let mut found =
        VirtualFunction { number: u32_at(mac, 0)?, address: mac.get(4..10)?.try_into().ok()?, ..Default::default() };
    for (kind, value) in attributes(bytes) {
        let setting = u32_at(value, 4);
        // The kernel writes -1 if the driver does not report a value.
        let switch = || setting.filter(|on| *on <= 1).map(|on| on == 1);
        match kind {
            VLAN => found.vlan = setting.unwrap_or(0),
            SPOOF_CHECK => found.spoof_check = switch(),
            TRUST => found.trusted = switch(),
            LINK_STATE => {
                found.link = match setting {
                    Some(1) => FunctionLink::Up,
                    Some(2) => FunctionLink::Down,
                    _ => FunctionLink::Auto,
                }
            }
            RATE => found.max_rate = u32_at(value, 8).unwrap_or(0),
            STATISTICS => {
                let count = |kind| find_attribute(value, kind).and_then(|value| u64_at(value, 0)).unwrap_or(0);
                found.counters = Some(FunctionCounters {
                    rx_packets: count(0),
                    tx_packets: count(1),
                    rx_dropped: count(7),
                    tx_dropped: count(8),
                });
            }
            _ => {}
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{attribute, nested};
    use proptest::prelude::*;

    fn words(kind: u16, words: &[u32]) -> Vec<u8> {
        attribute(kind, &words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>())
    }

    fn message(list: &[Vec<u8>]) -> Vec<u8> {
        [vec![0; INFO_MESSAGE], nested(FUNCTIONS, list)].concat()
    }

    #[test]
    fn functions_are_read_with_settings_and_counters() {
        let mac = |number: u32| {
            let mut bytes = number.to_ne_bytes().to_vec();
            bytes.extend([0x52, 0x54, 0, 1, 2, number as u8]);
            bytes.resize(36, 0);
            attribute(MAC, &bytes)
        };
        let count = |kind: u16, value: u64| attribute(kind, &value.to_ne_bytes());
        let counters = nested(STATISTICS, &[count(0, 7), count(1, 8), count(7, 9), count(8, 10)]);
        let settings = [
            mac(1),
            words(VLAN, &[1, 5, 0]),
            words(SPOOF_CHECK, &[1, 0]),
            words(TRUST, &[1, u32::MAX]),
            words(LINK_STATE, &[1, 2]),
            words(RATE, &[1, 10, 1000]),
            counters,
        ];
        let list = [nested(FUNCTION, &[mac(0)]), nested(FUNCTION, &settings)];
        let read = functions(&message(&list));
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].number, read[0].counters, read[0].link), (0, None, FunctionLink::Auto));
        let expected = VirtualFunction {
            number: 1,
            address: [0x52, 0x54, 0, 1, 2, 1],
            vlan: 5,
            spoof_check: Some(false),
            trusted: None,
            link: FunctionLink::Down,
            max_rate: 1000,
            counters: Some(FunctionCounters { rx_packets: 7, tx_packets: 8, rx_dropped: 9, tx_dropped: 10 }),
        };
        assert_eq!(read[1], expected);
    }

    #[test]
    fn a_device_without_virtual_functions_has_none() {
        assert_eq!(virtual_functions(&Netns::own().unwrap(), "lo").unwrap(), []);
        assert!(virtual_functions(&Netns::own().unwrap(), "no-such").is_err());
    }

    proptest! {
        #[test]
        fn damaged_answers_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = (functions(&bytes), function(&bytes));
        }
    }
}
