//! Hand-written protobuf, for tests that send messages that no correct implementation of the agent's protocol would
//! send. The protocol's tags never change their meaning.

fn varint(mut n: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while n >= 0x80 {
        bytes.push(n as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
    bytes
}

/// Zigzag encoding of a signed number.
pub fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

/// A field with one number.
pub fn number(tag: u64, n: u64) -> Vec<u8> {
    [varint(tag << 3), varint(n)].concat()
}

/// A length-delimited field: bytes, a string or an embedded message.
pub fn bytes(tag: u64, of: &[u8]) -> Vec<u8> {
    [varint(tag << 3 | 2), varint(of.len() as u64), of.to_vec()].concat()
}

/// A field with packed varints.
pub fn list(tag: u64, of: &[u64]) -> Vec<u8> {
    bytes(tag, &of.iter().flat_map(|n| varint(*n)).collect::<Vec<_>>())
}

/// The tag of a message's first field, and the bytes after the field's key; `None` if they cannot be parsed.
pub fn tag(mut message: &[u8]) -> Option<(u64, &[u8])> {
    let mut key = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        message = rest;
        key |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((key >> 3, message));
        }
    }
    None
}
