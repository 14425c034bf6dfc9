//! `latpath queues`: what passed the virtqueues of this machine's virtio devices, and of VMs that its vhost serves.

use super::window::{Measured, Shown, Window};
use super::{style, Outcome};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_bpf::Functions;
use latpath_counters::{statistics, Inode, Netns, Statistics};
use latpath_queues::{Queues, Side, VirtioDevice, Watch};
use latpath_report::queues::{text, Document, Names};
use latpath_vms::Vm;
use std::collections::HashMap;
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
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    let stop = args.window.prepare()?;
    let measured = measure(&args.window, &stop, args.cost, args.json)?;
    Shown { json: args.json, text: &|document| text(document, style()), notes: &Document::notes }.print(measured)
}

pub(super) fn measure(window: &Window, stop: &AtomicBool, cost: bool, quiet: bool) -> Measured<Document> {
    let vms = window.vms()?;
    let own = Netns::own()?.inode();
    let watch = Watch::start_measuring(cost)?;
    let before = counted(own, &vms);
    let end = window.end();
    eprintln!("latpath: watching virtqueues{end}");
    let passed = window.pass(stop, quiet, || {})?;
    let (mut seen, mut after) = watch.end_and(|| counted(own, &vms));
    let outcome = passed.outcome();
    // Taps of VMs that have started since counted from nought.
    let vms = window.vms_now(vms);
    let has = |vm: &&Vm, tap| vm.taps.iter().filter_map(place).any(|of| of == tap);
    seen.assign_owners(|netns, ifindex| Some(vms.iter().find(|vm| has(vm, (netns, ifindex)))?.pid));
    if !window.vms.is_empty() {
        seen.queues.retain(|queue| queue.side == Side::Vhost && vms.iter().any(|vm| vm.pid == queue.pid));
    }
    if !vms.iter().flat_map(|vm| &vm.taps).filter_map(place).all(|tap| after.contains_key(&tap)) {
        after = counted(own, &vms);
    }
    Ok((Document::new(&seen, &names(&seen, own, &vms, &before, &after)), outcome))
}

type Counted = HashMap<(Inode, u32), Statistics>;

/// What network devices have counted: ours, and those where VMs have taps.
fn counted(own: Inode, vms: &[Vm]) -> Counted {
    statistics(vms.iter().flat_map(|vm| &vm.taps).filter_map(|tap| tap.netns).chain([own]))
}

fn place(tap: &latpath_vms::Tap) -> Option<(Inode, u32)> {
    Some((tap.netns?, tap.ifindex?))
}

fn names(seen: &Queues, own: Inode, vms: &[Vm], before: &Counted, after: &Counted) -> Names {
    let devices = seen.queues.iter().filter(|queue| queue.side == Side::Driver).map(|queue| queue.device);
    let nothing = Statistics::default();
    let since = |(place, now): (&(Inode, u32), &Statistics)| (*place, now.since(before.get(place).unwrap_or(&nothing)));
    Names {
        functions: Functions::read(),
        interrupts: latpath_bpf::interrupts(),
        devices: devices.map(|number| (number, VirtioDevice::find(number))).collect(),
        vms: vms.iter().map(|vm| (vm.pid, vm.name.clone())).collect(),
        netns: Some(own),
        statistics: after.iter().map(since).collect(),
    }
}
