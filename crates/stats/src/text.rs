//! Text for people: sanitising, cutting, aligning in columns, and tables.

use crate::units::CharacterSet;
use latpath_model::{Ns, StreamSpec};
use std::collections::HashSet;
use std::time::{Duration, SystemTime};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

impl CharacterSet {
    /// Whether only ASCII can be displayed.
    pub fn is_ascii(self) -> bool {
        self == Self::Ascii
    }

    /// Separator between two points.
    pub fn arrow(self) -> &'static str {
        if self.is_ascii() {
            "->"
        } else {
            "→"
        }
    }

    /// Sign of an error bound.
    pub fn plus_minus(self) -> &'static str {
        if self.is_ascii() {
            "+-"
        } else {
            "±"
        }
    }

    /// Character that marks a cut.
    pub fn ellipsis(self) -> char {
        if self.is_ascii() {
            '~'
        } else {
            '…'
        }
    }

    /// Sanitises text from outside (an svID, a device name, a thread name): replaces control characters, changes of the
    /// writing direction and characters that cannot be displayed, and limits the length to 1000 characters.
    pub fn clean(self, text: &str) -> String {
        let ascii = self.is_ascii();
        let mut out = String::new();
        for c in text.chars().take(1000) {
            match c {
                '→' if ascii => out.push_str("->"),
                '±' if ascii => out.push_str("+-"),
                'µ' | 'μ' if ascii => out.push('u'),
                '…' if ascii => out.push_str("..."),
                // The separator between groups of digits.
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
}

/// Pads text on the right to `width` columns.
pub fn pad(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
}

/// Pads text on the left to `width` columns.
pub fn right(text: &str, width: usize) -> String {
    format!("{}{text}", " ".repeat(width.saturating_sub(text.width())))
}

/// Cuts text to `width` columns, and marks the cut with `mark`.
pub fn cut(text: &str, width: usize, mark: char) -> String {
    if text.width() <= width {
        return text.into();
    }
    let (mut out, mut used) = (String::new(), 0);
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used >= width {
            break;
        }
        out.push(c);
    }
    out.extend((width > 0).then_some(mark));
    out
}

/// Appends text to `line`, and wraps it at words into lines of at most `width` columns. Further lines are indented;
/// words that are too long are cut.
pub fn wrapped(mut line: String, indent: usize, text: &str, width: usize, mark: char) -> Vec<String> {
    let (mut lines, mut used) = (Vec::new(), line.width());
    for (i, word) in text.split(' ').enumerate() {
        let word = cut(word, width.saturating_sub(indent), mark);
        if i > 0 && used + 1 + word.width() > width {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            used = indent;
        } else if i > 0 {
            line.push(' ');
            used += 1;
        }
        used += word.width();
        line.push_str(&word);
    }
    lines.push(line);
    lines
}

/// A stream's short name, such as the svID; text that is not a stream is returned unchanged.
pub fn short_stream(text: &str) -> String {
    text.parse::<StreamSpec>().map_or_else(|_| text.to_owned(), |spec| spec.short())
}

/// Formats UTC, ns since 1970: `2026-01-02 03:04:05.000000006`.
pub fn date_time(utc: Ns) -> String {
    let since = Duration::from_nanos(utc.unsigned_abs());
    match SystemTime::UNIX_EPOCH.checked_add(since).filter(|_| utc >= 0) {
        Some(time) => humantime::format_rfc3339_nanos(time).to_string().replace('T', " ").replace('Z', ""),
        None => format!("{utc} ns"),
    }
}

/// Splits text into pieces of at most `width` columns, at words, or within a word that is too long.
fn pieces(text: &str, width: usize) -> Vec<String> {
    let (mut all, mut piece) = (Vec::new(), String::new());
    for word in text.split(' ') {
        if !piece.is_empty() && piece.width() + 1 + word.width() > width {
            all.push(std::mem::take(&mut piece));
        } else if !piece.is_empty() {
            piece.push(' ');
        }
        for c in word.chars() {
            if piece.width() + c.width().unwrap_or(0) > width && !piece.is_empty() {
                all.push(std::mem::take(&mut piece));
            }
            piece.push(c);
        }
    }
    all.push(piece);
    all
}

/// Minimum width to which a column may be cut.
const MIN: usize = 8;

/// A table of text.
#[derive(Clone, Debug)]
pub struct Table {
    left: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads. Columns with a head that starts with `<` are left-aligned, the others
    /// right-aligned.
    pub fn new(heads: &[&str]) -> Self {
        let left = heads.iter().map(|h| h.starts_with('<')).collect();
        let heads = heads.iter().map(|h| h.trim_start_matches('<').to_owned()).collect();
        Self { left, rows: vec![heads] }
    }

    /// Appends a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The column heads, each with whether its column is left-aligned.
    pub fn heads(&self) -> impl Iterator<Item = (&str, bool)> {
        self.rows[0].iter().map(String::as_str).zip(self.left.iter().copied())
    }

    /// The rows below the heads.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows[1..]
    }

    /// The lines of the table; each column is as wide as its content. If `width` is too small, the widest text columns
    /// are cut.
    pub fn lines(&self, indent: usize, width: usize, mark: char) -> Vec<String> {
        self.lines_of(&(0..self.left.len()).collect::<Vec<_>>(), indent, width, mark)
    }

    /// The lines of the table. If it has too many columns for `width`, it is split into several blocks. Each block
    /// starts with the first two text columns, or with as many as are needed to distinguish the rows, if there is room.
    pub fn folded(&self, indent: usize, width: usize, mark: char) -> Vec<String> {
        let least = |i: usize| if self.left[i] { self.natural(i).min(MIN) } else { self.natural(i) };
        let texts = self.left.iter().take_while(|left| **left).count();
        let rows = self.rows();
        let differ = |names: &usize| {
            let mut seen = HashSet::new();
            rows.iter().all(|row| seen.insert(&row[..*names]))
        };
        let widest = |names: usize| (names..self.left.len()).map(least).max().unwrap_or(0);
        let fit = |names: &usize| indent + (0..*names).map(|i| least(i) + 2).sum::<usize>() + widest(*names) <= width;
        let names = (2..=texts).find(differ).filter(fit).unwrap_or(texts.min(2));
        let mut blocks: Vec<Vec<usize>> = vec![(0..names).collect()];
        for i in names..self.left.len() {
            let block = blocks.last_mut().expect("there is one from the beginning");
            let taken = indent + block.iter().map(|i| least(*i) + 2).sum::<usize>();
            match taken + least(i) > width && block.len() > names {
                true => blocks.push((0..names).chain([i]).collect()),
                false => block.push(i),
            }
        }
        blocks.iter().flat_map(|block| self.lines_of(block, indent, width, mark)).collect()
    }

    /// The lines of the table. If `width` is too small, the widest text columns are wrapped at words instead of being
    /// cut.
    pub fn broken(&self, indent: usize, width: usize) -> Vec<String> {
        let columns: Vec<usize> = (0..self.left.len()).collect();
        let widths = self.widths(&columns, indent, width);
        let mut lines = Vec::new();
        for row in &self.rows {
            let cells: Vec<Vec<String>> = row.iter().zip(&widths).map(|(cell, width)| pieces(cell, *width)).collect();
            for at in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
                let piece = |i: usize| cells[i].get(at).map_or("", String::as_str);
                let side = |i: usize| match self.left[i] {
                    true => pad(piece(i), widths[i]),
                    false => right(piece(i), widths[i]),
                };
                let cells = columns.iter().map(|i| side(*i)).collect::<Vec<_>>().join("  ");
                lines.push(format!("{}{}", " ".repeat(indent), cells.trim_end()));
            }
        }
        lines
    }

    fn natural(&self, column: usize) -> usize {
        self.rows.iter().map(|row| row[column].width()).max().unwrap_or(0)
    }

    /// Widths of these columns in the available space.
    fn widths(&self, columns: &[usize], indent: usize, width: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = (0..self.left.len()).map(|i| self.natural(i)).collect();
        let all = |widths: &[usize]| columns.iter().map(|i| widths[*i] + 2).sum::<usize>();
        while indent + all(&widths) > width.saturating_add(2) {
            match columns.iter().copied().filter(|i| self.left[*i]).max_by_key(|i| widths[*i]) {
                Some(i) if widths[i] > MIN => widths[i] -= 1,
                _ => break,
            }
        }
        widths
    }

    fn lines_of(&self, columns: &[usize], indent: usize, width: usize, mark: char) -> Vec<String> {
        let widths = self.widths(columns, indent, width);
        let line = |row: &Vec<String>| {
            let cell = |i: &usize| {
                let text = cut(&row[*i], widths[*i], mark);
                if self.left[*i] {
                    pad(&text, widths[*i])
                } else {
                    right(&text, widths[*i])
                }
            };
            let cells = columns.iter().map(cell).collect::<Vec<_>>().join("  ");
            format!("{}{}", " ".repeat(indent), cells.trim_end())
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_of_a_folded_table_names_its_rows() {
        let mut table = Table::new(&["<direction", "<way", "<load", "mean", "max"]);
        for load in ["idle", "udp"] {
            table.row(["in", "bridge", load, "1 us", "2 us"].map(String::from).to_vec());
        }
        let lines = table.folded(0, 30, '…');
        let expected = [
            "direction  way     load  mean",
            "in         bridge  idle  1 us",
            "in         bridge  udp   1 us",
            "direction  way     load   max",
            "in         bridge  idle  2 us",
            "in         bridge  udp   2 us",
        ];
        assert_eq!(lines, expected);
        table.row(["in", "bridge", "udp", "3 us", "4 us"].map(String::from).to_vec());
        assert_eq!(table.folded(0, 30, '…').len(), 8, "rows of one name stay under two text columns");
    }

    #[test]
    fn wrapping_a_table_loses_no_letter() {
        let mut table = Table::new(&["<limit", "measured", "<source"]);
        let source = "a receiver drops a sample that another one has overtaken, as if it were lost";
        table.row(vec!["out_of_order<=0".into(), "12".into(), source.into()]);
        table.row(vec!["lost<=0".into(), "0".into(), "supercalifragilisticexpialidocious".into()]);
        let lines = table.broken(2, 50);
        assert!(lines.iter().all(|line| line.width() <= 50), "{lines:#?}");
        let source_column: String = lines[1..].iter().filter_map(|line| line.get(29..)).collect::<Vec<_>>().join(" ");
        assert!(source_column.starts_with("a receiver drops a"), "{lines:#?}");
        let letters = |text: &str| text.chars().filter(|c| c.is_alphabetic()).count();
        let all: usize = ["limit", "measured", "source", "out_of_order", "lost", source].map(letters).iter().sum();
        let long = letters("supercalifragilisticexpialidocious");
        assert_eq!(lines.iter().map(|line| letters(line)).sum::<usize>(), all + long, "{lines:#?}");
        assert_eq!(table.broken(0, 200), table.lines(0, 200, '…'), "where there is room nothing is broken");
    }
}
