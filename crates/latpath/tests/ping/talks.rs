//! Emitters and reflectors that find each other: addresses, sizes, rates, several at once.

use crate::link::{adds_up, is, need, Link, Says, ANSWER_WITHIN};
use latpath_ping::document::{EmitDocument, ReflectDocument, SessionDocument, SessionEnd, SessionPacing};
use latpath_ping::timeline::Relation;
use latpath_ping::Stamp;
use latpath_testkit::trial;
use latpath_testkit::{equal, Failed, Trial};

pub fn tests() -> Vec<Trial> {
    let needs = need();
    vec![
        trial("probes_go_by_ipv4_ipv6_and_link_local_addresses", &needs, families),
        trial("a_reflector_on_all_addresses_answers_from_the_one_that_was_asked", &needs, asked),
        trial("probes_of_every_size_come_back_also_in_fragments", &needs, sizes),
        trial("several_reflectors_are_asked_at_once", &needs, several),
        trial("two_emitters_share_a_reflector", &needs, two),
        trial("a_rate_a_count_a_duration_a_warm_up_and_a_flood_are_what_they_say", &needs, paces),
        trial("stamps_are_those_that_were_asked_for", &needs, stamps),
        trial("the_text_shows_what_the_json_holds", &needs, text),
    ]
}

fn families() -> Result<(), Failed> {
    let link = Link::new()?;
    let reflector = link.reflect("")?;
    let addresses = [
        ("10.77.0.2", "10.77.0.2:6185"),
        ("10.77.0.2:6185", "10.77.0.2:6185"),
        ("fd77::2", "[fd77::2]:6185"),
        ("fe80::77:2%lpe", "[fe80::77:2%lpe]:6185"),
        ("[fe80::77:2%lpe]:6185", "[fe80::77:2%lpe]:6185"),
    ];
    for (written, shown) in addresses {
        let session = link.emit(&format!("{written} --count 300"))?.session()?;
        equal("target", session.target.as_str(), shown)?;
        equal("device", session.device.as_deref(), Some("lpe"))?;
        equal("ended", session.ended, SessionEnd::Done)?;
        equal("clocks", session.report.clocks, Relation::SameKernel)?;
        equal("answered", session.report.counts.answered, 300)?;
        equal("segments", session.report.segments.len(), 7)?;
        adds_up(&session)?;
    }
    let sessions = reflector.ends()?.json::<ReflectDocument>()?.sessions;
    equal("sessions", sessions.len(), addresses.len())?;
    sessions.iter().try_for_each(|s| equal("received", s.received, 300))?;
    is("IPv4 peers are shown as such", sessions.iter().any(|s| s.peer.starts_with("10.77.0.1:")))
}

/// The emitter's socket is connected: it accepts messages only from the address that it sends to.
fn asked() -> Result<(), Failed> {
    let link = Link::new()?;
    link.there.ip("addr add fd77::3/64 dev lpr nodad")?;
    for (bind, addresses) in
        [("", &["10.77.0.2", "10.77.0.3", "fd77::2", "fd77::3"][..]), ("--bind 0.0.0.0", &["10.77.0.3"])]
    {
        let reflector = link.reflect(bind)?;
        for address in addresses {
            let session = link.emit(&format!("{address} --count 100"))?.session()?;
            equal(address, session.report.counts.answered, 100)?;
        }
        reflector.ends()?;
    }
    let reflector = link.reflect("--bind 10.77.0.3")?;
    let said = link.emit("10.77.0.2 --count 1 --timeout 300ms")?;
    equal("exit code of a question to another address", said.code, Some(1))?;
    reflector.ends().map(drop)
}

fn sizes() -> Result<(), Failed> {
    let link = Link::new()?;
    let _reflector = link.reflect("")?;
    for size in [32, 96, 1400, 9000] {
        for address in ["10.77.0.2", "fd77::2"] {
            let session = link.emit(&format!("{address} --count 200 --size {size}"))?.session()?;
            equal("size", session.size_bytes, size)?;
            equal("answered", session.report.counts.answered, 200)?;
            // A short answer carries only the reflector's own times.
            equal("segments", session.report.segments.len(), if size < 96 { 5 } else { 7 })?;
            adds_up(&session)?;
        }
    }
    Ok(())
}

fn several() -> Result<(), Failed> {
    let link = Link::new()?;
    let _one = link.reflect("--bind 10.77.0.2")?;
    let _other = link.reflect("--bind 10.77.0.3 --port 7000")?;
    let _third = link.reflect("--bind fd77::2")?;
    let all: EmitDocument = link.emit("10.77.0.2 10.77.0.3:7000 fd77::2 --count 500 --rate 2000")?.json()?;
    let targets: Vec<&str> = all.sessions.iter().map(|s| s.target.as_str()).collect();
    equal("targets", targets, vec!["10.77.0.2:6185", "10.77.0.3:7000", "[fd77::2]:6185"])?;
    for session in &all.sessions {
        equal("answered", session.report.counts.answered, 500)?;
        adds_up(session)?;
    }
    is("each session has its own number", all.sessions[0].session != all.sessions[1].session)
}

fn two() -> Result<(), Failed> {
    let link = Link::new()?;
    let reflector = link.reflect("")?;
    let first = link.start_emit("10.77.0.2 --count 1500 --rate 2000")?;
    let second = link.start_emit("10.77.0.2 --count 1500 --rate 2000 --size 200")?;
    for started in [first, second] {
        let session = started.finish(ANSWER_WITHIN)?.session()?;
        let counts = &session.report.counts;
        equal("answered and foreign", (counts.answered, counts.foreign), (1500, 0))?;
        adds_up(&session)?;
    }
    let reflected: ReflectDocument = reflector.ends()?.json()?;
    let received: Vec<u64> = reflected.sessions.iter().map(|s| s.received).collect();
    equal("received in each session", received, vec![1500, 1500])
}

fn paces() -> Result<(), Failed> {
    let link = Link::new()?;
    let reflector = link.reflect("")?;
    let run = |words: &str| -> Result<(SessionDocument, i64, i64), Failed> {
        let session = link.emit(&format!("10.77.0.2 {words}"))?.session()?;
        adds_up(&session)?;
        let (sent, elapsed) = (session.report.counts.sent as i64, session.report.elapsed_ns);
        Ok((session, sent, elapsed))
    };
    let (session, sent, elapsed) = run("--rate 1000 --duration 500ms")?;
    equal("pacing", session.pacing, SessionPacing::Rate { rate_hz: 1000.0 })?;
    is("never faster than the rate", sent <= 501 && (sent - 1) * 1_000_000 <= elapsed)?;
    let (_, sent, elapsed) = run("--rate 500 --count 100")?;
    is("never faster than the rate", sent == 100 && (sent - 1) * 2_000_000 <= elapsed)?;
    let (session, sent, _) = run("--duration 500ms")?;
    equal("pacing", session.pacing, SessionPacing::AsAnswersCome)?;
    is(&format!("{sent} as answers come"), sent > 0)?;
    equal("ended", session.ended, SessionEnd::Done)?;
    let (session, sent, _) = run("--flood --duration 300ms --lost-after 1s")?;
    equal("pacing", session.pacing, SessionPacing::Flood)?;
    is("a flood sends", sent > 0)?;
    let (session, sent, _) = run("--count 50 --warm-up 200")?;
    equal("sent", sent, 50)?;
    let seen = session.report.reflector.map(|seen| seen.received);
    equal("the reflector's count has no warm-up", seen, Some(50))?;
    let reflected: ReflectDocument = reflector.ends()?.json()?;
    is("though it came", reflected.sessions.iter().any(|s| s.received == 250))
}

fn stamps() -> Result<(), Failed> {
    let link = Link::new()?;
    for (which, first, parts) in [("app", Stamp::T1App, 3), ("kernel", Stamp::T1Driver, 7), ("all", Stamp::T1Sched, 7)]
    {
        let reflector = link.reflect(&format!("--stamps {which}"))?;
        let session = link.emit(&format!("10.77.0.2 --count 100 --stamps {which}"))?.session()?;
        is("the stamp asked for is there", session.stamps.contains(&first))?;
        equal("segments", session.report.segments.len(), parts)?;
        equal("detail", session.report.detail.len(), if which == "all" { 9 } else { 0 })?;
        adds_up(&session)?;
        reflector.ends()?;
    }
    let said = link.emit("10.77.0.2 --count 1 --stamps nic")?;
    equal("exit code", said.code, Some(1))?;
    is(&said.stderr, said.stderr.contains("lpe: its driver makes no hardware stamps"))
}

fn text() -> Result<(), Failed> {
    let link = Link::new()?;
    let _reflector = link.reflect("")?;
    let said =
        link.emit_text("10.77.0.2 --count 200 --threshold 10s --bucket 1us --overflow 1ns --worst 3 --detail")?;
    equal("exit code", said.code, Some(0))?;
    for part in [
        "10.77.0.2:6185 over lpe, 96 bytes, each when the last answer came",
        "clocks    both ends run on one kernel and share its clock",
        "sent      200 probes in ",
        "200 answered, 0 lost",
        "round trip",
        "emitter app → driver",
        "reflector kernel → app",
        "over 10.00 s: 0",
        "200 from 1 ns on:",
        "and 100 more",
    ] {
        is(&format!("{part:?} in {}", said.stdout), said.stdout.contains(part))?;
    }
    // No time of 200 round trips exceeds p99.9, so that percentile and higher ones are unknown.
    let cells = |name: &str| -> Vec<&str> {
        let line = said.stdout.lines().find(|line| line.contains(name)).unwrap_or_default();
        line.trim_start().split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
    };
    let heads = ["min", "mean", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "p99.999", "p99.9999", "max"];
    equal("percentiles", cells("p99.9999"), heads.to_vec())?;
    let unknown: Vec<bool> = cells("round trip").iter().skip(1).map(|cell| *cell == "-").collect();
    equal("those that are not known", unknown, (0..heads.len()).map(|i| (6..10).contains(&i)).collect())?;
    equal("lines of the worst", said.stdout.lines().filter(|l| l.contains(" + ")).count(), 3)?;
    is("no colours", !said.stdout.contains('\u{1b}'))
}
