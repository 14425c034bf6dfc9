//! The commands that need something of the machine, each tried out by what it starts itself.

use crate::{Command, Lack, Machine, Works};
use latpath_bpf::Missing;
use latpath_flight::{Recorder, Scope};
use latpath_path::With;
use latpath_probe::{Options, Probe};
use nix::sys::socket::{socket, AddressFamily, SockFlag, SockType};
use std::fmt::Display;

/// Memory of a flight recorder that records nothing that anybody reads.
const BYTES_PER_CPU: usize = 1 << 16;
/// What programs at functions need.
const FUNCTIONS: [&str; 2] = ["FUNCTION_TRACER", "DYNAMIC_FTRACE_WITH_DIRECT_CALLS"];
/// What all that traces needs.
const TRACING: [&str; 3] = ["BPF_SYSCALL", "DEBUG_INFO_BTF", "PERF_EVENTS"];

pub(crate) struct Engine {
    commands: &'static [&'static str],
    /// What people know it by, where that is not the names of its commands.
    title: Option<&'static str>,
    /// What is missing of it; an error where it does not work at all.
    lacks: fn(&Machine) -> Result<Vec<Lack>, Lack>,
    /// What it shows on no machine, of what limits are judged by.
    not_observable: &'static [&'static str],
}

const fn engine(commands: &'static [&'static str], lacks: fn(&Machine) -> Result<Vec<Lack>, Lack>) -> Engine {
    Engine { commands, title: None, lacks, not_observable: &[] }
}

/// No hook shows that a frame was placed in a mapped ring: `tpacket_rcv` begins before the socket's filter and before it is known whether
/// the ring has room, in a softirq, where the reader's thread is not known. A reader that was not seen must not keep a limit.
const MAPPED_RINGS: &str =
    "applications that read through a mapped ring (PACKET_RX_RING); limits on total and lost of what they read cannot be judged";

pub(crate) static ALL: [Engine; 9] = [
    Engine { not_observable: &[MAPPED_RINGS], ..engine(&["record", "live", "segments", "agent"], points) },
    // To explain a run needs nothing; to record what explains it does.
    Engine { title: Some("causes in record and live, which explain shows"), ..engine(&["explain"], causes) },
    engine(&["path"], path),
    engine(&["exits"], exits),
    engine(&["queues"], queues),
    engine(&["ladder"], ladder),
    engine(&["profile"], profile),
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
        let (commands, not_observable) = (self.commands.to_vec(), self.not_observable.to_vec());
        let title = self.title.map_or_else(|| self.commands.join(", "), Into::into);
        Command { commands, title, works, lacks, not_observable }
    }
}

/// Nothing works, as an engine's own error says.
fn nothing(machine: &Machine, options: &[&str]) -> impl Fn(&dyn Display) -> Lack {
    let remedy = machine.remedy(options);
    move |error| Lack { what: error.to_string(), lost: String::new(), remedy: remedy.clone() }
}

/// What a table of programs misses: places that are missing for the same reason are one.
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

fn recorded(machine: &Machine, scope: Scope) -> Result<Vec<Lack>, Lack> {
    let recorder = Recorder::start_for(scope, BYTES_PER_CPU).map_err(|e| nothing(machine, &TRACING)(&e))?;
    Ok(together(machine, &recorder.missing()))
}

fn causes(machine: &Machine) -> Result<Vec<Lack>, Lack> {
    let mut lacks = recorded(machine, Scope::Causes)?;
    lacks.extend(machine.without_module("kvm", "KVM", "when a vCPU was in its guest (no VM runs by KVM)"));
    Ok(lacks)
}

fn ladder(machine: &Machine) -> Result<Vec<Lack>, Lack> {
    kvm(machine)?;
    let mut lacks = recorded(machine, Scope::Transfers)?;
    lacks.extend(machine.without_module("vhost_net", "VHOST_NET", "queues that vhost serves (no VM has one)"));
    Ok(lacks)
}

fn kvm(machine: &Machine) -> Result<(), Lack> {
    machine.without_module("kvm", "KVM", "").map_or(Ok(()), Err)
}

fn exits(machine: &Machine) -> Result<Vec<Lack>, Lack> {
    kvm(machine)?;
    let watch = latpath_exits::Watch::start(&[], latpath_exits::Options { only: true, ..Default::default() })
        .map_err(|e| nothing(machine, &TRACING)(&e))?;
    let mut lacks = together(machine, watch.missing());
    if !machine.root.path("sys/kernel/debug/kvm").exists() {
        lacks.push(Lack {
            what: "debugfs is not mounted".into(),
            lost: "KVM's own counters, to check against".into(),
            remedy: machine.remedy(&["DEBUG_FS"]).or(Some("mount -t debugfs debugfs /sys/kernel/debug".into())),
        });
    }
    Ok(lacks)
}

fn profile(machine: &Machine) -> Result<Vec<Lack>, Lack> {
    // Where KVM is loaded, its events are tried too: of a thread that never enters a guest.
    let vcpus = if machine.has_module("kvm") { vec![std::process::id()] } else { Vec::new() };
    let options = latpath_profile::Options { calls_of: Some(Vec::new()), vcpus, ..Default::default() };
    let recorder = latpath_profile::Recorder::start(&options).map_err(|e| nothing(machine, &TRACING)(&e))?;
    Ok(together(machine, recorder.missing()))
}

/// What it measures with; it works where any of that does.
fn study(machine: &Machine) -> Result<Vec<Lack>, Lack> {
    kvm(machine)?;
    let parts: [(&str, fn(&Machine) -> Result<Vec<Lack>, Lack>); 4] =
        [("exits", exits), ("ladder", ladder), ("queues", queues), ("profile", profile)];
    let mut lacks: Vec<Lack> = Vec::new();
    let mut failed = Vec::new();
    for (part, lacks_of) in parts {
        match lacks_of(machine) {
            Ok(of_it) => lacks.extend(of_it),
            Err(lack) => failed.push(Lack { lost: format!("all that {part} measures"), ..lack }),
        }
    }
    if failed.len() == parts.len() {
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

fn queues(machine: &Machine) -> Result<Vec<Lack>, Lack> {
    let watch = latpath_queues::Watch::start(false).map_err(|e| nothing(machine, &FUNCTIONS)(&e))?;
    let mut lacks = together(machine, watch.missing());
    lacks.extend(machine.without_module("vhost_net", "VHOST_NET", "queues that vhost serves (no VM has one)"));
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
        assert_eq!((tried.works, tried.not_observable), (Works::Yes, vec!["x"]));
        let rings = |engine: &Engine| engine.not_observable.iter().any(|what| what.contains("PACKET_RX_RING"));
        assert!(ALL.iter().all(|engine| engine.commands.contains(&"record") == rings(engine)));
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
