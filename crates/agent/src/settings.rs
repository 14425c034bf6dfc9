//! Settings of an agent's machine, sent once its probe is attached, if the host requests them.

use crate::message::{MAX_LINES, MAX_NAME};
use latpath_model::text::{cut, printable};
use latpath_settings::{read_host, Reading, SettingValue};

/// Maximum number of settings that an agent sends and a host keeps; a guest has some hundreds.
const MAX_SETTINGS: usize = 4096;
/// Maximum length of a value, bytes.
const MAX_VALUE: usize = 2048;
/// Maximum size of all values and names together, bytes, so that the message fits a frame.
const MAX_BYTES: usize = 512 << 10;

/// The settings of a machine.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MachineReading {
    /// Start of the reading, `CLOCK_MONOTONIC` of the agent's machine.
    #[prost(int64, tag = "1")]
    pub taken_ns: i64,
    /// Duration of the reading, ns.
    #[prost(int64, tag = "2")]
    pub took_ns: i64,
    /// The values, in the order of the table of settings.
    #[prost(message, repeated, tag = "3")]
    pub values: Vec<WireSetting>,
    /// Number of values that were not sent.
    #[prost(uint64, tag = "4")]
    pub omitted: u64,
    /// Settings that could not be read, as human-readable lines.
    #[prost(string, repeated, tag = "5")]
    pub notes: Vec<String>,
}

/// A setting's value.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct WireSetting {
    /// The setting's name.
    #[prost(string, tag = "1")]
    pub setting: String,
    /// The setting's owner; empty for the machine.
    #[prost(string, tag = "2")]
    pub target: String,
    /// The value as the kernel writes it.
    #[prost(string, tag = "3")]
    pub value: String,
}

impl MachineReading {
    /// The current settings of this machine.
    pub(crate) fn of_this_machine() -> Self {
        let read = read_host(&[]);
        let value = |one: SettingValue| WireSetting { setting: one.setting, target: one.target, value: one.value };
        Self {
            taken_ns: read.taken_ns,
            took_ns: read.took_ns,
            values: read.values.into_iter().map(value).collect(),
            omitted: read.omitted,
            notes: read.notes,
        }
        .bounded()
    }

    /// A copy that keeps all limits and contains no terminal control codes.
    pub(crate) fn bounded(&self) -> Self {
        let text = |text: &str, most: usize| cut(&printable(text), most).to_owned();
        let mut bytes = 0;
        let all = self.values.iter().map(|one| WireSetting {
            setting: text(&one.setting, MAX_NAME),
            target: text(&one.target, MAX_NAME),
            value: text(&one.value, MAX_VALUE),
        });
        let fits = |one: &WireSetting| {
            bytes += one.setting.len() + one.target.len() + one.value.len();
            bytes <= MAX_BYTES
        };
        let values: Vec<WireSetting> = all.take(MAX_SETTINGS).take_while(fits).collect();
        let left_out = (self.values.len() - values.len()) as u64;
        Self {
            omitted: self.omitted.saturating_add(left_out),
            notes: self.notes.iter().take(MAX_LINES).map(|note| text(note, MAX_NAME)).collect(),
            values,
            ..*self
        }
    }

    /// Converts the settings to the format of a run.
    pub fn reading(&self) -> Reading {
        let value = |one: &WireSetting| SettingValue {
            setting: one.setting.clone(),
            target: one.target.clone(),
            at: None,
            value: one.value.clone(),
        };
        Reading {
            taken_ns: self.taken_ns,
            took_ns: self.took_ns,
            values: self.values.iter().map(value).collect(),
            omitted: self.omitted,
            notes: self.notes.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn what_an_agent_sends_is_bounded_and_obeyed_by_no_terminal() {
        let one = |n: usize| WireSetting {
            setting: format!("device-mtu\u{1b}[2J{n}"),
            target: "x".repeat(10_000),
            value: "y".repeat(10_000),
        };
        let hostile = MachineReading { values: (0..10_000).map(one).collect(), ..MachineReading::default() };
        let kept = hostile.bounded();
        assert!(kept.encoded_len() < crate::frame::MAX_FRAME * 3 / 4, "{}", kept.encoded_len());
        assert_eq!(kept.omitted as usize + kept.values.len(), 10_000);
        assert!(kept.values.iter().all(|one| !one.setting.contains('\u{1b}')));
        assert_eq!(kept.bounded(), kept, "a host keeps what an agent may send");
    }

    #[test]
    fn this_machines_settings_are_small() {
        let own = MachineReading::of_this_machine();
        assert!(own.values.iter().any(|one| one.setting == "kernel-release"));
        assert_eq!(own.reading().values.len(), own.values.len());
    }
}
