//! The clock of another machine of the run, for the guests that run on it.

use latpath_clock::HypervisorClock;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Another machine of the run on which guests run: its name, and its clock, which its session publishes for the
/// sessions of its guests.
#[derive(Clone, Debug)]
pub struct Hypervisor {
    name: String,
    clock: Arc<Mutex<Option<HypervisorClock>>>,
}

impl Hypervisor {
    /// Creates a machine of this name, without a clock yet.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), clock: Arc::default() }
    }

    /// Name given by the user.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn publish(&self, clock: HypervisorClock) {
        *self.clock() = Some(clock);
    }

    /// The latest clock. Its lock is taken while a session's lock is held, so its holder must not take any other lock.
    pub(crate) fn clock(&self) -> MutexGuard<'_, Option<HypervisorClock>> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
