//! Formats figures for people: durations, counts, rates and sizes, identically on the screen and in reports.
//!
//! Durations are rounded in integer arithmetic, half away from zero, so that a figure reads the same wherever it is
//! printed.

use latpath_model::Ns;

/// The character set that can be displayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CharacterSet {
    /// `µs`, and U+202F (narrow no-break space) between groups of digits.
    #[default]
    Unicode,
    /// `us`, and a comma between groups of digits.
    Ascii,
}

impl CharacterSet {
    /// The character set of the environment's locale: `LC_ALL`, else `LC_CTYPE`, else `LANG`; ASCII unless it is UTF-8.
    pub fn from_env() -> Self {
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self::of_locale(set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).as_deref())
    }

    /// The character set of a locale, e.g. `de_DE.UTF-8`; `None` if no locale is set.
    pub fn of_locale(locale: Option<&str>) -> Self {
        let name = locale.unwrap_or("").to_ascii_lowercase();
        if name.contains("utf-8") || name.contains("utf8") {
            Self::Unicode
        } else {
            Self::Ascii
        }
    }

    /// A duration with four significant digits: `830 ns`, `58.03 µs`, `14.61 ms`, `1.002 s`.
    ///
    /// Below 1 µs it is exact; from 10 000 s on, it is in whole seconds.
    pub fn duration(self, ns: Ns) -> String {
        let sign = if ns < 0 { "-" } else { "" };
        let ns = ns.unsigned_abs();
        let micro = if self == Self::Ascii { "us" } else { "µs" };
        if ns < 1000 {
            return format!("{sign}{ns} ns");
        }
        // A value that rounds up to 1000 of one unit is formatted as 1.000 of the next.
        for (unit, one) in [(micro, 1000), ("ms", 1_000_000)] {
            if let Some(digits) = four_digits(ns, one) {
                return format!("{sign}{digits} {unit}");
            }
        }
        let second = 1_000_000_000;
        match four_digits(ns, second) {
            Some(digits) => format!("{sign}{digits} s"),
            None => format!("{sign}{} s", ns / second + u64::from(ns % second >= second / 2)),
        }
    }

    /// A count in groups of three digits: `48 000 000`. Counts below 10 000 are not grouped: `4800`.
    pub fn count(self, n: u64) -> String {
        let digits = n.to_string();
        if digits.len() < 5 {
            return digits;
        }
        let mut groups: Vec<String> = digits.as_bytes().rchunks(3).map(|g| String::from_utf8_lossy(g).into()).collect();
        groups.reverse();
        groups.join(if self == Self::Ascii { "," } else { "\u{202f}" })
    }

    /// A number of things: `1 packet`, `12 packets`. The plural of the noun must end in s.
    pub fn number_of(self, n: u64, noun: &str) -> String {
        of_things(&self.count(n), n, noun)
    }

    /// A count in at most `width` columns (5 or more): grouped if that fits, else plain, else short (`48.0M`).
    pub fn count_within(self, n: u64, width: usize) -> String {
        let (grouped, plain) = (self.count(n), n.to_string());
        if grouped.chars().count() <= width {
            grouped
        } else if plain.len() <= width {
            plain
        } else {
            count_short(n)
        }
    }

    /// Events per second, without the unit: `4000`, `49.98`, `1 000 000`, `2.8e-4`; `-` for NaN, infinity and negative
    /// rates.
    pub fn rate(self, hz: f64) -> String {
        match hz {
            hz if !hz.is_finite() || hz < 0.0 => "-".into(),
            0.0 => "0".into(),
            hz if hz < 0.001 => format!("{hz:.1e}"),
            hz if hz < 9.9995 => format!("{hz:.3}"),
            hz if hz < 99.995 => format!("{hz:.2}"),
            hz if hz < 999.95 => format!("{hz:.1}"),
            hz => self.count(hz.round() as u64),
        }
    }
}

/// A part of a whole in percent, with this many `digits` after the point: `12.5 %`; `-` if the part is 0.
pub fn percent(part: Ns, whole: Ns, digits: usize) -> String {
    match part {
        0 => "-".into(),
        part => format!("{:.digits$} %", part as f64 * 100.0 / whole.max(1) as f64),
    }
}

/// `n` of `all` in percent: exactly `100 %` or `0 %` only for all or none.
pub fn share(n: u64, all: u64) -> String {
    if all == 0 {
        return "-".into();
    }
    // Truncated near 0 and 100 %, so that one missing packet in a million shows; rounded in between.
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

/// [`CharacterSet::duration`] in Unicode.
pub fn duration(ns: Ns) -> String {
    CharacterSet::Unicode.duration(ns)
}

/// [`CharacterSet::count`] in Unicode.
pub fn count(n: u64) -> String {
    CharacterSet::Unicode.count(n)
}

/// A number of things, given as a formatted number: `1 packet`, `12 packets`.
pub fn of_things(number: &str, n: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if n == 1 { "" } else { "s" })
}

/// [`CharacterSet::number_of`] in Unicode.
pub fn number_of(n: u64, noun: &str) -> String {
    CharacterSet::Unicode.number_of(n, noun)
}

/// [`CharacterSet::rate`] in Unicode.
pub fn rate(hz: f64) -> String {
    CharacterSet::Unicode.rate(hz)
}

/// A count in at most five columns: `9999`, `48.0M`, `353k`; truncated, so it never exceeds the count.
pub fn count_short(n: u64) -> String {
    if n < 10_000 {
        return n.to_string();
    }
    let (mut whole, mut tenths, mut unit) = (n, 0, "");
    for next in ["k", "M", "G", "T", "P", "E"] {
        if whole < 1000 {
            break;
        }
        (whole, tenths, unit) = (whole / 1000, whole % 1000 / 100, next);
    }
    if whole < 100 {
        format!("{whole}.{tenths}{unit}")
    } else {
        format!("{whole}{unit}")
    }
}

/// A size: `0 B`, `1023 B`, `61.2 MiB`; truncated to one decimal.
pub fn bytes(n: u64) -> String {
    if n < 1024 {
        return format!("{n} B");
    }
    let (mut one, mut unit) = (1_u64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        if n / one < 1024 {
            break;
        }
        (one, unit) = (one << 10, next);
    }
    format!("{}.{} {unit}", n / one, u128::from(n % one) * 10 / u128::from(one))
}

/// Elapsed time in whole seconds: `0:07`, `12:34`, `4:00:00`, `2d 04:00:00`.
pub fn elapsed(ns: Ns) -> String {
    let sign = if ns <= -1_000_000_000 { "-" } else { "" };
    let s = ns.unsigned_abs() / 1_000_000_000;
    let (days, hours, minutes, seconds) = (s / 86_400, s / 3600 % 24, s / 60 % 60, s % 60);
    match (days, hours) {
        (0, 0) => format!("{sign}{minutes}:{seconds:02}"),
        (0, _) => format!("{sign}{hours}:{minutes:02}:{seconds:02}"),
        _ => format!("{sign}{days}d {hours:02}:{minutes:02}:{seconds:02}"),
    }
}

/// `value / one` with four significant digits; `None` if it is 1000 or more after rounding (10 000 for seconds, the
/// largest unit).
fn four_digits(value: u64, one: u64) -> Option<String> {
    // Rounds to 3, 2, 1 and 0 decimals in turn, until four digits suffice.
    let limit = if one == 1_000_000_000 { 4 } else { 3 };
    for (decimals, scale) in [1000, 100, 10, 1].into_iter().enumerate().take(limit) {
        let step = one / scale;
        let rounded = value / step + u64::from(value % step >= step.div_ceil(2));
        if rounded < 10_000 {
            let decimals = 3 - decimals;
            return Some(match decimals {
                0 => rounded.to_string(),
                _ => format!("{}.{:0decimals$}", rounded / scale, rounded % scale),
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_duration_has_four_digits_in_the_unit_that_suits_it() {
        for (ns, text) in [
            (0, "0 ns"),
            (1, "1 ns"),
            (999, "999 ns"),
            (1000, "1.000 µs"),
            (1234, "1.234 µs"),
            (58_034, "58.03 µs"),
            (58_035, "58.04 µs"),
            (352_533, "352.5 µs"),
            (999_949, "999.9 µs"),
            (999_950, "1.000 ms"),
            (14_612_000, "14.61 ms"),
            (1_002_000_000, "1.002 s"),
            (9_999_499_999_999, "9999 s"),
            (9_999_500_000_000, "10000 s"),
            (i64::MAX, "9223372037 s"),
        ] {
            assert_eq!(duration(ns), text);
        }
    }

    #[test]
    fn a_negative_duration_is_shown_not_clamped() {
        assert_eq!(duration(-5), "-5 ns");
        assert_eq!(duration(-1_500), "-1.500 µs");
        assert_eq!(duration(i64::MIN), "-9223372037 s");
    }

    #[test]
    fn ascii_letters_make_ascii_text() {
        assert_eq!(CharacterSet::Ascii.duration(1500), "1.500 us");
        assert_eq!(CharacterSet::Ascii.count(1_234_567), "1,234,567");
    }

    #[test]
    fn counts_from_five_digits_on_are_grouped() {
        assert_eq!(count(0), "0");
        assert_eq!(count(4800), "4800");
        assert_eq!(count(48_000), "48\u{202f}000");
        assert_eq!(count(48_000_000), "48\u{202f}000\u{202f}000");
        assert_eq!(count(u64::MAX), "18\u{202f}446\u{202f}744\u{202f}073\u{202f}709\u{202f}551\u{202f}615");
    }

    #[test]
    fn a_count_shrinks_to_the_available_width() {
        assert_eq!(CharacterSet::Ascii.count_within(1_234_567, 9), "1,234,567");
        assert_eq!(CharacterSet::Ascii.count_within(1_234_567, 8), "1234567");
        assert_eq!(CharacterSet::Ascii.count_within(1_234_567, 6), "1.2M");
        assert_eq!(count_short(9_999), "9999");
        assert_eq!(count_short(352_533), "352k");
        assert_eq!(count_short(48_000_000), "48.0M");
        assert_eq!(count_short(u64::MAX), "18.4E");
    }

    #[test]
    fn rates_keep_about_four_digits() {
        assert_eq!(rate(0.0), "0");
        assert_eq!(rate(0.25), "0.250");
        assert_eq!(rate(1.0 / 3600.0), "2.8e-4");
        assert_eq!(rate(49.978), "49.98");
        assert_eq!(rate(3999.7), "4000");
        assert_eq!(CharacterSet::Ascii.rate(1e6), "1,000,000");
        assert_eq!(rate(f64::NAN), "-");
        assert_eq!(rate(-1.0), "-");
    }

    #[test]
    fn sizes_and_elapsed_times_read_as_people_write_them() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(64 << 20), "64.0 MiB");
        assert_eq!(bytes(u64::MAX), "15.9 EiB");
        assert_eq!(elapsed(7_900_000_000), "0:07");
        assert_eq!(elapsed(754_000_000_000), "12:34");
        assert_eq!(elapsed(14_400_000_000_000), "4:00:00");
        assert_eq!(elapsed(187_200_000_000_000), "2d 04:00:00");
        assert_eq!(elapsed(-61_000_000_000), "-1:01");
    }

    #[test]
    fn only_a_utf8_locale_gets_unicode() {
        for utf8 in ["C.UTF-8", "de_DE.utf8", "en_US.UTF-8@x"] {
            assert_eq!(CharacterSet::of_locale(Some(utf8)), CharacterSet::Unicode);
        }
        for other in [None, Some(""), Some("C"), Some("POSIX"), Some("de_DE.ISO-8859-1")] {
            assert_eq!(CharacterSet::of_locale(other), CharacterSet::Ascii);
        }
    }

    proptest! {
        #[test]
        fn a_duration_reads_back_to_within_half_its_last_digit(ns in any::<i64>(), cut in 0_u32..63) {
            let ns = ns >> cut;
            let text = duration(ns);
            let (value, unit) = text.split_once(' ').unwrap();
            let one = match unit { "ns" => 1.0, "µs" => 1e3, "ms" => 1e6, _ => 1e9 };
            let back = value.parse::<f64>().unwrap() * one;
            prop_assert!((back - ns as f64).abs() <= ns.unsigned_abs() as f64 * 0.000_501, "{ns} as {text}");
            prop_assert!(ns.unsigned_abs() > 9_999_499_999_999 || text.trim_start_matches('-').chars().count() <= 8);
        }

        #[test]
        fn counts_fit_the_width_asked_for(n in any::<u64>(), cut in 0_u32..64, width in 5_usize..30) {
            prop_assert!(CharacterSet::Unicode.count_within(n >> cut, width).chars().count() <= width);
        }

        #[test]
        fn any_number_can_be_written(n in any::<u64>(), ns in any::<i64>(), hz in any::<f64>()) {
            let _ = (bytes(n), elapsed(ns), rate(hz));
        }
    }
}
