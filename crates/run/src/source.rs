//! Journeys in a file of another format. They are converted while being read, and form a run without a directory.

use crate::{reader::Parts, Condition, Deficiency, Manifest, Rows, Run, RunError, SpikeFile, SpikeFiles};
use latpath_capture::{Head, RankedCapture};
use latpath_model::Ns;
use latpath_settings::RunSettings;
use latpath_timesync::SyncHistory;
use std::{fmt::Debug, path::Path};

/// The journeys of a file of another format, in parts that can be read in any order.
pub trait JourneySource: Send + Sync + Debug {
    /// Number of parts.
    fn parts(&self) -> usize;

    /// Passes the journeys of a part to `pass`, in batches that have all points of the manifest, until `pass` returns
    /// false.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    fn read(&self, part: usize, pass: &mut dyn FnMut(&mut Rows) -> bool) -> Result<(), RunError>;
}

/// Facts about a source, found by reading it once.
#[derive(Clone, Debug, Default)]
pub struct SourceFacts {
    /// Number of readable journeys.
    pub journeys: u64,
    /// Times of the earliest and the latest first sighting, ns.
    pub times: Option<(Ns, Ns)>,
    /// Size of the file, bytes.
    pub bytes: u64,
    /// Data that the file lacks.
    pub deficiencies: Vec<Deficiency>,
    /// Captures around late packets, with as much data as the file contains.
    pub captures: Vec<RankedCapture>,
}

/// A source, with facts about it.
#[derive(Debug)]
pub(crate) struct OpenSource {
    pub source: Box<dyn JourneySource>,
    pub bytes: u64,
    captures: Vec<RankedCapture>,
}

impl OpenSource {
    pub fn spikes(&self) -> SpikeFiles {
        let file = |ranked: &RankedCapture| {
            let capture = &ranked.capture;
            let head = Head {
                number: capture.number,
                kind: capture.kind.into(),
                from: capture.from,
                to: capture.to,
                worst: ranked.worst,
                packets: capture.packets.len() as u64,
                more_late: capture.more_late,
                late: ranked.late.clone(),
            };
            SpikeFile { head, bytes: 0 }
        };
        SpikeFiles { files: self.captures.iter().map(file).collect(), notes: Vec::new() }
    }

    pub fn capture(&self, number: u32) -> Option<RankedCapture> {
        self.captures.iter().find(|ranked| ranked.capture.number == number).cloned()
    }
}

impl Run {
    /// A run whose journeys are in a file of another format. It has no marks and no clock samples.
    pub fn of_source(path: &Path, manifest: Manifest, facts: SourceFacts, source: Box<dyn JourneySource>) -> Self {
        let texts = facts.deficiencies.iter().map(|one| one.text.clone());
        Self {
            path: path.into(),
            condition: Condition::Finished,
            names: manifest.points.iter().map(|p| p.point.to_string()).collect(),
            notes: texts.chain(manifest.notes.iter().cloned()).collect(),
            deficiencies: facts.deficiencies,
            journeys: facts.journeys,
            times: facts.times,
            parts: Parts::Source(OpenSource { source, bytes: facts.bytes, captures: facts.captures }),
            vms: Default::default(),
            settings: RunSettings::default(),
            marks: Vec::new(),
            sync: SyncHistory::default(),
            manifest,
        }
    }
}
