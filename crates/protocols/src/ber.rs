//! The subset of BER that Sampled Values and GOOSE use: one-byte tags, definite lengths up to 65535.

use crate::FrameError;

/// Reads elements of `frame[pos..end]`; positions are relative to the whole frame. If the capture truncated the frame,
/// `end` is beyond the captured bytes: lengths are checked against the frame as sent, and only reading a missing byte
/// fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    frame: &'a [u8],
    pos: usize,
    end: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Element<'a> {
    pub tag: u8,
    pub tag_at: usize,
    /// Offset of the value in the frame.
    pub at: usize,
    pub len: usize,
    /// The captured part of the value.
    captured: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader of `frame[pos..end]`.
    pub fn new(frame: &'a [u8], pos: usize, end: usize) -> Self {
        Self { frame, pos: pos.min(end), end }
    }

    pub fn left(&self) -> usize {
        self.end - self.pos
    }

    pub fn inside(&self, e: &Element<'a>) -> Reader<'a> {
        Reader { frame: self.frame, pos: e.at, end: e.at + e.len }
    }

    fn byte(&mut self, what: &'static str) -> Result<u8, FrameError> {
        let at = self.pos;
        if at == self.end {
            return Err(FrameError::Truncated { what, at, needed: 1, left: 0 });
        }
        self.pos += 1;
        self.frame.get(at).copied().ok_or(FrameError::CutOff { what, at })
    }

    /// Reads the next element, whatever its tag; `what` names it in errors.
    pub fn any(&mut self, what: &'static str) -> Result<Element<'a>, FrameError> {
        let tag_at = self.pos;
        let tag = self.byte(what)?;
        let length_at = self.pos;
        let len = match self.byte(what)? {
            short @ 0..=0x7f => usize::from(short),
            0x81 => usize::from(self.byte(what)?),
            0x82 => usize::from(self.byte(what)?) << 8 | usize::from(self.byte(what)?),
            form => return Err(FrameError::LengthForm { what, at: length_at, form }),
        };
        let (at, left) = (self.pos, self.left());
        if len > left {
            return Err(FrameError::Truncated { what, at, needed: len, left });
        }
        self.pos += len;
        let captured = self.frame.get(at..).unwrap_or(&[]);
        Ok(Element { tag, tag_at, at, len, captured: &captured[..captured.len().min(len)] })
    }

    /// Reads the next element, which must have `tag`.
    pub fn expect(&mut self, tag: u8, what: &'static str) -> Result<Element<'a>, FrameError> {
        let e = self.any(what)?;
        if e.tag != tag {
            return Err(FrameError::BadTag { expected: what, at: e.tag_at, found: e.tag });
        }
        Ok(e)
    }
}

impl<'a> Element<'a> {
    /// Returns the value.
    ///
    /// # Errors
    /// The capture ends before the value does.
    pub fn value(&self, what: &'static str) -> Result<&'a [u8], FrameError> {
        let cut = FrameError::CutOff { what, at: self.at + self.captured.len() };
        (self.captured.len() == self.len).then_some(self.captured).ok_or(cut)
    }

    /// Returns the value, which must have exactly N bytes.
    pub fn fixed<const N: usize>(&self, what: &'static str) -> Result<[u8; N], FrameError> {
        if self.len != N {
            return Err(FrameError::BadLength { what, at: self.at, found: self.len });
        }
        let value = self.value(what)?;
        value.first_chunk().copied().ok_or(FrameError::BadLength { what, at: self.at, found: value.len() })
    }

    /// Returns the low 32 bits of an INTEGER of 1 to `max` bytes.
    pub fn unsigned(&self, max: usize, what: &'static str) -> Result<u32, FrameError> {
        if !(1..=max).contains(&self.len) {
            return Err(FrameError::BadLength { what, at: self.at, found: self.len });
        }
        Ok(self.value(what)?.iter().fold(0, |n, b| n << 8 | u32::from(*b)))
    }
}

/// Appends an element, with its length in the shortest form. The caller ensures that the value has at most 65535 bytes.
pub(crate) fn put(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag);
    match value.len() {
        len @ 0..=0x7f => out.push(len as u8),
        len @ 0x80..=0xff => out.extend([0x81, len as u8]),
        len => {
            out.push(0x82);
            out.extend((len as u16).to_be_bytes());
        }
    }
    out.extend_from_slice(value);
}

/// Appends an INTEGER in its shortest form. INTEGERs are signed: a number with its top bit set gets a leading zero
/// byte.
pub(crate) fn put_unsigned(out: &mut Vec<u8>, tag: u8, number: u32) {
    let bytes = u64::from(number).to_be_bytes();
    let first = (0..7).find(|i| bytes[*i] != 0 || bytes[i + 1] & 0x80 != 0).unwrap_or(7);
    put(out, tag, &bytes[first..]);
}
