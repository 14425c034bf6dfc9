//! `latpath live` where its output is no terminal.

use crate::{equal, number, own, publish, subscribe, until, LIMIT, LONG_WRAP, PATIENT};
use latpath_lab::PUBLISHER;
use latpath_testkit::{bench, latpath, trial, Bench, Lack, Started};
use latpath_testkit::{Failed, Trial};
use serde_json::Value;
use std::process::Stdio;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial("live_counts_what_arrives_once_the_route_is_known", needs, counts),
        trial("live_places_losses", needs, losses),
        trial("live_sees_gaps_of_the_publisher", needs, gaps),
        trial("live_says_which_stream_does_not_come_and_waits", needs, absent),
        trial("live_ends_when_nobody_reads_on", needs, closed_pipe),
        trial("live_ends_after_so_many_packets", needs, count),
    ]
}

/// Starts `latpath live --json`, and waits until it is attached.
pub fn start(bench: &Bench, words: &str) -> Result<Started, Failed> {
    let process = bench.start(&bench.path.hypervisor, latpath(&format!("live --json {words}")))?;
    shows(&process, "live is attached", |_| true)?;
    Ok(process)
}

/// Waits for figures, and returns them.
pub fn shows(live: &Started, what: &str, matches: impl Fn(&Value) -> bool) -> Result<Value, Failed> {
    shows_after(live, 0, what, matches)
}

/// The same, of lines behind so many.
fn shows_after(live: &Started, lines: usize, what: &str, matches: impl Fn(&Value) -> bool) -> Result<Value, Failed> {
    let mut figures = None;
    let waited = until(what, || {
        let printed = live.printed();
        // The last line may not be whole yet.
        let whole = printed.rsplit_once('\n').map_or("", |(whole, _)| whole);
        figures = whole.lines().skip(lines).last().and_then(|line| serde_json::from_str::<Value>(line).ok());
        figures.as_ref().is_some_and(&matches)
    });
    match (waited, figures) {
        (Ok(()), Some(figures)) => Ok(figures),
        (_, figures) => Err(format!("waited for: {what}; last shown: {figures:?}; it said: {}", live.said()).into()),
    }
}

/// Publishes, and waits until the route up to this point is known and all packets are over; how many were counted by then.
fn learns_the_route(bench: &Bench, live: &Started, words: &str, last: &str) -> Result<u64, Failed> {
    publish(bench, words)?;
    // What is shown next may be from before.
    let shown = live.printed().lines().count() + 1;
    let is_whole = |f: &Value| f["points"].as_array().and_then(|p| p.last()).is_some_and(|p| p == last);
    let is_over = |f: &Value| is_whole(f) && f["complete"] == f["journeys"];
    number(&shows_after(live, shown, "the route is known", is_over)?, "journeys")
}

/// The last object of each line.
pub fn last(process: Started) -> Result<Value, Failed> {
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

const NIC_OF_APPLICATION: &str = "host/nic-rx@lp-app";
const READER: &str = "host/app-read@subscribe";

fn counts() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("seen");
    let application = subscribe(&bench, &svid)?;
    let folder = tempfile::tempdir()?;
    let junit = folder.path().join("limits.xml");
    let limits = format!("--limit lost<=0 --limit journeys>=8000 --junit {}", junit.display());
    let live = start(&bench, &format!("--stream svid:{svid} {PATIENT} {limits}"))?;
    let before = learns_the_route(&bench, &live, &format!("--svid {svid} --count 4000 {LONG_WRAP}"), READER)?;
    publish(&bench, &format!("--svid {svid} --first 4000 --count 8000 {LONG_WRAP}"))?;
    shows(&live, "all packets are counted", |f| f["complete"].as_u64() >= Some(before + 8000))?;
    let figures = last(live)?;
    application.interrupt();
    application.finish(LIMIT)?;
    let verdicts = std::fs::read_to_string(junit)?;
    equal(&verdicts, verdicts.contains("tests=\"2\" failures=\"0\""), true)?;
    let journeys = number(&figures, "journeys")?;
    equal("packets since the route is known", journeys, before + 8000)?;
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
    let live = start(&bench, &format!("--stream svid:{svid} {PATIENT}"))?;
    learns_the_route(&bench, &live, &format!("--svid {svid} --count 4000 {LONG_WRAP}"), READER)?;
    // From now on nobody reads.
    application.interrupt();
    application.finish(LIMIT)?;
    let after = publish(&bench, &format!("--svid {svid} --first 4000 --count 3000 {LONG_WRAP}"))?;
    let sent = number(&after, "frames_sent")?;
    shows(&live, "the lost packets", |f| lost(f).iter().map(|(_, count)| count).sum::<u64>() >= sent)?;
    let figures = last(live)?;
    equal("lost", lost(&figures), vec![(NIC_OF_APPLICATION.to_string(), sent)])
}

fn gaps() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("gaps");
    let live = start(&bench, &format!("--stream svid:{svid}"))?;
    learns_the_route(&bench, &live, &format!("--svid {svid} --count 4500"), NIC_OF_APPLICATION)?;
    // smpCnt goes on after a gap of 7, and then of 20.
    publish(&bench, &format!("--svid {svid} --first 507 --count 500"))?;
    publish(&bench, &format!("--svid {svid} --first 1027 --count 500"))?;
    let never_seen = |f: &Value| f["streams"][0]["never_seen"].as_u64();
    shows(&live, "both gaps are seen", |f| never_seen(f) >= Some(27))?;
    equal("never seen", never_seen(&last(live)?), Some(27))
}

fn absent() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("never");
    let live = start(&bench, &format!("--stream svid:{svid}"))?;
    let is_missed = |said: &str| said.contains("not seen for ") && said.contains(" s; still waiting");
    until("it says that the stream is not there", || is_missed(&live.said()))?;
    let publisher = publishes(&bench, &svid)?;
    until("it says that the stream came", || live.said().contains(": arrived after"))?;
    shows(&live, "journeys are counted then", |f| f["journeys"].as_u64() > Some(0))?;
    publisher.interrupt();
    publisher.finish(LIMIT)?;
    last(live).map(drop)
}

/// A publisher that goes on.
fn publishes(bench: &Bench, svid: &str) -> Result<Started, Failed> {
    let words = format!("publish -i {PUBLISHER} --svid {svid} --duration 300s");
    bench.start(&bench.path.publisher, latpath(&words))
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
    let live = start(&bench, &format!("--stream svid:{svid} --count 1000"))?;
    let publisher = publishes(&bench, &svid)?;
    let ended = live.finish(LIMIT)?;
    publisher.interrupt();
    publisher.finish(LIMIT)?;
    equal("exit code", ended.code, Some(0))?;
    let line = ended.stdout.lines().last().ok_or("live printed nothing")?;
    let journeys = number(&serde_json::from_str(line)?, "journeys")?;
    equal(
        &format!("{journeys} journeys are what was asked for, or some more of the same round"),
        journeys >= 1000,
        true,
    )
}
