//! What a page can show, and how texts from outside are made fit for it.

use latpath_model::Ns;
use latpath_stats::units::Letters;
use std::fmt::Write;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The widest that a page is.
pub const WIDTH: usize = 110;

/// Text under construction.
pub(crate) struct Page {
    letters: Letters,
    text: String,
}

impl Page {
    pub fn new(letters: Letters) -> Self {
        Self { letters, text: String::new() }
    }

    pub fn letters(&self) -> Letters {
        self.letters
    }

    pub fn ascii(&self) -> bool {
        self.letters == Letters::Ascii
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
        self.text.push_str(text.as_ref());
        self.text.push('\n');
    }

    /// A heading, with an empty line before it.
    pub fn heading(&mut self, text: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.line(text);
    }

    /// `name  value`, the value broken between words where it is longer than the page.
    pub fn item(&mut self, name: &str, value: &str) {
        const INDENT: usize = 14;
        self.wrapped(format!("  {}", pad(name, INDENT - 2)), INDENT, value);
    }

    /// Text after `line`, which is `indent` wide, broken between words where it is longer than the page.
    pub fn wrapped(&mut self, mut line: String, indent: usize, text: &str) {
        let mut used = indent;
        for (i, word) in text.split(' ').enumerate() {
            let word = cut(word, WIDTH - indent, self.ascii());
            if i > 0 && used + 1 + word.width() > WIDTH {
                self.line(&line);
                line = " ".repeat(indent);
                used = indent;
            } else if i > 0 {
                line.push(' ');
                used += 1;
            }
            used += word.width();
            line.push_str(&word);
        }
        self.line(line);
    }

    /// Marks what the reader must not overlook.
    pub fn warning(&mut self, text: &str) {
        let text = self.clean(text);
        self.wrapped("  ! ".into(), 4, &text);
    }

    /// A duration, as the page can show it.
    pub fn duration(&self, ns: Ns) -> String {
        self.letters.duration(ns)
    }

    /// A count in at most 14 columns.
    pub fn count(&self, n: u64) -> String {
        self.letters.count_within(n, 14)
    }

    /// `n of all`, in percent: never 100 % or 0 % unless it is all or none.
    pub fn share(&self, n: u64, all: u64) -> String {
        share(n, all)
    }

    pub fn arrow(&self) -> &'static str {
        if self.ascii() {
            "->"
        } else {
            "→"
        }
    }

    pub fn plus_minus(&self) -> &'static str {
        if self.ascii() {
            "+-"
        } else {
            "±"
        }
    }

    /// A text from outside (an svID, a device, a thread's name) made fit to show: no control characters, nothing that
    /// turns the direction of writing, only ASCII where nothing else can be shown, at most 1000 characters.
    pub fn clean(&self, text: &str) -> String {
        let ascii = self.ascii();
        let mut out = String::new();
        for c in text.chars().take(1000) {
            match c {
                '→' if ascii => out.push_str("->"),
                '±' if ascii => out.push_str("+-"),
                'µ' | 'μ' if ascii => out.push('u'),
                '…' if ascii => out.push_str("..."),
                // Between groups of digits.
                '\u{202f}' if ascii => out.push(','),
                c if c.is_control() || c.width().unwrap_or(0) == 0 || ('\u{2028}'..='\u{202e}').contains(&c) => {
                    out.push('?')
                }
                c if ascii && !c.is_ascii() => out.push('?'),
                c => out.push(c),
            }
        }
        out
    }

    /// A bar of `eighths / 8` columns.
    pub fn bar(&self, eighths: usize) -> String {
        if self.ascii() {
            return "#".repeat(eighths.div_ceil(8));
        }
        let mut bar = "█".repeat(eighths / 8);
        bar.extend(['▏', '▎', '▍', '▌', '▋', '▊', '▉'].get((eighths % 8).wrapping_sub(1)));
        bar
    }
}

/// `n of all`, in percent: never 100 % or 0 % unless it is all or none.
pub(crate) fn share(n: u64, all: u64) -> String {
    if all == 0 {
        return "-".into();
    }
    // Cut near all and none, so that one packet of a million that is missing still shows; rounded between.
    let millionths = u128::from(n) * 100_000_000 / u128::from(all);
    let rounded = (millionths + 5_000).min(99_989_999);
    let (whole, rest) = match millionths {
        10_000..99_990_000 => (rounded / 1_000_000, rounded % 1_000_000),
        _ => (millionths / 1_000_000, millionths % 1_000_000),
    };
    match millionths {
        0 if n == 0 => "0 %".into(),
        100_000_000 => "100 %".into(),
        0 => "<0.000001 %".into(),
        10_000..99_990_000 => format!("{whole}.{:02} %", rest / 10_000),
        _ => format!("{whole}.{rest:06} %"),
    }
}

/// Text at the left of so many columns.
pub(crate) fn pad(text: &str, width: usize) -> String {
    let mut out = text.to_owned();
    out.extend(std::iter::repeat_n(' ', width.saturating_sub(text.width())));
    out
}

/// Text at the right of so many columns.
pub(crate) fn right(text: &str, width: usize) -> String {
    let mut out = " ".repeat(width.saturating_sub(text.width()));
    out.push_str(text);
    out
}

/// Text in at most so many columns, with a mark where something is missing.
pub(crate) fn cut(text: &str, width: usize, ascii: bool) -> String {
    if text.width() <= width {
        return text.into();
    }
    let mark = if ascii { '~' } else { '…' };
    let (mut out, mut used) = (String::new(), 1);
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > width {
            break;
        }
        out.push(c);
    }
    out.push(mark);
    out
}

/// A table. Columns whose heads begin with `<` are at the left, the others at the right.
pub(crate) struct Table {
    left: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Column heads; those that begin with `<` stand at the left.
    pub fn new(heads: &[&str]) -> Self {
        let left = heads.iter().map(|h| h.starts_with('<')).collect();
        let heads = heads.iter().map(|h| h.trim_start_matches('<').to_owned()).collect();
        Self { left, rows: vec![heads] }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Writes it, each column as wide as it must be; the widest text columns are cut where the page is too narrow.
    pub fn write(&self, page: &mut Page) {
        let columns = self.left.len();
        let width = |i: usize| self.rows.iter().filter_map(|r| r.get(i)).map(|c| c.width()).max().unwrap_or(0);
        let mut widths: Vec<usize> = (0..columns).map(width).collect();
        let gap = 2;
        while widths.iter().sum::<usize>() + gap * (columns - 1) + 2 > WIDTH {
            let widest = (0..columns).filter(|i| self.left[*i]).max_by_key(|i| widths[*i]);
            match widest {
                Some(i) if widths[i] > 8 => widths[i] -= 1,
                _ => break,
            }
        }
        for row in &self.rows {
            let mut line = String::from("  ");
            for (i, cell) in row.iter().enumerate() {
                let cell = cut(cell, widths[i], page.ascii());
                let cell = if self.left[i] { pad(&cell, widths[i]) } else { right(&cell, widths[i]) };
                let _ = write!(line, "{}{cell}", if i > 0 { "  " } else { "" });
            }
            page.line(line);
        }
    }
}
