//! Reads the contents of a followed stream where it comes in, to find the packets that are events. The kernel programs
//! report keys but not contents, so the contents are read from a packet-socket ring on the device. The ring costs other
//! packets nothing, and reading it does not count as an application's read. Events are matched to packets by key and
//! time.

use latpath_clock::ClockTie;
use latpath_linux::monotonic;
use latpath_model::{Ns, PointId, PointInfo, HOST};
use latpath_net::{interfaces, Netns};
use latpath_protocols::Watch;
use latpath_stats::units::number_of;
use latpath_wire::{DeviceError, Listen, PacketSocket, RingReceiver};
use std::collections::VecDeque;

/// Maximum difference between the time of a packet's first sighting and its time in the ring, ns. It must be small,
/// because keys repeat after a second.
const APART: Ns = 400_000_000;
/// Maximum number of events whose packets have not been handed over yet.
const MAX_EVENTS: usize = 1 << 14;

/// Reads the contents of one stream.
pub(crate) struct Tap {
    watch: Watch,
    state: State,
    /// Keys and times, host's `CLOCK_MONOTONIC`, of events whose packets have not been handed over yet.
    events: VecDeque<(u32, Ns)>,
    /// Time before which all frames were read, ns.
    read_until: Ns,
    /// Number of events whose packets were not followed.
    unfollowed: u64,
    /// Number of frames that the ring dropped, on the current device and (`dropped_before`) on its predecessors.
    dropped: u64,
    dropped_before: u64,
    /// Number of times that the device was replaced, as a VM's tap is when the VM restarts.
    returns: u64,
}

enum State {
    /// No packet of the stream has been seen yet.
    Waiting,
    Open {
        ring: RingReceiver,
        /// The point, and the index of its device.
        at: (PointId, u32),
        device: String,
        /// Time at which the ring was first opened, ns.
        since: Ns,
    },
    Failed(String),
}

impl Tap {
    pub fn new(watch: Watch) -> Self {
        let events = VecDeque::new();
        let (dropped, dropped_before) = (0, 0);
        let (state, read_until) = (State::Waiting, Ns::MIN);
        Self { watch, state, events, read_until, unfollowed: 0, dropped, dropped_before, returns: 0 }
    }

    /// Time from which contents are read, ns; `None` if they are not.
    pub fn since(&self) -> Option<Ns> {
        match self.state {
            State::Open { since, .. } => Some(since),
            State::Waiting | State::Failed(_) => None,
        }
    }

    /// Time before which all events are known, ns.
    pub fn read_until(&self) -> Ns {
        match self.state {
            State::Open { .. } => self.read_until,
            State::Waiting | State::Failed(_) => Ns::MAX,
        }
    }

    /// Whether the ring has yet to be opened, at a point of the stream.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting)
    }

    /// Opens the ring on the device of this point, through which the stream passes. Ignores points of other machines,
    /// and those without a device.
    pub fn open(&mut self, point: PointId, at: &PointInfo) {
        if at.point.machine != HOST || at.ifindex == 0 || at.netns == 0 {
            return;
        }
        let device = at.point.device_name().to_owned();
        let listen = Listen::Passing(vec![self.watch.stream().matcher.protocol()]);
        let open = |name: &str| -> Result<RingReceiver, DeviceError> {
            let ring = RingReceiver::new(PacketSocket::open(name, listen)?)?;
            ring.socket().start()?;
            Ok(ring)
        };
        let opened = Netns::find(at.netns).and_then(|netns| {
            // A point keeps the first name of a tap that was recreated, so look the current name up by index.
            let now = interfaces(&netns)?.into_iter().find(|found| found.ifindex == at.ifindex);
            netns.inside(|| open(now.as_ref().map_or(&device, |found| &found.name)))
        });
        let since = self.since().unwrap_or_else(monotonic);
        self.state = match opened {
            Ok(Ok(ring)) => State::Open { ring, at: (point, at.ifindex), device, since },
            Ok(Err(error)) => State::Failed(error.to_string()),
            Err(error) => State::Failed(format!("{device}: {error}")),
        };
    }

    /// Continues on the new device of the point, if a VM's tap was recreated.
    pub fn follow(&mut self, points: &[PointInfo]) {
        let State::Open { at: (point, ifindex), .. } = self.state else { return };
        if let Some(info) = points.get(usize::from(point)).filter(|info| info.ifindex != ifindex) {
            self.read();
            self.returns += 1;
            self.dropped_before += std::mem::take(&mut self.dropped);
            self.open(point, info);
        }
    }

    /// Reads the available frames.
    pub fn read(&mut self) {
        let State::Open { ring, .. } = &mut self.state else { return };
        let now = monotonic();
        let tie = ClockTie::read();
        let to_monotonic = tie.monotonic_ns - tie.realtime_ns;
        let (watch, events) = (&mut self.watch, &mut self.events);
        ring.receive_available(&mut |received| {
            let t = received.arrival.unwrap_or(received.had).saturating_add(to_monotonic);
            if let Some(key) = watch.event_in(t, received.frame, received.tag) {
                events.push_back((key, t));
            }
        });
        self.dropped = ring.socket().dropped();
        self.read_until = now;
        while events.len() > MAX_EVENTS {
            events.pop_front();
            self.unfollowed += 1;
        }
    }

    /// Whether a packet with this key, first seen at `first`, is an event. Removes the event, so that each matches one
    /// packet.
    pub fn take(&mut self, key: u32, first: Ns) -> bool {
        let is_it = |(k, t): &(u32, Ns)| *k == key && (first - t).abs() <= APART;
        let found = self.events.iter().position(is_it);
        found.is_some_and(|at| self.events.remove(at).is_some())
    }

    /// Drops events older than `reached`: all their packets have been looked up, so the packets were not followed.
    pub fn forget_before(&mut self, reached: Ns) {
        while self.events.front().is_some_and(|(_, t)| t.saturating_add(APART) < reached) {
            self.events.pop_front();
            self.unfollowed += 1;
        }
    }

    /// Describes missing data, in sentences.
    pub fn notes(&self) -> Vec<String> {
        let stream = self.watch.stream();
        let mut notes = Vec::new();
        match &self.state {
            State::Waiting => {
                notes.push(format!(
                    "{stream}: its contents were not read, because no packet was seen at a device of this host"
                ));
            }
            State::Failed(why) => {
                notes.push(format!("{stream}: its contents cannot be read, so it has no events: {why}"))
            }
            State::Open { device, .. } => {
                if self.dropped + self.dropped_before > 0 {
                    notes.push(format!(
                        "{stream}: frames were not read at {device}, because latpath was too slow; events may be missing \
                         or late"
                    ));
                }
                if self.returns > 0 {
                    notes.push(format!(
                        "{stream}: the tap {device} returned {}; the contents of its first packets, for up to a second, \
                         were not read then, so events may be missing",
                        number_of(self.returns, "time")
                    ));
                }
            }
        }
        if self.unfollowed > 0 {
            notes.push(format!(
                "{stream}: {} of its events are in no reaction, because the packets were not followed",
                self.unfollowed
            ));
        }
        notes
    }
}
