//! Reads arbitrary bytes as the text of a trace. The result is an error, or figures that add up, with their page and
//! JSON.

use crate::agent::clean;
use latpath_ladder::trace_text::import;
use latpath_report::ladder_text;
use latpath_stats::units::CharacterSet;
use std::sync::atomic::AtomicBool;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    match import(&mut &*bytes, &AtomicBool::new(false)) {
        Ok(imported) => {
            let report = imported.report;
            for means in report.figures.queues.iter().flat_map(|queue| &queue.ladders) {
                let rungs: i64 = means.rungs.iter().map(|rung| rung.time.sum_ns).sum();
                assert!(rungs == means.total.sum_ns && means.rungs.iter().all(|rung| rung.time.min_ns >= 0));
            }
            assert!(report.figures.events > 0 || report.figures.queues.is_empty());
            clean(&ladder_text(&report, CharacterSet::Unicode.into()));
            clean(&serde_json::to_string(&report).expect("figures are JSON"));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
