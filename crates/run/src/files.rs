//! Detects files that are missing from a run's directory according to its manifest.

use crate::{
    settings::SETTINGS, spikes, vms::VMS, Condition, Deficiency, DeficiencyKind, Manifest, CLOCKS, MARKS, SPIKES, SYNC,
};
use std::path::Path;

/// Finds files other than parts that are missing or truncated. Parts are checked when they are opened.
pub(crate) fn missing(run: &Path, manifest: &Manifest, condition: &Condition) -> Vec<Deficiency> {
    let bytes = |name: &str| run.join(name).metadata().ok().filter(|found| found.is_file()).map(|found| found.len());
    let mut all = Vec::new();
    let mut lack = |kind, text: String| all.push(Deficiency::new(kind, text));
    // Files of a recording in progress may be ahead of its manifest, but not behind it.
    for (name, had, kind, what) in [
        (CLOCKS, manifest.clocks_bytes, DeficiencyKind::Clock, "error bounds may be too small"),
        (SYNC, manifest.sync_bytes, DeficiencyKind::ContextMissing, "events of the clocks may not be shown"),
        (MARKS, manifest.marks_bytes, DeficiencyKind::ContextMissing, "marks that the recording made are not shown"),
    ] {
        match bytes(name) {
            None if had > 0 => lack(kind, format!("{name} is missing: {what}")),
            Some(has) if has < had => lack(kind, format!("{name} has {has} bytes of {had}: {what}")),
            _ => {}
        }
    }
    let has_ended = matches!(condition, Condition::Finished | Condition::Interrupted(_));
    if manifest.vms_xxh64.is_some() && bytes(VMS).is_none() {
        lack(DeficiencyKind::ContextMissing, format!("{VMS} is missing: threads of virtual machines have no names"));
    }
    if manifest.has_settings && bytes(SETTINGS).is_none() {
        lack(DeficiencyKind::ContextMissing, format!("{SETTINGS} is missing: the machines' settings are not shown"));
    }
    // During the recording, captures may be replaced by worse ones, so they are checked only after its end.
    if let Some(record) = manifest.spikes.as_ref().filter(|_| has_ended) {
        let had = record.captures.saturating_add(record.baselines);
        let (files, bytes) = spikes::stored(run);
        if files < had {
            let text = format!("{SPIKES} has {files} of {had} captures: what held late packets may be missing");
            lack(DeficiencyKind::ContextMissing, text);
        } else if bytes < record.bytes {
            let had = record.bytes;
            let text =
                format!("the captures in {SPIKES} have {bytes} bytes of {had}: what held late packets may be missing");
            lack(DeficiencyKind::ContextMissing, text);
        }
    }
    all
}
