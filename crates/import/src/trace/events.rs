//! Converts the lines of a trace into events of the flight recorder.

use latpath_flight::{Class, Event, EventKind, Left, Sleep, Vector};
use latpath_model::{
    text::{cut, printable},
    Ns,
};
use latpath_tracefs::text::{number, Line, Switch, Task};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Maximum number of names of each kind.
const MAX_NAMES: usize = 1 << 15;
/// Maximum length at which an unreadable line is quoted in messages, bytes.
const SHOWN: usize = 60;
/// First number assigned to a function in place of its address, which traces do not contain.
const FIRST_FUNCTION: u64 = 1 << 40;

/// What a line reports about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A device passed the packet to the network stack.
    Received,
    /// The packet was passed to a device for transmission.
    Sent,
    /// A thread read the packet from a socket or a tap.
    Read,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketLine {
    pub t: Ns,
    pub cpu: u32,
    pub pid: u32,
    pub place: Place,
    /// Index of the device in `Reader::devices`; `None` if the packet was read.
    pub device: Option<usize>,
}

/// Result of parsing a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParsedLine {
    Event(Event),
    Packet(PacketLine),
    Nothing,
}

/// Which kinds of events occur in a trace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kinds {
    pub switches: bool,
    pub wakings: bool,
    pub irqs: bool,
    pub softirqs: bool,
    pub idle: bool,
    pub packets: bool,
}

/// Parses lines, and collects the names in them.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub threads: HashMap<u32, (String, Option<u32>)>,
    pub irqs: BTreeMap<u32, String>,
    functions: HashMap<String, u64>,
    pub devices: Vec<String>,
    pub kinds: Kinds,
    /// Number of unreadable `sched_switch` lines, and (`unread_switch`) the first of them.
    pub unread_switches: u64,
    pub unread_switch: String,
    /// The source files or buffers named in lines, up to `MAX_SOURCES`.
    pub sources: BTreeSet<String>,
    /// Whether some lines name no source.
    pub has_own_lines: bool,
}

/// Maximum number of source files or buffers that are distinguished in a text.
const MAX_SOURCES: usize = 8;

impl Reader {
    /// Names of functions, by the numbers assigned to them.
    pub fn functions(&self) -> BTreeMap<u64, String> {
        self.functions.iter().map(|(name, number)| (*number, name.clone())).collect()
    }

    /// Parses a line. `t`: its time on the run's timeline.
    pub fn read(&mut self, line: &Line<'_>, t: Ns) -> ParsedLine {
        match line.source {
            Some(source) if !self.sources.contains(source) && self.sources.len() < MAX_SOURCES => {
                self.sources.insert(printable(source));
            }
            Some(_) => {}
            None => self.has_own_lines = true,
        }
        self.name(line.pid, line.name, line.process);
        if let Some(packet) = self.packet(line, t) {
            self.kinds.packets = true;
            return ParsedLine::Packet(packet);
        }
        match self.what(line) {
            Some(what) => ParsedLine::Event(Event { t, pid: line.pid, what }),
            None => ParsedLine::Nothing,
        }
    }

    fn name(&mut self, pid: u32, name: &str, process: Option<u32>) {
        // `<idle>`, or `<...>` if the trace has lost the name.
        if pid == 0 || name.is_empty() || name.starts_with('<') {
            return;
        }
        let has_room = self.threads.len() < MAX_NAMES;
        match self.threads.get_mut(&pid) {
            Some((known, of)) => {
                if known != name {
                    *known = printable(name);
                }
                *of = process.or(*of);
            }
            None if has_room => drop(self.threads.insert(pid, (printable(name), process))),
            None => {}
        }
    }

    fn function(&mut self, name: &str) -> Option<u64> {
        let name = name.split_whitespace().next()?;
        let next = FIRST_FUNCTION + self.functions.len() as u64;
        if let Some(known) = self.functions.get(name) {
            return Some(*known);
        }
        (self.functions.len() < MAX_NAMES).then(|| {
            self.functions.insert(printable(name), next);
            next
        })
    }

    fn device(&mut self, args: &str) -> Option<usize> {
        let name = args.split(' ').find_map(|word| word.strip_prefix("dev="))?;
        if let Some(known) = self.devices.iter().position(|device| device == name) {
            return Some(known);
        }
        (self.devices.len() < 1024).then(|| {
            self.devices.push(name.to_owned());
            self.devices.len() - 1
        })
    }

    fn packet(&mut self, line: &Line<'_>, t: Ns) -> Option<PacketLine> {
        let place = match line.event {
            "netif_receive_skb" | "netif_receive_skb_entry" | "napi_gro_receive_entry" => Place::Received,
            "net_dev_start_xmit" => Place::Sent,
            "skb_copy_datagram_iovec" => Place::Read,
            _ => return None,
        };
        let device = match place {
            Place::Read => None,
            _ => Some(self.device(line.args)?),
        };
        Some(PacketLine { t, cpu: line.cpu, pid: line.pid, place, device })
    }

    fn task(&mut self, task: &Task<'_>) -> (u32, Class) {
        self.name(task.pid, task.name, None);
        (task.pid, class(task.prio))
    }

    fn what(&mut self, line: &Line<'_>) -> Option<EventKind> {
        let args = line.args;
        Some(match line.event {
            "sched_switch" => {
                let Some(switch) = Switch::read(args) else {
                    if self.unread_switches == 0 {
                        self.unread_switch = printable(cut(args, SHOWN));
                    }
                    self.unread_switches += 1;
                    return None;
                };
                self.kinds.switches = true;
                let (_, prev) = self.task(&switch.prev);
                let (next, next_class) = self.task(&switch.next);
                EventKind::Switch { next, left: left(switch.state), prev, next_class }
            }
            "sched_waking" => {
                self.kinds.wakings = true;
                let (pid, class) = self.task(&Task::woken(args)?);
                EventKind::Waking { pid, cpu: target(args)?, class }
            }
            "sched_wakeup" | "sched_wakeup_new" => {
                let (pid, class) = self.task(&Task::woken(args)?);
                EventKind::Wakeup { pid, cpu: target(args)?, class, throttled: false }
            }
            "sched_migrate_task" => {
                let (pid, _) = self.task(&Task::woken(args)?);
                EventKind::Migrate { pid, from: value(args, "orig_cpu=")?, to: value(args, "dest_cpu=")? }
            }
            "irq_handler_entry" => {
                self.kinds.irqs = true;
                let irq = value(args, "irq=")?;
                if let (Some((_, name)), true) = (args.split_once("name="), self.irqs.len() < MAX_NAMES) {
                    self.irqs.entry(irq).or_insert_with(|| printable(name.trim()));
                }
                EventKind::IrqEntry(irq)
            }
            "irq_handler_exit" => EventKind::IrqExit(value(args, "irq=")?),
            "softirq_raise" => EventKind::SoftirqRaise(value(args, "vec=")?),
            "softirq_entry" => {
                self.kinds.softirqs = true;
                EventKind::SoftirqEntry(value(args, "vec=")?)
            }
            "softirq_exit" => EventKind::SoftirqExit(value(args, "vec=")?),
            "cpu_idle" => {
                self.kinds.idle = true;
                // When a CPU leaves idle, the kernel reports -1 as its state, printed as unsigned.
                EventKind::Idle(Some(value(args, "state=")?).filter(|state| *state != u32::MAX))
            }
            "timer_expire_entry" => EventKind::TimerEntry(self.function(args.split_once("function=")?.1)?),
            "timer_expire_exit" => EventKind::TimerExit,
            "hrtimer_expire_entry" => EventKind::HrtimerEntry(self.function(args.split_once("function=")?.1)?),
            "hrtimer_expire_exit" => EventKind::HrtimerExit,
            "workqueue_execute_start" => {
                let (_, name) = args.split_once("function=").or_else(|| args.split_once("function "))?;
                EventKind::WorkStart(self.function(name)?)
            }
            "workqueue_execute_end" => EventKind::WorkEnd,
            "kvm_entry" => EventKind::KvmEntry { vcpu: vcpu(args) },
            "kvm_exit" => EventKind::KvmExit { vcpu: vcpu(args), reason: None, isa: 0 },
            event => return vector(event),
        })
    }
}

/// Scheduling class for a priority. Traces do not distinguish FIFO from RR.
fn class(prio: Option<i32>) -> Class {
    let prio = prio.and_then(|prio| i16::try_from(prio).ok()).unwrap_or(120);
    let policy = match prio {
        ..0 => 6,
        0..100 => 1,
        _ => 0,
    };
    Class { prio, policy }
}

/// How a thread left its CPU, from the letters of its state.
fn left(state: &str) -> Left {
    if let Some(rest) = state.strip_prefix('R') {
        // A plus sign marks preemption. Traces without it do not distinguish preempted threads from those that yield;
        // they count as preempted.
        return Left::Ready { preempted: rest.starts_with('+') || rest.is_empty(), throttled: false };
    }
    Left::Asleep(match state.chars().next() {
        Some('S') => Sleep::Interruptible,
        Some('D') => Sleep::Blocked,
        Some('I') => Sleep::Idle,
        Some('T') => Sleep::Stopped,
        Some('t') => Sleep::Traced,
        Some('P') => Sleep::Parked,
        Some('X' | 'Z') => Sleep::Ended,
        _ => Sleep::Unknown,
    })
}

/// The decimal number that follows a word.
fn value(args: &str, word: &str) -> Option<u32> {
    let (_, rest) = args.split_once(word)?;
    number(rest.split(|c: char| !c.is_ascii_digit()).next()?)
}

/// The target CPU of a wakeup.
fn target(args: &str) -> Option<u32> {
    value(args, "target_cpu=").or_else(|| value(args, "CPU:"))
}

fn vcpu(args: &str) -> Option<u32> {
    args.strip_prefix("vcpu ").and_then(|rest| number(rest.split(|c: char| !c.is_ascii_digit()).next()?))
}

/// Parses the tracepoints of x86 interrupts that belong to no device.
fn vector(event: &str) -> Option<EventKind> {
    let (name, is_entry) = match event.strip_suffix("_entry") {
        Some(name) => (name, true),
        None => (event.strip_suffix("_exit")?, false),
    };
    let vector = match name {
        "local_timer" => Vector::LocalTimer,
        "reschedule" => Vector::Reschedule,
        "call_function" => Vector::CallFunction,
        "call_function_single" => Vector::CallFunctionSingle,
        "irq_work" => Vector::IrqWork,
        "x86_platform_ipi" => Vector::PlatformIpi,
        "thermal_apic" => Vector::Thermal,
        _ => return None,
    };
    Some(if is_entry { EventKind::VectorEntry(vector) } else { EventKind::VectorExit(vector) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(reader: &mut Reader, text: &str) -> ParsedLine {
        reader.read(&Line::read(text).unwrap_or_else(|| panic!("{text}")), 7)
    }

    #[test]
    fn lines_of_all_three_tools_are_the_same_event() {
        let class = |prio, policy| Class { prio, policy };
        let switch = EventKind::Switch {
            next: 0,
            left: Left::Asleep(Sleep::Interruptible),
            prev: class(19, 1),
            next_class: class(120, 0),
        };
        let waking = EventKind::Waking { pid: 77, cpu: 1, class: class(-1, 6) };
        for (text, what) in [
            ("  relay-77  [001]  5.000001: sched_switch: relay:77 [19] S ==> swapper/1:0 [120]", switch),
            (
                "  relay-77  [001] d..2.  5.000001: sched_switch: prev_comm=relay prev_pid=77 prev_prio=19 prev_state=S ==> \
                 next_comm=swapper/1 next_pid=0 next_prio=120",
                switch,
            ),
            (
                "relay 70/77  [001]  5.000001:  sched:sched_switch: prev_comm=relay prev_pid=77 prev_prio=19 prev_state=S ==> \
                 next_comm=swapper/1 next_pid=0 next_prio=120",
                switch,
            ),
            ("  hog-9  [000]  5.000001: sched_waking: comm=relay pid=77 prio=-1 target_cpu=001", waking),
            ("  hog-9  [000]  5.000001: sched_waking: relay:77 [-1] CPU:001", waking),
            ("  hog-9  [000]  5.000001: irq_handler_entry: irq=24 name=virtio3-input.0", EventKind::IrqEntry(24)),
            ("  hog-9  [000]  5.000001: softirq_exit: vec=3 [action=NET_RX]", EventKind::SoftirqExit(3)),
            ("  <idle>-0  [000]  5.000001: cpu_idle: state=4294967295 cpu_id=0", EventKind::Idle(None)),
            ("  <idle>-0  [000]  5.000001: cpu_idle: state=2 cpu_id=0", EventKind::Idle(Some(2))),
            ("  hog-9  [000]  5.000001: local_timer_entry: vector=236", EventKind::VectorEntry(Vector::LocalTimer)),
            (
                "  hog-9  [000]  5.000001: sched_migrate_task: comm=relay pid=77 prio=19 orig_cpu=1 dest_cpu=0",
                EventKind::Migrate { pid: 77, from: 1, to: 0 },
            ),
            ("  CPU 0/KVM-9  [000]  5.000001: kvm_entry: vcpu 0, rip 0x1", EventKind::KvmEntry { vcpu: Some(0) }),
            ("  hog-9  [000]  5.000001: hrtimer_expire_entry: hrtimer=0x1 function=tick_nohz_handler now=5", EventKind::HrtimerEntry(FIRST_FUNCTION)),
        ] {
            let mut reader = Reader::default();
            let ParsedLine::Event(event) = read(&mut reader, text) else { panic!("{text}") };
            assert_eq!((event.what, event.t), (what, 7), "{text}");
        }
    }

    #[test]
    fn names_of_threads_interrupts_and_devices_are_learnt() {
        let mut reader = Reader::default();
        read(&mut reader, "relay 70/77  [001]  5.000001:  irq:irq_handler_entry: irq=24 name=eth0-rx 0");
        let line = "  <...>-9  [000]  5.000001: netif_receive_skb: dev=eth0 skbaddr=0x1 len=120";
        let ParsedLine::Packet(packet) = read(&mut reader, line) else { panic!("{line}") };
        assert_eq!((packet.place, packet.cpu, packet.pid, packet.device), (Place::Received, 0, 9, Some(0)));
        assert_eq!(reader.threads.get(&77), Some(&("relay".to_owned(), Some(70))));
        assert_eq!((reader.threads.get(&9), reader.irqs[&24].as_str()), (None, "eth0-rx 0"));
        let line = "  relay-77  [000]  5.000001: skb_copy_datagram_iovec: skbaddr=0x1 len=100";
        assert!(matches!(
            read(&mut reader, line),
            ParsedLine::Packet(PacketLine { place: Place::Read, device: None, .. })
        ));
        assert_eq!(read(&mut reader, "  relay-77  [000]  5.000001: sched_switch: nonsense"), ParsedLine::Nothing);
    }
}
