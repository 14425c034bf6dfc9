//! The attached programs, and the results of their window.

use crate::events::{self, Counting};
use crate::figures::{Exits, Interrupts, Reason, Vcpu, VcpuState, VcpuTimes};
use crate::hooks::{HOOKS, NEEDED};
use crate::layout::{RawInterrupts, RawRow, RawVcpu, Shared, MARKS, NO_ID, NO_ROW, REASONS, TILES};
use crate::skel::{ExitsSkelBuilder, OpenExitsSkel};
use latpath_bpf::{
    begin_window, bytes_of, end_window, release, AttachedProgram, Hooks, Mapped, Missing, Programs, Purpose, StartError,
};
use latpath_linux::proc::{Root, Stat, PF_VCPU};
use latpath_model::Ns;
use latpath_vms::{Role, Vm};
use libbpf_rs::skel::Skel;
use libbpf_rs::{MapCore, MapFlags};
use std::{
    collections::HashMap,
    mem::offset_of,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    thread::sleep,
    time::Duration,
};

/// Number of slots for vCPUs created during the window.
const MORE: usize = 64;
/// Maximum number of vCPUs in total; each takes about 90 kB.
const MAX: usize = 2048;
/// APIC delivery mode "NMI" (arch/x86/include/asm/apicdef.h).
const NMI: usize = 4;
/// Time allowed for a BPF program that is still running.
const PATIENCE: Duration = Duration::from_micros(500);

const PURPOSE: Purpose = Purpose("watch VM exits");

/// Options of a watch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Watches the vCPUs of the given VMs only, not those created later.
    pub only: bool,
    /// Also counts all of KVM's events.
    pub events: bool,
    /// Lets the kernel measure the programs' run time, which adds two clock readings to each run.
    pub cost: bool,
}

/// Watches vCPUs until [`Watch::end`].
pub struct Watch {
    programs: Programs,
    vcpus: Mapped<RawVcpu>,
    rows: Mapped<RawRow>,
    interrupts: Mapped<RawInterrupts>,
    shared: Mapped<Shared>,
    counting: Option<Counting>,
    from: Ns,
    /// State of each vCPU thread known at the start, from /proc, by TID.
    looked: HashMap<u32, VcpuState>,
}

struct Loaded {
    programs: Vec<AttachedProgram>,
    vcpus: Mapped<RawVcpu>,
    rows: Mapped<RawRow>,
    interrupts: Mapped<RawInterrupts>,
    shared: Mapped<Shared>,
    cpus: OwnedFd,
}

/// A vCPU thread known before the start.
struct Known {
    tid: u32,
    pid: u32,
    id: Option<u32>,
}

/// Sets the programs' constants, and the sizes of their tables, for `slots` vCPUs and `cpus` CPUs.
fn configure(open: &mut OpenExitsSkel<'_>, slots: usize, only_known: bool, cpus: usize) -> libbpf_rs::Result<()> {
    let maps = &mut open.maps;
    let constants = maps.rodata_data.as_deref_mut().expect("the programs have constants");
    (constants.only_known, constants.slots_max) = (only_known.into(), slots as u32);
    maps.vcpus.set_max_entries(slots as u32)?;
    maps.rows.set_max_entries((slots * REASONS) as u32)?;
    maps.slots.set_max_entries(slots as u32)?;
    maps.interrupts.set_max_entries(slots as u32)?;
    maps.cpus.set_max_entries(cpus as u32)
}

impl Watch {
    /// Watches the vCPUs of `vms`, and those created later unless [`Options::only`] is set. Returns when the window has
    /// begun.
    ///
    /// # Errors
    /// If the kernel or the user's rights do not allow tracing, or KVM is not loaded.
    pub fn start(vms: &[Vm], options: Options) -> Result<Self, StartError> {
        let mut hooks = Hooks::of_kernel(&HOOKS)?;
        if !hooks.stands_at(NEEDED) {
            return Err(StartError::NothingHere(format!(
                "this kernel ({}) has no tracepoint {NEEDED}: is KVM loaded (modprobe kvm_intel, or kvm_amd), with type information?",
                release()
            )));
        }
        let known: Vec<Known> = vms.iter().flat_map(known).take(MAX - MORE).collect();
        let slots = 1 + known.len() + MORE;
        let cpus = libbpf_rs::num_possible_cpus().map_err(PURPOSE.refused("counting CPUs"))?;
        let loaded = PURPOSE.load::<ExitsSkelBuilder, _>(
            &mut hooks,
            |hooks| hooks.stands_at(NEEDED),
            |open, _| configure(open, slots, options.only, cpus),
            |skel, hooks| {
                let loaded = Loaded {
                    vcpus: Mapped::new(&skel.maps.vcpus.as_fd(), slots)?,
                    rows: Mapped::new(&skel.maps.rows.as_fd(), slots * REASONS)?,
                    interrupts: Mapped::new(&skel.maps.interrupts.as_fd(), slots)?,
                    cpus: skel.maps.cpus.as_fd().try_clone_to_owned()?,
                    shared: Mapped::new(&skel.maps.bss.as_fd(), 1)?,
                    programs: Vec::new(),
                };
                loaded.announce(&known, |tid, slot| {
                    skel.maps
                        .slots
                        .update(bytes_of(&tid), bytes_of(&slot), MapFlags::ANY)
                        .map_err(PURPOSE.refused("naming the vCPUs"))
                })?;
                Ok(Loaded { programs: hooks.attach(skel.object())?, ..loaded })
            },
        );
        let Loaded { mut programs, vcpus, rows, interrupts, shared, cpus } = match loaded {
            Ok(loaded) => loaded,
            Err((error, _)) if hooks.stands_at(NEEDED) => return Err(error),
            Err((_, said)) => {
                let first =
                    hooks.missing.iter().find(|missing| missing.tracepoint == NEEDED).map(|first| first.why.clone());
                let why = first.unwrap_or(said);
                return Err(PURPOSE.refusal("loading the programs", why));
            }
        };
        let counting = options.events.then(|| {
            let names = events::names().map_err(|e| StartError::NothingHere(format!("KVM's events: {e}")))?;
            let started = Counting::start(names, |event| hooks.stands_at(event), cpus.as_fd(), slots);
            started.map_err(PURPOSE.refused("counting KVM's events"))
        });
        let counting = counting.transpose()?.map(|(counting, more)| {
            programs.extend(more);
            counting
        });
        let programs = Programs::new(programs, hooks, options.cost)?;
        let looked = known.iter().filter_map(|known| Some((known.tid, look(known.pid, known.tid)?))).collect();
        let mut watch = Self { programs, vcpus, rows, interrupts, shared, counting, from: 0, looked };
        watch.from = begin_window(|from| watch.set_from(from), |until| watch.set_until(until));
        watch.count_events(true);
        Ok(watch)
    }

    fn set_from(&self, from: u64) {
        self.shared.set_field(0, offset_of!(Shared, from), from);
        // A program that is just creating a slot may have read the old value; let it finish.
        sleep(PATIENCE);
        for slot in 1..self.vcpus.len() {
            self.vcpus.set_field(slot, offset_of!(RawVcpu, since), from);
            self.vcpus.set_field(slot, offset_of!(RawVcpu, from), from);
        }
    }

    fn set_until(&self, until: u64) {
        self.shared.set_field(0, offset_of!(Shared, until), until);
        for slot in 1..self.vcpus.len() {
            self.vcpus.set_field(slot, offset_of!(RawVcpu, until), until);
        }
    }

    fn count_events(&self, on: bool) {
        self.counting.iter().for_each(|counting| counting.switch(on));
    }

    /// Start of the window.
    pub fn from(&self) -> Ns {
        self.from
    }

    /// Hooks that this kernel lacks.
    pub fn missing(&self) -> &[Missing] {
        &self.programs.missing
    }

    /// Ends the window and returns its results. Calls `at_end` right after the end.
    pub fn end<T>(self, at_end: impl FnOnce() -> T) -> (Exits, T) {
        let at_end = || {
            self.count_events(false);
            at_end()
        };
        let (until, answer) = end_window(|until| self.set_until(until), at_end);
        (self.read(until), answer)
    }

    fn read(&self, until: Ns) -> Exits {
        let shared = self.shared.get(0);
        let taken = (shared.next_slot as usize).min(self.vcpus.len());
        let mut vcpus: Vec<Vcpu> = (1..taken).map(|slot| self.vcpu(slot, &shared, until)).collect();
        let has_accepted = self.programs.has("accepts") || self.programs.has("accepted");
        let of_vcpus: u64 = vcpus.iter().filter_map(|vcpu| Some(vcpu.interrupts.as_ref()?.all())).sum();
        vcpus.sort_by_key(|vcpu| (vcpu.pid, vcpu.id, vcpu.tid));
        Exits {
            window: self.programs.window(self.from, until),
            vcpus,
            accepted: has_accepted.then_some(shared.accepted + of_vcpus),
            events: self.counting.as_ref().map(Counting::others),
            no_room: shared.no_room,
        }
    }

    fn vcpu(&self, slot: usize, shared: &Shared, until: Ns) -> Vcpu {
        let raw = self.vcpus.get(slot);
        let gone = raw.gone != 0;
        let until = if gone { raw.since as Ns } else { until };
        let mut open = tiles(&raw.open);
        let last = until - raw.since as Ns;
        let mut guest = raw.guest as Ns;
        match VcpuState::ALL[raw.state as usize % TILES] {
            VcpuState::Guest => guest += last,
            state => *open.of(state) += last,
        }
        let mut reasons: Vec<Reason> = Vec::new();
        for at in NO_ROW..REASONS {
            let row = self.rows.get(slot * REASONS + at);
            let is_open = raw.row as usize == at;
            if row.took.count == 0 && row.tiles.iter().all(|ns| *ns == 0) && !(is_open && open.sum() > 0) {
                continue;
            }
            let mut reason = reason(&row, (at != NO_ROW).then(|| shared.reasons[at]), shared.isa);
            if is_open {
                reason.tiles.add(open);
            }
            reasons.push(reason);
        }
        reasons.sort_by_key(|reason| std::cmp::Reverse(reason.tiles.sum()));
        let mut tiles = VcpuTimes { guest_ns: guest, ..VcpuTimes::default() };
        reasons.iter().for_each(|reason| tiles.add(reason.tiles));
        let mut vcpu = Vcpu {
            tid: raw.tid,
            pid: raw.tgid,
            id: (raw.id != NO_ID).then_some(raw.id),
            from: raw.from as Ns,
            until,
            gone,
            tiles,
            entries: raw.entries,
            exits: raw.exits,
            to_qemu: raw.to_user,
            halts: raw.halts,
            slept: raw.waits,
            injected: self.programs.has("injected").then_some(raw.injected),
            interrupts: self.programs.has("accepts").then(|| interrupts(&self.interrupts.get(slot))),
            events: Vec::new(),
            skipped: raw.skipped,
            reasons,
        };
        vcpu.events = self.counting.as_ref().map_or_else(Vec::new, |counting| counting.of_vcpu(slot, &vcpu));
        self.settle(&mut vcpu);
        vcpu
    }

    /// Takes the state of a vCPU without events from /proc, if it was the same at the start and at the end of the
    /// watch.
    fn settle(&self, vcpu: &mut Vcpu) {
        if vcpu.tiles.sum() != vcpu.tiles.not_known_ns {
            return;
        }
        let (before, now) = (self.looked.get(&vcpu.tid), look(vcpu.pid, vcpu.tid));
        if let (Some(before), Some(now)) = (before, now) {
            if *before == now {
                *vcpu.tiles.of(now) += std::mem::take(&mut vcpu.tiles.not_known_ns);
                vcpu.reasons.clear();
            }
        }
    }
}

impl Loaded {
    /// Passes the known vCPUs to the programs. `put` maps a TID to its slot.
    fn announce(&self, known: &[Known], put: impl Fn(u32, u32) -> Result<(), StartError>) -> Result<(), StartError> {
        let mut shared = self.shared.get(0);
        shared.next_row = 1 + NO_ROW as u32;
        shared.next_slot = 1 + known.len() as u32;
        for (slot, vcpu) in (1..).zip(known) {
            let mut raw = self.vcpus.get(slot as usize);
            (raw.tid, raw.tgid, raw.id) = (vcpu.tid, vcpu.pid, vcpu.id.unwrap_or(NO_ID));
            self.vcpus.set(slot as usize, raw);
            put(vcpu.tid, slot)?;
            shared.marks[(vcpu.tid >> 6) as usize % MARKS] |= 1 << (vcpu.tid & 63);
        }
        self.shared.set(0, shared);
        Ok(())
    }
}

fn known(vm: &Vm) -> impl Iterator<Item = Known> + '_ {
    let vcpus = vm.threads.iter().filter(|thread| thread.role == Role::Vcpu);
    vcpus.map(|thread| Known { tid: thread.tid, pid: vm.pid, id: thread.vcpu })
}

/// The current state of a thread; `None` if it cannot be determined with certainty.
fn look(pid: u32, tid: u32) -> Option<VcpuState> {
    let stat = Stat::read(&Root::of(Path::new("/")), &format!("proc/{pid}/task/{tid}"))?;
    match stat.state {
        'S' | 'D' => Some(VcpuState::Asleep),
        _ if stat.flags & PF_VCPU != 0 => Some(VcpuState::Guest),
        _ => None,
    }
}

fn tiles(raw: &[u64; TILES]) -> VcpuTimes {
    let mut tiles = VcpuTimes::default();
    for (tile, ns) in VcpuState::ALL.into_iter().zip(raw) {
        *tiles.of(tile) = *ns as Ns;
    }
    tiles
}

fn interrupts(raw: &RawInterrupts) -> Interrupts {
    let counts = raw.accepted.iter().zip(&raw.posted).map(|(accepted, posted)| (*accepted, *posted));
    let vectors = (0..=u8::MAX).zip(counts).filter(|(_, (accepted, _))| *accepted > 0).collect();
    let nmis = raw.modes[NMI];
    // Interrupts of the first two delivery modes have vectors.
    Interrupts { vectors, nmis, other: raw.modes[2..].iter().sum::<u64>() - nmis }
}

fn reason(row: &RawRow, code: Option<u32>, isa: u32) -> Reason {
    let took = latpath_bpf::histogram!(row.took);
    Reason { isa: if code.is_some() { isa } else { 0 }, code, took, tiles: tiles(&row.tiles) }
}
