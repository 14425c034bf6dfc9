//! The values of a sample: the channels of 9-2LE's data set, and numbered values of any data set with the same layout,
//! which IEC 61869-9 prefers (an INT32 and its quality for each value).

use std::fmt;

/// Length of a value and its quality in a sample, bytes.
const SLOT: usize = 8;
/// Maximum number of values of a sample that can be selected as channels.
const MAX_VALUES: u8 = 128;
/// The channels of 9-2LE (7.1.4) in the order of the data set, with their units and the number of steps per unit.
const NAMED: [(&str, &str, u32); 8] = [
    ("Ia", "A", 1000),
    ("Ib", "A", 1000),
    ("Ic", "A", 1000),
    ("In", "A", 1000),
    ("Ua", "V", 100),
    ("Ub", "V", 100),
    ("Uc", "V", 100),
    ("Un", "V", 100),
];

/// One value of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Channel {
    /// Its index in the sample, from 0.
    index: u8,
    /// Whether it was named as in 9-2LE, so that its unit is known.
    is_named: bool,
}

impl Channel {
    /// The unit of its levels, and the number of steps per unit: A in steps of 1 mA, V in steps of 10 mV; no unit and a
    /// step of 1 for a numbered channel.
    pub fn unit(self) -> (&'static str, u32) {
        match NAMED.get(usize::from(self.index)).filter(|_| self.is_named) {
            Some((_, unit, steps)) => (unit, *steps),
            None => ("", 1),
        }
    }

    /// Returns its value in a sample, in steps; `None` if the sample is too short.
    pub fn value(self, sample: &[u8]) -> Option<i32> {
        let at = usize::from(self.index) * SLOT;
        sample.get(at..at + SLOT)?.first_chunk().copied().map(i32::from_be_bytes)
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMED.get(usize::from(self.index)).filter(|_| self.is_named) {
            Some((name, ..)) => f.write_str(name),
            None => write!(f, "#{}", u16::from(self.index) + 1),
        }
    }
}

impl std::str::FromStr for Channel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(index) = NAMED.iter().position(|(name, ..)| *name == text) {
            return Ok(Self { index: index as u8, is_named: true });
        }
        let number = text.strip_prefix('#').and_then(|number| number.parse::<u8>().ok());
        match number.filter(|number| (1..=MAX_VALUES).contains(number)) {
            Some(number) => Ok(Self { index: number - 1, is_named: false }),
            None => Err(format!(
                "{text:?} is no channel: write Ia, Ib, Ic, In, Ua, Ub, Uc, Un, or #1 to #{MAX_VALUES} for the values of \
                 another data set in its order"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sv::{Waveform, PHSMEAS1_LEN};

    fn channel(text: &str) -> Channel {
        text.parse().unwrap()
    }

    #[test]
    fn channels_read_the_values_of_a_merging_unit() {
        let sample = *Waveform::new(4000, 50).sample(20);
        // At the peak of Ua, each of the other voltages is minus half of it, within one step.
        let [ua, ub, uc] = ["Ua", "Ub", "Uc"].map(|name| channel(name).value(&sample).unwrap());
        assert!(ua > 8_900_000 && (ub + ua / 2).abs() <= 1 && (uc + ua / 2).abs() <= 1, "{ua} {ub} {uc}");
        assert_eq!(channel("#5").value(&sample), Some(ua));
        assert_eq!((channel("Ua").unit(), channel("#5").unit()), (("V", 100), ("", 1)));
        assert_eq!(channel("Un").value(&sample[..PHSMEAS1_LEN - 1]), None);
        assert_eq!(channel("#9").value(&sample), None);
    }

    #[test]
    fn a_channel_reads_as_it_is_written() {
        for text in ["Ia", "Un", "#1", "#128"] {
            assert_eq!(channel(text).to_string(), text);
        }
        for text in ["", "ia", "#0", "#129", "9", "#"] {
            assert!(text.parse::<Channel>().unwrap_err().contains("#128"), "{text}");
        }
    }
}
