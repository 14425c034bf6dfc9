//! Format of messages on the wire; docs/ping.md contains it as a table.
//!
//! A header of 32 bytes, all numbers big-endian:
//!
//! ```text
//!  0 magic "LP"   2 version (1)   3 kind   4 session   8 sequence (8)   16 time (8)   24 time (8)
//! ```
//!
//! Probes of 96 bytes or more leave room for the reflector's further stamps in the answer. Answers are never longer
//! than probes, so a reflector cannot be used to amplify traffic.

use crate::transaction::{Stamp, Stamps};
use latpath_model::Ns;
use latpath_timesync::{ClockIdentity, PtpTime};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// First bytes of every message.
const MAGIC: [u8; 2] = *b"LP";
/// Version of this format.
const VERSION: u8 = 1;
/// Length of the header, and of the shortest probe, bytes.
pub const HEADER: usize = 32;
/// Length of the shortest probe with room for all of the reflector's stamps, bytes.
pub const FULL: usize = 96;
/// Length of [`Hello`] and [`Welcome`], bytes.
pub const CONTROL: usize = 240;
/// Value of a missing stamp.
const ABSENT: Ns = Ns::MIN;

/// Kinds of message, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The emitter's probe.
    Probe = 0,
    /// The reflector's answer to a probe.
    Answer = 1,
    /// The emitter's periodic query: see [`Welcome`].
    Hello = 2,
    /// The reflector's answer to a hello.
    Welcome = 3,
    /// The emitter reports a breach, so that the reflector freezes its trace too.
    Breach = 4,
}

/// The header, 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the message.
    pub kind: Kind,
    /// Session number, chosen by the emitter at random.
    pub session: u32,
    /// Sequence number of the probe, from 0; in an answer, that of the answered probe.
    pub sequence: u64,
    /// Probe: T1 app. Answer: T2 app.
    pub first: Ns,
    /// Probe: 0. Answer: T3 app.
    pub second: Ns,
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes")
}

fn ns(bytes: &[u8], at: usize) -> Ns {
    Ns::from_be_bytes(array(bytes, at))
}

fn time(bytes: &[u8], at: usize) -> Option<Ns> {
    Some(ns(bytes, at)).filter(|t| *t != ABSENT)
}

impl Header {
    /// Writes the header into the first [`HEADER`] bytes.
    #[inline]
    pub fn write(&self, bytes: &mut [u8]) {
        bytes[..2].copy_from_slice(&MAGIC);
        bytes[2] = VERSION;
        bytes[3] = self.kind as u8;
        put(bytes, 4, self.session.to_be_bytes());
        put(bytes, 8, self.sequence.to_be_bytes());
        put(bytes, 16, self.first.to_be_bytes());
        put(bytes, 24, self.second.to_be_bytes());
    }

    /// Reads a header; `None` for foreign messages and other versions.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEADER || bytes[..2] != MAGIC || bytes[2] != VERSION {
            return None;
        }
        let kind = match bytes[3] {
            0 => Kind::Probe,
            1 => Kind::Answer,
            2 => Kind::Hello,
            3 => Kind::Welcome,
            4 => Kind::Breach,
            _ => return None,
        };
        Some(Self {
            kind,
            session: u32::from_be_bytes(array(bytes, 4)),
            sequence: u64::from_be_bytes(array(bytes, 8)),
            first: ns(bytes, 16),
            second: ns(bytes, 24),
        })
    }
}

/// The version number of a latpath message, if it differs from that of this format.
pub fn other_version(bytes: &[u8]) -> Option<u8> {
    (bytes.len() >= HEADER && bytes[..2] == MAGIC && bytes[2] != VERSION).then(|| bytes[2])
}

/// Stamps taken when an answer was sent. They are known only afterwards, so a later answer carries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateStamps {
    /// Sequence number of the answer.
    pub sequence: u64,
    /// T3 sched, T3 driver and T3 nic of the answer.
    pub stamps: [Option<Ns>; 3],
}

/// Kinds of the stamps in [`LateStamps::stamps`].
pub const LATE_STAMPS: [Stamp; 3] = [Stamp::T3Sched, Stamp::T3Driver, Stamp::T3Nic];

impl LateStamps {
    /// Sequence number that marks absent stamps.
    const NONE: u64 = u64::MAX;

    fn write(this: Option<&Self>, bytes: &mut [u8], at: usize) {
        put(bytes, at, this.map_or(Self::NONE, |a| a.sequence).to_be_bytes());
        for i in 0..LATE_STAMPS.len() {
            let stamp = this.and_then(|a| a.stamps[i]).unwrap_or(ABSENT);
            put(bytes, at + 8 + 8 * i, stamp.to_be_bytes());
        }
    }

    fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let sequence = u64::from_be_bytes(array(bytes, at));
        let stamps = [8, 16, 24].map(|i| time(bytes, at + i));
        (sequence != Self::NONE).then_some(Self { sequence, stamps })
    }
}

/// Body of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// T2 nic.
    pub nic: Option<Ns>,
    /// T2 kernel.
    pub kernel: Option<Ns>,
    /// Stamps of an earlier answer.
    pub afterwards: Option<LateStamps>,
}

impl Answer {
    /// Writes the body after the header if there is room for it. Returns whether there was.
    #[inline]
    pub fn write(&self, bytes: &mut [u8]) -> bool {
        if bytes.len() < FULL {
            return false;
        }
        put(bytes, 32, self.nic.unwrap_or(ABSENT).to_be_bytes());
        put(bytes, 40, self.kernel.unwrap_or(ABSENT).to_be_bytes());
        LateStamps::write(self.afterwards.as_ref(), bytes, 48);
        put(bytes, 80, [0; 16]);
        true
    }

    /// Reads the body; empty if the message has no room for it.
    #[inline]
    pub fn read(bytes: &[u8]) -> Self {
        if bytes.len() < FULL {
            return Self::default();
        }
        Self { nic: time(bytes, 32), kernel: time(bytes, 40), afterwards: LateStamps::read(bytes, 48) }
    }

    /// Copies the stamps that belong to the answered transaction into `stamps`.
    pub fn note(&self, stamps: &mut Stamps) {
        stamps.set_if(Stamp::T2Nic, self.nic);
        stamps.set_if(Stamp::T2Kernel, self.kernel);
    }
}

/// A reading of a NIC clock: at `CLOCK_MONOTONIC` time `at`, the PHC showed `at + offset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NicReading {
    /// PHC index: N of `/dev/ptpN` on the NIC's machine.
    #[serde(rename = "phc")]
    pub index: i32,
    /// Time of the reading, `CLOCK_MONOTONIC` of the NIC's machine, ns.
    #[serde(skip)]
    pub at: Ns,
    /// PHC − `CLOCK_MONOTONIC` at that time, ns.
    #[serde(rename = "offset_ns")]
    pub offset: Ns,
    /// Error bound of the offset, ns.
    #[serde(rename = "error_bound_ns")]
    pub bound: Ns,
    /// Drift of the PHC, ppb; positive if it runs faster.
    pub drift_ppb: i64,
}

/// Counts of a reflector for one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReflectorCounters {
    /// Number of received probes, excluding duplicates.
    pub received: u64,
    /// Number of duplicate probes.
    pub duplicates: u64,
    /// Number of probes received after a later one.
    pub reordered: u64,
    /// Number of answers that the reflector's kernel refused to send.
    pub refused: u64,
    /// Number of messages from any sender that were neither hellos nor probes of a known session.
    pub foreign: u64,
    /// Number of messages from any sender that the reflector's kernel dropped because the socket buffer was full.
    pub dropped: u64,
}

/// Identity, stamps and counts of a reflector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// Identity of the kernel's clock; equal if emitter and reflector share a kernel and time namespace.
    pub boot_id: [u8; 16],
    /// Mask of the stamps that the reflector takes ([`Stamp::bit`]).
    pub taken: u16,
    /// Name of the device, truncated to 15 bytes.
    pub device: String,
    /// Clock of the reflector's NIC.
    pub nic: Option<NicReading>,
    /// Number of steps of the reflector's `CLOCK_REALTIME` and of disturbances of its NIC clock since the reflector
    /// started.
    pub disturbances: u32,
    /// Counts of the session.
    pub seen: ReflectorCounters,
    /// The time of the grandmaster that a clock of the reflector's machine follows, if the hello requested it. Earlier
    /// versions do not report it.
    pub ptp: Option<PtpTime>,
    /// Start of the session at the reflector, in its `CLOCK_MONOTONIC`. A change indicates a restart, which resets the
    /// counts.
    pub begun: Ns,
    /// Stamps of an earlier answer.
    pub afterwards: Option<LateStamps>,
}

/// Requests the grandmaster's time in the welcome to this hello; earlier versions ignore the request.
pub fn ask_for_ptp(hello: &mut [u8; CONTROL]) {
    hello[HEADER] = 1;
}

/// Whether a hello requests the grandmaster's time.
pub fn asks_for_ptp(hello: &[u8]) -> bool {
    hello.get(HEADER) == Some(&1)
}

impl Welcome {
    /// Writes the body after the header of a message of [`CONTROL`] bytes.
    pub fn write(&self, bytes: &mut [u8]) {
        bytes[HEADER..CONTROL].fill(0);
        put(bytes, 32, self.boot_id);
        put(bytes, 48, self.taken.to_be_bytes());
        bytes[50] = u8::from(self.nic.is_some());
        let nic = self.nic.unwrap_or_default();
        put(bytes, 52, nic.index.to_be_bytes());
        for (i, value) in [nic.at, nic.offset, nic.bound, nic.drift_ppb].into_iter().enumerate() {
            put(bytes, 56 + 8 * i, value.to_be_bytes());
        }
        let name = &self.device.as_bytes()[..self.device.len().min(15)];
        bytes[88..88 + name.len()].copy_from_slice(name);
        put(bytes, 104, self.disturbances.to_be_bytes());
        let s = &self.seen;
        for (i, n) in [s.received, s.duplicates, s.reordered, s.refused, s.foreign, s.dropped].into_iter().enumerate() {
            put(bytes, 112 + 8 * i, n.to_be_bytes());
        }
        LateStamps::write(self.afterwards.as_ref(), bytes, 160);
        put(bytes, 192, self.begun.to_be_bytes());
        bytes[51] = u8::from(self.ptp.is_some());
        let ptp = self.ptp.unwrap_or_default();
        put(bytes, 200, ptp.grandmaster.0);
        for (i, value) in [ptp.monotonic_ns, ptp.utc_ns, ptp.bound_ns].into_iter().enumerate() {
            put(bytes, 208 + 8 * i, value.to_be_bytes());
        }
    }

    /// Reads the body; `None` if the message is too short.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < CONTROL {
            return None;
        }
        let nic = (bytes[50] == 1).then(|| NicReading {
            index: i32::from_be_bytes(array(bytes, 52)),
            at: ns(bytes, 56),
            offset: ns(bytes, 64),
            bound: ns(bytes, 72),
            drift_ppb: ns(bytes, 80),
        });
        let name: Vec<u8> = bytes[88..103].iter().copied().take_while(|b| *b != 0).collect();
        let n = |i: usize| u64::from_be_bytes(array(bytes, 112 + 8 * i));
        Some(Self {
            boot_id: array(bytes, 32),
            taken: u16::from_be_bytes(array(bytes, 48)),
            device: String::from_utf8_lossy(&name).chars().filter(|c| !c.is_control()).collect(),
            nic,
            disturbances: u32::from_be_bytes(array(bytes, 104)),
            seen: ReflectorCounters {
                received: n(0),
                duplicates: n(1),
                reordered: n(2),
                refused: n(3),
                foreign: n(4),
                dropped: n(5),
            },
            afterwards: LateStamps::read(bytes, 160),
            begun: ns(bytes, 192),
            ptp: (bytes[51] == 1).then(|| PtpTime {
                grandmaster: ClockIdentity(array(bytes, 200)),
                monotonic_ns: ns(bytes, 208),
                utc_ns: ns(bytes, 216),
                bound_ns: ns(bytes, 224),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn afterwards() -> impl Strategy<Value = Option<LateStamps>> {
        let stamp = || prop::option::of(Ns::MIN + 1..Ns::MAX);
        prop::option::of(
            (0..u64::MAX, stamp(), stamp(), stamp())
                .prop_map(|(sequence, a, b, c)| LateStamps { sequence, stamps: [a, b, c] }),
        )
    }

    proptest! {
        #[test]
        fn written_messages_read_back(
            session: u32, sequence: u64, first: Ns, second: Ns, nic in prop::option::of(0..Ns::MAX),
            kernel in prop::option::of(0..Ns::MAX), afterwards in afterwards(), len in HEADER..300usize
        ) {
            let mut bytes = vec![0xaa; len];
            let header = Header { kind: Kind::Answer, session, sequence, first, second };
            header.write(&mut bytes);
            let answer = Answer { nic, kernel, afterwards };
            let room = answer.write(&mut bytes);
            prop_assert_eq!(Header::read(&bytes), Some(header));
            prop_assert_eq!(room, len >= FULL);
            prop_assert_eq!(Answer::read(&bytes), if room { answer } else { Answer::default() });
        }

        #[test]
        fn a_welcome_is_read_as_it_was_written(
            boot_id: [u8; 16], taken: u16, device in "[a-z0-9]{0,15}", offset: Ns, drift_ppb: i64, has: bool, received: u64,
            dropped: u64, afterwards in afterwards(), begun: Ns, follows: bool, identity: [u8; 8], utc_ns: Ns
        ) {
            let time = PtpTime { grandmaster: ClockIdentity(identity), monotonic_ns: begun, utc_ns, bound_ns: 9 };
            let ptp = follows.then_some(time);
            let nic = has.then_some(NicReading { index: 3, at: 7, offset, bound: 9, drift_ppb });
            let seen = ReflectorCounters { received, dropped, ..ReflectorCounters::default() };
            let welcome = Welcome { boot_id, taken, device, nic, disturbances: 2, seen, afterwards, ptp, begun };
            let mut bytes = [0xaa; CONTROL];
            welcome.write(&mut bytes);
            prop_assert_eq!(Welcome::read(&bytes), Some(welcome));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (Header::read(&bytes), Answer::read(&bytes), Welcome::read(&bytes), other_version(&bytes));
        }
    }

    #[test]
    fn another_version_is_no_probe_and_is_known_as_ours() {
        let mut bytes = [0; HEADER];
        Header { kind: Kind::Probe, session: 1, sequence: 2, first: 3, second: 0 }.write(&mut bytes);
        assert_eq!(other_version(&bytes), None);
        bytes[2] = 9;
        assert_eq!((Header::read(&bytes), other_version(&bytes)), (None, Some(9)));
    }
}
