//! The trait of a protocol, and the table of all protocols.
//!
//! To add a protocol, write a module here that implements [`Protocol`], a line in the table of lib.rs, and a header of
//! the same name in `crates/bpf/protocols`. The table determines everything else: the grammar of streams, help, errors,
//! which frames the kernel programs read, and by which function.

use crate::options::{BadStream, Options};
use crate::{FrameError, Header, Ns, Tag, ValuePath};
use std::fmt;

/// Bytes of a stream's configuration that only its protocol reads (`stream_conf.own` of the kernel programs).
pub const PROTOCOL_BYTES: usize = 40;

/// The constants of a protocol.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// Prefix of a stream's text, without the colon.
    pub prefix: &'static str,
    /// The protocol's name in sentences.
    pub title: &'static str,
    /// The form of a stream, for help and errors.
    pub form: &'static str,
    /// An example of a stream.
    pub example: &'static str,
    /// For docs/record.md: forms of a stream, the packets that each form selects, and their key.
    pub about: &'static [[&'static str; 3]],
    /// Options that only this protocol has, each `name=VALUE`.
    pub options: &'static [&'static str],
    /// Ethertypes that carry the protocol; empty for any.
    pub ethertypes: &'static [u16],
    /// UDP ports of its packets, if the ethertypes include IP; empty for any.
    pub udp_ports: &'static [u16],
    /// The content of its frames, besides keys, that conditions can refer to.
    pub contents: Contents,
    /// Whether frames contain the names of their streams, so that streams can be listed: [`Protocol::read`].
    pub is_listed: bool,
    /// The protocol's own key of a packet; `None` if it has none.
    pub key: Option<OwnKey>,
}

/// The content of a protocol's frames that conditions can refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Nothing.
    Nothing,
    /// Samples: [`Protocol::each_sample`].
    Samples,
    /// Values in messages about events: [`Protocol::boolean`].
    Values,
}

/// The order of packets' keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A counter: each packet's number exceeds that of the previous packet by a constant step, until it wraps.
    Counter {
        /// Number of values of the counter: the largest value plus 1.
        range: u64,
    },
    /// A state number and the number of the packet within the state, the low 16 bits of each.
    States,
}

/// A protocol's own key, which distinguishes consecutive packets.
#[derive(Clone, Copy, Debug)]
pub struct OwnKey {
    /// The field that contains the key.
    pub name: &'static str,
    /// The order of keys.
    pub order: Order,
    /// Formats a key for display.
    pub text: fn(u32) -> String,
    /// Parses the output of `text`.
    pub read: fn(&str) -> Option<u32>,
}

impl OwnKey {
    /// A 16-bit counter in the field `name`.
    pub const fn counter16(name: &'static str) -> Self {
        Self {
            name,
            order: Order::Counter { range: 1 << 16 },
            text: |key| key.to_string(),
            read: |text| text.parse().ok(),
        }
    }
}

/// A stream as the kernel programs recognise it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelMatch {
    /// The name that the programs look up; `None` for protocols whose frames contain no name.
    pub name: Option<Vec<u8>>,
    /// Bytes that the protocol's header in `crates/bpf/protocols` interprets.
    pub protocol_bytes: ProtocolBytes,
}

/// Builds the bytes that only the protocol reads, field by field, in native byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolBytes {
    bytes: [u8; PROTOCOL_BYTES],
    len: usize,
}

impl Default for ProtocolBytes {
    fn default() -> Self {
        Self { bytes: [0; PROTOCOL_BYTES], len: 0 }
    }
}

impl ProtocolBytes {
    /// Appends a field. Fields of two bytes must start at even offsets.
    #[must_use]
    pub fn put(mut self, field: &[u8]) -> Self {
        self.bytes[self.len..self.len + field.len()].copy_from_slice(field);
        self.len += field.len();
        self
    }

    /// Appends a number (0 if absent), then 1 if the number is present, else 0.
    #[must_use]
    pub fn put_optional(self, number: Option<u16>) -> Self {
        self.put(&number.unwrap_or(0).to_ne_bytes()).put(&u16::from(number.is_some()).to_ne_bytes())
    }

    /// The bytes, padded with zeros.
    pub fn bytes(&self) -> [u8; PROTOCOL_BYTES] {
        self.bytes
    }
}

/// A stream found in a frame, and its packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFrame<M> {
    /// The stream, with all fields that distinguish it from others of its protocol.
    pub stream: M,
    /// The packet's key.
    pub key: u32,
    /// Difference between this packet's key and the next one's, if the frame shows it (the number of samples); else 0.
    pub step: u16,
    /// State of synchronisation of the clock that timed the samples, according to the frame: smpSynch of Sampled
    /// Values.
    pub synch: Option<u8>,
}

/// The link layer of a frame to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameLink {
    /// Destination MAC; `None` for the protocol's own group.
    pub dst: Option<[u8; 6]>,
    /// Source MAC.
    pub src: [u8; 6],
    /// 802.1Q tags, outermost first; at most two.
    pub tags: Vec<Tag>,
}

impl Default for FrameLink {
    fn default() -> Self {
        Self { dst: None, src: [0x02, 0, 0, 0, 0, 1], tags: Vec::new() }
    }
}

impl FrameLink {
    /// Builds the Ethernet header with its tags; `group`: the default destination.
    pub(crate) fn header(&self, group: [u8; 6], ethertype: u16) -> Vec<u8> {
        let mut out = [self.dst.unwrap_or(group), self.src].concat();
        for tag in &self.tags {
            out.extend(tag.tpid.to_be_bytes());
            out.extend(tag.tci.to_be_bytes());
        }
        out.extend(ethertype.to_be_bytes());
        out
    }
}

/// A packet to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Number of events so far, including this one.
    pub event: u32,
    /// Number of earlier packets of this event; for protocols without events, of the stream.
    pub number: u32,
    /// Start of the event, `CLOCK_REALTIME`, ns.
    pub event_time: Ns,
    /// Time to the next packet, ns.
    pub next: Ns,
    /// The BOOLEAN of the event, for protocols with values.
    pub value: bool,
}

/// A field of a frame, for lists of streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Heading of the column.
    pub title: &'static str,
    /// Key in JSON.
    pub json: &'static str,
    /// The value.
    pub value: Value,
}

/// The value of a [`Field`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Text from a packet, escaped for terminals.
    Text(String),
    /// A number that is displayed in decimal.
    Number(u64),
    /// A number displayed in hexadecimal, zero-padded to the width of its field.
    Hex {
        /// The number.
        number: u32,
        /// Width of the field in bytes.
        bytes: u8,
    },
    /// A count per frame, displayed as a rate per second.
    PerFrame(u16),
    /// Not contained in the frame.
    Unknown,
}

impl Value {
    /// A number, or [`Self::Unknown`].
    pub fn optional(number: Option<impl Into<u64>>) -> Self {
        number.map_or(Self::Unknown, |number| Self::Number(number.into()))
    }

    /// Escaped text from bytes of a packet.
    pub fn text(bytes: &[u8]) -> Self {
        Self::Text(crate::escape::text(bytes))
    }
}

/// The protocol's columns in a list of streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Fields that name the stream.
    pub name: Vec<Field>,
    /// Fields of its newest frame.
    pub newest: Vec<Field>,
}

/// A protocol; a value of the type is one of its streams.
pub trait Protocol: Sized + Clone + PartialEq {
    /// The constants of the protocol.
    const INFO: Info;

    /// Parses a stream's text between the prefix and the options, and takes the protocol's own options.
    ///
    /// # Errors
    /// The text names no stream of this protocol.
    fn parse(name: &str, options: &mut Options<'_>) -> Result<Self, BadStream>;

    /// Formats the stream so that [`parse`](Self::parse) reads it.
    ///
    /// # Errors
    /// The formatter fails.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// A name for tables, shorter than the full text.
    fn short(&self) -> Option<String> {
        None
    }

    /// This stream, selected only by its name if it has one.
    #[must_use]
    fn by_name(&self) -> Self {
        self.clone()
    }

    /// The ethertypes of this stream's frames.
    fn ethertypes(&self) -> Vec<u16> {
        Self::INFO.ethertypes.to_vec()
    }

    /// The stream as the kernel programs recognise it.
    fn kernel(&self) -> KernelMatch;

    /// Returns the streams in a frame, without duplicates: those that the kernel programs find, which read no further
    /// than the key. `len`: length of the frame on the wire, bytes; fewer may have been captured. Protocols whose
    /// frames do not name their streams return an error.
    ///
    /// # Errors
    /// [`FrameError::OtherProtocol`], or the first fault found.
    fn read(_frame: &[u8], _len: usize, header: &Header) -> Result<Vec<InFrame<Self>>, FrameError> {
        Err(FrameError::OtherProtocol { ethertype: header.ethertype })
    }

    /// Whether this stream, which may leave fields open, includes one that [`read`](Self::read) found.
    fn includes(&self, found: &Self) -> bool {
        self == found
    }

    /// Builds a frame of this stream to send; `None` if latpath cannot send such streams.
    ///
    /// # Errors
    /// Why the frame cannot be built, as a sentence.
    fn frame(&self, _link: &FrameLink, _packet: &Outgoing) -> Option<Result<Vec<u8>, String>> {
        None
    }

    /// Builds a frame of this stream with this key; the other fields have arbitrary values. `None` if the key does not
    /// suffice.
    ///
    /// # Errors
    /// Why the frame cannot be built, as a sentence.
    fn rebuild(&self, _link: &FrameLink, _key: u32) -> Option<Result<Vec<u8>, String>> {
        None
    }

    /// Passes each sample of this stream in a whole frame to `each`: the sample's number and its bytes.
    fn each_sample(&self, _frame: &[u8], _each: &mut dyn FnMut(u16, &[u8])) {}

    /// Returns the BOOLEAN at this position of a whole frame of this stream, if there is one.
    fn boolean(&self, _frame: &[u8], _header: &Header, _path: &ValuePath) -> Option<bool> {
        None
    }

    /// The columns of this stream; `frame` is the newest frame in which [`read`](Self::read) found it.
    fn details(&self, _frame: &[u8]) -> Details {
        Details::default()
    }

    /// Returns an OpenFlow match for this stream, in the syntax of ovs-fields(7).
    fn flow(&self) -> String {
        format!("dl_type={:#06x}", self.ethertypes().first().copied().unwrap_or_default())
    }
}

/// Defines the table of protocols: declares each module, and makes its type a variant of [`Matcher`](crate::Matcher).
macro_rules! protocols {
    ($($module:ident::$name:ident),* $(,)?) => {
        $(pub mod $module;)*

        /// A stream of any protocol.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Matcher {
            $(
                #[doc = concat!("See [`", stringify!($module), "`].")]
                $name($module::$name),
            )*
        }

        /// A protocol. Its number identifies it in the kernel programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum ProtocolId {
            $(
                #[doc = concat!("See [`", stringify!($module), "`].")]
                $name,
            )*
        }

        impl ProtocolId {
            /// All protocols, ordered by number.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The constants of the protocol.
            pub const fn info(self) -> $crate::protocol::Info {
                match self {
                    $(Self::$name => <$module::$name as $crate::protocol::Protocol>::INFO,)*
                }
            }

            /// Returns the protocols whose frames contain the names of their streams.
            pub fn listed() -> Vec<Self> {
                Self::ALL.iter().copied().filter(|protocol| protocol.info().is_listed).collect()
            }

            /// The name of the protocol's module here and of its header in `crates/bpf/protocols`.
            pub const fn module(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($module),)*
                }
            }

            fn parse(self, name: &str, options: &mut $crate::options::Options<'_>) -> Result<Matcher, $crate::BadStream> {
                match self {
                    $(Self::$name => $crate::protocol::Protocol::parse(name, options).map(Matcher::$name),)*
                }
            }
        }

        impl Matcher {
            /// The protocol of this stream.
            pub fn protocol(&self) -> ProtocolId {
                match self {
                    $(Self::$name(_) => ProtocolId::$name,)*
                }
            }

            fn write(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$name(m) => $crate::protocol::Protocol::write(m, f),)*
                }
            }

            fn short(&self) -> Option<String> {
                match self {
                    $(Self::$name(m) => $crate::protocol::Protocol::short(m),)*
                }
            }

            pub(crate) fn by_name(&self) -> Self {
                match self {
                    $(Self::$name(m) => Self::$name($crate::protocol::Protocol::by_name(m)),)*
                }
            }

            /// The ethertypes of the stream's frames.
            pub fn ethertypes(&self) -> Vec<u16> {
                match self {
                    $(Self::$name(m) => $crate::protocol::Protocol::ethertypes(m),)*
                }
            }

            /// The stream as the kernel programs recognise it.
            pub fn kernel(&self) -> $crate::protocol::KernelMatch {
                match self {
                    $(Self::$name(m) => $crate::protocol::Protocol::kernel(m),)*
                }
            }

            /// Returns the streams in a frame that starts with its destination MAC, without duplicates and as exactly
            /// as the frame names them, and the frame's header.
            ///
            /// # Errors
            /// [`FrameError::OtherProtocol`](crate::FrameError) if no protocol lists its streams; otherwise the first
            /// fault found.
            pub fn read(
                frame: &[u8],
            ) -> Result<(crate::Header, Vec<$crate::protocol::InFrame<Matcher>>), crate::FrameError> {
                Self::read_captured(frame, frame.len())
            }

            /// Like [`read`](Self::read), for the first bytes of a frame that had `len` bytes on the wire.
            ///
            /// # Errors
            /// As for [`read`](Self::read); [`FrameError::CutOff`](crate::FrameError) if a key lies beyond the captured
            /// bytes.
            pub fn read_captured(
                frame: &[u8],
                len: usize,
            ) -> Result<(crate::Header, Vec<$crate::protocol::InFrame<Matcher>>), crate::FrameError> {
                let is_cut = frame.len() < len;
                let cut = |e: $crate::FrameError| if is_cut { e.cut_off() } else { e };
                let mut header = crate::Header::parse(frame).map_err(cut)?;
                let (mut frame, mut len) = (frame, len);
                if let Some(copy) = crate::redundancy::trailer(frame, &header).filter(|_| frame.len() >= len) {
                    header.copy = Some(copy);
                    len -= crate::redundancy::TRAILER.min(len);
                    frame = &frame[..frame.len() - crate::redundancy::TRAILER];
                }
                $(
                    match <$module::$name as $crate::protocol::Protocol>::read(frame, len, &header) {
                        Err($crate::FrameError::OtherProtocol { .. }) => {}
                        Err(e) => return Err(cut(e)),
                        Ok(found) => {
                            let found = found.into_iter().map(|s| $crate::protocol::InFrame {
                                stream: Matcher::$name(s.stream),
                                key: s.key,
                                step: s.step,
                                synch: s.synch,
                            });
                            return Ok((header, found.collect()));
                        }
                    }
                )*
                Err($crate::FrameError::OtherProtocol { ethertype: header.ethertype })
            }

            /// Whether this stream includes one that [`read`](Self::read) found.
            pub fn includes(&self, found: &Matcher) -> bool {
                match (self, found) {
                    $((Self::$name(m), Self::$name(found)) => $crate::protocol::Protocol::includes(m, found),)*
                    _ => false,
                }
            }

            /// Builds a frame of this stream to send; `None` if latpath cannot send such streams.
            ///
            /// # Errors
            /// Why the frame cannot be built, as a sentence.
            pub fn frame(
                &self,
                link: &$crate::protocol::FrameLink,
                packet: &$crate::protocol::Outgoing,
            ) -> Option<Result<Vec<u8>, String>> {
                match self {
                    $(Self::$name(m) => $crate::protocol::Protocol::frame(m, link, packet),)*
                }
            }

            /// Builds a frame of this stream with this key; the other fields have arbitrary values. `None` if the key
            /// does not suffice.
            ///
            /// # Errors
            /// Why the frame cannot be built, as a sentence.
            pub fn rebuild(&self, link: &$crate::protocol::FrameLink, key: u32) -> Option<Result<Vec<u8>, String>> {
                match self {
                    $(Self::$name(m) => $crate::protocol::Protocol::rebuild(m, link, key),)*
                }
            }

            /// Passes each sample of this stream in a whole frame to `each`: the sample's number and its bytes.
            pub fn each_sample(&self, frame: &[u8], each: &mut dyn FnMut(u16, &[u8])) {
                match self {
                    $(Self::$name(m) => $crate::protocol::Protocol::each_sample(m, frame, each),)*
                }
            }

            /// Returns the BOOLEAN at this position of a whole frame of this stream, if there is one.
            pub fn boolean(&self, frame: &[u8], header: &$crate::Header, path: &$crate::ValuePath) -> Option<bool> {
                match self {
                    $(Self::$name(m) => $crate::protocol::Protocol::boolean(m, frame, header, path),)*
                }
            }

            /// The columns of this stream; `frame` is its newest frame.
            pub fn details(&self, frame: &[u8]) -> $crate::protocol::Details {
                match self {
                    $(Self::$name(m) => $crate::protocol::Protocol::details(m, frame),)*
                }
            }

            /// Returns an OpenFlow match for this stream, in the syntax of ovs-fields(7).
            pub fn flow(&self) -> String {
                match self {
                    $(Self::$name(m) => $crate::protocol::Protocol::flow(m),)*
                }
            }
        }
    };
}
pub(crate) use protocols;
