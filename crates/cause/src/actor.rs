//! Actors and culprits: threads of one name are one, however often they are started.

use crate::Executor;
use latpath_flight::{Class, Doing};
use latpath_vms::{Role, Thread, Vm};

/// Threads of one name whose numbers are kept.
const MAX_PIDS: usize = 8;

/// What had to act, or kept others from acting. Threads of one name and role are one actor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// What it does for a virtual machine, else its name: `vhost of guest7`, `rustc`, `softirq NET_RX`, `irq 25 virtio0`.
    pub name: String,
    /// What it is; the latest of several.
    pub doing: Doing,
    /// How it was scheduled, where it is a thread and that is known; the latest of several.
    pub class: Option<Class>,
    /// Threads' numbers, the latest last: eight at most.
    pub pids: Vec<u32>,
    /// It is one of latpath's own.
    pub is_tool: bool,
}

impl Actor {
    /// `vm` is the virtual machine that it works for, with its thread.
    pub(crate) fn new(executor: &Executor, vm: Option<(&Vm, &Thread)>) -> Self {
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
        let is_tool = pid.is_some() && (comm.starts_with("latpath") || comm.starts_with("lp-"));
        Self { name, doing: executor.doing, class: executor.class, pids: pid.into_iter().collect(), is_tool }
    }

    /// The latest thread's number.
    pub fn pid(&self) -> Option<u32> {
        self.pids.last().copied()
    }

    /// Takes over what is newer in another of the same name.
    pub fn update(&mut self, other: &Self) {
        (self.doing, self.class) = (other.doing, other.class.or(self.class));
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

/// `rustc (18491) in its guest` without all behind the name.
fn bare(name: &str) -> &str {
    let at = name.match_indices(" (").find(|(at, _)| name[at + 2..].starts_with(|c: char| c.is_ascii_digit()));
    at.map_or(name, |(at, _)| &name[..at])
}

/// Threads that the kernel names by their number, or that take turns, under one name.
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
    fn numbers_do_not_tell_culprits_apart() {
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
        for pid in 2..20 {
            one.update(&context.actor(HOST, &thread(pid, &format!("x ({pid})"))));
        }
        one.update(&context.actor(HOST, &thread(15, "x (15)")));
        assert_eq!(one.pids, [12, 13, 14, 16, 17, 18, 19, 15]);
        assert_eq!(one.pid(), Some(15));
    }
}
