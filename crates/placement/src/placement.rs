//! The CPUs, threads and interrupts of a machine, from its settings.

use latpath_linux::Cpus;
use latpath_settings::{Scope, Setting, SettingValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Distance of a NUMA node to itself (ACPI, SLIT).
const OWN_NODE: &str = "10";

/// The task of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Job {
    /// Runs a vCPU.
    Vcpu,
    /// vhost worker.
    Vhost,
    /// QEMU's main loop.
    MainLoop,
    /// An I/O thread of QEMU.
    Io,
    /// A helper of KVM, which rarely runs.
    KvmHelper,
    /// Another thread of a virtual machine.
    OtherOfVm,
    /// A thread of Open vSwitch that polls devices (PMD).
    Pmd,
    /// Another thread of Open vSwitch.
    Switch,
    /// A program that sets clocks.
    Clock,
}

impl Job {
    /// Whether the thread should have its CPUs to itself: a vCPU, or a thread that polls devices.
    pub fn is_exclusive(self) -> bool {
        matches!(self, Self::Vcpu | Self::Pmd)
    }
}

/// A thread that carries packets or time, and the CPUs on which it may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Worker {
    /// The thread's task.
    pub job: Job,
    /// Its name in settings, e.g. `guest7 vCPU 0`, `ovs-vswitchd pmd-c03`.
    pub name: String,
    /// Name of its virtual machine; empty for other threads.
    pub vm: String,
    /// Thread ID (TID) when the settings were read.
    pub tid: Option<u32>,
    /// CPUs on which it may run.
    #[schemars(with = "String")]
    pub cpus: Cpus,
    /// Policy and priority: `fifo 1`, `other`.
    pub scheduling: String,
    /// Real-time priority, 1 to 99; 0 for none.
    pub priority: u32,
}

/// An interrupt, and the CPUs that may serve it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Interrupt {
    /// Its name: `eth0-rx-0`, `nvme0q1`.
    pub name: String,
    /// IRQ number when the settings were read.
    pub number: Option<u32>,
    /// CPUs that may serve it.
    #[schemars(with = "String")]
    pub cpus: Cpus,
    /// CPUs that serve it; those of `cpus` if the kernel does not report them.
    #[schemars(with = "String")]
    pub serving: Cpus,
    /// Policy and priority of its thread, if it has one.
    pub thread: Option<String>,
}

/// Purpose of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CpuUse {
    /// Neither isolated nor tickless.
    Housekeeping,
    /// Tickless, but balanced by the scheduler.
    NohzFull,
    /// Isolated, with its tick.
    Isolated,
    /// Isolated and tickless.
    IsolatedNohzFull,
}

impl CpuUse {
    /// The name shown to the user.
    pub fn name(self) -> &'static str {
        match self {
            Self::Housekeeping => "housekeeping",
            Self::NohzFull => "nohz_full",
            Self::Isolated => "isolated",
            Self::IsolatedNohzFull => "isolated, nohz_full",
        }
    }
}

/// The CPUs, threads and interrupts of a machine.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// CPUs that are online.
    pub online: Cpus,
    /// Isolated CPUs (`isolcpus=`).
    pub isolated: Cpus,
    /// Tickless CPUs (`nohz_full=`).
    pub nohz_full: Cpus,
    /// NUMA node of each CPU; empty if it is unknown.
    pub nodes: BTreeMap<u32, u32>,
    /// CPUs that share a core with each CPU, itself included.
    pub siblings: BTreeMap<u32, Cpus>,
    /// Threads of virtual machines and services.
    pub workers: Vec<Worker>,
    /// Interrupts.
    pub interrupts: Vec<Interrupt>,
    /// Names of virtual machines.
    pub vms: BTreeSet<String>,
    values: BTreeMap<String, Vec<SettingValue>>,
}

impl Placement {
    /// Derives the placement from the settings of one machine.
    pub fn of<'a>(values: impl IntoIterator<Item = &'a SettingValue>) -> Self {
        let mut all = Self::default();
        for value in values {
            all.values.entry(value.setting.clone()).or_default().push(value.clone());
        }
        let cpus = |setting| all.value(setting).and_then(|text| text.parse::<Cpus>().ok()).unwrap_or_default();
        (all.online, all.isolated, all.nohz_full) =
            (cpus(Setting::CpusOnline), cpus(Setting::CpusIsolated), cpus(Setting::CpusNohzFull));
        if all.isolated.is_empty() {
            // Runs of earlier versions recorded only the kernel parameter.
            all.isolated = list_of(all.value(Setting::BootIsolcpus).unwrap_or_default());
        }
        all.nodes =
            all.each_cpu(Setting::CpuNumaNode).filter_map(|(cpu, text)| Some((cpu, text.parse().ok()?))).collect();
        all.siblings =
            all.each_cpu(Setting::CpuSiblings).filter_map(|(cpu, text)| Some((cpu, text.parse().ok()?))).collect();
        let of_vms = all
            .values
            .iter()
            .filter(|(id, _)| Setting::of_id(id).is_some_and(|setting| setting.info().scope == Scope::Vm));
        all.vms = of_vms.flat_map(|(_, values)| values).map(|value| value.target.clone()).collect();
        all.workers = all.find_workers();
        all.interrupts = all.find_interrupts();
        all
    }

    /// The value of a setting of the machine or its kernel command line.
    pub fn value(&self, setting: Setting) -> Option<&str> {
        self.values_of(setting).first().map(|value| value.value.as_str())
    }

    /// The value of a setting at one target.
    pub fn value_at(&self, setting: Setting, target: &str) -> Option<&str> {
        self.values_of(setting).iter().find(|value| value.target == target).map(|value| value.value.as_str())
    }

    /// All values of a setting.
    pub fn values_of(&self, setting: Setting) -> &[SettingValue] {
        self.values.get(setting.id()).map_or(&[], Vec::as_slice)
    }

    /// The values of a setting by CPU.
    pub fn each_cpu(&self, setting: Setting) -> impl Iterator<Item = (u32, &str)> + '_ {
        let of = |value: &'_ SettingValue| value.target.parse::<Cpus>().unwrap_or_default();
        let one = move |value| {
            let cpus: Vec<u32> = of(value).iter().take(1 << 16).collect();
            cpus.into_iter().map(move |cpu| (cpu, value.value.as_str()))
        };
        self.values_of(setting).iter().flat_map(one)
    }

    /// CPUs that are neither isolated nor tickless.
    pub fn housekeeping(&self) -> Cpus {
        self.online.without(&self.kept())
    }

    /// CPUs that are isolated or tickless.
    pub fn kept(&self) -> Cpus {
        let mut kept = self.isolated.clone();
        kept.join(self.nohz_full.clone());
        kept
    }

    /// Purpose of a CPU.
    pub fn use_of(&self, cpu: u32) -> CpuUse {
        match (self.isolated.contains(cpu), self.nohz_full.contains(cpu)) {
            (false, false) => CpuUse::Housekeeping,
            (false, true) => CpuUse::NohzFull,
            (true, false) => CpuUse::Isolated,
            (true, true) => CpuUse::IsolatedNohzFull,
        }
    }

    /// Whether the thread's affinity excludes at least one housekeeping CPU; if there are none, at least one online
    /// CPU.
    pub fn is_pinned(&self, worker: &Worker) -> bool {
        let usual = self.housekeeping();
        let usual = if usual.is_empty() { &self.online } else { &usual };
        !usual.within(&worker.cpus)
    }

    /// The vCPUs' threads.
    pub fn vcpus(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(|worker| worker.job == Job::Vcpu)
    }

    /// CPUs to which vCPUs or polling threads of Open vSwitch are pinned.
    pub fn reserved(&self) -> Cpus {
        let mut all = Cpus::default();
        let is_one = |worker: &&Worker| worker.job.is_exclusive() && self.is_pinned(worker);
        self.workers.iter().filter(is_one).for_each(|worker| all.join(worker.cpus.clone()));
        all
    }

    /// The NUMA nodes of CPUs; empty if unknown.
    pub fn nodes_of(&self, cpus: &Cpus) -> BTreeSet<u32> {
        cpus.iter().filter_map(|cpu| self.nodes.get(&cpu).copied()).collect()
    }

    /// Whether two different NUMA nodes are apart: their distance is unknown, or is not that of a node to itself.
    pub fn are_apart(&self, a: u32, b: u32) -> bool {
        if a == b {
            return false;
        }
        let distances = self.value(Setting::NumaDistances).unwrap_or_default();
        let row = distances.split("; ").find_map(|row| row.strip_prefix(&format!("{a}: ")));
        let index = usize::try_from(b).unwrap_or(usize::MAX);
        row.and_then(|row| row.split(' ').nth(index)) != Some(OWN_NODE)
    }

    fn find_workers(&self) -> Vec<Worker> {
        let pairs = [(Setting::ThreadCpus, Setting::ThreadPriority), (Setting::ServiceCpus, Setting::ServicePriority)];
        let mut all = Vec::new();
        for (of_cpus, of_priority) in pairs {
            for value in self.values_of(of_cpus) {
                let scheduling = self.value_at(of_priority, &value.target).unwrap_or_default().to_owned();
                let (vm, job) = match of_cpus {
                    Setting::ThreadCpus => self.job_in_vm(&value.target),
                    _ => (String::new(), job_of_service(&value.target)),
                };
                all.push(Worker {
                    job,
                    name: value.target.clone(),
                    vm,
                    tid: value.at.as_ref().and_then(|at| at.parse().ok()),
                    cpus: value.value.parse().unwrap_or_default(),
                    priority: realtime(&scheduling),
                    scheduling,
                });
            }
        }
        all
    }

    /// The virtual machine and job of a thread, from its name, e.g. `guest7 vCPU 0`. Names of virtual machines may
    /// contain spaces.
    fn job_in_vm(&self, name: &str) -> (String, Job) {
        let rest = |vm: &String| name.strip_prefix(vm.as_str())?.strip_prefix(' ').map(|rest| (vm.clone(), rest));
        let Some((vm, role)) = self.vms.iter().filter_map(rest).max_by_key(|(vm, _)| vm.len()) else {
            return (String::new(), Job::OtherOfVm);
        };
        let jobs = [
            (Job::Vcpu, "vCPU"),
            (Job::Vhost, "vhost"),
            (Job::MainLoop, "main loop"),
            (Job::Io, "I/O"),
            (Job::KvmHelper, "KVM helper"),
        ];
        let is_job = |word: &str| role == word || role.strip_prefix(word).is_some_and(|rest| rest.starts_with(' '));
        let job = jobs.into_iter().find(|(_, word)| is_job(word)).map_or(Job::OtherOfVm, |(job, _)| job);
        (vm, job)
    }

    fn find_interrupts(&self) -> Vec<Interrupt> {
        let threads: BTreeMap<&str, &str> =
            self.values_of(Setting::IrqThreadPriority).iter().map(|v| (v.target.as_str(), v.value.as_str())).collect();
        // The kernel truncates the name of a thread, `irq/45-eth0-rx-0`, to 15 bytes.
        let thread = |name: &str, number: Option<u32>| {
            let room = 15_usize.saturating_sub(format!("irq/{}-", number?).len());
            let short = name.get(..name.len().min(room))?;
            threads.get(short).map(|priority| (*priority).to_owned())
        };
        let one = |value: &SettingValue| {
            let number = value.at.as_ref().and_then(|at| at.parse().ok());
            let cpus: Cpus = value.value.parse().unwrap_or_default();
            let serving = self.value_at(Setting::IrqEffectiveAffinity, &value.target);
            let serving = serving.and_then(|text| text.parse().ok()).filter(|cpus: &Cpus| !cpus.is_empty());
            Interrupt {
                name: value.target.clone(),
                number,
                serving: serving.unwrap_or_else(|| cpus.clone()),
                cpus,
                thread: thread(&value.target, number),
            }
        };
        self.values_of(Setting::IrqAffinity).iter().map(one).collect()
    }
}

/// The CPUs of a parameter that may begin with flags: `managed_irq,domain,2-3`.
pub(crate) fn list_of(parameter: &str) -> Cpus {
    let words = parameter.split([',', ' ']).filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(",").parse().unwrap_or_default()
}

fn job_of_service(name: &str) -> Job {
    match name.strip_prefix("ovs-vswitchd") {
        Some(thread) if thread.starts_with(" pmd-") => Job::Pmd,
        Some(_) => Job::Switch,
        None => Job::Clock,
    }
}

/// The priority of `fifo 50` or `rr 1`; 0 for other policies.
fn realtime(scheduling: &str) -> u32 {
    match scheduling.split_once(' ') {
        Some(("fifo" | "rr", priority)) => priority.parse().unwrap_or(0),
        _ => 0,
    }
}
