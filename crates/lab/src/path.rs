//! The lab itself: its folder, its namespaces, and the path that packets take through them.

use crate::{
    devices::{APPLICATION, BRIDGE, NIC, PUBLISHER, TAP, VETH},
    error::{Doing, Error, Result},
    namespace::{LabId, Namespace},
    open_vswitch::OpenVswitch,
    undo::{LabEntry, Step},
};
use latpath_net::{Change, Flag, MacvtapMode, NewDevice};
use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

/// Place of the application at the end of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Application {
    /// In a QEMU guest behind a tap.
    Guest,
    /// In a third namespace behind a veth.
    Namespace,
}

/// The switch between the host's NIC and the guest's tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// The kernel's own bridge.
    LinuxBridge,
    /// The lab's own Open vSwitch on the kernel's datapath, which learns addresses like the bridge.
    OpenVswitch,
    /// None: the guest's device is a macvtap on the host's NIC.
    Macvtap,
}

/// A lab of this process. Any number of labs may exist at once, in this process and others.
#[derive(Clone, Debug)]
pub struct Lab {
    id: LabId,
    folder: Arc<Folder>,
    journal: Arc<LabEntry>,
}

#[derive(Debug)]
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // If this fails, the next latpath removes the folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Lab {
    /// Creates an empty lab.
    ///
    /// # Errors
    /// If this process is not root, or cannot record the lab in the journal or create its folder.
    pub fn new() -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            return Err(Error::NotRoot);
        }
        let id = LabId::next();
        let journal = Arc::new(LabEntry::begin(id)?);
        journal.add(Step::Folder)?;
        let folder = Path::new(crate::files::FOLDERS).join(id.to_string());
        let mut private = fs::DirBuilder::new();
        private.recursive(true).mode(0o700).create(&folder).doing(format!("make folder {}", folder.display()))?;
        Ok(Self { id, folder: Arc::new(Folder(folder)), journal })
    }

    /// This lab's folder, which is removed with the lab.
    pub fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// Creates a namespace of this lab, which is removed with its last handle; `role` is the end of its name.
    ///
    /// # Errors
    /// If the namespace cannot be recorded in the journal or created.
    pub fn namespace(&self, role: &str) -> Result<Namespace> {
        Namespace::new(self.id, role, &self.journal)
    }

    /// Sets up the path through the kernel's bridge, to the application's device or the guest's tap.
    ///
    /// # Errors
    /// If the kernel rejects a namespace or a device.
    pub fn lay(&self, application: Application) -> Result<LabPath> {
        self.lay_through(Switch::LinuxBridge, application)
    }

    /// A copy of a program without debugging information, which an emulated guest unpacks faster; the program itself if
    /// it cannot be stripped.
    pub fn stripped(&self, whole: PathBuf, name: &str) -> PathBuf {
        let small = self.folder().join(name);
        match Command::new("strip").arg("-g").arg("-o").arg(&small).arg(&whole).status() {
            Ok(status) if status.success() => small,
            _ => whole,
        }
    }

    /// [`Lab::lay`], with a choice of the switch. A macvtap has a guest behind it, and no other application.
    ///
    /// # Errors
    /// Like [`Lab::lay`], and if Open vSwitch does not start.
    pub fn lay_through(&self, switch: Switch, application: Application) -> Result<LabPath> {
        let publisher = self.namespace("pub")?;
        let hypervisor = self.namespace("hyp")?;
        let host = hypervisor.network()?;
        let up = Change::Up(true);
        let open_vswitch = match switch {
            Switch::OpenVswitch => Some(Arc::new(OpenVswitch::start(self, &hypervisor)?)),
            Switch::LinuxBridge => {
                // Without snooping, the bridge floods multicast, as the lab requires.
                host.add_device(BRIDGE, NewDevice::Bridge { multicast_snooping: false, spanning_tree: false })?;
                None
            }
            Switch::Macvtap => None,
        };
        cable(&publisher, PUBLISHER, &hypervisor, NIC)?;
        if switch == Switch::Macvtap {
            // The macvtap receives all multicast groups: QEMU does not report to it which ones the guest joins.
            host.add_device(TAP, NewDevice::Macvtap { lower: NIC, mode: MacvtapMode::Bridge, queues: 1 })?;
            host.set(TAP, &[Change::Flag(Flag::AllMulticast, true), up])?;
            host.set(NIC, &[up])?;
            publisher.network()?.set(PUBLISHER, &[up])?;
            let node = Some(hypervisor.macvtap_node(TAP, self.folder())?);
            return Ok(LabPath { publisher, hypervisor, application: None, open_vswitch, macvtap: node });
        }
        let (port, application) = match application {
            Application::Guest => {
                host.add_device(TAP, NewDevice::Tap)?;
                (TAP, None)
            }
            Application::Namespace => {
                let space = self.namespace("app")?;
                cable(&space, APPLICATION, &hypervisor, VETH)?;
                (VETH, Some(space))
            }
        };
        for device in [NIC, port] {
            match &open_vswitch {
                Some(switch) => {
                    switch.add_port(device)?;
                    host.set(device, &[up])?;
                }
                None => host.set(device, &[Change::Master(Some(BRIDGE)), up])?,
            }
        }
        host.set(BRIDGE, &[up])?;
        publisher.network()?.set(PUBLISHER, &[up])?;
        if let Some(space) = &application {
            space.network()?.set(APPLICATION, &[up])?;
        }
        Ok(LabPath { publisher, hypervisor, application, open_vswitch, macvtap: None })
    }
}

/// A path. Its devices are removed with it.
#[derive(Clone, Debug)]
pub struct LabPath {
    /// The switch behind [`BRIDGE`], unless it is the kernel's bridge.
    pub open_vswitch: Option<Arc<OpenVswitch>>,
    /// The namespace of the packets' source, with [`PUBLISHER`].
    pub publisher: Namespace,
    /// The host's namespace, with [`NIC`], [`TAP`] or [`VETH`], and [`BRIDGE`] unless the tap is a macvtap.
    pub hypervisor: Namespace,
    /// The character device of the guest's macvtap.
    pub macvtap: Option<PathBuf>,
    /// Without a guest: the application's namespace, with [`APPLICATION`].
    pub application: Option<Namespace>,
}

/// Creates a veth pair with an end in each namespace; neither end passes through a third namespace.
fn cable(left: &Namespace, left_device: &str, right: &Namespace, right_device: &str) -> Result<()> {
    let other_end = NewDevice::Veth { peer: right_device, netns: Some(right.netns()) };
    Ok(left.network()?.add_device(left_device, other_end)?)
}
