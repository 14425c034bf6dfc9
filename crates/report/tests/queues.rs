//! The text of `latpath queues`.

use latpath_bpf::{Functions, Window};
use latpath_counters::Statistics;
use latpath_histogram::Histogram;
use latpath_model::Observation;
use latpath_observe::queues::{Names, QueuesFigures};
use latpath_queues::{Directions, Queue, QueueCounts, Queues, Ring, Side, VirtioDevice, VIRTIO_NET};
use latpath_report::queues::text;
use latpath_report::Style;
use latpath_stats::units::CharacterSet;
use latpath_vms::TapKind;

const SECOND: i64 = 1_000_000_000;
const HANDLE_TX: u64 = 0xffff_ffff_c000_0100;
const HANDLE_RX: u64 = 0xffff_ffff_c000_0200;

fn histogram(value: i64, times: usize) -> Histogram {
    let mut histogram = Histogram::new();
    (0..times).for_each(|_| histogram.record(value));
    histogram
}

fn queue(side: Side, name: &str, buffers: u64, directions: Directions) -> Queue {
    let counts = QueueCounts {
        size: 256,
        posted_read_bytes: if directions.reads { 132 * buffers } else { 0 },
        posted_write_bytes: if directions.writes { 1560 * buffers } else { 0 },
        used_buffers: buffers,
        written_bytes: if directions.writes { 132 * buffers } else { 0 },
        read_bytes: if directions.reads { 132 * buffers } else { 0 },
        kicks: buffers / 2,
        kicks_suppressed: 3,
        rounds: buffers / 4,
        interrupts: buffers / 2,
        interrupts_suppressed: 5,
        interrupts_by_irqfd: if side == Side::Vhost { buffers / 2 } else { 0 },
        interrupt: Some(25),
        ..QueueCounts::default()
    };
    Queue {
        side,
        device: if side == Side::Driver { 3 } else { 7 },
        device_id: VIRTIO_NET,
        netns: if side == Side::Driver { 0 } else { 40 },
        pid: if side == Side::Driver { 0 } else { 227 },
        handler: HANDLE_TX,
        name: name.into(),
        index: 0,
        is_packed: false,
        directions,
        gone: false,
        posted: buffers,
        header: 12,
        packets: if directions.writes { buffers } else { 0 },
        available: Ring { moved: buffers, counted: buffers },
        used_up: Ring { moved: buffers, counted: buffers },
        counts,
        waited: histogram(30_000, buffers as usize),
        occupied: histogram(8, buffers as usize),
        per_kick: histogram(2, buffers as usize / 2),
        per_interrupt: histogram(2, buffers as usize / 2),
    }
}

const WRITES: Directions = Directions { reads: false, writes: true };
const READS: Directions = Directions { reads: true, writes: false };

fn seen(queues: Vec<Queue>) -> Queues {
    Queues { window: Window { from: SECOND, until: 3 * SECOND, ..Window::default() }, queues, ..Queues::default() }
}

fn names() -> Names {
    let card = VirtioDevice { driver: Some("virtio_net".into()), names: vec!["eth\u{1b}0".into()], ifindex: Some(2) };
    let counted = Statistics {
        rx_packets: 2000,
        rx_bytes: 120 * 2000,
        tx_packets: 1000,
        tx_bytes: 120 * 1000,
        ..Statistics::default()
    };
    // A tap's transmit counters count the packets that the guest receives.
    let tap = Statistics { tx_packets: 2000, tx_bytes: 120 * 2000, rx_packets: 999, rx_bytes: 120 * 999, ..counted };
    Names {
        functions: Functions::named([
            (HANDLE_TX, "handle_tx_kick".to_owned()),
            (HANDLE_RX, "handle_rx_kick".to_owned()),
        ])
        .into(),
        interrupts: [(25, "virtio3-input.0".to_owned())].into(),
        devices: [(3, card)].into(),
        vms: [(227, "guest0".to_owned())].into(),
        netns: Some(1),
        statistics: [((1, 2), counted), ((40, 7), tap)].into(),
        taps: [((40, 7), TapKind::Tap)].into(),
    }
}

fn both_sides() -> Observation<QueuesFigures> {
    let input = queue(Side::Driver, "input.0", 2000, WRITES);
    let mut output = queue(Side::Driver, "output.0", 1000, READS);
    output.counts.interrupt = None;
    let tx = queue(Side::Vhost, "vnet0", 1000, READS);
    QueuesFigures::observe(&seen(vec![output, tx, input]), &names())
}

fn letters() -> Style {
    Style::from(CharacterSet::of_locale(Some("C.UTF-8")))
}

#[test]
fn a_page_of_both_sides() {
    insta::assert_snapshot!(text(&both_sides(), letters()));
}

#[test]
fn packets_are_counted_without_their_headers_and_held_against_the_devices_counter() {
    let document = both_sides().figures;
    let [card, tap] = &document.devices[..] else { panic!("two devices: {document:?}") };
    assert_eq!((card.side, tap.side, tap.vm.as_deref()), (Side::Driver, Side::Vhost, Some("guest0")));
    let to_guest = card.to_guest.expect("a card counts");
    assert_eq!((to_guest.packets, to_guest.bytes, to_guest.difference()), (Some(2000), 120 * 2000, (0, 0)));
    assert_eq!(card.from_guest.map(|agreement| agreement.difference()), Some((0, 0)));
    // The tap counted one packet less.
    assert_eq!(tap.from_guest.map(|agreement| agreement.difference()), Some((1, 120)));
    assert_eq!(card.queues.iter().map(|queue| queue.queue.as_str()).collect::<Vec<_>>(), ["input.0", "output.0"]);
    assert_eq!(card.queues[0].interrupt_name.as_deref(), Some("virtio3-input.0"));
    assert_eq!(tap.queues[0].queue, "tx 0");
}

#[test]
fn a_macvtap_counts_in_the_other_direction() {
    let mut names = names();
    let tap = names.statistics[&(40, 7)];
    let macvtap = Statistics {
        rx_packets: tap.tx_packets,
        rx_bytes: tap.tx_bytes,
        tx_packets: 999,
        tx_bytes: tap.rx_bytes,
        ..tap
    };
    let queues = || seen(vec![queue(Side::Vhost, "vnet0", 1000, READS)]);
    let to_guest = |figures: &QueuesFigures| figures.devices[0].to_guest.map(|agreement| agreement.device_packets);
    let of_tap = QueuesFigures::observe(&queues(), &names).figures;
    names.statistics.insert((40, 7), macvtap);
    names.taps.insert((40, 7), TapKind::Macvtap);
    let of_macvtap = QueuesFigures::observe(&queues(), &names).figures;
    assert_eq!(of_macvtap.devices[0].from_guest.map(|agreement| agreement.difference()), Some((1, 120)));
    assert_eq!((to_guest(&of_tap), to_guest(&of_macvtap)), (Some(2000), Some(2000)));
}

#[test]
fn buffers_that_the_device_fills_lie_ready_and_are_no_backlog() {
    let rx = Queue { handler: HANDLE_RX, ..queue(Side::Vhost, "vnet0", 2000, WRITES) };
    let tx = queue(Side::Vhost, "vnet0", 1000, READS);
    let page = text(&QueuesFigures::observe(&seen(vec![rx, tx]), &names()), letters());
    let heads: Vec<&str> = page.lines().map(str::trim_start).collect();
    let below = |head: &str| {
        let at = heads.iter().position(|line| line.starts_with(head)).unwrap_or_else(|| panic!("{head}: {page}"));
        heads[at + 1].split("  ").next().unwrap_or_default()
    };
    assert_eq!((below("device had it"), below("waited to be filled")), ("tx 0", "rx 0"));
}

#[test]
fn a_kernel_that_does_not_say_whose_queue_it_is_leaves_the_taps_vm() {
    let unowned = |netns| Queue { pid: 0, netns, ..queue(Side::Vhost, "vnet0", 1000, READS) };
    let driver = Queue { pid: 0, ..queue(Side::Driver, "output.0", 9, READS) };
    let mut seen = seen(vec![unowned(40), unowned(41), queue(Side::Vhost, "vnet1", 5, READS), driver]);
    seen.assign_owners(|netns, ifindex| ((netns, ifindex) == (40, 7)).then_some(500));
    assert_eq!(seen.queues.iter().map(|queue| queue.pid).collect::<Vec<_>>(), [500, 0, 227, 0]);
}

#[test]
fn what_is_printed_as_json_is_read_again() {
    let printed = serde_json::to_string(&both_sides()).unwrap();
    let read: Observation<QueuesFigures> = serde_json::from_str(&printed).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), printed);
}

#[test]
fn a_packet_of_several_buffers_has_one_header() {
    let input = Queue { packets: 500, ..queue(Side::Driver, "input.0", 2000, WRITES) };
    assert_eq!(input.packets(), Some((500, 132 * 2000 - 12 * 500)));
    assert_eq!(queue(Side::Driver, "control", 3, READS).packets(), None);
    let disk = Queue { device_id: 2, ..queue(Side::Driver, "input.0", 3, READS) };
    assert_eq!(disk.packets(), None, "only a network card has packets");
}

#[test]
fn buffers_that_passed_unseen_are_said() {
    let blind = Queue {
        available: Ring { moved: 2007, counted: 2000 },
        used_up: Ring { moved: 1999, counted: 2000 },
        ..queue(Side::Driver, "requests", 2000, READS)
    };
    let page = text(&QueuesFigures::observe(&seen(vec![blind]), &Names::default()), letters());
    assert!(page.contains("not as counted: requests +7 posted, -1 used"), "{page}");
    let page = text(&QueuesFigures::observe(&seen(Vec::new()), &Names::default()), letters());
    assert_eq!(page, "no virtqueue was used in 2.000 s\n");
}

/// If a guest posts too few buffers for a packet, the buffers are put back before any other event, so the index moves
/// backward. Counters of other queues may have any value.
#[test]
fn an_index_that_went_back_moved_nothing_and_no_sum_overflows() {
    let put_back = |name: &str| {
        let (back, most) = (5u64.wrapping_neg(), i64::MAX as u64);
        Queue {
            available: Ring { moved: back, counted: back },
            used_up: Ring { moved: most, counted: most },
            ..queue(Side::Vhost, name, 9, WRITES)
        }
    };
    let moves = |page: &str| page.lines().find(|line| line.contains("own indices")).map(str::to_owned);
    let document = QueuesFigures::observe(&seen(vec![put_back("vnet0")]), &names()).figures;
    assert_eq!(document.devices[0].queues[0].index_moved, i64::MAX as u64, "of posted buffers nothing moved");
    assert_eq!(document.devices[0].queues[0].posted_index_difference, 0);
    let three = QueuesFigures::observe(&seen(["a", "b", "c"].map(put_back).to_vec()), &names());
    let said = moves(&text(&three, letters())).expect("a line on the indices");
    assert!(said.ends_with(": as counted"), "{said}");
    assert!(said.replace('\u{202f}', "").contains(&u64::MAX.to_string()), "{said}");
}

#[test]
fn what_is_missing_is_counted_and_noted() {
    let window = Window { missed: 3, cost: Some((4, 1000)), ..seen(Vec::new()).window };
    let observation = QueuesFigures::observe(&Queues { window, no_room: 1, untimed: 2, ..Queues::default() }, &names());
    assert_eq!((observation.lost_events, observation.cost_per_event_ns), (3, Some(250)));
    let noted = ["some queues are missing", "had 2 buffers is not known", "the kernel skipped, not counted: 3"];
    assert_eq!(observation.notes.len(), noted.len());
    assert!(observation.notes.iter().zip(noted).all(|(note, what)| note.contains(what)), "{:?}", observation.notes);
    assert!(text(&observation, letters()).contains("an event cost 250 ns"));
}
