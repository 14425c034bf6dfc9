//! Emitters and reflectors that find each other: addresses, sizes, rates, several at once.

use crate::link::{adds_up, is, need, number, Link, Says, ANSWER_WITHIN};
use latpath_testkit::trial;
use latpath_testkit::{equal, Failed, Trial};
use serde_json::{json, Value};

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
        equal("target", &session["target"], &json!(shown))?;
        equal("device", &session["device"], &json!("lpe"))?;
        equal("ended", &session["ended"], &json!("done"))?;
        equal("clocks", &session["clocks"], &json!("same_kernel"))?;
        equal("answered", number(&session, "counts.answered")?, 300)?;
        let parts = session["segments"].as_array().map_or(0, Vec::len);
        equal("segments", parts, 7)?;
        adds_up(&session)?;
    }
    let reflected: Value = reflector.ends()?.json::<Value>()?;
    let sessions = reflected["sessions"].as_array().ok_or("no sessions")?;
    equal("sessions", sessions.len(), addresses.len())?;
    sessions.iter().try_for_each(|s| equal("received", &s["received"], &json!(300)))?;
    is(
        "IPv4 peers are shown as such",
        sessions.iter().any(|s| s["peer"].as_str().unwrap_or("").starts_with("10.77.0.1:")),
    )
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
            equal(address, number(&session, "counts.answered")?, 100)?;
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
            equal("size", number(&session, "size_bytes")?, size)?;
            equal("answered", number(&session, "counts.answered")?, 200)?;
            // A short answer carries only the reflector's own times.
            let parts: Vec<&Value> = session["segments"].as_array().into_iter().flatten().collect();
            equal("segments", parts.len(), if size < 96 { 5 } else { 7 })?;
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
    let all: Value = link.emit("10.77.0.2 10.77.0.3:7000 fd77::2 --count 500 --rate 2000")?.json::<Value>()?;
    let sessions = all["sessions"].as_array().ok_or("no sessions")?;
    let targets: Vec<&Value> = sessions.iter().map(|s| &s["target"]).collect();
    equal("targets", targets, vec![&json!("10.77.0.2:6185"), &json!("10.77.0.3:7000"), &json!("[fd77::2]:6185")])?;
    for session in sessions {
        equal("answered", number(session, "counts.answered")?, 500)?;
        adds_up(session)?;
    }
    is("each session has its own number", sessions[0]["session"] != sessions[1]["session"])
}

fn two() -> Result<(), Failed> {
    let link = Link::new()?;
    let reflector = link.reflect("")?;
    let first = link.start_emit("10.77.0.2 --count 1500 --rate 2000")?;
    let second = link.start_emit("10.77.0.2 --count 1500 --rate 2000 --size 200")?;
    for started in [first, second] {
        let session = started.finish(ANSWER_WITHIN)?.session()?;
        equal("answered", number(&session, "counts.answered")?, 1500)?;
        equal("foreign", number(&session, "counts.foreign")?, 0)?;
        adds_up(&session)?;
    }
    let reflected: Value = reflector.ends()?.json::<Value>()?;
    let received: Vec<&Value> =
        reflected["sessions"].as_array().into_iter().flatten().map(|s| &s["received"]).collect();
    equal("received in each session", received, vec![&json!(1500), &json!(1500)])
}

fn paces() -> Result<(), Failed> {
    let link = Link::new()?;
    let reflector = link.reflect("")?;
    let run = |words: &str| -> Result<(Value, i64, i64), Failed> {
        let session = link.emit(&format!("10.77.0.2 {words}"))?.session()?;
        adds_up(&session)?;
        let (sent, elapsed) = (number(&session, "counts.sent")?, number(&session, "elapsed_ns")?);
        Ok((session, sent, elapsed))
    };
    let (session, sent, elapsed) = run("--rate 1000 --duration 500ms")?;
    equal("pacing", &session["pacing"], &json!({ "rate_hz": 1000.0 }))?;
    is("never faster than the rate", sent <= 501 && (sent - 1) * 1_000_000 <= elapsed)?;
    let (_, sent, elapsed) = run("--rate 500 --count 100")?;
    is("never faster than the rate", sent == 100 && (sent - 1) * 2_000_000 <= elapsed)?;
    let (session, sent, _) = run("--duration 500ms")?;
    equal("pacing", &session["pacing"], &json!("as_answers_come"))?;
    is(&format!("{sent} as answers come"), sent > 0)?;
    equal("ended", &session["ended"], &json!("done"))?;
    let (session, sent, _) = run("--flood --duration 300ms --lost-after 1s")?;
    equal("pacing", &session["pacing"], &json!("flood"))?;
    is("a flood sends", sent > 0)?;
    let (session, sent, _) = run("--count 50 --warm-up 200")?;
    equal("sent", sent, 50)?;
    equal("the reflector's count has no warm-up", number(&session, "reflector.received")?, 50)?;
    let reflected: Value = reflector.ends()?.json::<Value>()?;
    let last = reflected["sessions"].as_array().and_then(|s| s.iter().find(|s| s["received"] == json!(250)));
    is("though it came", last.is_some())
}

fn stamps() -> Result<(), Failed> {
    let link = Link::new()?;
    for (which, first, parts) in [("app", "t1_app", 3), ("kernel", "t1_driver", 7), ("all", "t1_sched", 7)] {
        let reflector = link.reflect(&format!("--stamps {which}"))?;
        let session = link.emit(&format!("10.77.0.2 --count 100 --stamps {which}"))?.session()?;
        let taken: Vec<&str> = session["stamps"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        is("the stamp asked for is there", taken.contains(&first))?;
        equal("segments", session["segments"].as_array().map_or(0, Vec::len), parts)?;
        equal("detail", session["detail"].as_array().map_or(0, Vec::len), if which == "all" { 9 } else { 0 })?;
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
    // Of 200 round trips none exceeds p99.9.
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
