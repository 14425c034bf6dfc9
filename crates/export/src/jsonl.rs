//! Journeys as JSON lines: one object each, with names of streams, points and drop reasons.

use crate::{each_journey, notes, points_in_order, DropReasons, ExportError, ExportRequest, Exported};
use latpath_clock::TimeOfDay;
use latpath_journey::Journey;
use latpath_model::text::visible;
use latpath_run::{Run, Select};
use serde_json::{json, Map, Value};
use std::io::Write;

/// Writes all journeys of a run.
pub fn write(request: &mut ExportRequest, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let run = request.run;
    let select = Select { cpus_and_threads: run.manifest().imported.is_empty(), ..Select::default() };
    let names = Names::of(run);
    let damaged = each_journey(run, &select, request.stop, |journey| {
        writeln!(out, "{}", visible(&names.object(journey).to_string()))
    })?;
    out.flush()?;
    Ok(Exported { summary: "all journeys, an object a line".into(), notes: notes(run, &damaged) })
}

/// Names of what a run refers to by number.
struct Names<'a> {
    drops: DropReasons<'a>,
    streams: Vec<String>,
    /// Points with names, in the order of the route.
    points: Vec<(usize, String)>,
    time_of_day: TimeOfDay,
}

impl<'a> Names<'a> {
    fn of(run: &'a Run) -> Self {
        let manifest = run.manifest();
        let name = |point: usize| (point, run.points()[point].point.to_string());
        Self {
            drops: DropReasons::of(run),
            streams: manifest.streams.iter().map(ToString::to_string).collect(),
            points: points_in_order(run).into_iter().map(name).collect(),
            time_of_day: manifest.time_of_day(),
        }
    }

    fn object(&self, j: &Journey) -> Value {
        let first = j.first().unwrap_or(0);
        let mut points = Map::new();
        for (p, name) in self.points.iter().filter(|(p, _)| j.seen >> p & 1 == 1) {
            let mut sighting = json!({ "offset_ns": j.t[*p].wrapping_sub(first) });
            if let (Some(cpu), Some(tid)) = (j.cpu.get(*p), j.tid.get(*p)) {
                sighting["cpu"] = (*cpu).into();
                sighting["tid"] = (*tid).into();
            }
            points.insert(name.clone(), sighting);
        }
        let note = self.drops.of_packet(j.stream, j.seen, j.drop_note).and_then(|(_, note)| note);
        json!({
            "stream": self.streams.get(usize::from(j.stream)),
            "key": j.key,
            "number": j.number,
            "utc_ns": self.time_of_day.utc(first),
            "t_ns": first,
            "points": points,
            "duplicates": j.duplicates,
            "out_of_order": j.out_of_order,
            "missing_before": j.missing_before,
            "drop": note,
        })
    }
}
