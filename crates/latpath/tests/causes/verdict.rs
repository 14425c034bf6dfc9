//! What latpath said of a run, against what was done.

use crate::fault::Injection;
use latpath_run::{Run, Select};
use latpath_words::Ns;
use libtest_mimic::Failed;
use std::path::Path;

/// A late packet.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    pub stream: u16,
    pub number: u64,
    pub first: Ns,
    pub last: Ns,
}

/// What a run holds.
pub struct Seen {
    pub journeys: u64,
    pub late: Vec<Late>,
    /// The guest's clock minus the host's.
    pub offset: Ns,
}

impl Seen {
    /// Reads it.
    pub fn read(path: &Path) -> Result<Self, Failed> {
        let run = Run::open(path)?;
        let (mut late, threshold) = (Vec::new(), run.manifest().threshold_ns);
        let mut journeys = 0;
        run.for_each(&Select::default(), |j| {
            journeys += 1;
            let times = (0..run.points().len()).filter_map(|p| j.at(p as u16));
            let first = times.clone().min();
            if let Some((first, last)) = first.zip(times.max()).filter(|(a, b)| b - a > threshold) {
                late.push(Late { stream: j.stream, number: j.number, first, last });
            }
            true
        });
        let offset = run.manifest().machines.iter().skip(1).map(|m| m.offset_ns).next().unwrap_or(0);
        Ok(Self { journeys, late, offset })
    }

    /// Times of the guest as the host's.
    pub fn in_host_time(&self, truth: &[Injection]) -> Vec<Injection> {
        let host = |i: &Injection| Injection { begin: i.begin - self.offset, end: i.end - self.offset };
        truth.iter().map(host).collect()
    }

    /// In short, how many injections held packets, and for how long.
    pub fn delayed(&self, truth: &[Injection]) -> String {
        let worst = |i: &Injection| {
            let under_way = self.late.iter().filter(|l| l.first < i.end && l.last > i.begin);
            under_way.map(|l| l.last - l.first).max()
        };
        let mut all: Vec<Ns> = truth.iter().filter_map(worst).collect();
        all.sort_unstable();
        let middle = all.get(all.len() / 2).copied().unwrap_or(0);
        let inside = |l: &&Late| truth.iter().any(|i| l.first < i.end && l.last > i.begin);
        format!(
            "{} journeys, {} late, {} of them during faults; {} of {} faults held packets, for {:.1} ms in the middle",
            self.journeys,
            self.late.len(),
            self.late.iter().filter(inside).count(),
            all.len(),
            truth.len(),
            middle as f64 / 1e6
        )
    }
}
