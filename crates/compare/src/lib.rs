//! Compares recordings: what differs between two groups of them, by how much, how sure that is, and what cannot be compared.
//! docs/compare.md says how, in plain words and formulas.
//!
//! Nothing is drawn by chance: the same recordings give the same page.

mod comparable;
mod compare;
pub mod comparison;
pub mod difference;
pub mod estimate;
mod pairs;
pub mod recording;
pub mod sentence;
pub mod student;
mod study;

pub use compare::{compare, SIGNIFICANCE};
pub use comparison::{Comparison, Verdict};
pub use estimate::Span;
pub use recording::{Excluded, Figure, Losses, Measured, Recording, Source};
pub use study::{study, Study, StudyRow};
