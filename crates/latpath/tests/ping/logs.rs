//! Logs of round trips in the commands that read runs.

use crate::link::{adds_up, is, need, Link, Says, ANSWER_WITHIN};
use latpath_compare::{Comparison, Source};
use latpath_report::{ExplanationDocument, Report};
use latpath_testkit::{equal, latpath, start, trial, Failed, Finished, Trial};

pub fn tests() -> Vec<Trial> {
    vec![trial("a_log_is_reported_explained_compared_and_exported_with_pings_own_figures", &need(), figures)]
}

fn run(link: &Link, words: &str) -> Result<Finished, Failed> {
    start(&link.lab, &link.here, latpath(words))?.finish(ANSWER_WITHIN)
}

fn figures() -> Result<(), Failed> {
    let link = Link::new()?;
    let _reflector = link.reflect("--stamps all")?;
    let path = |name: &str| link.lab.folder().join(name).display().to_string();
    for log in [path("log.csv"), path("log.parquet")] {
        let words = format!("10.77.0.2 --rate 1000 --count 400 --warm-up 20 --stamps all --log {log}");
        let session = link.emit(&words)?.session()?;
        adds_up(&session)?;
        let report: Report = run(&link, &format!("report {log} --json"))?.document()?;
        equal("journeys", report.summary.journeys, session.report.counts.sent)?;
        let all = &report.summary.segments;
        let of = |name: &str| all.iter().find(|s| s.name == name).ok_or_else(|| format!("no segment {name}"));
        let parts = session.report.segments.iter().map(|part| (part.name.as_str(), &part.times));
        for (name, own) in parts.chain([("total", &session.report.round_trip.times)]) {
            equal(&format!("{log}: {name}"), &of(name)?.times, own)?;
        }
        let csv = run(&link, &format!("export csv {log} -o -"))?.stdout;
        let head = csv.lines().next().unwrap_or_default();
        for point in ["emitter/app-send@ping", "emitter/qdisc@nic", "reflector/tx@nic", "emitter/app-read@ping"] {
            is(&format!("{point} in {head}"), head.split(',').any(|column| column == point))?;
        }
        equal("rows", csv.lines().count(), 401)?;
        let broken = run(&link, &format!("report {log} --limit total:max<=1ns"))?;
        equal("exit code", broken.code, Some(3))?;
        let explained = run(&link, &format!("explain {log} --json"))?.stdout;
        let explained: ExplanationDocument = serde_json::from_str(&explained)?;
        equal("late", explained.late, of("total")?.over_threshold)?;
        let text = run(&link, &format!("explain {log}"))?;
        equal("exit code", text.code, Some(0))?;
        let says = |what: &str| text.stdout.split_whitespace().collect::<Vec<_>>().join(" ").contains(what);
        for what in ["No causes: a log of round trips", "latpath ping emit --threshold", "latpath record --stream"] {
            is(&format!("{what} in {}", text.stdout), says(what))?;
        }
    }
    let both = run(&link, &format!("compare {} --against {} --json", path("log.csv"), path("log.parquet")))?;
    let Comparison { a, .. } = serde_json::from_str(&both.stdout)?;
    let of_a = a.recordings.first().ok_or("no recording")?;
    equal("source", of_a.source, Source::PingLog)?;
    equal("packets", of_a.packets, 400)
}
