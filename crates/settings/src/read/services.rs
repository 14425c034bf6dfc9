//! Threads of programs on which other settings depend: Open vSwitch, and programs that set clocks.

use super::Source;
use latpath_linux::proc::{cpus_allowed, Stat};
use latpath_linux::Cpus;
use std::collections::BTreeMap;

/// Programs that set clocks.
pub(crate) const CLOCK_SERVICES: [&str; 7] =
    ["ptp4l", "phc2sys", "ts2phc", "timemaster", "chronyd", "ntpd", "systemd-timesyn"];
/// Open vSwitch's program, whose threads are read individually.
const SWITCH: &str = "ovs-vswitchd";
/// Maximum number of threads that are read.
const MAX: usize = 1024;

/// A thread of a service.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    /// The program's name, followed by the thread's name for Open vSwitch: `ptp4l`, `ovs-vswitchd pmd-c03/id:9`.
    pub name: String,
    pub tid: u32,
    pub stat: Stat,
    pub cpus: Option<Cpus>,
}

/// The threads of services, named after their programs. Further threads of the same name are numbered.
pub(super) fn find(source: &Source) -> Vec<Service> {
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    let mut all = Vec::new();
    for (pid, program) in source.programs() {
        let is_switch = program == SWITCH;
        if !is_switch && !CLOCK_SERVICES.contains(&program.as_str()) {
            continue;
        }
        let tids = match is_switch {
            true => source.root.numbers(&format!("proc/{pid}/task"), MAX).unwrap_or_default(),
            false => vec![*pid],
        };
        for tid in tids {
            let folder = if is_switch { format!("proc/{pid}/task/{tid}") } else { format!("proc/{pid}") };
            let Some(stat) = Stat::read(&source.root, &folder) else { continue };
            let name = if tid == *pid { program.clone() } else { format!("{program} {}", without_id(&stat.comm)) };
            let count = known.entry(name.clone()).or_default();
            *count += 1;
            let name = if *count == 1 { name } else { format!("{name} #{count}") };
            if all.len() < MAX {
                all.push(Service { name, tid, cpus: cpus_allowed(&source.root, &folder), stat });
            }
        }
    }
    all
}

/// The name of an Open vSwitch thread (`pmd-c03/id:9`, `handler3`, `revalidator12`) without the ID that differs at each
/// start.
fn without_id(comm: &str) -> &str {
    let name = comm.split("/id:").next().unwrap_or(comm);
    match name.starts_with("pmd-") {
        true => name,
        false => name.trim_end_matches(|c: char| c.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests {
    use super::without_id;

    #[test]
    fn a_threads_name_is_the_same_after_a_start() {
        assert_eq!(
            ["pmd-c03/id:9", "handler3", "revalidator12", "urcu1"].map(without_id),
            ["pmd-c03", "handler", "revalidator", "urcu"]
        );
    }
}
