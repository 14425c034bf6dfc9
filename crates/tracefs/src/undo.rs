//! Journal entries of tracefs instances: instances made by latpath are removed, others get their old settings back.

use crate::{settings::current, Tracefs};
use latpath_undo::{Kind, Outcome, Undo};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
    time::Duration,
};

/// How often the removal of an instance in use is tried again; [`PAUSE`] is the time between attempts.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// A change of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The instance is about to be made.
    Make,
    /// It was made.
    Made {
        /// Its inode number, which distinguishes it from a later instance with the same name.
        inode: u64,
    },
    /// A setting is about to be changed.
    Set {
        /// Its file, below the instance.
        file: String,
        /// The old value.
        before: String,
        /// The new value; `None` if latpath changes it several times.
        set: Option<String>,
    },
    /// A setting was changed, and the kernel reports a value for it.
    Reads {
        /// Its file, below the instance.
        file: String,
        /// The value reported by the kernel.
        value: String,
    },
}

/// Whether this is a valid name for an instance and for a journal entry.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=200).contains(&name.len()) && !name.starts_with('.') && !name.contains(['/', '\0', '\n'])
}

/// Undoes changes to the instances of this machine's tracefs.
pub struct Instances;

impl Undo for Instances {
    const KIND: Kind = Kind::Tracefs;
    type Step = Step;

    fn undo(&self, subject: &str, steps: &[Step]) -> Outcome {
        // If tracefs is not mounted, opening it mounts it.
        match Tracefs::open() {
            Ok(tracefs) => Below(tracefs.root().join("instances")).undo(subject, steps),
            Err(_) => Outcome::OutOfReach,
        }
    }
}

/// Undoes changes to the instances below a directory.
pub(crate) struct Below(pub(crate) PathBuf);

impl Undo for Below {
    const KIND: Kind = Kind::Tracefs;
    type Step = Step;

    fn undo(&self, subject: &str, steps: &[Step]) -> Outcome {
        if steps.is_empty() {
            return Outcome::nothing();
        }
        if !is_name(subject) {
            return Outcome::Failed(vec!["it names no instance".into()]);
        }
        let (mut left_alone, problems) = undo(&self.0.join(subject), steps);
        if !problems.is_empty() {
            return Outcome::Failed(problems);
        }
        left_alone.iter_mut().for_each(|what| *what = format!("tracefs instance {subject}: {what}"));
        let done = vec![format!("tracefs instance {subject}: undid what a latpath that was killed had left")];
        Outcome::Undone { done, left_alone }
    }
}

/// Removes an instance. The kernel refuses while any process has one of its files open, e.g. one that has just been
/// forked.
fn remove(instance: &Path) -> io::Result<()> {
    let busy = |e: &io::Error| e.raw_os_error() == Some(libc::EBUSY);
    for _ in 0..TRIES {
        match fs::remove_dir(instance) {
            Err(e) if busy(&e) => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
    fs::remove_dir(instance)
}

/// Undoes the steps; returns the settings that other programs have changed since, and the failures.
fn undo(instance: &Path, steps: &[Step]) -> (Vec<String>, Vec<String>) {
    let Ok(there) = fs::metadata(instance) else { return Default::default() };
    let made = steps.iter().rev().find_map(|step| match step {
        Step::Made { inode } => Some(*inode == there.ino()),
        _ => None,
    });
    if made.unwrap_or_else(|| steps.contains(&Step::Make)) {
        // If a process keeps the instance open, it cannot be removed; recording is at least stopped.
        let _ = put(&instance.join("tracing_on"), "0");
        let problem = match remove(instance) {
            Ok(()) => None,
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                Some("it cannot be removed while another process reads it (fuser finds out which)".into())
            }
            Err(e) => Some(format!("it cannot be removed: {e}")),
        };
        return (Vec::new(), problem.into_iter().collect());
    }
    if made == Some(false) {
        // The instance is a later one with the same name.
        return Default::default();
    }
    let (mut left_alone, mut problems) = (Vec::new(), Vec::new());
    let mut undone = Vec::new();
    for step in steps.iter().rev() {
        let Step::Set { file, .. } = step else { continue };
        if undone.contains(&file) {
            continue;
        }
        undone.push(file);
        match put_back(instance, file, steps) {
            // The event's module has been unloaded.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => problems.push(format!("{file} does not have its old value: {e}")),
            Ok(now) => {
                left_alone.extend(now.map(|now| format!("{file} stays {now}: another program has set it since")))
            }
        }
    }
    (left_alone, problems)
}

/// Restores a setting's oldest recorded value. If another program has changed it since, returns its current value
/// instead.
fn put_back(instance: &Path, file: &str, steps: &[Step]) -> io::Result<Option<String>> {
    let is_below = Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
    if !is_below || file.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file is not one of the instance's"));
    }
    let before = steps.iter().find_map(|step| match step {
        Step::Set { file: of, before, .. } if of == file => Some(before),
        _ => None,
    });
    let last = steps.iter().rev().find(|step| match step {
        Step::Set { file: of, .. } | Step::Reads { file: of, .. } => of == file,
        _ => false,
    });
    let path = instance.join(file);
    if let Some(Step::Reads { value, .. }) = last {
        let now = current(&fs::read_to_string(&path)?).unwrap_or_default();
        if now != *value {
            return Ok(Some(now).filter(|now| Some(now) != before));
        }
    }
    before.map_or(Ok(()), |before| put(&path, before))?;
    Ok(None)
}

/// Writes a setting: one write, into an existing file.
pub(crate) fn put(path: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).truncate(true).open(path)?.write_all(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_undo::{Entry, Journal, Lifetime};

    fn set(file: &str, before: &str, set: Option<&str>) -> Step {
        Step::Set { file: file.into(), before: before.into(), set: set.map(Into::into) }
    }

    fn reads(file: &str, value: &str) -> Step {
        Step::Reads { file: file.into(), value: value.into() }
    }

    /// A directory with a journal and an existing instance.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(machine.instance()).unwrap();
            machine
        }

        fn instance(&self) -> PathBuf {
            self.0.path().join("instances/theirs")
        }

        fn journal(&self) -> Journal {
            Journal::at(&self.0.path().join("journal"))
        }

        /// Simulates a process that was killed after these steps.
        fn killed(&self, steps: Vec<Step>) {
            let turn = self.journal().turn().unwrap();
            let mut entry: Entry<Step> = turn.begin::<Below>("theirs", Lifetime::Process, "a test").unwrap();
            steps.into_iter().for_each(|step| entry.add_within(&turn, step).unwrap());
            drop(turn);
            entry.abandon().unwrap();
        }

        fn sweep(&self) -> String {
            self.journal().sweep(&[&Below(self.0.path().join("instances"))]).join("\n")
        }

        fn value(&self, file: &str) -> String {
            fs::read_to_string(self.instance().join(file)).unwrap()
        }
    }

    #[test]
    fn the_next_start_restores_changes_of_a_killed_process() {
        let machine = Machine::new();
        fs::write(machine.instance().join("tracing_on"), "0").unwrap();
        machine.killed(vec![set("tracing_on", "7", None), set("tracing_on", "8", None)]);
        assert_eq!(machine.sweep(), "tracefs instance theirs: undid what a latpath that was killed had left");
        assert_eq!(machine.value("tracing_on"), "7", "the oldest value is back");
        assert!(machine.instance().exists(), "what the user made stays");
        assert_eq!((machine.journal().entries().len(), machine.sweep().as_str()), (0, ""));
    }

    #[test]
    fn later_settings_of_other_programs_remain_and_are_reported() {
        let machine = Machine::new();
        for (now, expected) in [("64", "1408"), ("2048", "2048"), ("1408", "1408")] {
            fs::write(machine.instance().join("buffer_size_kb"), now).unwrap();
            machine.killed(vec![set("buffer_size_kb", "1408", Some("60")), reads("buffer_size_kb", "64")]);
            let said = machine.sweep();
            assert_eq!(machine.value("buffer_size_kb"), expected);
            let is_reported = said.contains("theirs: buffer_size_kb stays 2048: another program has set it since");
            assert_eq!(is_reported, now == "2048", "{said}");
        }
        // Killed before the kernel's value was recorded.
        fs::write(machine.instance().join("buffer_size_kb"), "64").unwrap();
        machine.killed(vec![set("buffer_size_kb", "1408", Some("60"))]);
        machine.sweep();
        assert_eq!(machine.value("buffer_size_kb"), "1408");
    }

    #[test]
    fn only_the_instance_that_was_made_is_removed() {
        for (off, gone) in [(0, true), (1, false)] {
            let machine = Machine::new();
            let inode = fs::metadata(machine.instance()).unwrap().ino() + off;
            machine.killed(vec![Step::Make, Step::Made { inode }]);
            machine.sweep();
            assert_eq!(machine.instance().exists(), !gone);
        }
    }

    #[test]
    fn a_step_leads_nowhere_outside_the_instance() {
        let machine = Machine::new();
        let outside = machine.0.path().join("instances/outside");
        fs::write(&outside, "theirs").unwrap();
        for file in ["../outside", outside.to_str().unwrap(), "", "a/../../outside"] {
            machine.killed(vec![set(file, "ours", None)]);
            let said = machine.sweep();
            assert!(said.contains("the file is not one of the instance's"), "{said}");
            assert_eq!(fs::read_to_string(&outside).unwrap(), "theirs");
        }
    }
}
