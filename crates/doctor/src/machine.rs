//! The input of the rules: a machine's settings, virtual machines, owners and boot parameters, and programs that may
//! run on reserved CPUs.

use latpath_counters::Datapath;
use latpath_linux::proc::{cpus_allowed, Root, Stat, PF_KTHREAD};
use latpath_linux::Cpus;
use latpath_net::Netns;
use latpath_placement::Placement;
use latpath_settings::{NextBoot, Owners, PendingParameter, Reading, Source};
use latpath_vms::{Guests, Vm};
use std::collections::BTreeSet;
use std::path::Path;

/// Maximum number of processes (PID_MAX_LIMIT).
const MAX_PROCESSES: usize = 4 << 20;
/// Maximum number of threads of other programs that are read.
const MAX_THREADS: usize = 1 << 16;

/// A thread on a reserved CPU, of a program that has nothing to do with packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranger {
    /// Name of the thread.
    pub comm: String,
    /// Thread ID.
    pub tid: u32,
    /// CPUs on which it may run.
    pub cpus: Cpus,
}

/// A machine at one moment.
pub struct Machine {
    /// Its settings.
    pub reading: Reading,
    /// Its CPUs, threads and interrupts.
    pub placement: Placement,
    /// Its virtual machines.
    pub vms: Vec<Vm>,
    /// The programs that set its settings.
    pub owners: Owners,
    /// Boot parameters of the next boot.
    pub next_boot: NextBoot,
    /// Parameters that differ from those of the running kernel.
    pub pending: Vec<PendingParameter>,
    /// Whether it is a virtual machine itself.
    pub is_guest: bool,
    /// Whether it can run virtual machines (KVM).
    pub has_kvm: bool,
    /// Threads of other programs on CPUs that vCPUs, or threads that poll devices, are pinned to.
    pub strangers: Vec<Stranger>,
    /// Open vSwitch's datapaths in the kernel, in this process's network namespace.
    pub datapaths: Vec<Datapath>,
    /// Settings and objects that this user could not read, with the reasons.
    pub unseen: Vec<String>,
    /// The same machine as crate tune represents it, for planning profiles.
    pub(crate) tuned: latpath_tune::Machine,
}

impl Machine {
    /// Reads this machine, without changing anything. This takes tens of milliseconds, at most about a second.
    pub fn here() -> Self {
        let (found, mut unseen) = match latpath_vms::find() {
            Ok(found) => (found, Vec::new()),
            Err(error) => (Guests::default(), vec![format!("virtual machines: {error}")]),
        };
        unseen.extend(found.unseen.into_iter().map(|note| note.replace("latpath vms", "latpath doctor")));
        let source = Source::machine(&found.vms, Vec::new());
        let root = Path::new("/");
        // Listing the datapaths would load the module, so they are listed only if it is loaded.
        let has_datapaths = root.join("sys/module/openvswitch").exists();
        let list = || Netns::own().and_then(|netns| latpath_counters::datapaths(&netns));
        let datapaths = has_datapaths.then(list).transpose().unwrap_or_else(|error| {
            unseen.push(error.to_string());
            None
        });
        let machine = Self::read(&source, root, found.vms.clone(), unseen, latpath_tune::Machine::this(&[]));
        Self { datapaths: datapaths.unwrap_or_default(), ..machine }
    }

    /// Reads a machine from a directory that contains its files.
    pub fn below(root: &Path, vms: Vec<Vm>) -> Self {
        let tuned = latpath_tune::Machine::below(root, vms.clone());
        Self::read(&Source::below(root, &vms, Vec::new()), root, vms.clone(), Vec::new(), tuned)
    }

    fn read(source: &Source, root: &Path, vms: Vec<Vm>, mut unseen: Vec<String>, tuned: latpath_tune::Machine) -> Self {
        let root = Root::of(root);
        let reading = source.read();
        unseen.extend(reading.notes.iter().cloned());
        let placement = Placement::of(&reading.values);
        let strangers = strangers(&root, &placement, &vms);
        let hidden = ["sys/kernel/debug/sched", "etc/libvirt/qemu"];
        for path in hidden {
            if let Err(error) = std::fs::read_dir(root.path(path)) {
                if error.kind() == std::io::ErrorKind::PermissionDenied {
                    unseen.push(format!("/{path}: only root reads it; try: sudo latpath doctor"));
                }
            }
        }
        let flags = root.text("proc/cpuinfo").unwrap_or_default();
        let is_guest = flags.lines().any(|line| line.starts_with("flags") && line.contains(" hypervisor"))
            || root.path("sys/hypervisor/type").exists()
            || root.text("sys/class/dmi/id/sys_vendor").is_some_and(|vendor| vendor.contains("QEMU"));
        let next_boot = NextBoot::read(&root);
        let pending = next_boot.pending(&root.text("proc/cmdline").unwrap_or_default());
        Self {
            owners: source.owners(),
            next_boot,
            pending,
            has_kvm: root.path("dev/kvm").exists() || root.path("sys/module/kvm").exists(),
            is_guest,
            reading,
            placement,
            vms,
            strangers,
            datapaths: Vec::new(),
            unseen,
            tuned,
        }
    }
}

/// Threads of other programs that may run on reserved CPUs. Kernel threads are omitted: each CPU has some of its own.
fn strangers(root: &Root, placement: &Placement, vms: &[Vm]) -> Vec<Stranger> {
    let reserved = placement.reserved();
    if reserved.is_empty() {
        return Vec::new();
    }
    let known: BTreeSet<u32> = vms.iter().flat_map(|vm| &vm.threads).map(|thread| thread.tid).collect();
    let services: BTreeSet<u32> = placement.workers.iter().filter_map(|worker| worker.tid).collect();
    let own = std::process::id();
    let mut all = Vec::new();
    let mut left = MAX_THREADS;
    for pid in root.numbers("proc", MAX_PROCESSES).unwrap_or_default() {
        if Stat::read(root, &format!("proc/{pid}")).is_none_or(|stat| stat.flags & PF_KTHREAD != 0) || pid == own {
            continue;
        }
        let folder = format!("proc/{pid}/task");
        for tid in root.numbers(&folder, left).unwrap_or_default() {
            left = left.saturating_sub(1);
            if known.contains(&tid) || services.contains(&tid) {
                continue;
            }
            let folder = format!("{folder}/{tid}");
            let Some(cpus) = cpus_allowed(root, &folder).filter(|cpus| cpus.overlaps(&reserved)) else { continue };
            let comm = Stat::read(root, &folder).map_or_else(String::new, |stat| stat.comm);
            all.push(Stranger { comm, tid, cpus });
        }
    }
    all
}
