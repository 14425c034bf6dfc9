//! A row as one plain sentence.

use crate::comparison::{Amount, Row, Unit, Verdict};
use latpath_stats::units::{count, duration, rate};

/// Figure name of the row for the share of lost packets.
const LOST_SHARE: &str = "lost_share";
/// Reason for a missing verdict on short recordings, and the remedy.
const TOO_SHORT: &str = "too short to say how much it varies (record 16 s or more, or several recordings a side)";

/// Formats a value with its unit.
pub fn amount(value: Amount, unit: Unit) -> String {
    match (value, unit) {
        (Amount::Whole(ns), Unit::Ns) => duration(ns),
        (Amount::Whole(n), _) => count(n.unsigned_abs()),
        (Amount::Rate(share), Unit::Percent) => match share.abs() {
            size if size > 0.0 && size < 0.1 => format!("{share:.4} %"),
            _ => format!("{share:.2} %"),
        },
        (Amount::Rate(hz), _) => format!("{}/h", rate(hz)),
    }
}

/// Formats a signed percentage, e.g. `+5.0 %`, with more digits if it is small.
pub fn percent(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => "over +1000 %".into(),
        size if size >= 99.95 => format!("{value:+.0} %"),
        size if !(0.000_5..0.095).contains(&size) => format!("{value:+.1} %"),
        _ => format!("{value:+.2} %"),
    }
}

/// Formats a signed difference with its unit.
pub fn signed(value: Amount, unit: Unit) -> String {
    let sign = if value.value() >= 0.0 { "+" } else { "-" };
    let size = match value {
        Amount::Whole(n) => Amount::Whole(n.saturating_abs()),
        Amount::Rate(hz) => Amount::Rate(hz.abs()),
    };
    format!("{sign}{}", amount(size, unit))
}

/// The difference and its interval, relative if possible: `+5.0 %`, `+3.1 % to +6.9 %`.
pub fn by(row: &Row) -> (Option<String>, Option<String>) {
    let absolute = |value: Option<Amount>| value.map(|v| signed(v, row.unit));
    let (by, low, high) = match row.difference_percent {
        Some(_) => (row.difference_percent.map(percent), row.low_percent.map(percent), row.high_percent.map(percent)),
        None => (absolute(row.difference), absolute(row.low), absolute(row.high)),
    };
    (by, low.zip(high).map(|(low, high)| format!("{low} to {high}")))
}

/// Subject of a row: `p99 of total`, `lost packets`, `losses`.
pub fn subject(segment: &str, figure: &str) -> String {
    match (figure, segment) {
        ("lost", "") => "losses".into(),
        ("lost", stream) => format!("losses of {stream}"),
        (LOST_SHARE, "") => "lost packets".into(),
        (LOST_SHARE, stream) => format!("lost packets of {stream}"),
        (figure, segment) => format!("{figure} of {segment}"),
    }
}

/// A row reduced to what the conclusion needs.
pub struct Judged {
    what: String,
    verdict: Verdict,
    /// The difference with its unit, formatted.
    by: Option<String>,
    /// Sort key, independent of the order of the groups: whether the difference is a ratio, and its size (for ratios
    /// the absolute logarithm).
    size: (bool, f64),
    /// Shares of lost packets in A and B; only for the row `lost_share`.
    lost: Option<(Amount, Amount)>,
}

impl Judged {
    /// Extracts what the conclusion needs from a row. `what` is its subject.
    pub fn of(what: String, row: &Row) -> Self {
        let size = match row.difference_percent {
            Some(percent) => (true, (percent / 100.0).ln_1p().abs()),
            None => (false, row.difference.map_or(0.0, |by| by.value().abs())),
        };
        let lost = row.a.zip(row.b).filter(|_| row.figure == LOST_SHARE);
        Self { what, verdict: row.verdict, by: by(row).0, size, lost }
    }

    /// The sentence on unequal losses, which matter more than any time.
    fn losses(&self, (a, b): (&str, &str)) -> Option<String> {
        let (in_a, in_b) = self.lost.filter(|(in_a, in_b)| in_a != in_b)?;
        let more = match self.verdict {
            Verdict::More => format!("{a} loses more"),
            Verdict::Fewer => format!("{a} loses fewer"),
            Verdict::Differ => format!("{a} lost {}", if in_a.value() > in_b.value() { "more" } else { "fewer" }),
            Verdict::TooShort => "too short to say whether losses differ".into(),
            _ => return None,
        };
        let share = |value| amount(value, Unit::Percent);
        let (in_a, in_b) = (share(in_a), share(in_b));
        Some(format!("{}: {more}: {a} {in_a} of its packets, {b} {in_b}", self.what))
    }
}

/// Summarises the rows of a page: unequal losses first, then the tested rows that differ, the number that do not, and
/// the rows that cannot be compared.
pub fn conclusion(rows: &[Judged], tested: usize, names: (&str, &str)) -> Vec<String> {
    let mut all: Vec<String> = rows.iter().filter_map(|row| row.losses(names)).collect();
    let of = |verdict| rows.iter().filter(move |row| row.verdict == verdict);
    let how_many = |verdict| of(verdict).count();
    let named = |verdict| of(verdict).map(|row| row.what.as_str()).collect::<Vec<_>>().join(", ");
    let verb = |n: usize, one: &'static str, several: &'static str| if n == 1 { one } else { several };
    for (verdict, one, several) in [
        (Verdict::Slower, "is slower", "are slower"),
        (Verdict::Faster, "is faster", "are faster"),
        (Verdict::More, "has more", "have more"),
        (Verdict::Fewer, "has fewer", "have fewer"),
    ] {
        match how_many(verdict) {
            0 => {}
            n => all.push(format!("of {tested} tested {n} {}: {}", verb(n, one, several), named(verdict))),
        }
    }
    let differ = how_many(Verdict::Differ);
    if differ > 0 {
        let with_size = |row: &Judged| match &row.by {
            Some(by) => format!("{} by {by}", row.what),
            None => row.what.clone(),
        };
        let mut rows: Vec<&Judged> = of(Verdict::Differ).collect();
        // Largest first, with ratios before other differences.
        rows.sort_by(|x, y| y.size.0.cmp(&x.size.0).then(y.size.1.total_cmp(&x.size.1)));
        let rows: Vec<String> = rows.into_iter().map(with_size).collect();
        all.push(format!("of {tested} tested {differ} {}: {}", verb(differ, "differs", "differ"), rows.join(", ")));
    }
    match how_many(Verdict::NoDifference) {
        0 => {}
        n if n == tested => all.push(match n {
            1 => "the only figure that is tested shows no difference".into(),
            n => format!("none of the {n} figures that are tested shows a difference"),
        }),
        n => all.push(format!("of {tested} tested {n} {} no difference", verb(n, "shows", "show"))),
    }
    let open = how_many(Verdict::NotComparable);
    if open > 0 {
        all.push(format!("{open} {} not comparable: {}", verb(open, "is", "are"), named(Verdict::NotComparable)));
    }
    let short = how_many(Verdict::TooShort);
    if short > 0 {
        let figures = verb(short, "figure", "figures");
        all.push(format!("{short} {figures} cannot be compared: {TOO_SHORT}: {}", named(Verdict::TooShort)));
    }
    all
}

/// Writes a row as a sentence: the figure of both groups, the difference and its interval.
pub fn sentence(segment: &str, row: &Row, (a, b): (&str, &str)) -> String {
    let what = subject(segment, &row.figure);
    let value = |side: Option<Amount>| side.map_or("-".into(), |v| amount(v, row.unit));
    let values = format!("{} against {}", value(row.a), value(row.b));
    let (by, interval) = by(row);
    let by = by.unwrap_or_default();
    let sure = interval.as_ref().map_or(String::new(), |interval| format!(" (95 %: {interval})"));
    match row.verdict {
        Verdict::Faster => format!("{what}: {a} is faster than {b}: {values}, {by}{sure}"),
        Verdict::Slower => format!("{what}: {a} is slower than {b}: {values}, {by}{sure}"),
        Verdict::Fewer => format!("{what}: {a} has fewer than {b}: {values}, {by}{sure}"),
        Verdict::More => format!("{what}: {a} has more than {b}: {values}, {by}{sure}"),
        Verdict::Differ => format!("{what}: these recordings differ: {values}, {by}{sure}"),
        Verdict::NoDifference => format!("{what}: no difference to be seen: {by}{sure}"),
        Verdict::TooShort => format!("{what}: cannot be compared: {TOO_SHORT}: {values}"),
        Verdict::NotComparable => format!("{what}: not comparable: {}", row.obstacle.as_deref().unwrap_or_default()),
        Verdict::TooFew => format!("{what}: too few: fewer than 10 packets lie beyond it"),
        Verdict::NotTested => String::new(),
    }
}
