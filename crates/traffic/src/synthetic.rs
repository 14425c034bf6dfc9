//! The frames of synthetic publishers with a given profile.

use crate::Frames;
use latpath_model::Ns;
use latpath_protocols::sv::{AsduSpec, Frame, FrameSpec, Profile, Waveform, PHSMEAS1_LEN};
use latpath_protocols::BuildError;
use latpath_wire::{Deadlines, Pace};

/// Options of synchronised publishers, which all send sample number n at the same time.
#[derive(Clone, Debug)]
pub struct SyntheticOptions {
    /// Samples per second, ASDUs per frame.
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
    /// Frames of each publisher that are due together, at least 1.
    pub burst: u32,
}

struct Template {
    bytes: Vec<u8>,
    /// Offsets of smpCnt and samples of each ASDU.
    at: Vec<(usize, usize)>,
}

/// An endless sequence of the publishers' frames.
pub struct Synthetic {
    templates: Vec<Template>,
    wave: Waveform,
    o: SyntheticOptions,
    /// Number of the next frame of the next publisher.
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
        Ok(Self { templates, wave: Waveform::new(o.profile.samples_per_s, o.profile.hz), o, frame: 0, publisher: 0 })
    }
}

impl Frames for Synthetic {
    fn next(&mut self, out: &mut Vec<u8>) -> Option<Ns> {
        let template = &self.templates[self.publisher];
        out.clear();
        out.extend_from_slice(&template.bytes);
        let sample = u64::from(self.o.first) + self.frame * template.at.len() as u64;
        for (n, (smp_cnt, data)) in (sample..).zip(&template.at) {
            let count = (n % u64::from(self.o.wrap)) as u16;
            out[*smp_cnt..smp_cnt + 2].copy_from_slice(&count.to_be_bytes());
            out[*data..data + PHSMEAS1_LEN].copy_from_slice(self.wave.sample(n));
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
}
