//! Faults of the whole machine.

use super::Hit;
use crate::fix::Fix;
use crate::machine::Machine;
use latpath_placement::Job;
use latpath_settings::{Disturbance, Place, Setting};

/// Clock sources outside the CPU, which are slow to read.
const SLOW: [&str; 4] = ["hpet", "acpi_pm", "jiffies", "refined-jiffies"];

pub(super) fn clocksource(machine: &Machine) -> Vec<Hit> {
    let Some(now) = machine.placement.value(Setting::Clocksource).filter(|now| SLOW.contains(now)) else {
        return Vec::new();
    };
    let should = if machine.is_guest { "kvm-clock" } else { "tsc" };
    vec![Hit {
        what: format!("the kernel reads its time from {now}"),
        now: now.into(),
        should: should.into(),
        fix: Fix::set(Setting::Clocksource, &Place::All, now, should),
        ..Hit::default()
    }]
}

pub(super) fn no_clock_service(machine: &Machine) -> Vec<Hit> {
    let placement = &machine.placement;
    // A machine without guests has no other clock to compare with, so it needs no clock service.
    if placement.vms.is_empty() || placement.workers.iter().any(|worker| worker.job == Job::Clock) {
        return Vec::new();
    }
    let commands = ["systemctl enable --now chrony"];
    vec![Hit {
        what: "no program sets this host's clock (ptp4l, phc2sys, timemaster, chronyd)".into(),
        now: "none".into(),
        should: "chronyd, or ptp4l with phc2sys".into(),
        fix: Fix::commands(Setting::ServicePriority, Disturbance::Nothing, commands)
            .undone_by(["systemctl disable --now chrony"]),
        ..Hit::default()
    }]
}
