//! `latpath live` whose output is not a terminal.

use crate::{equal, own, publish, subscribe, until, LIMIT, LONG_WRAP, PATIENT};
use latpath_lab::{NIC, PUBLISHER};
use latpath_stats::{figures::packets, Summary};
use latpath_testkit::{bench, latpath, start_on_terminal, trial, Bench, Lack, Started};
use latpath_testkit::{Failed, Trial};
use std::process::Stdio;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial("live_counts_what_arrives_once_the_route_is_known", needs, counts),
        trial("live_places_losses", needs, losses),
        trial("live_sees_gaps_of_the_publisher", needs, gaps),
        trial("live_says_which_stream_does_not_come_and_waits", needs, absent),
        trial("live_ends_when_nobody_reads_on", needs, closed_pipe),
        trial("live_ends_after_so_many_packets", needs, count),
        trial("streams_are_chosen_by_a_pattern_or_are_all_that_pass_a_device", needs, chosen),
        trial("live_on_a_terminal_leaves_its_report_behind", needs, terminal),
        trial("of_plain_lines_there_is_one_block_a_second_however_many_packets_are_late", needs, plain),
    ]
}

/// Starts `latpath live --json`, and waits until it is attached.
pub fn start(bench: &Bench, words: &str) -> Result<Started, Failed> {
    let process = bench.start(&bench.path.hypervisor, latpath(&format!("live --json {words}")))?;
    shows(&process, "live is attached", |_| true)?;
    Ok(process)
}

/// Waits for figures that `matches` accepts, and returns them.
pub fn shows(live: &Started, what: &str, matches: impl Fn(&Summary) -> bool) -> Result<Summary, Failed> {
    shows_after(live, 0, what, matches)
}

/// Like [`shows`], ignoring the first `lines` lines.
fn shows_after(
    live: &Started,
    lines: usize,
    what: &str,
    matches: impl Fn(&Summary) -> bool,
) -> Result<Summary, Failed> {
    let mut figures = None;
    let waited = until(what, || {
        let printed = live.printed();
        // The last line may be incomplete.
        let whole = printed.rsplit_once('\n').map_or("", |(whole, _)| whole);
        figures = whole.lines().skip(lines).last().and_then(|line| serde_json::from_str::<Summary>(line).ok());
        figures.as_ref().is_some_and(&matches)
    });
    match (waited, figures) {
        (Ok(()), Some(figures)) => Ok(figures),
        (_, figures) => Err(format!("waited for: {what}; last shown: {figures:?}; it said: {}", live.said()).into()),
    }
}

/// Publishes, and waits until the route up to point `last` is known and all packets have finished; returns the number
/// counted by then.
fn learns_the_route(bench: &Bench, live: &Started, words: &str, last: &str) -> Result<u64, Failed> {
    publish(bench, words)?;
    // The line printed next may still show an earlier state, so it is ignored.
    let shown = live.printed().lines().count() + 1;
    let is_whole = |f: &Summary| f.points.last().is_some_and(|point| point.to_string() == last);
    let is_over = |f: &Summary| is_whole(f) && f.complete == f.journeys;
    Ok(shows_after(live, shown, "the route is known", is_over)?.journeys)
}

/// The JSON object in the last line.
pub fn last(process: Started) -> Result<Summary, Failed> {
    process.interrupt();
    let ended = process.finish(LIMIT)?;
    equal("exit code", ended.code, Some(0))?;
    let line = ended.stdout.lines().last().ok_or("live printed nothing")?;
    Ok(serde_json::from_str(line)?)
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
    shows(&live, "all packets are counted", |f| f.complete >= before + 8000)?;
    let figures = last(live)?;
    application.interrupt();
    application.finish(LIMIT)?;
    let verdicts = std::fs::read_to_string(junit)?;
    equal(&verdicts, verdicts.contains("tests=\"2\" failures=\"0\""), true)?;
    let journeys = figures.journeys;
    equal("packets since the route is known", journeys, before + 8000)?;
    equal("complete", figures.complete, journeys)?;
    equal("lost", figures.lost, vec![])?;
    equal("segments", figures.segments.len() >= 4, true)?;
    for segment in &figures.segments {
        equal(&segment.name, segment.times.count, journeys)?;
    }
    Ok(())
}

fn losses() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("gone");
    let application = subscribe(&bench, &svid)?;
    let live = start(&bench, &format!("--stream svid:{svid} {PATIENT}"))?;
    learns_the_route(&bench, &live, &format!("--svid {svid} --count 4000 {LONG_WRAP}"), READER)?;
    // From now on no process reads.
    application.interrupt();
    application.finish(LIMIT)?;
    let sent = publish(&bench, &format!("--svid {svid} --first 4000 --count 3000 {LONG_WRAP}"))?.frames_sent;
    shows(&live, "the lost packets", |f| packets(&f.lost) >= sent)?;
    let figures = last(live)?;
    let lost: Vec<_> = figures.lost.iter().map(|loss| (loss.place.as_str(), loss.count)).collect();
    equal("lost", lost, vec![(NIC_OF_APPLICATION, sent)])
}

fn gaps() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("gaps");
    let live = start(&bench, &format!("--stream svid:{svid}"))?;
    learns_the_route(&bench, &live, &format!("--svid {svid} --count 4500"), NIC_OF_APPLICATION)?;
    // smpCnt continues after a gap of 7, and then of 20.
    publish(&bench, &format!("--svid {svid} --first 507 --count 500"))?;
    publish(&bench, &format!("--svid {svid} --first 1027 --count 500"))?;
    shows(&live, "both gaps are seen", |f| f.streams[0].never_seen >= 27)?;
    equal("never seen", last(live)?.streams[0].never_seen, 27)
}

fn absent() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("never");
    let live = start(
        &bench,
        &format!("--stream svid:{svid} --stream udp:192.0.2.1:9,hash=0:8 --stream ether:0x88b6,hash=0:8"),
    )?;
    let tcpdump = "(tcpdump -eni IF shows what is there)";
    let missed = [
        (format!("svid:{svid}"), "(latpath streams lists what is there)"),
        ("udp:192.0.2.1:9,hash=0:8".into(), tcpdump),
        ("ether:0x88b6,hash=0:8".into(), tcpdump),
    ];
    for (stream, hint) in missed {
        let is_said = |line: &str| {
            line.contains(&format!("{stream}: not seen for ")) && line.contains(&format!(" s; still waiting {hint}"))
        };
        until(&format!("it says that {stream} is not there, and {hint}"), || live.said().lines().any(is_said))?;
    }
    let publisher = publishes(&bench, &svid)?;
    until("it says that the stream came", || live.said().contains(": arrived after"))?;
    shows(&live, "journeys are counted then", |f| f.journeys > 0)?;
    publisher.interrupt();
    publisher.finish(LIMIT)?;
    last(live).map(drop)
}

/// A publisher that runs until it is stopped.
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

fn chosen() -> Result<(), Failed> {
    let bench = bench()?;
    let (some, other) = (own("some"), own("other"));
    let words = format!("publish -i {PUBLISHER} --svid {some} --streams 2 --duration 300s");
    let both = bench.start(&bench.path.publisher, latpath(&words))?;
    let third = publishes(&bench, &other)?;
    let [first, second] = ["01", "02"].map(|n| format!("svid:{some}{n}"));
    let other = format!("svid:{other}");
    for (words, expected) in
        [(format!("--stream svid:{some}*"), vec![&first, &second]), ("--all".into(), vec![&other, &first, &second])]
    {
        let live = start(&bench, &format!("{words} -i {NIC}"))?;
        let names = |f: &Summary| -> Vec<String> {
            f.streams.iter().filter(|s| s.journeys > 0).map(|s| s.stream.clone()).collect()
        };
        let figures = shows(&live, "all that were chosen have come", |f| names(f).len() >= expected.len())?;
        let mut names = names(&figures);
        names.sort();
        let mut expected: Vec<String> = expected.into_iter().cloned().collect();
        expected.sort();
        equal(&words, names, expected.clone())?;
        let said = live.said();
        equal(&said, said.contains(&format!(" on {NIC}: {}", expected.join(", "))), true)?;
        last(live)?;
    }
    let none = latpath(&format!("live --stream svid:{some}x* -i {NIC}"));
    let none = bench.run(&bench.path.hypervisor, none, LIMIT)?;
    equal(&none.stderr, (none.code, none.stderr.contains("no stream fits svid:")), (Some(1), true))?;
    [both, third].into_iter().try_for_each(|publisher| {
        publisher.interrupt();
        publisher.finish(LIMIT).map(drop)
    })
}

fn terminal() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("screen");
    let live = latpath(&format!("live --stream svid:{svid} --count 1000"));
    let live = start_on_terminal(&bench.lab, &bench.path.hypervisor, live)?;
    let publisher = publishes(&bench, &svid)?;
    let ended = live.finish(LIMIT)?;
    publisher.interrupt();
    publisher.finish(LIMIT)?;
    equal(&ended.stderr, ended.code, Some(0))?;
    let (screen, after) = ended.stdout.rsplit_once("\x1b[?1049l").ok_or("it never left the alternate screen")?;
    equal("the alternate screen", screen.matches("\x1b[?1049h").count(), 1)?;
    let figures = ["Data quality", "journeys", "lost", "Segments", "p99", NIC_OF_APPLICATION];
    equal(after, figures.map(|part| after.contains(part)), [true; 6])
}

fn plain() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("late");
    let live = latpath(&format!("live --plain --stream svid:{svid} --threshold 1ns"));
    let live = bench.start(&bench.path.hypervisor, live)?;
    let publisher = publishes(&bench, &svid)?;
    let blocks = |printed: &str| -> Vec<u64> {
        let at = |line: &str| {
            line.split_once("  journeys ")?
                .0
                .split_once(':')
                .map(|(m, s)| Some(60 * m.parse::<u64>().ok()? + s.parse::<u64>().ok()?))?
        };
        printed.lines().filter_map(at).collect()
    };
    let is_explained = |line: &str| line.contains("  late ") && !line.contains("  explained 0  ");
    until("packets are explained in several blocks", || {
        let printed = live.printed();
        printed.lines().filter(|line| is_explained(line)).count() >= 5 && blocks(&printed).len() >= 5
    })?;
    publisher.interrupt();
    publisher.finish(LIMIT)?;
    live.interrupt();
    let ended = live.finish(LIMIT)?;
    equal(&ended.stderr, ended.code, Some(0))?;
    let blocks = blocks(&ended.stdout);
    let last = blocks.last().copied().unwrap_or(0);
    // At most one block per second, plus one for the partial first second and one at the end.
    equal(&format!("{} blocks in {last} s", blocks.len()), blocks.len() as u64 <= last + 2, true)
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
    let journeys = serde_json::from_str::<Summary>(line)?.journeys;
    equal(
        &format!("{journeys} journeys are what was asked for, or some more of the same round"),
        journeys >= 1000,
        true,
    )
}
