//! Sends a capture again, once or for ever, with smpCnt going on where the capture starts over.

use crate::{CaptureError, CaptureFile, Deadlines, Frames, Pace};
use latpath_model::{KeyRule, Ns};
use latpath_protocols::sequence::Tracker;
use latpath_protocols::sv::{Frame, SAMPLE_RATES};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Most bytes of frames that are held.
const MOST_BYTES: usize = 1 << 30;

/// Why a capture cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// Nothing to send is in it.
    #[error("{}: no Sampled Values in {packets} packets", path.display())]
    Empty { path: PathBuf, packets: u64 },
    /// It does not fit.
    #[error("{}: more than 1 GiB of Sampled Values; cut it first (editcap -c)", .0.display())]
    TooLarge(PathBuf),
}

/// One frame of the capture.
struct Recorded {
    /// After the first frame.
    due: Ns,
    bytes: std::ops::Range<usize>,
    /// Its part of `Replay::counters`.
    counters: std::ops::Range<usize>,
}

/// Where a smpCnt stands in its frame, and whose it is.
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
    samples: u64,
    first: Ns,
    last: Ns,
    wrap: u32,
    /// What one round adds to smpCnt.
    advance: u32,
}

/// The frames of a capture.
#[derive(Default)]
pub struct Replay {
    bytes: Vec<u8>,
    frames: Vec<Recorded>,
    counters: Vec<Counter>,
    streams: Vec<Stream>,
    /// From the first frame of one round to the first of the next.
    period: Ns,
    /// Time between two frames of the busiest stream.
    interval: Ns,
    pace: Option<Option<Pace>>,
    rounds: bool,
    round: u64,
    next: usize,
    sent: u64,
    /// Packets of other protocols, which are not sent.
    pub skipped: u64,
    /// Frames of Sampled Values that cannot be read; they are sent as they are.
    pub malformed: u64,
}

impl Replay {
    /// Reads a capture. `pace`: `None` for its own, `Some(None)` for as fast as possible, `Some(Some(_))` for a rate of all
    /// frames together. `rounds`: for ever. `wrap`: where smpCnt wraps, found out if not given.
    pub fn open(path: &Path, pace: Option<Option<Pace>>, rounds: bool, wrap: Option<u32>) -> Result<Self, ReplayError> {
        let mut replay = Self { pace, rounds, ..Self::default() };
        let mut capture = CaptureFile::open(path)?;
        let mut by_name = HashMap::new();
        let mut start = None;
        while let Some(packet) = capture.next_packet()? {
            let due = packet.t.saturating_sub(*start.get_or_insert(packet.t));
            // A capture may have stepped back in time: what is out of place goes with the frame before.
            let due = due.max(replay.frames.last().map_or(0, |f| f.due));
            replay.take(due, &packet.bytes, wrap, &mut by_name);
            if replay.bytes.len() > MOST_BYTES {
                return Err(ReplayError::TooLarge(path.into()));
            }
        }
        if replay.frames.is_empty() {
            return Err(ReplayError::Empty { path: path.into(), packets: replay.skipped });
        }
        replay.settle(wrap);
        Ok(replay)
    }

    fn take(&mut self, due: Ns, bytes: &[u8], wrap: Option<u32>, by_name: &mut HashMap<Vec<u8>, usize>) {
        let first = self.counters.len();
        match Frame::parse(bytes) {
            Ok(frame) => {
                for asdu in frame.asdus() {
                    // Addresses, tags and APPID lie before the length; with the svID they name the stream.
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
                    stream.last = due;
                    self.counters.push(Counter { at: asdu.smp_cnt_at, stream: i });
                }
            }
            Err(e) if e.is_malformed() => self.malformed += 1,
            Err(_) => {
                self.skipped += 1;
                return;
            }
        }
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.frames.push(Recorded { due, bytes: at..self.bytes.len(), counters: first..self.counters.len() });
    }

    /// What follows from the whole capture.
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
            // In one division, so that rounding does not add up over rounds of thousands of frames.
            Some(s) => last.max((i128::from(s.last - s.first) * i128::from(s.frames) / i128::from(s.frames - 1)) as Ns),
            None => last + self.interval,
        };
        for s in &mut self.streams {
            let t = s.last - s.first;
            // A file too short to show the wrap counts as one of the nearest sample rate in use.
            let nearest = || {
                let hz = (s.samples > 1 && t > 0).then(|| (s.samples - 1) as f64 * 1e9 / t as f64)?;
                SAMPLE_RATES.into_iter().find(|r| (hz / f64::from(*r) - 1.0).abs() < 0.02)
            };
            let found =
                wrap.or(s.tracker.wrap().map(|w| w as u32)).or_else(nearest).filter(|w| u32::from(s.highest) < *w);
            s.wrap = found.unwrap_or(65536);
            s.advance = (u32::from(s.last_count) + 1 + s.wrap - u32::from(s.first_count)) % s.wrap;
        }
    }

    /// The longest time between two frames of the file, and the number of the frame that ends it, from 1.
    pub fn longest_pause(&self) -> Option<(usize, Ns)> {
        let pause = |(i, pair): (usize, &[Recorded])| (i + 2, pair[1].due - pair[0].due);
        self.frames.windows(2).enumerate().map(pause).max_by_key(|(_, pause)| *pause)
    }

    /// Frames in one round.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Always false: a capture without frames is refused.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

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
                let wrap = u64::from(stream.wrap);
                let count = (count + self.round % wrap * u64::from(stream.advance)) % wrap;
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
