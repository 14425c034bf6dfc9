//! Identifies the virtual machine of each guest, and the host threads that work for it.

use crate::RunContext;
use latpath_capture::Capture;
use latpath_model::{Link, Passage, PointInfo, HOST};
use latpath_vms::{Role, Vm};
use std::collections::HashMap;

/// vCPU threads of the host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vcpus(HashMap<u32, Vcpu>);

#[derive(Clone, Copy, Debug)]
struct Vcpu {
    /// Index of the guest in the capture, if known.
    guest: Option<usize>,
    /// Number of the vCPU; `None` if one thread runs all of them.
    number: Option<u32>,
}

impl Vcpus {
    pub fn has(&self, thread: u32) -> bool {
        self.0.contains_key(&thread)
    }

    /// Index in the capture of the guest that a thread runs.
    pub fn guest(&self, thread: u32) -> Option<usize> {
        self.0.get(&thread)?.guest
    }

    /// Number of the vCPU that a thread runs.
    pub fn number(&self, thread: u32) -> Option<u32> {
        self.0.get(&thread)?.number
    }

    /// Thread of a guest's vCPU.
    pub fn thread(&self, guest: usize, number: u32) -> Option<u32> {
        let of_guest = || self.0.iter().filter(|(_, vcpu)| vcpu.guest == Some(guest));
        let exactly = of_guest().find(|(_, vcpu)| vcpu.number == Some(number));
        let mut all = of_guest();
        exactly
            .or_else(|| all.next().filter(|(_, vcpu)| vcpu.number.is_none() && all.next().is_none()))
            .map(|(t, _)| *t)
    }
}

/// Guests, as identified from the capture's packets and the host's virtual machines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guests {
    pub vcpus: Vcpus,
    /// Threads that carry packets to and from each guest, by its index in the capture.
    carriers: HashMap<usize, Vec<u32>>,
}

impl Guests {
    pub fn of(capture: &Capture, context: &RunContext) -> Self {
        let mut found = Self::default();
        let mut guests: Vec<Option<usize>> = vec![None; context.vms.len()];
        for (place, machine) in capture.machines.iter().enumerate().skip(1) {
            if let Some(vm) = vm_of(&machine.machine, capture, context) {
                guests[vm] = Some(place);
            }
        }
        for (vm, guest) in context.vms.iter().zip(guests) {
            for thread in &vm.threads {
                match (thread.role, guest) {
                    (Role::Vcpu, _) => drop(found.vcpus.0.insert(thread.tid, Vcpu { guest, number: thread.vcpu })),
                    (Role::MainLoop | Role::Vhost | Role::Io, Some(place)) => {
                        found.carriers.entry(place).or_default().push(thread.tid);
                    }
                    _ => {}
                }
            }
        }
        found
    }

    /// Threads that carry packets to and from a guest.
    pub fn carriers(&self, guest: usize) -> &[u32] {
        self.carriers.get(&guest).map_or(&[], Vec::as_slice)
    }
}

/// Index of the virtual machine of a guest: the one with the taps of most of the guest's packets.
fn vm_of(machine: &str, capture: &Capture, context: &RunContext) -> Option<usize> {
    let mut votes = vec![0u64; context.vms.len()];
    let point = |p: u16| context.points.get(usize::from(p));
    for packet in &capture.packets {
        let points = packet.sightings.iter().filter_map(|seen| point(seen.point));
        let pairs = points.clone().zip(points.skip(1));
        for (a, b) in pairs {
            let tap = match (at_tap(a), at_tap(b)) {
                (true, false) if b.point.machine == machine => a,
                (false, true) if a.point.machine == machine => b,
                _ => continue,
            };
            for (vm, votes) in context.vms.iter().zip(&mut votes) {
                *votes += u64::from(has_tap(vm, tap));
            }
        }
    }
    let best = votes.iter().enumerate().max_by_key(|(_, votes)| **votes).filter(|(_, votes)| **votes > 0);
    let named = || context.vms.iter().position(|vm| vm.name == machine);
    // A single virtual machine and a single guest belong together.
    let alone = || (context.vms.len() == 1 && capture.machines.len() == 2).then_some(0);
    best.map(|(vm, _)| vm).or_else(named).or_else(alone)
}

/// Whether a point of the host is between it and a guest.
fn at_tap(point: &PointInfo) -> bool {
    point.point.machine == HOST
        && (point.link == Link::Tap || matches!(point.point.kind.info().passage, Passage::ToVm | Passage::FromVm))
}

/// Whether a point is at a virtual machine's tap: by its name, or by the index of its device, since a tap that returned
/// under another name has its first name in points.
fn has_tap(vm: &Vm, point: &PointInfo) -> bool {
    let device = point.point.device_name();
    vm.taps.iter().any(|tap| {
        let is_named = tap.device == device && (tap.netns.is_none_or(|netns| netns == point.netns) || point.netns == 0);
        is_named || (point.ifindex != 0 && tap.place() == Some((point.netns, point.ifindex)))
    })
}
