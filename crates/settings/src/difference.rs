//! Differences between settings: at the start and the end of one run, and in two groups of runs.

use crate::reading::{Reading, RunSettings, SettingValue};
use crate::setting::{Scope, Setting};
use latpath_linux::Cpus;
use latpath_model::HOST;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of places named in a text.
const NAMED: usize = 4;
/// Maximum number of values per side named in a text.
const VALUES: usize = 3;
/// Maximum number of CPUs in one list; a longer list comes from a damaged file.
const MAX_CPUS: usize = 8192;

/// How a setting differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// All recordings of each side agree on one value, but the two sides' values differ.
    Differs,
    /// At least one side has several values: the setting changed during a recording, or between recordings.
    Varies,
    /// Only recordings of one side have the setting.
    OnlyOneSide,
}

/// Settings with the same difference: either one setting at all places with the same values, or all settings of a place
/// that only one side has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SettingDifference {
    /// How it differs.
    pub kind: DifferenceKind,
    /// The machine.
    pub machine: String,
    /// Scope of the setting; null if this latpath does not know the setting.
    pub scope: Option<Scope>,
    /// The settings' names: one, unless only one side has them.
    pub settings: Vec<String>,
    /// The owners; a list of CPUs is one element. Empty for the machine.
    pub targets: Vec<String>,
    /// The distinct values in A's recordings; empty if only B has the setting. If there are several settings, each
    /// value has the form `SETTING=VALUE`.
    pub a: Vec<String>,
    /// The distinct values in B's recordings, in the same form.
    pub b: Vec<String>,
    /// The difference as a sentence.
    pub text: String,
}

impl SettingDifference {
    /// The owners as a short string: `CPUs 2-7`, `guest0: eth0`. Empty for the host itself.
    pub fn place(&self) -> String {
        let of = of_targets(self.scope, &self.targets);
        match (self.machine.as_str(), of.is_empty()) {
            (HOST, _) => of,
            (machine, true) => machine.into(),
            (machine, false) => format!("{machine}: {of}"),
        }
    }
}

/// The same change of a setting during a run, at one or more places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SettingChange {
    /// The machine.
    pub machine: String,
    /// Scope of the setting; null if this latpath does not know the setting.
    pub scope: Option<Scope>,
    /// The setting's name.
    pub setting: String,
    /// The owners; a list of CPUs is one element. Empty for the machine.
    pub targets: Vec<String>,
    /// The value when the run began.
    pub begin: String,
    /// The value when it ended.
    pub end: String,
    /// The change as a sentence.
    pub text: String,
}

/// The owner of a value, comparable between readings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Cpu(u32),
    Named(String),
}

/// A setting's index in the table, and its name; settings missing from the table sort last.
type Id = (usize, String);
/// Machine, setting, place.
type Key = (String, Id, Place);

fn id(setting: &str) -> Id {
    let place = Setting::ALL.iter().position(|known| known.id() == setting);
    (place.unwrap_or(usize::MAX), setting.to_owned())
}

fn scope(id: &Id) -> Option<Scope> {
    Setting::ALL.get(id.0).map(|setting| setting.info().scope)
}

/// The places to which a value applies: one per CPU for a list of CPUs.
fn places(value: &SettingValue, id: &Id) -> Vec<Place> {
    let cpus = (scope(id) == Some(Scope::Cpu)).then(|| value.target.parse::<Cpus>().ok()).flatten();
    match cpus {
        Some(cpus) => cpus.iter().take(MAX_CPUS).map(Place::Cpu).collect(),
        None => vec![Place::Named(value.target.clone())],
    }
}

fn add<'a>(
    machine: &str,
    values: impl IntoIterator<Item = &'a SettingValue>,
    to: &mut BTreeMap<Key, BTreeSet<String>>,
) {
    for value in values {
        let id = id(&value.setting);
        for place in places(value, &id) {
            to.entry((machine.to_owned(), id.clone(), place)).or_default().insert(value.value.clone());
        }
    }
}

/// Groups the places at which the same setting of one machine has the same values; ordered by machine (the host first),
/// setting and places.
fn grouped<V: Ord + Clone>(all: impl IntoIterator<Item = (Key, V)>) -> Vec<(String, Id, Vec<Place>, V)> {
    let mut groups: BTreeMap<(String, Id, V), Vec<Place>> = BTreeMap::new();
    for ((machine, id, place), values) in all {
        groups.entry((machine, id, values)).or_default().push(place);
    }
    let mut groups: Vec<_> =
        groups.into_iter().map(|((machine, id, values), places)| (machine, id, places, values)).collect();
    groups.sort_by(|a, b| (a.0 != HOST, &a.0, &a.1, &a.2).cmp(&(b.0 != HOST, &b.0, &b.1, &b.2)));
    groups
}

/// The places in the form used in JSON and in texts.
fn targets(places: &[Place]) -> Vec<String> {
    let cpus: Cpus =
        places.iter().filter_map(|place| if let Place::Cpu(cpu) = place { Some(*cpu) } else { None }).collect();
    let named = places.iter().filter_map(|place| match place {
        Place::Named(name) if !name.is_empty() => Some(name.clone()),
        _ => None,
    });
    let cpus = (!cpus.is_empty()).then(|| cpus.to_string());
    cpus.into_iter().chain(named).collect()
}

/// `CPUs 2-7`, `eth0`; empty for the machine itself.
fn of_targets(scope: Option<Scope>, targets: &[String]) -> String {
    match (scope, targets) {
        (Some(Scope::Cpu), [one]) if one.parse::<u32>().is_ok() => format!("CPU {one}"),
        (Some(Scope::Cpu), [one]) => format!("CPUs {one}"),
        (_, all) => some(all, NAMED),
    }
}

/// E.g. `cpu-governor of CPUs 2-7`, `guest0: swappiness`.
fn subject(machine: &str, id: &Id, targets: &[String]) -> String {
    let machine = if machine == HOST { String::new() } else { format!("{machine}: ") };
    let of = of_targets(scope(id), targets);
    let of = if of.is_empty() { of } else { format!(" of {of}") };
    format!("{machine}{}{of}", id.1)
}

/// The elements as a string. Beyond `most`, only the number of the rest is given: `a, b and 3 more`.
fn some(all: &[String], most: usize) -> String {
    match all.len() {
        n if n <= most => all.join(", "),
        n => format!("{} and {} more", all[..most - 1].join(", "), n - most + 1),
    }
}

impl RunSettings {
    /// Settings that changed during the run. A value present in only one of the two readings is not a change.
    pub fn changes(&self) -> Vec<SettingChange> {
        let mut changed = Vec::new();
        for machine in &self.machines {
            let (Some(begin), Some(end)) = (&machine.begin, &machine.end) else { continue };
            let of = |reading: &Reading| {
                let mut all = BTreeMap::new();
                add(&machine.machine, &reading.values, &mut all);
                all
            };
            let mut after = of(end);
            for (key, before) in of(begin) {
                let pair = before.into_iter().next().zip(after.remove(&key).and_then(|all| all.into_iter().next()));
                changed.extend(pair.filter(|(before, after)| before != after).map(|values| (key, values)));
            }
        }
        let one = |(machine, id, places, (begin, end)): (String, Id, Vec<Place>, (String, String))| {
            let targets = targets(&places);
            let text = format!("{}: {begin} → {end}", subject(&machine, &id, &targets));
            SettingChange { machine, scope: scope(&id), setting: id.1, targets, begin, end, text }
        };
        grouped(changed).into_iter().map(one).collect()
    }
}

/// The settings of a group of recordings.
#[derive(Clone, Debug)]
pub struct Side<'a> {
    /// The group's name: `A`, `B`, or the user's.
    pub name: &'a str,
    /// The settings of each recording; empty for a recording without settings.
    pub recordings: Vec<&'a RunSettings>,
}

impl Side<'_> {
    /// All values at the start and the end of the recordings, by machine, setting and place.
    fn values(&self) -> BTreeMap<Key, BTreeSet<String>> {
        let mut all = BTreeMap::new();
        for machine in self.recordings.iter().flat_map(|run| &run.machines) {
            // A device found only in the second reading nevertheless existed from the start: the recorder learns routes
            // late.
            let readings = machine.begin.iter().chain(&machine.end);
            readings.for_each(|reading| add(&machine.machine, &reading.values, &mut all));
        }
        all
    }

    /// Number of recordings that have settings.
    pub fn recorded(&self) -> usize {
        self.recordings.iter().filter(|run| !run.is_empty()).count()
    }
}

/// Settings that differ between two groups; none if one of the groups has no settings at all.
pub fn differences(a: &Side, b: &Side) -> Vec<SettingDifference> {
    if a.recorded() == 0 || b.recorded() == 0 {
        return Vec::new();
    }
    let (of_a, mut of_b) = (a.values(), b.values());
    let (mut both, mut alone) = (Vec::new(), Vec::new());
    for (key, in_a) in of_a {
        match of_b.remove(&key) {
            Some(in_b) if in_a == in_b && in_a.len() == 1 => {}
            Some(in_b) => both.push((key, (in_a, in_b))),
            None => alone.push((key, (in_a, BTreeSet::new()))),
        }
    }
    alone.extend(of_b.into_iter().map(|(key, in_b)| (key, (BTreeSet::new(), in_b))));
    let mut found: Vec<SettingDifference> = grouped(both).into_iter().map(|group| difference(group, a, b)).collect();
    found.extend(only_one_side(alone, a, b));
    found.sort_by_key(|one| one.kind);
    found
}

type Sets = (BTreeSet<String>, BTreeSet<String>);

fn difference(
    (machine, id, places, (in_a, in_b)): (String, Id, Vec<Place>, Sets),
    a: &Side,
    b: &Side,
) -> SettingDifference {
    let targets = targets(&places);
    let subject = subject(&machine, &id, &targets);
    let list = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>();
    let (in_a, in_b) = (list(&in_a), list(&in_b));
    let kind = if in_a.len() == 1 && in_b.len() == 1 { DifferenceKind::Differs } else { DifferenceKind::Varies };
    let text = format!("{subject}: {} in {}, {} in {}", or(&in_a), a.name, or(&in_b), b.name);
    SettingDifference { kind, machine, scope: scope(&id), settings: vec![id.1], targets, a: in_a, b: in_b, text }
}

/// Joins the values of one side with "or".
fn or(values: &[String]) -> String {
    match values.len() {
        n if n <= VALUES => values.join(" or "),
        n => format!("{} or {} others", values[..VALUES - 1].join(" or "), n - VALUES + 1),
    }
}

/// Settings that only one side has. Settings of the same places are combined into one entry, because such a place is
/// usually a device or a virtual machine.
fn only_one_side(alone: Vec<(Key, Sets)>, a: &Side, b: &Side) -> Vec<SettingDifference> {
    // Grouping key: machine, whether the side is A, scope, and places. The grouped values are settings with their
    // values.
    type Of = (String, bool, Option<Scope>, Vec<Place>);
    let mut settings: BTreeMap<(String, bool, Id), Vec<(Place, Sets)>> = BTreeMap::new();
    for ((machine, id, place), sets) in alone {
        settings.entry((machine, !sets.0.is_empty(), id)).or_default().push((place, sets));
    }
    let mut places: Vec<(Of, Vec<(Id, Sets)>)> = Vec::new();
    for ((machine, in_a, id), all) in settings {
        let (at, sets): (Vec<Place>, Vec<Sets>) = all.into_iter().unzip();
        let joined = sets.into_iter().fold(Sets::default(), |mut all, (a, b)| {
            all.0.extend(a);
            all.1.extend(b);
            all
        });
        let of: Of = (machine, in_a, scope(&id), at);
        match places.iter_mut().find(|(known, _)| *known == of) {
            Some((_, known)) => known.push((id, joined)),
            None => places.push((of, vec![(id, joined)])),
        }
    }
    let one = |((machine, in_a, scope, at), settings): (Of, Vec<(Id, Sets)>)| {
        let targets = targets(&at);
        let names: Vec<String> = settings.iter().map(|(id, _)| id.1.clone()).collect();
        let (side, other) = if in_a { (a.name, b.name) } else { (b.name, a.name) };
        let is_one = names.len() == 1;
        let what = match settings.as_slice() {
            [(id, _)] => subject(&machine, id, &targets),
            several => {
                let id = (several[0].0 .0, format!("{} settings", several.len()));
                subject(&machine, &id, &targets)
            }
        };
        let (mut in_a, mut in_b) = (Vec::new(), Vec::new());
        for (id, (a, b)) in settings {
            // If there are several settings, each value needs the name of its setting.
            let value = |value: String| if is_one { value } else { format!("{}={value}", id.1) };
            in_a.extend(a.into_iter().map(value));
            in_b.extend(b.into_iter().map(value));
        }
        let values =
            if is_one { format!(": {}", or(if in_a.is_empty() { &in_b } else { &in_a })) } else { String::new() };
        let text = format!("{what}{values} in {side}, not read in {other}");
        SettingDifference {
            kind: DifferenceKind::OnlyOneSide,
            machine,
            scope,
            settings: names,
            targets,
            a: in_a,
            b: in_b,
            text,
        }
    };
    places.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(setting: &str, target: &str, value: &str) -> SettingValue {
        SettingValue { setting: setting.into(), target: target.into(), at: None, value: value.into() }
    }

    fn run(values: &[(&str, &str, &str)]) -> RunSettings {
        let mut settings = RunSettings::default();
        let values = values.iter().map(|(setting, target, text)| value(setting, target, text)).collect();
        settings.begin(HOST, Reading { values, ..Reading::default() });
        settings
    }

    fn texts(a: &[&RunSettings], b: &[&RunSettings]) -> Vec<String> {
        let side = |name, recordings: &[&'static RunSettings]| Side { name, recordings: recordings.to_vec() };
        let leak = |all: &[&RunSettings]| -> Vec<&'static RunSettings> {
            all.iter().map(|run| &*Box::leak(Box::new((*run).clone()))).collect()
        };
        differences(&side("A", &leak(a)), &side("B", &leak(b))).into_iter().map(|one| one.text).collect()
    }

    #[test]
    fn cpus_that_differ_alike_are_one_difference_however_each_side_lists_them() {
        let a = run(&[("cpu-governor", "0-7", "performance")]);
        let b = run(&[("cpu-governor", "0-1", "performance"), ("cpu-governor", "2-7", "powersave")]);
        assert_eq!(texts(&[&a], &[&b]), ["cpu-governor of CPUs 2-7: performance in A, powersave in B"]);
        assert_eq!(texts(&[&a], &[&a]), [""; 0]);
    }

    #[test]
    fn what_varies_within_a_side_and_what_only_one_side_has_comes_after_what_differs() {
        let (ten, sixty) = (run(&[("swappiness", "", "10")]), run(&[("swappiness", "", "60")]));
        let more = run(&[
            ("swappiness", "", "60"),
            ("device-mtu", "eth0", "1500"),
            ("device-speed", "eth0", "1000"),
            ("ksm", "", "1"),
        ]);
        assert_eq!(
            texts(&[&ten, &sixty], &[&more]),
            [
                "swappiness: 10 or 60 in A, 60 in B",
                "ksm: 1 in B, not read in A",
                "2 settings of eth0 in B, not read in A",
            ]
        );
        let kinds = |a: &RunSettings, b: &RunSettings| {
            let side = |recordings| Side { name: "x", recordings };
            differences(&side(vec![a]), &side(vec![b])).iter().map(|one| one.kind).collect::<Vec<_>>()
        };
        assert_eq!(
            kinds(&ten, &more),
            [DifferenceKind::Differs, DifferenceKind::OnlyOneSide, DifferenceKind::OnlyOneSide]
        );
    }

    #[test]
    fn a_recording_without_settings_is_no_difference() {
        assert_eq!(texts(&[&run(&[("ksm", "", "1")])], &[&RunSettings::default()]), [""; 0]);
    }

    #[test]
    fn a_change_during_a_run_is_found_and_what_appears_is_none() {
        let mut one = run(&[("cpu-governor", "0-3", "powersave"), ("no-such-setting", "x", "1")]);
        let values = vec![
            value("cpu-governor", "0,2-3", "powersave"),
            value("cpu-governor", "1", "performance"),
            value("no-such-setting", "x", "2"),
            value("device-mtu", "eth0", "1500"),
        ];
        one.end(HOST, Reading { values, ..Reading::default() });
        let changes = one.changes();
        let texts: Vec<&str> = changes.iter().map(|change| change.text.as_str()).collect();
        assert_eq!(texts, ["cpu-governor of CPU 1: powersave → performance", "no-such-setting of x: 1 → 2"]);
        assert_eq!((changes[0].scope, changes[1].scope), (Some(Scope::Cpu), None));
        assert_eq!(one.count(), 3);
    }

    #[test]
    fn a_list_of_cpus_that_no_machine_has_costs_no_time() {
        let of = |text: &str| run(&[("cpu-governor", "0-4294967295", text), ("cpu-governor", "strange", text)]);
        assert_eq!(texts(&[&of("a")], &[&of("b")]).len(), 1);
    }
}
