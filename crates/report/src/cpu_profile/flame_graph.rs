//! Flame graphs as SVG: one file that needs nothing else, to be clicked and searched in a browser.

use inferno::flamegraph::color::{BackgroundColor, MultiPalette, Palette};
use inferno::flamegraph::{from_lines, Options};
use latpath_model::Ns;
use latpath_profile::{folded_name, Frame, Profile};
use latpath_stats::units::Letters;
use std::collections::BTreeSet;
use std::io;

fn options(title: &str, subtitle: String) -> Options<'static> {
    let mut options = Options::default();
    options.title = title.into();
    options.subtitle = Some(subtitle);
    // Times are in ns.
    (options.factor, options.count_name) = (1e-6, "ms".into());
    // Kernel and programs apart.
    options.colors = Palette::Multi(MultiPalette::Java);
    options.bgcolors = Some(BackgroundColor::Grey);
    (options.deterministic, options.hash, options.min_width) = (true, true, 0.05);
    options
}

/// A line for a call chain.
fn line(frames: &[Frame]) -> String {
    frames.iter().map(folded_name).collect::<Vec<_>>().join(";")
}

fn draw(mut options: Options<'_>, lines: &[String]) -> io::Result<String> {
    let mut svg = Vec::new();
    from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)?;
    let svg = String::from_utf8(svg).map_err(io::Error::other)?;
    // The document type names a file elsewhere, which some readers would fetch.
    Ok(match (svg.find("<!DOCTYPE"), svg.find("<svg")) {
        (Some(from), Some(until)) if from < until => svg[..from].to_owned() + &svg[until..],
        _ => svg,
    })
}

fn about(profile: &Profile) -> String {
    let header = &profile.header;
    let duration = |ns| Letters::of_locale(Some("C.UTF-8")).duration(ns);
    format!(
        "{} of CPU time in {} on CPUs {}; {} idle",
        duration(profile.busy()),
        duration(header.window_ns),
        header.cpus,
        duration(header.idle_ns)
    )
}

/// The flame graph of a profile; idle time is not in it.
///
/// # Errors
/// Where there is no time at all to draw.
pub fn flame_graph(profile: &Profile) -> io::Result<String> {
    let lines: Vec<String> = profile.folded().collect();
    draw(options("CPU time of host and guests", about(profile)), &lines)
}

/// The differential flame graph of two: as wide as the later one's time; red where that is more than before, blue
/// where it is less. Times before are those of a window as long as the later one's.
///
/// # Errors
/// Where there is no time at all to draw.
pub fn flame_graph_of_difference(before: &Profile, after: &Profile) -> io::Result<String> {
    let (old, new) = (before.header.window_ns.max(1), after.header.window_ns);
    let as_long = |ns: Ns| i128::from(ns) * i128::from(new) / i128::from(old);
    let chains: BTreeSet<&Vec<Frame>> = before.stacks.keys().chain(after.stacks.keys()).collect();
    let times = |frames: &Vec<Frame>| {
        let [was, is] = [before, after].map(|profile| profile.stacks.get(frames).copied().unwrap_or(0));
        [as_long(was), i128::from(is)]
    };
    let times: Vec<_> = chains.into_iter().map(|frames| (frames, times(frames))).collect();
    let sum = |of: usize| times.iter().map(|(_, times)| times[of]).sum::<i128>();
    let unit = sum(0).max(sum(1)) / MOST + 1;
    let lines: Vec<String> =
        times.iter().map(|(frames, [was, is])| format!("{} {} {}", line(frames), was / unit, is / unit)).collect();
    let mut options = options("CPU time of host and guests: what changed", about(after));
    options.factor *= unit as f64;
    draw(options, &lines)
}

/// Differences are multiplied by 150 where they get their colours. 200 days of CPU time are drawn to the ns, more a little less finely.
const MOST: i128 = 1 << 54;
