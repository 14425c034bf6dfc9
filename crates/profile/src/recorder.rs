//! Turns the sampler's records into slices: addresses become names; call chains and threads become indexes.

use crate::calls::CallFigures;
use crate::causality::Absence;
use crate::layout::{RawSample, GUEST, KERNEL_THREAD};
use crate::sampler::{text, Options, Sampler, StartError};
use crate::slice::*;
use crate::symbols::{Place, Symbols, UserFunction};
use latpath_bpf::Missing;
use latpath_linux::{monotonic, Cpus};
use latpath_model::text::cut;
use latpath_model::Ns;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum wait for names before the kernel's ring is emptied again.
const NAMES_WITHIN: Duration = Duration::from_millis(10);
/// Maximum time for looking up names after the window's end.
const END_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of samples that wait for their names, in addition to those in the kernel's ring.
const MAX_WAITING: usize = 1 << 13;
/// Maximum number of samples processed between two readings of the kernel's ring.
const BATCH: usize = 256;

/// Maximum duration of one step, so that its caller can check for the window's end. The next step continues with the
/// waiting samples.
const STEP: Duration = Duration::from_millis(100);

/// Length of a slice, ns.
const SLICE: Ns = 1_000_000_000;

/// Name of the frame that replaces call chains and names beyond the limits.
const TOO_MANY: &str = "[too many call chains]";

/// Records until it is dropped. It must stay on the thread that created it.
pub struct Recorder {
    sampler: Sampler,
    symbols: Symbols,
    interned: Interned,
    slice: Slice,
    /// Samples whose functions' names are still being looked up.
    waiting: VecDeque<RawSample>,
    /// By TID, and for an idle thread also its CPU: the thread's index in slices, and its run time so far, ns.
    threads: HashMap<(u32, u32), (u32, u64)>,
    lost: u64,
    unattributed: Ns,
}

/// Indexes of the names, threads and call chains of earlier slices.
#[derive(Default)]
struct Interned {
    names: HashMap<String, u32>,
    name_bytes: usize,
    unnamed: HashMap<Place, u32>,
    /// Number of all names, including the substitute names of unnamed places.
    count: u32,
    threads: HashMap<Thread, u32>,
    stacks: HashMap<Stack, u32>,
    frames: usize,
}

impl Interned {
    fn name(&mut self, name: &str, new: &mut Vec<String>) -> Option<u32> {
        if let Some(number) = self.names.get(name) {
            return Some(*number);
        }
        let name = cut(name, MAX_NAME);
        // Space is reserved for TOO_MANY.
        let is_full = self.name_bytes + name.len() > MAX_NAME_BYTES - MAX_NAME || self.count as usize >= MAX_NAMES - 1;
        if is_full && name != TOO_MANY {
            return None;
        }
        let number = self.new_name(name, new);
        self.names.insert(name.into(), number);
        Some(number)
    }

    fn new_name(&mut self, name: &str, new: &mut Vec<String>) -> u32 {
        self.name_bytes += name.len();
        new.push(name.into());
        self.count += 1;
        self.count - 1
    }

    /// Returns the index of the name of a program's function. As long as there is space, an unnamed function has an
    /// index of its own, because it may be named later.
    fn function(&mut self, function: &UserFunction, slice: &mut Slice) -> Option<u32> {
        let Some(place) = &function.place else { return self.name(&function.name, &mut slice.names) };
        if let Some(number) = self.unnamed.get(place) {
            return Some(*number);
        }
        let name = cut(&function.name, MAX_NAME);
        if self.unnamed.len() >= MAX_UNNAMED || self.name_bytes + name.len() > MAX_NAME_BYTES / 2 {
            return self.name(name, &mut slice.names);
        }
        let number = self.new_name(name, &mut slice.names);
        let Place { build_id, address } = place;
        slice.unnamed.push(Unnamed { name: number, build_id: build_id.to_vec(), address: *address });
        self.unnamed.insert(place.clone(), number);
        Some(number)
    }

    /// Returns a frame of the function whose name has this index; `None`: there was no space for its name.
    fn frame(&mut self, number: Option<u32>, in_kernel: bool, slice: &mut Slice) -> FrameId {
        let number = number.or_else(|| self.name(TOO_MANY, &mut slice.names));
        FrameId::new(number.expect("there is room for it"), in_kernel)
    }

    fn thread(&mut self, thread: Thread, new: &mut Vec<Thread>) -> Option<u32> {
        if let Some(number) = self.threads.get(&thread) {
            return Some(*number);
        }
        let (number, bytes) = (self.threads.len() as u32, thread.comm.len() + thread.process.len());
        if number as usize >= MAX_THREADS || self.name_bytes + bytes > MAX_NAME_BYTES - MAX_NAME {
            return None;
        }
        self.name_bytes += bytes;
        new.push(thread.clone());
        self.threads.insert(thread, number);
        Some(number)
    }

    fn stack(&mut self, stack: Stack, slice: &mut Slice) -> u32 {
        if let Some(number) = self.stacks.get(&stack) {
            return *number;
        }
        let full = |interned: &Self, more: usize| {
            interned.stacks.len() + Mode::ALL.len() >= MAX_STACKS
                || interned.frames + more > MAX_FRAMES - Mode::ALL.len()
        };
        let stack = match full(self, stack.frames.len()) {
            false => stack,
            true => {
                let name = self.name(TOO_MANY, &mut slice.names).expect("there is room for it");
                let frames = vec![FrameId::new(name, stack.mode == Mode::Kernel)];
                let stack = Stack { frames, ..stack };
                match self.stacks.get(&stack) {
                    Some(number) => return *number,
                    None => stack,
                }
            }
        };
        let number = self.stacks.len() as u32;
        self.frames += stack.frames.len();
        slice.stacks.push(stack.clone());
        self.stacks.insert(stack, number);
        number
    }
}

impl Recorder {
    /// Starts recording; returns when the window has begun.
    ///
    /// # Errors
    /// If the kernel or the user's rights do not allow tracing or sampling.
    pub fn start(options: &Options) -> Result<Self, StartError> {
        // Done before the window begins: reading the kernel's names takes a few tenths of a second.
        let symbols = Symbols::new(options.places);
        let sampler = Sampler::start(options)?;
        let from = sampler.from;
        Ok(Self {
            sampler,
            symbols,
            interned: Interned::default(),
            slice: Slice { from, ..Slice::default() },
            waiting: VecDeque::new(),
            threads: HashMap::new(),
            lost: 0,
            unattributed: 0,
        })
    }

    /// Start of the window, `CLOCK_MONOTONIC`.
    pub fn from(&self) -> Ns {
        self.sampler.from
    }

    /// The sampled CPUs.
    pub fn cpus(&self) -> &Cpus {
        &self.sampler.cpus
    }

    /// Hooks that this kernel lacks.
    pub fn missing(&self) -> &[Missing] {
        &self.sampler.missing
    }

    /// Also counts the system calls of these processes, if counting was requested.
    pub fn count_calls_of(&self, tgids: impl Iterator<Item = u32>) {
        self.sampler.count_calls_of(tgids);
    }

    /// System calls that were counted.
    pub fn calls(&self) -> Vec<CallFigures> {
        self.sampler.calls()
    }

    /// Absences of [`Options::absences_of`] from their guests since the last call, complete up to the returned time.
    /// `None` if this kernel does not report them.
    pub fn absences(&mut self) -> Option<(Vec<Absence>, Ns)> {
        self.sampler.sees_guests.then(|| self.sampler.absences())
    }

    /// Time that one of [`Options::vcpus`] spent in its guest from the window's start until now or the window's end,
    /// ns. The time is exact: each interval lasts from KVM's entry to the exit. `None` if this kernel does not report
    /// them.
    pub fn guest_time(&self, tid: u32) -> Option<Ns> {
        self.sampler.guest_time(tid)
    }

    /// Number of system calls that were not counted because a table was full.
    pub fn calls_lost(&self) -> u64 {
        self.sampler.calls_lost()
    }

    /// Number of absences that were lost because the ring was full.
    pub fn absences_lost(&self) -> u64 {
        self.sampler.absences_lost()
    }

    /// Number of frames of processes that ended before the names were looked up.
    pub fn too_late(&self) -> u64 {
        self.symbols.too_late
    }

    /// Number of frames of processes whose files could not be read.
    pub fn unreadable(&self) -> u64 {
        self.symbols.unreadable
    }

    /// Number of processes with more code mappings than the maximum: their call chains may be cut short.
    pub fn cut_maps(&self) -> usize {
        self.symbols.cut()
    }

    /// Processes new samples; call it about twenty times a second, because names can only be found while their process
    /// exists. Returns a slice once per second.
    pub fn step(&mut self) -> Option<Slice> {
        self.sampler.make_room_for_calls();
        self.take_samples(STEP);
        let now = monotonic();
        (now - self.slice.from >= SLICE).then(|| self.close(now, None))
    }

    /// Ends the window and returns the last slice. Names of functions are looked up for up to 10 s, or until `stop` is
    /// set.
    pub fn end(&mut self, stop: &AtomicBool) -> Slice {
        let until = self.sampler.end();
        let ended = Instant::now();
        while !self.take_samples(STEP) {
            if ended.elapsed() > END_WITHIN || stop.load(Ordering::SeqCst) {
                self.symbols.close();
            }
        }
        self.close(until, Some(until))
    }

    /// Processes samples; returns true if none remain. While the names for one sample are being looked up, later
    /// samples are moved out of the kernel's ring.
    fn take_samples(&mut self, within: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < within {
            if self.waiting.len() < MAX_WAITING {
                self.waiting.extend(self.sampler.samples());
            }
            for _ in 0..BATCH {
                let Some(sample) = self.waiting.pop_front() else { return true };
                if !self.take(&sample) {
                    self.waiting.push_front(sample);
                    break;
                }
            }
        }
        false
    }

    fn close(&mut self, now: Ns, until: Option<Ns>) -> Slice {
        for time in self.sampler.times(until) {
            let key = (time.tid, time.cpu);
            let (number, before) = match self.threads.get(&key) {
                Some(known) => *known,
                None => {
                    let info = &time.info;
                    let number = self.thread(key, (info.tgid, info.flags), (text(&info.comm), text(&info.process)));
                    match number {
                        Some(number) => (number, 0),
                        None => {
                            self.slice.unattributed += time.info.ns as Ns;
                            continue;
                        }
                    }
                }
            };
            match time.taken_out {
                true => drop(self.threads.remove(&key)),
                false => drop(self.threads.insert(key, (number, time.info.ns))),
            }
            if time.info.ns > before {
                self.slice.times.push((number, (time.info.ns - before) as Ns));
            }
        }
        let (lost, unattributed) = self.sampler.losses();
        self.slice.lost = lost - std::mem::replace(&mut self.lost, lost);
        self.slice.unattributed += unattributed - std::mem::replace(&mut self.unattributed, unattributed);
        self.slice.until = now;
        std::mem::replace(&mut self.slice, Slice { from: now, ..Slice::default() })
    }

    /// Returns the index of a thread with this name; a renamed thread gets a new index.
    fn thread(&mut self, (tid, cpu): (u32, u32), (tgid, flags): (u32, u32), names: (String, String)) -> Option<u32> {
        let (comm, process) = names;
        let thread = Thread { tid, tgid, cpu, comm, process, is_kernel: flags & KERNEL_THREAD != 0 };
        let number = self.interned.thread(thread, &mut self.slice.threads)?;
        self.threads.entry((tid, cpu)).or_insert((number, 0)).0 = number;
        Some(number)
    }

    /// Processes a sample; returns false while the names of its functions are being read.
    fn take(&mut self, raw: &RawSample) -> bool {
        let kernel = &raw.frames[..(raw.kernel as usize).min(raw.frames.len())];
        let user = &raw.frames[kernel.len()..(kernel.len() + raw.user as usize).min(raw.frames.len())];
        let idle_cpu = if raw.tid == 0 { raw.cpu } else { 0 };
        let process = text(&raw.process);
        let Some(stack) = self.stack(raw, &process, kernel, user) else { return false };
        let Some(thread) = self.thread((raw.tid, idle_cpu), (raw.tgid, raw.flags), (text(&raw.comm), process)) else {
            self.slice.lost += 1;
            return true;
        };
        self.slice.seen.push(Seen { t: raw.t as Ns, cpu: raw.cpu, thread, stack });
        true
    }

    fn stack(&mut self, raw: &RawSample, process: &str, kernel: &[u64], user: &[u64]) -> Option<u32> {
        let Self { symbols, interned, slice, .. } = self;
        if raw.flags & GUEST != 0 {
            return Some(interned.stack(Stack { mode: Mode::Guest, frames: Vec::new() }, slice));
        }
        // A caller's address is the return address. It is after the call instruction and may be in the next function,
        // so 1 is subtracted.
        let calls = |addresses: &[u64]| -> Vec<u64> {
            addresses.iter().enumerate().map(|(at, address)| address.saturating_sub((at > 0).into())).collect()
        };
        let functions = symbols.user(raw.tgid, process, &calls(user), NAMES_WITHIN)?;
        let kernel: Vec<&str> = calls(kernel).into_iter().map(|address| symbols.kernel(address)).collect();
        if raw.tid == 0 && !kernel.iter().any(|name| is_interrupt(name)) {
            return Some(interned.stack(Stack { mode: Mode::Idle, frames: Vec::new() }, slice));
        }
        let mode = if kernel.is_empty() { Mode::User } else { Mode::Kernel };
        let mut frames = Vec::with_capacity(kernel.len() + user.len());
        for name in kernel {
            let number = interned.name(name, &mut slice.names);
            frames.push(interned.frame(number, true, slice));
        }
        for function in functions {
            let number = interned.function(&function, slice);
            frames.push(interned.frame(number, false, slice));
        }
        Some(interned.stack(Stack { mode, frames }, slice))
    }
}

/// Whether a kernel function is on the path from an interrupt to its handler: a CPU in such a function is not idle,
/// even if its idle thread is current.
pub(crate) fn is_interrupt(function: &str) -> bool {
    const EXACTLY: [&str; 8] = [
        "handle_softirqs",
        "__do_softirq",
        "do_softirq",
        "irq_exit_rcu",
        "__irq_exit_rcu",
        "irq_exit",
        "common_interrupt",
        "flush_smp_call_function_queue",
    ];
    const BEGIN: [&str; 6] =
        ["asm_sysvec_", "sysvec_", "asm_common_interrupt", "el1h_64_irq", "el1_interrupt", "do_softirq_own_stack"];
    EXACTLY.contains(&function) || BEGIN.iter().any(|begin| function.starts_with(begin))
}
