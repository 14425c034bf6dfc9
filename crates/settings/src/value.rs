//! Compares strings that may represent the same value of a setting.

use crate::ethtool::options::{covers, missing};
use crate::setting::{Read, Setting};
use latpath_linux::Cpus;
use std::collections::BTreeSet;

/// The form of a setting's values.
enum Form {
    /// Any string.
    Text,
    /// CPUs as a mask of hexadecimal words: `00000000,0000000c` and `c` are the same.
    Mask,
    /// CPUs as a list: `2,3` and `2-3` are the same.
    List,
    /// A module's parameter: `Y` and `1` are the same.
    Switch,
    /// Pairs of a name and a value. A wanted value may contain only some of them, e.g. `rx 64` of `rx 64 tx 256`.
    Pairs,
    /// Items in any order, e.g. addresses or neighbours.
    Items,
    /// Kinds of queueing disciplines, e.g. `mq, fq_codel`: `mq` has a child for each queue.
    Kinds,
}

impl Setting {
    fn form(self) -> Form {
        match (self, self.info().read) {
            (Self::WorkqueueCpus | Self::WritebackCpus | Self::DefaultIrqAffinity, _) => Form::Mask,
            (_, Read::Queue(_, file)) if file.ends_with("cpus") => Form::Mask,
            (Self::IrqAffinity | Self::IrqEffectiveAffinity | Self::WatchdogCpus | Self::CpusOnline, _) => Form::List,
            (Self::ThreadCpus | Self::CgroupCpus | Self::CpuIdleDisabled, _) => Form::List,
            (Self::BootNohzFull | Self::BootRcuNocbs | Self::BootIrqaffinity | Self::BootKthreadCpus, _) => Form::List,
            (_, Read::Module(..)) => Form::Switch,
            (_, Read::Ethtool(..)) => Form::Pairs,
            (Self::DeviceAddresses | Self::DeviceNeighbours, _) => Form::Items,
            (_, Read::Qdisc) => Form::Kinds,
            _ => Form::Text,
        }
    }

    /// The part of `value` that a change to `by` replaces: `rx 64` of `rx 64 tx 128` if `by` is `rx 256`. If the
    /// setting's values are not pairs, the whole value.
    pub fn replaced(self, value: &str, by: &str) -> String {
        let Form::Pairs = self.form() else { return value.into() };
        let (value, by): (Vec<&str>, Vec<&str>) = (value.split_whitespace().collect(), by.split_whitespace().collect());
        let is_named = |pair: &&[&str]| by.chunks(2).any(|other| other[0] == pair[0]);
        let named: Vec<String> = value.chunks(2).filter(is_named).map(|pair| pair.join(" ")).collect();
        // None of the device's options is named in the change, so report the whole value.
        if named.is_empty() {
            value.join(" ")
        } else {
            named.join(" ")
        }
    }

    /// The first option of a wanted value that the owner of `value` lacks, e.g. `combined` of `combined 1` for a device
    /// with `rx 2 tx 2`.
    pub fn missing_option(self, value: &str, wanted: &str) -> Option<String> {
        match self.form() {
            Form::Pairs => missing(value, wanted),
            _ => None,
        }
    }

    /// Whether a value that was read equals the wanted one, even if they are written differently.
    pub fn is_met(self, value: &str, wanted: &str) -> bool {
        let (value, wanted) = (value.trim(), wanted.trim());
        let same = match self.form() {
            // The kernel separates the numbers of a sysctl with tabs.
            Form::Text => value.split_whitespace().eq(wanted.split_whitespace()),
            Form::Mask => mask(value).is_some() && mask(value) == mask(wanted),
            Form::List => list(value).is_some() && list(value) == list(wanted),
            Form::Switch => switch(value).is_some() && switch(value) == switch(wanted),
            Form::Pairs => covers(value, wanted),
            Form::Items => items(value) == items(wanted),
            Form::Kinds => value.split(',').next() == Some(wanted),
        };
        same || value == wanted
    }
}

/// A mask without its leading zeros.
fn mask(text: &str) -> Option<String> {
    let is_mask = !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit() || c == ',');
    let words: Vec<&str> = text.split(',').collect();
    // Each word after the first stands for 8 digits; in a mask typed by a user, leading zeros of a word may be missing.
    let digits: String =
        words.iter().enumerate().map(|(n, word)| format!("{word:0>0$}", 8 * usize::from(n > 0))).collect();
    is_mask.then(|| digits.trim_start_matches('0').to_ascii_lowercase())
}

fn list(text: &str) -> Option<Vec<u32>> {
    text.parse::<Cpus>().ok().map(|cpus| cpus.iter().collect())
}

fn items(text: &str) -> BTreeSet<&str> {
    text.split(',').map(str::trim).collect()
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "Y" | "y" | "1" | "on" => Some(true),
        "N" | "n" | "0" | "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_met_however_it_is_written() {
        for (setting, value, wanted, met) in [
            (Setting::WorkqueueCpus, "00000000,00000003", "3", true),
            (Setting::WorkqueueCpus, "1,00000000", "100000000", true),
            (Setting::WorkqueueCpus, "1,00000000", "1", false),
            (Setting::WorkqueueCpus, "0f", "F", true),
            (Setting::IrqAffinity, "0-1", "0,1", true),
            (Setting::IrqAffinity, "0-1", "0-2", false),
            (Setting::KvmclockSync, "Y", "1", true),
            (Setting::KvmclockSync, "N", "1", false),
            (Setting::KvmHaltPoll, "200000", "0", false),
            (Setting::DeviceRings, "rx 64 tx 256", "tx 256", true),
            (Setting::DeviceRings, "rx 64 tx 256", "rx 65", false),
            (Setting::DeviceRings, "rx 64 tx 256", "", false),
            (Setting::DeviceAddresses, "192.0.2.1/24, fd00::1/64", "fd00::1/64,192.0.2.1/24", true),
            (Setting::DeviceAddresses, "192.0.2.1/24", "none", false),
            (Setting::DeviceQdisc, "mq, fq_codel", "mq", true),
            (Setting::DeviceQdisc, "mq, fq_codel", "fq_codel", false),
            (Setting::Swappiness, "10", "10\n", true),
            (Setting::Swappiness, "1", "Y", false),
        ] {
            assert_eq!(setting.is_met(value, wanted), met, "{setting}: {value:?}, {wanted:?}");
        }
    }
}
