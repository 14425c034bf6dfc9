//! Times in which nothing was recorded.

use latpath_model::Ns;

/// Times in which nothing was recorded, so that nobody takes silence for a CPU on which nothing happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gaps {
    /// From when to when, the latest last; the last may go on.
    gaps: Vec<(Ns, Option<Ns>)>,
    /// End of the latest gap that is not remembered.
    forgotten: Ns,
}

impl Gaps {
    /// Gaps that are remembered. Rings keep some tenths of a second.
    const MOST: usize = 8;

    /// Begins one, unless one goes on.
    pub fn begin(&mut self, now: Ns) {
        if self.gaps.last().is_some_and(|gap| gap.1.is_none()) {
            return;
        }
        if self.gaps.len() == Self::MOST {
            self.forgotten = self.gaps.remove(0).1.unwrap_or(now);
        }
        self.gaps.push((now, None));
    }

    pub fn end(&mut self, now: Ns) {
        self.gaps.iter_mut().filter(|gap| gap.1.is_none()).for_each(|gap| gap.1 = Some(now));
    }

    /// The time around `to` without a gap in it: from after the last gap that began before `to`, until the next one begins.
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
        assert!(gaps.gaps.len() <= Gaps::MOST);
        assert_eq!(gaps.around(5, 60), (215, 220), "what was before the gaps that are remembered is not known");
    }
}
