//! What differs between two profiles.

use super::contexts::is_on_every_path;
use super::{functions, Function, Modes};
use latpath_model::Ns;
use latpath_profile::{Profile, Window};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Two profiles beside each other.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Diff {
    /// What the earlier one is of.
    pub before: Window,
    /// What the later one is of.
    pub after: Window,
    /// Where CPUs' time went before.
    pub modes_before: Modes,
    /// Where it went after.
    pub modes_after: Modes,
    /// Functions by context, those that moved most first; without such as all system calls or all threads of the
    /// kernel go through.
    pub moved: Vec<Moved>,
}

/// A function in one context. A CPU that did nothing else would have 10^9 ns a second.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Moved {
    /// The function.
    pub function: String,
    /// Whether it is the kernel's.
    pub in_kernel: bool,
    /// The guest that it ran in; `null` on the host.
    pub guest: Option<String>,
    /// The process.
    pub process: String,
    /// Under what it ran there.
    pub under: Option<String>,
    /// Time in it and in what it called, for each second, before.
    pub before_ns_per_s: Ns,
    /// The same after.
    pub after_ns_per_s: Ns,
    /// The part of all the function's time before that was in this context.
    pub share_before: Option<f64>,
    /// The same after.
    pub share_after: Option<f64>,
}

/// A function's time in a context, and in all.
type Times = BTreeMap<(Function, String, Option<String>), (Ns, Ns)>;

fn times(profile: &Profile) -> Times {
    let mut times = Times::new();
    let all = functions(profile).into_iter().filter(|(function, _)| !is_on_every_path(&function.name));
    for (function, time) in all {
        for ((process, under), ns) in time.contexts {
            times.insert((function.clone(), process, under), (ns, time.total));
        }
    }
    times
}

impl Diff {
    /// Compares an earlier profile and a later one.
    pub fn new(before: &Profile, after: &Profile) -> Self {
        let (was, is) = (times(before), times(after));
        let totals = |times: &Times| -> BTreeMap<Function, Ns> {
            times.iter().map(|((function, ..), (_, total))| (function.clone(), *total)).collect()
        };
        let (all_before, all_after) = (totals(&was), totals(&is));
        let keys: std::collections::BTreeSet<_> = was.keys().chain(is.keys()).collect();
        // A profile that somebody has edited may have any window.
        let per_s = |ns: Ns, profile: &Profile| {
            let per_s = i128::from(ns) * 1_000_000_000 / i128::from(profile.window_ns.max(1));
            Ns::try_from(per_s).unwrap_or(Ns::MAX)
        };
        let share = |ns: Ns, all: Option<&Ns>| all.filter(|all| **all > 0).map(|all| ns as f64 / *all as f64);
        let mut moved: Vec<Moved> = keys
            .into_iter()
            .map(|key| {
                let [ns_before, ns_after] = [&was, &is].map(|times| times.get(key).map_or(0, |(ns, _)| *ns));
                let (function, process, under) = key.clone();
                Moved {
                    share_before: share(ns_before, all_before.get(&function)),
                    share_after: share(ns_after, all_after.get(&function)),
                    function: function.name,
                    in_kernel: function.in_kernel,
                    guest: function.guest,
                    process,
                    under,
                    before_ns_per_s: per_s(ns_before, before),
                    after_ns_per_s: per_s(ns_after, after),
                }
            })
            .collect();
        moved.sort_by_key(|moved| std::cmp::Reverse(moved.after_ns_per_s.abs_diff(moved.before_ns_per_s)));
        Self {
            before: before.window(),
            after: after.window(),
            modes_before: Modes::of_profile(before),
            modes_after: Modes::of_profile(after),
            moved,
        }
    }
}
