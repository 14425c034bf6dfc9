//! A guest's profile: slices of its samples, packed and sent in parts, after all other messages. The guest runs the
//! sampler in a separate thread; the host checks everything.

use crate::message::{Chunk, Message};
use crate::work::{Inbound, Outbound, Worker};
use latpath_model::Ns;
use latpath_profile::{
    FrameId, Mode, Recorder, Samples, Seen, Slice, Stack, Thread, Unnamed, MAX_FRAMES, MAX_NAMES, MAX_STACKS,
    MAX_THREADS, MAX_UNNAMED,
};
use prost::encoding::{decode_key, decode_varint, skip_field, DecodeContext, WireType};
use prost::Message as _;
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Maximum length of a packed slice, bytes.
const MAX_PACKED: usize = 4 << 20;
/// Maximum number of samples and threads of a slice.
const MAX_ROWS: usize = 1 << 18;
/// Interval between reads of the ring.
const EVERY: Duration = Duration::from_millis(50);

/// Source of slices.
pub trait Sampler {
    /// Drains the samples; returns a slice from time to time.
    fn step(&mut self) -> Option<Slice>;
    /// Ends sampling and returns the last slice; without delay if `stop` is set.
    fn end(&mut self, stop: &AtomicBool) -> Slice;
}

impl Sampler for Recorder {
    fn step(&mut self) -> Option<Slice> {
        Recorder::step(self)
    }

    fn end(&mut self, stop: &AtomicBool) -> Slice {
        Recorder::end(self, stop)
    }
}

/// Constructor of a sampler, to be called in its thread.
pub type MakeSampler = Box<dyn FnOnce() -> Result<Box<dyn Sampler>, String> + Send>;

/// A slice as sent.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Packed {
    #[prost(sint64, tag = "1")]
    from: i64,
    #[prost(sint64, tag = "2")]
    until: i64,
    #[prost(string, repeated, tag = "3")]
    names: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    threads: Vec<Thread>,
    #[prost(message, repeated, tag = "5")]
    stacks: Vec<PackedStack>,
    /// First of the columns of samples: time since the previous sample, ns.
    #[prost(sint64, repeated, tag = "6")]
    later: Vec<i64>,
    #[prost(uint32, repeated, tag = "7")]
    cpu: Vec<u32>,
    #[prost(uint32, repeated, tag = "8")]
    thread: Vec<u32>,
    #[prost(uint32, repeated, tag = "9")]
    stack: Vec<u32>,
    /// First of the columns of threads' running times: index of the thread.
    #[prost(uint32, repeated, tag = "10")]
    ran: Vec<u32>,
    #[prost(sint64, repeated, tag = "11")]
    ran_for: Vec<i64>,
    #[prost(uint64, tag = "12")]
    lost: u64,
    #[prost(sint64, tag = "13")]
    unattributed: i64,
    #[prost(message, repeated, tag = "14")]
    unnamed: Vec<Unnamed>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PackedStack {
    #[prost(uint32, tag = "1")]
    mode: u32,
    #[prost(uint32, repeated, tag = "2")]
    frames: Vec<u32>,
}

impl From<Slice> for Packed {
    fn from(slice: Slice) -> Self {
        let stack = |stack: Stack| {
            let mode = Mode::ALL.iter().position(|mode| *mode == stack.mode).unwrap_or(0) as u32;
            PackedStack { mode, frames: stack.frames.iter().map(|frame| frame.raw()).collect() }
        };
        let mut before = slice.from;
        let later = slice.seen.iter().map(|seen| seen.t.wrapping_sub(std::mem::replace(&mut before, seen.t))).collect();
        Self {
            from: slice.from,
            until: slice.until,
            names: slice.names,
            threads: slice.threads,
            stacks: slice.stacks.into_iter().map(stack).collect(),
            later,
            cpu: slice.seen.iter().map(|seen| seen.cpu).collect(),
            thread: slice.seen.iter().map(|seen| seen.thread).collect(),
            stack: slice.seen.iter().map(|seen| seen.stack).collect(),
            ran: slice.times.iter().map(|(thread, _)| *thread).collect(),
            ran_for: slice.times.iter().map(|(_, ns)| *ns).collect(),
            lost: slice.lost,
            unattributed: slice.unattributed,
            unnamed: slice.unnamed,
        }
    }
}

/// Checks how much memory decoding a packed slice would need, before allocating any: a thread without names takes two
/// bytes on the wire, but a hundred in memory.
fn check(mut bytes: &[u8]) -> Result<(), String> {
    /// Limit of each field, by tag: total number of entries; for call chains (5), their total bytes.
    const MAX: [(u32, usize); 11] = [
        (3, MAX_NAMES),
        (4, MAX_THREADS),
        (5, MAX_FRAMES),
        (6, MAX_ROWS),
        (7, MAX_ROWS),
        (8, MAX_ROWS),
        (9, MAX_ROWS),
        (10, MAX_ROWS),
        (11, MAX_ROWS),
        (14, MAX_UNNAMED),
        (CHAINS, MAX_STACKS),
    ];
    /// Pseudo tag under which call chains are counted.
    const CHAINS: u32 = 0;
    let mut counts = MAX.map(|_| 0usize);
    let mut count = |tag: u32, more: usize| {
        let Some(at) = MAX.iter().position(|(field, _)| *field == tag) else { return Ok(()) };
        counts[at] = counts[at].saturating_add(more);
        match counts[at] > MAX[at].1 {
            true => Err(format!("its field {tag} has more than {} entries", MAX[at].1)),
            false => Ok(()),
        }
    };
    let wrong = |e: prost::DecodeError| e.to_string();
    while !bytes.is_empty() {
        let (tag, wire) = decode_key(&mut bytes).map_err(wrong)?;
        if wire != WireType::LengthDelimited {
            skip_field(wire, tag, &mut bytes, DecodeContext::default()).map_err(wrong)?;
            count(tag, 1)?;
            continue;
        }
        let length = decode_varint(&mut bytes).map_err(wrong)?;
        let field = usize::try_from(length).ok().and_then(|length| bytes.get(..length)).ok_or("it is cut off")?;
        bytes = &bytes[field.len()..];
        match tag {
            // Counts the varints in a packed list: only the last byte of each is below 128.
            6..=11 => count(tag, field.iter().filter(|byte| **byte < 128).count())?,
            5 => count(tag, field.len()).and_then(|()| count(CHAINS, 1))?,
            _ => count(tag, 1)?,
        }
    }
    Ok(())
}

/// Splits a slice into parts to send: first the definitions (names, threads, call chains), all with the slice's start
/// time, then the samples.
fn split(mut slice: Slice) -> VecDeque<Slice> {
    let mut pieces = VecDeque::new();
    let mut definitions = |piece: Slice| pieces.push_back(Slice { from: slice.from, until: slice.from, ..piece });
    for names in std::mem::take(&mut slice.names).chunks(8192) {
        definitions(Slice { names: names.to_vec(), ..Slice::default() });
    }
    for unnamed in std::mem::take(&mut slice.unnamed).chunks(8192) {
        definitions(Slice { unnamed: unnamed.to_vec(), ..Slice::default() });
    }
    for threads in std::mem::take(&mut slice.threads).chunks(4096) {
        definitions(Slice { threads: threads.to_vec(), ..Slice::default() });
    }
    for stacks in std::mem::take(&mut slice.stacks).chunks(2048) {
        definitions(Slice { stacks: stacks.to_vec(), ..Slice::default() });
    }
    pieces.push_back(slice);
    pieces
}

impl TryFrom<Packed> for Slice {
    type Error = &'static str;

    fn try_from(packed: Packed) -> Result<Self, Self::Error> {
        let rows = packed.later.len();
        if [packed.cpu.len(), packed.thread.len(), packed.stack.len()] != [rows; 3]
            || packed.ran.len() != packed.ran_for.len()
        {
            return Err("columns of unequal length");
        }
        let stack = |stack: PackedStack| {
            let mode = *Mode::ALL.get(stack.mode as usize).ok_or("a call chain of an unknown mode")?;
            Ok(Stack { mode, frames: stack.frames.into_iter().map(FrameId::of_raw).collect() })
        };
        let mut t = packed.from;
        let mut time = |later: i64| {
            t = t.wrapping_add(later);
            t
        };
        let seen = (0..rows).map(|row| Seen {
            t: time(packed.later[row]),
            cpu: packed.cpu[row],
            thread: packed.thread[row],
            stack: packed.stack[row],
        });
        Ok(Self {
            from: packed.from,
            until: packed.until,
            seen: seen.collect(),
            names: packed.names,
            unnamed: packed.unnamed,
            threads: packed.threads,
            stacks: packed.stacks.into_iter().map(stack).collect::<Result<_, Self::Error>>()?,
            times: packed.ran.into_iter().zip(packed.ran_for).collect(),
            lost: packed.lost,
            unattributed: packed.unattributed,
        })
    }
}

/// The guest's side of a profile: the sampler's thread, and the slices waiting for the host.
pub(crate) struct Profiling {
    worker: Worker<Result<Slice, String>>,
    out: Outbound,
    /// Parts of a long slice that are not packed yet.
    parts: VecDeque<Slice>,
}

impl Profiling {
    pub fn begin(make: MakeSampler) -> std::io::Result<Self> {
        let worker = Worker::start("lp-profile", move |orders, sender| {
            let mut sampler = match make() {
                Ok(sampler) => sampler,
                Err(why) => return drop(sender.send(Err(why))),
            };
            // Also ends when the receiver is gone.
            while !orders.is_stopped() {
                if sampler.step().is_some_and(|slice| sender.send(Ok(slice)).is_err()) {
                    return;
                }
                std::thread::sleep(EVERY);
            }
            let _ = sender.send(Ok(sampler.end(&orders.leave)));
        })?;
        Ok(Self { worker, out: Outbound::default(), parts: VecDeque::new() })
    }

    /// Whether parts are waiting for the host; packs the next slice if there are none.
    pub fn has_chunks(&mut self) -> bool {
        if self.out.waiting() == 0 {
            match self.parts.pop_front() {
                Some(part) => self.pack(Ok(part)),
                None => {
                    let slice = self.worker.next();
                    slice.into_iter().for_each(|slice| self.pack(slice));
                }
            }
        }
        self.out.waiting() > 0
    }

    fn pack(&mut self, slice: Result<Slice, String>) {
        let outcome = slice.map(|slice| {
            let packed = Packed::from(slice.clone());
            let is_long = |packed: &Packed, rows| packed.encoded_len() > MAX_PACKED || rows > MAX_ROWS;
            let rows = slice.seen.len();
            if !is_long(&packed, rows) {
                return packed;
            }
            self.parts = split(slice);
            let mut part = self.parts.pop_front().expect("a slice has a part");
            // Names and chains must be kept, because later slices refer to them; a part's samples are dropped if it is
            // still too long.
            for part in self.parts.iter_mut().chain([&mut part]) {
                if !part.seen.is_empty() && is_long(&Packed::from(part.clone()), part.seen.len()) {
                    part.lost += part.seen.len() as u64;
                    part.seen.clear();
                }
            }
            Packed::from(part)
        });
        self.out = Outbound::reply(outcome.map(|packed| packed.encode_to_vec()));
    }

    /// The next part for the host.
    pub fn piece(&mut self) -> Option<Message> {
        self.has_chunks();
        self.out.chunk().map(Message::ProfileChunk)
    }

    /// Asks the sampler to end; its last slices follow as parts until [`Self::is_over`].
    pub fn stop(&self) {
        self.worker.stop();
    }

    /// Whether the sampler has ended and all its slices were sent.
    pub fn is_over(&mut self) -> bool {
        !self.has_chunks() && self.worker.is_over()
    }
}

/// The host's side of a profile.
#[derive(Default)]
pub(crate) struct Profiled {
    pub samples: Samples,
    /// Time (in the guest's clock) and CPU of each sample in the last slice.
    pub moments: Vec<(Ns, u32)>,
    inbound: Inbound,
    /// Reason for a missing profile.
    pub error: Option<String>,
}

impl Profiled {
    pub fn new(samples: Samples) -> Self {
        Self { samples, ..Self::default() }
    }

    /// Adds a part.
    ///
    /// # Errors
    /// The part is invalid; the error names the problem.
    pub fn take(&mut self, piece: Chunk) -> Result<(), String> {
        let content = match self.inbound.take(piece, MAX_PACKED, "a slice of its profile")? {
            None => return Ok(()),
            Some(Ok(content)) => content,
            Some(Err(why)) => {
                self.error = Some(why);
                return Ok(());
            }
        };
        let bad = |why: &dyn std::fmt::Display| format!("the agent sent a profile that cannot be read ({why})");
        check(&content).map_err(|e| bad(&e))?;
        let packed = Packed::decode(&content[..]).map_err(|e| bad(&e))?;
        let slice = Slice::try_from(packed).map_err(|e| bad(&e))?;
        let moments = slice.seen.iter().map(|seen| (seen.t, seen.cpu)).collect();
        self.samples.take(slice).map_err(|e| bad(&e))?;
        self.moments = moments;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Reply, MAX_TEXT};
    use crate::work::PIECE;
    use proptest::prelude::*;

    /// A sampler that produces this number of slices.
    struct FakeSampler(u32);

    fn slice(number: i64) -> Slice {
        Slice {
            from: number * 100,
            until: number * 100 + 100,
            names: vec![format!("f{number}"); 2000],
            unnamed: vec![Unnamed { name: 1, build_id: vec![3; 20], address: 0x1234 }],
            threads: vec![Thread { tid: 7, comm: "a\x1b[2J".into(), ..Thread::default() }],
            stacks: vec![Stack { mode: Mode::Kernel, frames: vec![FrameId::new(0, true)] }],
            seen: (0..9).map(|n| Seen { t: number * 100 + 9 - n, cpu: 1, thread: 0, stack: 0 }).collect(),
            times: vec![(0, 100)],
            lost: 1,
            unattributed: 2,
        }
    }

    impl Sampler for FakeSampler {
        fn step(&mut self) -> Option<Slice> {
            self.0 += 1;
            Some(slice(self.0.into()))
        }

        fn end(&mut self, _: &AtomicBool) -> Slice {
            slice(1_000_000)
        }
    }

    fn rest_of(mut profiling: Profiling) -> Vec<Message> {
        profiling.stop();
        let mut pieces = Vec::new();
        while !profiling.is_over() {
            match profiling.piece() {
                Some(piece) => pieces.push(piece),
                None => std::thread::yield_now(),
            }
        }
        pieces
    }

    #[test]
    fn slices_arrive_unchanged_in_parts_with_the_last_one() {
        let mut profiling = Profiling::begin(Box::new(|| Ok(Box::new(FakeSampler(0))))).unwrap();
        let mut pieces = Vec::new();
        while pieces.len() < 20 {
            match profiling.piece() {
                Some(piece) => pieces.push(piece),
                None => std::thread::yield_now(),
            }
        }
        pieces.extend(rest_of(profiling));
        let (mut host, mut expected) = (Profiled::default(), Samples::default());
        for piece in pieces {
            let Message::ProfileChunk(piece) = piece else { panic!("{piece:?}") };
            assert!(piece.bytes.len() <= PIECE);
            host.take(piece).unwrap();
        }
        let slices = host.samples.samples / 9;
        (1..slices as i64).chain([1_000_000]).for_each(|number| expected.take(slice(number)).unwrap());
        assert!(slices > 2 && host.samples == expected && host.error.is_none());
    }

    #[test]
    fn a_long_slice_arrives_in_parts_unchanged() {
        struct Long;
        impl Sampler for Long {
            fn step(&mut self) -> Option<Slice> {
                None
            }

            fn end(&mut self, _: &AtomicBool) -> Slice {
                let seen = (0..9).map(|_| Seen { t: 100, cpu: 1, thread: 4999, stack: 0 }).collect();
                let long = "x".repeat(250);
                let thread = |tid| Thread { tid, comm: long.clone(), ..Thread::default() };
                let names = (0..20_000).map(|n| format!("{n}{long}")).collect();
                Slice { names, threads: (0..5000).map(thread).collect(), seen, ..slice(1) }
            }
        }
        let (mut host, mut wanted) = (Profiled::default(), Samples::default());
        for piece in rest_of(Profiling::begin(Box::new(|| Ok(Box::new(Long)))).unwrap()) {
            let Message::ProfileChunk(piece) = piece else { panic!("{piece:?}") };
            host.take(piece).unwrap();
        }
        wanted.take(Long.end(&AtomicBool::new(false))).unwrap();
        assert_eq!(host.samples.samples, 9);
        assert_eq!((host.samples.span().unwrap().1, host.samples.lost), (wanted.span().unwrap().1, wanted.lost));
        assert!((0..20_000).all(|n| {
            let frame = FrameId::new(n, false);
            host.samples.name(frame) == wanted.name(frame)
        }));
        assert_eq!(host.samples.thread(4999), wanted.thread(4999));
    }

    /// A short slice that would need much memory is refused before the memory is allocated.
    #[test]
    fn empty_entries_need_no_memory() {
        let said = |slice: Vec<u8>| {
            let reply = Reply { error: String::new(), content: slice };
            let (mut host, bytes) = (Profiled::default(), reply.encode_to_vec());
            let pieces = bytes.chunks(MAX_TEXT);
            let count = pieces.len();
            let said =
                pieces.enumerate().map(|(at, bytes)| host.take(Chunk { bytes: bytes.to_vec(), last: at + 1 == count }));
            said.last().unwrap().unwrap_err()
        };
        for tag in [3u8, 4, 5, 14] {
            let empty = [tag << 3 | 2, 0];
            let why = said(empty.repeat(MAX_PACKED / 2 - 8));
            assert!(why.contains("more than"), "{why}");
        }
        for tag in [6u8, 7, 8, 9, 10, 11] {
            let mut packed = vec![tag << 3 | 2];
            prost::encoding::encode_varint(MAX_PACKED as u64 - 16, &mut packed);
            packed.resize(packed.len() + MAX_PACKED - 16, 0);
            assert!(said(packed).contains("more than"), "{tag}");
            assert!(said([tag << 3, 0].repeat(MAX_PACKED / 2 - 8)).contains("more than"), "{tag}");
        }
    }

    #[test]
    fn a_sampler_that_does_not_start_reports_the_reason() {
        let profiling = Profiling::begin(Box::new(|| Err("no BTF\x1b[2J".into()))).unwrap();
        let mut host = Profiled::default();
        for piece in rest_of(profiling) {
            let Message::ProfileChunk(piece) = piece else { panic!("{piece:?}") };
            host.take(piece).unwrap();
        }
        assert_eq!(host.error.as_deref(), Some("no BTF?[2J"));
    }

    #[test]
    fn a_profile_without_an_end_is_refused() {
        let mut host = Profiled::default();
        let mut endless = (0..40).map(|_| host.take(Chunk { bytes: vec![7; 1 << 19], last: false }));
        assert!(endless.any(|taken| taken.is_err_and(|why| why.contains("too long"))));
    }

    proptest! {
        #[test]
        fn no_piece_makes_the_host_panic(
            pieces in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..200), any::<bool>()), 0..6),
            later in prop::collection::vec(any::<i64>(), 0..4), cpu in prop::collection::vec(any::<u32>(), 0..4),
            mode in 0u32..6, from in any::<i64>(),
        ) {
            let mut host = Profiled::default();
            for (bytes, last) in pieces {
                let _ = host.take(Chunk { bytes, last });
            }
            let rows = later.len();
            let packed = Packed {
                unnamed: vec![Unnamed { name: mode, build_id: vec![0; rows * 30], address: 1 }],
                from, until: from.saturating_add(5), later, cpu, thread: vec![0; rows], stack: vec![0; rows],
                stacks: vec![PackedStack { mode, frames: vec![] }], threads: vec![Thread::default()], ..Packed::default()
            };
            let reply = Reply { error: String::new(), content: packed.encode_to_vec() };
            let _ = Profiled::default().take(Chunk { bytes: reply.encode_to_vec(), last: true });
        }
    }
}
