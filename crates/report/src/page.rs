//! Pages: their style, their blocks, and the text being built.

use latpath_analysis::{is_within, Notation};
use latpath_model::{Ns, Observation};
use latpath_stats::text::{pad, wrapped, Table};
use latpath_stats::units::CharacterSet;
use latpath_stats::{SegmentFigures, TimeFigures};
use std::ops::Deref;

/// Width of a page for a file or a pipe, columns.
pub const WIDTH: usize = 110;
/// Minimum and maximum width of a page on a terminal, columns.
const WIDTHS: (usize, usize) = (40, 160);

/// Capabilities of the output of a page.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Character set of the output.
    pub letters: CharacterSet,
    /// Width of the page, columns.
    pub width: usize,
    /// Whether the output has colours.
    pub colour: bool,
    /// Whether the page is read only by people: digits are then grouped, which programs could not parse.
    pub is_for_people: bool,
}

impl Style {
    /// Style for a terminal with `columns` columns.
    pub fn of_terminal(letters: CharacterSet, columns: usize, colour: bool) -> Self {
        Self { letters, width: columns.clamp(WIDTHS.0, WIDTHS.1), colour, is_for_people: true }
    }

    /// Highlights a line that the reader must not overlook, if the output has colours.
    pub(crate) fn alarm(self, line: &str) -> String {
        match self.colour {
            true => format!("\x1b[33m{line}\x1b[0m"),
            false => line.into(),
        }
    }
}

impl From<CharacterSet> for Style {
    /// Style for a file or a pipe.
    fn from(letters: CharacterSet) -> Self {
        Self { letters, width: WIDTH, colour: false, is_for_people: false }
    }
}

/// A part of a page, for formats other than plain text.
#[derive(Clone, Debug)]
pub(crate) enum Block {
    Heading(String),
    Subheading(String),
    Line(String),
    /// A name and its value; an item with an empty name is a further value of the previous item.
    Item(String, String),
    Warning(String),
    /// A shell command.
    Code(String),
    Table(Table),
    /// A title, and a table that is folded until the reader opens it.
    Details(String, Table),
    /// A table with a row for each step of a packet, and the start and end of each step in thousandths of the packet's
    /// time.
    Steps(Table, Vec<(u32, u32)>),
    Chart(ChartPlace),
    Picture(Picture),
}

/// A picture that is complete without a script.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    /// Name of its file, where pictures are files.
    pub file: String,
    /// Description for readers who cannot see it.
    pub caption: String,
    pub svg: String,
}

impl Block {
    /// The command, if this is a `Code` block.
    pub fn command(&self) -> Option<&str> {
        match self {
            Self::Code(command) => Some(command),
            _ => None,
        }
    }
}

/// Placeholder of a chart.
#[derive(Clone, Debug)]
pub(crate) struct ChartPlace {
    /// Kind of chart, as named in the script.
    pub kind: &'static str,
    /// Index of the charted segment.
    pub segment: usize,
    /// Indexes of the charted segments to be stacked.
    pub parts: Vec<usize>,
    /// Name of the chart, for its labels.
    pub name: String,
    /// Description of the chart, also for readers who cannot see it.
    pub caption: String,
}

/// A page being built: its text and its blocks.
pub(crate) struct Page {
    notation: Notation,
    pub width: usize,
    style: Style,
    text: String,
    /// Whether the next line is preceded by an empty line.
    gap: bool,
    blocks: Vec<Block>,
}

impl Deref for Page {
    type Target = Notation;

    fn deref(&self) -> &Notation {
        &self.notation
    }
}

impl Page {
    /// An empty page.
    pub fn new(style: impl Into<Style>) -> Self {
        let style = style.into();
        let notation = Notation { letters: style.letters, is_for_people: style.is_for_people };
        Self { notation, width: style.width, style, text: String::new(), gap: false, blocks: Vec::new() }
    }

    /// The blocks of the page.
    pub fn into_blocks(self) -> Vec<Block> {
        self.blocks
    }

    /// Adds a block that is omitted from plain text.
    pub fn block(&mut self, block: Block) {
        self.blocks.push(block);
    }

    /// The text of the page, without trailing spaces.
    pub fn finish(self) -> String {
        let mut out = String::with_capacity(self.text.len());
        for line in self.text.lines() {
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }

    /// Adds a line, which is not wrapped.
    pub fn line(&mut self, text: impl AsRef<str>) {
        self.blocks.push(Block::Line(text.as_ref().trim().into()));
        self.text_line(text);
    }

    /// Adds an empty line, unless it would be the first or the last line.
    pub fn gap(&mut self) {
        self.gap = !self.text.is_empty();
    }

    fn text_line(&mut self, text: impl AsRef<str>) {
        if std::mem::take(&mut self.gap) {
            self.text.push('\n');
        }
        self.text.push_str(text.as_ref());
        self.text.push('\n');
    }

    /// Adds a heading, preceded by an empty line.
    pub fn heading(&mut self, text: &str) {
        self.gap();
        self.blocks.push(Block::Heading(text.into()));
        self.text_wrapped(String::new(), 2, text);
    }

    /// Adds `name  value`, the value wrapped to the width of the page.
    pub fn item(&mut self, name: &str, value: &str) {
        const INDENT: usize = 14;
        self.blocks.push(Block::Item(name.into(), value.into()));
        self.text_wrapped(format!("  {}", pad(name, INDENT - 2)), INDENT, value);
    }

    /// Adds `text` after `line`, wrapped to the width of the page; continuation lines are indented.
    pub fn wrapped(&mut self, line: String, indent: usize, text: &str) {
        self.blocks.push(Block::Line(format!("{line}{text}").trim().into()));
        self.text_wrapped(line, indent, text);
    }

    fn text_wrapped(&mut self, line: String, indent: usize, text: &str) {
        wrapped(line, indent, text, self.width, self.letters.ellipsis()).iter().for_each(|line| self.text_line(line));
    }

    /// Adds a warning, which the reader must not overlook.
    pub fn warning(&mut self, text: &str) {
        let text = self.clean(text);
        let lines = wrapped("  ! ".into(), 4, &text, self.width, self.letters.ellipsis());
        lines.iter().for_each(|line| self.text_line(self.style.alarm(line)));
        self.blocks.push(Block::Warning(text));
    }

    /// Adds the cost of measuring per event, if that was determined.
    pub fn cost<F>(&mut self, observation: &Observation<F>) {
        if let Some(ns) = observation.cost_per_event_ns {
            self.line(format!("an event cost {ns} ns, with what measuring that costs"));
        }
    }

    /// Formats a time of a segment: `-` if no packet crossed it, `<` and the error bound if the time is shorter than
    /// the bound.
    pub fn time(&self, segment: &SegmentFigures, ns: Ns) -> String {
        let bound = segment.error_bound_ns;
        match segment.times.count {
            0 => "-".into(),
            _ if is_within(ns, bound) => format!("<{}", self.duration(bound)),
            _ => self.duration(ns),
        }
    }

    /// Lines of a table, truncated to the width of the page.
    pub fn table_lines(&self, table: &Table) -> Vec<String> {
        table.lines(2, self.width, self.letters.ellipsis())
    }

    /// Adds a table; rows that are wider than the page are folded.
    pub fn table(&mut self, table: &Table) {
        self.table_at(2, table);
    }

    /// Adds a table that is indented by this number of columns.
    pub fn table_at(&mut self, indent: usize, table: &Table) {
        table.folded(indent, self.width, self.letters.ellipsis()).iter().for_each(|line| self.text_line(line));
        self.blocks.push(Block::Table(table.clone()));
    }

    /// Adds a table without truncation: long cells take several lines.
    pub fn whole_table(&mut self, table: &Table) {
        table.broken(2, self.width).iter().for_each(|line| self.text_line(line));
        self.blocks.push(Block::Table(table.clone()));
    }

    /// Adds a command, which is not wrapped.
    pub fn code(&mut self, indent: usize, command: &str) {
        let command = self.clean(command);
        self.text_line(format!("{}{command}", " ".repeat(indent)));
        self.blocks.push(Block::Code(command));
    }

    /// Draws a bar of `eighths / 8` columns.
    pub fn bar(&self, eighths: usize) -> String {
        if self.letters.is_ascii() {
            return "#".repeat(eighths.div_ceil(8));
        }
        let mut bar = "█".repeat(eighths / 8);
        bar.extend(['▏', '▎', '▍', '▌', '▋', '▊', '▉'].get((eighths % 8).wrapping_sub(1)));
        bar
    }
}

/// Formats a percentile; `-` if there are fewer than `least` times.
pub(crate) fn of_enough(times: &TimeFigures, ns: Ns, least: u64, letters: CharacterSet) -> String {
    if times.count >= least {
        letters.duration(ns)
    } else {
        "-".into()
    }
}
