//! A queue of captures between two threads, bounded in number and in memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, SyncSender};
use std::sync::Arc;
use std::time::Duration;

/// Maximum memory of the waiting records, bytes. A capture that waits alone may have any size, because this machine's
/// records have no limit and another machine's may be large.
pub const MAX_WAITING_BYTES: usize = 16 << 20;

/// The sending end of a queue of captures; `T` contains a capture. The queue ends when this end is dropped.
#[derive(Debug)]
pub struct BoundedCaptures<T> {
    items: SyncSender<(usize, T)>,
    waiting_bytes: Arc<AtomicUsize>,
}

/// The receiving end. It iterates over the captures until the queue ends.
#[derive(Debug)]
pub struct WaitingCaptures<T> {
    items: Receiver<(usize, T)>,
    waiting_bytes: Arc<AtomicUsize>,
}

impl<T> BoundedCaptures<T> {
    /// Creates a queue for at most `most` waiting captures; returns both ends.
    pub fn new(most: usize) -> (Self, WaitingCaptures<T>) {
        let (sender, receiver) = sync_channel(most);
        let waiting_bytes = Arc::<AtomicUsize>::default();
        let waiting = WaitingCaptures { items: receiver, waiting_bytes: Arc::clone(&waiting_bytes) };
        (Self { items: sender, waiting_bytes }, waiting)
    }

    /// Adds a capture whose records take `bytes` of memory, unless the waiting captures are too many or too large.
    /// Returns whether it was added.
    pub fn offer(&self, bytes: usize, item: T) -> bool {
        let waiting = self.waiting_bytes.load(Ordering::Relaxed);
        if waiting > 0 && bytes > 0 && waiting.saturating_add(bytes) > MAX_WAITING_BYTES {
            return false;
        }
        // Counted before sending: the receiver may take the capture at once.
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let added = self.items.try_send((bytes, item)).is_ok();
        if !added {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        added
    }

    /// Adds a capture of any size; blocks while the queue is full. Returns whether the receiving end still exists.
    pub fn send(&self, bytes: usize, item: T) -> bool {
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.items.send((bytes, item)).is_ok()
    }
}

impl<T> WaitingCaptures<T> {
    /// The next capture, if it arrives within `time`.
    ///
    /// # Errors
    /// If none arrives in time, or the queue has ended.
    pub fn next_within(&self, time: Duration) -> Result<T, RecvTimeoutError> {
        self.items.recv_timeout(time).map(|item| self.taken(item))
    }

    fn taken(&self, (bytes, item): (usize, T)) -> T {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        item
    }
}

impl<T> Iterator for WaitingCaptures<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.items.recv().ok().map(|item| self.taken(item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_that_wait_are_bounded_in_number_and_in_bytes_and_one_alone_may_have_any_size() {
        let (queue, mut waiting) = BoundedCaptures::new(3);
        assert!(queue.offer(2 * MAX_WAITING_BYTES, 1), "alone");
        assert!(!queue.offer(1, 2), "beside one that takes all memory");
        assert_eq!(waiting.next(), Some(1));
        assert!(queue.offer(MAX_WAITING_BYTES / 2, 3), "the memory of the first is given back");
        assert!(!queue.offer(MAX_WAITING_BYTES, 4));
        assert!(queue.offer(1, 5) && queue.offer(1, 6));
        assert!(!queue.offer(1, 7), "a fourth");
        assert_eq!(waiting.next_within(Duration::ZERO), Ok(3));
        assert!(queue.send(MAX_WAITING_BYTES, 8), "who can wait is not refused");
        drop(queue);
        assert_eq!(waiting.by_ref().collect::<Vec<_>>(), [5, 6, 8]);
        assert_eq!(waiting.next_within(Duration::ZERO), Err(RecvTimeoutError::Disconnected));
        assert_eq!(waiting.waiting_bytes.load(Ordering::Relaxed), 0);
    }
}
