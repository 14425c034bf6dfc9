//! Tests of the programs' state machine, run in user space.

use crate::layout::{RawRow, RawVcpu, REASONS};
use latpath_bpf::{BUCKETS, STEP_BITS};
use latpath_histogram::coarse_bucket;
use proptest::prelude::*;

extern "C" {
    fn vcpu_size() -> u64;
    fn row_size() -> u64;
    fn vcpu_bucket_of(v: u64) -> u32;
    fn row_add(row: *mut RawRow, v: u64);
    fn vcpu_event(vcpu: *mut RawVcpu, rows: *mut RawRow, event: u32, now: u64, argument: u64);
}

/// Numbers of events, as in src/vcpu_time.c.
const ENTRY: u32 = 0;
const EXIT: u32 = 1;
const TO_USER: u32 = 2;
const RUN: u32 = 3;
const OUT: u32 = 4;
const WAKEUP: u32 = 5;
const IN: u32 = 6;
const INTERRUPT: u32 = 7;
const INTERRUPT_END: u32 = 8;
const HALT_END: u32 = 9;

struct Machine {
    vcpu: Box<RawVcpu>,
    rows: Vec<RawRow>,
}

impl Machine {
    fn new(from: u64) -> Self {
        // SAFETY: both are repr(C) structs of integers, for which all-zero bytes are valid.
        let (mut vcpu, row): (Box<RawVcpu>, RawRow) = unsafe { (Box::new(std::mem::zeroed()), std::mem::zeroed()) };
        (vcpu.from, vcpu.since, vcpu.until, vcpu.window) = (from, from, u64::MAX, u64::MAX);
        Self { vcpu, rows: vec![row; REASONS] }
    }

    fn event(&mut self, event: u32, now: u64, argument: u64) {
        // SAFETY: the sizes are checked against those in C; there are REASONS rows.
        unsafe { vcpu_event(&mut *self.vcpu, self.rows.as_mut_ptr(), event, now, argument) }
    }

    /// Feeds events to a new machine; returns it and the total time in each state.
    fn play(from: u64, events: &[(u64, u32, u64)]) -> (Self, [u64; 8]) {
        let mut machine = Self::new(from);
        events.iter().for_each(|(now, event, argument)| machine.event(*event, *now, *argument));
        let mut tiles = machine.vcpu.open;
        tiles[1] += machine.vcpu.guest;
        machine.rows.iter().for_each(|row| tiles.iter_mut().zip(row.tiles).for_each(|(sum, ns)| *sum += ns));
        (machine, tiles)
    }
}

const NOTHING: u64 = 0;

#[test]
fn both_sides_lay_memory_out_alike() {
    // SAFETY: the functions take no arguments and return a number.
    let sizes = unsafe { (vcpu_size(), row_size()) };
    assert_eq!(sizes, (size_of::<RawVcpu>() as u64, size_of::<RawRow>() as u64));
}

#[test]
fn an_exit_to_qemu_is_kvm_then_qemu_then_kvm() {
    let (machine, tiles) =
        Machine::play(100, &[(110, EXIT, 3), (115, TO_USER, NOTHING), (145, RUN, NOTHING), (150, ENTRY, NOTHING)]);
    // The guest must have run before the first exit.
    assert_eq!(tiles, [0, 10, 10, 30, 0, 0, 0, 0]);
    let row = machine.rows[3];
    assert_eq!(
        (row.took.count, row.took.sum.low, row.took.min, row.took.max, row.took.squares.low),
        (1, 40, 40, 40, 1600)
    );
    assert_eq!(row.tiles, [0, 0, 10, 30, 0, 0, 0, 0], "an exit's own tiles");
}

#[test]
fn a_halt_polls_sleeps_waits_for_its_cpu_and_goes_on() {
    let events = [
        (1000, EXIT, 1),
        (1300, OUT, 0),
        (5000, WAKEUP, NOTHING),
        (5400, IN, NOTHING),
        // Halted since 1049: KVM polled until 1300.
        (5500, HALT_END, 4451),
        (5600, ENTRY, NOTHING),
    ];
    let (machine, tiles) = Machine::play(900, &events);
    let polled = 1300 - (5500 - (4451));
    assert_eq!(tiles, [0, 100, 600 - 100 - polled, 0, polled, 3700, 400, 0]);
    assert_eq!((machine.vcpu.halts, machine.vcpu.waits), (1, 1));
}

#[test]
fn kvm_polls_no_longer_than_it_may() {
    let halt = [(10, EXIT, 1), (60, OUT, 0), (90, WAKEUP, NOTHING), (95, IN, NOTHING), (100, HALT_END, 80)];
    for (window, polled) in [(0, 0), (25, 25), (40, 40), (1000, 40)] {
        let mut machine = Machine::new(0);
        machine.vcpu.window = window;
        halt.iter().for_each(|(now, event, argument)| machine.event(*event, *now, *argument));
        assert_eq!(machine.vcpu.open[4], polled, "of {window}");
    }
}

#[test]
fn an_interrupt_that_the_host_serves_before_kvm_says_so_begins_the_exit() {
    let events =
        [(0, ENTRY, NOTHING), (100, INTERRUPT, NOTHING), (105, INTERRUPT, NOTHING), (110, INTERRUPT_END, NOTHING)];
    let more = [(130, INTERRUPT_END, NOTHING), (131, EXIT, 5), (140, ENTRY, NOTHING)];
    let (machine, tiles) = Machine::play(0, &[&events[..], &more].concat());
    assert_eq!((tiles[1], tiles[2], tiles[7]), (100, 10, 30), "guest, KVM, interrupted");
    assert_eq!((machine.rows[5].took.count, machine.rows[5].took.sum.low), (1, 40));
}

#[test]
fn an_exit_that_met_no_entry_ends_the_one_before() {
    let (machine, tiles) = Machine::play(0, &[(10, EXIT, 1), (15, EXIT, 2), (18, ENTRY, NOTHING)]);
    assert_eq!((machine.rows[1].took.sum.low, machine.rows[2].took.sum.low), (5, 3));
    assert_eq!(tiles[1] + tiles[2], 18);
}

#[test]
fn a_thread_that_is_switched_out_in_its_guest_was_left_by_it() {
    let (_, tiles) = Machine::play(0, &[(5, ENTRY, NOTHING), (10, OUT, 1), (30, IN, NOTHING), (31, ENTRY, NOTHING)]);
    assert_eq!((tiles[1], tiles[6], tiles[2]), (5, 20, 6), "guest, ready, KVM");
}

proptest! {
    #[test]
    fn tiles_add_up_to_the_wall_clock_whatever_comes(
        from in 0..1_u64 << 40,
        events in prop::collection::vec((0_u64..1 << 21, 0_u32..10, any::<u64>()), 0..200),
    ) {
        let mut now = from;
        let events: Vec<_> = events
            .into_iter()
            .map(|(later, event, argument)| {
                now += later;
                // A halt cannot last longer than the time since the window began.
                (now, event, if event == HALT_END { argument % (now - from + 1) } else { argument })
            })
            .collect();
        let (machine, tiles) = Machine::play(from, &events);
        prop_assert_eq!(machine.vcpu.since, machine.vcpu.from + tiles.iter().sum::<u64>());
        for row in &machine.rows {
            prop_assert_eq!(row.took.buckets.iter().sum::<u64>(), row.took.count);
            prop_assert!(row.took.min <= row.took.max && row.took.max <= row.took.sum.low);
        }
        let closed: u64 = machine.rows.iter().map(|row| row.took.count).sum();
        prop_assert!(closed <= machine.vcpu.exits + events.iter().filter(|(_, event, _)| *event == INTERRUPT).count() as u64);
    }

    #[test]
    fn buckets_are_those_of_the_histogram(v in (0_u32..42).prop_flat_map(|bits| 0_u64..=(1 << bits))) {
        // SAFETY: the function takes and returns a number.
        prop_assert_eq!(unsafe { vcpu_bucket_of(v) } as usize, coarse_bucket::<{ STEP_BITS as u32 }>(v).min(BUCKETS - 1));
    }
}

/// Creates a histogram as after a week with 1,000,000 values per second.
fn after_a_week(values: &[u64]) -> latpath_histogram::Histogram {
    const A_WEEK: u64 = 7 * 24 * 3600 * 1_000_000;
    // SAFETY: RawRow is a repr(C) struct of integers, for which all-zero bytes are valid.
    let mut row: RawRow = unsafe { std::mem::zeroed() };
    let add = |row: &mut RawRow, v| {
        // SAFETY: the row outlives the call, and has the size of the C struct.
        unsafe { row_add(row, v) }
    };
    values.iter().for_each(|v| add(&mut row, *v));
    // Scale all sums, with their carries, as if each value had been added `times` times.
    let times = A_WEEK / values.len() as u64 - 1;
    let took = &mut row.took;
    for sum in [&mut took.sum, &mut took.squares, &mut took.squares_of_large] {
        let all = u128::from(sum.low) * u128::from(times);
        (sum.low, sum.high) = (all as u64, (all >> 64) as u64);
    }
    took.count *= times;
    took.buckets.iter_mut().for_each(|count| *count *= times);
    // The C code adds the last values itself: it must continue to count beyond each limit.
    values.iter().for_each(|v| add(&mut row, *v));
    latpath_bpf::histogram!(row.took)
}

#[test]
fn figures_are_right_after_a_week_at_a_million_values_a_second() {
    for values in [[900_000u64, 1_000_000], [1, 3], [4_000_000_000, 5_000_000_000], [1 << 40, 1 << 41]] {
        let week = after_a_week(&values);
        let (mean, half) = ((values[0] + values[1]) / 2, (values[1] - values[0]) / 2);
        let near = |a: f64, b: f64| (a - b).abs() <= b * 0.005;
        assert_eq!(week.count(), 604_800_000_000);
        assert_eq!(week.mean() as u64, mean);
        assert!(near(week.stddev() as f64, half as f64), "{values:?}: {} is {half}", week.stddev());
        let all: u64 = week.buckets().iter().map(|bucket| bucket.count).sum();
        assert_eq!(all, week.count());
    }
}

proptest! {
    #[test]
    fn sums_carry_beyond_64_bits(values in prop::collection::vec(any::<u64>(), 1..40)) {
        // SAFETY: RawRow is a repr(C) struct of integers, for which all-zero bytes are valid.
        let mut row: RawRow = unsafe { std::mem::zeroed() };
        for v in &values {
            // SAFETY: the row outlives the call.
            unsafe { row_add(&mut row, *v) };
        }
        let sum: u128 = values.iter().map(|v| u128::from(*v)).sum();
        prop_assert_eq!(u128::from(row.took.sum.high) << 64 | u128::from(row.took.sum.low), sum);
        prop_assert_eq!(row.took.buckets.iter().sum::<u64>(), values.len() as u64);
    }
}
