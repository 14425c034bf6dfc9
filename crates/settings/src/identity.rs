//! Identities of the owners of settings, for the journal. They survive a change of name, number or namespace.

use crate::address::{Address, Located};
use crate::read::{devices, interrupts, Source};
use latpath_net::Inode;
use serde::{Deserialize, Serialize};

/// The owner of a setting, in a form that can be found again later during the same boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The owner's name in a reading: `eth0`, `guest7 vCPU 0`; empty for the machine.
    pub target: String,
    /// The owner's address when it was identified.
    pub address: Address,
    /// The network device, if the address is one or belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceIdentity>,
    /// The name of the interrupt's handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
}

/// Identity of a network device. A hardware device is identified by its path, independent of its name and namespace; a
/// software device by its index, together with its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceIdentity {
    /// The hardware's path in sysfs, e.g. `devices/pci0000:00/0000:00:03.0`; `None` for a software device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The hardware's driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Index in its namespace; identifies a software device there.
    pub ifindex: u32,
}

impl Identity {
    /// Whether both identify the same owner, even if it has since moved to another network namespace or been renumbered
    /// (ifindex, IRQ).
    pub fn is_same(&self, other: &Self) -> bool {
        let same_device =
            |(one, of_one): (&str, Inode), (another, of_another): (&str, Inode)| match (&self.device, &other.device) {
                (Some(a), Some(b)) if a.path.is_some() || b.path.is_some() => a.path == b.path,
                (Some(a), Some(b)) => one == another && a.ifindex == b.ifindex,
                _ => one == another && of_one == of_another,
            };
        match (&self.address, &other.address) {
            (Address::Device { name, netns }, Address::Device { name: another, netns: of_another }) => {
                same_device((name, *netns), (another, *of_another))
            }
            (
                Address::Queue { device, netns, queue },
                Address::Queue { device: another, netns: of_another, queue: another_queue },
            ) => queue == another_queue && same_device((device, *netns), (another, *of_another)),
            (Address::Interrupt { .. }, Address::Interrupt { .. }) if self.handler.is_some() => {
                self.handler == other.handler
            }
            (one, another) => one == another,
        }
    }
}

impl Source<'_> {
    /// Identifies the owner of a setting's value.
    pub fn identify(&self, place: &Located) -> Identity {
        let (device, handler) = match &place.address {
            Address::Device { name, netns } | Address::Queue { device: name, netns, .. } => {
                (devices::identity(self, *netns, name), None)
            }
            Address::Interrupt { number } => (None, interrupts::names(&self.root, *number).into_iter().next()),
            _ => (None, None),
        };
        Identity { target: place.target.clone(), address: place.address.clone(), device, handler }
    }

    /// The current address of an identified owner; `None` if the owner no longer exists.
    pub fn locate(&self, identity: &Identity) -> Option<Address> {
        match &identity.address {
            Address::Device { name, netns } => {
                let (name, netns) = self.locate_device(identity, name, *netns)?;
                Some(Address::Device { name, netns })
            }
            Address::Queue { device, netns, queue } => {
                let (device, netns) = self.locate_device(identity, device, *netns)?;
                Some(Address::Queue { device, netns, queue: queue.clone() })
            }
            Address::Interrupt { number } => {
                let Some(handler) = &identity.handler else { return Some(identity.address.clone()) };
                let has = |n: &u32| interrupts::names(&self.root, *n).contains(handler);
                let number =
                    if has(number) { Some(*number) } else { interrupts::all(&self.root).into_iter().find(has) };
                number.map(|number| Address::Interrupt { number })
            }
            Address::Thread { tid, start_ticks } => {
                self.stat_of(*tid, *start_ticks).is_ok().then(|| identity.address.clone())
            }
            Address::Group { path } => {
                let exists = self.root.path(path.trim_start_matches('/')).is_dir();
                exists.then(|| identity.address.clone())
            }
            Address::Machine | Address::Cpu { .. } | Address::Vm { .. } => Some(identity.address.clone()),
        }
    }

    fn locate_device(&self, identity: &Identity, name: &str, netns: Inode) -> Option<(String, Inode)> {
        match &identity.device {
            Some(device) => devices::locate(self, device, name, netns),
            None => Some((name.to_owned(), netns)),
        }
    }

    /// The IRQ numbers of a network device.
    pub fn interrupts_of(&self, netns: Inode, device: &str) -> Vec<u32> {
        devices::interrupts_of(self, netns, device)
    }

    /// The driver of a network device; `None` for a software device.
    pub fn driver_of(&self, netns: Inode, device: &str) -> Option<String> {
        devices::identity(self, netns, device)?.driver
    }
}
