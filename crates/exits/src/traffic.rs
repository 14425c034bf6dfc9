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
        for passed in vm.taps.iter().filter_map(|tap| counted.get(&tap.place()?)) {
            let sum = sum.get_or_insert_with(Self::default);
            // The host's transmit direction of a tap is the guest's receive direction.
            sum.to_guest_packets += passed.tx_packets;
            sum.to_guest_bytes += passed.tx_bytes;
            sum.from_guest_packets += passed.rx_packets;
            sum.from_guest_bytes += passed.rx_bytes;
        }
        sum
    }
}
