//! The protocol's messages by hand, for seeds: tags never change their meaning.

fn varint(mut n: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while n >= 0x80 {
        bytes.push(n as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
    bytes
}

/// A signed number.
pub fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

/// A field with a number.
pub fn number(tag: u64, n: u64) -> Vec<u8> {
    [varint(tag << 3), varint(n)].concat()
}

/// A field with bytes, text or a message.
pub fn bytes(tag: u64, of: &[u8]) -> Vec<u8> {
    [varint(tag << 3 | 2), varint(of.len() as u64), of.to_vec()].concat()
}

/// A field with numbers.
pub fn list(tag: u64, of: &[u64]) -> Vec<u8> {
    bytes(tag, &of.iter().flat_map(|n| varint(*n)).collect::<Vec<_>>())
}

/// A message as targets take it: its length as a step above 4, and of a long one what exceeds 250.
pub fn frame(kind: u64, content: &[Vec<u8>]) -> Vec<u8> {
    let message = bytes(kind, &content.concat());
    match message.len() {
        len @ ..245 => [vec![len as u8 + 5], message].concat(),
        len => {
            // Zeros to the end of the frame would be no message: the rest is a field that nobody knows, of 3 bytes or more.
            let exact = (len - 245) % 8 == 0;
            let more = (len - 245 + if exact { 0 } else { 3 }).div_ceil(8);
            let mut padded = message;
            if !exact {
                padded.extend(bytes(31, &vec![0; 245 + more * 8 - len - 3]));
            }
            [vec![250, more as u8], padded].concat()
        }
    }
}
