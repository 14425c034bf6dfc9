//! `latpath vms`: lists the virtual machines of this host, their taps and their threads.

use super::report::print_as;
use super::Outcome;
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_stats::text::Table;
use latpath_stats::units::{bytes, count};
use latpath_vms::{
    Accel, DeviceInterrupt, FunctionOf, Guests, Isolated, Passthrough, Policy, Role, Tap, Thread, VhostUser, Vm,
};
use std::collections::HashMap;

/// List the virtual machines of this host: their taps, vhost workers and vCPUs, and on which CPUs they run.
#[derive(ClapArgs)]
pub struct Args {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    let found = latpath_vms::find()?;
    print_as(args.json, || &found, || text(&found, &latpath_net::namespace_names()))?;
    for note in &found.unseen {
        eprintln!("latpath: {note}");
    }
    Ok(Outcome::Done)
}

fn text(found: &Guests, namespaces: &HashMap<u32, String>) -> String {
    if found.vms.is_empty() {
        return "no virtual machine runs on this host\n".into();
    }
    let mut lines = Vec::new();
    for vm in &found.vms {
        lines.push(headline(vm, namespaces));
        if vm.taps.is_empty() && vm.vhost_user.is_empty() && !vm.passthrough.iter().any(|device| device.is_nic) {
            lines.push("  no tap".into());
        }
        if !vm.taps.is_empty() {
            let heads = ["<tap", "<guest's MAC", "<on", "<queues", "<length", "<dropped", "<served by"];
            lines.extend(table(&heads, vm.taps.iter().map(|tap| tap_row(tap, namespaces))));
        }
        if !vm.vhost_user.is_empty() {
            let heads = ["<vhost-user socket", "<guest's MAC", "<queues", "<served by"];
            lines.extend(table(&heads, vm.vhost_user.iter().map(vhost_user_row)));
        }
        if !vm.passthrough.is_empty() {
            lines.extend(passthrough(&vm.passthrough));
        }
        let heads = ["<thread", "<does", "<name", "<CPUs", "<last on", "<policy", "<isolated", "<alone", "<found by"];
        lines.extend(table(&heads, vm.threads.iter().map(thread_row)));
        lines.push(String::new());
    }
    if let Some(posted) = &found.posted_interrupts {
        lines.push(format!(
            "posted interrupts since boot: {} notifications, {} wake-ups of vCPUs that slept",
            count(posted.notifications),
            count(posted.wake_ups)
        ));
    }
    lines.push(match found.isolated_cpus.is_empty() {
        true => "no CPU is isolated".into(),
        false => format!("isolated CPUs: {}", found.isolated_cpus),
    });
    lines.join("\n") + "\n"
}

fn table(heads: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Vec<String> {
    let mut table = Table::new(heads);
    rows.for_each(|row| table.row(row));
    table.lines(2, usize::MAX, '~')
}

fn headline(vm: &Vm, namespaces: &HashMap<u32, String>) -> String {
    let mut parts = vec![format!("process {}", vm.pid)];
    parts.push(match vm.accel {
        Accel::Kvm => "KVM".into(),
        Accel::Tcg => "emulated (TCG)".into(),
        Accel::Unknown => vm.program.clone(),
    });
    parts.extend(vm.machine.clone());
    parts.extend(vm.vcpus.map(|n| if n == 1 { "1 vCPU".into() } else { format!("{n} vCPUs") }));
    parts.extend(vm.memory_bytes.map(bytes));
    // A systemd scope of the VM's own only repeats its name, so it is omitted.
    let owner = vm.owner.clone().filter(|owner| *owner != format!("VM {}", vm.name));
    parts.extend(owner.map(|owner| owner.escape_debug().to_string()));
    parts.extend(vm.vsock_cid.map(|cid| format!("vsock {cid}")));
    parts.extend(vm.netns.and_then(|netns| foreign(netns, namespaces)).map(|name| format!("namespace {name}")));
    format!("{}  {}", vm.name, parts.join(", "))
}

/// A namespace's name; `None` for this process's own.
fn foreign(netns: u32, namespaces: &HashMap<u32, String>) -> Option<String> {
    match namespaces.get(&netns).map(String::as_str) {
        Some("") => None,
        Some(name) => Some(name.escape_debug().to_string()),
        None => Some(latpath_net::namespace_owner(netns).unwrap_or_else(|| netns.to_string())),
    }
}

fn tap_row(tap: &Tap, namespaces: &HashMap<u32, String>) -> Vec<String> {
    let unknown = || "-".to_string();
    let namespace = tap.netns.and_then(|netns| foreign(netns, namespaces));
    let on = match (&tap.bridge, &tap.lower) {
        (Some(bridge), _) if bridge.kind == "bridge" => bridge.name.clone(),
        (Some(bridge), _) => format!("{} ({})", bridge.name, bridge.kind),
        (None, Some(lower)) => format!("over {lower}"),
        (None, None) => unknown(),
    };
    vec![
        namespace.map_or_else(|| tap.device.clone(), |name| format!("{}%{name}", tap.device)),
        tap.guest_mac.clone().unwrap_or_else(unknown),
        on,
        tap.queues.to_string(),
        tap.tx_queue_len.map_or_else(unknown, |n| count(n.into())),
        tap.dropped.map_or_else(unknown, count),
        tap.vhost.map_or_else(unknown, |vhost| if vhost { "vhost".into() } else { "QEMU".into() }),
    ]
}

fn vhost_user_row(nic: &VhostUser) -> Vec<String> {
    let mac = nic.guest_mac.clone().unwrap_or_else(|| "-".into());
    vec![nic.socket.clone(), mac, nic.queues.to_string(), nic.served_by()]
}

/// The tables of passed-through devices, and the limits of latpath's view of them.
fn passthrough(devices: &[Passthrough]) -> Vec<String> {
    let unknown = || "-".to_string();
    let row = |device: &Passthrough| {
        let of = device.function_of.as_ref();
        let counters = of.and_then(|of| of.counters);
        let function = |of: &FunctionOf| {
            let nic = of.device.as_ref().unwrap_or(&of.address);
            let vlan = of.vlan.map_or_else(String::new, |vlan| format!(", VLAN {vlan}"));
            format!("{} of {nic}{vlan}", of.number)
        };
        let posting = device.posting.map_or_else(unknown, |can| if can { "yes" } else { "no" }.into());
        vec![
            device.address.clone(),
            device.id.clone(),
            if device.is_nic { "NIC" } else { "other" }.into(),
            of.map_or_else(unknown, function),
            of.and_then(|of| of.guest_mac.clone()).unwrap_or_else(unknown),
            counters.map_or_else(unknown, |c| count(c.rx_packets)),
            counters.map_or_else(unknown, |c| count(c.tx_packets)),
            counters.map_or_else(unknown, |c| count(c.rx_dropped + c.tx_dropped)),
            posting,
        ]
    };
    let heads = [
        "<passed through",
        "<device",
        "<kind",
        "<virtual function",
        "<guest's MAC",
        "<to guest",
        "<from guest",
        "<dropped",
        "<posting",
    ];
    let mut lines = table(&heads, devices.iter().map(row));
    let interrupts = |device: &Passthrough| {
        let row = |one: &DeviceInterrupt| {
            vec![
                one.number.to_string(),
                one.name.clone(),
                device.address.clone(),
                count(one.count),
                one.cpus.to_string(),
            ]
        };
        device.interrupts.iter().map(row).collect::<Vec<_>>()
    };
    let rows: Vec<_> = devices.iter().flat_map(interrupts).collect();
    if !rows.is_empty() {
        lines.extend(table(&["<interrupt", "<name", "<of", "<on the host", "<CPUs"], rows.into_iter()));
    }
    if devices.iter().any(|device| device.is_nic) {
        lines.push(
            "  packets of a passed-through NIC pass no point of this host; an agent in the guest shows them (docs/vms.md)"
                .into(),
        );
    }
    lines
}

fn thread_row(thread: &Thread) -> Vec<String> {
    let does = match (thread.role, thread.vcpu, &thread.serves) {
        (Role::Vcpu, Some(number), _) => format!("vCPU {number}"),
        (Role::Vhost, _, Some(device)) => format!("vhost {device}"),
        (role, ..) => role.name().into(),
    };
    let policy = match thread.policy {
        Policy::Fifo | Policy::Rr => format!("{} {}", thread.policy.name(), thread.rt_priority),
        _ if thread.nice != 0 => format!("{}, nice {}", thread.policy.name(), thread.nice),
        _ => thread.policy.name().into(),
    };
    let isolated = match thread.isolated {
        Isolated::All => "yes",
        Isolated::Some => "in part",
        Isolated::None => "no",
    };
    vec![
        thread.tid.to_string(),
        does,
        thread.comm.clone(),
        thread.cpus_allowed.to_string(),
        thread.cpu.to_string(),
        policy,
        isolated.into(),
        if thread.alone { "yes" } else { "no" }.into(),
        thread.found_by.name().into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_vms::FunctionCounts;

    #[test]
    fn a_virtual_function_is_shown_with_its_nic_counters_and_interrupts() {
        let counters = FunctionCounts { rx_packets: 48_000, tx_packets: 12, rx_dropped: 1, tx_dropped: 2 };
        let of = FunctionOf {
            address: "0000:03:00.0".into(),
            device: Some("eno2".into()),
            number: 2,
            guest_mac: Some("52:54:00:00:00:02".into()),
            vlan: Some(5),
            counters: Some(counters),
        };
        let interrupt =
            DeviceInterrupt { number: 41, name: "vfio-msix[0]".into(), count: 30_012, cpus: "1".parse().unwrap() };
        let nic = Passthrough {
            address: "0000:03:10.4".into(),
            id: "8086:1520".into(),
            is_nic: true,
            function_of: Some(of),
            interrupts: vec![interrupt],
            posting: Some(true),
            ..Passthrough::default()
        };
        let expected = [
            "  passed through  device     kind  virtual function   guest's MAC        to guest  from guest  dropped  posting",
            "  0000:03:10.4    8086:1520  NIC   2 of eno2, VLAN 5  52:54:00:00:00:02  48\u{202f}000    12          3        yes",
            "  interrupt  name          of            on the host  CPUs",
            "  41         vfio-msix[0]  0000:03:10.4  30\u{202f}012       1",
            "  packets of a passed-through NIC pass no point of this host; an agent in the guest shows them (docs/vms.md)",
        ];
        assert_eq!(passthrough(&[nic]), expected);
        let disk = Passthrough { id: "8086:0953".into(), ..Passthrough::default() };
        assert!(!passthrough(&[disk]).join("\n").contains("agent"));
    }
}
