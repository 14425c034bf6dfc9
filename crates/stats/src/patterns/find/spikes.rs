//! Finds queues that were held and released, and periodic spikes.

use super::{DetectedPattern, Names, Touched};
use crate::patterns::excursions::Excursion;
use crate::patterns::gather::Patterns;
use crate::patterns::period::{train, Train};
use crate::patterns::{Occurrence, Pattern, PatternKind};
use latpath_model::Ns;

/// Numbers of spikes to search for a period, always the highest ones; tried in this order.
const HIGHEST: [usize; 6] = [16, 64, 256, 1024, 4096, usize::MAX];
/// Maximum time between the starts of successive excursions that belong to the same spike, ns.
const SAME_SPIKE: Ns = 2_000_000;
/// Maximum time from the end of one stream's release to the start of another's, if both are from the same queue, ns.
const SAME_QUEUE: Ns = 20_000_000;

pub fn releases(gathered: &Patterns, names: &Names) -> Vec<DetectedPattern> {
    let of_segment = |at: usize| {
        let mut all = gathered.excursions[at].released.clone().sorted();
        all.sort_by_key(|one| (one.from, one.stream));
        let mut queues: Vec<Vec<Excursion>> = Vec::new();
        let mut end = Ns::MIN;
        for one in all {
            match queues.last_mut() {
                Some(queue) if one.from <= end.saturating_add(SAME_QUEUE) => queue.push(one),
                _ => queues.push(vec![one]),
            }
            end = end.max(one.to);
        }
        let pattern = Pattern { kind: PatternKind::QueueRelease, ..Pattern::default() };
        (!queues.is_empty()).then(|| of_spikes(names, gathered.watched[at].segment, pattern, &queues))
    };
    (0..gathered.watched.len()).filter_map(of_segment).collect()
}

pub fn periodic(gathered: &Patterns, names: &Names) -> Vec<DetectedPattern> {
    let tried = HIGHEST.len() * gathered.watched.len();
    let of_segment = |at: usize| {
        let highest = gathered.excursions[at].all.clone().sorted();
        let at_most = |most: usize| (most == HIGHEST[0] || highest.len() > most / 4).then(|| most.min(highest.len()));
        let searches = HIGHEST.into_iter().filter_map(at_most);
        let found = searches.filter_map(|most| {
            let spikes = spikes(&highest[..most]);
            let begin: Vec<Ns> = spikes.iter().map(|spike| spike[0].from).collect();
            Some((train(&begin, tried, gathered.interval(at))?, spikes))
        });
        let (Train { period, hits, .. }, spikes) = found.min_by(|a, b| a.0.chance.total_cmp(&b.0.chance))?;
        let spikes: Vec<Vec<Excursion>> = hits.iter().map(|hit| spikes[*hit].clone()).collect();
        let pattern =
            Pattern { kind: PatternKind::PeriodicSpikes, period_ns: Some(period.round() as Ns), ..Pattern::default() };
        Some(of_spikes(names, gathered.watched[at].segment, pattern, &spikes))
    };
    (0..gathered.watched.len()).filter_map(of_segment).collect()
}

/// The excursions of all streams; simultaneous ones are grouped into one spike.
fn spikes(excursions: &[Excursion]) -> Vec<Vec<Excursion>> {
    let mut all = excursions.to_vec();
    all.sort_by_key(|one| (one.from, one.stream));
    all.chunk_by(|a, b| b.from - a.from <= SAME_SPIKE).map(<[_]>::to_vec).collect()
}

fn of_spikes(names: &Names, segment: usize, pattern: Pattern, spikes: &[Vec<Excursion>]) -> DetectedPattern {
    let occurrence = |spike: &Vec<Excursion>| Occurrence {
        from_ns: spike.iter().map(|one| one.from).min().unwrap_or(0),
        to_ns: spike.iter().map(|one| one.to).max().unwrap_or(0),
        size_ns: spike.iter().map(|one| one.peak).max().unwrap_or(0),
        packets: spike.iter().map(|one| u64::from(one.packets)).sum(),
    };
    let occurrences: Vec<Occurrence> = spikes.iter().map(occurrence).collect();
    let touched = |one: &Excursion| Touched { streams: vec![one.stream], from: one.seen.0, to: one.seen.1 };
    let touched = spikes.iter().flatten().map(touched).collect();
    let size_ns = occurrences.iter().map(|o| o.size_ns).max();
    let pattern = Pattern { count: spikes.len() as u64, size_ns, ..pattern };
    names.finish(names.of_segment(segment, pattern), occurrences, touched)
}
