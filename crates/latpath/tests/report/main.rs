//! `latpath report` and `latpath segments` on runs of known journeys.

mod chosen;
mod figures;
mod runs;
mod wrong;
