//! Labs in the journal: removes the remains of a killed process's lab.

use crate::{error::Result, files::FOLDERS, namespace::LabId};
use latpath_net::Netns;
use latpath_undo::{Entry, Journal, Kind, Lifetime, Outcome, Undo};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::Path,
    sync::{Mutex, PoisonError},
};

/// An object that a lab creates. Its name begins with the lab's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The lab's folder.
    Folder,
    /// A network namespace.
    Namespace {
        /// The end of the namespace's name.
        role: String,
    },
}

/// Removes the remains of labs whose processes have ended.
pub struct Labs;

impl Undo for Labs {
    const KIND: Kind = Kind::Lab;
    type Step = Step;

    fn undo(&self, subject: &str, steps: &[Step]) -> Outcome {
        if !is_lab(subject) {
            return Outcome::Failed(vec!["it names no lab".into()]);
        }
        let (mut done, mut problems) = (Vec::new(), Vec::new());
        for step in steps.iter().rev() {
            match remove(subject, step) {
                Ok(removed) => done.extend(removed.map(|name| format!("removed what a killed lab left: {name}"))),
                Err(why) => problems.push(why),
            }
        }
        match problems.is_empty() {
            true => Outcome::Undone { done, left_alone: Vec::new() },
            false => Outcome::Failed(problems),
        }
    }
}

/// Whether a name is a lab's: `latpath-PID-START-N`.
fn is_lab(name: &str) -> bool {
    let numbers = name.strip_prefix("latpath-").map(|rest| rest.split('-').collect::<Vec<_>>()).unwrap_or_default();
    let is_number = |text: &&str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    numbers.len() == 3 && numbers.iter().all(is_number)
}

/// Removes one object; returns its name if it existed.
fn remove(lab: &str, step: &Step) -> std::result::Result<Option<String>, String> {
    match step {
        Step::Folder => match fs::remove_dir_all(Path::new(FOLDERS).join(lab)) {
            Ok(()) => Ok(Some(lab.into())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(format!("{FOLDERS}/{lab}: {e}")),
        },
        Step::Namespace { role } => {
            let name = format!("{lab}-{role}");
            if Netns::named(&name).is_err() && !Path::new("/run/netns").join(&name).exists() {
                return Ok(None);
            }
            Netns::delete(&name).map(|()| Some(name)).map_err(|e| e.to_string())
        }
    }
}

/// The entry of one lab of this process. When the lab's last part drops it, all remaining objects are removed.
#[derive(Debug)]
pub(crate) struct LabEntry(Mutex<Entry<Step>>);

impl LabEntry {
    pub(crate) fn begin(id: LabId) -> Result<Self> {
        let turn = Journal::of_this_machine().turn()?;
        Ok(Self(Mutex::new(turn.begin::<Labs>(&id.to_string(), Lifetime::Process, "a lab of namespaces")?)))
    }

    /// Records an object that is about to be created.
    pub(crate) fn add(&self, step: Step) -> Result<()> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).add(step)?)
    }
}

impl Drop for LabEntry {
    fn drop(&mut self) {
        // If this fails, the next latpath removes the objects.
        let _ = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).leave(&Labs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lab_is_known_by_its_name() {
        assert!(is_lab(&LabId::next().to_string()));
        for other in
            ["latpath-", "latpath-12", "latpath-x-1-2", "lab-1-2-3", "latpath-1-2-", "latpath-1-2-3-hyp", "../x"]
        {
            assert!(!is_lab(other), "{other}");
            let step = [Step::Folder, Step::Namespace { role: "hyp".into() }];
            assert!(matches!(Labs.undo(other, &step), Outcome::Failed(_)), "{other}");
        }
    }

    #[test]
    fn a_role_that_leads_elsewhere_removes_nothing() {
        for role in ["x/../../../tmp/x", "..", "a/b"] {
            let name = format!("latpath-1-1-1-{role}");
            assert!(Netns::delete(&name).is_err(), "{role}");
        }
    }

    #[test]
    fn a_lab_of_which_nothing_is_left_needs_nothing() {
        let step = [Step::Folder, Step::Namespace { role: "gone".into() }];
        assert_eq!(Labs.undo("latpath-1-1-999999", &step), Outcome::nothing());
    }
}
