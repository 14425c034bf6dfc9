//! Limits that figures must keep: flags of all commands that measure.

use super::{Outcome, Usage};
use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use latpath_journey::segments::split;
use latpath_model::{text::printable, Point, SegmentKind};
use latpath_report::export::{check_target, write_file};
use latpath_report::{junit, profile_limits, Limit, LimitVerdict};
use latpath_stats::Summary;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

#[derive(ClapArgs)]
pub struct Limits {
    /// Fail with exit code 3 if this is broken, as total:p99.9<=500us or lost<=0; several are allowed
    #[arg(long = "limit", value_name = "LIMIT")]
    limits: Vec<Limit>,
    /// Set the limits of a profile too: iec61850-9-2, seapath, or those of a TOML file (docs/limits.md)
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// Write what became of each limit to this file, as JUnit XML; "-" writes to stdout
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
}

impl Limits {
    /// All limits, before anything is measured: a profile that cannot be read, and a file that is there already, are refused.
    pub fn all(&self, force: bool) -> Result<Vec<Limit>> {
        let of_profile = self.profile.as_deref().map(profile_limits).transpose().map_err(|e| Usage(e.to_string()))?;
        let all: Vec<Limit> = self.limits.iter().cloned().chain(of_profile.into_iter().flatten()).collect();
        if let Some(path) = &self.junit {
            if all.is_empty() {
                return Err(Usage("--junit: there is no limit; set some with --limit or --profile".into()).into());
            }
            if path.as_os_str() != "-" {
                check_target(path, force).map_err(anyhow::Error::msg)?;
            }
        }
        Ok(all)
    }

    /// Writes the verdicts where they were asked for, and names the limits that are broken. `what` was measured.
    pub fn announce(&self, what: &str, verdicts: &[LimitVerdict], force: bool) -> Result<Outcome> {
        announce(self.junit.as_deref(), what, verdicts, force)
    }
}

/// Refuses limits on segments that there cannot be, before anything is measured. `names`: those that there can be; `steps`: an example
/// of others, where there are such that are known only later.
pub fn refuse_unknown(
    limits: &[Limit],
    names: &[String],
    steps: Option<(&str, fn(&str) -> bool)>,
) -> Result<(), Usage> {
    let can_be = |name: &str| names.iter().any(|n| n == name) || steps.is_some_and(|(_, is_step)| is_step(name));
    match limits.iter().filter_map(Limit::segment).find(|name| !can_be(name)) {
        None => Ok(()),
        Some(none) => {
            let more = steps.map_or(String::new(), |(example, _)| format!("; or {example}"));
            Err(Usage(format!("{none:?}: no such segment (there can be: {}{more})", names.join(", "))))
        }
    }
}

/// The same for streams that will be followed. `own`: segments that the user named, `NAME=FROM..TO`.
pub fn refuse_unknown_of_streams(limits: &[Limit], own: &[String]) -> Result<(), Usage> {
    let own = own.iter().filter_map(|text| split(text).ok()).map(|(name, ..)| name);
    let names: Vec<String> =
        SegmentKind::CLASSIC.iter().filter_map(|kind| kind.name()).chain(own).map(Into::into).collect();
    refuse_unknown(limits, &names, Some(("from one point to the next, as host/nic-rx@eth0→host/tx@vnet0", is_step)))
}

fn is_step(name: &str) -> bool {
    let is_point = |text: &str| text.parse::<Point>().is_ok();
    name.split_once('→').is_some_and(|(from, to)| is_point(from) && is_point(to))
}

/// Writes the verdicts to a file, if there is one, and names the limits that are broken. `what` was measured.
pub fn announce(file: Option<&Path>, what: &str, verdicts: &[LimitVerdict], force: bool) -> Result<Outcome> {
    if let Some(path) = file {
        write_file(path, force, |out| out.write_all(junit(what, verdicts).as_bytes()))
            .with_context(|| format!("{}: cannot write the verdicts", path.display()))?;
    }
    let mut outcome = Outcome::Done;
    for LimitVerdict { limit, broken, .. } in verdicts {
        if let Some(why) = broken {
            outcome = broke(&format!("limit {limit} broken: {why}"));
        }
    }
    Ok(outcome)
}

/// Names a limit that is broken.
fn broke(broken: &str) -> Outcome {
    let colour = std::io::stderr().is_terminal() && latpath_screen::has_colours();
    let (red, end) = if colour { ("\x1b[31m", "\x1b[0m") } else { ("", "") };
    eprintln!("{red}latpath: {}{end}", printable(broken));
    Outcome::LimitBroken
}

/// What becomes of limits.
pub fn check(limits: &[Limit], summary: &Summary) -> Result<Vec<LimitVerdict>> {
    let check = |limit: &Limit| limit.check(summary).map_err(|e| Usage(e.to_string()).into());
    limits.iter().map(check).collect()
}
