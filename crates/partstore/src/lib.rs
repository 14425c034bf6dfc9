//! Crash-safe storage of rows. A Parquet file cannot be read before its footer is written, at its end; so rows go into parts, each
//! a whole file that is closed after a second or two.
//!
//! A part is written under a hidden name, brought to the disk, and renamed ([`PartWriter`]). Its name says which numbers it holds
//! ([`Span`]). Small parts are merged into one whose name covers theirs, and removed after that ([`SmallParts`], [`merge`]): at no
//! instant is a row lost, and a reader passes over parts that another one covers ([`open`]). So whenever the writer dies, what was
//! published can be read, each row once.
//!
//! Each part has sums over its bytes, which are checked where it is read (`sums.rs`).
//!
//! A table is flat: integers and booleans, optional or not ([`Column`]). Rows are gathered column by column in a [`Group`].

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

/// Rows of a full row group: enough that a column's chunk compresses and reads well, few enough to hold two or three in memory.
pub const GROUP_ROWS: usize = 16_384;
