//! Network namespaces of a lab: named after the process that made them, gone with it, swept up when it could not.

use crate::{
    error::{Doing, Error, Result},
    process::{self, Running},
};
use nix::{
    sched::{setns, CloneFlags},
    sys::signal::Signal,
};
use std::{
    fmt,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    str::FromStr,
    sync::{
        atomic::{AtomicU32, Ordering},
        Arc,
    },
    thread,
    time::Duration,
};

const NAMED: &str = "/run/netns";
const QUICK: Duration = Duration::from_secs(20);

/// Which process a lab belongs to: `latpath-PID-START-N`. Two labs never share one, and the name alone
/// says whether its owner still lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LabId {
    pid: u32,
    start: u64,
    number: u32,
}

impl LabId {
    pub(crate) fn next() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id();
        let start = process::start_ticks(pid).unwrap_or(0);
        Self { pid, start, number: NUMBER.fetch_add(1, Ordering::Relaxed) }
    }

    /// Whether the process that made it still runs (and is not another one with its number).
    pub(crate) fn lives(self) -> bool {
        process::start_ticks(self.pid) == Some(self.start)
    }
}

impl fmt::Display for LabId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "latpath-{}-{}-{}", self.pid, self.start, self.number)
    }
}

impl FromStr for LabId {
    type Err = ();

    /// Reads the id at the start of a name, whatever follows it.
    fn from_str(name: &str) -> std::result::Result<Self, ()> {
        let mut parts = name.strip_prefix("latpath-").ok_or(())?.split('-');
        let mut number = || parts.next().and_then(|p| p.parse::<u64>().ok()).ok_or(());
        let (pid, start, n) = (number()?, number()?, number()?);
        Ok(Self { pid: u32::try_from(pid).map_err(drop)?, start, number: u32::try_from(n).map_err(drop)? })
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
    file: Arc<File>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // What cannot be removed now is removed at the next start.
        let _ = remove(&self.name);
    }
}

impl Namespace {
    /// Makes it, with IPv6 off on everything in it: no frame shall pass but those that the lab sends.
    pub(crate) fn new(id: LabId, role: &str) -> Result<Self> {
        let name = format!("{id}-{role}");
        ip(&["netns", "add", &name])?;
        let file = File::open(Path::new(NAMED).join(&name)).doing(format!("open namespace {name}"));
        let file = match file {
            Ok(file) => Arc::new(file),
            Err(e) => {
                let _ = remove(&name);
                return Err(e);
            }
        };
        let space = Self { inner: Arc::new(Inner { name, file }) };
        // A kernel without IPv6 has no such files, and nothing to switch off.
        space.inside(|| {
            for scope in ["all", "default"] {
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
            }
        })?;
        space.ip("link set lo up")?;
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
        let entered = thread::scope(|scope| {
            let thread = scope.spawn(|| setns(&self.inner.file, CloneFlags::CLONE_NEWNET).map(|()| call()));
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        entered.doing(format!("enter namespace {}", self.inner.name))
    }

    /// Runs `ip -n <this> WORDS…`; the words are parted at spaces.
    pub fn ip(&self, words: &str) -> Result<Vec<u8>> {
        let mut all = vec!["-n", &self.inner.name];
        all.extend(words.split(' '));
        ip(&all)
    }

    /// What the kernel counted on each device in it, by name.
    pub fn counters(&self) -> Result<Vec<Counters>> {
        let json = self.ip("-s -j link show")?;
        read_counters(&json).map_err(|why| Error::Command { command: "ip -s -j link show".into(), why })
    }

    /// What the kernel counted on one device.
    pub fn counters_of(&self, device: &str) -> Result<Counters> {
        let all = self.counters()?;
        let names = all.iter().map(|c| c.device.as_str()).collect::<Vec<_>>().join(", ");
        let missing = || Error::Command {
            command: format!("counters of {device}"),
            why: format!("no such device (devices here: {names})"),
        };
        all.iter().find(|c| c.device == device).cloned().ok_or_else(missing)
    }
}

/// What a device's driver counted since the device was made (`ip -s link`, struct rtnl_link_stats64).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub device: String,
    /// Frames received.
    pub rx_packets: u64,
    /// Frames received and dropped by device or driver.
    pub rx_dropped: u64,
    /// Frames received with an error.
    pub rx_errors: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Frames to be sent and dropped by device or driver: a full tap queue is seen here.
    pub tx_dropped: u64,
    /// Frames that failed to be sent.
    pub tx_errors: u64,
}

impl Counters {
    /// What was counted since `before`. A counter that went back (its device was made again) counts from zero.
    pub fn since(&self, before: &Counters) -> Counters {
        let less = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
        Counters {
            device: self.device.clone(),
            rx_packets: less(self.rx_packets, before.rx_packets),
            rx_dropped: less(self.rx_dropped, before.rx_dropped),
            rx_errors: less(self.rx_errors, before.rx_errors),
            tx_packets: less(self.tx_packets, before.tx_packets),
            tx_dropped: less(self.tx_dropped, before.tx_dropped),
            tx_errors: less(self.tx_errors, before.tx_errors),
        }
    }
}

fn read_counters(json: &[u8]) -> std::result::Result<Vec<Counters>, String> {
    let links: Vec<serde_json::Value> = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    let counters = links.iter().map(|link| {
        let number = |direction: &str, what: &str| link["stats64"][direction][what].as_u64();
        Some(Counters {
            device: link["ifname"].as_str()?.into(),
            rx_packets: number("rx", "packets")?,
            rx_dropped: number("rx", "dropped")?,
            rx_errors: number("rx", "errors")?,
            tx_packets: number("tx", "packets")?,
            tx_dropped: number("tx", "dropped")?,
            tx_errors: number("tx", "errors")?,
        })
    });
    counters.collect::<Option<_>>().ok_or_else(|| "no counters in its answer".into())
}

fn ip(words: &[&str]) -> Result<Vec<u8>> {
    process::run(Command::new("ip").args(words), QUICK, &|| false)
}

fn remove(name: &str) -> Result<()> {
    ip(&["netns", "del", name]).map(drop)
}

/// Removes the namespaces and folders of labs whose process is gone (killed, or the machine was reset under it).
pub(crate) fn sweep(folders: &Path) -> Vec<String> {
    let stale = |folder: &Path| -> Vec<(String, PathBuf)> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let named = entries.map(|e| (e.file_name().to_string_lossy().into_owned(), e.path()));
        named.filter(|(name, _)| name.parse::<LabId>().is_ok_and(|id| !id.lives())).collect()
    };
    let mut swept = Vec::new();
    for (name, path) in stale(Path::new(NAMED)) {
        // Killed between making the file and mounting the namespace, `ip` leaves a plain file.
        if remove(&name).is_ok() || fs::remove_file(path).is_ok() {
            swept.push(name);
        }
    }
    for (name, path) in stale(folders) {
        if fs::remove_dir_all(path).is_ok() {
            swept.push(name);
        }
    }
    swept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lab_is_known_by_its_name() {
        let id = LabId::next();
        assert_eq!(format!("{id}-hyp").parse(), Ok(id));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!(id.lives());
        for other in ["latpath-", "latpath-12", "latpath-x-1-2", "lab-1-2-3", "latpath-99999999999-1-1"] {
            assert_eq!(other.parse::<LabId>(), Err(()), "{other}");
        }
    }

    #[test]
    fn a_lab_of_an_earlier_process_with_the_same_number_is_stale() {
        let id = LabId::next();
        assert!(!LabId { start: id.start + 1, ..id }.lives());
    }

    #[test]
    fn labs_of_one_process_have_different_names() {
        assert_ne!(LabId::next(), LabId::next());
    }

    #[test]
    fn counters_are_read_from_ip() {
        let json = br#"[{"ifindex":2,"ifname":"vnet0","stats64":{"rx":{"bytes":1,"packets":2,"errors":3,"dropped":4},
            "tx":{"bytes":5,"packets":6,"errors":7,"dropped":8}}}]"#;
        let read = read_counters(json).unwrap();
        let expected = Counters {
            device: "vnet0".into(),
            rx_packets: 2,
            rx_dropped: 4,
            rx_errors: 3,
            tx_packets: 6,
            tx_dropped: 8,
            tx_errors: 7,
        };
        assert_eq!(read.as_slice(), std::slice::from_ref(&expected));
        let later = Counters { tx_packets: 10, ..expected.clone() };
        assert_eq!(later.since(&expected).tx_packets, 4);
        assert!(read_counters(br#"[{"ifname":"x"}]"#).is_err());
    }
}
