//! Logs of round trips in the commands that read runs.

use crate::link::{adds_up, is, need, Link, Says, ANSWER_WITHIN};
use latpath_testkit::{equal, latpath, start, trial, Failed, Finished, Trial};
use serde_json::Value;

pub fn tests() -> Vec<Trial> {
    vec![trial("a_log_is_reported_explained_compared_and_exported_with_pings_own_figures", &need(), figures)]
}

fn run(link: &Link, words: &str) -> Result<Finished, Failed> {
    start(&link.lab, &link.here, latpath(words))?.finish(ANSWER_WITHIN)
}

fn json(link: &Link, words: &str) -> Result<Value, Failed> {
    Ok(serde_json::from_str(&run(link, words)?.stdout)?)
}

fn figures() -> Result<(), Failed> {
    let link = Link::new()?;
    let _reflector = link.reflect("--stamps all")?;
    let path = |name: &str| link.lab.folder().join(name).display().to_string();
    for log in [path("log.csv"), path("log.parquet")] {
        let words = format!("10.77.0.2 --rate 1000 --count 400 --warm-up 20 --stamps all --log {log}");
        let session = link.emit(&words)?.session()?;
        adds_up(&session)?;
        let report = json(&link, &format!("report {log} --json"))?;
        equal("journeys", &report["journeys"], &session["counts"]["sent"])?;
        let all = report["segments"].as_array().ok_or("no segments")?;
        let of = |name: &Value| all.iter().find(|s| s["name"] == *name).ok_or_else(|| format!("no segment {name}"));
        let parts = session["segments"].as_array().ok_or("no segments of ping")?;
        let (total, mut compared) = (Value::from("total"), 0);
        for (name, own) in parts.iter().map(|p| (&p["name"], p)).chain([(&total, &session["round_trip"])]) {
            for (key, value) in of(name)?.as_object().ok_or("no object")? {
                if key.ends_with("_ns") && key != "error_bound_ns" && own.get(key).is_some() {
                    equal(&format!("{log}: {key} of {name}"), value, &own[key])?;
                    compared += 1;
                }
            }
        }
        is(&format!("{compared} figures are compared"), compared >= 8 * parts.len())?;
        let csv = run(&link, &format!("export csv {log} -o -"))?.stdout;
        let head = csv.lines().next().unwrap_or_default();
        for point in ["emitter/app-send@ping", "emitter/qdisc@nic", "reflector/tx@nic", "emitter/app-read@ping"] {
            is(&format!("{point} in {head}"), head.split(',').any(|column| column == point))?;
        }
        equal("rows", csv.lines().count(), 401)?;
        let broken = run(&link, &format!("report {log} --limit total:max<=1ns"))?;
        equal("exit code", broken.code, Some(3))?;
        let explained = json(&link, &format!("explain {log} --json"))?;
        equal("late", &explained["late"], &of(&total)?["over_threshold"])?;
        let text = run(&link, &format!("explain {log}"))?;
        equal("exit code", text.code, Some(0))?;
        let says = |what: &str| text.stdout.split_whitespace().collect::<Vec<_>>().join(" ").contains(what);
        for what in ["No causes: a log of round trips", "latpath ping emit --threshold", "latpath record --stream"] {
            is(&format!("{what} in {}", text.stdout), says(what))?;
        }
    }
    let both = json(&link, &format!("compare {} --against {} --json", path("log.csv"), path("log.parquet")))?;
    let of_a = &both["a"]["recordings"][0];
    equal("source", of_a["source"].as_str(), Some("ping_log"))?;
    equal("packets", of_a["packets"].as_u64(), Some(400))
}
