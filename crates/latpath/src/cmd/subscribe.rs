//! `latpath subscribe`: acts as the application at the end of the route.

mod arrivals;

use super::flags::StopAfter;
use super::interrupt::stop_flag;
use super::report::print_as;
use super::streams::reasons_json;
use super::sync::SyncArgs;
use super::thread::OnTime;
use super::{ns, Outcome, Usage};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_histogram::Histogram;
use latpath_linux::monotonic;
use latpath_model::stream::{listed_examples, listed_titles, parse_mac};
use latpath_model::{Ns, StreamSpec};
use latpath_protocols::protocol::Order;
use latpath_stats::units::{count, duration, number_of, rate};
use latpath_traffic::{ArrivalClock, ArrivalOptions, StreamReceived, Subscription};
use latpath_wire::{Groups, Listen, PacketSocket, Received, Receiver};
use serde_json::{json, Value};
use std::sync::atomic::{AtomicBool, Ordering};

/// Time without a requested stream after which a note reports it, ns.
const PATIENCE: Ns = 3_000_000_000;

#[derive(ClapArgs)]
#[command(about = format!("Receive {} as an application does, and check sequence and timing", listed_titles()))]
pub struct Args {
    /// Device to listen on
    #[arg(short, long, value_name = "IF")]
    interface: String,
    #[arg(short, long = "stream", value_name = "STREAM", help = format!("Only this stream, as {}; can be repeated [default: all that come]", listed_examples()))]
    streams: Vec<StreamSpec>,
    /// Group address to join; can be repeated [default: those of the streams' mac=, else all groups]
    #[arg(long = "group", value_name = "MAC", value_parser = group)]
    groups: Vec<[u8; 6]>,
    /// Read frames from a memory-mapped ring (TPACKET_V2) instead of copying them
    #[arg(long)]
    ring: bool,
    #[command(flatten)]
    stop_after: StopAfter,
    #[command(flatten)]
    sync: SyncArgs,
    #[command(flatten)]
    on_time: OnTime,
    /// Name of the receiving thread: the point is called app-read@NAME
    #[arg(long, value_name = "NAME", default_value = "subscribe")]
    name: String,
    #[command(flatten)]
    arrivals: arrivals::ArrivalArgs,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn mac(s: &str) -> Result<[u8; 6], String> {
    parse_mac(s).ok_or_else(|| "write a MAC as 01:0c:cd:04:00:01".into())
}

fn group(s: &str) -> Result<[u8; 6], String> {
    let mac = mac(s)?;
    match mac[0] & 1 {
        1 => Ok(mac),
        _ => Err("the address of one station; a group address has an odd first byte, as 01:0c:cd:04:00:01".into()),
    }
}

pub fn run(args: Args) -> Result<Outcome> {
    let sync = args.sync.clone();
    sync.guard(|| measure(args))
}

fn measure(args: Args) -> Result<Outcome> {
    let stop = stop_flag()?;
    let (mut options, limits) = (args.arrivals.options()?, args.arrivals.limits()?);
    let mut subscription = Subscription::new(&args.streams)
        .map_err(|s| Usage(format!("{s}: subscribe takes {}, by the keys of these protocols", listed_titles())))?;
    if let Some(options) = &mut options {
        let clock = ArrivalClock::new(args.arrivals.clock());
        options.bound = options.bound.map(|bound| bound.saturating_add(clock.error()));
        subscription.measure_arrivals(*options, clock);
    }
    // A socket of one protocol receives frames without the tag of an unknown VLAN: to distinguish VLANs takes a socket
    // of all protocols.
    let vlans = options.is_some() || args.streams.is_empty() || args.streams.iter().any(|s| s.link.vlan.is_some());
    let listen = match subscription.protocols().as_slice() {
        [protocol] if !vlans && protocol.info().ethertypes.len() == 1 => Listen::Delivered(*protocol),
        protocols => Listen::Incoming(protocols.to_vec()),
    };
    let socket = PacketSocket::open(&args.interface, listen)?;
    socket.join(&groups(&args))?;
    let mut receiver = Receiver::new(socket, args.ring)?;

    let _awake = args.on_time.keep_awake()?;
    args.on_time.apply(&args.name)?;
    let mut run = Run { subscription, options, start: monotonic(), elapsed: 0, dropped: 0, noted: false };
    let ended = run.receive(&mut receiver, &args, &stop);
    run.elapsed = monotonic() - run.start;
    run.dropped = receiver.dropped();
    let printed = print_as(args.json, || run.to_json(&args), || run.text(&args));
    ended?;
    printed?;
    let verdicts = arrivals::verdicts(&limits, &run.subscription, options.as_ref());
    args.arrivals.announce(&args.interface, &verdicts)
}

fn groups(args: &Args) -> Groups {
    let group = |s: &StreamSpec| s.link.dst.filter(|m| m[0] & 1 == 1);
    let of_streams: Option<Vec<[u8; 6]>> = args.streams.iter().map(group).collect();
    match of_streams {
        _ if !args.groups.is_empty() => Groups::These(args.groups.clone()),
        Some(macs) if !macs.is_empty() => Groups::These(macs),
        _ => Groups::All,
    }
}

struct Run {
    subscription: Subscription,
    /// What is measured by send times in frames.
    options: Option<ArrivalOptions>,
    start: Ns,
    elapsed: Ns,
    dropped: u64,
    noted: bool,
}

impl Run {
    fn receive(&mut self, receiver: &mut Receiver, args: &Args, stop: &AtomicBool) -> Result<()> {
        let end = args.stop_after.duration.map_or(Ns::MAX, |d| self.start.saturating_add(ns(d)));
        let most = args.stop_after.count.unwrap_or(u64::MAX);
        while !stop.load(Ordering::Relaxed) && self.subscription.taken < most && monotonic() < end {
            if let Some(clock) = self.subscription.arrival_clock() {
                clock.follow();
            }
            receiver.receive(&mut |frame| self.take(&frame, most))?;
            if !self.noted && monotonic() - self.start > PATIENCE {
                self.note_absent(args);
            }
        }
        if self.subscription.taken < most {
            receiver.drain(&mut |frame| self.take(&frame, most))?;
        }
        Ok(())
    }

    fn take(&mut self, frame: &Received<'_>, most: u64) {
        if self.subscription.taken < most {
            self.subscription.note(frame);
        }
    }

    /// Prints once which streams have not arrived.
    fn note_absent(&mut self, args: &Args) {
        self.noted = true;
        let absent = self.subscription.streams().iter().filter(|s| s.totals().received == 0);
        let absent: Vec<String> = absent.map(|s| s.stream.to_string()).collect();
        let nothing = self.subscription.streams().is_empty();
        if absent.is_empty() && !nothing {
            return;
        }
        let what = if nothing { listed_titles() } else { absent.join(", ") };
        let others = match self.subscription.other_names.as_slice() {
            [] => String::new(),
            some => format!("; streams that did: {}", some.join(", ")),
        };
        eprintln!("latpath: {}: no frame of {what} for 3 s{others}; still waiting", args.interface);
    }

    fn to_json(&self, args: &Args) -> Value {
        let s = &self.subscription;
        let sum = |f: fn(&StreamReceived) -> u64| s.streams().iter().map(f).sum::<u64>();
        json!({
            "interface": args.interface,
            "mode": if args.ring { "ring" } else { "copy" },
            "elapsed_ns": self.elapsed,
            "received": sum(|s| s.totals().received),
            "lost": sum(|s| s.totals().lost),
            "duplicates": sum(|s| s.totals().duplicates),
            "out_of_order": sum(|s| s.totals().out_of_order),
            "malformed": s.unread.total(),
            "malformed_reasons": reasons_json(&s.unread),
            "other_frames": s.others,
            "other_svids": s.other_names,
            "socket_dropped": self.dropped,
            "unstamped": s.unstamped,
            "send_times": self.options.map(|options| arrivals::settings(&options, args.arrivals.clock())),
            "streams": s.streams().iter().map(|s| stream_json(s, self.options.as_ref())).collect::<Vec<_>>(),
        })
    }

    fn text(&self, args: &Args) -> String {
        let s = &self.subscription;
        let mode = if args.ring { "mapped ring" } else { "copying read" };
        let elapsed = duration(self.elapsed);
        let mut lines = vec![format!("{} ({mode}), {elapsed}: {}", args.interface, number_of(s.taken, "frame"))];
        for stream in s.streams() {
            add_stream(&mut lines, stream);
            if let Some((arrivals, options)) = stream.arrivals.as_ref().zip(self.options.as_ref()) {
                arrivals::add(&mut lines, arrivals, options);
            }
        }
        if s.others > 0 {
            lines.push(format!("others         {} of {}", number_of(s.others, "frame"), s.other_names.join(", ")));
        }
        let unread = s.unread.total();
        if unread > 0 {
            lines.push(format!("malformed      {} could not be read: {}", number_of(unread, "frame"), s.unread));
        }
        if self.dropped > 0 {
            lines.push(format!("dropped        {}: the socket's buffer was full", number_of(self.dropped, "frame")));
        }
        lines.join("\n") + "\n"
    }
}

/// Adds the figures of these times to the JSON; null without times.
pub(super) fn times_json(into: &mut Value, name: &str, times: &Histogram) {
    into[format!("{name}_count")] = json!(times.count());
    let [p50, p90, p99, p99_9] = times.percentiles([500_000, 900_000, 990_000, 999_000]);
    let (keys, values) = (
        ["min", "mean", "p50", "p90", "p99", "p99_9", "max"],
        [times.min(), times.mean(), p50, p90, p99, p99_9, times.max()],
    );
    for (key, value) in keys.iter().zip(values) {
        into[format!("{name}_{key}_ns")] = json!((times.count() > 0).then_some(value));
    }
}

/// Percentiles and maximum of these times as text; `None` without times.
pub(super) fn times_text(times: &Histogram) -> Option<String> {
    let [p50, p99, p99_9] = times.percentiles([500_000, 990_000, 999_000]).map(duration);
    (times.count() > 0).then(|| format!("p50 {p50}, p99 {p99}, p99.9 {p99_9}, max {}", duration(times.max())))
}

fn stream_json(s: &StreamReceived, options: Option<&ArrivalOptions>) -> Value {
    let totals = s.totals();
    let mut row = json!({
        "stream": s.stream.to_string(),
        "svid": s.stream.short(),
        "received": totals.received,
        "lost": totals.lost,
        "gaps": totals.gaps,
        "duplicates": totals.duplicates,
        "out_of_order": totals.out_of_order,
        "restarts": totals.restarts,
        "wrap": s.tracker.wrap(),
        "asdus": s.samples,
        "rate_hz": rate_hz(s),
        "delay_negative": s.delay.negatives(),
    });
    times_json(&mut row, "interarrival", &s.interarrival);
    times_json(&mut row, "delay", &s.delay);
    if let Some(options) = options {
        arrivals::to_json(&mut row, s, options);
    }
    row
}

fn rate_hz(s: &StreamReceived) -> f64 {
    let (n, t) = (s.totals().received, s.last - s.first);
    if n > 1 && t > 0 {
        (n - 1) as f64 * 1e9 / t as f64
    } else {
        0.0
    }
}

fn add_stream(lines: &mut Vec<String>, s: &StreamReceived) {
    let t = s.totals();
    lines.push(s.stream.to_string());
    if t.received == 0 {
        lines.push("  never came".into());
        return;
    }
    let wrap = s.tracker.wrap().map_or("not seen yet".into(), |w| w.to_string());
    let asdus = if s.samples > 0 { format!("{} ASDUs each, ", s.samples) } else { String::new() };
    let (received, rate, name) = (number_of(t.received, "frame"), rate(rate_hz(s)), s.stream.key.name());
    let wraps =
        if s.stream.key.order() == Some(Order::States) { "" } else { &format!(", {asdus}{name} wraps at: {wrap}") };
    lines.push(format!("  received     {received}, {rate}/s{wraps}"));
    lines.push(format!("  lost         {} in {}", count(t.lost), number_of(t.gaps, "gap")));
    lines.push(format!("  duplicates   {}, out of order {}", count(t.duplicates), count(t.out_of_order)));
    if t.restarts > 0 {
        lines.push(format!("  restarts     {}: the publisher began again", count(t.restarts)));
    }
    for (name, times) in [("interarrival", &s.interarrival), ("delay", &s.delay)] {
        if let Some(text) = times_text(times) {
            lines.push(format!("  {name:<12} min {}, {text}", duration(times.min())));
        }
    }
    if s.delay.negatives() > 0 {
        lines.push(format!(
            "  clock fault  {} delays are negative: the system clock was set back",
            count(s.delay.negatives())
        ));
    }
}
