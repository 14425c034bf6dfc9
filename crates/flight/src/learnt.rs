//! Names of interrupts and functions, read from /proc in the background, and again when an unknown number or address
//! occurs.

use latpath_bpf::interrupts;
use latpath_bpf::Functions;
use latpath_linux::background::lower_priority;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Minimum interval between reads.
const AGAIN: Duration = Duration::from_secs(10);

#[derive(Default)]
struct LearntNames {
    irqs: HashMap<u32, String>,
    functions: Arc<Functions>,
    begun: Option<Instant>,
    done: bool,
}

/// The names known so far.
#[derive(Clone, Default)]
pub(crate) struct Learnt(Arc<Mutex<LearntNames>>);

impl Learnt {
    fn lock(&self) -> MutexGuard<'_, LearntNames> {
        // Each change is a single assignment, so the data are consistent even if a thread panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts reading the names in the background, unless that is in progress or was done recently.
    pub fn begin(&self) {
        let mut known = self.lock();
        if known.begun.is_some_and(|at| !known.done || at.elapsed() < AGAIN) {
            return;
        }
        (known.begun, known.done) = (Some(Instant::now()), false);
        drop(known);
        let learnt = self.clone();
        let reader = std::thread::Builder::new().name("lp-names".into()).spawn(move || {
            lower_priority();
            let (irqs, functions) = (interrupts(), Functions::read());
            let mut known = learnt.lock();
            (known.irqs, known.functions, known.done) = (irqs, functions, true);
        });
        if reader.is_err() {
            // Names remain unknown; the next snapshot tries again.
            self.lock().done = true;
        }
    }

    pub fn is_done(&self) -> bool {
        self.lock().done
    }

    /// The known names of these interrupts, functions, and addresses within functions. If some of the first two are
    /// unknown, starts reading them.
    pub fn names(
        &self,
        irqs: &BTreeSet<u32>,
        functions: &BTreeSet<u64>,
        places: &BTreeSet<u64>,
    ) -> (BTreeMap<u32, String>, BTreeMap<u64, String>) {
        let known = self.lock();
        let irq = |number: &u32| Some((*number, known.irqs.get(number)?.clone()));
        let found: BTreeMap<_, _> = irqs.iter().filter_map(irq).collect();
        let function = |address: &u64| Some((*address, known.functions.at(*address)?.to_string()));
        let mut named: BTreeMap<_, _> = functions.iter().filter_map(function).collect();
        let is_missing = found.len() < irqs.len() || named.len() < functions.len();
        named.extend(places.iter().filter_map(|at| Some((*at, known.functions.find(*at)?.to_owned()))));
        drop(known);
        if is_missing {
            self.begin();
        }
        (found, named)
    }
}
