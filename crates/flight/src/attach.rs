//! Loading the programs, and attaching those that this kernel takes.

use crate::hooks::{HOOKS, NEEDED};
use crate::layout::{Head, RawEvent, RawName, NAMES};
use crate::skel::{FlightSkel, FlightSkelBuilder};
use latpath_bpf::{accused, attach_program, last_words, listen, release, Hooks, Mapped, Missing, Unable};
use latpath_linux::{proc::line, Cpus};
use libbpf_rs::btf::Btf;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// Events that `bytes` of memory hold: 1 << this.
pub(crate) fn shift(bytes: usize) -> u32 {
    (bytes.clamp(64 << 10, 256 << 20) / size_of::<RawEvent>()).ilog2()
}

/// Why nothing is recorded.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// This kernel or user cannot.
    #[error(transparent)]
    Unable(#[from] Unable),
    /// Without switches there is nothing to record.
    #[error("kernel {release} does not say which thread runs ({why}): nothing can be recorded")]
    NoSwitches {
        /// `uname -r`.
        release: String,
        /// What it said.
        why: String,
    },
    /// The kernel refused a program or map.
    #[error("kernel {release} refused the recorder ({step}): {why}")]
    Refused {
        /// `uname -r`.
        release: String,
        /// What was being done.
        step: &'static str,
        /// What it said.
        why: String,
    },
    /// Memory, a descriptor or a thread.
    #[error("the system has no room for the recorder: {0}")]
    System(#[from] std::io::Error),
}

/// A program that stands.
pub(crate) struct Program {
    pub name: &'static str,
    pub fd: OwnedFd,
}

/// What runs in the kernel. All goes with it: the file descriptors hold the programs in place, even after kill -9.
pub(crate) struct Attached {
    pub links: Vec<OwnedFd>,
    pub programs: Vec<Program>,
    pub missing: Vec<Missing>,
    pub ring: Mapped<RawEvent>,
    pub heads: Mapped<Head>,
    pub names: Mapped<RawName>,
    /// CPUs that may ever be there.
    pub cpus: usize,
    /// Those that have a ring.
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

fn refused<E: std::fmt::Display>(step: &'static str) -> impl FnOnce(E) -> StartError {
    move |e| {
        let why = match last_words() {
            said if said.is_empty() => e.to_string(),
            said => format!("{e}: {said}"),
        };
        StartError::Refused { release: release(), step, why }
    }
}

/// Loads what `hooks` says.
fn load<'s>(
    storage: &'s mut MaybeUninit<libbpf_rs::OpenObject>,
    hooks: &Hooks,
    shift: u32,
    (cpus, rings): (usize, usize),
) -> Result<FlightSkel<'s>, StartError> {
    listen();
    let mut open = FlightSkelBuilder::default().open(storage).map_err(refused("reading the programs"))?;
    open.maps.rodata_data.as_deref_mut().expect("the programs have constants").ring_shift = shift;
    let sized = open.maps.ring.set_max_entries((rings as u32) << shift);
    sized.and_then(|()| open.maps.heads.set_max_entries(cpus as u32)).map_err(refused("sizing the rings"))?;
    for mut program in open.open_object_mut().progs_mut() {
        program.set_autoload(program.name().to_str().is_some_and(|name| hooks.has(name)));
    }
    open.load().map_err(refused("loading the programs"))
}

/// Loads and attaches what this kernel takes; what it refuses is missing.
pub(crate) fn attach(shift: u32) -> Result<Attached, StartError> {
    latpath_bpf::able()?;
    let btf = Btf::from_vmlinux().map_err(Unable::BadBtf)?;
    let mut hooks = Hooks::find(&HOOKS, &btf);
    drop(btf);
    let cpus = libbpf_rs::num_possible_cpus().map_err(refused("counting CPUs"))?;
    let rings = rings(cpus);
    loop {
        let mut storage = MaybeUninit::uninit();
        let loaded = load(&mut storage, &hooks, shift, (cpus, rings));
        let skel = match loaded {
            Ok(skel) => skel,
            Err(error) => {
                let said = last_words();
                // One program less, each time.
                if accused(&said).is_some_and(|program| hooks.without(program, said.clone())) {
                    if hooks.stands_at(NEEDED) {
                        continue;
                    }
                    return Err(StartError::NoSwitches { release: release(), why: said });
                }
                return Err(error);
            }
        };
        let heads = Mapped::new(&skel.maps.heads.as_fd(), cpus)?;
        for cpu in 0..cpus {
            // Generations count from 1, so that memory nobody has written to is no event.
            heads.set_field::<u64>(cpu, 0, 1 << shift);
        }
        let mut attached = Attached {
            links: Vec::new(),
            programs: Vec::new(),
            missing: Vec::new(),
            ring: Mapped::new(&skel.maps.ring.as_fd(), rings << shift)?,
            heads,
            names: Mapped::new(&skel.maps.names.as_fd(), NAMES)?,
            cpus,
            rings,
        };
        for program in skel.object().progs_mut() {
            let name = hooks.programs.iter().copied().find(|p| program.name().to_str() == Some(p));
            let Some(name) = name else { continue };
            match attach_program(program.as_fd()) {
                Ok(link) => {
                    attached.links.push(link);
                    attached.programs.push(Program { name, fd: program.as_fd().try_clone_to_owned()? });
                }
                Err(e) => drop(hooks.without(name, e.to_string())),
            }
        }
        if !attached.programs.iter().any(|p| p.name.starts_with("switch_")) {
            return Err(StartError::NoSwitches { release: release(), why: "it would not be attached".into() });
        }
        attached.missing = hooks.missing;
        return Ok(attached);
    }
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
