//! Errors of parsing and building frames.

/// Reason for which a frame could not be parsed. Positions (`at`) count from the first byte of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame belongs to another protocol, so it is not malformed.
    #[error("another protocol: ethertype {ethertype:#06x}")]
    OtherProtocol {
        /// The ethertype after any 802.1Q tags.
        ethertype: u16,
    },
    /// More than two 802.1Q tags.
    #[error("more than two 802.1Q tags")]
    TooManyTags,
    /// The frame, or the enclosing element, ends inside an element.
    #[error("{what} at byte {at} needs {needed} bytes, {left} are left")]
    Truncated {
        /// The element that is incomplete.
        what: &'static str,
        /// Offset of the element.
        at: usize,
        /// Number of bytes that the element needs.
        needed: usize,
        /// Number of bytes that remain for it.
        left: usize,
    },
    /// A BER length in a form that these protocols do not use: indefinite, or longer than two bytes.
    #[error("{what}: BER length form {form:#04x} at byte {at} (short, 81 and 82 are known)")]
    LengthForm {
        /// The element with this length.
        what: &'static str,
        /// Offset of the length.
        at: usize,
        /// First byte of the length.
        form: u8,
    },
    /// The length of an element is not allowed for its type.
    #[error("{what} at byte {at} has {found} bytes")]
    BadLength {
        /// The element.
        what: &'static str,
        /// Offset of its value.
        at: usize,
        /// Its length, bytes.
        found: usize,
    },
    /// An unexpected element.
    #[error("tag {found:#04x} at byte {at}; expected {expected}")]
    BadTag {
        /// The element that is expected there.
        expected: &'static str,
        /// Offset of the tag.
        at: usize,
        /// The tag found.
        found: u8,
    },
    /// An unsupported version of PTP.
    #[error("PTP version {found} at byte {at}; only version 2 is supported")]
    BadVersion {
        /// Offset of the version.
        at: usize,
        /// The version found.
        found: u8,
    },
    /// A Sampled Values frame without an ASDU.
    #[error("the frame has no ASDU")]
    NoAsdu,
    /// An element that identifies the packet is missing.
    #[error("{what} is missing")]
    Missing {
        /// The element.
        what: &'static str,
    },
    /// The capture truncated the frame before an element that is needed.
    #[error("the capture ends before {what}, at byte {at}: capture more of each frame (tcpdump -s 0)")]
    CutOff {
        /// The first element that is incomplete.
        what: &'static str,
        /// Offset of the first missing byte.
        at: usize,
    },
}

impl FrameError {
    /// True if the frame has the right ethertype and could not be parsed; false if it belongs to another protocol.
    pub fn is_malformed(&self) -> bool {
        !matches!(self, Self::OtherProtocol { .. })
    }

    /// Converts the error for a truncated capture: missing bytes count as cut off by the capture.
    pub(crate) fn cut_off(self) -> Self {
        match self {
            Self::Truncated { what, at, .. } => Self::CutOff { what, at },
            error => error,
        }
    }

    /// Identity of a fault for counting: its kind, and the element in which it occurred.
    fn kind(&self) -> (std::mem::Discriminant<Self>, &'static str) {
        let what = match self {
            Self::Truncated { what, .. }
            | Self::LengthForm { what, .. }
            | Self::BadLength { what, .. }
            | Self::BadTag { expected: what, .. }
            | Self::Missing { what }
            | Self::CutOff { what, .. } => what,
            Self::OtherProtocol { .. } | Self::TooManyTags | Self::BadVersion { .. } | Self::NoAsdu => "",
        };
        (std::mem::discriminant(self), what)
    }
}

/// Frames that could not be parsed, counted by reason.
#[derive(Clone, Debug, Default)]
pub struct UnreadFrames {
    /// The first error of each kind, and the number of frames with that kind.
    reasons: Vec<(FrameError, u64)>,
}

impl UnreadFrames {
    /// Counts a frame. Frames of other protocols are not counted.
    pub fn count(&mut self, error: FrameError) {
        if !error.is_malformed() {
            return;
        }
        // At most a few dozen kinds: one per element and fault.
        match self.reasons.iter_mut().find(|(known, _)| known.kind() == error.kind()) {
            Some((_, frames)) => *frames += 1,
            None => self.reasons.push((error, 1)),
        }
    }

    /// Number of unreadable frames.
    pub fn total(&self) -> u64 {
        self.reasons.iter().map(|(_, frames)| frames).sum()
    }

    /// The reasons, most common first.
    pub fn reasons(&self) -> Vec<(FrameError, u64)> {
        let mut reasons = self.reasons.clone();
        reasons.sort_by_key(|(_, frames)| std::cmp::Reverse(*frames));
        reasons
    }

    /// Adds the counts of another instance.
    pub fn add(&mut self, other: &Self) {
        for (error, frames) in &other.reasons {
            match self.reasons.iter_mut().find(|(known, _)| known.kind() == error.kind()) {
                Some((_, known)) => *known += frames,
                None => self.reasons.push((*error, *frames)),
            }
        }
    }
}

/// The most common reason with its count, as a sentence; empty if there are no unreadable frames.
impl std::fmt::Display for UnreadFrames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let total = self.total();
        match self.reasons().first() {
            Some((error, frames)) if *frames == total => write!(f, "{error}"),
            Some((error, frames)) => write!(f, "{frames} of them: {error}"),
            None => Ok(()),
        }
    }
}

/// Reason for which a frame cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A name is empty or too long.
    #[error("{what} {name:?}: has {len} bytes, 1 to 129 are allowed", len = name.len())]
    Name {
        /// The field.
        what: &'static str,
        /// Its value.
        name: String,
    },
    /// The number of ASDUs is not 1 to 65535.
    #[error("{0} ASDUs in a frame: 1 to 65535 are allowed")]
    AsduCount(usize),
    /// The frame does not fit into its 16-bit length field.
    #[error("the frame would have {0} bytes, more than its length field can hold")]
    TooLong(usize),
}

impl BuildError {
    pub(crate) fn check_name(what: &'static str, name: &[u8], most: usize) -> Result<(), Self> {
        match name.len() {
            len if (1..=most).contains(&len) => Ok(()),
            _ => Err(Self::Name { what, name: String::from_utf8_lossy(name).into_owned() }),
        }
    }
}
