//! Contents of a comparison's page: losses first, "too short" if nothing can be concluded, and the same result with the
//! groups swapped.

use latpath_compare::comparison::{Amount, Row};
use latpath_compare::{compare, study, Comparison, Figure, Losses, Measured, Recording, Source, Span, Verdict};
use latpath_model::{Ns, SegmentKind};
use latpath_stats::track::{Lost, Track};
use latpath_stats::Histogram;
use latpath_testkit::Noise;

const SECOND: Ns = 1_000_000_000;
const RATE: u64 = 200;

/// Creates a recording of `seconds` in which packet `n` takes `time(n)`, and is lost if `is_lost(n)`.
fn recording(seconds: u64, time: impl Fn(u64) -> Ns, is_lost: impl Fn(u64) -> bool) -> Recording {
    let span = Span::of((0, seconds as Ns * SECOND - 1), 1);
    let (mut histogram, mut track) = (Histogram::new(), Track::new(span.intervals, 500_000));
    let mut lost = Lost::new(span.intervals);
    let packets = seconds * RATE;
    for n in 0..packets {
        let at = n as Ns * SECOND / RATE as Ns;
        if is_lost(n) {
            lost.add(at);
        } else {
            histogram.record(time(n));
            track.add(at, time(n));
        }
    }
    let measured = Measured::of(histogram, track.finish(), span);
    let (from, to) = ("host/nic-rx@a".into(), "host/app-read@b".into());
    Recording {
        path: "RUN".into(),
        source: Source::Run,
        identity: format!("{:p} {seconds}", &span),
        streams: vec!["svid:MU01".into()],
        elapsed_ns: span.elapsed,
        threshold_ns: 500_000,
        settings: Default::default(),
        sightings: (0, 0),
        segments: vec![Measured { name: "total".into(), kind: SegmentKind::Named, from, to, ..measured }],
        losses: vec![Losses::of(None, packets, true, lost, span)],
        excluded: None,
        footnotes: Vec::new(),
        notes: Vec::new(),
    }
}

fn noisy(noise: &mut Noise, seconds: u64, loss: f64) -> Recording {
    let median = 50_000.0 + 5_000.0 * noise.unit();
    let all: Vec<(Ns, bool)> = (0..seconds * RATE)
        .map(|_| {
            ((median * (1.0 + noise.unit()) * if noise.unit() < 0.01 { 20.0 } else { 1.0 }) as Ns, noise.unit() < loss)
        })
        .collect();
    recording(seconds, |n| all[n as usize].0, |n| all[n as usize].1)
}

fn rows(page: &Comparison) -> Vec<&Row> {
    let losses = page.losses.iter().flat_map(|l| [&l.row, &l.share]);
    page.segments.iter().flat_map(|s| &s.rows).chain(losses).collect()
}

fn row<'a>(page: &'a Comparison, figure: &str) -> &'a Row {
    rows(page).into_iter().find(|row| row.figure == figure).unwrap()
}

#[test]
fn a_swapped_page_is_mirrored_to_the_digit() {
    let mut noise = Noise(0x1234_5678_9abc);
    for case in 0..25 {
        let group = |noise: &mut Noise| -> Vec<Recording> {
            let n = 1 + noise.draw() % 3;
            (0..n)
                .map(|_| {
                    let loss = [0.0, 0.0005, 0.01][(noise.draw() % 3) as usize];
                    noisy(noise, 20, loss)
                })
                .collect()
        };
        let (a, b) = (group(&mut noise), group(&mut noise));
        let (one, other) = (compare(("A", &a), ("B", &b)), compare(("B", &b), ("A", &a)));
        assert_eq!(one.tested, other.tested);
        let negated = |amount: Option<Amount>| amount.map(|amount| -amount.value());
        let value = |amount: Option<Amount>| amount.map(Amount::value);
        for (row, swapped) in rows(&one).into_iter().zip(rows(&other)) {
            let name = format!("case {case}, {}: {row:?}\n{swapped:?}", row.figure);
            assert_eq!((row.a, row.b), (swapped.b, swapped.a), "{name}");
            assert_eq!(
                (value(row.difference), value(row.low), value(row.high)),
                (negated(swapped.difference), negated(swapped.high), negated(swapped.low)),
                "{name}"
            );
            assert_eq!((row.p, row.p_corrected), (swapped.p, swapped.p_corrected), "{name}");
            let mirrored = match row.verdict {
                Verdict::Faster => Verdict::Slower,
                Verdict::Slower => Verdict::Faster,
                Verdict::More => Verdict::Fewer,
                Verdict::Fewer => Verdict::More,
                same => same,
            };
            assert_eq!(mirrored, swapped.verdict, "{name}");
        }
    }
}

#[test]
fn unequal_losses_are_the_headline() {
    let mut noise = Noise(99);
    let mut group = |loss| -> Vec<Recording> { (0..5).map(|_| noisy(&mut noise, 17, loss)).collect() };
    let (none, many) = (group(0.0), group(0.19));
    let page = compare(("after", &none), ("tbf", &many));
    assert_eq!(row(&page, "lost_share").verdict, Verdict::Fewer);
    assert!(
        page.conclusion[0].starts_with("lost packets: after loses fewer: after 0.00 % of its packets, tbf 1"),
        "{:?}",
        page.conclusion
    );
    let page = compare(("tbf", &many), ("after", &none));
    assert!(page.conclusion[0].starts_with("lost packets: tbf loses more"), "{:?}", page.conclusion);
    let one = compare(("after", &none[..1]), ("tbf", &many[..1]));
    assert!(one.conclusion[0].starts_with("lost packets: after lost fewer"), "{:?}", one.conclusion);
}

#[test]
fn recordings_that_are_too_short_are_not_called_equal() {
    let mut noise = Noise(5);
    let (a, b) = (noisy(&mut noise, 8, 0.0), noisy(&mut noise, 8, 0.19));
    let page = compare(("fixed", std::slice::from_ref(&a)), ("hog", std::slice::from_ref(&b)));
    assert_eq!(page.tested, 0);
    let short: Vec<&Row> = rows(&page).into_iter().filter(|row| row.verdict == Verdict::TooShort).collect();
    assert!(!short.is_empty() && short.iter().all(|row| row.p.is_none() && row.low.is_none()), "{short:?}");
    assert!(rows(&page).iter().all(|row| row.verdict != Verdict::NoDifference));
    let text = page.conclusion.join("\n");
    assert!(text.starts_with("lost packets: too short to say whether losses differ: fixed 0.00 %"), "{text}");
    assert_eq!(text.matches("record 16 s or more").count(), 1, "{text}");
    // Several recordings per group may be short: the variance is estimated from the differences between them.
    let several: Vec<Recording> = (0..4).map(|_| noisy(&mut noise, 8, 0.0)).collect();
    let page = compare(("A", &several[..2]), ("B", &several[2..]));
    assert!(page.tested > 0 && rows(&page).iter().all(|row| row.verdict != Verdict::TooShort));
}

#[test]
fn constant_times_differ_where_they_do() {
    let constant = |time: Ns| -> Vec<Recording> { (0..5).map(|_| recording(30, |_| time, |_| false)).collect() };
    let page = compare(("A", &constant(40_000)), ("B", &constant(50_000)));
    assert_eq!(row(&page, "mean").verdict, Verdict::Faster, "{:?}", row(&page, "mean"));
    let page = compare(("A", &constant(40_000)), ("B", &constant(40_000)));
    assert_eq!(row(&page, "mean").verdict, Verdict::NoDifference);
    let single = compare(("A", &constant(40_000)[..1]), ("B", &constant(50_000)[..1]));
    assert_eq!(row(&single, "mean").verdict, Verdict::Differ);
    assert!(single.conclusion.iter().any(|line| line.contains("mean of total by -20.0 %")), "{:?}", single.conclusion);
}

#[test]
fn a_segment_that_ends_elsewhere_is_not_compared_with_its_namesake() {
    let mut noise = Noise(7);
    let mut a = vec![noisy(&mut noise, 20, 0.0)];
    let mut b = vec![noisy(&mut noise, 20, 0.0)];
    let named = |name: &str, from: &str, to: &str, of: &Measured| Measured {
        name: name.into(),
        from: from.into(),
        to: to.into(),
        ..of.clone()
    };
    let (of_a, of_b) = (a[0].segments[0].clone(), b[0].segments[0].clone());
    a[0].segments = vec![named("Tnet", "host/tx@pa", "host/nic-rx@eth0", &of_a)];
    b[0].segments = vec![
        named("Tnet", "host/tx@pa", "host/nic-rx@hin", &of_b),
        named("Thyp", "host/nic-rx@hin", "host/nic-rx@eth0", &of_b),
    ];
    let page = compare(("import", &a), ("live", &b));
    let mean = row(&page, Figure::Mean.name());
    assert_eq!(mean.verdict, Verdict::NotComparable);
    assert!(
        mean.sentence.contains("ends at host/nic-rx@eth0 in import, at host/nic-rx@hin in live"),
        "{}",
        mean.sentence
    );
    // A different device name at the same place is not a different place.
    b[0].segments = vec![named("Tnet", "host/tx@pa", "host/nic-rx@eth7", &of_b)];
    let page = compare(("import", &a), ("live", &b));
    assert_ne!(row(&page, Figure::Mean.name()).verdict, Verdict::NotComparable);
}

#[test]
fn notes_of_several_recordings_appear_once() {
    let mut noise = Noise(3);
    let mut group: Vec<Recording> = (0..4).map(|_| noisy(&mut noise, 20, 0.0)).collect();
    group.iter_mut().enumerate().for_each(|(n, one)| {
        (one.path, one.identity) = (format!("r{n}"), n.to_string());
        one.notes = vec!["a kernel without fentry".into(), format!("nothing for {n}.5 s, (at most {n} %)")];
        one.notes.push(format!("ends at vm-read@tap{}", n / 2));
    });
    group[3].notes.push("damaged".into());
    let page = compare(("A", &group[..2]), ("B", &group[2..]));
    let notes = [
        "all 4 recordings: a kernel without fentry",
        "all 4 recordings, with the numbers of r0: nothing for 0.5 s, (at most 0 %)",
        "r0, r1: ends at vm-read@tap0",
        "r2, r3: ends at vm-read@tap1",
        "r3: damaged",
    ];
    assert_eq!(page.notes, notes);
    let same = compare(("A", &group[..1]), ("B", &group[..1]));
    assert!(same.notes.iter().any(|note| note.contains("on both sides")), "{:?}", same.notes);
    let twice = [group[0].clone(), group[0].clone()];
    assert!(compare(("A", &twice), ("B", &group[2..])).notes.iter().any(|note| note.contains("twice")));
}

#[test]
fn losses_without_an_end_are_compared_by_their_share_alone() {
    let single = recording(30, |n| 40_000 + n as Ns % 97, |n| n % 2000 == 5);
    let endless = recording(30, |n| 40_000 + n as Ns % 89, |n| n % 5 == 0);
    let page = compare(("A", std::slice::from_ref(&single)), ("B", std::slice::from_ref(&endless)));
    assert_eq!(row(&page, "lost_share").verdict, Verdict::Differ);
    // Three loss events against one that does not end: their rates cannot be compared.
    assert_eq!(row(&page, "lost").verdict, Verdict::NotComparable);
    assert!(page.conclusion[0].starts_with("lost packets: A lost fewer"), "{:?}", page.conclusion);
}

#[test]
fn intervals_beyond_all_times_are_mirrored_too() {
    let group = |times: [Ns; 2]| times.map(|time| recording(20, move |_| time, |_| false));
    let (a, b) = (group([1, 90_000_000_000]), group([1, 80_000_000_000]));
    let (one, other) = (compare(("A", &a), ("B", &b)), compare(("B", &b), ("A", &a)));
    let (mean, swapped) = (row(&one, "mean"), row(&other, "mean"));
    assert_eq!((mean.low, mean.high), (Some(Amount::Whole(-i64::MAX)), Some(Amount::Whole(i64::MAX))));
    assert_eq!((mean.low, mean.high), (swapped.low, swapped.high));
}

#[test]
fn the_greatest_of_single_differences_is_the_same_from_both_sides() {
    let times = |n: u64, slow: Ns| if n % 50 == 7 { slow } else { 100_000 + (n % 13) as Ns };
    let (a, b) = (recording(30, |n| times(n, 400_000), |_| false), recording(30, |n| times(n, 130_000), |_| false));
    let first = |one: &Recording, other: &Recording| {
        let page = compare(("A", std::slice::from_ref(one)), ("B", std::slice::from_ref(other)));
        let differ = page.conclusion.iter().find(|line| line.contains("differ")).cloned().unwrap();
        differ.split(": ").nth(1).unwrap().split(" by ").next().unwrap().to_owned()
    };
    assert_eq!((first(&a, &b), first(&b, &a)), ("p99 of total".into(), "p99 of total".into()));
}

#[test]
fn a_recording_in_two_groups_of_a_table_is_noted() {
    let mut one = recording(20, |n| 40_000 + n as Ns % 97, |_| false);
    (one.path, one.notes) = ("r1".into(), vec!["damaged".into()]);
    let table = study(&[("ovs".into(), vec![one.clone()]), ("bridge".into(), vec![one])], None).unwrap();
    assert!(table.notes.contains(&"r1: this recording is in ovs and in bridge".into()), "{:?}", table.notes);
}
