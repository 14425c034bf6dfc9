//! `latpath subscribe --trip`: answers events with GOOSE messages.

use crate::cmd::values::time;
use crate::cmd::{ns, Usage};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_protocols::ReactionRule;
use latpath_stats::units::number_of;
use latpath_traffic::{Responder, Responses};
use latpath_wire::{Listen, PacketSocket};
use std::time::Duration;

/// Flags for answers to received events.
#[derive(ClapArgs)]
pub(super) struct TripArgs {
    /// Answer each event of a received stream with a GOOSE message, like the trip of a relay:
    /// 'svid:MU01[|Ia|] > 1500A -> goose:TRIP'
    #[arg(long, value_name = "RULE")]
    trip: Option<ReactionRule>,
    /// Send the answer this long after the event was received
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time, requires = "trip")]
    trip_after: Duration,
    /// Device to send the answers on [default: that of --interface]
    #[arg(long, value_name = "IF", requires = "trip")]
    trip_on: Option<String>,
}

impl TripArgs {
    pub(super) fn rule(&self) -> Option<&ReactionRule> {
        self.trip.as_ref()
    }

    /// Starts to answer; `None` without `--trip`.
    pub(super) fn begin(&self, args: &super::Args) -> Result<Option<Responder>> {
        let Some(rule) = &self.trip else { return Ok(None) };
        let received = |s: &latpath_model::StreamSpec| s.matcher.protocol() == rule.input.matcher.protocol();
        if !rule.input.matcher.protocol().info().is_listed {
            return Err(Usage(format!("--trip: {} is not a stream that subscribe receives", rule.input)).into());
        }
        if !args.streams.is_empty() && !args.streams.iter().any(received) {
            return Err(Usage(format!("--trip: {} is not received: name it with --stream, too", rule.input)).into());
        }
        let device = self.trip_on.as_ref().unwrap_or(&args.interface);
        let socket = PacketSocket::open(device, Listen::No)?;
        let (name, on_time) = (args.name.clone(), args.on_time.clone());
        let prepare = move || {
            // The receiving thread has the same CPU and priority already, so this cannot fail for lack of privileges.
            let _ = on_time.apply(&name);
        };
        Ok(Some(Responder::start(rule, socket, ns(self.trip_after), prepare).map_err(Usage)?))
    }
}

pub(super) fn add(lines: &mut Vec<String>, responses: &Responses, rule: &ReactionRule) {
    lines.push(rule.to_string());
    lines.push(format!("  sent         {}", number_of(responses.count, "trip")));
    if responses.refused > 0 {
        lines.push(format!(
            "  refused      {} and lost: the device's queue was full",
            number_of(responses.refused, "message")
        ));
    }
}
