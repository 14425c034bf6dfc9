//! PTP management messages (IEEE 1588-2019, clause 15), as ptp4l answers them, and ptp4l's own data sets (`_NP`).
//!
//! ```text
//! 0 transportSpecific, messageType   1 version   2 messageLength   4 domainNumber   20 sourcePortIdentity
//! 30 sequenceId   34 targetPortIdentity   46 actionField   48 tlvType   50 lengthField   52 managementId   54 data
//! ```
//! All numbers are big-endian, except the counters in PORT_STATS_NP.

use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// messageType of management messages.
const MANAGEMENT: u8 = 0xD;
const VERSION: u8 = 2;
const GET: u8 = 0;
const RESPONSE: u8 = 2;
const TLV_MANAGEMENT: u16 = 1;
const TLV_ERROR: u16 = 2;
/// Position of the data, bytes.
const DATA: usize = 54;

/// A data set that latpath reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum DataSet {
    /// The clock: identity, domain, number of ports.
    Default = 0x2000,
    /// Steps from the grandmaster, offset, path delay.
    Current = 0x2001,
    /// Parent and grandmaster.
    Parent = 0x2002,
    /// UTC offset and traceability.
    TimeProperties = 0x2003,
    /// A port's state and intervals.
    Port = 0x2004,
    /// ptp4l's last measurement.
    TimeStatus = 0xC000,
    /// A port's device and kind of timestamps.
    PortProperties = 0xC004,
    /// A port's message counters.
    PortStats = 0xC005,
    /// The PHC of a port; since linuxptp 4.0.
    PortHwClock = 0xC009,
}

/// Identity of a PTP clock (an EUI-64).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String")]
pub struct ClockIdentity(pub [u8; 8]);

impl fmt::Display for ClockIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let [a, b, c, d, e, g, h, i] = self.0;
        write!(f, "{}.{}.{}", hex(&[a, b, c]), hex(&[d, e]), hex(&[g, h, i]))
    }
}

impl From<ClockIdentity> for String {
    fn from(identity: ClockIdentity) -> Self {
        identity.to_string()
    }
}

impl From<String> for ClockIdentity {
    /// Parses an identity as printed by pmc; any other text yields zero.
    fn from(text: String) -> Self {
        let digits: Vec<u8> =
            text.chars().filter(|c| *c != '.').map_while(|c| c.to_digit(16)).map(|d| d as u8).collect();
        let mut identity = [0; 8];
        if digits.len() == 16 {
            digits.chunks(2).zip(&mut identity).for_each(|(pair, byte)| *byte = pair[0] << 4 | pair[1]);
        }
        Self(identity)
    }
}

/// State of a port (table 20).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// Initialising.
    Initializing,
    /// ptp4l stopped using the port after an error.
    Faulty,
    /// Switched off.
    Disabled,
    /// Waiting for a master's announcements.
    Listening,
    /// About to become master.
    PreMaster,
    /// Sends the time.
    Master,
    /// A better master exists on the same path.
    Passive,
    /// Has a master, and is not yet synchronised.
    Uncalibrated,
    /// Follows its master.
    Slave,
    /// Unknown state.
    #[default]
    #[serde(other)]
    Unknown,
}

impl PortState {
    fn of(number: u8) -> Self {
        use PortState::*;
        let all = [Initializing, Faulty, Disabled, Listening, PreMaster, Master, Passive, Uncalibrated, Slave];
        // ptp4l's state 10 is the port of a grandmaster.
        match number {
            10 => Master,
            _ => usize::from(number).checked_sub(1).and_then(|i| all.get(i)).copied().unwrap_or_default(),
        }
    }

    /// Name in IEEE 1588.
    pub fn name(self) -> &'static str {
        match self {
            Self::Initializing => "INITIALIZING",
            Self::Faulty => "FAULTY",
            Self::Disabled => "DISABLED",
            Self::Listening => "LISTENING",
            Self::PreMaster => "PRE_MASTER",
            Self::Master => "MASTER",
            Self::Passive => "PASSIVE",
            Self::Uncalibrated => "UNCALIBRATED",
            Self::Slave => "SLAVE",
            Self::Unknown => "unknown state",
        }
    }
}

/// The content of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// [`DataSet::Default`].
    Default {
        /// Number of ports.
        ports: u16,
        /// The clock's identity.
        identity: ClockIdentity,
        /// The domain.
        domain: u8,
    },
    /// [`DataSet::Current`].
    Current {
        /// Boundary clocks between this clock and the grandmaster, plus one.
        steps_removed: u16,
        /// Mean path delay to the master, ns.
        path_delay_ns: Ns,
    },
    /// [`DataSet::Parent`].
    Parent {
        /// Identity of the grandmaster.
        grandmaster: ClockIdentity,
        /// Its clockClass: 6 with a primary reference, 7 in holdover, 248 by default.
        class: u8,
        /// Its clockAccuracy: 0x21 for 100 ns, 0xfe for unknown.
        accuracy: u8,
    },
    /// [`DataSet::TimeProperties`].
    TimeProperties {
        /// TAI − UTC, s; `None` if the grandmaster does not know it.
        utc_offset_s: Option<i16>,
        /// Whether the time is TAI; otherwise its epoch is arbitrary.
        is_ptp_timescale: bool,
        /// Whether the time is traceable to a primary reference.
        time_traceable: bool,
    },
    /// [`DataSet::Port`].
    Port {
        /// Number of the port, from 1.
        number: u16,
        /// Its state.
        state: PortState,
        /// Base-2 logarithm of the interval between Sync messages, s.
        log_sync_interval: i8,
        /// Whether delays are measured between neighbours (P2P).
        is_peer_to_peer: bool,
    },
    /// [`DataSet::TimeStatus`].
    TimeStatus {
        /// This clock minus its master, ns.
        offset_ns: Ns,
        /// Arrival of the measured Sync message, in the clock that takes the timestamps, ns; 0 before the first.
        ingress_ns: Ns,
        /// The grandmaster; `None` if this clock is the grandmaster.
        grandmaster: Option<ClockIdentity>,
    },
    /// [`DataSet::PortProperties`].
    PortProperties {
        /// Number of the port.
        number: u16,
        /// Whether the NIC takes the timestamps.
        in_hardware: bool,
        /// The network device.
        device: String,
    },
    /// [`DataSet::PortStats`].
    PortStats {
        /// Number of the port.
        number: u16,
        /// Sync messages received.
        rx_sync: u64,
        /// Delay_Req and Pdelay_Req messages sent.
        tx_delay_requests: u64,
    },
    /// [`DataSet::PortHwClock`].
    PortHwClock {
        /// Number of the port.
        number: u16,
        /// PHC index; `None` without a PHC.
        phc: Option<u32>,
    },
}

/// Encodes the request for a data set, addressed to all ports.
pub fn request(set: DataSet, domain: u8, transport_specific: u8, sequence: u16) -> [u8; DATA] {
    let mut message = [0; DATA];
    message[0] = transport_specific << 4 | MANAGEMENT;
    message[1] = VERSION;
    message[2..4].copy_from_slice(&(DATA as u16).to_be_bytes());
    message[4] = domain;
    message[30..32].copy_from_slice(&sequence.to_be_bytes());
    // controlField and logMessageInterval.
    (message[32], message[33]) = (4, 0x7F);
    message[34..44].fill(0xFF);
    message[46] = GET;
    message[48..50].copy_from_slice(&TLV_MANAGEMENT.to_be_bytes());
    message[50..52].copy_from_slice(&2u16.to_be_bytes());
    message[52..54].copy_from_slice(&(set as u16).to_be_bytes());
    message
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The data set.
    Content(Content),
    /// ptp4l does not have it, or refuses it (managementErrorId).
    Refused(u16),
    /// Not an answer to this request, or damaged.
    Other,
}

/// Fields of a data set, checked against its end.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }
    fn u8(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }
    fn u16(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }
    fn i64(&self, at: usize) -> Option<i64> {
        self.array(at).map(i64::from_be_bytes)
    }
    fn identity(&self, at: usize) -> Option<ClockIdentity> {
        self.array(at).map(ClockIdentity)
    }
    /// Sum of little-endian counters.
    fn counters(&self, at: impl IntoIterator<Item = usize>) -> Option<u64> {
        at.into_iter()
            .map(|at| self.array(at).map(u64::from_le_bytes))
            .try_fold(0u64, |sum, n| Some(sum.saturating_add(n?)))
    }
}

/// Parses the answer to the request for `set` with this sequence number.
pub fn parse(message: &[u8], set: DataSet, sequence: u16) -> Answer {
    parse_inner(message, set, sequence).unwrap_or(Answer::Other)
}

fn parse_inner(message: &[u8], set: DataSet, sequence: u16) -> Option<Answer> {
    let head = Fields(message);
    let is_reply = head.u8(0)? & 15 == MANAGEMENT && head.u8(1)? & 15 == VERSION && head.u8(46)? & 15 == RESPONSE;
    let length = usize::from(head.u16(2)?).min(message.len());
    let tlv = usize::from(head.u16(50)?);
    let end = tlv.checked_add(52)?;
    if !is_reply || head.u16(30)? != sequence || end > length {
        return None;
    }
    match head.u16(48)? {
        // managementErrorId, managementId.
        TLV_ERROR if head.u16(54)? == set as u16 => Some(Answer::Refused(head.u16(52)?)),
        TLV_MANAGEMENT if head.u16(52)? == set as u16 => {
            content(set, &Fields(message.get(DATA..end)?)).map(Answer::Content)
        }
        _ => None,
    }
}

fn content(set: DataSet, f: &Fields<'_>) -> Option<Content> {
    Some(match set {
        DataSet::Default => Content::Default { ports: f.u16(2)?, identity: f.identity(10)?, domain: f.u8(18)? },
        // TimeInterval: ns with 16 fractional bits.
        DataSet::Current => Content::Current { steps_removed: f.u16(0)?, path_delay_ns: f.i64(10)? >> 16 },
        DataSet::Parent => Content::Parent { class: f.u8(19)?, accuracy: f.u8(20)?, grandmaster: f.identity(24)? },
        DataSet::TimeProperties => {
            let flags = f.u8(2)?;
            let utc_offset_s = Some(f.u16(0)? as i16).filter(|_| flags & 0x04 != 0);
            let (is_ptp_timescale, time_traceable) = (flags & 0x08 != 0, flags & 0x10 != 0);
            Content::TimeProperties { utc_offset_s, is_ptp_timescale, time_traceable }
        }
        DataSet::Port => Content::Port {
            number: f.u16(8)?,
            state: PortState::of(f.u8(10)?),
            log_sync_interval: f.u8(22)? as i8,
            is_peer_to_peer: f.u8(23)? == 2,
        },
        DataSet::TimeStatus => {
            let is_present = f.array::<4>(38)? != [0; 4];
            let grandmaster = f.identity(42)?;
            Content::TimeStatus {
                offset_ns: f.i64(0)?,
                ingress_ns: f.i64(8)?,
                grandmaster: is_present.then_some(grandmaster),
            }
        }
        DataSet::PortProperties => {
            let length = usize::from(f.u8(12)?);
            let name = f.0.get(13..13usize.checked_add(length)?)?;
            let device = String::from_utf8_lossy(name.get(..name.len().min(64))?);
            let device = latpath_model::text::printable(&device);
            Content::PortProperties { number: f.u16(8)?, in_hardware: f.u8(11)? != 0, device }
        }
        DataSet::PortStats => Content::PortStats {
            number: f.u16(8)?,
            // The counters are indexed by messageType: received ones first, then sent ones.
            rx_sync: f.counters([10])?,
            tx_delay_requests: f.counters([10 + 16 * 8 + 8, 10 + 16 * 8 + 16])?,
        },
        DataSet::PortHwClock => {
            let phc = i32::from_be_bytes(f.array(10)?);
            Content::PortHwClock { number: f.u16(8)?, phc: u32::try_from(phc).ok() }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SETS: [DataSet; 9] = [
        DataSet::Default,
        DataSet::Current,
        DataSet::Parent,
        DataSet::TimeProperties,
        DataSet::Port,
        DataSet::TimeStatus,
        DataSet::PortProperties,
        DataSet::PortStats,
        DataSet::PortHwClock,
    ];

    fn reply(set: DataSet, sequence: u16, data: &[u8]) -> Vec<u8> {
        let mut message = request(set, 0, 0, sequence).to_vec();
        message[46] = RESPONSE;
        message[50..52].copy_from_slice(&(data.len() as u16 + 2).to_be_bytes());
        message.extend(data);
        let length = message.len() as u16;
        message[2..4].copy_from_slice(&length.to_be_bytes());
        message
    }

    #[test]
    fn the_request_is_what_pmc_sends_with_z() {
        // From strace of `pmc -u -b 0 -z -d 24 'GET TIME_STATUS_NP'`, with port identity and sequence number zeroed.
        let want = [
            0x0d, 0x02, 0x00, 0x36, 0x18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0x04, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1, 0, 2, 0xc0, 0,
        ];
        let got = request(DataSet::TimeStatus, 24, 0, 0);
        assert_eq!(got[..34], want[..34]);
        assert_eq!(got[46..], want[46..]);
    }

    #[test]
    fn an_offset_has_its_sign_and_an_absent_grandmaster_is_none() {
        let mut data = [0; 50];
        data[..8].copy_from_slice(&(-1234i64).to_be_bytes());
        data[8..16].copy_from_slice(&77i64.to_be_bytes());
        data[42..].copy_from_slice(&[1, 2, 3, 0xff, 0xfe, 4, 5, 6]);
        let status = |data: &[u8]| parse(&reply(DataSet::TimeStatus, 9, data), DataSet::TimeStatus, 9);
        let want = Content::TimeStatus { offset_ns: -1234, ingress_ns: 77, grandmaster: None };
        assert_eq!(status(&data), Answer::Content(want));
        data[41] = 1;
        let Answer::Content(Content::TimeStatus { grandmaster: Some(clock), .. }) = status(&data) else { panic!() };
        assert_eq!(clock.to_string(), "010203.fffe.040506");
        assert_eq!(ClockIdentity::from(clock.to_string()), clock);
    }

    #[test]
    fn an_error_and_an_answer_to_another_request_are_distinguished() {
        let mut error = reply(DataSet::Parent, 3, &[0x20, 0x02, 0, 0, 0, 0]);
        error[48..50].copy_from_slice(&TLV_ERROR.to_be_bytes());
        error[52..54].copy_from_slice(&2u16.to_be_bytes());
        assert_eq!(parse(&error, DataSet::Parent, 3), Answer::Refused(2));
        assert_eq!(parse(&error, DataSet::Port, 3), Answer::Other);
        assert_eq!(parse(&error, DataSet::Parent, 4), Answer::Other);
        assert_eq!(parse(&request(DataSet::Parent, 0, 0, 3), DataSet::Parent, 3), Answer::Other, "a request");
    }

    proptest! {
        #[test]
        fn any_bytes_and_any_cut_of_an_answer_are_handled(
            set in 0..SETS.len(),
            data in proptest::collection::vec(any::<u8>(), 0..300),
            cut in 0usize..400,
            length in any::<u16>(),
        ) {
            let set = SETS[set];
            let whole = reply(set, 1, &data);
            parse(&whole, set, 1);
            prop_assert_eq!(parse(&whole[..cut.min(whole.len() - 1)], set, 1), Answer::Other);
            let mut lying = whole.clone();
            lying[50..52].copy_from_slice(&length.to_be_bytes());
            parse(&lying, set, 1);
            parse(&data, set, 1);
        }
    }
}
