//! A run that a new one replaces.

use crate::{reader::is_locked, writer::refuse_shared, RunError, Writer, MANIFEST};
use latpath_partstore::{Directory, StoreError};
use std::ffi::OsString;
use std::path::Path;

/// An earlier run under another name beside its own, so that a new one can take its place. Dropped, it gets its name back;
/// [`Replaced::remove`] removes it, once the new run is there.
#[derive(Debug)]
pub struct Replaced {
    above: Directory,
    name: OsString,
    aside: OsString,
    run: Directory,
}

impl Replaced {
    /// Whether the run at this path could be set aside.
    ///
    /// # Errors
    /// Where the path has something that is no run, and where the run is not this user's alone or is still being recorded.
    pub fn check(path: &Path) -> Result<(), RunError> {
        Self::find(path).map(drop)
    }

    /// Renames the run at this path; `None` where nothing is there, or an empty directory.
    ///
    /// # Errors
    /// As those of [`Replaced::check`], and where the system refuses the new name.
    pub fn set_aside(path: &Path) -> Result<Option<Self>, RunError> {
        let Some((above, name, run)) = Self::find(path)? else { return Ok(None) };
        let mut aside = OsString::from(".");
        aside.push(&name);
        aside.push(format!(".replaced-{}", std::process::id()));
        above.rename(&name, &aside).map_err(StoreError::write(path))?;
        Ok(Some(Self { above, name, aside, run }))
    }

    /// The directory above the run, the run's name in it, and the run.
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
        // Dropped, it finds no name to give back.
        let _ = self.above.remove_directory(&self.aside);
    }
}

impl Drop for Replaced {
    fn drop(&mut self) {
        // Fails where a new run has the name.
        let _ = self.above.rename(&self.aside, &self.name);
    }
}
