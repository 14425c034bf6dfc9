//! The instrument: a sampler on this machine, and agents that sample in guests.

use super::guests::{GuestTimes, Guests};
use super::{CallLine, KernelAccount, ProfileFigures};
use crate::{Instrument, Needs, Scope, StartError};
use latpath_agent::Address;
use latpath_bpf::Missing;
use latpath_linux::proc::{CpuAccount, Root};
use latpath_linux::{realtime, Cpus};
use latpath_model::{Ns, Observation};
use latpath_profile::{
    has_debug_files, is_of_vm, name_by_debug_files, weigh, CallFigures, Frame, Guest, Header, Kind, Options, Profile,
    Recorder, Samples, Spent, TooMuch, FREQUENCY,
};
use latpath_vms::Role;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Interval at which guest times are read and the guests' samples are checked against the host's records.
const READ_EVERY: Duration = Duration::from_millis(100);

/// Options of the [`Profiler`].
pub struct ProfileOptions {
    /// Samples per second on each CPU.
    pub frequency: u32,
    /// CPUs to sample; `None` for all online CPUs.
    pub cpus: Option<Cpus>,
    /// Whether to count the system calls of the VMs' processes.
    pub syscalls: bool,
    /// Whether to keep the time of each sample.
    pub one_by_one: bool,
    /// Guests to sample from inside: the VM's name, and the address of its agent.
    pub machines: Vec<(String, Address)>,
    /// Called after the window with a number of files whose symbols are about to be fetched, which takes at most
    /// [`latpath_profile::FETCH_WITHIN`].
    pub fetching: Box<dyn Fn(usize)>,
    /// Whether to attach the programs to KVM's events even if no guest is sampled.
    pub is_trial: bool,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        Self {
            frequency: FREQUENCY,
            cpus: None,
            syscalls: false,
            one_by_one: false,
            machines: Vec::new(),
            fetching: Box::new(|_| ()),
            is_trial: false,
        }
    }
}

/// The samples from which the figures of a profile were computed.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// The profile of the host and its guests.
    pub profile: Profile,
    /// The host's samples.
    pub samples: Samples,
    /// The guests' samples.
    pub guests: Vec<Guest>,
}

impl Recorded {
    /// Why a guest's samples ended before the end of the window, if any guest's did.
    pub fn guest_fault(&self) -> Option<&str> {
        self.guests.iter().find_map(|guest| guest.fault.as_deref())
    }
}

/// Samples the CPUs of this machine and of guests.
pub struct Profiler {
    scope: Scope,
    options: ProfileOptions,
    guests: Guests,
    times: GuestTimes,
    recorder: Recorder,
    utc_ns: Ns,
    before: Option<CpuAccount>,
    samples: Samples,
    read: Instant,
    /// Why sampling stopped early, and the kernel's counters at that time; the figures end there.
    full: Option<(TooMuch, Counted)>,
}

/// The kernel's counters at one point in time.
type Counted = (Option<CpuAccount>, Vec<CallFigures>);

impl Profiler {
    fn counted(&self) -> Counted {
        counted(&self.recorder)
    }
}

fn counted(recorder: &Recorder) -> Counted {
    (CpuAccount::read(&Root::of(Path::new("/")), recorder.cpus()), recorder.calls())
}

impl Instrument for Profiler {
    const NAME: &'static str = "profile";
    const NEEDS: Needs = Needs { kvm: false, functions: false, vhost: false, debugfs: false };
    type Options = ProfileOptions;
    type Figures = ProfileFigures;

    fn start(scope: Scope, options: ProfileOptions) -> Result<Self, StartError> {
        for (at, (name, _)) in options.machines.iter().enumerate() {
            if options.machines[..at].iter().any(|(other, _)| other == name) {
                return Err(StartError::Usage(format!("machine {name:?} is named twice")));
            }
        }
        let ProfileOptions { frequency, one_by_one, .. } = options;
        let mut guests = Guests::connect(&options.machines, &scope, frequency, one_by_one)?;
        let mut times = GuestTimes::of(&scope);
        let absences_of = guests.vcpus();
        // Programs attached to KVM's events run at every exit of every VM on this host, so they are attached only if a
        // guest's samples need them.
        let vcpus = match (absences_of.is_empty(), options.is_trial) {
            (true, true) => vec![std::process::id()],
            (true, false) => Vec::new(),
            (false, _) => times.threads(),
        };
        let recorder = Recorder::start(&Options {
            frequency,
            cpus: options.cpus.clone(),
            calls_of: options.syscalls.then(|| scope.vms().map(|vm| vm.pid).collect()),
            vcpus,
            absences_of,
            places: has_debug_files(),
        })?;
        guests.begin(&recorder);
        times.read(&recorder);
        let (before, samples) = (counted(&recorder).0, Samples::new(one_by_one));
        let (utc_ns, read) = (realtime(), Instant::now());
        Ok(Self { scope, options, guests, times, recorder, utc_ns, before, samples, read, full: None })
    }

    fn options_of_a_trial() -> ProfileOptions {
        ProfileOptions { syscalls: true, is_trial: true, ..ProfileOptions::default() }
    }

    fn subject(&self) -> String {
        format!("sampling CPUs {} {} times a second", self.recorder.cpus(), self.options.frequency)
    }

    fn missing(&self) -> Vec<Missing> {
        self.recorder.missing().to_vec()
    }

    fn step(&mut self) {
        if let Some(Err(why)) = self.recorder.step().map(|slice| self.samples.take(slice)) {
            if self.full.is_none() {
                self.full = Some((why, self.counted()));
            }
        }
        if self.read.elapsed() >= READ_EVERY {
            self.read = Instant::now();
            self.times.read(&self.recorder);
            self.guests.check(&mut self.recorder);
        }
    }

    fn end(mut self, stop: &AtomicBool, at_end: impl FnOnce()) -> Observation<ProfileFigures> {
        let last = self.samples.take(self.recorder.end(stop));
        self.times.read(&self.recorder);
        let mut notes = Vec::new();
        let (after, calls) = match (self.full.take(), last) {
            (Some((why, counted)), _) => {
                notes.push(format!("{why}: what came after is missing"));
                counted
            }
            (None, Err(why)) => {
                notes.push(format!("{why}: the last second is missing"));
                self.counted()
            }
            (None, Ok(())) => self.counted(),
        };
        at_end();
        let Self { mut scope, options, mut guests, times, mut recorder, utc_ns, before, mut samples, .. } = self;
        let (from, until) = samples.span().unwrap_or_default();
        let mut inside = guests.end(until, &mut recorder);
        let unnamed = name_the_rest(&mut samples, &mut inside, stop, &options.fetching);
        scope.refresh();
        let header = Header {
            latpath: env!("CARGO_PKG_VERSION").into(),
            kernel: latpath_bpf::release(),
            utc_ns,
            cpus: recorder.cpus().clone(),
            frequency: options.frequency,
            ..Header::default()
        };
        let mut profile = weigh(&samples, &times.finish(), &inside, scope.known(), header);
        if scope.is_limited() {
            only(&mut profile, &scope);
        }
        let mut observation = ProfileFigures::observe(&profile, from);
        observation.not_shown = recorder.missing().iter().map(ToString::to_string).collect();
        notes.extend(self::notes(&recorder, &profile));
        notes.extend(guests.notes(&scope, &inside));
        notes.extend(unnamed);
        observation.notes = notes;
        observation.figures.kernel_account = before.zip(after).map(|(before, after)| account(before, after));
        observation.figures.system_calls = call_lines(calls, &scope);
        observation.figures.recorded = Recorded { profile, samples, guests: inside };
        observation
    }
}

/// Uses debugging information to name the functions of stripped programs. Returns notes on missing debugging
/// information.
fn name_the_rest(
    samples: &mut Samples,
    inside: &mut [Guest],
    stop: &AtomicBool,
    fetching: &dyn Fn(usize),
) -> Vec<String> {
    let mut machines: Vec<&mut Samples> = vec![samples];
    machines.extend(inside.iter_mut().map(|guest| &mut guest.samples));
    name_by_debug_files(&mut machines, stop, fetching)
}

fn account(before: CpuAccount, after: CpuAccount) -> KernelAccount {
    let ns = |of: fn(&CpuAccount) -> u64| of(&after).saturating_sub(of(&before)) as Ns;
    KernelAccount {
        user_ns: ns(|account| account.user),
        system_ns: ns(|account| account.system),
        guest_ns: ns(|account| account.guest),
        idle_ns: ns(|account| account.idle),
        steal_ns: ns(|account| account.steal),
    }
}

/// Keeps the call chains of the scope's VMs, and merges all other processes into one.
fn only(profile: &mut Profile, scope: &Scope) {
    let is_theirs = |process: &Frame| scope.vms().any(|vm| is_of_vm(process, vm));
    for (frames, ns) in std::mem::take(&mut profile.stacks) {
        let frames = match frames.first().is_some_and(is_theirs) {
            true => frames,
            false => {
                let what = match latpath_profile::spent(&frames) {
                    Spent::HostSys => Frame::new("[not shown]", Kind::Kernel),
                    Spent::HostUsr => Frame::new("[not shown]", Kind::User),
                    Spent::NotSampled => Frame::new(latpath_profile::NOT_SAMPLED, Kind::User),
                    Spent::GuestSys | Spent::GuestUsr | Spent::GuestUnseen => Frame::new("[guest others]", Kind::Guest),
                };
                vec![Frame::new("other processes", Kind::Process), what]
            }
        };
        profile.add(frames, ns);
    }
}

fn call_lines(mut calls: Vec<CallFigures>, scope: &Scope) -> Vec<CallLine> {
    calls.sort_by_key(|call| std::cmp::Reverse(call.ns));
    let line = |call: &CallFigures| {
        let vm = scope.known().iter().find(|vm| vm.pid == call.tgid);
        let thread = vm.and_then(|vm| vm.threads.iter().find(|thread| thread.tid == call.tid));
        let does = thread.map_or_else(
            || call.comm.clone(),
            |thread| match (thread.role, thread.vcpu) {
                (Role::Vcpu, Some(number)) => format!("vCPU {number}"),
                (Role::Other, _) => call.comm.clone(),
                (role, _) => role.name().into(),
            },
        );
        CallLine::new(call, vm.map_or_else(|| format!("process {}", call.tgid), |vm| vm.name.clone()), does)
    };
    calls.iter().map(line).collect()
}

fn notes(recorder: &Recorder, profile: &Profile) -> Vec<String> {
    let mut notes = Vec::new();
    let mut count = |n: u64, what: &str| {
        if n > 0 {
            notes.push(format!("{what}: {n}"));
        }
    };
    count(profile.lost, "samples lost (times are exact, their call chains are less so)");
    count(recorder.calls_lost(), "system calls that are missing, because the table was full");
    count(recorder.too_late(), "[unknown] addresses, since their processes had ended");
    count(
        recorder.unreadable(),
        "[unknown] addresses, since the files of their processes could not be read, or not in time",
    );
    count(
        recorder.cut_maps() as u64,
        "processes with more than 65536 mappings of code, of which the first are read, so that call chains may end early",
    );
    if profile.header.unattributed_ns > 0 {
        notes.push("there were too many threads: the time of some is counted as not sampled".into());
    }
    notes
}
