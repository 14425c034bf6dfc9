//! `latpath publish`: sends Sampled Values, GOOSE and PTP messages, and reports its punctuality.

mod faults;
mod schedule;

use super::flags::{Stamps, StopAfter, Tagging};
use super::interrupt::stop_flag;
use super::report::print_as;
use super::subscribe::mac;
use super::sync::SyncArgs;
use super::thread::OnTime;
use super::times::times_text;
use super::{ns, Outcome, Usage};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_clock::ClockTie;
use latpath_model::stream::{format_mac, listed_examples, listed_titles};
use latpath_model::text::printable;
use latpath_model::{Ns, StreamSpec};
use latpath_nic_timestamps::{is_used_by_ptp, Caps, HardwareStamps};
use latpath_protocols::protocol::{FrameLink, Order};
use latpath_protocols::{
    redundancy::Method,
    sv::{FrameSpec, Profile, FIRST_GROUP, MAX_SVID},
    UnreadFrames,
};
use latpath_stats::units::{duration, elapsed, number_of, rate};
use latpath_traffic::document::PublishDocument;
use latpath_traffic::{
    publish, Corrupted, Frames, InterfaceChoice, Output, Pattern, PublishOptions, Punctuality, Repeated,
    RepeatedOptions, Replay, Synthetic, SyntheticOptions, TalkOptions,
};
use latpath_wire::{Listen, Pace, PacketSocket, TxStampCounts};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Pause between two packets of a file above which it is announced to the user, ns.
const LONG_PAUSE: Ns = 10_000_000_000;
/// Minimum pause, ns, that is refused unless the user names a duration: most likely, the clock of the capturing machine
/// was set.
const PAUSE_TOO_LONG: Ns = 3_600_000_000_000;
/// Rate in frames per second above which several overdue frames are sent in one system call.
const BATCH_ABOVE_HZ: f64 = 50_000.0;
/// Maximum number of frames per system call.
const MAX_BATCH: usize = 64;

/// Flags of synthetic frames; frames of a file already have these properties.
const OF_SYNTHETIC: [&str; 14] = [
    "profile",
    "svid",
    "stream",
    "streams",
    "vlan",
    "pcp",
    "appid",
    "src",
    "dst",
    "smp_synch",
    "delay",
    "first",
    "burst",
    "step",
];

#[derive(ClapArgs)]
#[command(about = format!("Send {} at exact times, and report how exact they were", listed_titles()))]
pub struct Args {
    /// Device to send on
    #[arg(short, long, value_name = "IF", default_value = "", hide_default_value = true, required_unless_present_any = ["prp", "hsr"])]
    interface: String,
    /// Send each frame on both devices, as PRP's copies of LAN A and LAN B
    #[arg(long, value_name = "IF_A,IF_B", value_parser = two_devices, conflicts_with_all = ["interface", "hsr", "corrupt"])]
    prp: Option<TwoDevices>,
    /// Send each frame on both devices, as HSR's copies of port A and port B
    #[arg(long, value_name = "IF_A,IF_B", value_parser = two_devices, conflicts_with_all = ["interface", "corrupt"])]
    hsr: Option<TwoDevices>,
    /// What the publisher sends: 9-2le-50, 9-2le-60, 9-2le-50-meas, 9-2le-60-meas, f4800s2 or f14400s6
    #[arg(long, default_value = "9-2le-50")]
    profile: Profile,
    /// svID, or the prefix of several streams' svIDs: MU becomes MU01, MU02 …
    #[arg(long, value_name = "ID", required_unless_present_any = ["stream", "pcap", "schedule"])]
    svid: Option<String>,
    /// Streams to send, all with the same smpCnt at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = crate::cmd::values::whole::<u16>(1..=256))]
    streams: u16,
    #[command(flatten)]
    tagging: Tagging,
    /// Priority of sent packets (SO_PRIORITY): the qdisc's traffic class, the 802.1Q priority
    #[arg(long, value_name = "N")]
    priority: Option<u8>,
    #[command(flatten)]
    schedule: schedule::ScheduleArgs,
    /// APPID, e.g. 0x4000 or 16384
    #[arg(long, value_name = "ID", default_value = "0x4000", value_parser = appid)]
    appid: u16,
    /// Source MAC [default: the device's]
    #[arg(long, value_name = "MAC", value_parser = mac)]
    src: Option<[u8; 6]>,
    /// Destination MAC of the first stream; the next ones count up from it [default: 01:0c:cd:04:00:01]
    #[arg(long, value_name = "MAC", value_parser = mac)]
    dst: Option<[u8; 6]>,
    /// smpSynch: 0 none, 1 local, 2 global [default: 2 with --delay, else 1]
    #[arg(long, value_name = "N")]
    smp_synch: Option<u8>,
    /// Sample by UTC like a synchronised merging unit, with smpCnt 0 at each full second of this machine's clock, and
    /// send each frame this long after its first sample; starts at the next full second
    #[arg(long, value_name = "TIME", value_parser = crate::cmd::values::time, conflicts_with_all = ["stream", "first", "wrap", "rate", "burst"])]
    delay: Option<Duration>,
    /// smpCnt of the first sample
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u16,
    /// Value at which smpCnt returns to 0 [default: the profile's samples per second; with --pcap, as in the file]
    #[arg(long, value_name = "N", value_parser = crate::cmd::values::whole::<u32>(1..=65536))]
    wrap: Option<u32>,
    /// Packets per second of each stream (with --pcap, of all together), or max [default: that of the profile or the
    /// file]
    #[arg(long, value_name = "F")]
    rate: Option<Rate>,
    /// Send N frames of each stream at once, every N intervals
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = crate::cmd::values::whole::<u32>(1..=65536))]
    burst: u32,
    /// Make a fault every TIME: 2s,for=80ms,times=5 multiplies all currents by 5 for 80 ms, every 2 s; to test whatever
    /// reacts to faults [default: for=100ms,times=10]
    #[arg(long, value_name = "TIME", value_parser = faults::parse)]
    step: Option<latpath_traffic::Faults>,
    #[arg(short, long, value_name = "STREAM", help = format!("Stream to send instead, as {}, with its vlan=, mac= and other options", listed_examples()), conflicts_with_all = ["profile", "svid", "streams", "appid", "smp_synch", "first", "wrap", "burst", "step"])]
    stream: Option<StreamSpec>,
    /// Begin a new event every TIME (with --stream) [default: a single event]
    #[arg(long, value_name = "TIME", requires = "stream", value_parser = crate::cmd::values::time)]
    event_every: Option<Duration>,
    /// Send the Sampled Values of a pcap or pcapng file instead; if it has packets of several interfaces, name one:
    /// FILE,interface=NAME
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_SYNTHETIC)]
    pcap: Option<PathBuf>,
    /// Repeat the file, with smpCnt continuing
    #[arg(long = "loop", requires = "pcap")]
    rounds: bool,
    /// Corrupt each frame (cut, changed, random bytes), to test receivers
    #[arg(long)]
    corrupt: bool,
    /// Seed of the random changes of --corrupt
    #[arg(long, value_name = "N", default_value_t = 1, requires = "corrupt")]
    seed: u64,
    #[command(flatten)]
    stop_after: StopAfter,
    #[command(flatten)]
    sync: SyncArgs,
    #[command(flatten)]
    on_time: OnTime,
    /// Wake up this long before each deadline, and spin until it [default: 20us with --fifo, else 0s]
    #[arg(long, value_name = "TIME", value_parser = crate::cmd::values::time)]
    wake_early: Option<Duration>,
    /// Maximum number of frames per system call [default: 1; 64 above 50,000 frames/s]
    #[arg(long, value_name = "N", value_parser = crate::cmd::values::whole::<u8>(1..=MAX_BATCH as u64))]
    batch: Option<u8>,
    /// Pass frames directly to the driver; latpath then has no tx point on this device
    #[arg(long)]
    bypass_qdisc: bool,
    /// Timestamps to take: the kernel's, or also the NIC's, requested for one frame at a time, for record --stamps nic
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = Stamps::Kernel)]
    stamps: Stamps,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The devices of two LANs.
type TwoDevices = [String; 2];

fn two_devices(text: &str) -> Result<TwoDevices, String> {
    let both = text.split_once(',').filter(|(a, b)| !a.is_empty() && !b.is_empty() && a != b && !b.contains(','));
    both.map(|(a, b)| [a.into(), b.into()]).ok_or_else(|| "write the devices of LAN A and LAN B, e.g. eth1,eth2".into())
}

impl Args {
    fn copies(&self) -> Option<(&TwoDevices, Method)> {
        let prp = self.prp.as_ref().map(|devices| (devices, Method::Prp));
        prp.or(self.hsr.as_ref().map(|devices| (devices, Method::Hsr)))
    }

    /// The devices as text for the user.
    fn devices(&self) -> String {
        match self.copies() {
            Some(([a, b], Method::Prp)) => format!("{a} and {b} (PRP)"),
            Some(([a, b], Method::Hsr)) => format!("{a} and {b} (HSR)"),
            None => self.interface.clone(),
        }
    }
}

/// Time at which to send the sample of a coming whole second of UTC: `delay` after that second, which leaves time to
/// prepare.
fn on_the_second(delay: Duration) -> Ns {
    const SECOND: Ns = 1_000_000_000;
    const PREPARING: Ns = 50_000_000;
    let tie = ClockTie::read();
    let second = (tie.realtime_ns + PREPARING).div_euclid(SECOND) + 1;
    second * SECOND + ns(delay) - (tie.realtime_ns - tie.monotonic_ns)
}

fn appid(text: &str) -> Result<u16, String> {
    let n = match text.strip_prefix("0x") {
        Some(hex) => u16::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    n.ok_or_else(|| "an APPID is 0 to 0xffff".into())
}

#[derive(Clone, Copy)]
enum Rate {
    Max,
    Hz(Pace),
}

impl std::str::FromStr for Rate {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "max" => Ok(Self::Max),
            s => s.parse().map(Self::Hz).map_err(|e| format!("{e}, or max")),
        }
    }
}

pub fn run(args: Args) -> Result<Outcome> {
    let sync = args.sync.clone();
    sync.guard(|| measure(args))
}

fn measure(args: Args) -> Result<Outcome> {
    let stop = stop_flag()?;
    let default_spin = if args.on_time.fifo.is_some() { 20_000 } else { 0 };
    let spin = args.wake_early.map_or(default_spin, ns);
    if let Some(plan) = schedule::plan(&args)? {
        return talk(&args, plan, spin, &stop);
    }
    let mut stamping = Vec::new();
    let mut open = |device: &str| -> Result<PacketSocket> {
        let mut socket = PacketSocket::open(device, Listen::No)?;
        if let Some(priority) = args.priority {
            socket.set_priority(priority)?;
        }
        if args.bypass_qdisc {
            socket.bypass_qdisc()?;
        }
        if args.stamps == Stamps::Nic {
            let on = switch_on_stamps(device)?;
            if on.as_ref().is_some_and(HardwareStamps::tx) {
                socket.sample_tx_stamps()?;
            }
            stamping.extend(on);
        }
        Ok(socket)
    };
    let (mac, mut output) = match args.copies() {
        Some(([a, b], method)) => {
            let both = [open(a)?, open(b)?];
            (both[0].mac(), Output::redundant(both, method))
        }
        None => {
            let socket = open(&args.interface)?;
            (socket.mac(), socket.into())
        }
    };
    let (mut frames, what) = source(&args, mac)?;
    let deadlines = frames.deadlines();
    let hz = deadlines.map(|d| d.per_s);
    if args.corrupt {
        frames = Box::new(Corrupted::new(frames, args.seed));
    }
    let default_batch = if hz.is_none_or(|hz| hz > BATCH_ABOVE_HZ) { MAX_BATCH } else { 1 };
    let options = PublishOptions {
        start: args.delay.map(on_the_second),
        duration: args.stop_after.duration.map(ns),
        count: args.stop_after.count,
        spin,
        batch: args.batch.map_or(default_batch, usize::from),
    };

    let _awake = args.on_time.keep_awake()?;
    args.on_time.apply("publish")?;
    let mut sent = Punctuality::default();
    let ended = publish(&mut output, &mut *frames, &options, &stop, &mut sent);
    let printed = print_as(
        args.json,
        || document(&args, &what, hz, &sent, output.tx_stamps()),
        || text(&args, &what, hz, deadlines.map_or(0, |d| d.interval), &sent, output.tx_stamps()),
    );
    ended?;
    printed?;
    Ok(Outcome::Done)
}

/// Sends frames at the times of a schedule.
fn talk(args: &Args, plan: schedule::Plan, spin: Ns, stop: &AtomicBool) -> Result<Outcome> {
    let stamping = if args.stamps == Stamps::Nic { switch_on_stamps(&args.interface)? } else { None };
    let nic_times = stamping.as_ref().is_some_and(HardwareStamps::tx);
    let mut talker = plan.open(&args.interface, args.bypass_qdisc, nic_times)?;
    let options = TalkOptions { duration: args.stop_after.duration.map(ns), count: args.stop_after.count, spin };
    let _awake = args.on_time.keep_awake()?;
    args.on_time.apply("publish")?;
    let mut sent = Punctuality::default();
    let ended = talker.talk(&options, stop, &mut sent);
    let printed = print_as(args.json, || talker.document(args, &sent), || talker.text(args, &sent));
    ended?;
    printed?;
    Ok(Outcome::Done)
}

/// Switches the device's timestamps on, unless a PTP program runs on the device.
fn switch_on_stamps(device: &str) -> Result<Option<HardwareStamps>> {
    let caps = Caps::of(device)?;
    let device = printable(device);
    anyhow::ensure!(
        caps.tx_nic(),
        "--stamps nic: {device}: its driver has no times of sent frames (latpath ping caps -i {device} says what it has)"
    );
    if is_used_by_ptp(caps.ifindex) {
        eprintln!(
            "latpath: {device}: no times of sent frames are requested, because a PTP program uses them there: most NICs \
             keep one at a time"
        );
        return Ok(None);
    }
    Ok(HardwareStamps::switch_on(&caps)?)
}

struct SentStream {
    text: String,
    svids: Vec<String>,
    skipped: u64,
    unread: UnreadFrames,
    /// Number of frames that the capture truncated.
    cut: u64,
}

impl SentStream {
    fn new(text: String, svids: Vec<String>) -> Self {
        Self { text, svids, skipped: 0, unread: UnreadFrames::default(), cut: 0 }
    }
}

fn source(args: &Args, own_mac: [u8; 6]) -> Result<(Box<dyn Frames>, SentStream)> {
    let rate = args.rate.map(|r| match r {
        Rate::Max => None,
        Rate::Hz(pace) => Some(pace),
    });
    if let Some(path) = &args.pcap {
        let (path, interface) = path.to_str().map_or((path.as_path(), None), |text| {
            let (path, interface) = InterfaceChoice::split(text);
            (Path::new(path), interface)
        });
        let replay = Replay::open((path, interface), rate, args.rounds, args.wrap)?;
        if let Some((frame, pause)) = replay.longest_pause().filter(|(_, pause)| rate.is_none() && *pause > LONG_PAUSE)
        {
            let file = printable(&path.display().to_string());
            let is_too_long = pause >= PAUSE_TOO_LONG;
            let pause = if is_too_long { elapsed(pause) } else { duration(pause) };
            let pauses = format!("{file}: the file pauses {pause} before frame {frame}");
            if is_too_long && args.stop_after.duration.is_none() {
                return Err(Usage(format!(
                    "{pauses}: skip pauses with --rate, or say with --duration how long to send"
                ))
                .into());
            }
            eprintln!("latpath: {pauses}; nothing is sent then (--rate skips pauses)");
        }
        let what = SentStream {
            text: format!(
                "{}: {}, {}",
                path.display(),
                number_of(replay.len() as u64, "frame"),
                number_of(replay.streams() as u64, "stream")
            ),
            svids: Vec::new(),
            skipped: replay.skipped,
            unread: replay.unread.clone(),
            cut: replay.cut,
        };
        return Ok((Box::new(replay), what));
    }
    if let Some(stream) = &args.stream {
        return repeated(args, stream, own_mac, rate);
    }
    let svids = svids(args);
    if let Some(bad) = svids.iter().find(|s| !(1..=MAX_SVID).contains(&s.len())) {
        return Err(Usage(format!("svID {bad:?}: has {} bytes, 1 to 129 are allowed", bad.len())).into());
    }
    let wrap = args.wrap.unwrap_or(args.profile.samples_per_s);
    if u32::from(args.first) >= wrap {
        return Err(Usage(format!("--first {}: smpCnt runs from 0 to {}", args.first, wrap - 1)).into());
    }
    let first_dst = args.dst.unwrap_or(FIRST_GROUP);
    let options = SyntheticOptions {
        profile: args.profile,
        headers: (0..args.streams).map(|i| header(args, args.src.unwrap_or(own_mac), i)).collect(),
        svids: svids.iter().map(|s| s.clone().into_bytes()).collect(),
        wrap,
        first: args.first,
        conf_rev: 1,
        smp_synch: args.smp_synch.unwrap_or(if args.delay.is_some() { 2 } else { 1 }),
        pace: rate.unwrap_or(Some(Pace::per_second(args.profile.frames_per_s()))),
        burst: args.burst,
        faults: args.step,
    };
    let names = match svids.as_slice() {
        [one] => one.clone(),
        [first, .., last] => format!("{first} to {last}"),
        [] => String::new(),
    };
    let faults = args.step.map_or(String::new(), |faults| format!(", {}", faults::described(&faults)));
    let text = format!("{names}, {}{faults}, to {}", args.profile, format_mac(&first_dst));
    let what = SentStream::new(text, svids);
    Ok((Box::new(Synthetic::new(options)?), what))
}

/// The svID of each stream.
fn svids(args: &Args) -> Vec<String> {
    // clap requires --svid without --pcap, --stream and --schedule.
    let svid = args.svid.as_deref().unwrap_or_default();
    match args.streams {
        1 => vec![svid.to_owned()],
        n => (1..=n).map(|i| format!("{svid}{i:02}")).collect(),
    }
}

/// The address of the stream with index `i`.
fn counted_up(mut first: [u8; 6], i: u16) -> [u8; 6] {
    let low = u16::from_be_bytes([first[4], first[5]]).wrapping_add(i);
    first[4..].copy_from_slice(&low.to_be_bytes());
    first
}

/// The header of the stream with index `i`.
fn header(args: &Args, src: [u8; 6], i: u16) -> FrameSpec {
    let dst = counted_up(args.dst.unwrap_or(FIRST_GROUP), i);
    let link = FrameLink { dst: Some(dst), src, tags: args.tagging.tag(None).into_iter().collect() };
    FrameSpec { link, appid: args.appid, ..FrameSpec::default() }
}

/// Messages of a stream other than Sampled Values. Without a rate, GOOSE repeats each event at growing intervals.
fn repeated(
    args: &Args,
    stream: &StreamSpec,
    own_mac: [u8; 6],
    rate: Option<Option<Pace>>,
) -> Result<(Box<dyn Frames>, SentStream)> {
    let has_events = stream.key.order() == Some(Order::States);
    if args.event_every.is_some() && !has_events {
        return Err(Usage(format!("--event-every: {stream} has no events")).into());
    }
    if args.event_every.is_some_and(|every| every < Duration::from_millis(1)) {
        return Err(Usage("--event-every: an event takes 1 ms or longer".into()).into());
    }
    let pattern = match rate {
        Some(pace) => Pattern::Rate(pace),
        None if has_events => Pattern::Growing { first: 2_000_000, longest: 1_000_000_000 },
        None => Pattern::Rate(Some(Pace::per_second(8))),
    };
    let tags = args.tagging.tag(stream.link.vlan).into_iter().collect();
    let link = FrameLink { dst: stream.link.dst.or(args.dst), src: args.src.unwrap_or(own_mac), tags };
    let event_every = args.event_every.map(ns);
    let options = RepeatedOptions { stream: stream.matcher.clone(), link, pattern, event_every };
    let frames = Repeated::new(options).map_err(Usage)?;
    Ok((Box::new(frames), SentStream::new(stream.to_string(), Vec::new())))
}

fn document(
    args: &Args,
    what: &SentStream,
    target_rate_hz: Option<f64>,
    sent: &Punctuality,
    stamps: Option<TxStampCounts>,
) -> PublishDocument {
    PublishDocument {
        interface: args.copies().is_none().then(|| args.interface.clone()),
        prp: args.prp.clone(),
        hsr: args.hsr.clone(),
        svids: what.svids.clone(),
        stream: args.stream.as_ref().map(ToString::to_string),
        replay: args.pcap.clone(),
        skipped: what.skipped,
        frames_cut: what.cut,
        ..PublishDocument::of(sent, target_rate_hz, &what.unread, stamps)
    }
}

fn text(
    args: &Args,
    what: &SentStream,
    hz: Option<f64>,
    interval: Ns,
    sent: &Punctuality,
    stamps: Option<TxStampCounts>,
) -> String {
    let mut lines = vec![format!("{} on {}", what.text, args.devices())];
    let asked = hz.map_or("as fast as possible".into(), |hz| format!("asked: {}/s", rate(hz)));
    let elapsed = duration(sent.last - sent.first);
    lines.push(format!(
        "sent     {} in {elapsed}, {}/s ({asked})",
        number_of(sent.sent, "frame"),
        rate(sent.rate_hz())
    ));
    for (name, times) in [("pacing", &sent.error), ("wakeup", &sent.wakeup)] {
        if let Some(text) = times_text(times) {
            lines.push(format!("{name}   {text} after the deadline"));
        }
    }
    if sent.error.count() > 0 {
        lines.push(format!("late     {}, by more than {}", number_of(sent.late, "frame"), duration(interval)));
    }
    if let Some(TxStampCounts { requested, received, skipped }) = stamps {
        lines.push(format!(
            "NIC      {received} times of {requested} requested; not requested for {}, one at a time",
            number_of(skipped, "frame")
        ));
    }
    if sent.gave_up {
        lines.push("note     more than 1 s behind when --duration ended; overdue frames were not sent".into());
    }
    if sent.refused > 0 {
        lines.push(format!("refused  {} and lost: the device's queue was full", number_of(sent.refused, "frame")));
    }
    if what.skipped > 0 {
        lines.push(format!("skipped  {} of the file: not Sampled Values", number_of(what.skipped, "packet")));
    }
    let unread = what.unread.total();
    if unread > 0 {
        let (n, why) = (number_of(unread, "frame"), &what.unread);
        lines.push(format!("note     {n} of the file cannot be read, and went out unchanged: {why}"));
    }
    if what.cut > 0 {
        let n = number_of(what.cut, "frame");
        lines.push(format!("note     {n} of the file were cut when captured: what is missing went out as zeros"));
    }
    lines.join("\n") + "\n"
}
