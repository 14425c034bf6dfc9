//! A window with all names that are needed to read it elsewhere, later.

use crate::names::{Names, Thread};
use crate::window::Window;
use std::collections::BTreeMap;

/// A [`Window`], and the names of what it gives as numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// What happened, in the machine's own `CLOCK_MONOTONIC`.
    pub window: Window,
    /// Threads of which anything is told in the window.
    pub threads: BTreeMap<u32, Thread>,
    /// Interrupts likewise, as /proc/interrupts calls them.
    pub irqs: BTreeMap<u32, String>,
    /// Functions of timers and works likewise, by address.
    pub functions: BTreeMap<u64, String>,
    /// What the machine's kernel does not tell: lines for people.
    pub missing: Vec<String>,
}

impl Snapshot {
    /// The names, as they were.
    pub fn names(&self) -> Names<'static> {
        Names::told(self.threads.clone(), self.irqs.clone(), self.functions.clone())
    }
}
