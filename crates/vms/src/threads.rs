//! Roles of a guest's threads, identified by kernel properties if possible, and by names as a last resort.

use crate::{
    debugfs::{kvm_folders, vcpus_in},
    descriptors::Descriptors,
    libvirt::Domain,
    text::plain,
    vm::{Accel, FoundBy, Isolated, Policy, Role, Thread},
};
use latpath_linux::{
    proc::{cpus_allowed, Root, Stat, PF_IO_WORKER, PF_KTHREAD, PF_USER_WORKER, PF_VCPU},
    Cpus,
};
use std::{collections::HashMap, thread::sleep, time::Duration};

/// Maximum number of threads read per guest; QEMU has about ten, and more during disk I/O.
const MAX_THREADS: usize = 4096;
/// ioctl(KVM_RUN): _IO(0xAE, 0x80), include/uapi/linux/kvm.h.
const KVM_RUN: &str = "0xae80";
/// ioctl(VHOST_SET_OWNER): _IO(0xAF, 0x01), include/uapi/linux/vhost.h.
const VHOST_SET_OWNER: &str = "0xaf01";
/// Number of attempts to read the system call of a vCPU thread, which shows none while in its guest; `DISTANCE` is the
/// time between them.
const LOOKS: u32 = 4;
const DISTANCE: Duration = Duration::from_millis(1);

/// A guest whose threads are to be identified.
pub struct Guest<'a> {
    pub pid: u32,
    pub accel: Accel,
    pub descriptors: &'a Descriptors,
    pub domain: Option<&'a Domain>,
}

/// Role of a thread, and how it was identified.
struct Finding {
    role: Role,
    vcpu: Option<u32>,
    found_by: FoundBy,
    /// Descriptor of the vhost device that it serves.
    vhost_fd: Option<u32>,
}

impl Finding {
    fn new(role: Role, found_by: FoundBy) -> Self {
        Self { role, vcpu: None, found_by, vhost_fd: None }
    }
}

/// Threads of a guest's process in order of TID; for vhost workers, also the descriptor of their device, if known.
pub fn of_process(root: &Root, guest: &Guest, isolated: &Cpus) -> Vec<(Thread, Option<u32>)> {
    let tids = root.numbers(&format!("proc/{}/task", guest.pid), MAX_THREADS).unwrap_or_default();
    let vcpus = vcpus(root, guest, &tids);
    let thread = |tid: u32| {
        let folder = format!("proc/{}/task/{tid}", guest.pid);
        let stat = Stat::read(root, &folder)?;
        let finding = role(root, guest, tid, &stat, &vcpus);
        let vhost_fd = finding.vhost_fd;
        Some((describe(root, &folder, tid, stat, finding, isolated)?, vhost_fd))
    };
    tids.iter().filter_map(|tid| thread(*tid)).collect()
}

/// A kernel thread that works for a guest; `owner` returns whether a TID belongs to the guest.
pub fn of_kernel(root: &Root, tid: u32, stat: Stat, owner: impl Fn(u32) -> bool, isolated: &Cpus) -> Option<Thread> {
    let (role, number) = kernel_thread(&stat)?;
    owner(number).then_some(())?;
    describe(root, &format!("proc/{tid}"), tid, stat, Finding::new(role, FoundBy::KernelThread), isolated)
}

/// Role and owner's PID, from the names `vhost-PID` (drivers/vhost/vhost.c up to 6.3), `kvm-pit/PID`
/// (arch/x86/kvm/i8254.c) and `kvm-nx-lpage-recovery-PID` (virt/kvm/kvm_main.c up to 6.12). User processes cannot fake
/// these names, because they lack the kernel thread flag.
fn kernel_thread(stat: &Stat) -> Option<(Role, u32)> {
    if stat.flags & PF_KTHREAD == 0 {
        return None;
    }
    let named = |start: &str| stat.comm.strip_prefix(start)?.parse().ok();
    named("vhost-").map(|number| (Role::Vhost, number)).or_else(|| {
        ["kvm-pit/", "kvm-nx-lpage-recovery-"].into_iter().find_map(named).map(|number| (Role::Kvm, number))
    })
}

fn describe(root: &Root, folder: &str, tid: u32, stat: Stat, finding: Finding, isolated: &Cpus) -> Option<Thread> {
    let cpus = cpus_allowed(root, folder)?;
    Some(Thread {
        tid,
        role: finding.role,
        vcpu: finding.vcpu,
        serves: None,
        found_by: finding.found_by,
        comm: plain(&stat.comm),
        kernel: stat.flags & (PF_KTHREAD | PF_USER_WORKER) != 0,
        isolated: match () {
            () if cpus.within(isolated) => Isolated::All,
            () if cpus.overlaps(isolated) => Isolated::Some,
            () => Isolated::None,
        },
        cpus_allowed: cpus,
        cpu: stat.cpu,
        policy: Policy::from_number(stat.policy),
        rt_priority: stat.rt_priority,
        nice: stat.nice,
        alone: false,
    })
}

/// vCPU number by TID, and how it was identified.
type Vcpus = HashMap<u32, (u32, FoundBy)>;

fn role(root: &Root, guest: &Guest, tid: u32, stat: &Stat, vcpus: &Vcpus) -> Finding {
    if tid == guest.pid {
        return Finding::new(Role::MainLoop, FoundBy::FirstThread);
    }
    if stat.flags & PF_IO_WORKER != 0 {
        return Finding::new(Role::Io, FoundBy::UserWorker);
    }
    if stat.flags & PF_USER_WORKER != 0 {
        return user_worker(ioctl(root, guest.pid, tid), &stat.comm);
    }
    if let Some((number, found_by)) = vcpus.get(&tid) {
        return Finding { vcpu: Some(*number), ..Finding::new(Role::Vcpu, *found_by) };
    }
    let by_name = named_vcpu(&stat.comm);
    if guest.accel == Accel::Kvm && (stat.flags & PF_VCPU != 0 || stat.guest_ticks > 0) {
        return Finding { vcpu: by_name.flatten(), ..Finding::new(Role::Vcpu, FoundBy::GuestTime) };
    }
    // If all vCPUs are known, another thread with a vCPU's name is not a vCPU.
    let all_known = !guest.descriptors.vcpus.is_empty() && vcpus.len() >= guest.descriptors.vcpus.len();
    match by_name {
        Some(vcpu) if !all_known => Finding { vcpu, ..Finding::new(Role::Vcpu, FoundBy::Name) },
        _ if stat.comm.starts_with("IO ") => Finding::new(Role::Io, FoundBy::Name),
        _ => Finding::new(Role::Other, FoundBy::Nothing),
    }
}

/// Identifies a kernel worker inside the process by the system call of its creator, which it shows. The call's
/// descriptor is that of a vhost device, or of a vCPU whose first run created KVM's page recovery thread (which is not
/// a vCPU).
fn user_worker(ioctl: Option<Ioctl>, comm: &str) -> Finding {
    let request = ioctl.as_ref().map(|ioctl| ioctl.request.as_str());
    let role = match (request, comm) {
        (Some(VHOST_SET_OWNER), _) => Role::Vhost,
        (Some(KVM_RUN), _) => Role::Kvm,
        (_, name) if name.starts_with("vhost-") => Role::Vhost,
        (_, name) if name.starts_with("kvm-") => Role::Kvm,
        _ => return Finding::new(Role::Other, FoundBy::Nothing),
    };
    let vhost_fd = ioctl.filter(|ioctl| ioctl.request == VHOST_SET_OWNER).map(|ioctl| ioctl.fd);
    Finding { vhost_fd, ..Finding::new(role, FoundBy::UserWorker) }
}

/// Parses the vCPU number in `CPU 0/KVM` or `CPU 1/TCG`; it is `None` in `ALL CPUs/TCG`, a thread that runs all vCPUs
/// (accel/tcg/tcg-accel-ops-rr.c).
fn named_vcpu(comm: &str) -> Option<Option<u32>> {
    let (name, accelerator) = comm.split_once('/')?;
    if !matches!(accelerator, "KVM" | "TCG") {
        return None;
    }
    match name.strip_prefix("CPU ") {
        Some(number) => number.parse().ok().map(Some),
        None => (name == "ALL CPUs").then_some(None),
    }
}

fn vcpus(root: &Root, guest: &Guest, tids: &[u32]) -> Vcpus {
    let mut found = Vcpus::new();
    let all = guest.descriptors.vcpus.len();
    let candidates = tids.iter().filter(|tid| **tid != guest.pid && !is_worker(root, guest.pid, **tid));
    for look in 0..LOOKS {
        if found.len() >= all {
            return found;
        }
        if look > 0 {
            sleep(DISTANCE);
        }
        for tid in candidates.clone() {
            if let Some(number) = running(root, guest, *tid) {
                found.insert(*tid, (number, FoundBy::KvmRun));
            }
        }
    }
    // The TID is 0 until the vCPU has run.
    for (tid, number) in debugfs(root, guest).into_iter().filter(|(tid, _)| tids.contains(tid)) {
        found.entry(tid).or_insert((number, FoundBy::Debugfs));
    }
    for (tid, number) in guest.domain.iter().flat_map(|domain| &domain.vcpus) {
        if tids.contains(tid) {
            found.entry(*tid).or_insert((*number, FoundBy::Libvirt));
        }
    }
    found
}

/// Whether a thread is a kernel worker, which may show a vCPU's system call without being one.
fn is_worker(root: &Root, pid: u32, tid: u32) -> bool {
    Stat::read(root, &format!("proc/{pid}/task/{tid}")).is_none_or(|stat| stat.flags & PF_USER_WORKER != 0)
}

/// Number of the vCPU whose descriptor the thread passes to ioctl(KVM_RUN).
fn running(root: &Root, guest: &Guest, tid: u32) -> Option<u32> {
    let ioctl = ioctl(root, guest.pid, tid)?;
    (ioctl.request == KVM_RUN).then(|| guest.descriptors.vcpus.get(&ioctl.fd).copied())?
}

/// The descriptor and request of an ioctl.
struct Ioctl {
    fd: u32,
    request: String,
}

/// Reads the first two arguments of a thread's current system call, e.g. `16 0x12 0xae80 …`. While the thread runs on a
/// CPU, or in its guest, the file contains `running` (proc_pid_syscall(5)). The number of the call is not checked: it
/// depends on the architecture, and no other call takes KVM and vhost requests as arguments.
fn ioctl(root: &Root, pid: u32, tid: u32) -> Option<Ioctl> {
    let text = root.text(&format!("proc/{pid}/task/{tid}/syscall"))?;
    let mut words = text.split_ascii_whitespace().skip(1);
    let fd = u32::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    Some(Ioctl { fd, request: words.next()?.to_owned() })
}

/// TID and number of each vCPU from KVM's debugfs, if it is mounted (Linux 5.18 and later).
fn debugfs(root: &Root, guest: &Guest) -> Vec<(u32, u32)> {
    kvm_folders(root, guest.pid).iter().flat_map(|folder| vcpus_in(root, folder)).collect()
}
