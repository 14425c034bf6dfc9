//! Gaps in the recording.

use latpath_model::Ns;

/// Intervals without recording, which must not be mistaken for idle CPUs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gaps {
    /// Start and end of each gap, the latest last; the last may still be open.
    gaps: Vec<(Ns, Option<Ns>)>,
    /// End of the latest gap that is no longer kept.
    forgotten: Ns,
}

impl Gaps {
    /// Maximum number of gaps kept; few are needed, because rings cover only some tenths of a second.
    const MAX: usize = 8;

    /// Begins a gap, unless one is open.
    pub fn begin(&mut self, now: Ns) {
        if self.gaps.last().is_some_and(|gap| gap.1.is_none()) {
            return;
        }
        if self.gaps.len() == Self::MAX {
            self.forgotten = self.gaps.remove(0).1.unwrap_or(now);
        }
        self.gaps.push((now, None));
    }

    pub fn end(&mut self, now: Ns) {
        self.gaps.iter_mut().filter(|gap| gap.1.is_none()).for_each(|gap| gap.1 = Some(now));
    }

    /// The interval around `to` without a gap: from the end of the last gap that began before `to` to the beginning of
    /// the next.
    pub fn around(&self, started: Ns, to: Ns) -> (Ns, Ns) {
        let before = self.gaps.iter().rev().find(|(begin, _)| *begin < to);
        let after = self.gaps.iter().find(|(begin, _)| *begin >= to);
        let from = before.map_or(started.max(self.forgotten), |(_, end)| end.unwrap_or(Ns::MAX));
        (from, after.map_or(Ns::MAX, |(begin, _)| *begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_knows_the_time_without_a_gap() {
        let mut gaps = Gaps::default();
        assert_eq!(gaps.around(5, 100), (5, Ns::MAX));
        gaps.begin(50);
        assert_eq!((gaps.around(5, 40), gaps.around(5, 100)), ((5, 50), (Ns::MAX, Ns::MAX)));
        gaps.end(70);
        assert_eq!(
            (gaps.around(5, 40), gaps.around(5, 60), gaps.around(5, 100)),
            ((5, 50), (70, Ns::MAX), (70, Ns::MAX))
        );
        for at in 0..20 {
            gaps.begin(100 + 10 * at);
            gaps.end(105 + 10 * at);
        }
        assert!(gaps.gaps.len() <= Gaps::MAX);
        assert_eq!(gaps.around(5, 60), (215, 220), "what was before the gaps that are remembered is not known");
    }
}
