//! Events without an equivalent in Perfetto: a vCPU's entries into and exits from its guest, polls of devices, timers.

use crate::kernel::{Place, MAX_CPUS};
use crate::writer::Track;
use crate::writer::{EventInfo, Writer};
use latpath_flight::{Event, EventKind};
use latpath_model::text::{of_field, printable};
use latpath_model::Ns;
use std::collections::{BTreeMap, HashMap};
use std::io;

/// The slices that are open in a machine's rows.
#[derive(Default)]
pub(crate) struct Details {
    /// Threads with an open slice: the thread's row, and the start of the slice.
    vcpus: BTreeMap<u32, (u64, u64)>,
    /// CPUs that run a timer's function, and their rows.
    timers: BTreeMap<u32, u64>,
    /// The device that each CPU polls.
    polls: HashMap<u32, String>,
    until: Option<Ns>,
}

impl Details {
    /// Writes the events, which must be in order of time, each with its CPU.
    pub fn snapshot(&mut self, out: &mut Writer, place: &Place, events: &[(u32, &Event)]) -> io::Result<()> {
        let window = &place.snapshot.window;
        let since = window.cpus.iter().map(|record| record.since).min();
        if let Some(until) = self.until.filter(|until| since.is_some_and(|since| since > *until)) {
            self.close(out, place, until)?;
        }
        for (cpu, event) in events.iter().filter(|(cpu, _)| *cpu < MAX_CPUS) {
            let Some(t) = place.shift.host(event.t) else { continue };
            self.event(out, place, *cpu, t, event)?;
        }
        let last = events.last().map(|(_, event)| event.t);
        self.until = self.until.max(last).max(Some(window.to));
        Ok(())
    }

    /// Closes open slices at the end of the record.
    fn close(&mut self, out: &mut Writer, place: &Place, until: Ns) -> io::Result<()> {
        let Some(t) = place.shift.host(until) else { return Ok(()) };
        for (track, _) in std::mem::take(&mut self.vcpus).into_values() {
            out.end(place.machine, t, track)?;
        }
        for track in std::mem::take(&mut self.timers).into_values() {
            out.end(0, t, track)?;
        }
        self.polls.clear();
        Ok(())
    }

    fn event(&mut self, out: &mut Writer, place: &Place, cpu: u32, t: u64, event: &Event) -> io::Result<()> {
        let pid = event.pid;
        let info = match event.what {
            EventKind::KvmEntry { vcpu } => return self.turn(out, place, t, pid, with_vcpu("in its guest", vcpu)),
            EventKind::KvmExit { vcpu, reason, isa } => {
                return self.turn(out, place, t, pid, with_vcpu(exited(isa, reason), vcpu));
            }
            EventKind::KvmHaltPoll { ns, before, .. } => {
                let Some((track, began)) = self.vcpus.get(&pid).copied() else { return Ok(()) };
                let from = t.saturating_sub(u64::from(ns)).max(began);
                let info = EventInfo::named("halted: polls").arg("poll_ns", i64::from(ns));
                out.begin(place.machine, from, track, info.arg("poll_ns_before", i64::from(before)))?;
                return out.end(place.machine, t, track);
            }
            EventKind::KvmVcpuWakeup { ns, waited, .. } => {
                let how = if waited { "slept" } else { "polled" };
                EventInfo::named("vCPU woken").arg("halted_ns", ns).arg("it", how)
            }
            EventKind::KvmInjVirq(vector) => EventInfo::named("interrupt injected").arg("vector", i64::from(vector)),
            EventKind::ReclaimBegin => EventInfo::named("begins to free memory"),
            EventKind::ReclaimEnd => EventInfo::named("has freed memory"),
            EventKind::PageFaults(count) => EventInfo::named("page faults").arg("count", count as i64),
            EventKind::OvsUpcall { .. } => EventInfo::named("OVS upcall"),
            EventKind::NapiPoll { name } => {
                self.polls.insert(cpu, printable(&of_field(&name)));
                return Ok(());
            }
            EventKind::NapiWork { work, budget, ifindex } => {
                let device = self.polls.remove(&cpu).unwrap_or_else(|| "backlog".into());
                let info = EventInfo::named(format!("{device}: {work} of {budget}")).arg("packets", i64::from(work));
                let info = info.arg("budget", i64::from(budget)).arg("ifindex", i64::from(ifindex));
                let track = poll_track(out, place, cpu)?;
                return out.instant(0, t, track, info);
            }
            EventKind::TimerEntry(function) => {
                let track = poll_track(out, place, cpu)?;
                if self.timers.insert(cpu, track).is_some() {
                    out.end(0, t, track)?;
                }
                return out.begin(0, t, track, EventInfo::named(place.names.of_function(function)));
            }
            EventKind::TimerExit => {
                return self.timers.remove(&cpu).map_or(Ok(()), |track| out.end(0, t, track));
            }
            _ => return Ok(()),
        };
        let track = out.thread(place.machine, pid, place.thread_names)?;
        track.map_or(Ok(()), |track| out.instant(place.machine, t, track, info))
    }

    /// Ends a vCPU thread's slice and begins the next one, inside or outside its guest.
    fn turn(&mut self, out: &mut Writer, place: &Place, t: u64, pid: u32, info: EventInfo) -> io::Result<()> {
        let Some(track) = out.thread(place.machine, pid, place.thread_names)? else { return Ok(()) };
        if self.vcpus.insert(pid, (track, t)).is_some() {
            out.end(place.machine, t, track)?;
        }
        out.begin(place.machine, t, track, info)
    }
}

/// Name of a vCPU's slice outside its guest.
fn exited(isa: u32, reason: Option<u32>) -> String {
    match reason.map(|reason| (reason, latpath_cause::exit_name(isa, reason))) {
        None => "out of its guest".into(),
        Some((_, Some(name))) => format!("exit: {name}"),
        Some((reason, None)) => format!("exit: reason {reason}"),
    }
}

fn with_vcpu(name: impl Into<String>, vcpu: Option<u32>) -> EventInfo {
    EventInfo::named(name).maybe("vcpu", vcpu.map(i64::from))
}

fn poll_track(out: &mut Writer, place: &Place, cpu: u32) -> io::Result<u64> {
    out.row(Track::Poll(place.machine, cpu), || format!("{} CPU {cpu}", place.name))
}
