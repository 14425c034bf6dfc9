//! CPU time of host and guests by mode, process and function; the contexts in which a function runs; the same of two
//! profiles.

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

/// Where the CPUs' time went in a window.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ProfileFigures {
    /// What it is of.
    #[serde(flatten)]
    pub header: Header,
    /// How many CPUs were watched.
    pub cpu_count: u64,
    /// Where all CPUs' time went: adds up to `cpu_count` × `window_ns`.
    pub modes: Modes,
    /// What the kernel itself accounted to these CPUs (/proc/stat), in steps of its clock tick.
    pub kernel_account: Option<KernelAccount>,
    /// Processes, those with most time first.
    pub processes: Vec<ProcessFigures>,
    /// Functions, those with most time of their own first.
    pub functions: Vec<FunctionFigures>,
    /// System calls of the VMs' processes, where that was asked for.
    pub system_calls: Vec<CallLine>,
    /// The part of the frames of the host's call chains whose function is known.
    pub named_on_host: Option<f64>,
    /// The same of the guests'.
    pub named_in_guests: Option<f64>,
    /// What the figures were computed from.
    #[serde(skip)]
    #[schemars(skip)]
    pub recorded: Recorded,
}

/// CPU time by where it was spent.
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
    /// In guests into which nobody looked.
    pub guest_unseen_ns: Ns,
    /// By threads of the host that no sample met.
    pub not_sampled_ns: Ns,
    /// Nothing to do.
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

    pub fn guest_ns(&self) -> Ns {
        self.guest_sys_ns + self.guest_usr_ns + self.guest_unseen_ns
    }

    /// All time in which CPUs worked.
    pub fn busy_ns(&self) -> Ns {
        self.host_sys_ns + self.host_usr_ns + self.guest_ns() + self.not_sampled_ns
    }

    pub fn total_ns(&self) -> Ns {
        self.busy_ns() + self.idle_ns
    }

    pub fn of_profile(profile: &Profile) -> Self {
        let mut modes = Self { idle_ns: profile.header.idle_ns, ..Self::default() };
        modes.not_sampled_ns = profile.header.unattributed_ns;
        profile.stacks.iter().for_each(|(frames, ns)| *modes.of(spent(frames)) += ns);
        modes
    }
}

/// What the kernel accounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KernelAccount {
    /// Programs, and guests.
    pub user_ns: Ns,
    /// The kernel, interrupts and softirqs.
    pub system_ns: Ns,
    /// Guests alone.
    pub guest_ns: Ns,
    /// Nothing to do.
    pub idle_ns: Ns,
    /// Taken by this machine's own hypervisor.
    pub steal_ns: Ns,
}

/// A process, or the kernel's threads for one task.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProcessFigures {
    /// Its name.
    pub process: String,
    /// The guest that it runs in; `null` on the host.
    pub guest: Option<String>,
    /// All of its time. Of a VM's process: without what was seen inside the guest, which is the time of the guest's
    /// processes.
    pub total_ns: Ns,
    /// Where it was spent.
    pub modes: Modes,
}

/// A function.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FunctionFigures {
    /// Its name.
    pub function: String,
    /// Whether it is the kernel's.
    pub in_kernel: bool,
    /// The guest that it ran in; `null` on the host.
    pub guest: Option<String>,
    /// Time in the function itself.
    pub self_ns: Ns,
    /// Time in it and in what it called.
    pub total_ns: Ns,
    /// Under what it ran, those with most time first: adds up to `total_ns`.
    pub contexts: Vec<Context>,
}

/// Under what a function ran.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Context {
    /// The process.
    pub process: String,
    /// The system call, interrupt, softirq or the kernel thread's function that led to it; of a program's function,
    /// its caller.
    pub under: Option<String>,
    /// Time in the function and in what it called.
    pub total_ns: Ns,
}

/// A system call of a thread, all of its calls together.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CallLine {
    /// The VM.
    pub vm: String,
    /// The thread's name, or what it does for the VM.
    pub thread: String,
    /// Its number; 0: all threads of this name that have ended, together.
    pub tid: u32,
    /// The call.
    pub call: String,
    /// Calls that began and ended in the window.
    pub count: u64,
    /// Their time, also asleep.
    pub sum_ns: Ns,
    /// Mean.
    pub mean_ns: Ns,
    /// The longest.
    pub max_ns: Ns,
    /// Those that returned an error.
    pub failed: u64,
}

impl CallLine {
    /// `vm` and `thread` are names.
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

/// The name of the guest that frames are in.
fn guest_of(frame: &Frame) -> Option<String> {
    let name = frame.name.strip_prefix("[guest ").and_then(|rest| rest.strip_suffix(']'));
    Some(name.unwrap_or(&frame.name).to_owned())
}

/// A call chain of one machine: its guest, its process, and its functions.
struct Chain<'p> {
    pub guest: Option<String>,
    pub process: &'p str,
    pub functions: &'p [Frame],
}

impl<'p> Chain<'p> {
    /// The part of a call chain that is inside the innermost guest.
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

/// Time of a function, its own and with what it called, by context.
#[derive(Default)]
struct FunctionTime {
    own: Ns,
    total: Ns,
    contexts: BTreeMap<(String, Option<String>), Ns>,
}

/// Not what stands for a process that was not sampled, or is not shown.
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
            // One that calls itself has the time once, by its outermost call.
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
    /// The figures of a profile, whose window began at `from_ns`. What else is known of the window can be added.
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

    /// How often a key stands inside of other values.
    fn nested(keys: &serde_json::Map<String, serde_json::Value>, key: &str) -> usize {
        keys.values().map(|value| value.to_string().matches(&format!("\"{key}\":")).count()).sum()
    }
}
