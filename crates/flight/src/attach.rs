//! Loading the programs, and attaching those that this kernel takes.

use crate::hooks::{Scope, NEEDED};
use crate::layout::{Head, RawEvent, RawName, NAMES};
use crate::skel::{FlightSkel, FlightSkelBuilder};
use latpath_bpf::{listen, Hooks, Mapped, Programs, Purpose, StartError};
use latpath_linux::{proc::line, Cpus};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

/// Events that `bytes` of memory hold: 1 << this.
pub(crate) fn shift(bytes: usize) -> u32 {
    (bytes.clamp(64 << 10, 256 << 20) / size_of::<RawEvent>()).ilog2()
}

const PURPOSE: Purpose = Purpose("record what CPUs do");

/// The attached programs. They end with this value, even after kill -9: their file descriptors keep them attached.
pub(crate) struct Attached {
    pub programs: Programs,
    pub ring: Mapped<RawEvent>,
    pub heads: Mapped<Head>,
    pub names: Mapped<RawName>,
    /// CPUs that may ever be there.
    pub cpus: usize,
    pub rings: usize,
}

/// The highest CPU of a list.
fn last(list: &str) -> Option<usize> {
    list.parse::<Cpus>().ok()?.iter().max().map(|cpu| cpu as usize)
}

/// CPUs that get a ring: machines that could have hundreds of CPUs more than they have must not pay for them.
fn rings(cpus: usize) -> usize {
    last(&line("/sys/devices/system/cpu/online")).map_or(cpus, |last| last + 1).min(cpus)
}

/// Loads the programs of `hooks`.
fn load<'s>(
    storage: &'s mut MaybeUninit<libbpf_rs::OpenObject>,
    hooks: &Hooks,
    shift: u32,
    (cpus, rings): (usize, usize),
) -> Result<FlightSkel<'s>, StartError> {
    listen();
    let mut open = FlightSkelBuilder::default().open(storage).map_err(PURPOSE.refused("reading the programs"))?;
    open.maps.rodata_data.as_deref_mut().expect("the programs have constants").ring_shift = shift;
    let sized = open.maps.ring.set_max_entries((rings as u32) << shift);
    sized.and_then(|()| open.maps.heads.set_max_entries(cpus as u32)).map_err(PURPOSE.refused("sizing the rings"))?;
    hooks.choose(open.open_object_mut());
    open.load().map_err(PURPOSE.refused("loading the programs"))
}

/// Loads and attaches the programs that this kernel accepts; the others are reported as missing.
pub(crate) fn attach(shift: u32, scope: Scope) -> Result<Attached, StartError> {
    let mut hooks = Hooks::of_kernel(scope.hooks())?;
    let cpus = libbpf_rs::num_possible_cpus().map_err(PURPOSE.refused("counting CPUs"))?;
    let rings = rings(cpus);
    let loaded = hooks.load(
        |hooks| hooks.stands_at(NEEDED),
        |hooks| {
            let mut storage = MaybeUninit::uninit();
            let skel = load(&mut storage, hooks, shift, (cpus, rings))?;
            let heads = Mapped::new(&skel.maps.heads.as_fd(), cpus)?;
            for cpu in 0..cpus {
                // Generations count from 1, so that memory nobody has written to is no event.
                heads.set_field::<u64>(cpu, 0, 1 << shift);
            }
            let (ring, names) =
                (Mapped::new(&skel.maps.ring.as_fd(), rings << shift)?, Mapped::new(&skel.maps.names.as_fd(), NAMES)?);
            Ok((hooks.attach(skel.object())?, ring, heads, names))
        },
    );
    // Without switches there is nothing to record.
    let no_switches = |why| PURPOSE.refusal("which thread runs", why);
    let (standing, ring, heads, names) = match loaded {
        Ok(loaded) => loaded,
        Err((error, said)) => return Err(if hooks.stands_at(NEEDED) { error } else { no_switches(said) }),
    };
    if !hooks.stands_at(NEEDED) {
        return Err(no_switches("it would not be attached".into()));
    }
    Ok(Attached { programs: Programs::new(standing, hooks, false)?, ring, heads, names, cpus, rings })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_power_of_two_of_events_within_bounds() {
        assert_eq!((shift(1 << 20), shift((1 << 21) - 1), shift(0), shift(usize::MAX)), (15, 15, 11, 23));
    }

    #[test]
    fn rings_are_for_cpus_that_are_there() {
        let all = ["0\n", "0-3", "0-3,8-11,15", "", "0-x"].map(last);
        assert_eq!(all, [Some(0), Some(3), Some(15), None, None]);
    }
}
