//! The entry of a subject, as used by a process that changes it.

use crate::{
    journal::{Journal, LockedJournal},
    record::{line, Header, Record},
    Error, Lifetime, Outcome, Owner, Result, Undo,
};
use serde::{de::DeserializeOwned, Serialize};
use serde_json::Value;

/// The changes of a subject. If it is dropped without [`Entry::leave`], the changes remain until this process ends, and
/// the next sweep then undoes them.
#[derive(Debug)]
pub struct Entry<S> {
    /// `None` if the journal cannot be written; the changes then remain after a kill.
    journal: Option<Journal>,
    header: Header,
    steps: Vec<S>,
}

impl<S: Serialize + DeserializeOwned> Entry<S> {
    pub(crate) fn new(journal: &Journal, header: Header) -> Self {
        Self { journal: Some(journal.clone()), header, steps: Vec::new() }
    }

    pub(crate) fn read(journal: &Journal, record: Record) -> std::result::Result<Self, String> {
        let step = |(at, step): (usize, &Value)| S::deserialize(step).map_err(|e| format!("step {}: {e}", at + 1));
        let steps = record.steps.iter().enumerate().map(step).collect::<std::result::Result<_, _>>()?;
        Ok(Self { journal: Some(journal.clone()), header: record.header, steps })
    }

    /// Creates an entry without a file, for a user who may not write the journal: [`Entry::leave`] undoes it, but its
    /// changes remain after a kill.
    pub fn in_memory<U: Undo<Step = S>>(subject: &str, reason: &str) -> Self {
        let header = Header::new(U::KIND.name(), subject, Lifetime::Process, reason);
        Self { journal: None, header, steps: Vec::new() }
    }

    /// The entry's subject, owners and reason.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The changes, in order.
    pub fn steps(&self) -> &[S] {
        &self.steps
    }

    /// The journal with the entry's file, if it has one.
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    /// Adds a step, which has been synced to disk when this returns. Call it before making the change.
    ///
    /// # Errors
    /// The step cannot be written; the change must then not be made.
    pub fn add(&mut self, step: S) -> Result<()> {
        match self.journal.clone() {
            Some(journal) => self.add_within(&journal.turn()?, step),
            None => {
                self.steps.push(step);
                Ok(())
            }
        }
    }

    /// As [`Entry::add`], for a process that already holds the journal's lock.
    ///
    /// # Errors
    /// As for [`Entry::add`].
    pub fn add_within(&mut self, turn: &LockedJournal, step: S) -> Result<()> {
        let text = line(&step).map_err(|e| self.failed(e))?;
        let is_there = turn.append(&self.name(), &text)?;
        self.steps.push(step);
        match is_there {
            true => Ok(()),
            // Another program has removed the file, so it is written again.
            false => turn.write(&self.record(&self.steps)?),
        }
    }

    /// Sets the entry's intended lifetime, e.g. so that completed changes outlive this process.
    ///
    /// # Errors
    /// The entry cannot be written; its lifetime is then unchanged.
    pub fn set_lifetime(&mut self, lifetime: Lifetime) -> Result<()> {
        let before = std::mem::replace(&mut self.header.lifetime, lifetime);
        let Some(journal) = self.journal.clone() else { return Ok(()) };
        let written = journal.turn().and_then(|turn| turn.write(&self.record(&self.steps)?));
        if written.is_err() {
            self.header.lifetime = before;
        }
        written
    }

    /// Adds this process to the entry's owners.
    ///
    /// # Errors
    /// The entry cannot be written.
    pub fn join(&mut self, turn: &LockedJournal) -> Result<()> {
        self.header.owners.retain(Owner::is_alive);
        self.header.owners.push(Owner::this());
        turn.write(&self.record(&self.steps)?)
    }

    /// Ends this process's share. If no other process needs the entry, it is undone and removed, unless its lifetime is
    /// longer.
    ///
    /// # Errors
    /// The journal cannot be read or written; the next sweep then undoes the entry.
    pub fn leave<U: Undo<Step = S>>(&mut self, undoer: &U) -> Result<Outcome> {
        let Some(journal) = self.journal.clone() else {
            return Ok(undoer.undo(&self.header.subject, &std::mem::take(&mut self.steps)));
        };
        let turn = journal.turn()?;
        self.give_up(&turn)?;
        if !self.header.owners.is_empty() || self.header.lifetime != Lifetime::Process {
            turn.write(&self.record(&self.steps)?)?;
            return Ok(Outcome::nothing());
        }
        let outcome = undoer.undo(&self.header.subject, &self.steps);
        match outcome {
            Outcome::Undone { .. } => {
                self.steps.clear();
                turn.remove(&self.name())?;
            }
            Outcome::Failed(_) | Outcome::OutOfReach => turn.write(&self.record(&self.steps)?)?,
        }
        Ok(outcome)
    }

    /// Ends this process's share without undoing anything, as a kill does: the next sweep undoes the entry unless
    /// another process needs it.
    ///
    /// # Errors
    /// The entry cannot be read or written.
    pub fn abandon(mut self) -> Result<()> {
        let Some(journal) = self.journal.clone() else { return Ok(()) };
        let turn = journal.turn()?;
        self.give_up(&turn)?;
        turn.write(&self.record(&self.steps)?)
    }

    /// Reads the entry again, because other processes may have added steps or removed its file, and removes one of this
    /// process's shares.
    fn give_up(&mut self, turn: &LockedJournal) -> Result<()> {
        match turn.read(&self.name())? {
            Some(entry) => *self = entry,
            None => self.header.owners.clear(),
        }
        let owners = &mut self.header.owners;
        if let Some(own) = owners.iter().position(|owner| *owner == Owner::this()) {
            owners.swap_remove(own);
        }
        owners.retain(Owner::is_alive);
        Ok(())
    }

    /// Moves the changes to another subject's entry, which lasts until a user requests its undo. If that entry exists,
    /// the changes are appended to it. A process killed in between leaves both entries; undoing both has the same
    /// result.
    ///
    /// # Errors
    /// An entry cannot be read or written.
    pub fn keep_as(self, turn: &LockedJournal, subject: &str) -> Result<()> {
        let own = self.name();
        let header = Header { subject: subject.into(), lifetime: Lifetime::Request, owners: Vec::new(), ..self.header };
        let kept = Self { header, ..self };
        let mut steps = match turn.read::<S>(&kept.name())? {
            Some(earlier) if earlier.header.is_of_this_boot() => earlier.steps,
            _ => Vec::new(),
        };
        let mut record = kept.record(&kept.steps)?;
        let earlier = kept.record(&std::mem::take(&mut steps))?;
        record.steps.splice(..0, earlier.steps);
        turn.write(&record)?;
        turn.remove(&own)
    }

    /// Removes all steps, because their changes were not made.
    ///
    /// # Errors
    /// The entry cannot be written.
    pub fn forget(&mut self) -> Result<()> {
        self.steps.clear();
        match &self.journal {
            Some(journal) => journal.turn()?.write(&self.record(&[])?),
            None => Ok(()),
        }
    }

    fn name(&self) -> String {
        format!("{}-{}", self.header.kind, self.header.subject)
    }

    fn failed(&self, error: serde_json::Error) -> Error {
        let path = self.journal.as_ref().map(|journal| journal.path().join(self.name())).unwrap_or_default();
        Error::File { path, source: error.into() }
    }

    pub(crate) fn record(&self, steps: &[S]) -> Result<Record> {
        let steps = steps.iter().map(serde_json::to_value).collect::<serde_json::Result<_>>();
        Ok(Record { header: self.header.clone(), steps: steps.map_err(|e| self.failed(e))? })
    }
}
