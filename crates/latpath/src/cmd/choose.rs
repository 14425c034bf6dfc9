//! Streams chosen by a pattern or with `--all`: listens for [`LISTEN_FOR`] before streams are followed.

use super::listening::places;
use super::Usage;
use anyhow::{bail, Context, Result};
use latpath_model::stream::MAX_STREAMS;
use latpath_model::StreamSpec;
use latpath_stats::units::number_of;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const LISTEN_FOR: Duration = Duration::from_secs(2);
/// Maximum number of streams that a message names; if there are more, it names the first [`FIRST_NAMED`].
const ALL_NAMED: usize = 8;
const FIRST_NAMED: usize = 3;

/// The choice of streams, and where to search for them.
pub struct Choice<'a> {
    /// Streams and patterns that the user named.
    pub streams: &'a [StreamSpec],
    /// Whether to choose every stream that passes.
    pub all: bool,
    /// Devices to listen on; empty for all devices that are up, in all followed namespaces.
    pub devices: &'a [String],
    /// Whether to include namespaces of other users.
    pub other_users: bool,
    /// Whether to omit the message about the chosen streams.
    pub quiet: bool,
}

/// Replaces each pattern by the matching streams that pass a device now; with `all`, adds all streams that do.
pub fn choose(choice: &Choice<'_>) -> Result<Vec<StreamSpec>> {
    let Choice { streams: asked, all, devices, other_users, quiet } = *choice;
    let patterns = asked.iter().any(StreamSpec::is_pattern);
    if !patterns && !all {
        if !devices.is_empty() {
            let text = "-i says where to look for streams: give --all, or a pattern as --stream 'svid:MU*'";
            return Err(Usage(text.into()).into());
        }
        return Ok(asked.to_vec());
    }
    let places = places(devices, other_users)?;
    let place = places.describe();
    let (heard, ended) = places.listen(LISTEN_FOR, false, &AtomicBool::new(false));
    ended.with_context(|| format!("listening on {place}"))?;
    // A stream may pass several devices, but is listed once.
    let mut seen: Vec<StreamSpec> = Vec::new();
    for found in heard.found.streams() {
        if !seen.contains(&found.stream) {
            seen.push(found.stream.clone());
        }
    }
    let mut chosen: Vec<StreamSpec> = Vec::new();
    let mut announced: Vec<(String, BTreeSet<String>)> = Vec::new();
    let add = |stream: StreamSpec, chosen: &mut Vec<StreamSpec>| {
        let is_new = !chosen.contains(&stream);
        is_new.then(|| chosen.push(stream.clone())).map(|()| stream.to_string())
    };
    for stream in asked {
        if !stream.is_pattern() {
            add(stream.clone(), &mut chosen);
            continue;
        }
        let those: BTreeSet<String> = seen.iter().filter_map(|s| add(stream.choose(s)?, &mut chosen)).collect();
        if those.is_empty() && !seen.iter().any(|s| stream.choose(s).is_some()) {
            bail!("no stream fits {stream} on {place} within 2 s; latpath streams lists what comes");
        }
        announced.push((stream.to_string(), those));
    }
    if all {
        let those: BTreeSet<String> = seen.iter().filter_map(|s| add(s.by_name(), &mut chosen)).collect();
        if chosen.is_empty() {
            bail!("no stream passes {place} within 2 s: name one with --stream, e.g. --stream svid:MU01");
        }
        announced.push(("--all".into(), those));
    }
    if chosen.len() > MAX_STREAMS {
        bail!(
            "{} were found on {place}, and at most {MAX_STREAMS} can be followed: narrow the pattern, as --stream 'svid:MU1*'",
            number_of(chosen.len() as u64, "stream")
        );
    }
    if !quiet {
        announced.iter().for_each(|(what, streams)| eprintln!("latpath: {what} on {place}: {}", listed(streams)));
    }
    Ok(chosen)
}

/// The names of all streams; if there are many, their number and the first names.
fn listed(streams: &BTreeSet<String>) -> String {
    let names = |n: usize| streams.iter().take(n).map(String::as_str).collect::<Vec<_>>().join(", ");
    match streams.len() {
        n if n <= ALL_NAMED => names(n),
        n => format!("{}: {} and {} more", number_of(n as u64, "stream"), names(FIRST_NAMED), n - FIRST_NAMED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_streams_the_first_few_are_named() {
        let of = |n: u32| (1..=n).map(|n| format!("svid:MU{n:03}")).collect::<BTreeSet<_>>();
        assert_eq!(listed(&of(2)), "svid:MU001, svid:MU002");
        assert_eq!(listed(&of(300)), "300 streams: svid:MU001, svid:MU002, svid:MU003 and 297 more");
    }
}
