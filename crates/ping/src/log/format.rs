//! Writers of log rows.

use super::{LogError, Progress};
use crate::transaction::{Route, Transaction};
use std::path::PathBuf;

/// A file format.
pub(super) trait Format: Send {
    /// Sets the route before the first transaction.
    fn begin(&mut self, route: &Route) -> Result<(), LogError>;
    fn write(&mut self, rows: &[Transaction]) -> Result<(), LogError>;
    /// Runs periodic tasks, several times a second.
    fn tick(&mut self, progress: &Progress) -> Result<(), LogError>;
    fn finish(&mut self, progress: &Progress) -> Result<(), LogError>;
    /// Number of rows that survive a kill.
    fn safe_rows(&self) -> u64;
    /// The current files.
    fn files(&self) -> Vec<PathBuf>;
    /// Notes for the reader.
    fn notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}
