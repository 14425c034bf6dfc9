//! Selects a packet: `MU01:1234@03:04:05.593`, `MU01:1234@12.5s`, `worst`, or its rank among the worst.
//!
//! A sample count repeats each second, so the time selects the packet; without a time, the name must match only one
//! packet.

use crate::When;
use latpath_cause::RunContext;
use latpath_model::{Ns, StreamId};
use std::{
    fmt::Write,
    str::FromStr,
    time::{Duration, SystemTime},
};

const SECOND: Ns = 1_000_000_000;
const DAY: Ns = 86_400 * SECOND;
/// Maximum number of candidates listed if several or none match.
const LISTED: usize = 8;

/// A packet as the user selects it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketSelector {
    /// Rank among the worst packets, from 1.
    Worst(usize),
    /// By name and time.
    Packet {
        /// `STREAM:KEY`: the stream's short or full name, and the key as the stream's key rule writes it.
        name: String,
        /// Time of the first sighting, if given.
        at: Option<At>,
    },
}

/// A time with its tolerance, which follows from its last digit; at least a tenth of a second to each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    when: Clock,
    from: Ns,
    to: Ns,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    SinceStart,
    Utc,
    OfDay,
}

/// A string that does not name a packet.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?}: not a packet; write STREAM:KEY@TIME, e.g. MU01:1234@03:04:05.593 (UTC) or MU01:1234@12.5s (since the run's start), worst, or its number in the list of the worst")]
pub struct BadPacket(pub String);

/// A packet of a capture that may match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Number of the capture.
    pub capture: u32,
    /// The packet's stream.
    pub stream: StreamId,
    /// The packet's key in the stream.
    pub key: u32,
    /// The packet's index in the stream.
    pub number: u64,
    /// Time of the first sighting on the run's timeline, ns.
    pub t: Ns,
    /// Time from the first sighting to the last, ns.
    pub time_ns: Ns,
    /// Whether the packet was late.
    pub late: bool,
}

impl FromStr for PacketSelector {
    type Err = BadPacket;

    fn from_str(text: &str) -> Result<Self, BadPacket> {
        let bad = || BadPacket(text.into());
        if text == "worst" {
            return Ok(Self::Worst(1));
        }
        if let Some(place) = text.parse().ok().filter(|place| *place > 0) {
            return Ok(Self::Worst(place));
        }
        // A stream's name may contain `@` and `:`, and a key may contain `:`. So `@` separates a time only if a key
        // (which ends in a digit) precedes it.
        let (name, at) = match text.rsplit_once('@') {
            Some((name, at)) => (name, Some(At::parse(at).ok_or_else(bad)?)),
            None => (text, None),
        };
        let is_name = |(stream, key): (&str, &str)| !stream.is_empty() && key.starts_with(|c: char| c.is_ascii_digit());
        match name.rsplit_once(':').is_some_and(is_name) {
            true => Ok(Self::Packet { name: name.into(), at }),
            false => Err(bad()),
        }
    }
}

impl At {
    fn parse(text: &str) -> Option<Self> {
        if let Some(ns) = of_day(text) {
            return Some(Self::around(Clock::OfDay, ns, text));
        }
        // A number without a unit is a time in seconds since the run's start.
        let seconds = format!("{text}s");
        let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        match if plain { seconds.as_str() } else { text }.parse().ok()? {
            When::SinceStart(ns) => Some(Self::around(Clock::SinceStart, ns, text.trim_end_matches('s'))),
            When::Utc(ns) => Some(Self::around(Clock::Utc, ns, text.trim_end_matches('Z'))),
            When::Mark(_) => None,
        }
    }

    /// Sets the tolerance: at least a tenth of a second to each side. The packet may be up to one unit of the last
    /// digit later, if the user truncated the time; if it was rounded to decimals, up to half a unit earlier.
    fn around(when: Clock, ns: Ns, text: &str) -> Self {
        let decimals = text.rsplit_once('.').map_or(0, |(_, decimals)| decimals.len().min(9) as u32);
        let unit = 10_i64.pow(9 - decimals);
        let (before, after) = ((unit / 2).max(SECOND / 10), unit.max(SECOND / 10));
        let before = if decimals == 0 { SECOND / 10 } else { before };
        Self { when, from: ns.saturating_sub(before), to: ns.saturating_add(after) }
    }

    /// Whether a time on the run's timeline matches.
    fn fits(&self, t: Ns, context: &RunContext) -> bool {
        match self.when {
            Clock::SinceStart => (self.from..self.to).contains(&t.saturating_sub(context.start_ns)),
            Clock::Utc => (self.from..self.to).contains(&context.utc(t)),
            Clock::OfDay => {
                let of_day = context.utc(t).rem_euclid(DAY);
                [0, DAY, -DAY].iter().any(|days| (self.from..self.to).contains(&(of_day + days)))
            }
        }
    }
}

/// Parses `HH:MM:SS` with any number of decimals.
fn of_day(text: &str) -> Option<Ns> {
    let zero = if text.find(':') == Some(1) { "0" } else { "" };
    let time =
        humantime::parse_rfc3339_weak(&format!("1970-01-01 {zero}{text}")).ok().filter(|_| !text.ends_with('Z'))?;
    time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_nanos().try_into().ok()
}

impl PacketSelector {
    /// Whether a packet matches, apart from its time or rank.
    pub fn may_be(&self, candidate: &Candidate, context: &RunContext) -> bool {
        match self {
            Self::Worst(_) => candidate.late,
            Self::Packet { name, .. } => context.streams.get(usize::from(candidate.stream)).is_some_and(|stream| {
                let key = |of: String| stream.key.read(name.strip_prefix(&of)?.strip_prefix(':')?);
                [stream.short(), stream.to_string()].map(key).contains(&Some(candidate.key))
            }),
        }
    }

    /// Chooses the matching packet.
    ///
    /// # Errors
    /// If no candidate matches, or more than one; the text lists the candidates.
    pub fn choose(&self, candidates: &[Candidate], context: &RunContext) -> Result<Candidate, String> {
        let mut those: Vec<&Candidate> = Vec::new();
        for candidate in candidates {
            // The same packet may be in two captures.
            if !those.iter().any(|c| (c.stream, c.number) == (candidate.stream, candidate.number)) {
                those.push(candidate);
            }
        }
        match self {
            Self::Worst(place) => {
                those.sort_by_key(|c| (std::cmp::Reverse(c.time_ns), c.t));
                // Keeps the worst packet of each spike, as in the list of `latpath explain`.
                let mut spikes = std::collections::HashSet::new();
                those.retain(|c| spikes.insert(c.capture));
                let chosen = those.get(place - 1).map(|c| (*c).clone());
                chosen.ok_or_else(|| format!("there are {} spikes with late packets", those.len()))
            }
            Self::Packet { name, at } => {
                those.sort_by_key(|c| c.t);
                let fits = |c: &&&Candidate| at.is_none_or(|at| at.fits(c.t, context));
                let fitting: Vec<&Candidate> = those.iter().filter(fits).copied().collect();
                match (fitting.as_slice(), those.is_empty()) {
                    ([one], _) => Ok((*one).clone()),
                    (_, true) => Err(format!(
                        "{name}: no such packet in the run's spikes (streams: {}); latpath explain RUN lists the late ones",
                        context.streams.iter().map(|s| s.short()).collect::<Vec<_>>().join(", ")
                    )),
                    ([], _) => Err(format!("{name} was not seen then, but: {}", listed(&those, context))),
                    (several, _) => Err(format!("{name}: which? {}", listed(several, context))),
                }
            }
        }
    }
}

fn listed(those: &[&Candidate], context: &RunContext) -> String {
    let mut text = String::new();
    let day = |c: &Candidate| context.utc(c.t).div_euclid(DAY);
    let same_day = those.windows(2).all(|pair| day(pair[0]) == day(pair[1]));
    for (at, one) in those.iter().take(LISTED).enumerate() {
        let late = if one.late { "late" } else { "on time" };
        let name = match same_day {
            true => name(one.stream, one.key, one.t, context),
            false => format!("{}@{}", packet(one.stream, one.key, context), date(context.utc(one.t))),
        };
        // Writing to a string cannot fail.
        let _ = write!(text, "{}{name} ({late})", if at > 0 { ", " } else { "" });
    }
    if those.len() > LISTED {
        let _ = write!(text, " and {} more", those.len() - LISTED);
    }
    text
}

/// The name of a packet without its time: `MU01:1234`, with the key as the stream's key rule writes it.
pub fn packet(stream: StreamId, key: u32, context: &RunContext) -> String {
    let key = context.streams.get(usize::from(stream)).map_or_else(|| key.to_string(), |spec| spec.key.text(key));
    format!("{}:{key}", context.stream(stream))
}

/// The name of a packet in the form that a selector accepts: `MU01:1234@03:04:05.593750`.
pub fn name(stream: StreamId, key: u32, t: Ns, context: &RunContext) -> String {
    let time = date(context.utc(t).rem_euclid(DAY));
    format!("{}@{}", packet(stream, key, context), &time["1970-01-01T".len()..time.len() - 1])
}

/// A time in UTC: `2026-01-02T03:04:05.593750Z`.
pub fn date(utc: Ns) -> String {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(utc.unsigned_abs())).filter(|_| utc >= 0);
    time.map_or_else(|| format!("{utc} ns"), |time| humantime::format_rfc3339_micros(time).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_clock::TimeOfDay;

    /// A context whose run began at 03:04:05 UTC, when its clock read 5 s.
    fn context() -> RunContext {
        RunContext {
            streams: ["svid:MU01", "svid:a:1@b,vlan=7", "goose:IED1"].map(|s| s.parse().unwrap()).into(),
            start_ns: 5 * SECOND,
            time_of_day: TimeOfDay::new(5 * SECOND, 1_767_323_045 * SECOND, &[]),
            ..RunContext::default()
        }
    }

    fn at(seconds: Ns, number: u64) -> Candidate {
        let t = 5 * SECOND + seconds * SECOND + 593_750_000;
        Candidate {
            capture: number as u32,
            stream: 0,
            key: 2375,
            number,
            t,
            time_ns: 14_000_000 - number as Ns,
            late: number.is_multiple_of(2),
        }
    }

    fn chosen(text: &str, candidates: &[Candidate]) -> Result<u64, String> {
        let selector: PacketSelector = text.parse().map_err(|e: BadPacket| e.to_string())?;
        let may: Vec<_> = candidates.iter().filter(|c| selector.may_be(c, &context())).cloned().collect();
        selector.choose(&may, &context()).map(|c| c.number)
    }

    #[test]
    fn a_time_tells_which_of_many_with_the_same_count_is_meant() {
        let candidates = [at(0, 0), at(1, 4000), at(2, 8000), at(86_400, 9)];
        for (text, number) in [
            ("MU01:2375@03:04:06.593750", 4000),
            ("MU01:2375@03:04:06.6", 4000),
            ("MU01:2375@03:04:06", 4000),
            ("svid:MU01:2375@03:04:07.593", 8000),
            ("MU01:0x947@1.59", 4000),
            ("MU01:2375@1.6s", 4000),
            ("MU01:2375@2026-01-02T03:04:05Z", 0),
            ("MU01:2375@24h", 9),
            ("worst", 0),
            ("2", 4000),
        ] {
            assert_eq!(chosen(text, &candidates), Ok(number), "{text}");
        }
        assert_eq!(chosen("MU01:2375", &candidates[1..2]), Ok(4000), "the only one needs no time");
        let same_stall = Candidate { capture: 0, ..at(0, 2) };
        let with_another = [same_stall, at(0, 0), at(1, 4000)];
        assert_eq!(chosen("2", &with_another), Ok(4000), "one of each spike");
    }

    #[test]
    fn what_is_not_clear_is_refused_with_what_there_is() {
        let candidates = [at(0, 0), at(1, 4000), at(86_400, 9)];
        for (text, why) in [
            (
                "MU01:2375",
                "MU01:2375: which? MU01:2375@2026-01-02T03:04:05.593750Z (late), MU01:2375@2026-01-02T03:04:06.593750Z (late), \
                 MU01:2375@2026-01-03T03:04:05.593750Z (on time)",
            ),
            (
                "MU01:2375@03:04:05.593",
                "MU01:2375: which? MU01:2375@2026-01-02T03:04:05.593750Z (late), MU01:2375@2026-01-03T03:04:05.593750Z (on time)",
            ),
            (
                "MU01:2375@04:04:05",
                "MU01:2375 was not seen then, but: MU01:2375@2026-01-02T03:04:05.593750Z (late), \
                 MU01:2375@2026-01-02T03:04:06.593750Z (late), MU01:2375@2026-01-03T03:04:05.593750Z (on time)",
            ),
            (
                "MU01:77@1s",
                "MU01:77: no such packet in the run's spikes (streams: MU01, a:1@b, IED1); latpath explain RUN lists the late ones",
            ),
            ("4", "there are 2 spikes with late packets"),
        ] {
            assert_eq!(chosen(text, &candidates), Err(why.to_owned()), "{text}");
        }
        let today = chosen("MU01:2375", &candidates[..2]).unwrap_err();
        assert_eq!(today, "MU01:2375: which? MU01:2375@03:04:05.593750 (late), MU01:2375@03:04:06.593750 (late)");
    }

    #[test]
    fn a_key_is_read_and_shown_as_its_stream_writes_it() {
        let candidates = [Candidate { stream: 2, key: 7 << 16 | 12, ..at(0, 3) }, Candidate { stream: 2, ..at(0, 5) }];
        assert_eq!(chosen("IED1:7:12", &candidates), Ok(3));
        assert_eq!(chosen("goose:IED1:0x7000c@0.6s", &candidates), Ok(3));
        assert_eq!(name(2, 7 << 16 | 12, 5 * SECOND, &context()), "IED1:7:12@03:04:05.000000");
    }

    #[test]
    fn an_svid_may_look_like_anything() {
        let packet = |text: &str| text.parse::<PacketSelector>();
        assert_eq!(packet("a:1@b:7"), Err(BadPacket("a:1@b:7".into())), "b:7 is no time");
        assert_eq!(
            packet("a:1@b:7@1s").unwrap(),
            PacketSelector::Packet { name: "a:1@b:7".into(), at: At::parse("1s") }
        );
        for bad in [
            "",
            "MU01",
            "MU01:",
            ":7",
            "MU01:x",
            "MU01:7@",
            "MU01:7@25:00:00",
            "MU01:7@1:2",
            "0",
            "MU01:7@-1s",
            "MU01:7@1.2.3",
        ] {
            assert!(packet(bad).is_err(), "{bad}");
        }
    }
}
