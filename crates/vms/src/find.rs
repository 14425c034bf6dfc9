//! The search for guests: examines the descriptors and the executable of every process.

use crate::{
    command_line::{name_of_other, CommandLine, Netdev},
    descriptors::Descriptors,
    error::Error,
    libvirt::{self, Domain},
    neighbours::mark_alone,
    ovsdb,
    passthrough::{self, PostedInterrupts},
    peers,
    taps::{taps, Devices},
    text::plain,
    threads::{self, Guest},
    vm::{Accel, Role, Tap, Thread, VhostUser, Vm},
};
use latpath_linux::{
    proc::{Root, Stat, PF_KTHREAD},
    Cpus, Owner,
};
use latpath_net::{interfaces, Inode, Netns};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{io, path::Path};

/// Maximum number of processes (PID_MAX_LIMIT).
const MAX_PROCESSES: usize = 4 << 20;

/// The guests on this machine at a point in time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Guests {
    /// Guests in order of process ID.
    pub vms: Vec<Vm>,
    /// CPUs excluded from scheduler load balancing (`isolcpus=`, isolated cpuset partitions).
    #[schemars(with = "String")]
    pub isolated_cpus: Cpus,
    /// Interrupts of passed-through devices that the CPUs posted; `None` if no guest has such a device, or the CPU does
    /// not count them.
    #[serde(default)]
    pub posted_interrupts: Option<PostedInterrupts>,
    /// Sentences for the user about information that could not be read, and why.
    pub unseen: Vec<String>,
}

impl Guests {
    /// The guest that uses a tap or macvtap, by namespace and device index.
    pub fn vm_of_ifindex(&self, netns: Inode, ifindex: u32) -> Option<&Vm> {
        let is = |vm: &&Vm| vm.taps.iter().any(|tap| tap.netns == Some(netns) && tap.ifindex == Some(ifindex));
        self.vms.iter().find(is)
    }

    /// The guest that uses a tap or macvtap, by namespace and name.
    pub fn vm_of_tap(&self, netns: Inode, device: &str) -> Option<&Vm> {
        let is = |vm: &&Vm| vm.taps.iter().any(|tap| tap.netns == Some(netns) && tap.device == device);
        self.vms.iter().find(is)
    }

    /// The guest to which a thread belongs, and the thread with its role; `None` for other threads.
    pub fn role_of_tid(&self, tid: u32) -> Option<(&Vm, &Thread)> {
        self.vms.iter().find_map(|vm| vm.threads.iter().find(|thread| thread.tid == tid).map(|thread| (vm, thread)))
    }
}

/// Finds the guests on this machine. Takes some milliseconds: a microsecond per descriptor, and a few retries for busy
/// vCPUs.
///
/// Guests that start or end during the search may be missed, without an error. [`Guests::unseen`] lists information
/// that this user may not read.
///
/// # Errors
/// /proc cannot be read.
pub fn find() -> Result<Guests, Error> {
    let own = Netns::own().ok().map(|netns| netns.inode());
    let namespaces = std::cell::OnceCell::new();
    let all = || namespaces.get_or_init(Netns::all);
    let ask = |inode: Inode| interfaces(all().get(&inode)?).ok();
    // This process's own namespace comes first.
    let others = || all().keys().copied().filter(|inode| Some(*inode) != own);
    let all = || own.into_iter().chain(others()).collect();
    let ports = std::cell::OnceCell::new();
    let root = Root::of(Path::new("/"));
    let ovs = |port: &str| ports.get_or_init(|| ovsdb::bridges(&root)).get(port).cloned();
    let mut found = find_in(&root, &mut Devices::new(&ask, &all, &ovs))?;
    peers::find(&root, &mut found.vms);
    passthrough::ask_nics(&mut found.vms);
    Ok(found)
}

/// As [`find`], for a given root directory.
pub(crate) fn find_in(root: &Root, devices: &mut Devices) -> Result<Guests, Error> {
    let processes = root.numbers("proc", MAX_PROCESSES).map_err(Error::NoProc)?;
    let mut found = Guests { isolated_cpus: isolated(root), ..Guests::default() };
    let domains = libvirt::domains(root);
    let mut hidden = 0;
    let mut kernel = Vec::new();
    for pid in &processes {
        let Some(stat) = Stat::read(root, &format!("proc/{pid}")) else { continue };
        if stat.flags & PF_KTHREAD != 0 {
            kernel.push((*pid, stat));
            continue;
        }
        let descriptors = match Descriptors::read(root, *pid) {
            Ok(descriptors) => Some(descriptors),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                hidden += 1;
                None
            }
            // The process has ended.
            Err(_) => continue,
        };
        found.vms.extend(vm(root, *pid, descriptors, domains.get(pid), &found.isolated_cpus, devices));
    }
    for (tid, stat) in kernel {
        adopt(root, tid, &stat, &found.isolated_cpus, &mut found.vms);
    }
    for vm in &mut found.vms {
        vm.threads.sort_by_key(|thread| (thread.role, thread.vcpu, thread.tid));
    }
    mark_alone(root, &processes, &mut found.vms);
    if found.vms.iter().any(|vm| !vm.passthrough.is_empty()) {
        found.posted_interrupts = passthrough::posted(root);
    }
    if hidden > 0 {
        found.unseen.push(format!(
            "the open files of {hidden} processes may be read only by root: their taps, vhost devices and vCPUs, and \
             guests that are not QEMU's, are not seen; try: sudo latpath vms"
        ));
    }
    Ok(found)
}

/// Assigns a kernel thread to its guest.
fn adopt(root: &Root, tid: u32, stat: &Stat, isolated: &Cpus, vms: &mut [Vm]) {
    for vm in vms {
        let owner = |number: u32| vm.threads.iter().any(|thread| thread.tid == number);
        if let Some(mut thread) = threads::of_kernel(root, tid, stat.clone(), owner, isolated) {
            // A guest with a vsock device is left out, because that device's worker has the same name.
            if thread.role == Role::Vhost && vm.vhost_vsock == 0 {
                thread.serves = only_tap(vm.taps.iter());
            }
            vm.threads.push(thread);
            return;
        }
    }
}

/// The NICs on a command line that are served over vhost-user.
fn vhost_user(line: &CommandLine) -> Vec<VhostUser> {
    let of = |netdev: &Netdev| {
        let socket = line.sockets.iter().find(|socket| Some(&socket.id) == netdev.chardev.as_ref());
        VhostUser {
            socket: socket.map_or_else(String::new, |socket| plain(&socket.path)),
            listens: socket.is_some_and(|socket| socket.listens),
            queues: netdev.queues.unwrap_or(1),
            guest_mac: line.mac_behind(netdev),
            peer: None,
        }
    };
    line.netdevs.iter().filter(|netdev| netdev.kind == "vhost-user").map(of).collect()
}

fn vm(
    root: &Root,
    pid: u32,
    descriptors: Option<Descriptors>,
    domain: Option<&Domain>,
    isolated: &Cpus,
    devices: &mut Devices,
) -> Option<Vm> {
    let kvm = descriptors.as_ref().is_some_and(|d| !d.kvm.is_empty());
    let line = root.text(&format!("proc/{pid}/cmdline"))?;
    let executable = root.link(&format!("proc/{pid}/exe"));
    // The executable's path is preferred to the argument, which the process can change.
    let path = executable.as_deref().unwrap_or_else(|_| line.split('\0').next().unwrap_or_default());
    let program = path.trim_end_matches(" (deleted)").rsplit('/').next().unwrap_or_default();
    let is_qemu = program.starts_with("qemu-system-") || program == "qemu-kvm";
    if !kvm && !is_qemu {
        return None;
    }
    let other_name = if is_qemu { None } else { name_of_other(program, &line) };
    let line = if is_qemu { CommandLine::parse(&line) } else { CommandLine::default() };
    // libvirt queries capabilities with a QEMU that has no machine; it is not a guest.
    if line.machine.as_deref() == Some("none") {
        return None;
    }
    let accel = match &descriptors {
        Some(_) if kvm => Accel::Kvm,
        // Without KVM, the guest is emulated, unless it requested an accelerator that cannot be recognised by a
        // descriptor.
        Some(_) if line.accelerators.iter().all(|a| matches!(a.as_str(), "tcg" | "kvm")) => Accel::Tcg,
        _ => Accel::Unknown,
    };
    let descriptors = descriptors.unwrap_or_default();
    let netns = root.link(&format!("proc/{pid}/ns/net")).ok();
    let netns = netns.and_then(|link| link.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok());
    let guest = Guest { pid, accel, descriptors: &descriptors, domain };
    let threads = threads::of_process(root, &guest, isolated);
    // There are no threads if the process has ended.
    threads.first()?;
    let taps = taps(&descriptors, &line, domain, netns, devices);
    let threads: Vec<Thread> = threads
        .into_iter()
        .map(|(thread, fd)| Thread { serves: served(&descriptors, &taps, thread.role, fd), ..thread })
        .collect();
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let open_vcpus = Some(count(descriptors.vcpus.len())).filter(|n| *n > 0);
    let seen_vcpus = || Some(count(threads.iter().filter(|t| t.role == Role::Vcpu).count())).filter(|n| *n > 0);
    let program = plain(program);
    let owner = Owner::of(root, pid);
    // A systemd-machined scope contains the VM's name even if libvirt's files are not accessible.
    let of_scope = || Some(owner.as_ref().filter(|owner| matches!(owner, Owner::Machine(_)))?.name());
    let name = domain.and_then(|d| d.name.clone()).or(line.name.clone()).or(other_name).or_else(of_scope);
    Some(Vm {
        name: name.unwrap_or_else(|| format!("{program}-{pid}")),
        owner: owner.map(|owner| owner.described_under(root)),
        pid,
        uuid: line.uuid.clone().or_else(|| domain?.uuid.clone()),
        libvirt: domain.is_some_and(|d| d.name.is_some()),
        program,
        machine: line.machine.clone(),
        accel,
        vcpus: open_vcpus.or(line.vcpus).or_else(seen_vcpus),
        memory_bytes: line.memory_bytes,
        netns,
        vsock_cid: line.vsock_cid,
        vhost_net: count(descriptors.vhost_net.len()),
        vhost_vsock: count(descriptors.vhost_vsock.len()),
        taps: taps.into_iter().map(|(tap, _)| tap).collect(),
        vhost_user: vhost_user(&line),
        passthrough: passthrough::devices(root, &descriptors, &line.passthrough),
        threads,
    })
}

/// The device served by a vhost worker. Up to Linux 6.3 the worker's descriptor is unknown, so the device is known only
/// in a guest with a single vhost device; see [`adopt`].
fn served(descriptors: &Descriptors, taps: &[(Tap, Vec<u32>)], role: Role, fd: Option<u32>) -> Option<String> {
    let fd = fd.filter(|_| role == Role::Vhost)?;
    if descriptors.vhost_vsock.contains(&fd) {
        return Some("vsock".into());
    }
    let by_fd = || taps.iter().find(|(_, fds)| fds.contains(&fd)).map(|(tap, _)| tap.device.clone());
    let is_net = descriptors.vhost_net.contains(&fd);
    by_fd().or_else(|| only_tap(taps.iter().map(|(tap, _)| tap)).filter(|_| is_net))
}

/// The tap that vhost serves; `None` if there is none, or several.
fn only_tap<'a>(taps: impl Iterator<Item = &'a Tap>) -> Option<String> {
    let mut served = taps.filter(|tap| tap.vhost != Some(false));
    let only = served.next()?;
    served.next().is_none().then(|| only.device.clone())
}

/// CPUs excluded from scheduler load balancing, by `isolcpus=` or, since Linux 6.7, by cpuset partitions.
fn isolated(root: &Root) -> Cpus {
    let files = ["sys/devices/system/cpu/isolated", "sys/fs/cgroup/cpuset.cpus.isolated"];
    let mut isolated = Cpus::default();
    for cpus in files.into_iter().filter_map(|file| root.text(file)?.parse().ok()) {
        isolated.join(cpus);
    }
    isolated
}
