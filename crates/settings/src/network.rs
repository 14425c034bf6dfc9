//! Settings of network devices that are read and written through rtnetlink and /proc/sys/net, in the device's network
//! namespace. If the machine is a directory tree, their values are in files below `sys/class/net/DEVICE/netlink`.

use crate::nic::{Answers, Nic, Refusal, Written};
use crate::read::devices::qdisc_kinds;
use latpath_net::{Change, Flag, Interface, Napi, Netns, Rtnetlink, Shaping, ROOT};
use latpath_protocols::stream::{format_mac, parse_mac};
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;

/// The value of an empty list, and of the network namespace of PID 1.
const NONE: &str = "none";

fn failed(error: impl std::fmt::Display) -> Refusal {
    Refusal::Failed(error.to_string())
}

/// Reads from the kernel, or from a file if the machine is a directory tree.
pub(crate) fn read(nic: &Nic, file: &str, of_kernel: impl FnOnce(&Netns) -> Option<String>) -> Option<String> {
    match nic.answers() {
        Answers::Kernel { netns, .. } => of_kernel(netns),
        Answers::Folder => nic.answer(file).map(|text| text.trim().to_owned()),
    }
}

/// Writes to the kernel, or to a file if the machine is a directory tree.
pub(crate) fn write(nic: &Nic, file: &str, value: &str, by_kernel: impl FnOnce(&Netns) -> Written) -> Written {
    match nic.answers() {
        Answers::Kernel { netns, .. } => by_kernel(netns),
        Answers::Folder if nic.answer(file).is_none() => {
            Err(Refusal::NotOffered(format!("{}: {} does not offer it", file, nic.name())))
        }
        Answers::Folder => fs::write(nic.answer_file(file), format!("{value}\n")).map_err(failed),
    }
}

fn change(nic: &Nic, file: &str, value: &str, change: Change) -> Written {
    write(nic, file, value, |netns| {
        Rtnetlink::open(netns).and_then(|net| net.set(nic.name(), &[change])).map_err(failed)
    })
}

fn on_or_off(nic: &Nic, value: &str, words: [&str; 2]) -> Result<bool, Refusal> {
    match words.iter().position(|word| *word == value) {
        Some(at) => Ok(at == 1),
        None => Err(failed(format!("{}: {value} is neither {} nor {}", nic.name(), words[1], words[0]))),
    }
}

fn flag_file(flag: Flag) -> &'static str {
    match flag {
        Flag::Multicast => "netlink/multicast",
        Flag::Arp => "netlink/arp",
        Flag::AllMulticast => "netlink/allmulticast",
        Flag::Promiscuous => "netlink/promiscuous",
    }
}

/// Whether a flag of the device is on.
pub(crate) fn flag(nic: &Nic, flag: Flag) -> Option<String> {
    match nic.answers() {
        Answers::Kernel { socket, .. } => {
            Some(if flag.is_on(socket.flags().ok()? as u32) { "on" } else { "off" }.into())
        }
        Answers::Folder => nic.answer(flag_file(flag)).map(|text| text.trim().to_owned()),
    }
}

pub(crate) fn set_flag(nic: &Nic, flag: Flag, value: &str) -> Written {
    let on = on_or_off(nic, value, ["off", "on"])?;
    change(nic, flag_file(flag), value, Change::Flag(flag, on))
}

/// Whether the device is up.
pub(crate) fn state(nic: &Nic) -> Option<String> {
    match nic.answers() {
        Answers::Kernel { socket, .. } => {
            Some(if socket.flags().ok()? & libc::IFF_UP != 0 { "up" } else { "down" }.into())
        }
        Answers::Folder => nic.answer("netlink/state").map(|text| text.trim().to_owned()),
    }
}

pub(crate) fn set_state(nic: &Nic, value: &str) -> Written {
    let up = on_or_off(nic, value, ["down", "up"])?;
    change(nic, "netlink/state", value, Change::Up(up))
}

/// Joins the items, keeping the kernel's order: the first address of a subnet is its primary one.
fn list(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    if all.is_empty() {
        NONE.into()
    } else {
        all.join(", ")
    }
}

/// Parses the items of a list such as `192.0.2.1/24, fd00::1/64`.
fn items<T>(nic: &Nic, value: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, Refusal> {
    if value == NONE {
        return Ok(Vec::new());
    }
    let one = |item: &str| parse(item.trim()).ok_or_else(|| failed(format!("{}: cannot read {item:?}", nic.name())));
    value.split(',').map(one).collect()
}

/// An address, its prefix length, and its broadcast address.
type HeldAddress = (IpAddr, u8, Option<IpAddr>);

fn held_text((address, prefix, broadcast): &HeldAddress) -> String {
    let broadcast = broadcast.map_or(String::new(), |broadcast| format!(" brd {broadcast}"));
    format!("{address}/{prefix}{broadcast}")
}

fn held(text: &str) -> Option<HeldAddress> {
    let (cidr, broadcast) = match text.split_once(" brd ") {
        Some((cidr, broadcast)) => (cidr, Some(broadcast.trim().parse().ok()?)),
        None => (text, None),
    };
    let (address, prefix) = cidr.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.parse().ok().filter(|prefix| *prefix <= longest)?;
    Some((address, prefix, broadcast))
}

fn held_by(net: &Rtnetlink, nic: &Nic) -> latpath_net::Result<Vec<HeldAddress>> {
    let ifindex = net.device(nic.name())?.ifindex;
    let all = net.addresses()?.into_iter().filter(|one| one.ifindex == ifindex && one.is_beyond_link);
    Ok(all.map(|one| (one.address, one.prefix, one.broadcast)).collect())
}

/// The device's addresses with a scope wider than the link. The kernel creates the others itself.
pub(crate) fn addresses(nic: &Nic) -> Option<String> {
    read(nic, "netlink/addresses", |netns| {
        let all = held_by(&Rtnetlink::open(netns).ok()?, nic).ok()?;
        Some(list(all.iter().map(held_text)))
    })
}

pub(crate) fn set_addresses(nic: &Nic, value: &str) -> Written {
    let wanted = items(nic, value, held)?;
    let value = list(wanted.iter().map(held_text));
    write(nic, "netlink/addresses", &value, |netns| {
        let set = || -> latpath_net::Result<()> {
            let net = Rtnetlink::open(netns)?;
            // Deleting a subnet's primary address also deletes the others, unless promote_secondaries is set. So check
            // whether each address still exists.
            for unwanted in held_by(&net, nic)?.iter().filter(|one| !wanted.contains(one)) {
                if held_by(&net, nic)?.contains(unwanted) {
                    net.delete_address(nic.name(), unwanted.0, unwanted.1)?;
                }
            }
            let has = held_by(&net, nic)?;
            for (address, prefix, broadcast) in wanted.iter().filter(|one| !has.contains(one)) {
                net.add_broadcast_address(nic.name(), *address, *prefix, *broadcast)?;
            }
            Ok(())
        };
        set().map_err(failed)
    })
}

/// Parses a neighbour: `192.0.2.2 02:00:00:00:00:02`.
fn neighbour(text: &str) -> Option<(IpAddr, [u8; 6])> {
    let (address, mac) = text.split_once(' ')?;
    Some((address.parse().ok()?, parse_mac(mac.trim())?))
}

fn neighbours_of(net: &Rtnetlink, nic: &Nic) -> latpath_net::Result<Vec<(IpAddr, [u8; 6])>> {
    let ifindex = net.device(nic.name())?.ifindex;
    let all = net.neighbours()?.into_iter().filter(|one| one.ifindex == ifindex);
    Ok(all.map(|one| (one.address, one.mac)).collect())
}

fn neighbour_text((address, mac): &(IpAddr, [u8; 6])) -> String {
    format!("{address} {}", format_mac(mac))
}

/// The device's permanent neighbours.
pub(crate) fn neighbours(nic: &Nic) -> Option<String> {
    read(nic, "netlink/neighbours", |netns| {
        let all = neighbours_of(&Rtnetlink::open(netns).ok()?, nic).ok()?;
        Some(list(all.iter().map(neighbour_text)))
    })
}

pub(crate) fn set_neighbours(nic: &Nic, value: &str) -> Written {
    let wanted = items(nic, value, neighbour)?;
    let value = list(wanted.iter().map(neighbour_text));
    write(nic, "netlink/neighbours", &value, |netns| {
        let set = || -> latpath_net::Result<()> {
            let net = Rtnetlink::open(netns)?;
            let has = neighbours_of(&net, nic)?;
            for (address, _) in has.iter().filter(|one| !wanted.contains(one)) {
                net.delete_neighbour(nic.name(), *address)?;
            }
            for (address, mac) in wanted.iter().filter(|one| !has.contains(one)) {
                net.replace_neighbour(nic.name(), *address, *mac)?;
            }
            Ok(())
        };
        set().map_err(failed)
    })
}

/// The kinds of the device's queueing disciplines, the root's first; each kind is listed once.
pub(crate) fn qdisc(nic: &Nic) -> Option<String> {
    read(nic, "netlink/qdisc", |netns| {
        let ifindex = Rtnetlink::open(netns).ok()?.device(nic.name()).ok()?.ifindex;
        Some(qdisc_kinds(netns).get(&ifindex).map_or("noqueue".into(), |kinds| kinds.join(", ")))
    })
}

/// Kinds that a write may replace, because they have no parameters, or only defaults that the kernel restores.
const PLAIN: [&str; 6] = ["noqueue", "mq", "pfifo_fast", "fq", "fq_codel", "pfifo"];

/// Sets the root's queueing discipline to a kind without parameters. A list of several kinds stands for a default of
/// the kernel.
pub(crate) fn set_qdisc(nic: &Nic, value: &str) -> Written {
    let kind = value.split(',').next().unwrap_or_default().trim();
    if !PLAIN.contains(&kind) {
        return Err(failed(format!("tc qdisc: {kind} is not one of {}, which need no parameters", PLAIN.join(", "))));
    }
    write(nic, "netlink/qdisc", value, |netns| {
        let net = Rtnetlink::open(netns).map_err(failed)?;
        let ifindex = net.device(nic.name()).map_err(failed)?.ifindex;
        let all = latpath_net::qdiscs(netns).map_err(failed)?;
        let root = all.iter().find(|qdisc| qdisc.ifindex == ifindex && qdisc.parent == ROOT);
        // The kernel's default has handle 0, and cannot be deleted.
        if let Some(root) = root.filter(|root| root.handle != 0) {
            if !PLAIN.contains(&root.kind.as_str()) {
                let why = format!(
                    "tc qdisc: {} has {}, whose parameters latpath does not replace; remove it first: tc qdisc del \
                     dev {} root",
                    nic.name(),
                    root.kind,
                    nic.name()
                );
                return Err(failed(why));
            }
            net.delete_qdisc(nic.name(), ROOT).map_err(failed)?;
        }
        if qdisc(nic).as_deref() == Some(value) {
            return Ok(());
        }
        let shaping = Shaping::Other { name: kind.into(), options: Vec::new() };
        net.set_qdisc(nic.name(), ROOT, &shaping).map_err(failed)
    })
}

/// The parameters of the device's NAPI instances, in order, as a list; given only once if all are the same.
pub(crate) fn napi(nic: &Nic) -> Option<String> {
    read(nic, "netlink/napi", |netns| {
        let ifindex = nic.sysfs().text(&format!("class/net/{}/ifindex", nic.name()))?.trim().parse().ok()?;
        let one = |napi: Napi| {
            let suspend = napi.irq_suspend_timeout_ns.map_or(String::new(), |ns| format!(" irq-suspend-timeout {ns}"));
            let (defer, flush) = (napi.defer_hard_irqs?, napi.gro_flush_timeout_ns?);
            Some(format!("defer-hard-irqs {defer} gro-flush-timeout {flush}{suspend}"))
        };
        let mut all: Vec<String> =
            latpath_net::napis(netns, ifindex).ok()?.into_iter().map(one).collect::<Option<_>>()?;
        if all.iter().all(|text| Some(text) == all.first()) {
            all.truncate(1);
        }
        (!all.is_empty()).then(|| all.join(", "))
    })
}

fn sysctl_path(nic: &Nic, name: &str) -> String {
    format!("proc/sys/{}", name.replace("{}", nic.name()))
}

/// A sysctl of the device, e.g. `net/ipv6/conf/{}/disable_ipv6`.
pub(crate) fn sysctl(nic: &Nic, name: &str) -> Option<String> {
    let path = sysctl_path(nic, name);
    let text = match nic.answers() {
        Answers::Kernel { netns, .. } => netns.inside(|| fs::read_to_string(format!("/{path}"))).ok()?.ok()?,
        Answers::Folder => fs::read_to_string(nic.root().path(&path)).ok()?,
    };
    Some(text.trim().to_owned())
}

pub(crate) fn set_sysctl(nic: &Nic, name: &str, value: &str) -> Written {
    let path = sysctl_path(nic, name);
    let put = |path: &std::path::Path| -> std::io::Result<()> {
        use std::io::Write as _;
        fs::File::options().write(true).truncate(true).open(path)?.write_all(format!("{value}\n").as_bytes())
    };
    let written = match nic.answers() {
        Answers::Kernel { netns, .. } => netns.inside(|| put(format!("/{path}").as_ref())).map_err(failed)?,
        Answers::Folder => put(&nic.root().path(&path)),
    };
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Refusal::NotOffered(format!("/{path}: this kernel does not have it")),
        _ => failed(format!("/{path}: {error}")),
    })
}

/// The network namespace of PID 1, or of this process if that cannot be read.
fn first() -> latpath_net::Result<Netns> {
    // Not the calling thread's namespace, which may differ from that of its process.
    match fs::metadata("/proc/1/ns/net").or_else(|_| fs::metadata("/proc/self/ns/net")) {
        Ok(file) => Netns::find(file.ino() as latpath_net::Inode),
        Err(_) => Netns::own(),
    }
}

/// The name of the device's network namespace; `none` for that of PID 1.
pub(crate) fn namespace(nic: &Nic) -> Option<String> {
    read(nic, "netlink/namespace", |netns| {
        let is_first = || first().is_ok_and(|first| first.inode() == netns.inode());
        Some(match latpath_net::namespace_name(netns.inode()) {
            Some(name) => name,
            None if is_first() => NONE.into(),
            None => format!("inode {}", netns.inode()),
        })
    })
}

/// Moves the device to another, existing network namespace. The kernel takes the device down, and removes its
/// addresses, neighbours and routes.
pub(crate) fn set_namespace(nic: &Nic, value: &str) -> Written {
    write(nic, "netlink/namespace", value, |netns| {
        let to = if value == NONE { first() } else { Netns::named(value) };
        let moved = to.and_then(|to| match to.inode() == netns.inode() {
            true => Ok(()),
            false => Rtnetlink::open(netns)?.set(nic.name(), &[Change::Netns(&to)]),
        });
        moved.map_err(failed)
    })
}

/// The name of the network namespace that latpath creates for a device.
pub fn namespace_for(device: &str) -> String {
    format!("ping-{device}")
}

/// The network namespace that was created for the device, if it exists.
pub(crate) fn private_namespace(nic: &Nic) -> Option<String> {
    read(nic, "netlink/private-namespace", |_| {
        let name = namespace_for(nic.name());
        Some(if Netns::named(&name).is_ok() { name } else { NONE.into() })
    })
}

/// Kinds of tunnels whose modules create a device in every namespace.
const IN_EACH: [&str; 9] = ["sit", "ipip", "gre", "gretap", "erspan", "ip6tnl", "ip6gre", "vti", "vti6"];

/// Creates the device's own network namespace, with its loopback device up. `none` deletes the namespace if no other
/// device is in it.
pub(crate) fn set_private_namespace(nic: &Nic, value: &str) -> Written {
    let name = namespace_for(nic.name());
    if value != NONE && value != name {
        return Err(failed(format!("the namespace of {} is called {name}, not {value}", nic.name())));
    }
    write(nic, "netlink/private-namespace", value, |_| {
        if value == NONE {
            return delete_namespace(&name);
        }
        if is_mount_private(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()) {
            return Err(failed(format!(
                "network namespace {name} would end with this process, whose mounts others do not see (ip netns exec, a \
                 service with mounts of its own); call latpath by nsenter --net=…, or leave the device where it is \
                 (--no-namespace)"
            )));
        }
        let made = Netns::create(&name).and_then(|made| Rtnetlink::open(&made)?.set("lo", &[Change::Up(true)]));
        made.map_err(failed)
    })
}

/// Whether mounts in the directory of named namespaces are confined to this process's mount namespace: the mount that
/// contains the directory is a slave (`master:N`), so it propagates nothing back (proc_pid_mountinfo(5)).
fn is_mount_private(mountinfo: &str) -> bool {
    let of_line = |line: &str| -> Option<(usize, bool)> {
        let (fields, _) = line.split_once(" - ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let (at, options) = (*fields.get(4)?, fields.get(6..)?);
        let has_it = at == "/" || "/run/netns" == at || "/run/netns".starts_with(&format!("{at}/"));
        has_it.then(|| (at.len(), options.iter().any(|option| option.starts_with("master:"))))
    };
    // The deepest mount point counts; of several mounts there, the last one is on top.
    mountinfo.lines().filter_map(of_line).max_by_key(|(length, _)| *length).is_some_and(|(_, is_slave)| is_slave)
}

fn delete_namespace(name: &str) -> Written {
    let Ok(netns) = Netns::named(name) else { return Ok(()) };
    let others = latpath_net::interfaces(&netns).map_err(failed)?;
    let is_other =
        |one: &Interface| !one.is_loopback() && !one.kind.as_ref().is_some_and(|kind| IN_EACH.contains(&kind.as_str()));
    let others: Vec<String> = others.into_iter().filter(is_other).map(|one| one.name).collect();
    if !others.is_empty() {
        return Err(failed(format!("network namespace {name} stays: {} is in it", others.join(", "))));
    }
    Netns::delete(name).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_that_others_do_not_see_are_known() {
        let root = "25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n";
        let slave = "25 1 8:1 / / rw,relatime master:1 - ext4 /dev/sda1 rw\n";
        let netns = "90 25 0:5 / /run/netns rw shared:40 - tmpfs tmpfs rw\n";
        let netns_of_slave = "90 25 0:5 / /run/netns rw shared:40 master:9 - tmpfs tmpfs rw\n";
        assert!(!is_mount_private(root) && is_mount_private(slave));
        assert!(!is_mount_private(&format!("{slave}{netns}")) && is_mount_private(&format!("{root}{netns_of_slave}")));
        assert!(!is_mount_private("") && !is_mount_private("garbage - \n1 2 3"));
    }
}
