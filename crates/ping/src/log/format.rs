//! What writes a log's rows.

use super::{LogError, Progress};
use crate::transaction::{Route, Transaction};
use std::path::PathBuf;

/// A kind of file.
pub(super) trait Format: Send {
    /// The route that cuts the transactions, before the first of them.
    fn begin(&mut self, route: &Route) -> Result<(), LogError>;
    fn write(&mut self, rows: &[Transaction]) -> Result<(), LogError>;
    /// Does what is due, several times a second.
    fn tick(&mut self, progress: &Progress) -> Result<(), LogError>;
    fn finish(&mut self, progress: &Progress) -> Result<(), LogError>;
    /// Rows that a kill cannot take any more.
    fn safe_rows(&self) -> u64;
    /// The files as they are now.
    fn files(&self) -> Vec<PathBuf>;
    /// What the reader must know.
    fn notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}
