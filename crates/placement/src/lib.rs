//! Which threads and interrupts of a machine may run on which CPU, according to a reading of its settings: a live one,
//! or that of a run. [`Placement`] contains the machine's CPUs, threads and interrupts, [`CpuMap`] shows them CPU by
//! CPU, and a [`Collision`] is a thread or interrupt that disturbs others, or is disturbed by them.
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

mod collision;
mod map;
mod placement;

pub use collision::{Collision, CollisionKind};
pub use map::{CpuMap, CpuRow};
pub use placement::{CpuUse, Interrupt, Job, Placement, Worker};
