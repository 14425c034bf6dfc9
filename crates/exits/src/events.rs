//! All of KVM's tracepoints (`kvm:*` of `perf stat`), counted by vCPU and by process.

use crate::events_skel::types::{event_count as RawState, process_event as RawKey};
use crate::events_skel::EventsSkelBuilder;
use crate::figures::{Events, Vcpu};
use latpath_bpf::{from_bytes, AttachedProgram, Mapped};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::mem::{offset_of, MaybeUninit};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

latpath_bpf::plain!(RawState, RawKey);

/// Maximum number of events; no kernel has more.
const MAX: usize = 1024;

/// Reads a vCPU's count of an event that the exit programs already count.
type VcpuCounter = fn(&Vcpu) -> u64;

fn own(event: &str) -> Option<VcpuCounter> {
    match event {
        "kvm_entry" => Some(|vcpu| vcpu.entries),
        "kvm_exit" => Some(|vcpu| vcpu.exits),
        "kvm_userspace_exit" => Some(|vcpu| vcpu.to_qemu),
        "kvm_vcpu_wakeup" => Some(|vcpu| vcpu.halts),
        "kvm_inj_virq" => Some(|vcpu| vcpu.injected.unwrap_or(0)),
        _ => None,
    }
}

/// Counts each event while [`Counting::switch`] is on.
pub(crate) struct Counting {
    names: Vec<String>,
    own: Vec<Option<VcpuCounter>>,
    not_counted: Vec<String>,
    state: Mapped<RawState>,
    of_vcpus: Mapped<u64>,
    of_processes: MapHandle,
}

/// The maps of the first program's object, reused by the other objects.
struct Maps {
    counting: OwnedFd,
    of_vcpus: OwnedFd,
    of_processes: MapHandle,
}

/// Names of KVM's events in this kernel.
pub(crate) fn names() -> Result<Vec<String>, latpath_tracefs::Error> {
    let mut names = latpath_tracefs::Tracefs::open()?.events("kvm")?;
    names.truncate(MAX);
    Ok(names)
}

impl Counting {
    /// Attaches a program to each of these events, except those that an attached exit program already counts
    /// (`stands`). Counting is off at first. `cpus` is the exit programs' map, `slots` their number of slots.
    pub fn start(
        names: Vec<String>,
        stands: impl Fn(&str) -> bool,
        cpus: BorrowedFd<'_>,
        slots: usize,
    ) -> libbpf_rs::Result<(Self, Vec<AttachedProgram>)> {
        let all = names.len() as u32;
        let own: Vec<Option<VcpuCounter>> = names.iter().map(|name| own(name).filter(|_| stands(name))).collect();
        let (mut programs, mut not_counted, mut made) = (Vec::new(), Vec::new(), None);
        for (number, name) in (0..).zip(&names).filter(|(number, _)| own[*number as usize].is_none()) {
            let mut storage = MaybeUninit::uninit();
            let mut open = EventsSkelBuilder::default().open(&mut storage)?;
            let constants = open.maps.rodata_data.as_deref_mut().expect("the program has constants");
            (constants.event, constants.events) = (number, all);
            open.maps.cpus.reuse_fd(cpus)?;
            open.maps.of_vcpus.set_max_entries(slots as u32 * all)?;
            if let Some(Maps { counting, of_vcpus, of_processes }) = &made {
                open.maps.counting.reuse_fd(counting.as_fd())?;
                open.maps.of_vcpus.reuse_fd(of_vcpus.as_fd())?;
                open.maps.of_processes.reuse_fd(of_processes.as_fd())?;
            }
            let loaded = open.load()?;
            let at = CString::new(name.as_str()).expect("a file's name");
            match AttachedProgram::at_tracepoint("count", loaded.progs.count.as_fd(), at) {
                Ok(program) => programs.push(program),
                Err(e) => not_counted.push(format!("{name} ({e})")),
            }
            if made.is_none() {
                let own = |map: &dyn AsFd| map.as_fd().try_clone_to_owned();
                made = Some(Maps {
                    counting: own(&loaded.maps.counting)?,
                    of_vcpus: own(&loaded.maps.of_vcpus)?,
                    of_processes: MapHandle::try_from(&loaded.maps.of_processes)?,
                });
            }
        }
        let Some(Maps { counting, of_vcpus, of_processes }) = made else {
            return Err(std::io::Error::other("tracefs has no events of KVM").into());
        };
        let state = Mapped::new(&counting, 1)?;
        let of_vcpus = Mapped::new(&of_vcpus, slots * names.len())?;
        let counting = Self { names, own, not_counted, state, of_vcpus, of_processes };
        Ok((counting, programs))
    }

    /// Switches counting on or off.
    pub fn switch(&self, on: bool) {
        self.state.set_field(0, offset_of!(RawState, on), u32::from(on));
    }

    /// Counts of the vCPU in this slot, in the order of the names.
    pub fn of_vcpu(&self, slot: usize, vcpu: &Vcpu) -> Vec<u64> {
        let counted = |event: usize| self.of_vcpus.get(slot * self.names.len() + event);
        self.own.iter().enumerate().map(|(event, own)| own.map_or_else(|| counted(event), |own| own(vcpu))).collect()
    }

    /// Counts of threads that are not vCPUs, by process.
    pub fn others(&self) -> Events {
        let mut by_process: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for key in self.of_processes.keys() {
            let count = self.of_processes.lookup(&key, MapFlags::ANY).ok().flatten();
            let (Some(key), Some(count)) = (from_bytes::<RawKey>(&key), count) else { continue };
            let counts = by_process.entry(key.pid).or_insert_with(|| vec![0; self.names.len()]);
            if let (Some(sum), Some(count)) = (counts.get_mut(key.event as usize), from_bytes::<u64>(&count)) {
                *sum += count;
            }
        }
        let no_room = self.state.get(0).no_room;
        Events { names: self.names.clone(), not_counted: self.not_counted.clone(), by_process, no_room }
    }
}
