//! `latpath publish --cycle`: a talker that sends at the times of a schedule.

use super::SentStream;
use crate::cmd::subscribe::mac;
use crate::cmd::times::times_text;
use crate::cmd::values::{some_time, time};
use crate::cmd::{ns, Usage};
use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use latpath_histogram::Histogram;
use latpath_model::text::printable;
use latpath_model::Ns;
use latpath_protocols::sv::{FrameSpec, FIRST_GROUP, MAX_SVID};
use latpath_protocols::Tag;
use latpath_stats::units::{count, duration, number_of};
use latpath_traffic::document::PublishDocument;
use latpath_traffic::{Punctuality, Schedule, TalkOptions, Talked, Talker, TalkerStream};
use latpath_wire::{SendClock, TxTimeMode};
use serde::{Deserialize, Deserializer};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Shortest and longest cycle, ns.
const CYCLES: std::ops::RangeInclusive<Ns> = 10_000..=60_000_000_000;
/// Maximum time before its send time at which a frame is handed over, ns.
const MAX_ADVANCE: Ns = 1_000_000_000;
/// Default time before the send time if a queueing discipline holds the frame, ns.
const ADVANCE: Ns = 500_000;
/// Maximum number of streams in a schedule.
const MAX_STREAMS: usize = 256;
/// Maximum size of a schedule's file, bytes.
const FILE: u64 = 1 << 20;
/// The wrap of smpCnt, which counts frames.
const WRAP: u32 = 65_536;

/// Send times of a schedule.
#[derive(ClapArgs)]
pub(super) struct ScheduleArgs {
    /// Length of a cycle: send one frame of each stream in each, at base time + n cycles + offset (docs/tsn.md)
    #[arg(long, value_name = "TIME", value_parser = some_time, conflicts_with_all = ["profile", "stream", "pcap", "delay", "rate", "burst", "step", "batch", "corrupt", "prp", "hsr"])]
    cycle: Option<Duration>,
    /// Time at which a cycle begins, ns of the clock
    #[arg(long, value_name = "NS", default_value_t = 0, value_parser = base_time, requires = "cycle")]
    base_time: Ns,
    /// Send time within the cycle
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time, requires = "cycle")]
    send_offset: Duration,
    /// Clock of the send times: tai, realtime or monotonic
    #[arg(long, value_name = "CLOCK", default_value_t = SendClock::Tai)]
    clock: SendClock,
    /// Hand each frame to the kernel this long before its send time [default: 500us with --txtime, else 0s]
    #[arg(long, value_name = "TIME", value_parser = time, requires = "cycle")]
    advance: Option<Duration>,
    /// Let the queueing discipline (etf, taprio) send each frame at its send time (strict), or by then (deadline)
    #[arg(long, value_name = "MODE", requires = "cycle", conflicts_with = "bypass_qdisc")]
    txtime: Option<TxTimeMode>,
    /// Send the streams of this schedule instead, a TOML file (docs/tsn.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cycle", "svid", "streams", "vlan", "pcp", "appid", "src", "dst", "priority", "smp_synch", "first", "wrap", "profile", "stream", "pcap", "delay", "rate", "burst", "step", "batch", "corrupt", "bypass_qdisc", "prp", "hsr"])]
    schedule: Option<PathBuf>,
}

fn base_time(text: &str) -> Result<Ns, String> {
    let read = text.parse().ok().filter(|t| (0..=Ns::MAX / 2).contains(t));
    read.ok_or_else(|| format!("write the ns since the clock's epoch, 0 to {}", Ns::MAX / 2))
}

/// A time in a schedule's file.
#[derive(Clone, Copy, Default)]
struct Time(Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        time(&text).map(Self).map_err(|e| serde::de::Error::custom(format!("{text:?}: {e}")))
    }
}

/// A value that is a string in a schedule's file.
struct Text<T>(T);

impl<'de, T: std::str::FromStr<Err = String>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(|e| serde::de::Error::custom(format!("{text:?}: {e}")))
    }
}

/// A schedule's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cycle: Time,
    #[serde(default)]
    base_time_ns: Ns,
    clock: Option<Text<SendClock>>,
    #[serde(rename = "stream")]
    streams: Vec<FileStream>,
}

/// A stream of a schedule's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileStream {
    svid: String,
    appid: Option<u16>,
    src: Option<String>,
    dst: Option<String>,
    vlan: Option<u16>,
    pcp: Option<u8>,
    priority: Option<u8>,
    smp_synch: Option<u8>,
    #[serde(default)]
    offset: Time,
    advance: Option<Time>,
    txtime: Option<Text<TxTimeMode>>,
}

/// A talker's schedule and streams, and the text that describes them.
pub(super) struct Plan {
    pub(super) schedule: Schedule,
    streams: Vec<TalkerStream>,
    what: SentStream,
}

/// The plan that the flags request; `None` if they request no schedule.
pub(super) fn plan(args: &super::Args) -> Result<Option<Plan>> {
    let of = &args.schedule;
    let (schedule, streams) = match (&of.schedule, of.cycle) {
        (Some(path), _) => from_file(path)?,
        (None, Some(cycle)) => (
            Schedule { clock: of.clock, base: of.base_time, cycle: ns(cycle) },
            from_flags(args).collect::<Result<Vec<_>>>()?,
        ),
        (None, None) => return Ok(None),
    };
    check(&schedule, &streams)?;
    let names: Vec<String> = streams.iter().map(|s| String::from_utf8_lossy(&s.svid).into_owned()).collect();
    let shown = match names.as_slice() {
        [one] => one.clone(),
        [first, .., last] => format!("{first} to {last}"),
        [] => String::new(),
    };
    let text = format!("{shown}, every {} by the clock {}", duration(schedule.cycle), schedule.clock);
    Ok(Some(Plan { schedule, streams, what: SentStream::new(text, names) }))
}

fn from_flags(args: &super::Args) -> impl Iterator<Item = Result<TalkerStream>> + '_ {
    let of = &args.schedule;
    super::svids(args).into_iter().zip(0..).map(move |(svid, i)| {
        Ok(TalkerStream {
            header: super::header(args, args.src.unwrap_or_default(), i),
            svid: svid.into_bytes(),
            smp_synch: args.smp_synch.unwrap_or(1),
            first: args.first,
            wrap: args.wrap.unwrap_or(WRAP),
            offset: ns(of.send_offset),
            advance: advance(of.advance.map(ns), of.txtime),
            priority: args.priority,
            txtime: of.txtime,
        })
    })
}

fn advance(named: Option<Ns>, txtime: Option<TxTimeMode>) -> Ns {
    named.unwrap_or(if txtime.is_some() { ADVANCE } else { 0 })
}

fn from_file(path: &Path) -> Result<(Schedule, Vec<TalkerStream>)> {
    let name = || format!("{}: the schedule cannot be read", path.display());
    let text = latpath_linux::read_text(path, FILE).with_context(name)?;
    let file: File = toml::from_str(&text).map_err(|e| Usage(format!("{}: {e}", path.display())))?;
    let schedule = Schedule {
        clock: file.clock.map_or_else(SendClock::default, |clock| clock.0),
        base: file.base_time_ns,
        cycle: ns(file.cycle.0),
    };
    if file.streams.len() > MAX_STREAMS {
        return Err(Usage(format!("{}: at most {MAX_STREAMS} streams are allowed", path.display())).into());
    }
    let wrong = |svid: &str, e: String| Usage(format!("{}: stream {svid:?}: {e}", path.display()));
    let stream = |(s, i): (FileStream, u16)| -> Result<TalkerStream> {
        let address = |text: &Option<String>| text.as_deref().map(mac).transpose().map_err(|e| wrong(&s.svid, e));
        if s.vlan.is_some_and(|vlan| vlan > 4094) || s.pcp.is_some_and(|pcp| pcp > 7) {
            return Err(wrong(&s.svid, "vlan is 0 to 4094, pcp 0 to 7".into()).into());
        }
        let is_tagged = s.vlan.is_some() || s.pcp.is_some();
        let tag = is_tagged.then(|| Tag::new(s.vlan.unwrap_or(0), s.pcp.unwrap_or(4)));
        let mut header = FrameSpec { appid: s.appid.unwrap_or(FrameSpec::default().appid), ..FrameSpec::default() };
        header.link.dst = Some(address(&s.dst)?.unwrap_or_else(|| super::counted_up(FIRST_GROUP, i)));
        header.link.src = address(&s.src)?.unwrap_or_default();
        header.link.tags = tag.into_iter().collect();
        let txtime = s.txtime.map(|mode| mode.0);
        Ok(TalkerStream {
            header,
            svid: s.svid.into_bytes(),
            smp_synch: s.smp_synch.unwrap_or(1),
            first: 0,
            wrap: WRAP,
            offset: ns(s.offset.0),
            advance: advance(s.advance.map(|t| ns(t.0)), txtime),
            priority: s.priority,
            txtime,
        })
    };
    Ok((schedule, file.streams.into_iter().zip(0..).map(stream).collect::<Result<Vec<_>>>()?))
}

fn check(schedule: &Schedule, streams: &[TalkerStream]) -> Result<(), Usage> {
    let usage = |text: String| Err(Usage(text));
    if !CYCLES.contains(&schedule.cycle) {
        return usage(format!("a cycle of {}: it takes 10 us to 60 s", duration(schedule.cycle)));
    }
    if !(0..=Ns::MAX / 2).contains(&schedule.base) {
        return usage(format!("base time {}: it is 0 to {} ns", schedule.base, Ns::MAX / 2));
    }
    if streams.is_empty() {
        return usage("the schedule has no streams".into());
    }
    for stream in streams {
        let name = String::from_utf8_lossy(&stream.svid);
        if !(1..=MAX_SVID).contains(&stream.svid.len()) {
            return usage(format!("svID {name:?}: has {} bytes, 1 to 129 are allowed", stream.svid.len()));
        }
        if stream.offset >= schedule.cycle {
            return usage(format!("{name}: its offset {} is not within the cycle", duration(stream.offset)));
        }
        if stream.advance > MAX_ADVANCE {
            return usage(format!("{name}: a frame is handed over at most 1 s before its send time"));
        }
        if u32::from(stream.first) >= stream.wrap {
            return usage(format!("--first {}: smpCnt runs from 0 to {}", stream.first, stream.wrap - 1));
        }
        let is_same = |other: &&TalkerStream| other.svid == stream.svid && other.header == stream.header;
        if streams.iter().filter(is_same).count() > 1 {
            return usage(format!("{name}: two streams of the schedule have this svID, addresses, tag and APPID"));
        }
    }
    Ok(())
}

/// A talker that is ready, and its description.
pub(super) struct Prepared {
    talker: Talker,
    plan: Plan,
}

impl Plan {
    /// Opens the sockets. `nic_times`: requests the NIC's timestamps of sent frames.
    pub(super) fn open(self, interface: &str, bypass_qdisc: bool, nic_times: bool) -> Result<Prepared> {
        let talker = Talker::open(interface, self.schedule, self.streams.clone(), bypass_qdisc, nic_times)?;
        Ok(Prepared { talker, plan: self })
    }
}

impl Prepared {
    pub(super) fn talk(&mut self, options: &TalkOptions, stop: &AtomicBool, sent: &mut Punctuality) -> Result<()> {
        Ok(self.talker.talk(options, stop, sent)?)
    }

    /// Number of frames per second, over all streams.
    fn hz(&self) -> f64 {
        self.plan.streams.len() as f64 * 1e9 / self.plan.schedule.cycle as f64
    }

    pub(super) fn document(&self, args: &super::Args, sent: &Punctuality) -> PublishDocument {
        let streams = self.plan.streams.iter().zip(&self.talker.talked);
        let stamps = self.talker.tx_stamps();
        super::document(args, &self.plan.what, Some(self.hz()), sent, stamps).with_schedule(self.plan.schedule, streams)
    }

    pub(super) fn text(&self, args: &super::Args, sent: &Punctuality) -> String {
        let (cycle, stamps) = (self.plan.schedule.cycle, self.talker.tx_stamps());
        let mut text = super::text(args, &self.plan.what, Some(self.hz()), cycle, sent, stamps);
        for (stream, talked) in self.plan.streams.iter().zip(&self.talker.talked) {
            add_stream(&mut text, stream, talked);
        }
        text
    }
}

fn add_stream(text: &mut String, stream: &TalkerStream, talked: &Talked) {
    let mut add = |line: String| *text += &format!("  {line}\n");
    let ahead = match (stream.advance, stream.txtime) {
        (0, None) => String::new(),
        (advance, None) => format!(", handed over {} before", duration(advance)),
        (advance, Some(mode)) => format!(", handed over {} before with a send time ({mode})", duration(advance)),
    };
    let name = printable(&String::from_utf8_lossy(&stream.svid)).to_string();
    let sent = number_of(talked.sent, "frame");
    add(format!("{name:<8} {sent}, {} after each cycle's start{ahead}", duration(stream.offset)));
    if talked.missed + talked.invalid > 0 {
        add(format!(
            "dropped  {} by etf: {} missed their send time in its queue, {} were invalid (too late, or of another clock)",
            number_of(talked.missed + talked.invalid, "frame"),
            count(talked.missed),
            count(talked.invalid)
        ));
    }
    if stream.txtime.is_some() && talked.after_send_time > 0 {
        add(format!("note     {} handed over after their send time", number_of(talked.after_send_time, "frame")));
    }
    let stack: [(&str, &Histogram); 2] = [("to qdisc", &talked.to_queue), ("to driver", &talked.to_driver)];
    for (name, times) in stack {
        if let Some(figures) = times_text(times) {
            add(format!("{name:<9} {figures} after the send call ({} sampled)", number_of(times.count(), "frame")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Schedule, Vec<TalkerStream>), String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let (schedule, streams) = from_file(file.path()).map_err(|e| e.to_string())?;
        check(&schedule, &streams).map_err(|e| e.to_string())?;
        Ok((schedule, streams))
    }

    #[test]
    fn a_file_has_a_schedule_and_classes_of_streams() {
        let text = r#"
            cycle = "500us"
            base_time_ns = 1000
            clock = "monotonic"
            [[stream]]
            svid = "RT1"
            vlan = 5
            pcp = 6
            priority = 6
            offset = "100us"
            txtime = "strict"
            [[stream]]
            svid = "RT2"
            dst = "01:0c:cd:04:00:77"
            txtime = "deadline"
            advance = "2ms"
            [[stream]]
            svid = "BE"
        "#;
        let (schedule, streams) = read(text).unwrap();
        assert_eq!(schedule, Schedule { clock: SendClock::Monotonic, base: 1000, cycle: 500_000 });
        let of = |s: &TalkerStream| (s.offset, s.advance, s.priority, s.txtime, s.header.link.tags.first().copied());
        let tag = Some(Tag::new(5, 6));
        assert_eq!(of(&streams[0]), (100_000, ADVANCE, Some(6), Some(TxTimeMode::Strict), tag));
        assert_eq!(of(&streams[1]), (0, 2_000_000, None, Some(TxTimeMode::Deadline), None));
        assert_eq!(of(&streams[2]), (0, 0, None, None, None));
        assert_eq!(streams[1].header.link.dst, Some([0x01, 0x0c, 0xcd, 0x04, 0x00, 0x77]));
        assert_eq!(streams[2].header.link.dst, Some([0x01, 0x0c, 0xcd, 0x04, 0x00, 0x03]));
    }

    #[test]
    fn what_no_talker_can_do_is_refused_by_name() {
        let one = |more: &str| format!("cycle = \"1ms\"\n[[stream]]\nsvid = \"A\"\n{more}");
        for (text, part) in [
            (one("offset = \"1ms\""), "A: its offset 1.000 ms is not within the cycle"),
            (one("advance = \"2s\""), "at most 1 s before"),
            (one("pcp = 8"), "pcp 0 to 7"),
            (one("dst = \"nowhere\""), "write a MAC"),
            (one("txtime = \"soon\""), "a mode is strict or deadline"),
            (one("speed = 3"), "unknown field `speed`"),
            (one("[[stream]]\nsvid = \"A\"\ndst = \"01:0c:cd:04:00:01\""), "two streams"),
            (one("[[stream]]\nsvid = \"\""), "1 to 129 are allowed"),
            ("cycle = \"1us\"\n[[stream]]\nsvid = \"A\"".into(), "10 us to 60 s"),
            ("cycle = \"1ms\"\nstream = []".into(), "no streams"),
            ("cycle = \"1ms\"\nbase_time_ns = -1\n[[stream]]\nsvid = \"A\"".into(), "base time -1"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
