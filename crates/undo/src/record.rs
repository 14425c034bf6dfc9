//! The file of an entry: a header, followed by one line per step.

use crate::Owner;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of the format.
const VERSION: u32 = 1;
/// Maximum length of a subject, bytes: a file name can have 255.
const MAX_SUBJECT: usize = 200;
/// Maximum number of an entry's owners.
const MAX_OWNERS: usize = 4096;

/// Intended lifetime of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifetime {
    /// Until the last process that needs it ends. After a kill, the next start undoes it.
    Process,
    /// Until a user requests its undo.
    Request,
    /// Until the machine boots. The entry only documents the change.
    Boot,
}

/// The first line of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub(crate) version: u32,
    /// Name of the [`crate::Kind`].
    pub kind: String,
    /// The target, as named by the kind.
    pub subject: String,
    /// Intended lifetime of the change.
    pub lifetime: Lifetime,
    /// ID of the boot in which the change was made; a reboot reverts it, so later boots discard the entry.
    pub boot: String,
    /// Processes that need the change; a process is listed once for each of its shares.
    pub owners: Vec<Owner>,
    /// Reason for the change, for the user.
    pub reason: String,
}

impl Header {
    pub(crate) fn new(kind: &str, subject: &str, lifetime: Lifetime, reason: &str) -> Self {
        Self {
            version: VERSION,
            kind: kind.into(),
            subject: subject.into(),
            lifetime,
            boot: latpath_linux::proc::boot_id(),
            owners: vec![Owner::this()],
            reason: reason.into(),
        }
    }

    /// Whether any process that needs the change is still running.
    pub fn is_needed(&self) -> bool {
        self.owners.iter().any(Owner::is_alive)
    }

    /// Whether the change was made in the current boot.
    pub fn is_of_this_boot(&self) -> bool {
        self.boot == latpath_linux::proc::boot_id()
    }
}

/// An entry whose steps have not been parsed yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) header: Header,
    pub(crate) steps: Vec<Value>,
}

/// Name of an entry's file; `None` if the subject cannot be part of a file name.
pub(crate) fn file_name(kind: &str, subject: &str) -> Option<String> {
    let fits = (1..=MAX_SUBJECT).contains(&subject.len());
    (fits && !subject.starts_with('.') && !subject.contains(['/', '\0', '\n'])).then(|| format!("{kind}-{subject}"))
}

impl Record {
    /// Parses the text of the file with this name. If the last line is incomplete, it was not synced, so its change was
    /// not made.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, String> {
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.split('\n');
        let header = lines.next().filter(|line| !line.is_empty()).ok_or("it has no header")?;
        let header: Header = serde_json::from_str(header).map_err(|e| format!("its header: {e}"))?;
        if header.version != VERSION {
            return Err(format!("version {}: latpath reads version {VERSION}", header.version));
        }
        if file_name(&header.kind, &header.subject).as_deref() != Some(name) {
            return Err("its header names another subject than its file".into());
        }
        if header.owners.len() > MAX_OWNERS {
            return Err(format!("it has {} owners", header.owners.len()));
        }
        let step = |(at, line)| serde_json::from_str(line).map_err(|e| format!("step {}: {e}", at + 1));
        let steps = lines.enumerate().map(step).collect::<Result<_, _>>()?;
        Ok(Self { header, steps })
    }

    pub(crate) fn text(&self) -> serde_json::Result<String> {
        let mut text = serde_json::to_string(&self.header)? + "\n";
        for step in &self.steps {
            text += &line(step)?;
        }
        Ok(text)
    }
}

/// Serialises a step as a line.
pub(crate) fn line(step: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string(step)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn record() -> Record {
        let header = Header::new("tracefs", "a", Lifetime::Process, "a test");
        Record { header, steps: vec![json!({ "set": "1" }), json!({ "set": "2" })] }
    }

    #[test]
    fn an_entry_reads_back_as_written_and_a_line_that_was_cut_counts_for_nothing() {
        let text = record().text().unwrap();
        assert_eq!(Record::parse("tracefs-a", &text), Ok(record()));
        let cut = &text[..text.len() - 3];
        assert_eq!(Record::parse("tracefs-a", cut).unwrap().steps, [json!({ "set": "1" })]);
    }

    #[test]
    fn a_damaged_entry_says_what_is_wrong() {
        let text = record().text().unwrap();
        for (name, text, why) in [
            ("tracefs-a", String::new(), "no header"),
            ("tracefs-a", "\n".into(), "no header"),
            ("tracefs-a", "{}\n".into(), "its header: missing field"),
            ("tracefs-a", text.replace("\"version\":1", "\"version\":2"), "version 2"),
            ("tracefs-b", text.clone(), "another subject"),
            ("tracefs-..", text.replace("\"subject\":\"a\"", "\"subject\":\"..\""), "another subject"),
            ("tracefs-a", text.replace("{\"set\":\"2\"}", "{\"set\":"), "step 2"),
            ("tracefs-a", text.clone() + "\n", "step 3"),
        ] {
            let error = Record::parse(name, &text).unwrap_err();
            assert!(error.contains(why), "{error}, not {why}");
        }
    }

    #[test]
    fn a_subject_is_part_of_a_files_name() {
        assert_eq!(file_name("lab", "latpath-1-2-3").as_deref(), Some("lab-latpath-1-2-3"));
        for subject in ["", "..", ".a", "a/b", "a\nb", "a\0", &"x".repeat(201)] {
            assert_eq!(file_name("lab", subject), None, "{subject}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,200}") {
            let _ = Record::parse("tracefs-a", &text);
        }
    }
}
