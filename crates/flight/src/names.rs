//! Names for what the events give as numbers: threads, interrupts, functions, idle states.

use crate::cpu::Doing;
use crate::event::softirq_name;
use crate::idle::IdleStates;
use latpath_bpf::Functions;
use latpath_model::text::printable;
use std::collections::HashMap;
use std::fs;

/// A thread as it was called last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its name.
    pub name: String,
    /// Its process.
    pub tgid: u32,
}

/// Names that came with a record.
#[derive(Default)]
pub struct Names {
    threads: HashMap<u32, Thread>,
    irqs: HashMap<u32, String>,
    functions: Functions,
    idle: IdleStates,
}

impl Names {
    /// Names of threads alone.
    pub fn new(threads: impl IntoIterator<Item = (u32, Thread)>) -> Self {
        Self { threads: threads.into_iter().collect(), ..Self::default() }
    }

    /// All names of a record.
    pub fn recorded_with(
        threads: impl IntoIterator<Item = (u32, Thread)>,
        irqs: impl IntoIterator<Item = (u32, String)>,
        functions: impl IntoIterator<Item = (u64, String)>,
        idle: IdleStates,
    ) -> Self {
        let (irqs, functions) = (irqs.into_iter().collect(), Functions::named(functions));
        Self { irqs, functions, idle, ..Self::new(threads) }
    }

    /// What is known of a thread.
    pub fn thread(&self, pid: u32) -> Option<Thread> {
        self.threads.get(&pid).cloned()
    }

    /// Threads of this name.
    pub fn called(&self, name: &str) -> Vec<u32> {
        let called = self.threads.iter().filter(|(_, thread)| thread.name == name);
        let mut found: Vec<u32> = called.map(|(pid, _)| *pid).collect();
        found.sort_unstable();
        found
    }

    /// As it is shown: `rustc (18491)`.
    pub fn of_thread(&self, pid: u32) -> String {
        match self.thread(pid) {
            Some(thread) => format!("{} ({pid})", thread.name),
            None => format!("thread {pid}"),
        }
    }

    /// The function that begins at an address; the address where that is not known.
    pub fn of_function(&self, address: u64) -> String {
        self.functions.at(address).map_or_else(|| format!("{address:#x}"), str::to_owned)
    }

    /// What a CPU's driver calls an idle state, where that is known.
    pub fn idle_state(&self, cpu: u32, state: u32) -> Option<&str> {
        self.idle.name(cpu, state)
    }

    /// As it is shown: `irq 25 virtio0`; on this CPU, by which states are named: `idle (C6)`.
    pub fn of_on(&self, doing: &Doing, cpu: u32) -> String {
        let Doing::Idle { state: Some(state) } = doing else { return self.of(doing) };
        self.idle_state(cpu, *state).map_or_else(|| self.of(doing), |name| format!("idle ({name})"))
    }

    /// As it is shown: `irq 25 virtio0`.
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

pub(crate) fn irqs_now() -> HashMap<u32, String> {
    irqs(&fs::read_to_string("/proc/interrupts").unwrap_or_default())
}

/// Names of interrupts, from /proc/interrupts: behind the counts of each CPU stand the chip, the kind and the names.
fn irqs(text: &str) -> HashMap<u32, String> {
    let mut lines = text.lines();
    let cpus = lines.next().map_or(0, |head| head.split_whitespace().count());
    lines
        .filter_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let number = number.trim().parse().ok()?;
            let words: Vec<&str> = rest.split_whitespace().skip(cpus).collect();
            // Chip and hardware number; on x86 also the trigger (`2-edge`), on others `Level`.
            let names = words.iter().skip(1).skip_while(|w| is_trigger(w));
            let name = names.copied().collect::<Vec<_>>().join(" ");
            (!name.is_empty()).then_some((number, printable(&name)))
        })
        .collect()
}

fn is_trigger(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_digit())
        || ["edge", "level", "fasteoi", "Edge", "Level"].iter().any(|kind| {
            word.strip_suffix(kind)
                .is_some_and(|n| n.is_empty() || n.trim_end_matches('-').chars().all(|c| c.is_ascii_digit()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_have_their_devices_names() {
        let text = "           CPU0       CPU1       \n  4:          0       1234  IR-IO-APIC    4-edge      ttyS0\n \
                    25:   12   3   PCI-MSIX-0000:00:03.0   1-edge      virtio0-input.0\n \
                    26:   12   3   GICv3  27 Level     arch_timer\n 9: 1 2 IO-APIC 9-fasteoi acpi, other\nNMI: 1 2 Non-maskable interrupts\n 30: 1";
        let irqs = irqs(text);
        assert_eq!(irqs[&4], "ttyS0");
        assert_eq!(irqs[&25], "virtio0-input.0");
        assert_eq!(irqs[&26], "arch_timer");
        assert_eq!(irqs[&9], "acpi, other");
        assert_eq!(irqs.len(), 4);
    }

    #[test]
    fn who_is_not_known_is_shown_by_number() {
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
