//! Events of transfers between a guest and its host (bpf/transfers.h).

/// An event that is only recorded with [`crate::Scope::Transfers`] or, in some cases, [`crate::Scope::Door`]. An
/// eventfd is identified by its ID in `/proc/PID/fdinfo` plus one; 0 stands for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// An eventfd is signalled.
    Signal(u32),
    /// User space reads an eventfd.
    Read(u32),
    /// A vhost worker serves a queue.
    Round {
        /// The eventfd of the queue's kicks.
        kick: u32,
        /// The eventfd of the queue's interrupts.
        call: u32,
        /// Whether the queue's packets go to the guest.
        to_guest: bool,
    },
    /// KVM turns an eventfd's signal into an interrupt.
    Irqfd(u32),
    /// The guest reads a device's register.
    RegisterRead,
    /// The guest writes a device's register.
    RegisterWrite {
        /// Whether `address` is an x86 I/O port.
        is_port: bool,
        /// The guest-physical address, or the port number.
        address: u64,
        /// The value written, if it has 2 or 4 bytes; otherwise 0.
        value: u64,
    },
    /// An interrupt line, identified by its number, is raised.
    RaiseLine(u32),
    /// A message-signalled interrupt with this data is raised.
    RaiseMessage(u64),
    /// A vCPU's interrupt controller accepts an interrupt.
    Accept {
        /// The vector.
        vector: u32,
        /// vCPU ID.
        vcpu: u32,
    },
    /// Hardware delivers an interrupt to a vCPU.
    Posted {
        /// The vector.
        vector: u32,
        /// vCPU ID.
        vcpu: u32,
    },
    /// The guest has handled the interrupt with this vector.
    End(u32),
    /// A packet is passed to a tap for the guest. As in the following events: interface index and network namespace.
    TapArrive(u32, u32),
    /// A packet is read from a tap's queue.
    TapRead(u32, u32),
    /// A packet arrives from the guest through a tap.
    TapWrite(u32, u32),
}

impl Transfer {
    /// Decodes an event; `None` if `kind` is not that of a transfer's event.
    pub(crate) fn decode(kind: u16, b: u64, c: u64) -> Option<Self> {
        let (low, high) = (b as u32, (b >> 32) as u32);
        Some(match kind {
            32 => Self::Signal(low),
            33 => Self::Read(low),
            34 => Self::Round { kick: low, call: high, to_guest: c != 0 },
            35 => Self::Irqfd(low),
            36 => Self::RegisterRead,
            37 => Self::RegisterWrite { is_port: c & 1 != 0, address: b, value: c >> 1 },
            38 => Self::RaiseLine(low),
            39 => Self::RaiseMessage(b),
            40 => Self::Accept { vector: low, vcpu: c as u32 },
            41 => Self::Posted { vector: low, vcpu: c as u32 },
            42 => Self::End(low),
            43 => Self::TapArrive(low, high),
            44 => Self::TapRead(low, high),
            45 => Self::TapWrite(low, high),
            _ => return None,
        })
    }

    /// Kind and data words `b` and `c`; the inverse of [`Self::decode`].
    pub(crate) fn encode(self) -> (u16, u64, u64) {
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        match self {
            Self::Signal(eventfd) => (32, eventfd.into(), 0),
            Self::Read(eventfd) => (33, eventfd.into(), 0),
            Self::Round { kick, call, to_guest } => (34, two(kick, call), to_guest.into()),
            Self::Irqfd(eventfd) => (35, eventfd.into(), 0),
            Self::RegisterRead => (36, 0, 0),
            Self::RegisterWrite { is_port, address, value } => (37, address, value << 1 | u64::from(is_port)),
            Self::RaiseLine(number) => (38, number.into(), 0),
            Self::RaiseMessage(data) => (39, data, 0),
            Self::Accept { vector, vcpu } => (40, vector.into(), vcpu.into()),
            Self::Posted { vector, vcpu } => (41, vector.into(), vcpu.into()),
            Self::End(vector) => (42, vector.into(), 0),
            Self::TapArrive(index, netns) => (43, two(index, netns), 0),
            Self::TapRead(index, netns) => (44, two(index, netns), 0),
            Self::TapWrite(index, netns) => (45, two(index, netns), 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn events_of_any_words_survive_a_round_trip_through_words(kind in 32..46u16, b: u64, c: u64) {
            let event = Transfer::decode(kind, b, c).expect("a known kind");
            let (kind, b, c) = event.encode();
            proptest::prop_assert_eq!(Transfer::decode(kind, b, c), Some(event));
        }
    }
}
