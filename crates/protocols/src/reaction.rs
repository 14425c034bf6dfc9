//! Reactions: from an incoming packet to the packet that an application sends because of it, and the rules that define
//! which packets belong together.
//!
//! ```text
//! svid:MU01[|Ia|] > 1500A -> goose:TRIP       the trip after a fault
//! goose:PING -> goose:PONG,within=20ms        the next new state after a new state
//! svid:MU01 -> svid:MU02,by=newest            the next cycle's frame after a cycle's frame
//! udp:10.0.0.2:5000 -> udp:10.0.0.1:5001,by=key,late=500us     the answer with the request's key
//! ```

use crate::condition::{parse, Condition, WithCondition};
use crate::{Ns, StreamSpec};
use std::{fmt, str::FromStr};

/// Separator between the two sides of a rule.
pub(crate) const ARROW: &str = " -> ";
/// Default of [`ReactionRule::within`], ns.
pub const WITHIN: Ns = 100_000_000;
/// Maximum of [`ReactionRule::within`], ns.
pub const MAX_WITHIN: Ns = 10_000_000_000;

/// A rule that defines which outgoing packet is the reaction to which incoming packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReactionRule {
    /// The incoming stream.
    pub input: StreamSpec,
    /// Which packets of `input` require a reaction.
    pub cause: Condition,
    /// The stream that the application sends.
    pub output: StreamSpec,
    /// Which packets of `output` are reactions.
    pub effect: Condition,
    /// How packets are paired.
    pub pairing: Pairing,
    /// Time from an incoming packet after which its reaction counts as lost, ns.
    pub within: Ns,
    /// Threshold above which a reaction is late, ns; `None`: late reactions are not captured.
    pub late: Option<Ns>,
}

/// How a packet that the application sends is paired with an incoming one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// With the oldest incoming packet that has no reaction yet.
    #[default]
    Order,
    /// With the newest incoming packet: earlier ones without a reaction get none.
    Newest,
    /// With the incoming packet that has the same key.
    Key,
}

impl Pairing {
    /// All pairings.
    pub const ALL: [Self; 3] = [Self::Order, Self::Newest, Self::Key];

    /// Its name in a rule.
    pub fn name(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Newest => "newest",
            Self::Key => "key",
        }
    }
}

impl FromStr for ReactionRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((input, output)) = text.split_once(ARROW) else {
            return Err(format!("{text:?}: write IN -> OUT, e.g. 'udp:10.0.0.2:5000 -> udp:10.0.0.1:5001'"));
        };
        let (mut output, mut pairing, mut within, mut late) = (output.trim(), Pairing::default(), WITHIN, None);
        while let Some((rest, option)) = output.rsplit_once(',') {
            match option.split_once('=') {
                Some(("by", name)) => {
                    let known = Pairing::ALL.into_iter().find(|pairing| pairing.name() == name);
                    pairing = known.ok_or_else(|| format!("by={name}: packets are paired by order, newest or key"))?;
                }
                Some(("within", time)) => {
                    let time = parse_time(time).filter(|time| *time <= MAX_WITHIN);
                    within = time.ok_or_else(|| format!("{option}: write a time up to 10s, e.g. within=100ms"))?;
                }
                Some(("late", time)) => {
                    late = Some(parse_time(time).ok_or_else(|| format!("{option}: write a time, e.g. late=4ms"))?);
                }
                _ => break,
            }
            output = rest;
        }
        let ((input, cause), (output, effect)) = (parse(input)?, parse(output)?);
        if input == output {
            return Err(format!("{input} is on both sides: a reaction is a packet of another stream"));
        }
        Ok(Self { input, cause, output, effect, pairing, within, late })
    }
}

impl fmt::Display for ReactionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (input, output) = (WithCondition(&self.input, &self.cause), WithCondition(&self.output, &self.effect));
        write!(f, "{input}{ARROW}{output}")?;
        if self.pairing != Pairing::default() {
            write!(f, ",by={}", self.pairing.name())?;
        }
        if self.within != WITHIN {
            write!(f, ",within={}", Time(self.within))?;
        }
        match self.late {
            Some(late) => write!(f, ",late={}", Time(late)),
            None => Ok(()),
        }
    }
}

/// The units of times in a rule, ns.
const UNITS: [(&str, Ns); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// Parses a time above 0, e.g. `4ms`.
fn parse_time(text: &str) -> Option<Ns> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.parse::<Ns>().ok()?.checked_mul(*unit).filter(|time| *time > 0)
}

/// Formats a time so that [`parse_time`] reads it.
struct Time(Ns);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, unit) = UNITS.into_iter().rev().find(|(_, unit)| self.0 % unit == 0).unwrap_or(UNITS[0]);
        write!(f, "{}{name}", self.0 / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Result<ReactionRule, String> {
        text.parse()
    }

    #[test]
    fn every_form_reads_back_the_same() {
        for text in [
            "svid:MU01[|Ia|] > 1500A -> goose:TRIP",
            "svid:MU01,vlan=7[rise(Ia)] > 500A -> goose:TRIP[1],within=20ms,late=4ms",
            "goose:PING -> goose:PONG,vlan=3,by=newest",
            "svid:MU01 -> svid:MU02,by=key,within=1500us",
            "udp:10.0.0.2:5000,seq=0:4 -> udp:10.0.0.1:5001,seq=0:4,by=key",
        ] {
            assert_eq!(rule(text).unwrap().to_string(), text);
        }
        let options = rule("svid:A -> svid:B,late=1s,by=order,within=100ms").unwrap();
        assert_eq!((options.late, options.within, options.pairing), (Some(1_000_000_000), WITHIN, Pairing::Order));
        assert_eq!(options.to_string(), "svid:A -> svid:B,late=1s");
    }

    #[test]
    fn a_wrong_rule_says_what_to_write() {
        for (text, part) in [
            ("svid:MU01", "write IN -> OUT"),
            ("svid:MU01[Ia] > 1000A->goose:TRIP", "write IN -> OUT"),
            ("svid:MU01 -> goose:TRIP,by=luck", "order, newest or key"),
            ("svid:MU01 -> goose:TRIP,within=1", "e.g. within=100ms"),
            ("svid:MU01 -> goose:TRIP,within=11s", "up to 10s"),
            ("svid:MU01 -> goose:TRIP,late=0ms", "e.g. late=4ms"),
            ("svid:MU01 -> goose:TRIP,color=red", "options of goose"),
            ("svid:MU01[Ia] -> goose:TRIP", "has no level"),
            ("goose:TRIP -> goose:TRIP", "on both sides"),
        ] {
            let error = rule(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
