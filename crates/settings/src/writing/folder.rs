//! Writes settings of a machine that is a directory tree: gives its files the content that the kernel would give them.

use crate::setting::{Read, Setting};
use latpath_linux::proc::Root;
use latpath_linux::Cpus;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Fields of proc_pid_stat(5): nice value, real-time priority, policy.
const FIELDS: [usize; 3] = [19, 40, 41];
/// Number of the first field after the thread's name.
const FIRST: usize = 3;

fn invalid(why: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why)
}

/// Writes an existing file.
pub(super) fn write(path: &Path, setting: Setting, value: &str) -> io::Result<()> {
    let before = fs::read_to_string(path)?;
    let text = match setting.info().read {
        Read::Choice(_) => chosen(before.trim_end(), value)?,
        _ => value.into(),
    };
    fs::write(path, text + "\n")
}

/// Moves the brackets to another choice in a line such as `always [madvise] never`.
fn chosen(line: &str, value: &str) -> io::Result<String> {
    let (open, close) = if line.contains('(') { ('(', ')') } else { ('[', ']') };
    let words: Vec<&str> = line.split_whitespace().map(|word| word.trim_matches([open, close])).collect();
    if !words.contains(&value) {
        return Err(invalid(format!("{value} is none of {}", words.join(", "))));
    }
    let one = |word: &&str| if *word == value { format!("{open}{word}{close}") } else { (*word).to_owned() };
    Ok(words.iter().map(one).collect::<Vec<_>>().join(" "))
}

/// Changes the scheduling in a thread's `stat`.
pub(super) fn set_scheduling(root: &Root, tid: u32, (policy, priority, nice): (i32, i32, i32)) -> io::Result<()> {
    let path = root.path(&format!("proc/{tid}/stat"));
    let text = fs::read_to_string(&path)?;
    let (name, rest) = text.rsplit_once(") ").ok_or_else(|| invalid("no thread's state".into()))?;
    let mut fields: Vec<String> = rest.split_whitespace().map(str::to_owned).collect();
    for (field, value) in FIELDS.into_iter().zip([nice, priority, policy]) {
        *fields.get_mut(field - FIRST).ok_or_else(|| invalid("it is too short".into()))? = value.to_string();
    }
    fs::write(&path, format!("{name}) {}\n", fields.join(" ")))
}

/// Changes the list of CPUs in a thread's `status`.
pub(super) fn set_affinity(root: &Root, tid: u32, cpus: &Cpus) -> io::Result<()> {
    const KEY: &str = "Cpus_allowed_list:";
    let path = root.path(&format!("proc/{tid}/status"));
    let text = fs::read_to_string(&path)?;
    let one = |line: &str| if line.starts_with(KEY) { format!("{KEY}\t{cpus}\n") } else { format!("{line}\n") };
    fs::write(&path, text.lines().map(one).collect::<String>())
}
