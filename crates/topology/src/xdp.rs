//! XDP programs that redirect frames between the uplink and a tap. Their links are pinned in bpffs, so that they
//! outlive the command.
#![allow(unsafe_code)]

use crate::{
    builder::Builder,
    devices::Host,
    error::Doing,
    file::{TaggedBy, Topology, XdpMode},
    step::{Identity, Object, Value},
    undo::Removed,
    up::Up,
    Error, Result,
};
use latpath_bpf::{listen, with_last_words};
use latpath_linux::proc::Mount;
use latpath_net::{Netns, Rtnetlink};
use libbpf_rs::{
    skel::{OpenSkel, SkelBuilder},
    MapCore, MapFlags,
};
use nix::{
    errno::Errno,
    mount::{mount, umount2, MntFlags, MsFlags},
};
use std::{
    ffi::CString,
    fs, io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::{Path, PathBuf},
};

mod skel {
    #![allow(unused_imports, missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/redirect.skel.rs"));
}

/// Where systemd mounts bpffs on every machine.
const BPFFS: &str = "/sys/fs/bpf";

/// Directory of a topology's pinned links.
fn pins(topology: &str) -> PathBuf {
    Path::new(BPFFS).join("latpath").join(topology)
}

/// How the program for one direction handles VLAN tags.
#[derive(Clone, Copy, Default)]
struct Task {
    only_vlan: u16,
    remove_tag: bool,
    add_vlan: u16,
}

/// Redirects frames between the uplink and a guest's tap, in both directions.
pub(crate) fn build(builder: &mut Builder, topology: &Topology, host: &Host, tap: &str, up: &mut Up) -> Result<()> {
    let uplink = &topology.uplink.device;
    make_bpffs(builder)?;
    builder.make(Object::Pins, || {
        let directory = pins(&topology.name);
        fs::create_dir_all(&directory).doing(format!("make directory {}", directory.display()))?;
        Ok(Identity::Name)
    })?;
    // Without this, the NIC drops unicast frames for other MAC addresses.
    builder.set(&host.netns, uplink, Value::Promiscuous(true))?;
    let (inward, outward) = match topology.vlan {
        None => (Task::default(), Task::default()),
        Some(vlan) if vlan.tagged_by == TaggedBy::Guest => {
            (Task { only_vlan: vlan.id, ..Task::default() }, Task { only_vlan: vlan.id, ..Task::default() })
        }
        Some(vlan) => (
            Task { only_vlan: vlan.id, remove_tag: true, ..Task::default() },
            Task { add_vlan: vlan.id, ..Task::default() },
        ),
    };
    let wanted = topology.xdp.clone().unwrap_or_default().mode;
    for (from, to, task) in [(tap, uplink.as_str(), outward), (uplink.as_str(), tap, inward)] {
        let does = format!("redirects to {to}");
        let mode = attach(builder, topology, &host.netns, from, does, Program::Redirect { to, task }, wanted)?;
        if mode == XdpMode::Generic && wanted == XdpMode::Auto {
            up.notes.push(format!(
                "XDP on {from} runs in the stack (generic): its driver does not run programs, so each frame costs more"
            ));
        }
    }
    if let Some(cable) = &topology.uplink.cable {
        let wire = Netns::named(&cable.namespace)?;
        attach(builder, topology, &wire, &cable.device, "lets all pass".into(), Program::Pass, wanted)?;
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Program<'a> {
    Redirect { to: &'a str, task: Task },
    Pass,
}

/// Loads a program, attaches it to a device and pins the link; returns where the program runs.
fn attach(
    builder: &mut Builder,
    topology: &Topology,
    netns: &Netns,
    device: &str,
    does: String,
    program: Program,
    wanted: XdpMode,
) -> Result<XdpMode> {
    let path = pins(&topology.name).join(device);
    let mut runs = XdpMode::Auto;
    let object = Object::Xdp { device: device.into(), netns: netns.inode(), does };
    builder.make(object, || {
        let refused = |why: String| Error::Xdp { device: device.into(), why };
        // The kernel resolves device indices in the calling thread's namespace.
        let (id, mode) = netns.inside(|| put(netns, device, program, wanted, &path))?.map_err(refused)?;
        runs = mode;
        Ok(Identity::Link { id, mode })
    })?;
    Ok(runs)
}

/// Does the work of [`attach`] in the device's namespace; returns the link's ID and where the program runs.
fn put(
    netns: &Netns,
    device: &str,
    program: Program,
    wanted: XdpMode,
    path: &Path,
) -> std::result::Result<(u32, XdpMode), String> {
    listen();
    let mut storage = MaybeUninit::uninit();
    let mut open = skel::RedirectSkelBuilder::default().open(&mut storage).map_err(with_last_words)?;
    let constants = open.maps.rodata_data.as_deref_mut().ok_or("the program has no constants")?;
    if let Program::Redirect { task, .. } = program {
        constants.only_vlan = task.only_vlan;
        constants.remove_tag = task.remove_tag.into();
        constants.add_vlan = task.add_vlan;
    }
    let loaded = open.load().map_err(with_last_words)?;
    let index = |name: &str| -> std::result::Result<u32, String> {
        let device = Rtnetlink::open(netns).and_then(|network| network.device(name));
        device.map(|device| device.ifindex).map_err(|e| e.to_string())
    };
    let fd = match program {
        Program::Redirect { to, .. } => {
            let to = index(to)?;
            let filled = loaded.maps.other.update(&0u32.to_ne_bytes(), &to.to_ne_bytes(), MapFlags::ANY);
            filled.map_err(|e| e.to_string())?;
            loaded.progs.redirect.as_fd()
        }
        Program::Pass => loaded.progs.pass.as_fd(),
    };
    let (link, mode) = link(fd, index(device)?, wanted)?;
    pin(link.as_fd(), path).map_err(|e| format!("pin it at {}: {e}", path.display()))?;
    Ok((link_info(link.as_fd()).map_err(|e| e.to_string())?.id, mode))
}

/// Attaches a program to a device, in the driver or in the stack.
fn link(program: BorrowedFd<'_>, ifindex: u32, wanted: XdpMode) -> std::result::Result<(OwnedFd, XdpMode), String> {
    let create = |flags: u32| -> io::Result<OwnedFd> {
        let options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
            flags,
            ..Default::default()
        };
        let (program, device) = (program.as_raw_fd(), ifindex as i32);
        // SAFETY: the options have their own size and outlive the call; the rest are integers.
        let fd = unsafe { libbpf_sys::bpf_link_create(program, device, libbpf_sys::BPF_XDP, &options) };
        match fd {
            // SAFETY: a new descriptor without another owner.
            0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    };
    let native = || create(libbpf_sys::XDP_FLAGS_DRV_MODE).map(|link| (link, XdpMode::Native));
    let generic = || create(libbpf_sys::XDP_FLAGS_SKB_MODE).map(|link| (link, XdpMode::Generic));
    let busy = |error: &io::Error| error.raw_os_error() == Some(Errno::EBUSY as i32);
    let linked = match wanted {
        XdpMode::Native => native(),
        XdpMode::Generic => generic(),
        XdpMode::Auto => native().or_else(|error| if busy(&error) { Err(error) } else { generic() }),
    };
    linked.map_err(|error| match busy(&error) {
        true => "another XDP program is attached; see `ip link` and `bpftool net`, and detach it first".into(),
        false if wanted == XdpMode::Native => {
            format!("its driver does not run the program: {error}; try xdp.mode = \"auto\"")
        }
        false => error.to_string(),
    })
}

fn pin(link: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the path is a C string that outlives the call.
    match unsafe { libbpf_sys::bpf_obj_pin(link.as_raw_fd(), path.as_ptr()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_encoded_bytes())?)
}

fn link_info(link: BorrowedFd<'_>) -> io::Result<libbpf_sys::bpf_link_info> {
    let mut info = libbpf_sys::bpf_link_info::default();
    let mut len = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `len` bytes to a value of that size, whose pointers are null.
    match unsafe { libbpf_sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &mut info, &mut len) } {
        0 => Ok(info),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// ID of a device's pinned link; `None` if the link or its device no longer exists.
pub(crate) fn pinned(topology: &str, device: &str) -> Option<u32> {
    let path = c_path(&pins(topology).join(device)).ok()?;
    // SAFETY: the path is a C string that outlives the call.
    let fd = unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) };
    // SAFETY: a new descriptor without another owner.
    let link = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })?;
    let info = link_info(link.as_fd()).ok()?;
    // SAFETY: it is an XDP link, for which the kernel fills this member of the union.
    let ifindex = unsafe { info.__bindgen_anon_1.xdp.ifindex };
    // The index is 0 once the device has been deleted (net/core/dev.c, bpf_xdp_link_fill_link_info).
    (info.type_ == libbpf_sys::BPF_LINK_TYPE_XDP && ifindex != 0).then_some(info.id)
}

/// Whether bpffs is mounted on [`BPFFS`].
pub(crate) fn is_mounted() -> bool {
    Mount::all_of("self").iter().any(|mount| mount.at == Path::new(BPFFS) && mount.kind == "bpf")
}

fn make_bpffs(builder: &mut Builder) -> Result<()> {
    if is_mounted() {
        return Ok(());
    }
    builder.make(Object::Bpffs, || {
        mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), None::<&str>)
            .doing(format!("mount bpffs on {BPFFS}"))?;
        Ok(Identity::Name)
    })
}

/// Entries that the kernel makes in each new bpffs (kernel/bpf/preload).
const OF_THE_KERNEL: [&str; 2] = ["maps.debug", "progs.debug"];

/// Unmounts bpffs, unless other programs use it.
pub(crate) fn unmount() -> std::result::Result<Removed, String> {
    if !is_mounted() {
        return Ok(Removed::Absent);
    }
    let is_of_others = |entry: fs::DirEntry| !OF_THE_KERNEL.iter().any(|name| entry.file_name() == *name);
    if fs::read_dir(BPFFS).is_ok_and(|entries| entries.flatten().any(is_of_others)) {
        return Ok(Removed::LeftAlone("others have pinned programs there since".into()));
    }
    match umount2(BPFFS, MntFlags::empty()) {
        Ok(()) => Ok(Removed::Yes),
        Err(Errno::EBUSY) => Ok(Removed::LeftAlone("a program uses it".into())),
        Err(error) => Err(format!("unmount {BPFFS}: {error}")),
    }
}

/// Removes the topology's directory of pinned links, and its parent if that is then empty.
pub(crate) fn remove_pins(topology: &str) -> std::result::Result<Removed, String> {
    let directory = pins(topology);
    let removed = match fs::remove_dir(&directory) {
        Ok(()) => Removed::Yes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => Removed::Absent,
        Err(e) => return Err(format!("{}: {e}", directory.display())),
    };
    // Fails if other topologies are up.
    let _ = directory.parent().map(fs::remove_dir);
    Ok(removed)
}

/// Removes a pinned link, which detaches the program.
pub(crate) fn unpin(topology: &str, device: &str) -> std::result::Result<Removed, String> {
    let path = pins(topology).join(device);
    match fs::remove_file(&path) {
        Ok(()) => Ok(Removed::Yes),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Removed::Absent),
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}

/// Whether the topology's directory of pinned links exists.
pub(crate) fn has_pins(topology: &str) -> bool {
    pins(topology).is_dir()
}
