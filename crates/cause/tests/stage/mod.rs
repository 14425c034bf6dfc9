//! Handmade captures: events of each machine's CPUs in order of time, and sightings of packets.
#![allow(dead_code, reason = "not every test needs all of it")]

use latpath_capture::{Capture, CaptureKind, MachineSnapshot, Packet};
use latpath_cause::{Analyst, CauseInterval, Executor, PacketTimeline, RunContext};
use latpath_flight::*;
use latpath_model::{Link, Ns, PacketSighting, Point, PointInfo};
use latpath_vms::{Accel, Role, Tap, Vm, VmsByMachine};
use std::collections::BTreeMap;

pub const NET_TX: u32 = 2;
pub const NET_RX: u32 = 3;
pub const OTHER: Class = Class { prio: 120, policy: 0 };

pub fn fifo(priority: i16) -> Class {
    Class { prio: 99 - priority, policy: 1 }
}

/// Events of one CPU. Each has the time set by `at`, and belongs to the current thread.
pub struct Cpu {
    pub cpu: u32,
    t: Ns,
    pid: u32,
    pub record: CpuRecord,
    classes: BTreeMap<u32, Class>,
}

impl Cpu {
    /// Sets the time of the next events.
    pub fn at(&mut self, t: Ns) -> &mut Self {
        assert!(t >= self.t, "{t} is before {}", self.t);
        self.t = t;
        self
    }

    /// Sets the initial thread.
    pub fn runs(&mut self, pid: u32) -> &mut Self {
        self.pid = pid;
        self
    }

    /// Sets the class of a thread for later switches.
    pub fn class(&mut self, pid: u32, class: Class) -> &mut Self {
        self.classes.insert(pid, class);
        self
    }

    pub fn event(&mut self, what: EventKind) -> &mut Self {
        self.record.events.push(Event { t: self.t, pid: self.pid, what });
        self
    }

    pub fn leaves(&mut self, left: Left, next: u32) -> &mut Self {
        let class = |pid: &u32| self.classes.get(pid).copied().unwrap_or(OTHER);
        let (prev, next_class) = (class(&self.pid), class(&next));
        self.event(EventKind::Switch { next, left, prev, next_class });
        self.pid = next;
        self
    }

    /// The current thread falls asleep and another one runs; if the current context is the idle loop, only switches to
    /// the other.
    pub fn sleeps_then(&mut self, next: u32) -> &mut Self {
        match self.pid {
            0 => self.leaves(Left::Ready { preempted: false, throttled: false }, next),
            _ => self.leaves(Left::Asleep(Sleep::Interruptible), next),
        }
    }

    pub fn preempted_by(&mut self, next: u32) -> &mut Self {
        self.leaves(Left::Ready { preempted: true, throttled: false }, next)
    }

    /// Wakes a thread that will run on this CPU.
    pub fn wakes(&mut self, pid: u32, cpu: u32) -> &mut Self {
        let class = self.classes.get(&pid).copied().unwrap_or(OTHER);
        self.event(EventKind::Waking { pid, cpu, class });
        self.event(EventKind::Wakeup { pid, cpu, class, throttled: false })
    }

    pub fn wakes_throttled(&mut self, pid: u32, cpu: u32) -> &mut Self {
        self.event(EventKind::Waking { pid, cpu, class: OTHER });
        self.event(EventKind::Wakeup { pid, cpu, class: OTHER, throttled: true })
    }

    pub fn raises(&mut self, vector: u32) -> &mut Self {
        self.event(EventKind::SoftirqRaise(vector))
    }

    pub fn softirq(&mut self, vector: u32) -> &mut Self {
        self.event(EventKind::SoftirqEntry(vector))
    }

    pub fn softirq_ends(&mut self, vector: u32) -> &mut Self {
        self.event(EventKind::SoftirqExit(vector))
    }

    pub fn irq(&mut self, number: u32) -> &mut Self {
        self.event(EventKind::IrqEntry(number))
    }

    pub fn irq_ends(&mut self, number: u32) -> &mut Self {
        self.event(EventKind::IrqExit(number))
    }

    pub fn vector(&mut self, vector: Vector) -> &mut Self {
        self.event(EventKind::VectorEntry(vector))
    }

    pub fn vector_ends(&mut self, vector: Vector) -> &mut Self {
        self.event(EventKind::VectorExit(vector))
    }

    /// Begins a timer interrupt that runs a timer's function.
    pub fn timer(&mut self, function: u64) -> &mut Self {
        self.vector(Vector::LocalTimer).event(EventKind::HrtimerEntry(function))
    }

    pub fn timer_ends(&mut self) -> &mut Self {
        self.event(EventKind::HrtimerExit).vector_ends(Vector::LocalTimer)
    }

    pub fn polled(&mut self, work: u32) -> &mut Self {
        self.event(EventKind::NapiPoll { name: [0; 16] }).event(EventKind::NapiWork { work, budget: 64, ifindex: 1 })
    }

    pub fn idles(&mut self, state: u32) -> &mut Self {
        self.event(EventKind::Idle(Some(state)))
    }

    pub fn idles_no_more(&mut self) -> &mut Self {
        self.event(EventKind::Idle(None))
    }

    pub fn enters_guest(&mut self, vcpu: u32) -> &mut Self {
        self.event(EventKind::KvmEntry { vcpu: Some(vcpu) })
    }

    pub fn leaves_guest(&mut self, vcpu: u32, reason: u32) -> &mut Self {
        self.event(EventKind::KvmExit { vcpu: Some(vcpu), reason: Some(reason), isa: 1 })
    }
}

/// A capture and its context.
pub struct Stage {
    pub capture: Capture,
    pub points: Vec<PointInfo>,
    /// Virtual machines of the host.
    pub vms: Vec<Vm>,
    /// Virtual machines of machine `b`.
    pub vms_of_b: Vec<Vm>,
}

impl Stage {
    /// A host with threads of these names, whose record covers the times from 0 to 100,000.
    pub fn new(threads: &[(u32, &str)]) -> Self {
        let capture = Capture {
            number: 1,
            kind: CaptureKind::Spike,
            from: 0,
            to: 100_000,
            machines: Vec::new(),
            packets: Vec::new(),
            more_late: 0,
        };
        let mut stage = Self { capture, points: Vec::new(), vms: Vec::new(), vms_of_b: Vec::new() };
        stage.machine("host", 0, threads);
        stage
    }

    /// Adds another machine, whose clock is ahead of the host's by `offset_ns`.
    pub fn machine(&mut self, name: &str, offset_ns: Ns, threads: &[(u32, &str)]) -> &mut Self {
        let mut snapshot = Snapshot {
            window: Window { from: offset_ns, to: offset_ns.saturating_add(100_000), cpus: Vec::new() },
            ..Snapshot::default()
        };
        for (pid, name) in threads {
            snapshot.threads.insert(*pid, Thread { name: (*name).into(), tgid: *pid });
        }
        self.capture.machines.push(MachineSnapshot {
            machine: name.into(),
            offset_ns,
            error_bound_ns: 0,
            record: Ok(snapshot),
        });
        self
    }

    pub fn snapshot(&mut self) -> &mut Snapshot {
        self.capture.machines.last_mut().unwrap().record.as_mut().unwrap()
    }

    /// Adds the events of the next CPU of the last machine, in that machine's clock.
    pub fn cpu(&mut self, events: impl FnOnce(&mut Cpu)) -> &mut Self {
        let window = &mut self.snapshot().window;
        let number = window.cpus.len() as u32;
        let record = CpuRecord { cpu: number, since: window.from, ..CpuRecord::default() };
        let mut cpu = Cpu { cpu: number, t: window.from, pid: 0, record, classes: BTreeMap::new() };
        events(&mut cpu);
        window.cpus.push(cpu.record);
        self
    }

    /// Sets the name of a timer's or work item's function.
    pub fn function(&mut self, address: u64, name: &str) -> &mut Self {
        self.snapshot().functions.insert(address, name.into());
        self
    }

    fn point(&mut self, text: &str) -> u16 {
        let point: Point = text.parse().unwrap();
        let known = self.points.iter().position(|p| p.point == point);
        known.unwrap_or_else(|| {
            let link = match &point.device {
                d if d.starts_with("tap") => Link::Tap,
                d if d.starts_with("veth") => Link::Veth,
                _ => Link::Nic,
            };
            self.points.push(PointInfo { link, ..latpath_testkit::point(text) });
            self.points.len() - 1
        }) as u16
    }

    /// Adds a packet with its sightings: point, time on the host's timeline, CPU, thread ID.
    pub fn packet(&mut self, sightings: &[(&str, Ns, u16, u32)]) -> &mut Self {
        let seen = |(point, t, cpu, tid): &(&str, Ns, u16, u32)| PacketSighting {
            point: self.point(point),
            t: *t,
            cpu: Some(*cpu),
            tid: Some(*tid),
        };
        let sightings: Vec<PacketSighting> = sightings.iter().map(seen).collect();
        let number = self.capture.packets.len() as u64;
        self.capture.packets.push(Packet { stream: 0, key: number as u32, number, late: true, sightings });
        self
    }

    /// The context of the capture.
    pub fn context(&self) -> RunContext {
        let mut vms: VmsByMachine = self.vms.clone().into();
        vms.set("b", self.vms_of_b.clone());
        RunContext { points: self.points.clone(), vms, ..RunContext::default() }
    }

    /// The intervals of the last packet, from its first to its last sighting.
    pub fn intervals(&self) -> Vec<CauseInterval> {
        let packet = self.capture.packets.last().unwrap();
        let (a, b) = (packet.sightings.first().unwrap(), packet.sightings.last().unwrap());
        let intervals = Analyst::new(&self.capture, &self.context()).explain(packet, a, b);
        let mut cursor = a.t;
        for interval in &intervals {
            assert!(interval.from == cursor && interval.to > interval.from, "{intervals:#?}");
            cursor = interval.to;
        }
        assert_eq!(cursor, b.t);
        intervals
    }

    /// The timeline of the last packet; all its sightings are on its route.
    pub fn timeline(&self) -> PacketTimeline {
        let packet = self.capture.packets.last().unwrap();
        PacketTimeline::of(&Analyst::new(&self.capture, &self.context()), &self.capture, packet, &[], &self.points)
    }

    /// The intervals as lines: `from-to cause actor < by #number`; missing parts are omitted.
    pub fn explained(&self) -> Vec<String> {
        self.intervals().iter().map(line).collect()
    }
}

pub fn line(interval: &CauseInterval) -> String {
    let name = |executor: &Option<Executor>| executor.as_ref().map(|executor| executor.name.clone());
    let mut text = format!("{}-{} {}", interval.from, interval.to, interval.cause);
    if let Some(actor) = name(&interval.actor) {
        text += &format!(" {actor}");
    }
    if let Some(by) = name(&interval.by) {
        text += &format!(" < {by}");
    }
    if let Some(number) = interval.number {
        text += &format!(" #{number}");
    }
    text
}

/// A virtual machine with one tap and these threads: thread ID, role, and vCPU index.
pub fn vm(name: &str, tap: &str, threads: &[(u32, Role, Option<u32>)]) -> Vm {
    let thread = |&(tid, role, vcpu): &_| latpath_vms::Thread { tid, role, vcpu, ..Default::default() };
    let tap = Tap { device: tap.into(), ifindex: Some(1), netns: Some(1), queues: 1, ..Tap::default() };
    Vm {
        name: name.into(),
        pid: threads[0].0,
        program: "qemu-system-x86_64".into(),
        accel: Accel::Kvm,
        netns: Some(1),
        taps: vec![tap],
        threads: threads.iter().map(thread).collect(),
        ..Vm::default()
    }
}
