//! The screen's state: the latest figures, and the user's choices. Drawing depends on nothing else.

use crate::{
    keys::Key,
    theme::Theme,
    watch::{Flow, Watch},
    Action,
};
use latpath_model::{Ns, SegmentKind};
use latpath_stats::figures::{never_seen, packets};
use latpath_stats::{LanFigures, LateFigures, Loss, PathFigures, SegmentFigures, StreamFigures, Summary};
use std::{cmp::Reverse, time::Duration};

/// Order of the segments table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Segments with classic names first, then those between neighbours in the order of the route.
    Path,
    P99,
    Max,
    Over,
}

impl Sort {
    pub fn name(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::P99 => "p99",
            Self::Max => "max",
            Self::Over => "over",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Path => Self::P99,
            Self::P99 => Self::Max,
            Self::Max => Self::Over,
            Self::Over => Self::Path,
        }
    }
}

/// Content of the middle of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Segments, and the histogram of one.
    Both,
    /// As many segments as fit.
    Table,
    /// The histogram, as large as possible.
    Histogram,
    Streams,
}

/// Overlay on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlay {
    None,
    Help,
    /// Losses, clocks and notes in full, scrolled to this line.
    Details(usize),
}

pub struct Model {
    pub theme: Theme,
    /// Time since the screen started.
    pub now: Duration,
    /// Changes from summary to summary.
    pub watch: Watch,
    /// Time of day at which counting began.
    pub since: String,
    pub sort: Sort,
    pub view: View,
    pub overlay: Overlay,
    pub paused_at: Option<Duration>,
    latest: Option<Summary>,
    held: Option<Summary>,
    stream: Option<String>,
    segment: Option<String>,
    time_of_day: fn(Ns) -> String,
}

impl Model {
    /// A screen without figures. `time_of_day` formats the time of day that was a given number of nanoseconds ago.
    pub fn new(theme: Theme, time_of_day: fn(Ns) -> String) -> Self {
        Self {
            theme,
            now: Duration::ZERO,
            watch: Watch::new(Duration::ZERO),
            since: time_of_day(0),
            sort: Sort::Path,
            view: View::Both,
            overlay: Overlay::None,
            paused_at: None,
            latest: None,
            held: None,
            stream: None,
            segment: None,
            time_of_day,
        }
    }

    pub fn feed(&mut self, summary: &Summary, now: Duration) {
        self.now = now;
        let from_zero = self.watch.feed(summary, now);
        if from_zero {
            self.since = (self.time_of_day)(summary.elapsed_ns);
            self.held = None;
        }
        if self.paused_at.is_some() && self.held.is_none() {
            self.held = Some(summary.clone());
        }
        self.latest = Some(summary.clone());
    }

    /// Updates the late packets of the newest summary.
    pub fn feed_late(&mut self, late: &LateFigures) {
        if let Some(latest) = &mut self.latest {
            latest.late = Some(late.clone());
        }
    }

    /// The newest summary, from which troubles are derived even while paused.
    pub fn latest(&self) -> Option<&Summary> {
        self.latest.as_ref()
    }

    pub fn shown(&self) -> Option<DisplayedFigures<'_>> {
        let summary = self.held.as_ref().or(self.latest.as_ref())?;
        let stream = self.stream.as_ref().and_then(|name| summary.streams.iter().find(|s| s.stream == *name));
        Some(DisplayedFigures { summary, stream })
    }

    pub fn rows<'a>(&self, shown: &DisplayedFigures<'a>) -> Vec<&'a SegmentFigures> {
        let mut rows: Vec<_> = shown.segments().iter().collect();
        rows.sort_by_key(|s| s.kind);
        match self.sort {
            Sort::Path => {}
            Sort::P99 => rows.sort_by_key(|s| Reverse(s.times.p99_ns)),
            Sort::Max => rows.sort_by_key(|s| Reverse(s.times.max_ns)),
            Sort::Over => rows.sort_by_key(|s| Reverse(s.over_threshold)),
        }
        rows
    }

    /// Index of the selected row: the user's choice, else `total`, else the first.
    pub fn selected(&self, rows: &[&SegmentFigures]) -> usize {
        let chosen = self.segment.as_deref().and_then(|name| rows.iter().position(|s| s.name == name));
        let total = || rows.iter().position(|s| s.kind == SegmentKind::Total);
        chosen.or_else(total).unwrap_or(0)
    }

    /// Handles a key; returns an action if the caller has to handle it.
    pub fn key(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Interrupt | Key::Char('q' | 'Q') => return Some(Action::Quit),
            Key::Char('?') | Key::F1 => {
                self.overlay = if self.overlay == Overlay::Help { Overlay::None } else { Overlay::Help };
                return None;
            }
            Key::Char('d') => {
                let open = matches!(self.overlay, Overlay::Details(_));
                self.overlay = if open { Overlay::None } else { Overlay::Details(0) };
                return None;
            }
            Key::Char('p' | ' ') => return Some(self.pause()),
            Key::Char('r') => return Some(Action::Reset),
            _ => {}
        }
        if let Overlay::Details(from) = self.overlay {
            self.overlay = match key {
                Key::Up | Key::Char('k') => Overlay::Details(from.saturating_sub(1)),
                Key::Down | Key::Char('j') => Overlay::Details(from.saturating_add(1)),
                Key::PageUp => Overlay::Details(from.saturating_sub(10)),
                Key::PageDown => Overlay::Details(from.saturating_add(10)),
                Key::Home => Overlay::Details(0),
                Key::Escape | Key::Enter => Overlay::None,
                _ => self.overlay,
            };
            return None;
        }
        if self.overlay == Overlay::Help {
            self.overlay = Overlay::None;
            return None;
        }
        match key {
            Key::Up | Key::Char('k') => self.move_segment(-1),
            Key::Down | Key::Char('j') => self.move_segment(1),
            Key::PageUp => self.move_segment(-5),
            Key::PageDown => self.move_segment(5),
            Key::Home => self.move_segment(isize::MIN),
            Key::End => self.move_segment(isize::MAX),
            Key::Left | Key::Char('h') => self.move_stream(false),
            Key::Right | Key::Char('l') => self.move_stream(true),
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Char('t') => self.view = self.next_view(),
            _ => {}
        }
        None
    }

    fn pause(&mut self) -> Action {
        match self.paused_at.take() {
            Some(_) => {
                self.held = None;
                Action::Pause(false)
            }
            None => {
                self.paused_at = Some(self.now);
                self.held.clone_from(&self.latest);
                Action::Pause(true)
            }
        }
    }

    fn move_segment(&mut self, by: isize) {
        let Some(shown) = self.shown() else { return };
        let rows = self.rows(&shown);
        let Some(last) = rows.len().checked_sub(1) else { return };
        let at = self.selected(&rows).saturating_add_signed(by).min(last);
        self.segment = Some(rows[at].name.clone());
    }

    /// Cycles through the choice of streams: all together, then each in turn.
    fn move_stream(&mut self, on: bool) {
        let Some(shown) = self.shown() else { return };
        let streams = &shown.summary.streams;
        let at = shown.stream.and_then(|s| streams.iter().position(|o| std::ptr::eq(o, s)));
        let next = match (at, on) {
            (None, true) => 0,
            (None, false) => streams.len().wrapping_sub(1),
            (Some(i), true) => i + 1,
            (Some(i), false) => i.wrapping_sub(1),
        };
        self.stream = streams.get(next).map(|s| s.stream.clone());
    }

    fn next_view(&self) -> View {
        let many = self.shown().is_some_and(|s| s.summary.streams.len() > 1);
        match self.view {
            View::Both => View::Table,
            View::Table => View::Histogram,
            View::Histogram if many => View::Streams,
            View::Histogram | View::Streams => View::Both,
        }
    }
}

/// The displayed figures: those of all streams, or of the selected one.
#[derive(Clone, Copy)]
pub struct DisplayedFigures<'a> {
    pub summary: &'a Summary,
    pub stream: Option<&'a StreamFigures>,
}

impl<'a> DisplayedFigures<'a> {
    pub fn journeys(&self) -> u64 {
        self.stream.map_or(self.summary.journeys, |s| s.journeys)
    }

    pub fn complete(&self) -> u64 {
        self.stream.map_or(self.summary.complete, |s| s.complete)
    }

    pub fn incomplete(&self) -> u64 {
        self.stream.map_or(self.summary.incomplete, |s| s.incomplete)
    }

    /// Losses by place, largest first.
    pub fn losses(&self) -> Vec<&'a Loss> {
        let mut list: Vec<_> = self.stream.map_or(&self.summary.lost, |s| &s.lost).iter().collect();
        list.sort_by_key(|l| Reverse(l.count));
        list
    }

    /// The paths of packets through the host; empty if there is only one.
    pub fn paths(&self) -> &'a [PathFigures] {
        self.stream.map_or(&self.summary.paths, |s| &s.paths)
    }

    pub fn lost(&self) -> u64 {
        packets(self.stream.map_or(&self.summary.lost, |s| &s.lost))
    }

    /// Copies of packets, by LAN of the redundant networks.
    pub fn lans(&self) -> &'a [LanFigures] {
        self.stream.map_or(&self.summary.lans, |s| &s.lans)
    }

    pub fn duplicates(&self) -> u64 {
        self.stream.map_or(self.summary.duplicates, |s| s.duplicates)
    }

    pub fn out_of_order(&self) -> u64 {
        self.stream.map_or(self.summary.out_of_order, |s| s.out_of_order)
    }

    pub fn never_seen(&self) -> u64 {
        self.stream.map_or_else(|| never_seen(self.summary), |s| s.never_seen)
    }

    pub fn segments(&self) -> &'a [SegmentFigures] {
        self.stream.map_or(&self.summary.segments, |s| &s.segments)
    }

    pub fn flow<'w>(&self, watch: &'w Watch) -> &'w Flow {
        self.stream.and_then(|s| watch.streams.get(&s.stream)).unwrap_or(&watch.all)
    }
}
