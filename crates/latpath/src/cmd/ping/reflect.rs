//! `latpath ping reflect`: answers probes.

use super::freeze::Freeze;
use super::link::{device_of, Link, Prepared};
use crate::cmd::interrupt::stop_flag;
use crate::cmd::report::{print, print_as};
use crate::cmd::subscribe::mac;
use crate::cmd::thread::OnTime;
use crate::cmd::{ns, Outcome, Usage};
use anyhow::{bail, Result};
use clap::Args as ClapArgs;
use latpath_linux::monotonic;
use latpath_model::stream::format_mac;
use latpath_model::Ns;
use latpath_ping::breach::{BreachTrace, BreachedProbe};
use latpath_ping::ethernet::{self, Ethernet};
use latpath_ping::reflect::{reflect, ReflectPlan, Reflected, Witness};
use latpath_ping::session::Session;
use latpath_ping::timeline::Disturbance;
use latpath_ping::transport::Transport;
use latpath_ping::udp::{Udp, UdpError, UdpOptions, PORT};
use latpath_ping::{Route, Transaction};
use latpath_stats::units::{count, duration, elapsed, number_of};
use latpath_stats::TimeFigures;
use serde_json::{json, Value};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Answer the probes of `latpath ping emit`
#[derive(ClapArgs)]
pub struct Args {
    /// Listen at this address of this machine [default: all of them]
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,
    /// UDP port to listen at
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// Device to listen on alone
    #[arg(short, long, value_name = "IF")]
    interface: Option<String>,
    /// Answer Ethernet frames on the device instead, both Sampled Values and those of latpath's own type; needs -i
    #[arg(long, requires = "interface", conflicts_with_all = ["bind", "port"])]
    ethernet: bool,
    /// Group address to join: frames to it are answered too; several are allowed
    #[arg(long, value_name = "MAC", value_parser = mac, requires = "ethernet")]
    group: Vec<[u8; 6]>,
    #[command(flatten)]
    link: Link,
    #[command(flatten)]
    on_time: OnTime,
    #[command(flatten)]
    freeze: Freeze,
    /// End after N sessions have ended; a session ends when nothing is heard of it for 30 s
    #[arg(long, value_name = "N")]
    sessions: Option<u64>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// No progress on stderr
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Result<Outcome> {
    if args.link.xdp && !args.ethernet {
        return Err(Usage("--xdp: AF_XDP carries Ethernet frames; add --ethernet and -i".into()).into());
    }
    let stop = stop_flag()?;
    let device = args.interface.clone().or_else(|| device_of(args.bind?));
    let plan = ReflectPlan {
        spin: args.link.spin,
        device: device.clone().unwrap_or_default(),
        threshold: args.freeze.threshold.map(ns),
        stop_on_breach: args.freeze.stops(),
        sessions: args.sessions,
    };
    if let (true, Some(device)) = (args.link.xdp, &device) {
        let (mut transport, prepared) = args.link.open_xdp(device, None, &args.group, false)?;
        prepared.notes.iter().for_each(|note| eprintln!("latpath: {note}"));
        let at = format!("{} ({device})", format_mac(&transport.device().mac));
        return go(&args, &mut transport, &at, &plan, prepared, &stop);
    }
    let prepared = args.link.prepare(device.as_deref())?;
    prepared.notes.iter().for_each(|note| eprintln!("latpath: {note}"));
    if let (true, Some(device)) = (args.ethernet, &device) {
        let options = ethernet::Options {
            groups: args.group.clone(),
            stamps: prepared.stamps,
            bypass_qdisc: args.link.bypass_qdisc,
            priority: args.link.priority,
            ..ethernet::Options::new(device)
        };
        let mut transport = Ethernet::open(options)?;
        let at = format!("{} ({device})", format_mac(&transport.device().mac));
        return go(&args, &mut transport, &at, &plan, prepared, &stop);
    }
    let options = args.link.udp(args.interface.as_deref(), &prepared);
    let mut transport = listen(&args, &options)?;
    let at = transport.at().to_string();
    go(&args, &mut transport, &at, &plan, prepared, &stop)
}

fn go<T: Transport<Peer: Display>>(
    args: &Args,
    transport: &mut T,
    at: &str,
    plan: &ReflectPlan,
    mut prepared: Prepared,
    stop: &AtomicBool,
) -> Result<Outcome> {
    let _awake = args.on_time.keep_awake()?;
    let breach = args.freeze.prepare(true)?;
    args.on_time.apply("ping-reflect")?;
    if !args.quiet {
        eprintln!("latpath: reflecting at {at}; stop with Ctrl-C");
    }
    let mut sessions = Sessions {
        json: args.json,
        quiet: args.quiet,
        lines: Lines::new(),
        sessions: Vec::new(),
        not_listed: 0,
        freeze: breach.as_ref(),
        began: monotonic(),
        disturbances: Vec::new(),
    };
    let result = reflect(transport, plan, &prepared.clocks, &mut sessions, stop);
    prepared.clocks.finish();
    sessions.disturbances = prepared.clocks.disturbances_since(&mut 0);
    let (sum, failed) = match result {
        Ok(sum) => (sum, None),
        Err((e, sum)) => (sum, Some(e)),
    };
    let printed = print_as(args.json, || sessions.to_json(&sum), || sessions.text(&sum));
    args.freeze.end(breach, stop);
    printed?;
    if let Some(e) = failed {
        bail!(e);
    }
    Ok(if sum.breached { Outcome::LimitBroken } else { Outcome::Done })
}

/// Listens at the named address; otherwise at all addresses, of both families if the kernel supports both.
fn listen(args: &Args, options: &UdpOptions) -> Result<Udp, UdpError> {
    let listen = |ip| Udp::listen(SocketAddr::new(ip, args.port), options);
    match listen(args.bind.unwrap_or([0u16; 8].into())) {
        Err(UdpError::Os { .. } | UdpError::NotOurs(_)) if args.bind.is_none() => listen([0; 4].into()),
        listening => listening,
    }
}

/// Maximum number of a session's breaches printed one by one: its emitter may report any number.
const MOST_PRINTED: u64 = 10;
/// Maximum number of lines on sessions per [`LINES_TIME`]: forged messages can begin and end any number of sessions.
const MOST_LINES: u32 = 100;
const LINES_TIME: Duration = Duration::from_secs(10);
/// Maximum number of sessions in the JSON: any host may open more.
const MOST_LISTED: usize = 10_000;

/// Rate limit of the lines on sessions.
struct Lines {
    since: Instant,
    printed: u32,
    /// Number of lines omitted since `since`; `all_left_out` is that since the beginning.
    left_out: u64,
    all_left_out: u64,
}

impl Lines {
    fn new() -> Self {
        Self { since: Instant::now(), printed: 0, left_out: 0, all_left_out: 0 }
    }

    /// Whether another line may be printed now. Prints the number of omitted lines at the end of their interval.
    fn has_room(&mut self, now: Instant) -> bool {
        if now.duration_since(self.since) >= LINES_TIME {
            if self.left_out > 0 {
                eprintln!("latpath: {} lines on sessions were left out", count(self.left_out));
            }
            *self = Self { since: now, printed: 0, left_out: 0, ..*self };
        }
        let has_room = self.printed < MOST_LINES;
        match has_room {
            true => self.printed += 1,
            false => {
                self.left_out += 1;
                self.all_left_out += 1;
            }
        }
        has_room
    }
}

/// The sessions observed.
struct Sessions<'a> {
    json: bool,
    quiet: bool,
    lines: Lines,
    sessions: Vec<Value>,
    not_listed: u64,
    freeze: Option<&'a BreachTrace>,
    began: Ns,
    /// Disturbances of this machine's clocks.
    disturbances: Vec<Disturbance>,
}

impl<P: Display> Witness<P> for Sessions<'_> {
    fn begins(&mut self, peer: &P, session: u32) {
        if !self.quiet && self.lines.has_room(Instant::now()) {
            eprintln!("latpath: {peer}: session {session:08x} begins");
        }
    }

    fn ends(&mut self, peer: &P, session: &Session) {
        let seen = session.seen;
        let times = |h: &latpath_stats::Histogram| (h.count() > 0).then(|| TimeFigures::of(h));
        if self.json {
            if self.sessions.len() >= MOST_LISTED {
                self.not_listed += 1;
                return;
            }
            self.sessions.push(json!({
                "peer": peer.to_string(),
                "session": format!("{:08x}", session.number),
                "received": seen.received,
                "duplicates": seen.duplicates,
                "reordered": seen.reordered,
                "refused": seen.refused,
                "breaches": session.breaches,
                "turnaround": times(&session.turnaround),
                "nic_turnaround": times(&session.nic_turnaround),
            }));
            return;
        }
        if !self.lines.has_room(Instant::now()) {
            return;
        }
        let mut text = format!(
            "{peer}: session {:08x}: {} probes, {} twice, {} out of order, {} answers refused",
            session.number,
            count(seen.received),
            count(seen.duplicates),
            count(seen.reordered),
            count(seen.refused)
        );
        if session.breaches > 0 {
            text += &format!(", {} broke the emitter's threshold", count(session.breaches));
        }
        for (name, h) in [("turnaround", &session.turnaround), ("NIC's turnaround", &session.nic_turnaround)] {
            if let Some(t) = times(h) {
                text += &format!(
                    "\n  {name:18} min {}, mean {}, p50 {}, p99 {}, p99.9 {}, max {}",
                    duration(t.min_ns),
                    duration(t.mean_ns),
                    duration(t.p50_ns),
                    duration(t.p99_ns),
                    duration(t.p99_9_ns),
                    duration(t.max_ns)
                );
            }
        }
        // Prints each session when it ends; a closed stdout is no error.
        let _ = print(&(text + "\n"));
    }

    fn breach(&mut self, peer: &P, session: &Session, sequence: u64) {
        self.freeze(session.number, Transaction { sequence, ..Transaction::default() });
        if session.breaches <= MOST_PRINTED && self.lines.has_room(Instant::now()) {
            let number = session.number;
            eprintln!("latpath: {peer}: session {number:08x}: probe {sequence} broke the emitter's threshold");
        }
    }

    fn slow(&mut self, peer: &P, session: u32, sequence: u64, turnaround: latpath_model::Ns) {
        self.freeze(session, Transaction { sequence, ..Transaction::default() });
        if self.lines.has_room(Instant::now()) {
            let held = duration(turnaround);
            eprintln!("latpath: {peer}: session {session:08x}: probe {sequence} was held here for {held}");
        }
    }
}

impl Sessions<'_> {
    /// Reports a breach to the trace. Only its time is known here, not the round trip.
    fn freeze(&self, session: u32, transaction: Transaction) {
        if let Some(freeze) = self.freeze {
            freeze.breach(&BreachedProbe::of(session, &transaction, &Route::of_seven(0), &[]));
        }
    }

    fn to_json(&self, sum: &Reflected) -> Value {
        json!({
            "version": 1,
            "sessions": self.sessions,
            "sessions_not_listed": self.not_listed,
            "foreign": sum.foreign,
            "turned_away": sum.turned_away,
            "dropped": sum.dropped,
            "breached": sum.breached,
            "disturbances": self.disturbances,
        })
    }

    fn text(&self, sum: &Reflected) -> String {
        let mut text = format!(
            "{}; messages of no session: {}, turned away: {}, dropped: {}",
            number_of(sum.sessions, "session"),
            count(sum.foreign),
            count(sum.turned_away),
            count(sum.dropped)
        );
        text += if sum.dropped > 0 { " (the socket's buffer was full)\n" } else { "\n" };
        if self.lines.all_left_out > 0 {
            text += &format!("left out: {} on sessions\n", number_of(self.lines.all_left_out, "line"));
        }
        for d in &self.disturbances {
            text += &format!("clocks    at {}: {}\n", elapsed((d.at_ns - self.began).max(0)), d.what);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(json: bool) -> Sessions<'static> {
        Sessions {
            json,
            quiet: false,
            lines: Lines::new(),
            sessions: Vec::new(),
            not_listed: 0,
            freeze: None,
            began: 0,
            disturbances: Vec::new(),
        }
    }

    #[test]
    fn forged_sessions_fill_no_memory_without_end_and_what_is_not_listed_is_counted() {
        let (mut sessions, session) = (sessions(true), Session::new(7, 0, 0));
        (0..MOST_LISTED + 3).for_each(|_| sessions.ends(&"peer", &session));
        let json = sessions.to_json(&Reflected::default());
        assert_eq!((json["sessions"].as_array().unwrap().len(), &json["sessions_not_listed"]), (10_000, &json!(3)));
    }

    #[test]
    fn an_emitter_that_reports_breaches_without_end_has_ten_lines() {
        let (mut sessions, mut session) = (sessions(false), Session::new(7, 0, 0));
        for sequence in 1..=50 {
            session.breaches = sequence;
            sessions.breach(&"peer", &session, sequence);
        }
        assert_eq!((sessions.lines.printed, sessions.lines.all_left_out), (10, 0));
    }

    #[test]
    fn forged_sessions_print_no_lines_without_end_and_what_is_left_out_is_counted() {
        let (mut lines, began) = (Lines::new(), Instant::now());
        let printed = |lines: &mut Lines, at: Instant| (0..10_000).filter(|_| lines.has_room(at)).count() as u32;
        assert_eq!(printed(&mut lines, began), MOST_LINES);
        assert_eq!(lines.left_out, u64::from(10_000 - MOST_LINES));
        assert_eq!(printed(&mut lines, began + 2 * LINES_TIME), MOST_LINES, "later ones are printed again");
        assert_eq!(lines.all_left_out, 2 * u64::from(10_000 - MOST_LINES));
    }
}
