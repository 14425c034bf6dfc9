//! Finds faults of this machine that can delay packets: faults of its structure ([`Rule`]), and lines of a profile that
//! are not met. Each [`Finding`] has commands that fix the fault and commands that undo the fix, and [`rank`] orders
//! findings by their cost in recorded runs. Nothing here changes the machine.
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

mod cost;
mod diagnosis;
mod document;
mod finding;
mod fix;
mod machine;
mod profile;
mod rules;

pub use cost::{rank, CostRow, RunCost};
pub use diagnosis::Diagnosis;
pub use document::DoctorDocument;
pub use finding::{Finding, FindingKind, RunShare, Severity};
pub use machine::{Machine, Stranger};
pub use profile::profile_of;
pub use rules::{page, Rule, RuleInfo};
