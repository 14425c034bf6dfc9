//! Parts of commands, as a shell and its tools take them.

use latpath_linux::Cpus;
use latpath_model::{text::quoted, StreamSpec};

/// Where a thread's control group is. Beside groups of version 1 their mount is not /sys/fs/cgroup, where the shell would make
/// a plain file of what it does not find.
pub(super) fn group_of(pid: u32) -> String {
    format!("$(findmnt -fnt cgroup2 -o TARGET)$(sed -n 's/^0:://p' /proc/{pid}/cgroup)")
}

/// The same of version 1, where each controller, as `cpu`, has groups of its own.
pub(super) fn old_group_of(pid: u32, controller: &str) -> String {
    format!(
        "$(findmnt -fnt cgroup -O {controller} -o TARGET)$(sed -nE 's/^[0-9]+:([^:]*,)?{controller}(,[^:]*)?://p' /proc/{pid}/cgroup)"
    )
}

/// A point's device, and what a command has to begin with to find it: another device of that name may be in another namespace.
pub(super) fn in_namespace(device: &str) -> (&str, String) {
    let Some((name, netns)) = device.split_once('%') else { return (device, String::new()) };
    let within = if netns.chars().all(|c| c.is_ascii_digit()) {
        // By a process that is in it, since it has no name.
        format!("nsenter -t $(lsns -no PID -t net {netns} | head -1) -n ")
    } else {
        format!("nsenter --net=/run/netns/{} ", quoted(netns))
    };
    (name, within)
}

/// A point's device, and the named namespace that it is in, if any: `ip netns exec` shows the files in /sys of that one. None
/// where the namespace has no name.
pub(super) fn in_sysfs_of(device: &str) -> Option<(&str, Option<&str>)> {
    match device.split_once('%') {
        None => Some((device, None)),
        Some((_, netns)) if netns.chars().all(|c| c.is_ascii_digit()) => None,
        Some((name, netns)) => Some((name, Some(netns))),
    }
}

/// CPUs as the kernel's masks have them: `f0`, `1,00000000`.
pub(super) fn mask(cpus: &[u32]) -> String {
    let words = cpus.iter().max().map_or(1, |last| last / 32 + 1);
    let word = |n: u32| cpus.iter().filter(|cpu| **cpu / 32 == n).fold(0_u32, |word, cpu| word | 1 << (cpu % 32));
    let mut mask = format!("{:x}", word(words - 1));
    (0..words - 1).rev().for_each(|n| mask += &format!(",{:08x}", word(n)));
    mask
}

/// A stream as ovs-fields(7) matches it.
pub(super) fn flow(stream: &StreamSpec) -> String {
    let mut text = stream.matcher.flow();
    let link = stream.link;
    if let Some(vlan) = link.vlan {
        text += &format!(",dl_vlan={vlan}");
    }
    if let Some(mac) = link.mac {
        let mac: Vec<String> = mac.iter().map(|b| format!("{b:02x}")).collect();
        text += &format!(",dl_dst={}", mac.join(":"));
    }
    text
}

/// A port's name as ovs-ofctl(8) takes it for one: in double quotes, where a comma would begin another action.
pub(super) fn ofctl_port(name: &str) -> String {
    match name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
        true => name.to_owned(),
        false => format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\"")),
    }
}

pub(super) fn list(cpus: &Cpus) -> Vec<u32> {
    cpus.iter().collect()
}

pub(super) fn text(cpus: &[u32]) -> String {
    cpus.iter().copied().collect::<Cpus>().to_string()
}

#[cfg(test)]
mod tests {
    use super::mask;

    #[test]
    fn cpus_are_masks_of_32() {
        assert_eq!(
            ["f0", "1,00000001", "1,00000000,00000000"],
            [mask(&[4, 5, 6, 7]), mask(&[0, 32]), mask(&[64])].each_ref().map(String::as_str)
        );
    }
}
