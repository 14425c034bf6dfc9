//! What a run knows beside its captures: points, routes and their segments, streams, virtual machines, CPUs, clocks.

use crate::actor::{Actor, Process};
use crate::Executor;
use latpath_capture::Capture;
use latpath_clock::TimeOfDay;
use latpath_journey::Segment;
use latpath_linux::Cpus;
use latpath_model::{Ns, PointId, PointInfo, SegmentKind, StreamId, StreamSpec, HOST};
use latpath_vms::{Thread, Vm};
use std::collections::{BTreeMap, HashMap};

/// Threads whose processes are remembered.
const MAX_THREADS: usize = 1 << 16;

/// What explaining, reporting and exporting a run, or a recording under way, need to know.
#[derive(Clone, Debug, Default)]
pub struct RunContext {
    pub points: Vec<PointInfo>,
    /// Each stream's route: its points in the order in which packets pass.
    pub routes: Vec<Vec<PointId>>,
    pub segments: Vec<Segment>,
    pub streams: Vec<StreamSpec>,
    /// The host's virtual machines.
    pub vms: Vec<Vm>,
    /// The process of each machine's threads, as far as captures name them.
    pub processes: BTreeMap<String, HashMap<u32, Process>>,
    /// Each machine's CPUs, as far as they are known.
    pub cpus: BTreeMap<String, Cpus>,
    /// The host's frequency governors.
    pub governors: Vec<String>,
    /// The host is a virtual machine itself.
    pub is_virtual: bool,
    /// The kinds of queueing disciplines of the host's devices, by network namespace and index: the device's own, then those below it.
    pub qdiscs: HashMap<(u32, u32), Vec<String>>,
    /// Each machine's kernel release, as far as it is known.
    pub kernels: BTreeMap<String, String>,
    /// When the run began, on its own timeline.
    pub start_ns: Ns,
    /// UTC of the times.
    pub time_of_day: TimeOfDay,
}

impl RunContext {
    /// A stream's route; empty where it is not known.
    pub fn route(&self, stream: StreamId) -> &[PointId] {
        self.routes.get(usize::from(stream)).map_or(&[], Vec::as_slice)
    }

    /// A point's name.
    pub fn point(&self, id: PointId) -> String {
        self.points.get(usize::from(id)).map_or_else(|| format!("point {id}"), |p| p.point.to_string())
    }

    /// A stream's short name.
    pub fn stream(&self, id: StreamId) -> String {
        self.streams.get(usize::from(id)).map_or_else(|| format!("stream {id}"), StreamSpec::short)
    }

    /// The shortest segment with a name of its own that holds all of a hop.
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

    /// The name of a hop's segment; its ends where there is none.
    pub fn segment(&self, hop: (PointId, PointId)) -> String {
        let ends = || format!("{}→{}", self.point(hop.0), self.point(hop.1));
        self.segment_of(hop).map_or_else(ends, |segment| segment.name.clone())
    }

    /// A time as UTC, ns since 1970.
    pub fn utc(&self, t: Ns) -> Ns {
        self.time_of_day.utc(t)
    }

    /// Learns the machines' CPUs and the threads' processes from a capture.
    pub fn learn(&mut self, capture: &Capture) {
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
                // A process whose first thread has no name here is not known.
                let Some(first) = snapshot.threads.get(&thread.tgid).filter(|first| first.tgid == thread.tgid) else {
                    known.remove(tid);
                    continue;
                };
                let unit = snapshot.units.get(&thread.tgid).cloned();
                known.insert(*tid, Process { pid: thread.tgid, name: first.name.clone(), unit });
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

    /// The virtual machine and its thread of this number. Only the host's threads are known.
    pub fn vm_of(&self, machine: &str, pid: u32) -> Option<(&Vm, &Thread)> {
        if machine != HOST || pid == 0 {
            return None;
        }
        self.vms.iter().find_map(|vm| Some((vm, vm.threads.iter().find(|t| t.tid == pid)?)))
    }

    /// The actor that a thread, softirq or interrupt of a machine is.
    pub fn actor(&self, machine: &str, executor: &Executor) -> Actor {
        let pid = executor.doing.thread();
        let vm = pid.and_then(|pid| self.vm_of(machine, pid));
        let process = pid.and_then(|pid| self.processes.get(machine)?.get(&pid));
        Actor::new(executor, vm, process)
    }

    /// The culprit that a thread, softirq or interrupt of a machine is: its process, or latpath as a whole.
    pub fn culprit(&self, machine: &str, executor: &Executor) -> Actor {
        let pid = executor.doing.thread();
        self.actor(machine, executor).culprit(pid.is_some_and(|pid| self.vm_of(machine, pid).is_some()))
    }
}
