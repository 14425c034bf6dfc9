//! Lists the streams that are there.

use latpath_model::{KeyRule, Ns};
use latpath_protocols::sequence::Tracker;
use latpath_protocols::{sv::Frame, Tag};
use std::collections::BTreeMap;

/// Streams that are told apart; frames of further ones are only counted.
const MOST: usize = 4096;

/// What names a stream on the wire.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    svid: Vec<u8>,
    appid: u16,
    vlan: Option<u16>,
    dst: [u8; 6],
}

/// A stream that was seen.
#[derive(Clone, Debug)]
pub struct FoundStream {
    /// svID.
    pub svid: Vec<u8>,
    /// APPID.
    pub appid: u16,
    /// VLAN; `None` if untagged.
    pub vlan: Option<u16>,
    /// Priority of the tag.
    pub priority: Option<u8>,
    /// Destination MAC.
    pub dst: [u8; 6],
    /// Source MAC of the newest frame.
    pub src: [u8; 6],
    /// Frames.
    pub frames: u64,
    /// ASDUs of the stream in the newest frame.
    pub asdus: u16,
    /// Sequence: losses, wrap.
    pub tracker: Tracker,
    /// Time of the first frame.
    pub first: Ns,
    /// Time of the newest frame.
    pub last: Ns,
}

impl FoundStream {
    /// Frames a second, from the first frame to the newest; `None` below two frames. For display.
    pub fn frames_hz(&self) -> Option<f64> {
        let t = self.last - self.first;
        (self.frames > 1 && t > 0).then(|| (self.frames - 1) as f64 * 1e9 / t as f64)
    }

    /// Samples a second. For display.
    pub fn samples_hz(&self) -> Option<f64> {
        self.frames_hz().map(|hz| hz * f64::from(self.asdus))
    }
}

/// The streams that frames belong to.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    streams: BTreeMap<Name, FoundStream>,
    /// Frames looked at.
    pub frames: u64,
    /// Frames of Sampled Values that could not be read.
    pub malformed: u64,
    /// Frames of other protocols.
    pub not_sv: u64,
    /// Frames of streams beyond the 4096 that are told apart.
    pub beyond: u64,
}

impl Discovery {
    /// Takes a frame that was seen at `t` (any clock), with the tag that the kernel took off, if it did.
    pub fn note(&mut self, t: Ns, bytes: &[u8], stripped: Option<Tag>) {
        self.frames += 1;
        let frame = match Frame::parse(bytes) {
            Ok(frame) => frame,
            Err(e) if e.is_malformed() => {
                self.malformed += 1;
                return;
            }
            Err(_) => {
                self.not_sv += 1;
                return;
            }
        };
        let tag = stripped.or(frame.tags().first().copied());
        let mut seen: Vec<&[u8]> = Vec::new();
        for asdu in frame.asdus() {
            if seen.contains(&asdu.svid) {
                continue;
            }
            seen.push(asdu.svid);
            let samples = frame.asdus().filter(|a| a.svid == asdu.svid).count().min(usize::from(u16::MAX)) as u16;
            let name = Name {
                svid: asdu.svid.to_vec(),
                appid: frame.link.appid,
                vlan: tag.map(Tag::vlan),
                dst: frame.header.dst,
            };
            if self.streams.len() >= MOST && !self.streams.contains_key(&name) {
                self.beyond += 1;
                continue;
            }
            let stream = self.streams.entry(name).or_insert_with_key(|name| FoundStream {
                svid: name.svid.clone(),
                appid: name.appid,
                vlan: name.vlan,
                priority: None,
                dst: name.dst,
                src: frame.header.src,
                frames: 0,
                asdus: 0,
                tracker: Tracker::new(KeyRule::SMP_CNT).expect("smpCnt counts"),
                first: t,
                last: t,
            });
            stream.priority = tag.map(Tag::priority);
            stream.src = frame.header.src;
            stream.frames += 1;
            stream.asdus = samples;
            stream.last = t;
            stream.tracker.note(t, asdu.smp_cnt.into(), samples);
        }
    }

    /// The streams, by svID, APPID, VLAN and destination.
    pub fn streams(&self) -> impl Iterator<Item = &FoundStream> {
        self.streams.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_protocols::sv::{AsduSpec, FrameSpec};

    #[test]
    fn rate_samples_and_wrap_of_a_stream_with_six_asdus_are_found() {
        let mut found = Discovery::default();
        for n in 0..2401u32 {
            let asdus = (0..6).map(|k| AsduSpec {
                svid: b"MU".to_vec(),
                smp_cnt: ((n * 6 + k) % 14400) as u16,
                ..AsduSpec::default()
            });
            let spec = FrameSpec { asdus: asdus.collect(), tags: vec![Tag::new(7, 4)], ..FrameSpec::default() };
            found.note(i64::from(n) * 1_000_000_000 / 2400, &spec.build().unwrap(), None);
        }
        found.note(0, &[0xff; 30], None);
        let stream = found.streams().next().unwrap();
        assert_eq!((stream.vlan, stream.priority, stream.asdus), (Some(7), Some(4), 6));
        assert_eq!(stream.frames_hz().map(f64::round), Some(2400.0));
        assert_eq!(stream.samples_hz().map(f64::round), Some(14400.0));
        assert_eq!(stream.tracker.wrap(), Some(14400));
        assert_eq!((found.frames, found.malformed, found.not_sv), (2402, 0, 1));
    }
}
