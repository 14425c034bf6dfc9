//! The text of `latpath ladder`.

use crate::page::{Page, Style};
use latpath_ladder::{Direction, LadderFigures, MeansReport, QueueReport, Step, Times, Variant};
use latpath_model::Observation;
use latpath_stats::text::{wrapped, Table};
use latpath_stats::units::{percent, CharacterSet};

/// Formats the transfers of an observation as text.
pub fn ladder_text(observation: &Observation<LadderFigures>, style: Style) -> String {
    let (mut page, report) = (Page::new(style), &observation.figures);
    let letters = page.letters;
    let transfers: u64 = report.queues.iter().flat_map(|queue| &queue.ladders).map(|means| means.total.count).sum();
    page.line(format!(
        "{} in {}, of {}",
        letters.number_of(transfers, "transfer"),
        letters.duration(observation.window_ns),
        letters.number_of(report.events, "event")
    ));
    counted(observation, style).iter().for_each(|line| page.line(line));
    page.cost(observation);
    if report.queues.is_empty() {
        page.line("no packet went between a guest and this host, or none of its steps was seen");
    }
    for queue in &report.queues {
        page.gap();
        write_queue(&mut page, queue);
    }
    page.finish()
}

/// Returns lines with the numbers of lost events, and of events that belong to no transfer, including zeros.
fn counted(observation: &Observation<LadderFigures>, style: Style) -> Vec<String> {
    let (letters, report) = (style.letters, &observation.figures);
    let counts = format!(
        "{}, {} lost, {} unfinished, {} ended by lost events, {} of an unclear queue, {} of other devices",
        letters.number_of(report.causality_violations, "causality violation"),
        letters.number_of(observation.lost_events, "event"),
        letters.number_of(report.unfinished, "transfer"),
        report.ended_by_loss,
        letters.number_of(report.ambiguous_packets, "packet"),
        letters.number_of(report.other_kicks, "kick"),
    );
    let lines = wrapped(String::new(), 2, &counts, style.width, letters.ellipsis());
    match (report.causality_violations, observation.lost_events) {
        (0, 0) => lines,
        _ => lines.iter().map(|line| style.alarm(line)).collect(),
    }
}

/// Formats the counts of a queue: its packets, saved kicks, and coalesced kicks or packets.
pub(crate) fn work_of(queue: &QueueReport, letters: CharacterSet) -> String {
    let (packets, coalesced) = (letters.number_of(queue.packets, "packet"), letters.count(queue.coalesced));
    match queue.direction {
        Direction::FromGuest => format!(
            "{packets}, {} without a kick; {}: {coalesced} coalesced, {} for packets that were gone already",
            letters.count(queue.packets_without_kick),
            letters.number_of(queue.kicks, "kick"),
            letters.count(queue.kicks_without_packet),
        ),
        Direction::ToGuest => format!("{packets}, of which {coalesced} joined one that waited"),
    }
}

fn write_queue(page: &mut Page, queue: &QueueReport) {
    let letters = page.letters;
    let mut parts = vec![match queue.direction {
        Direction::FromGuest => "from the guest to the host".to_owned(),
        Direction::ToGuest => "from the host to the guest".to_owned(),
    }];
    parts.extend(queue.vm.as_ref().map(|vm| format!("VM {}", letters.clean(vm))));
    parts.extend(queue.doorbell.as_ref().map(|doorbell| format!("kicked at {doorbell}")));
    parts.extend(queue.kick_eventfd.map(|eventfd| format!("eventfd {eventfd}")));
    let device = queue.device.as_deref().unwrap_or("a tap");
    page.line(format!("{}  {}", letters.clean(device), parts.join(", ")));
    page.line(format!("  {}", work_of(queue, letters)));
    queue.ladders.iter().for_each(|means| write_means(page, queue, means));
}

fn variant_words(means: &MeansReport, by_vhost: bool) -> &'static str {
    match means.variant {
        Variant::NoVhost => "A: no vhost; QEMU carries the packets and raises the interrupt",
        Variant::Relayed => "B: vhost carries the packets, QEMU relays the interrupt (virtio-mmio, INTx)",
        Variant::Irqfd => "C: vhost carries the packets, KVM raises the interrupt (irqfd, MSI)",
        Variant::Posted => "D: vhost carries the packets, KVM posts the interrupt to hardware (APICv, AVIC)",
        Variant::NoInterrupt if by_vhost => "vhost carries the packets; the guest has switched the interrupt off",
        Variant::NoInterrupt => "QEMU carries the packets; the guest has switched the interrupt off",
    }
}

fn write_means(page: &mut Page, queue: &QueueReport, means: &MeansReport) {
    let letters = page.letters;
    let by_vhost = match means.variant {
        Variant::NoVhost => false,
        Variant::NoInterrupt => queue.by_vhost,
        Variant::Relayed | Variant::Irqfd | Variant::Posted => true,
    };
    let words = |step: Step| step.words(queue.direction, by_vhost);
    let transfers = letters.number_of(means.total.count, "transfer");
    page.line(format!("  {transfers}  {}", variant_words(means, by_vhost)));
    let mut table = Table::new(&["<rung: until", "count", "mean", "p50", "p90", "p99", "max", "share"]);
    let row = |name: String, times: &Times| -> Vec<String> {
        let share = percent(times.sum_ns, means.total.sum_ns, 1);
        let figures = [times.mean_ns, times.p50_ns, times.p90_ns, times.p99_ns, times.max_ns];
        let figures = figures.map(|time| letters.duration(time));
        [name, letters.count(times.count)].into_iter().chain(figures).chain([share]).collect()
    };
    means.rungs.iter().for_each(|rung| table.row(row(words(rung.step).into(), &rung.time)));
    table.row(row("total".into(), &means.total));
    page.table_at(4, &table);
    page.line("    means and shares add up over all transfers; percentiles of rungs do not add up");
    beside(page, means);
    drawn(page, means, &words);
}

/// Writes the exit reasons of kicks, and the time from an interrupt to the guest's next kick.
fn beside(page: &mut Page, means: &MeansReport) {
    let letters = page.letters;
    if !means.exit_reasons.is_empty() {
        let reasons: Vec<String> = means
            .exit_reasons
            .iter()
            .take(4)
            .map(|reason| format!("{} {}", letters.clean(&reason.reason), letters.count(reason.count)))
            .collect();
        page.line(format!("    the vCPU left the guest for: {}", reasons.join(", ")));
    }
    let next = means.next_kick;
    if next.count > 0 {
        page.line(format!(
            "    from the interrupt until the guest's next kick: p50 {}, p99 {}, of {}",
            letters.duration(next.p50_ns),
            letters.duration(next.p99_ns),
            letters.count(next.count)
        ));
    }
}

fn drawn(page: &mut Page, means: &MeansReport, words: &dyn Fn(Step) -> &'static str) {
    let letters = page.letters;
    page.line("    one of them, near the median:");
    let mut table = Table::new(&["at", "rung", "<step", "<by", "CPU"]);
    for step in &means.drawn {
        let by = match step.pid {
            0 => "idle".to_owned(),
            pid => format!("{} ({pid})", letters.clean(&step.thread)),
        };
        let rung = match step.step {
            Step::Begin => String::new(),
            _ => letters.duration(step.rung_ns),
        };
        table.row(vec![letters.duration(step.at_ns), rung, words(step.step).into(), by, step.cpu.to_string()]);
    }
    page.table_at(6, &table);
}
