//! A guest that latpath starts: its QEMU command line, its start and its end.

use crate::{
    builder::{Builder, Event},
    devices::Host,
    error::Doing,
    file::{Guest, Qemu, Topology, Way},
    step::{Identity, Object},
    undo::Removed,
    Error, Result,
};
use latpath_linux::proc::{start_ticks, Root};
use latpath_net::macvtap_device_number;
use nix::{
    errno::Errno,
    sys::{
        signal::{kill, Signal},
        stat::{mknod, Mode, SFlag},
        wait::{waitpid, WaitPidFlag},
    },
    unistd::Pid,
};
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::{fs::MetadataExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Maximum time until QEMU, which first loads its files, answers on its monitor.
const READY: Duration = Duration::from_secs(60);
/// Maximum time for QEMU to end after each signal.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
/// First descriptor of a macvtap's queues in QEMU.
const FIRST_FD: u32 = 3;
/// Waits for a line, then executes QEMU in its own session. If latpath is killed before it has recorded the process,
/// the shell gets end-of-file instead of the line, and ends.
const WAIT_THEN_BECOME: &str = "read -r go && exec setsid \"$@\" </dev/null";

/// Path of a macvtap's character device if /dev/tapN is missing or belongs to another macvtap. Its file name is the
/// usual one, because `latpath vms` identifies a process's macvtap by it.
pub(crate) fn node(topology: &str, ifindex: u32) -> PathBuf {
    Path::new("/dev").join(format!("latpath-{topology}")).join(format!("tap{ifindex}"))
}

/// Path of a guest's file with this extension, in the topology's directory.
pub(crate) fn file(topology: &str, guest: &str, end: &str) -> PathBuf {
    crate::directory(topology).join(format!("{guest}.{end}"))
}

/// Starts a guest, and waits until QEMU answers on its monitor.
pub(crate) fn start(builder: &mut Builder, topology: &Topology, host: &Host, guest: &Guest, qemu: &Qemu) -> Result<()> {
    let node = match topology.way {
        Way::Macvtap => Some(macvtap_node(topology, host, guest)?),
        _ => None,
    };
    let log = file(&topology.name, &guest.name, "log");
    let messages = File::create(&log).doing(format!("write {}", log.display()))?;
    let mut command = Command::new("sh");
    let descriptors = node.iter().flat_map(|node| (0..guest.queues).map(move |queue| (FIRST_FD + queue, node)));
    let script = descriptors.fold(WAIT_THEN_BECOME.to_owned(), |script, (fd, node)| {
        format!("{script} {fd}<>{}", latpath_model::text::quoted(&node.display().to_string()))
    });
    command.args(["-c", &script, "sh", &qemu.program]).args(arguments(topology, guest, qemu));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(messages);
    let object = Object::Guest { name: guest.name.clone(), program: qemu.program.clone() };
    let mut child = builder.make_and_release(object, || {
        let child = host.netns.inside(|| command.spawn())?.doing("start sh")?;
        let pid = child.id();
        let start_ticks = start_ticks(&Root::of(Path::new("/")), pid).unwrap_or(0);
        Ok((Identity::Process { pid, start_ticks }, child))
    })?;
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(b"go\n");
    }
    builder.tell(Event::Waiting(&format!("waiting for QEMU of guest {}", guest.name)));
    wait_until_ready(builder, topology, guest, &mut child, qemu)
}

fn wait_until_ready(
    builder: &Builder,
    topology: &Topology,
    guest: &Guest,
    child: &mut Child,
    qemu: &Qemu,
) -> Result<()> {
    let fail = |why: String| Error::Qemu { guest: guest.name.clone(), program: qemu.program.clone(), why };
    let monitor = file(&topology.name, &guest.name, "qmp");
    let until = Instant::now() + READY;
    loop {
        if greets(&monitor) {
            return Ok(());
        }
        if let Some(status) = child.try_wait().doing(format!("wait for {}", qemu.program))? {
            let log = fs::read_to_string(file(&topology.name, &guest.name, "log")).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(3).collect();
            let words = last.into_iter().rev().collect::<Vec<_>>().join("; ");
            return Err(fail(format!("ended ({status}): {words}")));
        }
        if builder.is_stopped() {
            return Err(Error::Interrupted);
        }
        if Instant::now() >= until {
            return Err(fail(format!("does not answer on its monitor after {} s", READY.as_secs())));
        }
        thread::sleep(POLL);
    }
}

/// Whether QEMU sends the QMP greeting, which means that its devices are complete.
fn greets(monitor: &Path) -> bool {
    let greeting = || -> std::io::Result<String> {
        let stream = UnixStream::connect(monitor)?;
        stream.set_read_timeout(Some(Duration::from_millis(500)))?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    };
    greeting().is_ok_and(|line| line.contains("\"QMP\""))
}

/// A path as used in QEMU's options, with commas doubled.
fn comma(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// QEMU's arguments.
pub(crate) fn arguments(topology: &Topology, guest: &Guest, qemu: &Qemu) -> Vec<String> {
    let is_kvm = qemu.acceleration == "kvm";
    let (accelerator, cpu) = if is_kvm { ("kvm", "host") } else { ("tcg,thread=multi", "max") };
    let machine = if cfg!(target_arch = "x86_64") { "q35" } else { "virt" };
    let memory = if topology.has_vhost_user() { ",memory-backend=latpath-memory" } else { "" };
    let mut all: Vec<String> = Vec::new();
    let mut option = |name: &str, value: String| all.extend([name.to_owned(), value]);
    let of = |end: &str| comma(&file(&topology.name, &guest.name, end));
    option("-name", format!("guest={},debug-threads=on", guest.name));
    option("-machine", format!("{machine}{memory}"));
    option("-accel", accelerator.into());
    option("-cpu", cpu.into());
    option("-smp", qemu.cpus.to_string());
    option("-m", format!("{}M", qemu.memory_mib));
    if topology.has_vhost_user() {
        option("-object", format!("memory-backend-memfd,id=latpath-memory,size={}M,share=on", qemu.memory_mib));
    }
    option("-display", "none".into());
    option("-serial", format!("file:{}", of("console")));
    option("-qmp", format!("unix:{},server=on,wait=off", of("qmp")));
    for (name, path) in [("-kernel", &qemu.kernel), ("-initrd", &qemu.initrd)] {
        path.iter().for_each(|path| option(name, path.display().to_string()));
    }
    qemu.append.iter().for_each(|append| option("-append", append.clone()));
    if let Some(disk) = &qemu.disk {
        option("-drive", format!("file={},if=virtio,format={}", comma(disk), qemu.disk_format));
    }
    if topology.has_vhost_user() {
        option("-chardev", format!("socket,id=latpath-nic,path={},server=on", of("sock")));
    }
    option("-netdev", netdev(topology, guest, qemu));
    option("-device", nic(topology, guest, qemu));
    all.extend(["-nodefaults", "-no-user-config"].map(str::to_owned));
    all.extend(qemu.arguments.iter().cloned());
    all
}

fn netdev(topology: &Topology, guest: &Guest, qemu: &Qemu) -> String {
    let queues = guest.queues;
    if topology.has_vhost_user() {
        return format!("vhost-user,id=latpath,chardev=latpath-nic,queues={queues}");
    }
    let vhost = if qemu.vhost { "on" } else { "off" };
    if topology.way == Way::Macvtap {
        let fds: Vec<String> = (0..queues).map(|queue| (FIRST_FD + queue).to_string()).collect();
        let key = if queues > 1 { "fds" } else { "fd" };
        return format!("tap,id=latpath,{key}={},vhost={vhost}", fds.join(":"));
    }
    let queues = if queues > 1 { format!(",queues={queues}") } else { String::new() };
    format!("tap,id=latpath,ifname={},script=no,downscript=no{queues},vhost={vhost}", guest.tap())
}

fn nic(topology: &Topology, guest: &Guest, qemu: &Qemu) -> String {
    let mac = guest.mac().map(|byte| format!("{byte:02x}")).join(":");
    let mut nic = format!("virtio-net-pci,netdev=latpath,mac={mac},romfile=");
    let vectors = qemu.vectors.or_else(|| (guest.queues > 1).then_some(2 * guest.queues + 2));
    nic.extend((guest.queues > 1).then_some(",mq=on"));
    nic.extend(vectors.map(|vectors| format!(",vectors={vectors}")));
    if let Some(size) = qemu.queue_size {
        // Among the back ends of this crate, only vhost-user supports a send queue of more than 256 descriptors (QEMU's
        // virtio_net_max_tx_queue_size).
        let sending = if topology.has_vhost_user() { size } else { size.min(256) };
        nic += &format!(",rx_queue_size={size},tx_queue_size={sending}");
    }
    if topology.way == Way::Xdp {
        // A redirected frame cannot request a checksum or segmentation, so the offloads are disabled.
        nic += ",csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ufo=off,guest_ecn=off,\
                host_tso4=off,host_tso6=off,host_ufo=off,host_ecn=off";
    }
    nic
}

/// Path of the character device of a guest's macvtap: /dev/tapN if it belongs to this macvtap, otherwise the topology's
/// own node.
fn macvtap_node(topology: &Topology, host: &Host, guest: &Guest) -> Result<PathBuf> {
    let (ifindex, number) = macvtap_device_number(&host.netns, &guest.tap())?;
    let usual = PathBuf::from(format!("/dev/tap{ifindex}"));
    // /dev/tapN may belong to a macvtap in another namespace with the same index.
    let is_its = fs::metadata(&usual).is_ok_and(|meta| meta.rdev() == number);
    Ok(if is_its { usual } else { node(&topology.name, ifindex) })
}

/// Makes the character device of a guest's macvtap unless /dev has it. Returns its path.
pub(crate) fn make_node(builder: &mut Builder, topology: &Topology, host: &Host, guest: &Guest) -> Result<PathBuf> {
    let device = guest.tap();
    let (ifindex, number) = macvtap_device_number(&host.netns, &device)?;
    let path = macvtap_node(topology, host, guest)?;
    if path != node(&topology.name, ifindex) {
        return Ok(path);
    }
    builder.make(Object::Node { device, ifindex }, || {
        if let Some(directory) = path.parent() {
            latpath_linux::private_directory(directory).doing(format!("make directory {}", directory.display()))?;
        }
        mknod(&path, SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, number)
            .doing(format!("make {}", path.display()))?;
        let inode = fs::metadata(&path).doing(format!("find {}", path.display()))?.ino();
        Ok(Identity::Inode(inode))
    })?;
    Ok(path)
}

/// Removes a macvtap's character device, and the directory if it is then empty.
pub(crate) fn remove_node(
    topology: &str,
    ifindex: u32,
    identity: Option<&Identity>,
) -> std::result::Result<Removed, String> {
    let path = node(topology, ifindex);
    let removed = match fs::symlink_metadata(&path) {
        Err(_) => Removed::Absent,
        Ok(found) if matches!(identity, Some(Identity::Inode(inode)) if *inode != found.ino()) => {
            return Ok(Removed::LeftAlone("another file has its name".into()));
        }
        Ok(_) => fs::remove_file(&path).map(|()| Removed::Yes).map_err(|e| format!("{}: {e}", path.display()))?,
    };
    // Fails if nodes of other macvtaps of the topology are still there.
    let _ = path.parent().map(fs::remove_dir);
    Ok(removed)
}

/// Ends a guest's process: with SIGTERM, on which QEMU closes its disks, then with SIGKILL.
pub(crate) fn end(program: &str, identity: Option<&Identity>) -> std::result::Result<Removed, String> {
    // latpath was killed before it recorded the process: the shell, which had not yet become QEMU, ended when its pipe
    // closed.
    let Some(Identity::Process { pid, start_ticks }) = identity else { return Ok(Removed::Absent) };
    if !is_running(*pid, *start_ticks) {
        return Ok(Removed::Absent);
    }
    let process = Pid::from_raw(i32::try_from(*pid).map_err(|_| format!("{pid}: not a process id"))?);
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        match kill(process, signal) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(format!("end {program}, process {pid}: {error}")),
        }
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if !is_running(*pid, *start_ticks) {
                return Ok(Removed::Yes);
            }
            thread::sleep(POLL);
        }
    }
    Err(format!("{program}, process {pid}, does not end"))
}

/// Whether the process is still running. If it is an ended child of this process, it is reaped.
pub(crate) fn is_running(pid: u32, started: u64) -> bool {
    let _ = i32::try_from(pid).map(|pid| waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG)));
    start_ticks(&Root::of(Path::new("/")), pid) == Some(started)
}
