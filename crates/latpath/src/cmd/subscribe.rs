//! `latpath subscribe`: acts as the application at the end of the route.

mod arrivals;
mod trips;

use super::flags::{Stamps, StopAfter};
use super::interrupt::stop_flag;
use super::report::print_as;
use super::sync::SyncArgs;
use super::thread::OnTime;
use super::times::times_text;
use super::wire::{wire_text, wire_times, WIRE};
use super::{ns, Outcome, Usage};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_linux::monotonic;
use latpath_model::stream::{listed_examples, listed_titles, parse_mac};
use latpath_model::{Ns, StreamSpec};
use latpath_protocols::protocol::Order;
use latpath_stats::units::{count, duration, number_of, rate};
use latpath_traffic::document::{ReadMode, SubscribeDocument};
use latpath_traffic::{ArrivalClock, ArrivalOptions, Responder, Responses, StreamReceived, Subscription, WireTimes};
use latpath_wire::{Groups, Listen, PacketSocket, Received, Receiver};
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
    /// Timestamps to take: the kernel's, or also the NIC's, which are switched on for this time and give the time from
    /// the wire to the driver
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = Stamps::Kernel)]
    stamps: Stamps,
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
    #[command(flatten)]
    trips: trips::TripArgs,
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
        _ => Err("the address of one station; a group address has an odd first byte, e.g. 01:0c:cd:04:00:01".into()),
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
    // A socket for one protocol receives frames without the tag of an unknown VLAN, so a socket for all protocols is
    // needed to distinguish VLANs.
    let vlans = options.is_some() || args.streams.is_empty() || args.streams.iter().any(|s| s.link.vlan.is_some());
    let listen = match subscription.protocols().as_slice() {
        [protocol] if !vlans && protocol.info().ethertypes.len() == 1 => Listen::Delivered(*protocol),
        protocols => Listen::Incoming(protocols.to_vec()),
    };
    if args.ring && args.stamps == Stamps::Nic {
        return Err(
            Usage("--ring: a frame of the ring has one time, the kernel's; leave out --stamps nic".into()).into()
        );
    }
    let socket = PacketSocket::open(&args.interface, listen)?;
    socket.join(&groups(&args))?;
    if args.stamps == Stamps::Nic {
        subscription.measure_wire(wire_times(&args.interface)?);
        socket.request_stamps(WIRE)?;
    }
    let mut receiver = Receiver::new(socket, args.ring)?;

    let _awake = args.on_time.keep_awake()?;
    args.on_time.apply(&args.name)?;
    let responder = args.trips.begin(&args)?;
    let (start, responses) = (monotonic(), None);
    let mut run = Run { subscription, options, start, elapsed: 0, dropped: 0, noted: false, responder, responses };
    let received = run.receive(&mut receiver, &args, &stop);
    run.elapsed = monotonic() - run.start;
    let responded = run.responder.take().map(Responder::stop).transpose();
    let ended = received.and(match responded {
        Ok(responses) => {
            run.responses = responses;
            Ok(())
        }
        Err(error) => Err(error.into()),
    });
    run.dropped = receiver.dropped();
    run.subscription.round(true);
    for note in run.subscription.wire().map_or(Vec::new(), WireTimes::notes) {
        eprintln!("latpath: {note}");
    }
    let printed = print_as(args.json, || run.document(&args), || run.text(&args));
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
    /// Options for measurements by the send times in frames.
    options: Option<ArrivalOptions>,
    start: Ns,
    elapsed: Ns,
    dropped: u64,
    noted: bool,
    responder: Option<Responder>,
    /// The messages that the responder sent, once it has ended.
    responses: Option<Responses>,
}

impl Run {
    fn receive(&mut self, receiver: &mut Receiver, args: &Args, stop: &AtomicBool) -> Result<()> {
        let end = args.stop_after.duration.map_or(Ns::MAX, |d| self.start.saturating_add(ns(d)));
        let most = args.stop_after.count.unwrap_or(u64::MAX);
        while !stop.load(Ordering::Relaxed) && self.subscription.taken < most && monotonic() < end {
            if let Some(clock) = self.subscription.arrival_clock() {
                clock.follow();
            }
            self.subscription.round(false);
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
            // The responder comes first, because its reaction time counts.
            self.responder.iter_mut().for_each(|responder| responder.note(frame));
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

    fn document(&self, args: &Args) -> SubscribeDocument {
        let mode = if args.ring { ReadMode::Ring } else { ReadMode::Copy };
        let measured = self.options.as_ref().map(|options| (options, args.arrivals.clock()));
        let trips = self.responses.as_ref().zip(args.trips.rule());
        let (device, counts) = ((args.interface.as_str(), mode), (self.elapsed, self.dropped));
        SubscribeDocument::of(&self.subscription, device, counts, measured, trips)
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
        if let Some((responses, rule)) = self.responses.as_ref().zip(args.trips.rule()) {
            trips::add(&mut lines, responses, rule);
        }
        if s.others > 0 {
            lines.push(format!("others         {} of {}", number_of(s.others, "frame"), s.other_names.join(", ")));
        }
        let unread = s.unread.total();
        if unread > 0 {
            lines.push(format!("malformed      {} could not be read: {}", number_of(unread, "frame"), s.unread));
        }
        if let Some(wire) = s.wire() {
            lines.push(format!("NIC            {}", wire_text(wire.counts())));
        }
        if self.dropped > 0 {
            lines.push(format!("dropped        {}: the socket's buffer was full", number_of(self.dropped, "frame")));
        }
        lines.join("\n") + "\n"
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
    let (received, rate, name) = (number_of(t.received, "frame"), rate(s.rate_hz()), s.stream.key.name());
    let wraps =
        if s.stream.key.order() == Some(Order::States) { "" } else { &format!(", {asdus}{name} wraps at: {wrap}") };
    lines.push(format!("  received     {received}, {rate}/s{wraps}"));
    lines.push(format!("  lost         {} in {}", count(t.lost), number_of(t.gaps, "gap")));
    lines.push(format!("  duplicates   {}, out of order {}", count(t.duplicates), count(t.out_of_order)));
    if t.restarts > 0 {
        lines.push(format!("  restarts     {}: the publisher began again", count(t.restarts)));
    }
    let wire = ("wire→driver", &s.wire_to_driver);
    for (name, times) in [("interarrival", &s.interarrival), wire, ("delay", &s.delay)] {
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
