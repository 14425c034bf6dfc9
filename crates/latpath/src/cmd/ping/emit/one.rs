//! One session with one reflector.

use super::super::link::{device_of, Prepared};
use super::super::target::Target;
use super::Args;
use anyhow::{Context, Result};
use latpath_ping::emit::{emit, Observer, Pacing, Plan, Why};
use latpath_ping::figures::{FigureOptions, Figures, Report};
use latpath_ping::table::{Counts, End};
use latpath_ping::transaction::Transaction;
use latpath_ping::transport::Transport;
use latpath_ping::udp::{UdpEmitter, UdpOptions};
use latpath_ping::wire::Welcome;
use latpath_stats::units::count;
use serde_json::{json, Value};
use std::net::UdpSocket;
use std::sync::atomic::AtomicBool;

/// A session that is over.
pub struct Done {
    pub target: Target,
    pub session: u32,
    pub device: Option<String>,
    pub taken: u16,
    pub ended: Ending,
    pub report: Report,
    pub notes: Vec<String>,
    breach: Option<Transaction>,
}

/// How it ended.
pub struct Ending {
    pub why: Why,
    pub failed: Option<String>,
    pub welcome: Option<Welcome>,
    pub dropped: u64,
    pub refusal: Option<std::io::Error>,
}

struct Watching {
    figures: Figures,
    breach: Option<Transaction>,
}

impl Observer for Watching {
    fn closed(&mut self, t: &Transaction, end: End) {
        self.figures.add(t, end);
    }
    fn breach(&mut self, t: &Transaction) {
        self.breach.get_or_insert(*t);
    }
    fn line(&mut self, taken: u16) {
        self.figures.set_line(taken);
    }
    fn tick(&mut self, _counts: &Counts) {}
    fn warm(&mut self) {
        self.figures.clear();
    }
}

/// Runs it, in the calling thread.
pub fn session(args: &Args, target: &Target, plan: Plan, number: usize, stop: &AtomicBool) -> Result<Done> {
    match target {
        Target::Udp(peer) => {
            let device = args.interface.clone().or_else(|| {
                // The kernel chooses the address to send from as it would for the probes.
                let from = std::net::SocketAddr::new(
                    args.from.unwrap_or_else(|| if peer.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() }),
                    0,
                );
                let probe = UdpSocket::bind(from).ok()?;
                probe.connect(peer).ok()?;
                device_of(probe.local_addr().ok()?.ip())
            });
            let prepared = args.link.prepare(device.as_deref())?;
            let options = UdpOptions {
                device: args.interface.clone(),
                stamps: prepared.stamps,
                busy_poll: args.link.busy_poll(),
                priority: args.link.priority,
                dscp: args.link.dscp,
            };
            let mut transport = UdpEmitter::connect(*peer, args.from, &options)?;
            measure(args, *target, plan, number, stop, &mut transport, (), device, prepared)
        }
    }
}

#[allow(clippy::too_many_arguments)]
fn measure<T: Transport>(
    args: &Args,
    target: Target,
    plan: Plan,
    number: usize,
    stop: &AtomicBool,
    transport: &mut T,
    peer: T::Peer,
    device: Option<String>,
    prepared: Prepared,
) -> Result<Done> {
    let options = FigureOptions {
        drawn: args.histogram.then(|| args.drawn()),
        threshold: plan.threshold,
        worst: args.worst.into(),
    };
    let mut watching = Watching { figures: Figures::new(&options), breach: None };
    args.on_time.apply(&format!("ping-{number}")).context("the thread that emits")?;
    let ended = emit(transport, peer, &plan, &prepared.clocks, &mut watching, stop);
    let report = watching.figures.report(&ended.counts, ended.seen, &ended.timeline, ended.elapsed);
    let (why, failed) = match ended.why {
        Ok(why) => (why, None),
        Err(e) => (Why::Stopped, Some(e.to_string())),
    };
    Ok(Done {
        target,
        session: plan.session,
        device,
        taken: watching.figures.taken(),
        ended: Ending { why, failed, welcome: ended.welcome, dropped: ended.dropped, refusal: ended.refusal },
        report,
        notes: prepared.notes,
        breach: watching.breach,
    })
}

impl Done {
    /// What made the session fail, as the user should read it.
    pub fn failure(&self) -> Option<String> {
        let target = self.target;
        if let Some(failed) = &self.ended.failed {
            return Some(format!("{failed} (after {} answers)", count(self.report.counts.answered)));
        }
        match self.ended.why {
            Why::Done | Why::Stopped | Why::Breach => None,
            Why::NobodyListens => Some(format!(
                "{target}: nobody listens there (its kernel answered: port unreachable); start there: latpath ping reflect"
            )),
            Why::NobodyAnswers => {
                let refusal = self.ended.refusal.as_ref().map_or(String::new(), |e| format!(" ({e})"));
                Some(format!(
                    "{target}: no answer{refusal}; does latpath ping reflect run there, and does a firewall let its messages through?"
                ))
            }
            Why::OtherVersion(version) => Some(format!(
                "{target}: its reflector speaks version {version} of the probes' format, this latpath version 1; use the same latpath at both ends"
            )),
            Why::Dead => Some(format!(
                "{target}: no answer any more, after {}; was the reflector stopped, or the way there cut?",
                count(self.report.counts.answered)
            )),
        }
    }

    /// The first transaction that broke the threshold.
    pub fn breach(&self) -> Option<&Transaction> {
        self.breach.as_ref()
    }

    /// As docs/json.md describes it.
    pub fn to_json(&self, args: &Args) -> Value {
        let pacing = match args.plan(0).pacing {
            Pacing::AsAnswersCome => json!("as_answers_come"),
            Pacing::Flood => json!("flood"),
            Pacing::Every(pace) => json!({ "rate_hz": pace.hz() }),
        };
        let mut value = json!({
            "target": self.target.to_string(),
            "session": format!("{:08x}", self.session),
            "device": self.device,
            "transport": "udp",
            "size_bytes": args.size,
            "pacing": pacing,
            "stamps": latpath_ping::Stamp::ALL.into_iter().filter(|s| s.bit() & self.taken != 0).collect::<Vec<_>>(),
            "reflector_device": self.ended.welcome.as_ref().map(|w| w.device.clone()),
            "ended": match self.ended.why {
                _ if self.ended.failed.is_some() => "failed",
                Why::Done => "done",
                Why::Stopped => "stopped",
                Why::Breach => "breach",
                Why::Dead => "dead",
                Why::NobodyListens => "nobody_listens",
                Why::NobodyAnswers => "nobody_answers",
                Why::OtherVersion(_) => "other_version",
            },
            "error": self.failure(),
            "dropped_here": self.ended.dropped,
            "notes": self.notes,
        });
        let report = serde_json::to_value(&self.report).unwrap_or_default();
        if let (Some(all), Value::Object(more)) = (value.as_object_mut(), report) {
            all.extend(more);
        }
        value
    }
}
