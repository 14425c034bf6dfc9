//! Which packets of a stream are events: the beginning or the end of a reaction.
//!
//! ```text
//! svid:MU01[Ia] > 1000A        the first sample above this value
//! svid:MU01[|Ia|] > 1.5kA      the first sample whose magnitude is above this value
//! svid:MU01[rise(Ia)] > 500A   the first sample whose magnitude exceeds that of one cycle earlier by this value
//! goose:TRIP                   each new state (stNum)
//! goose:TRIP[1]                each message in which the first value, a BOOLEAN, has become true; with [1] = false: false
//! goose:TRIP[*]                each message
//! udp:10.0.0.2:5000            each packet
//! ```

use crate::protocol::{Contents, Order};
use crate::sv::Channel;
use crate::{ProtocolId, StreamSpec, ValuePath};
use std::fmt;

/// Samples per cycle if the user specifies none: those of 9-2LE's protection profile, at both 50 and 60 Hz.
pub const SAMPLES_PER_CYCLE: u16 = 80;

/// Which packets of a stream are events.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// Each packet.
    EachPacket,
    /// Each new GOOSE state: the first message with another stNum.
    NewState,
    /// Each GOOSE message in which a BOOLEAN has changed to this value.
    Becomes {
        /// Position of the BOOLEAN in the message.
        path: ValuePath,
        /// The value.
        value: bool,
    },
    /// The first sample beyond a level.
    Crosses(Level),
}

/// A threshold for a quantity of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Level {
    /// The channel.
    pub channel: Channel,
    /// The quantity that is compared with the level.
    pub quantity: Quantity,
    /// Whether samples above the level are beyond it, rather than those below it.
    pub is_above: bool,
    /// The level, in the channel's steps.
    pub level: i64,
}

/// Quantity computed from a channel's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantity {
    /// The value with its sign.
    Value,
    /// The value without its sign.
    Magnitude,
    /// Increase of the magnitude since the sample that is this number of samples earlier.
    Rise(u16),
}

impl Level {
    /// Whether a quantity is beyond the level.
    pub fn is_beyond(&self, quantity: i64) -> bool {
        if self.is_above {
            quantity > self.level
        } else {
            quantity < self.level
        }
    }
}

impl Condition {
    /// Whether a packet's key alone shows that it is an event.
    pub fn is_by_key(&self) -> bool {
        matches!(self, Self::EachPacket | Self::NewState)
    }
}

/// Parses a stream with its condition.
///
/// # Errors
/// The stream or its condition is invalid; the error is a sentence for the user.
pub(crate) fn parse(text: &str) -> Result<(StreamSpec, Condition), String> {
    let text = text.trim();
    let stream = |text: &str| text.trim().parse::<StreamSpec>().map_err(|e| e.to_string());
    let prefix = text.split_once(':').map_or("", |(prefix, _)| prefix);
    let protocol = ProtocolId::ALL.iter().find(|protocol| protocol.info().prefix == prefix);
    let contents = protocol.map_or(Contents::Nothing, |protocol| protocol.info().contents);
    let bracket = text.rfind('[').zip(text.rfind(']'));
    let bracket = bracket.filter(|(open, close)| contents != Contents::Nothing && open < close);
    let Some((open, close)) = bracket else {
        let stream = stream(text)?;
        let condition = if has_states(&stream) { Condition::NewState } else { Condition::EachPacket };
        return Ok((stream, condition));
    };
    let (name, inside, behind) = (&text[..open], text[open + 1..close].trim(), text[close + 1..].trim());
    let stream = stream(name)?;
    let condition = match contents {
        Contents::Samples => Condition::Crosses(level(inside, behind)?),
        Contents::Values => of_message(inside, behind)?,
        Contents::Nothing => Condition::EachPacket,
    };
    Ok((stream, condition))
}

/// Whether the packets of a stream repeat states, as GOOSE messages do.
fn has_states(stream: &StreamSpec) -> bool {
    stream.key.order() == Some(Order::States)
}

fn of_message(inside: &str, behind: &str) -> Result<Condition, String> {
    if inside == "*" && behind.is_empty() {
        return Ok(Condition::EachPacket);
    }
    let value = match behind.strip_prefix('=').map(str::trim) {
        None if behind.is_empty() => true,
        Some("true") => true,
        Some("false") => false,
        _ => return Err(format!("{behind:?} after the number of a value: write = true or = false")),
    };
    Ok(Condition::Becomes { path: inside.parse()?, value })
}

fn level(inside: &str, behind: &str) -> Result<Level, String> {
    let (channel, quantity) = quantity(inside)?;
    let is_above = behind.starts_with('>');
    let text = behind.strip_prefix(['>', '<']).map(str::trim);
    let text = text.ok_or_else(|| format!("[{inside}] has no level: write it as [{inside}] > 1000A"))?;
    Ok(Level { channel, quantity, is_above, level: steps(text, channel)? })
}

fn quantity(text: &str) -> Result<(Channel, Quantity), String> {
    if let Some(channel) = text.strip_prefix('|').and_then(|text| text.strip_suffix('|')) {
        return Ok((channel.trim().parse()?, Quantity::Magnitude));
    }
    let Some(inside) = text.strip_prefix("rise(").and_then(|text| text.strip_suffix(')')) else {
        return Ok((text.parse()?, Quantity::Value));
    };
    let (channel, samples) = inside.split_once(',').unwrap_or((inside, ""));
    let samples = match samples.trim() {
        "" => Some(SAMPLES_PER_CYCLE),
        text => text.parse().ok().filter(|samples| (1..=4096).contains(samples)),
    };
    let samples = samples.ok_or_else(|| format!("{text}: a cycle has 1 to 4096 samples, as rise(Ia,96)"))?;
    Ok((channel.trim().parse()?, Quantity::Rise(samples)))
}

/// Parses a level; returns it in the channel's steps.
fn steps(text: &str, channel: Channel) -> Result<i64, String> {
    let (unit, per_unit) = channel.unit();
    let wrong = || match unit {
        "" => format!("{text:?} is no level of {channel}: write a whole number, as in the samples"),
        _ => format!("{text:?} is no level of {channel}: write it as 1000, 1000{unit} or 1.5k{unit}"),
    };
    let number_len = text.find(|c: char| !c.is_ascii_digit() && !"+-.".contains(c)).unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_len);
    let (numerator, denominator) = match suffix.trim() {
        "" => (i64::from(per_unit), 1),
        suffix if unit.is_empty() || !suffix.ends_with(unit) => return Err(wrong()),
        suffix => match &suffix[..suffix.len() - unit.len()] {
            "" => (i64::from(per_unit), 1),
            "k" => (i64::from(per_unit) * 1000, 1),
            "m" => (i64::from(per_unit), 1000),
            _ => return Err(wrong()),
        },
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_number = fraction.bytes().all(|b| b.is_ascii_digit()) && fraction.len() <= 6;
    let digits: i64 = format!("{whole}{fraction}").parse().map_err(|_| wrong())?;
    let scale = denominator * 10_i64.pow(fraction.len().min(6) as u32);
    let scaled = digits.checked_mul(numerator).filter(|_| is_number).ok_or_else(wrong)?;
    match (scaled % scale, scaled / scale) {
        (0, level) if i32::try_from(level).is_ok() => Ok(level),
        (0, _) => Err(format!("{text:?} is beyond what {channel} can have")),
        _ => Err(format!("{text:?} is finer than the steps of {channel}, {per_unit} per {unit}")),
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { channel, quantity, is_above, level } = self;
        match quantity {
            Quantity::Value => write!(f, "[{channel}]")?,
            Quantity::Magnitude => write!(f, "[|{channel}|]")?,
            Quantity::Rise(SAMPLES_PER_CYCLE) => write!(f, "[rise({channel})]")?,
            Quantity::Rise(samples) => write!(f, "[rise({channel},{samples})]")?,
        }
        let (unit, per_unit) = channel.unit();
        let (sign, size, per_unit) = (if *level < 0 { "-" } else { "" }, level.unsigned_abs(), u64::from(per_unit));
        let digits = per_unit.ilog10() as usize;
        let fraction = format!("{:0digits$}", size % per_unit);
        let fraction = if per_unit == 1 { "" } else { fraction.trim_end_matches('0') };
        let point = if fraction.is_empty() { "" } else { "." };
        write!(f, " {} {sign}{}{point}{fraction}{unit}", if *is_above { '>' } else { '<' }, size / per_unit)
    }
}

/// A stream with its condition, as [`parse`] reads it.
pub(crate) struct WithCondition<'a>(pub &'a StreamSpec, pub &'a Condition);

impl fmt::Display for WithCondition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(stream, condition) = self;
        // A name may contain the character that begins a condition, so this character is escaped.
        let mut text = stream.to_string();
        if stream.matcher.protocol().info().contents != Contents::Nothing {
            text = text.replace('[', "\\x5b");
        }
        f.write_str(&text)?;
        match condition {
            Condition::Crosses(level) => write!(f, "{level}"),
            Condition::Becomes { path, value: true } => write!(f, "[{path}]"),
            Condition::Becomes { path, value: false } => write!(f, "[{path}] = false"),
            Condition::EachPacket if has_states(stream) => f.write_str("[*]"),
            Condition::EachPacket | Condition::NewState => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(text: &str) -> String {
        let (stream, condition) = parse(text).unwrap();
        WithCondition(&stream, &condition).to_string()
    }

    #[test]
    fn every_form_reads_back_the_same() {
        for text in [
            "svid:MU01",
            "svid:MU01[Ia] > 1000A",
            "svid:MU01,appid=0x4000,vlan=7[|Un|] < 0.5V",
            "svid:MU01[rise(Ib)] > -0.001A",
            "svid:MU01[rise(Ib,96)] > 500A",
            "svid:MU01[#128] > 2147483647",
            "goose:TRIP",
            "goose:TRIP,vlan=3[*]",
            "goose:TRIP[2.1]",
            "goose:TRIP[1] = false",
            "udp:[fe80::1]:5000,hash=0:32",
        ] {
            assert_eq!(written(text), text);
        }
        assert_eq!(written("svid:MU01[ | Ia | ]>1.5kA"), "svid:MU01[|Ia|] > 1500A");
        assert_eq!(written("svid:MU01[Ua]<20mV"), "svid:MU01[Ua] < 0.02V");
        assert_eq!(written("goose:TRIP[1]=true"), "goose:TRIP[1]");
    }

    #[test]
    fn a_wrong_condition_says_what_to_write() {
        for (text, part) in [
            ("svid:MU01[Ia]", "as [Ia] > 1000A"),
            ("svid:MU01[Ix] > 1", "Ia, Ib, Ic"),
            ("svid:MU01[Ia] > 5V", "1000A or 1.5kA"),
            ("svid:MU01[Ia] > much", "1000A or 1.5kA"),
            ("svid:MU01[Ia] > 1.2.3", "1000A or 1.5kA"),
            ("svid:MU01[Ia] > 0.1mA", "finer than the steps"),
            ("svid:MU01[Ia] > 9000kA", "beyond what Ia can have"),
            ("svid:MU01[#1] > 1A", "a whole number"),
            ("svid:MU01[rise(Ia,0)] > 1A", "1 to 4096"),
            ("goose:TRIP[stVal]", "its number in the data set"),
            ("goose:TRIP[1] = 7", "= true or = false"),
            ("MU01", "not a stream"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn names_with_the_signs_of_conditions_read_back(name in "[a-z\\[\\]>| ,\\-]{1,12}", level in any::<i32>()) {
            let stream = StreamSpec::svid(&name);
            let channel = "Ia".parse().unwrap();
            let condition =
                Condition::Crosses(Level { channel, quantity: Quantity::Value, is_above: true, level: level.into() });
            for condition in [condition, Condition::EachPacket] {
                // Spaces around the text of a stream are not part of its name.
                prop_assume!(!matches!(condition, Condition::EachPacket) || name.trim() == name);
                let text = WithCondition(&stream, &condition).to_string();
                prop_assume!(!name.ends_with(' ') && !name.starts_with(' '));
                prop_assert_eq!(parse(&text), Ok((stream.clone(), condition)), "{}", text);
            }
        }
    }
}
