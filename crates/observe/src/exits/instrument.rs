//! The instrument: counting eBPF programs, and the counters of KVM and the devices.

use super::{ExitsFigures, VmFacts};
use crate::{Instrument, Needs, Scope, StartError};
use latpath_bpf::Missing;
use latpath_counters::{since, DeviceStatistics};
use latpath_exits::{KvmCounters, Options, Traffic, Watch};
use latpath_model::Observation;
use latpath_stats::units::number_of;
use latpath_vms::{exit_reason::Names, Role, Vm};
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

/// Observes the exits of vCPUs.
pub struct Exits {
    scope: Scope,
    watch: Watch,
    before: Counters,
}

impl Instrument for Exits {
    const NAME: &'static str = "exits";
    const NEEDS: Needs = Needs { kvm: true, debugfs: true, functions: false, vhost: false };
    type Options = Options;
    type Figures = ExitsFigures;

    fn start(scope: Scope, options: Options) -> Result<Self, StartError> {
        let vms: Vec<Vm> = scope.vms().cloned().collect();
        let watch = Watch::start(&vms, Options { only: scope.is_limited(), ..options })?;
        Ok(Self { before: Counters::of(scope.vms()), scope, watch })
    }

    fn subject(&self) -> String {
        let threads = self.scope.vms().flat_map(|vm| &vm.threads);
        format!("watching {}", number_of(threads.filter(|thread| thread.role == Role::Vcpu).count() as u64, "vCPU"))
    }

    fn missing(&self) -> Vec<Missing> {
        self.watch.missing().to_vec()
    }

    fn end(self, _: &AtomicBool, at_end: impl FnOnce()) -> Observation<ExitsFigures> {
        let Self { mut scope, watch, before } = self;
        let (exits, mut after) = watch.end(|| Counters::of(scope.vms()));
        at_end();
        scope.refresh();
        after.complete(&scope);
        ExitsFigures::observe(&exits, &Names::of_kernel(), |pid| after.about(pid, &before, &scope))
    }
}

/// Counters of KVM and of the VMs' taps at one point in time.
struct Counters {
    kvm: HashMap<u32, KvmCounters>,
    taps: DeviceStatistics,
}

impl Counters {
    fn of<'v>(vms: impl Iterator<Item = &'v Vm> + Clone) -> Self {
        let kvm = vms.clone().filter_map(|vm| Some((vm.pid, KvmCounters::of(vm.pid)?))).collect();
        Self { kvm, taps: Traffic::counters(vms) }
    }

    /// Adds the counters of the VMs that started during the window.
    fn complete(&mut self, scope: &Scope) {
        let kvm = &self.kvm;
        let more = Self::of(scope.vms().filter(|vm| !kvm.contains_key(&vm.pid)));
        self.kvm.extend(more.kvm);
        self.taps.extend(more.taps);
    }

    fn about(&self, pid: u32, before: &Self, scope: &Scope) -> VmFacts {
        let vm = scope.vms().find(|vm| vm.pid == pid);
        let kvm = self.kvm.get(&pid).map(|now| now.since(before.kvm.get(&pid).copied().unwrap_or_default()));
        let threads = vm.into_iter().flat_map(|vm| &vm.threads);
        let workers = threads.filter(|thread| thread.kernel).map(|thread| thread.tid).collect();
        let traffic = vm.and_then(|vm| Traffic::of(vm, &since(&self.taps, &before.taps)));
        VmFacts { name: vm.map(|vm| vm.name.clone()), kvm, traffic, workers }
    }
}
