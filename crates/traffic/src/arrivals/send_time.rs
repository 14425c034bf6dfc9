//! The send time inside a frame.

use crate::talker::SEND_TIME_LEN;
use latpath_model::Ns;
use latpath_protocols::sv::{Frame, PHSMEAS1_LEN};
use std::fmt;
use std::str::FromStr;

/// Where the send time is in a frame, and its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTime {
    /// As written by `latpath publish --cycle`: in ns, big-endian, after the samples of PhsMeas1.
    Publish,
    /// At this offset from the destination MAC, not counting 802.1Q tags.
    At(usize, Format),
}

/// The format of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Nanoseconds in 64 bits, big-endian.
    NsBe64,
    /// Nanoseconds in 64 bits, little-endian.
    NsLe64,
    /// Seconds in 48 bits and nanoseconds in 32 bits, big-endian (Timestamp of IEEE 1588).
    Ptp80,
}

impl Format {
    const ALL: [(&'static str, Self); 3] =
        [("ns-be64", Self::NsBe64), ("ns-le64", Self::NsLe64), ("ptp80", Self::Ptp80)];

    fn read(self, bytes: &[u8]) -> Option<Ns> {
        let word = bytes.first_chunk::<8>();
        match self {
            Self::NsBe64 => word.and_then(|word| Ns::try_from(u64::from_be_bytes(*word)).ok()),
            Self::NsLe64 => word.and_then(|word| Ns::try_from(u64::from_le_bytes(*word)).ok()),
            Self::Ptp80 => {
                let [a, b, c, d, e, f, rest @ ..] = bytes.first_chunk::<10>()?;
                let seconds = Ns::from_be_bytes([0, 0, *a, *b, *c, *d, *e, *f]);
                let ns = Ns::from(u32::from_be_bytes(*rest));
                (ns < 1_000_000_000).then_some(())?;
                seconds.checked_mul(1_000_000_000)?.checked_add(ns)
            }
        }
    }
}

impl SendTime {
    /// Reads the send time of a frame with this many tags; `None` if it cannot be read.
    pub fn read(self, frame: &[u8], tags: usize) -> Option<Ns> {
        match self {
            Self::Publish => {
                let data = Frame::parse(frame).ok()?.asdus().next()?.data?;
                let time = data.get(PHSMEAS1_LEN..).filter(|rest| rest.len() == SEND_TIME_LEN)?;
                Format::NsBe64.read(time)
            }
            Self::At(offset, format) => {
                // Tags come after the two MAC addresses, so they shift only later offsets.
                let tags = if offset >= 12 { 4 * tags } else { 0 };
                format.read(frame.get(offset.checked_add(tags)?..)?)
            }
        }
    }
}

/// Error: the text is not a valid send time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: write OFFSET:FORMAT as 42:ns-be64, with a format among ns-be64, ns-le64, ptp80; or publish, for frames of latpath publish --cycle")]
pub struct BadSendTime(String);

impl FromStr for SendTime {
    type Err = BadSendTime;
    fn from_str(text: &str) -> Result<Self, BadSendTime> {
        /// Maximum offset, bytes: the length of the longest frame that can be received.
        const MAX: usize = 9216;
        if text == "publish" {
            return Ok(Self::Publish);
        }
        let read = || {
            let (offset, name) = text.split_once(':')?;
            let (_, format) = Format::ALL.into_iter().find(|(known, _)| *known == name)?;
            offset.parse().ok().filter(|offset| *offset < MAX).map(|offset| Self::At(offset, format))
        };
        read().ok_or_else(|| BadSendTime(text.into()))
    }
}

impl fmt::Display for SendTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Publish => f.write_str("publish"),
            Self::At(offset, format) => {
                let name = Format::ALL.iter().find(|(_, known)| known == format).map_or("", |(name, _)| name);
                write!(f, "{offset}:{name}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_protocols::sv::{AsduSpec, FrameSpec};
    use latpath_protocols::{protocol::FrameLink, Tag};
    use proptest::prelude::*;

    fn frame(data: Vec<u8>, tags: Vec<Tag>) -> Vec<u8> {
        let asdu = AsduSpec { svid: b"RT".to_vec(), data, ..AsduSpec::default() };
        let link = FrameLink { tags, ..FrameLink::default() };
        FrameSpec { link, asdus: vec![asdu], ..FrameSpec::default() }.build().unwrap()
    }

    #[test]
    fn the_send_time_of_publish_follows_the_samples() {
        let at: Ns = 1_700_000_000_123_456_789;
        let data = [&[7; 64][..], &at.to_be_bytes()].concat();
        for tags in [vec![], vec![Tag::new(5, 6)]] {
            let count = tags.len();
            let frame = frame(data.clone(), tags);
            assert_eq!(SendTime::Publish.read(&frame, count), Some(at));
            let offset = frame.len() - 8 - 4 * count;
            assert_eq!(SendTime::At(offset, Format::NsBe64).read(&frame, count), Some(at), "tags are not counted");
        }
        assert_eq!(SendTime::Publish.read(&frame(vec![0; 64], vec![]), 0), None, "samples alone");
    }

    #[test]
    fn each_format_is_read_and_shown_by_its_name() {
        let ns: Ns = 1_700_000_000_000_000_001;
        let ptp = [&1_700_000_000_u64.to_be_bytes()[2..], &1_u32.to_be_bytes()].concat();
        for (text, bytes) in
            [("0:ns-be64", ns.to_be_bytes().to_vec()), ("0:ns-le64", ns.to_le_bytes().to_vec()), ("0:ptp80", ptp)]
        {
            let place: SendTime = text.parse().unwrap();
            assert_eq!((place.read(&bytes, 0), place.to_string().as_str()), (Some(ns), text));
            assert_eq!(place.read(&bytes[..7], 0), None);
        }
        for text in ["", "publish:", "42", "42:ns", ":ns-be64", "-1:ns-be64", "9216:ptp80"] {
            assert!(text.parse::<SendTime>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_frame_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), offset: usize, tags in 0..3_usize) {
            for place in [SendTime::Publish, SendTime::At(offset, Format::NsBe64), SendTime::At(offset % 200, Format::Ptp80)] {
                if let Some(time) = place.read(&bytes, tags) {
                    prop_assert!(time >= 0);
                }
            }
        }
    }
}
