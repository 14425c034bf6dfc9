//! CPU time of host and guests by mode, process and function; the contexts in which a function runs; differences
//! between two profiles.

mod contexts;
mod diff;
mod guests;
mod instrument;
mod vm_name;

use contexts::entry;
use latpath_model::{Ns, Observation};
use latpath_profile::{is_named, spent, CallFigures, Frame, Header, Kind, Profile, Spent};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use diff::{Diff, Moved};
pub use instrument::{ProfileOptions, Profiler, Recorded};
pub use vm_name::{of_one_vm, without_vm_name};

/// CPU time of a window by mode, process and function.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ProfileFigures {
    /// The profile's header.
    #[serde(flatten)]
    pub header: Header,
    /// Number of CPUs sampled.
    pub cpu_count: u64,
    /// Time of all CPUs by mode; the sum is `cpu_count` × `window_ns`.
    pub modes: Modes,
    /// The kernel's own accounting of these CPUs (/proc/stat), which has the resolution of its clock tick.
    pub kernel_account: Option<KernelAccount>,
    /// Processes, in descending order of time.
    pub processes: Vec<ProcessFigures>,
    /// Functions, in descending order of self time.
    pub functions: Vec<FunctionFigures>,
    /// System calls of the VMs' processes, if requested.
    pub system_calls: Vec<CallLine>,
    /// Share of the frames in the host's call chains whose function is known.
    pub named_on_host: Option<f64>,
    /// Share of the frames in the guests' call chains whose function is known.
    pub named_in_guests: Option<f64>,
    /// The samples from which the figures were computed.
    #[serde(skip)]
    #[schemars(skip)]
    pub recorded: Recorded,
}

/// CPU time by mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Modes {
    /// In the host's kernel.
    pub host_sys_ns: Ns,
    /// In the host's programs.
    pub host_usr_ns: Ns,
    /// In guests' kernels.
    pub guest_sys_ns: Ns,
    /// In guests' programs.
    pub guest_usr_ns: Ns,
    /// In guests, while no agent sampled them.
    pub guest_unseen_ns: Ns,
    /// In host threads of which there is no sample.
    pub not_sampled_ns: Ns,
    /// Idle.
    pub idle_ns: Ns,
}

impl Modes {
    fn of(&mut self, spent: Spent) -> &mut Ns {
        match spent {
            Spent::HostSys => &mut self.host_sys_ns,
            Spent::HostUsr => &mut self.host_usr_ns,
            Spent::GuestSys => &mut self.guest_sys_ns,
            Spent::GuestUsr => &mut self.guest_usr_ns,
            Spent::GuestUnseen => &mut self.guest_unseen_ns,
            Spent::NotSampled => &mut self.not_sampled_ns,
        }
    }

    /// Total time in guests.
    pub fn guest_ns(&self) -> Ns {
        self.guest_sys_ns + self.guest_usr_ns + self.guest_unseen_ns
    }

    /// Total time in which the CPUs were not idle.
    pub fn busy_ns(&self) -> Ns {
        self.host_sys_ns + self.host_usr_ns + self.guest_ns() + self.not_sampled_ns
    }

    /// Total time, idle time included.
    pub fn total_ns(&self) -> Ns {
        self.busy_ns() + self.idle_ns
    }

    /// The time of a profile by mode.
    pub fn of_profile(profile: &Profile) -> Self {
        let mut modes = Self { idle_ns: profile.header.idle_ns, ..Self::default() };
        modes.not_sampled_ns = profile.header.unattributed_ns;
        profile.stacks.iter().for_each(|(frames, ns)| *modes.of(spent(frames)) += ns);
        modes
    }
}

/// CPU time as the kernel accounted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KernelAccount {
    /// In programs and guests.
    pub user_ns: Ns,
    /// In the kernel, including interrupts and softirqs.
    pub system_ns: Ns,
    /// In guests alone.
    pub guest_ns: Ns,
    /// Idle.
    pub idle_ns: Ns,
    /// Stolen by the hypervisor of this machine.
    pub steal_ns: Ns,
}

/// A process, or all kernel threads that do the same task.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProcessFigures {
    /// Its name.
    pub process: String,
    /// The guest in which it runs; `null` on the host.
    pub guest: Option<String>,
    /// Total time. A VM's process excludes the time sampled inside the guest, which belongs to the guest's processes.
    pub total_ns: Ns,
    /// Its time by mode.
    pub modes: Modes,
}

/// A function.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FunctionFigures {
    /// Its name.
    pub function: String,
    /// Whether it is a kernel function.
    pub in_kernel: bool,
    /// The guest in which it ran; `null` on the host.
    pub guest: Option<String>,
    /// Time in the function itself.
    pub self_ns: Ns,
    /// Time in the function and its callees.
    pub total_ns: Ns,
    /// Contexts in which it ran, in descending order of time; the sum is `total_ns`.
    pub contexts: Vec<Context>,
}

/// A context in which a function ran.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Context {
    /// The process.
    pub process: String,
    /// What the function ran in: a system call, an interrupt, a softirq, or the main function of a kernel thread. For a
    /// user-space function, its caller.
    pub under: Option<String>,
    /// Time in the function and its callees.
    pub total_ns: Ns,
}

/// All calls of one system call by one thread.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CallLine {
    /// The VM.
    pub vm: String,
    /// The thread's name, or its role in the VM.
    pub thread: String,
    /// Thread ID; 0 for the sum of all ended threads with this name.
    pub tid: u32,
    /// Name of the system call.
    pub call: String,
    /// Number of calls that began and ended in the window.
    pub count: u64,
    /// Their total time, including sleep.
    pub sum_ns: Ns,
    /// Mean time.
    pub mean_ns: Ns,
    /// Maximum time.
    pub max_ns: Ns,
    /// Number of calls that returned an error.
    pub failed: u64,
}

impl CallLine {
    /// Creates the line for these calls, with the names of the VM and the thread.
    pub fn new(call: &CallFigures, vm: String, thread: String) -> Self {
        let CallFigures { tid, count, ns, longest_ns, failed, .. } = *call;
        let mean_ns = ns / (count.max(1) as Ns);
        Self { vm, thread, tid, call: call.call.clone(), count, sum_ns: ns, mean_ns, max_ns: longest_ns, failed }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Function {
    guest: Option<String>,
    name: String,
    in_kernel: bool,
}

/// Name of the guest in a guest frame.
fn guest_of(frame: &Frame) -> Option<String> {
    let name = frame.name.strip_prefix("[guest ").and_then(|rest| rest.strip_suffix(']'));
    Some(name.unwrap_or(&frame.name).to_owned())
}

/// The part of a call chain that belongs to one machine: its guest, its process, and its functions.
struct Chain<'p> {
    pub guest: Option<String>,
    pub process: &'p str,
    pub functions: &'p [Frame],
}

impl<'p> Chain<'p> {
    /// The part of a call chain inside the innermost guest.
    pub fn of(frames: &'p [Frame]) -> Option<Self> {
        let (outer, last) = (frames.first()?, frames.last()?);
        let border = frames.iter().rposition(|frame| frame.kind == Kind::Guest);
        match border {
            Some(_) if last.kind == Kind::Guest => Some(Self { guest: None, process: &outer.name, functions: &[] }),
            Some(border) => {
                let inside = &frames[border + 1..];
                let guest = guest_of(&frames[border]);
                Some(Self { guest, process: &inside[0].name, functions: &inside[1..] })
            }
            None => Some(Self { guest: None, process: &outer.name, functions: &frames[1..] }),
        }
    }
}

/// Time of a function: self time, and total time by context.
#[derive(Default)]
struct FunctionTime {
    own: Ns,
    total: Ns,
    contexts: BTreeMap<(String, Option<String>), Ns>,
}

/// Whether the frame is a function, rather than a placeholder for a process that was not sampled or is not shown.
fn is_function(frame: &Frame) -> bool {
    !frame.name.starts_with("[not ")
}

fn functions(profile: &Profile) -> BTreeMap<Function, FunctionTime> {
    let mut functions: BTreeMap<Function, FunctionTime> = BTreeMap::new();
    for (frames, ns) in &profile.stacks {
        let Some(chain) = Chain::of(frames) else { continue };
        let mut met: Vec<(&str, bool)> = Vec::new();
        for (at, frame) in chain.functions.iter().enumerate().filter(|(_, frame)| is_function(frame)) {
            let in_kernel = frame.kind == Kind::Kernel;
            let function = Function { guest: chain.guest.clone(), name: frame.name.to_string(), in_kernel };
            let time = functions.entry(function).or_default();
            if at + 1 == chain.functions.len() {
                time.own += ns;
            }
            // The time of a recursive function is counted once, at its outermost call.
            if !met.contains(&(&*frame.name, in_kernel)) {
                met.push((&frame.name, in_kernel));
                time.total += ns;
                let context = (chain.process.to_owned(), entry(chain.functions, at));
                *time.contexts.entry(context).or_default() += ns;
            }
        }
    }
    functions
}

impl ProfileFigures {
    /// Computes the figures of a profile whose window began at `from_ns`. The caller adds notes and the figures from
    /// other sources.
    pub fn observe(profile: &Profile, from_ns: Ns) -> Observation<Self> {
        let mut processes: BTreeMap<(Option<String>, &str), Modes> = BTreeMap::new();
        let mut named = [(0, 0); 2];
        for (frames, ns) in &profile.stacks {
            let Some(chain) = Chain::of(frames) else { continue };
            let (guest, process) = (chain.guest.clone(), chain.process);
            *processes.entry((guest, process)).or_default().of(spent(frames)) += ns;
            for frame in chain.functions.iter().filter(|frame| is_function(frame)) {
                let count = &mut named[usize::from(chain.guest.is_some())];
                count.0 += Ns::from(is_named(&frame.name)) * (ns / 1000);
                count.1 += ns / 1000;
            }
        }
        let mut processes: Vec<ProcessFigures> = processes
            .into_iter()
            .map(|((guest, process), modes)| ProcessFigures {
                process: process.to_owned(),
                guest,
                total_ns: modes.total_ns(),
                modes,
            })
            .collect();
        processes.sort_by_key(|process| std::cmp::Reverse(process.total_ns));
        let mut functions: Vec<FunctionFigures> = functions(profile).into_iter().map(FunctionFigures::new).collect();
        functions.sort_by_key(|function| std::cmp::Reverse((function.self_ns, function.total_ns)));
        let part = |(named, all): (Ns, Ns)| (all > 0).then(|| named as f64 / all as f64);
        let figures = Self {
            header: profile.header.clone(),
            cpu_count: profile.header.cpus.iter().count() as u64,
            modes: Modes::of_profile(profile),
            kernel_account: None,
            processes,
            functions,
            system_calls: Vec::new(),
            named_on_host: part(named[0]),
            named_in_guests: part(named[1]),
            recorded: Recorded::default(),
        };
        let (window_ns, lost_events) = (profile.window_ns, profile.lost);
        Observation { from_ns, window_ns, lost_events, figures, ..Observation::default() }
    }
}

impl FunctionFigures {
    fn new((function, time): (Function, FunctionTime)) -> Self {
        let context = |((process, under), total_ns)| Context { process, under, total_ns };
        let mut contexts: Vec<Context> = time.contexts.into_iter().map(context).collect();
        contexts.sort_by_key(|context| std::cmp::Reverse(context.total_ns));
        Self {
            function: function.name,
            in_kernel: function.in_kernel,
            guest: function.guest,
            self_ns: time.own,
            total_ns: time.total,
            contexts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_of_the_json_stands_twice() {
        let printed = serde_json::to_string(&ProfileFigures::observe(&Profile::default(), 0)).expect("JSON");
        let keys = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&printed).expect("an object");
        for key in keys.keys() {
            assert_eq!(printed.matches(&format!("\"{key}\":")).count(), 1 + nested(&keys, key), "{key}");
        }
    }

    /// How often a key occurs inside other values.
    fn nested(keys: &serde_json::Map<String, serde_json::Value>, key: &str) -> usize {
        keys.values().map(|value| value.to_string().matches(&format!("\"{key}\":")).count()).sum()
    }
}
