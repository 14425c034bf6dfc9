//! Attributes one packet's delay beyond the baseline to its causes, by excess.
//!
//! On each hop, the baseline of each cause (the mean time over on-time packets) is subtracted. A packet may have less
//! time of a cause than the baseline: e.g. its reader usually waits for an idle exit, but this time waited for its CPU
//! instead. The remainder is then subtracted from the other causes in proportion. So no excess is negative, and their
//! sum is exactly the packet's time beyond the baseline.

use crate::actor::Actor;
use crate::baseline::{Baseline, MeanTimes};
use crate::sums::{add, longest_first, plus};
use crate::{Cause, Culprit, Note, PacketTimeline, RunContext};
use latpath_model::{Ns, PointId};
use std::collections::HashMap;

/// Maximum number of notes kept per cause.
const MAX_NOTES: usize = 4;

/// The causes of one packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attribution {
    /// Time from the packet's first sighting on the route to its last, ns.
    pub time_ns: Ns,
    /// Baseline of that time, ns; hops without a baseline contribute 0.
    pub baseline_ns: Ns,
    /// Time beyond the baseline, ns; at least 0.
    pub excess_ns: Ns,
    /// Whether any hop of the route lacks a baseline.
    pub without_baseline: bool,
    /// Causes, largest excess first. Their times sum to `time_ns`, their excesses to `excess_ns`.
    pub shares: Vec<CauseShare>,
}

/// One cause of one packet's delay: all time on the whole route in which the same actor was delayed for the same
/// reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CauseShare {
    /// Why the packet did not proceed.
    pub cause: Cause,
    /// Name of the actor's machine; empty for `unexplained`.
    pub machine: String,
    /// The actor that had to act for the packet to proceed.
    pub actor: Option<Actor>,
    /// A thread that slept until the actor had acted.
    pub waiter: Option<Actor>,
    /// Time of this cause, ns.
    pub time_ns: Ns,
    /// Time beyond the baseline, ns.
    pub excess_ns: Ns,
    /// Executors that delayed the actor, each with its part of `time_ns`, longest first.
    pub by: Vec<(Actor, Ns)>,
    /// Time per CPU, longest first.
    pub cpus: Vec<(u32, Ns)>,
    /// Time per hop, longest first.
    pub hops: Vec<((PointId, PointId), Ns)>,
    /// Largest `number` of its intervals, e.g. packets ahead or exit reason.
    pub number: Option<u64>,
    /// Name of the idle state with that number, if known.
    pub state: Option<String>,
    /// Notes for the reader, each with the time that it applies to, longest first.
    pub notes: Vec<(Note, Ns)>,
}

impl CauseShare {
    pub(crate) fn new(cause: Cause, machine: String, actor: Option<Actor>) -> Self {
        Self {
            cause,
            machine,
            actor,
            waiter: None,
            time_ns: 0,
            excess_ns: 0,
            by: Vec::new(),
            cpus: Vec::new(),
            hops: Vec::new(),
            number: None,
            state: None,
            notes: Vec::new(),
        }
    }

    /// The culprit: the executor that delayed the actor longest, or the actor itself if nothing else delayed it or it
    /// chose to wait.
    pub fn culprit(&self) -> Option<&Actor> {
        let by = self.by.first().map(|(actor, _)| actor);
        match self.cause.info().culprit {
            // The timer that woke the actor was its own.
            Culprit::Actor => self.actor.as_ref().or(by),
            Culprit::Found | Culprit::IdleCpu | Culprit::Nobody => by.or(self.actor.as_ref()),
        }
    }

    /// The CPU with the largest share of the time.
    pub fn cpu(&self) -> Option<u32> {
        self.cpus.first().map(|(cpu, _)| *cpu)
    }

    /// Merges a newer record of the actor.
    pub(crate) fn update_actor(&mut self, actor: Option<&Actor>) {
        if let (Some(known), Some(actor)) = (&mut self.actor, actor) {
            known.update(actor);
        }
    }

    /// Adds a culprit's time. A new culprit is only added if there are fewer than `most`.
    pub(crate) fn add_culprit(&mut self, by: &Actor, ns: Ns, most: usize) {
        let room = self.by.len() < most;
        match self.by.iter_mut().find(|(known, _)| known.name == by.name) {
            Some((known, sum)) => {
                known.update(by);
                plus(sum, ns);
            }
            None if room => self.by.push((by.clone(), ns)),
            None => {}
        }
    }

    /// Keeps the larger number, and the state name that belongs to it.
    pub(crate) fn keep_greatest(&mut self, number: Option<u64>, state: &Option<String>) {
        if number > self.number {
            (self.number, self.state) = (number, state.clone());
        }
    }
}

impl Attribution {
    /// Attributes a packet's delay. `route` is the route of its stream.
    pub fn of(packet: &PacketTimeline, route: &[PointId], baseline: &Baseline, context: &RunContext) -> Self {
        let mut attribution = Self { time_ns: packet.time(), ..Self::default() };
        let means: Vec<Option<MeanTimes>> = packet.hops.iter().map(|p| baseline.of(p.from, p.to, route)).collect();
        attribution.without_baseline = means.iter().any(Option::is_none);
        let means: Vec<MeanTimes> = means.into_iter().map(Option::unwrap_or_default).collect();

        // A cell is the time of one group of intervals on one hop: indexes of hop and group, and the time. A group is
        // one `CauseShare`.
        let mut groups: HashMap<(Cause, usize, Option<String>), usize> = HashMap::new();
        let mut cells: Vec<(usize, usize, Ns)> = Vec::new();
        for (at, hop) in packet.hops.iter().enumerate() {
            for interval in &hop.intervals {
                let ns = interval.to.saturating_sub(interval.from);
                let machine = packet.machine(interval);
                let actor = interval.actor.as_ref().map(|executor| context.actor(machine, executor));
                // All unexplained time is one group, whatever the machine.
                let (place, named) = match interval.cause == Cause::Unexplained {
                    true => (0, None),
                    false => (interval.machine, actor.as_ref().map(|a| a.name.clone())),
                };
                let group = *groups.entry((interval.cause, place, named)).or_insert_with(|| {
                    attribution.shares.push(CauseShare::new(interval.cause, machine.to_owned(), actor.clone()));
                    attribution.shares.len() - 1
                });
                match cells.iter_mut().find(|(a, g, _)| (*a, *g) == (at, group)) {
                    Some((_, _, sum)) => plus(sum, ns),
                    None => cells.push((at, group, ns)),
                }
                let share = &mut attribution.shares[group];
                plus(&mut share.time_ns, ns);
                share.update_actor(actor.as_ref());
                share.waiter = share.waiter.take().or(interval.waiter.as_ref().map(|w| context.actor(machine, w)));
                if let Some(by) = &interval.by {
                    share.add_culprit(&context.culprit(machine, by), ns, usize::MAX);
                }
                if let Some(cpu) = interval.cpu {
                    add(&mut share.cpus, cpu, ns, usize::MAX);
                }
                add(&mut share.hops, (hop.from, hop.to), ns, usize::MAX);
                share.keep_greatest(interval.number, &interval.state);
                for note in &interval.notes {
                    add(&mut share.notes, note.clone(), ns, MAX_NOTES);
                }
            }
        }
        attribution.baseline_ns = means.iter().flat_map(|m| m.values()).fold(0, |sum: Ns, ns| sum.saturating_add(*ns));
        // Limits the excess of packets with damaged times, so that sums cannot overflow.
        attribution.excess_ns = attribution.time_ns.saturating_sub(attribution.baseline_ns).clamp(0, Ns::MAX / 4);
        attribution.spread(&means, &cells);
        for share in &mut attribution.shares {
            longest_first(&mut share.by);
            longest_first(&mut share.cpus);
            longest_first(&mut share.hops);
            longest_first(&mut share.notes);
        }
        let name = |h: &CauseShare| h.actor.as_ref().map(|a| a.name.clone());
        attribution
            .shares
            .sort_by_cached_key(|h| (std::cmp::Reverse((h.excess_ns, h.time_ns)), h.cause, h.machine.clone(), name(h)));
        attribution
    }

    /// Distributes the packet's excess among its causes.
    fn spread(&mut self, means: &[MeanTimes], cells: &[(usize, usize, Ns)]) {
        // For each pair of hop and cause: their total time, and the indexes of their cells.
        let mut kinds: Vec<((usize, Cause), Ns, Vec<usize>)> = Vec::new();
        for (at, (hop, group, ns)) in cells.iter().enumerate() {
            let key = (*hop, self.shares[*group].cause);
            match kinds.iter_mut().find(|(known, ..)| *known == key) {
                Some((_, sum, of)) => {
                    plus(sum, *ns);
                    of.push(at);
                }
                None => kinds.push((key, *ns, vec![at])),
            }
        }
        let mut weights = vec![0_i128; cells.len()];
        for ((hop, cause), time, of) in &kinds {
            let baseline = means[*hop].get(cause).copied().unwrap_or(0);
            // On a hop, all groups with the same cause share its baseline in proportion to their times.
            let times: Vec<i128> = of.iter().map(|at| i128::from(cells[*at].2)).collect();
            let beyond = apportion(time.saturating_sub(baseline).max(0), &times);
            of.iter().zip(beyond).for_each(|(at, ns)| weights[*at] = i128::from(ns));
        }
        for ((_, group, _), ns) in cells.iter().zip(apportion(self.excess_ns, &weights)) {
            plus(&mut self.shares[*group].excess_ns, ns);
        }
    }

    /// The cause with the largest excess; `None` if the packet took no longer than the baseline.
    pub fn first(&self) -> Option<&CauseShare> {
        self.shares.first().filter(|share| share.excess_ns > 0)
    }
}

/// Divides a whole in proportion to weights. The parts sum to the whole exactly, or are all 0 if no weight is positive.
pub(crate) fn apportion(whole: Ns, weights: &[i128]) -> Vec<Ns> {
    let all: i128 = weights.iter().sum();
    if all <= 0 {
        return vec![0; weights.len()];
    }
    let (mut sum, mut given) = (0_i128, 0_i128);
    let share = |weight: &i128| {
        sum += weight;
        let upto = i128::from(whole) * sum / all;
        let hop = upto - given;
        given = upto;
        hop as Ns
    };
    weights.iter().map(share).collect()
}
