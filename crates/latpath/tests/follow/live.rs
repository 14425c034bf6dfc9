//! `latpath live` where its output is no terminal.

use crate::support::{bench, latpath, trial, Bench, Lack, Started};
use crate::{equal, number, own, publish, subscribe, until, LIMIT};
use libtest_mimic::{Failed, Trial};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial("live_counts_what_arrives_once_the_way_is_known", needs, counts),
        trial("live_places_losses", needs, losses),
        trial("live_sees_gaps_of_the_publisher", needs, gaps),
        trial("live_says_which_stream_does_not_come_and_waits", needs, absent),
        trial("live_ends_when_nobody_reads_on", needs, closed_pipe),
        trial("live_ends_after_so_many_packets", needs, count),
    ]
}

/// Starts `latpath live --json`, and waits until it is attached.
fn live(bench: &Bench, words: &str) -> Result<Started, Failed> {
    let process = bench.start(&bench.path.hypervisor, latpath(&format!("live --json {words}")))?;
    std::thread::sleep(Duration::from_millis(1500));
    Ok(process)
}

/// The last object of each line.
fn last(process: Started) -> Result<Value, Failed> {
    process.interrupt();
    let ended = process.finish(LIMIT)?;
    equal("exit code", ended.code, Some(0))?;
    let line = ended.stdout.lines().last().ok_or("live printed nothing")?;
    Ok(serde_json::from_str(line)?)
}

fn lost(figures: &Value) -> Vec<(String, u64)> {
    let all = figures["lost"].as_array().into_iter().flatten();
    all.filter_map(|l| Some((l["place"].as_str()?.to_string(), l["count"].as_u64()?))).collect()
}

fn counts() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("seen");
    let application = subscribe(&bench, &svid)?;
    let live = live(&bench, &format!("--stream svid:{svid}"))?;
    publish(&bench, &format!("--svid {svid} --count 8000"))?;
    let figures = last(live)?;
    application.interrupt();
    application.finish(LIMIT)?;
    let journeys = number(&figures, "journeys")?;
    equal("most packets are counted", (4000..=8000).contains(&journeys), true)?;
    equal("complete", number(&figures, "complete")?, journeys)?;
    equal("lost", lost(&figures), vec![])?;
    let counts: Vec<_> =
        figures["segments"].as_array().into_iter().flatten().map(|s| (s["name"].clone(), s["count"].clone())).collect();
    equal("segments", counts.len() >= 4, true)?;
    for (name, count) in counts {
        equal(&format!("{name}"), count.as_u64(), Some(journeys))?;
    }
    Ok(())
}

fn losses() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("gone");
    let application = subscribe(&bench, &svid)?;
    let live = live(&bench, &format!("--stream svid:{svid}"))?;
    publish(&bench, &format!("--svid {svid} --count 4000"))?;
    // From now on nobody reads.
    application.interrupt();
    application.finish(LIMIT)?;
    let after = publish(&bench, &format!("--svid {svid} --first 0 --count 3000"))?;
    std::thread::sleep(Duration::from_millis(2500));
    let figures = last(live)?;
    let want = vec![("host/nic-rx@lp-app".to_string(), number(&after, "frames_sent")?)];
    equal("lost", lost(&figures), want)
}

fn gaps() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("gaps");
    let live = live(&bench, &format!("--stream svid:{svid}"))?;
    publish(&bench, &format!("--svid {svid} --count 4500"))?;
    // smpCnt goes on after a gap of 7, and then of 20.
    publish(&bench, &format!("--svid {svid} --first 507 --count 500"))?;
    publish(&bench, &format!("--svid {svid} --first 1027 --count 500"))?;
    std::thread::sleep(Duration::from_millis(1200));
    let figures = last(live)?;
    equal("never seen", number(&figures["streams"][0], "never_seen")?, 27)
}

fn absent() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("never");
    let live = live(&bench, &format!("--stream svid:{svid}"))?;
    until("it says that the stream is not there", || live.said().contains("not seen for 3 s; still waiting"))?;
    publish(&bench, &format!("--svid {svid} --count 4000"))?;
    until("it says that the stream came", || live.said().contains(": here after"))?;
    let figures = last(live)?;
    equal("journeys were counted then", number(&figures, "journeys")? > 0, true)
}

fn closed_pipe() -> Result<(), Failed> {
    let svid = own("pipe");
    let mut process = latpath(&format!("live --stream svid:{svid}")).stdout(Stdio::piped()).spawn()?;
    drop(process.stdout.take());
    let mut code = None;
    until("live ends", || {
        code = process.try_wait().ok().flatten();
        code.is_some()
    })
    .inspect_err(|_| {
        let _ = process.kill();
    })?;
    equal("exit code", code.and_then(|c| c.code()), Some(0))
}

fn count() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("enough");
    let live = live(&bench, &format!("--stream svid:{svid} --count 1000"))?;
    publish(&bench, &format!("--svid {svid} --count 12000"))?;
    let ended = live.finish(LIMIT)?;
    equal("exit code", ended.code, Some(0))
}
