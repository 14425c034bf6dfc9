//! `latpath report`, `latpath compare`, `latpath segments` and `latpath explain` on runs of known journeys.

mod chosen;
mod compared;
mod documents;
mod explained;
mod figures;
mod runs;
mod wrong;
