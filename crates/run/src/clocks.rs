//! `clocks.jsonl`: the samples of all clocks.

use crate::{lines, span::TimeSpan, ClockSample, RunError, CLOCKS};
use latpath_partstore::{Directory, StoreError};
use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

/// Appends samples.
pub(crate) struct Clocks {
    path: PathBuf,
    file: File,
}

impl Clocks {
    pub fn create(run: &Directory) -> Result<Self, RunError> {
        let path = run.join(CLOCKS);
        let file = run.new_file(CLOCKS).map_err(StoreError::write(&path))?;
        Ok(Self { path, file })
    }

    /// Appends samples; returns the number of bytes appended.
    pub fn append(&mut self, samples: &[ClockSample]) -> Result<u64, RunError> {
        let lines = lines::of(samples);
        let written = self.file.write_all(&lines).and_then(|()| self.file.sync_data());
        written.map_err(StoreError::write(&self.path))?;
        Ok(lines.len() as u64)
    }
}

/// Passes all samples of complete lines to `visit`; returns the number of damaged lines.
pub(crate) fn for_each(run: &Path, span: TimeSpan, mut visit: impl FnMut(ClockSample)) -> Result<u64, RunError> {
    lines::for_each(&run.join(CLOCKS), |sample: ClockSample| {
        let is_possible = span.contains(sample.t_ns);
        if is_possible {
            visit(sample);
        }
        is_possible
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_more_than_a_million_samples_the_newest_is_read() {
        const SAMPLES: usize = 1_000_000;
        let run = tempfile::tempdir().unwrap();
        let sample = |t_ns| ClockSample { clock: "g".into(), t_ns, offset_ns: 0, error_bound_ns: 0 };
        let mut file = File::create(run.path().join(CLOCKS)).unwrap();
        file.write_all(&lines::of(&[sample(0)]).repeat(SAMPLES)).unwrap();
        file.write_all(&lines::of(&[sample(7)])).unwrap();
        let (mut count, mut newest) = (0, 0);
        let damaged =
            for_each(run.path(), TimeSpan::default(), |sample| (count, newest) = (count + 1, sample.t_ns)).unwrap();
        assert_eq!((count, newest, damaged), (SAMPLES + 1, 7, 0));
    }
}
