//! Loads the programs, and attaches those that this kernel supports.

use crate::hooks::{Scope, NEEDED};
use crate::layout::{Allowance, Head, RawEvent, RawName, NAMES};
use crate::skel::{FlightSkel, FlightSkelBuilder};
use latpath_bpf::{Hooks, Mapped, Programs, Purpose, StartError};
use latpath_linux::{proc::line, Cpus};
use libbpf_rs::skel::Skel;
use libbpf_rs::MapHandle;
use std::mem::offset_of;
use std::os::fd::AsFd;

/// Base-2 logarithm of the number of events that fit into `bytes` of memory.
pub(crate) fn shift(bytes: usize) -> u32 {
    (bytes.clamp(64 << 10, 256 << 20) / size_of::<RawEvent>()).ilog2()
}

const PURPOSE: Purpose = Purpose("record what CPUs do");

/// The attached programs. Only file descriptors keep them attached, so they are detached when the process ends, even
/// after kill -9.
pub(crate) struct Attached {
    pub programs: Programs,
    /// Mapping for readers of windows.
    pub memory: Memory,
    /// Separate mapping for the thread that enforces the budget, so that it never waits for readers.
    pub keepers: Memory,
    pub allowance: Mapped<Allowance>,
    /// Ring buffer that gets one entry each time the budget is used up.
    pub stops: MapHandle,
    pub names: Mapped<RawName>,
}

/// The memory to which the programs write events.
pub(crate) struct Memory {
    pub ring: Mapped<RawEvent>,
    pub heads: Mapped<Head>,
    /// Number of possible CPUs.
    pub cpus: usize,
    /// Number of CPUs with a ring.
    pub rings: usize,
    /// Base-2 logarithm of the number of events per ring.
    pub shift: u32,
}

impl Memory {
    fn of(skel: &FlightSkel<'_>, cpus: usize, rings: usize, shift: u32) -> std::io::Result<Self> {
        let heads = Mapped::new(&skel.maps.heads.as_fd(), cpus)?;
        let ring = Mapped::new(&skel.maps.ring.as_fd(), rings << shift)?;
        Ok(Self { ring, heads, cpus, rings, shift })
    }
}

/// The highest CPU of a list.
fn last(list: &str) -> Option<usize> {
    list.parse::<Cpus>().ok()?.iter().max().map(|cpu| cpu as usize)
}

/// Number of CPUs that get a ring. Machines may have hundreds of possible CPUs that do not exist, so only those up to
/// the last online CPU get one.
fn rings(cpus: usize) -> usize {
    last(&line("/sys/devices/system/cpu/online")).map_or(cpus, |last| last + 1).min(cpus)
}

/// Loads and attaches the programs that this kernel accepts; the others are reported as missing.
pub(crate) fn attach(shift: u32, scope: Scope) -> Result<Attached, StartError> {
    let mut hooks = Hooks::of_kernel(scope.hooks())?;
    let cpus = libbpf_rs::num_possible_cpus().map_err(PURPOSE.refused("counting CPUs"))?;
    let rings = rings(cpus);
    let loaded = PURPOSE.load::<FlightSkelBuilder, _>(
        &mut hooks,
        |hooks| hooks.stands_at(NEEDED),
        |open, _| {
            let constants = open.maps.rodata_data.as_deref_mut().expect("the programs have constants");
            constants.ring_shift = shift;
            constants.is_for_doors = scope == Scope::Door;
            open.maps.ring.set_max_entries((rings as u32) << shift)?;
            open.maps.heads.set_max_entries(cpus as u32)
        },
        |skel, hooks| {
            let memory = || Memory::of(skel, cpus, rings, shift);
            let (memory, keepers) = (memory()?, memory()?);
            for cpu in 0..cpus {
                // Generations start at 1, so that memory that was never written is not taken for an event.
                memory.heads.set_field::<u64>(cpu, offset_of!(Head, next), 1 << shift);
                memory.heads.set_field(cpu, offset_of!(Head, limit), u64::MAX);
            }
            let names = Mapped::new(&skel.maps.names.as_fd(), NAMES)?;
            let allowance = Mapped::new(&skel.maps.allowance.as_fd(), 1)?;
            let stops = MapHandle::try_from(&skel.maps.stops).map_err(PURPOSE.refused("reading the budget"))?;
            Ok((hooks.attach(skel.object())?, memory, keepers, (names, allowance, stops)))
        },
    );
    // A record without thread switches is useless.
    let no_switches = |why| PURPOSE.refusal("which thread runs", why);
    let (attached, memory, keepers, (names, allowance, stops)) = match loaded {
        Ok(loaded) => loaded,
        Err((error, said)) => return Err(if hooks.stands_at(NEEDED) { error } else { no_switches(said) }),
    };
    if !hooks.stands_at(NEEDED) {
        return Err(no_switches("it would not be attached".into()));
    }
    Ok(Attached { programs: Programs::new(attached, hooks, false)?, memory, keepers, allowance, stops, names })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_power_of_two_of_events_within_bounds() {
        assert_eq!((shift(1 << 20), shift((1 << 21) - 1), shift(0), shift(usize::MAX)), (15, 15, 11, 23));
    }

    #[test]
    fn rings_exist_for_existing_cpus_only() {
        let all = ["0\n", "0-3", "0-3,8-11,15", "", "0-x"].map(last);
        assert_eq!(all, [Some(0), Some(3), Some(15), None, None]);
    }
}
