//! Limits on a difference: `total:p99<=+5%`, `total:mean<=+20us`.

use crate::parse_duration;
use crate::LimitVerdict;
use latpath_compare::comparison::Row;
use latpath_compare::sentence::by;
use latpath_compare::{Comparison, Figure, Verdict};
use std::str::FromStr;

/// Maximum increase of a figure from B to A.
#[derive(Clone, Debug)]
pub struct DifferenceLimit {
    text: String,
    segment: String,
    figure: &'static str,
    most: Most,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Most {
    Percent(f64),
    Ns(f64),
}

/// Why a string is not a limit on a difference, or why the limit cannot be checked.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadDifference {
    /// The string does not have the form of a limit.
    #[error("{0:?}: not a limit; write SEGMENT:FIGURE<=+N% or SEGMENT:FIGURE<=+TIME, e.g. total:p99<=+5% or total:mean<=+20us")]
    Form(String),
    /// The figure is unknown, or differences of it are not tested.
    #[error("{0:?}: no figure that is tested (there are: mean, p50, p99, p99.9, and spikes in percent)")]
    Figure(String),
    /// The comparison has no such segment.
    #[error("{segment:?}: no such segment (there are: {known})")]
    Segment {
        /// Name of the segment.
        segment: String,
        /// Names of the compared segments.
        known: String,
    },
}

impl FromStr for DifferenceLimit {
    type Err = BadDifference;

    fn from_str(text: &str) -> Result<Self, BadDifference> {
        let form = || BadDifference::Form(text.into());
        let (left, most) = text.rsplit_once("<=").ok_or_else(form)?;
        let (segment, name) =
            left.trim().rsplit_once(':').filter(|(segment, _)| !segment.is_empty()).ok_or_else(form)?;
        let most = most.trim().strip_prefix('+').ok_or_else(form)?;
        let tested = Figure::ALL.into_iter().filter(|figure| figure.is_tested());
        let figure =
            tested.map(Figure::name).find(|figure| *figure == name).ok_or(BadDifference::Figure(name.into()))?;
        let most = match most.strip_suffix('%') {
            Some(percent) => {
                let percent = percent.trim().parse().ok().filter(|p: &f64| p.is_finite() && *p >= 0.0);
                Most::Percent(percent.ok_or_else(form)?)
            }
            None if figure == "spikes" => return Err(form()),
            None => Most::Ns(parse_duration(most).ok_or_else(form)? as f64),
        };
        Ok(Self { text: text.into(), segment: segment.into(), figure, most })
    }
}

impl DifferenceLimit {
    /// Whether a string is meant as a limit on a difference: its value begins with `+`.
    pub fn is_meant(text: &str) -> bool {
        text.rsplit_once("<=").is_some_and(|(_, most)| most.trim_start().starts_with('+'))
    }

    /// Checks the limit. An insignificant difference never breaks it. Without comparable data, or if a recording has a
    /// deficiency that could have changed the times, the limit cannot be judged.
    ///
    /// # Errors
    /// If the comparison has no such segment.
    pub fn check(&self, comparison: &Comparison) -> Result<LimitVerdict, BadDifference> {
        let segments: Vec<_> = comparison.segments.iter().filter(|s| s.name == self.segment).collect();
        if segments.is_empty() {
            let known: Vec<_> = comparison.segments.iter().map(|s| s.name.as_str()).collect();
            return Err(BadDifference::Segment { segment: self.segment.clone(), known: known.join(", ") });
        }
        let rows: Vec<&Row> = segments.iter().flat_map(|s| &s.rows).filter(|row| row.figure == self.figure).collect();
        let broken = rows.iter().find(|row| row.verdict.is_difference() && self.is_over(row));
        let is_open = |row: &&&Row| matches!(row.verdict, Verdict::NotComparable | Verdict::TooFew | Verdict::TooShort);
        let open = rows.iter().find(is_open).filter(|_| broken.is_none());
        let lacks = segments.iter().find_map(|segment| segment.lacks.first()).filter(|_| broken.is_none());
        Ok(LimitVerdict {
            limit: self.text.clone(),
            measured: broken.or(open).or(rows.first()).and_then(|row| by(row).0),
            broken: broken.map(|row| row.sentence.clone()),
            cannot_be_judged: lacks.cloned().or(open.map(|row| row.sentence.clone())),
            ..LimitVerdict::default()
        })
    }

    fn is_over(&self, row: &Row) -> bool {
        let Some(difference) = row.difference.map(|d| d.value()) else { return true };
        match self.most {
            Most::Ns(most) => difference > most,
            Most::Percent(most) => {
                let of_b = || 100.0 * difference / row.b.map_or(0.0, |b| b.value().abs()).max(f64::MIN_POSITIVE);
                row.difference_percent.unwrap_or_else(of_b) > most
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_limit_is_refused() {
        let parse = |text: &str| text.parse::<DifferenceLimit>().map(|limit| (limit.figure, limit.most));
        assert_eq!(parse("total:p99<=+5%"), Ok(("p99", Most::Percent(5.0))));
        assert_eq!(parse("a:b:mean <= +1.5ms"), Ok(("mean", Most::Ns(1_500_000.0))));
        for form in [
            "total",
            "total:p99<=5%",
            ":p99<=+5%",
            "total:p99<=+x%",
            "total:p99<=+5",
            "total:p99<=+NaN%",
            "total:spikes<=+5us",
        ] {
            assert_eq!(parse(form), Err(BadDifference::Form(form.into())));
        }
        assert_eq!(parse("total:max<=+5%"), Err(BadDifference::Figure("max".into())));
    }
}
