//! Differences between two profiles.

use super::contexts::is_on_every_path;
use super::{functions, Function, Modes};
use latpath_model::Ns;
use latpath_profile::{Profile, Window};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Two profiles side by side.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Diff {
    /// Window of the earlier profile.
    pub before: Window,
    /// Window of the later profile.
    pub after: Window,
    /// CPU time by mode, before.
    pub modes_before: Modes,
    /// CPU time by mode, after.
    pub modes_after: Modes,
    /// Functions by context, in descending order of change; excludes functions common to all system calls or kernel
    /// threads.
    pub moved: Vec<Moved>,
}

/// A function in one context. One fully used CPU is 10^9 ns per second.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Moved {
    /// The function.
    pub function: String,
    /// Whether it is a kernel function.
    pub in_kernel: bool,
    /// The guest in which it ran; `null` on the host.
    pub guest: Option<String>,
    /// The process.
    pub process: String,
    /// What the function ran in: a system call, an interrupt, a softirq, or the main function of a kernel thread. For a
    /// user-space function, its caller.
    pub under: Option<String>,
    /// Time in the function and its callees per second, before.
    pub before_ns_per_s: Ns,
    /// Time in the function and its callees per second, after.
    pub after_ns_per_s: Ns,
    /// Share of the function's total time in this context, before.
    pub share_before: Option<f64>,
    /// Share of the function's total time in this context, after.
    pub share_after: Option<f64>,
}

/// Key: function, process and context. Value: the function's time in this context, and in all contexts.
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
    /// Compares an earlier profile with a later one.
    pub fn new(before: &Profile, after: &Profile) -> Self {
        let (was, is) = (times(before), times(after));
        let totals = |times: &Times| -> BTreeMap<Function, Ns> {
            times.iter().map(|((function, ..), (_, total))| (function.clone(), *total)).collect()
        };
        let (all_before, all_after) = (totals(&was), totals(&is));
        let keys: std::collections::BTreeSet<_> = was.keys().chain(is.keys()).collect();
        // A profile file may have been edited, so any window length is possible.
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
