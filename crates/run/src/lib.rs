//! Runs: each is one recording on disk. docs/run-format.md describes every file and column.
//!
//! ```text
//! RUN/manifest.json                      streams, machines, options and counts; replaced atomically
//! RUN/clocks.jsonl                       all samples of all clocks, one per line
//! RUN/marks.jsonl                        notes on moments of the run, one per line
//! RUN/sync.jsonl                         synchronisation of the host's clocks, and events, one per line
//! RUN/vms.json                           the machines' virtual machines at the start
//! RUN/settings.json                      the machines' settings at the start and at the end
//! RUN/journeys/part-00000000.parquet     one second of journeys, or
//! RUN/journeys/part-00000000-00000059.parquet    several such parts merged into one
//! RUN/spikes/000001.spike                records of all machines around late packets
//! ```
//!
//! A part gets its name only when it is complete and on disk, so that a run can be opened after a crash at any time.

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
mod source;
mod span;
mod spikes;
mod sync;
mod vms;
mod writer;

pub use deficiency::{Deficiency, DeficiencyKind, Reach};
pub use error::RunError;
pub use latpath_partstore::StoreError;
pub use manifest::{
    ClockSample, FlightRecord, ImportedFile, MachineFigures, MachineRecord, Manifest, NamedSegment, ReactionRecord,
    Stamp, State, ToolCost, DURATIONS, FORMAT, ROUND_TRIPS,
};
pub use marks::Mark;
pub use reader::{Condition, Run};
pub use replaced::Replaced;
pub use rows::Rows;
pub use scan::Scan;
pub use select::{Select, Spans};
pub use source::{JourneySource, SourceFacts};
pub use spikes::{SpikeFile, SpikeFiles, SpikesRecord, SPIKES};
pub use writer::Writer;

/// The manifest's name in a run's directory.
pub const MANIFEST: &str = "manifest.json";
/// The name of the file with the clocks' samples.
pub const CLOCKS: &str = "clocks.jsonl";
/// The name of the file with the marks.
pub const MARKS: &str = "marks.jsonl";
/// The name of the file with the synchronisation of the clocks.
pub const SYNC: &str = "sync.jsonl";
/// The directory of the parts.
pub const JOURNEYS: &str = "journeys";
