//! Sends frames at absolute deadlines, and measures their punctuality.

use crate::output::{Outgoing, Output, Sent};
use latpath_histogram::Histogram;
use latpath_linux::monotonic;
use latpath_model::Ns;
use latpath_wire::thread::{wait_until, WakeUp};
use latpath_wire::{Deadlines, DeviceError};
use std::sync::atomic::{AtomicBool, Ordering};

/// Time from the start of [`publish()`] to the first deadline, ns, in which memory is warmed up and the thread goes to
/// sleep.
const LEAD: Ns = 5_000_000;
/// Time after the end during which overdue frames are still sent, ns.
const GRACE: Ns = 1_000_000_000;

/// A source of frames.
pub trait Frames {
    /// Writes the next frame to `out`, which is cleared first, and returns its due time after the start, ns; never
    /// earlier than that of the previous frame. `None` at the end.
    fn next(&mut self, out: &mut Vec<u8>) -> Option<Ns>;
    /// The deadlines; `None` to send as fast as possible.
    fn deadlines(&self) -> Option<Deadlines>;
}

impl<F: Frames + ?Sized> Frames for Box<F> {
    fn next(&mut self, out: &mut Vec<u8>) -> Option<Ns> {
        (**self).next(out)
    }
    fn deadlines(&self) -> Option<Deadlines> {
        (**self).deadlines()
    }
}

/// Options of [`publish()`].
#[derive(Clone, Copy, Debug)]
pub struct PublishOptions {
    /// Time of the first deadline, `CLOCK_MONOTONIC`, ns; `None` for as soon as possible.
    pub start: Option<Ns>,
    /// Time after the start at which sending stops, ns: before the first frame that is due later or, without a pace,
    /// when it has passed.
    pub duration: Option<Ns>,
    /// Number of frames after which sending stops.
    pub count: Option<u64>,
    /// How long before a deadline to busy-wait, ns.
    pub spin: Ns,
    /// Maximum number of frames per system call, at least 1.
    pub batch: usize,
}

/// Counts and delays of sent frames.
#[derive(Clone, Debug, Default)]
pub struct Punctuality {
    /// Frames that the kernel accepted; with two copies, only those of LAN A are counted.
    pub sent: u64,
    /// Frames and second copies lost because the kernel rejected them: a queue was full.
    pub refused: u64,
    /// Frames sent more than one interval after they were due.
    pub late: u64,
    /// Whether frames were still overdue a second after the end, and so were not sent.
    pub gave_up: bool,
    /// Send time minus deadline of every frame, ns. The send time is read just before the system call.
    pub error: Histogram,
    /// The same for frames whose deadline was waited for, excluding those already overdue: cyclictest's latency.
    pub wakeup: Histogram,
    /// Send time of the first frame, `CLOCK_MONOTONIC`, ns.
    pub first: Ns,
    /// Send time of the last frame, `CLOCK_MONOTONIC`, ns.
    pub last: Ns,
}

impl Punctuality {
    /// Frames per second, from the first to the last. For display.
    pub fn rate_hz(&self) -> f64 {
        let (n, t) = (self.sent + self.refused, self.last - self.first);
        if n < 2 || t <= 0 {
            return 0.0;
        }
        (n - 1) as f64 * 1e9 / t as f64
    }
}

/// Sends `frames` to `output` until they end, a limit is reached or `stop` is set.
///
/// No frame is sent early or omitted: overdue frames are sent at once, several per system call if `batch` permits. Only
/// a sender that cannot keep up gives up, a second after the end.
///
/// # Errors
/// A device fails, or a frame is too long; `result` includes the frames sent before.
pub fn publish(
    output: &mut Output,
    frames: &mut dyn Frames,
    options: &PublishOptions,
    stop: &AtomicBool,
    result: &mut Punctuality,
) -> Result<(), DeviceError> {
    let deadlines = frames.deadlines();
    let start = options.start.unwrap_or_else(|| monotonic() + LEAD);
    let end = options.duration.map_or(Ns::MAX, |d| start.saturating_add(d));
    let mut left = options.count.unwrap_or(u64::MAX);
    let mut queue = Queue { slots: (0..options.batch.max(1)).map(|_| Slot::default()).collect(), filled: 0 };

    // One frame is always prepared before its deadline, so that sending is not delayed after the wakeup.
    queue.fill(output, frames, start)?;
    while queue.filled > 0 && left > 0 {
        let woken = match deadlines {
            Some(_) if queue.slots[0].due >= end => break,
            Some(_) => wait_until(queue.slots[0].due, options.spin, stop),
            None => Some(WakeUp { now: monotonic(), waited: false }).filter(|w| w.now < end),
        };
        let Some(WakeUp { now, waited }) = woken else { break };
        if now > end.saturating_add(GRACE) {
            result.gave_up = true;
            break;
        }
        // A thread that never has to wait must also check for a stop.
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let due_now = if deadlines.is_none() { Ns::MAX } else { now.min(end - 1) };
        let most = left.min(queue.slots.len() as u64) as usize;
        while queue.filled < most && queue.slots[queue.filled - 1].due <= due_now {
            if !queue.fill(output, frames, start)? {
                break;
            }
        }
        // The last prepared frame may not be due yet.
        let ready = queue.slots[..queue.filled.min(most)].iter().take_while(|s| s.due <= due_now).count().max(1);
        let done = queue.send(output, ready, result)?;
        if result.first == 0 {
            result.first = now;
        }
        result.last = now;
        if let Some(Deadlines { interval, .. }) = deadlines {
            if waited {
                result.wakeup.record(now - queue.slots[0].due);
            }
            for slot in &queue.slots[..done] {
                let error = now - slot.due;
                result.error.record(error);
                result.late += u64::from(error > interval);
            }
        }
        left -= done as u64;
        queue.remove(done);
        if queue.filled == 0 {
            queue.fill(output, frames, start)?;
        }
    }
    Ok(())
}

#[derive(Default)]
struct Slot {
    frame: Outgoing,
    due: Ns,
}

struct Queue {
    slots: Vec<Slot>,
    filled: usize,
}

impl Queue {
    /// Prepares another frame; returns false if there are no more.
    fn fill(&mut self, output: &mut Output, frames: &mut dyn Frames, start: Ns) -> Result<bool, DeviceError> {
        let slot = &mut self.slots[self.filled];
        let Some(due) = frames.next(&mut slot.frame.bytes) else { return Ok(false) };
        output.prepare(&mut slot.frame)?;
        slot.due = start.saturating_add(due);
        self.filled += 1;
        Ok(true)
    }

    /// Sends the first `ready` frames, or as many as one system call accepts. Returns the number of frames processed.
    fn send(&mut self, output: &mut Output, ready: usize, result: &mut Punctuality) -> Result<usize, DeviceError> {
        let Sent { done, taken, refused } = output.send(self.slots[..ready].iter().map(|slot| &slot.frame))?;
        result.sent += taken as u64;
        result.refused += refused;
        Ok(done)
    }

    fn remove(&mut self, done: usize) {
        self.slots[..self.filled].rotate_left(done);
        self.filled -= done;
    }
}
