//! Sends a capture, once or repeatedly; smpCnt continues from one round to the next.

use crate::{CaptureError, CaptureFile, Frames, InterfaceChoice, Packet, Selection};
use latpath_model::{KeyRule, Ns};
use latpath_protocols::sequence::Tracker;
use latpath_protocols::sv::{Frame, SAMPLE_RATES};
use latpath_protocols::UnreadFrames;
use latpath_wire::{Deadlines, Pace};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Maximum length to which a truncated frame is padded, bytes; no device sends longer frames.
const LONGEST_FRAME: usize = 1 << 16;
/// Maximum total size of the frames, bytes.
const MAX_BYTES: usize = 1 << 30;

/// Why a capture cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The capture cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The capture has no Sampled Values.
    #[error("{}: no Sampled Values in {packets} packets", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// Its number of packets.
        packets: u64,
    },
    /// Several interfaces of the capture have packets, and none was chosen.
    #[error("{}: its packets are of several interfaces ({interfaces}), and each frame may be there several times: name the one to send \
             from: --pcap FILE,interface=NAME, or interface=* for all", path.display())]
    Interfaces {
        /// The file.
        path: PathBuf,
        /// Its interfaces.
        interfaces: String,
    },
    /// The capture exceeds the maximum size.
    #[error("{}: more than 1 GiB of Sampled Values; cut it first (editcap -c)", .0.display())]
    TooLarge(PathBuf),
}

/// A frame of the capture.
struct Recorded {
    /// Due time after the first frame, ns.
    due: Ns,
    bytes: std::ops::Range<usize>,
    /// Indices of its counters in `Replay::counters`.
    counters: std::ops::Range<usize>,
}

/// Offset of a smpCnt in its frame, and index of its stream.
struct Counter {
    at: usize,
    stream: usize,
}

struct Stream {
    tracker: Tracker,
    frames: u64,
    first_count: u16,
    last_count: u16,
    highest: u16,
    lowest: u16,
    /// smpCnt after the wrap: 1 if the sender counts from 1, otherwise 0.
    base: u32,
    samples: u64,
    first: Ns,
    last: Ns,
    wrap: u32,
    /// Increment of smpCnt per round.
    advance: u32,
}

/// The frames of a capture.
#[derive(Default)]
pub struct Replay {
    bytes: Vec<u8>,
    frames: Vec<Recorded>,
    counters: Vec<Counter>,
    streams: Vec<Stream>,
    /// Time from the first frame of a round to the first frame of the next, ns.
    period: Ns,
    /// Mean time between two frames of the busiest stream, ns.
    interval: Ns,
    pace: Option<Option<Pace>>,
    rounds: bool,
    round: u64,
    next: usize,
    sent: u64,
    /// Packets of other protocols or interfaces, which are not sent.
    pub skipped: u64,
    /// Frames of Sampled Values that cannot be parsed, and are sent unchanged.
    pub unread: UnreadFrames,
    /// Frames that the capture truncated; they are padded with zeros to their full length.
    pub cut: u64,
}

impl Replay {
    /// Reads a capture; if several interfaces have packets, only those of the chosen one, or of all if all are chosen.
    /// `pace`: `None` for the capture's own, `Some(None)` for as fast as possible, `Some(Some(_))` for a rate of all
    /// frames together. `rounds`: whether to repeat forever. `wrap`: the wrap of smpCnt; if `None`, it is determined
    /// from the capture.
    ///
    /// # Errors
    /// The capture cannot be read, has no Sampled Values, is too large, or has packets of several interfaces without a
    /// choice.
    pub fn open(
        (path, interface): (&Path, Option<InterfaceChoice>),
        pace: Option<Option<Pace>>,
        rounds: bool,
        wrap: Option<u32>,
    ) -> Result<Self, ReplayError> {
        let mut replay = Self { pace, rounds, ..Self::default() };
        let mut capture = CaptureFile::open(path)?;
        let mut by_name = HashMap::new();
        let mut start = None;
        let mut selection = Selection::new(interface, Vec::new());
        while let Some(packet) = capture.next_packet()? {
            let takes = selection.takes(capture.interfaces(), packet.interface).map_err(|_| {
                let interfaces = capture.interface_names();
                ReplayError::Interfaces { path: path.into(), interfaces }
            })?;
            if !takes {
                replay.skipped += 1;
                continue;
            }
            let due = packet.t.saturating_sub(*start.get_or_insert(packet.t));
            // Times in a capture may go back: a frame that is out of order is due together with the previous one.
            let due = due.max(replay.frames.last().map_or(0, |f| f.due));
            replay.take(due, &packet, wrap, &mut by_name);
            if replay.bytes.len() > MAX_BYTES {
                return Err(ReplayError::TooLarge(path.into()));
            }
        }
        if replay.frames.is_empty() {
            return Err(ReplayError::Empty { path: path.into(), packets: replay.skipped });
        }
        replay.settle(wrap);
        Ok(replay)
    }

    fn take(&mut self, due: Ns, packet: &Packet, wrap: Option<u32>, by_name: &mut HashMap<Vec<u8>, usize>) {
        let bytes = packet.bytes.as_slice();
        let first = self.counters.len();
        match Frame::parse_captured(bytes, packet.len) {
            Ok(frame) => {
                for asdu in frame.asdus() {
                    // The bytes before the length (addresses, tags, ethertype and APPID) and the svID identify the
                    // stream.
                    let header = 12 + 4 * frame.tags().len() + 4;
                    let name = [&bytes[..header], asdu.svid].concat();
                    let streams = &mut self.streams;
                    let i = *by_name.entry(name).or_insert_with(|| {
                        streams.push(Stream {
                            tracker: Tracker::new(KeyRule::SMP_CNT).expect("smpCnt counts").with_wrap(wrap),
                            frames: 0,
                            first_count: asdu.smp_cnt,
                            last_count: 0,
                            highest: 0,
                            lowest: u16::MAX,
                            base: 0,
                            samples: 0,
                            first: due,
                            last: due,
                            wrap: 0,
                            advance: 0,
                        });
                        streams.len() - 1
                    });
                    let stream = &mut streams[i];
                    stream.tracker.note(due, asdu.smp_cnt.into(), 1);
                    stream.frames += u64::from(stream.samples == 0 || stream.last != due);
                    stream.samples += 1;
                    stream.last_count = asdu.smp_cnt;
                    stream.highest = stream.highest.max(asdu.smp_cnt);
                    stream.lowest = stream.lowest.min(asdu.smp_cnt);
                    stream.last = due;
                    self.counters.push(Counter { at: asdu.smp_cnt_at, stream: i });
                }
            }
            Err(e) if e.is_malformed() => self.unread.count(e),
            Err(_) => {
                self.skipped += 1;
                return;
            }
        }
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        if packet.len > bytes.len() {
            self.cut += 1;
            self.bytes.resize(at + packet.len.min(LONGEST_FRAME).max(bytes.len()), 0);
        }
        self.frames.push(Recorded { due, bytes: at..self.bytes.len(), counters: first..self.counters.len() });
    }

    /// Computes the values that depend on the whole capture.
    fn settle(&mut self, wrap: Option<u32>) {
        let last = self.frames.last().map_or(0, |f| f.due);
        let busiest = self.streams.iter().filter(|s| s.frames > 1 && s.last > s.first).max_by_key(|s| s.frames);
        self.interval = match (busiest, self.frames.len()) {
            (Some(s), _) => (s.last - s.first) / (s.frames as i64 - 1),
            (None, n) if n > 1 && last > 0 => last / (n as i64 - 1),
            _ => 250_000,
        }
        .max(1);
        self.period = match busiest {
            // One division over all frames, so that rounding errors do not accumulate.
            Some(s) => last.max((i128::from(s.last - s.first) * i128::from(s.frames) / i128::from(s.frames - 1)) as Ns),
            None => last + self.interval,
        };
        for s in &mut self.streams {
            let t = s.last - s.first;
            // If the file is too short to show the wrap, the closest common sample rate is used.
            let nearest = || {
                let hz = (s.samples > 1 && t > 0).then(|| (s.samples - 1) as f64 * 1e9 / t as f64)?;
                SAMPLE_RATES.into_iter().find(|r| (hz / f64::from(*r) - 1.0).abs() < 0.02)
            };
            // The smpCnt of a sender that counts from 1 reaches the wrap itself.
            let fits = |w: &u32| u32::from(s.highest) < *w || u32::from(s.highest) == *w && s.lowest > 0;
            s.wrap = wrap.or(s.tracker.wrap().map(|w| w as u32)).or_else(nearest).filter(fits).unwrap_or(65536);
            s.base = u32::from(u32::from(s.highest) == s.wrap);
            s.advance = (u32::from(s.last_count) + 1 + s.wrap - u32::from(s.first_count)) % s.wrap;
        }
    }

    /// The longest time between two frames of the file, ns, and the number, from 1, of the frame after it.
    pub fn longest_pause(&self) -> Option<(usize, Ns)> {
        let pause = |(i, pair): (usize, &[Recorded])| (i + 2, pair[1].due - pair[0].due);
        self.frames.windows(2).enumerate().map(pause).max_by_key(|(_, pause)| *pause)
    }

    /// Number of frames in one round.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Always false: a capture without frames is rejected.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Number of streams.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }
}

impl Frames for Replay {
    fn next(&mut self, out: &mut Vec<u8>) -> Option<Ns> {
        if self.next == self.frames.len() {
            if !self.rounds {
                return None;
            }
            self.next = 0;
            self.round += 1;
        }
        let frame = &self.frames[self.next];
        out.clear();
        out.extend_from_slice(&self.bytes[frame.bytes.clone()]);
        if self.round > 0 {
            for c in &self.counters[frame.counters.clone()] {
                let stream = &self.streams[c.stream];
                let count = u64::from(u16::from_be_bytes([out[c.at], out[c.at + 1]]));
                let (wrap, base) = (u64::from(stream.wrap), u64::from(stream.base));
                let count = (count + wrap - base + self.round % wrap * u64::from(stream.advance)) % wrap + base;
                out[c.at..c.at + 2].copy_from_slice(&(count as u16).to_be_bytes());
            }
        }
        let due = match self.pace {
            None => (self.round as i64).saturating_mul(self.period).saturating_add(frame.due),
            Some(None) => 0,
            Some(Some(pace)) => pace.due(self.sent),
        };
        self.next += 1;
        self.sent += 1;
        Some(due)
    }

    fn deadlines(&self) -> Option<Deadlines> {
        let per_s = self.frames.len() as f64 * 1e9 / self.period as f64;
        match self.pace {
            None => Some(Deadlines { interval: self.interval, per_s }),
            Some(pace) => pace.map(Pace::deadlines),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_protocols::sv::{AsduSpec, FrameSpec};

    fn count(frame: &[u8]) -> u16 {
        Frame::parse(frame).unwrap().asdus().next().unwrap().smp_cnt
    }

    /// A replay of frames 250 µs apart, of each of which the capture kept only this many bytes.
    fn replay(counts: impl Iterator<Item = u16>, kept: usize) -> Replay {
        let (mut replay, mut by_name) = (Replay { rounds: true, ..Replay::default() }, HashMap::new());
        for (n, smp_cnt) in counts.enumerate() {
            let asdu = AsduSpec { svid: b"MU01".to_vec(), smp_cnt, data: vec![7; 64], ..AsduSpec::default() };
            let bytes = FrameSpec { asdus: vec![asdu], ..FrameSpec::default() }.build().unwrap();
            let (t, len) = (n as Ns * 250_000, bytes.len());
            let packet = Packet { t, len, bytes: bytes[..kept.min(len)].to_vec(), interface: 0 };
            replay.take(t, &packet, None, &mut by_name);
        }
        replay.settle(None);
        replay
    }

    #[test]
    fn a_second_round_continues_the_numbers_of_the_first_also_from_1() {
        for first in [0, 1] {
            let mut replay = replay((0..6000u32).map(|n| (n % 4000) as u16 + first), 1500);
            let mut out = Vec::new();
            for n in 0..20_000u32 {
                replay.next(&mut out).unwrap();
                assert_eq!(u32::from(count(&out)), n % 4000 + u32::from(first), "{n}");
            }
        }
    }

    #[test]
    fn frames_that_a_capture_cut_are_sent_in_full() {
        let mut replay = replay(0..4, 64);
        assert_eq!((replay.cut, replay.unread.total()), (4, 0));
        let mut out = Vec::new();
        for n in 0..8 {
            replay.next(&mut out).unwrap();
            let asdu = Frame::parse(&out).unwrap().asdus().next().unwrap();
            assert_eq!((asdu.smp_cnt, asdu.data.map(<[u8]>::len)), (n, Some(64)));
        }
    }
}
