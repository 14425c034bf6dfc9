//! The troubles, worst first.

use crate::{
    names,
    theme::Theme,
    watch::{self, Flowing, Tally, Watch},
};
use latpath_model::stream::is_of_reactions;
use latpath_stats::{units, Summary};
use ratatui::style::Style;
use std::time::Duration;

/// Maximum age of an event that counts as current.
const RECENT: Duration = Duration::from_secs(10);
/// Maximum age of a summary (one is due every second) before the figures are in doubt.
const FIGURES_DUE: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A serious current problem.
    Alarm,
    /// A past alarm, or a minor current problem.
    Warn,
}

impl Level {
    pub fn style(self, theme: &Theme) -> Style {
        match self {
            Self::Alarm => theme.alarm(),
            Self::Warn => theme.warn(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub level: Level,
    pub text: String,
}

/// All troubles, worst first. `with_silence` includes the absence of packets, which the header may already show.
pub fn troubles(summary: &Summary, watch: &Watch, now: Duration, theme: &Theme, with_silence: bool) -> Vec<Warning> {
    let mut list = Vec::new();
    let mut add = |level, text| list.push(Warning { level, text });

    let late = now.saturating_sub(watch.fed);
    if late >= FIGURES_DUE {
        add(Level::Alarm, format!("NO FIGURES for {}: latpath is busy or stuck", span(late)));
    }
    let flowing = watch.all.flowing(now);
    match flowing {
        Flowing::Waiting(d) if d >= Duration::from_secs(2) => {
            add(Level::Warn, format!("NO PACKET YET, waiting for {}", span(d)));
        }
        Flowing::Silent(d) if with_silence => add(Level::Alarm, format!("NO PACKETS for {}", span(d))),
        _ => {}
    }
    if flowing == Flowing::Yes && summary.streams.len() > 1 {
        let of = |want: fn(Flowing) -> bool| -> Vec<String> {
            let quiet = |s: &&latpath_stats::StreamFigures| {
                // A stream of reactions may have no packets: there may be nothing to react to.
                !is_of_reactions(&s.stream) && watch.streams.get(&s.stream).is_some_and(|flow| want(flow.flowing(now)))
            };
            summary.streams.iter().filter(quiet).map(|s| names::stream(&s.stream, theme)).collect()
        };
        let silent = of(|f| matches!(f, Flowing::Silent(_)));
        if let Some(text) = some_of(&silent) {
            add(Level::Alarm, format!("SILENT: {text}"));
        }
        let never = of(|f| matches!(f, Flowing::Waiting(d) if d >= Duration::from_secs(2)));
        if let Some(text) = some_of(&never) {
            add(Level::Warn, format!("never came: {text}"));
        }
    }
    for machine in &summary.machines {
        if let Some(fault) = &machine.fault {
            add(Level::Alarm, format!("CLOCK {}: {}", theme.clean(&machine.machine), theme.clean(fault)));
        }
    }
    if let Some(percent) = summary.late.as_ref().and_then(|late| late.latpath_percent) {
        add(Level::Warn, format!("latpath itself: {percent:.0} % of the delay (--no-flight disturbs less)"));
    }
    let mut tally = |name: &str, tally: &Tally, worst: Level| {
        if tally.count == 0 {
            return;
        }
        let count = theme.count(tally.count);
        match tally.last.map(|(at, by)| (now.saturating_sub(at), by)) {
            Some((ago, by)) if ago < Duration::from_secs(2) && by < tally.count => {
                add(worst, format!("{name} {count} (+{})", theme.count(by)));
            }
            Some((ago, _)) if ago < RECENT => add(worst, format!("{name} {count}")),
            Some((ago, _)) => add(Level::Warn, format!("{name} {count} ({} ago)", span(ago))),
            None => add(Level::Warn, format!("{name} {count}")),
        }
    };
    tally("LOST", &watch.lost, Level::Alarm);
    tally("SIGHTINGS DROPPED", &watch.dropped, Level::Alarm);
    if let Some(segment) = watch::worst_negative(&summary.segments) {
        let name = names::Path(summary).segment_number(segment, theme);
        tally(&format!("NEGATIVE {name}:"), &watch.negative, Level::Alarm);
    }
    tally("NEVER SEEN", &watch.never_seen, Level::Alarm);
    tally("malformed", &watch.malformed, Level::Warn);
    tally(&format!("over {}:", theme.limit(summary.threshold_ns)), &watch.over, Level::Warn);
    list.sort_by_key(|t| t.level);
    list
}

/// Maximum number of lines for current troubles when room is short.
pub const ALARM_LINES: usize = 2;

/// The first two names of a list and the number of the remaining ones; `None` if the list is empty.
fn some_of(names: &[String]) -> Option<String> {
    match names {
        [] => None,
        [one] => Some(one.clone()),
        [one, two] => Some(format!("{one}, {two}")),
        [one, two, rest @ ..] => Some(format!("{one}, {two} and {} more", rest.len())),
    }
}

/// `12 s` below two minutes, then `2:05`.
pub fn span(d: Duration) -> String {
    match d.as_secs() {
        s @ 0..120 => format!("{s} s"),
        s => units::elapsed(i64::try_from(s).unwrap_or(i64::MAX).saturating_mul(1_000_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_stats::{units::CharacterSet, Loss, MachineFigures, StreamFigures};

    fn theme() -> Theme {
        Theme::of(CharacterSet::Ascii, "xterm", "")
    }

    fn at(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn lost(count: u64) -> Vec<Loss> {
        vec![Loss {
            place: "host/tx@vnet0".into(),
            reason: None,
            meaning: None,
            dropped_at: None,
            kernel_count: None,
            count,
        }]
    }

    fn texts(summary: &Summary, watch: &Watch, now: u64) -> Vec<(Level, String)> {
        troubles(summary, watch, at(now), &theme(), true).into_iter().map(|t| (t.level, t.text)).collect()
    }

    #[test]
    fn no_trouble_is_an_empty_list() {
        let summary = Summary { elapsed_ns: 1_000_000_000, journeys: 4000, ..Summary::default() };
        let mut watch = Watch::new(at(0));
        watch.feed(&summary, at(1));
        assert_eq!(texts(&summary, &watch, 1), []);
    }

    #[test]
    fn a_loss_is_an_alarm_now_and_a_warning_later() {
        let mut watch = Watch::new(at(0));
        let mut summary = Summary { elapsed_ns: 1_000_000_000, journeys: 4000, lost: lost(3), ..Summary::default() };
        watch.feed(&summary, at(1));
        summary.lost = lost(5);
        for s in 2..60 {
            summary.journeys += 4000;
            summary.elapsed_ns += 1_000_000_000;
            watch.feed(&summary, at(s));
            let now = texts(&summary, &watch, s);
            match s {
                2 => assert_eq!(now, [(Level::Alarm, "LOST 5 (+2)".into())]),
                4..12 => assert_eq!(now, [(Level::Alarm, "LOST 5".into())]),
                50 => assert_eq!(now, [(Level::Warn, "LOST 5 (48 s ago)".into())]),
                _ => {}
            }
        }
    }

    #[test]
    fn one_stream_among_many_that_falls_silent_is_named() {
        let mut watch = Watch::new(at(0));
        let mut summary = Summary::default();
        for s in 1..10_u64 {
            summary.elapsed_ns += 1_000_000_000;
            summary.journeys += 4000;
            let journeys = [s * 4000, 4000, 0];
            summary.streams = (0..3)
                .map(|i| StreamFigures {
                    stream: format!("svid:MU{i}"),
                    journeys: journeys[i],
                    ..StreamFigures::default()
                })
                .collect();
            watch.feed(&summary, at(s));
        }
        let want = [(Level::Alarm, "SILENT: MU1".into()), (Level::Warn, "never came: MU2".into())];
        assert_eq!(texts(&summary, &watch, 9), want);
    }

    #[test]
    fn the_delay_that_latpath_itself_causes_is_a_warning() {
        let late = latpath_stats::LateFigures { latpath_percent: Some(23.4), ..Default::default() };
        let summary = Summary { elapsed_ns: 1_000_000_000, journeys: 4000, late: Some(late), ..Summary::default() };
        let mut watch = Watch::new(at(0));
        watch.feed(&summary, at(1));
        let want = "latpath itself: 23 % of the delay (--no-flight disturbs less)";
        assert_eq!(texts(&summary, &watch, 1), [(Level::Warn, want.into())]);
    }

    #[test]
    fn a_clock_fault_and_stalled_figures_are_alarms() {
        let fault = Some("no answer for 2.1 s".into());
        let machines = vec![MachineFigures { machine: "guest0".into(), fault, ..MachineFigures::default() }];
        let summary = Summary { elapsed_ns: 1_000_000_000, journeys: 1, machines, ..Summary::default() };
        let mut watch = Watch::new(at(0));
        watch.feed(&summary, at(1));
        assert_eq!(texts(&summary, &watch, 1), [(Level::Alarm, "CLOCK guest0: no answer for 2.1 s".into())]);
        assert_eq!(texts(&summary, &watch, 5)[0].1, "NO FIGURES for 4 s: latpath is busy or stuck");
    }
}
