//! Explains late packets from captures, for `latpath explain` and `latpath live`.
//!
//! [`Explainer::learn`] takes captures in which all packets are on time, [`Explainer::add`] captures with late packets,
//! in any order. It explains each late packet, ranks the causes, and keeps the worst packets. The result is an
//! [`Explanation`], available at any time, during a recording as well as afterwards.

mod alike;
mod context;
mod figures;
mod first_causes;
mod fixes;
mod live;
mod no_flow;
mod of_run;
mod selector;
mod sentence;
mod starved;
mod totals;

pub use alike::{cause_key, row_of, CauseKey};
pub use context::run_context;
use context::{advice, judge};
pub use figures::{late_figures, percent};
use first_causes::FirstCauses;
use fixes::Assigned;
pub use fixes::{fixes_of, with_fixes, Fix};
pub use live::LiveExplainer;
pub use no_flow::{reasons, visit_parts, why_no_flow};
pub use of_run::ExplainedRun;
pub use selector::{date, name, packet, Candidate, PacketSelector};
pub use sentence::{at_device, briefly, culprit_of_step, one_line, place_of_row, row_sentence, sentence, subject};
pub use totals::{by_cause, by_culprit, described, latpath_ns, latpath_to_warn_of, CauseTotal, CulpritTotal};

use latpath_capture::{Capture, CaptureKind, Packet};
use latpath_cause::{
    Advice, Analyst, Attribution, Baseline, GuestCausality, NoFlow, Others, PacketTimeline, Ranking, Row, RunContext,
};
use latpath_model::{Causality, Ns, StreamId};
use latpath_stats::Bucket;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Maximum number of on-time packets of a capture from which the baseline is learnt.
const MAX_LEARNT: usize = 128;
/// Maximum number of remembered late packets, so that a packet in two captures counts once.
const MAX_REMEMBERED: usize = 1 << 20;

/// A packet with its causes.
#[derive(Clone, Debug)]
pub struct ExplainedPacket {
    /// Causes along its whole route.
    pub explained: PacketTimeline,
    /// Share of each cause in the time beyond the baseline.
    pub attribution: Attribution,
    /// Fixes for its first cause.
    pub advice: Vec<Advice>,
}

impl ExplainedPacket {
    /// Sort key: the longest time first; among equal times, the earlier packet first.
    fn rank(&self) -> impl Ord {
        (Reverse(self.attribution.time_ns), self.explained.begin())
    }
}

/// A spike, represented by its worst packet.
#[derive(Clone, Debug)]
pub struct ExplainedSpike {
    /// The worst packet.
    pub worst: ExplainedPacket,
    /// Number of further late packets of the spike.
    pub more: u64,
}

/// A row of the ranking, with its fixes.
#[derive(Clone, Debug)]
pub struct RankedCause {
    /// The row.
    pub row: Row,
    /// Fixes, the best first.
    pub advice: Vec<Advice>,
}

/// Causes of all explained late packets.
#[derive(Clone, Debug, Default)]
pub struct Explanation {
    /// Number of explained late packets.
    pub late: u64,
    /// Number of late packets omitted from the captures.
    pub more_late: u64,
    /// Total time of the explained packets, ns.
    pub time_ns: Ns,
    /// Time of the explained packets beyond the baseline, ns: the sum of `ranking` and `others`.
    pub excess_ns: Ns,
    /// Number of packets with a hop that has no baseline.
    pub without_baseline: u64,
    /// Median over the packets of the unexplained share of a packet's excess, per mille.
    pub unexplained_per_mille: u64,
    /// Number of on-time packets from which the baseline was learnt.
    pub baseline_packets: u64,
    /// Number of captures from which the baseline was learnt.
    pub baseline_captures: u64,
    /// Rows of the ranking, the largest excess first; `unexplained` last.
    pub ranking: Vec<RankedCause>,
    /// Causes too small for a row of the ranking.
    pub others: Others,
    /// The worst packets, the one with the longest time first.
    pub worst: Vec<ExplainedPacket>,
    /// The worst spikes, each represented by its worst packet: one stall makes many packets late, for the same reason.
    pub spikes: Vec<ExplainedSpike>,
    /// Number of late packets by the reason why Open vSwitch had no flow for them.
    pub no_flow: BTreeMap<NoFlow, u64>,
    /// Consistency of guests' events with the host's record of their vCPUs, over all explained captures.
    pub causality: Vec<GuestCausality>,
    /// Notes for the reader, e.g. events that machines do not record.
    pub notes: Vec<String>,
}

/// Explains captures.
#[derive(Debug)]
pub struct Explainer {
    context: RunContext,
    baseline: Baseline,
    baseline_captures: u64,
    ranking: Ranking,
    more_late: u64,
    worst: Vec<ExplainedPacket>,
    spikes: Vec<ExplainedSpike>,
    most_worst: usize,
    seen: HashSet<(StreamId, u64)>,
    latest: Option<ExplainedPacket>,
    first_causes: FirstCauses,
    no_flow: BTreeMap<NoFlow, u64>,
    causality: Vec<GuestCausality>,
    notes: Vec<String>,
}

impl Explainer {
    /// Starts without a baseline; keeps up to `worst` packets and spikes.
    pub fn new(context: RunContext, worst: usize) -> Self {
        Self {
            context,
            baseline: Baseline::default(),
            baseline_captures: 0,
            ranking: Ranking::default(),
            more_late: 0,
            worst: Vec::new(),
            spikes: Vec::new(),
            most_worst: worst,
            seen: HashSet::new(),
            latest: None,
            first_causes: FirstCauses::default(),
            no_flow: BTreeMap::new(),
            causality: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Histograms of a segment's times among late packets, by their first cause in the segment. `segment` is an index
    /// into the context's segments.
    pub fn first_causes(&self, segment: usize) -> Vec<(&'static str, Vec<Bucket>)> {
        self.first_causes.buckets(segment)
    }

    /// The machines, points and routes.
    pub fn context(&self) -> &RunContext {
        &self.context
    }

    /// The context, to be updated: during a recording, points and routes are found one by one.
    pub fn context_mut(&mut self) -> &mut RunContext {
        &mut self.context
    }

    /// Number of on-time packets from which the baseline has been learnt so far.
    pub fn learnt(&self) -> u64 {
        self.baseline.packets()
    }

    /// Learns the baseline from a capture's packets that reached the end of their route and were not late. Pass
    /// captures with late packets only if there are no others, because the cause of the late packets may also have
    /// delayed the rest.
    pub fn learn(&mut self, capture: &Capture) {
        let has_arrived = |p: &Packet| {
            let end = self.context.route(p.stream).last();
            end.is_some_and(|end| p.sightings.iter().any(|sighting| sighting.point == *end))
        };
        let is_on_time = |p: &&Packet| !p.late && capture.has_all_of(p) && has_arrived(p);
        let on_time: Vec<&Packet> = capture.packets.iter().filter(is_on_time).collect();
        if on_time.is_empty() {
            return;
        }
        let analyst = Analyst::new(capture, &self.context);
        for packet in on_time.iter().step_by(on_time.len().div_ceil(MAX_LEARNT)) {
            let route = self.context.route(packet.stream);
            self.baseline.add(&PacketTimeline::of(&analyst, capture, packet, route, &self.context.points));
        }
        self.baseline_captures += 1;
        self.context.learn(capture);
    }

    /// Explains a capture's late packets, compared with the current baseline.
    pub fn add(&mut self, capture: &Capture) {
        if capture.kind == CaptureKind::Baseline {
            return;
        }
        self.context.learn(capture);
        self.note(capture);
        self.more_late = self.more_late.saturating_add(capture.more_late);
        let Self { context, baseline, ranking, worst, most_worst, seen, first_causes, no_flow, .. } = self;
        let (mut here, mut count): (Option<ExplainedPacket>, u64) = (None, 0);
        let late: Vec<&Packet> = capture.packets.iter().filter(|p| p.late).collect();
        if late.is_empty() {
            return;
        }
        let analyst = Analyst::new(capture, context);
        for packet in late {
            if seen.len() >= MAX_REMEMBERED {
                seen.clear();
            }
            if !seen.insert((packet.stream, packet.number)) {
                continue;
            }
            count += 1;
            let mut packet = judge(context, &analyst, capture, packet, baseline);
            ranking.add(&packet.attribution);
            let reasons: BTreeSet<NoFlow> = packet.explained.visits.iter().map(|visit| visit.reason).collect();
            reasons.into_iter().for_each(|reason| *no_flow.entry(reason).or_default() += 1);
            let route = context.route(packet.explained.stream);
            first_causes.add(&packet, &context.segments, route, baseline);
            let at = worst.partition_point(|other| other.rank() <= packet.rank());
            let is_worst_here = here.as_ref().is_none_or(|other| packet.rank() < other.rank());
            if at >= *most_worst && !is_worst_here {
                continue;
            }
            packet.advice = advice(context, &packet);
            if is_worst_here {
                here = Some(packet.clone());
            }
            if at < *most_worst {
                worst.insert(at, packet);
                worst.truncate(*most_worst);
            }
        }
        let causality = analyst.causality();
        self.count(causality);
        let Some(worst) = here else { return };
        self.latest = Some(worst.clone());
        let at = self.spikes.partition_point(|other| other.worst.rank() <= worst.rank());
        if at < self.most_worst {
            self.spikes.insert(at, ExplainedSpike { worst, more: count - 1 });
            self.spikes.truncate(self.most_worst);
        }
    }

    /// The worst packet of the capture that was explained last.
    pub fn latest(&self) -> Option<&ExplainedPacket> {
        self.latest.as_ref()
    }

    /// Resets all counts, but keeps the baseline.
    pub fn reset(&mut self) {
        let (context, worst) = (std::mem::take(&mut self.context), self.most_worst);
        let (baseline, baseline_captures) = (std::mem::take(&mut self.baseline), self.baseline_captures);
        *self = Self { baseline, baseline_captures, ..Self::new(context, worst) };
    }

    /// Explains one packet of a capture, late or not.
    pub fn one(&mut self, capture: &Capture, packet: &Packet) -> ExplainedPacket {
        self.context.learn(capture);
        let packet = judge(&self.context, &Analyst::new(capture, &self.context), capture, packet, &self.baseline);
        ExplainedPacket { advice: advice(&self.context, &packet), ..packet }
    }

    fn count(&mut self, causality: Vec<GuestCausality>) {
        for guest in causality {
            match self.causality.iter_mut().find(|known| known.machine == guest.machine) {
                Some(known) => known.events += guest.events,
                None => self.causality.push(guest),
            }
        }
    }

    fn note(&mut self, capture: &Capture) {
        for machine in &capture.machines {
            match &machine.record {
                Err(why) => self.note_once(format!("{}: no record of some spikes: {why}", machine.machine)),
                Ok(snapshot) => {
                    snapshot.missing.iter().for_each(|m| self.note_once(format!("{}: {m}", machine.machine)));
                }
            }
        }
    }

    fn note_once(&mut self, note: String) {
        if self.notes.len() < 32 && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// The causes so far.
    pub fn explanation(&self) -> Explanation {
        let explanation = Explanation {
            late: self.ranking.late(),
            more_late: self.more_late,
            time_ns: self.ranking.time_ns(),
            excess_ns: self.ranking.excess_ns(),
            without_baseline: self.ranking.without_baseline(),
            unexplained_per_mille: self.ranking.unexplained_per_mille(),
            baseline_packets: self.baseline.packets(),
            baseline_captures: self.baseline_captures,
            ranking: with_fixes(self.ranking.rows(), &self.context),
            others: self.ranking.others(),
            worst: self.worst.clone(),
            spikes: self.spikes.clone(),
            no_flow: self.no_flow.clone(),
            causality: self.causality.clone(),
            notes: self.causality.iter().filter_map(violated).chain(self.notes.iter().cloned()).collect(),
        };
        agreeing(explanation)
    }
}

/// Gives single packets the fixes of their row of the ranking. Packets without a row lose fixes that contradict those
/// of the ranking.
fn agreeing(mut explanation: Explanation) -> Explanation {
    let mut assigned = Assigned::default();
    for advice in explanation.ranking.iter().flat_map(|ranked| &ranked.advice) {
        assigned.agrees(advice);
    }
    let (mut worst, mut spikes) = (std::mem::take(&mut explanation.worst), std::mem::take(&mut explanation.spikes));
    for packet in worst.iter_mut().chain(spikes.iter_mut().map(|spike| &mut spike.worst)) {
        match row_of(packet, &explanation) {
            Some(row) => packet.advice.clone_from(&explanation.ranking[row].advice),
            None => packet.advice.retain(|advice| assigned.agrees(advice)),
        }
    }
    Explanation { worst, spikes, ..explanation }
}

/// Returns a note if the guest has events at impossible times.
fn violated(guest: &GuestCausality) -> Option<String> {
    let GuestCausality { machine, events: Causality { checked, violations } } = guest;
    (*violations > 0).then(|| {
        format!(
            "{machine}: {violations} of {checked} events of it lie where its vCPU was not in the guest: a clock is wrong by more than its bound, \
             so causes on both sides of it may be wrong"
        )
    })
}
