//! What a thread did in the kernel and what it waited for, from the recorder's rarer events.

use crate::{machine::Machine, Note};
use latpath_flight::EventKind;
use latpath_model::Ns;

/// Mean time between page faults, ns, up to which the faults dominate.
const FAULT_NS: Ns = 20_000;

/// Functions of the scheduler and of locks, which are skipped because their callers are more specific.
const SCHEDULER: [&str; 8] = [
    "bpf_",
    "__bpf_",
    "__traceiter_",
    "__schedule",
    "schedule",
    "io_schedule",
    "wait_for_completion",
    "__wait_for_common",
];
const LOCKS: [&str; 8] =
    ["rwsem_", "down_", "__down_", "mutex_", "__mutex_", "rt_mutex_", "__rt_mutex_", "percpu_rwsem_"];
/// Functions that take the memory map lock of a process.
const MEMORY_MAP: [&str; 12] = [
    "lock_mm_and_find_vma",
    "mmap_",
    "do_user_addr_fault",
    "vm_mmap_pgoff",
    "__vm_munmap",
    "do_mprotect_pkey",
    "do_madvise",
    "__do_sys_mremap",
    "__do_sys_brk",
    "dup_mm",
    "exit_mm",
    "madvise_",
];

/// A reason for waiting: prefixes of the functions that identify it, and its fix.
#[derive(Debug, PartialEq, Eq)]
pub struct Reason {
    functions: &'static [&'static str],
    pub(crate) what: &'static str,
    /// Fix; empty if none is known.
    fix: &'static str,
}

const OWN_THREAD: &str = "read and write files in a thread that packets do not wait for";
const LOCKED: &str = "have its memory in place: mlockall(MCL_CURRENT | MCL_FUTURE) before the first packet";
static REASONS: [Reason; 8] = [
    Reason { functions: &["jbd2_", "xlog_", "xfs_log_"], what: "the file system's journal", fix: OWN_THREAD },
    Reason {
        functions: &["reclaim_throttle", "throttle_direct_reclaim", "mem_cgroup_handle_over_high"],
        what: "memory to be freed",
        fix: LOCKED,
    },
    Reason {
        functions: &["balance_dirty_pages", "folio_wait_writeback", "wait_on_page_writeback", "__filemap_fdatawait"],
        what: "written pages to reach the disk",
        fix: OWN_THREAD,
    },
    Reason {
        functions: &["blk_mq_get_tag", "wbt_wait", "rq_qos_wait", "__bio_queue_enter"],
        what: "a place in the disk's queue",
        fix: OWN_THREAD,
    },
    Reason {
        functions: &["submit_bio_wait", "blkdev_issue_flush", "__iomap_dio_rw", "__blkdev_direct_IO", "iomap_dio"],
        what: "the disk",
        fix: OWN_THREAD,
    },
    Reason {
        functions: &["filemap_", "folio_wait_", "__folio_lock", "do_swap_page"],
        what: "a page from the disk",
        fix: LOCKED,
    },
    Reason {
        functions: &["kernel_clone", "__do_sys_vfork"],
        what: "its child to begin a program",
        fix: "start programs in a thread that packets do not wait for",
    },
    Reason { functions: &["synchronize_", "rcu_barrier"], what: "all CPUs to have gone on (RCU)", fix: "" },
];
static LOCK: Reason = Reason { functions: &LOCKS, what: "a lock of the kernel's", fix: "" };
static MAP_LOCK: Reason = Reason {
    functions: &MEMORY_MAP,
    what: "its process's memory map (mmap_lock)",
    fix: "do not map, unmap, protect or fork in the application's process while packets come: another thread of it did",
};
/// Functions that wait for block I/O.
const BLOCK_IO: [&str; 7] = ["io_schedule", "__iomap_", "iomap_", "submit_bio_", "blkdev_", "filemap_", "folio_wait_"];

fn begins(name: &str, starts: &[&str]) -> bool {
    starts.iter().any(|start| name.starts_with(start))
}

/// The reason for waiting, given the functions on the stack, the innermost first.
fn waited_for(functions: &[String]) -> Option<Note> {
    let at = functions.iter().position(|name| !begins(name, &SCHEDULER))?;
    let functions = &functions[at..];
    let is_lock = begins(&functions[0], &LOCKS);
    let function = functions.iter().find(|name| !begins(name, &LOCKS)).unwrap_or(&functions[0]);
    let named = |name: &String| REASONS.iter().find(|reason| begins(name, reason.functions));
    let reason = match functions.iter().find_map(named) {
        _ if is_lock && functions.iter().any(|name| begins(name, &MEMORY_MAP)) => &MAP_LOCK,
        _ if is_lock => &LOCK,
        Some(reason) => reason,
        None => return Some(format!("it waited in {function}").into()),
    };
    Some(Note::WaitedFor(reason, function.clone()))
}

/// Fix for the wait that this note describes.
pub(crate) fn fix(note: &Note) -> Option<&'static str> {
    match note {
        Note::WaitedFor(reason, _) => Some(reason.fix).filter(|fix| !fix.is_empty()),
        _ => None,
    }
}

impl Machine {
    /// Why a thread was blocked from `from` to `to`.
    pub fn why_blocked(&self, pid: u32, from: Ns, to: Ns) -> Option<Note> {
        let switch = |cpu| self.events(cpu, from, from + 1).iter().any(|e| e.pid == pid && is_switch(e.what));
        let cpu = self.cpus().find(|cpu| switch(*cpu))?;
        let before =
            self.events(cpu, Ns::MIN, from + 1).iter().rev().skip_while(|e| e.pid != pid || !is_switch(e.what));
        let mut functions: Vec<String> = Vec::new();
        for event in before.skip(1) {
            let EventKind::BlockedAt(two) = event.what else { break };
            let names = two.into_iter().filter(|at| *at != 0).map(|at| self.names.of_function(at));
            functions.splice(0..0, names);
        }
        let throttled = |what: EventKind| match what {
            EventKind::WorkStart(function) => self.names.of_function(function).starts_with("blk_throtl_"),
            _ => false,
        };
        let lets_go = |cpu| self.events(cpu, from, to).iter().any(|event| throttled(event.what));
        match functions.iter().any(|name| begins(name, &BLOCK_IO)) && self.cpus().any(lets_go) {
            true => Some(Note::ThrottledIo),
            false => waited_for(&functions),
        }
    }

    /// What a thread that ran from `from` to `to` did: notes with their starts, the latest first. `faults` applies to
    /// all of the time except direct reclaim.
    pub fn worked(&self, pid: u32, faults: &Option<Note>, from: Ns, to: Ns) -> Vec<(Ns, Option<Note>)> {
        let mut all = Vec::new();
        let mut end = to;
        for (begin, over) in self.reclaims(pid, from, to).into_iter().rev() {
            if over < end {
                all.push((over, faults.clone()));
            }
            all.push((begin.max(from), Some(Note::Reclaims)));
            end = begin;
        }
        if end > from {
            all.push((from, faults.clone()));
        }
        all
    }

    /// A note if page faults dominated the thread's time since it was switched in.
    pub fn page_faults(&self, pid: u32, cpu: u32, since: Ns) -> Option<Note> {
        let mut own = self.events(cpu, since, Ns::MAX).iter().filter(|event| event.pid == pid);
        let (count, end) = own.find_map(|event| match event.what {
            EventKind::PageFaults(count) => Some(Some((count, event.t))),
            EventKind::Switch { .. } => Some(None),
            _ => None,
        })??;
        let many = (end - since).max(0) / FAULT_NS < count.min(1 << 40) as Ns;
        many.then(|| Note::PageFaults(10_u64.pow(count.max(1).ilog10())))
    }
}

fn is_switch(what: EventKind) -> bool {
    matches!(what, EventKind::Switch { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_identify_the_object_of_a_wait() {
        let said = |functions: &str| waited_for(&functions.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for (functions, what) in [
            ("__schedule schedule rwsem_down_read_slowpath down_read do_user_addr_fault", MAP_LOCK.what),
            ("schedule rwsem_down_write_slowpath down_write ext4_buffered_write_iter", "a lock of the kernel's"),
            ("schedule jbd2_log_wait_commit ext4_sync_file", "the file system's journal"),
            ("io_schedule folio_wait_bit_common filemap_fault __do_fault", "a page from the disk"),
        ] {
            let note = said(functions).unwrap();
            assert!(note.to_string().starts_with(&format!("it waited for {what}, in ")), "{note}");
            assert_eq!(fix(&note).is_some(), what != "a lock of the kernel's", "{note}");
        }
        assert_eq!(said("schedule do_wait_for_something x"), Some("it waited in do_wait_for_something".into()));
        assert_eq!(waited_for(&[]), None);
    }
}
