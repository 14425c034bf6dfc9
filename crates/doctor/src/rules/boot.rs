//! Parameters of the kernel's command line.

use super::Hit;
use crate::fix::Fix;
use crate::machine::Machine;
use latpath_linux::Cpus;
use latpath_settings::{Disturbance, PendingParameter, Setting};

fn texts(all: &[PendingParameter]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

pub(super) fn pending(machine: &Machine) -> Vec<Hit> {
    if machine.pending.is_empty() {
        return Vec::new();
    }
    let file = machine.next_boot.file.clone().unwrap_or_default();
    let text = texts(&machine.pending);
    let fix = Fix { settings: machine.pending.iter().map(|one| one.setting).collect(), ..Fix::default() };
    vec![Hit {
        what: format!("{file} has other parameters for the next start: {text}"),
        now: "not active".into(),
        should: text,
        fix: Fix { commands: vec!["systemctl reboot".into()], disturbs: Some(Disturbance::Reboot), ..fix },
        ..Hit::default()
    }]
}

pub(super) fn ungenerated(machine: &Machine) -> Vec<Hit> {
    let all = machine.next_boot.ungenerated();
    if all.is_empty() {
        return Vec::new();
    }
    let fix = Fix {
        settings: all.iter().map(|one| one.setting).collect(),
        commands: vec!["update-grub".into()],
        disturbs: Some(Disturbance::Nothing),
        ..Fix::default()
    };
    vec![Hit {
        what: format!("/etc/default/grub has parameters that GRUB's configuration lacks: {}", texts(&all)),
        now: "not generated".into(),
        should: texts(&all),
        fix,
        ..Hit::default()
    }]
}

pub(super) fn missing(machine: &Machine) -> Vec<Hit> {
    let placement = &machine.placement;
    let value = placement.value(Setting::BootIsolcpus).unwrap_or_default();
    let words = value.split([',', ' ']).filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    let named: Cpus = words.collect::<Vec<_>>().join(",").parse().unwrap_or_default();
    let missing = named.without(&placement.online);
    if missing.is_empty() || placement.online.is_empty() {
        return Vec::new();
    }
    let rest = named.without(&missing).to_string();
    vec![Hit {
        what: format!("isolcpus={value} names {}, of which this machine has none", missing.named().unwrap_or_default()),
        now: value.into(),
        fix: if rest.is_empty() { Fix::default() } else { Fix::boot(machine, &[(Setting::BootIsolcpus, &rest)]) },
        should: rest,
        cpus: missing,
        ..Hit::default()
    }]
}
