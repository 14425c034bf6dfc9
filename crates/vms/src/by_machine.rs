//! The virtual machines of several hosts.

use crate::vm::{Thread, Vm};
use latpath_model::HOST;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Virtual machines by host. Thread IDs and device names are those of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VmsByMachine(BTreeMap<String, Vec<Vm>>);

impl VmsByMachine {
    /// The virtual machines that run on a machine.
    pub fn of(&self, machine: &str) -> &[Vm] {
        self.0.get(machine).map_or(&[], Vec::as_slice)
    }

    /// Sets the virtual machines that run on a machine.
    pub fn set(&mut self, machine: &str, vms: Vec<Vm>) {
        match vms.is_empty() {
            true => drop(self.0.remove(machine)),
            false => drop(self.0.insert(machine.to_owned(), vms)),
        }
    }

    /// The virtual machine to which a thread belongs, and the thread with its role.
    pub fn of_thread(&self, machine: &str, tid: u32) -> Option<(&Vm, &Thread)> {
        let is_it = |thread: &&Thread| thread.tid == tid && tid != 0;
        self.of(machine).iter().find_map(|vm| Some((vm, vm.threads.iter().find(is_it)?)))
    }

    /// Names of the machines that run virtual machines.
    pub fn machines(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// Assigns the virtual machines to the host (the machine named `host`).
impl From<Vec<Vm>> for VmsByMachine {
    fn from(vms: Vec<Vm>) -> Self {
        let mut all = Self::default();
        all.set(HOST, vms);
        all
    }
}
