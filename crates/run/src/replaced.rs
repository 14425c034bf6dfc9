//! An earlier run that a new one replaces.

use crate::{reader::is_locked, writer::refuse_shared, RunError, Writer, MANIFEST};
use latpath_partstore::{Directory, StoreError};
use std::ffi::OsString;
use std::path::Path;

/// An earlier run, renamed so that a new run can take its path. Dropping this value restores the name;
/// [`Replaced::remove`] removes the earlier run once the new one exists.
#[derive(Debug)]
pub struct Replaced {
    above: Directory,
    name: OsString,
    aside: OsString,
    run: Directory,
}

impl Replaced {
    /// Checks that the run at this path can be renamed.
    ///
    /// # Errors
    /// If the path contains anything but a run, or other users have access to the run, or it is still being recorded.
    pub fn check(path: &Path) -> Result<(), RunError> {
        Self::find(path).map(drop)
    }

    /// Renames the run at this path; `None` if the path does not exist or is an empty directory.
    ///
    /// # Errors
    /// As for [`Replaced::check`], and if the system rejects the new name.
    pub fn set_aside(path: &Path) -> Result<Option<Self>, RunError> {
        let Some((above, name, run)) = Self::find(path)? else { return Ok(None) };
        let mut aside = OsString::from(".");
        aside.push(&name);
        aside.push(format!(".replaced-{}", std::process::id()));
        above.rename(&name, &aside).map_err(StoreError::write(path))?;
        Ok(Some(Self { above, name, aside, run }))
    }

    /// Opens the run; returns its parent directory, its name there, and its own directory. `None` if there is nothing
    /// to replace.
    fn find(path: &Path) -> Result<Option<(Directory, OsString, Directory)>, RunError> {
        let Err(exists) = Writer::refuse_existing(path) else { return Ok(None) };
        let Ok((above, name)) = Directory::of_file(path) else { return Err(exists) };
        let Ok(run) = above.open_directory(&name) else { return Err(exists) };
        if run.open_file(MANIFEST).is_err() {
            return Err(exists);
        }
        refuse_shared(path, run.why_shared())?;
        match is_locked(path) {
            true => Err(RunError::InUse { path: path.into() }),
            false => Ok(Some((above, name, run))),
        }
    }

    /// Removes the earlier run.
    pub fn remove(self) {
        self.run.clear();
        // The drop then finds no directory to rename.
        let _ = self.above.remove_directory(&self.aside);
    }
}

impl Drop for Replaced {
    fn drop(&mut self) {
        // The rename fails if a new run has taken the name.
        let _ = self.above.rename(&self.aside, &self.name);
    }
}
