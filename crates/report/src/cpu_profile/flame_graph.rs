//! Flame graphs as self-contained SVG files. Widths and tooltips work without the script; the embedded script adds
//! zoom, search and keyboard control.

use crate::document::escaped;
use latpath_model::text::printable;
use latpath_model::Ns;
use latpath_profile::{folded_name, Frame, Kind, Profile};
use latpath_stats::units::CharacterSet;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::io;

#[cfg(test)]
mod tests;

const STYLE: &str = include_str!("flame_graph.css");
const SCRIPT: &str = include_str!("flame_graph.js");

/// Width if the script does not run, pixels; the script scales the graph to the window.
const WIDTH: usize = 1200;
/// Height of a frame, of the area above all frames (`HEAD`) and of the area below them (`FOOT`), pixels.
const ROW: usize = 18;
const HEAD: usize = 64;
const FOOT: usize = 44;
/// Minimum share of all time for a frame to be drawn.
const MIN_SHARE: f64 = 0.0005;
/// Minimum share of all time for a frame to show its name: wide enough for two characters.
const MIN_NAMED: f64 = 0.015;

/// A frame at its position among all call chains, drawn as one rectangle. Times in ns.
struct Node<'p> {
    /// The function; `None` for the root, common to all call chains.
    frame: Option<&'p Frame>,
    depth: usize,
    /// Left edge of the rectangle: total time of all call chains before it.
    from: i128,
    /// Time in the function and its callees.
    total: Change,
    /// Time in the function alone.
    own: Change,
}

/// A time in the profile (`now`), and in the earlier profile that it is compared with (`before`), ns. Times of profiles
/// are below 2^60 ns; their products with window lengths need more than 64 bits.
#[derive(Clone, Copy, Default)]
struct Change {
    before: i128,
    now: i128,
}

impl Change {
    fn add(&mut self, other: Self) {
        self.before += other.before;
        self.now += other.now;
    }
}

/// Merges sorted call chains into nodes; each node follows its caller.
fn nodes<'p>(chains: impl Iterator<Item = (&'p [Frame], Change)>) -> Vec<Node<'p>> {
    let node = |frame, depth, from| Node { frame, depth, from, total: Change::default(), own: Change::default() };
    let mut nodes = vec![node(None, 0, 0)];
    // Indexes of the nodes of the previous chain.
    let mut open = vec![0];
    for (frames, time) in chains {
        let is_same = |(place, frame): &(&usize, &Frame)| nodes[**place].frame == Some(*frame);
        let common = open[1..].iter().zip(frames).take_while(is_same).count();
        open.truncate(1 + common);
        let from = nodes[0].total.now;
        for (depth, frame) in (1..).zip(frames).skip(common) {
            open.push(nodes.len());
            nodes.push(node(Some(frame), depth, from));
        }
        open.iter().for_each(|place| nodes[*place].total.add(time));
        nodes[open[open.len() - 1]].own.add(time);
    }
    nodes
}

fn duration(ns: i128) -> String {
    let most = i128::from(Ns::MAX);
    CharacterSet::Unicode.duration(Ns::try_from(ns.clamp(-most, most)).unwrap_or(Ns::MAX))
}

fn about(profile: &Profile) -> String {
    let header = &profile.header;
    format!(
        "{} of CPU time in {} on CPUs {}; {} idle",
        duration(profile.busy().into()),
        duration(profile.window_ns.into()),
        header.cpus,
        duration(header.idle_ns.into())
    )
}

/// Content of a drawing, in addition to the frames.
struct Drawing {
    title: &'static str,
    about: String,
    /// Whether frames are coloured by the change of their own time instead of by their kind.
    is_difference: bool,
}

impl Drawing {
    /// Tooltip of a rectangle: name, time, and the function's own time.
    fn tooltip(&self, node: &Node<'_>, all: i128) -> String {
        let name = node.frame.map_or_else(|| "all".into(), |frame| printable(&folded_name(frame)));
        let time = |time: Change| {
            let share = time.now as f64 * 100.0 / all as f64;
            let before = match self.is_difference {
                true => {
                    let sign = if time.now < time.before { "" } else { "+" };
                    format!("; before {} ({sign}{})", duration(time.before), duration(time.now - time.before))
                }
                false => String::new(),
            };
            format!("{} ({share:.2} %){before}", duration(time.now))
        };
        escaped(&format!("{name}\n{}\nitself {}", time(node.total), time(node.own)))
    }

    /// CSS class and opacity of a frame's colour.
    fn colour(&self, node: &Node<'_>, most: i128) -> (&'static str, String) {
        let kind = match node.frame.map(|frame| frame.kind) {
            None => "all",
            Some(Kind::Process) => "process",
            Some(Kind::User) => "program",
            Some(Kind::Kernel) => "kernel",
            Some(Kind::Guest) => "guest",
        };
        let change = node.own.now - node.own.before;
        match self.is_difference {
            false => (kind, String::new()),
            true if change == 0 => ("same", String::new()),
            true => {
                let part = change.unsigned_abs() as f64 / most.max(1) as f64;
                (if change > 0 { "more" } else { "less" }, format!(" fill-opacity=\"{:.2}\"", 0.2 + 0.8 * part))
            }
        }
    }

    fn legend(&self) -> &'static [(&'static str, &'static str)] {
        match self.is_difference {
            true => &[("more", "own time grew"), ("less", "own time shrank"), ("same", "unchanged")],
            false => &[
                ("process", "process"),
                ("program", "program"),
                ("kernel", "kernel, marked _[k]"),
                ("guest", "border to a guest"),
            ],
        }
    }

    fn draw(&self, nodes: &[Node<'_>]) -> io::Result<String> {
        let all = nodes[0].total.now;
        if all <= 0 {
            return Err(io::Error::other("the profile has no time to draw"));
        }
        let share = |ns: i128| ns as f64 / all as f64;
        let drawn: Vec<&Node> = nodes.iter().filter(|node| share(node.total.now) >= MIN_SHARE).collect();
        let rows = 1 + drawn.iter().map(|node| node.depth).max().unwrap_or(0);
        let height = HEAD + rows * ROW + FOOT;
        let most = drawn.iter().map(|node| (node.own.now - node.own.before).abs()).max().unwrap_or(0);
        let (title, about) = (escaped(self.title), escaped(&printable(&self.about)));
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" role=\"group\" \
             aria-labelledby=\"title about\">\n<style>\n{STYLE}</style>\n\
             <rect class=\"page\" width=\"100%\" height=\"100%\"/>\n\
             <text id=\"title\" x=\"10\" y=\"24\">{title}</text>\n<text id=\"about\" x=\"10\" y=\"44\">{about}</text>\n\
             <g role=\"tree\" aria-label=\"Call chains, from the process at the bottom to the innermost function\">\n"
        );
        for node in drawn {
            let (class, opacity) = self.colour(node, most);
            let label = match (share(node.total.now) >= MIN_NAMED, node.frame) {
                (false, _) => String::new(),
                (true, None) => "<text x=\"4\" y=\"13\">all</text>".into(),
                (true, Some(frame)) => {
                    format!("<text x=\"4\" y=\"13\">{}</text>", escaped(&printable(&folded_name(frame))))
                }
            };
            let _ = writeln!(
                out,
                "<svg x=\"{:.4}%\" y=\"{}\" width=\"{:.4}%\" height=\"{ROW}\" role=\"treeitem\" aria-level=\"{}\" \
                 data-ns=\"{}\"><title>{}</title><rect class=\"{class}\" width=\"100%\" height=\"100%\"{opacity}/>\
                 {label}</svg>",
                share(node.from) * 100.0,
                HEAD + (rows - 1 - node.depth) * ROW,
                share(node.total.now) * 100.0,
                node.depth + 1,
                node.total.now,
                self.tooltip(node, all)
            );
        }
        let bottom = HEAD + rows * ROW;
        let _ = writeln!(out, "</g>\n<text id=\"frame\" x=\"10\" y=\"{}\" role=\"status\"></text>", bottom + 18);
        for (place, (class, meaning)) in self.legend().iter().enumerate() {
            let x = 10 + place * 160;
            let _ = writeln!(
                out,
                "<rect class=\"{class}\" x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\"/><text x=\"{}\" y=\"{}\">{meaning}</text>",
                bottom + 26,
                x + 18,
                bottom + 36
            );
        }
        out.push_str("<script>\n");
        out.push_str(SCRIPT);
        out.push_str("</script>\n</svg>\n");
        Ok(out)
    }
}

/// Draws the flame graph of a profile, without idle time.
///
/// # Errors
/// If the profile has no time to draw.
pub fn flame_graph(profile: &Profile) -> io::Result<String> {
    let drawing = Drawing { title: "CPU time of host and guests", about: about(profile), is_difference: false };
    let time = |ns: Ns| Change { before: 0, now: ns.into() };
    drawing.draw(&nodes(profile.stacks.iter().map(|(frames, ns)| (&frames[..], time(*ns)))))
}

/// Draws the differential flame graph of two profiles. Widths are times of `after`; a frame is red if its own time
/// grew, blue if it shrank. Times of `before` are scaled to the window length of `after`.
///
/// # Errors
/// If `after` has no time to draw.
pub fn flame_graph_of_difference(before: &Profile, after: &Profile) -> io::Result<String> {
    let (old, new) = (i128::from(before.window_ns.max(1)), i128::from(after.window_ns));
    let chains: BTreeSet<&Vec<Frame>> = before.stacks.keys().chain(after.stacks.keys()).collect();
    let ns = |profile: &Profile, frames: &Vec<Frame>| i128::from(profile.stacks.get(frames).copied().unwrap_or(0));
    let time = |frames: &Vec<Frame>| Change { before: ns(before, frames) * new / old, now: ns(after, frames) };
    let drawing =
        Drawing { title: "CPU time of host and guests: what changed", about: about(after), is_difference: true };
    drawing.draw(&nodes(chains.into_iter().map(|frames| (&frames[..], time(frames)))))
}
