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
