//! Open vSwitch of a lab's own: its database server and daemon run in the hypervisor's namespace, with all their files in
//! the lab's folder. An Open vSwitch that the machine itself runs is neither used nor disturbed.

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

/// The programs of this lab, and Debian's package that has them.
pub(crate) const PROGRAMS: [&str; 5] = ["ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-appctl"];
pub(crate) const PACKAGE: &str = "openvswitch-switch";

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const QUICK: Duration = Duration::from_secs(60);
/// Started in a machine's first ten seconds, Open vSwitch 3.1 makes no thread for upcalls and loses them all.
const UPTIME: f64 = 11.0;

/// A running Open vSwitch with one bridge on the kernel's datapath. It ends with this value, its datapath too.
#[derive(Debug)]
pub struct OpenVswitch {
    daemon: Running,
    database: Running,
    folder: PathBuf,
    // Holds that folder.
    _lab: Lab,
}

/// What the datapath counted since it was made (`ovs-appctl dpctl/show`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Packets for which a flow was there.
    pub hit: u64,
    /// Packets for which none was: each one an upcall.
    pub missed: u64,
    /// Upcalls that found their queue full; they are among the missed.
    pub lost: u64,
}

impl OpenVswitch {
    pub(crate) fn start(lab: &Lab, namespace: &Namespace) -> Result<Self> {
        if let Some(program) = PROGRAMS.into_iter().find(|p| crate::path_of(p).is_none()) {
            return Err(Error::Missing { program, package: PACKAGE });
        }
        wait_for_uptime()?;
        let folder = lab.folder().join("ovs");
        fs::create_dir_all(&folder).doing(format!("make folder {}", folder.display()))?;
        let file = |name: &str| folder.join(name).display().to_string();
        process::run(Command::new("ovsdb-tool").args(["create", &file("conf.db"), SCHEMA]), QUICK, &|| false)?;
        let start = |program: &str, arguments: &[String]| {
            let mut command = Command::new(program);
            command.args(arguments).args(["-vconsole:off", "--no-chdir"]).arg(format!("--log-file={}", file(program)));
            command.arg(format!("--unixctl={}", file(&format!("{program}.ctl"))));
            // Where it makes the sockets of its bridges.
            command.envs([("OVS_RUNDIR", &folder), ("OVS_LOGDIR", &folder), ("OVS_DBDIR", &folder)]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            namespace.start(command, Signal::SIGKILL)
        };
        let socket = file("db.sock");
        let mut database = start("ovsdb-server", &[file("conf.db"), format!("--remote=punix:{socket}")])?;
        wait_for(&mut database, "ovsdb-server", &folder, &socket)?;
        let vsctl = |words: &str| {
            let mut command = Command::new("ovs-vsctl");
            command.arg(format!("--db=unix:{socket}")).arg("--timeout=30").args(words.split_whitespace());
            process::run(&mut command, QUICK, &|| false)
        };
        vsctl("--no-wait init")?;
        let mut daemon = start("ovs-vswitchd", &[format!("unix:{socket}")])?;
        wait_for(&mut daemon, "ovs-vswitchd", &folder, &file("ovs-vswitchd.ctl"))?;
        let started = Self { daemon, database, folder, _lab: lab.clone() };
        started.vsctl(&format!("add-br {BRIDGE}"))?;
        Ok(started)
    }

    /// `ovs-vsctl WORDS…`; returns when the daemon has done it.
    pub fn vsctl(&self, words: &str) -> Result<String> {
        let socket = self.folder.join("db.sock");
        self.program("ovs-vsctl", &[&format!("--db=unix:{}", socket.display()), "--timeout=30"], words)
    }

    /// `ovs-appctl WORDS…`, asked of the daemon.
    pub fn appctl(&self, words: &str) -> Result<String> {
        let socket = self.folder.join("ovs-vswitchd.ctl");
        self.program("ovs-appctl", &[&format!("--target={}", socket.display()), "--timeout=30"], words)
    }

    /// `ovs-ofctl COMMAND BRIDGE [ARGUMENT]`: the bridge's OpenFlow rules, as in `ofctl("add-flow", "in_port=1,actions=2")`.
    pub fn ofctl(&self, command: &str, argument: &str) -> Result<String> {
        let bridge = format!("unix:{}", self.folder.join(format!("{BRIDGE}.mgmt")).display());
        let mut words = vec![command, &bridge];
        words.extend((!argument.is_empty()).then_some(argument));
        self.program("ovs-ofctl", &words, "")
    }

    /// Makes a device of the hypervisor's namespace a port of the bridge.
    pub fn add_port(&self, device: &str) -> Result<()> {
        self.vsctl(&format!("add-port {BRIDGE} {device}")).map(drop)
    }

    /// What the datapath counted.
    pub fn lookups(&self) -> Result<Lookups> {
        let shown = self.appctl("dpctl/show")?;
        let unread = || Error::Command { command: "ovs-appctl dpctl/show".into(), why: format!("unreadable: {shown}") };
        read_lookups(&shown).ok_or_else(unread)
    }

    /// Makes the daemon take its flows out of the datapath: the next packet of each takes the upcall. (Deleting them from the
    /// datapath alone leaves the daemon in the belief that they are there, and it installs none for a while.)
    pub fn forget_flows(&self) -> Result<()> {
        self.appctl("revalidator/purge").map(drop)
    }

    /// Where its sockets are: `OVS_RUNDIR`, to those who run its programs as they are.
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
        // Without this the kernel's datapath, which is no process, stays.
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

/// The line `  lookups: hit:15 missed:2 lost:0`.
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
