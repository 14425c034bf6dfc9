//! Resolves names for the numbers that the programs report.

use crate::functions::Function;
use latpath_bpf::{Functions, Reasons};
use latpath_net::{namespace_names, namespace_owner};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct Names {
    functions: HashMap<u64, String>,
    // Read only at the first drop, because drops are rare.
    all: OnceCell<Arc<Functions>>,
    reasons: OnceCell<Reasons>,
    namespaces: RefCell<HashMap<u32, String>>,
}

impl Names {
    /// Starts with the names of these functions; others are resolved on demand.
    pub fn new(functions: &[Function]) -> Self {
        Self {
            functions: functions.iter().map(|f| (f.address, f.name.clone())).collect(),
            namespaces: RefCell::new(namespace_names()),
            ..Self::default()
        }
    }

    /// Name of the function at this address.
    pub fn function(&self, address: u64) -> String {
        self.functions.get(&address).cloned().unwrap_or_else(|| self.near(address))
    }

    pub fn near(&self, address: u64) -> String {
        self.all.get_or_init(Functions::latest).name(address)
    }

    /// Name of a drop reason.
    pub fn reason(&self, reason: u32) -> String {
        // A reason has its subsystem's number in the upper 16 bits. `Reasons` packs it into 16 bits: 4 for the
        // subsystem, 12 for the reason.
        let packed = if reason >> 16 == 0 { reason } else { (reason >> 16 & 15) << 12 | reason & 0xfff };
        self.reasons.get_or_init(Reasons::read).name(packed as u16)
    }

    /// Name of a device, followed by its namespace if that is not this process's own.
    pub fn device(&self, device: &str, netns: u32) -> String {
        if !self.namespaces.borrow().contains_key(&netns) {
            // The namespace may have been named since. Otherwise, use the name of its container or unit, or else its
            // inode number.
            let mut known = namespace_names();
            known.entry(netns).or_insert_with(|| namespace_owner(netns).unwrap_or_else(|| netns.to_string()));
            self.namespaces.borrow_mut().extend(known);
        }
        match self.namespaces.borrow().get(&netns).map(String::as_str) {
            Some("") | None => device.into(),
            Some(name) => format!("{device}%{name}"),
        }
    }
}
