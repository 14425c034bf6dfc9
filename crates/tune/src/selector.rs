//! Selectors: the places to which a profile's line applies.

use crate::machine::Machine;
use crate::variables::Variables;
use latpath_linux::proc::Stat;
use latpath_linux::Cpus;
use latpath_settings::{Address, Located, Source};
use latpath_vms::Role;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The places at which a line sets its setting. Lists may contain variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The machine, or the kernel's command line.
    Machine,
    /// CPUs in a list.
    Cpus(String),
    /// The network devices named by the user, with their queues.
    Interface,
    /// The interrupts of these devices, and their threads.
    InterfaceInterrupts,
    /// Interrupts of other devices that are served by a CPU in a list, and their threads.
    OtherInterrupts(String),
    /// The subset of these other interrupts whose affinity the kernel manages, recognised by handler name: disks with a
    /// queue per CPU.
    ManagedInterrupts(String),
    /// The taps of virtual machines.
    Taps,
    /// The bridges to which these taps belong.
    Bridges,
    /// Threads of virtual machines with this role.
    Threads(Role),
    /// Threads of a service, e.g. `ptp4l` or `ovs-vswitchd pmd`.
    Services(String),
    /// Control groups with this name, e.g. `machine.slice`; a trailing `*` matches any rest.
    Groups(String),
    /// The virtual machines.
    Vms,
}

/// The roles, and their names in selectors.
const ROLES: [(&str, Role); 6] = [
    ("main-loop", Role::MainLoop),
    ("vcpu", Role::Vcpu),
    ("vhost", Role::Vhost),
    ("io", Role::Io),
    ("kvm", Role::Kvm),
    ("other", Role::Other),
];

/// Prefixes of interrupt handler names whose drivers let the kernel spread and manage the interrupts
/// (`PCI_IRQ_AFFINITY`): nvme, and Broadcom's, Microchip's and Fibre Channel adapters.
const MANAGED: [&str; 8] = ["nvme", "mpi3mr", "mpt3sas", "megasas", "smartpqi", "qla2xxx", "lpfc", "hisi_sas"];

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            format!(
                "{text}: no such places (machine, cpus:LIST, interface, interface-interrupts, other-interrupts:LIST, \
                 managed-interrupts:LIST, taps, bridges, threads:main-loop|vcpu|vhost|io|kvm|other, services:NAME, groups:NAME, vms)"
            )
        };
        match text.split_once(':') {
            None => match text {
                "machine" => Ok(Self::Machine),
                "interface" => Ok(Self::Interface),
                "interface-interrupts" => Ok(Self::InterfaceInterrupts),
                "taps" => Ok(Self::Taps),
                "bridges" => Ok(Self::Bridges),
                "vms" => Ok(Self::Vms),
                _ => Err(unknown()),
            },
            Some((_, "")) => Err(unknown()),
            Some(("cpus", list)) => Ok(Self::Cpus(list.into())),
            Some(("other-interrupts", list)) => Ok(Self::OtherInterrupts(list.into())),
            Some(("managed-interrupts", list)) => Ok(Self::ManagedInterrupts(list.into())),
            Some(("services", name)) => Ok(Self::Services(name.into())),
            Some(("groups", name)) => Ok(Self::Groups(name.into())),
            Some(("threads", role)) => {
                let found = ROLES.iter().find(|(name, _)| *name == role);
                found.map(|(_, role)| Self::Threads(*role)).ok_or_else(unknown)
            }
            Some(_) => Err(unknown()),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("machine"),
            Self::Cpus(list) => write!(f, "cpus:{list}"),
            Self::Interface => f.write_str("interface"),
            Self::InterfaceInterrupts => f.write_str("interface-interrupts"),
            Self::OtherInterrupts(list) => write!(f, "other-interrupts:{list}"),
            Self::ManagedInterrupts(list) => write!(f, "managed-interrupts:{list}"),
            Self::Taps => f.write_str("taps"),
            Self::Bridges => f.write_str("bridges"),
            Self::Threads(role) => {
                let name = ROLES.iter().find(|(_, known)| known == role).map_or("other", |(name, _)| name);
                write!(f, "threads:{name}")
            }
            Self::Services(name) => write!(f, "services:{name}"),
            Self::Groups(name) => write!(f, "groups:{name}"),
            Self::Vms => f.write_str("vms"),
        }
    }
}

/// The places of a machine, and the devices and interrupts to which they belong.
pub(crate) struct Places<'a> {
    pub(crate) all: Vec<Located>,
    pub(crate) notes: Vec<String>,
    machine: &'a Machine,
    variables: &'a Variables,
    /// Interrupts of the user's devices, with the device's name.
    interrupts: BTreeMap<u32, String>,
    drivers: BTreeMap<String, Option<String>>,
}

impl<'a> Places<'a> {
    pub(crate) fn of(machine: &'a Machine, source: &Source, variables: &'a Variables) -> Self {
        let (all, notes) = source.places();
        let (mut interrupts, mut drivers) = (BTreeMap::new(), BTreeMap::new());
        for name in &variables.interfaces {
            // A device in another namespace is looked up there.
            let netns = all.iter().find_map(|place| match &place.address {
                Address::Device { name: found, netns } if found == name => Some(*netns),
                _ => None,
            });
            let netns = netns.unwrap_or(0);
            interrupts.extend(source.interrupts_of(netns, name).into_iter().map(|n| (n, name.clone())));
            drivers.insert(name.clone(), source.driver_of(netns, name));
        }
        Self { all, notes, machine, variables, interrupts, drivers }
    }

    /// Name of the user's network device to which a place belongs.
    pub(crate) fn interface_of(&self, place: &Located) -> Option<&str> {
        match &place.address {
            Address::Interrupt { .. } | Address::Thread { .. } => {
                self.interrupts.get(&self.interrupt_of(place)?).map(String::as_str)
            }
            address => {
                let device = address.device()?;
                self.variables.interfaces.iter().find(|name| *name == device).map(String::as_str)
            }
        }
    }

    /// Number of the interrupt, if the place is an interrupt or an interrupt thread.
    fn interrupt_of(&self, place: &Located) -> Option<u32> {
        match &place.address {
            Address::Interrupt { number } => Some(*number),
            Address::Thread { tid, .. } => {
                let stat = Stat::read(&self.machine.root(), &format!("proc/{tid}"))?;
                stat.comm.strip_prefix("irq/")?.split_once('-')?.0.parse().ok()
            }
            _ => None,
        }
    }

    /// Whether a place belongs to an interrupt that is served by one of these CPUs and does not belong to one of the
    /// user's devices.
    fn is_other_interrupt(&self, place: &Located, cpus: &str, is_managed: bool) -> bool {
        let root = self.machine.root();
        let Some(number) = self.interrupt_of(place).filter(|number| !self.interrupts.contains_key(number)) else {
            return false;
        };
        let served = root.text(&format!("proc/irq/{number}/effective_affinity_list")).unwrap_or_default();
        let served = served.trim().parse::<Cpus>().unwrap_or_default();
        let is_of_disk = || {
            let names = root.names(&format!("proc/irq/{number}"), 64);
            names.iter().any(|name| MANAGED.iter().any(|begin| name.starts_with(begin)) || name.contains("-req."))
        };
        cpus.parse::<Cpus>().is_ok_and(|cpus| cpus.overlaps(&served)) && (!is_managed || is_of_disk())
    }

    /// Driver of one of the user's network devices.
    pub(crate) fn driver(&self, interface: Option<&str>) -> Option<&str> {
        self.drivers.get(interface?)?.as_deref()
    }

    /// Whether a selector matches a place; `list` is the selector's list with its variables replaced.
    pub(crate) fn has(&self, selector: &Selector, list: &str, place: &Located) -> bool {
        let taps = || self.machine.vms.iter().flat_map(|vm| &vm.taps);
        match (selector, &place.address) {
            (Selector::Machine, Address::Machine) | (Selector::Vms, Address::Vm { .. }) => true,
            (Selector::Cpus(_), Address::Cpu { cpu }) => list.parse::<Cpus>().is_ok_and(|cpus| cpus.contains(*cpu)),
            (Selector::Interface, Address::Device { .. } | Address::Queue { .. }) => self.interface_of(place).is_some(),
            (Selector::InterfaceInterrupts, Address::Interrupt { .. } | Address::Thread { .. }) => {
                self.interface_of(place).is_some()
            }
            (Selector::OtherInterrupts(_), _) => self.is_other_interrupt(place, list, false),
            (Selector::ManagedInterrupts(_), _) => self.is_other_interrupt(place, list, true),
            (Selector::Taps, address) => address.device().is_some_and(|name| taps().any(|tap| tap.device == name)),
            (Selector::Bridges, address) => {
                let is_its =
                    |name: &str| taps().any(|tap| tap.bridge.as_ref().is_some_and(|bridge| bridge.name == name));
                address.device().is_some_and(is_its)
            }
            (Selector::Threads(role), Address::Thread { tid, .. }) => {
                let mut threads = self.machine.vms.iter().flat_map(|vm| &vm.threads);
                threads.any(|thread| thread.tid == *tid && thread.role == *role)
            }
            (Selector::Services(_), Address::Thread { .. }) => place.target.starts_with(list),
            (Selector::Groups(_), Address::Group { path }) => {
                let name = path.rsplit('/').next().unwrap_or(path);
                list.strip_suffix('*').map_or(name == list, |begin| name.starts_with(begin))
            }
            _ => false,
        }
    }
}

impl Selector {
    /// The selector's list, before variables are replaced.
    pub(crate) fn list(&self) -> &str {
        match self {
            Self::Cpus(list) | Self::Services(list) | Self::Groups(list) => list,
            Self::OtherInterrupts(list) | Self::ManagedInterrupts(list) => list,
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_read_as_written() {
        for text in [
            "machine",
            "cpus:{isolated}",
            "interface",
            "interface-interrupts",
            "other-interrupts:2,3",
            "managed-interrupts:{irq_cpu}",
            "taps",
            "bridges",
            "threads:main-loop",
            "threads:vcpu",
            "services:ptp4l",
            "groups:machine*",
            "vms",
        ] {
            assert_eq!(text.parse::<Selector>().unwrap().to_string(), text);
        }
        for text in ["", "cpus:", "cpus", "threads:moon", "moon:1"] {
            assert!(text.parse::<Selector>().unwrap_err().contains("no such places"), "{text}");
        }
    }
}
