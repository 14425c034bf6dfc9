//! The context of a run's captures: points, routes and segments, streams, virtual machines, CPUs, clocks.

use crate::actor::{Actor, Process};
use crate::{guests, Executor};
use latpath_capture::Capture;
use latpath_clock::TimeOfDay;
use latpath_journey::Segment;
use latpath_linux::{Cpus, Owner};
use latpath_model::{Ns, PointId, PointInfo, SegmentKind, StreamId, StreamSpec, HOST};
use latpath_vms::{Thread, Vm, VmsByMachine};
use std::collections::{BTreeMap, HashMap};

/// Maximum number of threads per machine whose process is remembered.
const MAX_THREADS: usize = 1 << 16;

/// The context needed to explain, report and export a run or a recording in progress.
#[derive(Clone, Debug, Default)]
pub struct RunContext {
    /// All points, indexed by their ids.
    pub points: Vec<PointInfo>,
    /// Route of each stream: its points in the order in which packets pass.
    pub routes: Vec<Vec<PointId>>,
    /// Segments of the layout.
    pub segments: Vec<Segment>,
    /// Streams, indexed by their ids.
    pub streams: Vec<StreamSpec>,
    /// The virtual machines of each machine.
    pub vms: VmsByMachine,
    /// Machine on which each guest runs, if the user specified it.
    pub named_hypervisors: BTreeMap<String, String>,
    /// Machine on which each guest runs, if captures have shown it.
    pub hypervisors: HashMap<String, String>,
    /// Process of each thread, by machine and thread ID, as learnt from captures.
    pub processes: BTreeMap<String, HashMap<u32, Process>>,
    /// CPUs of each machine, if known.
    pub cpus: BTreeMap<String, Cpus>,
    /// The host's frequency governors.
    pub governors: Vec<String>,
    /// Whether the host is itself a virtual machine.
    pub is_virtual: bool,
    /// Kinds of queueing disciplines (the root's, then its children's) on each of the host's devices, by network
    /// namespace and device index.
    pub qdiscs: HashMap<(u32, u32), Vec<String>>,
    /// Kernel release of each machine, if known.
    pub kernels: BTreeMap<String, String>,
    /// Start of the run on its own timeline, ns.
    pub start_ns: Ns,
    /// Relation of the timeline to UTC.
    pub time_of_day: TimeOfDay,
}

impl RunContext {
    /// Route of a stream; empty if unknown.
    pub fn route(&self, stream: StreamId) -> &[PointId] {
        self.routes.get(usize::from(stream)).map_or(&[], Vec::as_slice)
    }

    /// Name of a point.
    pub fn point(&self, id: PointId) -> String {
        self.points.get(usize::from(id)).map_or_else(|| format!("point {id}"), |p| p.point.to_string())
    }

    /// Short name of a stream.
    pub fn stream(&self, id: StreamId) -> String {
        self.streams.get(usize::from(id)).map_or_else(|| format!("stream {id}"), StreamSpec::short)
    }

    /// The shortest named segment that contains the hop.
    pub fn segment_of(&self, (from, to): (PointId, PointId)) -> Option<&Segment> {
        let place = |route: &[PointId], point| route.iter().position(|p| *p == point);
        let named = self.segments.iter().filter(|s| !matches!(s.kind, SegmentKind::Total | SegmentKind::Step));
        let mut best: Option<(usize, &Segment)> = None;
        for segment in named {
            for route in &self.routes {
                let places = [segment.from, from, to, segment.to].map(|p| place(route, p));
                if let [Some(a), Some(b), Some(c), Some(d)] = places {
                    if a <= b && b <= c && c <= d && best.is_none_or(|(width, _)| d - a < width) {
                        best = Some((d - a, segment));
                    }
                }
            }
        }
        best.map(|(_, segment)| segment)
    }

    /// Name of a hop's segment, or else its two points.
    pub fn segment(&self, hop: (PointId, PointId)) -> String {
        let ends = || format!("{}→{}", self.point(hop.0), self.point(hop.1));
        self.segment_of(hop).map_or_else(ends, |segment| segment.name.clone())
    }

    /// Converts a time to UTC, ns since 1970.
    pub fn utc(&self, t: Ns) -> Ns {
        self.time_of_day.utc(t)
    }

    /// Adds the CPUs, processes and guests that a capture shows.
    pub fn learn(&mut self, capture: &Capture) {
        let hypervisors = guests::hypervisors(capture, self);
        self.hypervisors.extend(hypervisors);
        self.learn_cpus(capture);
        self.learn_processes(capture);
    }

    fn learn_processes(&mut self, capture: &Capture) {
        for machine in &capture.machines {
            let Ok(snapshot) = &machine.record else { continue };
            let known = self.processes.entry(machine.machine.clone()).or_default();
            if known.len() + snapshot.threads.len() > MAX_THREADS {
                known.clear();
            }
            for (tid, thread) in &snapshot.threads {
                // Skips threads of processes whose first thread has no name in the record.
                let Some(first) = snapshot.threads.get(&thread.tgid).filter(|first| first.tgid == thread.tgid) else {
                    known.remove(tid);
                    continue;
                };
                let unit = snapshot.units.get(&thread.tgid).cloned();
                // Earlier versions recorded only the unit.
                let of_unit = || Some(Owner::of_path(unit.as_deref()?)?.to_string());
                let owner = snapshot.owners.get(&thread.tgid).cloned().or_else(of_unit);
                known.insert(*tid, Process { pid: thread.tgid, name: first.name.clone(), unit, owner });
            }
        }
    }

    fn learn_cpus(&mut self, capture: &Capture) {
        for machine in &capture.machines {
            let Ok(snapshot) = &machine.record else { continue };
            if machine.machine == HOST && self.cpus.contains_key(HOST) {
                continue;
            }
            let known = self.cpus.entry(machine.machine.clone()).or_default();
            for cpu in &snapshot.window.cpus {
                if !known.contains(cpu.cpu) {
                    cpu.cpu.to_string().parse().into_iter().for_each(|one| known.join(one));
                }
            }
        }
    }

    /// The virtual machine for which a thread of a machine works, and the thread's role.
    pub fn vm_of(&self, machine: &str, pid: u32) -> Option<(&Vm, &Thread)> {
        self.vms.of_thread(machine, pid)
    }

    /// The machine on which a guest runs; the host if that is not known.
    pub fn hypervisor_of(&self, guest: &str) -> &str {
        self.named_hypervisors.get(guest).or(self.hypervisors.get(guest)).map_or(HOST, String::as_str)
    }

    /// The actor that corresponds to a thread, softirq or interrupt of a machine.
    pub fn actor(&self, machine: &str, executor: &Executor) -> Actor {
        let pid = executor.doing.thread();
        let vm = pid.and_then(|pid| self.vm_of(machine, pid));
        let process = pid.and_then(|pid| self.processes.get(machine)?.get(&pid));
        Actor::new(executor, vm, process)
    }

    /// The culprit that corresponds to a thread, softirq or interrupt of a machine: its process, or latpath as a whole.
    pub fn culprit(&self, machine: &str, executor: &Executor) -> Actor {
        let pid = executor.doing.thread();
        self.actor(machine, executor).culprit(pid.is_some_and(|pid| self.vm_of(machine, pid).is_some()))
    }
}
