//! Traffic through a VM's taps in the window, for comparison with the exits.

use latpath_counters::{statistics, DeviceStatistics};
use latpath_vms::Vm;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Packets and bytes on a VM's taps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Traffic {
    /// Packets to the guest, as the tap counts them: a large one counts once, even if it is segmented later.
    pub to_guest_packets: u64,
    /// Number of bytes to the guest.
    pub to_guest_bytes: u64,
    /// Number of packets from the guest.
    pub from_guest_packets: u64,
    /// Number of bytes from the guest.
    pub from_guest_bytes: u64,
}

impl Traffic {
    /// Number of packets in both directions.
    pub fn packets(&self) -> u64 {
        self.to_guest_packets + self.from_guest_packets
    }

    /// Number of bytes in both directions.
    pub fn bytes(&self) -> u64 {
        self.to_guest_bytes + self.from_guest_bytes
    }

    /// Counters of all devices in the network namespaces of these VMs' taps.
    pub fn counters<'v>(vms: impl IntoIterator<Item = &'v Vm>) -> DeviceStatistics {
        statistics(vms.into_iter().flat_map(|vm| &vm.taps).filter_map(|tap| tap.netns))
    }

    /// Traffic of a VM's taps, from the devices' counts in a window; `None` if no tap is among them.
    pub fn of(vm: &Vm, counted: &DeviceStatistics) -> Option<Self> {
        let mut sum: Option<Self> = None;
        for (tap, counted) in vm.taps.iter().filter_map(|tap| Some((tap, counted.get(&tap.place()?)?))) {
            let sum = sum.get_or_insert_with(Self::default);
            let (to_guest, from_guest) = tap.kind.to_and_from_guest(counted);
            sum.to_guest_packets += to_guest.0;
            sum.to_guest_bytes += to_guest.1;
            sum.from_guest_packets += from_guest.0;
            sum.from_guest_bytes += from_guest.1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_net::Statistics;
    use latpath_vms::{Tap, TapKind};

    #[test]
    fn a_macvtap_receives_what_a_tap_sends() {
        let tap = |ifindex, kind| Tap { ifindex: Some(ifindex), netns: Some(1), kind, ..Tap::default() };
        let vm =
            Vm { taps: vec![tap(2, TapKind::Tap), tap(3, TapKind::Macvtap), tap(4, TapKind::Tap)], ..Vm::default() };
        let tap = Statistics { tx_packets: 10, tx_bytes: 1000, rx_packets: 1, rx_bytes: 60, ..Statistics::default() };
        let macvtap = Statistics { rx_packets: 20, rx_bytes: 2000, tx_packets: 2, tx_bytes: 120, ..tap };
        let counted = [((1, 2), tap), ((1, 3), macvtap), ((1, 9), tap)].into();
        let expected =
            Traffic { to_guest_packets: 30, to_guest_bytes: 3000, from_guest_packets: 3, from_guest_bytes: 180 };
        assert_eq!(Traffic::of(&vm, &counted), Some(expected));
    }
}
