//! `latpath ping reflect`: answers probes.

mod figures;
mod sessions;

use super::freeze::Freeze;
use super::link::{device_of, Link, Prepared};
use super::times::Drawn;
use crate::cmd::interrupt::stop_flag;
use crate::cmd::limits::Limits;
use crate::cmd::on_spike::SpikeCommand;
use crate::cmd::report::print_as;
use crate::cmd::subscribe::mac;
use crate::cmd::thread::OnTime;
use crate::cmd::{ns, Outcome, Usage};
use anyhow::{bail, Result};
use clap::Args as ClapArgs;
use latpath_analysis::Limit;
use latpath_model::stream::format_mac;
use latpath_ping::breach::Edge;
use latpath_ping::document::ReflectDocument;
use latpath_ping::ethernet::{self, Ethernet};
use latpath_ping::reflect::{reflect, ReflectPlan};
use latpath_ping::transport::Transport;
use latpath_ping::udp::{Udp, UdpError, UdpOptions, PORT};
use sessions::Sessions;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;

/// Answer the probes of `latpath ping emit`
#[derive(ClapArgs)]
pub struct Args {
    /// Listen on this address of this machine [default: all]
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,
    /// UDP port to listen on
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// Device to listen on exclusively
    #[arg(short, long, value_name = "IF")]
    interface: Option<String>,
    /// Answer Ethernet frames on the device instead, both Sampled Values and those of latpath's own type; needs -i
    #[arg(long, requires = "interface", conflicts_with_all = ["bind", "port"])]
    ethernet: bool,
    /// Group address to join; frames to it are answered too; can be repeated
    #[arg(long, value_name = "MAC", value_parser = mac, requires = "ethernet")]
    group: Vec<[u8; 6]>,
    #[command(flatten)]
    link: Link,
    #[command(flatten)]
    on_time: OnTime,
    #[command(flatten)]
    freeze: Freeze,
    /// Stop after N sessions; a session ends after 30 s without a packet
    #[arg(long, value_name = "N")]
    sessions: Option<u64>,
    #[command(flatten)]
    drawn: Drawn,
    #[command(flatten)]
    limits: Limits,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Show no progress on stderr
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Result<Outcome> {
    if args.link.xdp && !args.ethernet {
        return Err(Usage("--xdp: AF_XDP carries Ethernet frames; add --ethernet and -i".into()).into());
    }
    let mut limits = args.limits.all(false)?;
    figures::refuse_others(&mut limits, args.freeze.threshold.is_some())?;
    let drawn = args.drawn.axis()?;
    let stop = stop_flag()?;
    let device = args.interface.clone().or_else(|| device_of(args.bind?));
    let plan = ReflectPlan {
        spin: args.link.spin,
        device: device.clone().unwrap_or_default(),
        threshold: args.freeze.threshold.map(ns),
        stop_on_breach: args.freeze.stops(),
        sessions: args.sessions,
        drawn,
    };
    if let (true, Some(device)) = (args.link.xdp, &device) {
        let (mut transport, prepared) = args.link.open_xdp(device, None, &args.group, false)?;
        prepared.notes.iter().for_each(|note| eprintln!("latpath: {note}"));
        let at = format!("{} ({device})", format_mac(&transport.device().mac));
        return go(&args, &mut transport, &at, (&plan, &limits), prepared, &stop);
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
        return go(&args, &mut transport, &at, (&plan, &limits), prepared, &stop);
    }
    let options = args.link.udp(args.interface.as_deref(), &prepared);
    let mut transport = listen(&args, &options)?;
    let at = transport.at().to_string();
    go(&args, &mut transport, &at, (&plan, &limits), prepared, &stop)
}

fn go<T: Transport<Peer: Display>>(
    args: &Args,
    transport: &mut T,
    at: &str,
    (plan, limits): (&ReflectPlan, &[Limit]),
    mut prepared: Prepared,
    stop: &AtomicBool,
) -> Result<Outcome> {
    let _awake = args.on_time.keep_awake()?;
    let breach = args.freeze.prepare(true)?;
    let command = args.freeze.command(args.on_time.cpu)?;
    let shown = figures::ProgressLine::begin(args.quiet, limits);
    if let Some(note) = args.on_time.lock_memory() {
        eprintln!("latpath: {note}");
    }
    args.on_time.apply("ping-reflect")?;
    if !args.quiet {
        eprintln!("latpath: reflecting at {at}; stop with Ctrl-C");
    }
    let mut sessions = Sessions::new(args.json, args.quiet, (breach.as_ref(), command.as_ref()), &shown);
    let mark = |edge| breach.iter().for_each(|breach| breach.mark(edge, "reflector"));
    mark(Edge::Begin);
    let result = reflect(transport, plan, &prepared.clocks, &mut sessions, stop);
    mark(Edge::End);
    prepared.clocks.finish();
    sessions.disturbances = prepared.clocks.disturbances_since(&mut 0);
    let (sum, failed) = match result {
        Ok(sum) => (sum, None),
        Err((e, sum)) => (sum, Some(e)),
    };
    let text = sessions.text(&sum);
    let verdicts = figures::verdicts(&sessions.all, limits);
    let document = sessions.document(sum);
    shown.end();
    args.freeze.end(breach, stop);
    let on_spike = command.map(SpikeCommand::end);
    print_as(args.json, || ReflectDocument { on_spike, ..document }, || text)?;
    if let Some(e) = failed {
        bail!(e);
    }
    let outcome = args.limits.announce("latpath ping reflect", &verdicts, false)?;
    Ok(if sum.breached { Outcome::LimitBroken } else { outcome })
}

/// Listens at the named address; otherwise at all addresses, of both families if the kernel supports both.
fn listen(args: &Args, options: &UdpOptions) -> Result<Udp, UdpError> {
    let listen = |ip| Udp::listen(SocketAddr::new(ip, args.port), options);
    match listen(args.bind.unwrap_or([0u16; 8].into())) {
        Err(UdpError::Os { .. } | UdpError::NotOurs(_)) if args.bind.is_none() => listen([0; 4].into()),
        listening => listening,
    }
}
