//! The address of a setting's value: where a reading found the value, and where a write changes it.

use crate::setting::Setting;
use crate::write::Place;
use latpath_net::Inode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The owner of a setting at the time of a reading. After a reboot, the same interrupt number, thread ID or namespace
/// inode may belong to another owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Address {
    /// The machine as a whole; also for parameters of the kernel's command line.
    Machine,
    /// A CPU.
    Cpu {
        /// Its number.
        cpu: u32,
    },
    /// An interrupt.
    Interrupt {
        /// Its IRQ number, as in /proc/irq.
        number: u32,
    },
    /// A network device.
    Device {
        /// Its name.
        name: String,
        /// Inode number of its network namespace; 0 for latpath's own.
        netns: Inode,
    },
    /// A queue of a network device.
    Queue {
        /// The device's name.
        device: String,
        /// Inode number of its network namespace; 0 for latpath's own.
        netns: Inode,
        /// The queue's name, e.g. `rx-0`.
        queue: String,
    },
    /// A thread.
    Thread {
        /// Its thread ID.
        tid: u32,
        /// Its start, in clock ticks since boot: distinguishes it from later threads with the same ID.
        start_ticks: u64,
    },
    /// A control group.
    Group {
        /// The path of its directory, e.g. `/sys/fs/cgroup/machine.slice`.
        path: String,
    },
    /// A virtual machine.
    Vm {
        /// Its name.
        name: String,
    },
}

impl Address {
    /// How the commands of [`Setting::shell`] name this address.
    pub fn place(&self) -> Place {
        match self {
            Self::Machine => Place::All,
            Self::Queue { device, queue, .. } => Place::name(format!("{device}/queues/{queue}")),
            other => Place::name(other),
        }
    }

    /// The network device that the address belongs to; `None` if there is none.
    pub fn device(&self) -> Option<&str> {
        match self {
            Self::Device { name, .. } | Self::Queue { device: name, .. } => Some(name),
            _ => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("the machine"),
            Self::Cpu { cpu } => write!(f, "{cpu}"),
            Self::Interrupt { number } => write!(f, "{number}"),
            Self::Device { name, .. } | Self::Vm { name } => f.write_str(name),
            Self::Queue { device, queue, .. } => write!(f, "{device} {queue}"),
            Self::Thread { tid, .. } => write!(f, "{tid}"),
            Self::Group { path } => f.write_str(path),
        }
    }
}

/// A setting's value at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The setting.
    pub setting: Setting,
    /// The owner's persistent name: a CPU number, `eth0`, `guest7 vCPU 0`; empty for the machine.
    pub target: String,
    /// The current address of the value.
    pub address: Address,
    /// The value, in the same form as in a [`crate::Reading`].
    pub value: String,
}
