//! The times at which a stream's packets are due, by their numbers. A packet that reaches the first point late was
//! delayed before it, which no segment shows.

use latpath_model::Ns;

/// Packets per block: the least late packet of a block defines the due times of the next.
const BLOCK: i64 = 1024;
/// Number of blocks from which the interval is learned: approximately from the first packet to the last of one block,
/// then exactly from the least late packet of one block to that of another.
const LEARNING: u8 = 3;
/// Lateness beyond which the sender is taken to have paused or restarted, ns.
const MAX_LATE: Ns = 1_000_000_000;
const MAX_EARLY: Ns = 10_000_000;

/// The place of a packet in the stream, and its time.
type Place = (i64, Ns);

/// The schedule of one stream, learned from its punctual packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Schedule {
    newest: Option<(u32, i64)>,
    /// A punctual packet. `rate.0` packets take `rate.1` ns.
    on_time: Place,
    rate: (i64, Ns),
    /// Place of the block's first packet. `least`: lateness, place and time of the block's least late packet.
    block: i64,
    least: Option<(Ns, Place)>,
    blocks: u8,
}

impl Schedule {
    /// The newest packet's key.
    pub fn newest(&self) -> Option<u32> {
        self.newest.map(|(key, _)| key)
    }

    /// Lateness of a packet `steps` after the newest so far (`None` if unknown), ns; 0 while the schedule is unknown.
    pub fn late_by(&mut self, key: u32, t: Ns, steps: Option<u64>) -> Ns {
        let steps = steps.and_then(|steps| i64::try_from(steps).ok()).filter(|steps| *steps > 0);
        let at = self.newest.zip(steps).and_then(|((_, newest), steps)| newest.checked_add(steps));
        let off = at.map_or(0, |at| t.saturating_sub(self.due(at).unwrap_or(t)));
        let Some(at) = at.filter(|_| (-MAX_EARLY..MAX_LATE).contains(&off)) else {
            *self = Self { newest: Some((key, 0)), on_time: (0, t), ..Self::default() };
            return 0;
        };
        self.newest = Some((key, at));
        if self.least.is_none_or(|(least, _)| off < least) {
            self.least = Some((off, (at, t)));
        }
        let is_known = self.blocks >= LEARNING;
        if at - self.block >= BLOCK {
            let best = match self.least.take() {
                Some((_, best)) if self.blocks > 0 => best,
                _ => (at, t),
            };
            let (packets, time) = (best.0 - self.on_time.0, best.1.saturating_sub(self.on_time.1));
            if packets >= BLOCK / 4 && time > 0 {
                self.rate = (packets, time);
            }
            (self.on_time, self.block, self.blocks) = (best, at, self.blocks.saturating_add(1));
        }
        if is_known {
            off.max(0)
        } else {
            0
        }
    }

    /// Due time of a packet.
    fn due(&self, at: i64) -> Option<Ns> {
        let (packets, time) = self.rate;
        let steps = at - self.on_time.0;
        let after = match steps.checked_mul(time) {
            Some(product) => product.checked_div(packets)?,
            None => Ns::try_from((i128::from(steps) * i128::from(time)).checked_div(packets.into())?).ok()?,
        };
        Some(self.on_time.1.saturating_add(after))
    }
}
