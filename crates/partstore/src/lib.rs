//! Crash-safe storage of rows. A Parquet file is unreadable until its footer is written at the end; so rows are stored
//! in parts, each a complete file that is closed after a second or two.
//!
//! A part is written under a hidden name, flushed to disk, and renamed ([`PartWriter`]). Its name contains its range of
//! numbers ([`Span`]). Small parts are merged into one whose name covers theirs, and then removed ([`SmallParts`],
//! [`merge`]): no row is lost at any instant, and readers skip parts that another one covers ([`open`]). Whenever the
//! writer dies, all published rows can be read, each once.
//!
//! Each part has checksums of its bytes, which readers verify (`sums.rs`).
//!
//! A table is flat: integers and booleans, optional or required ([`Column`]). Rows are collected column by column in a
//! [`Group`].
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

mod chunk;
mod column;
mod error;
mod group;
mod merge;
mod names;
mod open;
mod reader;
mod sums;
mod writer;

pub use column::{Column, Encoding, Kind};
pub use error::StoreError;
pub use group::{Group, Values};
pub use latpath_linux::{open_file, Directory};
pub use merge::{merge, SmallParts};
pub use names::{Names, Span};
pub use open::{gaps, open, PartFile};
pub use reader::PartReader;
pub use sums::sum_of;
pub use writer::{replace_file, sync_directory, PartWriter};

/// Rows per full row group: large enough that a column chunk compresses and reads well, small enough to keep two or
/// three groups in memory.
pub const GROUP_ROWS: usize = 16_384;
