//! Synthetic samples of a merging unit: four currents and four voltages, each with its quality.

use std::f64::consts::{SQRT_2, TAU};

/// Length of 9-2LE's data set PhsMeas1: 8 values of 4 bytes, each followed by 4 bytes of quality.
pub const PHSMEAS1_LEN: usize = 64;

/// Amplitude of each phase current, in units of 1 mA (scaling of 9-2LE): 1000 A rms.
const CURRENT_MA: f64 = 1_000_000.0;
/// Amplitude of each phase voltage, in units of 10 mV: 110 kV rms between phases.
const VOLTAGE_10MV: f64 = 11_000_000.0 / 1.732_050_807_568_877_2;
/// Phase lag of the currents: 30 degrees, in radians.
const LAG: f64 = TAU / 12.0;
/// Quality "good, derived": the neutral is the sum of the phases (9-2LE, 7.1.4).
const DERIVED: u32 = 0x2000;

/// Number of currents at the start of a sample.
const CURRENTS: usize = 4;

/// One period of a balanced three-phase system, repeated.
#[derive(Clone, Debug)]
pub struct Waveform {
    period: Vec<[u8; PHSMEAS1_LEN]>,
}

impl Waveform {
    /// Creates a sine wave of `hz`, sampled `samples_per_s` times per second. The period is rounded to whole samples.
    pub fn new(samples_per_s: u32, hz: u32) -> Self {
        let n = (samples_per_s / hz.max(1)).max(1);
        let period = (0..n).map(|i| {
            let angle = TAU * f64::from(i) / f64::from(n);
            let phases = |rms: f64, lag: f64| {
                let [a, b, c] =
                    [0.0, 1.0, 2.0].map(|k| (rms * SQRT_2 * (angle - lag - k * TAU / 3.0).sin()).round() as i32);
                [a, b, c, a + b + c]
            };
            let mut data = [0; PHSMEAS1_LEN];
            let values = [phases(CURRENT_MA, LAG), phases(VOLTAGE_10MV, 0.0)].concat();
            for (k, (value, slot)) in values.into_iter().zip(data.chunks_exact_mut(8)).enumerate() {
                let quality = if k % 4 == 3 { DERIVED } else { 0 };
                slot[..4].copy_from_slice(&value.to_be_bytes());
                slot[4..].copy_from_slice(&quality.to_be_bytes());
            }
            data
        });
        Self { period: period.collect() }
    }

    /// The same waveform during a fault: all currents are multiplied by a factor.
    pub fn with_currents(&self, times: u32) -> Self {
        let mut period = self.period.clone();
        for slot in period.iter_mut().flat_map(|data| data.chunks_exact_mut(8).take(CURRENTS)) {
            if let Some(value) = slot.first_chunk_mut::<4>() {
                *value = i32::from_be_bytes(*value).saturating_mul(times.min(i32::MAX as u32) as i32).to_be_bytes();
            }
        }
        Self { period }
    }

    /// The data of sample number `n`.
    pub fn sample(&self, n: u64) -> &[u8; PHSMEAS1_LEN] {
        &self.period[(n % self.period.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(data: &[u8; PHSMEAS1_LEN], k: usize) -> i32 {
        i32::from_be_bytes(data[8 * k..8 * k + 4].try_into().unwrap())
    }

    #[test]
    fn voltages_peak_after_a_quarter_period() {
        let wave = Waveform::new(4000, 50);
        assert_eq!(value(wave.sample(0), 4), 0);
        let peak = VOLTAGE_10MV * SQRT_2;
        assert_eq!(value(wave.sample(20), 4), peak.round() as i32);
        assert_eq!(wave.sample(20), wave.sample(100));
    }

    #[test]
    fn a_fault_multiplies_the_currents_alone() {
        let wave = Waveform::new(4000, 50);
        let fault = wave.with_currents(7);
        for n in 0..80 {
            for k in 0..8 {
                let times = if k < 4 { 7 } else { 1 };
                assert_eq!(value(fault.sample(n), k), times * value(wave.sample(n), k));
            }
        }
    }

    #[test]
    fn the_neutral_is_derived_and_almost_zero() {
        let wave = Waveform::new(14400, 50);
        for n in 0..288 {
            let data = wave.sample(n);
            assert!(value(data, 3).abs() <= 2 && value(data, 7).abs() <= 2);
            assert_eq!(data[28..32], DERIVED.to_be_bytes());
            assert_eq!(data[4..8], [0; 4]);
        }
    }
}
