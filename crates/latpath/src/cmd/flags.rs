//! Groups of flags shared by several commands, so that a flag is the same in each of them.

use super::values::{some_time, time, whole};
use super::{ns, Usage};
use anyhow::Result;
use clap::{Args as ClapArgs, ValueEnum};
use latpath_analysis::{parse_duration, span, When};
use latpath_model::{Ns, StreamId, StreamSpec};
use latpath_protocols::Tag;
use latpath_run::{Run, Select};
use latpath_stats::units::duration;
use latpath_stats::{Band, PatternKind};
use std::time::Duration;

/// Default threshold of late packets, ns.
pub(super) const THRESHOLD: Ns = 200_000;

/// The timestamps of packets to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stamps {
    /// The kernel's
    Kernel,
    /// The kernel's, and those of NICs that have a clock
    Nic,
}

/// When to stop.
#[derive(ClapArgs, Debug)]
pub struct StopAfter {
    /// Stop after this time (10s, 1h 30m)
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    pub duration: Option<Duration>,
    /// Stop after N packets
    #[arg(short, long, value_name = "N", value_parser = whole::<u64>(1..))]
    pub count: Option<u64>,
}

/// The VLAN tag of frames that are sent.
#[derive(ClapArgs, Debug)]
pub struct Tagging {
    /// Tag frames with this VLAN
    #[arg(long, value_name = "VID", value_parser = whole::<u16>(0..=4094))]
    vlan: Option<u16>,
    /// Priority in the tag (alone: VLAN 0)
    #[arg(long, value_name = "0-7", value_parser = whole::<u8>(0..=7))]
    pcp: Option<u8>,
}

impl Tagging {
    /// The tag of the frames, if any. `vlan` overrides the flag.
    pub fn tag(&self, vlan: Option<u16>) -> Option<Tag> {
        let vlan = vlan.or(self.vlan);
        (vlan.is_some() || self.pcp.is_some()).then(|| Tag::new(vlan.unwrap_or(0), self.pcp.unwrap_or(4)))
    }
}

/// How packets become journeys, and which of them are late.
#[derive(ClapArgs, Debug)]
pub struct Joining {
    /// Add a segment, e.g. relay=host/nic-rx@eth0..guest0/app-read@relay; can be repeated
    #[arg(long = "segment", value_name = "NAME=FROM..TO", value_parser = segment)]
    pub segments: Vec<String>,
    /// Packets are late if they take longer than this, e.g. 200us [default: 200us]
    #[arg(long, value_name = "TIME", value_parser = time)]
    threshold: Option<Duration>,
    /// Packets that take longer than this count as lost; must be shorter than the time in which the stream's counter
    /// wraps
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    window: Duration,
}

fn segment(text: &str) -> Result<String, String> {
    latpath_journey::segments::split(text).map(|_| text.into())
}

impl Joining {
    /// The threshold, if the user named one, ns.
    pub fn threshold(&self) -> Option<Ns> {
        self.threshold.map(ns)
    }

    /// Time after which a packet counts as lost, ns.
    ///
    /// # Errors
    /// If it is too short or too long.
    pub fn window(&self) -> Result<Ns, Usage> {
        let window = ns(self.window);
        let is_possible = (1_000_000..=4_000_000_000).contains(&window);
        is_possible.then_some(window).ok_or_else(|| Usage("--window is 1ms to 4s".into()))
    }
}

/// Which journeys of a run to read, and what to count in them.
#[derive(ClapArgs)]
pub struct Selection {
    /// Only journeys from this time on: time since the run's start (90s), UTC (2026-01-02T03:04:05Z), or a mark
    /// ('@iperf on')
    #[arg(long, value_name = "TIME")]
    pub from: Option<When>,
    /// Only journeys before this time
    #[arg(long, value_name = "TIME")]
    pub to: Option<When>,
    /// Only this stream, e.g. svid:MU01 or MU01; can be repeated
    #[arg(short, long = "stream", value_name = "STREAM")]
    pub streams: Vec<String>,
    /// Packets are late if they take longer than this, e.g. 200us [default: that of the run]
    #[arg(long, value_name = "TIME", value_parser = threshold)]
    pub threshold: Option<Ns>,
    /// Also count the times in this band, both ends included, e.g. 40us..100us
    #[arg(long, value_name = "TIME..TIME", value_parser = band)]
    pub band: Option<Band>,
    /// Add a segment, e.g. vhost=host/tx@vnet0..host/vm-read@vnet0 or vhost=2..3; can be repeated
    #[arg(long = "segment", value_name = "NAME=FROM..TO")]
    pub segments: Vec<String>,
    /// Show the times without the packets that these patterns affect: queue-release, periodic-spikes, servo-swing,
    /// step, link-flap, path-change, or all
    #[arg(long, value_name = "PATTERNS", value_delimiter = ',', value_parser = patterns)]
    exclude: Vec<Excluded>,
}

impl Selection {
    /// The journeys of a run that the flags select.
    ///
    /// # Errors
    /// If the run does not have a named stream, mark or time.
    pub fn select(&self, run: &Run) -> Result<Select> {
        let manifest = run.manifest();
        let id = |name: &String| -> Result<StreamId> {
            let streams = &manifest.streams;
            let is = |s: &StreamSpec| s.to_string() == *name || s.short() == *name;
            // A name without options must be unique: the same svID may be in two VLANs.
            let is_same = |s: &StreamSpec| name.parse().is_ok_and(|w: StreamSpec| w.short() == s.short());
            let found = streams.iter().position(|s| s.to_string() == *name).or_else(|| {
                let mut like = streams.iter().enumerate().filter(|(_, s)| is(s) || is_same(s)).map(|(i, _)| i);
                like.next().filter(|_| like.next().is_none())
            });
            let known = || streams.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let id =
                found.ok_or_else(|| Usage(format!("{name}: no such stream in the run (there are: {})", known())))?;
            Ok(StreamId::try_from(id).unwrap_or(StreamId::MAX))
        };
        let streams = self.streams.iter().map(id).collect::<Result<Vec<_>>>()?;
        let (from_ns, to_ns) = span(self.from.as_ref(), self.to.as_ref(), manifest, run.marks()).map_err(Usage)?;
        let (start, elapsed) = (&manifest.start, run.elapsed_ns());
        if from_ns > start.monotonic_ns.saturating_add(elapsed) || to_ns <= start.monotonic_ns {
            let (utc, path) = (start.utc.split('.').next().unwrap_or_default(), run.path().display());
            let text = format!(
                "--from, --to: {path} has nothing there: it began {utc} UTC, and is {} long",
                duration(elapsed)
            );
            return Err(Usage(text).into());
        }
        Ok(Select { streams: (!streams.is_empty()).then_some(streams), from_ns, to_ns, ..Select::default() })
    }

    /// The kinds of patterns whose packets are excluded, each once.
    pub fn exclude(&self) -> Vec<PatternKind> {
        PatternKind::ALL.into_iter().filter(|kind| self.exclude.iter().any(|e| e.contains(kind))).collect()
    }
}

fn threshold(text: &str) -> Result<Ns, String> {
    parse_duration(text).ok_or_else(|| "write a time, e.g. 200us, 1.5ms or 2s".into())
}

fn band(text: &str) -> Result<Band, String> {
    let ends = text.split_once("..").and_then(|(from, to)| Some((parse_duration(from)?, parse_duration(to)?)));
    match ends {
        Some((from_ns, to_ns)) if from_ns <= to_ns => Ok(Band { from_ns, to_ns }),
        _ => Err("write a band as 40us..100us".into()),
    }
}

/// Kinds of patterns under one name.
type Excluded = &'static [PatternKind];

fn patterns(name: &str) -> Result<Excluded, String> {
    let one = |kind: &'static PatternKind| std::slice::from_ref(kind);
    const ALL: Excluded = &PatternKind::ALL;
    let names = || ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
    let found = if name == "all" { Some(ALL) } else { ALL.iter().find(|kind| kind.name() == name).map(one) };
    found.ok_or_else(|| format!("no such pattern (there are: {}, all)", names()))
}

#[cfg(test)]
mod tests {
    use clap::{ArgAction, Command};
    use std::collections::{BTreeMap, BTreeSet};

    /// Flags with the same meaning whose help starts differently in some commands; and `--output`, whose value is named
    /// after the command's result.
    const SAME_IN_OTHER_WORDS: [(&str, &[&str]); 5] = [
        // Actions that latpath refuses otherwise: replacing a file, continuing after a step that disturbs.
        ("force", &["replace existing files", "continue after a"]),
        // A network device: the command's action on it.
        (
            "interface",
            &["device to send", "device to listen", "device to watch", "device to test", "network device to"],
        ),
        // The destination of the result.
        (
            "output",
            &[
                "directory to create",
                "file to write",
                "keep the recording",
                "keep the trials",
                "keep the measurements",
                "keep the profile",
            ],
        ),
        // The name of a set of values: of a publisher, of a machine's settings.
        ("profile", &["what the publisher", "judge the machine"]),
        // A stream: the command's action on it.
        ("stream", &["stream to follow", "stream to send", "only this stream", "only packets of"]),
    ];
    const OUTPUTS: [&str; 3] = ["RUN", "FILE", "STUDY"];

    /// A flag of one command.
    struct Flag {
        command: String,
        short: Option<char>,
        /// `None` for a switch.
        value: Option<String>,
        /// Start of its help text.
        help: String,
    }

    fn first_words(help: &str, n: usize) -> String {
        let words =
            help.split_whitespace().map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase());
        words.filter(|word| !word.is_empty()).take(n).collect::<Vec<_>>().join(" ")
    }

    fn collect(command: &Command, path: &str, all: &mut BTreeMap<String, Vec<Flag>>) {
        for arg in command.get_arguments() {
            let Some(long) = arg.get_long().filter(|long| *long != "help") else { continue };
            let is_switch = matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::Version);
            let names = arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string);
            let flag = Flag {
                command: path.trim_start().into(),
                short: arg.get_short(),
                value: (!is_switch).then(|| names.collect::<Vec<_>>().join(" ")),
                help: first_words(&arg.get_help().map(ToString::to_string).unwrap_or_default(), 3),
            };
            all.entry(long.into()).or_default().push(flag);
        }
        for inner in command.get_subcommands() {
            collect(inner, &format!("{path} {}", inner.get_name()), all);
        }
    }

    fn flags() -> BTreeMap<String, Vec<Flag>> {
        let mut commands = crate::commands();
        commands.build();
        let mut all = BTreeMap::new();
        collect(&commands, "", &mut all);
        all
    }

    /// The distinct values of a flag's property, each with the commands that have it.
    fn different<T: Ord>(flags: &[Flag], property: impl Fn(&Flag) -> T) -> BTreeMap<T, Vec<&str>> {
        let mut all: BTreeMap<T, Vec<&str>> = BTreeMap::new();
        flags.iter().for_each(|flag| all.entry(property(flag)).or_default().push(&flag.command));
        all
    }

    #[test]
    fn a_flag_means_the_same_in_each_command() {
        let mut wrong = Vec::new();
        for (long, flags) in flags() {
            let values = different(&flags, |flag| match &flag.value {
                Some(name) if long == "output" && OUTPUTS.contains(&name.as_str()) => Some(String::new()),
                value => value.clone(),
            });
            let words = SAME_IN_OTHER_WORDS.iter().find(|(name, _)| *name == long).map(|(_, words)| *words);
            let help = different(&flags, |flag| match words {
                Some(words) if words.contains(&flag.help.as_str()) => String::new(),
                _ => flag.help.clone(),
            });
            let shorts = different(&flags, |flag| flag.short);
            if values.len() > 1 || help.len() > 1 || shorts.len() > 1 {
                wrong.push(format!("--{long}: {values:?} {help:?} {shorts:?}"));
            }
        }
        assert!(wrong.is_empty(), "{} flags with two meanings:\n{}", wrong.len(), wrong.join("\n"));
    }

    #[test]
    fn other_words_are_those_of_a_command() {
        let all = flags();
        for (long, words) in SAME_IN_OTHER_WORDS {
            let used: BTreeSet<_> = all[long].iter().map(|flag| flag.help.as_str()).collect();
            assert_eq!(words.iter().copied().collect::<BTreeSet<_>>(), used, "--{long}");
        }
    }

    #[test]
    fn a_letter_is_short_for_one_flag() {
        let mut letters: BTreeMap<char, BTreeSet<String>> = BTreeMap::new();
        for (long, flags) in flags() {
            flags.iter().filter_map(|flag| flag.short).for_each(|letter| {
                letters.entry(letter).or_default().insert(long.clone());
            });
        }
        letters.retain(|_, flags| flags.len() > 1);
        assert!(letters.is_empty(), "{letters:?}");
    }
}
