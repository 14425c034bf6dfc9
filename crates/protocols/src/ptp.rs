//! PTP event messages, IEEE 1588-2019: those whose time of arrival counts. Over Ethernet (annex E), or UDP to port 319 (annexes C
//! and D).
//!
//! ```text
//! 0 majorSdoId, messageType   1 minorVersionPTP, versionPTP   2 messageLength   4 domainNumber   8 correctionField
//! 20 sourcePortIdentity: clockIdentity(8), portNumber(2)   30 sequenceId
//! ```
//! Each port counts each type of message by itself: where several ports send one, name the port (`source=`), or keys of different
//! packets are the same.

use crate::protocol::{Info, KernelMatch, OwnBytes, OwnKey, Protocol};
use crate::stream::{bad, number_u16, BadStream, Options};
use std::fmt;

/// The ethertype of PTP.
pub const ETHERTYPE: u16 = 0x88F7;
/// The UDP port of event messages.
pub const EVENT_PORT: u16 = 319;

/// The event messages, by messageType.
pub const MESSAGES: [&str; 4] = ["sync", "delay_req", "pdelay_req", "pdelay_resp"];

/// A port of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortIdentity {
    /// clockIdentity.
    pub clock: [u8; 8],
    /// portNumber.
    pub port: u16,
}

impl PortIdentity {
    /// Reads `001122.fffe.334455-1`, as ptp4l writes it; the dots may be missing.
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
    /// sourcePortIdentity, where it matters.
    pub source: Option<PortIdentity>,
    /// domainNumber, where it matters.
    pub domain: Option<u8>,
}

impl Protocol for Ptp {
    const INFO: Info = Info {
        prefix: "ptp",
        title: "PTP event messages",
        form: "ptp:sync|delay_req|pdelay_req|pdelay_resp",
        example: "ptp:sync",
        options: &["source", "domain"],
        ethertypes: &[ETHERTYPE, 0x0800, 0x86DD],
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
        let own = OwnBytes::default().put(&clock).put(&port);
        let own = own.put_optional(self.domain.map(u16::from)).put(&[self.message, self.source.is_some().into()]);
        KernelMatch { name: None, own }
    }
}
