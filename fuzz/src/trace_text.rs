//! Any bytes as the text of a trace: figures that add up, or an error.

use latpath_ladder::trace_text::import;
use std::sync::atomic::AtomicBool;

/// Takes one input.
pub fn run(bytes: &[u8]) {
    match import(&mut &*bytes, &AtomicBool::new(false)) {
        Ok(imported) => {
            let report = imported.report;
            for means in report.queues.iter().flat_map(|queue| &queue.ladders) {
                let rungs: i64 = means.rungs.iter().map(|rung| rung.time.sum_ns).sum();
                assert!(rungs == means.total.sum_ns && means.rungs.iter().all(|rung| rung.time.min_ns >= 0));
            }
            assert!(report.events > 0 || report.queues.is_empty());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
