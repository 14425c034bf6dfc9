//! Threads and interrupts that disturb each other on a CPU.

use crate::placement::{Interrupt, Job, Placement, Worker};
use latpath_linux::Cpus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of names listed per collision.
const MAX_NAMES: usize = 8;

/// Kinds of collisions, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CollisionKind {
    /// QEMU's main loop may run only on CPUs with real-time vCPUs of at least its priority.
    MainLoopBehindVcpu,
    /// A vhost worker may run only on CPUs with real-time vCPUs of at least its priority.
    VhostBehindVcpu,
    /// Two real-time vCPUs are pinned to the same CPU.
    TwoRealtimeVcpus,
    /// A thread may run on CPUs with real-time vCPUs of at least its priority, but also on others.
    MayMeetVcpu,
    /// An interrupt is served on a CPU to which a vCPU or a polling thread is pinned.
    InterruptOnReserved,
    /// An interrupt is served on an isolated CPU that was not assigned to it.
    InterruptOnIsolated,
    /// A thread other than a vCPU or a polling thread may run on a CPU to which one of these is pinned.
    ThreadOnReserved,
    /// Two vCPUs that are not both real-time are pinned to the same CPU.
    TwoVcpus,
    /// A vCPU may run both on isolated CPUs and on others.
    VcpuAcross,
    /// A polling thread of Open vSwitch may run on a CPU that is not isolated.
    PmdNotIsolated,
    /// Another CPU of a core to which a vCPU or polling thread is pinned is in use.
    SiblingInUse,
}

impl CollisionKind {
    /// The kind in messages, as a predicate of the thread or interrupt at fault.
    pub fn text(self) -> &'static str {
        match self {
            Self::MainLoopBehindVcpu | Self::VhostBehindVcpu => "waits behind vCPUs in real time, a deadlock",
            Self::TwoRealtimeVcpus => "shares its CPU with another vCPU in real time",
            Self::MayMeetVcpu => "may wait behind vCPUs in real time",
            Self::InterruptOnReserved => "interrupts threads that have the CPU for themselves",
            Self::InterruptOnIsolated => "interrupts an isolated CPU",
            Self::ThreadOnReserved => "may run on a CPU that is reserved",
            Self::TwoVcpus => "shares its CPU with another vCPU",
            Self::VcpuAcross => "may run on isolated and on other CPUs",
            Self::PmdNotIsolated => "polls on a CPU that is not isolated",
            Self::SiblingInUse => "shares its core with others",
        }
    }
}

/// Threads or interrupts that disturb each other on some CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Collision {
    /// Its kind.
    pub kind: CollisionKind,
    /// The CPUs on which the collision happens.
    #[schemars(with = "String")]
    pub cpus: Cpus,
    /// Name of the thread or interrupt at fault, which should run elsewhere.
    pub who: String,
    /// Its TID or interrupt number.
    pub number: Option<u32>,
    /// CPUs on which the thread may run, or that may serve the interrupt.
    #[schemars(with = "String")]
    pub on: Cpus,
    /// Names of the threads that it meets there, at most 8.
    pub with: Vec<String>,
}

impl Placement {
    /// The collisions, in order of kind, the worst first; each thread or interrupt appears only in its worst collision.
    pub fn collisions(&self) -> Vec<Collision> {
        let mut all = Vec::new();
        self.behind_vcpus(&mut all);
        self.two_vcpus(&mut all);
        self.interrupts_in_the_way(&mut all);
        self.threads_in_the_way(&mut all);
        self.vcpus_across(&mut all);
        self.siblings_in_use(&mut all);
        all.sort_by_key(|collision| collision.kind);
        let mut known: Vec<(String, Option<u32>)> = Vec::new();
        all.retain(|one| {
            let key = (one.who.clone(), one.number);
            let is_new = !known.contains(&key);
            known.push(key);
            is_new
        });
        all
    }

    /// Pinned real-time vCPUs.
    fn realtime_vcpus(&self) -> Vec<&Worker> {
        self.vcpus().filter(|vcpu| vcpu.priority > 0 && self.is_pinned(vcpu)).collect()
    }

    /// Adds host threads that may never get a CPU while a guest uses it, because a real-time vCPU does not yield to
    /// them.
    fn behind_vcpus(&self, all: &mut Vec<Collision>) {
        let vcpus = self.realtime_vcpus();
        for worker in self.workers.iter().filter(|worker| worker.job != Job::Vcpu && worker.job != Job::KvmHelper) {
            let above: Vec<&Worker> = vcpus
                .iter()
                .copied()
                .filter(|vcpu| vcpu.priority >= worker.priority && vcpu.cpus.overlaps(&worker.cpus))
                .collect();
            if above.is_empty() {
                continue;
            }
            let mut cpus = Cpus::default();
            above.iter().for_each(|vcpu| cpus.join(vcpu.cpus.clone()));
            let kind = match worker.job {
                _ if !worker.cpus.within(&cpus) => CollisionKind::MayMeetVcpu,
                Job::MainLoop => CollisionKind::MainLoopBehindVcpu,
                Job::Vhost => CollisionKind::VhostBehindVcpu,
                _ => CollisionKind::ThreadOnReserved,
            };
            all.push(of_worker(kind, cpus.common(&worker.cpus), worker, &above));
        }
    }

    fn two_vcpus(&self, all: &mut Vec<Collision>) {
        let vcpus: Vec<&Worker> = self.vcpus().filter(|vcpu| self.is_pinned(vcpu)).collect();
        for (at, vcpu) in vcpus.iter().enumerate() {
            let others: Vec<&Worker> =
                vcpus[..at].iter().copied().filter(|other| other.cpus.overlaps(&vcpu.cpus)).collect();
            // The scheduler distributes threads over several CPUs, but not over isolated ones.
            let are_apart = |first: &Worker| {
                vcpu.cpus.iter().count() > 1 && !(vcpu.cpus.within(&self.isolated) && first.cpus.within(&self.isolated))
            };
            let Some(first) = others.first().filter(|first| !are_apart(first)) else { continue };
            let kind = match first.priority > 0 && vcpu.priority > 0 {
                true => CollisionKind::TwoRealtimeVcpus,
                false => CollisionKind::TwoVcpus,
            };
            all.push(of_worker(kind, first.cpus.common(&vcpu.cpus), vcpu, &others));
        }
    }

    fn interrupts_in_the_way(&self, all: &mut Vec<Collision>) {
        let reserved = self.reserved();
        for interrupt in &self.interrupts {
            // The interrupt is one of the kernel's own, with one instance per CPU, or it never fires.
            if interrupt.serving.is_empty() {
                continue;
            }
            let is_assigned = interrupt.cpus.within(&self.kept());
            let kind = match () {
                () if interrupt.serving.overlaps(&reserved) => CollisionKind::InterruptOnReserved,
                () if interrupt.serving.overlaps(&self.isolated) && !is_assigned => CollisionKind::InterruptOnIsolated,
                () => continue,
            };
            let with: Vec<&Worker> = self
                .workers
                .iter()
                .filter(|w| w.job.is_exclusive() && w.cpus.overlaps(&interrupt.serving))
                .filter(|w| self.is_pinned(w))
                .collect();
            all.push(of_interrupt(kind, interrupt, &with));
        }
    }

    fn threads_in_the_way(&self, all: &mut Vec<Collision>) {
        for worker in self.workers.iter().filter(|worker| !worker.job.is_exclusive() && worker.job != Job::KvmHelper) {
            let with: Vec<&Worker> = self
                .workers
                .iter()
                .filter(|w| w.job.is_exclusive() && self.is_pinned(w))
                .filter(|w| w.cpus.overlaps(&worker.cpus))
                .collect();
            if with.is_empty() {
                continue;
            }
            let mut cpus = Cpus::default();
            with.iter().for_each(|w| cpus.join(w.cpus.clone()));
            all.push(of_worker(CollisionKind::ThreadOnReserved, cpus.common(&worker.cpus), worker, &with));
        }
    }

    fn vcpus_across(&self, all: &mut Vec<Collision>) {
        for worker in &self.workers {
            let isolated = worker.cpus.common(&self.isolated);
            match worker.job {
                Job::Vcpu if !isolated.is_empty() && isolated != worker.cpus => {
                    all.push(of_worker(CollisionKind::VcpuAcross, isolated, worker, &[]));
                }
                Job::Pmd if !worker.cpus.within(&self.isolated) => {
                    all.push(of_worker(CollisionKind::PmdNotIsolated, worker.cpus.clone(), worker, &[]));
                }
                _ => {}
            }
        }
    }

    /// Adds vCPUs and polling threads if another CPU of their core is in use: the CPUs of a core share its execution
    /// units, so work on one slows down the others.
    fn siblings_in_use(&self, all: &mut Vec<Collision>) {
        let reserved = self.reserved();
        for worker in self.workers.iter().filter(|w| w.job.is_exclusive() && self.is_pinned(w)) {
            let others = |cpu: u32| {
                self.siblings.get(&cpu).map_or_else(Cpus::default, |s| s.without(&[cpu].into_iter().collect()))
            };
            let mut siblings = Cpus::default();
            worker.cpus.iter().for_each(|cpu| siblings.join(others(cpu)));
            let siblings = siblings.common(&self.online).without(&worker.cpus);
            let of_others = |cpu: &u32| {
                let is_same_vm = |w: &&Worker| !w.vm.is_empty() && w.vm == worker.vm;
                let users: Vec<&Worker> =
                    self.workers.iter().filter(|w| w.cpus.contains(*cpu) && self.is_pinned(w)).collect();
                // If vCPUs of the same guest share a core, that is the guest's own matter.
                let is_own = !users.is_empty() && users.iter().all(is_same_vm);
                !is_own && (!self.kept().contains(*cpu) || reserved.contains(*cpu))
            };
            let used: Cpus = siblings.iter().filter(of_others).collect();
            if !used.is_empty() {
                all.push(of_worker(CollisionKind::SiblingInUse, used, worker, &[]));
            }
        }
    }
}

fn names(workers: &[&Worker]) -> Vec<String> {
    workers.iter().take(MAX_NAMES).map(|worker| worker.name.clone()).collect()
}

fn of_worker(kind: CollisionKind, cpus: Cpus, worker: &Worker, with: &[&Worker]) -> Collision {
    let (who, on) = (worker.name.clone(), worker.cpus.clone());
    Collision { kind, cpus, who, number: worker.tid, on, with: names(with) }
}

fn of_interrupt(kind: CollisionKind, interrupt: &Interrupt, with: &[&Worker]) -> Collision {
    Collision {
        kind,
        cpus: interrupt.serving.clone(),
        who: interrupt.name.clone(),
        number: interrupt.number,
        on: interrupt.cpus.clone(),
        with: names(with),
    }
}
