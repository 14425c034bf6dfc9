//! Actors and culprits. Threads with the same name are one actor, and threads of the same process one culprit, however
//! often they are restarted.

use crate::Executor;
use latpath_flight::{Class, Doing};
use latpath_vms::{Role, Thread, Vm};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of thread IDs kept per actor.
const MAX_PIDS: usize = 32;

/// Maximum number of thread names kept per culprit.
const MAX_THREADS: usize = 32;
/// Name of the culprit that comprises all of latpath's own threads.
pub const LATPATH_ITSELF: &str = "latpath itself";

/// The process of a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Process {
    /// Process ID: the TID of its first thread.
    pub pid: u32,
    /// Name of its first thread.
    pub name: String,
    /// Its systemd unit or control group, if recorded.
    pub unit: Option<String>,
    /// Its owner in human-readable form, if recorded: `unit relay.service`, `container web (docker)`, `pod shop/web-0`.
    pub owner: Option<String>,
}

/// An actor or culprit: a thread, softirq, interrupt or idle CPU. Threads with the same name and role are one actor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// Its role for a virtual machine, otherwise its name: `vhost of guest7`, `rustc`, `softirq NET_RX`, `irq 25
    /// virtio0`.
    pub name: String,
    /// The latest context in which it acted.
    pub doing: Doing,
    /// Latest scheduling class of a thread, if known.
    pub class: Option<Class>,
    /// Thread IDs, the latest last; at most 32.
    pub pids: Vec<u32>,
    /// Whether it belongs to latpath itself.
    pub is_tool: bool,
    /// Latest process of a thread, if known.
    pub process: Option<Process>,
    /// For a culprit: names of its threads that differ from its own.
    pub threads: Vec<String>,
}

impl Actor {
    /// Creates an actor. `vm` contains the virtual machine for which the thread works, and the thread's role.
    pub(crate) fn new(executor: &Executor, vm: Option<(&Vm, &Thread)>, process: Option<&Process>) -> Self {
        let pid = executor.doing.thread().filter(|pid| *pid != 0);
        let comm = bare(&executor.name);
        let name = match (executor.doing, vm) {
            (_, Some((vm, thread))) => match thread.role {
                Role::Vcpu => format!("vCPU{} of {}", number(thread.vcpu), vm.name),
                Role::MainLoop => format!("main loop of {}", vm.name),
                Role::Vhost => format!("vhost of {}", vm.name),
                Role::Io => format!("I/O thread of {}", vm.name),
                Role::Kvm | Role::Other => format!("{} of {}", thread.comm, vm.name),
            },
            (Doing::Thread(_), None) => thread_name(comm, &executor.name),
            (Doing::Idle { .. }, None) => "idle".into(),
            _ => executor.name.clone(),
        };
        let is_latpath = |name: &str| name.starts_with("latpath") || name.starts_with("lp-");
        let is_tool = pid.is_some() && (is_latpath(comm) || process.is_some_and(|p| is_latpath(&p.name)));
        let (doing, class, pids) = (executor.doing, executor.class, pid.into_iter().collect());
        Self { name, doing, class, pids, is_tool, process: process.cloned(), threads: Vec::new() }
    }

    /// Converts this actor to a culprit: all threads of a process are one culprit, and so are all of latpath's. Threads
    /// of virtual machines remain separate, because they have roles.
    pub(crate) fn culprit(self, is_of_vm: bool) -> Self {
        let process = self.process.as_ref().filter(|p| !is_of_vm && self.pid().is_some_and(|pid| pid != p.pid));
        let name = match process {
            _ if self.is_tool => LATPATH_ITSELF.to_owned(),
            Some(process) => process.name.clone(),
            None => return self,
        };
        let threads = if self.name == name { Vec::new() } else { vec![self.name] };
        Self { name, threads, ..self }
    }

    /// Thread ID of the latest thread.
    pub fn pid(&self) -> Option<u32> {
        self.pids.last().copied()
    }

    /// Merges a newer record of the same actor.
    pub fn update(&mut self, other: &Self) {
        (self.doing, self.class) = (other.doing, other.class.or(self.class));
        self.process = other.process.clone().or(self.process.take());
        for thread in &other.threads {
            if self.threads.len() < MAX_THREADS && !self.threads.contains(thread) {
                self.threads.push(thread.clone());
            }
        }
        for pid in &other.pids {
            self.pids.retain(|p| p != pid);
            self.pids.push(*pid);
        }
        let more = self.pids.len().saturating_sub(MAX_PIDS);
        self.pids.drain(..more);
    }
}

fn number(vcpu: Option<u32>) -> String {
    vcpu.map_or(String::new(), |n| format!(" {n}"))
}

/// The bare name `rustc` of `rustc (18491) in its guest`.
fn bare(name: &str) -> &str {
    let at = name.match_indices(" (").find(|(at, _)| name[at + 2..].starts_with(|c: char| c.is_ascii_digit()));
    at.map_or(name, |(at, _)| &name[..at])
}

/// A common name for kernel threads whose names differ only in a number, or that share their work.
fn thread_name(comm: &str, shown: &str) -> String {
    let function = shown.rsplit_once(") at ").map(|(_, function)| function);
    match (comm.strip_prefix("kworker/"), function) {
        (Some(_), Some(function)) => return format!("kworker at {function}"),
        (Some(_), None) => return "kworker".into(),
        _ => {}
    }
    match comm.split_once('-') {
        Some(("vhost", pid)) if !pid.is_empty() && pid.chars().all(|c| c.is_ascii_digit()) => "vhost".into(),
        _ => comm.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunContext;
    use latpath_flight::Running;
    use latpath_model::HOST;

    fn thread(pid: u32, name: &str) -> Executor {
        let doing = Doing::Thread(Running { pid, class: None, guest: false, work: None });
        Executor { name: name.into(), doing, class: None }
    }

    #[test]
    fn numbers_do_not_distinguish_culprits() {
        let context = RunContext::default();
        for (shown, name) in [
            ("rustc (18491)", "rustc"),
            ("CPU 0/KVM (6154) in its guest", "CPU 0/KVM"),
            ("kworker/3:1H (77) at blk_mq_run_work_fn", "kworker at blk_mq_run_work_fn"),
            ("kworker/3:1H (77)", "kworker"),
            ("vhost-5620 (5632)", "vhost"),
            ("vhost-user (5632)", "vhost-user"),
            ("odd (name) (12)", "odd (name)"),
            ("thread 12", "thread 12"),
        ] {
            assert_eq!(context.actor(HOST, &thread(12, shown)).name, name);
        }
        assert!(context.actor(HOST, &thread(3, "latpath (3)")).is_tool);
        let idle = Executor { name: "idle (state 2)".into(), doing: Doing::Idle { state: Some(2) }, class: None };
        assert_eq!(context.actor(HOST, &idle).name, "idle");
    }

    #[test]
    fn the_latest_threads_of_a_name_are_known_by_number() {
        let context = RunContext::default();
        let mut one = context.actor(HOST, &thread(1, "x (1)"));
        for pid in 2..=40 {
            one.update(&context.actor(HOST, &thread(pid, &format!("x ({pid})"))));
        }
        one.update(&context.actor(HOST, &thread(15, "x (15)")));
        assert_eq!((one.pids.len(), one.pids[0]), (32, 9));
        assert_eq!((one.pid(), one.pids.iter().filter(|pid| **pid == 15).count()), (Some(15), 1));
    }

    #[test]
    fn threads_of_one_process_and_all_of_latpaths_are_one_culprit() {
        let mut context = RunContext::default();
        let process = |pid, name: &str| Process { pid, name: name.into(), unit: None, owner: None };
        let known = context.processes.entry(HOST.into()).or_default();
        for (tid, of) in
            [(7, process(7, "rustc")), (8, process(7, "rustc")), (9, process(7, "rustc")), (4, process(3, "latpath"))]
        {
            known.insert(tid, of);
        }
        let culprit = |pid, name: &str| context.culprit(HOST, &thread(pid, name));
        let mut one = culprit(7, "rustc (7)");
        assert_eq!((one.name.as_str(), one.threads.len()), ("rustc", 0));
        for (pid, name) in [(8, "opt cgu.14"), (9, "opt cgu.02"), (8, "opt cgu.14")] {
            let other = culprit(pid, &format!("{name} ({pid})"));
            assert_eq!(other.name, "rustc");
            one.update(&other);
        }
        assert_eq!((one.threads, one.pids), (vec!["opt cgu.14".into(), "opt cgu.02".into()], vec![7, 9, 8]));
        for (pid, name) in [(3, "latpath"), (5, "lp-flight"), (4, "tokio-rt")] {
            let own = culprit(pid, &format!("{name} ({pid})"));
            assert_eq!(
                (own.name.as_str(), own.is_tool, own.threads.as_slice()),
                (LATPATH_ITSELF, true, &[name.to_owned()][..])
            );
        }
        assert_eq!(culprit(60, "hog (60)").name, "hog", "its process is not known");
        assert_eq!(context.actor(HOST, &thread(8, "opt cgu.14 (8)")).name, "opt cgu.14", "what waits is a thread");
    }
}
