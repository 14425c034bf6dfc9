//! Checks a schedule against its streams, its link and the clocks of its machine. Changes nothing.

use crate::crossing::{crossings, problem, Crossing, Problem, Tap};
use crate::{Mode, Schedule, ASSUMED_MBIT};
use latpath_model::Ns;
use latpath_net::PriorityFilter;
use latpath_stats::units::duration;
use schemars::JsonSchema;
use serde::Serialize;

/// Bytes that each frame takes on the wire beyond its own: preamble and start delimiter, check sequence, and the gap to
/// the next frame (IEEE 802.3).
const ON_THE_WIRE: u32 = 8 + 4 + 12;
const VLAN_TAG: u32 = 4;
/// Minimum length of a frame without its check sequence, bytes.
const SHORTEST: u32 = 60;
/// Length of the longest PTP message that must fit: Announce or Follow_Up over UDP and IPv6; a VLAN tag is added.
const PTP_FRAME: u32 = 14 + 40 + 8 + 64;
/// Maximum number of phases at which two periods count as resonant.
const FEW_PHASES: i64 = 16;

/// Facts about the machine that the check uses.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Whether the device exists here.
    pub is_present: bool,
    /// The device's speed, Mbit/s; `None` if it does not exist or the kernel does not know it.
    pub speed: Option<u32>,
    /// Number of the device's transmit queues; `None` if unknown.
    pub tx_queues: Option<u32>,
    /// The kernel's timer tick, ns; `None` if unknown.
    pub tick: Option<Ns>,
    /// The devices through which frames of VMs enter the host.
    pub taps: Vec<Tap>,
    /// The device's egress filters that set priorities.
    pub sent: Vec<PriorityFilter>,
}

/// Origin of the link's speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpeedSource {
    /// Key `link_speed` of the file.
    File,
    /// The device.
    Device,
    /// The kernel's assumption for an unknown speed: 10 Mbit/s.
    Assumed,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The schedule cannot work as intended.
    Fault,
    /// The schedule works, with a risk.
    Warning,
}

/// A result of the check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Finding {
    /// Severity.
    pub severity: Severity,
    /// What it is about: a key of the file, a stream, or the device.
    pub subject: String,
    /// The finding, its consequence and the next step.
    pub text: String,
}

/// The time in which the gate of a class is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ClassWindows {
    /// The class.
    pub class: String,
    /// Open time per cycle, ns.
    pub open_ns: Ns,
    /// Longest uninterrupted open time, ns; it may extend beyond the end of a cycle.
    pub longest_ns: Ns,
    /// Longest closed time, ns: the maximum wait of a packet that could otherwise be sent at once.
    pub closed_ns: Ns,
    /// Time that the class's streams need per cycle on average, ns.
    pub needed_ns: Ns,
}

/// Whether a stream's frames fit into the gate of their class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StreamFit {
    /// The stream.
    pub stream: String,
    /// Its class.
    pub class: String,
    /// Time of one frame on the wire, ns, with preamble, VLAN tag, check sequence and gap.
    pub frame_ns: Ns,
    /// Time of all frames that are sent together, ns.
    pub group_ns: Ns,
    /// Whether a frame fits into the longest open time.
    pub fits: bool,
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Report {
    /// The device.
    pub device: String,
    /// The speed for which the schedule was checked, Mbit/s.
    pub link_speed_mbit: u32,
    /// Origin of that speed.
    pub link_speed_from: SpeedSource,
    /// Length of a cycle, ns.
    pub cycle_ns: Ns,
    /// Open times of the classes.
    pub classes: Vec<ClassWindows>,
    /// The streams.
    pub streams: Vec<StreamFit>,
    /// The classes of frames from VMs.
    pub crossings: Vec<Crossing>,
    /// Findings, faults first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether the schedule cannot work as intended.
    pub fn has_fault(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Fault)
    }
}

/// Upper bound of the time that a frame of `size` bytes (without its VLAN tag) takes at a speed, ns: rounded down, plus
/// 1.
fn on_the_wire(size: u32, vlan: bool, mbit: u32) -> Ns {
    let bytes = size.max(SHORTEST) + ON_THE_WIRE + if vlan { VLAN_TAG } else { 0 };
    (Ns::from(bytes) * 8 * 1000).div_euclid(mbit.max(1).into()) + 1
}

/// Open intervals of a class in a cycle, as (start, end), ns. If one continues in the next cycle, its end lies beyond
/// the end of this cycle.
fn windows(schedule: &Schedule, class: usize) -> Vec<(Ns, Ns)> {
    let mut all: Vec<(Ns, Ns)> = Vec::new();
    let mut at = 0;
    for (number, gates) in schedule.gates.iter().enumerate() {
        let is_last = number + 1 == schedule.gates.len();
        // The kernel extends the last entry to the end of the cycle, and cuts off entries that would pass it.
        let end = if is_last { schedule.cycle } else { at + Ns::from(gates.interval_ns) }.min(schedule.cycle);
        if gates.open >> class & 1 == 1 && end > at {
            match all.last_mut().filter(|(_, before)| *before == at) {
                Some((_, before)) => *before = end,
                None => all.push((at, end)),
            }
        }
        at = end;
    }
    match (all.first().copied(), all.len()) {
        (Some((0, first)), 2..) if all.last().is_some_and(|(_, end)| *end == schedule.cycle) => {
            all.remove(0);
            all.iter_mut().last().into_iter().for_each(|(_, end)| *end += first);
        }
        _ => {}
    }
    all
}

fn class_windows(schedule: &Schedule, class: usize, mbit: u32) -> ClassWindows {
    let all = windows(schedule, class);
    let length = |(from, to): &(Ns, Ns)| to - from;
    let next = all.iter().skip(1).map(|(from, _)| *from).chain(all.first().map(|(from, _)| from + schedule.cycle));
    let closed = all.iter().zip(next).map(|((_, end), next)| next - end).max();
    let needed = schedule.streams.iter().filter(|stream| stream.class == class).map(|stream| {
        let group = on_the_wire(stream.size, stream.vlan, mbit) * Ns::from(stream.frames);
        i128::from(group) * i128::from(schedule.cycle) / i128::from(stream.period)
    });
    ClassWindows {
        class: schedule.classes[class].name.clone(),
        open_ns: all.iter().map(length).sum(),
        longest_ns: all.iter().map(length).max().unwrap_or(0),
        closed_ns: closed.unwrap_or(schedule.cycle).max(0),
        needed_ns: Ns::try_from(needed.sum::<i128>()).unwrap_or(Ns::MAX),
    }
}

fn gcd(a: Ns, b: Ns) -> Ns {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

/// Number of different phases of `period` at which an event with the period `every` can occur.
fn phases(every: Ns, period: Ns) -> Ns {
    period / gcd(every, period)
}

/// Checks a schedule.
pub fn check(schedule: &Schedule, around: &Surroundings) -> Report {
    let (speed, from) = match (schedule.link_speed, around.speed) {
        (Some(mbit), _) => (mbit, SpeedSource::File),
        (None, Some(mbit)) => (mbit, SpeedSource::Device),
        (None, None) => (ASSUMED_MBIT, SpeedSource::Assumed),
    };
    let classes: Vec<_> = (0..schedule.classes.len()).map(|class| class_windows(schedule, class, speed)).collect();
    let of = |stream: &crate::Stream| {
        let frame = on_the_wire(stream.size, stream.vlan, speed);
        let class = &classes[stream.class];
        StreamFit {
            stream: stream.name.clone(),
            class: class.class.clone(),
            frame_ns: frame,
            group_ns: frame * Ns::from(stream.frames),
            fits: frame <= class.longest_ns,
        }
    };
    let streams: Vec<StreamFit> = schedule.streams.iter().map(of).collect();
    let mut findings = Findings(Vec::new());
    findings.device(schedule, around, from);
    findings.entries(schedule, speed);
    findings.streams(schedule, &classes, &streams, speed);
    findings.ptp(schedule, &classes, speed);
    findings.resonances(schedule, around);
    let crossings = crossings(schedule, &around.taps, &around.sent);
    findings.crossings(schedule, &crossings, &around.taps);
    let Findings(mut findings) = findings;
    findings.sort_by_key(|finding| finding.severity);
    let (device, cycle_ns) = (schedule.device.clone(), schedule.cycle);
    Report { device, link_speed_mbit: speed, link_speed_from: from, cycle_ns, classes, streams, crossings, findings }
}

struct Findings(Vec<Finding>);

impl Findings {
    fn fault(&mut self, subject: impl Into<String>, text: String) {
        self.0.push(Finding { severity: Severity::Fault, subject: subject.into(), text });
    }

    fn warning(&mut self, subject: impl Into<String>, text: String) {
        self.0.push(Finding { severity: Severity::Warning, subject: subject.into(), text });
    }

    fn device(&mut self, schedule: &Schedule, around: &Surroundings, from: SpeedSource) {
        let device = &schedule.device;
        let set = |mbit: u32| format!("ethtool -s {device} speed {mbit} duplex full");
        if around.is_present && around.speed.is_none() && schedule.mode != Mode::Offload {
            self.fault(
                device,
                format!(
                    "the speed of its link is unknown, as of taps and virtio-net; the kernel assumes {ASSUMED_MBIT} Mbit/s, so frames \
                     do not fit into their gates; set it before: {}",
                    set(schedule.link_speed.unwrap_or(1000))
                ),
            );
        } else if from == SpeedSource::Assumed {
            self.fault(
                device,
                format!("the speed of its link is unknown here; checked with {ASSUMED_MBIT} Mbit/s, which the kernel assumes; write link_speed = MBIT"),
            );
        }
        match (schedule.link_speed, around.speed) {
            (Some(file), Some(now)) if file != now => {
                self.fault(device, format!("its link has {now} Mbit/s, not {file} as link_speed has it"));
            }
            _ => {}
        }
        match around.tx_queues {
            Some(1) => self.fault(device, "it has one transmit queue, and taprio needs a device with several; create virtual devices with: ip link add … numtxqueues N".into()),
            Some(queues) if queues < schedule.queues() => {
                self.fault("class", format!("the classes have {} queues, and {device} has {queues}", schedule.queues()));
            }
            _ => {}
        }
    }

    fn entries(&mut self, schedule: &Schedule, speed: u32) {
        let sum = schedule.sum();
        if schedule.cycle < sum {
            self.fault(
                "cycle",
                format!(
                    "the entries take {}, and the cycle ends after {}: the kernel cuts the rest",
                    duration(sum),
                    duration(schedule.cycle)
                ),
            );
        } else if schedule.cycle > sum {
            let more = duration(schedule.cycle - sum);
            self.warning(
                "cycle",
                format!("the cycle is {more} longer than its entries: the last one lasts longer by that"),
            );
        }
        // Minimum as in net/sched/sch_taprio.c, fill_sched_entry.
        let least = Ns::from(SHORTEST) * 8 * 1000 / Ns::from(speed.max(1));
        for (at, gates) in schedule.gates.iter().enumerate() {
            if Ns::from(gates.interval_ns) < least {
                let (interval, least) = (duration(gates.interval_ns.into()), duration(least));
                let subject = format!("gate.{}.interval", at + 1);
                self.fault(subject, format!("{interval} is too short for any frame at {speed} Mbit/s, and the kernel refuses it: {least} or longer"));
            }
        }
    }

    fn streams(&mut self, schedule: &Schedule, classes: &[ClassWindows], streams: &[StreamFit], speed: u32) {
        for fit in streams.iter().filter(|fit| !fit.fits) {
            let longest = classes.iter().find(|class| class.class == fit.class).map_or(0, |class| class.longest_ns);
            let text = match longest {
                0 => format!("the gate of its class {} never opens", fit.class),
                longest => format!(
                    "a frame takes {} at {speed} Mbit/s, and the gate of class {} is open for {} at most: it is never sent",
                    duration(fit.frame_ns),
                    fit.class,
                    duration(longest)
                ),
            };
            self.fault(&fit.stream, text);
        }
        for class in classes.iter().filter(|class| class.needed_ns > class.open_ns && class.open_ns > 0) {
            self.fault(
                format!("class {}", class.class),
                format!(
                    "its streams need {} of each cycle, and its gate is open for {}: its queue grows without end",
                    duration(class.needed_ns),
                    duration(class.open_ns)
                ),
            );
        }
        for (fit, stream) in streams.iter().zip(&schedule.streams).filter(|(fit, _)| fit.fits) {
            let class = &classes[stream.class];
            if fit.group_ns > class.longest_ns {
                self.warning(
                    &fit.stream,
                    format!(
                        "{} frames take {} together, and the gate is open for {} at once: the last ones wait for a later slot",
                        stream.frames,
                        duration(fit.group_ns),
                        duration(class.longest_ns)
                    ),
                );
            }
        }
    }

    fn crossings(&mut self, schedule: &Schedule, crossings: &[Crossing], taps: &[Tap]) {
        let streams = schedule.streams.iter().filter(|stream| stream.from.is_some());
        for (stream, crossing) in streams.zip(crossings) {
            let tap = taps.iter().find(|tap| tap.device == crossing.from);
            match problem(schedule, stream, crossing, tap) {
                Some(Problem::Fault(text)) => self.fault(&stream.name, text),
                Some(Problem::Warning(text)) => self.warning(&stream.name, text),
                None => {}
            }
        }
    }

    fn ptp(&mut self, schedule: &Schedule, classes: &[ClassWindows], speed: u32) {
        let Some(class) = schedule.ptp else {
            let text = "no class has PTP's messages; name it (ptp = CLASS), with the priority that ptp4l gives them (socket_priority)";
            return self.fault("ptp", text.into());
        };
        let (class, frame) = (&classes[class], on_the_wire(PTP_FRAME, true, speed));
        if class.longest_ns < frame {
            self.fault(
                "ptp",
                format!(
                    "PTP has no slot in the cycle: the gate of class {} is open for {} at most, and a message takes {}; messages are \
                     never sent, and the clocks drift apart",
                    class.class,
                    duration(class.longest_ns),
                    duration(frame)
                ),
            );
        }
    }

    fn resonances(&mut self, schedule: &Schedule, around: &Surroundings) {
        let tick = schedule.tick.or(around.tick);
        if tick.is_none() {
            self.warning("tick", "the kernel's tick is unknown here (CONFIG_HZ): resonances with it were not checked; write tick = \"4ms\"".into());
        }
        let events =
            tick.map(|tick| ("the timer tick", tick)).into_iter().chain([("PTP's Sync", schedule.ptp_interval)]);
        for (event, every) in events {
            let of_cycle = phases(every, schedule.cycle);
            if of_cycle <= FEW_PHASES {
                self.warning(
                    "cycle",
                    format!(
                        "{event} ({}) falls on {} of the cycle ({}): a slot that it delays once, it delays always; an odd or prime length, \
                         as 499.979 us, spreads it",
                        duration(every),
                        places(of_cycle),
                        duration(schedule.cycle)
                    ),
                );
            }
            for stream in &schedule.streams {
                // Warn if the event meets the packets of a stream at only a few phases of their period.
                let of_stream = phases(every, stream.period);
                if of_stream <= FEW_PHASES {
                    self.warning(
                        &stream.name,
                        format!(
                            "{event} ({}) falls on {} of the talker's period ({}): the packets that it meets, it meets always",
                            duration(every),
                            places(of_stream),
                            duration(stream.period)
                        ),
                    );
                }
            }
        }
        for stream in &schedule.streams {
            let places_in_cycle = phases(stream.period, schedule.cycle);
            if places_in_cycle > 1 && places_in_cycle <= FEW_PHASES {
                self.warning(
                    &stream.name,
                    format!(
                        "its period ({}) is no multiple of the cycle ({}): its packets come at {} of it, and some may wait for their \
                         slot each time",
                        duration(stream.period),
                        duration(schedule.cycle),
                        places(places_in_cycle)
                    ),
                );
            }
        }
    }
}

fn places(n: Ns) -> String {
    match n {
        1 => "one place".into(),
        n => format!("{n} places"),
    }
}
