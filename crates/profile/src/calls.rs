//! System calls of processes: number and duration, by thread and call.

use crate::layout::{Call, CallTime, Shared};
use crate::sampler::text;
use latpath_bpf::{bytes_of, entries, from_bytes, Mapped};
use latpath_model::Ns;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::borrow::Cow;
use std::collections::hash_map::{Entry, HashMap};
use std::mem::offset_of;
use std::path::Path;
use syscalls::Sysno;

/// Maximum number of entries of the kernel's table, one for each thread and call.
pub(crate) const MAX_CALLS: u32 = 1 << 15;
/// Maximum number of sums of ended threads' calls, one for each process, thread name and system call.
const MAX_ENDED: usize = 1 << 15;

/// System call number of `ioctl`.
const IOCTL: usize = Sysno::ioctl as usize;

/// KVM requests that threads of a running VM make (include/uapi/linux/kvm.h): the low 16 bits (type and number), and
/// the name.
const KVM_REQUESTS: [(u32, &str); 4] =
    [(0xae80, "KVM_RUN"), (0xaea5, "KVM_SIGNAL_MSI"), (0xae61, "KVM_IRQ_LINE"), (0xae67, "KVM_IRQ_LINE_STATUS")];

/// Totals of one system call in one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFigures {
    /// The process.
    pub tgid: u32,
    /// The thread; 0: all ended threads of this name together.
    pub tid: u32,
    /// The thread's name.
    pub comm: String,
    /// The system call's name; for an ioctl, with its request.
    pub call: String,
    /// Calls that began and ended in the window.
    pub count: u64,
    /// Number of calls that began and ended in the window.
    pub ns: Ns,
    /// Duration of the longest call, ns.
    pub longest_ns: Ns,
    /// Number of calls that returned an error.
    pub failed: u64,
}

impl CallFigures {
    fn of(key: &Call, time: &CallTime) -> Self {
        Self {
            tgid: key.tgid,
            tid: key.tid,
            comm: text(&time.comm),
            call: name(key.nr),
            count: time.count,
            ns: time.ns as Ns,
            longest_ns: time.longest as Ns,
            failed: time.failed,
        }
    }

    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.ns += other.ns;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        self.failed += other.failed;
    }
}

/// The kernel's table of system calls, and sums of the calls of ended threads.
pub(crate) struct Calls {
    table: MapHandle,
    ended: Ended,
}

impl Calls {
    pub fn new(table: MapHandle) -> Self {
        Self { table, ended: Ended::default() }
    }

    /// Moves entries of ended threads out of the table once it is half full: a thread pool may keep starting threads.
    pub fn make_room(&mut self, shared: &Mapped<Shared>) {
        if shared.field::<u32>(0, offset_of!(Shared, calls)) <= MAX_CALLS / 2 {
            return;
        }
        let (mut exists, mut left) = (HashMap::new(), 0u32);
        for (key, _) in entries::<Call, CallTime>(&self.table) {
            if *exists.entry(key.tid).or_insert_with(|| Path::new(&format!("/proc/{}", key.tid)).exists()) {
                left += 1;
                continue;
            }
            // An ended thread makes no more calls: its entry does not change.
            let Ok(Some(last)) = self.table.lookup(bytes_of(&key), MapFlags::ANY) else { continue };
            if self.table.delete(bytes_of(&key)).is_ok() {
                from_bytes(&last).iter().for_each(|time| self.ended.take(&CallFigures::of(&key, time)));
            }
        }
        shared.set_field(0, offset_of!(Shared, calls), left);
    }

    /// All calls that were counted.
    pub fn figures(&self) -> Vec<CallFigures> {
        let of_table = entries(&self.table).into_iter().map(|(key, time)| CallFigures::of(&key, &time));
        of_table.chain(self.ended.sums.values().cloned()).collect()
    }

    /// Number of calls that were not counted because a table was full.
    pub fn lost(&self, shared: &Mapped<Shared>) -> u64 {
        shared.field::<u64>(0, offset_of!(Shared, calls_lost)) + self.ended.lost
    }
}

/// Calls of ended threads, by process, thread's name and call.
#[derive(Default)]
struct Ended {
    sums: HashMap<(u32, String, String), CallFigures>,
    lost: u64,
}

impl Ended {
    fn take(&mut self, call: &CallFigures) {
        let has_room = self.sums.len() < MAX_ENDED;
        match self.sums.entry((call.tgid, call.comm.clone(), call.call.clone())) {
            Entry::Occupied(mut sum) => sum.get_mut().add(call),
            Entry::Vacant(place) if has_room => drop(place.insert(CallFigures { tid: 0, ..call.clone() })),
            Entry::Vacant(_) => self.lost += call.count,
        }
    }
}

/// The name of a system call. `packed`: the call's number in the lower half, an ioctl's request in the upper half.
fn name(packed: u32) -> String {
    let (number, request) = ((packed & 0xffff) as usize, packed >> 16);
    let name = Sysno::new(number).map_or_else(|| Cow::Owned(format!("syscall {number}")), |call| call.name().into());
    match (number, request) {
        (IOCTL, request) => match KVM_REQUESTS.iter().find(|(number, _)| *number == request) {
            Some((_, name)) => format!("ioctl({name})"),
            None => format!("ioctl({request:#x})"),
        },
        _ => name.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_names_of_their_manual_pages() {
        let number = |call: Sysno| call as u32;
        assert_eq!(name(number(Sysno::writev)), "writev");
        assert_eq!(name(number(Sysno::ioctl) | 0xae80 << 16), "ioctl(KVM_RUN)");
        let names = [0xaea5, 0xae61, 0xae67].map(|request| name(number(Sysno::ioctl) | request << 16));
        assert_eq!(names, ["ioctl(KVM_SIGNAL_MSI)", "ioctl(KVM_IRQ_LINE)", "ioctl(KVM_IRQ_LINE_STATUS)"]);
        assert_eq!(name(number(Sysno::ioctl) | 0x5401 << 16), "ioctl(0x5401)");
        assert_eq!(name(60_000), "syscall 60000");
    }

    #[test]
    fn calls_of_ended_threads_are_summed_by_process_name_and_call_as_far_as_there_is_room() {
        let call = |tgid, tid, ns| CallFigures {
            tgid,
            tid,
            comm: "worker".into(),
            call: "futex".into(),
            count: 2,
            ns,
            longest_ns: ns - 1,
            failed: 1,
        };
        let mut ended = Ended::default();
        [call(1, 10, 5), call(1, 11, 9), call(2, 10, 3)].iter().for_each(|call| ended.take(call));
        let mut sums: Vec<_> = ended.sums.values().cloned().collect();
        sums.sort_by_key(|sum| sum.tgid);
        let both = CallFigures { tid: 0, count: 4, ns: 14, longest_ns: 8, failed: 2, ..call(1, 10, 5) };
        assert_eq!(sums, [both, CallFigures { tid: 0, ..call(2, 10, 3) }]);
        (0..MAX_ENDED as u32).for_each(|tgid| ended.take(&call(tgid, 1, 1)));
        assert_eq!((ended.sums.len(), ended.lost), (MAX_ENDED, 0));
        ended.take(&call(u32::MAX, 1, 1));
        assert_eq!((ended.sums.len(), ended.lost), (MAX_ENDED, 2));
    }
}
