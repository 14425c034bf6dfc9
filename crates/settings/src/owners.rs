//! Programs and files that may overwrite a setting after it was changed: tuned, irqbalance, libvirt, systemd,
//! NetworkManager, and the files of sysctl.d, tmpfiles.d, modprobe.d and udev.

mod files;
mod services;
mod tuned;

use crate::setting::{Read, Setting, Write};
use latpath_linux::proc::Root;
use latpath_vms::Vm;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

pub use services::Irqbalance;

/// A program that manages a setting on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Owner {
    /// The program: `tuned`, `sysctl.d`, `tmpfiles.d`, `modprobe.d`, `udev`, `systemd`, `irqbalance`, `libvirt`,
    /// `NetworkManager`.
    pub program: String,
    /// The file that makes the program set the setting, if there is one.
    pub file: Option<String>,
    /// The value that the program sets, as written in the file.
    pub value: Option<String>,
    /// When the program sets the setting again, and how to change that: a sentence without a full stop.
    pub note: String,
}

impl fmt::Display for Owner {
    /// E.g. `tuned (/usr/lib/tuned/realtime/tuned.conf: -1)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, &self.value) {
            (Some(file), Some(value)) => write!(f, "{} ({file}: {value})", self.program),
            (Some(file), None) => write!(f, "{} ({file})", self.program),
            (None, Some(value)) => write!(f, "{} ({value})", self.program),
            (None, None) => f.write_str(&self.program),
        }
    }
}

/// Subject of a claim: the thing that a program sets.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    /// A sysctl(8) variable.
    Sysctl(String),
    /// A file, relative to the root; `*` matches any string.
    File(String),
    /// A module's name and one of its parameters.
    Module(String, String),
    /// A parameter of the kernel's command line.
    Boot(String),
    /// A setting of the table, for targets that start with the string.
    Setting(Setting, String),
}

/// The programs that set settings on this machine.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    /// Subjects, each with the owner that sets it. If several owners set the same subject, the last one takes effect.
    claims: Vec<(Subject, Owner)>,
    irqbalance: Option<Irqbalance>,
}

impl Owners {
    /// Finds the owners of settings below a root directory: `/` for the running machine. `running` returns whether a
    /// program of this name is running. Files that this user may not read are skipped.
    pub fn read(root: &Root, running: &dyn Fn(&str) -> bool, vms: &[Vm]) -> Self {
        let mut claims = files::claims(root);
        claims.extend(services::claims(root, running, vms));
        claims.extend(tuned::claims(root));
        Self { claims, irqbalance: Irqbalance::read(root, running) }
    }

    /// The owners of a setting for a target, named as in [`crate::SettingValue`]; the one that takes effect comes
    /// first.
    pub fn of(&self, setting: Setting, target: &str) -> Vec<&Owner> {
        let mut all: Vec<&Owner> = Vec::new();
        for (subject, owner) in self.claims.iter().rev() {
            let is_known = all.iter().any(|known| known.program == owner.program);
            if !is_known && subject.is_of(setting, target) {
                all.push(owner);
            }
        }
        all
    }

    /// irqbalance, if it is running.
    pub fn irqbalance(&self) -> Option<&Irqbalance> {
        self.irqbalance.as_ref()
    }
}

impl Subject {
    fn is_of(&self, setting: Setting, target: &str) -> bool {
        let read = setting.info().read;
        match self {
            Self::Sysctl(name) => matches!(read, Read::Sysctl(known) if known == name),
            Self::Module(module, parameter) => {
                matches!(read, Read::Module(m, p) if m == module && p == parameter)
                    || matches!(setting.info().write, Write::ModuleOption(m, p) if m == module && p == parameter)
            }
            Self::Boot(name) => matches!(read, Read::Boot(known) if known.replace('-', "_") == name.replace('-', "_")),
            Self::Setting(known, at) => *known == setting && target.starts_with(at.as_str()),
            Self::File(pattern) => file_of(read, target).is_some_and(|file| fits(pattern, &file)),
        }
    }
}

/// The file that holds a setting, relative to the root; `None` if the setting is not a file, or is a file of an
/// interrupt, a queue or a control group.
fn file_of(read: Read, target: &str) -> Option<String> {
    // For a list of CPUs, use the first one.
    let cpu = || target.split(['-', ',']).next().unwrap_or_default();
    let device = || target.split([' ', '%']).next().unwrap_or_default();
    Some(match read {
        Read::Line(file) | Read::Choice(file) => file.into(),
        Read::Sysctl(name) => format!("proc/sys/{}", name.replace('.', "/")),
        Read::Module(module, name) => format!("sys/module/{module}/parameters/{name}"),
        Read::EachCpu(file) | Read::EachCalledCpu(file) => format!("sys/devices/system/cpu/cpu{}/{file}", cpu()),
        Read::Device(file) => format!("sys/class/net/{}/{file}", device()),
        Read::Queue(_, file) => format!("sys/class/net/{}/queues/{}/{file}", device(), target.rsplit(' ').next()?),
        _ => return None,
    })
}

/// Whether a path matches a pattern with `*`.
fn fits(pattern: &str, path: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| path.strip_prefix(first)) else { return false };
    let mut last = None;
    for part in parts {
        last = Some(part);
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    match last {
        // The last part must be at the end of the path; `find` may have found an earlier occurrence.
        Some(part) => path.ends_with(part),
        None => rest.is_empty(),
    }
}

#[cfg(test)]
mod tests;
