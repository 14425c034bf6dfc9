//! Reads the settings of this machine, or of a machine that is a directory tree.

pub(crate) mod devices;
pub(crate) mod interrupts;
mod services;
pub(crate) mod special;

use crate::address::{Address, Located};
use crate::owners::Owners;
use crate::reading::{Reading, SettingValue};
use crate::setting::{Read, Setting};
pub use devices::Device;
use latpath_linux::proc::{start_ticks, Root, Stat, PF_KTHREAD};
use latpath_linux::{monotonic, Cpus};
use latpath_model::Ns;
use latpath_vms::{OvsConfig, Policy, Vm};
use services::Service;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Maximum duration of a reading, ns. The remaining settings are then omitted, and a note names the first of them.
const MAX_TIME: Ns = 1_000_000_000;
/// Maximum duration of a reading of places for a plan, ns. It is longer, so that a plan is complete even on a slow
/// machine.
const MAX_TIME_OF_PLACES: Ns = 60_000_000_000;
/// Maximum number of processes searched for kernel threads: Linux's own limit (PID_MAX_LIMIT).
const MAX_PROCESSES: usize = 4 << 20;
/// Maximum number of control groups that are read.
const MAX_GROUPS: usize = 1024;
/// Maximum number of threads of a virtual machine that are read.
const MAX_THREADS: usize = 4096;

/// A setting's value at one place, before CPUs with the same value are combined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedValue {
    pub target: Target,
    /// The target's current address, if it differs from its name.
    pub at: Option<String>,
    pub address: Address,
    pub value: String,
}

/// The owner of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Cpu(u32),
    Named(String),
}

impl PlacedValue {
    /// A value of the machine.
    pub fn of_machine(value: impl Into<String>) -> Self {
        Self { target: Target::Named(String::new()), at: None, address: Address::Machine, value: value.into() }
    }

    /// A value of a CPU.
    pub fn of_cpu(cpu: u32, value: impl Into<String>) -> Self {
        Self { target: Target::Cpu(cpu), at: None, address: Address::Cpu { cpu }, value: value.into() }
    }

    /// A value of a named owner; `at` is the owner's current address as a string.
    pub fn named(name: impl Into<String>, at: Option<String>, address: Address, value: impl Into<String>) -> Self {
        Self { target: Target::Named(name.into()), at, address, value: value.into() }
    }
}

/// A machine whose settings are read and written.
pub struct Source<'a> {
    pub(crate) root: Root,
    /// Whether this is the running machine, whose kernel answers requests; otherwise it is a directory tree.
    pub(crate) is_live: bool,
    pub(crate) vms: &'a [Vm],
    devices: Vec<Device>,
    cpus: Cpus,
    isolated: Cpus,
    kernel_threads: OnceCell<Vec<(u32, Stat)>>,
    /// Process ID and name of each running program.
    programs: OnceCell<Vec<(u32, String)>>,
    services: OnceCell<Vec<Service>>,
    ovs: OnceCell<Option<OvsConfig>>,
}

impl<'a> Source<'a> {
    /// The running machine, with its virtual machines. Its network devices are: the hardware and the bridges in
    /// latpath's own network namespace, the devices of the virtual machines, and `devices`, with the bridges and the
    /// hardware that belong to them.
    pub fn machine(vms: &'a [Vm], devices: Vec<Device>) -> Self {
        Self::new(Path::new("/"), true, vms, devices)
    }

    /// A machine with its `/proc`, `/sys` and `/etc` below this directory. Settings that only a running kernel reports
    /// are omitted.
    pub fn below(root: &Path, vms: &'a [Vm], devices: Vec<Device>) -> Self {
        Self::new(root, false, vms, devices)
    }

    fn new(root: &Path, is_live: bool, vms: &'a [Vm], devices: Vec<Device>) -> Self {
        let root = Root::of(root);
        let (cpus, isolated) = (root.cpus("online"), root.isolated_cpus());
        Self {
            root,
            is_live,
            vms,
            devices,
            cpus,
            isolated,
            kernel_threads: OnceCell::new(),
            programs: OnceCell::new(),
            services: OnceCell::new(),
            ovs: OnceCell::new(),
        }
    }

    /// Reads all settings, within some milliseconds and at most one second. This changes nothing, wakes no device, and
    /// interrupts no isolated CPU. Settings that cannot be read are omitted.
    pub fn read(&self) -> Reading {
        let begin = monotonic();
        let (found, notes) = self.find(begin, MAX_TIME);
        let mut reading = Reading { taken_ns: begin, notes, ..Reading::default() };
        for (setting, all) in found {
            grouped(all).into_iter().for_each(|(target, at, value)| {
                reading.push(SettingValue { setting: setting.id().into(), target, at, value });
            });
        }
        reading.took_ns = monotonic().saturating_sub(begin);
        reading
    }

    /// Reads all settings like [`Source::read`], but does not combine places: returns each with its address. Also
    /// returns notes on settings that could not be read.
    pub fn places(&self) -> (Vec<Located>, Vec<String>) {
        let (found, notes) = self.find(monotonic(), MAX_TIME_OF_PLACES);
        let one = |setting: Setting, PlacedValue { target, address, value, .. }: PlacedValue| {
            let target = match target {
                Target::Cpu(cpu) => cpu.to_string(),
                Target::Named(name) => name,
            };
            Located { setting, target, address, value }
        };
        (
            found
                .into_iter()
                .flat_map(|(setting, all)| all.into_iter().map(move |found| one(setting, found)))
                .collect(),
            notes,
        )
    }

    fn find(&self, begin: Ns, most: Ns) -> (BTreeMap<Setting, Vec<PlacedValue>>, Vec<String>) {
        let mut found: BTreeMap<Setting, Vec<PlacedValue>> = BTreeMap::new();
        let mut notes = Vec::new();
        let is_over = || monotonic().saturating_sub(begin) > most;
        for setting in Setting::ALL.iter().copied().filter(|setting| !setting.is_of_device()) {
            if is_over() {
                notes.push(format!("{setting} and what follows it: not read, because reading took too long"));
                break;
            }
            found.insert(setting, self.one(setting));
        }
        if !is_over() {
            devices::read(self, &self.devices, &mut found, &mut notes);
            interrupts::others(&self.root, &mut found);
        }
        (found, notes)
    }

    pub(crate) fn thread_address(&self, tid: u32) -> Address {
        Address::Thread { tid, start_ticks: start_ticks(&self.root, tid).unwrap_or(0) }
    }

    /// Reads a setting that does not belong to a network device.
    pub(crate) fn one(&self, setting: Setting) -> Vec<PlacedValue> {
        let machine = |value: Option<String>| value.into_iter().map(PlacedValue::of_machine).collect();
        match setting.info().read {
            Read::Line(file) => machine(self.line(file)),
            Read::Choice(file) => machine(self.line(file).map(|line| choice(&line))),
            Read::Sysctl(name) => {
                // The kernel separates numbers with tabs.
                machine(self.line(&format!("proc/sys/{}", name.replace('.', "/"))).map(|line| line.replace('\t', " ")))
            }
            Read::Module(module, name) => machine(self.line(&format!("sys/module/{module}/parameters/{name}"))),
            Read::Boot(name) => machine(self.line("proc/cmdline").map(|line| boot_parameter(&line, name))),
            Read::EachCpu(file) => self.each_cpu(&self.cpus, file),
            Read::EachCalledCpu(file) => self.each_cpu(&self.cpus.without(&self.isolated), file),
            Read::CpuThread(name) => {
                let of_cpu = |(_, stat): &(u32, Stat)| {
                    let cpu = stat.comm.strip_prefix(name)?.strip_prefix('/')?.parse().ok()?;
                    Some(PlacedValue::of_cpu(cpu, scheduling(stat)))
                };
                self.kernel_threads().iter().filter_map(of_cpu).collect()
            }
            Read::Thread(_, of) => self.threads(of),
            Read::Group(file) => self.groups(file),
            Read::Vm(_, of) => {
                let one = |vm: &Vm| {
                    let address = Address::Vm { name: vm.name.clone() };
                    Some(PlacedValue::named(vm.name.clone(), None, address, of(&self.root, vm)?))
                };
                self.vms.iter().filter_map(one).collect()
            }
            Read::Special(_, function) => function(self),
            // These are read together with the network devices.
            Read::Interrupt(_) | Read::Device(_) | Read::DeviceLink(_) | Read::Queue(..) => Vec::new(),
            Read::Feature(_) | Read::Ethtool(..) | Read::Qdisc => Vec::new(),
            Read::Request(..) | Read::DeviceSysctl(_) => Vec::new(),
        }
    }

    /// The programs and files that set settings of this machine.
    pub fn owners(&self) -> Owners {
        Owners::read(&self.root, &|name| self.has_program(name), self.vms)
    }

    /// The text of a file without leading and trailing white space; `None` if the file does not exist.
    pub(crate) fn line(&self, file: &str) -> Option<String> {
        self.root.text(file).map(|text| text.trim().to_owned())
    }

    /// The online CPUs.
    pub(crate) fn cpus(&self) -> impl Iterator<Item = u32> + '_ {
        self.cpus.iter()
    }

    pub(crate) fn each_cpu(&self, cpus: &Cpus, file: &str) -> Vec<PlacedValue> {
        let one = |cpu: u32| {
            let value = self.line(&format!("sys/devices/system/cpu/cpu{cpu}/{file}"))?;
            Some(PlacedValue::of_cpu(cpu, value))
        };
        cpus.iter().filter_map(one).collect()
    }

    /// The kernel's own threads.
    pub(crate) fn kernel_threads(&self) -> &[(u32, Stat)] {
        self.kernel_threads.get_or_init(|| {
            let numbers = self.root.numbers("proc", MAX_PROCESSES).unwrap_or_default();
            let stats = numbers.into_iter().filter_map(|n| Some((n, Stat::read(&self.root, &format!("proc/{n}"))?)));
            let (kernel, other): (Vec<_>, Vec<_>) = stats.partition(|(_, stat)| stat.flags & PF_KTHREAD != 0);
            // The same pass over all processes finds the programs.
            let _ = self.programs.set(other.into_iter().map(|(pid, stat)| (pid, stat.comm)).collect());
            kernel
        })
    }

    /// Process ID and name of each running program.
    pub(crate) fn programs(&self) -> &[(u32, String)] {
        self.kernel_threads();
        self.programs.get_or_init(Vec::new)
    }

    /// Whether a program of this name is running.
    pub(crate) fn has_program(&self, name: &str) -> bool {
        self.programs().iter().any(|(_, program)| program == name)
    }

    /// The threads of Open vSwitch and of programs that set clocks.
    pub(crate) fn services(&self) -> &[Service] {
        self.services.get_or_init(|| services::find(self))
    }

    /// The configuration of Open vSwitch, if it runs.
    pub(crate) fn ovs(&self) -> Option<&OvsConfig> {
        let ask = || self.has_program("ovsdb-server").then(|| latpath_vms::ovs_config(&self.root)).flatten();
        self.ovs.get_or_init(ask).as_ref()
    }

    /// A value of each thread of the virtual machines, named after the thread's role: `guest7 vCPU 0`. Further threads
    /// of the same name are numbered.
    fn threads(&self, of: fn(&latpath_vms::Thread) -> Option<String>) -> Vec<PlacedValue> {
        let mut all = Vec::new();
        for vm in self.vms {
            let mut known: BTreeMap<String, usize> = BTreeMap::new();
            for thread in vm.threads.iter().take(MAX_THREADS) {
                let number = thread.vcpu.map_or(String::new(), |n| format!(" {n}"));
                let serves = thread.serves.as_ref().map_or(String::new(), |device| format!(" {device}"));
                let name = format!("{} {}{number}{serves}", vm.name, thread.role.name());
                let count = known.entry(name.clone()).or_default();
                *count += 1;
                let name = if *count == 1 { name } else { format!("{name} #{count}") };
                let address = self.thread_address(thread.tid);
                all.extend(
                    of(thread).map(|value| PlacedValue::named(name, Some(thread.tid.to_string()), address, value)),
                );
            }
        }
        all
    }

    /// The values of a file in the control groups of virtual machines' threads, in the parents of these groups, and in
    /// systemd's slices.
    fn groups(&self, file: &str) -> Vec<PlacedValue> {
        let mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"];
        let has_groups = |mount: &&str| self.root.path(&format!("{mount}/cgroup.controllers")).exists();
        let Some(mount) = mounts.into_iter().find(has_groups) else { return Vec::new() };
        let mut paths: BTreeSet<String> = BTreeSet::new();
        for name in self.root.names(mount, MAX_GROUPS) {
            paths.extend(name.ends_with(".slice").then(|| format!("/{name}")));
        }
        for vm in self.vms {
            for thread in &vm.threads {
                let text = self.root.text(&format!("proc/{}/cgroup", thread.tid)).unwrap_or_default();
                let path = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
                // A group outside this cgroup namespace has `..` in its path.
                if !path.starts_with('/') || path.contains("/..") {
                    continue;
                }
                let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
                paths.extend(ends.filter(|end| *end > 0).map(|end| path[..end].to_owned()));
            }
        }
        let one = |path: &String| {
            let value = self.line(&format!("{mount}{path}/{file}"))?;
            let value = if value.is_empty() { "none".into() } else { value };
            let path_of_group = format!("/{mount}{path}");
            let address = Address::Group { path: path_of_group.clone() };
            Some(PlacedValue::named(lasting(path), Some(path_of_group), address, value))
        };
        paths.iter().take(MAX_GROUPS).filter_map(one).collect()
    }
}

/// A control group's path in which `N` replaces the number that libvirt assigns at each start of a virtual machine:
/// `machine-qemu\x2d7\x2dguest.scope`.
fn lasting(path: &str) -> String {
    const DASH: &str = "\\x2d";
    let one = |name: &str| {
        let parts: Vec<&str> = name.split(DASH).collect();
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        match parts.as_slice() {
            [first, number, rest @ ..] if first.starts_with("machine-") && is_number(number) && !rest.is_empty() => {
                [&[*first, "N"], rest].concat().join(DASH)
            }
            _ => name.into(),
        }
    };
    path.split('/').map(one).collect::<Vec<_>>().join("/")
}

/// The scheduling of a thread: `fifo 50`, `other`, `other nice -5`.
pub(crate) fn scheduling(stat: &Stat) -> String {
    scheduling_of(Policy::from_number(stat.policy).name(), stat.rt_priority, stat.nice)
}

/// The scheduling as text, from a policy's name.
pub(crate) fn scheduling_of(policy: &str, priority: u32, nice: i32) -> String {
    match (policy, nice) {
        ("fifo" | "rr", _) => format!("{policy} {priority}"),
        (_, 0) => policy.into(),
        _ => format!("{policy} nice {nice}"),
    }
}

/// The word in brackets or parentheses, or the whole line if it has neither.
pub(crate) fn choice(line: &str) -> String {
    let between = |open: char, close: char| Some(line.split_once(open)?.1.split_once(close)?.0.to_owned());
    between('[', ']').or_else(|| between('(', ')')).unwrap_or_else(|| line.into())
}

/// All values of a parameter on the kernel's command line. Dash and underscore are equivalent in its name.
pub(crate) fn boot_parameter(line: &str, name: &str) -> String {
    let same = |key: &str| key.len() == name.len() && key.replace('-', "_") == name.replace('-', "_");
    let value = |word: &str| match word.split_once('=') {
        Some((key, value)) if same(key) => Some(value.to_owned()),
        None if same(word) => Some(Setting::BARE.to_owned()),
        _ => None,
    };
    let all: Vec<String> = words(line).iter().filter_map(|word| value(word)).collect();
    if all.is_empty() {
        Setting::ABSENT.into()
    } else {
        all.join(" ")
    }
}

/// The parameters of a command line. A space in double quotes is not a separator.
pub(crate) fn words(line: &str) -> Vec<String> {
    let mut is_quoted = false;
    let is_space = |c: char| {
        is_quoted ^= c == '"';
        c.is_whitespace() && !is_quoted
    };
    line.split(is_space).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Combines CPUs with the same value into one list, and keeps all other values.
fn grouped(all: Vec<PlacedValue>) -> Vec<(String, Option<String>, String)> {
    let mut cpus: Vec<(String, Vec<u32>)> = Vec::new();
    let mut out = Vec::new();
    for PlacedValue { target, at, value, .. } in all {
        match target {
            Target::Named(name) => out.push((name, at, value)),
            Target::Cpu(cpu) => match cpus.iter_mut().find(|(known, _)| *known == value) {
                Some((_, same)) => same.push(cpu),
                None => cpus.push((value, vec![cpu])),
            },
        }
    }
    out.extend(cpus.into_iter().map(|(value, cpus)| (cpus.into_iter().collect::<Cpus>().to_string(), None, value)));
    out
}

impl Setting {
    /// Whether the setting is read with the network devices: it belongs to a device or a device's interrupt.
    pub(crate) fn is_of_device(self) -> bool {
        match self.info().read {
            Read::Device(_) | Read::DeviceLink(_) | Read::Queue(..) | Read::Feature(_) | Read::Ethtool(..) => true,
            Read::Qdisc | Read::Interrupt(_) | Read::Request(..) | Read::DeviceSysctl(_) => true,
            Read::Line(_) | Read::Choice(_) | Read::Sysctl(_) | Read::Module(..) | Read::Boot(_) => false,
            Read::EachCpu(_) | Read::EachCalledCpu(_) | Read::CpuThread(_) | Read::Thread(..) => false,
            Read::Group(_) | Read::Vm(..) | Read::Special(..) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_found_whatever_its_value_is() {
        let line =
            "BOOT_IMAGE=/vmlinuz isolcpus=nohz,domain,2-7 threadirqs dyndbg=\"file a +p; isolcpus=9\" idle=poll \
                    idle=nomwait \
                    rcu_nocbs=2-7";
        let value = |name: &str| boot_parameter(line, name);
        assert_eq!(value("isolcpus"), "nohz,domain,2-7");
        assert_eq!((value("threadirqs"), value("rcu-nocbs")), (Setting::BARE.into(), "2-7".into()));
        assert_eq!((value("idle"), value("nohz_full")), ("poll nomwait".into(), Setting::ABSENT.into()));
    }

    #[test]
    fn the_chosen_word_is_in_brackets_or_parentheses() {
        assert_eq!(choice("always [madvise] never"), "madvise");
        assert_eq!(choice("none voluntary (full) lazy"), "full");
        assert_eq!(choice("strange"), "strange");
    }

    #[test]
    fn a_start_of_a_virtual_machine_does_not_change_its_groups_name() {
        let path = |n: u32| format!("/machine.slice/machine-qemu\\x2d{n}\\x2dguest\\x2d7.scope/libvirt/vcpu0");
        assert_eq!(lasting(&path(1)), lasting(&path(12)));
        assert!(lasting(&path(1)).ends_with("guest\\x2d7.scope/libvirt/vcpu0"));
        assert_eq!(lasting("/system.slice/ssh.service"), "/system.slice/ssh.service");
    }
}
