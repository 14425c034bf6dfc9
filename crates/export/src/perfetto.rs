//! Captures as a trace for the Perfetto UI.

use crate::{ExportError, ExportRequest, Exported};
use latpath_analysis::{explain::run_context, RunCaptures, SelectError, Selection};
use latpath_perfetto::{Export, Summary};
use latpath_stats::units::{bytes, number_of};
use std::io::Write;
use std::sync::atomic::Ordering;

/// Writes the trace, using crate latpath_perfetto.
pub fn write(request: &mut ExportRequest, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let context = run_context(request.run);
    let mut captures = RunCaptures::new(request.run);
    let selected = captures.select(&request.selection, &context, request.stop)?;
    let mut notes = captures.files.notes;
    let mut export = Export::begin(out, context)?;
    for (done, number) in selected.captures.iter().enumerate() {
        if request.stop.load(Ordering::Relaxed) {
            return Err(SelectError::Interrupted.into());
        }
        let all = selected.captures.len();
        (request.progress)(format!("{done} of {all} spikes, {} written", bytes(export.bytes())));
        let matches = |packet: &_| selected.matches(packet);
        match (request.run.capture(*number), &request.selection) {
            (Ok(ranked), Selection::Packet(_)) => export.capture_around(&ranked.capture, matches)?,
            (Ok(ranked), _) => export.capture(&ranked.capture, matches)?,
            (Err(error), _) => notes.push(format!("{error}; the others are in the trace")),
        }
    }
    Ok(Exported { summary: summary_text(&export.finish()?), notes })
}

/// Describes the written trace.
fn summary_text(summary: &Summary) -> String {
    let (captures, packets) = (number_of(summary.captures, "spike"), number_of(summary.packets, "packet"));
    let mut text = format!("{captures} around {packets}, {}; open it in the Perfetto UI", bytes(summary.bytes));
    if summary.more_late > 0 {
        text +=
            &format!("\n{} more in these spikes have no row of their own", number_of(summary.more_late, "late packet"));
    }
    for (machine, written) in summary.machines.iter().filter(|(_, written)| written.left_out > 0) {
        let left_out = number_of(written.left_out, "event");
        text += &format!(
            "\nleft out: {left_out} of {machine}, of kinds that Perfetto cannot show or with impossible times"
        );
    }
    text
}
