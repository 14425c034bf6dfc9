//! The bytes of one column chunk: read from the file once, then verified and decoded in memory.

use crate::{sums, Kind, Values};
use bytes::{buf::Reader, Buf, Bytes};
use parquet::{
    basic::Compression,
    column::{
        page::{Page, PageMetadata, PageReader},
        reader::ColumnReaderImpl,
    },
    data_type::{BoolType, DataType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        metadata::{ColumnChunkMetaData, ParquetMetaData},
        reader::{ChunkReader, Length},
        serialized_reader::SerializedPageReader,
    },
};
use std::{
    cell::RefCell,
    fs::File,
    io::{self, Cursor},
    os::unix::fs::FileExt,
    sync::Arc,
};
use zstd::{bulk::Decompressor, zstd_safe::get_frame_content_size};

/// Maximum size of a column chunk, and of an uncompressed page, bytes. A row group of 65,536 rows needs a tenth of it.
const MAX_SIZE: u64 = 16 << 20;

/// Values per decoding call: Parquet's reader writes each value twice, so a batch should fit into the L1 cache.
const DECODE_BATCH: usize = 1024;

/// A column chunk. To Parquet's reader it looks like a file of which only these bytes exist.
pub(crate) struct Chunk {
    /// Offset of the chunk in the file.
    start: u64,
    bytes: Bytes,
}

impl Chunk {
    /// Reads the chunk, and verifies its checksum.
    pub fn read(file: &File, metadata: &ParquetMetaData, group: usize, index: usize) -> Result<Self, String> {
        let (start, length) = metadata.row_group(group).column(index).byte_range();
        if length > MAX_SIZE {
            return Err(format!("a column has {length} bytes; latpath reads at most {MAX_SIZE}"));
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, start).map_err(|e| e.to_string())?;
        if !sums::is_column_whole(metadata, group, index, &bytes) {
            return Err(sums::WRONG.into());
        }
        Ok(Self { start, bytes: bytes.into() })
    }

    /// Appends the column's values for `rows` rows to `to`. For optional columns, also appends one level per row: 1 if
    /// the row has a value, 0 if not.
    pub fn decode(
        self,
        column: &ColumnChunkMetaData,
        rows: usize,
        kind: Kind,
        to: &mut Values,
    ) -> Result<(), ParquetError> {
        let Values { i32, i64, bool, levels } = to;
        match kind {
            Kind::U16 | Kind::U32 => self.decode_as::<Int32Type>(column, rows, i32, levels),
            Kind::U64 | Kind::I64 => self.decode_as::<Int64Type>(column, rows, i64, levels),
            Kind::Bool => self.decode_as::<BoolType>(column, rows, bool, levels),
        }
    }

    fn decode_as<T: DataType>(
        self,
        column: &ColumnChunkMetaData,
        rows: usize,
        values: &mut Vec<T::T>,
        levels: &mut Vec<i16>,
    ) -> Result<(), ParquetError> {
        let descriptor = column.column_descr_ptr();
        let (name, found, expected) = (descriptor.name(), descriptor.physical_type(), T::get_physical_type());
        if found != expected || descriptor.max_rep_level() != 0 || descriptor.max_def_level() > 1 {
            return Err(ParquetError::General(format!("column {name:?} is {found}, not {expected}")));
        }
        let may_lack = descriptor.max_def_level() == 1;
        let pages = Pages::of(self, column, rows)?;
        let mut reader: ColumnReaderImpl<T> = ColumnReaderImpl::new(descriptor.clone(), Box::new(pages));
        values.reserve(rows);
        let mut read = 0;
        while read < rows {
            let most = DECODE_BATCH.min(rows - read);
            match reader.read_records(most, may_lack.then_some(&mut *levels), None, values)?.0 {
                0 => break,
                more => read += more,
            }
        }
        if read != rows {
            return Err(ParquetError::General(format!("column {name:?} ends after {read} of {rows} rows")));
        }
        Ok(())
    }

    fn place(&self, at: u64) -> Result<usize, ParquetError> {
        let place = at.checked_sub(self.start).and_then(|place| usize::try_from(place).ok());
        place
            .filter(|place| *place <= self.bytes.len())
            .ok_or_else(|| ParquetError::EOF(format!("byte {at} is not in the column's chunk")))
    }
}

impl Length for Chunk {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for Chunk {
    type T = Reader<Bytes>;

    /// Returns a page header and the bytes that follow. Parquet's reader allocates as much memory as the header claims,
    /// so excessive claims are rejected here.
    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let header = self.bytes.slice(self.place(start)?..);
        if claimed_size(&header).is_none_or(|size| size > MAX_SIZE) {
            return Err(too_large().into());
        }
        Ok(header.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let start = self.place(start)?;
        match start.checked_add(length).filter(|end| *end <= self.bytes.len()) {
            Some(end) => Ok(self.bytes.slice(start..end)),
            None => Err(ParquetError::EOF(format!("a page of {length} bytes exceeds its column chunk"))),
        }
    }
}

/// The pages of a chunk. They are decompressed here, because Parquet's reader would create a zstd context per chunk,
/// which takes longer than the decompression.
struct Pages {
    pages: SerializedPageReader<Chunk>,
    is_packed: bool,
}

impl Pages {
    fn of(chunk: Chunk, column: &ColumnChunkMetaData, rows: usize) -> Result<Self, ParquetError> {
        let chunk = Arc::new(chunk);
        let is_packed = matches!(column.compression(), Compression::ZSTD(_));
        let pages = match is_packed {
            true => {
                let as_it_is = column.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
                SerializedPageReader::new(chunk, &as_it_is, rows, None)?
            }
            false => SerializedPageReader::new(chunk, column, rows, None)?,
        };
        Ok(Self { pages, is_packed })
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let mut page = self.pages.get_next_page()?;
        match &mut page {
            Some(Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. }) if self.is_packed => {
                *buf = unpack(buf, 0)?;
            }
            Some(Page::DataPageV2 { buf, is_compressed, def_levels_byte_len, rep_levels_byte_len, .. })
                if self.is_packed && *is_compressed =>
            {
                *buf = unpack(buf, *def_levels_byte_len as usize + *rep_levels_byte_len as usize)?;
            }
            _ => {}
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.pages.skip_next_page()
    }
}

impl Iterator for Pages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// Decompresses a page; its first `plain` bytes are not compressed.
fn unpack(page: &Bytes, plain: usize) -> Result<Bytes, ParquetError> {
    thread_local! {
        static UNPACKER: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
    }
    let (plain, packed) =
        page.split_at_checked(plain).ok_or_else(|| ParquetError::EOF("a page ends in its levels".into()))?;
    let size = get_frame_content_size(packed).ok().flatten().unwrap_or(MAX_SIZE);
    if size > MAX_SIZE {
        return Err(too_large().into());
    }
    let mut bytes = Vec::with_capacity(plain.len() + size as usize);
    bytes.extend_from_slice(plain);
    if !packed.is_empty() {
        let mut to = Cursor::new(&mut bytes);
        to.set_position(plain.len() as u64);
        UNPACKER.with_borrow_mut(|unpacker| {
            let unpacker = match unpacker {
                Some(unpacker) => unpacker,
                none => none.insert(Decompressor::new()?),
            };
            unpacker.decompress_to_buffer(packed, &mut to)
        })?;
    }
    Ok(bytes.into())
}

fn too_large() -> io::Error {
    let why = format!("a page of more than {MAX_SIZE} bytes or of unknown size");
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Uncompressed size of a page, from its header in Thrift's compact protocol: it is the second field, after the page's
/// type. Each of the two fields consists of a byte for the field header and a zigzag varint.
fn claimed_size(header: &[u8]) -> Option<u64> {
    const NEXT_I32: u8 = 0x15;
    let kind = header.strip_prefix(&[NEXT_I32])?;
    let digits = kind.get(1..)?.strip_prefix(&[NEXT_I32])?;
    let last = digits.iter().take(5).position(|byte| *byte < 0x80)?;
    let zigzag = digits[..=last].iter().rev().fold(0, |all: u64, byte| all << 7 | u64::from(byte & 0x7f));
    Some(zigzag >> 1)
}
