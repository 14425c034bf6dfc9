//! The settings of an instance: its files, and its events.

use crate::{
    undo::{put, Step},
    Error, Result,
};
use latpath_undo::Entry;
use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Maximum number of events matched by a pattern; no system has as many.
const MAX_EVENTS: usize = 4096;

/// Changes the settings of an instance, and records the old values.
pub(crate) struct Settings<'a> {
    /// Path by which this process opens the instance.
    pub directory: &'a Path,
    /// Path of the instance as shown to the user.
    pub shown: &'a Path,
    /// Journal of the changes to an existing instance; `None` for an instance made by latpath, which is simply removed.
    pub undo: Option<&'a mut Entry<Step>>,
    pub notes: Vec<String>,
}

impl Settings<'_> {
    /// The value of a setting; `None` if it differs between CPUs.
    pub fn get(&self, file: &str) -> Result<Option<String>> {
        let text = fs::read_to_string(self.directory.join(file)).map_err(Error::file(self.shown.join(file)))?;
        Ok(current(&text))
    }

    /// Records a setting's value, to be restored at the end even if it has changed again.
    pub fn keep(&mut self, file: &str, before: String) -> Result<()> {
        self.note(Step::Set { file: file.into(), before, set: None })
    }

    fn note(&mut self, step: Step) -> Result<()> {
        Ok(self.undo.as_mut().map_or(Ok(()), |undo| undo.add(step))?)
    }

    /// Changes a setting.
    pub fn set(&mut self, file: &str, requested: &str) -> Result<()> {
        match self.get(file)? {
            Some(now) if now == requested => return Ok(()),
            Some(before) => self.note(Step::Set { file: file.into(), before, set: Some(requested.into()) })?,
            None if self.undo.is_some() => {
                let shown = self.shown.join(file);
                self.notes.push(format!("{}: differs from CPU to CPU, left as it is", shown.display()));
                return Ok(());
            }
            None => {}
        }
        self.write(file, requested)?;
        if let (true, Some(value)) = (self.undo.is_some(), self.get(file)?) {
            self.note(Step::Reads { file: file.into(), value })?;
        }
        Ok(())
    }

    /// Writes a file that has no value to restore.
    pub fn write(&self, file: &str, requested: &str) -> Result<()> {
        put(&self.directory.join(file), requested).map_err(|source| {
            let list = match file {
                "current_tracer" => "available_tracers",
                "trace_clock" => "trace_clock",
                _ => "",
            };
            let there = if list.is_empty() { Ok(String::new()) } else { fs::read_to_string(self.directory.join(list)) };
            let there = there.unwrap_or_default().trim().replace(['[', ']'], "");
            Error::Refused { path: self.shown.join(file), requested: requested.into(), there, source }
        })
    }

    /// Enables the events matching a pattern: `sched:sched_switch`, `sched:sched_w*`, `sched:*` or `sched`. For missing
    /// and rejected events, a note is added.
    pub fn enable(&mut self, pattern: &str) -> Result<()> {
        let (system, event) = pattern.split_once([':', '/']).unwrap_or((pattern, "*"));
        let named = |name: &str| !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
        if !named(system) || !named(event) {
            self.notes.push(format!("event {pattern:?}: not a name; write system:event, e.g. sched:sched_switch"));
            return Ok(());
        }
        let events = self.matching(system, event);
        if events.is_empty() {
            let list = self.shown.join("events");
            self.notes.push(format!("event {pattern}: this kernel has none of that name (see {})", list.display()));
        }
        for event in events {
            let file = format!("events/{system}/{event}/enable");
            match self.set(&file, "1") {
                Ok(()) => {}
                Err(Error::File { source, .. } | Error::Refused { source, .. }) => {
                    self.notes.push(format!("event {system}:{event}: not enabled: {source}"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn matching(&self, system: &str, event: &str) -> Vec<String> {
        let folder = self.directory.join("events").join(system);
        let Some(prefix) = event.strip_suffix('*') else {
            let there = folder.join(event).join("enable").exists();
            return there.then(|| event.to_owned()).into_iter().collect();
        };
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let names = entries.map(|e| (e.path(), e.file_name().to_string_lossy().into_owned()));
        let fit = |(path, name): &(PathBuf, String)| name.starts_with(prefix) && path.join("enable").exists();
        let mut events: Vec<_> = names.filter(fit).map(|(_, name)| name).take(MAX_EVENTS).collect();
        events.sort_unstable();
        events
    }

    /// Allocates the memory for snapshots. Returns whether snapshots are available; if not, a note gives the reason.
    pub fn prepare_snapshot(&mut self) -> Result<bool> {
        let now = match beginning(&self.directory.join("snapshot")) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.notes.push("no snapshots: this kernel has none (CONFIG_TRACER_SNAPSHOT)".into());
                return Ok(false);
            }
            Err(source) => return Err(Error::File { path: self.shown.join("snapshot"), source }),
        };
        if now.contains("Snapshot is freed") {
            // Writing 0 frees the snapshot's memory.
            self.keep("snapshot", "0".into())?;
        }
        // The first 1 allocates the snapshot and swaps the buffers; the second swaps them back, so that the recorded
        // events stay in place. 2 then clears the snapshot.
        for command in ["1", "1", "2"] {
            if let Err(error) = self.write("snapshot", command) {
                self.notes.push(format!("no snapshots: {error}"));
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The beginning of a file; the whole may be as large as all buffers if it is a snapshot.
fn beginning(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(4096).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Parses the value in a tracefs file; `None` if it differs between CPUs.
pub(crate) fn current(text: &str) -> Option<String> {
    let line = text.lines().next().unwrap_or_default().trim();
    if line == "X" {
        return None;
    }
    // `[local] global mono`: the value in brackets is active.
    if let Some((_, rest)) = line.split_once('[') {
        return rest.split_once(']').map(|(now, _)| now.to_owned());
    }
    // `7 (expanded: 1408)`: the buffer is only expanded on first use.
    if let Some((_, rest)) = line.split_once("(expanded: ") {
        return Some(rest.trim_end_matches(')').to_owned());
    }
    // `0*`: the asterisk marks an event with a trigger.
    Some(line.trim_end_matches('*').to_owned())
}

/// A set of CPUs in the kernel's format (lib/bitmap.c): hexadecimal, highest CPU first, with commas between groups of
/// 32 bits.
pub(crate) fn mask(cpus: &[u32]) -> String {
    let words = cpus.iter().max().map_or(1, |most| *most as usize / 32 + 1);
    let mut mask = vec![0u32; words];
    cpus.iter().for_each(|cpu| mask[*cpu as usize / 32] |= 1 << (cpu % 32));
    mask.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settings_value_is_read_from_what_the_kernel_shows() {
        for (shown, value) in [
            ("1\n", Some("1")),
            ("0*\n", Some("0")),
            ("X\n", None),
            ("[local] global mono\n", Some("local")),
            ("local global [mono]\n", Some("mono")),
            ("7 (expanded: 1408)\n", Some("1408")),
            ("1410\n", Some("1410")),
        ] {
            assert_eq!(current(shown).as_deref(), value, "{shown}");
        }
    }

    #[test]
    fn cpus_are_bits_the_highest_first() {
        assert_eq!(mask(&[0, 1]), "00000003");
        assert_eq!(mask(&[33, 3]), "00000002,00000008");
        assert_eq!(mask(&[]), "00000000");
    }

    #[test]
    fn missing_events_are_named_and_the_others_enabled() {
        let directory = tempfile::tempdir().unwrap();
        for event in ["events/sched/sched_switch", "events/sched/sched_wakeup"] {
            let event = directory.path().join(event);
            fs::create_dir_all(&event).unwrap();
            fs::write(event.join("enable"), "0\n").unwrap();
        }
        let path = directory.path();
        let mut settings = Settings { directory: path, shown: path, undo: None, notes: Vec::new() };
        for pattern in ["sched:sched_w*", "sched:nothing", "none", "../x:y", "sched:", ":"] {
            settings.enable(pattern).unwrap();
        }
        assert_eq!(settings.notes.len(), 5, "{:?}", settings.notes);
        let enabled = |event: &str| fs::read_to_string(path.join("events/sched").join(event).join("enable")).unwrap();
        assert_eq!((enabled("sched_switch").trim(), enabled("sched_wakeup").trim()), ("0", "1"));
    }

    #[test]
    fn preparing_a_snapshot_keeps_recorded_events() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut settings = Settings { directory: path, shown: path, undo: None, notes: Vec::new() };
        assert!(!settings.prepare_snapshot().unwrap());
        assert!(settings.notes[0].contains("CONFIG_TRACER_SNAPSHOT"));
        fs::write(path.join("snapshot"), "# * Snapshot is freed *\n").unwrap();
        assert!(settings.prepare_snapshot().unwrap());
        assert_eq!(fs::read_to_string(path.join("snapshot")).unwrap(), "2", "cleared last");
    }
}
