//! The values of a reading, in the form in which a run stores them.

use crate::setting::{Scope, Setting};
use latpath_model::text::cut;
use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Maximum number of values in a reading; further values are only counted.
const MAX_VALUES: usize = 20_000;
/// Maximum length of a value, bytes: a kernel's command line has at most 2048 (4096 on arm64).
const MAX_VALUE: usize = 4096;
/// Maximum length of a name, bytes.
const MAX_NAME: usize = 512;

/// A setting's value at one place, or for all CPUs with the same value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SettingValue {
    /// The setting's name: [`crate::Setting::id`].
    pub setting: String,
    /// The setting's owner: CPUs (`0-3,8`), a device, an interrupt, a thread, a control group, a virtual machine. Empty
    /// for the machine.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// The owner's address at the time of the reading, if it cannot be derived from the name: an interrupt number, a
    /// thread ID, the path of a group or a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The value in the kernel's notation.
    pub value: String,
}

/// The settings of a machine at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Reading {
    /// Start of the reading, `CLOCK_MONOTONIC` of the machine, ns.
    pub taken_ns: Ns,
    /// Duration of the reading, ns.
    pub took_ns: Ns,
    /// The values, in the order of the table.
    pub values: Vec<SettingValue>,
    /// Number of values omitted because the maximum number of values was reached.
    pub omitted: u64,
    /// Settings that could not be read, with the reasons.
    pub notes: Vec<String>,
}

impl Reading {
    /// Adds a value if there is room, truncated to its maximum length.
    pub(crate) fn push(&mut self, mut value: SettingValue) {
        if self.values.len() >= MAX_VALUES {
            self.omitted += 1;
            return;
        }
        let shorten = |text: &mut String, most: usize| text.truncate(cut(text, most).len());
        shorten(&mut value.target, MAX_NAME);
        value.at.iter_mut().for_each(|at| shorten(at, MAX_NAME));
        shorten(&mut value.value, MAX_VALUE);
        self.values.push(value);
    }
}

/// The settings of one machine at the start and the end of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MachineSettings {
    /// The machine's name: `host`, `guest0`.
    pub machine: String,
    /// The settings at the beginning of the run.
    pub begin: Option<Reading>,
    /// The settings at the end of the run; null during the recording, or if the recorder was killed.
    pub end: Option<Reading>,
}

impl MachineSettings {
    /// The settings with which the run was recorded: the values at its start, and the values at its end for places that
    /// only the second reading has.
    pub fn values(&self) -> impl Iterator<Item = &SettingValue> {
        // CPUs with the same value are combined into one list, so the two readings can have different lists.
        let place = |value: &SettingValue| match Setting::of_id(&value.setting).map(|setting| setting.info().scope) {
            Some(Scope::Cpu) => (value.setting.clone(), String::new()),
            _ => (value.setting.clone(), value.target.clone()),
        };
        let begin = self.begin.iter().flat_map(|reading| &reading.values);
        let end = self.end.iter().flat_map(|reading| &reading.values);
        let known: HashSet<_> = begin.clone().map(place).collect();
        begin.chain(end.filter(move |value| !known.contains(&place(value))))
    }
}

/// The known settings of a run's machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RunSettings {
    /// The machines, the host first; empty in runs of earlier versions.
    pub machines: Vec<MachineSettings>,
}

impl RunSettings {
    /// Whether no settings are known.
    pub fn is_empty(&self) -> bool {
        self.machines.iter().all(|machine| machine.begin.is_none() && machine.end.is_none())
    }

    /// Number of values with which the run was recorded, on all machines.
    pub fn count(&self) -> usize {
        self.machines.iter().map(|machine| machine.values().count()).sum()
    }

    /// Sets a machine's settings at the beginning of the run.
    pub fn begin(&mut self, machine: &str, reading: Reading) {
        self.machine(machine).begin = Some(reading);
    }

    /// Sets a machine's settings at the end of the run.
    pub fn end(&mut self, machine: &str, reading: Reading) {
        self.machine(machine).end = Some(reading);
    }

    fn machine(&mut self, machine: &str) -> &mut MachineSettings {
        let at = self.machines.iter().position(|known| known.machine == machine).unwrap_or_else(|| {
            self.machines.push(MachineSettings { machine: machine.into(), ..MachineSettings::default() });
            self.machines.len() - 1
        });
        &mut self.machines[at]
    }
}
