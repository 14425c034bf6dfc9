//! Network namespaces of a lab, named after the process that created them. They are removed with it, or by the next
//! latpath after a kill.

use crate::{
    error::{Doing, Error, Result},
    process::{self, Running},
    undo::{LabEntry, Step},
};
use latpath_net::{interfaces, macvtap_device_number, Change, Netns, Rtnetlink, Statistics};
use latpath_undo::Owner;
use nix::sys::{
    signal::Signal,
    stat::{mknod, Mode, SFlag},
};
use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        atomic::{AtomicU32, Ordering},
        Arc,
    },
    time::Duration,
};

const QUICK: Duration = Duration::from_secs(20);

/// Unique id of a lab, with the process that owns it: `latpath-PID-START-N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LabId {
    pid: u32,
    start: u64,
    number: u32,
}

impl LabId {
    pub(crate) fn next() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let owner = Owner::this();
        Self { pid: owner.pid, start: owner.start_ticks, number: NUMBER.fetch_add(1, Ordering::Relaxed) }
    }
}

impl fmt::Display for LabId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "latpath-{}-{}-{}", self.pid, self.start, self.number)
    }
}

/// A network namespace, which is removed when its last handle is dropped.
#[derive(Clone, Debug)]
pub struct Namespace {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    netns: Netns,
    file: Arc<File>,
    // Dropped last.
    _journal: Arc<LabEntry>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // If this fails, the next latpath removes the namespace.
        let _ = Netns::delete(&self.name);
    }
}

impl Namespace {
    /// Creates a namespace with IPv6 disabled on all its devices, so that only the lab's own frames pass.
    pub(crate) fn new(id: LabId, role: &str, journal: &Arc<LabEntry>) -> Result<Self> {
        let name = format!("{id}-{role}");
        journal.add(Step::Namespace { role: role.into() })?;
        let netns = Netns::create(&name)?;
        let file = match netns.open() {
            Ok(file) => Arc::new(file),
            Err(e) => {
                let _ = Netns::delete(&name);
                return Err(e.into());
            }
        };
        let space = Self { inner: Arc::new(Inner { name, netns, file, _journal: journal.clone() }) };
        // A kernel without IPv6 has no such files.
        space.inside(|| {
            for scope in ["all", "default"] {
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
            }
        })?;
        space.network()?.set("lo", &[Change::Up(true)])?;
        Ok(space)
    }

    /// The namespace's name, as in `ip netns`.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Starts a command in the namespace. When this process dies, the kernel sends `on_parent_death` to the command.
    ///
    /// # Errors
    /// If the command cannot be started.
    pub fn start(&self, command: Command, on_parent_death: Signal) -> Result<Running> {
        Running::start(command, Some(&self.inner.file), on_parent_death)
    }

    /// Calls a function in the namespace, on a separate thread: sockets that the function opens belong to this
    /// namespace.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn inside<T: Send>(&self, call: impl FnOnce() -> T + Send) -> Result<T> {
        Ok(self.inner.netns.inside(call)?)
    }

    /// Handle of the namespace in the crate `net`.
    pub fn netns(&self) -> &Netns {
        &self.inner.netns
    }

    /// Opens a socket that changes its devices, addresses and queueing disciplines.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn network(&self) -> Result<Rtnetlink> {
        Ok(Rtnetlink::open(&self.inner.netns)?)
    }

    /// Makes a character device file of a macvtap in `folder`, under its usual name `tapN`.
    ///
    /// # Errors
    /// If the device is no macvtap, or the file cannot be made.
    pub fn macvtap_node(&self, device: &str, folder: &Path) -> Result<PathBuf> {
        let (ifindex, number) = macvtap_device_number(self.netns(), device)?;
        let node = folder.join(format!("tap{ifindex}"));
        let made = mknod(&node, SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, number);
        made.map_err(io::Error::from).doing(format!("make {}", node.display()))?;
        Ok(node)
    }

    /// Runs `ip -n <this> WORDS…`; the words are separated by spaces.
    ///
    /// # Errors
    /// If the command fails.
    pub fn ip(&self, words: &str) -> Result<Vec<u8>> {
        let mut all = vec!["-n", &self.inner.name];
        all.extend(words.split(' '));
        ip(&all)
    }

    /// The kernel's counters of each device in the namespace, by device name.
    ///
    /// # Errors
    /// If the kernel does not list the devices.
    pub fn counters(&self) -> Result<BTreeMap<String, Statistics>> {
        let all = interfaces(&self.inner.netns)?;
        Ok(all.into_iter().map(|device| (device.name, device.statistics)).collect())
    }

    /// The kernel's counters of one device.
    ///
    /// # Errors
    /// If the device does not exist.
    pub fn counters_of(&self, device: &str) -> Result<Statistics> {
        let all = interfaces(&self.inner.netns)?;
        let names = all.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ");
        let missing = || Error::Command {
            command: format!("counters of {device}"),
            why: format!("no such device (devices here: {names})"),
        };
        all.iter().find(|found| found.name == device).map(|found| found.statistics).ok_or_else(missing)
    }
}

fn ip(words: &[&str]) -> Result<Vec<u8>> {
    process::run(Command::new("ip").args(words), QUICK, &|| false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labs_of_one_process_have_different_names() {
        assert_ne!(LabId::next(), LabId::next());
    }
}
