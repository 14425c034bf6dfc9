//! Finds other threads that may run on a guest's CPUs.

use crate::vm::{Thread, Vm};
use latpath_linux::{
    proc::{cpus_allowed, Root, Stat, PF_KTHREAD},
    Cpus,
};

const MAX_THREADS: usize = 1 << 16;

/// Marks threads that have their CPUs to themselves. Kernel threads do not count as neighbours, because each CPU has
/// some; vhost workers do, because they work for a guest.
pub fn mark_alone(root: &Root, processes: &[u32], vms: &mut [Vm]) {
    let ours: Vec<(u32, Cpus)> =
        vms.iter().flat_map(|vm| &vm.threads).map(|thread| (thread.tid, thread.cpus_allowed.clone())).collect();
    let mut left: Vec<&mut Thread> = vms.iter_mut().flat_map(|vm| &mut vm.threads).collect();
    left.retain(|thread| !ours.iter().any(|(tid, cpus)| *tid != thread.tid && cpus.overlaps(&thread.cpus_allowed)));
    for pid in processes {
        // Without pinning, the search ends at the first process.
        if left.is_empty() {
            return;
        }
        if Stat::read(root, &format!("proc/{pid}")).is_none_or(|stat| stat.flags & PF_KTHREAD != 0) {
            continue;
        }
        let tids = root.numbers(&format!("proc/{pid}/task"), MAX_THREADS).unwrap_or_default();
        for tid in tids.into_iter().filter(|tid| ours.iter().all(|(our, _)| our != tid)) {
            if let Some(cpus) = cpus_allowed(root, &format!("proc/{pid}/task/{tid}")) {
                left.retain(|thread| !cpus.overlaps(&thread.cpus_allowed));
            }
        }
    }
    for thread in left {
        thread.alone = true;
    }
}
