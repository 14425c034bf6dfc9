//! The text of `latpath exits`.

use crate::page::{of_enough, Page, Style};
use latpath_exits::{Traffic, VcpuState, VcpuTimes};
use latpath_model::{Ns, Observation};
use latpath_observe::exits::{
    ApicFigures, EventFigures, ExitsFigures, OtherEvents, PerWork, ReasonFigures, VcpuFigures, VmExits,
};
use latpath_stats::text::Table;
use latpath_stats::units::{bytes, number_of, percent, CharacterSet};

/// Formats exits as text; with `each`, also the exit reasons of every vCPU.
pub fn text(observation: &Observation<ExitsFigures>, each: bool, style: Style) -> String {
    let (mut page, document) = (Page::new(style), &observation.figures);
    for vm in &document.vms {
        write_vm(&mut page, vm, observation.window_ns, each);
        page.gap();
    }
    if document.vms.is_empty() {
        page.line(format!("no vCPU was seen in {}", page.duration(observation.window_ns)));
    }
    document.other_events.iter().for_each(|others| other_events(&mut page, others));
    let is_said = document.vms.iter().any(|vm| vm.all.apic.is_some());
    if let Some(n) = document.apic_interrupts.filter(|n| *n > 0 && !is_said) {
        page.line(format!("virtual APICs of all VMs accepted {}", number_of(n, "interrupt")));
    }
    page.cost(observation);
    page.finish()
}

fn write_vm(page: &mut Page, vm: &VmExits, window: Ns, each: bool) {
    let vcpus = number_of(vm.vcpus.len() as u64, "vCPU");
    let name = vm.name.as_ref().map_or_else(String::new, |name| format!("{}: ", page.clean(name)));
    page.line(format!("{name}process {}, {vcpus}, {}", vm.pid, page.duration(window)));
    page.gap();
    let tiles: Vec<VcpuState> = shown(vm.all.tiles).collect();
    let heads = ["<where time went"].into_iter().chain(tiles.iter().map(|tile| tile.name())).chain(["of"]);
    let mut table = Table::new(&heads.collect::<Vec<_>>());
    for vcpu in &vm.vcpus {
        let end = if vcpu.ended { " (ended)" } else { "" };
        let name = format!("{}{end}", vcpu_name(vcpu.vcpu, vcpu.tid));
        table.row(tile_row(page, name, vcpu.figures.tiles, &tiles));
    }
    if vm.vcpus.len() > 1 {
        table.row(tile_row(page, "all".into(), vm.all.tiles, &tiles));
    }
    page.table(&table);
    page.gap();
    reasons(page, &vm.all);
    events(page, &vm.events);
    if each && vm.vcpus.len() > 1 {
        for vcpu in &vm.vcpus {
            page.gap();
            page.line(format!("  {}", vcpu_name(vcpu.vcpu, vcpu.tid)));
            reasons(page, &vcpu.figures);
        }
    }
    page.gap();
    counts(page, vm);
}

/// States of vCPUs that have a column. `NotKnown` has one only if any time is in this state.
fn shown(mut tiles: VcpuTimes) -> impl Iterator<Item = VcpuState> {
    VcpuState::ALL.into_iter().filter(move |tile| *tile != VcpuState::NotKnown || *tiles.of(*tile) > 0)
}

fn vcpu_name(number: Option<u32>, tid: u32) -> String {
    number.map_or_else(|| format!("thread {tid}"), |number| format!("vCPU {number}"))
}

fn tile_row(page: &Page, name: String, mut tiles: VcpuTimes, shown: &[VcpuState]) -> Vec<String> {
    let whole = tiles.sum();
    let mut row = vec![name];
    row.extend(shown.iter().map(|tile| percent(*tiles.of(*tile), whole, 2)));
    row.push(page.duration(whole));
    row
}

fn reasons(page: &mut Page, figures: &VcpuFigures) {
    if figures.reasons.is_empty() {
        return page.line("  no exit");
    }
    let plus_minus = page.letters.plus_minus();
    let mut times =
        Table::new(&["<exits for", "number", "per s", "time", "mean", plus_minus, "min", "p50", "p99", "p99.9", "max"]);
    let mut spent =
        Table::new(&["<of their time"].into_iter().chain(exit_tiles().map(VcpuState::name)).collect::<Vec<_>>());
    for reason in &figures.reasons {
        let name = reason_name(page, reason);
        times.row(time_row(page, name.clone(), reason));
        let (mut tiles, whole) = (reason.tiles, reason.tiles.sum());
        spent.row([name].into_iter().chain(exit_tiles().map(|tile| percent(*tiles.of(tile), whole, 2))).collect());
    }
    page.table(&times);
    page.gap();
    page.table(&spent);
    figures.apic.iter().for_each(|apic| vectors(page, apic));
}

fn reason_name(page: &Page, reason: &ReasonFigures) -> String {
    page.clean(&name_of(reason))
}

/// Name of an exit reason; halts are marked as idle, because they take no time from the guest.
pub(crate) fn name_of(reason: &ReasonFigures) -> String {
    let name = reason.reason.as_deref().unwrap_or("before, or other");
    format!("{name}{}", if reason.is_halt { " (idle)" } else { "" })
}

fn vectors(page: &mut Page, apic: &ApicFigures) {
    let units = page.letters;
    let mut table = Table::new(&["<interrupt vector", "accepted", "per s", "posted"]);
    for vector in &apic.vectors {
        let (accepted, posted) = (units.count(vector.accepted), units.count(vector.posted));
        table.row(vec![format!("{:#04x}", vector.vector), accepted, units.rate(vector.per_second), posted]);
    }
    with_gap(page, &table);
}

fn events(page: &mut Page, events: &[EventFigures]) {
    let units = page.letters;
    let mut table = Table::new(&["<event of KVM", "number", "per s", "beside vCPUs"]);
    for event in events {
        let beside = units.count(event.count - event.in_vcpus);
        table.row(vec![event.event.clone(), units.count(event.count), units.rate(event.per_second), beside]);
    }
    with_gap(page, &table);
}

fn other_events(page: &mut Page, others: &OtherEvents) {
    let mut table = Table::new(&["<events in no VM's thread", "number"]);
    for (event, count) in &others.counts {
        table.row(vec![event.clone(), page.letters.count(*count)]);
    }
    match others.counts.is_empty() {
        true => page.line("no event of KVM came in another thread"),
        false => page.table_at(0, &table),
    }
    page.gap();
}

/// Writes an empty line and a table, if the table has rows.
fn with_gap(page: &mut Page, table: &Table) {
    if !table.rows().is_empty() {
        page.gap();
        page.table(table);
    }
}

/// States of a vCPU thread outside its guest.
fn exit_tiles() -> impl Iterator<Item = VcpuState> {
    VcpuState::ALL.into_iter().filter(|tile| !matches!(tile, VcpuState::Guest | VcpuState::NotKnown))
}

fn time_row(page: &Page, name: String, reason: &ReasonFigures) -> Vec<String> {
    let (times, units) = (&reason.times, page.letters);
    let time = |ns: Ns| of_enough(times, ns, 1, units);
    vec![
        name,
        units.count(times.count),
        units.rate(reason.per_second),
        units.duration(reason.tiles.sum()),
        time(times.mean_ns),
        if times.count > 1 { percent(reason.mean_error_ns, times.mean_ns, 2) } else { "-".into() },
        time(times.min_ns),
        time(times.p50_ns),
        of_enough(times, times.p99_ns, 100, units),
        of_enough(times, times.p99_9_ns, 1000, units),
        time(times.max_ns),
    ]
}

fn counts(page: &mut Page, vm: &VmExits) {
    let (all, units) = (&vm.all, page.letters);
    page.line(format!("  {}, {} to QEMU", units.number_of(all.exits, "exit"), units.count(all.exits_to_qemu)));
    let parts = all.tiles_without_halts.all().into_iter().filter(|(_, ns)| *ns > 0);
    let parts: Vec<String> = parts.map(|(tile, ns)| format!("{} {}", units.duration(ns), tile.name())).collect();
    let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
    let outside = units.duration(all.exit_time_without_halts_ns);
    page.wrapped("  ".into(), 4, &format!("outside the guest for {outside} without halts{parts}"));
    page.line(format!(
        "  KVM blocked vCPUs {}: {} slept, {} ended while it polled",
        units.number_of(all.halts, "time"),
        units.count(all.halts_slept),
        units.count(all.halts.saturating_sub(all.halts_slept)),
    ));
    if let Some(n) = all.injected {
        page.line(format!("  KVM injected {}", units.number_of(n, "interrupt")));
    }
    if let Some(apic) = &all.apic {
        page.line(format!(
            "  virtual APICs accepted {}, {} of them posted; {}",
            units.number_of(apic.accepted, "interrupt"),
            units.count(apic.posted),
            units.number_of(apic.nmis, "NMI")
        ));
    }
    match vm.kvm {
        Some(kvm) => {
            let counted = format!(
                "KVM's own counters: {}, {}, {}, {}; it polled in {}, {} of them until something came, {} in all; {}",
                units.number_of(kvm.exits, "exit"),
                units.number_of(kvm.halt_exits, "halt exit"),
                units.number_of(kvm.irq_injections, "interrupt"),
                units.number_of(kvm.nmi_injections, "NMI"),
                units.number_of(kvm.halt_polls, "halt"),
                units.count(kvm.halt_polls_successful),
                units.duration(kvm.halt_polling_ns as Ns),
                units.number_of(kvm.halt_wakeups, "wakeup"),
            );
            page.wrapped("  ".into(), 4, &counted);
        }
        None if vm.vcpus.iter().all(|vcpu| vcpu.ended) => page.line("  KVM's own counters are gone with the VM"),
        None => page.line("  KVM's own counters cannot be read: mount -t debugfs none /sys/kernel/debug"),
    }
    match &vm.traffic {
        Some(traffic) => page.line(traffic_line(traffic, units)),
        None => page.line("  none of its taps is known: nothing is said for each packet and each GB"),
    }
    vm.per_work.iter().for_each(|per| work(page, vm, per));
}

fn traffic_line(traffic: &Traffic, units: CharacterSet) -> String {
    format!(
        "  taps: {} ({}) to the guest, {} ({}) from it",
        units.number_of(traffic.to_guest_packets, "packet"),
        bytes(traffic.to_guest_bytes),
        units.count(traffic.from_guest_packets),
        bytes(traffic.from_guest_bytes)
    )
}

/// Writes exits and time per unit of work.
fn work(page: &mut Page, vm: &VmExits, per: &PerWork) {
    let units = page.letters;
    let mut table = Table::new(&["<for each", "packet: exits", "time", "GB: exits", "time"]);
    let mut row = |name: String, exits: Option<(f64, f64)>, time: (Ns, Ns)| {
        let (packet, gb) = exits
            .map_or(("-".into(), "-".into()), |(packet, gb)| (format!("{packet:.3}"), units.count(gb.round() as u64)));
        table.row(vec![name, packet, units.duration(time.0), gb, units.duration(time.1)]);
    };
    for (reason, per) in vm.all.reasons.iter().zip(&per.reasons) {
        let exits = (per.exits_per_packet, per.exits_per_gb);
        row(reason_name(page, reason), Some(exits), (per.time_per_packet_ns, per.time_per_gb_ns));
    }
    let exits = (per.exits_per_packet, per.exits_per_gb);
    row("all; time without halts".into(), Some(exits), (per.exit_time_per_packet_ns, per.exit_time_per_gb_ns));
    let mut per_gb = per.tiles_per_gb;
    for (tile, packet) in per.tiles_per_packet.all() {
        let gb = *per_gb.of(tile);
        if packet > 0 || gb > 0 {
            row(tile.name().into(), None, (packet, gb));
        }
    }
    with_gap(page, &table);
}
