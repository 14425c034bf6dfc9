//! Distributes exact times among samples: each thread's time among its own samples, each vCPU's guest time among its
//! guest's samples of the same second.

use crate::model::{Frame, GuestHeader, Header, Kind, Profile, NOT_SAMPLED};
use crate::samples::Samples;
use crate::slice::{Mode, Stack, Thread};
use latpath_model::{Causality, Ns};
use latpath_vms::{Role, Vm};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Number of samples below which a thread is pooled with other such threads of the same process name: at 99 samples per
/// second, a process that runs for 2 ms has a sample in only one of five cases.
const FEW: u64 = 8;

/// Guest time of a vCPU's thread over the window.
#[derive(Clone, Debug, Default)]
pub struct GuestTime {
    /// The vCPU's thread.
    pub tid: u32,
    /// The VM's process.
    pub pid: u32,
    /// Index of the vCPU, which is also the guest's CPU number.
    pub vcpu: Option<u32>,
    /// Readings in order: time of the reading, and guest time, ns.
    pub readings: Vec<(Ns, Ns)>,
}

impl GuestTime {
    /// Guest time from the first reading to `t`, interpolated, ns.
    fn at(&self, t: Ns) -> Ns {
        let after = self.readings.partition_point(|(at, _)| *at <= t);
        let base = self.readings.first().map_or(0, |(_, ns)| *ns);
        match (after.checked_sub(1).map(|i| self.readings[i]), self.readings.get(after)) {
            (None, _) => 0,
            (Some((_, ns)), None) => ns - base,
            (Some((from, before)), Some((until, ns))) => before - base + part(ns - before, t - from, until - from),
        }
    }

    fn whole(&self) -> Ns {
        self.readings.last().map_or(0, |(_, ns)| ns - self.readings[0].1)
    }
}

/// Returns `whole` × `n` / `of`, computed without overflow; 0 if `of` is 0.
fn part(whole: Ns, n: Ns, of: Ns) -> Ns {
    match of {
        0 => 0,
        of => (i128::from(whole) * i128::from(n) / i128::from(of)) as Ns,
    }
}

/// Distributes a time in proportion to weights; the sum of the shares is exactly that time.
fn share(whole: Ns, of: impl Iterator<Item = Ns> + Clone) -> impl Iterator<Item = Ns> {
    let sum: i128 = of.clone().map(i128::from).sum();
    let (mut before, mut given) = (0i128, 0);
    of.map(move |weight| {
        before += i128::from(weight);
        let until = if sum == 0 { 0 } else { (i128::from(whole) * before / sum) as Ns };
        until - std::mem::replace(&mut given, until)
    })
}

/// Samples from inside a guest.
#[derive(Clone, Debug)]
pub struct Guest {
    /// The VM's process on the host.
    pub pid: u32,
    /// Samples from its agent.
    pub samples: Samples,
    /// The guest's clock minus the host's, ns.
    pub offset_ns: Ns,
    /// Error bound of the offset, ns.
    pub error_bound_ns: Ns,
    /// Result of checking its samples against its vCPUs' guest times, if checked.
    pub causality: Option<Causality>,
    /// Reason for an early end, if any.
    pub fault: Option<String>,
}

/// A machine's samples with their weights.
#[derive(Default)]
struct Weights {
    /// Time by index of slice, CPU, thread and call chain, ns; in this order for range queries.
    entries: BTreeMap<(u32, u32, u32, u32), Ns>,
    /// Time of threads without a sample, by thread index, ns.
    not_sampled: BTreeMap<u32, Ns>,
    /// Guest time by TID of the vCPU's thread, ns.
    guest: BTreeMap<u32, Ns>,
}

/// A thread, under all names that it has had.
#[derive(Default)]
struct OneThread {
    number: u32,
    ns: Ns,
    counts: Vec<((u32, u32, u32, u32), Ns)>,
}

impl Weights {
    /// Weighs a machine's samples. `guests`: guest time by TID of the threads that run a guest, ns.
    fn of(samples: &Samples, guests: &HashMap<u32, Ns>) -> Self {
        let mut threads: BTreeMap<(u32, u32), OneThread> = BTreeMap::new();
        let key = |number: u32| (samples.thread(number).tid, samples.thread(number).cpu);
        let mut times: Vec<_> = samples.times.iter().collect();
        times.sort_unstable();
        for (number, ns) in times {
            let thread = threads.entry(key(*number)).or_default();
            (thread.number, thread.ns) = (*number, thread.ns + ns);
        }
        let mut counts: Vec<_> = samples.counts.iter().map(|(at, count)| (*at, Ns::from(*count))).collect();
        counts.sort_unstable();
        for (at, count) in counts {
            // The thread of a sample may have no time: it ended between the two readings.
            threads.entry(key(at.2)).or_default().counts.push((at, count));
        }
        let mut weights = Self::default();
        let mut pools: BTreeMap<(&str, bool), OneThread> = BTreeMap::new();
        for ((tid, _), mut thread) in threads {
            let is_guest = |at: &(u32, u32, u32, u32)| samples.stack(at.3).mode == Mode::Guest;
            if let Some(guest) = guests.get(&tid).filter(|_| tid != 0) {
                let guest = (*guest).min(thread.ns);
                weights.guest.insert(tid, guest);
                thread.ns -= guest;
                thread.counts.retain(|(at, _)| !is_guest(at));
                weights.give(&thread);
                continue;
            }
            let seen: Ns = thread.counts.iter().map(|(_, count)| count).sum();
            if tid == 0 && thread.counts.is_empty() || seen as u64 >= FEW {
                weights.give(&thread);
                continue;
            }
            let about = samples.thread(thread.counts.first().map_or(thread.number, |(at, _)| at.2));
            let pool = pools.entry((&about.process, about.is_kernel)).or_default();
            pool.number = thread.number;
            pool.ns += thread.ns;
            pool.counts.append(&mut thread.counts);
        }
        pools.values().for_each(|pool| weights.give(pool));
        weights
    }

    /// Distributes a thread's time among its samples.
    fn give(&mut self, thread: &OneThread) {
        if thread.counts.is_empty() {
            *self.not_sampled.entry(thread.number).or_default() += thread.ns;
        }
        let shares = share(thread.ns, thread.counts.iter().map(|(_, count)| *count));
        for ((at, _), ns) in thread.counts.iter().zip(shares) {
            *self.entries.entry(*at).or_default() += ns;
        }
    }
}

/// Combines the samples of a host and its guests into a profile.
///
/// The profile's total is exact: the times of `host`'s threads are distributed among their call chains, and nothing is
/// added. The guest time of a vCPU is distributed, second by second, among the guest's threads on that CPU; guest time
/// without work is shown as the guest's idle loop. Guest time for which the guest has no samples is one frame per vCPU.
pub fn weigh(host: &Samples, times: &[GuestTime], guests: &[Guest], vms: &[Vm], header: Header) -> Profile {
    let mut names = Names { vms, known: HashMap::new() };
    let by_thread: HashMap<u32, Ns> = times.iter().map(|time| (time.tid, time.whole())).collect();
    let weights = Weights::of(host, &by_thread);
    let window = host.span().unwrap_or_default();
    let mut profile = Profile { header, window_ns: window.1 - window.0, ..Profile::default() };
    let mut idle = 0;
    for ((_, _, thread, stack), ns) in &weights.entries {
        let (thread, stack) = (host.thread(*thread), host.stack(*stack));
        match stack.mode {
            Mode::Idle => idle += ns,
            Mode::Guest => profile.add(vec![names.process(thread), names.frame("[guest]", Kind::Guest)], *ns),
            _ => {
                let mut frames = vec![names.process(thread)];
                names.push(host, stack, &mut frames);
                profile.add(frames, *ns);
            }
        }
    }
    for (number, ns) in &weights.not_sampled {
        match host.thread(*number) {
            thread if thread.tid == 0 => idle += ns,
            thread => profile.add(vec![names.process(thread), names.frame(NOT_SAMPLED, Kind::User)], *ns),
        }
    }
    let inside: HashMap<u32, (&Guest, Weights)> =
        guests.iter().map(|guest| (guest.pid, (guest, Weights::of(&guest.samples, &HashMap::new())))).collect();
    for time in times {
        let Some(whole) = weights.guest.get(&time.tid).copied() else { continue };
        let vm = names.vm(time.pid);
        let outer = names.frame(&vm.0, Kind::Process);
        let mut seen = 0;
        if let (Some((guest, weights)), Some(cpu)) = (inside.get(&time.pid), time.vcpu) {
            let guest_frame = names.frame(&format!("[guest {}]", vm.1), Kind::Guest);
            for (what, ns) in on_vcpu(guest, weights, cpu, time, window, whole) {
                let mut frames = vec![outer.clone(), guest_frame.clone()];
                match what {
                    None => frames.extend([names.frame("idle", Kind::Process), names.frame(IDLE_LOOP, Kind::Kernel)]),
                    Some((thread, stack)) => {
                        let (thread, stack) = (guest.samples.thread(thread), guest.samples.stack(stack));
                        frames.push(names.guest_process(thread));
                        match stack.mode {
                            Mode::Guest => frames.push(names.frame("[guest]", Kind::Guest)),
                            _ => names.push(&guest.samples, stack, &mut frames),
                        }
                    }
                }
                seen += ns;
                profile.add(frames, ns);
            }
        }
        let vcpu = time.vcpu.map_or_else(|| format!("thread {}", time.tid), |vcpu| format!("vCPU {vcpu}"));
        let unseen = names.frame(&format!("[guest {} {vcpu}]", vm.1), Kind::Guest);
        profile.add(vec![outer, unseen], whole - seen);
    }
    profile.header.idle_ns = idle;
    profile.header.unattributed_ns = host.unattributed;
    (profile.header.samples, profile.lost) = (host.samples, host.lost);
    (profile.header.user_samples, profile.header.user_samples_without_callers) = host.of_programs();
    let header = |guest: &Guest| {
        let (user_samples, user_samples_without_callers) = guest.samples.of_programs();
        GuestHeader {
            name: names.vm(guest.pid).1,
            samples: guest.samples.samples,
            lost: guest.samples.lost,
            user_samples,
            user_samples_without_callers,
            clock_error_ns: guest.error_bound_ns,
            causality: guest.causality,
            fault: guest.fault.clone(),
        }
    };
    profile.header.guests = guests.iter().map(header).collect();
    profile
}

/// Frame of a guest's idle CPU while the vCPU is in the guest: the guest polls, or is about to halt.
const IDLE_LOOP: &str = "idle loop";

/// Distributes a vCPU's guest time, `whole`, second by second: among the guest's threads and call chains on that CPU,
/// and the guest's idle loop. Time for which the guest sent no slice is not distributed.
fn on_vcpu(
    guest: &Guest,
    weights: &Weights,
    cpu: u32,
    time: &GuestTime,
    window: (Ns, Ns),
    whole: Ns,
) -> Vec<(Option<(u32, u32)>, Ns)> {
    // By slice: guest time as measured by the host, and the guest's own samples of work, with their times.
    let mut spans: BTreeMap<u32, (Ns, Vec<((u32, u32), Ns)>)> = BTreeMap::new();
    let accounted = time.whole();
    let mut work = 0;
    for (number, (from, until)) in (0..).zip(&guest.samples.spans) {
        let (from, until) = (from.saturating_sub(guest.offset_ns), until.saturating_sub(guest.offset_ns));
        let (begin, end) = (from.max(window.0), until.min(window.1));
        if begin >= end {
            continue;
        }
        let had = part(time.at(end) - time.at(begin), whole, accounted);
        let is_work = |at: &(u32, u32, u32, u32)| guest.samples.stack(at.3).mode != Mode::Idle;
        let entries = weights.entries.range((number, cpu, 0, 0)..=(number, cpu, u32::MAX, u32::MAX));
        let did: Vec<((u32, u32), Ns)> = entries
            .filter(|(at, _)| is_work(at))
            .map(|(at, ns)| ((at.2, at.3), part(*ns, end - begin, until - from)))
            .collect();
        work += did.iter().map(|(_, ns)| ns).sum::<Ns>();
        spans.insert(number, (had, did));
    }
    let had: Ns = spans.values().map(|(had, _)| had).sum();
    let mut shared: BTreeMap<Option<(u32, u32)>, Ns> = BTreeMap::new();
    let mut give = |whole: Ns, did: &[((u32, u32), Ns)]| {
        for ((what, _), ns) in did.iter().zip(share(whole, did.iter().map(|(_, ns)| *ns))) {
            *shared.entry(Some(*what)).or_default() += ns;
        }
    };
    // The busy time of a second without samples of work is carried over to the next second.
    let (mut pending, mut idle) = (0, 0);
    for (had_then, did) in spans.values() {
        let busy = part(*had_then, work.min(had), had);
        idle += had_then - busy;
        pending += busy;
        if did.iter().any(|(_, ns)| *ns > 0) {
            give(std::mem::take(&mut pending), did);
        }
    }
    if let Some((_, did)) = spans.values().rev().find(|(_, did)| did.iter().any(|(_, ns)| *ns > 0)) {
        give(pending, did);
    }
    if idle > 0 {
        *shared.entry(None).or_default() += idle;
    }
    shared.into_iter().collect()
}

/// Creates frames, with one copy of equal names.
struct Names<'v> {
    vms: &'v [Vm],
    known: HashMap<String, Arc<str>>,
}

impl Names<'_> {
    fn frame(&mut self, name: &str, kind: Kind) -> Frame {
        let name = match self.known.get(name) {
            Some(known) => known.clone(),
            None => self.known.entry(name.into()).or_insert_with(|| name.into()).clone(),
        };
        Frame { name, kind }
    }

    /// Appends the frames of a call chain, outermost first.
    fn push(&mut self, samples: &Samples, stack: &Stack, frames: &mut Vec<Frame>) {
        for frame in stack.frames.iter().rev() {
            let kind = if frame.in_kernel() { Kind::Kernel } else { Kind::User };
            frames.push(self.frame(samples.name(*frame), kind));
        }
    }

    /// Names of a VM's frame, and of the VM.
    fn vm(&self, pid: u32) -> (String, String) {
        match self.vms.iter().find(|vm| vm.pid == pid) {
            Some(vm) => vm_names(vm),
            None => (format!("process {pid}"), format!("of process {pid}")),
        }
    }

    /// Returns the frame of a thread's process on the host: a VM is shown by its name, a vhost worker by the VM that it
    /// serves.
    fn process(&mut self, thread: &Thread) -> Frame {
        let serves = |vm: &&Vm| vm.threads.iter().any(|known| known.tid == thread.tid && known.role == Role::Vhost);
        let vhost = self.vms.iter().find(serves).map(|vm| vm.pid);
        let name = match vhost {
            Some(pid) => vhost_of(&self.vm(pid).1),
            None if self.vms.iter().any(|vm| vm.pid == thread.tgid) => self.vm(thread.tgid).0,
            None => process_name(thread).to_owned(),
        };
        self.frame(&name, Kind::Process)
    }

    fn guest_process(&mut self, thread: &Thread) -> Frame {
        self.frame(process_name(thread), Kind::Process)
    }
}

/// Names of a VM's process in a profile, and of the VM itself.
fn vm_names(vm: &Vm) -> (String, String) {
    let name = latpath_model::text::printable(&vm.name).replace(';', ":");
    (format!("{name} ({})", vm.program), name)
}

fn vhost_of(name: &str) -> String {
    format!("vhost of {name}")
}

/// Whether a process of a profile belongs to a VM: it is the VM's own process, or its vhost workers.
pub fn is_of_vm(process: &Frame, vm: &Vm) -> bool {
    let (own, name) = vm_names(vm);
    *process.name == *own || *process.name == *vhost_of(&name)
}

/// Returns a process's name; for kernel threads, the common part of their names: `kworker/1:2-events` becomes
/// `kworker`.
fn process_name(thread: &Thread) -> &str {
    let name = match thread.process.as_str() {
        "" => "?",
        name => name,
    };
    if !(thread.is_kernel || thread.tid == 0) {
        return name;
    }
    match name.split_once('/') {
        Some((kind, rest)) if rest.starts_with(|c: char| c.is_ascii_digit() || c == 'u') && kind != "irq" => kind,
        _ => name
            .split_once("-")
            .filter(|(_, rest)| rest.bytes().all(|b| b.is_ascii_digit()))
            .map_or(name, |(kind, _)| kind),
    }
}

#[cfg(test)]
mod tests;
