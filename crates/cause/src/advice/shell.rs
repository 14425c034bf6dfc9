//! Parts of commands, in the syntax of the shell and its tools.

use latpath_linux::Cpus;
use latpath_model::{text::quoted, PointInfo, StreamSpec};
use latpath_net::{namespace_names, Netns};
use std::borrow::Cow;

/// Shell expression for the directory of a thread's control group. It looks up the mount point: on hybrid hierarchies,
/// cgroup2 is not mounted at /sys/fs/cgroup, and a redirection to a missing path there would create a plain file.
pub(super) fn group_of(pid: u32) -> String {
    format!("$(findmnt -fnt cgroup2 -o TARGET)$(sed -n 's/^0:://p' /proc/{pid}/cgroup)")
}

/// Shell expression for the directory of a thread's control group of version 1, where each controller, e.g. `cpu`, has
/// its own groups.
pub(super) fn old_group_of(pid: u32, controller: &str) -> String {
    format!(
        "$(findmnt -fnt cgroup -O {controller} -o TARGET)$(sed -nE 's/^[0-9]+:([^:]*,)?{controller}(,[^:]*)?://p' /proc/{pid}/cgroup)"
    )
}

/// A network namespace other than that of the user's shell.
pub(super) enum Elsewhere<'a> {
    Named(Cow<'a, str>),
    /// The namespace's inode number, if its name is unknown.
    Unnamed(u32),
}

impl Elsewhere<'_> {
    /// Its name, if known.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Named(name) => Some(name),
            Self::Unnamed(_) => None,
        }
    }

    /// Prefix of a command that runs in the namespace.
    pub(super) fn enter(&self) -> String {
        match self {
            Self::Named(name) => format!("ip netns exec {} ", quoted(name)),
            Self::Unnamed(inode) => format!(
                "nsenter --net=$(find -L /run/netns/* /proc/[0-9]*/ns/net -inum {inode} -print -quit 2>/dev/null) "
            ),
        }
    }

    /// Wraps a command so that it runs in the namespace, with the namespace's devices in /sys.
    pub(super) fn with_sysfs(&self, command: &str) -> String {
        match self {
            Self::Named(name) => format!("ip netns exec {} sh -c {}", quoted(name), quoted(command)),
            Self::Unnamed(_) => {
                let command = format!("mount -t sysfs sysfs /sys && {command}");
                format!("{}unshare -m sh -c {}", self.enter(), quoted(&command))
            }
        }
    }
}

/// A point's device, and its namespace if it differs from this program's: device names are unique only within a
/// namespace.
pub(super) fn device_of(info: &PointInfo) -> (&str, Option<Elsewhere<'_>>) {
    let device = info.point.device.as_str();
    let (name, space) = device.split_once('%').map_or((device, None), |(name, space)| (name, Some(space)));
    let elsewhere = match space {
        Some(space) if space != info.netns.to_string() => Some(Elsewhere::Named(space.into())),
        _ if info.netns == 0 || Netns::own().is_ok_and(|own| own.inode() == info.netns) => None,
        _ => Some(named_here(info.netns).map_or(Elsewhere::Unnamed(info.netns), |name| Elsewhere::Named(name.into()))),
    };
    (name, elsewhere)
}

/// This machine's name for a network namespace.
fn named_here(inode: u32) -> Option<String> {
    namespace_names().remove(&inode).filter(|name| !name.is_empty())
}

/// CPUs as a mask in the kernel's format: `f0`, `1,00000000`.
pub(super) fn mask(cpus: &[u32]) -> String {
    let words = cpus.iter().max().map_or(1, |last| last / 32 + 1);
    let word = |n: u32| cpus.iter().filter(|cpu| **cpu / 32 == n).fold(0_u32, |word, cpu| word | 1 << (cpu % 32));
    let mut mask = format!("{:x}", word(words - 1));
    (0..words - 1).rev().for_each(|n| mask += &format!(",{:08x}", word(n)));
    mask
}

/// A stream as an OpenFlow match, see ovs-fields(7).
pub(super) fn flow(stream: &StreamSpec) -> String {
    let mut text = stream.matcher.flow();
    let link = stream.link;
    if let Some(vlan) = link.vlan {
        text += &format!(",dl_vlan={vlan}");
    }
    if let Some(mac) = link.dst {
        let mac: Vec<String> = mac.iter().map(|b| format!("{b:02x}")).collect();
        text += &format!(",dl_dst={}", mac.join(":"));
    }
    text
}

/// A port's name for ovs-ofctl(8), in double quotes if it has special characters: a comma, for example, would start
/// another action.
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
