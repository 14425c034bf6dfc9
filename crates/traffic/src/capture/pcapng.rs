//! pcapng (draft-ietf-opsawg-pcapng): blocks, each with a type and a length. Each section has its own byte order and
//! interfaces; blocks without packets are skipped.

use super::input::{Fault, Input, Order};
use super::pcap::MAX_PACKET;
use super::{Interface, Record};
use latpath_model::{text::printable, Ns};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
/// The obsolete type of packet block.
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

/// Maximum length of a block, bytes: of one that is skipped, and of one that is read (`MAX_READ`).
const MAX_SKIPPED: usize = (128 << 20) + (128 << 10) + 32;
const MAX_READ: usize = 16 << 20;
/// Maximum number of interfaces; limits memory use.
const MAX_INTERFACES: usize = 1 << 16;
/// Length of a block's type and its two lengths, bytes.
const BLOCK: usize = 12;

/// An interface of the section, and how its packets' times are encoded.
#[derive(Clone, Copy)]
struct InterfaceDescription {
    /// Index in [`PcapNg::interfaces`].
    id: usize,
    snap_len: u32,
    units_per_second: u64,
    /// Offset added to times, seconds.
    offset: i64,
}

/// Whether these bytes are the beginning of a pcapng file: the type of a section header block is the same in either
/// byte order.
pub(super) fn is_pcapng(bytes: &[u8]) -> bool {
    bytes.starts_with(&SECTION.to_be_bytes())
}

#[derive(Default)]
pub(super) struct PcapNg {
    order: Option<Order>,
    section: Vec<InterfaceDescription>,
    /// The interfaces of all sections.
    pub interfaces: Vec<Interface>,
}

fn broken<T>(how: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Broken(how.into()))
}

impl PcapNg {
    /// Reads the first section's header.
    pub fn open(input: &mut Input<'_>) -> Result<Self, Fault> {
        let mut file = Self::default();
        file.section(input)?;
        Ok(file)
    }

    /// The next packet; `None` at the end.
    pub fn next(&mut self, input: &mut Input<'_>) -> Result<Option<Record>, Fault> {
        loop {
            if input.is_empty()? {
                return Ok(None);
            }
            if is_pcapng(input.need(8)?) {
                self.section(input)?;
                continue;
            }
            let order = self.order.unwrap_or(Order { is_big: false });
            let head = input.need(8)?;
            let (kind, len) = (order.u32(head, 0), rounded(order.u32(head, 4)));
            let least = match kind {
                INTERFACE => 20,
                OLD_PACKET | PACKET => 32,
                SIMPLE_PACKET => 16,
                STATISTICS => 24,
                _ => BLOCK,
            };
            let is_read = matches!(kind, INTERFACE | OLD_PACKET | SIMPLE_PACKET | STATISTICS | PACKET);
            if !(least..=if is_read { MAX_READ } else { MAX_SKIPPED }).contains(&len) {
                return broken(format!("a block of type {kind:#x} has {len} bytes"));
            }
            if !is_read {
                input.skip(len - 4)?;
                check_end(order, len, input.need(4)?)?;
                input.take(4);
                continue;
            }
            let block = input.need(len)?;
            // The trailing length is checked last, because a packet's own faults are more specific.
            let body = &block[8..len - 4];
            let record = match kind {
                INTERFACE => self.describe(order, body).map(|()| None),
                STATISTICS => options(order, &body[12..], |_, _| Ok(())).map(|()| None),
                SIMPLE_PACKET => self.simple_packet(order, body).map(Some),
                _ => self.packet(order, kind, body).map(Some),
            }?;
            check_end(order, len, &block[len - 4..])?;
            input.take(len);
            if record.is_some() {
                return Ok(record);
            }
        }
    }

    fn section(&mut self, input: &mut Input<'_>) -> Result<(), Fault> {
        let head = input.need(24)?;
        let order = match head[8..12] {
            [0x1a, 0x2b, 0x3c, 0x4d] => Order { is_big: true },
            [0x4d, 0x3c, 0x2b, 0x1a] => Order { is_big: false },
            _ => return broken("a section of unknown byte order"),
        };
        let (len, version) = (rounded(order.u32(head, 4)), (order.u16(head, 12), order.u16(head, 14)));
        if !(28..=MAX_READ).contains(&len) {
            return broken(format!("a section's header has {len} bytes"));
        }
        if !matches!(version, (1, 0 | 2)) {
            return broken(format!("pcapng version {}.{}; 1.0 and 1.2 are known", version.0, version.1));
        }
        let block = input.need(len)?;
        options(order, &block[24..len - 4], |_, _| Ok(()))?;
        check_end(order, len, &block[len - 4..])?;
        input.take(len);
        self.order = Some(order);
        self.section.clear();
        Ok(())
    }

    fn describe(&mut self, order: Order, body: &[u8]) -> Result<(), Fault> {
        let (mut name, mut resolution, mut offset) = (None, None, None);
        options(order, &body[8..], |code, value| {
            match (code, value) {
                (2, value) => {
                    name.get_or_insert_with(|| printable(String::from_utf8_lossy(value).trim_end_matches('\0')));
                }
                (9, [value]) => drop(resolution.get_or_insert(*value)),
                (11, []) => return broken("an interface's filter is empty"),
                (14, value) if value.len() == 8 => drop(offset.get_or_insert(order.u64(value, 0) as i64)),
                _ => {}
            }
            Ok(())
        })?;
        let (link, number) = (order.u16(body, 0), self.section.len());
        // A later section may describe the same interface again.
        let same = |i: &Interface| (i.number, &i.name, i.link) == (number, &name, link);
        let id = match self.interfaces.iter().position(same) {
            Some(id) => id,
            None if self.interfaces.len() == MAX_INTERFACES => return broken("more than 65536 interfaces"),
            None => {
                self.interfaces.push(Interface { number, name, link });
                self.interfaces.len() - 1
            }
        };
        self.section.push(InterfaceDescription {
            id,
            snap_len: order.u32(body, 4),
            units_per_second: units_per_second(resolution.unwrap_or(6)),
            offset: offset.unwrap_or(0),
        });
        Ok(())
    }

    fn packet(&self, order: Order, kind: u32, body: &[u8]) -> Result<Record, Fault> {
        let number = if kind == PACKET { order.u32(body, 0) } else { order.u16(body, 0).into() };
        let [high, low, captured, len] = [4, 8, 12, 16].map(|at| order.u32(body, at));
        let padded = rounded(captured);
        if captured > MAX_PACKET || 20 + padded > body.len() {
            return broken(format!("a packet of {captured} bytes in a block of {}", body.len() + BLOCK));
        }
        let Some(interface) = self.section.get(number as usize) else {
            return broken(format!("a packet of interface {number}; {} exist", self.section.len()));
        };
        options(order, &body[20 + padded..], |code, value| {
            let is_right = match code {
                2 | 6 => value.len() == 4,
                4 | 5 => value.len() == 8,
                7 => matches!((value.first(), value.len()), (Some(1 | 2), 9) | (Some(0 | 3..), _)),
                _ => true,
            };
            if is_right {
                Ok(())
            } else {
                broken(format!("a packet's option {code} has {} bytes", value.len()))
            }
        })?;
        let t = interface.time(u64::from(high) << 32 | u64::from(low));
        let bytes = body[20..20 + captured as usize].to_vec();
        Ok(Record { t, interface: interface.id, len: len as usize, bytes })
    }

    /// Reads a simple packet block: its packet has no time, and is from the section's first interface.
    fn simple_packet(&self, order: Order, body: &[u8]) -> Result<Record, Fault> {
        let Some(interface) = self.section.first() else { return broken("a packet of no interface") };
        let len = order.u32(body, 0);
        let captured = if interface.snap_len > 0 { len.min(interface.snap_len) } else { len };
        if captured > MAX_PACKET || 4 + rounded(captured) > body.len() {
            return broken(format!("a packet of {captured} bytes in a block of {}", body.len() + BLOCK));
        }
        let bytes = body[4..4 + captured as usize].to_vec();
        Ok(Record { t: 0, interface: interface.id, len: len as usize, bytes })
    }
}

impl InterfaceDescription {
    /// Converts a time in units of the interface's clock to ns since 1970.
    fn time(&self, units: u64) -> Ns {
        let (per_second, units) = (i128::from(self.units_per_second), i128::from(units));
        let ns = (units / per_second + i128::from(self.offset)) * 1_000_000_000
            + units % per_second * 1_000_000_000 / per_second;
        ns.clamp(i128::from(Ns::MIN), i128::from(Ns::MAX)) as Ns
    }
}

/// Decodes `if_tsresol` to units per second: it is a negative power of ten or, if the top bit is set, of two.
fn units_per_second(resolution: u8) -> u64 {
    let base: u64 = if resolution & 0x80 != 0 { 2 } else { 10 };
    base.checked_pow(u32::from(resolution & 0x7f)).unwrap_or(u64::MAX)
}

/// Rounds a length up: blocks and options are padded to a multiple of four bytes.
fn rounded(len: u32) -> usize {
    (len as usize).next_multiple_of(4)
}

fn check_end(order: Order, len: usize, end: &[u8]) -> Result<(), Fault> {
    if rounded(order.u32(end, 0)) == len {
        return Ok(());
    }
    broken("the lengths at a block's beginning and end differ")
}

/// Calls `each` with the code and value of each option.
fn options(order: Order, mut bytes: &[u8], mut each: impl FnMut(u16, &[u8]) -> Result<(), Fault>) -> Result<(), Fault> {
    while !bytes.is_empty() {
        let (code, len) = (order.u16(bytes, 0), usize::from(order.u16(bytes, 2)));
        let padded = len.next_multiple_of(4);
        if bytes.len() < 4 + padded {
            return broken("an option is longer than its block");
        }
        match code {
            0 => return Ok(()),
            // A vendor-specific option begins with the vendor's number.
            2988 | 2989 | 19372 | 19373 if len < 4 => return broken("a vendor's option is too short"),
            _ => each(code, &bytes[4..4 + len])?,
        }
        bytes = &bytes[4 + padded..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_every_resolution_and_offset_are_in_nanoseconds() {
        let time = |units, resolution, offset| {
            InterfaceDescription { id: 0, snap_len: 0, units_per_second: units_per_second(resolution), offset }
                .time(units)
        };
        assert_eq!(time(1_000_001, 6, 0), 1_000_001_000);
        assert_eq!(time(5, 9, 0), 5);
        assert_eq!(time(5_000, 12, 0), 5);
        assert_eq!(time(1, 0x80 | 10, 0), 976_562);
        assert_eq!(time(u64::MAX, 0, 0), Ns::MAX);
        assert_eq!(time(1_000_001, 6, -37), -36_000_000_000 + 1_000);
        assert_eq!(time(500, 3, 1_764_000_000), 1_764_000_000_500_000_000);
        for r in 0..=255 {
            for offset in [i64::MIN, 0, i64::MAX] {
                time(u64::MAX, r, offset);
            }
        }
    }
}
