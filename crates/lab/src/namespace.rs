//! Network namespaces of a lab: named after the process that made them, gone with it, or removed by the next latpath after a kill.

use crate::{
    error::{Error, Result},
    process::{self, Running},
    undo::{LabEntry, Step},
};
use latpath_net::{interfaces, Change, Netns, Rtnetlink, Statistics};
use latpath_undo::Owner;
use nix::sys::signal::Signal;
use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    process::Command,
    sync::{
        atomic::{AtomicU32, Ordering},
        Arc,
    },
    time::Duration,
};

const QUICK: Duration = Duration::from_secs(20);

/// Which process a lab belongs to: `latpath-PID-START-N`. Two labs never share one.
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

/// A network namespace that goes when its last handle goes.
#[derive(Clone, Debug)]
pub struct Namespace {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    netns: Netns,
    file: Arc<File>,
    // Goes last.
    _journal: Arc<LabEntry>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // What cannot be removed now is removed at the next start.
        let _ = Netns::delete(&self.name);
    }
}

impl Namespace {
    /// Makes it, with IPv6 off on everything in it: no frame shall pass but those that the lab sends.
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
        // A kernel without IPv6 has no such files, and nothing to switch off.
        space.inside(|| {
            for scope in ["all", "default"] {
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
            }
        })?;
        space.network()?.set("lo", &[Change::Up(true)])?;
        Ok(space)
    }

    /// Its name, as `ip netns` shows it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Starts a command in it. When this process dies, the kernel sends `on_parent_death` to the command.
    pub fn start(&self, command: Command, on_parent_death: Signal) -> Result<Running> {
        Running::start(command, Some(&self.inner.file), on_parent_death)
    }

    /// Calls a function in it: sockets that the function opens belong to this namespace. Runs in a thread of its own.
    pub fn inside<T: Send>(&self, call: impl FnOnce() -> T + Send) -> Result<T> {
        Ok(self.inner.netns.inside(call)?)
    }

    /// The namespace as the system names it.
    pub fn netns(&self) -> &Netns {
        &self.inner.netns
    }

    /// Changes its devices, addresses and queueing disciplines.
    ///
    /// # Errors
    /// Where it cannot be entered.
    pub fn network(&self) -> Result<Rtnetlink> {
        Ok(Rtnetlink::open(&self.inner.netns)?)
    }

    /// Runs `ip -n <this> WORDS…`; the words are parted at spaces.
    pub fn ip(&self, words: &str) -> Result<Vec<u8>> {
        let mut all = vec!["-n", &self.inner.name];
        all.extend(words.split(' '));
        ip(&all)
    }

    /// The kernel's counters of each device in it, by the device's name.
    ///
    /// # Errors
    /// Where the kernel does not list the devices.
    pub fn counters(&self) -> Result<BTreeMap<String, Statistics>> {
        let all = interfaces(&self.inner.netns)?;
        Ok(all.into_iter().map(|device| (device.name, device.statistics)).collect())
    }

    /// The kernel's counters of one device.
    ///
    /// # Errors
    /// Where there is no such device.
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
