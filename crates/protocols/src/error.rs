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
    /// noASDU and the ASDUs that are there differ.
    #[error("noASDU says {said}, {found} ASDUs are there")]
    AsduCount { said: u32, found: u32 },
    /// Bytes are left over inside an element.
    #[error("{left} bytes too many at the end of {what}")]
    LeftOver {
        what: &'static str,
        /// Bytes left over.
        left: usize,
    },
}

impl FrameError {
    /// True for a frame of the right ethertype that could not be read; false for one of another protocol.
    pub fn is_malformed(&self) -> bool {
        !matches!(self, Self::OtherProtocol { .. })
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
