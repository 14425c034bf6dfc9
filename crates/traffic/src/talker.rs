//! A talker: sends the frames of several streams at scheduled times, one frame of each stream per cycle.

mod frames;
mod sockets;

pub use frames::{TalkerStream, SEND_TIME_LEN};

use crate::Punctuality;
use frames::Template;
use latpath_histogram::Histogram;
use latpath_linux::{monotonic, realtime};
use latpath_model::Ns;
use latpath_protocols::BuildError;
use latpath_wire::thread::{wait_until_by, WakeUp};
use latpath_wire::{DeviceError, Discarded, SendClock, SendTimeFault, Stamps, TxStampCounts, TxStamps};
use sockets::{Queue, Sockets};
use std::sync::atomic::{AtomicBool, Ordering};

/// Time from the start of [`Talker::talk`] to the first frame, ns, in which memory is warmed up and the thread goes to
/// sleep.
const LEAD: Ns = 5_000_000;
/// Time after the end during which overdue frames are still sent, ns.
const GRACE: Ns = 1_000_000_000;
/// Time after the last send time during which reports on frames are still awaited, ns.
const REPORTS: Ns = 50_000_000;
/// Minimum time between two sampled frames, ns.
const SAMPLE_EVERY: Ns = 1_000_000;
/// Maximum wait for a sampled frame's timestamps, ns. No other frame is sampled before they arrive or this time has
/// passed.
const STAMPS_TAKE: Ns = 100_000_000;
/// Maximum number of discarded frames listed per stream; all are counted.
const LISTED: usize = 100;
/// The timestamps requested for a sampled frame.
const SAMPLED: Stamps = Stamps { tx_sched: true, tx_driver: true, tx_nic: false, rx_kernel: false, rx_nic: false };

/// The send times of a talker: base + n × cycle + the stream's offset, where n is an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The clock of the send times.
    pub clock: SendClock,
    /// A time at which a cycle begins, ns.
    pub base: Ns,
    /// Length of a cycle, ns.
    pub cycle: Ns,
}

impl Schedule {
    /// Start of the first cycle that begins at or after `t`.
    fn cycle_from(&self, t: Ns) -> Ns {
        let since = t.saturating_sub(self.base);
        let cycles = since.div_euclid(self.cycle) + Ns::from(since.rem_euclid(self.cycle) > 0);
        self.base.saturating_add(cycles.saturating_mul(self.cycle))
    }
}

/// When a talker stops, and how it waits.
#[derive(Clone, Copy, Debug)]
pub struct TalkOptions {
    /// Time after the first send time at which the talker stops, before the first frame with a later send time, ns.
    pub duration: Option<Ns>,
    /// Number of frames after which the talker stops.
    pub count: Option<u64>,
    /// How long to busy-wait before a frame is handed over, ns.
    pub spin: Ns,
}

/// Outcomes of the frames of a stream.
#[derive(Clone, Debug, Default)]
pub struct Talked {
    /// Frames that the kernel accepted.
    pub sent: u64,
    /// Frames that the kernel rejected, because a queue was full.
    pub refused: u64,
    /// Frames handed over more than one cycle late.
    pub late: u64,
    /// Frames handed over after their send time.
    pub after_send_time: u64,
    /// Frames that etf discarded because their send time passed in the queue.
    pub missed: u64,
    /// Frames that etf discarded on arrival, because they were too late or used another clock.
    pub invalid: u64,
    /// The first discarded frames: index in the stream, and send time.
    pub discarded: Vec<(u64, Ns)>,
    /// Send time of the first frame by the talker's clock, ns.
    pub first: Ns,
    /// Send time of the last frame by the talker's clock, ns.
    pub last: Ns,
    /// Time from the application to the queueing discipline, of sampled frames, ns.
    pub to_queue: Histogram,
    /// Time from the application to the driver, of sampled frames, ns.
    pub to_driver: Histogram,
    /// Sampled frames whose timestamps never arrived.
    pub unstamped: u64,
    /// Send time of the newest frame, if it counts as refused.
    newest_refused: Option<Ns>,
}

/// A sampled frame whose timestamps are outstanding.
struct Sampled {
    stream: usize,
    send_time: Ns,
    /// Time just before the system call, `CLOCK_REALTIME`, ns.
    handed: Ns,
    queued: bool,
}

/// Sends frames at scheduled times.
pub struct Talker {
    schedule: Schedule,
    streams: Vec<Template>,
    sockets: Sockets,
    sampled: Option<Sampled>,
    /// Requests for NIC timestamps; `None` if they are not requested.
    nic_times: Option<TxStamps>,
    /// Earliest time at which the next frame may be sampled, `CLOCK_MONOTONIC`, ns.
    sample_from: Ns,
    /// Outcomes of the frames of each stream.
    pub talked: Vec<Talked>,
}

/// Why a talker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TalkerError {
    /// A frame cannot be built.
    #[error("{stream}: {cause}")]
    Frame {
        /// The stream's svID.
        stream: String,
        /// The cause.
        cause: BuildError,
    },
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl Talker {
    /// Opens the sockets on `device`, one for each combination of priority and txtime mode, and prepares the frames.
    /// `bypass_qdisc`: as [`latpath_wire::PacketSocket::bypass_qdisc`]; send times then have no effect. `nic_times`:
    /// requests NIC timestamps of sent frames, one frame at a time; the NIC's timestamps must be switched on.
    ///
    /// # Errors
    /// A frame cannot be built, the device cannot be used, or a privilege is missing.
    pub fn open(
        device: &str,
        schedule: Schedule,
        streams: Vec<TalkerStream>,
        bypass_qdisc: bool,
        nic_times: bool,
    ) -> Result<Self, TalkerError> {
        let stamps = Stamps { tx_nic: nic_times, ..SAMPLED };
        let sockets = Sockets::open(device, schedule.clock, &streams, stamps)?;
        if bypass_qdisc {
            sockets.bypass_qdisc()?;
        }
        let streams = streams.into_iter().map(|stream| {
            let name = stream.svid();
            Template::new(stream, sockets.mac()).map_err(|cause| TalkerError::Frame { stream: name, cause })
        });
        let streams = streams.collect::<Result<Vec<_>, _>>()?;
        let talked = vec![Talked::default(); streams.len()];
        let nic_times = nic_times.then(TxStamps::default);
        Ok(Self { schedule, streams, sockets, sampled: None, nic_times, sample_from: 0, talked })
    }

    /// Counts of requested NIC timestamps; `None` if they are not requested.
    pub fn tx_stamps(&self) -> Option<TxStampCounts> {
        self.nic_times.as_ref().map(TxStamps::counts)
    }

    /// Sends frames until a limit is reached or `stop` is set. No frame is omitted: overdue frames are sent at once.
    /// Only a talker that cannot keep up gives up, a second after the end.
    ///
    /// # Errors
    /// The device fails; `result` and [`Self::talked`] include the frames sent before.
    pub fn talk(
        &mut self,
        options: &TalkOptions,
        stop: &AtomicBool,
        result: &mut Punctuality,
    ) -> Result<(), DeviceError> {
        let Schedule { clock, cycle, .. } = self.schedule;
        let most_ahead = self.streams.iter().map(|s| s.advance - s.offset).max().unwrap_or(0);
        let start = self.schedule.cycle_from(clock.now() + LEAD + most_ahead.max(0));
        self.streams.iter_mut().for_each(|s| s.send_time = start + s.offset);
        let first = self.streams.iter().map(|s| s.send_time).min().unwrap_or(start);
        let end = options.duration.map_or(Ns::MAX, |d| first.saturating_add(d));
        let mut left = options.count.unwrap_or(u64::MAX);
        while left > 0 {
            let Some(next) = self.next(end) else { break };
            // The frame is built before its time, so that sending is not delayed after the wakeup.
            let stream = &mut self.streams[next];
            stream.fill();
            let (send_time, due) = (stream.send_time, stream.due());
            let Some(WakeUp { now, waited }) = wait_until_by(clock.id(), due, options.spin, stop) else { break };
            if now > end.saturating_add(GRACE) {
                result.gave_up = true;
                break;
            }
            if stop.load(Ordering::Relaxed) {
                break;
            }
            self.send(next, now, result)?;
            if waited {
                result.wakeup.record(now - due);
            }
            result.error.record(now - due);
            let talked = &mut self.talked[next];
            talked.after_send_time += u64::from(now > send_time);
            if now - due > cycle {
                talked.late += 1;
                result.late += 1;
            }
            // Read from a clock that cannot be set.
            result.last = monotonic();
            if result.first == 0 {
                result.first = result.last;
            }
            self.streams[next].advance_by(cycle);
            left -= 1;
            self.take_reports(result)?;
        }
        self.await_reports(result)
    }

    /// The stream whose frame is due next, among those with a send time before `end`.
    fn next(&self, end: Ns) -> Option<usize> {
        (0..self.streams.len()).filter(|i| self.streams[*i].send_time < end).min_by_key(|i| self.streams[*i].due())
    }

    fn send(&mut self, i: usize, now: Ns, result: &mut Punctuality) -> Result<(), DeviceError> {
        let stream = &self.streams[i];
        let (wants, mono) = (self.sampled.is_none(), monotonic());
        let sampled = if wants && mono >= self.sample_from { SAMPLED } else { Stamps::default() };
        let tx_nic = self.nic_times.as_mut().is_some_and(TxStamps::is_next);
        let handed = realtime();
        let sent = self.sockets.send(stream, Stamps { tx_nic, ..sampled })?;
        if let Some(times) = &mut self.nic_times {
            times.sent(sent.taken, tx_nic, (stream.send_time - now).max(0));
        }
        let talked = &mut self.talked[i];
        if talked.sent + talked.refused == 0 {
            talked.first = stream.send_time;
        }
        talked.last = stream.send_time;
        talked.sent += sent.taken as u64;
        talked.refused += u64::from(sent.refused);
        talked.newest_refused = sent.refused.then_some(stream.send_time);
        result.sent += sent.taken as u64;
        result.refused += u64::from(sent.refused);
        if sampled != Stamps::default() {
            let wait = (stream.send_time - now).max(0);
            self.sample_from = mono + SAMPLE_EVERY;
            if sent.taken > 0 {
                self.sampled = Some(Sampled { stream: i, send_time: stream.send_time, handed, queued: false });
                self.sockets.stamps_until = mono.saturating_add(wait).saturating_add(STAMPS_TAKE);
            }
        }
        Ok(())
    }

    /// Processes the available reports on sent frames: timestamps and discarded frames.
    fn take_reports(&mut self, result: &mut Punctuality) -> Result<(), DeviceError> {
        let (streams, talked, sampled) = (&self.streams, &mut self.talked, &mut self.sampled);
        let nic_times = &mut self.nic_times;
        if self.sockets.has_send_times || sampled.is_some() || nic_times.as_ref().is_some_and(TxStamps::is_pending) {
            self.sockets.reports(&mut |report, frame| match report {
                Queue::Stamp { driver, time } => {
                    let Some(s) = sampled.as_mut().filter(|s| streams[s.stream].is(frame, s.send_time)) else { return };
                    let talked = &mut talked[s.stream];
                    if driver {
                        talked.to_driver.record(time - s.handed);
                        *sampled = None;
                    } else if !s.queued {
                        s.queued = true;
                        talked.to_queue.record(time - s.handed);
                    }
                }
                Queue::NicTime => nic_times.iter_mut().for_each(|times| times.arrived(1)),
                Queue::Discarded(Discarded { fault, send_time }) => {
                    let Some(i) = streams.iter().position(|s| s.is(frame, send_time)) else { return };
                    match fault {
                        SendTimeFault::Missed => talked[i].missed += 1,
                        SendTimeFault::Invalid => talked[i].invalid += 1,
                    }
                    // The system call failed because etf discarded the frame, not because a queue was full, so the
                    // frame counts as sent.
                    if talked[i].newest_refused.take_if(|refused| *refused == send_time).is_some() {
                        (talked[i].refused, talked[i].sent) = (talked[i].refused - 1, talked[i].sent + 1);
                        (result.refused, result.sent) = (result.refused - 1, result.sent + 1);
                    }
                    if talked[i].discarded.len() < LISTED {
                        talked[i].discarded.push((streams[i].number_of(send_time), send_time));
                    }
                    if sampled.as_ref().is_some_and(|s| s.stream == i && s.send_time == send_time) {
                        *sampled = None;
                        talked[i].unstamped += 1;
                    }
                }
            })?;
        }
        if let Some(s) = self.sampled.take_if(|_| monotonic() > self.sockets.stamps_until) {
            self.talked[s.stream].unstamped += 1;
        }
        Ok(())
    }

    /// Waits for the reports on the last frames, which may still be in the queueing discipline.
    fn await_reports(&mut self, result: &mut Punctuality) -> Result<(), DeviceError> {
        let ahead = self.streams.iter().map(|s| s.advance).max().unwrap_or(0);
        let until = monotonic().saturating_add(ahead).saturating_add(REPORTS);
        self.take_reports(result)?;
        let is_pending = |times: &Option<TxStamps>| times.as_ref().is_some_and(TxStamps::is_pending);
        while (self.sockets.has_send_times || self.sampled.is_some() || is_pending(&self.nic_times))
            && monotonic() < until
        {
            self.sockets.wait(until);
            self.take_reports(result)?;
        }
        if let Some(s) = self.sampled.take() {
            self.talked[s.stream].unstamped += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_cycle_begins_at_the_base_plus_a_multiple(
            base in 0..Ns::MAX / 2, cycle in 1_000..60_000_000_000_i64, t in 0..Ns::MAX / 2,
        ) {
            let schedule = Schedule { clock: SendClock::Tai, base, cycle };
            let start = schedule.cycle_from(t);
            prop_assert!(start >= t && start - t < cycle);
            prop_assert_eq!((start - base).rem_euclid(cycle), 0);
        }
    }
}
