//! The settings of a machine that affect packets. [`Setting`] is the table: each setting's name, meaning, scope,
//! source, destination, disturbance and lifetime. [`Source`] reads settings. [`Setting::write`] writes one and reads it
//! back; [`Setting::shell`] returns the command that does the same. Before a caller changes a machine, it stores the
//! old value in the journal. [`differences`] compares groups of runs, and [`RunSettings::changes`] compares the start
//! and the end of one run.

mod address;
mod boot;
mod boot_state;
mod clock_sync;
mod difference;
mod ethtool;
mod host;
mod identity;
mod network;
mod nic;
mod owners;
mod page;
mod read;
mod reading;
mod setting;
mod shell;
mod value;
mod write;
mod writing;

pub use address::{Address, Located};
pub use boot::{NextBoot, PendingParameter};
pub use boot_state::BootState;
pub use difference::{differences, DifferenceKind, SettingChange, SettingDifference, Side};
pub use host::read_host;
pub use identity::{DeviceIdentity, Identity};
pub use network::namespace_for;
pub use nic::{Nic, Refusal, Written};
pub use owners::{Irqbalance, Owner, Owners};
pub use page::page;
pub use read::{special::is_boot_setting, Device, Source};
pub use reading::{MachineSettings, Reading, RunSettings, SettingValue};
pub use setting::{Disturbance, Persistence, Read, Scope, Setting, SettingInfo, Write};
pub use write::Place;
pub use writing::{Writable, WriteError};
