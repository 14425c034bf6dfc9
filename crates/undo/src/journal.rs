//! The directory of entries. Only one process at a time may change it.

use crate::{
    record::{file_name, Record},
    Entry, Error, Header, Lifetime, Outcome, Result, Undo, Undoer,
};
use latpath_linux::{private_directory, Directory, RUN_DIRECTORY};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use serde::{de::DeserializeOwned, Serialize};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Name of the directory below [`RUN_DIRECTORY`].
const NAME: &str = "journal";
/// Name of a file that is being written; it is renamed when complete.
const UNFINISHED: &str = ".unfinished";
/// Maximum size of an entry's file, bytes.
const MAX_BYTES: u64 = 4 << 20;
/// Maximum wait for another process. An undo may take seconds, e.g. while a driver brings its link up again.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(5);

/// The changes that latpath has made on a machine.
#[derive(Clone, Debug)]
pub struct Journal(PathBuf);

impl Journal {
    /// The journal of this machine.
    pub fn of_this_machine() -> Self {
        Self(Path::new(RUN_DIRECTORY).join(NAME))
    }

    /// A journal in another directory, for tests.
    pub fn at(directory: &Path) -> Self {
        Self(directory.into())
    }

    /// The journal's directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Locks the journal, creating its directory if it does not exist.
    ///
    /// # Errors
    /// The directory cannot be created or belongs to another user, or another process holds the lock for too long.
    pub fn turn(&self) -> Result<LockedJournal> {
        let failed = |source| Error::Folder { path: self.0.clone(), source };
        // Only the machine's own journal is below a directory that latpath creates.
        if let Some(above) = self.0.parent().filter(|above| *above == Path::new(RUN_DIRECTORY)) {
            private_directory(above).map_err(failed)?;
        }
        private_directory(&self.0).map_err(failed)?;
        let directory = Directory::open(&self.0).map_err(failed)?;
        let mut file = directory.try_clone_file().map_err(failed)?;
        let limit = Instant::now() + PATIENCE;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(LockedJournal { journal: self.clone(), directory, lock }),
                Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) if Instant::now() < limit => file = back,
                Err((_, Errno::EWOULDBLOCK)) => {
                    return Err(Error::Locked { path: self.0.clone(), seconds: PATIENCE.as_secs() })
                }
                Err((_, e)) => return Err(failed(e.into())),
            }
            thread::sleep(PAUSE);
        }
    }

    /// Undoes the changes of processes that have ended. Returns messages for the user about changes that were undone
    /// and changes that could not be undone.
    pub fn sweep(&self, undoers: &[&dyn Undoer]) -> Vec<String> {
        self.undo(undoers, |header| header.lifetime == Lifetime::Process && !header.is_needed())
    }

    /// Undoes the selected entries at a user's request, including those of other processes and of
    /// [`Lifetime::Request`], but not those of [`Lifetime::Boot`]. Returns messages for the user about changes that
    /// were undone and changes that could not be undone.
    pub fn undo(&self, undoers: &[&dyn Undoer], selects: impl Fn(&Header) -> bool) -> Vec<String> {
        // The lock is not needed yet: entries' files are replaced atomically, and usually there is nothing to undo.
        let Ok(directory) = Directory::open(&self.0) else { return Vec::new() };
        let selects = |header: &Header| header.lifetime != Lifetime::Boot && selects(header);
        let is_due = |name: &OsString| match read(&directory, name) {
            Ok(Some(record)) => selects(&record.header) || !record.header.is_of_this_boot(),
            Ok(None) => false,
            Err(_) => true,
        };
        let due: Vec<OsString> = names(&directory).into_iter().filter(is_due).collect();
        if due.is_empty() {
            return Vec::new();
        }
        let turn = match self.turn() {
            Ok(turn) => turn,
            Err(error) => return vec![error.to_string()],
        };
        due.iter().flat_map(|name| turn.undo(name, undoers, selects)).collect()
    }

    /// The headers of all entries; errors for unreadable ones.
    pub fn entries(&self) -> Vec<Result<Header>> {
        let Ok(directory) = Directory::open(&self.0) else { return Vec::new() };
        let read = |name: OsString| Ok(read(&directory, &name)?.map(|record| record.header));
        names(&directory).into_iter().filter_map(|name| read(name).transpose()).collect()
    }
}

/// The locked journal; no other process can change it.
pub struct LockedJournal {
    journal: Journal,
    directory: Directory,
    lock: Flock<File>,
}

impl LockedJournal {
    /// The entry of a subject, if a running process needs it or its lifetime is longer than its processes'. The caller
    /// does not have a share in it yet. An entry that is no longer needed is undone, and not returned.
    ///
    /// # Errors
    /// The entry cannot be read, or cannot be undone.
    pub fn needed<U: Undo>(&self, undoer: &U, subject: &str) -> Result<Option<Entry<U::Step>>> {
        let Some(entry) = self.find::<U>(subject)? else { return Ok(None) };
        if !entry.header().is_of_this_boot() {
            self.remove(&self.name::<U>(subject)?)?;
            return Ok(None);
        }
        if entry.header().is_needed() || entry.header().lifetime != Lifetime::Process {
            return Ok(Some(entry));
        }
        let subject_of_kind = format!("{} {subject}", U::KIND.name());
        let not_undone = |problems| Error::NotUndone { subject: subject_of_kind.clone(), problems };
        match undoer.undo(subject, entry.steps()) {
            Outcome::Undone { .. } => self.remove(&self.name::<U>(subject)?).map(|()| None),
            Outcome::Failed(problems) => Err(not_undone(problems)),
            Outcome::OutOfReach => Err(not_undone(vec!["it cannot be reached from here".into()])),
        }
    }

    /// The entry of a subject, whether or not it is still needed.
    ///
    /// # Errors
    /// The entry cannot be read.
    pub fn find<U: Undo>(&self, subject: &str) -> Result<Option<Entry<U::Step>>> {
        self.read(&self.name::<U>(subject)?)
    }

    /// Undoes the entry of a subject at a user's request, whatever its lifetime, and removes it if nothing remains to
    /// be undone. Returns `None` if the subject has no entry from this boot.
    ///
    /// # Errors
    /// The entry cannot be read or removed.
    pub fn end<U: Undo>(&self, undoer: &U, subject: &str) -> Result<Option<Outcome>> {
        let Some(entry) = self.find::<U>(subject)? else { return Ok(None) };
        let name = self.name::<U>(subject)?;
        if !entry.header().is_of_this_boot() {
            return self.remove(&name).map(|()| None);
        }
        let outcome = undoer.undo(subject, entry.steps());
        if matches!(outcome, Outcome::Undone { .. }) {
            self.remove(&name)?;
        }
        Ok(Some(outcome))
    }

    pub(crate) fn read<S: Serialize + DeserializeOwned>(&self, name: &str) -> Result<Option<Entry<S>>> {
        let Some(record) = read(&self.directory, OsStr::new(name))? else { return Ok(None) };
        Entry::read(&self.journal, record).map(Some).map_err(|why| self.damaged(OsStr::new(name), why))
    }

    /// Begins an entry for a subject, owned by this process. Add each step before making its change.
    ///
    /// # Errors
    /// The entry cannot be written, or the subject cannot be part of a file name.
    pub fn begin<U: Undo>(&self, subject: &str, lifetime: Lifetime, reason: &str) -> Result<Entry<U::Step>> {
        self.name::<U>(subject)?;
        let header = Header::new(U::KIND.name(), subject, lifetime, reason);
        let entry = Entry::new(&self.journal, header);
        self.write(&entry.record(&[])?)?;
        Ok(entry)
    }

    fn name<U: Undo>(&self, subject: &str) -> Result<String> {
        file_name(U::KIND.name(), subject).ok_or_else(|| Error::Subject(subject.into()))
    }

    /// Undoes an entry if it is still selected.
    fn undo(&self, name: &OsStr, undoers: &[&dyn Undoer], selects: impl Fn(&Header) -> bool) -> Vec<String> {
        let Record { header, steps } = match read(&self.directory, name) {
            Ok(Some(record)) => record,
            Ok(None) => return Vec::new(),
            Err(error) => return vec![error.to_string()],
        };
        let removed = || self.remove(&name.to_string_lossy()).err().map(|error| error.to_string());
        if !header.is_of_this_boot() {
            return removed().into_iter().collect();
        }
        if !selects(&header) {
            return Vec::new();
        }
        let Some(undoer) = undoers.iter().find(|undoer| undoer.kind().name() == header.kind) else {
            return Vec::new();
        };
        match undoer.undo_read(&header, &steps) {
            Ok(Outcome::Undone { done, left_alone }) => done.into_iter().chain(left_alone).chain(removed()).collect(),
            Ok(Outcome::Failed(problems)) => {
                let Header { kind, subject, .. } = &header;
                vec![format!("{kind} {subject}: left by a latpath that was killed; {}", problems.join("; "))]
            }
            Ok(Outcome::OutOfReach) => Vec::new(),
            Err(error) => vec![self.damaged(name, error.to_string()).to_string()],
        }
    }

    /// Writes a complete entry, replacing any existing one.
    pub(crate) fn write(&self, record: &Record) -> Result<()> {
        let name = format!("{}-{}", record.header.kind, record.header.subject);
        let write = || -> io::Result<()> {
            let mut file = self.directory.new_file(UNFINISHED)?;
            file.write_all(record.text()?.as_bytes())?;
            file.sync_all()?;
            self.directory.rename(UNFINISHED, &name)?;
            self.lock.sync_all()
        };
        write().map_err(|source| self.failed(&name, source))
    }

    /// Adds a line to an entry's file; returns `false` if the file was removed.
    pub(crate) fn append(&self, name: &str, line: &str) -> Result<bool> {
        let append = || -> io::Result<bool> {
            match self.directory.open_file(name) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
                found => drop(found?),
            }
            let mut file = self.directory.append(name)?;
            file.write_all(line.as_bytes())?;
            file.sync_all()?;
            Ok(true)
        };
        append().map_err(|source| self.failed(name, source))
    }

    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        match self.directory.remove(name) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(self.failed(name, e)),
            _ => Ok(()),
        }
    }

    fn failed(&self, name: &str, source: io::Error) -> Error {
        Error::File { path: self.directory.join(name), source }
    }

    fn damaged(&self, name: &OsStr, why: String) -> Error {
        Error::Damaged { path: self.directory.join(name), why }
    }
}

/// The names of all entries.
fn names(directory: &Directory) -> Vec<OsString> {
    let mut names = directory.names().unwrap_or_default();
    names.retain(|name| !name.as_encoded_bytes().starts_with(b"."));
    names.sort_unstable();
    names
}

/// Reads the entry of this name; `None` if it does not exist.
fn read(directory: &Directory, name: &OsStr) -> Result<Option<Record>> {
    let path = || directory.join(name);
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        directory.open_file(name)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = match read() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::File { path: path(), source }),
        Ok(bytes) => bytes,
    };
    let parse = || {
        let name = name.to_str().ok_or("its name is no text")?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(format!("it is longer than {MAX_BYTES} bytes"));
        }
        Record::parse(name, std::str::from_utf8(&bytes).map_err(|e| e.to_string())?)
    };
    parse().map(Some).map_err(|why| Error::Damaged { path: path(), why })
}
