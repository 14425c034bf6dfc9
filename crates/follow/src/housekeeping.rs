//! Keeping latpath's own threads out of the way: off the CPUs that the user has set apart for real-time work.

use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::Pid;

/// Reads a kernel CPU list: `0-3,8,10-11`.
fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.trim().parse::<usize>().ok()?..=to.trim().parse::<usize>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// CPUs that the user set apart: isolated ones, and those without a scheduler tick.
fn set_apart() -> Vec<usize> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/devices/system/cpu/{name}")).unwrap_or_default();
    ["isolated", "nohz_full"].iter().flat_map(|name| parse_list(&read(name))).collect()
}

/// Moves this thread, and those that it starts from now on, off the CPUs that the user set apart. Does nothing where no
/// CPU would be left. Returns the CPUs that are avoided.
pub fn keep_off_isolated_cpus() -> Vec<usize> {
    let me = Pid::from_raw(0);
    let avoid = set_apart();
    let Ok(allowed) = sched_getaffinity(me) else { return Vec::new() };
    let mut keep = CpuSet::new();
    let mut any = false;
    for cpu in (0..CpuSet::count()).filter(|c| allowed.is_set(*c).unwrap_or(false) && !avoid.contains(c)) {
        any |= keep.set(cpu).is_ok();
    }
    if avoid.is_empty() || !any || sched_setaffinity(me, &keep).is_err() {
        return Vec::new();
    }
    avoid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(parse_list("\n"), Vec::<usize>::new());
        assert_eq!(parse_list(" (null)"), Vec::<usize>::new());
    }
}
