//! Made-up figures for the screen, identical at every call: Sampled Values through a host into a guest.

use latpath_model::{Point, SegmentKind};
use latpath_stats::{Bucket, Loss, MachineFigures, SegmentFigures, StreamFigures, Summary, TimeFigures, ToolCost};

const SECOND: i64 = 1_000_000_000;
const FRAMES: u64 = 4000;

/// A scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// Everything works.
    Normal,
    /// The stream never arrives.
    Waiting,
    /// The stream stops.
    Silent,
    /// Losses, dropped sightings, clock faults, negative times, notes.
    Warning,
    /// Eight streams, one of which stops.
    Streams,
    /// The application runs on the host: one machine.
    NoGuest,
}

/// The summary of a scenario at this second.
pub fn summary(capture: Capture, second: u64) -> Summary {
    let seconds = i64::try_from(second).unwrap_or(0);
    let mut s = Summary { elapsed_ns: seconds * SECOND, threshold_ns: 200_000, ..Summary::default() };
    let names = match capture {
        Capture::Streams => (1..=8).map(|i| format!("svid:MU{i:02}")).collect(),
        _ => vec!["svid:MU01".to_string()],
    };
    s.tool = ToolCost { ns_per_sighting: 38, cpu_percent: 3.2, max_rss_bytes: 18 << 20, ..ToolCost::default() };
    if capture == Capture::Waiting {
        s.streams = names.into_iter().map(|stream| StreamFigures { stream, ..StreamFigures::default() }).collect();
        s.notes = vec!["svid:MU01: not seen on any device yet; other streams seen: MU02 (eth0), MU07 (eth0)".into()];
        return s;
    }
    let guest = capture != Capture::NoGuest;
    s.points = points(guest);
    if guest {
        s.machines = vec![MachineFigures {
            machine: "guest0".into(),
            hypervisor: None,
            method: "timed exchanges".into(),
            offset_ns: -12_345_678,
            drift_ppb: -3,
            error_bound_ns: 4_850,
            exchanges: second * 10,
            causality_violations: 0,
            fault: None,
            cpu_percent: Some(0.8),
        }];
    }
    for (i, stream) in names.into_iter().enumerate() {
        let alive = match capture {
            Capture::Silent => second.min(4),
            Capture::Streams if i == 4 => second.min(3),
            _ => second,
        };
        let journeys = alive * FRAMES;
        let mut one = StreamFigures {
            stream,
            journeys,
            complete: journeys,
            segments: segments(&s.points, journeys, second, if i == 2 { 2 } else { 1 }, guest),
            ..StreamFigures::default()
        };
        if capture == Capture::Warning {
            trouble(&mut one, second);
        }
        s.streams.push(one);
    }
    for one in &s.streams {
        s.journeys += one.journeys;
        s.complete += one.complete;
        s.duplicates += one.duplicates;
        s.out_of_order += one.out_of_order;
        s.lost.extend(one.lost.iter().cloned());
    }
    let worst = s.streams.iter().max_by_key(|o| o.segments[0].times.max_ns).map_or(0, |o| o.segments.len());
    let (journeys, points) = (s.journeys, s.points.clone());
    s.segments = segments(&points, journeys, second, 1, guest);
    assert_eq!(worst, s.segments.len());
    if capture == Capture::Warning {
        s.segments = s.streams[0].segments.clone();
        s.malformed = 3;
        s.tool.sightings_dropped = 120 * (second / 5);
        s.machines[0].fault = Some("no answer for 2.1 s".into());
        s.notes = vec![
            "guest0: no probe for vm-read on this kernel: 3→4 and 4→5 are one segment".into(),
            "clocks were disordered from 12.1 s to 13.4 s: times across machines are marked".into(),
        ];
    }
    s.tool.sightings = s.journeys * s.points.len() as u64;
    s
}

fn points(guest: bool) -> Vec<Point> {
    let (host, other) = (
        ["host/tx@pub0", "host/nic-rx@hv-in", "host/tx@vnet0", "host/vm-read@vnet0"],
        ["guest0/nic-rx@eth1", "guest0/app-read@subscribe"],
    );
    let app = ["host/app-read@subscribe"];
    let all: Vec<&str> =
        if guest { host.into_iter().chain(other).collect() } else { host.into_iter().take(3).chain(app).collect() };
    all.iter().filter_map(|p| p.parse().ok()).collect()
}

fn trouble(one: &mut StreamFigures, second: u64) {
    let lost = second / 3;
    one.lost = vec![
        Loss {
            place: "host/tx@vnet0".into(),
            reason: Some("FULL_RING in tun_net_xmit".into()),
            meaning: Some("tap queue full".into()),
            dropped_at: None,
            kernel_count: Some(lost * 7),
            count: lost * 7,
        },
        Loss {
            place: "host/vm-read@vnet0".into(),
            reason: None,
            meaning: None,
            dropped_at: None,
            kernel_count: None,
            count: lost,
        },
    ];
    one.complete -= lost * 8 + 4;
    one.incomplete = 4;
    one.duplicates = 2;
    one.out_of_order = 17;
    one.never_seen = 5;
    for segment in &mut one.segments {
        if segment.error_bound_ns > 0 {
            segment.times.negative = 12;
            segment.times.min_ns = -1_830;
        }
    }
}

fn segments(points: &[Point], journeys: u64, second: u64, slow: i64, guest: bool) -> Vec<SegmentFigures> {
    // Median of each segment in ns, and its spread as a factor.
    let steps: &[(f64, f64)] = if guest {
        &[(2_100.0, 1.3), (3_400.0, 1.4), (28_000.0, 1.6), (4_200.0, 1.5), (11_000.0, 1.5)]
    } else {
        &[(2_100.0, 1.3), (3_400.0, 1.4), (9_000.0, 1.5)]
    };
    let mut out = Vec::new();
    let last = points.len() - 1;
    let classic = if guest {
        vec![("Tnet", 0, 1), ("Thyp", 1, last - 1), ("Tsub", last - 1, last), ("total", 0, last)]
    } else {
        vec![("Tnet", 0, 1), ("total", 0, last)]
    };
    let neighbours = (0..last).map(|i| ("", i, i + 1));
    for (name, from, to) in classic.into_iter().chain(neighbours) {
        let middle: f64 = steps[from..to].iter().map(|s| s.0).sum();
        let spread = steps[from..to].iter().map(|s| s.1).fold(1.0, f64::max);
        let (a, b) = (&points[from], &points[to]);
        let mut segment = segment(middle * slow as f64, spread, journeys, second);
        let own = if name.is_empty() { SegmentKind::Step } else { SegmentKind::Named };
        segment.kind = SegmentKind::classic(name).unwrap_or(own);
        segment.name = if name.is_empty() { format!("{a}→{b}") } else { name.into() };
        (segment.from, segment.to) = (a.to_string(), b.to_string());
        segment.error_bound_ns = if a.machine == b.machine { 0 } else { 4_850 };
        out.push(segment);
    }
    out
}

/// Figures of a segment with a log-normal distribution and a thin tail, in buckets 1 % wide.
fn segment(middle: f64, spread: f64, journeys: u64, second: u64) -> SegmentFigures {
    let mut s = SegmentFigures::default();
    if journeys == 0 {
        return s;
    }
    let weight = |x: f64| {
        let z = (x / middle).ln() / spread.ln();
        let tail = if x > middle { 2e-5 * (middle / x) } else { 0.0 };
        (-z * z / 2.0).exp() * 0.01 / spread.ln() + tail
    };
    let mut edges = vec![(middle / 4.0) as i64];
    while edges[edges.len() - 1] < (middle * 40.0) as i64 {
        let last = edges[edges.len() - 1];
        edges.push(last + (last / 100).max(1));
    }
    // Cumulative weight up to each edge. The running sum is rounded, so that every journey is in exactly one bucket.
    let whole: f64 = edges.windows(2).map(|e| weight(e[0] as f64)).sum();
    let (mut upto, mut given) = (0.0, 0);
    for e in edges.windows(2) {
        upto += weight(e[0] as f64);
        let next = ((upto / whole * journeys as f64).round() as u64).min(journeys);
        if next > given {
            s.histogram.push(Bucket { from_ns: e[0], to_ns: e[1], count: next - given });
        }
        given = next;
    }
    let shift = i64::try_from(second * 7919 % 100).unwrap_or(0);
    let total: u64 = s.histogram.iter().map(|b| b.count).sum();
    let at = |share: f64| {
        let mut left = (total as f64 * share) as u64;
        for b in &s.histogram {
            if b.count > left {
                return b.from_ns;
            }
            left -= b.count;
        }
        s.histogram.last().map_or(0, |b| b.from_ns)
    };
    let (min, max) = (s.histogram[0].from_ns, s.histogram.last().map_or(0, |b| b.to_ns));
    SegmentFigures {
        times: TimeFigures {
            count: total,
            min_ns: min + shift,
            mean_ns: middle as i64 + middle as i64 / 9,
            stddev_ns: middle as i64 / 3,
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p95_ns: at(0.95),
            p99_ns: at(0.99),
            p99_9_ns: at(0.999),
            p99_99_ns: at(0.9999),
            p99_999_ns: at(0.99999),
            p99_9999_ns: at(0.999999),
            max_ns: max,
            negative: 0,
        },
        rate_hz: FRAMES as f64,
        over_threshold: s.histogram.iter().filter(|b| b.from_ns > 200_000).map(|b| b.count).sum(),
        ..s
    }
}
