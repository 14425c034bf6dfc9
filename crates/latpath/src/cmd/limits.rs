//! Limits on figures: flags shared by all commands that measure.

use super::{Outcome, Usage};
use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use latpath_analysis::{Limit, LimitVerdict, Profile};
use latpath_export::{check_target, write_file};
use latpath_journey::segments::split;
use latpath_model::{text::printable, Ns, Point, SegmentKind};
use latpath_report::{is_junit_of_latpath, junit};
use latpath_stats::Summary;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

#[derive(ClapArgs)]
pub struct Limits {
    /// Fail with exit code 3 unless this limit is known to be kept, e.g. total:p99.9<=500us or lost<=0; can be repeated
    #[arg(long = "limit", value_name = "LIMIT")]
    limits: Vec<Limit>,
    /// Also apply the limits of a profile: gptp, iec61850-8-1, iec61850-9-2, seapath, or a TOML file (docs/limits.md)
    #[arg(long = "limits", value_name = "NAME|FILE")]
    pub profile: Option<String>,
    /// Write the verdict on each limit to this file, as JUnit XML; "-" writes to stdout
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
}

impl Limits {
    /// All limits, read before the measurement: refuses an unreadable profile and an existing output file.
    pub fn all(&self, force: bool) -> Result<Vec<Limit>> {
        let of_profile = self.profile()?.map_or(Vec::new(), |profile| profile.limits);
        let all: Vec<Limit> = self.limits.iter().cloned().chain(of_profile).collect();
        if let Some(path) = &self.junit {
            if all.is_empty() {
                return Err(Usage("--junit: there is no limit; set some with --limit or --limits".into()).into());
            }
            if path.as_os_str() != "-" {
                check_target(path, force || is_junit_of_latpath(path)).map_err(anyhow::Error::msg)?;
            }
        }
        Ok(all)
    }

    fn profile(&self) -> Result<Option<Profile>> {
        let profile = self.profile.as_deref().map(latpath_analysis::profile).transpose();
        profile.map_err(|e| Usage(e.to_string()).into())
    }

    /// Segments that the profile needs, `NAME=FROM..TO`.
    pub fn segments(&self) -> Result<Vec<String>> {
        Ok(self.profile()?.map_or(Vec::new(), |profile| profile.segments))
    }

    /// Writes the verdicts on `what` if requested, and prints the limits that are broken or cannot be judged.
    pub fn announce(&self, what: &str, verdicts: &[LimitVerdict], force: bool) -> Result<Outcome> {
        announce(self.junit.as_deref(), what, verdicts, force)
    }
}

/// The figures that a command measures.
pub struct Measures<'a> {
    /// Names of the possible segments.
    pub segments: Vec<String>,
    /// An example of segments whose names are known only later, and a predicate for such names.
    pub steps: Option<(&'a str, fn(&str) -> bool)>,
    /// Counters of [`Limit::counter`] that the command does not measure.
    pub not: &'a [&'a str],
}

impl Measures<'_> {
    /// Refuses limits on figures that the command does not measure, before the measurement. A profile may have such
    /// limits: they cannot be judged.
    pub fn refuse_others(&self, limits: &mut [Limit]) -> Result<(), Usage> {
        let can_be = |name: &str| {
            self.segments.iter().any(|n| n == name) || self.steps.is_some_and(|(_, is_step)| is_step(name))
        };
        if let Some(none) = limits.iter().filter_map(Limit::segment).find(|name| !can_be(name)) {
            let more = self.steps.map_or(String::new(), |(example, _)| format!("; or {example}"));
            return Err(Usage(format!("{none:?}: no such segment (there can be: {}{more})", self.segments.join(", "))));
        }
        for limit in limits {
            match limit.counter().filter(|name| self.not.contains(name)) {
                Some(name) if limit.about().is_none() => {
                    return Err(Usage(format!("{limit}: {name} is not measured here (docs/limits.md)")));
                }
                Some(_) => limit.not_measured(),
                None => {}
            }
        }
        Ok(())
    }
}

/// The distinct thresholds in limits on consecutive late packets, sorted.
pub fn row_limits(limits: &[Limit]) -> Vec<Ns> {
    let mut all: Vec<Ns> = limits.iter().filter_map(Limit::row_limit).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The figures of followed streams. `own`: segments that the user named, `NAME=FROM..TO`.
pub fn of_streams(own: &[String]) -> Measures<'static> {
    let own = own.iter().filter_map(|text| split(text).ok()).map(|(name, ..)| name);
    let segments = SegmentKind::CLASSIC.iter().filter_map(|kind| kind.name()).chain(own).map(Into::into).collect();
    let steps = Some(("from one point to the next, e.g. host/nic-rx@eth0→host/tx@vnet0", is_step as fn(&str) -> bool));
    Measures { segments, steps, not: &[] }
}

fn is_step(name: &str) -> bool {
    let is_point = |text: &str| text.parse::<Point>().is_ok();
    name.split_once('→').is_some_and(|(from, to)| is_point(from) && is_point(to))
}

/// Writes the verdicts on `what` to the file, if any, and prints the limits that are broken or cannot be judged.
pub fn announce(file: Option<&Path>, what: &str, verdicts: &[LimitVerdict], force: bool) -> Result<Outcome> {
    if let Some(path) = file {
        // A repeated test replaces its earlier verdicts.
        let force = force || is_junit_of_latpath(path);
        write_file(path, force, |out| out.write_all(junit(what, verdicts).as_bytes()))
            .with_context(|| format!("{}: cannot write the verdicts", path.display()))?;
    }
    let mut outcome = Outcome::Done;
    for verdict in verdicts {
        if let Some(why) = verdict.why() {
            outcome = broke(&format!("limit {} {}: {why}", verdict.limit, verdict.word()));
        }
    }
    Ok(outcome)
}

/// Prints a limit that is broken or cannot be judged.
fn broke(broken: &str) -> Outcome {
    let colour = std::io::stderr().is_terminal() && latpath_screen::has_colours();
    let (red, end) = if colour { ("\x1b[31m", "\x1b[0m") } else { ("", "") };
    eprintln!("{red}latpath: {}{end}", printable(broken));
    Outcome::LimitBroken
}

/// The verdicts on the limits.
pub fn check(limits: &[Limit], summary: &Summary) -> Vec<LimitVerdict> {
    limits.iter().map(|limit| limit.check(summary)).collect()
}
