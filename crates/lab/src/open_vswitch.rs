//! A lab's own Open vSwitch: its database server and daemon run in the hypervisor's namespace, with all their files in
//! the lab's folder. An Open vSwitch of the machine is neither used nor disturbed.

use crate::{
    devices::BRIDGE,
    error::{Doing, Error, Result},
    process::{self, Running},
    Lab, Namespace,
};
use nix::sys::signal::Signal;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The programs of Open vSwitch that a lab runs, and the Debian package that contains them.
pub(crate) const PROGRAMS: [&str; 5] = ["ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-appctl"];
pub(crate) const PACKAGE: &str = "openvswitch-switch";

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const QUICK: Duration = Duration::from_secs(60);
/// Minimum uptime of the machine, s: in its first ten seconds, Open vSwitch 3.1 starts no thread for upcalls and loses
/// them all.
const UPTIME: f64 = 11.0;

/// The Open vSwitch daemon built with DPDK, which supports vhost-user ports (Debian: openvswitch-switch-dpdk).
pub const WITH_DPDK: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
/// Settings of DPDK for a machine without huge pages and without NICs for DPDK.
const DPDK: [&str; 5] = [
    "other_config:dpdk-init=true",
    // About 60 MiB per port, instead of 700 MiB shared by all ports.
    "other_config:per-port-memory=true",
    "other_config:dpdk-lcore-mask=0x1",
    // A polling thread that never sleeps takes a whole CPU, which delays a guest's boot in an emulated hypervisor.
    "other_config:pmd-maxsleep=500",
    "other_config:dpdk-extra=\"--no-huge --legacy-mem --no-pci -m 256\"",
];

/// A running Open vSwitch, which ends with its bridges when this value is dropped.
#[derive(Debug)]
pub struct OpenVswitch {
    daemon: Running,
    database: Running,
    folder: PathBuf,
    // Keeps the folder from being removed.
    _lab: Lab,
}

/// Counters of the datapath since its creation (`ovs-appctl dpctl/show`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Packets that matched a flow.
    pub hit: u64,
    /// Packets without a matching flow: each causes an upcall.
    pub missed: u64,
    /// Upcalls dropped because their queue was full; `missed` includes them.
    pub lost: u64,
}

impl OpenVswitch {
    /// Starts Open vSwitch with one bridge on the kernel's datapath.
    pub(crate) fn start(lab: &Lab, namespace: &Namespace) -> Result<Self> {
        let started = Self::without_bridge(lab, namespace, "ovs-vswitchd")?;
        started.vsctl(&format!("add-br {BRIDGE}"))?;
        Ok(started)
    }

    /// Starts Open vSwitch without a bridge. `daemon` is the program: `ovs-vswitchd`, or [`WITH_DPDK`].
    ///
    /// # Errors
    /// If a program is not installed, or does not start.
    pub fn without_bridge(lab: &Lab, namespace: &Namespace, daemon: &str) -> Result<Self> {
        if let Some(program) = PROGRAMS.into_iter().find(|p| crate::path_of(p).is_none()) {
            return Err(Error::Missing { program, package: PACKAGE });
        }
        wait_for_uptime()?;
        let folder = lab.folder().join("ovs");
        fs::create_dir_all(&folder).doing(format!("make folder {}", folder.display()))?;
        let file = |name: &str| folder.join(name).display().to_string();
        process::run(Command::new("ovsdb-tool").args(["create", &file("conf.db"), SCHEMA]), QUICK, &|| false)?;
        let start = |name: &str, program: &str, arguments: &[String]| {
            let mut command = Command::new(program);
            command.args(arguments).args(["-vconsole:off", "--no-chdir"]).arg(format!("--log-file={}", file(name)));
            command.arg(format!("--unixctl={}", file(&format!("{name}.ctl"))));
            // The folder of its bridges' sockets.
            command.envs([("OVS_RUNDIR", &folder), ("OVS_LOGDIR", &folder), ("OVS_DBDIR", &folder)]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            namespace.start(command, Signal::SIGKILL)
        };
        let socket = file("db.sock");
        let mut database =
            start("ovsdb-server", "ovsdb-server", &[file("conf.db"), format!("--remote=punix:{socket}")])?;
        wait_for(&mut database, "ovsdb-server", &folder, &socket)?;
        let vsctl = |words: &[&str]| {
            let mut command = Command::new("ovs-vsctl");
            command.arg(format!("--db=unix:{socket}")).args(["--timeout=30", "--no-wait"]).args(words);
            process::run(&mut command, QUICK, &|| false)
        };
        vsctl(&["init"])?;
        if daemon == WITH_DPDK {
            vsctl(&[&["set", "Open_vSwitch", "."][..], &DPDK].concat())?;
        }
        let mut daemon = start("ovs-vswitchd", daemon, &[format!("unix:{socket}")])?;
        wait_for(&mut daemon, "ovs-vswitchd", &folder, &file("ovs-vswitchd.ctl"))?;
        Ok(Self { daemon, database, folder, _lab: lab.clone() })
    }

    /// Its database, in the form that ovs-vsctl's `--db` takes.
    pub fn database(&self) -> String {
        format!("unix:{}", self.folder.join("db.sock").display())
    }

    /// Runs `ovs-vsctl WORDS…`; returns when the daemon has made the change.
    ///
    /// # Errors
    /// If the command fails.
    pub fn vsctl(&self, words: &str) -> Result<String> {
        self.program("ovs-vsctl", &[&format!("--db={}", self.database()), "--timeout=30"], words)
    }

    /// Runs `ovs-appctl WORDS…` on the daemon.
    ///
    /// # Errors
    /// If the command fails.
    pub fn appctl(&self, words: &str) -> Result<String> {
        let socket = self.folder.join("ovs-vswitchd.ctl");
        self.program("ovs-appctl", &[&format!("--target={}", socket.display()), "--timeout=30"], words)
    }

    /// Runs `ovs-ofctl COMMAND BRIDGE [ARGUMENT]`, for the bridge's OpenFlow rules: `ofctl("add-flow",
    /// "in_port=1,actions=2")`.
    ///
    /// # Errors
    /// If the command fails.
    pub fn ofctl(&self, command: &str, argument: &str) -> Result<String> {
        let bridge = format!("unix:{}", self.folder.join(format!("{BRIDGE}.mgmt")).display());
        let mut words = vec![command, &bridge];
        words.extend((!argument.is_empty()).then_some(argument));
        self.program("ovs-ofctl", &words, "")
    }

    /// Makes a device of the hypervisor's namespace a port of the bridge.
    ///
    /// # Errors
    /// If Open vSwitch rejects the device.
    pub fn add_port(&self, device: &str) -> Result<()> {
        self.vsctl(&format!("add-port {BRIDGE} {device}")).map(drop)
    }

    /// Reads the datapath's counters.
    ///
    /// # Errors
    /// If the daemon does not report them.
    pub fn lookups(&self) -> Result<Lookups> {
        let shown = self.appctl("dpctl/show")?;
        let unread = || Error::Command { command: "ovs-appctl dpctl/show".into(), why: format!("unreadable: {shown}") };
        read_lookups(&shown).ok_or_else(unread)
    }

    /// Makes the daemon remove its flows from the datapath, so that the next packet of each causes an upcall. (If they
    /// are deleted from the datapath alone, the daemon assumes that they still exist, and installs none for a while.)
    ///
    /// # Errors
    /// If the command fails.
    pub fn forget_flows(&self) -> Result<()> {
        self.appctl("revalidator/purge").map(drop)
    }

    /// The folder of its sockets: the `OVS_RUNDIR` for callers that run its programs directly.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The process id of ovs-vswitchd.
    pub fn daemon(&self) -> u32 {
        self.daemon.pid()
    }

    fn program(&self, program: &str, first: &[&str], words: &str) -> Result<String> {
        let mut command = Command::new(program);
        command.args(first).args(words.split_whitespace());
        process::run(&mut command, QUICK, &|| false).map(|out| String::from_utf8_lossy(&out).into_owned())
    }
}

impl Drop for OpenVswitch {
    fn drop(&mut self) {
        // Otherwise the kernel's datapath, which is not a process, remains.
        let _ = self.appctl("exit --cleanup");
        let _ = self.daemon.end(Signal::SIGTERM, Duration::from_secs(5));
        let _ = self.database.end(Signal::SIGTERM, Duration::from_secs(5));
    }
}

fn wait_for_uptime() -> Result<()> {
    loop {
        let text = fs::read_to_string("/proc/uptime").doing("read the machine's uptime")?;
        let uptime: f64 = text.split(' ').next().and_then(|s| s.parse().ok()).unwrap_or(UPTIME);
        if uptime >= UPTIME {
            return Ok(());
        }
        thread::sleep(Duration::from_secs_f64(UPTIME - uptime));
    }
}

fn wait_for(running: &mut Running, program: &str, folder: &Path, socket: &str) -> Result<()> {
    let until = Instant::now() + QUICK;
    while !Path::new(socket).exists() {
        let ended = running.ended()?;
        if ended.is_some() || Instant::now() >= until {
            let state = ended.map_or("it made no socket in time".into(), |status| status.to_string());
            let why = format!("{state}: {}", crate::files::tail(&folder.join(program), 3));
            return Err(Error::Command { command: program.into(), why });
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Parses the line `  lookups: hit:15 missed:2 lost:0`.
fn read_lookups(shown: &str) -> Option<Lookups> {
    let line = shown.lines().find_map(|l| l.trim().strip_prefix("lookups: "))?;
    let number = |name: &str| line.split(' ').find_map(|w| w.strip_prefix(name)?.strip_prefix(':')?.parse().ok());
    Some(Lookups { hit: number("hit")?, missed: number("missed")?, lost: number("lost")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_datapaths_counts_are_read() {
        let shown =
            "system@ovs-system:\n  lookups: hit:15 missed:2 lost:1\n  flows: 2\n  masks: hit:17 total:1 hit/pkt:1\n";
        assert_eq!(read_lookups(shown), Some(Lookups { hit: 15, missed: 2, lost: 1 }));
        assert_eq!(read_lookups("system@ovs-system:\n"), None);
    }
}
