//! The NAPI instances that poll a device's queues, listed through generic netlink (family `netdev`, Linux 6.8 and
//! later).

use crate::{
    generic::{list_of_family, GENERIC_HEADER},
    netlink::{attributes, number, u32_at, u64_at},
    Netns, Result,
};

const WHAT: &str = "list the NAPI instances of a device (generic netlink)";
/// include/uapi/linux/netdev.h
const FAMILY: &[u8] = b"netdev\0";
const GET_NAPI: u8 = 11;
const IFINDEX: u16 = 1;
const ID: u16 = 2;
const IRQ: u16 = 3;
const DEFER_HARD_IRQS: u16 = 5;
const GRO_FLUSH_TIMEOUT: u16 = 6;
const IRQ_SUSPEND_TIMEOUT: u16 = 7;

/// A NAPI instance. A parameter is `None` if the kernel does not report it per instance (before 6.13).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Napi {
    /// Its NAPI ID.
    pub id: u32,
    /// Number of its interrupt.
    pub irq: Option<u32>,
    /// Number of empty polls before the interrupt is enabled again.
    pub defer_hard_irqs: Option<u32>,
    /// Maximum time that GRO holds packets, ns.
    pub gro_flush_timeout_ns: Option<u64>,
    /// Maximum time that the interrupt stays disabled while a program polls, ns.
    pub irq_suspend_timeout_ns: Option<u64>,
}

/// The NAPI instances of a device, by ascending ID; empty if this kernel does not list them.
///
/// # Errors
/// If the namespace cannot be entered, or the kernel rejects the request.
pub fn napis(netns: &Netns, ifindex: u32) -> Result<Vec<Napi>> {
    let answer = list_of_family(netns, WHAT, FAMILY, (GET_NAPI, 1), &number(IFINDEX, ifindex))?;
    let mut all: Vec<Napi> = answer.iter().filter_map(|message| read(&message.payload, ifindex)).collect();
    all.sort_by_key(|napi| napi.id);
    Ok(all)
}

fn read(payload: &[u8], ifindex: u32) -> Option<Napi> {
    let mut found = Napi::default();
    let mut is_its = false;
    for (kind, value) in attributes(payload.get(GENERIC_HEADER..)?) {
        // The kernel sends such a number in 4 bytes unless it needs 8 (nla_put_uint).
        let long = || u64_at(value, 0).or_else(|| u32_at(value, 0).map(u64::from));
        match kind {
            IFINDEX => is_its = u32_at(value, 0) == Some(ifindex),
            ID => found.id = u32_at(value, 0)?,
            IRQ => found.irq = u32_at(value, 0),
            DEFER_HARD_IRQS => found.defer_hard_irqs = u32_at(value, 0),
            GRO_FLUSH_TIMEOUT => found.gro_flush_timeout_ns = long(),
            IRQ_SUSPEND_TIMEOUT => found.irq_suspend_timeout_ns = long(),
            _ => {}
        }
    }
    is_its.then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;

    #[test]
    fn an_instance_is_read_from_its_message() {
        let mut bytes = vec![GET_NAPI, 1, 0, 0];
        for (kind, value) in [(IFINDEX, 7), (ID, 513), (IRQ, 42), (DEFER_HARD_IRQS, 2), (GRO_FLUSH_TIMEOUT, 20_000)] {
            bytes.extend(number(kind, value));
        }
        bytes.extend(attribute(IRQ_SUSPEND_TIMEOUT, &5_000_000_000_u64.to_ne_bytes()));
        let napi = Napi {
            id: 513,
            irq: Some(42),
            defer_hard_irqs: Some(2),
            gro_flush_timeout_ns: Some(20_000),
            irq_suspend_timeout_ns: Some(5_000_000_000),
        };
        assert_eq!((read(&bytes, 7), read(&bytes, 8), read(&bytes[..3], 7)), (Some(napi), None, None));
    }

    #[test]
    fn a_device_without_queues_of_its_own_has_no_instance() {
        assert_eq!(napis(&Netns::own().unwrap(), 1).unwrap(), []);
    }
}
