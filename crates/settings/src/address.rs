//! The current address of a setting's value, at which a reading found it and a write changes it.

use crate::setting::Setting;
use crate::write::Place;
use latpath_net::Inode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The owner of a setting at the time of a reading. Numbers of interrupts, threads and namespaces name another owner
/// after a reboot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Address {
    /// The machine; also for parameters of the kernel's command line.
    Machine,
    /// A CPU.
    Cpu {
        /// Its number.
        cpu: u32,
    },
    /// An interrupt.
    Interrupt {
        /// Its number in /proc/irq.
        number: u32,
    },
    /// A network device.
    Device {
        /// Its name.
        name: String,
        /// Inode number of its network namespace; 0 is the own one.
        netns: Inode,
    },
    /// A queue of a network device.
    Queue {
        /// The device's name.
        device: String,
        /// Inode number of its network namespace; 0 is the own one.
        netns: Inode,
        /// `rx-0`.
        queue: String,
    },
    /// A thread.
    Thread {
        /// Its number.
        tid: u32,
        /// Its start, clock ticks since boot: distinguishes later threads of the same number.
        start_ticks: u64,
    },
    /// A control group.
    Group {
        /// The path of its folder: `/sys/fs/cgroup/machine.slice`.
        path: String,
    },
    /// A virtual machine.
    Vm {
        /// Its name.
        name: String,
    },
}

impl Address {
    /// The place in a command: [`Setting::shell`].
    pub fn place(&self) -> Place {
        match self {
            Self::Machine => Place::All,
            Self::Queue { device, queue, .. } => Place::name(format!("{device}/queues/{queue}")),
            other => Place::name(other),
        }
    }

    /// The network device that the address belongs to.
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
    /// The owner's lasting name, as in a reading: a CPU's number, `eth0`, `guest7 vCPU 0`; empty for the machine.
    pub target: String,
    /// Where the value is at present.
    pub address: Address,
    /// The value, as in a reading.
    pub value: String,
}
