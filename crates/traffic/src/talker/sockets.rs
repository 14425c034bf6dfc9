//! The sockets of a talker: one for each combination of priority and txtime mode.

use super::frames::{TalkerStream, Template};
use latpath_model::Ns;
use latpath_wire::{
    error_queue, wait_for, Control, DeviceError, Discarded, Listen, PacketSocket, Queued, SendClock, Sent, Stamps,
    TxKind, TxTimeMode,
};
use nix::poll::PollFlags;

/// Maximum length of a frame in the error queue, bytes.
const FRAME: usize = 2048;
/// Maximum number of reports taken at once.
const REPORTS: usize = 64;
/// Maximum wait for reports on one socket while others may have reports, ns.
const SLICE: Ns = 1_000_000;

type Class = (Option<u8>, Option<TxTimeMode>);

/// A report on a sent frame.
pub(super) enum Queue {
    /// A timestamp, `CLOCK_REALTIME`, ns: taken at the driver, or else before the queueing discipline.
    Stamp { driver: bool, time: Ns },
    /// The NIC has taken a frame's timestamp; the time itself is used by other programs, which follow the packets.
    NicTime,
    /// The queueing discipline discarded the frame.
    Discarded(Discarded),
}

pub(super) struct Sockets {
    sockets: Vec<(Class, PacketSocket)>,
    /// Whether frames have send times, so that some may be discarded.
    pub(super) has_send_times: bool,
    /// Time until which the sampled frame's timestamps are awaited, `CLOCK_MONOTONIC`, ns.
    pub(super) stamps_until: Ns,
    buffer: Box<[u8]>,
    control: Control,
}

impl Sockets {
    pub(super) fn open(
        device: &str,
        clock: SendClock,
        streams: &[TalkerStream],
        stamps: Stamps,
    ) -> Result<Self, DeviceError> {
        let mut sockets: Vec<(Class, PacketSocket)> = Vec::new();
        for class in streams.iter().map(|s| (s.priority, s.txtime)) {
            if sockets.iter().any(|(known, _)| *known == class) {
                continue;
            }
            let socket = PacketSocket::open(device, Listen::No)?;
            if let Some(priority) = class.0 {
                socket.set_priority(priority)?;
            }
            if let Some(mode) = class.1 {
                socket.announce_send_times(clock, mode)?;
            }
            socket.report_stamps(stamps)?;
            sockets.push((class, socket));
        }
        let has_send_times = sockets.iter().any(|((_, mode), _)| mode.is_some());
        let buffer = vec![0; FRAME].into();
        Ok(Self { sockets, has_send_times, stamps_until: 0, buffer, control: Control::new() })
    }

    pub(super) fn bypass_qdisc(&self) -> Result<(), DeviceError> {
        self.sockets.iter().try_for_each(|(_, socket)| socket.bypass_qdisc())
    }

    /// The device's MAC.
    pub(super) fn mac(&self) -> [u8; 6] {
        self.sockets.first().map_or([0; 6], |(_, socket)| socket.mac())
    }

    pub(super) fn send(&self, frame: &Template, stamps: Stamps) -> Result<Sent, DeviceError> {
        let class = (frame.priority, frame.txtime);
        let (_, socket) = self.sockets.iter().find(|(known, _)| *known == class).expect("each class has a socket");
        socket.send_at(&frame.bytes, frame.txtime.map(|_| frame.send_time), stamps)
    }

    /// Calls `each` with each available report and the bytes of its frame.
    pub(super) fn reports(&mut self, each: &mut dyn FnMut(Queue, &[u8])) -> Result<(), DeviceError> {
        for (_, socket) in &self.sockets {
            let (buffer, control) = (&mut self.buffer, &mut self.control);
            let taken = error_queue(socket.fd(), buffer, control, REPORTS, &mut |queued, frame| match queued {
                Queued::Discarded(discarded) => each(Queue::Discarded(discarded), frame),
                Queued::Stamp(stamp) if stamp.kind != TxKind::Nic => {
                    each(Queue::Stamp { driver: stamp.kind == TxKind::Driver, time: stamp.time }, frame);
                }
                Queued::Stamp(_) => each(Queue::NicTime, frame),
            });
            taken.map_err(|cause| socket.device().failed("reading its error queue", cause))?;
        }
        Ok(())
    }

    /// Waits for a report, at most until `deadline` (`CLOCK_MONOTONIC`, ns).
    pub(super) fn wait(&self, deadline: Ns) {
        let deadline = match self.sockets.len() {
            1 => deadline,
            _ => deadline.min(latpath_linux::monotonic() + SLICE),
        };
        if let Some((_, socket)) = self.sockets.first() {
            wait_for(socket.fd(), PollFlags::empty(), deadline);
        }
    }
}
