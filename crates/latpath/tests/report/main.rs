//! `latpath report`, `latpath segments` and `latpath explain` on runs of known journeys.

mod chosen;
mod explained;
mod figures;
mod runs;
mod wrong;
