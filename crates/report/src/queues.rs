//! The text of `latpath queues`.

use crate::page::{of_enough, Page, Style};
use latpath_model::Observation;
use latpath_observe::queues::{Agreement, Device, Layout, QueueFigures, QueuesFigures, Sizes};
use latpath_queues::Side;
use latpath_stats::{text::Table, units::CharacterSet};

/// Formats an observation of queues as text.
pub fn text(observation: &Observation<QueuesFigures>, style: Style) -> String {
    let (mut page, document) = (Page::new(style), &observation.figures);
    let window = page.duration(observation.window_ns);
    match document.devices.len() as u64 {
        0 => page.line(format!("no virtqueue was used in {window}")),
        n => page.line(format!("{} in {window}", page.letters.number_of(n, "device"))),
    }
    for device in &document.devices {
        page.gap();
        write_device(&mut page, device);
    }
    page.gap();
    page.cost(observation);
    page.finish()
}

fn title(page: &Page, device: &Device) -> String {
    let clean = |text: &String| page.clean(text);
    let mut words = Vec::new();
    if let Some(pid) = device.pid {
        let vm = device.vm.as_ref().map_or_else(|| "a VM that is gone".into(), clean);
        words.push(format!("{vm} (process {pid})"));
    }
    words.extend(device.known_as.iter().map(clean));
    words.extend(device.name.as_ref().map(clean));
    words.extend(device.driver.as_ref().map(clean));
    words.push(match device.side {
        Side::Vhost => "served by vhost".into(),
        Side::Driver => "as its driver sees it".into(),
    });
    words.join(", ")
}

/// Names of the queues, followed by their indexes if names are not unique.
fn queue_names(queues: &[QueueFigures], units: CharacterSet) -> Vec<String> {
    let is_alone = |queue: &QueueFigures| queues.iter().filter(|other| other.queue == queue.queue).count() == 1;
    let name = |queue: &QueueFigures| match units.clean(&queue.queue) {
        name if is_alone(queue) => name,
        name => format!("{name} #{}", queue.number),
    };
    queues.iter().map(name).collect()
}

fn write_device(page: &mut Page, device: &Device) {
    let units = page.letters;
    let is_vhost = device.side == Side::Vhost;
    page.line(title(page, device));
    page.gap();
    let posted = if is_vhost { "taken" } else { "posted" };
    let mut counts = Table::new(&["<queue", posted, "bytes", "room", "used", "read", "written", "ring"]);
    let per_kick = if is_vhost { "per round (most)" } else { "per kick (most)" };
    let mut signals = Table::new(&[
        "<queue",
        "kicks",
        "kicks saved",
        per_kick,
        "interrupts",
        "interrupts saved",
        "per interrupt (most)",
    ]);
    let mut had = Table::new(&["<device had it", "mean", "p50", "p99", "p99.9", "max"]);
    let mut ready = Table::new(&["<waited to be filled", "mean", "p50", "p99", "p99.9", "max"]);
    let held = if is_vhost { "waiting (most)" } else { "in ring (most)" };
    let mut sizes = Table::new(&["<buffers, mean", held, "ready (least)"]);
    let names = queue_names(&device.queues, units);
    let named = || names.iter().zip(&device.queues);
    for (name, queue) in named() {
        counts.row(count_row(name, queue, units));
        signals.row(signal_row(name, queue, is_vhost, units));
        let times = if queue.is_filled_by_device() { &mut ready } else { &mut had };
        times.row(time_row(name, queue, units));
        sizes.row(size_row(name, queue, units));
    }
    for table in [counts, signals, had, ready, sizes].into_iter().filter(|table| !table.rows().is_empty()) {
        page.table(&table);
        page.gap();
    }
    let meaning = match is_vhost {
        true => {
            "waiting: a backlog, fewer is better; ready: room for packets, none left means that packets wait in the tap"
        }
        false => {
            "in ring: not done yet, fewer is better; ready: room for packets, none left means that packets are lost"
        }
    };
    page.wrapped("  ".into(), 4, meaning);
    named().filter_map(|(name, queue)| interrupt_line(name, queue, is_vhost, units)).for_each(|line| page.line(line));
    named().for_each(|(name, queue)| odd(page, name, queue, is_vhost));
    page.line(index_line(named(), units));
    let device_name = device.known_as.first().or(device.name.as_ref());
    let name = device_name.map_or_else(|| "the device".into(), |name| units.clean(name));
    for (direction, agreement) in [("to the guest", device.to_guest), ("from the guest", device.from_guest)] {
        agreement.iter().for_each(|agreement| page.line(agreement_line(direction, &name, *agreement, units)));
    }
}

fn if_any(shown: bool, n: u64, units: CharacterSet) -> String {
    if shown {
        units.count(n)
    } else {
        "-".into()
    }
}

fn count_row(name: &str, queue: &QueueFigures, units: CharacterSet) -> Vec<String> {
    vec![
        name.to_owned(),
        units.count(queue.posted_buffers),
        if_any(queue.device_reads, queue.counts.posted_read_bytes, units),
        if_any(queue.device_writes, queue.counts.posted_write_bytes, units),
        units.count(queue.counts.used_buffers),
        if_any(queue.device_reads, queue.counts.read_bytes, units),
        if_any(queue.device_writes || queue.counts.written_bytes > 0, queue.counts.written_bytes, units),
        match queue.layout {
            Layout::Split => format!("{} split", queue.counts.size),
            Layout::Packed => format!("{} packed", queue.counts.size),
        },
    ]
}

fn signal_row(name: &str, queue: &QueueFigures, is_vhost: bool, units: CharacterSet) -> Vec<String> {
    let most = |sizes: Sizes| mean_and(sizes, sizes.max, units);
    vec![
        name.to_owned(),
        units.count(queue.counts.kicks),
        // The driver suppresses interrupts and the device suppresses kicks, so each side can count only what the other
        // suppresses.
        if_any(!is_vhost, queue.counts.kicks_suppressed, units),
        most(queue.per_kick),
        units.count(queue.counts.interrupts),
        if_any(is_vhost, queue.counts.interrupts_suppressed, units),
        most(queue.per_interrupt),
    ]
}

fn mean_and(sizes: Sizes, extreme: u64, units: CharacterSet) -> String {
    match sizes.count {
        0 => "-".into(),
        _ => format!("{:.2} ({})", sizes.mean, units.count(extreme)),
    }
}

fn time_row(name: &str, queue: &QueueFigures, units: CharacterSet) -> Vec<String> {
    let times = &queue.waited;
    let of_enough = |ns, least| of_enough(times, ns, least, units);
    vec![
        name.to_owned(),
        of_enough(times.mean_ns, 1),
        of_enough(times.p50_ns, 1),
        of_enough(times.p99_ns, 100),
        of_enough(times.p99_9_ns, 1000),
        of_enough(times.max_ns, 1),
    ]
}

/// Occupied buffers of a queue that the device reads are a backlog; those of a queue that the device fills are a
/// reserve.
fn size_row(name: &str, queue: &QueueFigures, units: CharacterSet) -> Vec<String> {
    let (none, occupied) = ("-".to_owned(), queue.occupied);
    let cells = match queue.is_filled_by_device() {
        true => [none, mean_and(occupied, occupied.min, units)],
        false => [mean_and(occupied, occupied.max, units), none],
    };
    std::iter::once(name.to_owned()).chain(cells).collect()
}

fn interrupt_line(name: &str, queue: &QueueFigures, is_vhost: bool, units: CharacterSet) -> Option<String> {
    let number = queue.counts.interrupt;
    if !is_vhost {
        let called = queue.interrupt_name.as_ref().map_or_else(String::new, |name| format!(" ({})", units.clean(name)));
        return number.map(|number| format!("  {name}: interrupt {number}{called}"));
    }
    let relayed = queue.counts.interrupts.saturating_sub(queue.counts.interrupts_by_irqfd);
    let gsi = number.map_or_else(String::new, |gsi| format!(" (GSI {gsi})"));
    match (queue.counts.interrupts_by_irqfd, relayed) {
        (0, 0) => None,
        (0, _) => Some(format!("  {name}: its signals reach the guest by QEMU, which makes interrupts of them")),
        (_, 0) => Some(format!("  {name}: KVM makes interrupts of its signals{gsi}")),
        (direct, relayed) => Some(format!(
            "  {name}: KVM makes interrupts of {} of its signals{gsi}, QEMU of {}",
            units.count(direct),
            units.count(relayed)
        )),
    }
}

/// Writes the counts of unusual events of a queue.
fn odd(page: &mut Page, name: &str, queue: &QueueFigures, is_vhost: bool) {
    let mut say = |n: u64, what: &str| {
        if n > 0 {
            page.line(format!("  {name}: {what}: {}", page.letters.count(n)));
        }
    };
    say(queue.counts.refused_buffers, "buffers that found the ring full");
    say(queue.counts.put_back_buffers, "buffers put back, to be taken again");
    say(if is_vhost { 0 } else { queue.counts.interrupts_empty }, "interrupts that found nothing used");
    say(queue.counts.index_resets, "times that its ring began again");
    if queue.deleted {
        page.line(format!("  {name}: was deleted, and may have been made again"));
    }
}

/// Compares the counted buffers with the rings' own indices: a difference means that buffers passed unseen.
fn index_line<'a>(queues: impl Iterator<Item = (&'a String, &'a QueueFigures)>, units: CharacterSet) -> String {
    let (mut moved, mut differences) = (0u64, Vec::new());
    for (name, queue) in queues {
        moved = moved.saturating_add(queue.index_moved);
        let (posted, used) = (queue.posted_index_difference, queue.used_index_difference);
        if posted != 0 || used != 0 {
            differences.push(format!("{name} {posted:+} posted, {used:+} used"));
        }
    }
    let moved = format!("  the rings' own indices moved by {}", units.count(moved));
    match differences.is_empty() {
        true => format!("{moved}: as counted"),
        false => format!("{moved}: not as counted: {}", differences.join("; ")),
    }
}

fn agreement_line(direction: &str, name: &str, agreement: Agreement, units: CharacterSet) -> String {
    let (packets, bytes) = agreement.difference();
    let counted = format!(
        "{direction} {name} counted {} ({} B)",
        units.number_of(agreement.device_packets, "packet"),
        units.count(agreement.device_bytes)
    );
    let queues = match agreement.packets {
        Some(packets) => format!("{} ({} B)", units.count(packets), units.count(agreement.bytes)),
        None => format!("{} B", units.count(agreement.bytes)),
    };
    match (packets, bytes) {
        (0, 0) => format!("  {counted}: its queues too"),
        _ => format!("  {counted}, its queues {queues}"),
    }
}
