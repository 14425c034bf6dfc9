//! The VMs that a window covers.

use crate::StartError;
use latpath_vms::{VhostUser, Vm};
use std::collections::BTreeSet;

/// The VMs that a window covers: all VMs of this host, including those that start later, or selected ones.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// All VMs of this host found so far, including those that have ended.
    known: Vec<Vm>,
    /// Processes of the selected VMs; `None` for all VMs.
    chosen: Option<BTreeSet<u32>>,
}

impl Scope {
    /// The VMs with these names or process ids; all if `names` is empty.
    ///
    /// # Errors
    /// If the search for VMs fails, or no VM has one of the names.
    pub fn of(names: &[String]) -> Result<Self, StartError> {
        let known = latpath_vms::find()?.vms;
        let is = |vm: &Vm, name: &String| vm.name == *name || vm.pid.to_string() == *name;
        if let Some(unknown) = names.iter().find(|name| !known.iter().any(|vm| is(vm, name))) {
            let names: Vec<&str> = known.iter().map(|vm| vm.name.as_str()).collect();
            let names = if names.is_empty() { "none runs here".into() } else { names.join(", ") };
            return Err(StartError::Usage(format!("--vm {unknown}: no such VM ({names})")));
        }
        let is_meant = |vm: &&Vm| names.iter().any(|name| is(vm, name));
        let chosen = (!names.is_empty()).then(|| known.iter().filter(is_meant).map(|vm| vm.pid).collect());
        Ok(Self { known, chosen })
    }

    /// A scope without VMs.
    pub fn nothing() -> Self {
        Self { known: Vec::new(), chosen: Some(BTreeSet::new()) }
    }

    /// Whether the window covers only selected VMs.
    pub fn is_limited(&self) -> bool {
        self.chosen.is_some()
    }

    /// Whether the window covers the VM of this process.
    pub fn includes(&self, pid: u32) -> bool {
        self.chosen.as_ref().is_none_or(|chosen| chosen.contains(&pid))
    }

    /// The VMs found so far that the window covers.
    pub fn vms(&self) -> impl Iterator<Item = &Vm> + Clone {
        self.known.iter().filter(|vm| self.includes(vm.pid))
    }

    /// All VMs of this host found so far, in order to look up their names.
    pub fn known(&self) -> &[Vm] {
        &self.known
    }

    /// Notes on the VMs' NICs that a program in user space serves; no kernel event shows the host's side of these.
    pub fn vhost_user_notes(&self) -> Vec<String> {
        let of = |vm: &Vm| {
            let note = |nic: &VhostUser| {
                format!(
                    "{}: its NIC at {} is served by {} in user space (vhost-user): the host's side of its queues is not \
                     seen; observe the guest itself, which sees its driver's side",
                    vm.name,
                    nic.socket,
                    nic.served_by()
                )
            };
            vm.vhost_user.iter().map(note).collect::<Vec<_>>()
        };
        self.vms().flat_map(of).collect()
    }

    /// Adds the VMs that started since the last search.
    pub fn refresh(&mut self) {
        for vm in latpath_vms::find().map(|found| found.vms).unwrap_or_default() {
            if !self.known.iter().any(|known| known.pid == vm.pid) {
                self.known.push(vm);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_scope_knows_all_vms_and_is_about_the_chosen_ones() {
        let vm = |pid| Vm { pid, ..Vm::default() };
        let scope = Scope { known: vec![vm(1), vm(2)], chosen: Some([2, 3].into()) };
        assert_eq!((scope.vms().map(|vm| vm.pid).collect::<Vec<_>>(), scope.known().len()), (vec![2], 2));
        assert!(scope.is_limited() && scope.includes(2) && !scope.includes(1));
        let all = Scope { chosen: None, ..scope };
        assert_eq!((all.vms().count(), all.is_limited(), all.includes(9)), (2, false, true));
        assert_eq!(Scope::nothing().vms().count(), 0);
    }

    #[test]
    fn a_name_that_no_vm_has_is_wrong_usage() {
        let error = Scope::of(&["no-vm-has-this-name".into()]).expect_err("there is none");
        assert!(matches!(&error, StartError::Usage(why) if why.contains("--vm no-vm-has-this-name: no such VM (")));
    }
}
