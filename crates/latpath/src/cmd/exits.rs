//! `latpath exits`: why vCPUs leave their guests, for how long, and where their threads' time goes.

use super::window::{Measured, Shown, Window};
use super::{style, Outcome};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_counters::{since, DeviceStatistics};
use latpath_exits::{KvmCounters, Options, Traffic, Watch};
use latpath_report::exits::{text, About, Document};
use latpath_stats::units::number_of;
use latpath_vms::{exit_reason::Names, Role, Vm};
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

/// Show why vCPUs leave their guests, for how long, and where their threads' time goes.
#[derive(ClapArgs)]
pub struct Args {
    #[command(flatten)]
    window: Window,
    /// Show every vCPU's exits too, not only all of a VM's together
    #[arg(long)]
    each: bool,
    /// Count all of KVM's events too (kvm:* of perf stat), by VM
    #[arg(long)]
    events: bool,
    /// Let the kernel measure what watching costs (which costs a little more)
    #[arg(long)]
    cost: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    let stop = args.window.prepare()?;
    let options = Options { events: args.events, cost: args.cost, ..Options::default() };
    let measured = measure(&args.window, &stop, options, args.json)?;
    Shown { json: args.json, text: &|document| text(document, args.each, style()), notes: &Document::notes }
        .print(measured)
}

pub(super) fn measure(window: &Window, stop: &AtomicBool, options: Options, quiet: bool) -> Measured<Document> {
    let vms = window.vms()?;
    let watch = Watch::start(&vms, Options { only: !window.vms.is_empty(), ..options })?;
    let before = Counted::of(&vms);
    let known: usize = vms.iter().map(|vm| vm.threads.iter().filter(|thread| thread.role == Role::Vcpu).count()).sum();
    let end = window.end();
    eprintln!("latpath: watching {}{end}", number_of(known as u64, "vCPU"));
    let passed = window.pass(stop, quiet, || {})?;
    let (exits, mut after) = watch.end(|| Counted::of(&vms));
    let outcome = passed.outcome();
    let vms = window.vms_now(vms);
    after.complete(&vms);
    Ok((Document::new(&exits, &Names::of_kernel(), |pid| after.about(pid, &before, &vms)), outcome))
}

/// What the kernel had counted at a moment.
struct Counted {
    kvm: HashMap<u32, KvmCounters>,
    taps: DeviceStatistics,
}

impl Counted {
    fn of(vms: &[Vm]) -> Self {
        let kvm = vms.iter().filter_map(|vm| Some((vm.pid, KvmCounters::of(vm.pid)?))).collect();
        Self { kvm, taps: Traffic::counters(vms) }
    }

    /// Adds VMs that it lacks, which were made while it was watched.
    fn complete(&mut self, vms: &[Vm]) {
        let unknown: Vec<Vm> = vms.iter().filter(|vm| !self.kvm.contains_key(&vm.pid)).cloned().collect();
        let more = Self::of(&unknown);
        self.kvm.extend(more.kvm);
        self.taps.extend(more.taps);
    }

    fn about(&self, pid: u32, before: &Self, vms: &[Vm]) -> About {
        let vm = vms.iter().find(|vm| vm.pid == pid);
        let kvm = self.kvm.get(&pid).map(|now| now.since(before.kvm.get(&pid).copied().unwrap_or_default()));
        let threads = vm.into_iter().flat_map(|vm| &vm.threads);
        let workers = threads.filter(|thread| thread.kernel).map(|thread| thread.tid).collect();
        let traffic = vm.and_then(|vm| Traffic::of(vm, &since(&self.taps, &before.taps)));
        About { name: vm.map(|vm| vm.name.clone()), kvm, traffic, workers }
    }
}
