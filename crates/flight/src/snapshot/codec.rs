//! A snapshot as bytes: for an agent's answer, and for a run.
//!
//! `LPFS`, a version, then sections under zstd: each a tag, a length and a body. Numbers are of variable length (LEB128).
//! Of each CPU's events stand first all kinds, then all times (since the event before), and so on: like stands by like, which
//! is what makes it small. A reader skips sections that it does not know.

use crate::bytes::{put, put_block, put_signed, Bytes};
use crate::event::Event;
use crate::idle::{IdleStates, MAX_STATES};
use crate::layout::RawEvent;
use crate::names::Thread;
use crate::window::CpuRecord;
use crate::Snapshot;
use latpath_model::text::{cut, printable};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;

/// The longest encoded snapshot.
pub const MAX_ENCODED: usize = 16 << 20;
/// The longest one before it was compressed.
const MAX_PLAIN: usize = 64 << 20;
/// Events of all CPUs. Of more, the oldest are left out, and counted as overwritten.
const MAX_EVENTS: usize = 1 << 20;
const MAX_CPUS: usize = 4096;
/// Names of each sort.
const MAX_NAMES: usize = 1 << 16;
/// Bytes of a name, or a line.
const MAX_NAME: usize = 512;
/// Lines on what the kernel does not tell.
const MAX_LINES: usize = 256;

const MAGIC: [u8; 4] = *b"LPFS";
/// Changes when an older reader would misread it.
const VERSION: u8 = 1;
/// How hard zstd tries.
const LEVEL: i32 = 3;
/// Memory that a stream may ask for: 1 << this.
const WINDOW_LOG: u32 = 23;

const WINDOW: u64 = 1;
const CPU: u64 = 2;
const THREADS: u64 = 3;
const IRQS: u64 = 4;
const FUNCTIONS: u64 = 5;
const MISSING: u64 = 6;
/// Left out where there are none.
const IDLE_STATES: u64 = 7;

/// Why bytes are no snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSnapshot {
    /// Something else.
    #[error("this is no flight record")]
    Other,
    /// A later latpath wrote it.
    #[error(
        "the flight record is of version {0}, this latpath reads up to {VERSION}: install the later latpath here too"
    )]
    Newer(u8),
    /// More than anything needs.
    #[error("the flight record has more {0} than anything needs")]
    TooMuch(&'static str),
    /// It was cut off or changed.
    #[error("the flight record is damaged: {0}")]
    Damaged(&'static str),
}

use BadSnapshot::{Damaged, TooMuch};

impl From<&'static str> for BadSnapshot {
    fn from(what: &'static str) -> Self {
        Damaged(what)
    }
}

/// A name as it may stand in a table.
fn put_name(bytes: &mut Vec<u8>, name: &str) {
    put_block(bytes, printable(cut(name, MAX_NAME)).as_bytes());
}

impl Bytes<'_> {
    fn small(&mut self) -> Result<u32, BadSnapshot> {
        u32::try_from(self.number()?).map_err(|_| Damaged("a number is too large"))
    }

    fn name(&mut self) -> Result<String, BadSnapshot> {
        let block = self.block()?;
        let name = std::str::from_utf8(block).map_err(|_| Damaged("a name is no text"))?;
        if name.len() > MAX_NAME {
            return Err(TooMuch("bytes in a name"));
        }
        if name.chars().any(char::is_control) {
            return Err(Damaged("a name has control characters"));
        }
        Ok(name.into())
    }

    /// How many follow, each of at least a byte.
    fn count(&mut self, most: usize, what: &'static str) -> Result<usize, BadSnapshot> {
        match usize::try_from(self.number()?) {
            Ok(count) if count <= most && count <= self.0.len() => Ok(count),
            Ok(count) if count <= most => Err(Damaged("it ends too early")),
            _ => Err(TooMuch(what)),
        }
    }

    fn is_over(&self) -> Result<(), BadSnapshot> {
        self.0.is_empty().then_some(()).ok_or(Damaged("bytes are left over"))
    }
}

fn section(bytes: &mut Vec<u8>, tag: u64, body: &[u8]) {
    put(bytes, tag);
    put_block(bytes, body);
}

/// What has the CPU next, if that is the thread that is there now.
fn follows(event: &RawEvent) -> u32 {
    match event.kind {
        1 => event.b as u32,
        _ => event.pid,
    }
}

/// A CPU's last `most` events.
fn encode_cpu(record: &CpuRecord, most: usize) -> Vec<u8> {
    let mut events = Cow::Borrowed(&record.events[..]);
    if !events.is_sorted_by_key(|e| e.t) {
        events.to_mut().sort_by_key(|e| e.t);
    }
    let cut = events.len().saturating_sub(most);
    let events = &events[cut..];
    let since = match events.first() {
        Some(first) if cut > 0 => record.since.max(first.t),
        _ => record.since,
    };
    let mut bytes = Vec::new();
    put(&mut bytes, record.cpu.into());
    put_signed(&mut bytes, since);
    put(&mut bytes, record.overwritten.saturating_add(cut as u64));
    put(&mut bytes, record.unfinished);
    put(&mut bytes, events.len() as u64);
    let mut last = events.first().map_or(0, |e| e.t);
    put_signed(&mut bytes, last);
    let mut pid = 0;
    let mut columns: [Vec<u8>; 5] = Default::default();
    for event in events {
        let raw = RawEvent::encode(event);
        let [kinds, times, pids, b, c] = &mut columns;
        put(kinds, raw.kind.into());
        // Never negative; from the least time to the greatest it is more than a signed number takes.
        put(times, event.t.wrapping_sub(last) as u64);
        put_signed(pids, i64::from(raw.pid) - i64::from(pid));
        put(b, raw.b);
        put(c, raw.c);
        (last, pid) = (event.t, follows(&raw));
    }
    columns.iter().for_each(|column| put_block(&mut bytes, column));
    bytes
}

fn decode_cpu(bytes: &[u8], room: usize) -> Result<CpuRecord, BadSnapshot> {
    let mut bytes = Bytes(bytes);
    let (cpu, since, overwritten) = (bytes.small()?, bytes.signed()?, bytes.number()?);
    let unfinished = bytes.number()?;
    // The columns have a byte an event at least.
    let count = bytes.count(room, "events")?;
    let mut t = bytes.signed()?;
    let mut column = || bytes.block().map(Bytes);
    let (mut kinds, mut times, mut pids, mut b, mut c) = (column()?, column()?, column()?, column()?, column()?);
    bytes.is_over()?;
    let mut events = Vec::with_capacity(count.min(kinds.0.len()));
    let mut pid = 0u32;
    for _ in 0..count {
        t = t.checked_add_unsigned(times.number()?).ok_or(Damaged("a time is beyond all times"))?;
        let here = i64::from(pid).checked_add(pids.signed()?).and_then(|pid| u32::try_from(pid).ok());
        let raw = RawEvent {
            time: t as u64,
            pid: here.ok_or(Damaged("a thread has no possible number"))?,
            kind: u16::try_from(kinds.number()?).map_err(|_| Damaged("an event is of no possible kind"))?,
            generation: 0,
            b: b.number()?,
            c: c.number()?,
        };
        pid = follows(&raw);
        events.push(Event { t, ..raw.decode() });
    }
    [kinds, times, pids, b, c].iter().try_for_each(Bytes::is_over)?;
    Ok(CpuRecord { cpu, events, since, overwritten, unfinished })
}

fn encode_names<'a>(names: impl ExactSizeIterator<Item = (u64, Option<u32>, &'a str)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, names.len().min(MAX_NAMES) as u64);
    let mut last = 0;
    for (number, tgid, name) in names.take(MAX_NAMES) {
        put(&mut bytes, number.wrapping_sub(last));
        if let Some(tgid) = tgid {
            put(&mut bytes, tgid.into());
        }
        put_name(&mut bytes, name);
        last = number;
    }
    bytes
}

/// Of each CPU from which on they differ: its number, how many states, their names.
fn encode_idle(states: &IdleStates) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, states.from.len().min(MAX_NAMES) as u64);
    let mut last = 0;
    for (cpu, names) in states.from.iter().take(MAX_NAMES) {
        put(&mut bytes, u64::from(cpu - last));
        put(&mut bytes, names.len().min(MAX_STATES) as u64);
        names.iter().take(MAX_STATES).for_each(|name| put_name(&mut bytes, name));
        last = *cpu;
    }
    bytes
}

fn decode_idle(bytes: &[u8]) -> Result<IdleStates, BadSnapshot> {
    let names = |body: &mut Bytes<'_>| {
        let count = body.count(MAX_STATES, "idle states")?;
        (0..count).map(|_| body.name()).collect::<Result<Vec<_>, _>>()
    };
    Ok(IdleStates { from: decode_names(bytes, names)? })
}

/// Names by number; `more` reads what stands between the two.
fn decode_names<'a, K: Ord + TryFrom<u64>, V>(
    bytes: &'a [u8],
    more: impl Fn(&mut Bytes<'a>) -> Result<V, BadSnapshot>,
) -> Result<BTreeMap<K, V>, BadSnapshot> {
    let mut bytes = Bytes(bytes);
    let count = bytes.count(MAX_NAMES, "names")?;
    let (mut names, mut number) = (BTreeMap::new(), 0u64);
    for _ in 0..count {
        number = number.checked_add(bytes.number()?).ok_or(Damaged("a number is too large"))?;
        let key = K::try_from(number).map_err(|_| Damaged("a number is too large"))?;
        names.insert(key, more(&mut bytes)?);
    }
    bytes.is_over()?;
    Ok(names)
}

/// How many events each CPU may have so that all have no more than `most`.
fn level(sizes: &[usize], most: usize) -> usize {
    let all = |each: usize| sizes.iter().map(|n| each.min(*n)).sum::<usize>();
    let (mut fits, mut too_many) = (0, most + 1);
    while too_many - fits > 1 {
        let middle = fits.midpoint(too_many);
        match all(middle) <= most {
            true => fits = middle,
            false => too_many = middle,
        }
    }
    fits
}

impl Snapshot {
    /// As bytes. Some 2 to 5 for each event.
    ///
    /// What [`Self::decode`] would refuse is left out: events beyond the last million, the oldest first, which then count as
    /// overwritten; CPUs beyond 4,096; names beyond 65,536 of a sort.
    pub fn encode(&self) -> Vec<u8> {
        let mut plain = Vec::new();
        let mut body = Vec::new();
        put_signed(&mut body, self.window.from);
        put_signed(&mut body, self.window.to);
        section(&mut plain, WINDOW, &body);
        let mut cpus: Vec<&CpuRecord> = self.window.cpus.iter().collect();
        cpus.sort_by_key(|record| record.cpu);
        cpus.dedup_by_key(|record| record.cpu);
        cpus.truncate(MAX_CPUS);
        let sizes: Vec<usize> = cpus.iter().map(|record| record.events.len()).collect();
        let most = level(&sizes, MAX_EVENTS);
        for record in cpus {
            section(&mut plain, CPU, &encode_cpu(record, most));
        }
        let threads = self.threads.iter().map(|(pid, t)| (u64::from(*pid), Some(t.tgid), t.name.as_str()));
        section(&mut plain, THREADS, &encode_names(threads));
        section(
            &mut plain,
            IRQS,
            &encode_names(self.irqs.iter().map(|(n, name)| (u64::from(*n), None, name.as_str()))),
        );
        section(&mut plain, FUNCTIONS, &encode_names(self.functions.iter().map(|(n, name)| (*n, None, name.as_str()))));
        body.clear();
        put(&mut body, self.missing.len().min(MAX_LINES) as u64);
        self.missing.iter().take(MAX_LINES).for_each(|line| put_name(&mut body, line));
        section(&mut plain, MISSING, &body);
        if self.idle_states != IdleStates::default() {
            section(&mut plain, IDLE_STATES, &encode_idle(&self.idle_states));
        }
        let mut bytes = MAGIC.to_vec();
        bytes.push(VERSION);
        let packed = zstd::bulk::compress(&plain, LEVEL).expect("compressing in memory fails for want of memory alone");
        bytes.extend(packed);
        bytes
    }

    /// From bytes, whoever made them: what it takes in memory is bounded, and events are in the order of their times.
    ///
    /// # Errors
    /// Where they are no snapshot, or not one that this latpath can read.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadSnapshot> {
        let (version, packed) = match bytes.strip_prefix(&MAGIC).and_then(<[u8]>::split_first) {
            Some((version, packed)) => (*version, packed),
            None => return Err(BadSnapshot::Other),
        };
        if version > VERSION {
            return Err(BadSnapshot::Newer(version));
        }
        if bytes.len() > MAX_ENCODED {
            return Err(TooMuch("bytes"));
        }
        let plain = unpack(packed)?;
        let mut bytes = Bytes(&plain);
        let mut snapshot = Self::default();
        let mut events = 0;
        while !bytes.0.is_empty() {
            let tag = bytes.number()?;
            let body = bytes.block()?;
            match tag {
                WINDOW => {
                    let mut body = Bytes(body);
                    (snapshot.window.from, snapshot.window.to) = (body.signed()?, body.signed()?);
                    body.is_over()?;
                }
                CPU => {
                    let record = decode_cpu(body, MAX_EVENTS - events)?;
                    events += record.events.len();
                    let cpus = &mut snapshot.window.cpus;
                    if cpus.len() == MAX_CPUS {
                        return Err(TooMuch("CPUs"));
                    }
                    if cpus.last().is_some_and(|last: &CpuRecord| last.cpu >= record.cpu) {
                        return Err(Damaged("its CPUs are not in order"));
                    }
                    cpus.push(record);
                }
                THREADS => {
                    let thread = |body: &mut Bytes<'_>| Ok(Thread { tgid: body.small()?, name: body.name()? });
                    snapshot.threads = decode_names(body, thread)?;
                }
                IRQS => snapshot.irqs = decode_names(body, Bytes::name)?,
                FUNCTIONS => snapshot.functions = decode_names(body, Bytes::name)?,
                MISSING => {
                    let mut body = Bytes(body);
                    let count = body.count(MAX_LINES, "lines")?;
                    snapshot.missing = (0..count).map(|_| body.name()).collect::<Result<_, _>>()?;
                    body.is_over()?;
                }
                IDLE_STATES => snapshot.idle_states = decode_idle(body)?,
                _ => {}
            }
        }
        Ok(snapshot)
    }
}

/// Out of zstd, however much it says that it is.
fn unpack(packed: &[u8]) -> Result<Vec<u8>, BadSnapshot> {
    let damaged = |_| Damaged("it cannot be decompressed");
    let mut plain = Vec::new();
    let mut stream = zstd::stream::read::Decoder::with_buffer(packed).map_err(damaged)?;
    stream.window_log_max(WINDOW_LOG).map_err(damaged)?;
    stream.take(MAX_PLAIN as u64 + 1).read_to_end(&mut plain).map_err(damaged)?;
    match plain.len() <= MAX_PLAIN {
        true => Ok(plain),
        false => Err(TooMuch("bytes")),
    }
}
