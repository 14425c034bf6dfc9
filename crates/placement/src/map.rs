//! The map of CPUs: the purpose of each, and the threads and interrupts that may run there.

use crate::collision::Collision;
use crate::placement::{CpuUse, Placement, Worker};
use latpath_linux::Cpus;
use latpath_settings::Setting;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// CPUs with the same use and the same work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuRow {
    /// The CPUs.
    #[schemars(with = "String")]
    pub cpus: Cpus,
    /// Purpose of these CPUs.
    pub kept_for: CpuUse,
    /// Their NUMA node.
    pub node: Option<u32>,
    /// The other CPUs of their cores.
    #[schemars(with = "String")]
    pub siblings: Cpus,
    /// Threads that are pinned here, with policy and priority: `guest7 vCPU 0 (fifo 1)`.
    pub threads: Vec<String>,
    /// Interrupts that are served here: `eth0-rx-0 (45, fifo 50)`.
    pub interrupts: Vec<String>,
    /// Policies and priorities of the per-CPU kernel threads: `ksoftirqd other`.
    pub kernel: Vec<String>,
    /// Whether threads or interrupts disturb each other here.
    pub has_collision: bool,
}

/// The map of a machine's CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuMap {
    /// Groups of CPUs with the same use and the same work, the lowest CPUs first.
    pub rows: Vec<CpuRow>,
    /// Threads that may run on all CPUs that are not isolated.
    pub unpinned: Vec<String>,
    /// Threads and interrupts that disturb each other.
    pub collisions: Vec<Collision>,
}

impl CpuMap {
    /// Creates the map of a placement.
    pub fn of(placement: &Placement) -> Self {
        let collisions = placement.collisions();
        let (pinned, unpinned): (Vec<&Worker>, Vec<&Worker>) =
            placement.workers.iter().partition(|worker| placement.is_pinned(worker));
        let mut rows: Vec<CpuRow> = Vec::new();
        for cpu in placement.online.iter() {
            let row = row(placement, cpu, &pinned, &collisions);
            match rows.iter_mut().find(|known| is_alike(known, &row)) {
                Some(known) => {
                    known.cpus.join(row.cpus);
                    known.siblings.join(row.siblings);
                }
                None => rows.push(row),
            }
        }
        let unpinned = unpinned.into_iter().map(described).collect();
        Self { rows, unpinned, collisions }
    }
}

fn is_alike(a: &CpuRow, b: &CpuRow) -> bool {
    let of = |row: &CpuRow| (row.kept_for, row.node, row.has_collision, row.siblings.is_empty());
    of(a) == of(b) && a.threads == b.threads && a.interrupts == b.interrupts && a.kernel == b.kernel
}

fn described(worker: &Worker) -> String {
    match worker.scheduling.as_str() {
        "" | "other" => worker.name.clone(),
        scheduling => format!("{} ({scheduling})", worker.name),
    }
}

fn row(placement: &Placement, cpu: u32, pinned: &[&Worker], collisions: &[Collision]) -> CpuRow {
    let interrupts = placement.interrupts.iter().filter(|interrupt| interrupt.serving.contains(cpu));
    let interrupt = |interrupt: &crate::Interrupt| {
        let details: Vec<String> =
            interrupt.number.map(|n| n.to_string()).into_iter().chain(interrupt.thread.clone()).collect();
        match details.is_empty() {
            true => interrupt.name.clone(),
            false => format!("{} ({})", interrupt.name, details.join(", ")),
        }
    };
    let own = [
        ("ksoftirqd", Setting::KsoftirqdPriority),
        ("ktimers", Setting::KtimersPriority),
        ("rcuc", Setting::RcucPriority),
    ];
    let kernel = own.into_iter().filter_map(|(name, setting)| {
        let (_, value) = placement.each_cpu(setting).find(|(of, _)| *of == cpu)?;
        (value != "other").then(|| format!("{name} {value}"))
    });
    let only: Cpus = [cpu].into_iter().collect();
    CpuRow {
        kept_for: placement.use_of(cpu),
        node: placement.nodes.get(&cpu).copied(),
        siblings: placement.siblings.get(&cpu).map_or_else(Cpus::default, |all| all.without(&only)),
        threads: pinned.iter().filter(|worker| worker.cpus.contains(cpu)).map(|worker| described(worker)).collect(),
        interrupts: interrupts.map(interrupt).collect(),
        kernel: kernel.collect(),
        has_collision: collisions.iter().any(|collision| collision.cpus.contains(cpu)),
        cpus: only,
    }
}
