//! Reports which of latpath's commands work on this machine, what they lack, and the remedies.
//!
//! Nothing is guessed from a version: the programs of each command are loaded and attached briefly, and a hook counts
//! as missing if the kernel refuses it or lacks it.
#![forbid(unsafe_code)]

mod config;
mod engines;

pub use config::{Config, Setting};

use latpath_linux::proc::{line, Root};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Extent to which a command works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Works {
    /// Not at all.
    No,
    /// Some of its data is not available here.
    Partly,
    /// Completely.
    Yes,
}

/// Something that is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lack {
    /// What is missing, and why.
    pub what: String,
    /// Data that is not available because of it; empty if the commands do not work at all.
    pub lost: String,
    /// Remedy, if this machine allows one.
    pub remedy: Option<String>,
}

/// One or more commands with the same requirements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Command {
    /// Names of the commands.
    pub commands: Vec<String>,
    /// Title for users: the commands' names, or, if a command itself has no requirements, the part of it that has.
    pub title: String,
    /// Extent to which the commands work.
    pub works: Works,
    /// Missing parts.
    pub lacks: Vec<Lack>,
    /// What the commands cannot observe on any machine, although some limits need it; has no effect on `works`.
    pub not_observable: Vec<String>,
}

/// An option of the kernel's configuration that at least one command uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KernelOption {
    /// Its name.
    pub name: String,
    /// What the option is needed for.
    pub needed_for: String,
    /// The option's setting in this kernel.
    pub setting: Setting,
}

/// Capabilities of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Caps {
    /// The kernel's release.
    pub kernel: String,
    /// The machine's architecture.
    pub architecture: String,
    /// File with the kernel's configuration, if found.
    pub config_file: Option<String>,
    /// The commands with requirements on the machine.
    pub commands: Vec<Command>,
    /// The options that commands use; empty if the kernel's configuration was not found.
    pub options: Vec<KernelOption>,
}

impl Caps {
    /// Determines this machine's capabilities. Takes a second or two; no program stays attached.
    pub fn of_this_machine() -> Self {
        let root = Root::of(Path::new("/"));
        let config = Config::of_kernel(&root);
        let machine = Machine { root, config };
        let commands = engines::ALL.iter().map(|engine| engine.try_out(&machine)).collect();
        let setting = |(name, needed_for): (&str, &str)| {
            let setting = machine.config.as_ref()?.setting(name);
            Some(KernelOption { name: format!("CONFIG_{name}"), needed_for: needed_for.into(), setting })
        };
        Self {
            kernel: line(machine.root.path("proc/sys/kernel/osrelease")),
            architecture: std::env::consts::ARCH.into(),
            config_file: machine.config.as_ref().map(|config| config.file.clone()),
            commands,
            options: options_of(std::env::consts::ARCH).filter_map(setting).collect(),
        }
    }

    /// The commands with requirements on the machine.
    pub fn known() -> impl Iterator<Item = &'static str> {
        engines::ALL.iter().flat_map(|engine| engine.commands()).copied()
    }

    /// Extent to which a command works; `None` for an unknown command or one without requirements.
    pub fn works(&self, command: &str) -> Option<Works> {
        self.commands.iter().find(|known| known.commands.iter().any(|name| name == command)).map(|known| known.works)
    }
}

/// The parts of the machine's state from which remedies are derived.
struct Machine {
    root: Root,
    config: Option<Config>,
}

impl Machine {
    fn has_module(&self, module: &str) -> bool {
        self.root.path(&format!("sys/module/{module}")).exists()
    }

    /// Remedy for missing kernel options; `None` if all of them are set.
    fn remedy(&self, options: &[&str]) -> Option<String> {
        let is_off = |option: &&&str| self.config.as_ref().is_none_or(|config| config.setting(option) == Setting::Off);
        let off: Vec<String> = options.iter().filter(is_off).map(|option| format!("CONFIG_{option}=y")).collect();
        match (off.is_empty(), &self.config) {
            (true, _) => None,
            (_, Some(_)) => Some(format!("a kernel with {}", off.join(", "))),
            (_, None) => Some(format!("a kernel with {} (this one's configuration was not found)", off.join(", "))),
        }
    }

    /// Describes the missing part if a module that a command observes is not loaded; `None` if it is loaded.
    fn without_module(&self, module: &str, option: &str, lost: &str) -> Option<Lack> {
        if self.has_module(module) {
            return None;
        }
        let setting = self.config.as_ref().map(|config| config.setting(option));
        let remedy = match setting {
            Some(Setting::Off) => self.remedy(&[option]),
            _ => Some(format!("modprobe {module}")),
        };
        Some(Lack { what: format!("the module {module} is not loaded"), lost: lost.into(), remedy })
    }
}

/// Options that exist only on one architecture: architecture, option, and what it is needed for.
const OF_ARCHITECTURE: [(&str, &str, &str); 3] = [
    ("x86_64", "KVM_INTEL", "KVM on Intel"),
    ("x86_64", "KVM_AMD", "KVM on AMD"),
    ("aarch64", "KALLSYMS_ALL", "exits: polling in halts"),
];

/// Options that commands use on this architecture, and what they are needed for.
fn options_of(architecture: &str) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
    let own = OF_ARCHITECTURE.iter().filter(move |(of, ..)| *of == architecture);
    OPTIONS.into_iter().chain(own.map(|(_, name, needed_for)| (*name, *needed_for)))
}

/// Options that commands use on every architecture, and what they are needed for.
const OPTIONS: [(&str, &str); 25] = [
    ("BPF_SYSCALL", "all that traces"),
    ("BPF_JIT", "all that traces, at a tenth of the cost"),
    ("DEBUG_INFO_BTF", "all that traces"),
    ("DEBUG_INFO_BTF_MODULES", "KVM, vhost, Open vSwitch where they are modules"),
    ("PERF_EVENTS", "profile"),
    ("FUNCTION_TRACER", "programs at functions: app-read of UDP, XDP, ladder, queues"),
    ("DYNAMIC_FTRACE_WITH_DIRECT_CALLS", "programs at functions"),
    ("KPROBES", "path: functions; before Linux 6.6 queues: buffers that vhost takes"),
    ("FPROBE", "path: all functions at once"),
    ("FTRACE_SYSCALLS", "profile --syscalls"),
    ("KALLSYMS", "names of kernel functions"),
    ("MEMCG", "queues: whose queue vhost serves, where it has no tap"),
    ("DEBUG_FS", "exits against KVM's own counters; guests' clocks by their TSC"),
    ("KVM", "exits, ladder"),
    ("TUN", "taps"),
    ("VHOST_NET", "vhost: ladder, queues"),
    ("VHOST_VSOCK", "agents reached by vsock"),
    ("OPENVSWITCH", "points in Open vSwitch"),
    ("PTP_1588_CLOCK", "clocks of NICs"),
    ("PTP_1588_CLOCK_KVM", "in a guest: its clock against the host's"),
    ("NETWORK_PHY_TIMESTAMPING", "stamps of PHYs"),
    ("XDP_SOCKETS", "ping over AF_XDP"),
    ("NET_SCH_ETF", "sending at a time that the NIC keeps"),
    ("NET_SCH_TAPRIO", "schedules of TSN"),
    ("IKCONFIG_PROC", "this check, where /boot has no configuration"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn machine(config: Option<&str>) -> (tempfile::TempDir, Machine) {
        let dir = tempfile::tempdir().unwrap();
        let path = |path: &str| dir.path().join(path);
        fs::create_dir_all(path("proc/sys/kernel")).unwrap();
        fs::create_dir_all(path("boot")).unwrap();
        fs::create_dir_all(path("sys/module/tun")).unwrap();
        fs::write(path("proc/sys/kernel/osrelease"), "6.1\n").unwrap();
        if let Some(text) = config {
            fs::write(path("boot/config-6.1"), text).unwrap();
        }
        let root = Root::of(dir.path());
        let config = Config::of_kernel(&root);
        (dir, Machine { root, config })
    }

    #[test]
    fn a_remedy_names_what_is_off_and_nothing_else() {
        let (_dir, m) = machine(Some("CONFIG_FUNCTION_TRACER=y\n"));
        let needs = ["FUNCTION_TRACER", "DYNAMIC_FTRACE_WITH_DIRECT_CALLS"];
        assert_eq!(m.remedy(&needs).unwrap(), "a kernel with CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y");
        assert_eq!(m.remedy(&needs[..1]), None);
        let (_dir, m) = machine(None);
        assert!(m.remedy(&needs[..1]).unwrap().ends_with("(this one's configuration was not found)"));
    }

    #[test]
    fn a_module_is_loaded_or_can_be_or_is_not_built() {
        let (_dir, m) = machine(Some("CONFIG_KVM=m\n"));
        assert_eq!(m.without_module("tun", "TUN", "taps"), None);
        assert_eq!(m.without_module("kvm", "KVM", "").unwrap().remedy.unwrap(), "modprobe kvm");
        let lack = m.without_module("vhost_net", "VHOST_NET", "queues").unwrap();
        assert_eq!((lack.lost.as_str(), lack.remedy.unwrap().as_str()), ("queues", "a kernel with CONFIG_VHOST_NET=y"));
    }

    #[test]
    fn options_are_those_of_the_architecture_and_none_is_listed_twice() {
        for (architecture, own, other) in
            [("x86_64", "KVM_INTEL", "KALLSYMS_ALL"), ("aarch64", "KALLSYMS_ALL", "KVM_INTEL")]
        {
            let mut names: Vec<&str> = options_of(architecture).map(|(name, _)| name).collect();
            assert!(names.contains(&own) && !names.contains(&other), "{names:?}");
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all);
        }
    }

    #[test]
    fn what_explains_a_run_is_recorded_and_explaining_it_needs_nothing() {
        let (_dir, m) = machine(None);
        let explain = engines::ALL.iter().find(|engine| engine.commands() == ["explain"]).unwrap();
        assert!(explain.try_out(&m).title.starts_with("causes in record and live"));
    }

    #[test]
    fn a_study_is_known_and_needs_a_hypervisor() {
        assert!(Caps::known().any(|command| command == "study"));
        let (_dir, m) = machine(Some("CONFIG_KVM=m\n"));
        let engine = engines::ALL.iter().find(|engine| engine.commands().contains(&"study")).unwrap();
        let tried = engine.try_out(&m);
        assert_eq!(tried.works, Works::No);
        assert_eq!(tried.lacks[0].remedy.as_deref(), Some("modprobe kvm"));
    }
}
