//! Runs: one recording on disk. docs/run-format.md describes every file and column.
//!
//! ```text
//! RUN/manifest.json                      streams, machines, options and counts; replaced whole, never half
//! RUN/clocks.jsonl                       every sample of every clock, a line each
//! RUN/marks.jsonl                        what somebody noted about moments of it, a line each
//! RUN/vms.json                           the host's virtual machines when it began
//! RUN/settings.json                      the machines' settings when it began and when it ended
//! RUN/journeys/part-00000000.parquet     one second of journeys, or
//! RUN/journeys/part-00000000-00000059.parquet    those parts merged
//! RUN/spikes/000001.spike                what all machines did around late packets
//! ```
//!
//! A part appears under its name only when it is whole and on the disk, so that a run opens after a crash at any
//! instant.

mod deficiency;
pub mod error;
pub mod facts;
pub mod manifest;

mod clocks;
mod columns;
mod encoder;
mod files;
mod lines;
mod marks;
mod merger;
mod part_reader;
mod reader;
mod replaced;
mod rows;
mod scan;
mod seal;
mod select;
mod settings;
mod span;
mod spikes;
mod vms;
mod writer;

pub use deficiency::{Deficiency, DeficiencyKind, Reach};
pub use error::RunError;
pub use latpath_partstore::StoreError;
pub use manifest::{
    ClockSample, FlightRecord, ImportedFile, MachineFigures, MachineRecord, Manifest, NamedSegment, Stamp, State,
    ToolCost, DURATIONS, FORMAT,
};
pub use marks::Mark;
pub use reader::{Condition, Run};
pub use replaced::Replaced;
pub use rows::Rows;
pub use scan::Scan;
pub use select::{Select, Spans};
pub use spikes::{SpikeFile, SpikeFiles, SpikesRecord, SPIKES};
pub use writer::Writer;

/// The manifest's name in a run's directory.
pub const MANIFEST: &str = "manifest.json";
/// The name of the file with the clocks' samples.
pub const CLOCKS: &str = "clocks.jsonl";
/// The name of the file with the marks.
pub const MARKS: &str = "marks.jsonl";
/// The directory of the parts.
pub const JOURNEYS: &str = "journeys";
