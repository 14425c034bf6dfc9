//! Commands that depend on the value or the place.

use crate::write::Place;
use latpath_model::text::quoted;

/// CPU option of cpupower: `-c 3 `; empty for all CPUs.
fn cpus(at: &Place) -> String {
    match at {
        Place::All => String::new(),
        at => format!("-c {} ", at.word()),
    }
}

/// `cpupower -c 3 frequency-set -g performance`
pub(crate) fn governor(at: &Place, value: &str) -> String {
    format!("cpupower {}frequency-set -g {}", cpus(at), quoted(value))
}

/// `cpupower -c 3 idle-set -D 10`
pub(crate) fn idle_limit(at: &Place, value: &str) -> String {
    format!("cpupower {}idle-set -D {}", cpus(at), quoted(value))
}

/// `cpupower -c 3 idle-set -d 2`, once for each number; `-E` enables all.
pub(crate) fn idle_disabled(at: &Place, value: &str) -> String {
    let cpus = cpus(at);
    match value {
        "none" | "" => format!("cpupower {cpus}idle-set -E"),
        numbers => {
            let one = |number: &str| format!("cpupower {cpus}idle-set -d {}", quoted(number));
            numbers.split(',').map(one).collect::<Vec<_>>().join(" && ")
        }
    }
}

/// The command writes the value on the CPU itself: see `writing::fair_server`.
pub(crate) fn fair_server(at: &Place, value: &str) -> String {
    let file = at.within("/sys/kernel/debug/sched/fair_server/cpu{at}/runtime");
    format!("taskset -c {} sh -c 'echo \"$1\" > \"$2\"' sh {} {file}", at.word(), quoted(value))
}

/// The command keeps the file open until the shell exits. The kernel also accepts the value as text.
pub(crate) fn cpu_latency(_: &Place, value: &str) -> String {
    format!(
        "exec 3> /dev/cpu_dma_latency && printf %s {} >&3",
        quoted(&format!("0x{:08x}", value.parse().unwrap_or(0_u32)))
    )
}

/// `chrt -f -p 51 815`, from a value such as `fifo 51`, `rr 10`, `other`.
pub(crate) fn chrt(at: &Place, value: &str) -> String {
    let mut words = value.split_whitespace();
    let option = match words.next() {
        Some("fifo") => "-f",
        Some("rr") => "-r",
        Some("batch") => "-b",
        Some("idle") => "-i",
        _ => "-o",
    };
    let priority = words.next().filter(|word| word.parse::<u32>().is_ok()).unwrap_or("0");
    format!("chrt {option} -p {priority} {}", at.word())
}

/// Installs the Debian kernel that has this preemption model.
pub(crate) fn kernel(_: &Place, value: &str) -> String {
    let realtime = if value == "PREEMPT_RT" { "rt-" } else { "" };
    format!("apt install linux-image-{realtime}$(dpkg --print-architecture)")
}

/// `tc qdisc replace dev eth0 root fq`; `default` removes the current one.
pub(crate) fn qdisc(at: &Place, value: &str) -> String {
    let device = at.word();
    match value.split([' ', ',']).next() {
        None | Some("" | "default") => format!("tc qdisc del dev {device} root"),
        Some(kind) => format!("tc qdisc replace dev {device} root {}", quoted(kind)),
    }
}

/// `echo max > GROUP/cpu.max`
pub(crate) fn quota(at: &Place, value: &str) -> String {
    format!("echo {} > {}", quoted(value), at.within("{at}/cpu.max"))
}

/// Sets the CPUs of a systemd unit with systemctl, because systemd would overwrite a value written to the file.
pub(crate) fn group_cpus(at: &Place, value: &str) -> String {
    let is_units = |name: &&str| [".slice", ".scope", ".service"].iter().any(|end| name.ends_with(end));
    match at {
        Place::Name(path) => match path.rsplit('/').next().filter(is_units) {
            Some(unit) => {
                format!("systemctl set-property --runtime {} {}", quoted(unit), quoted(&format!("AllowedCPUs={value}")))
            }
            None => format!("echo {} > {}", quoted(value), at.within("{at}/cpuset.cpus")),
        },
        at => format!("echo {} > {}", quoted(value), at.within("{at}/cpuset.cpus")),
    }
}

/// The command to edit a libvirt domain; for other virtual machines, the QEMU option.
pub(crate) fn memory_lock(at: &Place, _: &str) -> String {
    match at {
        Place::All => "-overcommit mem-lock=on".into(),
        at => format!("virsh edit {}", at.word()),
    }
}

/// `ip netns add ping-eth0`
pub(crate) fn private_namespace(at: &Place, value: &str) -> String {
    match value {
        "none" => format!("ip netns del {}", at.within("ping-{at}")),
        name => format!("ip netns add {}", quoted(name)),
    }
}

/// `ip link set dev eth0 netns ping-eth0`; to be run in the device's current namespace.
pub(crate) fn namespace(at: &Place, value: &str) -> String {
    let to = if value == "none" { "1" } else { value };
    format!("ip link set dev {} netns {}", at.word(), quoted(to))
}

/// `COMMAND flush ...`, followed by `COMMAND add ...` for each item of a list.
fn items(at: &Place, value: &str, flush: &str, add: fn(&str, &str) -> String) -> String {
    let device = at.word();
    let first = flush.replace("{at}", &device);
    let items = value.split(',').map(str::trim).filter(|item| !item.is_empty() && *item != "none");
    std::iter::once(first).chain(items.map(|item| add(item, &device))).collect::<Vec<_>>().join(" && ")
}

fn all_quoted(words: &str) -> String {
    words.split_whitespace().map(quoted).collect::<Vec<_>>().join(" ")
}

/// `ip addr flush dev eth0 scope global && ip addr add 192.0.2.1/24 brd 192.0.2.255 dev eth0`
pub(crate) fn addresses(at: &Place, value: &str) -> String {
    let add = |item: &str, device: &str| format!("ip addr add {} dev {device}", all_quoted(item));
    items(at, value, "ip addr flush dev {at} scope global", add)
}

/// `ip neigh flush dev eth0 nud permanent && ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev eth0`
pub(crate) fn neighbours(at: &Place, value: &str) -> String {
    let add = |item: &str, device: &str| {
        let (address, mac) = item.split_once(' ').unwrap_or((item, ""));
        format!("ip neigh add {} lladdr {} nud permanent dev {device}", quoted(address), quoted(mac.trim()))
    };
    items(at, value, "ip neigh flush dev {at} nud permanent", add)
}
