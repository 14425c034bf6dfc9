//! Checksums of a part, stored in its metadata, so that a flipped bit causes an error and never changes a figure.
//!
//! There is one XXH64 per column of each row group, and one for the footer, which contains everything else. All are
//! written as 16 hexadecimal digits under one key, the footer's first. The footer's checksum is computed with zeros in
//! its place.

use parquet::file::metadata::{KeyValue, ParquetMetaData, RowGroupMetaData};
use std::{fs::File, hash::Hasher, io, os::unix::fs::FileExt};
use twox_hash::XxHash64;

const KEY: &str = "latpath_xxh64";
const DIGITS: usize = 16;
/// Length of a Parquet file's trailer, bytes: the footer's length in 4 bytes, and `PAR1`.
const TAIL: u64 = 8;
/// Error message for a part with a wrong checksum.
pub(crate) const WRONG: &str = "its checksum is wrong";

/// The checksums of the written columns as a metadata entry, with zeros in place of the footer's.
pub(crate) fn of_columns(file: &File, groups: &[RowGroupMetaData]) -> io::Result<KeyValue> {
    let mut text = "0".repeat(DIGITS);
    for column in groups.iter().flat_map(RowGroupMetaData::columns) {
        text.push_str(&digits(of_bytes(file, column.byte_range())?));
    }
    Ok(KeyValue::new(KEY.into(), text))
}

/// Computes the footer's checksum and writes it into the footer.
pub(crate) fn seal(file: &File) -> io::Result<()> {
    match read_footer(file)? {
        Some(footer) => file.write_all_at(digits(footer.sum).as_bytes(), footer.place),
        None => Err(io::Error::other("the part's footer lacks its checksums")),
    }
}

/// Whether the footer matches its checksum. Parts of earlier versions have no checksums and are accepted.
pub(crate) fn is_footer_whole(file: &File) -> io::Result<bool> {
    Ok(read_footer(file)?.is_none_or(|footer| footer.found == digits(footer.sum).as_bytes()))
}

/// Whether the bytes of a column match the checksum in the metadata.
pub(crate) fn is_column_whole(metadata: &ParquetMetaData, group: usize, column: usize, bytes: &[u8]) -> bool {
    let notes = metadata.file_metadata().key_value_metadata();
    let Some(sums) = notes.into_iter().flatten().find(|note| note.key == KEY) else { return true };
    let sums = sums.value.as_deref().unwrap_or_default().as_bytes();
    let before: usize = metadata.row_groups()[..group].iter().map(RowGroupMetaData::num_columns).sum();
    sums.chunks(DIGITS).nth(1 + before + column) == Some(sum_of(bytes).as_bytes())
}

struct Footer {
    sum: u64,
    /// The stored checksum; `place` is its offset in the file.
    found: Vec<u8>,
    place: u64,
}

/// Reads the footer; `None` if it has no checksum.
fn read_footer(file: &File) -> io::Result<Option<Footer>> {
    let size = file.metadata()?.len();
    let mut tail = [0; TAIL as usize];
    // Files that are too short or have a wrong footer length are rejected by the Parquet reader.
    let Some(end) = size.checked_sub(TAIL) else { return Ok(None) };
    file.read_exact_at(&mut tail, end)?;
    let length = u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
    let Some(start) = end.checked_sub(length.into()) else { return Ok(None) };
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, start)?;
    // The last occurrence is the key: any column name that contains the same bytes precedes it. In Thrift's compact
    // protocol, a byte for the type follows, then the value's length as a varint.
    let Some(key) = bytes.windows(KEY.len()).rposition(|w| w == KEY.as_bytes()) else { return Ok(None) };
    let length_at = key + KEY.len() + 1;
    let length_bytes = bytes.iter().skip(length_at).take_while(|byte| **byte >= 0x80).count() + 1;
    let at = length_at + length_bytes;
    let Some(value) = bytes.get_mut(at..at + DIGITS) else { return Ok(None) };
    let found = value.to_vec();
    value.fill(b'0');
    Ok(Some(Footer { sum: XxHash64::oneshot(0, &bytes), found, place: start + at as u64 }))
}

fn of_bytes(file: &File, (mut at, length): (u64, u64)) -> io::Result<u64> {
    let (mut hasher, mut left, mut piece) = (XxHash64::with_seed(0), length, vec![0; 1 << 16]);
    while left > 0 {
        let n = left.min(piece.len() as u64) as usize;
        file.read_exact_at(&mut piece[..n], at)?;
        hasher.write(&piece[..n]);
        (at, left) = (at + n as u64, left - n as u64);
    }
    Ok(hasher.finish())
}

fn digits(sum: u64) -> String {
    format!("{sum:016x}")
}

/// The XXH64 of `bytes` as 16 hexadecimal digits.
pub fn sum_of(bytes: &[u8]) -> String {
    digits(XxHash64::oneshot(0, bytes))
}
