//! What each protocol says of itself, and the table of all of them.
//!
//! To add one: a module here that implements [`Protocol`], its line in the table of lib.rs, and a header of the same name in
//! `crates/bpf/protocols`. All else follows from the table: the grammar of streams, help and errors, which frames the kernel
//! programs look at and which function reads them.

use crate::options::{BadStream, Options};
use crate::{FrameError, Header, Ns, Tag};
use std::fmt;

/// Bytes of a stream's configuration that belong to its protocol alone (`stream_conf.own` of the kernel programs).
pub const OWN_LEN: usize = 40;

/// What is fixed about a protocol.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// What a stream's text begins with, before the colon.
    pub prefix: &'static str,
    /// The protocol's name in sentences.
    pub title: &'static str,
    /// The form of a stream, for help and errors.
    pub form: &'static str,
    /// A stream as a user would write it.
    pub example: &'static str,
    /// Options of this protocol alone, each `name=VALUE`.
    pub options: &'static [&'static str],
    /// The ethertypes that carry it; empty for any.
    pub ethertypes: &'static [u16],
    /// The UDP ports of its packets, where one of the ethertypes is that of IP; empty for any.
    pub udp_ports: &'static [u16],
    /// Frames name their streams, so that streams can be listed: [`Protocol::read`].
    pub is_listed: bool,
    /// How the protocol itself distinguishes a packet from the next; `None` where it does not.
    pub key: Option<OwnKey>,
}

/// How the keys of packets follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each packet's number is greater than the one before by the same step, until the numbers wrap.
    Counter {
        /// One past the largest number.
        range: u64,
    },
    /// A key is the low 16 bits of a count of states, and the low 16 bits of a count of the packets of one state.
    States,
}

/// How a protocol distinguishes a packet from the next.
#[derive(Clone, Copy, Debug)]
pub struct OwnKey {
    /// The name of the field that the key is read from.
    pub name: &'static str,
    /// How keys follow each other.
    pub order: Order,
    /// The key as people read it.
    pub text: fn(u32) -> String,
    /// Reads what `text` writes.
    pub read: fn(&str) -> Option<u32>,
}

impl OwnKey {
    /// A counter of 16 bits in a field of this name.
    pub const fn counter16(name: &'static str) -> Self {
        Self {
            name,
            order: Order::Counter { range: 1 << 16 },
            text: |key| key.to_string(),
            read: |text| text.parse().ok(),
        }
    }
}

/// What the kernel programs need to recognise a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelMatch {
    /// The name that the programs look up, of protocols whose frames carry one.
    pub name: Option<Vec<u8>>,
    /// What the protocol's header in `crates/bpf/protocols` reads.
    pub own: OwnBytes,
}

/// Writes fields one after another into a stream's own bytes, in the machine's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnBytes {
    bytes: [u8; OWN_LEN],
    len: usize,
}

impl Default for OwnBytes {
    fn default() -> Self {
        Self { bytes: [0; OWN_LEN], len: 0 }
    }
}

impl OwnBytes {
    /// Appends a field. Fields of two bytes must stand at even places.
    #[must_use]
    pub fn put(mut self, field: &[u8]) -> Self {
        self.bytes[self.len..self.len + field.len()].copy_from_slice(field);
        self.len += field.len();
        self
    }

    /// Appends a number, then whether there is one.
    #[must_use]
    pub fn put_optional(self, number: Option<u16>) -> Self {
        self.put(&number.unwrap_or(0).to_ne_bytes()).put(&u16::from(number.is_some()).to_ne_bytes())
    }

    pub fn bytes(&self) -> [u8; OWN_LEN] {
        self.bytes
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFrame<M> {
    /// The stream, with all that distinguishes it from others of its protocol.
    pub stream: M,
    /// The packet's key.
    pub key: u32,
    /// By how much the key of the next packet is greater, where the frame says so: the samples in it; else 0.
    pub step: u16,
    /// What the frame says of the clock that its samples were taken by: smpSynch of Sampled Values.
    pub synch: Option<u8>,
}

/// What stands before a protocol's own bytes in a frame that is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameLink {
    /// Destination MAC; the protocol's own group if none is given.
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
    /// The Ethernet header with its tags; `group`: the destination if none is given.
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

/// A packet that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Events so far, this one included.
    pub event: u32,
    /// Packets of this event before this one; of protocols without events, packets of the stream.
    pub number: u32,
    /// When the event began, `CLOCK_REALTIME`.
    pub event_time: Ns,
    /// Time to the next packet, ns.
    pub next: Ns,
}

/// A field of a frame, for lists of streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The heading of its column.
    pub title: &'static str,
    pub json: &'static str,
    pub value: Value,
}

/// The value of a [`Field`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A text from the wire, with nothing in it that a terminal obeys.
    Text(String),
    Number(u64),
    /// A number that people read in hexadecimal.
    Hex(u16),
    /// So many of something in each frame: shown as so many a second.
    PerFrame(u16),
    /// The frame does not say it.
    Unknown,
}

impl Value {
    /// A number, where the frame has it.
    pub fn optional(number: Option<impl Into<u64>>) -> Self {
        number.map_or(Self::Unknown, |number| Self::Number(number.into()))
    }

    /// A text from bytes of the wire.
    pub fn text(bytes: &[u8]) -> Self {
        Self::Text(crate::escape::text(bytes))
    }
}

/// What a list of streams shows of a stream beside what it has in common with all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// What names the stream.
    pub name: Vec<Field>,
    /// What its newest frame says.
    pub newest: Vec<Field>,
}

/// How streams of one protocol are recognised; the value is one stream's.
pub trait Protocol: Sized + Clone + PartialEq {
    /// What is fixed about it.
    const INFO: Info;

    /// Reads the part of a stream's text between the prefix and the options, and takes its own options.
    fn parse(name: &str, options: &mut Options<'_>) -> Result<Self, BadStream>;

    /// Writes what [`parse`](Self::parse) reads.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// A name for tables, shorter than the whole text.
    fn short(&self) -> Option<String> {
        None
    }

    /// The same stream, chosen by its name alone where it has one.
    #[must_use]
    fn by_name(&self) -> Self {
        self.clone()
    }

    /// The ethertypes of this stream's frames.
    fn ethertypes(&self) -> Vec<u16> {
        Self::INFO.ethertypes.to_vec()
    }

    /// What the kernel programs need.
    fn kernel(&self) -> KernelMatch;

    /// The streams in a frame, each once: those that the kernel programs find, which read no further than to the key. `len`: the
    /// bytes that the frame had when it was sent; a capture may have kept fewer. A protocol whose frames do not name their streams
    /// has none.
    ///
    /// # Errors
    /// [`FrameError::OtherProtocol`], or the first thing that is wrong.
    fn read(_frame: &[u8], _len: usize, header: &Header) -> Result<Vec<InFrame<Self>>, FrameError> {
        Err(FrameError::OtherProtocol { ethertype: header.ethertype })
    }

    /// Whether a stream that [`read`](Self::read) found is meant by this one, which may say less.
    fn includes(&self, found: &Self) -> bool {
        self == found
    }

    /// A frame of this stream that can be sent; `None` where such streams are not sent.
    ///
    /// # Errors
    /// Why such a frame cannot be built, in a sentence.
    fn frame(&self, _link: &FrameLink, _packet: &Outgoing) -> Option<Result<Vec<u8>, String>> {
        None
    }

    /// A frame of this stream with this key of the protocol's own, in which nothing else is real; `None` where a key does not suffice.
    ///
    /// # Errors
    /// Why such a frame cannot be built, in a sentence.
    fn rebuild(&self, _link: &FrameLink, _key: u32) -> Option<Result<Vec<u8>, String>> {
        None
    }

    /// What a list shows of this stream; `frame` is the newest frame that [`read`](Self::read) found it in.
    fn details(&self, _frame: &[u8]) -> Details {
        Details::default()
    }

    /// The stream as ovs-fields(7) matches it.
    fn flow(&self) -> String {
        format!("dl_type={:#06x}", self.ethertypes().first().copied().unwrap_or_default())
    }
}

/// Makes the table of protocols: each module is declared, and its type is a [`Matcher`](crate::Matcher).
macro_rules! protocols {
    ($($module:ident::$name:ident),* $(,)?) => {
        $(pub mod $module;)*

        /// How a stream's packets are recognised.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Matcher {
            $(
                #[doc = concat!("See [`", stringify!($module), "`].")]
                $name($module::$name),
            )*
        }

        /// A protocol. Its number is the one that the kernel programs know it by.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum ProtocolId {
            $(
                #[doc = concat!("See [`", stringify!($module), "`].")]
                $name,
            )*
        }

        impl ProtocolId {
            /// All protocols, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// What is fixed about it.
            pub const fn info(self) -> $crate::protocol::Info {
                match self {
                    $(Self::$name => <$module::$name as $crate::protocol::Protocol>::INFO,)*
                }
            }

            /// The protocols whose frames name their streams.
            pub fn listed() -> Vec<Self> {
                Self::ALL.iter().copied().filter(|protocol| protocol.info().is_listed).collect()
            }

            /// The name of its module here, and of its header in `crates/bpf/protocols`.
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

            /// What the kernel programs need.
            pub fn kernel(&self) -> $crate::protocol::KernelMatch {
                match self {
                    $(Self::$name(m) => $crate::protocol::Protocol::kernel(m),)*
                }
            }

            /// The streams in a frame that starts with its destination MAC, each once and as exactly as the frame names it, and
            /// the frame's header.
            ///
            /// # Errors
            /// [`FrameError::OtherProtocol`](crate::FrameError) where no protocol lists its streams; otherwise the first thing
            /// that is wrong.
            pub fn read(
                frame: &[u8],
            ) -> Result<(crate::Header, Vec<$crate::protocol::InFrame<Matcher>>), crate::FrameError> {
                Self::read_captured(frame, frame.len())
            }

            /// The same of a frame that had `len` bytes when it was sent, of which `frame` are the first ones.
            ///
            /// # Errors
            /// As those of [`read`](Self::read); [`FrameError::CutOff`](crate::FrameError) where a key does not lie within the
            /// bytes.
            pub fn read_captured(
                frame: &[u8],
                len: usize,
            ) -> Result<(crate::Header, Vec<$crate::protocol::InFrame<Matcher>>), crate::FrameError> {
                let cut = |e: $crate::FrameError| if frame.len() < len { e.cut_off() } else { e };
                let header = crate::Header::parse(frame).map_err(cut)?;
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

            /// Whether a stream that [`read`](Self::read) found is meant by this one.
            pub fn includes(&self, found: &Matcher) -> bool {
                match (self, found) {
                    $((Self::$name(m), Self::$name(found)) => $crate::protocol::Protocol::includes(m, found),)*
                    _ => false,
                }
            }

            /// A frame of this stream that can be sent; `None` where such streams are not sent.
            ///
            /// # Errors
            /// Why such a frame cannot be built, in a sentence.
            pub fn frame(
                &self,
                link: &$crate::protocol::FrameLink,
                packet: &$crate::protocol::Outgoing,
            ) -> Option<Result<Vec<u8>, String>> {
                match self {
                    $(Self::$name(m) => $crate::protocol::Protocol::frame(m, link, packet),)*
                }
            }

            /// A frame of this stream with this key, in which nothing else is real; `None` where a key does not suffice.
            ///
            /// # Errors
            /// Why such a frame cannot be built, in a sentence.
            pub fn rebuild(&self, link: &$crate::protocol::FrameLink, key: u32) -> Option<Result<Vec<u8>, String>> {
                match self {
                    $(Self::$name(m) => $crate::protocol::Protocol::rebuild(m, link, key),)*
                }
            }

            /// What a list shows of this stream; `frame` is the newest one of it.
            pub fn details(&self, frame: &[u8]) -> $crate::protocol::Details {
                match self {
                    $(Self::$name(m) => $crate::protocol::Protocol::details(m, frame),)*
                }
            }

            /// The stream as ovs-fields(7) matches it.
            pub fn flow(&self) -> String {
                match self {
                    $(Self::$name(m) => $crate::protocol::Protocol::flow(m),)*
                }
            }
        }
    };
}
pub(crate) use protocols;
