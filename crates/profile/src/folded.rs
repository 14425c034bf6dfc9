//! Profiles as text: a line for each call chain, in the format of flame graphs (`process;outer;inner_[k] NS`). A stored
//! file also has a header line, which such tools skip.

use crate::model::{Frame, Kind, Profile, Window};
use latpath_model::text::printable;
use latpath_model::Ns;
use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;
use std::{collections::HashMap, path::Path};

/// Beginning of the header line.
const MAGIC: &str = "# latpath profile 1 ";
/// Suffix of the names of kernel functions.
const IN_KERNEL: &str = "_[k]";
/// Beginning of the name of a guest's frame.
const GUEST: &str = "[guest";
/// Maximum length of a file, bytes.
const MAX_BYTES: u64 = 1 << 30;

/// Reasons for which a file cannot be read as a profile.
#[derive(Debug, thiserror::Error)]
pub enum BadProfile {
    /// The file cannot be read.
    #[error("{file}: {why}")]
    File {
        /// Path of the file.
        file: String,
        /// Error returned by the operating system.
        why: io::Error,
    },
    /// The file is not a profile.
    #[error("{0}: not a profile of latpath's (latpath profile -o FILE makes one)")]
    Other(String),
    /// A line of the file is malformed.
    #[error("{file}, line {line}: not a call chain and its time")]
    Line {
        /// Path of the file.
        file: String,
        /// Number of the line, from 1.
        line: usize,
    },
}

/// A frame in the format of a line.
pub fn folded_name(frame: &Frame) -> String {
    match frame.kind {
        Kind::Kernel => format!("{}{IN_KERNEL}", frame.name),
        _ => frame.name.to_string(),
    }
}

impl Profile {
    /// Returns the profile as lines for flame graphs.
    pub fn folded(&self) -> impl Iterator<Item = String> + '_ {
        self.stacks.iter().map(|(frames, ns)| {
            let frames: Vec<String> = frames.iter().map(folded_name).collect();
            format!("{} {ns}", frames.join(";"))
        })
    }

    /// Writes the profile with its header.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        writeln!(out, "{MAGIC}{}", serde_json::to_string(&self.window())?)?;
        self.folded().try_for_each(|line| writeln!(out, "{line}"))?;
        out.flush()
    }

    /// Reads a profile from its file.
    ///
    /// # Errors
    /// If the file cannot be read or is not a profile.
    pub fn read(path: &Path) -> Result<Self, BadProfile> {
        let file = path.display().to_string();
        let open = std::fs::File::open(path).map_err(|why| BadProfile::File { file: file.clone(), why })?;
        Self::parse(io::BufReader::new(open.take(MAX_BYTES)), &file)
    }

    /// Returns the output of [`Self::write`] as a string.
    pub fn kept(&self) -> String {
        let mut bytes = Vec::new();
        // Writing to memory cannot fail.
        let _ = self.write(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Reads a profile; `file` is its name in errors.
    ///
    /// # Errors
    /// If the input cannot be read or is not a profile.
    pub fn parse(input: impl BufRead, file: &str) -> Result<Self, BadProfile> {
        let mut lines = input.lines();
        let mut next = || lines.next().transpose().map_err(|why| BadProfile::File { file: file.into(), why });
        let other = || BadProfile::Other(file.into());
        let first = match next() {
            Ok(first) => first.ok_or_else(other)?,
            // The first line is not UTF-8.
            Err(BadProfile::File { why, .. }) if why.kind() == io::ErrorKind::InvalidData => return Err(other()),
            Err(e) => return Err(e),
        };
        let Window { window_ns, lost, header }: Window =
            first.strip_prefix(MAGIC).and_then(|json| serde_json::from_str(json).ok()).ok_or_else(other)?;
        let counts = [window_ns, header.idle_ns, header.unattributed_ns];
        if counts.iter().any(|ns| !(0..Ns::MAX / 8).contains(ns)) {
            return Err(other());
        }
        let (mut profile, mut names, mut sum) =
            (Self { header, window_ns, lost, ..Self::default() }, Names::default(), 0i128);
        let mut number = 1;
        while let Some(line) = next()? {
            number += 1;
            let bad = || BadProfile::Line { file: file.into(), line: number };
            let (frames, ns) = line.rsplit_once(' ').ok_or_else(bad)?;
            let ns: Ns = ns.parse().ok().filter(|ns| *ns > 0).ok_or_else(bad)?;
            sum += i128::from(ns);
            if sum > i128::from(Ns::MAX / 8) || frames.is_empty() {
                return Err(bad());
            }
            profile.add(names.frames(frames), ns);
        }
        Ok(profile)
    }
}

/// Keeps one copy of equal names.
#[derive(Default)]
struct Names(HashMap<String, Arc<str>>);

impl Names {
    fn frames(&mut self, line: &str) -> Vec<Frame> {
        let mut is_process = true;
        let mut frame = |text: &str| {
            let (name, kind) = match text.strip_suffix(IN_KERNEL) {
                _ if std::mem::take(&mut is_process) => (text, Kind::Process),
                Some(name) => (name, Kind::Kernel),
                None if text.starts_with(GUEST) => (text, Kind::Guest),
                None => (text, Kind::User),
            };
            // The first frame inside a guest is a process again.
            is_process = kind == Kind::Guest;
            let name = printable(name);
            Frame { name: self.0.entry(name).or_insert_with_key(|name| name.as_str().into()).clone(), kind }
        };
        line.split(';').map(&mut frame).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Header;
    use proptest::prelude::*;

    fn frames(names: &[(&str, Kind)]) -> Vec<Frame> {
        names.iter().map(|(name, kind)| Frame::new(name, *kind)).collect()
    }

    fn profile() -> Profile {
        let mut profile = Profile::default();
        let guest = [("vm (qemu)", Kind::Process), ("[guest vm]", Kind::Guest), ("iperf3", Kind::Process)];
        let inside = [("main loop", Kind::User), ("tcp_sendmsg", Kind::Kernel)];
        profile.add(frames(&[&guest[..], &inside].concat()), 30);
        profile.add(frames(&[guest[0], ("[guest vm vCPU 1]", Kind::Guest)]), 12);
        profile.add(frames(&[("bash", Kind::Process)]), 1);
        profile.header = Header { idle_ns: 7, cpus: "0-3".parse().unwrap(), ..Header::default() };
        profile
    }

    #[test]
    fn a_kept_profile_reads_back_as_it_was() {
        let (profile, mut bytes) = (profile(), Vec::new());
        profile.write(&mut bytes).unwrap();
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(text.contains("vm (qemu);[guest vm];iperf3;main loop;tcp_sendmsg_[k] 30\n"), "{text}");
        let read = Profile::parse(&bytes[..], "file").unwrap();
        assert_eq!(read, profile);
        assert_eq!((read.busy(), read.total()), (43, 50));
    }

    #[test]
    fn what_is_no_profile_is_refused_by_name_and_line() {
        let refusal = |bytes: &[u8]| Profile::parse(bytes, "F").unwrap_err().to_string();
        for other in [&b""[..], b"a;b 3\n", b"\x7fELF\xff\xfe\n", b"# latpath profile 1 {\n"] {
            assert!(refusal(other).contains("F: not a profile"), "{}", refusal(other));
        }
        let mut bytes = Vec::new();
        profile().write(&mut bytes).unwrap();
        for line in ["a;b", "a;b -3", "a;b x", " 3", "a 9223372036854775807"] {
            let text = [&bytes[..], line.as_bytes()].concat();
            assert!(refusal(&text).contains("F, line 5"), "{}", refusal(&text));
        }
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(lines in prop::collection::vec(".{0,40}( [0-9]{1,25})?", 0..8)) {
            let mut bytes = Vec::new();
            profile().write(&mut bytes).unwrap();
            let text = [&bytes[..], lines.join("\n").as_bytes()].concat();
            if let Ok(profile) = Profile::parse(&text[..], "F") {
                profile.total();
            }
        }
    }
}
