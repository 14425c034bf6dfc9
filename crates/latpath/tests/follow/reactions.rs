//! Treact: reactions of an application, compared with its own log.

use crate::{publish, report, Recorder};
use latpath_lab::{APPLICATION, NIC, PUBLISHER};
use latpath_model::{Ns, SegmentKind};
use latpath_run::{Run, Select};
use latpath_stats::{figures::packets, StreamFigures, Summary};
use latpath_testkit::names::own;
use latpath_testkit::waits::{delivered, has_read, listens, LIMIT};
use latpath_testkit::{bench, equal, latpath, trial, Bench, Failed, Lack, Started, Trial};
use latpath_traffic::document::{SubscribeDocument, Trip};

const MS: Ns = 1_000_000;
/// Number of frames before the first fault: a whole number of cycles of 80 samples.
const BEFORE: u64 = 4000;
/// Number of frames in each half: 14 faults, one every 200 ms, at 4,000 frames/s.
const FRAMES: u64 = 12_000;
const FAULTS: &str = "--step 200ms,for=40ms,times=5 --wrap 65536 --count 12000";
const EACH: u64 = 14;
/// Delay from the sample to the trip, ns; longer than the interval between faults.
const AFTER: Ns = 250 * MS;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial("each_trip_belongs_to_the_sample_that_caused_it_with_the_times_of_the_relays_log", needs, trips),
        trial("goose_answers_goose_and_live_shows_it", needs, ping_pong),
    ]
}

/// Starts the relay, which answers according to `rule`.
fn relay(bench: &Bench, rule: &str, after: &str) -> Result<Started, Failed> {
    let input = rule.split(['[', ' ']).next().unwrap_or_default();
    let words = format!("subscribe -i {APPLICATION} --stream {input} --name relay --json --trip-after {after}");
    let mut command = latpath(&words);
    command.args(["--trip", rule]);
    let mut relay = bench.start(bench.application(), command)?;
    listens(&mut relay)?;
    Ok(relay)
}

fn breaker(bench: &Bench, stream: &str) -> Result<Started, Failed> {
    let command = latpath(&format!("subscribe -i {PUBLISHER} --stream {stream} --name breaker --json"));
    let mut breaker = bench.start(&bench.path.publisher, command)?;
    listens(&mut breaker)?;
    Ok(breaker)
}

fn point(run: &Run, name: &str) -> Result<u16, Failed> {
    let at = run.points().iter().position(|info| info.point.to_string() == name);
    at.map(|at| at as u16).ok_or_else(|| Failed::from(format!("no point {name}")))
}

fn of_reactions<'a>(summary: &'a Summary, rule: &str) -> Result<&'a StreamFigures, Failed> {
    let stream = summary.streams.iter().find(|stream| stream.stream == rule);
    stream.ok_or_else(|| format!("no stream {rule} in {:?}", summary.streams).into())
}

/// A trip in the relay's log: the key of the sample that caused it, and its times.
struct Logged {
    key: u32,
    had: Ns,
    sending: Ns,
    sent: Ns,
}

fn logged(summary: SubscribeDocument) -> Result<Vec<Logged>, Failed> {
    let logged = |trip: &Trip| {
        let key = trip.cause.parse()?;
        Ok(Logged { key, had: trip.had_ns, sending: trip.sending_ns, sent: trip.sent_ns })
    };
    summary.trips.ok_or("no log")?.each.iter().map(logged).collect()
}

fn trips() -> Result<(), Failed> {
    let bench = bench()?;
    let (svid, goid) = (own("fault"), own("trip"));
    let rule = format!("svid:{svid}[|Ia|] > 2000A -> goose:{goid}[1],within=1s");
    let relay = relay(&bench, &rule, "250ms")?;
    let breaker = breaker(&bench, &format!("goose:{goid}"))?;
    let run = bench.lab.folder().join("run");
    let recorder = Recorder::start_with(&bench, run, "--window 4s", &["--react", &rule])?;
    // latpath reads packet contents only after packets of both streams have arrived.
    publish(&bench, &format!("--svid {svid} --wrap 65536 --count {BEFORE}"))?;
    recorder.has(BEFORE + 1)?;
    let sent = publish(&bench, &format!("--svid {svid} --first {BEFORE} {FAULTS}"))?;
    equal("frames", sent.frames_sent, FRAMES)?;
    delivered()?;
    has_read(&relay)?;
    // The relay sends pending answers and ends: the trips of the second half are lost.
    relay.interrupt();
    let log = logged(relay.finish(LIMIT)?.json()?)?;
    publish(&bench, &format!("--svid {svid} --first {} {FAULTS}", BEFORE + FRAMES))?;
    recorder.has(BEFORE + 2 * FRAMES + 2 * EACH)?;
    breaker.interrupt();
    breaker.finish(LIMIT)?;
    let path = recorder.end()?;

    equal("trips in the log", log.len() as u64, EACH)?;
    let run = Run::open(&path)?;
    let stream = run.manifest().streams.iter().position(|stream| stream.reaction.is_some()).ok_or("no reactions")?;
    let [wire_in, read, send, wire_out] = [
        format!("host/nic-rx@{NIC}"),
        "host/app-read@relay".into(),
        format!("host/tx@{APPLICATION}"),
        format!("host/tx@{NIC}"),
    ]
    .map(|name| point(&run, &name));
    let (wire_in, read, send, wire_out) = (wire_in?, read?, send?, wire_out?);
    let (mut reactions, mut lost) = (Vec::new(), Vec::new());
    run.for_each(&Select::default(), |j| {
        if usize::from(j.stream) == stream {
            match j.at(wire_out) {
                Some(out) => reactions.push((j.key, [j.at(wire_in), j.at(read), j.at(send), Some(out)])),
                None => lost.push((j.key, j.at(wire_in).is_some(), j.at(send).is_some())),
            }
        }
        true
    });
    let keys: Vec<u32> = reactions.iter().map(|(key, _)| *key).collect();
    equal("the samples that caused the trips", keys, log.iter().map(|trip| trip.key).collect())?;
    let mut times = Vec::new();
    for ((key, at), trip) in reactions.iter().zip(&log) {
        let [Some(wire_in), Some(read), Some(send), Some(wire_out)] = *at else {
            return Err(format!("smpCnt {key}: {at:?}").into());
        };
        let at = format!("smpCnt {key}: {at:?}, the log has {}, {}, {}", trip.had, trip.sending, trip.sent);
        equal(&at, wire_in <= read && read <= trip.had && send <= wire_out, true)?;
        equal(&at, trip.sending <= send && send <= trip.sent && send - read >= AFTER, true)?;
        times.push(wire_out - wire_in);
    }
    let in_flight = log.windows(2).filter(|pair| pair[1].had < pair[0].sending).count();
    equal("two trips were in flight all the time", in_flight as u64, EACH - 1)?;
    // A fault's samples are the same in both halves.
    let expected: Vec<u32> = log.iter().map(|trip| trip.key + FRAMES as u32).collect();
    equal("the lost trips", lost, expected.into_iter().map(|key| (key, true, false)).collect())?;

    let text = run.manifest().streams[stream].to_string();
    equal("the rule", &text, &rule)?;
    let counts = run.manifest().reactions[0].counts;
    let counted = [counts.causes, counts.effects, counts.paired, counts.lost, counts.spurious];
    equal("counts", counted, [2 * EACH, EACH, EACH, EACH, 0])?;
    let figures = report(&path, "")?.summary;
    let of = of_reactions(&figures, &rule)?;
    equal("lost", packets(&of.lost), EACH)?;
    let kinds = [SegmentKind::Treact, SegmentKind::Tin, SegmentKind::Tapp, SegmentKind::Tout];
    equal("segments", of.segments.iter().map(|s| s.kind).collect(), kinds.to_vec())?;
    let whole = &of.segments[0];
    equal("ends", [&whole.from, &whole.to], [&format!("host/nic-rx@{NIC}"), &format!("host/tx@{NIC}")])?;
    let extremes = times.iter().min().zip(times.iter().max()).map(|(min, max)| [*min, *max]);
    equal("shortest and longest", Some([whole.times.min_ns, whole.times.max_ns]), extremes)?;
    let parts: Ns = of.segments.iter().skip(1).map(|s| s.times.mean_ns).sum();
    let off = (whole.times.mean_ns - parts).abs();
    equal(&format!("the parts add up, but for rounding: {off} ns"), off <= 3, true)?;
    let parts = figures.segments.iter().filter(|s| s.kind.is_of_reactions()).map(|s| s.times.count);
    equal("times of packets are in no reaction", parts.collect(), vec![EACH; 4])?;
    for (limit, code) in [("Treact:max<=200ms", 3), ("Treact:max<=100s", 0), ("lost<=0", 3)] {
        let output = latpath(&format!("report {} --limit {limit}", path.display())).output()?;
        equal(limit, output.status.code(), Some(code))?;
    }
    Ok(())
}

fn ping_pong() -> Result<(), Failed> {
    let bench = bench()?;
    let (ping, pong) = (own("ping"), own("pong"));
    let rule = format!("goose:{ping} -> goose:{pong},late=1us");
    let relay = relay(&bench, &format!("goose:{ping} -> goose:{pong}"), "3ms")?;
    let breaker = breaker(&bench, &format!("goose:{pong}"))?;
    let mut command = latpath("live --json --window 1s");
    command.args(["--react", &rule]);
    let live = bench.start(&bench.path.hypervisor, command)?;
    crate::live::shows(&live, "live is attached", |_| true)?;
    let words = format!("--stream goose:{ping} --event-every 100ms --duration 8s");
    let command = latpath(&format!("publish -i {PUBLISHER} --json {words}"));
    let publisher = bench.start(&bench.path.publisher, command)?;
    let reactions = |figures: &Summary| -> Option<StreamFigures> {
        figures.streams.iter().find(|stream| stream.stream == rule).cloned()
    };
    let shown = crate::live::shows(&live, "reactions", |figures| {
        reactions(figures)
            .is_some_and(|of| of.complete >= 20 && of.segments.first().is_some_and(|s| s.times.count >= 20))
    })?;
    publisher.finish(LIMIT)?;
    let of = reactions(&shown).ok_or("no reactions")?;
    equal("the first segment", of.segments[0].kind, SegmentKind::Treact)?;
    let least = of.segments[0].times.min_ns;
    equal(&format!("the relay waits 3 ms, the shortest took {least} ns"), least >= 3 * MS, true)?;
    for started in [relay, breaker] {
        started.interrupt();
        started.finish(LIMIT)?;
    }
    live.interrupt();
    let ended = live.finish(LIMIT)?;
    equal("exit code", ended.code, Some(0))
}
