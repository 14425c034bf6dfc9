//! Explains the late packets of a run's captures.

use super::{late_figures, Explainer};
use crate::{Analysis, RunCaptures};
use latpath_capture::{Capture, CaptureKind};
use latpath_run::{Select, SpikeFiles};
use latpath_stats::{units::CharacterSet, LateFigures};
use std::borrow::Cow;

/// Causes of the late packets of a run's captures.
#[derive(Debug)]
pub struct ExplainedRun {
    /// The causes.
    pub explainer: Explainer,
    /// The captures, and notes on them.
    pub files: SpikeFiles,
}

impl Analysis<'_> {
    /// Explains the selected late packets, and keeps up to `worst` of them; `None` if the run has no captures.
    pub fn explain(&self, worst: usize) -> Option<ExplainedRun> {
        let mut captures = RunCaptures::new(self.run);
        if captures.files.files.is_empty() {
            return None;
        }
        let mut explainer = Explainer::new(self.context(), worst);
        captures.learn(&mut explainer);
        captures.each(CaptureKind::Spike, |capture| explainer.add(&selected(capture, &self.options.select)));
        captures.note_starvation();
        Some(ExplainedRun { explainer, files: captures.files })
    }
}

/// A capture with only the selected packets.
fn selected<'a>(capture: &'a Capture, select: &Select) -> Cow<'a, Capture> {
    if select.is_everything() {
        return Cow::Borrowed(capture);
    }
    let mut capture = capture.clone();
    capture.packets.retain(|p| p.sightings.iter().map(|s| s.t).min().is_some_and(|t| select.matches(p.stream, t)));
    Cow::Owned(capture)
}

impl ExplainedRun {
    /// The summary's figures on late packets.
    pub fn figures(&self, letters: CharacterSet) -> LateFigures {
        late_figures(&self.explainer.explanation(), None, self.explainer.context(), letters)
    }
}
