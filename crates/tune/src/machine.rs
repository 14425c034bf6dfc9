//! The machine to be tuned: this one, or one represented by the files in a folder.

use crate::undo::Tunings;
use crate::variables::Variables;
use latpath_linux::proc::{cpus_allowed, Root, Stat};
use latpath_linux::Cpus;
use latpath_net::Netns;
use latpath_settings::{namespace_for, Device, Source};
use latpath_vms::{Policy, Vm};
use std::path::{Path, PathBuf};

/// A machine, with its virtual machines.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    is_live: bool,
    /// Its virtual machines.
    pub vms: Vec<Vm>,
    /// Network devices to read, in addition to those that [`Source::machine`] always reads.
    pub devices: Vec<Device>,
    /// Facts about the machine that could not be determined.
    pub notes: Vec<String>,
}

impl Machine {
    /// This machine, with its virtual machines and these network devices. Each device is looked up in this network
    /// namespace and then in the one made for it ([`latpath_settings::namespace_for`]).
    pub fn this(devices: &[String]) -> Self {
        let (vms, notes) = match latpath_vms::find() {
            Ok(found) => (found.vms, Vec::new()),
            Err(error) => (Vec::new(), vec![format!("virtual machines: {error}")]),
        };
        let is_in = |netns: &Netns, name: &str| {
            latpath_net::interfaces(netns).is_ok_and(|all| all.iter().any(|device| device.name == name))
        };
        let device = |name: &String| {
            let is_here = Netns::own().is_ok_and(|own| is_in(&own, name));
            let made = || Netns::named(&namespace_for(name)).ok().filter(|made| is_in(made, name));
            let netns = if is_here { 0 } else { made().map_or(0, |made| made.inode()) };
            Device { name: name.clone(), netns, suffix: String::new() }
        };
        Self { root: "/".into(), is_live: true, vms, devices: devices.iter().map(device).collect(), notes }
    }

    /// A machine whose `/proc`, `/sys`, `/etc` and `/boot` are below a folder.
    pub fn below(root: &Path, vms: Vec<Vm>) -> Self {
        Self { root: root.into(), is_live: false, vms, devices: Vec::new(), notes: Vec::new() }
    }

    /// The machine, with the current state of its virtual machines and their threads.
    pub fn again(&self) -> Self {
        if self.is_live {
            return Self::this(&self.devices.iter().map(|device| device.name.clone()).collect::<Vec<_>>());
        }
        let (mut machine, root) = (self.clone(), self.root());
        for vm in &mut machine.vms {
            vm.threads.retain_mut(|thread| {
                let folder = format!("proc/{}", thread.tid);
                let Some(stat) = Stat::read(&root, &folder) else { return false };
                thread.policy = Policy::from_number(stat.policy);
                (thread.rt_priority, thread.nice) = (stat.rt_priority, stat.nice);
                thread.cpus_allowed = cpus_allowed(&root, &folder).unwrap_or_default();
                true
            });
        }
        machine
    }

    /// The machine in its current state; if it is this machine, with these network devices.
    pub fn with_devices(&self, names: &[String]) -> Self {
        match self.is_live {
            true => Self::this(names),
            false => self.again(),
        }
    }

    /// The source from which its settings are read.
    pub fn source(&self) -> Source<'_> {
        match self.is_live {
            true => Source::machine(&self.vms, self.devices.clone()),
            false => Source::below(&self.root, &self.vms, self.devices.clone()),
        }
    }

    /// Undoes tunings of this machine.
    pub fn undoer(&self) -> Tunings {
        match self.is_live {
            true => Tunings::LIVE,
            false => Tunings::below(self.root.clone()),
        }
    }

    /// The root of its file system.
    pub(crate) fn root(&self) -> Root {
        Root::of(&self.root)
    }

    /// Its online CPUs.
    pub fn online(&self) -> Cpus {
        self.root().cpus("online")
    }

    /// CPUs that the running kernel isolates or runs without a tick.
    pub fn isolated(&self) -> Cpus {
        self.root().isolated_cpus()
    }

    /// Completes the variables that the user has not set. The isolated CPUs are all except the housekeeping CPUs or,
    /// without these, the ones that the running kernel isolates or runs without a tick; the housekeeping CPUs are all
    /// except the isolated CPUs.
    pub fn complete(&self, mut variables: Variables) -> Variables {
        variables.cpus = self.online();
        if variables.isolated.is_none() {
            let own = match &variables.housekeeping {
                Some(housekeeping) => variables.cpus.without(housekeeping),
                None => self.isolated(),
            };
            variables.isolated = Some(own).filter(|cpus| !cpus.is_empty());
        }
        if let (None, Some(isolated)) = (&variables.housekeeping, &variables.isolated) {
            let others = variables.cpus.without(isolated);
            variables.housekeeping = Some(others).filter(|cpus| !cpus.is_empty());
        }
        variables
    }

    fn cpuinfo(&self) -> String {
        self.root().text("proc/cpuinfo").unwrap_or_default()
    }

    /// Vendor of the CPU: `intel`, `amd` or `arm`; `None` for others.
    pub(crate) fn cpu_maker(&self) -> Option<&'static str> {
        let info = self.cpuinfo();
        match () {
            () if info.contains("GenuineIntel") => Some("intel"),
            () if info.contains("AuthenticAMD") => Some("amd"),
            () if info.contains("CPU implementer") => Some("arm"),
            () => None,
        }
    }

    /// Whether the machine is itself a virtual machine.
    pub(crate) fn is_guest(&self) -> bool {
        let has_flag = self
            .cpuinfo()
            .lines()
            .any(|line| line.starts_with("flags") && line.split_whitespace().any(|flag| flag == "hypervisor"));
        let maker = self.root().text("sys/class/dmi/id/sys_vendor").unwrap_or_default();
        has_flag || ["QEMU", "KVM", "VMware"].iter().any(|name| maker.contains(name))
    }

    pub(crate) fn release(&self) -> String {
        self.root().text("proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
    }

    pub(crate) fn is_preempt_rt(&self) -> bool {
        let version = self.root().text("proc/sys/kernel/version").unwrap_or_default();
        version.split_whitespace().any(|word| word == "PREEMPT_RT")
    }

    pub(crate) fn numa_nodes(&self) -> usize {
        let names = self.root().names("sys/devices/system/node", 4096);
        let is_node = |name: &&String| name.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
        names.iter().filter(is_node).count()
    }
}
