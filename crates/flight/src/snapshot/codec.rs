//! Encodes a snapshot, for an agent's reply and for a run: `LPFS`, a version byte, then a frame of messages
//! ([`crate::packed`]).
//!
//! A CPU's events are stored as five columns: all kinds, all times (as differences), and so on. This makes similar
//! values adjacent, and the frame small.

use crate::event::Event;
use crate::idle::MAX_STATES;
use crate::layout::RawEvent;
use crate::names::Thread;
use crate::packed::{messages, number, pack, put, put_number, put_signed, signed, unpack};
use crate::upcalls::{FlowLimits, FlowState, Removal, Upcall, MAX_UPCALLS};
use crate::window::CpuRecord;
use crate::Snapshot;
use latpath_model::text::{cut, printable};
use std::borrow::Cow;

/// Maximum length of an encoded snapshot, bytes.
pub const MAX_ENCODED: usize = 16 << 20;
/// Limits of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotLimits {
    /// Maximum number of events of all CPUs together. Beyond it, the oldest are omitted and counted as overwritten.
    pub events: usize,
    /// Maximum uncompressed size, bytes.
    pub bytes: usize,
}

impl SnapshotLimits {
    /// Limits of a snapshot of this machine.
    pub const OWN: Self = Self { events: 1 << 20, bytes: 64 << 20 };
    /// Limits of a snapshot from another machine, which may be hostile: some 20 MiB of memory.
    pub const SENT: Self = Self { events: 1 << 18, bytes: 8 << 20 };
}

const MAX_CPUS: usize = 4096;
/// Maximum number of names of each kind.
const MAX_NAMES: usize = 1 << 16;
/// Maximum length of a name or message, bytes.
const MAX_NAME: usize = 512;
/// Maximum number of missing features listed.
const MAX_MISSING: usize = 256;

const MAGIC: [u8; 4] = *b"LPFS";
/// Format version; incremented when an older reader would misread it.
const VERSION: u8 = 1;

/// Why bytes cannot be decoded as a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSnapshot {
    /// The bytes have a different format.
    #[error("this is no flight record")]
    Other,
    #[error(
        "the flight record is of version {0}, this latpath reads up to {VERSION}: install the later latpath here too"
    )]
    /// The format version is newer than supported.
    Newer(u8),
    /// The snapshot is truncated or modified, or exceeds the limits.
    #[error("the flight record is damaged: {0}")]
    Damaged(&'static str),
}

use BadSnapshot::Damaged;

impl From<&'static str> for BadSnapshot {
    fn from(what: &'static str) -> Self {
        Damaged(what)
    }
}

/// A message of the frame. Readers skip unknown ones.
#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(oneof = "Content", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11")]
    content: Option<Content>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Content {
    #[prost(message, tag = "1")]
    Window(Times),
    #[prost(message, tag = "2")]
    Cpu(Cpu),
    #[prost(message, tag = "3")]
    Thread(Named),
    #[prost(message, tag = "4")]
    Irq(Named),
    #[prost(message, tag = "5")]
    Function(Named),
    #[prost(string, tag = "6")]
    Missing(String),
    /// Names of the idle states of this CPU and the following ones up to the next entry; each name ends with a line
    /// feed.
    #[prost(message, tag = "7")]
    IdleStates(Named),
    /// A process's systemd unit or control group.
    #[prost(message, tag = "8")]
    Unit(Named),
    /// A process's owner.
    #[prost(message, tag = "9")]
    Owner(Named),
    #[prost(message, tag = "10")]
    Upcall(SentUp),
    #[prost(message, tag = "11")]
    FlowLimits(Limits),
}

/// An [`Upcall`].
#[derive(Clone, PartialEq, prost::Message)]
struct SentUp {
    #[prost(sint64, tag = "1")]
    t: i64,
    #[prost(uint32, tag = "2")]
    cpu: u32,
    #[prost(uint32, tag = "3")]
    flows: u32,
    #[prost(uint64, tag = "4")]
    missed_before: u64,
    #[prost(uint32, optional, tag = "5")]
    handler: Option<u32>,
    #[prost(sint64, tag = "6")]
    read: i64,
    #[prost(sint64, optional, tag = "7")]
    answered: Option<i64>,
    /// Absent for [`FlowState::Unknown`].
    #[prost(oneof = "State", tags = "8, 9, 10")]
    flow: Option<State>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum State {
    #[prost(sint64, tag = "8")]
    NeverThere(i64),
    #[prost(sint64, tag = "9")]
    Installed(i64),
    #[prost(message, tag = "10")]
    Removed(Removed),
}

/// A [`Removal`].
#[derive(Clone, PartialEq, prost::Message)]
struct Removed {
    #[prost(sint64, tag = "1")]
    at: i64,
    #[prost(message, required, tag = "2")]
    by: Named,
    #[prost(uint32, tag = "3")]
    flows: u32,
    #[prost(bool, tag = "4")]
    all: bool,
    #[prost(sint64, optional, tag = "5")]
    installed: Option<i64>,
    #[prost(uint64, optional, tag = "6")]
    packets: Option<u64>,
    #[prost(sint64, optional, tag = "7")]
    idle_ns: Option<i64>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Limits {
    #[prost(sint64, tag = "1")]
    max_idle_ns: i64,
    #[prost(uint64, tag = "2")]
    flow_limit: u64,
}

impl SentUp {
    fn of(upcall: &Upcall) -> Self {
        let Upcall { t, cpu, flows, missed_before, read, answered, .. } = *upcall;
        let flow = match &upcall.flow {
            FlowState::Unknown => None,
            FlowState::NeverThere { since } => Some(State::NeverThere(*since)),
            FlowState::Installed { at } => Some(State::Installed(*at)),
            FlowState::Removed(removal) => {
                let Removal { at, pid, flows, all, installed, packets, idle_ns, .. } = *removal;
                let by = Named { number: pid.into(), tgid: removal.by.tgid, name: clean(&removal.by.name) };
                Some(State::Removed(Removed { at, by, flows, all, installed, packets, idle_ns }))
            }
        };
        let (handler, read) = read.unzip();
        Self { t, cpu, flows, missed_before, handler, read: read.unwrap_or_default(), answered, flow }
    }

    fn upcall(self) -> Result<Upcall, BadSnapshot> {
        let Self { t, cpu, flows, missed_before, handler, read, answered, flow } = self;
        let flow = match flow {
            None => FlowState::Unknown,
            Some(State::NeverThere(since)) => FlowState::NeverThere { since },
            Some(State::Installed(at)) => FlowState::Installed { at },
            Some(State::Removed(Removed { at, by, flows, all, installed, packets, idle_ns })) => {
                let pid = small(by.number)?;
                let by = Thread { name: checked(&by.name)?, tgid: by.tgid };
                FlowState::Removed(Removal { at, pid, by, flows, all, installed, packets, idle_ns })
            }
        };
        Ok(Upcall { t, cpu, flows, flow, missed_before, read: handler.map(|pid| (pid, read)), answered })
    }
}

fn small(number: u64) -> Result<u32, BadSnapshot> {
    u32::try_from(number).map_err(|_| Damaged("a number is too large"))
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Times {
    #[prost(sint64, tag = "1")]
    from: i64,
    #[prost(sint64, tag = "2")]
    to: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Named {
    #[prost(uint64, tag = "1")]
    number: u64,
    /// Process ID of the thread.
    #[prost(uint32, tag = "2")]
    tgid: u32,
    #[prost(string, tag = "3")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Cpu {
    #[prost(uint32, tag = "1")]
    cpu: u32,
    #[prost(sint64, tag = "2")]
    since: i64,
    #[prost(uint64, tag = "3")]
    overwritten: u64,
    #[prost(uint64, tag = "4")]
    unfinished: u64,
    /// Time of the first event, ns.
    #[prost(sint64, tag = "5")]
    first: i64,
    #[prost(bytes = "vec", tag = "6")]
    kinds: Vec<u8>,
    /// Differences from the previous event's time, ns.
    #[prost(bytes = "vec", tag = "7")]
    times: Vec<u8>,
    /// TIDs, as signed differences from the TID that the previous event left running on the CPU.
    #[prost(bytes = "vec", tag = "8")]
    pids: Vec<u8>,
    #[prost(bytes = "vec", tag = "9")]
    b: Vec<u8>,
    #[prost(bytes = "vec", tag = "10")]
    c: Vec<u8>,
}

/// TID of the thread that runs after an event.
fn next_pid(event: &RawEvent) -> u32 {
    match event.kind {
        1 => event.b as u32,
        _ => event.pid,
    }
}

impl Cpu {
    /// Encodes a CPU's last `most` events.
    fn of(record: &CpuRecord, most: usize) -> Self {
        let mut events = Cow::Borrowed(&record.events[..]);
        if !events.is_sorted_by_key(|e| e.t) {
            events.to_mut().sort_by_key(|e| e.t);
        }
        let cut = events.len().saturating_sub(most);
        let events = &events[cut..];
        let first = events.first().map_or(0, |e| e.t);
        let mut cpu = Self {
            cpu: record.cpu,
            since: if cut > 0 && most > 0 { record.since.max(first) } else { record.since },
            overwritten: record.overwritten.saturating_add(cut as u64),
            unfinished: record.unfinished,
            first,
            ..Self::default()
        };
        let (mut last, mut pid) = (first, 0);
        for event in events {
            let raw = RawEvent::encode(event);
            put_number(&mut cpu.kinds, raw.kind.into());
            // The difference is never negative, but that between the extreme times does not fit a signed number.
            put_number(&mut cpu.times, event.t.wrapping_sub(last) as u64);
            put_signed(&mut cpu.pids, i64::from(raw.pid) - i64::from(pid));
            put_number(&mut cpu.b, raw.b);
            put_number(&mut cpu.c, raw.c);
            (last, pid) = (event.t, next_pid(&raw));
        }
        cpu
    }

    /// Decodes the record, which must not have more than `most` events.
    fn record(&self, most: usize) -> Result<CpuRecord, BadSnapshot> {
        let [mut kinds, mut times, mut pids, mut b, mut c] =
            [&self.kinds[..], &self.times[..], &self.pids[..], &self.b[..], &self.c[..]];
        let mut events = Vec::with_capacity(kinds.len().min(most));
        let (mut t, mut pid) = (self.first, 0u32);
        while !kinds.is_empty() {
            if events.len() == most {
                return Err(Damaged("it has too many events"));
            }
            t = t.checked_add_unsigned(number(&mut times)?).ok_or("a time is beyond all times")?;
            let here = i64::from(pid).checked_add(signed(&mut pids)?).and_then(|pid| u32::try_from(pid).ok());
            let raw = RawEvent {
                time: t as u64,
                pid: here.ok_or("a thread has no possible number")?,
                kind: number(&mut kinds)?,
                generation: 0,
                b: number(&mut b)?,
                c: number(&mut c)?,
            };
            pid = next_pid(&raw);
            events.push(Event { t, ..raw.decode() });
        }
        if [times, pids, b, c].iter().any(|column| !column.is_empty()) {
            return Err(Damaged("bytes are left over"));
        }
        let Self { cpu, since, overwritten, unfinished, .. } = *self;
        Ok(CpuRecord { cpu, events, since, overwritten, unfinished })
    }
}

/// Shortens and sanitises a name, so that `decode` accepts it and tables can show it.
fn clean(name: &str) -> String {
    printable(cut(name, MAX_NAME))
}

/// Returns a name from another machine if it is valid.
fn checked(name: &str) -> Result<String, BadSnapshot> {
    match name {
        _ if name.len() > MAX_NAME => Err(Damaged("a name is too long")),
        _ if name.chars().any(char::is_control) => Err(Damaged("a name has control characters")),
        _ => Ok(name.into()),
    }
}

/// Maximum number of events per CPU such that all CPUs together have at most `most`.
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
    /// Encodes the snapshot, in some 2 to 5 bytes per event.
    ///
    /// Omits data that [`Self::decode`] would reject: the oldest events beyond the last million, which then count as
    /// overwritten; CPUs beyond 4,096; names beyond 65,536 of each kind.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_within(SnapshotLimits::OWN)
    }

    /// Like [`Self::encode`], within these limits.
    pub fn encode_within(&self, limits: SnapshotLimits) -> Vec<u8> {
        let mut plain = Vec::new();
        let mut add = |content| put(&mut plain, &Entry { content: Some(content) });
        add(Content::Window(Times { from: self.window.from, to: self.window.to }));
        let mut cpus: Vec<&CpuRecord> = self.window.cpus.iter().collect();
        cpus.sort_by_key(|record| record.cpu);
        cpus.dedup_by_key(|record| record.cpu);
        cpus.truncate(MAX_CPUS);
        let sizes: Vec<usize> = cpus.iter().map(|record| record.events.len()).collect();
        let most = level(&sizes, limits.events);
        cpus.iter().for_each(|record| add(Content::Cpu(Cpu::of(record, most))));
        let named = |number, name: &str| Named { number, tgid: 0, name: clean(name) };
        for (pid, thread) in self.threads.iter().take(MAX_NAMES) {
            add(Content::Thread(Named { tgid: thread.tgid, ..named((*pid).into(), &thread.name) }));
        }
        for (process, name) in self.units.iter().take(MAX_NAMES) {
            add(Content::Unit(named((*process).into(), name)));
        }
        for (process, name) in self.owners.iter().take(MAX_NAMES) {
            add(Content::Owner(named((*process).into(), name)));
        }
        for (irq, name) in self.irqs.iter().take(MAX_NAMES) {
            add(Content::Irq(named((*irq).into(), name)));
        }
        for (function, name) in self.functions.iter().take(MAX_NAMES) {
            add(Content::Function(named(*function, name)));
        }
        for (cpu, states) in self.idle_states.from.iter().take(MAX_NAMES) {
            let name = states.iter().take(MAX_STATES).map(|name| clean(name) + "\n").collect();
            add(Content::IdleStates(Named { number: (*cpu).into(), tgid: 0, name }));
        }
        self.upcalls.iter().take(MAX_UPCALLS).for_each(|upcall| add(Content::Upcall(SentUp::of(upcall))));
        if let Some(FlowLimits { max_idle_ns, flow_limit }) = self.flow_limits {
            add(Content::FlowLimits(Limits { max_idle_ns, flow_limit }));
        }
        self.missing.iter().take(MAX_MISSING).for_each(|missing| add(Content::Missing(clean(missing))));
        [&MAGIC[..], &[VERSION], &pack(&plain)].concat()
    }

    /// Decodes bytes from any source: memory use is bounded, and events are sorted by time.
    ///
    /// # Errors
    /// The bytes are not a snapshot, or its version is not supported.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadSnapshot> {
        Self::decode_within(bytes, SnapshotLimits::OWN)
    }

    /// Like [`Self::decode`], within these limits.
    ///
    /// # Errors
    /// As for [`Self::decode`], and if it exceeds the limits.
    pub fn decode_within(bytes: &[u8], limits: SnapshotLimits) -> Result<Self, BadSnapshot> {
        let (version, mut packed) = match bytes.strip_prefix(&MAGIC).and_then(<[u8]>::split_first) {
            Some((version, packed)) => (*version, packed),
            None => return Err(BadSnapshot::Other),
        };
        if version > VERSION {
            return Err(BadSnapshot::Newer(version));
        }
        if bytes.len() > MAX_ENCODED {
            return Err(Damaged("it exceeds the maximum size"));
        }
        let plain = unpack(&mut packed, limits.bytes)?;
        if !packed.is_empty() {
            return Err(Damaged("bytes are left over"));
        }
        let mut snapshot = Self::default();
        let mut events = 0;
        for part in messages::<Entry>(&plain) {
            events += snapshot.add(part?, limits.events - events)?;
        }
        Ok(snapshot)
    }

    /// Adds the content of a message, which may contain at most `most` events. Returns their number.
    fn add(&mut self, part: Entry, most: usize) -> Result<usize, BadSnapshot> {
        match part.content {
            Some(Content::Window(times)) => (self.window.from, self.window.to) = (times.from, times.to),
            Some(Content::Cpu(cpu)) => {
                let record = cpu.record(most)?;
                let (events, cpus) = (record.events.len(), &mut self.window.cpus);
                if cpus.len() == MAX_CPUS {
                    return Err(Damaged("it has too many CPUs"));
                }
                if cpus.last().is_some_and(|last| last.cpu >= record.cpu) {
                    return Err(Damaged("its CPUs are not in order"));
                }
                cpus.push(record);
                return Ok(events);
            }
            Some(Content::Thread(Named { number, tgid, name })) => {
                self.threads.insert(small(number)?, Thread { tgid, name: checked(&name)? });
            }
            Some(Content::Unit(unit)) => drop(self.units.insert(small(unit.number)?, checked(&unit.name)?)),
            Some(Content::Owner(owner)) => drop(self.owners.insert(small(owner.number)?, checked(&owner.name)?)),
            Some(Content::Irq(irq)) => drop(self.irqs.insert(small(irq.number)?, checked(&irq.name)?)),
            Some(Content::Function(function)) => {
                self.functions.insert(function.number, checked(&function.name)?);
            }
            Some(Content::IdleStates(Named { number, name, .. })) => {
                let names = name.split_terminator('\n').take(MAX_STATES + 1).map(checked);
                let names: Vec<_> = names.collect::<Result<_, _>>()?;
                if names.len() > MAX_STATES {
                    return Err(Damaged("it has too many idle states"));
                }
                self.idle_states.from.insert(small(number)?, names);
            }
            Some(Content::Upcall(_)) if self.upcalls.len() == MAX_UPCALLS => {
                return Err(Damaged("it has too many upcalls"));
            }
            Some(Content::Upcall(upcall)) => self.upcalls.push(upcall.upcall()?),
            Some(Content::FlowLimits(Limits { max_idle_ns, flow_limit })) => {
                self.flow_limits = Some(FlowLimits { max_idle_ns, flow_limit });
            }
            Some(Content::Missing(missing)) => self.missing.push(checked(&missing)?),
            None => {}
        }
        let (processes, kernel) =
            ([self.threads.len(), self.units.len(), self.owners.len()], [self.irqs.len(), self.functions.len()]);
        let names = [&processes[..], &kernel[..], &[self.idle_states.from.len()][..]].concat();
        if names.iter().any(|n| *n > MAX_NAMES) || self.missing.len() > MAX_MISSING {
            return Err(Damaged("it has too many names"));
        }
        Ok(0)
    }
}
