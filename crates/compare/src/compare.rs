//! Compares two groups of recordings.

use crate::comparable::{other_place, pages_reasons, row_reason};
use crate::comparison::{Amount, ComparedSettings, Comparison, Group, LossRow, Recorded, Row, Segment, Unit, Verdict};
use crate::difference::{difference, holm, Difference, Scale};
use crate::estimate::Estimate;
use crate::pairs::{pairs, Pair};
use crate::recording::{Figure, Losses, Measured, Recording};
use crate::sentence::{conclusion, sentence, subject, Judged};
use latpath_histogram::Histogram;
use latpath_settings::{differences, Side};

/// Significance level: a row differs if its p-value, corrected for all tested rows, is below this.
pub const SIGNIFICANCE: f64 = 0.05;

/// One side of a row: an estimate per recording.
type Estimates = Vec<Option<Estimate>>;

/// A group of recordings with its name.
pub type NamedGroup<'a> = (&'a str, &'a [Recording]);

/// Compares A against B. Each group has at least one recording.
pub fn compare(a: NamedGroup, b: NamedGroup) -> Comparison {
    let mut page = [compared(a, b)];
    judge(&mut page);
    let [page] = page;
    page
}

/// Compares A against B of each pair. All p-values are corrected together, for the rows of all pairs.
pub fn compare_all(pairs: &[(NamedGroup, NamedGroup)]) -> Vec<Comparison> {
    let mut pages: Vec<Comparison> = pairs.iter().map(|(a, b)| compared(*a, *b)).collect();
    judge(&mut pages);
    pages
}

/// Computes a comparison whose testable rows have no verdict yet.
fn compared((a_name, a): NamedGroup, (b_name, b): NamedGroup) -> Comparison {
    let not_comparable = pages_reasons((a_name, a), (b_name, b));
    let (pairs, mut notes) = pairs((a_name, a), (b_name, b));
    let mut segments: Vec<_> = pairs.iter().map(segment).collect();
    let mut losses = losses(a, b);
    let page = not_comparable.first();
    for (pair, segment) in pairs.iter().zip(&mut segments) {
        let other_place = other_place(pair, (a_name, a), (b_name, b));
        for (row, figure) in segment.rows.iter_mut().zip(Figure::ALL) {
            let why = page
                .cloned()
                .or_else(|| other_place.clone())
                .or_else(|| row_reason(pair, figure, row, (a_name, b_name), &losses));
            if let Some(why) = why.filter(|_| figure.is_tested() && row.verdict != Verdict::TooFew) {
                row.verdict = Verdict::NotComparable;
                row.obstacle = Some(why);
            }
        }
    }
    if let Some(why) = page {
        for row in losses.iter_mut().flat_map(|loss| [&mut loss.row, &mut loss.share]) {
            (row.verdict, row.obstacle) = (Verdict::NotComparable, Some(why.clone()));
        }
    }
    notes.splice(..0, notes_of(a.iter().chain(b)));
    notes.extend(on_both_sides(a, b));
    let group =
        |name: &str, all: &[Recording]| Group { name: name.into(), recordings: all.iter().map(Recorded::of).collect() };
    Comparison {
        a: group(a_name, a),
        b: group(b_name, b),
        threshold_ns: a.iter().chain(b).map(|r| r.threshold_ns).max().unwrap_or(0),
        band: pairs.iter().find_map(|pair| pair.band()),
        conclusion: Vec::new(),
        tested: 0,
        is_single: a.len().min(b.len()) < 2,
        not_comparable,
        settings: settings((a_name, a), (b_name, b)),
        segments,
        losses,
        notes,
        footnotes: footnotes_of(a.iter().chain(b)),
    }
}

/// The settings that differ between the groups.
fn settings((a_name, a): (&str, &[Recording]), (b_name, b): (&str, &[Recording])) -> ComparedSettings {
    let [a, b] = [(a_name, a), (b_name, b)]
        .map(|(name, all)| Side { name, recordings: all.iter().map(|recording| &recording.settings).collect() });
    ComparedSettings { a_recorded: a.recorded(), b_recorded: b.recorded(), differences: differences(&a, &b) }
}

/// All rows of the segments and losses, each with the name of its segment or stream.
fn rows(page: &mut Comparison) -> Vec<(String, &mut Row)> {
    let of_segments = page.segments.iter_mut().flat_map(|s| {
        let name = match &s.stream {
            Some(stream) => format!("{} of {stream}", s.name),
            None => s.name.clone(),
        };
        s.rows.iter_mut().map(move |row| (name.clone(), row))
    });
    let of_losses = page.losses.iter_mut().flat_map(|l| {
        let stream = l.stream.clone().unwrap_or_default();
        [(stream.clone(), &mut l.share), (stream, &mut l.row)]
    });
    of_segments.chain(of_losses).collect()
}

/// Corrects the p-values of all pages together, and sets the verdict and the sentence of each tested row.
fn judge(pages: &mut [Comparison]) {
    let p_of = |page: &mut Comparison| -> Vec<f64> {
        let is_open = |row: &Row| row.p.is_some() && row.verdict == Verdict::NotTested;
        rows(page).iter().filter(|(_, row)| is_open(row)).filter_map(|(_, row)| row.p).collect()
    };
    let p: Vec<f64> = pages.iter_mut().flat_map(p_of).collect();
    let mut corrected = holm(&p).into_iter();
    pages.iter_mut().for_each(|page| judge_page(page, &mut corrected, p.len()));
}

/// Sets the verdicts of a page from the next corrected p-values; `tested` is the number of tested rows on all pages.
fn judge_page(page: &mut Comparison, corrected: &mut impl Iterator<Item = f64>, tested: usize) {
    let (single, a, b) = (page.is_single, page.a.name.clone(), page.b.name.clone());
    page.tested = tested;
    let (mut judged, mut own) = (Vec::new(), 0);
    for (segment, row) in rows(page) {
        if row.p.is_some() && row.verdict == Verdict::NotTested {
            own += 1;
            let p = corrected.next().unwrap_or(1.0);
            row.p_corrected = Some(p);
            let more = row.difference.is_some_and(|d| d.value() > 0.0);
            row.verdict = match (p < SIGNIFICANCE, row.unit, more) {
                (false, _, _) => Verdict::NoDifference,
                (true, _, _) if single => Verdict::Differ,
                (true, Unit::Ns, true) => Verdict::Slower,
                (true, Unit::Ns, false) => Verdict::Faster,
                (true, _, true) => Verdict::More,
                (true, _, false) => Verdict::Fewer,
            };
        }
        if row.verdict == Verdict::NotComparable {
            row.p = None;
        }
        row.sentence = sentence(&segment, row, (&a, &b));
        judged.push(Judged::of(subject(&segment, &row.figure), row));
    }
    page.conclusion = conclusion(&judged, own, (&a, &b));
}

/// The recordings' notes without duplicates, each with the paths of its recordings. Of notes that differ only in
/// numbers, the first is shown.
pub fn notes_of<'a>(recordings: impl Iterator<Item = &'a Recording>) -> Vec<String> {
    let mut all = 0;
    let mut found: Vec<Vec<(&str, &str)>> = Vec::new();
    for recording in recordings {
        all += 1;
        for note in &recording.notes {
            let one = (recording.path.as_str(), note.as_str());
            match found.iter_mut().find(|same| without_numbers(same[0].1).eq(without_numbers(note))) {
                Some(same) => same.push(one),
                None => found.push(vec![one]),
            }
        }
    }
    let with_paths = |same: Vec<(&str, &str)>| {
        let note = same[0].1;
        let mut paths: Vec<&str> = same.iter().map(|(path, _)| *path).collect();
        paths.dedup();
        let which = match paths.len() {
            n if n == all && n > 2 => format!("all {n} recordings"),
            0..=3 => paths.join(", "),
            n => format!("{}, {} and {} more", paths[0], paths[1], n - 2),
        };
        match same.iter().all(|(_, other)| *other == note) {
            true => format!("{which}: {note}"),
            false => format!("{which}, with the numbers of {}: {note}", paths[0]),
        }
    };
    found.into_iter().map(with_paths).collect()
}

/// The words of a note, without those that are numbers. A name with digits is not a number.
fn without_numbers(note: &str) -> impl Iterator<Item = &str> {
    let is_number = |word: &&str| word.trim_matches(['(', ')', ',', ';', ':', '%']).parse::<f64>().is_ok();
    note.split(' ').filter(move |word| !is_number(word))
}

/// The recordings' footnotes, without duplicates.
pub fn footnotes_of<'a>(recordings: impl Iterator<Item = &'a Recording>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for note in recordings.flat_map(|recording| &recording.footnotes) {
        if !all.contains(note) {
            all.push(note.clone());
        }
    }
    all
}

fn segment(pair: &Pair) -> Segment {
    let (a, b) = (pair.a[0], pair.b[0]);
    let pooled = |all: &[&Measured]| {
        let mut histogram = Histogram::new();
        all.iter().for_each(|m| histogram.merge(&m.histogram));
        histogram
    };
    let (all_a, all_b) = (pooled(&pair.a), pooled(&pair.b));
    Segment {
        stream: a.stream.clone(),
        kind: a.kind,
        name: a.name.clone(),
        from: a.from.clone(),
        to: a.to.clone(),
        b_from: b.from.clone(),
        b_to: b.to.clone(),
        error_bound_ns: pair.error_bound_ns(),
        lacks: pair.a.iter().chain(&pair.b).filter_map(|m| m.lacks.clone()).collect(),
        rows: Figure::ALL
            .into_iter()
            .filter(|figure| *figure != Figure::InBand || pair.band().is_some())
            .map(|figure| row(figure, pair, (&all_a, &all_b)))
            .collect(),
        a_histogram: all_a.buckets(),
        b_histogram: all_b.buckets(),
    }
}

fn row(figure: Figure, pair: &Pair, all: (&Histogram, &Histogram)) -> Row {
    let whole = |of: fn(&Histogram) -> i64| {
        let value = |h: &Histogram| (h.count() > 0).then(|| Amount::Whole(of(h)));
        (value(all.0), value(all.1))
    };
    let over = |side: &[&Measured]| Some(Amount::Whole(side.iter().map(|m| m.over as i64).sum()));
    let in_band = |side: &[&Measured], all: &Histogram| {
        let count: u64 = side.iter().filter_map(|m| m.in_band).map(|(_, n)| n).sum();
        (all.count() > 0).then(|| Amount::Rate(count as f64 * 100.0 / all.count() as f64))
    };
    let (a, b) = match figure {
        Figure::InBand => (in_band(&pair.a, all.0), in_band(&pair.b, all.1)),
        Figure::Min => whole(Histogram::min),
        Figure::Max => whole(Histogram::max),
        Figure::Stddev => whole(Histogram::stddev),
        Figure::Over => (over(&pair.a), over(&pair.b)),
        Figure::Mean | Figure::Percentile(_) | Figure::Spikes => {
            let of = |side: &[&Measured]| side.iter().map(|m| m.estimate(figure)).collect();
            let unit = if figure == Figure::Spikes { Unit::PerHour } else { Unit::Ns };
            return varied(figure.name(), unit, figure.is_tested(), (of(&pair.a), of(&pair.b)));
        }
    };
    let unit = match figure {
        Figure::Over => Unit::Packets,
        Figure::InBand => Unit::Percent,
        _ => Unit::Ns,
    };
    Row { a, b, ..Row::empty(figure.name(), unit, Verdict::NotTested) }
}

/// Creates the row of a figure that varies between recordings. It shows rates and shares as counted, whereas the scales
/// on which they are compared add 3/8 to each count.
fn varied(name: &'static str, unit: Unit, is_tested: bool, (a, b): (Estimates, Estimates)) -> Row {
    let scale = match unit {
        Unit::Ns => Scale::Ratio,
        Unit::PerHour | Unit::Packets => Scale::Root,
        Unit::Percent => Scale::Arcsine,
    };
    let all = |side: Estimates| side.into_iter().collect::<Option<Vec<_>>>();
    let (a, b) = (all(a), all(b));
    let counted = |all: &[Estimate]| all.iter().map(|e| e.counted).sum::<f64>() / all.len() as f64;
    let alone = |side: &Option<Vec<Estimate>>| {
        let all = side.as_ref()?;
        let value = if unit == Unit::Ns { difference(all, all, scale)?.a } else { counted(all) };
        Some(shown(value, unit))
    };
    let mut row = Row { a: alone(&a), b: alone(&b), ..Row::empty(name, unit, Verdict::TooFew) };
    let found = a.zip(b).and_then(|(a, b)| Some((difference(&a, &b, scale)?, counted(&a) - counted(&b))));
    let Some((found, counted)) = found else { return row };
    let is_short = is_tested && found.plus_minus.is_none();
    row.verdict = if is_short { Verdict::TooShort } else { Verdict::NotTested };
    row.p = (is_tested && !is_short).then_some(found.p);
    fill(&mut row, &found);
    if unit != Unit::Ns {
        row.difference = Some(shown(counted, unit));
    }
    row
}

/// Rounds a figure as shown in its unit: whole nanoseconds or packets; rates and shares to the digits printed.
fn shown(value: f64, unit: Unit) -> Amount {
    match unit {
        // Excludes `i64::MIN`, so that the negated value also fits.
        Unit::Ns | Unit::Packets => Amount::Whole((value.round() as i64).max(-i64::MAX)),
        Unit::PerHour => Amount::Rate((value * 1e2).round() / 1e2),
        Unit::Percent => Amount::Rate((value * 1e6).round() / 1e6),
    }
}

fn fill(row: &mut Row, found: &Difference) {
    let percent = |by: f64| (found.scale == Scale::Ratio).then(|| (by.exp_m1() * 1e4).round() / 100.0);
    let size = if row.unit == Unit::Percent { 100.0 } else { 1.0 };
    let by = |by: f64| shown(found.absolute(by) * size, row.unit);
    let interval = found.interval();
    (row.low, row.high) = (interval.map(|(low, _)| by(low)), interval.map(|(_, high)| by(high)));
    row.difference = Some(by(found.by));
    row.difference_percent = percent(found.by);
    row.low_percent = interval.and_then(|(low, _)| percent(low));
    row.high_percent = interval.and_then(|(_, high)| percent(high));
}

/// Lost packets: their share, and loss events per hour.
fn losses(a: &[Recording], b: &[Recording]) -> Vec<LossRow> {
    let of = |all: &[Recording], stream: &Option<String>| -> Option<Vec<Losses>> {
        let find = |r: &Recording| r.losses.iter().find(|l| l.stream == *stream).cloned();
        all.iter().map(|r| find(r).filter(|l| l.lost.is_some())).collect()
    };
    let Some(first) = a.first() else { return Vec::new() };
    let both = first.losses.iter().filter_map(|loss| Some((&loss.stream, of(a, &loss.stream)?, of(b, &loss.stream)?)));
    both.map(|(stream, a, b)| {
        let sum = |all: &[Losses], what: fn(&Losses) -> u64| all.iter().map(what).sum::<u64>();
        let lost = |l: &Losses| l.lost.unwrap_or(0);
        let each = |all: &[Losses], what: fn(&Losses) -> Option<Estimate>| all.iter().map(what).collect();
        let compared = |name, unit, what| varied(name, unit, true, (each(&a, what), each(&b, what)));
        let mut row = compared("lost", Unit::PerHour, |l| l.rate);
        let mut share = compared("lost_share", Unit::Percent, |l| l.share);
        let (a_lost, b_lost) = (sum(&a, lost), sum(&b, lost));
        if a_lost + b_lost == 0 {
            // If neither side lost a packet, nothing is tested.
            for row in [&mut row, &mut share] {
                (row.p, row.verdict) = (None, Verdict::NotTested);
            }
        } else if a.iter().chain(&b).any(|l| l.is_lost_often) {
            let why = "packets are lost for more than a tenth of the time, so how often says nothing; their share does";
            (row.verdict, row.obstacle) = (Verdict::NotComparable, Some(why.into()));
        }
        let packets = |l: &Losses| l.packets;
        LossRow {
            stream: stream.clone(),
            a_lost,
            a_packets: sum(&a, packets),
            b_lost,
            b_packets: sum(&b, packets),
            share,
            row,
        }
    })
    .collect()
}

fn on_both_sides(a: &[Recording], b: &[Recording]) -> Vec<String> {
    let same = a.iter().filter(|r| b.iter().any(|other| other.identity == r.identity));
    let on_both =
        same.map(|r| format!("{}: this recording is on both sides, so that they differ by less than they may", r.path));
    let twice = |side: &[Recording]| -> Vec<String> {
        let before = |at: usize| side[..at].iter().any(|other| other.identity == side[at].identity);
        let note = |at: usize| {
            format!(
                "{}: this recording is on one side twice, so that it seems to vary less than it does",
                side[at].path
            )
        };
        (0..side.len()).filter(|at| before(*at)).map(note).collect()
    };
    on_both.chain(twice(a)).chain(twice(b)).collect()
}

impl Amount {
    /// The number, without its type.
    pub fn value(self) -> f64 {
        match self {
            Self::Whole(n) => n as f64,
            Self::Rate(n) => n,
        }
    }
}

impl Row {
    fn empty(figure: &'static str, unit: Unit, verdict: Verdict) -> Self {
        Self {
            figure: figure.into(),
            unit,
            a: None,
            b: None,
            difference: None,
            low: None,
            high: None,
            difference_percent: None,
            low_percent: None,
            high_percent: None,
            p: None,
            p_corrected: None,
            verdict,
            obstacle: None,
            sentence: String::new(),
        }
    }
}
