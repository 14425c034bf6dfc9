//! The lab itself: its folder, its namespaces, and the path that packets take through them.

use crate::{
    devices::{APPLICATION, BRIDGE, NIC, PUBLISHER, TAP, VETH},
    error::{Doing, Error, Result},
    namespace::{LabId, Namespace},
    open_vswitch::OpenVswitch,
    undo::{LabEntry, Step},
};
use latpath_net::{Change, NewDevice};
use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

/// Where the application at the path's end runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Application {
    /// In a QEMU guest behind a tap.
    Guest,
    /// In a third namespace behind a veth.
    Namespace,
}

/// What joins the host's NIC and the guest's tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// The kernel's own bridge.
    LinuxBridge,
    /// An Open vSwitch of the lab's own, on the kernel's datapath, that learns addresses as the bridge does.
    OpenVswitch,
}

/// One lab of this process; any number may run at once, in this process and in others.
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
        // What cannot be removed now is removed at the next start.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Lab {
    /// Starts an empty lab.
    ///
    /// # Errors
    /// Where this process is not root, or cannot note the lab in the journal and make its folder.
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

    /// This lab's folder; gone with the lab.
    pub fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// Makes a namespace of this lab; `role` is the end of its name. It goes with its last handle.
    pub fn namespace(&self, role: &str) -> Result<Namespace> {
        Namespace::new(self.id, role, &self.journal)
    }

    /// Lays the path up to the application's socket: namespaces, cables and the bridge, or its tap.
    pub fn lay(&self, application: Application) -> Result<LabPath> {
        self.lay_through(Switch::LinuxBridge, application)
    }

    /// A program without what a debugger reads, where it can be had so: an emulated guest unpacks it sooner.
    pub fn stripped(&self, whole: PathBuf, name: &str) -> PathBuf {
        let small = self.folder().join(name);
        match Command::new("strip").arg("-g").arg("-o").arg(&small).arg(&whole).status() {
            Ok(status) if status.success() => small,
            _ => whole,
        }
    }

    /// [`Lab::lay`], through a switch of your choice.
    pub fn lay_through(&self, switch: Switch, application: Application) -> Result<LabPath> {
        let publisher = self.namespace("pub")?;
        let hypervisor = self.namespace("hyp")?;
        let host = hypervisor.network()?;
        let up = Change::Up(true);
        let open_vswitch = match switch {
            Switch::OpenVswitch => Some(Arc::new(OpenVswitch::start(self, &hypervisor)?)),
            Switch::LinuxBridge => {
                // It floods multicast, as the lab needs.
                host.add_device(BRIDGE, NewDevice::Bridge { multicast_snooping: false })?;
                None
            }
        };
        cable(&publisher, PUBLISHER, &hypervisor, NIC)?;
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
        Ok(LabPath { publisher, hypervisor, application, open_vswitch })
    }
}

/// A laid path. Its devices go with it.
#[derive(Clone, Debug)]
pub struct LabPath {
    /// The switch behind [`BRIDGE`], where it is not the kernel's own.
    pub open_vswitch: Option<Arc<OpenVswitch>>,
    /// Where packets are made: holds [`PUBLISHER`].
    pub publisher: Namespace,
    /// The host: holds [`NIC`], [`BRIDGE`] and [`TAP`] or [`VETH`].
    pub hypervisor: Namespace,
    /// Without a guest, where the application runs: holds [`APPLICATION`].
    pub application: Option<Namespace>,
}

/// A veth pair with an end in each namespace. It never shows in any other.
fn cable(left: &Namespace, left_device: &str, right: &Namespace, right_device: &str) -> Result<()> {
    let other_end = NewDevice::Veth { peer: right_device, netns: Some(right.netns()) };
    Ok(left.network()?.add_device(left_device, other_end)?)
}
