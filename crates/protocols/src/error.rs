//! Why bytes are no frame of a protocol, and why a frame cannot be built.

/// Why bytes are no frame of a protocol. Positions count from the first byte of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another protocol: nothing is wrong with the frame.
    #[error("another protocol: ethertype {ethertype:#06x}")]
    OtherProtocol {
        /// The ethertype after any 802.1Q tags.
        ethertype: u16,
    },
    /// More than two 802.1Q tags.
    #[error("more than two 802.1Q tags")]
    TooManyTags,
    /// The bytes end, or the element around ends, inside an element.
    #[error("{what} at byte {at} needs {needed} bytes, {left} are left")]
    Truncated {
        what: &'static str,
        at: usize,
        /// Bytes that it needs.
        needed: usize,
        /// Bytes that are left for it.
        left: usize,
    },
    /// A BER length in a form that these protocols do not use: indefinite, or of more than two bytes.
    #[error("{what}: BER length form {form:#04x} at byte {at} (short, 81 and 82 are known)")]
    LengthForm {
        what: &'static str,
        /// Where the length stands.
        at: usize,
        /// Its first byte.
        form: u8,
    },
    /// An element has a length that its type does not allow.
    #[error("{what} at byte {at} has {found} bytes")]
    BadLength {
        what: &'static str,
        /// Where its value starts.
        at: usize,
        found: usize,
    },
    /// Another element than the one that must stand here.
    #[error("tag {found:#04x} at byte {at}, where {expected} must stand")]
    BadTag {
        /// What must stand here.
        expected: &'static str,
        /// Where the tag stands.
        at: usize,
        found: u8,
    },
    /// A version of PTP that is not followed.
    #[error("PTP version {found} at byte {at}, where 2 must stand")]
    BadVersion { at: usize, found: u8 },
    /// A frame of Sampled Values without an ASDU.
    #[error("no ASDU is in it")]
    NoAsdu,
    /// An element that names the packet is missing.
    #[error("{what} is missing")]
    Missing { what: &'static str },
    /// The frame is longer than what was captured of it, and what is missing is needed.
    #[error("the capture ends before {what}, at byte {at}: capture more of each frame (tcpdump -s 0)")]
    CutOff {
        what: &'static str,
        /// The first byte that is missing.
        at: usize,
    },
}

impl FrameError {
    /// True for a frame of the right ethertype that could not be read; false for one of another protocol.
    pub fn is_malformed(&self) -> bool {
        !matches!(self, Self::OtherProtocol { .. })
    }

    /// The same for a frame of which a capture kept the first bytes alone: what the bytes lack was cut off.
    pub(crate) fn cut_off(self) -> Self {
        match self {
            Self::Truncated { what, at, .. } => Self::CutOff { what, at },
            error => error,
        }
    }

    /// What frames with the same fault have in common: the fault, and the element that has it.
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

/// Frames that could not be read, counted by reason.
#[derive(Clone, Debug, Default)]
pub struct UnreadFrames {
    /// The first error of each kind, with the number of frames.
    reasons: Vec<(FrameError, u64)>,
}

impl UnreadFrames {
    /// Counts a frame; one of another protocol does not count.
    pub fn count(&mut self, error: FrameError) {
        if !error.is_malformed() {
            return;
        }
        // As many kinds as there are elements: a few dozen.
        match self.reasons.iter_mut().find(|(known, _)| known.kind() == error.kind()) {
            Some((_, frames)) => *frames += 1,
            None => self.reasons.push((error, 1)),
        }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.reasons.iter().map(|(_, frames)| frames).sum()
    }

    /// The reasons, the most common first.
    pub fn reasons(&self) -> Vec<(FrameError, u64)> {
        let mut reasons = self.reasons.clone();
        reasons.sort_by_key(|(_, frames)| std::cmp::Reverse(*frames));
        reasons
    }

    /// Adds those of another place.
    pub fn add(&mut self, other: &Self) {
        for (error, frames) in &other.reasons {
            match self.reasons.iter_mut().find(|(known, _)| known.kind() == error.kind()) {
                Some((_, known)) => *known += frames,
                None => self.reasons.push((*error, *frames)),
            }
        }
    }
}

/// The most common reason with its count, in a sentence; nothing where no frame was unread.
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

/// Why a frame cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A name is empty or too long.
    #[error("{what} {name:?}: has {len} bytes, 1 to 129 are allowed", len = name.len())]
    Name { what: &'static str, name: String },
    /// There must be 1 to 65535 ASDUs.
    #[error("{0} ASDUs in a frame: 1 to 65535 are allowed")]
    AsduCount(usize),
    /// The length field has 16 bits.
    #[error("the frame would be {0} bytes long, more than its length field can say")]
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
