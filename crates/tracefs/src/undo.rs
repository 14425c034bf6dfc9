//! What must be put back, kept where the next start finds it if this process is killed.

use crate::{Error, Result};
use latpath_linux::{private_directory, UNDO};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Component, Path, PathBuf},
    time::Duration,
};

/// Where the files are. They belong to a boot: tracefs forgets everything with it.
pub(crate) const FOLDER: &str = UNDO;
/// A file is named by its instance, with this before it.
const PREFIX: &str = "tracefs-";
/// More than any file of ours; what is longer is not ours.
const LONGEST: u64 = 4 << 20;
/// How often a file is tried that comes and goes.
const TRIES: u32 = 100;
/// How often, and how long each time, a lock is waited for: of a process that is named, for it may just be gone; and of one
/// that is not, which undoes what a killed one left (the kernel takes its time to remove an instance).
pub(crate) const WAITS: [u32; 2] = [10, 300];
const WAIT: Duration = Duration::from_millis(10);

/// One thing to undo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The instance is about to be made: it was not there.
    Make,
    /// It was made, and has this inode number.
    Made(u64),
    /// A setting, by its file below the instance, and what it was.
    Set { file: String, before: String },
}

impl Step {
    fn line(&self) -> String {
        match self {
            Self::Make => "make".into(),
            Self::Made(inode) => format!("made {inode}"),
            Self::Set { file, before } => format!("set {file}\t{before}"),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        if line == "make" {
            return Some(Self::Make);
        }
        if let Some(inode) = line.strip_prefix("made ") {
            return inode.parse().ok().map(Self::Made);
        }
        let (file, before) = line.strip_prefix("set ")?.split_once('\t')?;
        let within = Path::new(file).components().all(|c| matches!(c, Component::Normal(_)));
        (within && !file.is_empty()).then(|| Self::Set { file: file.into(), before: before.into() })
    }
}

/// Whether an instance, and a file of ours, can have this name.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=200).contains(&name.len()) && !name.starts_with('.') && !name.contains(['/', '\0', '\n'])
}

/// The file of one instance, locked while this process lives.
#[derive(Debug)]
pub(crate) struct Undo {
    /// `None` where it cannot be kept: then a drop undoes, and a kill leaves what there is.
    file: Option<(Flock<File>, PathBuf)>,
    steps: Vec<Step>,
}

/// Why an instance's file could not be taken.
#[derive(Debug)]
pub(crate) enum Taken {
    /// A process that lives has it.
    By { pid: String },
    /// The file cannot be made.
    Io(io::Error),
}

impl Undo {
    /// Takes the instance's file, for one who `uses` the instance or only looks or sweeps. What it holds already was left by a
    /// process that was killed, or could not undo it.
    pub fn take(folder: &Path, name: &str, uses: bool, waits: &[u32; 2]) -> std::result::Result<Self, Taken> {
        private_directory(folder).map_err(Taken::Io)?;
        let path = folder.join(format!("{PREFIX}{name}"));
        let mut waited = 0;
        // The file that we opened may have been removed by its last holder before we had the lock.
        for _ in 0..TRIES + waits[1] {
            let mut open = OpenOptions::new();
            open.read(true).append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
            let file = open.open(&path).map_err(Taken::Io)?;
            let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => file,
                Err((file, Errno::EWOULDBLOCK)) => {
                    let text = read(&file).unwrap_or_default();
                    let pid = value(&text, "pid ");
                    if waited >= waits[usize::from(pid.is_none())] {
                        return Err(Taken::By { pid: pid.unwrap_or("unknown").to_owned() });
                    }
                    waited += 1;
                    std::thread::sleep(WAIT);
                    continue;
                }
                Err((_, error)) => return Err(Taken::Io(error.into())),
            };
            let inode = file.metadata().map_err(Taken::Io)?.ino();
            if !fs::metadata(&path).is_ok_and(|m| m.ino() == inode) {
                continue;
            }
            let text = read(&file).map_err(Taken::Io)?;
            let steps = if value(&text, "boot ") == Some(boot().as_str()) { steps(&text) } else { Vec::new() };
            begin(&mut file, &steps, uses).map_err(Taken::Io)?;
            return Ok(Self { file: Some((file, path)), steps });
        }
        Err(Taken::Io(io::Error::other("the file comes and goes")))
    }

    /// Keeps the steps in memory alone.
    pub fn in_memory() -> Self {
        Self { file: None, steps: Vec::new() }
    }

    /// Adds a step, before what it undoes is done.
    pub fn add(&mut self, step: Step) -> Result<()> {
        if let Some((file, path)) = &mut self.file {
            file.write_all((step.line() + "\n").as_bytes()).map_err(Error::file(path.as_path()))?;
        }
        self.steps.push(step);
        Ok(())
    }

    /// Whether there is nothing to undo.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether the instance itself is to go.
    pub fn makes(&self) -> bool {
        self.steps.contains(&Step::Make)
    }

    /// Leaves nothing to undo.
    pub fn forget(&mut self) -> Result<()> {
        self.steps.clear();
        let Some((file, path)) = &mut self.file else { return Ok(()) };
        begin(file, &[], true).map_err(Error::file(path.as_path()))
    }

    /// Undoes everything, the last step first; returns what could not be undone, and why.
    pub fn undo(&mut self, instance: &Path) -> Vec<String> {
        let mut problems = undo(instance, &self.steps);
        if problems.is_empty() {
            problems.extend(self.forget().err().map(|e| e.to_string()));
        }
        problems
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some((_, path)) = self.file.as_ref().filter(|_| self.steps.is_empty()) {
            let _ = fs::remove_file(path);
        }
    }
}

/// The file as it is with these steps. It names the process that uses the instance, not one that only undoes it.
fn begin(file: &mut File, steps: &[Step], uses: bool) -> io::Result<()> {
    file.set_len(0)?;
    let mut all = format!("boot {}\n", boot());
    if uses {
        all += &format!("pid {}\n", std::process::id());
    }
    steps.iter().for_each(|step| all += &(step.line() + "\n"));
    file.write_all(all.as_bytes())
}

/// Whether there are files of anybody's, living or killed.
pub(crate) fn is_any(folder: &Path) -> bool {
    let ours = |entry: fs::DirEntry| entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
    fs::read_dir(folder).into_iter().flatten().flatten().any(ours)
}

/// Undoes what processes left that are no more. Says what it did, and what it could not.
pub(crate) fn sweep(folder: &Path, instances: &Path) -> Vec<String> {
    let mut notes = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|n| n.strip_prefix(PREFIX)).filter(|n| is_name(n)) else { continue };
        // Whoever has it lives, or sweeps too.
        let Ok(mut left) = Undo::take(folder, name, false, &[0, 0]) else { continue };
        if left.is_empty() {
            continue;
        }
        let problems = left.undo(&instances.join(name));
        if problems.is_empty() {
            notes.push(format!("tracefs instance {name}: undid what a latpath that was killed had left"));
        } else {
            notes.push(format!("tracefs instance {name}: left by a latpath that was killed; {}", problems.join("; ")));
        }
    }
    notes
}

/// Removes an instance. The kernel refuses while a file of it is open anywhere, be it in a process that has just forked.
fn remove(instance: &Path) -> io::Result<()> {
    let busy = |e: &io::Error| e.raw_os_error() == Some(libc::EBUSY);
    for _ in 0..WAITS[0] {
        match fs::remove_dir(instance) {
            Err(e) if busy(&e) => std::thread::sleep(WAIT),
            done => return done,
        }
    }
    fs::remove_dir(instance)
}

fn undo(instance: &Path, steps: &[Step]) -> Vec<String> {
    let Ok(there) = fs::metadata(instance) else { return Vec::new() };
    let made = steps.iter().rev().find_map(|step| match step {
        Step::Made(inode) => Some(*inode == there.ino()),
        _ => None,
    });
    let ours = made.unwrap_or_else(|| steps.contains(&Step::Make));
    if ours {
        // Should someone hold it open, it costs no more.
        let _ = put(&instance.join("tracing_on"), "0");
        return match remove(instance) {
            Ok(()) => Vec::new(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                vec!["it cannot be removed while another process reads it (fuser finds out which)".into()]
            }
            Err(e) => vec![format!("it cannot be removed: {e}")],
        };
    }
    if made == Some(false) {
        // Another one of this name by now.
        return Vec::new();
    }
    let mut problems = Vec::new();
    for step in steps.iter().rev() {
        let Step::Set { file, before } = step else { continue };
        match put(&instance.join(file), before) {
            // An event whose module went.
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                problems.push(format!("{file} is not {before} again: {e}"))
            }
            _ => {}
        }
    }
    problems
}

/// Writes a setting: one write, into a file that is there.
pub(crate) fn put(path: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).truncate(true).open(path)?.write_all(value.as_bytes())
}

fn read(file: &File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|l| l.strip_prefix(key))
}

/// Whole lines only: a kill may have cut the last.
fn steps(text: &str) -> Vec<Step> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().filter_map(Step::parse).collect()
}

fn boot() -> String {
    latpath_linux::proc::boot_id()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(file: &str, before: &str) -> Step {
        Step::Set { file: file.into(), before: before.into() }
    }

    /// As a kill leaves it: unlocked, not removed.
    fn killed(undo: Undo) {
        let path = undo.file.as_ref().unwrap().1.clone();
        let text = fs::read(&path).unwrap();
        drop(undo);
        fs::write(path, text).unwrap();
    }

    #[test]
    fn what_a_killed_process_changed_is_put_back_by_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let instances = tempfile::tempdir().unwrap();
        let instance = instances.path().join("theirs");
        fs::create_dir(&instance).unwrap();
        fs::write(instance.join("tracing_on"), "0").unwrap();
        let mut undo = Undo::take(folder.path(), "theirs", true, &WAITS).unwrap();
        undo.add(set("tracing_on", "7")).unwrap();
        undo.add(set("tracing_on", "8")).unwrap();
        killed(undo);
        let notes = sweep(folder.path(), instances.path());
        assert!(notes.len() == 1 && notes[0].contains("theirs: undid"), "{notes:?}");
        assert_eq!(fs::read_to_string(instance.join("tracing_on")).unwrap(), "7", "the oldest value stands");
        assert!(instance.exists(), "what the user made stays");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(sweep(folder.path(), instances.path()).is_empty());
    }

    #[test]
    fn only_the_instance_that_we_made_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let instances = tempfile::tempdir().unwrap();
        for (name, off, gone) in [("a", 0, true), ("b", 1, false)] {
            let instance = instances.path().join(name);
            fs::create_dir(&instance).unwrap();
            let inode = fs::metadata(&instance).unwrap().ino();
            let mut undo = Undo::take(folder.path(), name, true, &WAITS).unwrap();
            undo.add(Step::Make).unwrap();
            undo.add(Step::Made(inode + off)).unwrap();
            assert_eq!(sweep(folder.path(), instances.path()).len(), 0, "a locked file is another's");
            assert_eq!(undo.undo(&instance), [""; 0]);
            assert_eq!(instance.exists(), !gone);
        }
    }

    #[test]
    fn an_instance_has_one_user() {
        let folder = tempfile::tempdir().unwrap();
        let first = Undo::take(folder.path(), "a", true, &WAITS).unwrap();
        match Undo::take(folder.path(), "a", true, &WAITS) {
            Err(Taken::By { pid }) => assert_eq!(pid, std::process::id().to_string()),
            other => panic!("{other:?}"),
        }
        drop(first);
        assert!(Undo::take(folder.path(), "a", true, &WAITS).is_ok());
    }

    #[test]
    fn an_earlier_boots_file_undoes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tracefs-a");
        fs::write(&file, "boot other\npid 1\nmake\n").unwrap();
        assert!(Undo::take(folder.path(), "a", true, &WAITS).unwrap().is_empty());
        fs::write(&file, format!("boot {}\npid 1\nmake\n", boot())).unwrap();
        assert!(!Undo::take(folder.path(), "a", true, &WAITS).unwrap().is_empty());
    }

    #[test]
    fn a_step_leads_nowhere_outside_the_instance() {
        for line in ["set ../../x\t1", "set /etc/passwd\t1", "set \t1", "set a", "made x", "", "set a/../b\t1"] {
            assert_eq!(Step::parse(line), None, "{line}");
        }
        assert_eq!(steps("make\nset tracing_on\t1\nset trac"), [Step::Make, set("tracing_on", "1")]);
    }

    proptest! {
        #[test]
        fn steps_read_back_as_written(file in "[a-z_]{1,9}(/[a-z_]{1,9}){0,3}", before in "[ -~]{0,40}", inode: u64) {
            for step in [set(&file, &before), Step::Made(inode), Step::Make] {
                prop_assert_eq!(Step::parse(&step.line()), Some(step));
            }
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,200}") {
            steps(&text);
        }
    }
}
