//! Studies: topologies × settings × loads × directions, each repeated in randomised blocks, and one table that compares
//! them.
//!
//! A [`Plan`] names the configurations. [`Study::open`] takes a directory for it, [`Study::run`] runs the trials that
//! the directory lacks, each a recorded run that a marker completes, and [`StudyTable::of`] compares them. After any
//! interruption, the same plan continues.
//!
//! This crate does not print: progress is typed.
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
