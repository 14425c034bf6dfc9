//! The attached programs: samples with addresses, and the run time of each thread.

use crate::calls::{CallFigures, Calls, MAX_CALLS};
use crate::causality::Absence;
use crate::events::cpu_clock;
use crate::layout::{Here, RawAbsence, RawGuestTime, RawSample, RawTime, Shared, ThreadKey};
use crate::skel::{OpenProfileSkel, ProfileSkelBuilder};
use latpath_bpf::{
    begin_window, bytes_of, end_window, entries, from_bytes, hook, module_hook, AttachedProgram, Hook, Hooks, Mapped,
    Missing, Plain, Purpose,
};
use latpath_linux::{monotonic, proc, Cpus};
use latpath_model::Ns;
use libbpf_rs::skel::Skel;
use libbpf_rs::{MapCore, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};
use std::cell::RefCell;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use std::{io, thread::sleep};

/// Maximum number of threads in the kernel's table. Ended threads are removed before the table is full.
const THREADS: u32 = 1 << 16;
/// Size of the ring of absences, bytes: it holds those of several vCPUs for a few tenths of a second.
const ABSENCES: u32 = 1 << 20;
/// Maximum number of processes whose system calls are counted.
const CALLERS: u32 = 1 << 10;
/// `BPF_PERF_EVENT`, an attach type (`enum bpf_attach_type` in linux/bpf.h).
const BPF_PERF_EVENT: u32 = 41;

/// Samples per second. At 99 Hz, samples are not in phase with periodic work at 100 Hz.
pub const FREQUENCY: u32 = 99;

const NEEDED: &str = "sched_switch";
const CALLS_SHOWN: &str = "system calls";
const ENTERED: &str = "kvm_entry";
const LEFT: &str = "kvm_exit";
const GUESTS_SHOWN: &str = "when vCPUs are in their guests";
static HOOKS: [Hook; 6] = [
    hook("switched", NEEDED, "how long threads ran"),
    hook("call_begins", "sys_enter", CALLS_SHOWN),
    hook("call_ends", "sys_exit", CALLS_SHOWN),
    hook("caller_ends", "sched_process_exit", CALLS_SHOWN),
    module_hook("guest_entered", ENTERED, "kvm", GUESTS_SHOWN),
    module_hook("guest_left", LEFT, "kvm", GUESTS_SHOWN),
];

/// Errors at the start of sampling.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The programs cannot be attached.
    #[error(transparent)]
    Programs(#[from] latpath_bpf::StartError),
    /// The kernel refused to sample.
    #[error("CPU {cpu} cannot be sampled {frequency} times a second: {why}{}", advice(*.frequency))]
    NoClock {
        /// The CPU.
        cpu: u32,
        /// Requested samples per second.
        frequency: u32,
        /// Error returned by the kernel.
        why: io::Error,
    },
    /// None of the requested CPUs is online.
    #[error("none of the CPUs {0} is online (online: {1})")]
    NoCpu(Cpus, Cpus),
}

/// Returns the kernel's limit as text if the frequency exceeds it.
fn advice(frequency: u32) -> String {
    let most = proc::line("/proc/sys/kernel/perf_event_max_sample_rate");
    match most.parse::<u32>() {
        Ok(most) if most < frequency => format!(" (at most {most}: /proc/sys/kernel/perf_event_max_sample_rate)"),
        _ => String::new(),
    }
}

/// Sampling options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Samples per second, on each CPU.
    pub frequency: u32,
    /// The CPUs to sample; `None`: all online CPUs.
    pub cpus: Option<Cpus>,
    /// Processes whose system calls are counted; `None`: the programs for system calls are not attached.
    pub calls_of: Option<Vec<u32>>,
    /// vCPU threads whose guest time is measured; if empty, the programs for guest time are not attached.
    pub vcpus: Vec<u32>,
    /// vCPU threads whose absences from the guest are recorded individually; a subset of `vcpus`.
    pub absences_of: Vec<u32>,
    /// Whether to report the file and address of functions without a name, so that they can be named elsewhere.
    pub places: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            frequency: FREQUENCY,
            cpus: None,
            calls_of: None,
            vcpus: Vec::new(),
            absences_of: Vec::new(),
            places: false,
        }
    }
}

/// Run time of a thread since the window's start.
pub(crate) struct ThreadTime {
    pub tid: u32,
    pub cpu: u32,
    pub info: RawTime,
    /// Whether the thread has ended and its entry was removed: the run time of a later thread with the same TID starts
    /// from 0.
    pub taken_out: bool,
}

/// Samples until it is dropped.
pub(crate) struct Sampler {
    _programs: Vec<AttachedProgram>,
    _clocks: Vec<(OwnedFd, OwnedFd)>,
    ring: RingBuffer<'static>,
    came: Rc<RefCell<Vec<RawSample>>>,
    absences: Rc<RefCell<Vec<RawAbsence>>>,
    absent: MapHandle,
    guest_times: MapHandle,
    /// Whether the kernel reports guest entries and exits.
    pub sees_guests: bool,
    here: Mapped<Here>,
    shared: Mapped<Shared>,
    threads: MapHandle,
    calls: Calls,
    called_by: MapHandle,
    pub cpus: Cpus,
    pub from: Ns,
    pub missing: Vec<Missing>,
    frequency: u32,
}

const PURPOSE: Purpose = Purpose("profile this machine");

/// Sets the sizes of the programs' tables, and loads the program that is attached to the clocks.
fn configure(open: &mut OpenProfileSkel<'_>, options: &Options, cpus: usize) -> libbpf_rs::Result<()> {
    let (callers, calls) = match options.calls_of {
        Some(_) => (CALLERS, MAX_CALLS),
        None => (1, 1),
    };
    // Space for four seconds of samples with all frames: the first lookup in a large program takes a while.
    let bytes = cpus * size_of::<RawSample>() * (options.frequency as usize).max(64) * 4;
    let bytes = bytes.next_power_of_two().clamp(1 << 20, 1 << 27);
    let vcpus = options.vcpus.len().max(1) as u32;
    let (absent, absences) = match options.absences_of.len() as u32 {
        0 => (1, 4096),
        vcpus => (vcpus, ABSENCES),
    };
    open.progs.sampled.set_autoload(true);
    let maps = &mut open.maps;
    maps.cpus.set_max_entries(cpus as u32)?;
    maps.threads.set_max_entries(THREADS)?;
    maps.samples.set_max_entries(bytes as u32)?;
    maps.called_by.set_max_entries(callers)?;
    maps.calls.set_max_entries(calls)?;
    maps.open_calls.set_max_entries(calls)?;
    maps.absent.set_max_entries(absent)?;
    maps.guest_times.set_max_entries(vcpus)?;
    maps.absences.set_max_entries(absences)
}

impl Sampler {
    pub fn start(options: &Options) -> Result<Self, StartError> {
        let mut hooks = Hooks::of_kernel(&HOOKS).map_err(latpath_bpf::StartError::from)?;
        let online: Cpus = proc::line("/sys/devices/system/cpu/online").parse().unwrap_or_default();
        let cpus: Cpus = match &options.cpus {
            Some(asked) => online.iter().filter(|cpu| asked.contains(*cpu)).collect(),
            None => online.clone(),
        };
        if cpus.is_empty() {
            return Err(StartError::NoCpu(options.cpus.clone().unwrap_or_default(), online));
        }
        if options.calls_of.is_none() {
            hooks.retain(|hook| hook.shows != CALLS_SHOWN);
        }
        if options.vcpus.is_empty() {
            hooks.retain(|hook| hook.shows != GUESTS_SHOWN);
        }
        let possible = libbpf_rs::num_possible_cpus().map_err(PURPOSE.refused("counting CPUs"))?;
        let clock = |cpu| {
            let clock = cpu_clock(cpu, options.frequency);
            clock.map_err(|why| StartError::NoClock { cpu, frequency: options.frequency, why })
        };
        let clocks: Vec<OwnedFd> = cpus.iter().map(clock).collect::<Result<_, _>>()?;
        let loaded = PURPOSE.load::<ProfileSkelBuilder, _>(
            &mut hooks,
            |hooks| hooks.stands_at(NEEDED),
            |open, _| configure(open, options, possible),
            |skel, hooks| {
                let (maps, handle) = (&skel.maps, |map: &libbpf_rs::MapMut<'_>| MapHandle::try_from(map));
                let (came, absences) = (Rc::default(), Rc::default());
                let here: Mapped<Here> = Mapped::new(&maps.cpus.as_fd(), possible)?;
                for cpu in cpus.iter().filter(|cpu| (*cpu as usize) < possible) {
                    here.set_field(cpu as usize, offset_of!(Here, watched), 1u32);
                }
                let shared = Mapped::new(&maps.bss.as_fd(), 1)?;
                let handles = PURPOSE.refused("reading the tables");
                let tables = (|| {
                    let (threads, calls) = (handle(&maps.threads)?, handle(&maps.calls)?);
                    let (absent, guest_times) = (handle(&maps.absent)?, handle(&maps.guest_times)?);
                    Ok::<_, libbpf_rs::Error>((threads, calls, handle(&maps.called_by)?, absent, guest_times))
                })()
                .map_err(handles)?;
                let mut rings = RingBufferBuilder::new();
                let rings = ring(&mut rings, &maps.samples, &came)
                    .and_then(|()| ring(&mut rings, &maps.absences, &absences))
                    .and_then(|()| rings.build())
                    .map_err(PURPOSE.refused("mapping the rings"))?;
                let programs = hooks.attach(skel.object())?;
                let link = |clock: &OwnedFd| link(skel.progs.sampled.as_fd().as_raw_fd(), clock.as_raw_fd());
                let links: Vec<OwnedFd> =
                    clocks.iter().map(link).collect::<io::Result<_>>().map_err(PURPOSE.refused("attaching"))?;
                let lists = (came, absences);
                Ok((programs, links, rings, lists, (here, shared), tables))
            },
        );
        let (programs, links, ring, (came, absences), (here, shared), tables) = loaded.map_err(|(error, _)| error)?;
        let (threads, calls, called_by, absent, guest_times) = tables;
        if !hooks.stands_at(NEEDED) {
            let why = hooks.missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            return Err(PURPOSE.refusal("attaching the programs", why).into());
        }
        let mut sampler = Self {
            _programs: programs,
            _clocks: clocks.into_iter().zip(links).collect(),
            ring,
            came,
            absences,
            absent,
            guest_times,
            sees_guests: hooks.stands_at(ENTERED) && hooks.stands_at(LEFT),
            here,
            shared,
            threads,
            calls: Calls::new(calls),
            called_by,
            cpus,
            from: 0,
            missing: hooks.missing,
            frequency: options.frequency,
        };
        sampler.count_calls_of(options.calls_of.iter().flatten().copied());
        for tid in &options.vcpus {
            let named = sampler.guest_times.update(bytes_of(tid), &[0; size_of::<RawGuestTime>()], MapFlags::ANY);
            named.map_err(PURPOSE.refused("naming vCPUs"))?;
        }
        for tid in &options.absences_of {
            let fresh = RawAbsence { tid: *tid, ..from_bytes(&[0; size_of::<RawAbsence>()]).expect("as many bytes") };
            let named = sampler.absent.update(bytes_of(tid), bytes_of(&fresh), MapFlags::ANY);
            named.map_err(PURPOSE.refused("naming vCPUs"))?;
        }
        let set = |border, t: u64| sampler.shared.set_field(0, border, t);
        sampler.from = begin_window(|t| set(offset_of!(Shared, from), t), |t| set(offset_of!(Shared, until), t));
        Ok(sampler)
    }

    /// Also counts the system calls of these processes.
    pub fn count_calls_of(&self, tgids: impl Iterator<Item = u32>) {
        for tgid in tgids {
            // An error means that the table is full: the calls of these processes are not counted.
            let _ = self.called_by.update(bytes_of(&tgid), bytes_of(&1u32), MapFlags::ANY);
        }
    }

    /// Samples since the last call.
    pub fn samples(&mut self) -> Vec<RawSample> {
        // Fails only if the callback fails.
        let _ = self.ring.consume();
        self.came.take()
    }

    /// Absences of vCPUs from their guests since the last call, complete up to the returned time.
    pub fn absences(&mut self) -> (Vec<Absence>, Ns) {
        let now = monotonic();
        // An absence that ends from now on is also in the ring.
        let open = entries::<u32, RawAbsence>(&self.absent).into_iter().map(|(_, absence)| absence);
        let open: Vec<Absence> = open.filter(|absence| absence.from > 0).map(|absence| of(&absence, None)).collect();
        let _ = self.ring.consume();
        let ended = self.absences.take();
        (ended.iter().map(|absence| of(absence, Some(absence.until as Ns))).chain(open).collect(), now)
    }

    /// Time that one of `Options::vcpus` spent in its guest from the window's start until now or the window's end, ns;
    /// `None` if unknown.
    pub fn guest_time(&self, tid: u32) -> Option<Ns> {
        if !self.sees_guests {
            return None;
        }
        let read = || from_bytes::<RawGuestTime>(&self.guest_times.lookup(bytes_of(&tid), MapFlags::ANY).ok()??);
        // The program updates the fields one after another: reads until two readings agree.
        let same = |a: &RawGuestTime, b: &RawGuestTime| (a.ns, a.since, a.seen) == (b.ns, b.since, b.seen);
        let mut time = read()?;
        for _ in 0..READINGS {
            match read()? {
                again if same(&again, &time) => break,
                again => time = again,
            }
        }
        let now = monotonic().min(self.shared.field::<u64>(0, offset_of!(Shared, until)) as Ns);
        let inside = match (time.since as Ns, time.seen) {
            // Without any event, the vCPU has been in its present state since the window's start.
            (_, 0) if is_in_guest(tid) => now - self.from,
            (0, _) => 0,
            (since, _) => now - since.max(self.from),
        };
        Some(time.ns as Ns + inside.max(0))
    }

    pub fn absences_lost(&self) -> u64 {
        self.shared.field(0, offset_of!(Shared, absences_lost))
    }

    /// Ends the window; on return, each CPU's time is known up to the window's end.
    pub fn end(&mut self) -> Ns {
        // Waits for one period, in which each CPU's clock ticks again.
        let period = 1_000_000_000 / u64::from(self.frequency.max(1));
        let once_more = || sleep(Duration::from_nanos(period));
        end_window(|until| self.shared.set_field(0, offset_of!(Shared, until), until), once_more).0
    }

    /// Returns the run times of threads; `until` is the window's end, if the window has ended.
    pub fn times(&mut self, until: Option<Ns>) -> Vec<ThreadTime> {
        let all = entries(&self.threads).into_iter();
        let mut times: Vec<ThreadTime> =
            all.map(|(ThreadKey { tid, cpu }, info)| ThreadTime { tid, cpu, info, taken_out: false }).collect();
        if self.shared.field::<u32>(0, offset_of!(Shared, threads)) > THREADS / 2 {
            self.take_out_ended(&mut times);
        }
        // Adds the remaining time of CPUs whose clock stopped ticking: the CPU went offline, or its hypervisor did not
        // run it.
        for (cpu, until) in until.into_iter().flat_map(|until| self.cpus.iter().map(move |cpu| (cpu, until as u64))) {
            let here = self.here.get(cpu as usize);
            let rest = until.saturating_sub(here.since.max(self.from as u64));
            let is = |time: &&mut ThreadTime| time.tid == here.tid && (time.tid != 0 || time.cpu == cpu);
            match times.iter_mut().find(is) {
                Some(time) => time.info.ns += rest,
                None => self.here.set_field(cpu as usize, offset_of!(Here, unattributed), here.unattributed + rest),
            }
            self.here.set_field(cpu as usize, offset_of!(Here, since), until);
        }
        times
    }

    /// Removes ended threads from the table. They never run again, so their entries no longer change.
    fn take_out_ended(&self, times: &mut [ThreadTime]) {
        let is_gone = |time: &&mut ThreadTime| time.tid != 0 && !Path::new(&format!("/proc/{}", time.tid)).exists();
        for time in times.iter_mut().filter(is_gone) {
            let key = ThreadKey { tid: time.tid, cpu: time.cpu };
            if let Ok(Some(last)) = self.threads.lookup(bytes_of(&key), MapFlags::ANY) {
                time.info = from_bytes(&last).unwrap_or(time.info);
            }
            time.taken_out = self.threads.delete(bytes_of(&key)).is_ok();
        }
        let left = self.threads.keys().count() as u32;
        self.shared.set_field(0, offset_of!(Shared, threads), left);
    }

    /// Number of lost samples, and time of threads that did not fit into the table of threads, ns.
    pub fn losses(&self) -> (u64, Ns) {
        self.cpus.iter().fold((0, 0), |(lost, ns), cpu| {
            let here = self.here.get(cpu as usize);
            (lost + here.lost, ns + here.unattributed as Ns)
        })
    }

    /// Number of system calls that were not counted because a table was full.
    pub fn calls_lost(&self) -> u64 {
        self.calls.lost(&self.shared)
    }

    /// System calls that were counted.
    pub fn calls(&self) -> Vec<CallFigures> {
        self.calls.figures()
    }

    /// Keeps space for new threads in the table of system calls.
    pub fn make_room_for_calls(&mut self) {
        self.calls.make_room(&self.shared);
    }
}

/// Maximum number of attempts to read a vCPU's time consistently.
const READINGS: usize = 8;

/// Whether a vCPU's thread is in its guest.
fn is_in_guest(tid: u32) -> bool {
    let stat = proc::Stat::read(&proc::Root::of(Path::new("/")), &format!("proc/{tid}"));
    stat.is_some_and(|stat| stat.flags & proc::PF_VCPU != 0)
}

/// Converts a kernel field to printable text.
pub(crate) fn text(field: &[i8; 16]) -> String {
    latpath_model::text::printable(&latpath_model::text::of_field(&field.map(|c| c as u8)))
}

fn of(absence: &RawAbsence, until: Option<Ns>) -> Absence {
    Absence { tid: absence.tid, from: absence.from as Ns, until }
}

/// Appends the records of a ring to a list.
fn ring<'m, T: Plain>(
    rings: &mut RingBufferBuilder<'m, 'static>,
    map: &'m libbpf_rs::MapMut<'_>,
    came: &Rc<RefCell<Vec<T>>>,
) -> libbpf_rs::Result<()> {
    let came = came.clone();
    rings.add(map, move |bytes: &[u8]| {
        // A sample's record ends after its last frame, so the rest is zero.
        let mut whole = vec![0; size_of::<T>()];
        let len = bytes.len().min(whole.len());
        whole[..len].copy_from_slice(&bytes[..len]);
        came.borrow_mut().extend(from_bytes::<T>(&whole));
        0
    })?;
    Ok(())
}

/// Attaches the program to a CPU's clock.
fn link(program: i32, clock: i32) -> io::Result<OwnedFd> {
    // SAFETY: both descriptors are open, and options may be null.
    let fd = unsafe { libbpf_sys::bpf_link_create(program, clock, BPF_PERF_EVENT, std::ptr::null()) };
    match fd {
        // SAFETY: a fresh descriptor, owned by nothing else.
        fd if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}
