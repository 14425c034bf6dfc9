//! What this terminal can show: letters, block characters, colours. Colours only where they carry meaning.

use latpath_model::Ns;
use latpath_stats::units::{self, Letters};
use ratatui::style::{Color, Modifier, Style};
use unicode_width::UnicodeWidthChar;

/// Which characters a bar can be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// `#`, and `.` for less than half a line.
    Ascii,
    /// Half blocks: all that the fonts of the Linux console have.
    Halves,
    /// Eighths of a block.
    Eighths,
}

/// What the screen is drawn with.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    /// Letters of units and names.
    pub letters: Letters,
    /// Characters of bars.
    pub blocks: Blocks,
    /// Whether colours are shown.
    pub colour: bool,
}

impl Theme {
    /// What the environment says: `LC_ALL`, `LC_CTYPE`, `LANG`, `TERM`, `NO_COLOR`.
    pub fn from_env() -> Self {
        let var = |name| std::env::var(name).unwrap_or_default();
        Self::of(Letters::from_env(), &var("TERM"), &var("NO_COLOR"))
    }

    /// What these letters, this `TERM` and this `NO_COLOR` mean (see no-color.org: any text but none counts).
    pub fn of(letters: Letters, term: &str, no_color: &str) -> Self {
        let mono = term.is_empty() || term.starts_with("vt") || term.ends_with("-mono") || term.ends_with("-m");
        let blocks = match letters {
            Letters::Ascii => Blocks::Ascii,
            Letters::Unicode if term == "linux" => Blocks::Halves,
            Letters::Unicode => Blocks::Eighths,
        };
        Self { letters, blocks, colour: no_color.is_empty() && !mono }
    }

    fn ascii(&self) -> bool {
        self.letters == Letters::Ascii
    }

    /// Between two points.
    pub fn arrow(&self) -> &'static str {
        if self.ascii() {
            "->"
        } else {
            "→"
        }
    }

    /// Between two parts of a line.
    pub fn dot(&self) -> &'static str {
        if self.ascii() {
            " | "
        } else {
            " · "
        }
    }

    /// Before the selected row.
    pub fn mark(&self) -> &'static str {
        match self.blocks {
            Blocks::Ascii => ">",
            Blocks::Halves => "»",
            Blocks::Eighths => "▸",
        }
    }

    /// In the place of what was cut off.
    pub fn ellipsis(&self) -> char {
        match self.blocks {
            Blocks::Eighths => '…',
            _ => '~',
        }
    }

    /// Before an error bound.
    pub fn plus_minus(&self) -> &'static str {
        if self.ascii() {
            "+-"
        } else {
            "±"
        }
    }

    /// A count in groups. The Linux console's fonts have no narrow space.
    pub fn count(&self, n: u64) -> String {
        self.digits().count(n)
    }

    /// A count in at most `width` columns.
    pub fn count_within(&self, n: u64, width: usize) -> String {
        self.digits().count_within(n, width)
    }

    /// Events a second.
    pub fn rate(&self, hz: f64) -> String {
        self.digits().rate(hz)
    }

    fn digits(&self) -> Letters {
        if self.blocks == Blocks::Halves {
            Letters::Ascii
        } else {
            self.letters
        }
    }

    /// A duration with a space before its unit: for sentences.
    pub fn duration(&self, ns: Ns) -> String {
        self.letters.duration(ns)
    }

    /// A duration for a table: no space, at most 8 columns, also for times that no packet has.
    pub fn cell(&self, ns: Ns) -> String {
        let text: String = self.duration(ns).chars().filter(|c| *c != ' ').collect();
        if text.chars().count() <= 8 {
            return text;
        }
        let sign = if ns < 0 { "-" } else { "" };
        format!("{sign}{}s", units::count_short(ns.unsigned_abs() / 1_000_000_000))
    }

    /// A round duration, as an axis shows it: `200µs`.
    pub fn tick(&self, ns: Ns) -> String {
        let micro = if self.ascii() { "us" } else { "µs" };
        match ns {
            ..1000 => format!("{ns}ns"),
            1000..1_000_000 => format!("{}{micro}", ns / 1000),
            1_000_000..1_000_000_000 => format!("{}ms", ns / 1_000_000),
            _ => format!("{}s", units::count_short(ns.unsigned_abs() / 1_000_000_000)),
        }
    }

    /// A limit that the user set: `200 µs` where it is whole, else as any duration.
    pub fn limit(&self, ns: Ns) -> String {
        let text = self.duration(ns);
        match text.split_once(' ') {
            Some((number, unit)) if number.contains('.') => {
                format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
            }
            _ => text,
        }
    }

    /// A text from outside (an svID, a device, a thread's name) made fit to show: no control characters, nothing that
    /// turns the direction of writing, only ASCII where nothing else can be shown, and no more than 300 characters.
    pub fn clean(&self, text: &str) -> String {
        let fit = |c: char| match c {
            '→' if self.ascii() => "->".to_string(),
            '±' if self.ascii() => "+-".to_string(),
            'µ' | 'μ' if self.ascii() => "u".to_string(),
            c if c.is_control() || c.width().unwrap_or(0) == 0 || matches!(c, '\u{2028}'..='\u{202e}') => "?".into(),
            c if self.ascii() && !c.is_ascii() => "?".to_string(),
            c => c.to_string(),
        };
        text.chars().take(300).map(fit).collect()
    }

    /// A text cut to `width` columns, with an ellipsis where something is missing.
    pub fn cut(&self, text: &str, width: usize) -> String {
        if columns(text) <= width {
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
        if width > 0 {
            out.push(self.ellipsis());
        }
        out
    }

    /// Act now: something is wrong at this moment.
    pub fn alarm(&self) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        if self.colour {
            style.fg(Color::White).bg(Color::Red)
        } else {
            style.add_modifier(Modifier::REVERSED)
        }
    }

    /// Something was wrong, or is about to be.
    pub fn warn(&self) -> Style {
        if self.colour {
            Style::new().fg(Color::Black).bg(Color::Yellow)
        } else {
            Style::new().add_modifier(Modifier::REVERSED)
        }
    }

    /// A bad figure among good ones.
    pub fn bad(&self) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        if self.colour {
            style.fg(Color::Red)
        } else {
            style
        }
    }

    /// All is well.
    pub fn good(&self) -> Style {
        if self.colour {
            Style::new().fg(Color::Green)
        } else {
            Style::new()
        }
    }

    /// What need not be read.
    pub fn faint(&self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// What is selected, and titles.
    pub fn strong(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }
}

/// Columns that a text takes.
pub fn columns(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_decides_what_is_drawn_with() {
        let of = |letters, term, no_color| {
            let t = Theme::of(letters, term, no_color);
            (t.blocks, t.colour)
        };
        assert_eq!(of(Letters::Unicode, "xterm", ""), (Blocks::Eighths, true));
        assert_eq!(of(Letters::Unicode, "screen", "1"), (Blocks::Eighths, false));
        assert_eq!(of(Letters::Unicode, "linux", ""), (Blocks::Halves, true));
        assert_eq!(of(Letters::Ascii, "xterm", ""), (Blocks::Ascii, true));
        assert_eq!(of(Letters::Ascii, "vt100", ""), (Blocks::Ascii, false));
    }

    #[test]
    fn a_name_from_the_wire_cannot_steer_the_terminal() {
        let unicode = Theme::of(Letters::Unicode, "xterm", "");
        assert_eq!(unicode.clean("MU\x1b[31m\n\u{202e}01\u{200b}µ"), "MU?[31m??01?µ");
        let ascii = Theme::of(Letters::Ascii, "xterm", "");
        assert_eq!(ascii.clean("tx→rx ±5 µs ☃"), "tx->rx +-5 us ?");
    }

    #[test]
    fn a_limit_has_no_digits_that_say_nothing() {
        let theme = Theme::of(Letters::Unicode, "xterm", "");
        for (ns, text) in [(200_000, "200 µs"), (1_500_000, "1.5 ms"), (0, "0 ns"), (10_000_000_000, "10 s")] {
            assert_eq!(theme.limit(ns), text);
        }
    }

    #[test]
    fn texts_are_cut_by_columns_not_by_bytes() {
        let theme = Theme::of(Letters::Unicode, "xterm", "");
        assert_eq!(theme.cut("abcdef", 6), "abcdef");
        assert_eq!(theme.cut("abcdef", 4), "abc…");
        assert_eq!(theme.cut("東京都", 4), "東…");
        assert_eq!(theme.cut("abc", 0), "");
    }

    #[test]
    fn a_cell_is_never_wider_than_eight_columns() {
        let theme = Theme::of(Letters::Unicode, "xterm", "");
        for (ns, text) in [(352_533, "352.5µs"), (-1, "-1ns"), (i64::MAX, "9.2Gs"), (i64::MIN, "-9.2Gs")] {
            assert_eq!(theme.cell(ns), text);
        }
    }
}
