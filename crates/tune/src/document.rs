//! The JSON documents of `latpath tune`.

use crate::plan::Plan;
use crate::profile::Profile;
use crate::tuning::{Applied, Drift, Tuned};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Output of `latpath tune … --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(title = "latpath tune --json")]
pub enum TuneDocument {
    /// `tune list`
    Profiles(ProfilesDocument),
    /// `tune plan`
    Plan(Box<Plan>),
    /// `tune apply`
    Applied(Box<Applied>),
    /// `tune verify`
    Drifts(Vec<Drift>),
}

/// Output of `latpath tune list --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Profiles")]
pub struct ProfilesDocument {
    /// latpath's profiles.
    pub profiles: Vec<ProfileHead>,
    /// Profiles that are applied to this machine; null if this user may not read the journal.
    pub applied: Option<Vec<Tuned>>,
}

/// A profile in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProfileHead {
    /// Its name.
    pub name: String,
    /// Its purpose, in one sentence.
    pub about: String,
    /// Variables that it requires.
    pub needs: Vec<String>,
    /// Number of its lines.
    pub lines: usize,
}

impl From<Profile> for ProfileHead {
    fn from(profile: Profile) -> Self {
        Self { name: profile.name, about: profile.about, needs: profile.needs, lines: profile.lines.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Later, Planned, PlannedPlace};
    use crate::tuning::{AppliedStep, StopCause, Stopped};
    use crate::watch::Effect;
    use latpath_settings::{Address, BootState, Disturbance, Persistence, Setting, Writable};
    use latpath_testkit::misfits;

    /// Prints a document, checks it against its schema, and reads it back.
    fn read_back(document: TuneDocument) {
        let value = serde_json::to_value(&document).unwrap();
        let schema = schemars::generate::SchemaSettings::draft2020_12().for_serialize().into_generator();
        let schema = schema.into_root_schema_for::<TuneDocument>().to_value();
        assert_eq!(misfits(&schema, &value), [""; 0]);
        assert_eq!(serde_json::from_value::<TuneDocument>(value).unwrap(), document);
    }

    fn step() -> Planned {
        let place = PlannedPlace {
            target: "eth0".into(),
            address: Address::Machine,
            from: "60".into(),
            command: Some("sysctl vm.swappiness=10".into()),
            undo: None,
            owners: Vec::new(),
        };
        Planned {
            setting: Setting::Swappiness,
            to: "10".into(),
            places: vec![place],
            disturbs: Disturbance::Nothing,
            lasts: Persistence::Reboot,
            why: String::new(),
            source: String::new(),
        }
    }

    fn later() -> Later {
        Later {
            setting: Setting::BootSkewTick,
            target: String::new(),
            from: String::new(),
            to: "1".into(),
            writable: Writable::NextBoot,
            state: Some(BootState::NotGenerated),
            command: None,
            why: String::new(),
            source: String::new(),
        }
    }

    fn plan(steps: Vec<Planned>) -> Plan {
        Plan {
            profile: "quiet".into(),
            interfaces: vec!["eth0".into()],
            isolated: "2-3".parse().ok(),
            housekeeping: None,
            steps,
            later: vec![later()],
            met: Vec::new(),
            skipped: Vec::new(),
            warnings: Vec::new(),
            of: Profile::default(),
            variables: Default::default(),
        }
    }

    fn applied(steps: Vec<AppliedStep>, stopped: Option<Stopped>) -> Applied {
        Applied {
            profile: "quiet".into(),
            subject: "quiet-eth0".into(),
            steps,
            stopped,
            reverted: Vec::new(),
            not_reverted: Vec::new(),
            unconfirmed: false,
        }
    }

    #[test]
    fn what_a_command_prints_is_read_as_it_was() {
        let tuned = Tuned { profile: "quiet".into(), subject: "quiet-eth0".into(), changes: 1, unconfirmed: true };
        let profiles: Vec<ProfileHead> = Profile::all().into_iter().map(Into::into).collect();
        read_back(TuneDocument::Profiles(ProfilesDocument { profiles, applied: Some(vec![tuned]) }));
        read_back(TuneDocument::Profiles(ProfilesDocument { profiles: Vec::new(), applied: None }));
        read_back(TuneDocument::Plan(Box::new(plan(vec![step()]))));
        read_back(TuneDocument::Plan(Box::new(plan(Vec::new()))));
        let stopped = Stopped { cause: StopCause::Traffic, step: step().name(), why: String::new() };
        let made = AppliedStep { step: step(), effect: Some(Effect::default()), failed: None };
        read_back(TuneDocument::Applied(Box::new(applied(vec![made], Some(stopped)))));
        read_back(TuneDocument::Applied(Box::new(applied(Vec::new(), None))));
        read_back(TuneDocument::Drifts(vec![Drift::of(plan(vec![step()]))]));
        read_back(TuneDocument::Drifts(Vec::new()));
    }
}
