//! CPU samples of host and guests for the Perfetto UI: each with its call chain, in the row of its thread.

use crate::proto::{
    Callstack, Data, Frame, InternedData, InternedString, Mapping, PerfSample, PerfSampleDefaults, Process,
    ProcessTree, Thread, Timebase, TracePacket, TracePacketDefaults,
};
use latpath_model::Ns;
use latpath_profile::{Mode, Samples};
use prost::Message;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};

/// `SEQ_INCREMENTAL_STATE_CLEARED`
const CLEARED: u32 = 1;
/// `SEQ_NEEDS_INCREMENTAL_STATE`
const NEEDS_NAMES: u32 = 2;
/// Names of the mappings that contain the functions; Perfetto requires a mapping for each frame of a call chain.
const PLACES: [&str; 2] = ["user", "[kernel]"];

/// The samples of one machine.
pub struct SampledMachine<'s> {
    /// Individual samples ([`Samples::new`]).
    pub samples: &'s Samples,
    /// The machine's clock minus the host's, ns.
    pub offset_ns: Ns,
    /// Prefix of the names of this machine's processes: for a guest, its name and a colon, without a space (Perfetto
    /// cuts names at spaces).
    pub prefix: String,
}

/// Writes all samples except those of idle CPUs. The first machine is the host.
///
/// # Errors
/// If the writer fails.
pub fn write_profile(frequency: u32, machines: &[SampledMachine<'_>], mut out: impl Write) -> io::Result<()> {
    for (number, machine) in machines.iter().enumerate() {
        let mut sequence = Sequence { number: number as u32, out: &mut out, interned: HashSet::new() };
        sequence.begin(frequency)?;
        sequence.threads(machine)?;
        let mut seen: Vec<_> = machine.samples.raw().iter().collect();
        seen.sort_by_key(|seen| seen.t);
        for seen in seen.into_iter().filter(|seen| machine.samples.stack(seen.stack).mode != Mode::Idle) {
            sequence.names(machine.samples, seen.stack)?;
            let thread = machine.samples.thread(seen.thread);
            let sample = PerfSample {
                cpu: Some(seen.cpu),
                pid: Some(thread.tgid),
                tid: Some(thread.tid),
                callstack_iid: Some(u64::from(seen.stack) + 1),
                cpu_mode: Some(match machine.samples.stack(seen.stack).mode {
                    Mode::Kernel => 1,
                    Mode::User | Mode::Idle => 2,
                    Mode::Guest => 4,
                }),
            };
            let timestamp = Some((seen.t - machine.offset_ns).max(0) as u64);
            sequence.write(TracePacket {
                timestamp,
                data: Some(Data::PerfSample(sample)),
                ..TracePacket::default()
            })?;
        }
    }
    out.flush()
}

/// The packet sequence of one machine.
struct Sequence<'w, W: Write> {
    number: u32,
    out: &'w mut W,
    /// IDs already interned: of call chains (`true`) and of names (`false`).
    interned: HashSet<(bool, u64)>,
}

impl<W: Write> Sequence<'_, W> {
    fn write(&mut self, packet: TracePacket) -> io::Result<()> {
        let packet = TracePacket {
            trusted_packet_sequence_id: Some(self.number + 1),
            sequence_flags: packet.sequence_flags.or(Some(NEEDS_NAMES)),
            machine_id: (self.number > 0).then_some(self.number),
            ..packet
        };
        let bytes = packet.encode_to_vec();
        let mut head = Vec::new();
        prost::encoding::encode_key(1, prost::encoding::WireType::LengthDelimited, &mut head);
        prost::encoding::encode_varint(bytes.len() as u64, &mut head);
        self.out.write_all(&head)?;
        self.out.write_all(&bytes)
    }

    fn begin(&mut self, frequency: u32) -> io::Result<()> {
        let timebase = Timebase { frequency: Some(frequency.into()), counter: Some(1) };
        let perf_sample_defaults = Some(PerfSampleDefaults { timebase: Some(timebase) });
        let defaults = TracePacketDefaults { perf_sample_defaults };
        let text = |(iid, text): (u64, &str)| InternedString { iid: Some(iid), str: Some(text.into()) };
        let mapping = |iid| Mapping { iid: Some(iid), path_string_ids: vec![iid] };
        let names = InternedData {
            mapping_paths: (1..).zip(PLACES).map(text).collect(),
            mappings: (1..=PLACES.len() as u64).map(mapping).collect(),
            ..InternedData::default()
        };
        self.write(TracePacket {
            sequence_flags: Some(CLEARED),
            trace_packet_defaults: Some(defaults),
            interned_data: Some(names),
            ..TracePacket::default()
        })
    }

    fn threads(&mut self, machine: &SampledMachine<'_>) -> io::Result<()> {
        let (mut processes, mut threads) = (BTreeMap::new(), HashMap::new());
        for seen in machine.samples.raw() {
            let thread = machine.samples.thread(seen.thread);
            processes.entry(thread.tgid).or_insert_with(|| format!("{}{}", machine.prefix, thread.process));
            threads.insert(thread.tid, thread);
        }
        let number = |n: u32| i32::try_from(n).ok().filter(|n| *n > 0);
        let process = |(pid, name): (u32, String)| Some(Process { pid: Some(number(pid)?), cmdline: vec![name] });
        let mut named: Vec<_> = threads.into_values().collect();
        named.sort_by_key(|thread| thread.tid);
        let thread = |thread: &latpath_profile::Thread| {
            let name = Some(thread.comm.clone());
            Some(Thread { tid: Some(number(thread.tid)?), name, tgid: Some(number(thread.tgid)?) })
        };
        let tree = ProcessTree {
            processes: processes.into_iter().filter_map(process).collect(),
            threads: named.into_iter().filter_map(thread).collect(),
        };
        let timestamp = machine.samples.span().map(|(from, _)| (from - machine.offset_ns).max(0) as u64);
        self.write(TracePacket { timestamp, data: Some(Data::ProcessTree(tree)), ..TracePacket::default() })
    }

    /// Writes a call chain and its names, unless already interned.
    fn names(&mut self, samples: &Samples, stack: u32) -> io::Result<()> {
        if !self.interned.insert((true, u64::from(stack))) {
            return Ok(());
        }
        let stack_of = samples.stack(stack);
        let mut data = InternedData::default();
        // IDs start at 1; ID 1 is the frame `[guest]`.
        let mut ids: Vec<(u64, &str, bool)> = stack_of
            .frames
            .iter()
            .rev()
            .map(|frame| (u64::from(frame.raw()) + 2, samples.name(*frame), frame.in_kernel()))
            .collect();
        if stack_of.mode == Mode::Guest {
            ids.push((1, "[guest]", true));
        }
        for (iid, name, in_kernel) in &ids {
            if self.interned.insert((false, *iid)) {
                data.function_names.push(InternedString { iid: Some(*iid), str: Some((*name).into()) });
                let mapping_id = Some(u64::from(*in_kernel) + 1);
                data.frames.push(Frame {
                    iid: Some(*iid),
                    function_name_id: Some(*iid),
                    mapping_id,
                    rel_pc: Some(*iid),
                });
            }
        }
        let frame_ids = ids.iter().map(|(iid, ..)| *iid).collect();
        data.callstacks.push(Callstack { iid: Some(u64::from(stack) + 1), frame_ids });
        self.write(TracePacket { interned_data: Some(data), ..TracePacket::default() })
    }
}
