//! A tuning's changes as recorded in the journal, and how they are undone.

use crate::plan::at;
use crate::variables::Variables;
use latpath_settings::{Address, Disturbance, Identity, Located, Setting, Source, Writable, WriteError};
use latpath_undo::{Kind, Outcome, Undo};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Maximum number of passes per undo: restoring a value that flaps a link resets other values of the device.
const MAX_PASSES: usize = 4;

/// A step of a tuning's journal entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// The application of a profile begins.
    Began {
        /// Its name.
        profile: String,
        /// Its text, for verifying it later.
        text: String,
        /// The variables.
        variables: Variables,
        /// Names of the settings to which the profile's lines are restricted; empty for all.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        only: Vec<String>,
    },
    /// A setting is about to be changed.
    Set {
        /// The setting's name.
        setting: String,
        /// Its owner.
        owner: Identity,
        /// The old value.
        from: String,
        /// The value set.
        to: String,
    },
}

impl Change {
    /// Whether both change the same setting at the same owner.
    pub(crate) fn is_of_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Set { setting, owner, .. }, Self::Set { setting: another, owner: of_another, .. }) => {
                setting == another && owner.is_same(of_another)
            }
            _ => false,
        }
    }
}

/// Undoes tunings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tunings {
    /// Root of a machine in a folder; `None` for this machine.
    root: Option<PathBuf>,
}

impl Tunings {
    /// Undoes tunings of this machine.
    pub const LIVE: Self = Self { root: None };

    /// Undoes tunings of a machine in a folder.
    pub fn below(root: PathBuf) -> Self {
        Self { root: Some(root) }
    }

    fn source(&self) -> Source<'static> {
        match &self.root {
            None => Source::machine(&[], Vec::new()),
            Some(root) => Source::below(root, &[], Vec::new()),
        }
    }
}

/// The changes of a setting at an owner.
struct Changed<'a> {
    setting: Setting,
    owner: &'a Identity,
    /// The oldest value.
    original: &'a str,
    /// All values that the setting has had since before the first change.
    values: Vec<&'a str>,
    /// Whether the last step only saved the value before a flap, which may have reset it since.
    is_saved: bool,
    /// Result of the undo.
    end: End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Open,
    Restored(String),
    Unchanged,
    LeftAlone(String),
    Gone,
    Failed(String),
}

impl Undo for Tunings {
    const KIND: Kind = Kind::Tuning;
    type Step = Change;

    fn undo(&self, _subject: &str, steps: &[Change]) -> Outcome {
        let mut all = match changed(steps) {
            Ok(all) => all,
            Err(why) => return Outcome::Failed(vec![why]),
        };
        let source = self.source();
        for one in all.iter_mut().filter(|one| !one.is_saved) {
            if let Some(now) = foreign(&source, one) {
                one.end = End::LeftAlone(now);
            }
        }
        let mut flapped = false;
        for pass in 0..MAX_PASSES {
            let source = self.source();
            let mut is_again = false;
            for one in all.iter_mut().filter(|one| !matches!(one.end, End::LeftAlone(_))) {
                // Settings that a flap resets are restored after it, whatever their current values.
                let is_reset = flapped && one.setting.info().lasts.is_reset_by_flap();
                if pass > 0 && !is_reset && !matches!(one.end, End::Failed(_)) {
                    continue;
                }
                let before = std::mem::replace(&mut one.end, End::Open);
                one.end = restore(&source, one, is_reset);
                if let (End::Unchanged, End::Restored(_)) = (&one.end, &before) {
                    one.end = before;
                } else if matches!(one.end, End::Restored(_)) && one.setting.info().disturbs == Disturbance::LinkFlap {
                    (flapped, is_again) = (true, true);
                }
            }
            if !is_again && !all.iter().any(|one| matches!(one.end, End::Failed(_))) {
                break;
            }
        }
        outcome(&all)
    }
}

/// The settings of an entry, most recently changed first.
fn changed(steps: &[Change]) -> Result<Vec<Changed<'_>>, String> {
    let mut all: Vec<Changed> = Vec::new();
    for step in steps {
        let Change::Set { setting, owner, from, to } = step else { continue };
        let found = Setting::of_id(setting).filter(|setting| setting.writable() == Writable::Now);
        let setting = found.ok_or_else(|| format!("{setting}: not a setting that this latpath writes"))?;
        let is_it = |one: &Changed| one.setting == setting && one.owner.is_same(owner);
        let mut one = match all.iter().position(is_it) {
            Some(at) => all.remove(at),
            None => Changed { setting, owner, original: from, values: Vec::new(), is_saved: true, end: End::Open },
        };
        one.is_saved = from == to;
        one.values.extend([from.as_str(), to]);
        all.push(one);
    }
    all.reverse();
    Ok(all)
}

/// The current value of a setting, if it was set by another program.
fn foreign(source: &Source, one: &Changed) -> Option<String> {
    let now = source.value(one.setting, &source.locate(one.owner)?).ok()?;
    let is_known = one.values.iter().any(|value| one.setting.is_met(&now, value));
    (!is_known).then_some(now)
}

/// Restores a setting's oldest value unless another program has changed it; with `force`, even then.
fn restore(source: &Source, one: &Changed, force: bool) -> End {
    let Some(address) = source.locate(one.owner) else { return End::Gone };
    let now = match source.value(one.setting, &address) {
        Ok(now) => now,
        Err(WriteError::Missing { .. }) => return End::Gone,
        Err(error) => return End::Failed(error.to_string()),
    };
    if one.setting.is_met(&now, one.original) {
        return End::Unchanged;
    }
    if !force && !one.values.iter().any(|value| one.setting.is_met(&now, value)) {
        return End::LeftAlone(now);
    }
    match one.setting.write(source, &address, one.original) {
        Ok(()) => End::Restored(one.original.into()),
        Err(WriteError::Missing { .. }) => End::Gone,
        Err(error) => End::Failed(error.to_string()),
    }
}

fn outcome(all: &[Changed]) -> Outcome {
    let failed = all.iter().filter_map(|one| match &one.end {
        End::Failed(why) => Some(why.clone()),
        _ => None,
    });
    let failed: Vec<String> = failed.collect();
    if !failed.is_empty() {
        return Outcome::Failed(failed);
    }
    let done = grouped(all, |one| match &one.end {
        End::Restored(value) => Some(format!("{value} again")),
        End::Gone => Some("it no longer exists, and its settings with it".into()),
        _ => None,
    });
    let left_alone = grouped(all, |one| match &one.end {
        End::LeftAlone(now) => {
            let set = one.values.last().copied().unwrap_or_default();
            Some(format!("left at {now}: another program has changed it since latpath set {set}"))
        }
        _ => None,
    });
    Outcome::Undone { done, left_alone }
}

/// Formats messages, one for all places of a setting that have the same text.
fn grouped(all: &[Changed], text: impl Fn(&Changed) -> Option<String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut messages = Vec::new();
    for one in all {
        let Some(text_of_one) = text(one) else { continue };
        if !seen.insert((one.setting, text_of_one.clone())) {
            continue;
        }
        let same =
            all.iter().filter(|other| other.setting == one.setting && text(other).as_ref() == Some(&text_of_one));
        let at = at(same.map(|other| (&other.owner.address, other.owner.target.as_str())));
        let of = if at.is_empty() { String::new() } else { format!(" of {at}") };
        messages.push(format!("{}{of}: {text_of_one}", one.setting));
    }
    messages
}

/// A change of a setting at a place whose value was read.
pub(crate) fn change(source: &Source, place: &Located, to: &str) -> Change {
    Change::Set {
        setting: place.setting.id().into(),
        owner: source.identify(place),
        from: place.setting.replaced(&place.value, to),
        to: to.into(),
    }
}

/// Represents an address and the value read there as a place.
pub(crate) fn located(setting: Setting, target: &str, address: &Address, value: String) -> Located {
    Located { setting, target: target.into(), address: address.clone(), value }
}
