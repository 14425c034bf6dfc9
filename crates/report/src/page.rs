//! What a page can show, and how texts from outside are made fit for it.

use latpath_analysis::{is_within, Notation};
use latpath_model::{Ns, Observation};
use latpath_stats::text::{pad, wrapped, Table};
use latpath_stats::units::Letters;
use latpath_stats::{SegmentFigures, TimeFigures};
use std::ops::Deref;

/// How wide a page is that no terminal shows.
pub const WIDTH: usize = 110;
/// How wide a page on a terminal is at least and at most.
const WIDTHS: (usize, usize) = (40, 160);

/// What the place can show that a page is for.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    pub letters: Letters,
    pub width: usize,
    pub colour: bool,
    /// Whether people alone read it: then digits stand in groups. Programs could not read such numbers.
    pub is_for_people: bool,
}

impl Style {
    /// A terminal of so many columns, in these letters.
    pub fn of_terminal(letters: Letters, columns: usize, colour: bool) -> Self {
        Self { letters, width: columns.clamp(WIDTHS.0, WIDTHS.1), colour, is_for_people: true }
    }

    /// What the reader must not overlook, as it looks here.
    pub(crate) fn alarm(self, line: &str) -> String {
        match self.colour {
            true => format!("\x1b[33m{line}\x1b[0m"),
            false => line.into(),
        }
    }
}

impl From<Letters> for Style {
    /// A file or a pipe.
    fn from(letters: Letters) -> Self {
        Self { letters, width: WIDTH, colour: false, is_for_people: false }
    }
}

/// A part of a page, as other formats than plain text need it.
#[derive(Clone, Debug)]
pub(crate) enum Block {
    Heading(String),
    Subheading(String),
    Line(String),
    /// A name and its value; without a name, a further value of the item before.
    Item(String, String),
    Warning(String),
    /// A command as it is typed.
    Code(String),
    Table(Table),
    /// A table that is folded until the reader opens it, after its title.
    Details(String, Table),
    /// A table whose rows are steps of one packet: from where to where each took, in thousandths of the packet's time.
    Steps(Table, Vec<(u32, u32)>),
    Chart(ChartPlace),
}

impl Block {
    /// The command that it is, if it is one.
    pub fn command(&self) -> Option<&str> {
        match self {
            Self::Code(command) => Some(command),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ChartPlace {
    pub kind: &'static str,
    /// The charted segment that it shows.
    pub segment: usize,
    /// Those that it stacks.
    pub parts: Vec<usize>,
    pub name: String,
    /// What it shows, for those who cannot see it too.
    pub caption: String,
}

/// Text under construction.
pub(crate) struct Page {
    notation: Notation,
    pub width: usize,
    style: Style,
    text: String,
    /// An empty line comes before the next one.
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
    pub fn new(style: impl Into<Style>) -> Self {
        let style = style.into();
        let notation = Notation { letters: style.letters, is_for_people: style.is_for_people };
        Self { notation, width: style.width, style, text: String::new(), gap: false, blocks: Vec::new() }
    }

    /// What was put on the page.
    pub fn into_blocks(self) -> Vec<Block> {
        self.blocks
    }

    /// What plain text cannot show.
    pub fn block(&mut self, block: Block) {
        self.blocks.push(block);
    }

    /// The page, without spaces at the ends of lines.
    pub fn finish(self) -> String {
        let mut out = String::with_capacity(self.text.len());
        for line in self.text.lines() {
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }

    pub fn line(&mut self, text: impl AsRef<str>) {
        self.blocks.push(Block::Line(text.as_ref().trim().into()));
        self.text_line(text);
    }

    /// An empty line, if there is anything before it, and something comes behind it.
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

    /// A heading, with an empty line before it.
    pub fn heading(&mut self, text: &str) {
        self.gap();
        self.blocks.push(Block::Heading(text.into()));
        self.text_wrapped(String::new(), 2, text);
    }

    /// `name  value`, the value broken between words where it is longer than the page.
    pub fn item(&mut self, name: &str, value: &str) {
        const INDENT: usize = 14;
        self.blocks.push(Block::Item(name.into(), value.into()));
        self.text_wrapped(format!("  {}", pad(name, INDENT - 2)), INDENT, value);
    }

    /// Text after `line`, broken between words where it is longer than the page, each further line indented.
    pub fn wrapped(&mut self, line: String, indent: usize, text: &str) {
        self.blocks.push(Block::Line(format!("{line}{text}").trim().into()));
        self.text_wrapped(line, indent, text);
    }

    fn text_wrapped(&mut self, line: String, indent: usize, text: &str) {
        wrapped(line, indent, text, self.width, self.letters.ellipsis()).iter().for_each(|line| self.text_line(line));
    }

    /// Marks what the reader must not overlook.
    pub fn warning(&mut self, text: &str) {
        let text = self.clean(text);
        let lines = wrapped("  ! ".into(), 4, &text, self.width, self.letters.ellipsis());
        lines.iter().for_each(|line| self.text_line(self.style.alarm(line)));
        self.blocks.push(Block::Warning(text));
    }

    /// What an event cost, where that was measured.
    pub fn cost<F>(&mut self, observation: &Observation<F>) {
        if let Some(ns) = observation.cost_per_event_ns {
            self.line(format!("an event cost {ns} ns, with what measuring that costs"));
        }
    }

    /// A time of a segment: none where no packet crossed it, `<` its error bound where it is shorter than that.
    pub fn time(&self, segment: &SegmentFigures, ns: Ns) -> String {
        let bound = segment.error_bound_ns;
        match segment.times.count {
            0 => "-".into(),
            _ if is_within(ns, bound) => format!("<{}", self.duration(bound)),
            _ => self.duration(ns),
        }
    }

    /// A table's lines, cut to the page.
    pub fn table_lines(&self, table: &Table) -> Vec<String> {
        table.lines(2, self.width, self.letters.ellipsis())
    }

    pub fn table(&mut self, table: &Table) {
        self.table_at(2, table);
    }

    pub fn table_at(&mut self, indent: usize, table: &Table) {
        table.folded(indent, self.width, self.letters.ellipsis()).iter().for_each(|line| self.text_line(line));
        self.blocks.push(Block::Table(table.clone()));
    }

    /// A table of which nothing is cut: cells that are too long take several lines.
    pub fn whole_table(&mut self, table: &Table) {
        table.broken(2, self.width).iter().for_each(|line| self.text_line(line));
        self.blocks.push(Block::Table(table.clone()));
    }

    /// A command, which is never broken.
    pub fn code(&mut self, indent: usize, command: &str) {
        let command = self.clean(command);
        self.text_line(format!("{}{command}", " ".repeat(indent)));
        self.blocks.push(Block::Code(command));
    }

    /// A bar of `eighths / 8` columns.
    pub fn bar(&self, eighths: usize) -> String {
        if self.letters.is_ascii() {
            return "#".repeat(eighths.div_ceil(8));
        }
        let mut bar = "█".repeat(eighths / 8);
        bar.extend(['▏', '▎', '▍', '▌', '▋', '▊', '▉'].get((eighths % 8).wrapping_sub(1)));
        bar
    }
}

/// A percentile of at least `least` times; `-` of fewer.
pub(crate) fn of_enough(times: &TimeFigures, ns: Ns, least: u64, letters: Letters) -> String {
    if times.count >= least {
        letters.duration(ns)
    } else {
        "-".into()
    }
}
