//! Numbers and blocks as latpath's files and answers have them: numbers of variable length (LEB128), signed ones folded (zigzag)
//! so that small ones are short whichever their sign, blocks behind their length.

/// Appends a number: 1 to 10 bytes.
pub fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Appends a signed number: 1 to 10 bytes.
pub fn put_signed(bytes: &mut Vec<u8>, number: i64) {
    put(bytes, (number << 1 ^ number >> 63) as u64);
}

/// Appends a block, behind its length.
pub fn put_block(bytes: &mut Vec<u8>, block: &[u8]) {
    put(bytes, block.len() as u64);
    bytes.extend_from_slice(block);
}

const SHORT: &str = "it ends too early";

/// What has not been read yet. Whatever the bytes are, reading them takes no memory; errors say what is wrong with them.
#[derive(Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// The next byte.
    ///
    /// # Errors
    /// At the end.
    pub fn byte(&mut self) -> Result<u8, &'static str> {
        let (byte, rest) = self.0.split_first().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*byte)
    }

    /// The next bytes, so many.
    ///
    /// # Errors
    /// Where there are fewer.
    pub fn take(&mut self, len: u64) -> Result<&'a [u8], &'static str> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let (taken, rest) = self.0.split_at_checked(len).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    /// What [`put`] wrote.
    ///
    /// # Errors
    /// Where it is cut off, or more than 64 bits.
    pub fn number(&mut self) -> Result<u64, &'static str> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number is too long")
    }

    /// What [`put_signed`] wrote.
    ///
    /// # Errors
    /// As [`Self::number`].
    pub fn signed(&mut self) -> Result<i64, &'static str> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// What [`put_block`] wrote.
    ///
    /// # Errors
    /// Where it is cut off.
    pub fn block(&mut self) -> Result<&'a [u8], &'static str> {
        let len = self.number()?;
        self.take(len)
    }
}
