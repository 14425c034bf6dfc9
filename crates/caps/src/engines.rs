//! The commands with requirements on the machine; each is tried by starting its own programs.

use crate::{Command, Lack, Machine, Works};
use latpath_bpf::Missing;
use latpath_flight::Recorder;
use latpath_observe::INSTRUMENTS;
use latpath_path::With;
use latpath_probe::{Options, Probe};
use nix::sys::socket::{socket, AddressFamily, SockFlag, SockType};
use std::fmt::Display;

/// Buffer size of a trial recorder or probe, bytes; its records are never read.
const BYTES_PER_CPU: usize = 1 << 16;
/// Kernel options required by programs that attach to functions.
const FUNCTIONS: [&str; 2] = ["FUNCTION_TRACER", "DYNAMIC_FTRACE_WITH_DIRECT_CALLS"];
/// Kernel options required by all tracing.
const TRACING: [&str; 3] = ["BPF_SYSCALL", "DEBUG_INFO_BTF", "PERF_EVENTS"];

pub(crate) struct Engine {
    commands: &'static [&'static str],
    /// Title for users; `None` for the names of the commands.
    title: Option<&'static str>,
    /// Finds missing parts; an error if the commands do not work at all.
    lacks: fn(&Machine) -> Result<Vec<Lack>, Lack>,
    /// What the commands cannot observe on any machine, although some limits need it.
    not_observable: &'static [&'static str],
}

const fn engine(commands: &'static [&'static str], lacks: fn(&Machine) -> Result<Vec<Lack>, Lack>) -> Engine {
    Engine { commands, title: None, lacks, not_observable: &[] }
}

/// No hook shows that a frame was placed in a mapped ring: `tpacket_rcv` begins before the socket's filter, before it
/// is known whether the ring has room, and in a softirq, where the reader's thread is unknown. An unobserved reader
/// must not satisfy a limit.
const MAPPED_RINGS: &str =
    "applications that read through a mapped ring (PACKET_RX_RING); limits on total and lost of what they read cannot be judged";

pub(crate) static ALL: [Engine; 9] = [
    Engine { not_observable: &[MAPPED_RINGS], ..engine(&["record", "live", "segments", "agent"], points) },
    // `explain` itself has no requirements; recording the causes that it shows does.
    Engine { title: Some("causes in record and live, which explain shows"), ..engine(&["explain"], causes) },
    engine(&["path"], path),
    engine(&["exits"], |machine| instrument(machine, "exits")),
    engine(&["queues"], |machine| instrument(machine, "queues")),
    engine(&["ladder"], |machine| instrument(machine, "ladder")),
    engine(&["profile"], |machine| instrument(machine, "profile")),
    engine(&["study"], study),
    engine(&["ping", "publish", "subscribe", "streams"], frames),
];

impl Engine {
    pub fn commands(&self) -> &'static [&'static str] {
        self.commands
    }

    pub fn try_out(&self, machine: &Machine) -> Command {
        let (works, lacks) = match (self.lacks)(machine) {
            Ok(lacks) if lacks.is_empty() => (Works::Yes, lacks),
            Ok(lacks) => (Works::Partly, lacks),
            Err(lack) => (Works::No, vec![lack]),
        };
        let owned = |all: &[&str]| all.iter().map(ToString::to_string).collect();
        let title = self.title.map_or_else(|| self.commands.join(", "), Into::into);
        let (commands, not_observable) = (owned(self.commands), owned(self.not_observable));
        Command { commands, title, works, lacks, not_observable }
    }
}

/// Converts the error of an engine that does not work at all to a [`Lack`].
fn nothing(machine: &Machine, options: &[&str]) -> impl Fn(&dyn Display) -> Lack {
    let remedy = machine.remedy(options);
    move |error| Lack { what: error.to_string(), lost: String::new(), remedy: remedy.clone() }
}

/// Describes the missing hooks of a table of programs; hooks that are missing for the same reason are combined.
fn together(machine: &Machine, missing: &[Missing]) -> Vec<Lack> {
    let mut groups: Vec<Vec<&Missing>> = Vec::new();
    for one in missing {
        let same = |group: &&mut Vec<&Missing>| (group[0].is_function, &group[0].why) == (one.is_function, &one.why);
        match groups.iter_mut().find(same) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    let lack = |group: Vec<&Missing>| {
        let (places, mut lost): (Vec<&str>, Vec<&str>) = group.iter().map(|one| (one.tracepoint, one.lost)).unzip();
        lost.dedup();
        let kind = if group[0].is_function { "function" } else { "tracepoint" };
        let plural = if places.len() > 1 { "s" } else { "" };
        Lack {
            what: format!("{kind}{plural} {}: {}", places.join(", "), group[0].why),
            lost: lost.join("; "),
            remedy: group[0].is_function.then(|| machine.remedy(&FUNCTIONS)).flatten(),
        }
    };
    groups.into_iter().map(lack).collect()
}

fn points(machine: &Machine) -> Result<Vec<Lack>, Lack> {
    let nobodys = "svid:latpath-caps".parse().expect("a stream");
    let probe = Probe::attach(Options { ring_bytes: BYTES_PER_CPU, ..Options::new("host", vec![nobodys]) });
    let probe = probe.map_err(|e| nothing(machine, &TRACING)(&e))?;
    Ok(together(machine, probe.missing()))
}

fn causes(machine: &Machine) -> Result<Vec<Lack>, Lack> {
    let recorder = Recorder::start(BYTES_PER_CPU).map_err(|e| nothing(machine, &TRACING)(&e))?;
    let mut lacks = together(machine, &recorder.missing());
    lacks.extend(machine.without_module("kvm", "KVM", "when a vCPU was in its guest (no VM runs by KVM)"));
    Ok(lacks)
}

/// Whether this machine has KVM.
fn kvm(machine: &Machine) -> Result<(), Lack> {
    machine.without_module("kvm", "KVM", "").map_or(Ok(()), Err)
}

/// Missing parts of the instrument with this name; an error if it does not work at all.
fn instrument(machine: &Machine, name: &str) -> Result<Vec<Lack>, Lack> {
    let entry = latpath_observe::instrument(name).expect("an instrument of the table");
    let needs = entry.needs;
    if needs.kvm {
        kvm(machine)?;
    }
    let options: &[&str] = if needs.functions { &FUNCTIONS } else { &TRACING };
    let missing = (entry.try_out)().map_err(|e| nothing(machine, options)(&e))?;
    let mut lacks = together(machine, &missing);
    if needs.debugfs && !machine.root.path("sys/kernel/debug/kvm").exists() {
        lacks.push(Lack {
            what: "debugfs is not mounted".into(),
            lost: "KVM's own counters, to check against".into(),
            remedy: machine.remedy(&["DEBUG_FS"]).or(Some("mount -t debugfs debugfs /sys/kernel/debug".into())),
        });
    }
    if needs.vhost {
        lacks.extend(machine.without_module("vhost_net", "VHOST_NET", "queues that vhost serves (no VM has one)"));
    }
    Ok(lacks)
}

/// Missing parts of a study's instruments; an error if KVM is missing or none of them works.
fn study(machine: &Machine) -> Result<Vec<Lack>, Lack> {
    kvm(machine)?;
    let mut lacks: Vec<Lack> = Vec::new();
    let mut failed = Vec::new();
    for entry in &INSTRUMENTS {
        match instrument(machine, entry.name) {
            Ok(of_it) => lacks.extend(of_it),
            Err(lack) => failed.push(Lack { lost: format!("all that {} measures", entry.name), ..lack }),
        }
    }
    if failed.len() == INSTRUMENTS.len() {
        return Err(Lack { lost: String::new(), ..failed.swap_remove(0) });
    }
    lacks.extend(failed);
    let mut seen = Vec::new();
    lacks.retain(|lack| {
        let is_new = !seen.contains(lack);
        seen.push(lack.clone());
        is_new
    });
    Ok(lacks)
}

fn path(machine: &Machine) -> Result<Vec<Lack>, Lack> {
    let with = latpath_path::best().map_err(|e| nothing(machine, &TRACING)(&e))?;
    let lack = |what: &str, lost: &str, option| {
        let (what, lost, remedy) = (what.into(), lost.into(), machine.remedy(&[option]));
        Ok(vec![Lack { what, lost, remedy }])
    };
    match with {
        With::KprobeMulti => Ok(Vec::new()),
        With::Kprobes => lack("no kprobe-multi", "some of the functions that packets pass", "FPROBE"),
        With::Tracepoints => lack("no kprobes", "functions between tracepoints", "KPROBES"),
    }
}

fn frames(_: &Machine) -> Result<Vec<Lack>, Lack> {
    let opened = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None);
    let why = |e: nix::Error| Lack {
        what: format!("no socket for frames: {}", e.desc()),
        lost: String::new(),
        remedy: Some("root, or CAP_NET_RAW".into()),
    };
    opened.map(|_| Vec::new()).map_err(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_linux::proc::Root;

    #[test]
    fn what_is_missing_for_one_reason_is_one() {
        let missing = |tracepoint, lost, is_function| Missing {
            tracepoint,
            is_function,
            lost,
            why: "this kernel does not have it".into(),
        };
        let all = [("a", "x", false), ("b", "y", true), ("c", "x", false), ("d", "z", false)];
        let all = all.map(|(tracepoint, lost, is_function)| missing(tracepoint, lost, is_function));
        let machine = Machine { root: Root::of("/nowhere".as_ref()), config: None };
        let lacks = together(&machine, &all);
        assert_eq!(lacks[0].what, "tracepoints a, c, d: this kernel does not have it");
        assert_eq!((lacks[0].lost.as_str(), lacks[1].lost.as_str()), ("x; z", "y"));
        assert_eq!((lacks.len(), lacks[0].remedy.is_some(), lacks[1].remedy.is_some()), (2, false, true));
    }

    #[test]
    fn what_no_machine_shows_does_not_make_a_command_work_in_part() {
        let machine = Machine { root: Root::of("/nowhere".as_ref()), config: None };
        let tried = Engine { not_observable: &["x"], ..engine(&["a"], |_| Ok(Vec::new())) }.try_out(&machine);
        assert_eq!((tried.works, tried.not_observable), (Works::Yes, vec!["x".into()]));
        let rings = |engine: &Engine| engine.not_observable.iter().any(|what| what.contains("PACKET_RX_RING"));
        assert!(ALL.iter().all(|engine| engine.commands.contains(&"record") == rings(engine)));
    }

    #[test]
    fn each_instrument_is_tried() {
        let known: Vec<&str> = crate::Caps::known().collect();
        let left_out: Vec<_> =
            INSTRUMENTS.iter().map(|entry| entry.name).filter(|name| !known.contains(name)).collect();
        assert!(left_out.is_empty(), "ALL lacks {left_out:?}");
    }

    #[test]
    fn each_command_is_tried_once() {
        let mut all: Vec<&str> = crate::Caps::known().collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
