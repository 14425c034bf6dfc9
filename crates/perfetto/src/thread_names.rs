//! Names of a machine's threads and processes.

use crate::proto::{Data, Process, ProcessTree, Thread};
use crate::writer::Writer;
use latpath_flight::Snapshot;
use latpath_vms::{Role, Vm};
use std::collections::{HashMap, HashSet};
use std::io;

/// Pseudo-TID for gaps in the record; no kernel assigns it.
pub(crate) const NOT_RECORDED: u32 = i32::MAX as u32;

/// The known threads of a machine.
#[derive(Default)]
pub(crate) struct ThreadNames {
    threads: HashMap<u32, (String, u32)>,
    processes: HashSet<u32>,
}

/// Name of a virtual machine's thread: thread name, role and guest.
fn for_guest(vm: &Vm, thread: &latpath_vms::Thread, comm: &str) -> String {
    match (thread.role, thread.vcpu) {
        (Role::Vcpu, Some(vcpu)) if !comm.ends_with("/KVM") => format!("CPU {vcpu}/KVM {}", vm.name),
        (Role::Vcpu, None) if !comm.ends_with("/KVM") => format!("CPU ?/KVM {}", vm.name),
        (Role::MainLoop, _) => format!("{comm} main loop {}", vm.name),
        (Role::Io, _) => format!("{comm} I/O {}", vm.name),
        _ => format!("{comm} {}", vm.name),
    }
}

impl ThreadNames {
    /// The process of a thread, if known.
    pub fn process(&self, tid: u32) -> Option<u32> {
        self.threads.get(&tid).map(|(_, process)| *process)
    }

    /// Displayed name of a thread.
    pub fn name(&self, tid: u32) -> String {
        match tid {
            0 => "swapper".into(),
            NOT_RECORDED => "(not recorded)".into(),
            tid => self.threads.get(&tid).map_or_else(|| format!("thread {tid}"), |(name, _)| name.clone()),
        }
    }

    /// Adds the names in a snapshot, and writes the new ones. `vms`: the VMs on this machine; `guest`: the machine's
    /// name if it is a guest.
    pub fn learn(
        &mut self,
        out: &mut Writer,
        machine: usize,
        t: u64,
        snapshot: &Snapshot,
        vms: &[Vm],
        guest: Option<&str>,
    ) -> io::Result<()> {
        let mut tree = ProcessTree::default();
        let of_vm: HashMap<u32, (&Vm, &latpath_vms::Thread)> =
            vms.iter().flat_map(|vm| vm.threads.iter().map(move |thread| (thread.tid, (vm, thread)))).collect();
        for (tid, thread) in &snapshot.threads {
            // The TID may have been reused since the VMs were found.
            let vm = of_vm.get(tid).filter(|(vm, known)| known.kernel || thread.tgid == vm.pid);
            let name = vm.map_or_else(|| thread.name.clone(), |(vm, known)| for_guest(vm, known, &thread.name));
            let (Ok(number), Ok(process)) = (i32::try_from(*tid), i32::try_from(thread.tgid)) else { continue };
            let entry = (name, thread.tgid);
            if *tid == 0 || *tid == NOT_RECORDED || self.threads.get(tid) == Some(&entry) {
                continue;
            }
            if self.processes.insert(thread.tgid) {
                let vm = vms.iter().find(|vm| vm.pid == thread.tgid);
                let first = snapshot.threads.get(&thread.tgid).map(|first| first.name.clone());
                let name = vm.map(|vm| format!("{}:{}", vm.program, vm.name)).or(first);
                // For a machine whose names it does not know, Perfetto shows only numbers, so the guest's name is part
                // of the process name.
                let name = match guest {
                    Some(guest) => Some(format!("{guest}:{}", name.unwrap_or_else(|| thread.tgid.to_string()))),
                    None => name,
                };
                // Perfetto cuts a name at the first space.
                let cmdline = name.map(|name| name.replace(' ', "_")).into_iter().collect();
                tree.processes.push(Process { pid: Some(process), cmdline });
            }
            tree.threads.push(Thread { tid: Some(number), name: Some(entry.0.clone()), tgid: Some(process) });
            self.threads.insert(*tid, entry);
        }
        match tree.threads.is_empty() {
            true => Ok(()),
            false => out.packet(machine, Some(t), Data::ProcessTree(tree)),
        }
    }
}

/// Name of an interrupt.
pub(crate) fn irq_name(snapshot: &Snapshot, irq: u32) -> String {
    snapshot.irqs.get(&irq).map_or_else(|| format!("irq {irq}"), |name| format!("{irq} {name}"))
}
