//! Identifies the virtual machine of each guest, and the threads of its hypervisor that work for it.
//!
//! A run may have several hypervisors: the host, and other machines that report virtual machines. Thread IDs and
//! devices always belong to one of them.

use crate::RunContext;
use latpath_capture::Capture;
use latpath_model::{Link, Passage, PointInfo};
use latpath_vms::{Role, Vm};
use std::collections::HashMap;

/// vCPU threads, by their hypervisor's index in the capture and their thread ID.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vcpus(HashMap<(usize, u32), Vcpu>);

#[derive(Clone, Copy, Debug)]
struct Vcpu {
    /// Index of the guest in the capture, if known.
    guest: Option<usize>,
    /// Index of the vCPU in its guest; `None` if one thread runs all vCPUs.
    number: Option<u32>,
}

impl Vcpus {
    pub fn has(&self, machine: usize, thread: u32) -> bool {
        self.0.contains_key(&(machine, thread))
    }

    /// Index in the capture of the guest that this thread of a machine runs.
    pub fn guest(&self, machine: usize, thread: u32) -> Option<usize> {
        self.0.get(&(machine, thread))?.guest
    }

    /// Index in its guest of the vCPU that this thread of a machine runs.
    pub fn number(&self, machine: usize, thread: u32) -> Option<u32> {
        self.0.get(&(machine, thread))?.number
    }

    /// Thread that runs a guest's vCPU, preceded by its hypervisor's index in the capture.
    pub fn thread(&self, guest: usize, number: u32) -> Option<(usize, u32)> {
        let of_guest = || self.0.iter().filter(|(_, vcpu)| vcpu.guest == Some(guest));
        let exactly = of_guest().find(|(_, vcpu)| vcpu.number == Some(number));
        let mut all = of_guest();
        exactly
            .or_else(|| all.next().filter(|(_, vcpu)| vcpu.number.is_none() && all.next().is_none()))
            .map(|(thread, _)| *thread)
    }
}

/// Guests, identified from the capture's packets and the virtual machines of its machines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guests {
    pub vcpus: Vcpus,
    /// IDs of the hypervisor's threads that carry packets to and from each guest, by the guest's index in the capture.
    carriers: HashMap<usize, Vec<u32>>,
}

impl Guests {
    pub fn of(capture: &Capture, context: &RunContext) -> Self {
        let mut found = Self::default();
        for (Candidate { hypervisor, vm }, guest) in guests_of(capture, context) {
            for thread in &vm.threads {
                match (thread.role, guest) {
                    (Role::Vcpu, _) => {
                        let vcpu = Vcpu { guest, number: thread.vcpu };
                        found.vcpus.0.insert((hypervisor, thread.tid), vcpu);
                    }
                    (Role::MainLoop | Role::Vhost | Role::Io, Some(place)) => {
                        found.carriers.entry(place).or_default().push(thread.tid);
                    }
                    _ => {}
                }
            }
        }
        found
    }

    /// Threads of its hypervisor that carry packets to and from a guest.
    pub fn carriers(&self, guest: usize) -> &[u32] {
        self.carriers.get(&guest).map_or(&[], Vec::as_slice)
    }
}

/// The hypervisor of each guest in the capture that could be identified; both by name.
pub(crate) fn hypervisors(capture: &Capture, context: &RunContext) -> HashMap<String, String> {
    let name = |place: usize| capture.machines[place].machine.clone();
    let of = |(candidate, guest): (Candidate, Option<usize>)| Some((name(guest?), name(candidate.hypervisor)));
    guests_of(capture, context).into_iter().filter_map(of).collect()
}

/// A virtual machine, with the index of its hypervisor in the capture.
#[derive(Clone, Copy)]
struct Candidate<'c> {
    hypervisor: usize,
    vm: &'c Vm,
}

/// All virtual machines, each with the index of its guest in the capture, if one could be identified.
fn guests_of<'c>(capture: &Capture, context: &'c RunContext) -> Vec<(Candidate<'c>, Option<usize>)> {
    let machines = capture.machines.iter().enumerate();
    let vms = machines.flat_map(|(hypervisor, machine)| {
        context.vms.of(&machine.machine).iter().map(move |vm| Candidate { hypervisor, vm })
    });
    let vms: Vec<Candidate> = vms.collect();
    let mut guests = vec![None; vms.len()];
    // Skips the first machine, which is this host.
    for place in 1..capture.machines.len() {
        if let Some(vm) = vm_of(place, capture, context, &vms) {
            guests[vm] = Some(place);
        }
    }
    vms.into_iter().zip(guests).collect()
}

/// Index of a guest's virtual machine: the one through whose taps most of the guest's packets passed.
fn vm_of(guest: usize, capture: &Capture, context: &RunContext, vms: &[Candidate]) -> Option<usize> {
    let machine = &capture.machines[guest].machine;
    let name = |candidate: &Candidate| &capture.machines[candidate.hypervisor].machine;
    let named_by_user = |guest: &str| context.named_hypervisors.get(guest);
    let is_possible = |candidate: &Candidate| named_by_user(machine).is_none_or(|named| named == name(candidate));
    let mut votes = vec![0u64; vms.len()];
    let point = |p: u16| context.points.get(usize::from(p));
    let is_tap_of_another = |info: &PointInfo| info.point.machine != *machine && at_tap(info);
    for packet in &capture.packets {
        let points = packet.sightings.iter().filter_map(|seen| point(seen.point));
        let pairs = points.clone().zip(points.skip(1));
        for (a, b) in pairs {
            let tap = match (is_tap_of_another(a), is_tap_of_another(b)) {
                (true, false) if b.point.machine == *machine => a,
                (false, true) if a.point.machine == *machine => b,
                _ => continue,
            };
            for (candidate, votes) in vms.iter().zip(&mut votes).filter(|(candidate, _)| is_possible(candidate)) {
                *votes += u64::from(*name(candidate) == tap.point.machine && has_tap(candidate.vm, tap));
            }
        }
    }
    let best = votes.iter().enumerate().max_by_key(|(_, votes)| **votes).filter(|(_, votes)| **votes > 0);
    // Not if it is ambiguous: two hypervisors may run virtual machines with the same name.
    let named = || {
        let is_named = |candidate: &Candidate| {
            candidate.vm.name == *machine && candidate.hypervisor != guest && is_possible(candidate)
        };
        let mut named = vms.iter().enumerate().filter(|(_, candidate)| is_named(candidate));
        named.next().filter(|_| named.next().is_none()).map(|(vm, _)| vm)
    };
    // If there is only one virtual machine, and only one machine that runs none, they belong together.
    let alone = || {
        let runs_vms = |place: usize| place == 0 || vms.iter().any(|candidate| candidate.hypervisor == place);
        let mut possible = vms.iter().enumerate().filter(|(_, candidate)| is_possible(candidate));
        let (vm, candidate) = possible.next().filter(|_| possible.next().is_none())?;
        let may_run_there = |place: &usize| {
            let named = named_by_user(&capture.machines[*place].machine);
            !runs_vms(*place) && named.is_none_or(|named| named == name(candidate))
        };
        let guests = (0..capture.machines.len()).filter(may_run_there).count();
        (guests == 1 && may_run_there(&guest)).then_some(vm)
    };
    best.map(|(vm, _)| vm).or_else(named).or_else(alone)
}

/// Whether a point is on the boundary between a hypervisor and its guest.
fn at_tap(point: &PointInfo) -> bool {
    point.link == Link::Tap || matches!(point.point.kind.info().passage, Passage::ToVm | Passage::FromVm)
}

/// Whether a point is at a virtual machine's tap, by its name or by its device index: a tap that was recreated under
/// another name keeps its first name in points.
fn has_tap(vm: &Vm, point: &PointInfo) -> bool {
    let device = point.point.device_name();
    vm.taps.iter().any(|tap| {
        let is_named = tap.device == device && (tap.netns.is_none_or(|netns| netns == point.netns) || point.netns == 0);
        is_named || (point.ifindex != 0 && tap.place() == Some((point.netns, point.ifindex)))
    })
}
