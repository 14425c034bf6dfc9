//! The transaction: applies a plan, undoes it, and finds settings that have changed since.

mod outcome;

use crate::machine::Machine;
use crate::plan::{plan, Plan, Planned, PlannedPlace};
use crate::profile::{Profile, ProfileError};
use crate::selector::Places;
use crate::undo::{change, located, Change, Tunings};
use crate::watch::Watch;
use latpath_settings::{Disturbance, Identity, Persistence, Setting, Writable, WriteError};
use latpath_undo::{Entry, Journal, Lifetime, Outcome, Undo};
pub use outcome::{Applied, AppliedStep, ApplyOptions, Drift, Progress, StopCause, Stopped, TuneError, Tuned};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Suffix of an entry's subject while its change is unfinished or unconfirmed.
const PENDING: &str = ".pending";
/// Maximum number of plans per apply: the first, and further ones for settings that the steps of the previous one
/// reset.
const MAX_ROUNDS: usize = 3;

/// Applies, undoes and verifies tunings of a machine.
pub struct Tuning<'a> {
    machine: &'a Machine,
    journal: Journal,
    undoer: Tunings,
}

/// Why a step failed.
struct Failure {
    /// Whether the kernel refused a value, as opposed to the device lacking the option.
    is_hard: bool,
    /// Whether the places no longer exist, because an earlier step removed them.
    is_gone: bool,
    why: String,
}

impl<'a> Tuning<'a> {
    /// Creates the tunings of a machine. A machine in a folder must have its own journal.
    pub fn new(machine: &'a Machine, journal: Journal) -> Self {
        Self { machine, journal, undoer: machine.undoer() }
    }

    /// Applies a plan. Each old value is recorded in the journal before it is changed. All changes of this call are
    /// reverted if a step fails or disturbs the watched traffic, or if `stop` is set; with [`ApplyOptions::force`], the
    /// apply continues after such a step.
    ///
    /// # Errors
    /// The plan was read from JSON, another process is applying the same profile, the journal cannot be written, or the
    /// traffic cannot be watched. Earlier changes are reverted.
    pub fn apply(
        &self,
        plan: &Plan,
        watch: &mut dyn Watch,
        options: ApplyOptions,
        stop: &AtomicBool,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Applied, TuneError> {
        if plan.of.name != plan.profile {
            return Err(TuneError::Read { profile: plan.profile.clone() });
        }
        let subject = plan.subject();
        let mut entry = self.begin(plan, &subject)?;
        let mut applied = Applied {
            profile: plan.profile.clone(),
            subject: subject.clone(),
            steps: Vec::new(),
            stopped: None,
            reverted: Vec::new(),
            not_reverted: Vec::new(),
            unconfirmed: options.unconfirmed,
        };
        report(Progress::Baseline);
        if let Err(why) = watch.begin() {
            entry.leave(&self.undoer)?;
            return Err(TuneError::Watch(why));
        }
        let made = self.rounds(plan, &mut entry, (watch, options, stop), &mut applied, report);
        match made {
            Ok(None) if options.unconfirmed => Ok(applied),
            Ok(None) => {
                let turn = self.journal.turn()?;
                entry.keep_as(&turn, &subject)?;
                Ok(applied)
            }
            Ok(Some(stopped)) => {
                report(Progress::Reverting(&stopped));
                applied.stopped = Some(stopped);
                applied.unconfirmed = false;
                match entry.leave(&self.undoer)? {
                    Outcome::Undone { done, left_alone } => {
                        (applied.reverted, applied.not_reverted) = (done, left_alone);
                    }
                    Outcome::Failed(problems) => applied.not_reverted = problems,
                    Outcome::OutOfReach => applied.not_reverted = vec!["the target cannot be reached".into()],
                }
                Ok(applied)
            }
            Err(error) => {
                entry.leave(&self.undoer)?;
                Err(error)
            }
        }
    }

    fn begin(&self, plan: &Plan, subject: &str) -> Result<Entry<Change>, TuneError> {
        let turn = self.journal.turn()?;
        let pending = format!("{subject}{PENDING}");
        if turn.needed(&self.undoer, &pending)?.is_some() {
            return Err(TuneError::Busy { subject: subject.into() });
        }
        let mut entry =
            turn.begin::<Tunings>(&pending, Lifetime::Process, &format!("latpath tune apply {}", plan.profile))?;
        entry.add_within(
            &turn,
            Change::Began {
                profile: plan.profile.clone(),
                text: plan.of.text.clone(),
                variables: plan.variables.clone(),
                only: plan.of.only.iter().map(|setting| setting.id().to_owned()).collect(),
            },
        )?;
        Ok(entry)
    }

    /// Performs all steps, and repeats those whose settings were reset by later steps.
    fn rounds(
        &self,
        first: &Plan,
        entry: &mut Entry<Change>,
        (watch, options, stop): (&mut dyn Watch, ApplyOptions, &AtomicBool),
        applied: &mut Applied,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Option<Stopped>, TuneError> {
        let mut next = Some(first.clone());
        let (mut refused, mut saved_devices) = (Vec::new(), BTreeMap::new());
        for round in 0..MAX_ROUNDS {
            let Some(plan_of_round) = next.take() else { break };
            // Owners are identified before the steps, because a step may move a device to another namespace, which
            // changes its interrupts' numbers.
            let owners = self.owners(&plan_of_round);
            for (step, owners) in plan_of_round.steps.iter().zip(&owners) {
                let stopped = |cause: StopCause, why: String| Stopped { cause, step: step.name(), why };
                if stop.load(Ordering::Relaxed) {
                    return Ok(Some(stopped(StopCause::User, "stopped by the user before this step".into())));
                }
                self.save_what_is_reset(step, first, entry, &mut saved_devices)?;
                let failed = self.make(step, owners, entry)?;
                let effect = match watch.settle(step) {
                    Ok(effect) => effect,
                    Err(why) => return Ok(Some(stopped(StopCause::Failure, why))),
                };
                let disturbed = effect.as_ref().and_then(|effect| effect.disturbed.clone());
                let hard = failed.as_ref().filter(|failed| failed.is_hard).map(|failed| failed.why.clone());
                refused.extend(failed.as_ref().filter(|failed| !failed.is_gone).map(|_| step.setting));
                let failed = failed.map(|failed| failed.why);
                applied.steps.push(AppliedStep { step: step.clone(), effect, failed });
                applied.steps.last().into_iter().for_each(|step| report(Progress::Step(step)));
                let disturbed = disturbed.map(|why| (StopCause::Traffic, why));
                match disturbed.or(hard.map(|why| (StopCause::Failure, why))) {
                    Some((cause, why)) if !options.force => return Ok(Some(stopped(cause, why))),
                    _ if stop.load(Ordering::Relaxed) => {
                        return Ok(Some(stopped(StopCause::User, "stopped by the user after this step".into())));
                    }
                    _ => {}
                }
            }
            let again = self.what_was_reset(&plan_of_round, &refused)?;
            if !again.steps.is_empty() && round + 1 < MAX_ROUNDS {
                report(Progress::Again(again.changes()));
                next = Some(again);
            }
        }
        Ok(None)
    }

    /// The owners of a plan's places, by step.
    fn owners(&self, plan: &Plan) -> Vec<Vec<Identity>> {
        let source = self.machine.source();
        let of = |step: &Planned| {
            let one = |place: &PlannedPlace| {
                source.identify(&located(step.setting, &place.target, &place.address, place.from.clone()))
            };
            step.places.iter().map(one).collect()
        };
        plan.steps.iter().map(of).collect()
    }

    /// Before a step that flaps a device's link, records in the journal the values that the flap may reset.
    /// `saved_devices` maps the devices whose values have been recorded to whether those that a move resets were
    /// included.
    fn save_what_is_reset(
        &self,
        step: &Planned,
        plan: &Plan,
        entry: &mut Entry<Change>,
        saved_devices: &mut BTreeMap<String, bool>,
    ) -> Result<(), TuneError> {
        let is_move = step.setting == Setting::DeviceNamespace;
        let devices: Vec<&str> = step.places.iter().filter_map(|place| place.address.device()).collect();
        let is_saved = |device: &&str| saved_devices.get(*device).is_some_and(|with_move| *with_move >= is_move);
        if step.disturbs != Disturbance::LinkFlap || devices.iter().all(is_saved) {
            return Ok(());
        }
        let machine = self.machine.again();
        let source = machine.source();
        let places = Places::of(&machine, &source, &plan.variables);
        for place in &places.all {
            let lasts = place.setting.info().lasts;
            let is_reset = lasts == Persistence::LinkDown || lasts == Persistence::Move && is_move;
            let is_its = || places.interface_of(place).is_some_and(|device| devices.contains(&device));
            if !is_reset || place.setting == step.setting || place.setting.writable() != Writable::Now || !is_its() {
                continue;
            }
            let saved = change(&source, place, &place.value);
            let is_known = entry.steps().iter().any(|known| known.is_of_same(&saved));
            if !is_known {
                entry.add(saved)?;
            }
        }
        for device in devices {
            *saved_devices.entry(device.to_owned()).or_default() |= is_move;
        }
        Ok(())
    }

    /// The steps that are needed after a round, except those for settings that were refused.
    fn what_was_reset(&self, before: &Plan, refused: &[Setting]) -> Result<Plan, TuneError> {
        let mut again = plan(&before.of, &before.variables, &self.machine.again())?;
        again.steps.retain(|step| !refused.contains(&step.setting));
        Ok(again)
    }

    /// Performs a step. Returns the reason if it fails.
    fn make(
        &self,
        step: &Planned,
        owners: &[Identity],
        entry: &mut Entry<Change>,
    ) -> Result<Option<Failure>, TuneError> {
        let source = self.machine.source();
        let mut failure = Failure { is_hard: false, is_gone: true, why: String::new() };
        for (PlannedPlace { target, address, .. }, owner) in step.places.iter().zip(owners) {
            let address = &source.locate(owner).unwrap_or_else(|| address.clone());
            let made = source.value(step.setting, address).map(|now| located(step.setting, target, address, now));
            let made = match made {
                Ok(place) if step.setting.is_met(&place.value, &step.to) => Ok(()),
                Ok(place) => {
                    entry.add(change(&source, &place, &step.to))?;
                    step.setting.write(&source, address, &step.to)
                }
                Err(error) => Err(error),
            };
            if let Err(error) = made {
                let is_gone = matches!(error, WriteError::Missing { .. });
                failure.is_hard |= !is_gone && !matches!(error, WriteError::NotOffered { .. });
                failure.is_gone &= is_gone;
                let separator = if failure.why.is_empty() { "" } else { "; " };
                failure.why += &format!("{separator}{error}");
            }
        }
        Ok((!failure.why.is_empty()).then_some(failure))
    }

    /// The applied profiles.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn applied(&self) -> Result<Vec<Tuned>, TuneError> {
        let turn = self.journal.turn()?;
        let mut all = Vec::new();
        for header in self.journal.entries() {
            let header = header?;
            if header.kind != Tunings::KIND.name() || !header.is_of_this_boot() {
                continue;
            }
            let Some(entry) = turn.find::<Tunings>(&header.subject)? else { continue };
            let (subject, unconfirmed) = match header.subject.strip_suffix(PENDING) {
                Some(subject) => (subject.to_owned(), true),
                None => (header.subject.clone(), false),
            };
            let changes = entry.steps().iter().filter(|step| matches!(step, Change::Set { .. })).count();
            let profile = began(entry.steps()).map_or_else(|| subject.clone(), |last| last.profile.to_owned());
            all.push(Tuned { profile, subject, changes, unconfirmed });
        }
        Ok(all)
    }

    /// The applied profiles with this name or subject.
    fn subjects(&self, name: &str) -> Result<Vec<Tuned>, TuneError> {
        let all = self.applied()?;
        let found: Vec<Tuned> = all.iter().filter(|one| one.subject == name || one.profile == name).cloned().collect();
        match found.is_empty() {
            false => Ok(found),
            true => {
                let applied = all.into_iter().map(|one| one.subject).collect();
                Err(TuneError::NotApplied { subject: name.into(), applied })
            }
        }
    }

    /// Undoes an applied profile, given its name or subject: restores the oldest values, except where another program
    /// has since changed a value. Returns messages for the user.
    ///
    /// # Errors
    /// The profile is not applied, the journal cannot be read, or a value cannot be written.
    pub fn undo(&self, name: &str) -> Result<Vec<String>, TuneError> {
        let mut found = self.subjects(name)?;
        // An unconfirmed change was made on top of confirmed ones, so it is undone first.
        found.sort_by_key(|one| !one.unconfirmed);
        let mut messages = Vec::new();
        for one in found {
            let subject = if one.unconfirmed { format!("{}{PENDING}", one.subject) } else { one.subject.clone() };
            let is_it =
                |header: &latpath_undo::Header| header.kind == Tunings::KIND.name() && header.subject == subject;
            let done = self.journal.undo(&[&self.undoer], is_it);
            let remains = self.journal.entries().into_iter().flatten().any(|header| is_it(&header));
            if remains {
                return Err(TuneError::NotUndone { subject: one.subject, problems: done });
            }
            messages.extend(done);
        }
        Ok(messages)
    }

    /// Confirms a change that would otherwise be undone; it then lasts until [`Tuning::undo`].
    ///
    /// # Errors
    /// No change with this name is unconfirmed, or the journal cannot be written.
    pub fn confirm(&self, name: &str) -> Result<Vec<String>, TuneError> {
        let pending = self.applied()?.into_iter().filter(|one| one.unconfirmed);
        let pending: Vec<String> =
            pending.filter(|one| one.subject == name || one.profile == name).map(|one| one.subject).collect();
        if pending.is_empty() {
            return Err(TuneError::NotPending { subject: name.into() });
        }
        let turn = self.journal.turn()?;
        for subject in &pending {
            if let Some(entry) = turn.find::<Tunings>(&format!("{subject}{PENDING}"))? {
                entry.keep_as(&turn, subject)?;
            }
        }
        Ok(pending)
    }

    /// Compares the machine with an applied profile, using the variables with which it was applied.
    ///
    /// # Errors
    /// The profile is not applied, or can no longer be planned, e.g. because a network device is gone.
    pub fn verify(&self, name: &str) -> Result<Vec<Drift>, TuneError> {
        let mut all = Vec::new();
        for one in self.subjects(name)? {
            let turn = self.journal.turn()?;
            let subject = if one.unconfirmed { format!("{}{PENDING}", one.subject) } else { one.subject.clone() };
            let Some(entry) = turn.find::<Tunings>(&subject)? else { continue };
            drop(turn);
            let Some(last) = began(entry.steps()) else { continue };
            let machine = self.machine.with_devices(&last.variables.interfaces);
            let plan = plan(&last.profile()?, last.variables, &machine)?;
            all.push(Drift { subject: Some(one.subject), ..Drift::of(plan) });
        }
        Ok(all)
    }

    /// Keeps an unconfirmed change until `is_over` returns true, and then undoes it; returns early if it is confirmed
    /// or undone. `joined` is called as soon as this process owns the change. Returns the messages of the undo.
    ///
    /// # Errors
    /// No such change exists, or the journal cannot be written.
    pub fn guard(
        &self,
        subject: &str,
        joined: &mut dyn FnMut(),
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<String>, TuneError> {
        let pending = format!("{subject}{PENDING}");
        {
            let turn = self.journal.turn()?;
            let found = turn.find::<Tunings>(&pending)?;
            let mut entry = found.ok_or_else(|| TuneError::NotPending { subject: subject.into() })?;
            entry.join(&turn)?;
        }
        joined();
        // A later change with the same subject has its own guard.
        let own = latpath_undo::Owner::this();
        let is_it = |header: &latpath_undo::Header| {
            header.kind == Tunings::KIND.name() && header.subject == pending && header.owners.contains(&own)
        };
        while self.journal.entries().into_iter().flatten().any(|header| is_it(&header)) {
            if is_over() {
                return Ok(self.journal.undo(&[&self.undoer], is_it));
            }
        }
        Ok(Vec::new())
    }

    /// Ends this process's share in an unconfirmed change that another process has joined.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn hand_over(&self, subject: &str) -> Result<(), TuneError> {
        let turn = self.journal.turn()?;
        let found = turn.find::<Tunings>(&format!("{subject}{PENDING}"))?;
        drop(turn);
        found.map_or(Ok(()), |entry| Ok(entry.abandon()?))
    }
}

/// The parameters of the last apply.
struct LastApply<'a> {
    profile: &'a str,
    text: &'a str,
    variables: &'a crate::Variables,
    only: &'a [String],
}

impl LastApply<'_> {
    /// The profile as it was applied.
    fn profile(&self) -> Result<Profile, ProfileError> {
        let profile = Profile::parse(self.text, self.profile)?;
        let only: Vec<Setting> = self.only.iter().filter_map(|name| Setting::of_id(name)).collect();
        Ok(if only.is_empty() { profile } else { profile.restricted_to(&only) })
    }
}

fn began(steps: &[Change]) -> Option<LastApply<'_>> {
    steps.iter().rev().find_map(|step| match step {
        Change::Began { profile, text, variables, only } => Some(LastApply { profile, text, variables, only }),
        Change::Set { .. } => None,
    })
}

impl Planned {
    /// The setting and its places, e.g. `cpu-governor of CPUs 2-3`.
    pub fn name(&self) -> String {
        match self.at() {
            at if at.is_empty() => self.setting.id().into(),
            at => format!("{} of {at}", self.setting),
        }
    }
}
