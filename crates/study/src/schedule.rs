//! The order of a study's trials: randomised complete blocks. Each repetition is a block that contains every cell once,
//! in its own random order, so that a drift over hours affects all cells alike.

use crate::Plan;

/// A combination of a plan's entries, by their indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// Index into the plan's directions.
    pub direction: usize,
    /// Index into the plan's topologies.
    pub topology: usize,
    /// Index into the plan's settings.
    pub settings: usize,
    /// Index into the plan's loads.
    pub load: usize,
}

impl Cell {
    /// All cells of a plan, in the order of the table.
    pub fn all(plan: &Plan) -> Vec<Self> {
        let mut all = Vec::new();
        for direction in 0..plan.directions.len() {
            for topology in 0..plan.topologies.len() {
                for settings in 0..plan.settings.len() {
                    all.extend((0..plan.loads.len()).map(|load| Self { direction, topology, settings, load }));
                }
            }
        }
        all
    }

    /// The names of its entries: direction, topology, settings, load.
    pub fn names<'p>(&self, plan: &'p Plan) -> [&'p str; 4] {
        [
            &plan.directions[self.direction].name,
            &plan.topologies[self.topology].name,
            &plan.settings[self.settings].name,
            &plan.loads[self.load].name,
        ]
    }

    /// The joined names: `in-bridge-nominal-idle`.
    pub fn label(&self, plan: &Plan) -> String {
        self.names(plan).join("-")
    }
}

/// One trial of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Number of the repetition, which is also the number of its block, counted from 1.
    pub repetition: u32,
    /// Its cell.
    pub cell: Cell,
}

impl Trial {
    /// All trials of a plan, in the order given by a seed. The order of a block depends only on the seed and on the
    /// block's number, so more repetitions do not change earlier ones.
    pub fn all(plan: &Plan, seed: u64) -> Vec<Self> {
        let cells = Cell::all(plan);
        let block = |repetition: u32| {
            let mut random = Random(seed ^ u64::from(repetition).wrapping_mul(0xD605_0BB5_1F3A_9C27));
            let mut order = cells.clone();
            for last in (1..order.len()).rev() {
                order.swap(last, random.below(last as u64 + 1) as usize);
            }
            order.into_iter().map(move |cell| Self { repetition, cell })
        };
        (1..=plan.repetitions).flat_map(block).collect()
    }

    /// Name of its directory: `r2-in-bridge-nominal-idle`.
    pub fn name(&self, plan: &Plan) -> String {
        format!("r{}-{}", self.repetition, self.cell.label(plan))
    }
}

/// Deterministic random numbers: splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A random number below `n`: the high half of a product (Lemire 2019), with a bias below n / 2^64.
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn plan(topologies: usize, loads: usize, repetitions: u32) -> Plan {
        let mut text = format!("name = 'x'\nrepetitions = {repetitions}\n");
        text += "[[direction]]\nname = 'in'\nstream = 'svid:A'\n[[direction]]\nname = 'out'\nstream = 'svid:B'\n";
        (0..topologies).for_each(|n| text += &format!("[[topology]]\nname = 't{n}'\n"));
        (0..loads).for_each(|n| text += &format!("[[load]]\nname = 'l{n}'\n"));
        Plan::parse(&text, "plan").unwrap()
    }

    proptest! {
        #[test]
        fn each_block_has_each_cell_once_and_the_seed_decides_the_order(
            seed: u64, topologies in 1..5_usize, loads in 1..4_usize, repetitions in 1..8_u32,
        ) {
            let plan = plan(topologies, loads, repetitions);
            let trials = Trial::all(&plan, seed);
            let cells: BTreeSet<Cell> = Cell::all(&plan).into_iter().collect();
            prop_assert_eq!(cells.len(), 2 * topologies * loads);
            for (at, block) in trials.chunks(cells.len()).enumerate() {
                prop_assert!(block.iter().all(|trial| trial.repetition as usize == at + 1));
                prop_assert_eq!(&block.iter().map(|trial| trial.cell).collect::<BTreeSet<_>>(), &cells);
            }
            prop_assert_eq!(&trials, &Trial::all(&plan, seed));
            let longer = Plan { repetitions: repetitions + 1, ..plan.clone() };
            prop_assert_eq!(&Trial::all(&longer, seed)[..trials.len()], &trials[..]);
            let names: BTreeSet<String> = trials.iter().map(|trial| trial.name(&plan)).collect();
            prop_assert_eq!(names.len(), trials.len());
        }
    }

    #[test]
    fn every_cell_comes_first_in_some_block() {
        let plan = plan(4, 2, 1000);
        let firsts = Trial::all(&plan, 7).chunks(16).map(|block| block[0].cell).collect::<BTreeSet<_>>();
        assert_eq!(firsts.len(), 16);
    }
}
