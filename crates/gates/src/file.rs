//! The file of a schedule: its keys, and which values can work together.

use crate::{Error, Result};
use latpath_model::Ns;
use latpath_net::{Gates, Shaping, TrafficClasses};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use std::{fs::File, io::Read, path::Path};

/// Maximum size of a file, bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Maximum number of traffic classes and of priorities (TC_QOPT_MAX_QUEUE, TC_QOPT_BITMASK).
const MAX_CLASSES: usize = 16;
/// Maximum number of entries; hardware has 16 to 256.
const MAX_GATES: usize = 1024;
const MAX_STREAMS: usize = 1024;
/// CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_TAI: names in the file, and clock IDs.
const CLOCKS: [(&str, i32); 3] = [("realtime", 0), ("monotonic", 1), ("tai", 11)];
/// Flags of taprio: TCA_TAPRIO_ATTR_FLAG_TXTIME_ASSIST, …_FULL_OFFLOAD.
const ASSIST: u32 = 1;
const OFFLOAD: u32 = 2;
/// Flag of etf: do not check the socket's own times (TC_ETF_SKIP_SOCK_CHECK).
const SKIP_SOCKET_CHECK: u32 = 4;

/// What executes the schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The kernel, using its timers.
    #[default]
    Software,
    /// txtime-assist: the kernel gives each packet a time at which `etf` or the NIC sends it.
    TxtimeAssist,
    /// The NIC.
    Offload,
}

/// A time in the file, e.g. `101us`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Time(Ns);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let time = humantime::parse_duration(&text).ok().and_then(|time| Ns::try_from(time.as_nanos()).ok());
        time.map(Self).ok_or_else(|| serde::de::Error::custom(format!("{text:?}: write a time, e.g. 101us or 125ms")))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    device: String,
    #[serde(default)]
    mode: Mode,
    clock: Option<String>,
    #[serde(default)]
    base_time: Time,
    cycle: Option<Time>,
    txtime_delay: Option<Time>,
    etf_delta: Option<Time>,
    link_speed: Option<u32>,
    ptp: Option<String>,
    ptp_interval: Option<Time>,
    tick: Option<Time>,
    #[serde(default)]
    class: Vec<ClassKeys>,
    #[serde(default)]
    gate: Vec<GateKeys>,
    #[serde(default)]
    stream: Vec<StreamKeys>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassKeys {
    name: String,
    #[serde(default)]
    priorities: Vec<u8>,
    queues: Option<u16>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GateKeys {
    open: Option<Vec<String>>,
    mask: Option<u32>,
    interval: Time,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamKeys {
    name: String,
    class: String,
    size: u32,
    period: Time,
    #[serde(default)]
    vlan: bool,
    pcp: Option<u8>,
    from: Option<String>,
    frames: Option<u32>,
}

/// A traffic class; its number is its place in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Number of the device's queues for this class.
    pub queues: u16,
}

/// A stream that the schedule is meant for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its name.
    pub name: String,
    /// Index of its class.
    pub class: usize,
    /// Length of a frame, bytes, from its destination MAC address to the end of its payload, without a VLAN tag.
    pub size: u32,
    /// Whether its frames have a VLAN tag on the wire.
    pub vlan: bool,
    /// Priority in that tag, if given in the file.
    pub pcp: Option<u8>,
    /// The tap through which its frames enter the host from a VM.
    pub from: Option<String>,
    /// Time from one group of frames to the next, ns.
    pub period: Ns,
    /// Number of frames sent together.
    pub frames: u32,
}

/// A schedule for a device's gates, and the streams that it is meant for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The device.
    pub device: String,
    /// The part of the system that executes the schedule.
    pub mode: Mode,
    /// The clock of `base_time`; `None` if that is the NIC's.
    pub clockid: Option<i32>,
    /// Start of the first cycle, ns; a time in the past means the next cycle.
    pub base_time: Ns,
    /// Length of a cycle, ns.
    pub cycle: Ns,
    /// txtime-assist mode: maximum time from the socket to the device, ns.
    pub txtime_delay: u32,
    /// txtime-assist mode: `delta` of `etf`, i.e. how long before its txtime a packet is passed to the device, ns.
    pub etf_delta: i32,
    /// The link's speed, Mbit/s, if given in the file.
    pub link_speed: Option<u32>,
    /// Index of the class for PTP messages, if given in the file.
    pub ptp: Option<usize>,
    /// Interval between PTP Sync messages, ns.
    pub ptp_interval: Ns,
    /// The kernel's timer tick, ns, if given in the file.
    pub tick: Option<Ns>,
    /// The traffic classes.
    pub classes: Vec<Class>,
    /// The class of each priority.
    pub of_priority: [u8; MAX_CLASSES],
    /// The gates of a cycle, in order.
    pub gates: Vec<Gates>,
    /// The streams.
    pub streams: Vec<Stream>,
}

impl Schedule {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, is not a schedule, or has values that cannot work.
    pub fn read(path: &Path) -> Result<Self> {
        let unreadable = |source| Error::Unreadable { path: path.into(), source };
        let mut text = String::new();
        File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text)).map_err(unreadable)?;
        Self::parse(path, &text)
    }

    /// Parses the text of a file; `path` is used in error messages.
    ///
    /// # Errors
    /// The text is not a schedule, or has values that cannot work.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let keys: Keys = toml::from_str(text).map_err(|error| Error::File {
            path: path.into(),
            line: error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1),
            why: error.message().to_owned(),
        })?;
        let invalid = |(key, why)| Error::Invalid { path: path.into(), key, why };
        keys.schedule().map_err(invalid)
    }

    /// The queueing discipline of the device.
    pub fn taprio(&self) -> Shaping {
        let mut first = 0;
        let queues = self.classes.iter().map(|class| {
            let queues = (class.queues, first);
            first += class.queues;
            queues
        });
        Shaping::Taprio {
            classes: Some(TrafficClasses { of_priority: self.of_priority, queues: queues.collect(), offload: 0 }),
            clockid: self.clockid,
            base_time_ns: self.base_time,
            cycle_time_ns: self.cycle,
            flags: match self.mode {
                Mode::Software => 0,
                Mode::TxtimeAssist => ASSIST,
                Mode::Offload => OFFLOAD,
            },
            txtime_delay_ns: self.txtime_delay,
            gates: self.gates.clone(),
        }
    }

    /// The queueing discipline of each of the device's queues; `None` unless in txtime-assist mode.
    pub fn etf(&self) -> Option<Shaping> {
        let etf = Shaping::Etf { clockid: self.clockid?, delta_ns: self.etf_delta, flags: SKIP_SOCKET_CHECK };
        (self.mode == Mode::TxtimeAssist).then_some(etf)
    }

    /// Number of queues that the classes use.
    pub fn queues(&self) -> u32 {
        self.classes.iter().map(|class| u32::from(class.queues)).sum()
    }

    /// Sum of the entries' intervals, ns.
    pub fn sum(&self) -> Ns {
        self.gates.iter().map(|gates| Ns::from(gates.interval_ns)).sum()
    }
}

/// Whether the kernel accepts a device of this name (net/core/dev.c, dev_valid_name).
fn is_device_name(name: &str) -> bool {
    let is_refused = |c: char| c == '/' || c == ':' || c.is_whitespace();
    (1..16).contains(&name.len()) && !matches!(name, "." | "..") && !name.contains(is_refused)
}

type Invalid = (String, String);

fn invalid<T>(key: impl Into<String>, why: impl Into<String>) -> std::result::Result<T, Invalid> {
    Err((key.into(), why.into()))
}

impl Keys {
    fn schedule(self) -> std::result::Result<Schedule, Invalid> {
        if !is_device_name(&self.device) {
            return invalid("device", "a device's name has 1 to 15 bytes without spaces and slashes");
        }
        let (classes, of_priority) = self.classes()?;
        let class = |key: String, name: &String| match classes.iter().position(|class| class.name == *name) {
            Some(class) => Ok(class),
            None => invalid(key, format!("no class has the name {name:?}")),
        };
        if self.gate.is_empty() || self.gate.len() > MAX_GATES {
            return invalid("gate", format!("a schedule has 1 to {MAX_GATES} entries"));
        }
        let mut gates = Vec::new();
        for (at, gate) in self.gate.iter().enumerate() {
            let key = |name: &str| format!("gate.{}.{name}", at + 1);
            let all = (1_u64 << classes.len()) - 1;
            let open = match (&gate.open, gate.mask) {
                (Some(names), None) => {
                    names.iter().try_fold(0, |mask, name| Ok::<u32, Invalid>(mask | 1 << class(key("open"), name)?))?
                }
                (None, Some(mask)) if u64::from(mask) <= all => mask,
                (None, Some(_)) => return invalid(key("mask"), format!("bits of classes from 0 to {all:#x}")),
                _ => return invalid(key("open"), "an entry has either open = [CLASSES], or mask"),
            };
            let Some(interval_ns) = u32::try_from(gate.interval.0).ok().filter(|ns| *ns > 0) else {
                return invalid(key("interval"), "an interval is 1 ns to 4.29 s");
            };
            gates.push(Gates { open, interval_ns });
        }
        let mut streams = Vec::new();
        for stream in self.stream.iter().take(MAX_STREAMS) {
            let key = |name: &str| format!("stream.{}.{name}", stream.name);
            if !(14..=9018).contains(&stream.size) {
                return invalid(
                    key("size"),
                    "a frame has 14 to 9018 bytes, from the destination MAC to its payload's end",
                );
            }
            let (period, frames) = (stream.period.0, stream.frames.unwrap_or(1));
            if period <= 0 || frames == 0 {
                return invalid(key("period"), "period and frames are greater than 0");
            }
            if stream.pcp.is_some_and(|pcp| pcp > 7) {
                return invalid(key("pcp"), "the priority in a VLAN tag is 0 to 7");
            }
            if stream.from.as_ref().is_some_and(|from| !is_device_name(from)) {
                return invalid(key("from"), "a device's name has 1 to 15 bytes without spaces and slashes");
            }
            streams.push(Stream {
                name: stream.name.clone(),
                class: class(key("class"), &stream.class)?,
                size: stream.size,
                vlan: stream.vlan || stream.pcp.is_some(),
                pcp: stream.pcp,
                from: stream.from.clone(),
                period,
                frames,
            });
        }
        let ptp = self.ptp.as_ref().map(|name| class("ptp".into(), name)).transpose()?;
        let sum: Ns = gates.iter().map(|gates| Ns::from(gates.interval_ns)).sum();
        let cycle = self.cycle.map_or(sum, |cycle| cycle.0);
        if cycle <= 0 || self.link_speed == Some(0) {
            return invalid("cycle", "cycle and link_speed are greater than 0");
        }
        let ptp_interval = self.ptp_interval.map_or(125_000_000, |interval| interval.0);
        if ptp_interval <= 0 || self.tick.is_some_and(|tick| tick.0 <= 0) {
            return invalid("ptp_interval", "ptp_interval and tick are greater than 0");
        }
        let (clockid, txtime_delay, etf_delta) = self.times()?;
        Ok(Schedule {
            clockid,
            base_time: self.base_time.0,
            cycle,
            txtime_delay,
            etf_delta,
            link_speed: self.link_speed,
            ptp,
            ptp_interval,
            tick: self.tick.map(|tick| tick.0),
            device: self.device,
            mode: self.mode,
            classes,
            of_priority,
            gates,
            streams,
        })
    }

    fn classes(&self) -> std::result::Result<(Vec<Class>, [u8; MAX_CLASSES]), Invalid> {
        if self.class.is_empty() || self.class.len() > MAX_CLASSES {
            return invalid("class", format!("a schedule has 1 to {MAX_CLASSES} classes"));
        }
        // Priorities that no class lists belong to the last class.
        let mut of_priority = [self.class.len() as u8 - 1; MAX_CLASSES];
        let mut taken = [false; MAX_CLASSES];
        let mut classes: Vec<Class> = Vec::new();
        for (number, class) in self.class.iter().enumerate() {
            let key = |name: &str| format!("class.{}.{name}", class.name);
            if classes.iter().any(|known| known.name == class.name) {
                return invalid(key("name"), "another class has this name");
            }
            for priority in class.priorities.iter().map(|priority| usize::from(*priority)) {
                match taken.get_mut(priority) {
                    Some(taken) if !*taken => *taken = true,
                    Some(_) => return invalid(key("priorities"), format!("{priority} belongs to two classes")),
                    None => return invalid(key("priorities"), "a priority is 0 to 15"),
                }
                of_priority[priority] = number as u8;
            }
            let queues = class.queues.unwrap_or(1);
            if !(1..=256).contains(&queues) {
                return invalid(key("queues"), "a class has 1 to 256 queues");
            }
            classes.push(Class { name: class.name.clone(), queues });
        }
        Ok((classes, of_priority))
    }

    /// The clock, and `txtime_delay` and `etf_delta`, which are for txtime-assist mode.
    fn times(&self) -> std::result::Result<(Option<i32>, u32, i32), Invalid> {
        let clock = self.clock.as_deref().unwrap_or("tai");
        let Some((_, clockid)) = CLOCKS.iter().find(|(name, _)| *name == clock) else {
            return invalid("clock", "clocks are tai, realtime and monotonic");
        };
        match (self.mode, self.txtime_delay, self.etf_delta) {
            (Mode::Offload, ..) if self.clock.is_some() => {
                invalid("clock", "with mode = \"offload\" times are those of the NIC's clock")
            }
            (Mode::Software | Mode::Offload, None, None) => {
                Ok(((self.mode == Mode::Software).then_some(*clockid), 0, 0))
            }
            (Mode::TxtimeAssist, Some(delay), Some(delta)) => {
                let times = u32::try_from(delay.0).ok().zip(i32::try_from(delta.0).ok()).filter(|_| delta.0 < delay.0);
                match times {
                    Some((delay, delta)) => Ok((Some(*clockid), delay, delta)),
                    None => invalid("txtime_delay", "txtime_delay is longer than etf_delta, and at most 2 s"),
                }
            }
            _ => invalid(
                "txtime_delay",
                "txtime_delay and etf_delta belong to mode = \"txtime-assist\", which needs both",
            ),
        }
    }
}
