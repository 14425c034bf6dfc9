//! The settings of a machine that matter to packets. [`Setting`] is the table: each setting's name, meaning, scope,
//! source, destination, disturbance and lifetime. [`Source`] reads settings. Nothing here writes one:
//! [`Setting::shell`] returns the command that would. [`differences`] compares groups of runs, and
//! [`RunSettings::changes`] compares the beginning and the end of one run.

#![warn(missing_docs, clippy::missing_errors_doc)]

mod boot;
mod difference;
mod ethtool;
mod host;
mod nic;
mod owners;
mod page;
mod read;
mod reading;
mod setting;
mod shell;
mod write;

pub use boot::{NextBoot, PendingParameter};
pub use difference::{differences, DifferenceKind, SettingChange, SettingDifference, Side};
pub use host::read_host;
pub use nic::{Nic, Refusal, Written};
pub use owners::{Irqbalance, Owner, Owners};
pub use page::page;
pub use read::{Device, Source};
pub use reading::{MachineSettings, Reading, RunSettings, SettingValue};
pub use setting::{Disturbs, Lasts, Read, Scope, Setting, SettingInfo, Write};
pub use write::Place;
