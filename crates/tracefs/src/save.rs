//! Saves recorded events as text files.

use crate::{Error, Result};
use latpath_linux::Directory;
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

/// The saved files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// The trace, and the snapshot if one was taken.
    pub files: Vec<SavedFile>,
    /// Buffer losses, listed only for CPUs that have any. For snapshots the kernel reports only the sum
    /// ([`SavedFile::overwritten`]).
    pub lost: Vec<LostEvents>,
}

/// A saved file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedFile {
    /// Its path.
    pub path: PathBuf,
    /// Its size, bytes.
    pub bytes: u64,
    /// Number of events in the file, if the kernel reports it.
    pub events: Option<u64>,
    /// Number of older events that were overwritten, if the kernel reports it.
    pub overwritten: Option<u64>,
    /// Size of the oldest events, which were omitted to limit the file's size, bytes.
    pub left_out: u64,
}

/// Losses of one CPU's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostEvents {
    /// The CPU.
    pub cpu: u32,
    /// Events overwritten by newer ones.
    pub overwritten: u64,
    /// Events lost because the buffer had no space.
    pub dropped: u64,
}

/// Path of the snapshot file that belongs to this trace.
pub fn snapshot_file(trace: &Path) -> PathBuf {
    let mut beside = trace.as_os_str().to_owned();
    beside.push(".snapshot");
    beside.into()
}

/// Destination of a trace: a directory, and the file's name in it.
pub(crate) type Target<'a> = (&'a Directory, &'a OsStr);

pub(crate) fn save(instance: &Path, shown: &Path, snapped: bool, (to, name): Target, most: u64) -> Result<Saved> {
    let mut saved = Saved { lost: lost(instance), ..Saved::default() };
    saved.files.push(copy(&instance.join("trace"), &shown.join("trace"), (to, name), most)?);
    if snapped {
        let beside = snapshot_file(Path::new(name));
        let (from, shown) = (instance.join("snapshot"), shown.join("snapshot"));
        saved.files.push(copy(&from, &shown, (to, beside.as_os_str()), most)?);
    }
    Ok(saved)
}

/// Losses of each CPU's buffer.
fn lost(directory: &Path) -> Vec<LostEvents> {
    let entries = fs::read_dir(directory.join("per_cpu")).into_iter().flatten().flatten();
    let cpus = entries.filter_map(|e| Some((e.file_name().to_str()?.strip_prefix("cpu")?.parse().ok()?, e.path())));
    let stats = cpus.map(|(cpu, path)| lost_of(cpu, &fs::read_to_string(path.join("stats")).unwrap_or_default()));
    let mut lost: Vec<_> = stats.filter(|l| l.overwritten + l.dropped > 0).collect();
    lost.sort_unstable_by_key(|l| l.cpu);
    lost
}

fn lost_of(cpu: u32, stats: &str) -> LostEvents {
    let count = |key: &str| -> u64 {
        let value = stats.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(": "));
        value.and_then(|v| v.trim().parse().ok()).unwrap_or(0)
    };
    let dropped = count("commit overrun").saturating_add(count("dropped events"));
    LostEvents { cpu, overwritten: count("overrun"), dropped }
}

/// Copies a trace; if it exceeds `most` bytes, copies it again without its oldest events.
fn copy(from: &Path, shown: &Path, to: Target, most: u64) -> Result<SavedFile> {
    let path = to.0.join(to.1);
    let mut saved = SavedFile { path, bytes: 0, events: None, overwritten: None, left_out: 0 };
    let total = pass(from, shown, to, &mut saved, most, 0)?;
    if total > most {
        pass(from, shown, to, &mut saved, most, total - most)?;
    }
    Ok(saved)
}

/// Writes at most `most` bytes of the trace, omitting the first `leave_out` bytes of events. Returns the size of the
/// trace.
fn pass(from: &Path, shown: &Path, to: Target, saved: &mut SavedFile, most: u64, leave_out: u64) -> Result<u64> {
    let path = saved.path.clone();
    let failed = |source| Error::Save { path: path.clone(), source };
    let mut input = BufReader::with_capacity(1 << 16, File::open(from).map_err(Error::file(shown))?);
    let mut output = BufWriter::with_capacity(1 << 16, to.0.new_file(to.1).map_err(failed)?);
    let (mut line, mut total, mut said) = (Vec::new(), 0u64, leave_out == 0);
    (saved.bytes, saved.left_out) = (0, 0);
    loop {
        line.clear();
        // Trace lines are much shorter; a line without an end is processed in pieces.
        let mut limited = io::Read::take(&mut input, 1 << 16);
        if limited.read_until(b'\n', &mut line).map_err(Error::file(shown))? == 0 {
            break;
        }
        total += line.len() as u64;
        let heading = line.starts_with(b"#");
        if heading {
            counts(&line, saved);
        } else if saved.left_out < leave_out {
            saved.left_out += line.len() as u64;
            continue;
        }
        if !heading && !said {
            said = true;
            let note =
                format!("# {} bytes of older events were left out here to keep the file small\n", saved.left_out);
            output.write_all(note.as_bytes()).map_err(failed)?;
            saved.bytes += note.len() as u64;
        }
        // If the trace is too long, the first pass goes on only to measure it; in the second pass it may have grown
        // meanwhile.
        if total - saved.left_out <= most {
            output.write_all(&line).map_err(failed)?;
            saved.bytes += line.len() as u64;
        } else if leave_out > 0 {
            break;
        }
    }
    output.into_inner().map_err(|e| failed(e.into_error()))?;
    Ok(total)
}

/// Parses `# entries-in-buffer/entries-written: 3/10   #P:2`.
fn counts(line: &[u8], saved: &mut SavedFile) {
    let counts = || -> Option<(u64, u64)> {
        let text = std::str::from_utf8(line).ok()?.strip_prefix("# entries-in-buffer/entries-written: ")?;
        let (held, written) = text.split_whitespace().next()?.split_once('/')?;
        Some((held.parse().ok()?, written.parse().ok()?))
    };
    if let Some((held, written)) = counts() {
        saved.events = Some(held);
        saved.overwritten = Some(written.saturating_sub(held));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const HEADING: &str = "# tracer: nop\n#\n# entries-in-buffer/entries-written: 100/130   #P:2\n#\n";

    fn instance(events: usize) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let lines: String = (0..events).map(|i| format!("  thread-{i:04} [000] ..... 1.000: event\n")).collect();
        fs::write(directory.path().join("trace"), HEADING.to_owned() + &lines).unwrap();
        let cpu = directory.path().join("per_cpu/cpu1");
        fs::create_dir_all(&cpu).unwrap();
        let stats = "entries: 100\noverrun: 30\ncommit overrun: 1\nbytes: 9\ndropped events: 2\nread events: 0\n";
        fs::write(cpu.join("stats"), stats).unwrap();
        directory
    }

    fn saved(from: &tempfile::TempDir, snapped: bool, path: &Path, most: u64) -> Result<Saved> {
        let (directory, name) = Directory::of_file(path).unwrap();
        save(from.path(), from.path(), snapped, (&directory, &name), most)
    }

    #[test]
    fn a_trace_is_saved_with_its_lost_events() {
        let (from, to) = (instance(100), tempfile::tempdir().unwrap());
        let path = to.path().join("trace.txt");
        let saved = saved(&from, false, &path, 1 << 20).unwrap();
        assert_eq!(fs::read(&path).unwrap(), fs::read(from.path().join("trace")).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "it is its owner's alone");
        assert_eq!(saved.lost, [LostEvents { cpu: 1, overwritten: 30, dropped: 3 }]);
        let file = &saved.files[0];
        assert_eq!((file.events, file.overwritten, file.left_out), (Some(100), Some(30), 0));
        assert_eq!(file.bytes, fs::metadata(&path).unwrap().len());
    }

    #[test]
    fn a_long_trace_loses_its_oldest_events_with_a_note() {
        let (from, to) = (instance(100), tempfile::tempdir().unwrap());
        let path = to.path().join("trace.txt");
        let saved = saved(&from, false, &path, 1000).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# tracer: nop\n") && text.contains("bytes of older events were left out here"));
        assert!(text.ends_with("thread-0099 [000] ..... 1.000: event\n"), "{text}");
        assert!(!text.contains("thread-0000"));
        assert!(saved.files[0].left_out > 2000 && text.len() < 1100, "{} {}", saved.files[0].left_out, text.len());
    }

    #[test]
    fn a_snapshot_is_saved_beside_the_trace() {
        let (from, to) = (instance(1), tempfile::tempdir().unwrap());
        fs::write(from.path().join("snapshot"), "# tracer: nop\nbefore\n").unwrap();
        let path = to.path().join("trace.txt");
        let saved = saved(&from, true, &path, 1 << 20).unwrap();
        assert_eq!(saved.files.len(), 2);
        let text = fs::read_to_string(to.path().join("trace.txt.snapshot")).unwrap();
        assert_eq!(text, "# tracer: nop\nbefore\n");
    }

    #[test]
    fn a_link_placed_meanwhile_is_replaced_and_not_followed() {
        let (from, to) = (instance(100), tempfile::tempdir().unwrap());
        let (path, victim) = (to.path().join("trace.txt"), to.path().join("victim"));
        fs::write(&victim, "mine").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        saved(&from, false, &path, 1000).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
        assert!(path.symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let (from, to) = (instance(1), tempfile::tempdir().unwrap());
        let path = to.path().join("trace.txt");
        fs::create_dir(&path).unwrap();
        let error = saved(&from, false, &path, 1 << 20).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: ", path.display())), "{error}");
    }
}
