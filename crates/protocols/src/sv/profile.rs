//! Sending profiles of merging units and instrument transformers.

use std::{fmt, str::FromStr};

/// Sample rates in use, samples per second (9-2LE and IEC 61869-9). smpCnt wraps at one of them, or at 65536.
pub const SAMPLE_RATES: [u32; 7] = [4000, 4800, 5760, 12800, 14400, 15360, 48000];

/// The parameters of a publisher's profile. smpCnt wraps at `samples_per_s`: it is 0 at the first sample of each
/// second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The name on the command line.
    pub name: &'static str,
    /// Samples per second.
    pub samples_per_s: u32,
    /// ASDUs (samples) per frame.
    pub asdus: u16,
    /// Power system frequency of the samples, Hz.
    pub hz: u32,
}

impl Profile {
    /// All profiles: 9-2LE (UCA guideline, 2004) and the preferred rates of IEC 61869-9:2016, table 902.
    pub const ALL: [Profile; 6] = [
        Profile { name: "9-2le-50", samples_per_s: 4000, asdus: 1, hz: 50 },
        Profile { name: "9-2le-60", samples_per_s: 4800, asdus: 1, hz: 60 },
        Profile { name: "9-2le-50-meas", samples_per_s: 12800, asdus: 8, hz: 50 },
        Profile { name: "9-2le-60-meas", samples_per_s: 15360, asdus: 8, hz: 60 },
        Profile { name: "f4800s2", samples_per_s: 4800, asdus: 2, hz: 50 },
        Profile { name: "f14400s6", samples_per_s: 14400, asdus: 6, hz: 50 },
    ];

    /// Frames per second.
    pub fn frames_per_s(&self) -> u32 {
        self.samples_per_s / u32::from(self.asdus)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// An unknown profile name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: no such profile (there are: {list})", list = Profile::ALL.map(|p| p.name).join(", "))]
pub struct UnknownProfile(pub String);

impl FromStr for Profile {
    type Err = UnknownProfile;
    fn from_str(s: &str) -> Result<Self, UnknownProfile> {
        Self::ALL.into_iter().find(|p| p.name.eq_ignore_ascii_case(s)).ok_or_else(|| UnknownProfile(s.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_per_second_follow_the_guidelines() {
        assert_eq!(Profile::ALL.map(|p| p.frames_per_s()), [4000, 4800, 1600, 1920, 2400, 2400]);
    }

    #[test]
    fn a_profile_is_found_by_its_name_in_any_case() {
        for p in Profile::ALL {
            assert_eq!(p.name.to_uppercase().parse(), Ok(p));
        }
        let error = "9-2le".parse::<Profile>().unwrap_err().to_string();
        assert!(error.contains("9-2le-50") && error.contains("f14400s6"), "{error}");
    }
}
