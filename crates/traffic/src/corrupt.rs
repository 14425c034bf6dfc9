//! Corrupts frames, for testing receivers.

use crate::Frames;
use latpath_model::Ns;
use latpath_wire::Deadlines;

/// Frames from another source, each truncated or changed after its ethertype; equal seeds give equal frames.
pub struct Corrupted<F> {
    frames: F,
    state: u64,
}

impl<F> Corrupted<F> {
    /// Corrupts the frames of `frames`.
    pub fn new(frames: F, seed: u64) -> Self {
        Self { frames, state: seed }
    }

    /// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.random() % n.max(1) as u64) as usize
    }
}

impl<F: Frames> Frames for Corrupted<F> {
    fn next(&mut self, out: &mut Vec<u8>) -> Option<Ns> {
        let due = self.frames.next(out)?;
        // Only bytes after the MAC addresses, tags and ethertype are changed, so that the frame still reaches its
        // listeners.
        let tag_at = |at| out.get(at..at + 2).is_some_and(|t| t == [0x81, 0x00] || t == [0x88, 0xa8]);
        let body = 14 + [12, 16].into_iter().take_while(|at| tag_at(*at)).count() * 4;
        let len = out.len();
        match self.random() % 4 {
            0 => {
                // The kernel discards tagged frames that end less than two bytes after their ethertype.
                let keep = body + 2 + self.below(len - body - 2);
                out.truncate(keep);
            }
            1 => {
                for _ in 0..=self.below(4) {
                    let at = body + self.below(len - body);
                    out[at] ^= 1 + self.below(255) as u8;
                }
            }
            2 => {
                // These are typically bytes with tags and lengths.
                let at = body + self.below(40.min(len - body));
                out[at] = [0x00, 0x7f, 0x80, 0x81, 0x82, 0x83, 0xff][self.below(7)];
            }
            _ => {
                out[body..].iter_mut().for_each(|byte| *byte = self.random() as u8);
            }
        }
        Some(due)
    }

    fn deadlines(&self) -> Option<Deadlines> {
        self.frames.deadlines()
    }
}
