//! Namespaces that act as a host, and a snapshot of everything that a topology could leave on it.

use latpath_testkit::{Failed, Space};
use latpath_topology::Topology;
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

/// A namespace in which a topology has an existing uplink; other topologies make their own namespaces.
pub struct Machine {
    pub host: Space,
    name: String,
}

impl Machine {
    pub fn new(role: &str) -> Result<Self, Failed> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("lt{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        Ok(Self { host: Space::new(role)?, name })
    }

    /// Runs `ip WORDS…`.
    pub fn ip(&self, words: &str) -> Result<String, Failed> {
        let output = Command::new("ip").args(words.split(' ')).output()?;
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout)?),
            false => Err(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr)).into()),
        }
    }

    /// A topology that makes everything: both namespaces, the cable and the tap `tap0`.
    pub fn trial(&self, way: &str, further: &str) -> Result<Topology, Failed> {
        let name = &self.name;
        let text = format!(
            "name = '{name}'\nway = '{way}'\nnamespace = '{name}-host'\n\
             [uplink]\ndevice = 'eno1'\ncable = {{ namespace = '{name}-wire', device = 'wire0' }}\n{further}\n\
             {}[[guest]]\nname = 'relay'\ntap = 'tap0'\n",
            options(way)
        );
        self.write(&text)
    }

    /// A topology on the uplink of [`Machine::lay_uplink`].
    pub fn on_uplink(&self, way: &str, uplink: &str) -> Result<Topology, Failed> {
        let (name, host) = (&self.name, self.host.name());
        let text = format!(
            "name = '{name}'\nway = '{way}'\nnamespace = '{host}'\nmtu = 1450\n[uplink]\ndevice = 'eno1'\n{uplink}\n\
             {}[[guest]]\nname = 'relay'\ntap = 'tap0'\n",
            options(way)
        );
        self.write(&text)
    }

    /// [`Machine::trial`] with additional keys for the guest.
    pub fn trial_with_guest(&self, way: &str, further: &str) -> Result<Topology, Failed> {
        self.trial(way, "")?;
        let text = fs::read_to_string(self.file())? + further + "\n";
        self.write(&text)
    }

    /// A topology with Open vSwitch in user space, whose daemon runs in the namespace `host`.
    pub fn behind(&self, host: &str, database: &str) -> Result<Topology, Failed> {
        let name = &self.name;
        self.write(&format!(
            "name = '{name}'\nway = 'ovs-afxdp'\nnamespace = '{host}'\n\
             [uplink]\ndevice = 'eno1'\ncable = {{ namespace = '{name}-wire', device = 'wire0' }}\n\
             [ovs]\nbridge = 'bro'\ndatabase = '{database}'\npmd_cpu_mask = '0x2'\nguest_port = 'tap'\n\
             [[guest]]\nname = 'relay'\ntap = 'tap0'\n"
        ))
    }

    fn write(&self, text: &str) -> Result<Topology, Failed> {
        let path = self.file();
        fs::write(&path, text)?;
        Ok(Topology::read(&path)?)
    }

    fn file(&self) -> std::path::PathBuf {
        self.host.folder().join("topology.toml")
    }

    /// Makes an uplink with an address, and leaves it down. It is up briefly, because a device has no queueing
    /// discipline until it is up for the first time.
    pub fn lay_uplink(&self) -> Result<(), Failed> {
        let devices = ["link add eno1 type veth peer name far1", "addr add 192.0.2.1/24 dev eno1"];
        for words in devices.into_iter().chain(["link set far1 up", "link set eno1 up", "link set eno1 down"]) {
            self.host.ip(words)?;
        }
        Ok(())
    }

    /// Runs this program as a process that makes the topology in the machine's file, and kills itself at this event (0:
    /// never).
    pub fn run_victim(&self, topology: &Topology, kill_at: u32) -> Result<Output, Failed> {
        Ok(self.victim(topology, kill_at)?.output()?)
    }

    pub fn victim(&self, topology: &Topology, kill_at: u32) -> Result<Command, Failed> {
        let text = fs::read_to_string(self.file())?;
        assert!(text.contains(&topology.name));
        let mut command = Command::new(std::env::current_exe()?);
        command.env(super::FILE, self.file()).env(super::KILL_AT, kill_at.to_string());
        Ok(command)
    }
}

fn options(way: &str) -> &'static str {
    match way {
        "bridge" => "[bridge]\nname = 'br0'\n",
        _ => "",
    }
}

/// Everything that a topology could leave behind.
#[derive(Debug, PartialEq)]
pub struct Snapshot {
    devices: Vec<Value>,
    addresses: Value,
    files: BTreeSet<String>,
    processes: BTreeSet<String>,
}

impl Snapshot {
    pub fn take(machine: &Machine) -> Result<Self, Failed> {
        let name = &machine.name;
        let json = |words: &str| -> Result<Value, Failed> { Ok(serde_json::from_slice(&machine.host.ip(words)?)?) };
        let mut files = BTreeSet::new();
        let folders = ["/run/netns", "/dev", "/sys/fs/bpf/latpath", "/run/latpath/topology", "/run/latpath/journal"];
        for folder in folders {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            files.extend(names.filter(|file| file.contains(name.as_str())).map(|file| format!("{folder}/{file}")));
        }
        let mut processes = BTreeSet::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            // A path in the topology's directory. The victim's own topology file is elsewhere, and does not count as a
            // trace.
            if line.contains(&format!("topology/{name}")) {
                processes.insert(line.replace('\0', " "));
            }
        }
        let mut devices: Vec<Value> = json("-d -j link show")?.as_array().cloned().unwrap_or_default();
        // A device's statistics are its history, not its state.
        for device in &mut devices {
            device.as_object_mut().into_iter().for_each(|device| drop(device.remove("stats")));
        }
        Ok(Self { devices, addresses: json("-j addr show")?, files, processes })
    }

    /// Fails unless the machine is in the same state as in the snapshot.
    pub fn is_again(&self, machine: &Machine) -> Result<(), Failed> {
        let now = Self::take(machine)?;
        let lines = |snapshot: &Self| -> BTreeSet<String> {
            let text = |value: &Value| serde_json::to_string_pretty(value).unwrap_or_default();
            let devices = snapshot.devices.iter().flat_map(|device| {
                let name = device["ifname"].to_string();
                text(device).lines().map(|line| format!("{name} {}", line.trim())).collect::<Vec<_>>()
            });
            let others = snapshot.files.iter().chain(&snapshot.processes).cloned();
            devices.chain(others).chain(text(&snapshot.addresses).lines().map(str::to_owned)).collect()
        };
        match *self == now {
            true => Ok(()),
            false => {
                let (before, now) = (lines(self), lines(&now));
                let gone: Vec<_> = before.difference(&now).collect();
                Err(format!("only before: {gone:#?}\nonly now: {:#?}", now.difference(&before).collect::<Vec<_>>())
                    .into())
            }
        }
    }
}

/// The character device of the topology's macvtap with this index.
pub fn node(topology: &Topology, ifindex: u32) -> std::path::PathBuf {
    Path::new("/dev").join(format!("latpath-{}", topology.name)).join(format!("tap{ifindex}"))
}
