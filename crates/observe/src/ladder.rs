//! The instrument for transfers between guests and their host, step by step.

use crate::{Instrument, Needs, Scope, StartError};
use latpath_bpf::Missing;
use latpath_ladder::{Device, LadderFigures, Live};
use latpath_model::Observation;
use latpath_vms::{exit_reason::Names, Tap, Vm};
use std::sync::atomic::AtomicBool;

/// Options of [`Ladder`].
#[derive(Clone, Copy, Debug, Default)]
pub struct LadderOptions {
    /// Whether the kernel measures the cost of recording; this adds two clock readings to each event.
    pub cost: bool,
}

/// Follows the transfers between guests and this host.
pub struct Ladder {
    scope: Scope,
    live: Live,
}

impl Instrument for Ladder {
    const NAME: &'static str = "ladder";
    const NEEDS: Needs = Needs { kvm: true, vhost: true, functions: false, debugfs: false };
    type Options = LadderOptions;
    type Figures = LadderFigures;

    fn start(scope: Scope, options: LadderOptions) -> Result<Self, StartError> {
        let (processes, devices) = match scope.is_limited() {
            false => Default::default(),
            true => (scope.vms().map(|vm| vm.pid).collect(), scope.vms().flat_map(taps).map(|(tap, _)| tap).collect()),
        };
        let names = Names::of_kernel();
        let name_reason = Box::new(move |isa, reason| names.get(isa, reason).into_owned());
        let mut live = Live::start(name_reason, processes, devices, options.cost)?;
        name_vms(live.ladder(), &scope);
        Ok(Self { scope, live })
    }

    fn subject(&self) -> String {
        "following transfers".into()
    }

    fn step(&mut self) {
        self.live.step();
    }

    fn missing(&self) -> Vec<Missing> {
        self.live.missing()
    }

    fn end(self, _: &AtomicBool, at_end: impl FnOnce()) -> Observation<LadderFigures> {
        let Self { mut scope, live } = self;
        let mut observation = live.finish(|ladder| {
            at_end();
            scope.refresh();
            name_vms(ladder, &scope);
        });
        observation.notes.extend(scope.vhost_user_notes());
        observation
    }
}

fn name_vms(ladder: &mut latpath_ladder::Ladder, scope: &Scope) {
    for vm in scope.known() {
        ladder.name_vm(vm.pid, &vm.name);
        for (tap, name) in taps(vm) {
            ladder.name_device(tap, name);
            ladder.tap_of(tap, vm.pid);
        }
    }
}

/// The taps of a VM, with their names.
fn taps(vm: &Vm) -> impl Iterator<Item = (Device, &str)> {
    let device = |tap: &Tap| Some(Device { ifindex: tap.ifindex?, netns: tap.netns? });
    vm.taps.iter().filter_map(move |tap| Some((device(tap)?, tap.device.as_str())))
}
