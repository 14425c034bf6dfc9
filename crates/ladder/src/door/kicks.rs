//! Kicks of queues from guests, and the rounds of the vhost workers that serve them.

use super::MAX_KNOWN;
use crate::threads::Mark;
use latpath_model::Ns;
use std::collections::HashMap;

/// Kicks of all queues from guests, by the eventfd of the queue's kicks. Memory is bounded.
#[derive(Debug, Default)]
pub(super) struct Kicks(HashMap<u32, Kick>);

/// State of one queue.
#[derive(Clone, Copy, Debug, Default)]
struct Kick {
    /// Exit of the first kick that no round has served.
    first: Option<Mark>,
    /// End of the last round; `None` during one.
    ended: Option<Ns>,
}

impl Kicks {
    /// A vCPU that left its guest at `exit` signals an eventfd: this is a kick if the eventfd is a queue's. During a
    /// round, the worker may take the packet without the kick.
    pub fn signalled(&mut self, eventfd: u32, exit: Mark) {
        let Some(kick) = self.0.get_mut(&eventfd).filter(|kick| kick.first.is_none()) else { return };
        kick.first = kick.ended.filter(|ended| *ended < exit.t).map(|_| exit);
    }

    /// A worker begins a round of a queue. Returns the first kick since its previous round.
    pub fn round_begins(&mut self, eventfd: u32) -> Option<Mark> {
        if self.0.len() >= MAX_KNOWN && !self.0.contains_key(&eventfd) {
            self.0.clear();
        }
        self.0.insert(eventfd, Kick::default())?.first
    }

    /// A worker has ended its round of a queue.
    pub fn round_ends(&mut self, eventfd: u32, t: Ns) {
        self.0.get_mut(&eventfd).into_iter().for_each(|kick| kick.ended = Some(t));
    }

    /// Exits of the kicks that no round has served.
    pub fn unserved(&self) -> impl Iterator<Item = Mark> + '_ {
        self.0.values().filter_map(|kick| kick.first)
    }

    /// Forgets kicks and rounds, whose events may have been lost.
    pub fn lost(&mut self) {
        self.0.values_mut().for_each(|kick| *kick = Kick::default());
    }
}
