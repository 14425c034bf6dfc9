//! Tests of the programs' tracking of ring indices, run in user space against a simulated ring.

use crate::layout::RawQueue;
use crate::Ring;
use proptest::prelude::*;

extern "C" {
    fn queue_size() -> u64;
    fn ring_event(queue: *mut RawQueue, available: u32, used: u32, cycle: u32, posted: u32, got: u32);
    fn ring_step_back(queue: *mut RawQueue, available: u32, cycle: u32, buffers: u32);
}

/// A ring, and the programs' view of it.
struct Model {
    queue: Box<RawQueue>,
    cycle: u32,
    available: u32,
    used: u32,
}

impl Model {
    /// Creates a ring of `size` descriptors whose indices start at `at` and wrap after `cycle`.
    fn new(size: u32, cycle: u32, at: u32) -> Self {
        // SAFETY: a repr(C) struct of integers, for which all-zero bytes are valid.
        let mut queue: Box<RawQueue> = unsafe { Box::new(std::mem::zeroed()) };
        queue.size = size;
        Self { queue, cycle, available: at % cycle, used: at % cycle }
    }

    /// Posts a buffer, or returns one to the driver; `seen`: whether the programs see it.
    fn event(&mut self, descriptors: u32, is_post: bool, seen: bool) {
        let index = if is_post { &mut self.available } else { &mut self.used };
        *index = (*index + descriptors) % self.cycle;
        if seen {
            let (posted, got) = if is_post { (descriptors, 0) } else { (0, descriptors) };
            // SAFETY: the sizes are compared below.
            unsafe { ring_event(&mut *self.queue, self.available, self.used, self.cycle, posted, got) };
        }
    }

    fn put_back(&mut self, buffers: u32) {
        self.available = (self.available + self.cycle - buffers) % self.cycle;
        // SAFETY: as above.
        unsafe { ring_step_back(&mut *self.queue, self.available, self.cycle, buffers) };
    }

    fn differences(&self) -> [i64; 2] {
        let difference = |moved, counted| Ring { moved, counted }.difference();
        let (available, used) = (self.queue.available, self.queue.used_up);
        [difference(available.moved, available.counted), difference(used.moved, used.counted)]
    }
}

#[test]
fn both_sides_lay_memory_out_alike() {
    // SAFETY: takes no arguments and returns a number.
    assert_eq!(unsafe { queue_size() }, size_of::<RawQueue>() as u64);
}

#[test]
fn an_index_that_jumps_was_reset_and_is_no_difference() {
    let mut model = Model::new(256, 1 << 16, 40_000);
    (0..10).for_each(|_| model.event(1, true, true));
    (model.available, model.used) = (0, 0);
    (0..10).for_each(|_| model.event(1, true, true));
    assert_eq!((model.differences(), model.queue.resets), ([0, 0], 1));
    assert_eq!(model.queue.available.moved, 18, "the first event of each stretch begins it");
}

/// The guest posts fewer buffers than a packet needs, and the device puts back the buffers it took before any other
/// event.
#[test]
fn what_is_put_back_first_moves_nothing_forward() {
    let mut model = Model::new(256, 1 << 16, 7);
    model.event(3, true, true);
    model.put_back(3);
    let Ring { moved, counted } = Ring { moved: model.queue.available.moved, counted: model.queue.available.counted };
    assert_eq!((moved, model.differences()), (3u64.wrapping_neg(), [0, 0]));
    assert_eq!(Ring { moved, counted }.forward(), 0);
}

proptest! {
    /// Indices of split rings wrap at 2^16, those of packed rings at twice the ring's size.
    #[test]
    fn what_is_seen_is_what_the_indices_moved_by(
        is_packed: bool,
        at: u32,
        events in prop::collection::vec((1u32..4, any::<bool>(), 0u32..3), 1..400),
    ) {
        let cycle = if is_packed { 2 * 8 } else { 1 << 16 };
        let mut model = Model::new(8, cycle, at);
        for (descriptors, is_post, back) in events {
            model.event(if is_packed { descriptors } else { 1 }, is_post, true);
            if !is_packed {
                model.put_back(back);
            }
        }
        prop_assert_eq!(model.differences(), [0, 0]);
    }

    /// A buffer that the programs miss shows as a difference.
    #[test]
    fn a_buffer_that_passes_unseen_is_a_difference(before in 1u32..50, after in 1u32..50, is_post: bool) {
        let mut model = Model::new(256, 1 << 16, 65_530);
        (0..before).for_each(|_| model.event(1, is_post, true));
        model.event(1, is_post, false);
        (0..after).for_each(|_| model.event(1, is_post, true));
        prop_assert_eq!(model.differences(), if is_post { [1, 0] } else { [0, 1] });
    }
}
