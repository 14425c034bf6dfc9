//! Chance that is the same on every machine.

/// xorshift64*: good enough for noise. It begins with what it is made of, which must not be 0.
#[derive(Clone, Debug)]
pub struct Noise(pub u64);

impl Noise {
    /// Any number.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number between 0 and 1, and neither of them.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        ((self.draw() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// A whole number below this one; 0 below 0.
    pub fn below(&mut self, end: u32) -> u32 {
        (self.draw() >> 33) as u32 % end.max(1)
    }

    /// Whether it happens, of something that happens once in so many times.
    pub fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}
