//! Names for the numbers in events: threads, interrupts, functions, idle states.

use crate::cpu::Doing;
use crate::event::softirq_name;
use crate::idle::IdleStates;
use latpath_bpf::Functions;
use std::collections::HashMap;

/// A thread with its latest name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Thread name.
    pub name: String,
    /// Process ID.
    pub tgid: u32,
}

/// The names stored with a record.
#[derive(Default)]
pub struct Names {
    threads: HashMap<u32, Thread>,
    irqs: HashMap<u32, String>,
    functions: Functions,
    idle: IdleStates,
}

impl Names {
    /// Creates a table with names of threads only.
    pub fn new(threads: impl IntoIterator<Item = (u32, Thread)>) -> Self {
        Self { threads: threads.into_iter().collect(), ..Self::default() }
    }

    /// Creates a table with all names of a record: threads, interrupts, functions, idle states.
    pub fn recorded_with(
        threads: impl IntoIterator<Item = (u32, Thread)>,
        irqs: impl IntoIterator<Item = (u32, String)>,
        functions: impl IntoIterator<Item = (u64, String)>,
        idle: IdleStates,
    ) -> Self {
        let (irqs, functions) = (irqs.into_iter().collect(), Functions::named(functions));
        Self { irqs, functions, idle, ..Self::new(threads) }
    }

    /// The thread with this ID, if known.
    pub fn thread(&self, pid: u32) -> Option<Thread> {
        self.threads.get(&pid).cloned()
    }

    /// IDs of the threads with this name.
    pub fn called(&self, name: &str) -> Vec<u32> {
        let called = self.threads.iter().filter(|(_, thread)| thread.name == name);
        let mut found: Vec<u32> = called.map(|(pid, _)| *pid).collect();
        found.sort_unstable();
        found
    }

    /// Display name of a thread, e.g. `rustc (18491)`.
    pub fn of_thread(&self, pid: u32) -> String {
        match self.thread(pid) {
            Some(thread) => format!("{} ({pid})", thread.name),
            None => format!("thread {pid}"),
        }
    }

    /// Name of the function at an address; the address if unknown.
    pub fn of_function(&self, address: u64) -> String {
        self.functions.at(address).map_or_else(|| format!("{address:#x}"), str::to_owned)
    }

    /// The driver's name of an idle state, if known.
    pub fn idle_state(&self, cpu: u32, state: u32) -> Option<&str> {
        self.idle.name(cpu, state)
    }

    /// Display name of an activity on this CPU, including the names of its idle states: `irq 25 virtio0`, `idle (C6)`.
    pub fn of_on(&self, doing: &Doing, cpu: u32) -> String {
        let Doing::Idle { state: Some(state) } = doing else { return self.of(doing) };
        self.idle_state(cpu, *state).map_or_else(|| self.of(doing), |name| format!("idle ({name})"))
    }

    /// Display name of an activity, e.g. `irq 25 virtio0`.
    pub fn of(&self, doing: &Doing) -> String {
        match doing {
            Doing::Thread(r) => {
                let mut text = self.of_thread(r.pid);
                if r.guest {
                    text += " in its guest";
                }
                if let Some(function) = r.work {
                    text += &format!(" at {}", self.of_function(function));
                }
                text
            }
            Doing::Idle { state: Some(state) } => format!("idle (state {state})"),
            Doing::Idle { state: None } => "idle".into(),
            Doing::Irq(n) => match self.irqs.get(n) {
                Some(name) => format!("irq {n} {name}"),
                None => format!("irq {n}"),
            },
            Doing::Softirq(vector) => match softirq_name(*vector) {
                Some(name) => format!("softirq {name}"),
                None => format!("softirq {vector}"),
            },
            Doing::Vector(vector) => vector.to_string(),
            Doing::Timer(function) => format!("timer {}", self.of_function(*function)),
            Doing::Nmi => "NMI".into(),
            Doing::Unknown => "unknown".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_threads_are_shown_by_number() {
        let names = Names::new([(5, Thread { name: "rustc".into(), tgid: 4 })]);
        assert_eq!(
            (names.of_thread(5), names.of_thread(u32::MAX - 1)),
            ("rustc (5)".into(), "thread 4294967294".into())
        );
        assert_eq!(names.called("rustc"), [5]);
        assert_eq!(names.of(&Doing::Softirq(3)), "softirq NET_RX");
    }

    #[test]
    fn an_idle_state_has_its_drivers_name_or_its_number() {
        let idle = IdleStates::named([(0, vec!["POLL".into(), "C1E".into()]), (4, vec!["WFI".into()])]);
        let names = Names::recorded_with([], [], [], idle);
        let said = |cpu, state| names.of_on(&Doing::Idle { state }, cpu);
        assert_eq!((said(3, Some(1)), said(3, Some(2))), ("idle (C1E)".into(), "idle (state 2)".into()));
        assert_eq!((said(4, Some(0)), said(4, None)), ("idle (WFI)".into(), "idle".into()));
        assert_eq!(names.of_on(&Doing::Nmi, 3), "NMI");
    }
}
