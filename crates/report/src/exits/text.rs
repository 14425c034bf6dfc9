//! As text.

use super::{ApicFigures, Document, EventFigures, OtherEvents, PerWork, ReasonFigures, VcpuFigures, VmExits};
use crate::Style;
use latpath_exits::{Tile, Tiles, Traffic};
use latpath_model::Ns;
use latpath_stats::text::Table;
use latpath_stats::units::{bytes, number_of};

/// The page that people read; `each` shows every vCPU's reasons too.
pub fn text(document: &Document, each: bool, style: Style) -> String {
    let mut lines = Vec::new();
    for vm in &document.vms {
        lines.extend(vm_lines(vm, document.window_ns, each, style));
        lines.push(String::new());
    }
    if document.vms.is_empty() {
        lines.push(format!("no vCPU was seen in {}", style.letters.duration(document.window_ns)));
    }
    lines.extend(document.other_events.iter().flat_map(|others| other_lines(others, style)));
    let is_said = document.vms.iter().any(|vm| vm.all.apic.is_some());
    if let Some(n) = document.apic_interrupts.filter(|n| *n > 0 && !is_said) {
        lines.push(format!("virtual APICs of all VMs accepted {}", number_of(n, "interrupt")));
    }
    if let Some(ns) = document.cost_per_event_ns {
        lines.push(format!("an event cost {ns} ns, with what measuring that costs"));
    }
    if lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines.join("\n") + "\n"
}

fn vm_lines(vm: &VmExits, window: Ns, each: bool, style: Style) -> Vec<String> {
    let units = style.letters;
    let vcpus = number_of(vm.vcpus.len() as u64, "vCPU");
    let name = vm.name.as_ref().map_or_else(String::new, |name| format!("{}: ", units.clean(name)));
    let mut lines = vec![format!("{name}process {}, {vcpus}, {}", vm.pid, units.duration(window)), String::new()];
    let mut table =
        Table::new(&["<where time went"].into_iter().chain(shown().map(Tile::name)).chain(["of"]).collect::<Vec<_>>());
    for vcpu in &vm.vcpus {
        let end = if vcpu.ended { " (ended)" } else { "" };
        table.row(tile_row(format!("{}{end}", vcpu_name(vcpu.vcpu, vcpu.tid)), vcpu.figures.tiles, style));
    }
    if vm.vcpus.len() > 1 {
        table.row(tile_row("all".into(), vm.all.tiles, style));
    }
    lines.extend(table.folded(2, style.width, units.ellipsis()));
    lines.push(String::new());
    lines.extend(reason_lines(&vm.all, style));
    lines.extend(event_lines(&vm.events, style));
    if each && vm.vcpus.len() > 1 {
        for vcpu in &vm.vcpus {
            lines.push(String::new());
            lines.push(format!("  {}", vcpu_name(vcpu.vcpu, vcpu.tid)));
            lines.extend(reason_lines(&vcpu.figures, style));
        }
    }
    lines.push(String::new());
    lines.extend(counts(vm, style));
    lines
}

/// Tiles that have a column.
fn shown() -> impl Iterator<Item = Tile> {
    Tile::ALL.into_iter().filter(|tile| *tile != Tile::NotKnown)
}

fn vcpu_name(number: Option<u32>, tid: u32) -> String {
    number.map_or_else(|| format!("thread {tid}"), |number| format!("vCPU {number}"))
}

fn percent(part: Ns, whole: Ns) -> String {
    match part {
        0 => "-".into(),
        part => format!("{:.2} %", part as f64 * 100.0 / whole.max(1) as f64),
    }
}

fn tile_row(name: String, mut tiles: Tiles, style: Style) -> Vec<String> {
    let whole = tiles.sum();
    let mut row = vec![name];
    row.extend(shown().map(|tile| percent(*tiles.of(tile), whole)));
    row.push(style.letters.duration(whole));
    row
}

fn reason_lines(figures: &VcpuFigures, style: Style) -> Vec<String> {
    let units = style.letters;
    let plus_minus = units.plus_minus();
    let mut times =
        Table::new(&["<exits for", "number", "per s", "time", "mean", plus_minus, "min", "p50", "p99", "p99.9", "max"]);
    let mut spent = Table::new(&["<of their time"].into_iter().chain(exit_tiles().map(Tile::name)).collect::<Vec<_>>());
    for reason in &figures.reasons {
        let name = reason.reason.as_ref().map_or_else(|| "before, or other".into(), |name| units.clean(name));
        times.row(time_row(name.clone(), reason, style));
        let (mut tiles, whole) = (reason.tiles, reason.tiles.sum());
        spent.row([name].into_iter().chain(exit_tiles().map(|tile| percent(*tiles.of(tile), whole))).collect());
    }
    if figures.reasons.is_empty() {
        return vec!["  no exit".into()];
    }
    let mut lines = times.folded(2, style.width, units.ellipsis());
    lines.push(String::new());
    lines.extend(spent.folded(2, style.width, units.ellipsis()));
    lines.extend(figures.apic.iter().flat_map(|apic| vector_lines(apic, style)));
    lines
}

fn vector_lines(apic: &ApicFigures, style: Style) -> Vec<String> {
    let units = style.letters;
    let mut table = Table::new(&["<interrupt vector", "accepted", "per s", "posted"]);
    for vector in &apic.vectors {
        let (accepted, posted) = (units.count(vector.accepted), units.count(vector.posted));
        table.row(vec![format!("{:#04x}", vector.vector), accepted, units.rate(vector.per_second), posted]);
    }
    with_blank(apic.vectors.is_empty(), table, style)
}

fn event_lines(events: &[EventFigures], style: Style) -> Vec<String> {
    let units = style.letters;
    let mut table = Table::new(&["<event of KVM", "number", "per s", "beside vCPUs"]);
    for event in events {
        let beside = units.count(event.count - event.in_vcpus);
        table.row(vec![event.event.clone(), units.count(event.count), units.rate(event.per_second), beside]);
    }
    with_blank(events.is_empty(), table, style)
}

fn other_lines(others: &OtherEvents, style: Style) -> Vec<String> {
    let units = style.letters;
    let mut table = Table::new(&["<events in no VM's thread", "number"]);
    for (event, count) in &others.counts {
        table.row(vec![event.clone(), units.count(*count)]);
    }
    let mut lines = table.folded(0, style.width, units.ellipsis());
    if others.counts.is_empty() {
        lines = vec!["no event of KVM came in another thread".into()];
    }
    lines.push(String::new());
    lines
}

fn with_blank(is_empty: bool, table: Table, style: Style) -> Vec<String> {
    match is_empty {
        true => Vec::new(),
        false => [vec![String::new()], table.folded(2, style.width, style.letters.ellipsis())].concat(),
    }
}

/// What a thread can do outside its guest.
fn exit_tiles() -> impl Iterator<Item = Tile> {
    shown().filter(|tile| *tile != Tile::Guest)
}

fn time_row(name: String, reason: &ReasonFigures, style: Style) -> Vec<String> {
    let units = style.letters;
    let (times, none) = (&reason.times, times_are_known(reason));
    let time = |ns: Ns| if none { units.duration(ns) } else { "-".into() };
    let of_enough = |ns: Ns, least: u64| if times.count >= least { time(ns) } else { "-".into() };
    vec![
        name,
        units.count(times.count),
        units.rate(reason.per_second),
        units.duration(reason.tiles.sum()),
        time(times.mean_ns),
        if times.count > 1 { percent(reason.mean_error_ns, times.mean_ns) } else { "-".into() },
        time(times.min_ns),
        time(times.p50_ns),
        of_enough(times.p99_ns, 100),
        of_enough(times.p99_9_ns, 1000),
        time(times.max_ns),
    ]
}

fn times_are_known(reason: &ReasonFigures) -> bool {
    reason.times.count > 0
}

fn counts(vm: &VmExits, style: Style) -> Vec<String> {
    let (all, units) = (&vm.all, style.letters);
    let mut lines = vec![
        format!(
            "  {}, {} to QEMU; outside the guest for {} without halts",
            units.number_of(all.exits, "exit"),
            units.count(all.exits_to_qemu),
            units.duration(all.exit_time_without_halts_ns)
        ),
        format!(
            "  {}, in {} of them the vCPU slept{}",
            units.number_of(all.halts, "halt"),
            units.count(all.halts_slept),
            all.injected.map_or_else(String::new, |n| format!("; KVM injected {}", units.number_of(n, "interrupt")))
        ),
    ];
    lines.extend(all.apic.as_ref().map(|apic| {
        format!(
            "  virtual APICs accepted {}, {} of them posted; {}",
            units.number_of(apic.accepted, "interrupt"),
            units.count(apic.posted),
            units.number_of(apic.nmis, "NMI")
        )
    }));
    match vm.kvm {
        Some(kvm) => lines.push(format!(
            "  KVM's own counters: {}, {}, {}, {}, {} of polling",
            units.number_of(kvm.exits, "exit"),
            units.number_of(kvm.halt_exits, "halt"),
            units.number_of(kvm.irq_injections, "interrupt"),
            units.number_of(kvm.nmi_injections, "NMI"),
            units.duration(kvm.halt_polling_ns as Ns)
        )),
        None if vm.vcpus.iter().all(|vcpu| vcpu.ended) => {
            lines.push("  KVM's own counters are gone with the VM".into())
        }
        None => lines.push("  KVM's own counters cannot be read: mount -t debugfs none /sys/kernel/debug".into()),
    }
    lines.extend(vm.traffic.iter().map(|traffic| traffic_line(traffic, style)));
    lines.extend(vm.per_work.iter().map(|per| work_line(per, style)));
    lines
}

fn traffic_line(traffic: &Traffic, style: Style) -> String {
    let units = style.letters;
    format!(
        "  taps: {} ({}) to the guest, {} ({}) from it",
        units.number_of(traffic.to_guest_packets, "packet"),
        bytes(traffic.to_guest_bytes),
        units.count(traffic.from_guest_packets),
        bytes(traffic.from_guest_bytes)
    )
}

fn work_line(per: &PerWork, style: Style) -> String {
    let units = style.letters;
    format!(
        "  for each packet: {:.2} exits, {} outside the guest; for each GB: {} exits, {}",
        per.exits_per_packet,
        units.duration(per.exit_time_per_packet_ns),
        units.count(per.exits_per_gb.round() as u64),
        units.duration(per.exit_time_per_gb_ns)
    )
}
