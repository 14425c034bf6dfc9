//! The kernel's interpreter of pcap filters, for tests. Running it affects no packets.

use crate::attach::SearchError;
use crate::layout::{Trial, CAPTURE};
use crate::pcap::Code;
use crate::skel::PathSkelBuilder;
use latpath_bpf::{able, StartError};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// The loaded interpreter.
pub struct Interpreter {
    program: OwnedFd,
    code: MapHandle,
}

/// Name of the program in bpf/path.bpf.c.
const NAME: &str = "try_filter";

impl Interpreter {
    /// Loads the interpreter.
    ///
    /// # Errors
    /// If the kernel does not load it.
    pub fn load() -> Result<Self, SearchError> {
        able().map_err(StartError::from)?;
        latpath_bpf::listen();
        let mut storage = MaybeUninit::uninit();
        let refused = SearchError::refused;
        let mut open = PathSkelBuilder::default().open(&mut storage).map_err(refused)?;
        for mut program in open.open_object_mut().progs_mut() {
            // `decide` is needed too: the program array contains it.
            let this = program.name() == NAME || program.name() == "decide";
            program.set_autoload(this);
        }
        let skel = open.load().map_err(refused)?;
        let program = skel.object().progs().find(|p| p.name() == NAME).map(|p| p.as_fd().try_clone_to_owned());
        let program = program.expect("the program is in the object").map_err(|e| refused(e.into()))?;
        Ok(Self { program, code: MapHandle::try_from(&skel.maps.code).map_err(refused)? })
    }

    /// Runs a filter on a frame; returns its result, 0 for "no match".
    ///
    /// # Errors
    /// If the frame is longer than the part visible to filters, or the kernel does not run the program.
    pub fn run(&self, code: &Code, frame: &[u8]) -> std::io::Result<u32> {
        if frame.len() > CAPTURE {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        let filled = self.code.update(&0u32.to_ne_bytes(), &code.bytes(), MapFlags::ANY);
        filled.map_err(|e| std::io::Error::other(e.to_string()))?;
        let mut trial = Trial { len: frame.len() as u32, verdict: 0, frame: [0; CAPTURE] };
        trial.frame[..frame.len()].copy_from_slice(frame);
        latpath_bpf::trial::run(&self.program, &mut trial)?;
        Ok(trial.verdict)
    }
}
