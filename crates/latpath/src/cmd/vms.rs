//! `latpath vms`: lists the virtual machines of this host, their taps and their threads.

use super::report::print_as;
use super::Outcome;
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_stats::text::Table;
use latpath_stats::units::{bytes, count};
use latpath_vms::{Accel, Guests, Isolated, Policy, Role, Tap, Thread, VhostUser, Vm};
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
        if vm.taps.is_empty() && vm.vhost_user.is_empty() {
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
        let heads = ["<thread", "<does", "<name", "<CPUs", "<last on", "<policy", "<isolated", "<alone", "<found by"];
        lines.extend(table(&heads, vm.threads.iter().map(thread_row)));
        lines.push(String::new());
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
    parts.extend(vm.vsock_cid.map(|cid| format!("vsock {cid}")));
    parts.extend(vm.netns.and_then(|netns| foreign(netns, namespaces)).map(|name| format!("namespace {name}")));
    format!("{}  {}", vm.name, parts.join(", "))
}

/// A namespace's name; `None` for this process's own.
fn foreign(netns: u32, namespaces: &HashMap<u32, String>) -> Option<String> {
    match namespaces.get(&netns).map(String::as_str) {
        Some("") => None,
        Some(name) => Some(name.escape_debug().to_string()),
        None => Some(netns.to_string()),
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
