//! A named instance of tracefs with its own buffers, events and switches.

use crate::{
    save::{self, Saved},
    settings::{mask, Settings},
    undo::{is_name, Below, Step},
    Error, Result, Tracefs,
};
use latpath_linux::Directory;
use latpath_undo::{Entry, Journal, Lifetime, Outcome};
use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

/// Options of an instance.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Events to enable: `system:event`, `system:ev*`, or `system` for all events of the system.
    pub events: Vec<String>,
    /// Tracer, e.g. `function`; `None` to leave it unchanged.
    pub tracer: Option<String>,
    /// Size of each CPU's buffer, KiB; `None` to leave it unchanged. A snapshot doubles the memory.
    pub buffer_kb: Option<u64>,
    /// The CPUs to record; empty to leave them unchanged.
    pub cpus: Vec<u32>,
    /// Whether to allocate the memory for snapshots.
    pub snapshot: bool,
}

/// Maximum length of a mark, bytes; since Linux 5.15, trace_marker accepts more.
pub const LONGEST_MARK: usize = 1000;

/// An instance in use. Dropping it removes it if latpath made it, and otherwise restores its settings.
#[derive(Debug)]
pub struct Instance {
    tracefs: Tracefs,
    name: String,
    shown: PathBuf,
    made: bool,
    notes: Vec<String>,
    /// Open files, which are closed first because they prevent the instance's removal.
    open: Option<Switches>,
    snapped: AtomicBool,
    undo: Entry<Step>,
}

/// Files that are kept open, so that each use costs a single system call.
#[derive(Debug)]
struct Switches {
    marker: File,
    on: File,
    snapshot: Option<File>,
}

impl Instance {
    /// Uses the instance with this name, or makes it, with `CLOCK_MONOTONIC` as its clock. First undoes the changes
    /// made by a killed process.
    ///
    /// An existing instance keeps all settings that the options do not name, including its clock. Only one latpath at a
    /// time uses an instance.
    ///
    /// # Errors
    /// tracefs cannot be opened, another latpath uses the instance, or the kernel rejects a setting.
    pub fn open_or_make(name: &str, options: &Options) -> Result<Self> {
        Self::within(Tracefs::open()?, &Journal::of_this_machine(), name, options)
    }

    /// Whether the user has an instance with this name. Instances left by a killed latpath do not count, because they
    /// will be removed.
    pub fn is_there(name: &str) -> bool {
        let Ok(tracefs) = Tracefs::open() else { return false };
        if !is_name(name) {
            return false;
        }
        // The journal stays locked until the check is done, so that no other process removes the instance meanwhile.
        let turn = Journal::of_this_machine().turn();
        let entry = turn.as_ref().ok().and_then(|turn| turn.find::<Below>(name).ok()?);
        let will_go = entry.is_some_and(|entry| !entry.header().is_needed() && entry.steps().contains(&Step::Make));
        !will_go && tracefs.root().join("instances").join(name).is_dir()
    }

    fn within(tracefs: Tracefs, journal: &Journal, name: &str, options: &Options) -> Result<Self> {
        if !is_name(name) {
            return Err(Error::Name(name.into()));
        }
        let reason = format!("records in the tracefs instance {name}");
        let undoer = Below(tracefs.root().join("instances"));
        let mut notes = Vec::new();
        let undo = match journal.turn() {
            Ok(turn) => match turn.needed(&undoer, name)? {
                Some(entry) => {
                    let users = entry.header().owners.iter().map(|owner| owner.pid.to_string());
                    let pid = users.collect::<Vec<_>>().join(", ");
                    return Err(Error::InUse { name: name.into(), pid });
                }
                None => turn.begin::<Below>(name, Lifetime::Process, &reason)?,
            },
            Err(e) => {
                notes.push(format!("{e}; after a kill, tracefs instance {name} would stay"));
                Entry::in_memory::<Below>(name, &reason)
            }
        };
        let shown = tracefs.path().join("instances").join(name);
        let mut instance = Self {
            tracefs,
            name: name.into(),
            shown,
            made: false,
            notes,
            open: None,
            snapped: AtomicBool::new(false),
            undo,
        };
        // From here on, an error drops the instance, which undoes everything.
        instance.begin(options)?;
        Ok(instance)
    }

    fn begin(&mut self, options: &Options) -> Result<()> {
        let directory = self.directory();
        self.made = self.make(&directory)?;
        let undo = (!self.made).then_some(&mut self.undo);
        let mut settings = Settings { directory: &directory, shown: &self.shown, undo, notes: Vec::new() };
        if self.made {
            // The trace then uses the same clock as latpath.
            settings.set("trace_clock", "mono")?;
        } else if let Some(clock) = settings.get("trace_clock")?.filter(|clock| clock != "mono") {
            let file = self.shown.join("trace_clock");
            settings.notes.push(format!("{}: times in the trace are by {clock}, not by mono", file.display()));
        }
        if let Some(kb) = options.buffer_kb {
            settings.set("buffer_size_kb", &kb.to_string())?;
        }
        if !options.cpus.is_empty() {
            settings.set("tracing_cpumask", &mask(&options.cpus))?;
        }
        if let Some(tracer) = &options.tracer {
            settings.set("current_tracer", tracer)?;
        }
        let snapshots = options.snapshot && settings.prepare_snapshot()?;
        for event in &options.events {
            settings.enable(event)?;
        }
        let on = settings.get("tracing_on")?.unwrap_or_default();
        settings.keep("tracing_on", on)?;
        settings.write("tracing_on", "1")?;
        self.notes.append(&mut settings.notes);
        let writable = |file: &str| {
            let opened = OpenOptions::new().write(true).open(directory.join(file));
            opened.map_err(Error::file(self.shown.join(file)))
        };
        self.open = Some(Switches {
            marker: writable("trace_marker")?,
            on: writable("tracing_on")?,
            snapshot: if snapshots { Some(writable("snapshot")?) } else { None },
        });
        Ok(())
    }

    /// Makes the instance unless it exists; returns whether it was made.
    fn make(&mut self, directory: &Path) -> Result<bool> {
        if directory.exists() {
            return Ok(false);
        }
        self.undo.add(Step::Make)?;
        match fs::create_dir(directory) {
            Ok(()) => {}
            // Another process made it first.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(self.undo.forget().map(|()| false)?),
            Err(source) => return Err(Error::File { path: self.shown.clone(), source }),
        }
        let inode = fs::metadata(directory).map_err(Error::file(&self.shown))?.ino();
        self.undo.add(Step::Made { inode })?;
        Ok(true)
    }

    fn directory(&self) -> PathBuf {
        self.tracefs.root().join("instances").join(&self.name)
    }

    fn switches(&self) -> &Switches {
        // `None` only before the end of `begin` and after the start of `undo`.
        self.open.as_ref().expect("an instance that was begun and not undone")
    }

    /// Name of its directory below `instances`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its path as shown to the user, valid while this process runs.
    pub fn path(&self) -> &Path {
        &self.shown
    }

    /// Whether latpath made it, and removes it when it is closed.
    pub fn made(&self) -> bool {
        self.made
    }

    /// Notes for the reader of a result: missing events, unavailable snapshots, leftovers of a killed process.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Writes text into the trace: one mark per line; lines longer than [`LONGEST_MARK`] are split into several.
    ///
    /// # Errors
    /// [`Error::Mark`] if the kernel rejects a mark.
    pub fn mark(&self, text: &str) -> Result<()> {
        let mut marker = &self.switches().marker;
        for piece in text.lines().flat_map(pieces) {
            // Each mark is a single write, which tracefs accepts completely or not at all.
            let written = marker.write(piece.as_bytes());
            written.map_err(|source| Error::Mark { path: self.shown.join("trace_marker"), source })?;
        }
        Ok(())
    }

    /// Takes a snapshot of the recorded events; recording continues in an empty buffer. Returns false if the kernel has
    /// no snapshots or the options did not request them. A second snapshot replaces the first.
    ///
    /// # Errors
    /// [`Error::File`] if the kernel cannot take the snapshot.
    pub fn snapshot(&self) -> Result<bool> {
        let Some(mut file) = self.switches().snapshot.as_ref() else { return Ok(false) };
        file.write_all(b"1").map_err(Error::file(self.shown.join("snapshot")))?;
        self.snapped.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// Stops recording; recorded events remain.
    ///
    /// # Errors
    /// [`Error::File`] if `tracing_on` cannot be written.
    pub fn stop(&self) -> Result<()> {
        let mut on = &self.switches().on;
        on.write_all(b"0").map_err(Error::file(self.shown.join("tracing_on")))
    }

    /// Saves the recorded events as text, and any snapshot in a second file (`FILE.snapshot`). Each file is limited to
    /// `most` bytes by omitting the oldest events, which is reported in the file and in the result. Call [`Self::stop`]
    /// first.
    ///
    /// # Errors
    /// The trace cannot be read, or the output file cannot be written.
    pub fn save(&self, to: (&Directory, &OsStr), most: u64) -> Result<Saved> {
        save::save(&self.directory(), &self.shown, self.snapped.load(Ordering::Relaxed), to, most)
    }

    /// Undoes all changes, and reports failures.
    ///
    /// # Errors
    /// [`Error::NotUndone`] with the changes that could not be undone.
    pub fn close(mut self) -> Result<()> {
        self.undo_all()
    }

    fn undo_all(&mut self) -> Result<()> {
        self.open = None;
        self.made = false;
        let problems = match self.undo.leave(&Below(self.tracefs.root().join("instances")))? {
            Outcome::Undone { left_alone, .. } => {
                left_alone.iter().for_each(|what| eprintln!("latpath: {what}"));
                return Ok(());
            }
            Outcome::Failed(problems) => problems,
            Outcome::OutOfReach => Vec::new(),
        };
        Err(Error::NotUndone { name: self.name.clone(), problems })
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.undo_all();
    }
}

/// Splits a line into pieces no longer than a mark.
fn pieces(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        let mut end = rest.len().min(LONGEST_MARK);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (piece, after) = rest.split_at(end);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files that represent a tracefs with one instance.
    fn theirs(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let instance = root.path().join("instances/theirs");
        let defaults =
            [("trace_clock", "[local] mono\n"), ("tracing_on", "0\n"), ("trace_marker", ""), ("trace", "# t\nx\n")];
        for (file, text) in defaults.iter().chain(files) {
            let path = instance.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn get(root: &tempfile::TempDir, file: &str) -> String {
        fs::read_to_string(root.path().join("instances/theirs").join(file)).unwrap().trim().to_owned()
    }

    #[test]
    fn a_users_instance_gets_back_changed_settings_and_keeps_the_rest() {
        let (on, off) = ("events/sched/on/enable", "events/sched/off/enable");
        let root = theirs(&[
            ("buffer_size_kb", "7 (expanded: 1408)\n"),
            ("tracing_cpumask", "3\n"),
            (on, "1\n"),
            (off, "0*\n"),
            ("snapshot", "# * Snapshot is freed *\n"),
        ]);
        let folder = tempfile::tempdir().unwrap();
        let options =
            Options { events: vec!["sched".into()], buffer_kb: Some(64), cpus: vec![1], snapshot: true, tracer: None };
        let open = || {
            let journal = Journal::at(folder.path());
            Instance::within(Tracefs::stand_in(root.path()), &journal, "theirs", &options).unwrap()
        };
        let instance = open();
        let now = |file| get(&root, file);
        assert_eq!((now("buffer_size_kb"), now("tracing_cpumask")), ("64".into(), "00000002".into()));
        assert_eq!((now(on), now(off), now("tracing_on")), ("1".into(), "1".into(), "1".into()));
        assert!(instance.notes().iter().any(|n| n.contains("by local, not by mono")), "{:?}", instance.notes());
        assert!(!instance.made());
        instance.mark("late").unwrap();
        assert!(instance.snapshot().unwrap());
        instance.stop().unwrap();
        assert_eq!((now("trace_marker"), now("tracing_on")), ("late".into(), "0".into()));
        let saved = instance.save((&Directory::open(folder.path()).unwrap(), OsStr::new("saved")), 1 << 20).unwrap();
        assert_eq!(saved.files.len(), 2, "the trace and the snapshot");
        instance.close().unwrap();
        assert_eq!((now("buffer_size_kb"), now("tracing_cpumask")), ("1408".into(), "3".into()));
        assert_eq!((now(on), now(off), now("tracing_on")), ("1".into(), "0".into(), "0".into()));
        assert_eq!((now("snapshot"), now("trace_clock")), ("0".into(), "[local] mono".into()));
    }

    #[test]
    fn a_long_line_is_several_marks() {
        let line = "é".repeat(LONGEST_MARK) + "x";
        let marks: Vec<_> = pieces(&line).collect();
        assert!(marks.iter().all(|m| !m.is_empty() && m.len() <= LONGEST_MARK));
        assert_eq!(marks.concat(), line);
        assert_eq!(pieces("").count(), 0);
    }

    #[test]
    fn a_name_with_a_path_is_refused() {
        let root = theirs(&[]);
        let folder = tempfile::tempdir().unwrap();
        for name in ["", "..", "a/b", ".hidden", "a\nb", &"x".repeat(201)] {
            let options = Options::default();
            let journal = Journal::at(folder.path());
            let error = Instance::within(Tracefs::stand_in(root.path()), &journal, name, &options).unwrap_err();
            assert!(matches!(error, Error::Name(_)), "{name}: {error}");
        }
    }
}
