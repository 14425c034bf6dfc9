//! Pseudo-random numbers that are the same on every machine.

/// An xorshift64* generator, sufficient for noise. The field is the seed, which must not be 0.
#[derive(Clone, Debug)]
pub struct Noise(pub u64);

impl Noise {
    /// The next random number.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A random number between 0 and 1, both exclusive.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        ((self.draw() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// A random integer below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u32) -> u32 {
        (self.draw() >> 33) as u32 % end.max(1)
    }

    /// Returns true with a probability of 1 in `n`.
    pub fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}
