//! Writes the packets of a trace.

use crate::proto::{
    Data, DebugAnnotation, FtraceEvent, FtraceEventBundle, InternedData, InternedString, TracePacket, TrackEvent, Value,
};
use prost::encoding::{encode_key, encode_varint, WireType};
use prost::Message;
use std::collections::HashMap;
use std::io::{self, Write};

/// `SEQ_INCREMENTAL_STATE_CLEARED`: discards the earlier state of the sequence.
const CLEARED: u32 = 1;
/// `SEQ_NEEDS_INCREMENTAL_STATE`: the packet refers to interned names.
const NEEDS_NAMES: u32 = 2;

/// The types of TrackEvent.
const BEGIN: i32 = 1;
const END: i32 = 2;
const INSTANT: i32 = 3;

/// A row of the trace: one of latpath's own, or a thread's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Track {
    Recorded,
    /// Parent of the packets' rows.
    Packets,
    /// The journey of the packet with this number.
    Packet(u64),
    /// The causes of the packet's delay, below its row.
    Why(u64),
    /// Segments of a packet that overlap others, below its row; the second number distinguishes several such rows.
    Beside(u64, usize),
    /// Parent of the points' rows.
    Points,
    Point(usize),
    /// Parent of the contexts' rows.
    Contexts,
    /// Sightings of packets on a machine's CPU that belong to no thread of the host.
    Context(usize, Option<u32>),
    /// Parent of the rows with polls and timers.
    Polls,
    /// Polls of devices, and timers, on one CPU of a machine.
    Poll(usize, u32),
    /// A machine's thread: the row is Perfetto's own.
    Thread(usize, u32),
}

/// Description of a slice or an instant.
#[derive(Default)]
pub(crate) struct EventInfo {
    pub name: String,
    pub category: &'static str,
    pub flows: Vec<u64>,
    pub args: Vec<DebugAnnotation>,
}

impl EventInfo {
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    pub fn arg(mut self, name: &str, value: impl Into<Value>) -> Self {
        let (name, value) = (Some(name.into()), Some(value.into()));
        self.args.push(DebugAnnotation { name, value, ..DebugAnnotation::default() });
        self
    }

    pub fn maybe(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.arg(name, value),
            None => self,
        }
    }

    pub fn args(mut self, name: &str, values: Vec<String>) -> Self {
        let text = |value| DebugAnnotation { value: Some(Value::Text(value)), ..DebugAnnotation::default() };
        let array_values = values.into_iter().map(text).collect();
        self.args.push(DebugAnnotation { name: Some(name.into()), value: None, array_values });
        self
    }
}

impl From<i64> for Value {
    fn from(n: i64) -> Self {
        Self::Int(n)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<bool> for Value {
    fn from(is: bool) -> Self {
        Self::Bool(is)
    }
}

/// Writes packets as they come; keeps only the IDs of names and rows.
pub(crate) struct Writer<'w> {
    out: &'w mut dyn Write,
    buffer: Vec<u8>,
    /// Sequences that have begun, each with its interned names.
    sequences: HashMap<usize, HashMap<String, u64>>,
    /// UUIDs of the rows described so far.
    pub tracks: HashMap<Track, u64>,
    pub bytes: u64,
}

impl<'w> Writer<'w> {
    pub fn new(out: &'w mut dyn Write) -> Self {
        Self { out, buffer: Vec::new(), sequences: HashMap::new(), tracks: HashMap::new(), bytes: 0 }
    }

    /// Writes a packet to a machine's sequence; the host is machine 0.
    pub fn packet(&mut self, machine: usize, timestamp: Option<u64>, data: Data) -> io::Result<()> {
        self.write(machine, TracePacket { timestamp, data: Some(data), ..TracePacket::default() })
    }

    fn write(&mut self, machine: usize, packet: TracePacket) -> io::Result<()> {
        let is_first = !self.sequences.contains_key(&machine);
        self.sequences.entry(machine).or_default();
        let packet = TracePacket {
            trusted_packet_sequence_id: Some(machine as u32 + 1),
            sequence_flags: Some(if is_first { CLEARED } else { NEEDS_NAMES }),
            machine_id: (machine > 0).then_some(machine as u32),
            ..packet
        };
        self.buffer.clear();
        encode_key(1, WireType::LengthDelimited, &mut self.buffer);
        encode_varint(packet.encoded_len() as u64, &mut self.buffer);
        packet.encode_raw(&mut self.buffer);
        self.bytes += self.buffer.len() as u64;
        self.out.write_all(&self.buffer)
    }

    /// ID of a function's name; interns the name if it is new.
    pub fn function(&mut self, machine: usize, name: &str) -> io::Result<u64> {
        let known = self.sequences.get(&machine);
        if let Some(number) = known.and_then(|names| names.get(name)) {
            return Ok(*number);
        }
        let number = known.map_or(0, HashMap::len) as u64 + 1;
        if known.is_none() {
            // The first packet of a sequence clears all interned names, so it must not contain any.
            self.write(machine, TracePacket::default())?;
        }
        let symbol = InternedString { iid: Some(number), str: Some(name.as_bytes().to_vec()) };
        let interned_data = Some(InternedData { kernel_symbols: vec![symbol], ..InternedData::default() });
        self.write(machine, TracePacket { interned_data, ..TracePacket::default() })?;
        self.sequences.entry(machine).or_default().insert(name.into(), number);
        Ok(number)
    }

    pub fn kernel(&mut self, machine: usize, cpu: u32, events: Vec<FtraceEvent>) -> io::Result<()> {
        match events.is_empty() {
            true => Ok(()),
            false => {
                self.packet(machine, None, Data::FtraceEvents(FtraceEventBundle { cpu: Some(cpu), event: events }))
            }
        }
    }

    fn event(&mut self, machine: usize, t: u64, track: u64, kind: i32, info: EventInfo) -> io::Result<()> {
        let event = TrackEvent {
            debug_annotations: info.args,
            r#type: Some(kind),
            track_uuid: Some(track),
            categories: if info.category.is_empty() { Vec::new() } else { vec![info.category.into()] },
            name: (kind != END).then_some(info.name),
            flow_ids: info.flows,
        };
        self.packet(machine, Some(t), Data::TrackEvent(event))
    }

    pub fn begin(&mut self, machine: usize, t: u64, track: u64, info: EventInfo) -> io::Result<()> {
        self.event(machine, t, track, BEGIN, info)
    }

    pub fn end(&mut self, machine: usize, t: u64, track: u64) -> io::Result<()> {
        self.event(machine, t, track, END, EventInfo::default())
    }

    pub fn instant(&mut self, machine: usize, t: u64, track: u64, info: EventInfo) -> io::Result<()> {
        self.event(machine, t, track, INSTANT, info)
    }

    pub fn finish(self) -> io::Result<()> {
        self.out.flush()
    }
}
