//! `latpath report`, `latpath compare`, `latpath segments` and `latpath explain` on runs with known journeys; `latpath
//! import`.

mod chosen;
mod compared;
mod documents;
mod explained;
mod figures;
mod imported;
mod links;
mod runs;
mod settings;
mod wrong;
