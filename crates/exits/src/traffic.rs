//! What passed a VM's taps in the window, to set the exits against.

use latpath_counters::{statistics, DeviceStatistics};
use latpath_vms::Vm;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Packets and bytes on a VM's taps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Traffic {
    /// To the guest: buffers, since large ones may be segmented later.
    pub to_guest_packets: u64,
    /// To the guest.
    pub to_guest_bytes: u64,
    /// From the guest.
    pub from_guest_packets: u64,
    /// From the guest.
    pub from_guest_bytes: u64,
}

impl Traffic {
    /// Both ways.
    pub fn packets(&self) -> u64 {
        self.to_guest_packets + self.from_guest_packets
    }

    /// Both ways.
    pub fn bytes(&self) -> u64 {
        self.to_guest_bytes + self.from_guest_bytes
    }

    /// What devices have counted where some VMs have taps.
    pub fn counters<'v>(vms: impl IntoIterator<Item = &'v Vm>) -> DeviceStatistics {
        statistics(vms.into_iter().flat_map(|vm| &vm.taps).filter_map(|tap| tap.netns))
    }

    /// What passed a VM's taps, of what devices counted in a window; `None` where none of them is known.
    pub fn of(vm: &Vm, counted: &DeviceStatistics) -> Option<Self> {
        let mut sum: Option<Self> = None;
        for passed in vm.taps.iter().filter_map(|tap| counted.get(&tap.place()?)) {
            let sum = sum.get_or_insert_with(Self::default);
            // What the host sends to a tap, the guest receives.
            sum.to_guest_packets += passed.tx_packets;
            sum.to_guest_bytes += passed.tx_bytes;
            sum.from_guest_packets += passed.rx_packets;
            sum.from_guest_bytes += passed.rx_bytes;
        }
        sum
    }
}
