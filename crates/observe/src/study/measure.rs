//! The study: runs the load alone, then once with each instrument, so that no instrument disturbs another.

use super::{network_queues, setup, Configuration, KeptProfile, Part, Work, VERSION};
use crate::{pass, Exits, InGuest, Instrument, Ladder, ProfileOptions, Profiler, Queues, Scope, StartError, Workload};
use latpath_agent::Address;
use latpath_counters::since;
use latpath_exits::Traffic;
use latpath_linux::monotonic;
use latpath_model::Observation;
use latpath_profile::FREQUENCY;
use latpath_vms::Vm;
use std::ffi::OsString;
use std::io::{Read, Seek, SeekFrom};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum size of a load's output that is read, bytes.
const MAX_PRINTED: u64 = 4 << 20;
/// Divisor of the sampling rate when a distorted profile is repeated.
const LESS_OFTEN: u32 = 11;

/// The measurement of one configuration of a VM under a load.
pub struct Study<'a> {
    /// The configuration's name.
    pub name: &'a str,
    /// The VM's name or process ID.
    pub vm: &'a str,
    /// Address of the agent in its guest.
    pub agent: Option<&'a Address>,
    /// The load. `LATPATH_CONFIGURATION` and `LATPATH_VM` are set in its environment.
    pub command: &'a [OsString],
    /// Number of runs of the load without an instrument.
    pub repeat: u32,
    /// Whether this machine is emulated.
    pub emulated: bool,
    /// Flag that ends the study when set.
    pub stop: &'a AtomicBool,
    /// Called at each step of the study.
    pub progress: Rc<dyn Fn(Progress<'_>)>,
}

/// A step of a study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'p> {
    /// The load runs without an instrument: number of this run (from 1), and total number of runs.
    Alone(u32, u32),
    /// The load runs while this instrument is attached.
    Observing(&'static str),
    /// This instrument failed, for this reason.
    NotMeasured(&'static str, &'p str),
    /// The profile is repeated at this rate, for this reason.
    ProfileAgain(u32, &'p str),
    /// The symbols for this number of files are being fetched.
    Fetching(usize),
}

/// Why a study ended early.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// The user ended it.
    #[error(
        "ended by Ctrl-C while {what} of {configuration} was measured; configurations that were complete are kept"
    )]
    Stopped {
        /// The instrument, or the load alone.
        what: &'static str,
        /// The configuration's name.
        configuration: String,
    },
    /// An instrument could not be attached.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The load could not be run, or failed.
    #[error("{0}")]
    Load(String),
}

impl StudyError {
    /// Whether the study cannot continue with other instruments.
    fn is_final(&self) -> bool {
        matches!(self, Self::Stopped { .. } | Self::Start(StartError::Usage(_)))
    }

    fn load(what: &str) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |e| Self::Load(format!("{what}: {e}"))
    }
}

impl Study<'_> {
    /// Measures the configuration. If an instrument fails, adds a note and continues with the next one.
    ///
    /// # Errors
    /// If the study is stopped, the VM does not exist, or the load fails without an instrument.
    pub fn measure(&self) -> Result<Configuration, StudyError> {
        let scope = Scope::of(&[self.vm.into()])?;
        let mut one = Configuration {
            version: VERSION,
            name: self.name.into(),
            vm: self.vm.into(),
            kernel: latpath_bpf::release(),
            latpath: env!("CARGO_PKG_VERSION").into(),
            setup: scope.vms().next().map(setup).unwrap_or_default(),
            command: self.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            alone: Vec::new(),
            exits: None,
            ladder: None,
            queues: None,
            profile: None,
            notes: Vec::new(),
            emulated: self.emulated,
        };
        for turn in 1..=self.repeat {
            (self.progress)(Progress::Alone(turn, self.repeat));
            one.alone.push(self.run("the load by itself", &scope, || ())?);
        }
        one.exits = self.part::<Exits, _>(&mut one.notes, |notes| {
            let (seen, work) = self.under::<Exits>(Default::default(), notes)?;
            let figures = seen.figures.vms.into_iter().next();
            let figures = figures.ok_or_else(|| StudyError::Load("the VM made no exit".into()))?;
            Ok(Part { work, figures })
        })?;
        one.ladder = self.part::<Ladder, _>(&mut one.notes, |notes| {
            let (figures, work) = self.under::<Ladder>(Default::default(), notes)?;
            Ok(Part { work, figures })
        })?;
        one.queues = self.part::<Queues, _>(&mut one.notes, |notes| {
            let guest = self.agent.map(|agent| InGuest::<Queues>::start(self.vm, agent)).transpose()?;
            let (host, work) = self.under::<Queues>(Default::default(), &mut Vec::new())?;
            let mut figures = Vec::new();
            for (of, seen) in [("in the guest: ", guest.map(InGuest::end).transpose()?), ("", Some(host))] {
                let (devices, remarks) = seen.map(network_queues).unwrap_or_default();
                figures.extend(devices);
                notes.extend(remarks.iter().map(|remark| format!("{of}{remark}")));
            }
            Ok(Part { work, figures })
        })?;
        let alone = one.clone();
        one.profile = self.part::<Profiler, _>(&mut one.notes, |notes| {
            let (part, why) = self.profiled(&alone, FREQUENCY, notes)?;
            let Some(why) = why else { return Ok(part) };
            let again = FREQUENCY / LESS_OFTEN;
            (self.progress)(Progress::ProfileAgain(again, &why));
            notes.clear();
            let (part, still) = self.profiled(&alone, again, notes)?;
            let came = if still.is_some() { "and so it was the second time" } else { "the second time it was not" };
            notes.insert(0, format!("sampled {again} times a second, because of {FREQUENCY}: {why}; {came}"));
            Ok(part)
        })?;
        Ok(one)
    }

    /// Profiles the load; also returns the reason if the profile does not describe the load. `alone` contains the runs
    /// without an instrument.
    fn profiled(
        &self,
        alone: &Configuration,
        frequency: u32,
        notes: &mut Vec<String>,
    ) -> Result<(Part<KeptProfile>, Option<String>), StudyError> {
        let machines = self.agent.map(|agent| (self.vm.to_owned(), agent.clone())).into_iter().collect();
        let progress = self.progress.clone();
        let fetching = Box::new(move |files| progress(Progress::Fetching(files)));
        let options = ProfileOptions { frequency, syscalls: true, machines, fetching, ..ProfileOptions::default() };
        let (seen, work) = self.under::<Profiler>(options, notes)?;
        let recorded = &seen.figures.recorded;
        let why = what_spoils(alone.is_starved(&work), recorded.guest_fault(), self.emulated);
        let figures = KeptProfile { kept: recorded.profile.kept(), system_calls: seen.figures.system_calls };
        Ok((Part { work, figures }, why))
    }

    /// Runs one instrument's part of the study, and prefixes its notes with the instrument's name. Returns `None` if
    /// the instrument failed.
    fn part<I: Instrument, T>(
        &self,
        notes: &mut Vec<String>,
        measure: impl FnOnce(&mut Vec<String>) -> Result<T, StudyError>,
    ) -> Result<Option<T>, StudyError> {
        (self.progress)(Progress::Observing(I::NAME));
        let mut of_it = Vec::new();
        let measured = measure(&mut of_it);
        notes.extend(of_it.into_iter().map(|note| format!("{}: {note}", I::NAME)));
        match measured {
            Ok(measured) => Ok(Some(measured)),
            Err(error) if error.is_final() => Err(error),
            Err(error) => {
                let why = error.to_string();
                (self.progress)(Progress::NotMeasured(I::NAME, &why));
                notes.push(format!("{} was not measured: {why}", I::NAME));
                Ok(None)
            }
        }
    }

    /// Runs the load once with an instrument attached.
    fn under<I: Instrument>(
        &self,
        options: I::Options,
        notes: &mut Vec<String>,
    ) -> Result<(Observation<I::Figures>, Work), StudyError> {
        let scope = Scope::of(&[self.vm.into()])?;
        let mut instrument = I::start(scope.clone(), options)?;
        let work = self.run(I::NAME, &scope, || instrument.step());
        let observation = instrument.end(self.stop, || ());
        let work = work?;
        notes.extend(observation.remarks().cloned());
        Ok((observation, work))
    }

    /// Runs the load once, and returns its work.
    fn run(&self, what: &'static str, scope: &Scope, mut step: impl FnMut()) -> Result<Work, StudyError> {
        let mut printed = tempfile::tempfile().map_err(StudyError::load("a file for what the load prints"))?;
        let variables = [("LATPATH_CONFIGURATION", self.name), ("LATPATH_VM", self.vm)];
        let vm: Option<&Vm> = scope.vms().next();
        let (before, began) = (Traffic::counters(vm), monotonic());
        let load = Workload::start(self.command, &variables, Some(&printed));
        let mut load = load.map_err(|e| StudyError::Load(e.to_string()))?;
        let ended = pass(self.stop, None, || load.ended(), |_| step());
        let (after, took_ns) = (Traffic::counters(vm), monotonic() - began);
        load.end();
        if self.stop.load(Ordering::SeqCst) {
            return Err(StudyError::Stopped { what, configuration: self.name.into() });
        }
        if let Some(Err(why)) = ended.map_err(StudyError::load("waiting for the load"))? {
            return Err(StudyError::Load(format!("the load failed ({why})")));
        }
        let traffic = vm.and_then(|vm| Traffic::of(vm, &since(&after, &before))).unwrap_or_default();
        let mut text = String::new();
        let read = printed.seek(SeekFrom::Start(0));
        read.and_then(|_| printed.take(MAX_PRINTED).read_to_string(&mut text)).ok();
        Ok(Work { took_ns, traffic, reported_bits_per_second: Work::reported(&text) })
    }
}

/// Why a profile does not describe the load: the load was starved, or the guest's sampler ended early. `None` if it
/// does.
fn what_spoils(is_starved: bool, fault: Option<&str>, emulated: bool) -> Option<String> {
    let stalled = match emulated {
        true => "the guest stalled: in an emulated machine its sampler takes the CPU that the load needs",
        false => "the guest stalled, or sampling took the CPU that the load needs",
    };
    match (is_starved, fault) {
        (false, None) => None,
        (true, None) => Some(format!("the load ran at less than a tenth of its rate; {stalled}")),
        (true, Some(fault)) => Some(format!("the load ran at less than a tenth of its rate; {stalled} ({fault})")),
        (false, Some(fault)) => Some(format!("the guest's sampler ended early ({fault})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn what_spoils_a_profile_is_named_with_its_cause() {
        assert_eq!(what_spoils(false, None, true), None);
        let why = what_spoils(true, Some("guest: the agent closed the stream"), true).unwrap();
        assert!(why.contains("in an emulated machine its sampler takes") && why.contains("closed the stream"), "{why}");
        assert!(what_spoils(true, None, false).unwrap().contains("less than a tenth"));
        assert!(what_spoils(false, Some("gone"), false).unwrap().contains("ended early (gone)"));
    }

    /// Runs `test` on a study of this load without a VM.
    fn of_load(words: &[&str], stop: &AtomicBool, test: impl FnOnce(&Study<'_>)) {
        let command: Vec<OsString> = words.iter().map(OsString::from).collect();
        let (name, vm) = ("standard", "relay1");
        let progress: Rc<dyn Fn(Progress<'_>)> = Rc::new(|_| ());
        test(&Study { name, vm, agent: None, command: &command, repeat: 1, emulated: false, stop, progress });
    }

    #[test]
    fn a_load_runs_with_its_configuration_and_reports_its_rate_while_steps_are_taken() {
        let printed = r#"{"end":{"sum_received":{"bits_per_second":9}}}"#;
        let script =
            format!("sleep 0.2; [ $LATPATH_CONFIGURATION = standard ] && [ $LATPATH_VM = relay1 ] && echo '{printed}'");
        of_load(&["sh", "-c", &script], &AtomicBool::new(false), |study| {
            let mut steps = 0;
            let work = study.run("exits", &Scope::nothing(), || steps += 1).unwrap();
            assert_eq!(work.reported_bits_per_second, Some(9.0));
            assert!(work.took_ns >= 200_000_000 && steps >= 2, "{work:?}, {steps} steps");
        });
    }

    #[test]
    fn a_load_that_fails_or_is_not_there_or_is_stopped_is_no_measurement() {
        let of = |words: &[&str], stop: bool| {
            let mut why = String::new();
            of_load(words, &AtomicBool::new(stop), |study| {
                why = study.run("exits", &Scope::nothing(), || ()).unwrap_err().to_string();
            });
            why
        };
        assert!(of(&["false"], false).contains("the load failed (exit status: 1)"));
        assert!(of(&["/no/such"], false).contains("cannot start /no/such"));
        assert!(of(&["sleep", "1000"], true).contains("while exits of standard was measured"));
    }

    #[test]
    fn what_an_instrument_cannot_measure_is_noted_and_the_others_go_on() {
        let (seen, stop) = (Rc::new(RefCell::new(Vec::new())), AtomicBool::new(false));
        let noted = seen.clone();
        let progress = Rc::new(move |progress: Progress<'_>| noted.borrow_mut().push(format!("{progress:?}")));
        let (name, vm, stop) = ("a", "b", &stop);
        let study = Study { name, vm, agent: None, command: &[], repeat: 0, emulated: false, stop, progress };
        let mut notes = Vec::new();
        let failed = study.part::<Exits, ()>(&mut notes, |notes| {
            notes.push("seen until then".into());
            Err(StudyError::Load("no KVM".into()))
        });
        assert!(matches!(failed, Ok(None)));
        assert_eq!(notes, ["exits: seen until then", "exits was not measured: no KVM"]);
        assert_eq!(*seen.borrow(), ["Observing(\"exits\")", "NotMeasured(\"exits\", \"no KVM\")"]);
        let stopped = || StudyError::Stopped { what: "exits", configuration: "a".into() };
        assert!(study.part::<Exits, ()>(&mut notes, |_| Err(stopped())).is_err(), "the study is over");
    }
}
