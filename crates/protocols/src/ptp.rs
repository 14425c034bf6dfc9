//! PTP event messages (IEEE 1588-2019), whose arrival times matter, over Ethernet (annex E) or UDP port 319 (annexes C
//! and D).
//!
//! ```text
//! 0 majorSdoId, messageType   1 minorVersionPTP, versionPTP   2 messageLength   4 domainNumber   8 correctionField
//! 20 sourcePortIdentity: clockIdentity(8), portNumber(2)   30 sequenceId
//! ```
//! Each port counts each type of message separately. If several ports send the same type, select one port (`source=`);
//! otherwise different packets have equal keys.

use crate::ethernet::{array, pad};
use crate::protocol::{Contents, Details, Field, FrameLink, InFrame, Info, KernelMatch, Outgoing, ProtocolBytes, OwnKey, Protocol, Value};
use crate::options::{bad, number_u16, BadStream, Options};
use crate::{FrameError, Header};
use std::fmt;

/// The ethertype of PTP.
pub const ETHERTYPE: u16 = 0x88F7;
/// The UDP port of event messages.
pub const EVENT_PORT: u16 = 319;

/// The event messages, by messageType.
pub const MESSAGES: [&str; 4] = ["sync", "delay_req", "pdelay_req", "pdelay_resp"];

/// Multicast address of all messages except those of the peer delay mechanism (IEEE 1588-2019, annex E).
pub const GROUP: [u8; 6] = [0x01, 0x1b, 0x19, 0, 0, 0];
/// Multicast address of the peer delay mechanism, which bridges do not forward.
pub const PEER_GROUP: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0x0e];

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86DD;
const UDP: u8 = 17;
const IPV6_FRAGMENT: u8 = 44;
/// Length of the common header, bytes.
const HEADER: usize = 34;

/// The common header of an event message (13.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// messageType, 0 to 15; event messages are those of [`MESSAGES`].
    pub message: u8,
    /// domainNumber.
    pub domain: u8,
    /// sourcePortIdentity: the port that sends the message.
    pub source: PortIdentity,
    /// sequenceId.
    pub sequence_id: u16,
    /// logMessageInterval: base-2 logarithm of the interval between messages in seconds; 127 for none.
    pub log_interval: i8,
}

impl Message {
    /// Parses the message in a frame: over Ethernet, or UDP to port 319.
    ///
    /// # Errors
    /// [`FrameError::OtherProtocol`] if there is no PTP message; otherwise the first fault found.
    pub fn parse(frame: &[u8], header: &Header) -> Result<Self, FrameError> {
        let other = FrameError::OtherProtocol { ethertype: header.ethertype };
        let at = match header.ethertype {
            ETHERTYPE => header.payload_at,
            IPV4 | IPV6 => udp_payload(frame, header).ok_or(other)?,
            _ => return Err(other),
        };
        let h: [u8; HEADER] = array(frame, at, "PTP header")?;
        let number = |i: usize| u16::from_be_bytes([h[i], h[i + 1]]);
        if h[1] & 15 != 2 {
            return Err(FrameError::BadVersion { at: at + 1, found: h[1] & 15 });
        }
        let mut clock = [0; 8];
        clock.copy_from_slice(&h[20..28]);
        Ok(Self {
            message: h[0] & 15,
            domain: h[4],
            source: PortIdentity { clock, port: number(28) },
            sequence_id: number(30),
            log_interval: h[33] as i8,
        })
    }

    /// Builds a frame over Ethernet, from the destination MAC to the last byte before the check sequence, padded to 60
    /// bytes. Timestamps are 0: a follow-up message carries them.
    pub fn build(&self, link: &FrameLink) -> Vec<u8> {
        let is_peer = MESSAGES.get(usize::from(self.message)).is_some_and(|name| name.starts_with("pdelay"));
        let mut out = link.header(if is_peer { PEER_GROUP } else { GROUP }, ETHERTYPE);
        let length: u16 = if is_peer { 54 } else { 44 };
        // twoStepFlag is set in messages whose time follows in a follow-up message.
        let flags: u16 = if matches!(self.message, 0 | 3) { 0x0200 } else { 0 };
        let start = out.len();
        out.extend([self.message & 15, 2]);
        out.extend(length.to_be_bytes());
        out.extend([self.domain, 0]);
        out.extend(flags.to_be_bytes());
        out.extend([0; 12]);
        out.extend(self.source.clock);
        out.extend(self.source.port.to_be_bytes());
        out.extend(self.sequence_id.to_be_bytes());
        // controlField (table 42): Sync, Delay_Req, others.
        out.extend([if self.message < 2 { self.message } else { 5 }, self.log_interval as u8]);
        out.resize(start + usize::from(length), 0);
        pad(&mut out);
        out
    }
}

/// Offset of the payload of a UDP packet to the event port; `None` for other packets and for later fragments.
fn udp_payload(frame: &[u8], header: &Header) -> Option<usize> {
    let at = header.payload_at;
    let byte = |i: usize| frame.get(at + i).copied();
    let number = |i: usize| Some(u16::from_be_bytes([byte(i)?, byte(i + 1)?]));
    let udp = match header.ethertype {
        IPV4 if byte(9)? == UDP && number(6)? & 0x1fff == 0 => usize::from(byte(0)? & 15) * 4,
        IPV6 if byte(6)? == UDP => 40,
        IPV6 if byte(6)? == IPV6_FRAGMENT && byte(40)? == UDP && number(42)? & 0xfff8 == 0 => 48,
        _ => return None,
    };
    let version = if header.ethertype == IPV4 { 4 } else { 6 };
    (udp >= 20 && byte(0)? >> 4 == version && number(udp + 2)? == EVENT_PORT).then_some(at + udp + 8)
}

/// The port of a clock (portIdentity).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortIdentity {
    /// clockIdentity (EUI-64).
    pub clock: [u8; 8],
    /// portNumber.
    pub port: u16,
}

impl PortIdentity {
    /// Parses `001122.fffe.334455-1`, the format of ptp4l; the dots are optional.
    pub fn parse(text: &str) -> Option<Self> {
        let (clock, port) = text.split_once('-')?;
        let digits: Vec<u8> = clock.bytes().filter(|b| *b != b'.').collect();
        let digits = std::str::from_utf8(&digits).ok()?;
        let clock = u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 16)?;
        Some(Self { clock: clock.to_be_bytes(), port: port.parse().ok()? })
    }
}

impl fmt::Display for PortIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let c = &self.clock;
        write!(f, "{}.{}.{}-{}", hex(&c[..3]), hex(&c[3..5]), hex(&c[5..]), self.port)
    }
}

/// A stream of event messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ptp {
    /// messageType, an index into [`MESSAGES`].
    pub message: u8,
    /// sourcePortIdentity; `None` for any.
    pub source: Option<PortIdentity>,
    /// domainNumber; `None` for any.
    pub domain: Option<u8>,
}

impl Protocol for Ptp {
    const INFO: Info = Info {
        prefix: "ptp",
        title: "PTP event messages",
        form: "ptp:sync|delay_req|pdelay_req|pdelay_resp",
        example: "ptp:sync",
        about: &[
            [
                "`ptp:sync`",
                "PTP event messages of this type: `sync`, `delay_req`, `pdelay_req` or `pdelay_resp`, over Ethernet or UDP \
                 to port 319",
                "sequenceId",
            ],
            [
                "`ptp:sync,source=001122.fffe.334455-1,domain=0`",
                "only those of this port, written as ptp4l writes it, and of this domain",
                "the same",
            ],
        ],
        options: &["source", "domain"],
        ethertypes: &[ETHERTYPE, IPV4, IPV6],
        udp_ports: &[EVENT_PORT],
        is_listed: true,
        contents: Contents::Nothing,
        key: Some(OwnKey::counter16("sequenceId")),
    };

    fn parse(name: &str, options: &mut Options<'_>) -> Result<Self, BadStream> {
        let message = MESSAGES.iter().position(|m| *m == name);
        let domain = |text: &str| number_u16(text).and_then(|d| u8::try_from(d).ok());
        Ok(Self {
            message: message.ok_or_else(|| bad(name, format!("PTP's event messages are {}", MESSAGES.join(", "))))? as u8,
            source: options.take("source", "write a port as 001122.fffe.334455-1", PortIdentity::parse)?,
            domain: options.take("domain", "a domain is 0 to 255", domain)?,
        })
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", MESSAGES[usize::from(self.message) % MESSAGES.len()])?;
        if let Some(source) = self.source {
            write!(f, ",source={source}")?;
        }
        match self.domain {
            Some(domain) => write!(f, ",domain={domain}"),
            None => Ok(()),
        }
    }

    fn kernel(&self) -> KernelMatch {
        let (clock, port) = self.source.map_or_else(Default::default, |s| (s.clock, s.port.to_be_bytes()));
        let bytes = ProtocolBytes::default().put(&clock).put(&port);
        let bytes = bytes.put_optional(self.domain.map(u16::from)).put(&[self.message, self.source.is_some().into()]);
        KernelMatch { name: None, protocol_bytes: bytes }
    }

    fn read(frame: &[u8], _len: usize, header: &Header) -> Result<Vec<InFrame<Self>>, FrameError> {
        let m = Message::parse(frame, header)?;
        if usize::from(m.message) >= MESSAGES.len() {
            // General messages are not timestamped on arrival.
            return Ok(Vec::new());
        }
        let stream = Self { message: m.message, source: Some(m.source), domain: Some(m.domain) };
        Ok(vec![InFrame { stream, key: m.sequence_id.into(), step: 0, synch: None }])
    }

    fn includes(&self, found: &Self) -> bool {
        self.message == found.message
            && self.source.is_none_or(|source| Some(source) == found.source)
            && self.domain.is_none_or(|domain| Some(domain) == found.domain)
    }

    fn frame(&self, link: &FrameLink, packet: &Outgoing) -> Option<Result<Vec<u8>, String>> {
        // The clock's identity is derived from the MAC (EUI-64), as ptp4l derives it from that of the first port.
        let [a, b, c, d, e, f] = link.src;
        let source = self.source.unwrap_or(PortIdentity { clock: [a, b, c, 0xff, 0xfe, d, e, f], port: 1 });
        // The interval, rounded to a power of two.
        let log_interval = (packet.next.max(1) as f64 / 1e9).log2().round().clamp(-128.0, 126.0) as i8;
        let message = Message {
            message: self.message,
            domain: self.domain.unwrap_or(0),
            source,
            sequence_id: packet.number as u16,
            log_interval: if packet.next > 0 { log_interval } else { 127 },
        };
        Some(Ok(message.build(link)))
    }

    fn rebuild(&self, link: &FrameLink, key: u32) -> Option<Result<Vec<u8>, String>> {
        self.frame(link, &Outgoing { event: 1, number: key, event_time: 0, next: 0, value: false })
    }

    fn details(&self, frame: &[u8]) -> Details {
        let text = |title, json, value: String| Field { title, json, value: Value::Text(value) };
        let message = MESSAGES[usize::from(self.message) % MESSAGES.len()];
        let source = self.source.map_or_else(String::new, |source| source.to_string());
        let mut name = vec![text("message", "message", message.into()), text("source port", "source", source)];
        let domain = u64::from(self.domain.unwrap_or(0));
        name.push(Field { title: "domain", json: "domain", value: Value::Number(domain) });
        let parsed = Header::parse(frame).and_then(|header| Message::parse(frame, &header));
        let sequence_id = Value::Number(parsed.map_or(0, |m| m.sequence_id.into()));
        Details { name, newest: vec![Field { title: "sequenceId", json: "sequence_id", value: sequence_id }] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tag;
    use proptest::prelude::*;

    fn message(message: u8, sequence_id: u16) -> Message {
        let source = PortIdentity { clock: [0, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55], port: 1 };
        Message { message, domain: 3, source, sequence_id, log_interval: -3 }
    }

    fn built(kind: u8) -> Vec<u8> {
        message(kind, 7).build(&FrameLink::default())
    }

    /// Builds a UDP packet with a message to this port.
    fn over_udp(version: u8, port: u16) -> Vec<u8> {
        let frame = built(0);
        let mut out = frame[..12].to_vec();
        if version == 4 {
            // With one IP option, so that the header's length matters.
            out.extend([8, 0, 0x46, 0, 0, 76, 0, 0, 0, 0, 1, UDP, 0, 0]);
            out.extend([0; 12]);
        } else {
            out.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 52, UDP, 1]);
            out.extend([0; 32]);
        }
        out.extend([1, 63]);
        out.extend(port.to_be_bytes());
        out.extend([0; 4]);
        out.extend(&frame[14..]);
        out
    }

    #[test]
    fn a_message_is_read_over_ethernet_and_udp() {
        let expected = "ptp:sync,source=001122.fffe.334455-1,domain=3".parse::<crate::StreamSpec>().unwrap().matcher;
        for frame in [built(0), over_udp(4, EVENT_PORT), over_udp(6, EVENT_PORT)] {
            let (_, found) = crate::Matcher::read(&frame).unwrap();
            assert_eq!((&found[0].stream, found[0].key), (&expected, 7));
        }
        assert!(matches!(crate::Matcher::read(&over_udp(4, 320)), Err(FrameError::OtherProtocol { .. })));
        assert_eq!(crate::Matcher::read(&built(8)).unwrap().1, [], "Follow_Up is no event");
    }

    #[test]
    fn ptp_version_1_is_reported() {
        let mut frame = built(0);
        frame[15] = 1;
        assert_eq!(crate::Matcher::read(&frame).unwrap_err().to_string(), "PTP version 1 at byte 15; only version 2 is supported");
    }

    proptest! {
        #[test]
        fn what_is_built_reads_back(kind in 0_u8..4, sequence_id in any::<u16>(), vlan in prop::option::of(0_u16..4095)) {
            let tags: Vec<Tag> = vlan.map(|v| Tag::new(v, 6)).into_iter().collect();
            let frame = message(kind, sequence_id).build(&FrameLink { tags, ..FrameLink::default() });
            let header = Header::parse(&frame).unwrap();
            prop_assert_eq!(Message::parse(&frame, &header).unwrap(), message(kind, sequence_id));
            let length = u16::from_be_bytes([frame[header.payload_at + 2], frame[header.payload_at + 3]]);
            prop_assert_eq!(length, if kind < 2 { 44 } else { 54 });
        }

        #[test]
        fn no_bytes_make_the_parser_panic(frame in prop::collection::vec(any::<u8>(), 0..120), version in 0_u8..7, cut in 0_usize..120) {
            let _ = crate::Matcher::read(&frame);
            let udp = over_udp(version, EVENT_PORT);
            let _ = crate::Matcher::read(&udp[..cut.min(udp.len())]);
        }
    }
}
