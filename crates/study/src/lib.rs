//! Studies: combinations of topology, settings, load and direction, each repeated in randomised blocks, and a table
//! that compares them.
//!
//! A [`Plan`] defines the configurations. [`Study::open`] opens a directory for it. [`Study::run`] runs the trials
//! missing from the directory: each is a recorded run, completed by a record. [`StudyTable::of`] compares them. After
//! any interruption, the study can be continued with the same plan.
//!
//! This crate does not print: it reports progress as typed values.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits
#![warn(missing_docs, clippy::missing_errors_doc)]

mod apply;
mod children;
mod engine;
mod folder;
mod plan;
mod process;
mod schedule;
mod series;
mod table;

mod trial;

pub use children::{udp_stream, ChildRequest};
pub use engine::{Estimate, Finish, Phase, Progress, Study, StudyError};
pub use folder::{Outcome, TrialRecord};
pub use plan::{BadPlan, Direction, Load, Plan, Publish, Settings, Topology, UdpStream, Variables};
pub use schedule::{Cell, Trial};
pub use series::{series, Point, RunSeries};
pub use table::{Against, CellRow, FailedTrial, FigureDifference, StudyTable};
