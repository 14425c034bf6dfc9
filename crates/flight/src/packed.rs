//! Encodes latpath's records of spikes: length-prefixed protobuf messages in one zstd frame with a checksum.
//!
//! Decoding bytes from a malicious source takes bounded memory: [`unpack`] limits the size of a frame, and messages
//! contain bytes, strings and numbers but no repeated fields, so that a decoded message takes little more memory than
//! its bytes. Sequences of numbers are columns of varints.

use prost::encoding::{decode_varint, encode_varint};
use prost::Message;
use std::io::Read;

/// Compression level of zstd.
const LEVEL: i32 = 3;
/// Base-2 logarithm of zstd's maximum window, bytes.
const WINDOW_LOG: u32 = 23;

/// Compresses messages into a frame.
pub fn pack(plain: &[u8]) -> Vec<u8> {
    let packed = zstd::bulk::Compressor::new(LEVEL).and_then(|mut compressor| {
        compressor.include_checksum(true)?;
        compressor.compress(plain)
    });
    packed.expect("compressing in memory fails only if there is no memory")
}

/// Decompresses the first frame of `bytes`, advances `bytes` past it, and verifies its checksum.
///
/// # Errors
/// The bytes are not a frame, the checksum is wrong, or the decompressed frame exceeds `most` bytes.
pub fn unpack(bytes: &mut &[u8], most: usize) -> Result<Vec<u8>, &'static str> {
    let damaged = |_| "it cannot be decompressed";
    // This bit alone is covered neither by zstd's checks nor by its checksum (RFC 8878, 3.1.1.1.1), but a change of it
    // must be detected too.
    if bytes.get(4).is_some_and(|descriptor| descriptor & 0x10 != 0) {
        return Err("it cannot be decompressed");
    }
    let mut plain = Vec::new();
    let mut frame = zstd::stream::read::Decoder::with_buffer(*bytes).map_err(damaged)?.single_frame();
    frame.window_log_max(WINDOW_LOG).map_err(damaged)?;
    frame.by_ref().take(most as u64 + 1).read_to_end(&mut plain).map_err(damaged)?;
    if plain.len() > most {
        return Err("it exceeds the maximum size");
    }
    *bytes = frame.finish();
    Ok(plain)
}

/// Appends a message with its length.
pub fn put(plain: &mut Vec<u8>, message: &impl Message) {
    plain.extend(message.encode_length_delimited_to_vec());
}

/// Iterates over the messages appended by [`put`]; ends after an error.
pub fn messages<M: Message + Default>(mut plain: &[u8]) -> impl Iterator<Item = Result<M, &'static str>> + '_ {
    std::iter::from_fn(move || {
        (!plain.is_empty()).then(|| {
            let message = M::decode_length_delimited(&mut plain);
            message.map_err(|_| {
                plain = &[];
                "a part of it is not a message of latpath"
            })
        })
    })
}

/// Appends a number to a column: 1 to 10 bytes.
pub fn put_number(column: &mut Vec<u8>, number: u64) {
    encode_varint(number, column);
}

/// Appends a signed number to a column; small absolute values take few bytes.
pub fn put_signed(column: &mut Vec<u8>, number: i64) {
    encode_varint((number << 1 ^ number >> 63) as u64, column);
}

/// Reads the next number from a column.
///
/// # Errors
/// The column has ended, or the number exceeds its type.
pub fn number<T: TryFrom<u64>>(column: &mut &[u8]) -> Result<T, &'static str> {
    let number = decode_varint(column).map_err(|_| "a column ends too early")?;
    T::try_from(number).map_err(|_| "a number is too large")
}

/// Reads the next number written by [`put_signed`].
///
/// # Errors
/// As for [`number`].
pub fn signed(column: &mut &[u8]) -> Result<i64, &'static str> {
    let number: u64 = number(column)?;
    Ok((number >> 1) as i64 ^ -((number & 1) as i64))
}
