//! Faults of `publish --step`, answered by `subscribe --trip`.

use crate::bench::{summary, Pair, Result};
use crate::receives::{arrived, listen};
use crate::{Needs, Test};
use latpath_protocols::sv::{Channel, Profile, Waveform};
use latpath_testkit::equal;

pub const TESTS: &[Test] = &[
    ("each fault is answered once, by the first sample over the level, with two in flight", Needs::Root, in_flight),
    ("an answer that subscribe cannot send is refused with what it can", Needs::Root, refused),
];

/// Interval and duration of the faults, in samples; factor by which the currents rise; level, in steps of 1 mA.
const EVERY: u64 = 240;
const LASTS: u64 = 80;
const TIMES: u32 = 5;
const LEVEL: i32 = 2_000_000;
/// Number of samples published.
const SAMPLES: u64 = 2000;
/// Time from the sample to the answer, ns; longer than the interval of the faults.
const AFTER: i64 = 100_000_000;

/// The first sample of each fault that exceeds the level.
fn expected() -> Vec<String> {
    let profile = Profile::ALL[0];
    let fault = Waveform::new(profile.samples_per_s, profile.hz).with_currents(TIMES);
    let ia: Channel = "Ia".parse().expect("a channel");
    let is_over = |n: &u64| ia.value(fault.sample(*n)).is_some_and(|value| value.abs() > LEVEL);
    let begins = (1..).map(|n| n * EVERY).take_while(|begin| *begin < SAMPLES);
    begins.filter_map(|begin| (begin..(begin + LASTS).min(SAMPLES)).find(is_over)).map(|n| n.to_string()).collect()
}

fn in_flight() -> Result<()> {
    let pair = Pair::new()?;
    let rule = "svid:MU01[|Ia|] > 2kA -> goose:TRIP[1]";
    let relay = listen(&pair, &["--stream", "svid:MU01", "--trip", rule, "--trip-after", "100ms"])?;
    let breaker = pair.listen("lpa", &["subscribe", "-i", "lpa", "--stream", "goose:TRIP", "--json"])?;
    let step = format!("{}us,for={}us,times={TIMES}", EVERY * 250, LASTS * 250);
    pair.publish(&["--svid", "MU01", "--step", &step, "--count", &SAMPLES.to_string()])?;
    arrived(&pair, SAMPLES)?;
    // Pending answers are still sent when subscribe is stopped.
    let trips = summary(relay)?.trips.ok_or("no trips")?;
    let each = &trips.each;
    let causes: Vec<&String> = each.iter().map(|trip| &trip.cause).collect();
    equal("the samples that were answered", causes, expected().iter().collect())?;
    equal("the rule", trips.rule.as_str(), "svid:MU01[|Ia|] > 2000A -> goose:TRIP[1]")?;
    equal("sent", (trips.sent, trips.refused), (each.len() as u64, 0))?;
    for trip in each {
        let is_in_order = trip.sending_ns >= trip.had_ns + AFTER && trip.sent_ns >= trip.sending_ns;
        equal(&format!("{trip:?} is in order"), is_in_order, true)?;
    }
    let two = each.windows(2).any(|pair| pair[1].had_ns < pair[0].sending_ns);
    equal("two were in flight", two, true)?;
    let breaker = &summary(breaker)?.streams[0];
    equal("the breaker received each, and repetitions", breaker.received > each.len() as u64, true)?;
    equal("and lost none", breaker.lost, 0)
}

fn refused() -> Result<()> {
    let pair = Pair::new()?;
    for (rule, part) in [
        ("svid:MU01 -> svid:MU02", "what is sent is"),
        ("svid:MU01 -> goose:TRIP[2]", "goose:TRIP[1]"),
        ("udp:10.0.0.1:5 -> goose:TRIP", "is not a stream that subscribe receives"),
        ("goose:PING -> goose:PONG", "name it with --stream, too"),
        ("svid:MU01[Ix] > 5A -> goose:TRIP", "Ia, Ib, Ic"),
    ] {
        let ended = pair.latpath("lpb", &["subscribe", "-i", "lpb", "--stream", "svid:MU01", "--trip", rule])?;
        equal(&format!("{rule}: {}", ended.stderr), ended.code, Some(2))?;
        equal(&format!("{rule}: {}", ended.stderr), ended.stderr.contains(part), true)?;
    }
    Ok(())
}
