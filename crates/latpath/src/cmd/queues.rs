//! `latpath queues`: what passed the virtqueues of this machine's virtio devices, and of VMs that its vhost serves.

use super::window::{Measured, Shown, Window};
use super::{style, Outcome};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_bpf::Functions;
use latpath_counters::{since, statistics, DeviceStatistics};
use latpath_net::{Inode, Netns};
use latpath_queues::{Queues, Side, VirtioDevice, Watch};
use latpath_report::queues::{text, Document, Names};
use latpath_vms::{Tap, Vm};
use std::sync::atomic::AtomicBool;

/// Show what passes virtqueues: buffers posted and used, bytes, batches, kicks and interrupts, and how long the
/// device had each buffer.
#[derive(ClapArgs)]
pub struct Args {
    #[command(flatten)]
    window: Window,
    /// Let the kernel measure what watching costs (which costs a little more)
    #[arg(long)]
    cost: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// What is said when the window has begun: a study waits for it in the guest.
pub(super) const BEGUN: &str = "watching virtqueues";

pub fn run(args: Args) -> Result<Outcome> {
    let stop = args.window.prepare()?;
    let measured = measure(&args.window, &stop, args.cost, args.json)?;
    Shown { json: args.json, text: &|document| text(document, style()), notes: &Document::notes }.print(measured)
}

pub(super) fn measure(window: &Window, stop: &AtomicBool, cost: bool, quiet: bool) -> Measured<Document> {
    let vms = window.vms()?;
    let own = Netns::own()?.inode();
    let watch = Watch::start(cost)?;
    let before = counted(own, &vms);
    let end = window.end();
    eprintln!("latpath: {BEGUN}{end}");
    let passed = window.pass(stop, quiet, || {})?;
    let (mut seen, mut after) = watch.end(|| counted(own, &vms));
    let outcome = passed.outcome();
    // Taps of VMs that have started since counted from nought.
    let vms = window.vms_now(vms);
    let has = |vm: &&Vm, tap| vm.taps.iter().filter_map(Tap::place).any(|of| of == tap);
    seen.assign_owners(|netns, ifindex| Some(vms.iter().find(|vm| has(vm, (netns, ifindex)))?.pid));
    if !window.vms.is_empty() {
        seen.queues.retain(|queue| queue.side == Side::Vhost && vms.iter().any(|vm| vm.pid == queue.pid));
    }
    if !vms.iter().flat_map(|vm| &vm.taps).filter_map(Tap::place).all(|tap| after.contains_key(&tap)) {
        after = counted(own, &vms);
    }
    Ok((Document::new(&seen, &names(&seen, own, &vms, since(&after, &before))), outcome))
}

/// What network devices have counted: ours, and those where VMs have taps.
fn counted(own: Inode, vms: &[Vm]) -> DeviceStatistics {
    statistics(vms.iter().flat_map(|vm| &vm.taps).filter_map(|tap| tap.netns).chain([own]))
}

fn names(seen: &Queues, own: Inode, vms: &[Vm], statistics: DeviceStatistics) -> Names {
    let devices = seen.queues.iter().filter(|queue| queue.side == Side::Driver).map(|queue| queue.device);
    Names {
        functions: Functions::read(),
        interrupts: latpath_bpf::interrupts(),
        devices: devices.map(|number| (number, VirtioDevice::find(number))).collect(),
        vms: vms.iter().map(|vm| (vm.pid, vm.name.clone())).collect(),
        netns: Some(own),
        statistics,
    }
}
