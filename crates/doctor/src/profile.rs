//! Lines of a profile that the machine does not meet, according to the plan of crate tune.

use crate::finding::{Finding, FindingKind, Severity};
use crate::fix::Fix;
use crate::machine::Machine;
use crate::rules::cpus::to_isolate;
use latpath_linux::Cpus;
use latpath_settings::{Address, BootState, Place, Scope, Setting, Write};
use latpath_tune::{Later, Plan, Planned, PlannedPlace, Profile, Variables};

/// A machine judged by a profile.
#[derive(Clone, Debug, Default)]
pub(crate) struct Judged {
    pub findings: Vec<Finding>,
    /// Number of lines that are met.
    pub met: u64,
    /// Lines that do not apply, with the reasons.
    pub left_out: Vec<String>,
}

/// The profile for a machine: `sv-guest` inside a virtual machine, `sv-hypervisor` on a machine that runs virtual
/// machines or can run them; `None` for others.
pub fn profile_of(machine: &Machine) -> Option<&'static str> {
    match () {
        () if !machine.vms.is_empty() => Some("sv-hypervisor"),
        () if machine.is_guest => Some("sv-guest"),
        () if machine.has_kvm => Some("sv-hypervisor"),
        () => None,
    }
}

/// Compares the machine with a profile. If no CPU is isolated, lines are judged by the CPUs that should be isolated.
/// Lines that contain variables without a value do not apply.
pub(crate) fn judge(machine: &Machine, profile: &Profile) -> Judged {
    let isolated = machine.placement.kept().is_empty().then(|| to_isolate(&machine.placement)).flatten();
    let variables = Variables { isolated, ..Variables::default() };
    let mut profile = profile.clone();
    profile.needs.clear();
    match latpath_tune::plan(&profile, &variables, &machine.tuned) {
        Ok(plan) => {
            let mut judged = of_plan(machine, &plan);
            // Two real-time vCPUs on one CPU block each other, so lines about vCPUs do not apply if there are too few
            // CPUs.
            let (vcpus, cpus) = (machine.placement.vcpus().count(), plan.isolated.iter().flat_map(Cpus::iter).count());
            if vcpus > cpus {
                judged.findings.retain(|line| !is_of_vcpu(machine, line));
                judged.left_out.push(format!("CPUs and priorities of vCPUs: {vcpus} vCPUs, and {cpus} CPUs for them"));
            }
            judged
        }
        Err(error) => Judged { left_out: vec![format!("all lines: {error}")], ..Judged::default() },
    }
}

fn of_plan(machine: &Machine, plan: &Plan) -> Judged {
    let mut findings: Vec<Finding> = plan.steps.iter().map(of_step).collect();
    findings.extend(plan.later.iter().map(|later| of_later(machine, later)));
    let skipped = plan.skipped.iter().map(|line| format!("{} at {}: {}", line.setting, line.at, line.why));
    Judged { findings, met: plan.met.len() as u64, left_out: skipped.chain(plan.warnings.iter().cloned()).collect() }
}

fn severity(setting: Setting) -> Severity {
    match setting.info().scope {
        Scope::Cpu | Scope::Thread | Scope::Interrupt | Scope::Device => Severity::Medium,
        Scope::Machine | Scope::ControlGroup | Scope::Vm | Scope::BootParameter => Severity::Low,
    }
}

/// The CPUs that the places concern; for the affinity of a thread or an interrupt, the CPUs on which it may run now.
fn cpus_of(setting: Setting, places: &[PlannedPlace]) -> Cpus {
    let mut all = Cpus::default();
    for place in places {
        match &place.address {
            Address::Cpu { cpu } => all.join([*cpu].into_iter().collect()),
            _ if matches!(setting, Setting::ThreadCpus | Setting::IrqAffinity) => {
                all.join(place.from.parse().unwrap_or_default());
            }
            _ => {}
        }
    }
    all
}

fn of_step(step: &Planned) -> Finding {
    let at = step.at();
    let of = if at.is_empty() { String::new() } else { format!(" of {at}") };
    let now = step.from().join(", ");
    let mut owners = Vec::new();
    for owner in step.places.iter().flat_map(|place| &place.owners) {
        if !owners.contains(owner) {
            owners.push(owner.clone());
        }
    }
    let each = |command: fn(&PlannedPlace) -> &Option<String>| -> Vec<String> {
        step.places.iter().filter_map(|place| command(place).clone()).collect()
    };
    Finding {
        id: step.setting.id().into(),
        kind: FindingKind::Profile,
        severity: severity(step.setting),
        what: format!("{}{of} is {now}, not {}", step.setting, step.to),
        target: at,
        cpus: cpus_of(step.setting, &step.places),
        now,
        should: step.to.clone(),
        why: sentence(&step.why),
        source: step.source.clone(),
        settings: vec![step.setting.id().into()],
        causes: Vec::new(),
        cost: Vec::new(),
        commands: each(|place| &place.command),
        undo: each(|place| &place.undo),
        disturbs: step.disturbs.name().into(),
        owners,
    }
}

fn of_later(machine: &Machine, later: &Later) -> Finding {
    let setting = later.setting;
    let of = if later.target.is_empty() { String::new() } else { format!(" of {}", later.target) };
    let now_and_then = format!("{setting}{of} is {}, not {}", later.from, later.to);
    let what = match (setting.shell(&Place::All, &later.to), later.state) {
        (Some(word), Some(BootState::Missing)) if later.from == Setting::ABSENT => {
            format!("the kernel's command line lacks {word}")
        }
        (Some(word), Some(state)) => format!("the kernel's command line and {word}: {}", state.name()),
        _ => now_and_then,
    };
    let fix = match setting.info().scope {
        Scope::BootParameter if later.state == Some(BootState::Pending) => Fix::default(),
        Scope::BootParameter => Fix::boot(machine, &[(setting, &later.to)]),
        _ => {
            let undo = match setting.info().write {
                Write::ModuleOption(module, name) => vec![format!("rm /etc/modprobe.d/latpath-{module}-{name}.conf")],
                _ => Vec::new(),
            };
            Fix { commands: later.command.clone().into_iter().collect(), undo, ..Fix::default() }
        }
    };
    Finding {
        id: setting.id().into(),
        kind: FindingKind::Profile,
        severity: severity(setting),
        what,
        target: later.target.clone(),
        cpus: Cpus::default(),
        now: later.from.clone(),
        should: later.to.clone(),
        why: sentence(&later.why),
        source: later.source.clone(),
        settings: vec![setting.id().into()],
        causes: Vec::new(),
        cost: Vec::new(),
        commands: fix.commands,
        undo: fix.undo,
        disturbs: setting.info().disturbs.name().into(),
        owners: machine.owners.of(setting, &later.target).into_iter().cloned().collect(),
    }
}

/// Formats a profile's reason: without its full stop, and with a lower-case first letter unless it begins with an
/// abbreviation.
fn sentence(why: &str) -> String {
    let why = why.trim_end_matches('.');
    let mut letters = why.chars();
    match (letters.next(), letters.clone().next()) {
        (Some(first), Some(second)) if !second.is_uppercase() => first.to_lowercase().chain(letters).collect(),
        _ => why.into(),
    }
}

/// Whether a line places a vCPU, or gives it a priority.
fn is_of_vcpu(machine: &Machine, line: &Finding) -> bool {
    let settings = [Setting::ThreadCpus, Setting::ThreadPriority].map(Setting::id);
    settings.contains(&line.id.as_str()) && machine.placement.vcpus().any(|vcpu| line.target.contains(&vcpu.name))
}

/// Removes lines of the profile that a structural fault already covers: it has the line's settings, and the same target
/// or CPUs, unless one of the two has no target.
pub(crate) fn without_known(lines: Vec<Finding>, faults: &[Finding]) -> Vec<Finding> {
    let is_known = |line: &Finding| {
        let has = |fault: &&Finding| line.settings.iter().all(|setting| fault.settings.contains(setting));
        let is_same = |fault: &Finding| {
            let is_alike = line.target == fault.target || line.target.is_empty() || fault.target.is_empty();
            is_alike || line.target.contains(&fault.target) || line.cpus.overlaps(&fault.cpus)
        };
        faults.iter().filter(has).any(is_same)
    };
    lines.into_iter().filter(|line| !is_known(line)).collect()
}
