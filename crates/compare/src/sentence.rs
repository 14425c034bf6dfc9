//! What a row says, in one plain sentence.

use crate::comparison::{Amount, Row, Unit, Verdict};
use latpath_stats::units::{count, duration, rate};

/// A figure as people read it.
pub fn amount(value: Amount, unit: Unit) -> String {
    match (value, unit) {
        (Amount::Whole(ns), Unit::Ns) => duration(ns),
        (Amount::Whole(n), _) => count(n.unsigned_abs()),
        (Amount::Rate(share), Unit::Percent) => format!("{share:.2} %"),
        (Amount::Rate(hz), _) => format!("{}/h", rate(hz)),
    }
}

/// `+5.0 %`; more digits where it is small.
pub fn percent(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => "over +1000 %".into(),
        size if size >= 99.95 => format!("{value:+.0} %"),
        size if !(0.000_5..0.095).contains(&size) => format!("{value:+.1} %"),
        _ => format!("{value:+.2} %"),
    }
}

/// A difference, signed.
pub fn signed(value: Amount, unit: Unit) -> String {
    let sign = if value.value() >= 0.0 { "+" } else { "-" };
    let size = match value {
        Amount::Whole(n) => Amount::Whole(n.saturating_abs()),
        Amount::Rate(hz) => Amount::Rate(hz.abs()),
    };
    format!("{sign}{}", amount(size, unit))
}

/// The difference in the unit that suits it, and its interval: `+5.0 %`, `+3.1 % to +6.9 %`.
pub fn by(row: &Row) -> (Option<String>, Option<String>) {
    let absolute = |value: Option<Amount>| value.map(|v| signed(v, row.unit));
    let (by, low, high) = match row.difference_percent {
        Some(_) => (row.difference_percent.map(percent), row.low_percent.map(percent), row.high_percent.map(percent)),
        None => (absolute(row.difference), absolute(row.low), absolute(row.high)),
    };
    (by, low.zip(high).map(|(low, high)| format!("{low} to {high}")))
}

/// What a row is about: `p99 of total`, `losses`.
pub fn subject(segment: &str, figure: &str) -> String {
    match (figure, segment) {
        ("lost", "") => "losses".into(),
        ("lost", stream) => format!("losses of {stream}"),
        (figure, segment) => format!("{figure} of {segment}"),
    }
}

/// What the rows of a page say together: of those that are `tested`, which differ and how many do not; and what cannot be compared.
pub fn conclusion(rows: &[(String, Verdict)], tested: usize) -> Vec<String> {
    let of = |verdict| rows.iter().filter(move |(_, v)| *v == verdict).map(|(what, _)| what.as_str());
    let so_many = |verdict| of(verdict).count();
    let named = |verdict| of(verdict).collect::<Vec<_>>().join(", ");
    let verb = |n: usize, one: &'static str, several: &'static str| if n == 1 { one } else { several };
    let mut all = Vec::new();
    for (verdict, one, several) in [
        (Verdict::Slower, "is slower", "are slower"),
        (Verdict::Faster, "is faster", "are faster"),
        (Verdict::More, "has more", "have more"),
        (Verdict::Fewer, "has fewer", "have fewer"),
        (Verdict::Differ, "differs", "differ"),
    ] {
        match so_many(verdict) {
            0 => {}
            n => all.push(format!("of {tested} tested {n} {}: {}", verb(n, one, several), named(verdict))),
        }
    }
    match so_many(Verdict::NoDifference) {
        0 => {}
        n if n == tested => all.push(format!("of {tested} tested none differs")),
        n => all.push(format!("of {tested} tested {n} {} no difference", verb(n, "shows", "show"))),
    }
    let open = so_many(Verdict::NotComparable);
    if open > 0 {
        all.push(format!("{open} {} not comparable: {}", verb(open, "is", "are"), named(Verdict::NotComparable)));
    }
    all
}

pub fn sentence(segment: &str, row: &Row, (a, b): (&str, &str)) -> String {
    let what = subject(segment, row.figure);
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
        Verdict::NoDifference if interval.is_some() => format!("{what}: no difference to be seen: {by}{sure}"),
        Verdict::NoDifference => {
            format!("{what}: no difference to be seen: too short to say how much it varies (16 s at least)")
        }
        Verdict::NotComparable => format!("{what}: not comparable: {}", row.obstacle.as_deref().unwrap_or_default()),
        Verdict::TooFew => format!("{what}: too few: fewer than 10 packets lie beyond it"),
        Verdict::NotTested => String::new(),
    }
}
