//! Synthetic recordings that vary like real ones: between runs, slowly within a run, and in bursts.

use latpath_compare::{Measured, Recording, Source, Span};
use latpath_model::{Ns, SegmentKind};
use latpath_stats::track::Track;
use latpath_stats::Histogram;
use latpath_testkit::Noise;

const SECOND: Ns = 1_000_000_000;
const THRESHOLD: Ns = 500_000;

/// Draws a standard normal deviate (Box-Muller).
pub fn normal(noise: &mut Noise) -> f64 {
    (-2.0 * noise.unit().ln()).sqrt() * (std::f64::consts::TAU * noise.unit()).cos()
}

/// How synthetic recordings vary. Each has three segments, with log-normal times (width 0.3) around 60, 120 and 180 µs.
#[derive(Clone, Copy, Debug)]
pub struct Variation {
    /// Duration of each recording, s.
    pub seconds: u64,
    /// Packets per second.
    pub rate: u64,
    /// Standard deviation of the logarithms of a recording's own factors, for its times and for the width of their
    /// distribution.
    pub between: f64,
    /// Standard deviation of the level of a second; the level is an AR(1) process over seconds, with coefficient 0.9.
    pub level: f64,
    /// Mean number of bursts per minute. They last 10 to 60 ms, and their packets take 1 ms longer on average. Each
    /// recording has its own mean; the standard deviation of its logarithm is 0.3.
    pub bursts: f64,
    /// All times of the first segment are multiplied by this.
    pub shift: f64,
}

impl Variation {
    /// Recordings of ten minutes, with a standard deviation of 0.7 % between recordings.
    pub const TEN_MINUTES: Self =
        Self { seconds: 600, rate: 200, between: 0.007, level: 0.02, bursts: 2.0, shift: 1.0 };

    /// Makes a recording.
    pub fn recording(&self, noise: &mut Noise) -> Recording {
        let span = Span::of((0, self.seconds as Ns * SECOND - 1), 3);
        let segments = ["Thyp", "Tsub", "total"].into_iter().zip(1..);
        let segments = segments.map(|(name, n)| {
            let shift = if n == 1 { self.shift } else { 1.0 };
            let (histogram, track) = self.times(noise, 60_000.0 * f64::from(n) * shift, span);
            Measured { name: name.into(), kind: SegmentKind::Named, ..Measured::of(histogram, track.finish(), span) }
        });
        let segments: Vec<Measured> = segments.collect();
        let loss = latpath_compare::Losses {
            stream: None,
            packets: self.seconds * self.rate,
            lost: Some(0),
            share: None,
            rate: None,
            is_lost_often: false,
        };
        Recording {
            path: "RUN".into(),
            source: Source::Run,
            identity: noise.draw().to_string(),
            streams: vec!["svid:MU01".into()],
            elapsed_ns: span.elapsed,
            threshold_ns: THRESHOLD,
            settings: Default::default(),
            sightings: (0, 0),
            segments,
            losses: vec![loss],
            excluded: None,
            footnotes: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn times(&self, noise: &mut Noise, median: f64, span: Span) -> (Histogram, Track) {
        let median = median * (normal(noise) * self.between).exp();
        let width = 0.3 * (normal(noise) * self.between).exp();
        let bursts = self.bursts / 60.0 * (normal(noise) * 0.3).exp();
        let step = 1.0 / self.rate as f64;
        let (mut level, mut burst) = (normal(noise) * self.level, 0.0);
        let (mut histogram, mut track) = (Histogram::new(), Track::new(span.intervals, THRESHOLD));
        for second in 0..self.seconds {
            level = 0.9 * level + normal(noise) * self.level * (1.0_f64 - 0.81).sqrt();
            for packet in 0..self.rate {
                if noise.unit() < bursts * step {
                    burst = 0.01 + 0.05 * noise.unit();
                }
                let mut time = median * (level + width * normal(noise)).exp();
                if burst > 0.0 {
                    burst -= step;
                    time -= 1e6 * noise.unit().ln();
                }
                let at = second as Ns * SECOND + (packet as f64 * step * 1e9) as Ns;
                track.add(at, time as Ns);
                histogram.record(time as Ns);
            }
        }
        (histogram, track)
    }
}
