//! What is known of threads: who woke them, since when they run, when vCPUs could take an interrupt.

use latpath_model::Ns;
use std::collections::HashMap;

/// Threads that are known at once. Where there are more, all are forgotten.
pub(crate) const MOST: usize = 1 << 16;
/// Moments at which a vCPU could take an interrupt that are known.
const REACHES: usize = 16;

/// Something a thread did or suffered: when, who, on which CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When, in the source's clock.
    pub t: Ns,
    /// The thread that did it.
    pub pid: u32,
    pub cpu: u32,
}

/// Whether the kernel names its workers of vhost so: `vhost-` and a process. Programs that serve devices of
/// vhost-user do not end in a number.
pub(crate) fn is_worker(name: &str) -> bool {
    name.strip_prefix("vhost-").is_some_and(|owner| owner.parse::<u32>().is_ok())
}

/// What a source knows of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub name: String,
    pub process: Option<u32>,
    pub is_vhost: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Thread {
    pub identity: Identity,
    pub asleep: bool,
    pub woken: Option<Mark>,
    woken_since_run: bool,
    pub runs: Option<Mark>,
    /// It has been in a guest.
    pub is_vcpu: bool,
    /// It has turned to a queue, or relayed an interrupt.
    pub serves: bool,
    /// Outside the guest since then, and for which reason.
    pub exit: Option<(Mark, u16)>,
    /// The latest moments at which it could take an interrupt.
    reaches: Vec<Mark>,
    /// Whom it has woken since it left the guest.
    pub woke: Option<u32>,
    /// The register that it wrote to since it left the guest, until it shows which queue that kicks.
    pub doorbell: Option<crate::event::Doorbell>,
    /// The queue that it has kicked since it left the guest.
    pub kicked: Option<usize>,
    /// The interrupt of the queue that this worker of vhost serves, by direction.
    pub call: [u64; 2],
}

impl Thread {
    fn reach(&mut self, mark: Mark) {
        if self.reaches.len() == REACHES {
            self.reaches.remove(0);
        }
        self.reaches.push(mark);
    }

    /// The first moment from `t` on at which this vCPU could take an interrupt; `None` too where that is forgotten.
    pub fn reached_since(&self, t: Ns) -> Option<Mark> {
        let forgotten = self.reaches.len() == REACHES && self.reaches[0].t > t;
        self.reaches.iter().find(|mark| mark.t >= t).copied().filter(|_| !forgotten)
    }

    /// Whether transfers depend on when it runs. Nothing is concluded from other threads.
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

    /// It runs. False if it slept, and nobody had woken it.
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
    /// How often all were forgotten.
    pub forgotten: u64,
}

impl Threads {
    pub fn get(&self, pid: u32) -> Option<&Thread> {
        self.all.get(&pid)
    }

    pub fn of(&mut self, pid: u32) -> &mut Thread {
        if self.all.len() >= MOST && !self.all.contains_key(&pid) {
            self.all.clear();
            self.forgotten += 1;
        }
        self.all.entry(pid).or_default()
    }

    /// Forgets what threads did, and keeps who they are.
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
