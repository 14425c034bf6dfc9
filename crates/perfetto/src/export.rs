//! Writes a trace, capture by capture.

use crate::details::Details;
use crate::journey::{self, at, Number};
use crate::kernel::{Kernel, Place, Shift, Written, MAX_CPUS};
use crate::proto::{Clock, ClockSnapshot, Data, SystemInfo, Utsname};
use crate::thread_names::ThreadNames;
use crate::writer::Track;
use crate::writer::{EventInfo, Writer};
use latpath_capture::{Capture, CaptureKind, MachineSnapshot, Packet};
use latpath_cause::{Analyst, PacketTimeline, RunContext};
use latpath_flight::{CpuTimeline, Doing, Names};
use latpath_model::{Ns, PacketSighting, StreamId, HOST};
use latpath_stats::units::duration;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::rc::Rc;

/// Maximum number of late packets per capture that have rows of their own, the slowest first; the others are only
/// counted.
const MAX_PACKETS: usize = 200;
/// Maximum number of packets with rows of their own in a capture without late packets.
const MAX_ON_TIME: usize = 10;

/// Perfetto's IDs of clocks.
const REALTIME: u32 = 1;
const MONOTONIC: u32 = 3;
const BOOTTIME: u32 = 6;

/// Assumed kernel release of machines whose release is unknown: the oldest supported one. The encoding of thread states
/// depends on it.
const OLDEST_KERNEL: &str = "5.15";

/// Contents of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of captures.
    pub captures: u64,
    /// Number of packets with rows of their own.
    pub packets: u64,
    /// Number of late packets without rows of their own.
    pub more_late: u64,
    /// The machines, with the numbers of kernel events written for each.
    pub machines: Vec<(String, Written)>,
    /// Size, bytes.
    pub bytes: u64,
}

#[derive(Default)]
struct Machine {
    kernel: Kernel,
    thread_names: ThreadNames,
    details: Details,
}

/// Writes a trace.
pub struct Export<'w> {
    out: Writer<'w>,
    context: Rc<RunContext>,
    /// Packets that have rows.
    shown: HashSet<(StreamId, u64, Ns)>,
    /// Machines by index; the host is the first one.
    machines: Vec<(String, Machine)>,
    places: HashMap<String, usize>,
    summary: Summary,
    /// End of the last capture that the row of captures contains.
    recorded: Ns,
}

impl<'w> Export<'w> {
    /// Begins a trace with the run's clocks.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn begin(out: &'w mut dyn Write, context: RunContext) -> io::Result<Self> {
        let mut export = Self {
            out: Writer::new(out),
            context: Rc::new(context),
            shown: HashSet::new(),
            machines: Vec::new(),
            places: HashMap::new(),
            summary: Summary::default(),
            recorded: Ns::MIN,
        };
        // Write the relation of the clocks at the start and after each step of the time of day.
        let context = Rc::clone(&export.context);
        for monotonic in std::iter::once(context.start_ns).chain(context.time_of_day.steps()) {
            let utc = context.utc(monotonic);
            if monotonic < 0 || utc <= 0 {
                continue;
            }
            let clock = |clock_id, t| Clock { clock_id: Some(clock_id), timestamp: Some(at(t)) };
            // Perfetto interprets kernel event times as boot time. Here, boot time and CLOCK_MONOTONIC are both the
            // host's CLOCK_MONOTONIC, as in the run.
            let clocks = vec![clock(BOOTTIME, monotonic), clock(MONOTONIC, monotonic), clock(REALTIME, utc)];
            let snapshot = ClockSnapshot { clocks, primary_trace_clock: Some(BOOTTIME as i32) };
            export.out.packet(0, None, Data::ClockSnapshot(snapshot))?;
        }
        export.machine(HOST)?;
        Ok(export)
    }

    /// Index of a machine; adds the machine if it is new.
    fn machine(&mut self, name: &str) -> io::Result<usize> {
        if let Some(place) = self.places.get(name) {
            return Ok(*place);
        }
        let place = self.machines.len();
        let release = self.context.kernels.get(name).filter(|r| r.starts_with(|c: char| c.is_ascii_digit()));
        let utsname = Utsname {
            sysname: Some("Linux".into()),
            // Shown where Perfetto does not show a machine's name.
            version: Some(name.into()),
            release: Some(release.cloned().unwrap_or_else(|| OLDEST_KERNEL.into())),
        };
        let info = SystemInfo { utsname: Some(utsname), machine_name: Some(name.into()) };
        self.out.packet(place, None, Data::SystemInfo(info))?;
        self.machines.push((name.into(), Machine::default()));
        self.places.insert(name.into(), place);
        Ok(place)
    }

    /// Writes a capture. Captures must be passed in order of time. Late packets selected by `matches` get rows of their
    /// own; in a capture without late packets, some packets do, whether selected or not.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn capture(&mut self, capture: &Capture, matches: impl Fn(&Packet) -> bool) -> io::Result<()> {
        let is_spike = capture.kind == CaptureKind::Spike;
        self.write(capture, &|p: &Packet| p.late && matches(p) || !is_spike)
    }

    /// Like [`Self::capture`], but all packets selected by `matches` get rows of their own, whether late or not.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn capture_around(&mut self, capture: &Capture, matches: impl Fn(&Packet) -> bool) -> io::Result<()> {
        self.write(capture, &matches)
    }

    fn write(&mut self, capture: &Capture, matches: &dyn Fn(&Packet) -> bool) -> io::Result<()> {
        self.summary.captures += 1;
        for record in &capture.machines {
            self.record(record)?;
        }
        let rows = Contexts::of(capture);
        self.points(capture)?;
        let left_out = self.packets(capture, &rows, matches)?;
        self.recorded_row(capture, left_out)
    }

    fn record(&mut self, record: &MachineSnapshot) -> io::Result<()> {
        let Ok(snapshot) = &record.record else { return Ok(()) };
        let machine = self.machine(&record.machine)?;
        let Self { out, machines, context, .. } = self;
        let (name, Machine { kernel, thread_names, details }) = &mut machines[machine];
        let shift = Shift { offset: record.offset_ns };
        let (vms, guest) = (context.vms.of(name), (machine != 0).then_some(name.as_str()));
        thread_names.learn(out, machine, shift.host(snapshot.window.from).unwrap_or(0), snapshot, vms, guest)?;
        let names = snapshot.names();
        let place = Place { machine, name, shift, thread_names, snapshot, names: &names };
        let events = kernel.snapshot(out, &place)?;
        details.snapshot(out, &place, &events)
    }

    fn points(&mut self, capture: &Capture) -> io::Result<()> {
        let Self { out, context, recorded, .. } = self;
        for packet in &capture.packets {
            // Earlier sightings were written with an earlier capture.
            for seen in packet.sightings.iter().filter(|seen| seen.t > *recorded) {
                let point = usize::from(seen.point);
                let track = out.row(Track::Point(point), || context.point(seen.point))?;
                let name = journey::packet_name(context, packet.stream, packet.key);
                let info = EventInfo::named(if packet.late { name + " late" } else { name });
                let info = match seen.cpu {
                    None => info,
                    Some(cpu) => info.arg("cpu", i64::from(cpu)),
                };
                let info = match seen.tid {
                    None => info,
                    Some(tid) => info.arg("thread", i64::from(tid)),
                };
                out.instant(0, at(seen.t), track, info)?;
            }
        }
        Ok(())
    }

    /// Writes the packets that get rows; returns the number of late packets without a row.
    fn packets(&mut self, capture: &Capture, rows: &Contexts, matches: &dyn Fn(&Packet) -> bool) -> io::Result<u64> {
        let took = |packet: &Packet| match (packet.sightings.first(), packet.sightings.last()) {
            (Some(a), Some(b)) => b.t.saturating_sub(a.t),
            _ => 0,
        };
        let is_spike = capture.kind == CaptureKind::Spike;
        let known = &mut self.shown;
        let mut is_new = |p: &Packet| p.sightings.first().is_some_and(|s| known.insert((p.stream, p.number, s.t)));
        let late = capture.packets.iter().filter(|p| p.late).count() as u64;
        let mut shown: Vec<&Packet> = capture.packets.iter().filter(|p| matches(p) && is_new(p)).collect();
        shown.sort_by_key(|packet| std::cmp::Reverse(took(packet)));
        shown.truncate(if is_spike { MAX_PACKETS } else { MAX_ON_TIME });
        let with_row = shown.iter().filter(|packet| packet.late).count() as u64;
        let left_out = capture.more_late.saturating_add(late - with_row);
        shown.sort_by_key(|packet| packet.sightings.first().map(|seen| seen.t));
        self.summary.more_late = self.summary.more_late.saturating_add(left_out);
        if shown.is_empty() {
            return Ok(left_out);
        }
        let context = Rc::clone(&self.context);
        let analyst = Analyst::new(capture, &context);
        for packet in shown {
            let explained =
                PacketTimeline::of(&analyst, capture, packet, context.route(packet.stream), &context.points);
            self.summary.packets += 1;
            let number = Number(self.summary.packets);
            journey::write(&mut self.out, &context, number, &explained)?;
            for (place, seen) in explained.seen.iter().enumerate() {
                self.sighting(capture, rows, number, place, seen, &explained)?;
            }
        }
        Ok(left_out)
    }

    /// Marks a sighting in the row of the thread or CPU that handled the packet.
    fn sighting(
        &mut self,
        capture: &Capture,
        rows: &Contexts,
        number: Number,
        place: usize,
        seen: &PacketSighting,
        packet: &PacketTimeline,
    ) -> io::Result<()> {
        let point = self.context.points.get(usize::from(seen.point)).map(|info| info.point.clone());
        // A computed point, such as the send time, has no thread or CPU: it is shown only in the packet's own row.
        let Some(point) = point.filter(|point| !point.kind.is_computed()) else { return Ok(()) };
        let machine = self.machine(&point.machine)?;
        let name = journey::packet_name(&self.context, packet.stream, packet.key);
        let name = format!("{}@{} {name}", point.kind, point.device);
        let info = |flows| {
            EventInfo { flows, category: "sighting", ..EventInfo::named(name.clone()) }.arg("point", point.to_string())
        };
        let t = at(seen.t);
        let doing = rows.doing(capture, &point.machine, seen);
        let by_thread = match doing {
            Doing::Thread(running) => seen.tid == Some(running.pid),
            Doing::Unknown => point.kind.info().by_thread,
            _ => false,
        };
        let flows = vec![number.route(), number.sighting(place)];
        if let Some(tid) = seen.tid.filter(|_| by_thread) {
            let Self { out, machines, .. } = self;
            if let Some(track) = out.thread(machine, tid, &machines[machine].1.thread_names)? {
                if machine == 0 {
                    return out.instant(0, t, track, info(flows));
                }
                // Perfetto's arrows cannot connect machines, so the row of the guest's CPU below repeats the sighting
                // with its arrow.
                out.instant(machine, t, track, info(vec![number.route()]))?;
            }
        }
        let cpu = seen.cpu.map(u32::from);
        let context = match (doing, seen.thread()) {
            (Doing::Unknown | Doing::Thread(_), Some(tid)) => self.machines[machine].1.thread_names.name(tid),
            (doing, _) => rows.name(capture, &point.machine, &doing),
        };
        let row = || match cpu {
            Some(cpu) => format!("{} CPU {cpu}", point.machine),
            None => format!("{} unknown CPU", point.machine),
        };
        let track = self.out.row(Track::Context(machine, cpu), row)?;
        self.out.instant(0, t, track, info(flows).arg("in", context))
    }

    /// Writes the interval that the capture covers, with the gaps in its records.
    fn recorded_row(&mut self, capture: &Capture, left_out: u64) -> io::Result<()> {
        let from = capture.from.max(self.recorded);
        if from >= capture.to {
            return Ok(());
        }
        let what = if capture.kind == CaptureKind::Spike { "spike" } else { "on time" };
        let mut info = EventInfo::named(format!("{what} {}", capture.number));
        info = info.arg("packets", capture.packets.len() as i64);
        info = info.arg("late", capture.packets.iter().filter(|p| p.late).count() as i64);
        if left_out > 0 {
            info = info.arg("late_without_row", i64::try_from(left_out).unwrap_or(i64::MAX));
        }
        for machine in &capture.machines {
            let mut lines = Vec::new();
            if machine.machine != HOST {
                let (offset, bound) = (duration(machine.offset_ns), duration(machine.error_bound_ns));
                lines.push(format!("its clock is {offset} ahead of the host's, known to ± {bound}"));
            }
            match &machine.record {
                Err(why) => lines.push(format!("no record: {why}")),
                Ok(snapshot) => {
                    for cpu in snapshot.window.cpus.iter().filter(|cpu| !cpu.is_complete(snapshot.window.from)) {
                        let missing = match cpu.since > snapshot.window.from {
                            true if cpu.since == Ns::MAX => "nothing is known".into(),
                            true => format!(
                                "its first {} are overwritten",
                                duration(cpu.since.saturating_sub(snapshot.window.from))
                            ),
                            false => format!("{} events were still being written", cpu.unfinished),
                        };
                        lines.push(format!("CPU {}: {missing}", cpu.cpu));
                    }
                    lines.extend(snapshot.missing.iter().cloned());
                }
            }
            info = info.args(&machine.machine, lines);
        }
        let track = self.out.row(Track::Recorded, String::new)?;
        self.out.begin(0, at(from), track, info)?;
        self.out.end(0, at(capture.to), track)?;
        self.recorded = capture.to;
        Ok(())
    }

    /// Number of bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.out.bytes
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn finish(self) -> io::Result<Summary> {
        let Self { out, machines, mut summary, .. } = self;
        summary.machines = machines.into_iter().map(|(name, machine)| (name, machine.kernel.written)).collect();
        summary.bytes = out.bytes;
        out.finish().map(|()| summary)
    }
}

/// The activity of each CPU, and the names, of all machines of a capture.
struct Contexts(Vec<(Vec<CpuTimeline>, Option<Names>)>);

impl Contexts {
    fn of(capture: &Capture) -> Self {
        let of_machine = |machine: &MachineSnapshot| {
            let Ok(snapshot) = &machine.record else { return (Vec::new(), None) };
            let cpus = snapshot.window.cpus.iter().filter(|record| record.cpu < MAX_CPUS);
            (cpus.map(|record| CpuTimeline::of(record, snapshot.window.to)).collect(), Some(snapshot.names()))
        };
        Self(capture.machines.iter().map(of_machine).collect())
    }

    /// Activity of the CPU at a sighting.
    fn doing(&self, capture: &Capture, machine: &str, seen: &PacketSighting) -> Doing {
        let place = capture.machines.iter().position(|m| m.machine == machine);
        let doing = place.and_then(|place| {
            let row = self.0[place].0.iter().find(|row| Some(row.cpu) == seen.cpu.map(u32::from))?;
            Some(row.at(seen.t.checked_add(capture.machines[place].offset_ns)?))
        });
        doing.unwrap_or(Doing::Unknown)
    }

    fn name(&self, capture: &Capture, machine: &str, doing: &Doing) -> String {
        let place = capture.machines.iter().position(|m| m.machine == machine);
        let names = place.and_then(|place| self.0[place].1.as_ref());
        names.map_or_else(|| "unknown".into(), |names| names.of(doing))
    }
}
