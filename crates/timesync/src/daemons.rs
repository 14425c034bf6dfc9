//! The daemons that steer clocks on this machine, with their command lines and configurations.

use crate::client::Domain;
use latpath_linux::proc::Root;
use latpath_linux::read_text;
use latpath_model::Ns;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum number of processes examined.
const MAX_PROCESSES: usize = 100_000;
/// Maximum size of a configuration file, bytes.
const MAX_CONFIGURATION: u64 = 1 << 20;
/// Maximum number of sockets per directory.
const MAX_SOCKETS: usize = 64;
/// Maximum number of entries read per directory.
const MAX_ENTRIES: usize = 4096;

/// Directories of ptp4l's sockets: for linuxptp up to 4.4, for later versions, and for timemaster.
const DIRECTORIES: [&str; 3] = ["run", "run/ptp", "run/timemaster"];

/// A process that steers clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// Its process ID.
    pub pid: u32,
    /// `ptp4l`, `phc2sys`, `chronyd`, …
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// Names of the daemons, as in `/proc/PID/comm`.
const NAMES: [&str; 7] = ["ptp4l", "phc2sys", "ts2phc", "chronyd", "timemaster", "ntpd", "systemd-timesyn"];

/// Interval at which all processes are read again, ns: a process may become a daemon long after its start, by exec.
const FULL_SEARCH_EVERY: Ns = 60_000_000_000;

/// Searches for the daemons repeatedly. On a host with thousands of processes, reading all of them takes tens of
/// milliseconds, so a search only reads those that started since the previous one.
#[derive(Debug, Default)]
pub struct DaemonSearch {
    found: Vec<Daemon>,
    /// Process IDs of the other processes, ascending.
    others: Vec<u32>,
    /// Members of [`Self::others`] that the last search found for the first time; empty after a full search. They may
    /// have been between fork and exec, so the next search reads them again.
    young: Vec<u32>,
    /// The process ID that the kernel assigned last.
    last_pid: Option<u32>,
    full_due: Option<Ns>,
}

impl DaemonSearch {
    /// Finds the running daemons, in order of process ID; `now` is `CLOCK_MONOTONIC`, ns.
    pub fn search(&mut self, root: &Root, now: Ns) -> &[Daemon] {
        let has_ended = |daemon: &Daemon| comm(root, daemon.pid).as_deref() != Some(&daemon.name);
        let is_full = self.full_due.is_none_or(|due| now >= due) || self.found.iter().any(has_ended);
        // The last word of /proc/loadavg. If it cannot be read, each search assumes that a process has started.
        let last_pid = root.text("proc/loadavg").and_then(|text| text.split_whitespace().last()?.parse().ok());
        if !is_full && self.young.is_empty() && last_pid.is_some() && last_pid == self.last_pid {
            return &self.found;
        }
        if is_full {
            (self.others, self.full_due) = (Vec::new(), Some(now.saturating_add(FULL_SEARCH_EVERY)));
        }
        let (others, young) = (std::mem::take(&mut self.others), std::mem::take(&mut self.young));
        let known = std::mem::take(&mut self.found);
        for pid in root.numbers("proc", MAX_PROCESSES).unwrap_or_default() {
            let is_other = others.binary_search(&pid).is_ok();
            if is_other && young.binary_search(&pid).is_err() {
                self.others.push(pid);
                continue;
            }
            match known.iter().find(|daemon| daemon.pid == pid && !is_full).cloned().or_else(|| Daemon::of(root, pid)) {
                Some(daemon) => self.found.push(daemon),
                None => {
                    self.others.push(pid);
                    self.young.extend((!is_other && !is_full).then_some(pid));
                }
            }
        }
        self.last_pid = last_pid;
        &self.found
    }

    /// The daemons found by the last search.
    pub fn found(&self) -> &[Daemon] {
        &self.found
    }
}

fn comm(root: &Root, pid: u32) -> Option<String> {
    Some(root.text(&format!("proc/{pid}/comm"))?.trim_end().to_owned())
}

impl Daemon {
    /// Reads the daemon with this process ID; `None` if the process is not one of [`NAMES`].
    fn of(root: &Root, pid: u32) -> Option<Self> {
        let name = comm(root, pid).filter(|name| NAMES.contains(&name.as_str()))?;
        let line = root.text(&format!("proc/{pid}/cmdline")).unwrap_or_default();
        let arguments = line.split('\0').skip(1).filter(|word| !word.is_empty()).map(str::to_owned).collect();
        Some(Self { pid, name, arguments })
    }

    /// Whether it runs as root, in the mount namespace of this process.
    fn is_of_root(&self, root: &Root) -> bool {
        let folder = format!("proc/{}", self.pid);
        let owner = std::fs::metadata(root.path(&folder)).map(|found| found.uid());
        let mounts = |process: &str| root.link(&format!("proc/{process}/ns/mnt")).ok();
        owner.is_ok_and(|uid| uid == 0) && mounts(&self.pid.to_string()) == mounts("self")
    }

    /// The value of an option, e.g. `-s eth0`, `-seth0` or `--uds_address=/run/x`.
    pub fn option(&self, name: &str) -> Option<&str> {
        let mut words = self.arguments.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let Some(rest) = word.strip_prefix(name) else { continue };
            match (rest, rest.strip_prefix('=')) {
                ("", _) => return words.next(),
                (_, Some(value)) => return Some(value),
                _ if !name.starts_with("--") => return Some(rest),
                _ => {}
            }
        }
        None
    }
}

/// Configuration of a ptp4l.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configured {
    /// Its sockets, the read-only one first.
    pub sockets: Vec<PathBuf>,
    /// Its domain; `None` if the configuration cannot be read.
    pub domain: Option<Domain>,
    /// Whether it only observes and steers no clock.
    pub free_running: bool,
}

impl Configured {
    /// Reads the configuration of a running ptp4l. If this process is root, ptp4l must also run as root, in the same
    /// mount namespace: any user may call a process ptp4l, and name any file.
    pub fn of(root: &Root, daemon: &Daemon) -> Self {
        if nix::unistd::geteuid().is_root() && !daemon.is_of_root(root) {
            return Self::default();
        }
        let file = daemon.option("-f").map(|file| match Path::new(file).is_absolute() {
            true => file.trim_start_matches('/').to_owned(),
            false => format!("proc/{}/cwd/{file}", daemon.pid),
        });
        let text = file.as_ref().map(|file| read_text(&root.path(file), MAX_CONFIGURATION).ok());
        let mut options = text.iter().flatten().fold(BTreeMap::new(), |all, text| global(text, all));
        for name in ["domainNumber", "transportSpecific", "uds_address", "uds_ro_address", "free_running"] {
            options.extend(daemon.option(&format!("--{name}")).map(|value| (name.to_owned(), value.to_owned())));
        }
        let number = |name: &str| match options.get(name).map(String::as_str) {
            None => Some(0),
            Some(value) => value.strip_prefix("0x").map_or(value.parse().ok(), |hex| u8::from_str_radix(hex, 16).ok()),
        };
        let is_known = !matches!(text, Some(None));
        let domain = number("domainNumber").zip(number("transportSpecific"));
        Self {
            sockets: ["uds_ro_address", "uds_address"]
                .iter()
                .filter_map(|name| options.get(*name))
                .map(Into::into)
                .collect(),
            domain: domain.filter(|_| is_known).map(|(number, ts)| Domain { number, transport_specific: ts & 15 }),
            free_running: number("free_running") == Some(1),
        }
    }
}

/// Adds the `[global]` options of a linuxptp configuration file.
fn global(text: &str, mut options: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut is_global = false;
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if line.starts_with('[') {
            is_global = line == "[global]";
        } else if let Some((name, value)) = line.split_once(char::is_whitespace).filter(|_| is_global) {
            options.insert(name.into(), value.trim().into());
        }
    }
    options
}

/// The sockets at the usual places, read-only ones first. `root` is `/` except in tests.
pub fn usual_sockets(root: &Root) -> Vec<PathBuf> {
    let mut sockets = Vec::new();
    for directory in DIRECTORIES {
        let names = root.names(directory, MAX_ENTRIES).into_iter().filter(|name| name.starts_with("ptp4l"));
        let mut names: Vec<String> =
            names.filter(|name| is_socket(&root.path(&format!("{directory}/{name}")))).collect();
        names.sort_by_key(|name| (!name.starts_with("ptp4lro"), name.clone()));
        sockets.extend(names.into_iter().take(MAX_SOCKETS).map(|name| root.path(&format!("{directory}/{name}"))));
    }
    sockets
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::net::UnixDatagram;

    fn machine() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::of(dir.path());
        (dir, root)
    }

    fn process(dir: &Path, pid: u32, comm: &str, line: &[&str]) {
        let folder = dir.join(format!("proc/{pid}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("comm"), format!("{comm}\n")).unwrap();
        fs::write(folder.join("cmdline"), line.join("\0") + "\0").unwrap();
    }

    #[test]
    fn the_instances_of_timemaster_are_found_with_sockets_and_domains() {
        let (dir, root) = machine();
        let conf = "[global]\nslaveOnly 1\ndomainNumber 24\nuds_address /run/timemaster/ptp4l.0.socket\n\
                    uds_ro_address /run/timemaster/ptp4lro.0.socket\n[eth0]\ndomainNumber 7\n";
        fs::create_dir_all(dir.path().join("run/timemaster")).unwrap();
        fs::write(dir.path().join("run/timemaster/ptp4l.0.conf"), conf).unwrap();
        process(dir.path(), 41, "ptp4l", &["/usr/sbin/ptp4l", "-l", "5", "-f", "/run/timemaster/ptp4l.0.conf", "-H"]);
        process(dir.path(), 42, "ptp4l", &["ptp4l", "-f", "/etc/none.conf", "-i", "eth1"]);
        process(dir.path(), 43, "ptp4l", &["ptp4l", "-i", "eth1", "--domainNumber=0x05", "--transportSpecific", "1"]);
        process(dir.path(), 44, "bash", &["bash"]);
        let mut search = DaemonSearch::default();
        let found = search.search(&root, 0);
        assert_eq!(found.iter().map(|daemon| daemon.pid).collect::<Vec<_>>(), [41, 42, 43]);
        let configured: Vec<_> = found.iter().map(|daemon| Configured::of(&root, daemon)).collect();
        assert_eq!(configured[0].domain, Some(Domain { number: 24, transport_specific: 0 }));
        let sockets = ["/run/timemaster/ptp4lro.0.socket", "/run/timemaster/ptp4l.0.socket"];
        assert_eq!(configured[0].sockets, sockets.map(PathBuf::from));
        assert_eq!(configured[1].domain, None, "its configuration cannot be read");
        assert_eq!(configured[2].domain, Some(Domain { number: 5, transport_specific: 1 }));
        assert_eq!(found[1].option("-i"), Some("eth1"));
    }

    /// Process IDs and names of the daemons.
    fn names(daemons: &[Daemon]) -> Vec<(u32, &str)> {
        daemons.iter().map(|daemon| (daemon.pid, daemon.name.as_str())).collect()
    }

    #[test]
    fn a_later_search_reads_new_processes_twice_and_the_others_once_a_minute() {
        let (dir, root) = machine();
        let last_pid =
            |pid: u32| fs::write(dir.path().join("proc/loadavg"), format!("0.1 0.2 0.3 1/99 {pid}\n")).unwrap();
        process(dir.path(), 41, "ptp4l", &["ptp4l", "-i", "eth0"]);
        process(dir.path(), 42, "bash", &["bash"]);
        last_pid(42);
        let (mut search, s) = (DaemonSearch::default(), 1_000_000_000);
        assert_eq!(names(search.search(&root, 0)), [(41, "ptp4l")]);
        // An exec in an existing process is noticed within a minute.
        process(dir.path(), 42, "chronyd", &["chronyd"]);
        assert_eq!(names(search.search(&root, 5 * s)), [(41, "ptp4l")]);
        // At the first search, the process is between fork and exec.
        process(dir.path(), 43, "(phc2sys)", &["systemd"]);
        last_pid(43);
        assert_eq!(names(search.search(&root, 10 * s)), [(41, "ptp4l")]);
        process(dir.path(), 43, "phc2sys", &["phc2sys", "-s", "eth0"]);
        assert_eq!(names(search.search(&root, 15 * s)), [(41, "ptp4l"), (43, "phc2sys")]);
        assert_eq!(search.found()[1].option("-s"), Some("eth0"));
        assert_eq!(names(search.search(&root, 60 * s)), [(41, "ptp4l"), (42, "chronyd"), (43, "phc2sys")]);
        // The end of a daemon is noticed at the next search.
        fs::remove_dir_all(dir.path().join("proc/41")).unwrap();
        assert_eq!(names(search.search(&root, 65 * s)), [(42, "chronyd"), (43, "phc2sys")]);
    }

    #[test]
    fn only_sockets_are_candidates_and_those_for_readers_come_first() {
        let (dir, root) = machine();
        fs::create_dir_all(dir.path().join("run/ptp")).unwrap();
        let names = ["ptp4l", "ptp4lro", "ptp/ptp4l.0.socket"];
        let _bound = names.map(|name| UnixDatagram::bind(dir.path().join("run").join(name)).unwrap());
        fs::write(dir.path().join("run/ptp4l.pid"), "7").unwrap();
        let want = ["ptp4lro", "ptp4l", "ptp/ptp4l.0.socket"].map(|name| dir.path().join("run").join(name));
        assert_eq!(usual_sockets(&root), want);
    }
}
