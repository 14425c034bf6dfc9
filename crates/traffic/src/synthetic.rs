//! The frames of synthetic publishers with a given profile.

use crate::Frames;
use latpath_model::Ns;
use latpath_protocols::sv::{AsduSpec, Frame, FrameSpec, Profile, Waveform, PHSMEAS1_LEN};
use latpath_protocols::BuildError;
use latpath_wire::{Deadlines, Pace};

/// Options of synchronised publishers, which all send sample number n at the same time.
#[derive(Clone, Debug)]
pub struct SyntheticOptions {
    /// Samples per second, and ASDUs per frame.
    pub profile: Profile,
    /// The header of each publisher's frames; its ASDUs are ignored.
    pub headers: Vec<FrameSpec>,
    /// svID of each publisher.
    pub svids: Vec<Vec<u8>>,
    /// The wrap of smpCnt, 1 to 65536.
    pub wrap: u32,
    /// smpCnt of the first sample.
    pub first: u16,
    /// confRev.
    pub conf_rev: u32,
    /// smpSynch.
    pub smp_synch: u8,
    /// Frames per second of each publisher; `None` for as fast as possible.
    pub pace: Option<Pace>,
    /// Number of frames of each publisher that are due at the same time, at least 1.
    pub burst: u32,
    /// Faults in the samples; `None` for none.
    pub faults: Option<Faults>,
}

/// Simulated power-system faults: the currents rise abruptly, and later fall back abruptly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Time from the first sample to the first fault, and from one fault to the next, ns of sample time.
    pub every: Ns,
    /// Duration of a fault, ns; less than `every`.
    pub lasts: Ns,
    /// Factor by which a fault multiplies the currents.
    pub times: u32,
}

impl Faults {
    /// Whether a sample this long after the first one is within a fault.
    fn is_at(&self, t: Ns) -> bool {
        t >= self.every && t % self.every.max(1) < self.lasts
    }
}

struct Template {
    bytes: Vec<u8>,
    /// Offsets of smpCnt and of the samples in each ASDU.
    at: Vec<(usize, usize)>,
}

/// An endless sequence of the publishers' frames.
pub struct Synthetic {
    templates: Vec<Template>,
    wave: Waveform,
    /// The waveform during a fault.
    fault: Waveform,
    o: SyntheticOptions,
    /// Index of the next frame of the next publisher.
    frame: u64,
    publisher: usize,
}

impl Synthetic {
    /// Prepares the frames.
    ///
    /// # Errors
    /// A frame cannot be built.
    pub fn new(o: SyntheticOptions) -> Result<Self, BuildError> {
        let template = |(header, svid): (&FrameSpec, &Vec<u8>)| {
            let asdu = AsduSpec {
                svid: svid.clone(),
                conf_rev: o.conf_rev,
                smp_synch: o.smp_synch,
                data: vec![0; PHSMEAS1_LEN],
                ..AsduSpec::default()
            };
            let asdus = vec![asdu; usize::from(o.profile.asdus)];
            let bytes = FrameSpec { asdus, ..header.clone() }.build()?;
            let at = Frame::parse(&bytes).map(|f| f.asdus().map(|a| (a.smp_cnt_at, a.data_at)).collect());
            Ok(Template { at: at.expect("what was built can be read"), bytes })
        };
        let templates = o.headers.iter().zip(&o.svids).map(template).collect::<Result<Vec<_>, BuildError>>()?;
        assert!(!templates.is_empty() && o.wrap > 0, "at least one publisher, and a wrap");
        let wave = Waveform::new(o.profile.samples_per_s, o.profile.hz);
        let fault = wave.with_currents(o.faults.map_or(1, |faults| faults.times));
        Ok(Self { templates, wave, fault, o, frame: 0, publisher: 0 })
    }
}

impl Frames for Synthetic {
    fn next(&mut self, out: &mut Vec<u8>) -> Option<Ns> {
        let template = &self.templates[self.publisher];
        out.clear();
        out.extend_from_slice(&template.bytes);
        let sample = u64::from(self.o.first) + self.frame * template.at.len() as u64;
        let is_fault = |n: u64| {
            let since = u128::from(n - u64::from(self.o.first)) * 1_000_000_000;
            let t = since / u128::from(self.o.profile.samples_per_s);
            self.o.faults.is_some_and(|faults| faults.is_at(Ns::try_from(t).unwrap_or(0)))
        };
        for (n, (smp_cnt, data)) in (sample..).zip(&template.at) {
            let count = (n % u64::from(self.o.wrap)) as u16;
            out[*smp_cnt..smp_cnt + 2].copy_from_slice(&count.to_be_bytes());
            let wave = if is_fault(n) { &self.fault } else { &self.wave };
            out[*data..data + PHSMEAS1_LEN].copy_from_slice(wave.sample(n));
        }
        let burst = u64::from(self.o.burst.max(1));
        let due = self.o.pace.map_or(0, |p| p.due(self.frame / burst * burst));
        self.publisher += 1;
        if self.publisher == self.templates.len() {
            self.publisher = 0;
            self.frame += 1;
        }
        Some(due)
    }

    fn deadlines(&self) -> Option<Deadlines> {
        let pace = self.o.pace?;
        let interval = pace.due(u64::from(self.o.burst.max(1))).max(1);
        Some(Deadlines { interval, per_s: pace.hz() * self.templates.len() as f64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(profile: &str, publishers: usize) -> SyntheticOptions {
        let profile: Profile = profile.parse().unwrap();
        SyntheticOptions {
            profile,
            headers: vec![FrameSpec::default(); publishers],
            svids: (1..=publishers).map(|i| format!("MU{i:02}").into_bytes()).collect(),
            wrap: profile.samples_per_s,
            first: 0,
            conf_rev: 1,
            smp_synch: 2,
            pace: Some(Pace::per_second(profile.frames_per_s())),
            burst: 1,
            faults: None,
        }
    }

    #[test]
    fn every_profile_counts_every_sample_and_wraps_after_one_second() {
        for profile in Profile::ALL {
            let mut frames = Synthetic::new(options(profile.name, 1)).unwrap();
            let mut out = Vec::new();
            let mut expected = 0;
            for i in 0..u64::from(profile.frames_per_s()) * 2 + 3 {
                let due = frames.next(&mut out).unwrap();
                assert_eq!(due, (i * 1_000_000_000 / u64::from(profile.frames_per_s())) as i64);
                let frame = Frame::parse(&out).unwrap();
                assert_eq!(frame.asdus().count(), usize::from(profile.asdus));
                for asdu in frame.asdus() {
                    assert_eq!(u32::from(asdu.smp_cnt), expected % profile.samples_per_s, "{profile}");
                    assert_eq!(asdu.data.map(<[u8]>::len), Some(PHSMEAS1_LEN));
                    expected += 1;
                }
            }
        }
    }

    #[test]
    fn publishers_take_turns_with_the_same_sample() {
        let mut frames = Synthetic::new(options("9-2le-60", 8)).unwrap();
        let mut out = Vec::new();
        for i in 0..24 {
            let due = frames.next(&mut out).unwrap();
            assert_eq!(due, Pace::per_second(4800).due(i / 8));
            let asdu = Frame::parse(&out).unwrap().asdus().next().unwrap();
            assert_eq!(asdu.svid, format!("MU{:02}", i % 8 + 1).as_bytes());
            assert_eq!(u64::from(asdu.smp_cnt), i / 8);
        }
    }

    #[test]
    fn a_burst_is_due_at_once_and_the_rate_stays() {
        let mut frames = Synthetic::new(SyntheticOptions { burst: 4, ..options("9-2le-50", 1) }).unwrap();
        let due: Vec<Ns> = (0..9).map(|_| frames.next(&mut Vec::new()).unwrap()).collect();
        assert_eq!(due, [0, 0, 0, 0, 1_000_000, 1_000_000, 1_000_000, 1_000_000, 2_000_000]);
        assert_eq!(frames.deadlines().unwrap().interval, 1_000_000);
    }

    /// The first samples above the threshold are those of the faults, one per fault.
    #[test]
    fn each_fault_begins_and_ends_with_a_sample() {
        use latpath_protocols::{condition, ReactionRule, Watch};
        let faults = Some(Faults { every: 200_000_000, lasts: 50_000_000, times: 10 });
        for (profile, first) in [("9-2le-50", 0), ("f14400s6", 14_000)] {
            let options = SyntheticOptions { faults, first, ..options(profile, 1) };
            let (rate, asdus) = (u64::from(options.profile.samples_per_s), u64::from(options.profile.asdus));
            let mut frames = Synthetic::new(options).unwrap();
            let rule: ReactionRule = "svid:MU01[|Ia|] > 1500A -> goose:TRIP".parse().unwrap();
            assert!(matches!(rule.cause, condition::Condition::Crosses(_)));
            let mut watch = Watch::new(rule.input, rule.cause);
            let (mut out, mut events) = (Vec::new(), Vec::new());
            for frame in 0..rate / asdus {
                let t = frames.next(&mut out).unwrap();
                events.extend(watch.event_in(t, &out, None).map(|_| frame * asdus));
            }
            assert_eq!(events.len(), 4, "{profile}");
            for (n, sample) in (1..).zip(events) {
                // The fault's first sample, or one shortly after it: the current crosses zero twice per cycle.
                let at = n * rate / 5;
                assert!((at - asdus..at + rate / 100).contains(&sample), "{profile}: {sample}, the fault is at {at}");
            }
        }
    }
}
