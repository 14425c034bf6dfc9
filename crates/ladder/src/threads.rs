//! State of threads: wakeups, run times, and the times at which vCPUs could take an interrupt.

use latpath_model::Ns;
use std::collections::HashMap;

/// Maximum number of threads; beyond it, all are forgotten.
pub(crate) const MAX: usize = 1 << 16;
/// Maximum number of remembered times at which a vCPU could take an interrupt.
const REACHES: usize = 16;

/// Time, thread and CPU of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Time in the source's clock, ns.
    pub t: Ns,
    /// The acting thread.
    pub pid: u32,
    /// The CPU.
    pub cpu: u32,
}

/// Whether this is the kernel's name for a vhost worker: `vhost-` and a process. Names of vhost-user programs do not
/// end in a number.
pub(crate) fn is_worker(name: &str) -> bool {
    name.strip_prefix("vhost-").is_some_and(|owner| owner.parse::<u32>().is_ok())
}

/// A thread's identity, from the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// Its process, if known.
    pub process: Option<u32>,
    /// Whether it is a vhost worker.
    pub is_vhost: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Thread {
    pub identity: Identity,
    pub asleep: bool,
    pub woken: Option<Mark>,
    woken_since_run: bool,
    pub runs: Option<Mark>,
    /// Whether it has been in a guest.
    pub is_vcpu: bool,
    /// Whether it has served a queue or relayed an interrupt.
    pub serves: bool,
    /// The exit and its reason, while the vCPU is outside the guest.
    pub exit: Option<(Mark, u16)>,
    /// The latest times at which the vCPU could take an interrupt.
    reaches: Vec<Mark>,
    /// The thread that it last woke since its exit.
    pub woke: Option<u32>,
    /// The register that it wrote to since its exit, until the kicked queue is known.
    pub doorbell: Option<crate::event::Doorbell>,
    /// The queue that it kicked since its exit.
    pub kicked: Option<usize>,
    /// Interrupt eventfd of the queue that this vhost worker serves, by direction.
    pub call: [u64; 2],
}

impl Thread {
    fn reach(&mut self, mark: Mark) {
        if self.reaches.len() == REACHES {
            self.reaches.remove(0);
        }
        self.reaches.push(mark);
    }

    /// The first time since `t` at which this vCPU could take an interrupt; `None` if unknown or forgotten.
    pub fn reached_since(&self, t: Ns) -> Option<Mark> {
        let forgotten = self.reaches.len() == REACHES && self.reaches[0].t > t;
        self.reaches.iter().find(|mark| mark.t >= t).copied().filter(|_| !forgotten)
    }

    /// Whether transfers depend on the thread's run times; other threads are ignored.
    pub fn takes_part(&self) -> bool {
        self.is_vcpu || self.serves || self.identity.is_vhost
    }

    pub fn leaves_guest(&mut self, mark: Mark, reason: u16) {
        self.is_vcpu = true;
        self.exit = Some((mark, reason));
        (self.doorbell, self.woke, self.kicked) = (None, None, None);
        self.reach(mark);
    }

    pub fn enters_guest(&mut self) {
        self.is_vcpu = true;
        (self.exit, self.doorbell, self.woke, self.kicked) = (None, None, None, None);
    }

    pub fn wake(&mut self, mark: Mark) {
        self.woken = Some(mark);
        self.woken_since_run = true;
    }

    /// The thread runs. Returns false if it was asleep and no wakeup was seen.
    pub fn run(&mut self, mark: Mark) -> bool {
        let explained = !self.asleep || self.woken_since_run;
        self.asleep = false;
        self.woken_since_run = false;
        self.runs = Some(mark);
        if self.is_vcpu {
            self.reach(mark);
        }
        explained
    }
}

#[derive(Debug, Default)]
pub(crate) struct Threads {
    all: HashMap<u32, Thread>,
    /// Number of times that all threads were forgotten.
    pub forgotten: u64,
}

impl Threads {
    pub fn get(&self, pid: u32) -> Option<&Thread> {
        self.all.get(&pid)
    }

    pub fn of(&mut self, pid: u32) -> &mut Thread {
        if self.all.len() >= MAX && !self.all.contains_key(&pid) {
            self.all.clear();
            self.forgotten += 1;
        }
        self.all.entry(pid).or_default()
    }

    /// Resets the threads' state, but keeps their identities.
    pub fn forget_states(&mut self) {
        for thread in self.all.values_mut() {
            let identity = std::mem::take(&mut thread.identity);
            let (is_vcpu, serves, call) = (thread.is_vcpu, thread.serves, thread.call);
            *thread = Thread { identity, is_vcpu, serves, call, ..Thread::default() };
        }
    }

    pub fn is_vhost(&self, pid: u32) -> bool {
        self.get(pid).is_some_and(|thread| thread.identity.is_vhost)
    }

    pub fn process(&self, pid: u32) -> Option<u32> {
        self.get(pid).and_then(|thread| thread.identity.process)
    }
}
