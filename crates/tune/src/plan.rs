//! Plans: the changes that a profile makes on a machine, including those that cannot be made at once.

use crate::machine::Machine;
use crate::placement;
use crate::profile::{Line, Profile};
use crate::selector::{Places, Selector};
use crate::variables::{Variables, BUILT_IN};
use latpath_linux::Cpus;
use latpath_settings::{
    Address, BootState, Disturbance, Located, NextBoot, Owner, Owners, Persistence, Setting, Writable,
};
use latpath_vms::Role;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The changes that a profile makes on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// The profile's name.
    pub profile: String,
    /// The network devices that the plan concerns.
    pub interfaces: Vec<String>,
    /// CPUs for work that must not be disturbed; null if none are known.
    #[schemars(with = "Option<String>")]
    pub isolated: Option<Cpus>,
    /// CPUs for everything else; null if none are known.
    #[schemars(with = "Option<String>")]
    pub housekeeping: Option<Cpus>,
    /// Changes that can be made at once, in the order in which they are made.
    pub steps: Vec<Planned>,
    /// Changes that need a restart of the machine or of a virtual machine, the loading of a module, or a command by the
    /// user.
    pub later: Vec<Later>,
    /// Lines that the machine already meets.
    pub met: Vec<Met>,
    /// Lines that do not apply.
    pub skipped: Vec<Skipped>,
    /// Harmful placements, and settings that could not be read.
    pub warnings: Vec<String>,
    /// The profile; its name is empty if the plan was read from JSON.
    #[serde(skip)]
    pub(crate) of: Profile,
    #[serde(skip)]
    pub(crate) variables: Variables,
}

/// A change of a setting at one or more places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Planned {
    /// The setting.
    #[serde(with = "setting_id")]
    #[schemars(with = "String")]
    pub setting: Setting,
    /// The new value.
    pub to: String,
    /// The places.
    pub places: Vec<PlannedPlace>,
    /// How much the change disturbs traffic.
    pub disturbs: Disturbance,
    /// How long the value lasts.
    pub lasts: Persistence,
    /// The reason.
    pub why: String,
    /// Who recommends it.
    pub source: String,
}

/// A place of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedPlace {
    /// The owner's name, as read; empty for the machine.
    pub target: String,
    /// Current address of the value.
    pub address: Address,
    /// The current value.
    pub from: String,
    /// The command that makes the change.
    pub command: Option<String>,
    /// The command that undoes the change.
    pub undo: Option<String>,
    /// Programs that may set the setting again.
    pub owners: Vec<Owner>,
}

/// A change that cannot be made at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Later {
    /// The setting.
    #[serde(with = "setting_id")]
    #[schemars(with = "String")]
    pub setting: Setting,
    /// The owner's name; empty for the machine.
    pub target: String,
    /// The current value.
    pub from: String,
    /// The requested value.
    pub to: String,
    /// What is needed for the change to take effect.
    pub writable: Writable,
    /// State of a kernel command line parameter; null for other settings.
    pub state: Option<BootState>,
    /// The command; for a kernel command line parameter, the parameter itself.
    pub command: Option<String>,
    /// The reason.
    pub why: String,
    /// Who recommends it.
    pub source: String,
}

/// A line that the machine already meets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Met {
    /// The setting.
    #[serde(with = "setting_id")]
    #[schemars(with = "String")]
    pub setting: Setting,
    /// The owner's name; empty for the machine.
    pub target: String,
    /// The value.
    pub value: String,
}

/// A line that does not apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Skipped {
    /// The setting.
    #[serde(with = "setting_id")]
    #[schemars(with = "String")]
    pub setting: Setting,
    /// The places, as written in the profile.
    pub at: String,
    /// The reason.
    pub why: String,
}

/// Why no plan was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The profile needs variables that are not set.
    #[error("profile {profile} needs {}", names.iter().map(|name| flag(name)).collect::<Vec<_>>().join(", "))]
    Needs {
        /// The profile.
        profile: String,
        /// The variables.
        names: Vec<String>,
    },
    /// The machine lacks CPUs that a variable names.
    #[error("{what} CPUs {cpus}: this machine's CPUs are {online}")]
    NoSuchCpus {
        /// The variable: `isolated` or `housekeeping`.
        what: &'static str,
        /// The missing CPUs.
        cpus: Cpus,
        /// The online CPUs.
        online: Cpus,
    },
    /// The machine lacks a network device.
    #[error("{name}: no such network device in this network namespace (devices here: {})", here.join(", "))]
    NoSuchInterface {
        /// The device.
        name: String,
        /// The devices that were read.
        here: Vec<String>,
    },
}

/// The flag that sets a variable.
fn flag(name: &str) -> String {
    match BUILT_IN.contains(&name) || FLAGS.contains(&name) {
        true => format!("--{}", name.replace('_', "-")),
        false => format!("--set {name}=VALUE"),
    }
}

/// Variables of profiles that have their own flag, in addition to the built-in variables.
const FLAGS: [&str; 4] = ["address", "peer", "no_namespace", "no_ptp"];

/// Serialises a setting as its name.
mod setting_id {
    use latpath_settings::Setting;
    use serde::{de::Error, Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(setting: &Setting, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(setting.id())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Setting, D::Error> {
        let id = String::deserialize(from)?;
        Setting::of_id(&id).ok_or_else(|| Error::custom(format!("{id}: no such setting")))
    }
}

/// The value that a line requests at a place.
struct RequestedValue<'a> {
    line: &'a Line,
    place: &'a Located,
    value: String,
    is_met: bool,
}

/// Compares a profile with a machine.
///
/// # Errors
/// A variable is missing, or names CPUs or network devices that the machine lacks.
pub fn plan(profile: &Profile, variables: &Variables, machine: &Machine) -> Result<Plan, PlanError> {
    let variables = machine.complete(variables.clone());
    check(profile, &variables, machine)?;
    let source = machine.source();
    let places = Places::of(machine, &source, &variables);
    let here = || places.all.iter().filter(|place| place.setting == Setting::DeviceMtu).map(|p| p.target.clone());
    for name in &variables.interfaces {
        if !places.all.iter().any(|place| place.address.device() == Some(name)) {
            return Err(PlanError::NoSuchInterface { name: name.clone(), here: here().collect() });
        }
    }
    let mut skipped = Vec::new();
    let wanted = wanted(profile, &variables, machine, &places, &mut skipped);
    let (owners, next_boot) = (source.owners(), NextBoot::read(&machine.root()));
    let running = machine.root().text("proc/cmdline").unwrap_or_default();
    let mut plan = Plan {
        profile: profile.name.clone(),
        interfaces: variables.interfaces.clone(),
        isolated: variables.isolated.clone(),
        housekeeping: variables.housekeeping.clone(),
        steps: Vec::new(),
        later: Vec::new(),
        met: Vec::new(),
        skipped,
        warnings: machine.notes.iter().chain(&places.notes).cloned().collect(),
        of: profile.clone(),
        variables: variables.clone(),
    };
    for one in &wanted {
        let state = next_boot.state(&running, one.line.setting, &one.value);
        let is_kept = state.is_none_or(|state| state == BootState::Active);
        match one.line.setting.writable() {
            _ if one.is_met && is_kept => plan.met.push(Met {
                setting: one.line.setting,
                target: one.place.target.clone(),
                value: one.place.value.clone(),
            }),
            Writable::Now => plan.add(one, &owners),
            writable => plan.later.push(later(one, writable, state)),
        }
    }
    plan.order();
    placement::warn(&mut plan, machine, &places.all);
    Ok(plan)
}

fn check(profile: &Profile, variables: &Variables, machine: &Machine) -> Result<(), PlanError> {
    let missing = profile.needs.iter().filter(|name| !variables.has(name)).cloned().collect::<Vec<_>>();
    if !missing.is_empty() {
        return Err(PlanError::Needs { profile: profile.name.clone(), names: missing });
    }
    let online = machine.online();
    let one = |cpu: Option<u32>| cpu.map(|cpu| [cpu].into_iter().collect::<Cpus>());
    for (what, cpus) in [
        ("isolated", variables.isolated.clone()),
        ("housekeeping", variables.housekeeping.clone()),
        ("interrupt", one(variables.irq_cpu)),
        ("application", one(variables.app_cpu)),
    ] {
        let lacking = cpus.map(|cpus| cpus.without(&online)).unwrap_or_default();
        if !lacking.is_empty() {
            return Err(PlanError::NoSuchCpus { what, cpus: lacking, online });
        }
    }
    Ok(())
}

/// The values requested by all lines that apply. A later line replaces an earlier one for the same setting and place.
fn wanted<'a>(
    profile: &'a Profile,
    variables: &Variables,
    machine: &Machine,
    places: &'a Places,
    skipped: &mut Vec<Skipped>,
) -> Vec<RequestedValue<'a>> {
    let mut all: Vec<RequestedValue> = Vec::new();
    let mut known: BTreeMap<(Setting, &Address), usize> = BTreeMap::new();
    let mut free = FreeCpus::of(machine, variables);
    for line in &profile.lines {
        let mut skip = |why: String| skipped.push(Skipped { setting: line.setting, at: line.at.to_string(), why });
        let fails = line.when.iter().find(|one| !one.is_of_device() && !one.holds(machine, variables, None));
        if let Some(condition) = fails {
            skip(format!("only where {condition}"));
            continue;
        }
        let list = match variables.fill(line.at.list(), None) {
            Ok(list) => list,
            Err(name) => {
                skip(format!("{} is not given", flag(&name)));
                continue;
            }
        };
        let mut count = 0;
        let mut why = None;
        for place in places.all.iter().filter(|place| place.setting == line.setting) {
            let interface = places.interface_of(place);
            if !places.has(&line.at, &list, place) {
                continue;
            }
            let driver = places.driver(interface);
            if let Some(condition) =
                line.when.iter().find(|one| one.is_of_device() && !one.holds(machine, variables, driver))
            {
                why = Some(format!("only where {condition}"));
                continue;
            }
            let fill = |text: &str| variables.fill(text, interface).ok();
            let accepted = line.accept.iter().any(|accept| accept.accepts(line.setting, &place.value, &fill));
            let value = match accepted {
                true => Ok(place.value.clone()),
                false => variables.fill_with(&line.value, interface, &|name| free.get(name)),
            };
            match value {
                Ok(value) if line.setting.missing_option(&place.value, &value).is_some() => {
                    let option = line.setting.missing_option(&place.value, &value).unwrap_or_default();
                    why = Some(format!("{} does not have {option}", place.target));
                }
                Ok(value) => {
                    count += 1;
                    free.take(&line.value, &value, accepted);
                    let is_met = accepted || line.setting.is_met(&place.value, &value);
                    let one = RequestedValue { line, place, value, is_met };
                    match known.insert((line.setting, &place.address), all.len()) {
                        Some(earlier) => {
                            known.insert((line.setting, &place.address), earlier);
                            all[earlier] = one;
                        }
                        None => all.push(one),
                    }
                }
                Err(name) => why = Some(format!("{} is not given", flag(&name))),
            }
        }
        if count == 0 {
            let nothing = match line.at {
                Selector::Interface | Selector::InterfaceInterrupts if variables.interfaces.is_empty() => {
                    "--interface is not given".into()
                }
                _ => "this machine has no such setting there".into(),
            };
            skip(why.unwrap_or(nothing));
        }
    }
    all
}

/// Isolated CPUs, each with the number of vCPUs pinned to it.
struct FreeCpus(BTreeMap<u32, usize>);

impl FreeCpus {
    fn of(machine: &Machine, variables: &Variables) -> Self {
        let isolated = variables.isolated.iter().flat_map(Cpus::iter);
        let mut all: BTreeMap<u32, usize> = isolated.map(|cpu| (cpu, 0)).collect();
        let vcpus = machine.vms.iter().flat_map(|vm| &vm.threads).filter(|thread| thread.role == Role::Vcpu);
        for thread in vcpus {
            let cpus: Vec<u32> = thread.cpus_allowed.iter().take(2).collect();
            if let [cpu] = cpus.as_slice() {
                all.entry(*cpu).and_modify(|count| *count += 1);
            }
        }
        Self(all)
    }

    /// Value of the variable `free_isolated`: the isolated CPU with the fewest vCPUs.
    fn get(&self, name: &str) -> Option<String> {
        let free = self.0.iter().min_by_key(|(cpu, count)| (**count, **cpu));
        free.filter(|_| name == "free_isolated").map(|(cpu, _)| cpu.to_string())
    }

    /// Counts a vCPU that is assigned to a CPU by `free_isolated`, unless it is already there.
    fn take(&mut self, text: &str, value: &str, is_there: bool) {
        if text.contains("{free_isolated}") && !is_there {
            let cpu = value.parse::<u32>().ok();
            cpu.and_then(|cpu| self.0.get_mut(&cpu)).into_iter().for_each(|count| *count += 1);
        }
    }
}

fn later(one: &RequestedValue, writable: Writable, state: Option<BootState>) -> Later {
    Later {
        setting: one.line.setting,
        target: one.place.target.clone(),
        from: one.place.value.clone(),
        to: one.value.clone(),
        writable,
        state,
        command: one.line.setting.command(&one.place.address, &one.value),
        why: one.line.why.clone(),
        source: one.line.source.clone(),
    }
}

impl Plan {
    /// Adds a change; if the last step has the same setting and value, the change joins that step.
    fn add(&mut self, one: &RequestedValue, owners: &Owners) {
        let (setting, info) = (one.line.setting, one.line.setting.info());
        let place = PlannedPlace {
            target: one.place.target.clone(),
            address: one.place.address.clone(),
            from: one.place.value.clone(),
            command: setting.command(&one.place.address, &one.value),
            undo: setting.command(&one.place.address, &one.place.value),
            owners: owners.of(setting, &one.place.target).into_iter().cloned().collect(),
        };
        // Each link flap is a separate step.
        let joins = |step: &&mut Planned| {
            step.setting == setting && step.to == one.value && info.disturbs < Disturbance::LinkFlap
        };
        match self.steps.last_mut().filter(joins) {
            Some(step) => step.places.push(place),
            None => self.steps.push(Planned {
                setting,
                to: one.value.clone(),
                places: vec![place],
                disturbs: info.disturbs,
                lasts: info.lasts,
                why: one.line.why.clone(),
                source: one.line.source.clone(),
            }),
        }
    }

    /// Orders the steps by disturbance, and otherwise as in the profile. Settings that a link flap resets come after
    /// the flap.
    fn order(&mut self) {
        if self.of.is_ordered {
            return;
        }
        let flaps = self.steps.iter().any(|step| step.disturbs == Disturbance::LinkFlap);
        let is_reset = |step: &Planned| flaps && step.lasts.is_reset_by_flap() && step.disturbs < Disturbance::LinkFlap;
        self.steps.sort_by_key(|step| (is_reset(step), step.disturbs));
    }

    /// Subject of the journal entry: the profile and its network devices.
    pub fn subject(&self) -> String {
        self.interfaces.iter().fold(self.profile.clone(), |subject, name| format!("{subject}-{name}"))
    }

    /// Number of individual changes.
    pub fn changes(&self) -> usize {
        self.steps.iter().map(|step| step.places.len()).sum()
    }

    /// Whether the machine has all settings of the profile, both now and after its next start.
    pub fn is_met(&self) -> bool {
        self.steps.is_empty() && self.later.is_empty()
    }
}

impl Planned {
    /// The places as a short string, e.g. `CPUs 2-3` or `eth0`; empty for the machine.
    pub fn at(&self) -> String {
        at(self.places.iter().map(|place| (&place.address, place.target.as_str())))
    }

    /// The current values, without duplicates.
    pub fn from(&self) -> Vec<&str> {
        let mut all: Vec<&str> = Vec::new();
        for place in &self.places {
            if !all.contains(&place.from.as_str()) {
                all.push(&place.from);
            }
        }
        all
    }
}

/// Places as a short string, with CPUs as a list.
pub(crate) fn at<'a>(places: impl Iterator<Item = (&'a Address, &'a str)>) -> String {
    let (mut cpus, mut names) = (Vec::new(), Vec::new());
    for (address, target) in places {
        match address {
            Address::Cpu { cpu } => cpus.push(*cpu),
            _ if target.is_empty() => {}
            _ => names.push(target.to_owned()),
        }
    }
    let cpus = cpus.into_iter().collect::<Cpus>().named();
    cpus.into_iter().chain(names).collect::<Vec<_>>().join(", ")
}
