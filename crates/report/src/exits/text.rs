//! As text.

use super::{ApicFigures, Document, EventFigures, OtherEvents, PerWork, ReasonFigures, VcpuFigures, VmExits};
use crate::Style;
use latpath_exits::{Tile, Tiles, Traffic};
use latpath_model::Ns;
use latpath_stats::text::{wrapped, Table};
use latpath_stats::units::{bytes, number_of, percent};

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
    let tiles: Vec<Tile> = shown(vm.all.tiles).collect();
    let heads = ["<where time went"].into_iter().chain(tiles.iter().map(|tile| tile.name())).chain(["of"]);
    let mut table = Table::new(&heads.collect::<Vec<_>>());
    for vcpu in &vm.vcpus {
        let end = if vcpu.ended { " (ended)" } else { "" };
        let name = format!("{}{end}", vcpu_name(vcpu.vcpu, vcpu.tid));
        table.row(tile_row(name, vcpu.figures.tiles, &tiles, style));
    }
    if vm.vcpus.len() > 1 {
        table.row(tile_row("all".into(), vm.all.tiles, &tiles, style));
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

/// Tiles that have a column: all, but time that is not known only where there is some.
fn shown(mut tiles: Tiles) -> impl Iterator<Item = Tile> {
    Tile::ALL.into_iter().filter(move |tile| *tile != Tile::NotKnown || *tiles.of(*tile) > 0)
}

fn vcpu_name(number: Option<u32>, tid: u32) -> String {
    number.map_or_else(|| format!("thread {tid}"), |number| format!("vCPU {number}"))
}

fn tile_row(name: String, mut tiles: Tiles, shown: &[Tile], style: Style) -> Vec<String> {
    let whole = tiles.sum();
    let mut row = vec![name];
    row.extend(shown.iter().map(|tile| percent(*tiles.of(*tile), whole, 2)));
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
        let name = reason_name(reason, style);
        times.row(time_row(name.clone(), reason, style));
        let (mut tiles, whole) = (reason.tiles, reason.tiles.sum());
        spent.row([name].into_iter().chain(exit_tiles().map(|tile| percent(*tiles.of(tile), whole, 2))).collect());
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

/// A reason, with a mark where the guest had nothing to do: that is no cost.
fn reason_name(reason: &ReasonFigures, style: Style) -> String {
    let name = reason.reason.as_ref().map_or_else(|| "before, or other".into(), |name| style.letters.clean(name));
    match reason.is_halt {
        true => format!("{name} (idle)"),
        false => name,
    }
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
    Tile::ALL.into_iter().filter(|tile| !matches!(tile, Tile::Guest | Tile::NotKnown))
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
        if times.count > 1 { percent(reason.mean_error_ns, times.mean_ns, 2) } else { "-".into() },
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
    let parts = all.tiles_without_halts.all().into_iter().filter(|(_, ns)| *ns > 0);
    let parts: Vec<String> = parts.map(|(tile, ns)| format!("{} {}", units.duration(ns), tile.name())).collect();
    let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
    let outside = units.duration(all.exit_time_without_halts_ns);
    let mut lines = wrapped_line(&format!("outside the guest for {outside} without halts{parts}"), style);
    lines.insert(0, format!("  {}, {} to QEMU", units.number_of(all.exits, "exit"), units.count(all.exits_to_qemu)));
    lines.push(format!(
        "  KVM blocked vCPUs {}: {} slept, {} ended while it polled",
        units.number_of(all.halts, "time"),
        units.count(all.halts_slept),
        units.count(all.halts.saturating_sub(all.halts_slept)),
    ));
    lines.extend(all.injected.map(|n| format!("  KVM injected {}", units.number_of(n, "interrupt"))));
    lines.extend(all.apic.as_ref().map(|apic| {
        format!(
            "  virtual APICs accepted {}, {} of them posted; {}",
            units.number_of(apic.accepted, "interrupt"),
            units.count(apic.posted),
            units.number_of(apic.nmis, "NMI")
        )
    }));
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
            lines.extend(wrapped_line(&counted, style));
        }
        None if vm.vcpus.iter().all(|vcpu| vcpu.ended) => {
            lines.push("  KVM's own counters are gone with the VM".into())
        }
        None => lines.push("  KVM's own counters cannot be read: mount -t debugfs none /sys/kernel/debug".into()),
    }
    lines.push(match &vm.traffic {
        Some(traffic) => traffic_line(traffic, style),
        None => "  none of its taps is known: nothing is said for each packet and each GB".into(),
    });
    lines.extend(vm.per_work.iter().flat_map(|per| work_lines(vm, per, style)));
    lines
}

fn wrapped_line(text: &str, style: Style) -> Vec<String> {
    wrapped("  ".into(), 4, text, style.width, style.letters.ellipsis())
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

/// Exits and time for the work that was done.
fn work_lines(vm: &VmExits, per: &PerWork, style: Style) -> Vec<String> {
    let units = style.letters;
    let mut table = Table::new(&["<for each", "packet: exits", "time", "GB: exits", "time"]);
    let mut row = |name: String, exits: Option<(f64, f64)>, time: (Ns, Ns)| {
        let (packet, gb) = exits
            .map_or(("-".into(), "-".into()), |(packet, gb)| (format!("{packet:.3}"), units.count(gb.round() as u64)));
        table.row(vec![name, packet, units.duration(time.0), gb, units.duration(time.1)]);
    };
    for (reason, per) in vm.all.reasons.iter().zip(&per.reasons) {
        let exits = (per.exits_per_packet, per.exits_per_gb);
        row(reason_name(reason, style), Some(exits), (per.time_per_packet_ns, per.time_per_gb_ns));
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
    with_blank(false, table, style)
}
