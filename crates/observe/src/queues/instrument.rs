//! The instrument: counting eBPF programs, and the devices' own counters.

use super::{Names, QueuesFigures};
use crate::{Instrument, Needs, Scope, StartError};
use latpath_bpf::{Functions, Missing};
use latpath_counters::{since, statistics, DeviceStatistics};
use latpath_model::Observation;
use latpath_net::{Inode, Netns};
use latpath_queues::{Side, VirtioDevice, Watch};
use latpath_vms::{Tap, Vm};
use std::sync::atomic::AtomicBool;

/// Options of [`Queues`].
#[derive(Clone, Copy, Debug, Default)]
pub struct QueuesOptions {
    /// Whether the kernel measures the run time of the programs; this adds two clock readings to each run.
    pub cost: bool,
}

/// Observes the virtqueues of this machine's virtio devices, and those that vhost on this machine serves for VMs.
pub struct Queues {
    scope: Scope,
    own: Inode,
    watch: Watch,
    before: DeviceStatistics,
}

impl Instrument for Queues {
    const NAME: &'static str = "queues";
    const NEEDS: Needs = Needs { functions: true, vhost: true, kvm: false, debugfs: false };
    type Options = QueuesOptions;
    type Figures = QueuesFigures;

    fn start(scope: Scope, options: QueuesOptions) -> Result<Self, StartError> {
        let own = Netns::own()?.inode();
        let watch = Watch::start(options.cost)?;
        Ok(Self { before: counted(own, &scope), scope, own, watch })
    }

    fn subject(&self) -> String {
        "watching virtqueues".into()
    }

    fn missing(&self) -> Vec<Missing> {
        self.watch.missing().to_vec()
    }

    fn end(self, _: &AtomicBool, at_end: impl FnOnce()) -> Observation<QueuesFigures> {
        let Self { mut scope, own, watch, before } = self;
        let (mut seen, mut after) = watch.end(|| counted(own, &scope));
        at_end();
        scope.refresh();
        let has = |vm: &&Vm, tap| vm.taps.iter().filter_map(Tap::place).any(|of| of == tap);
        seen.assign_owners(|netns, ifindex| Some(scope.known().iter().find(|vm| has(vm, (netns, ifindex)))?.pid));
        if scope.is_limited() {
            seen.queues.retain(|queue| queue.side == Side::Vhost && scope.includes(queue.pid));
        }
        // The counters of the taps of VMs that started during the window began at 0, so reading them only now suffices.
        if !scope.vms().flat_map(|vm| &vm.taps).filter_map(Tap::place).all(|tap| after.contains_key(&tap)) {
            after = counted(own, &scope);
        }
        let devices = seen.queues.iter().filter(|queue| queue.side == Side::Driver).map(|queue| queue.device);
        let names = Names {
            functions: Functions::read(),
            interrupts: latpath_bpf::interrupts(),
            devices: devices.map(|number| (number, VirtioDevice::find(number))).collect(),
            vms: scope.known().iter().map(|vm| (vm.pid, vm.name.clone())).collect(),
            netns: Some(own),
            statistics: since(&after, &before),
            taps: scope
                .known()
                .iter()
                .flat_map(|vm| &vm.taps)
                .filter_map(|tap| Some((tap.place()?, tap.kind)))
                .collect(),
        };
        let mut observation = QueuesFigures::observe(&seen, &names);
        observation.notes.extend(scope.vhost_user_notes());
        observation
    }
}

/// Counters of the network devices in this machine's namespace and in those of the VMs' taps.
fn counted(own: Inode, scope: &Scope) -> DeviceStatistics {
    statistics(scope.vms().flat_map(|vm| &vm.taps).filter_map(|tap| tap.netns).chain([own]))
}
