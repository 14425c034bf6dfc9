//! Parses lines into events.

use crate::event::{Device, Direction, Doorbell, Event, EventKind, Line as Interrupt};
use crate::ladder::Ladder;
use crate::threads::{is_worker, Identity};
use latpath_model::text::printable;
use latpath_model::Ns;
use latpath_tracefs::text::{number, Line, Switch, Task};
use std::collections::BTreeMap;

/// Name prefixes of taps created by libvirt or the usual scripts.
const TAPS: [&str; 4] = ["tap", "vnet", "tun", "macvtap"];
/// Maximum number of devices.
const DEVICES: usize = 256;
/// The tap in events of function probes, which do not name it.
const UNNAMED: Device = Device { ifindex: 0, netns: 0 };

/// Parses lines into events.
pub(super) struct Parser {
    pub ladder: Ladder,
    pub events: u64,
    pub has_exits: bool,
    pub has_switches: bool,
    has_wakings: bool,
    has_packets: bool,
    /// Whether probes of tun's functions report packets, by direction; the stack's events are then ignored to avoid
    /// counting packets twice.
    by_probe: [bool; 2],
    devices: BTreeMap<String, Device>,
    last: Ns,
}

impl Parser {
    pub fn new(ladder: Ladder) -> Self {
        Self {
            ladder,
            events: 0,
            has_exits: false,
            has_switches: false,
            has_wakings: false,
            has_packets: false,
            by_probe: [false; 2],
            devices: BTreeMap::new(),
            last: 0,
        }
    }

    /// Notes for the reader.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.has_packets {
            notes.push("no packets: record net:netif_receive_skb, net:net_dev_start_xmit and skb:skb_copy_datagram_iovec, or a probe of tun_get_user".into());
        }
        if !self.has_wakings {
            notes.push("no sched_waking events: when servers were woken is not known".into());
        }
        notes
    }

    pub fn lost(&mut self, events: u64) {
        let what = EventKind::Lost(events);
        self.ladder.push(&Event { t: self.last, cpu: 0, pid: 0, what });
    }

    /// Processes a line's event, if the ladder uses it.
    pub fn take(&mut self, line: &Line<'_>) {
        self.events += 1;
        self.last = self.last.max(line.t);
        self.identify(line.pid, line.name, line.process);
        if let Some(what) = self.what(line) {
            self.ladder.push(&Event { t: line.t, cpu: line.cpu, pid: line.pid, what });
        }
    }

    fn identify(&mut self, pid: u32, name: &str, process: Option<u32>) {
        if pid != 0 && !name.starts_with('<') && !self.ladder.is_identified(pid) {
            let name = printable(name);
            let is_vhost = is_worker(&name);
            self.ladder.identify(pid, Identity { name, process, is_vhost });
        }
    }

    fn what(&mut self, line: &Line<'_>) -> Option<EventKind> {
        let args = line.args;
        Some(match line.event {
            "sched_switch" => self.switch(args)?,
            "sched_waking" => {
                let woken = Task::woken(args)?;
                self.has_wakings = true;
                self.identify(woken.pid, woken.name, None);
                EventKind::Waking { pid: woken.pid }
            }
            "kvm_exit" => {
                self.has_exits = true;
                EventKind::Exit(self.ladder.reason(reason(args)))
            }
            "kvm_entry" => EventKind::Entry,
            "kvm_mmio" | "kvm_pio" | "kvm_fast_mmio" => register(line.event, args)?,
            "kvm_irq_line" => raised(after(args, "level: ")?, Interrupt::Wire(after(args, "num: ")?))?,
            "kvm_set_irq" => raised(after(args, "level ")?, Interrupt::Wire(after(args, "gsi ")?))?,
            "kvm_msi_set_irq" => {
                EventKind::Raise(Interrupt::Message(after(args, "vec ")? | hex_or(args, "dst ")?.checked_shl(8)?))
            }
            "kvm_apic_accept_irq" => EventKind::Accept { vector: narrow(after(args, "vec ")?)? },
            "kvm_apicv_accept_irq" => EventKind::Posted { vector: narrow(after(args, "vec ")?)? },
            "kvm_inj_virq" => EventKind::Inject { vector: narrow(injected(args)?)? },
            "kvm_eoi" | "kvm_pv_eoi" => EventKind::Eoi { vector: narrow(after(args, "vector ")?)? },
            _ => return self.packet(line),
        })
    }

    fn switch(&mut self, args: &str) -> Option<EventKind> {
        self.has_switches = true;
        let Switch { state, next, .. } = Switch::read(args)?;
        self.identify(next.pid, next.name, None);
        Some(EventKind::Switch { next: next.pid, asleep: !state.starts_with('R') })
    }

    fn packet(&mut self, line: &Line<'_>) -> Option<EventKind> {
        let (from, to) = (Direction::FromGuest, Direction::ToGuest);
        let what = match line.event {
            name if name.contains("tun_get_user") => {
                self.probed(from, EventKind::Packet { direction: from, device: None })
            }
            name if name.contains("tun_do_read") || name.contains("tun_put_user") => {
                self.probed(to, EventKind::Packet { direction: to, device: None })
            }
            name if name.contains("tun_net_xmit") => self.probed(to, EventKind::Arrive(UNNAMED)),
            "netif_receive_skb" if !self.by_probe[from as usize] => {
                EventKind::Packet { direction: from, device: Some(self.tap(line.args)?) }
            }
            "net_dev_start_xmit" if !self.by_probe[to as usize] => EventKind::Arrive(self.tap(line.args)?),
            "skb_copy_datagram_iovec" if !self.by_probe[to as usize] && serves(line.name) => {
                EventKind::Packet { direction: to, device: None }
            }
            _ => return None,
        };
        self.has_packets = true;
        Some(what)
    }

    fn probed(&mut self, direction: Direction, what: EventKind) -> EventKind {
        self.by_probe[direction as usize] = true;
        what
    }

    /// The device of `dev=NAME …`, if it is a tap.
    fn tap(&mut self, args: &str) -> Option<Device> {
        let name = args.split(' ').find_map(|word| word.strip_prefix("dev="))?;
        if !TAPS.iter().any(|tap| name.starts_with(tap)) {
            return None;
        }
        if let Some(device) = self.devices.get(name) {
            return Some(*device);
        }
        if self.devices.len() == DEVICES {
            return None;
        }
        let device = Device { ifindex: self.devices.len() as u32 + 1, netns: 0 };
        self.devices.insert(name.to_owned(), device);
        self.ladder.name_device(device, name);
        Some(device)
    }
}

/// Whether a thread with this name carries packets for guests.
fn serves(name: &str) -> bool {
    is_worker(name) || name.contains("qemu") || name.starts_with("IO ")
}

/// The exit reason in arm64's `TRAP: HSR_EC: 0x0024 (DABT_LOW), PC: …` and `IRQ: …`, or in x86's `reason NAME …`.
fn reason(args: &str) -> &str {
    if let Some((before, rest)) = args.split_once("HSR_EC:") {
        let is_trap = before.trim_end().trim_end_matches(':').ends_with("TRAP");
        let class = rest.split_once('(').and_then(|(_, rest)| rest.split_once(')')).map(|(class, _)| class);
        let code = before.trim_end().trim_end_matches(':').rsplit(['>', ' ']).next().unwrap_or("?");
        return class.filter(|_| is_trap).unwrap_or(code);
    }
    let named = args.split_once("reason ").map(|(_, rest)| rest.split(' ').next().unwrap_or("?"));
    named.filter(|name| name.len() <= 32).unwrap_or("?")
}

/// A read or write of a device's register.
fn register(event: &str, args: &str) -> Option<EventKind> {
    let doorbell = |is_port, address, value| EventKind::Write(Doorbell { is_port, address, value });
    Some(match event {
        "kvm_fast_mmio" => doorbell(false, hex_or(args, "gpa ")?, 0),
        "kvm_pio" if args.starts_with("pio_write") => {
            doorbell(true, hex_or(args, "at ")?, hex_or(args, "val ").unwrap_or(0))
        }
        "kvm_mmio" if args.starts_with("mmio write") => {
            doorbell(false, hex_or(args, "gpa ")?, hex_or(args, "val ").unwrap_or(0))
        }
        _ if args.contains("read") => EventKind::Read,
        _ => return None,
    })
}

fn raised(level: u64, line: Interrupt) -> Option<EventKind> {
    (level != 0).then_some(EventKind::Raise(line))
}

/// The vector in arguments such as `IRQ 0x25` or `irq 37`.
fn injected(args: &str) -> Option<u64> {
    let (_, vector) = args.split_once(' ')?;
    let vector = vector.split(' ').next()?;
    match vector.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => number(vector),
    }
}

/// The decimal number after a word.
fn after(args: &str, word: &str) -> Option<u64> {
    let (_, rest) = args.split_once(word)?;
    number(rest.split(|c: char| !c.is_ascii_digit()).next()?)
}

/// The hexadecimal number after a word, with or without 0x.
fn hex_or(args: &str, word: &str) -> Option<u64> {
    let (_, rest) = args.split_once(word)?;
    let rest = rest.strip_prefix("0x").unwrap_or(rest);
    let digits = rest.split(|c: char| !c.is_ascii_hexdigit()).next()?;
    u64::from_str_radix(digits, 16).ok()
}

fn narrow(number: u64) -> Option<u32> {
    u32::try_from(number).ok()
}
