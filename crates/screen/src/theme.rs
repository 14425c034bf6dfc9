//! Terminal capabilities: character set, block characters, colours. Colours are used only to convey meaning.

use latpath_model::Ns;
use latpath_stats::text;
use latpath_stats::units::{self, CharacterSet};
use ratatui::style::{Color, Modifier, Style};

/// Characters available for bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// `#`, and `.` for less than half a line.
    Ascii,
    /// Half blocks, the only ones in the fonts of the Linux console.
    Halves,
    Eighths,
}

#[derive(Clone, Copy, Debug)]
pub struct Theme {
    pub letters: CharacterSet,
    pub blocks: Blocks,
    pub colour: bool,
}

/// Whether the terminal supports colours (`TERM`), and the user has not disabled them (`NO_COLOR`).
pub fn has_colours() -> bool {
    Theme::from_env().colour
}

impl Theme {
    /// The theme for the environment: `LC_ALL`, `LC_CTYPE`, `LANG`, `TERM`, `NO_COLOR`.
    pub fn from_env() -> Self {
        let var = |name| std::env::var(name).unwrap_or_default();
        Self::of(CharacterSet::from_env(), &var("TERM"), &var("NO_COLOR"))
    }

    /// The theme for this character set and these values of `TERM` and `NO_COLOR` (any non-empty value of the latter
    /// disables colours, see no-color.org).
    pub fn of(letters: CharacterSet, term: &str, no_color: &str) -> Self {
        let mono = term.is_empty() || term.starts_with("vt") || term.ends_with("-mono") || term.ends_with("-m");
        let blocks = match letters {
            CharacterSet::Ascii => Blocks::Ascii,
            CharacterSet::Unicode if term == "linux" => Blocks::Halves,
            CharacterSet::Unicode => Blocks::Eighths,
        };
        Self { letters, blocks, colour: no_color.is_empty() && !mono }
    }

    /// Separator between two parts of a line.
    pub fn dot(&self) -> &'static str {
        if self.letters.is_ascii() {
            " | "
        } else {
            " · "
        }
    }

    /// Mark of the selected row.
    pub fn mark(&self) -> &'static str {
        match self.blocks {
            Blocks::Ascii => ">",
            Blocks::Halves => "»",
            Blocks::Eighths => "▸",
        }
    }

    /// Character that marks a cut. The Linux console's fonts have no `…`.
    pub fn ellipsis(&self) -> char {
        match self.blocks {
            Blocks::Eighths => '…',
            _ => '~',
        }
    }

    /// A count with grouped digits. The Linux console's fonts have no narrow space.
    pub fn count(&self, n: u64) -> String {
        self.digits().count(n)
    }

    pub fn number_of(&self, n: u64, noun: &str) -> String {
        self.digits().number_of(n, noun)
    }

    pub fn count_within(&self, n: u64, width: usize) -> String {
        self.digits().count_within(n, width)
    }

    pub fn rate(&self, hz: f64) -> String {
        self.digits().rate(hz)
    }

    fn digits(&self) -> CharacterSet {
        if self.blocks == Blocks::Halves {
            CharacterSet::Ascii
        } else {
            self.letters
        }
    }

    /// A duration with a space before its unit: for sentences.
    pub fn duration(&self, ns: Ns) -> String {
        self.letters.duration(ns)
    }

    /// A duration for a table: without a space, at most 8 columns for any value.
    pub fn cell(&self, ns: Ns) -> String {
        let text: String = self.duration(ns).chars().filter(|c| *c != ' ').collect();
        if text.chars().count() <= 8 {
            return text;
        }
        let sign = if ns < 0 { "-" } else { "" };
        format!("{sign}{}s", units::count_short(ns.unsigned_abs() / 1_000_000_000))
    }

    /// A round duration, for an axis: `200µs`.
    pub fn tick(&self, ns: Ns) -> String {
        let micro = if self.letters.is_ascii() { "us" } else { "µs" };
        match ns {
            ..1000 => format!("{ns}ns"),
            1000..1_000_000 => format!("{}{micro}", ns / 1000),
            1_000_000..1_000_000_000 => format!("{}ms", ns / 1_000_000),
            _ => format!("{}s", units::count_short(ns.unsigned_abs() / 1_000_000_000)),
        }
    }

    /// A limit set by the user: `200 µs` if it is a whole number, else like any duration.
    pub fn limit(&self, ns: Ns) -> String {
        let text = self.duration(ns);
        match text.split_once(' ') {
            Some((number, unit)) if number.contains('.') => {
                format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
            }
            _ => text,
        }
    }

    pub fn clean(&self, text: &str) -> String {
        self.letters.clean(text)
    }

    /// A string cut to `width` columns, with an ellipsis if it was longer.
    pub fn cut(&self, text: &str, width: usize) -> String {
        text::cut(text, width, self.ellipsis())
    }

    /// Style of a current problem.
    pub fn alarm(&self) -> Style {
        match self.colour {
            true => self.strong().fg(Color::White).bg(Color::Red),
            false => self.strong().add_modifier(Modifier::REVERSED),
        }
    }

    /// Style of a past or imminent problem.
    pub fn warn(&self) -> Style {
        match self.colour {
            true => Style::new().fg(Color::Black).bg(Color::Yellow),
            false => Style::new().add_modifier(Modifier::REVERSED),
        }
    }

    /// Style of a bad figure among good ones.
    pub fn bad(&self) -> Style {
        self.coloured(self.strong(), Color::Red)
    }

    pub fn good(&self) -> Style {
        self.coloured(Style::new(), Color::Green)
    }

    fn coloured(&self, style: Style, colour: Color) -> Style {
        if self.colour {
            style.fg(colour)
        } else {
            style
        }
    }

    /// Style of secondary text.
    pub fn faint(&self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// Style of the selection, and of titles.
    pub fn strong(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }
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
        assert_eq!(of(CharacterSet::Unicode, "xterm", ""), (Blocks::Eighths, true));
        assert_eq!(of(CharacterSet::Unicode, "screen", "1"), (Blocks::Eighths, false));
        assert_eq!(of(CharacterSet::Unicode, "linux", ""), (Blocks::Halves, true));
        assert_eq!(of(CharacterSet::Ascii, "xterm", ""), (Blocks::Ascii, true));
        assert_eq!(of(CharacterSet::Ascii, "vt100", ""), (Blocks::Ascii, false));
    }

    #[test]
    fn a_name_from_the_wire_cannot_steer_the_terminal() {
        let unicode = Theme::of(CharacterSet::Unicode, "xterm", "");
        assert_eq!(unicode.clean("MU\x1b[31m\n\u{202e}01\u{200b}µ"), "MU?[31m??01?µ");
        let ascii = Theme::of(CharacterSet::Ascii, "xterm", "");
        assert_eq!(ascii.clean("tx→rx ±5 µs ☃"), "tx->rx +-5 us ?");
    }

    #[test]
    fn a_limit_has_no_digits_that_say_nothing() {
        let theme = Theme::of(CharacterSet::Unicode, "xterm", "");
        for (ns, text) in [(200_000, "200 µs"), (1_500_000, "1.5 ms"), (0, "0 ns"), (10_000_000_000, "10 s")] {
            assert_eq!(theme.limit(ns), text);
        }
    }

    #[test]
    fn texts_are_cut_by_columns_not_by_bytes() {
        let theme = Theme::of(CharacterSet::Unicode, "xterm", "");
        assert_eq!(theme.cut("abcdef", 6), "abcdef");
        assert_eq!(theme.cut("abcdef", 4), "abc…");
        assert_eq!(theme.cut("東京都", 4), "東…");
        assert_eq!(theme.cut("abc", 0), "");
    }

    #[test]
    fn a_cell_is_never_wider_than_eight_columns() {
        let theme = Theme::of(CharacterSet::Unicode, "xterm", "");
        for (ns, text) in [(352_533, "352.5µs"), (-1, "-1ns"), (i64::MAX, "9.2Gs"), (i64::MIN, "-9.2Gs")] {
            assert_eq!(theme.cell(ns), text);
        }
    }
}
