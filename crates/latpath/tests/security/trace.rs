//! Runs latpath under strace, and checks the files that it opened and executed.

use crate::hostile::{Bait, Container};
use latpath_testkit::{equal, Failed};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md");

/// An opened path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Opened {
    /// The directory in which the path was resolved; empty for the current one.
    directory: String,
    /// The path as passed to the system call.
    path: String,
    /// The file that was opened; empty if the call failed.
    led_to: String,
}

pub struct Traced {
    pub stdout: String,
    opened: BTreeSet<Opened>,
    executed: BTreeSet<String>,
    program: String,
}

impl Traced {
    pub fn run(command: &mut Command) -> Result<Self, Failed> {
        let trace = tempfile::NamedTempFile::new()?;
        let mut strace = Command::new("strace");
        strace
            .args(["-f", "-y", "-s", "4096", "-e", "trace=?open,openat,openat2,?creat,execve,execveat", "-o"])
            .arg(trace.path());
        // cargo sets this variable for the toolchain's libraries.
        strace.env_remove("LD_LIBRARY_PATH");
        strace.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => strace.env(name, value),
                None => strace.env_remove(name),
            };
        }
        let output = strace.output()?;
        equal(&String::from_utf8_lossy(&output.stderr), output.status.success(), true)?;
        let (opened, executed) = calls(&fs::read_to_string(trace.path())?);
        let program = command.get_program().to_string_lossy().into_owned();
        Ok(Self { stdout: String::from_utf8(output.stdout)?, opened, executed, program })
    }

    /// Expects that latpath opened files run by other users' processes; otherwise the test shows nothing.
    pub fn reads_files_of_others(&self) -> Result<(), Failed> {
        let is_others = |path: &str| path.ends_with("/exe") || path.contains("/map_files/");
        equal("files of others are in the trace", self.opened.iter().any(|opened| is_others(&opened.path)), true)
    }

    /// Expects that every path is listed on the page or below one of the user's paths, and that none led to another
    /// user's trap.
    pub fn is_listed(&self, bait: &Bait, containers: &[Container], named: &[&Path]) -> Result<(), Failed> {
        let patterns = patterns(&fs::read_to_string(PAGE)?);
        let is_listed = |path: &str| {
            patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(begin) => path.starts_with(begin) || path == begin.trim_end_matches('/'),
                None => path == pattern,
            })
        };
        let is_named = |opened: &Opened| {
            let path = Path::new(&opened.directory).join(&opened.path);
            // A file is created under a temporary name next to its path, and a new directory's parent is synced.
            named.iter().any(|named| path.starts_with(named) || Some(&*path) == named.parent())
        };
        let folder = bait.folder.path().to_string_lossy().into_owned();
        let fifos: Vec<String> = containers.iter().filter_map(Container::fifo).collect();
        let is_wrong = |opened: &&Opened| {
            let Opened { path, led_to, .. } = opened;
            // An O_PATH descriptor only identifies a file; the file itself is then opened through /proc.
            let is_fifo = path.starts_with("/proc/self/fd/") && fifos.iter().any(|fifo| led_to.contains(fifo));
            let is_foreign = path.contains("..") || path.contains(&folder) || led_to.contains(&folder);
            let looked_up = Path::new(&opened.directory).join(path);
            is_fifo || is_foreign || !(is_listed(path) || is_listed(&looked_up.to_string_lossy()) || is_named(opened))
        };
        let wrong: Vec<_> = self.opened.iter().filter(is_wrong).collect();
        equal("opened, and not listed", wrong, vec![])?;
        let commands = ["env", "sleep"];
        let is_wrong = |path: &&String| {
            **path != self.program && !commands.iter().any(|name| Path::new(path.as_str()).ends_with(name))
        };
        equal("executed, and not listed", self.executed.iter().filter(is_wrong).collect::<Vec<_>>(), vec![])?;
        equal("what others prepared was executed", bait.folder.path().join("executed").exists(), false)
    }
}

/// Paths in the first column of the page's first table.
fn patterns(page: &str) -> Vec<String> {
    let section = page.split("\n## ").find(|section| section.starts_with("What root opens")).unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    rows.flat_map(|cell| cell.split('`').step_by(2).map(str::to_owned).collect::<Vec<_>>())
        .filter(|path| !path.is_empty())
        .collect()
}

type Calls = (BTreeSet<Opened>, BTreeSet<String>);

/// System calls of latpath's own processes. A process that has executed another program is the user's command.
fn calls(trace: &str) -> Calls {
    let (mut opened, mut executed) = Calls::default();
    let mut others = BTreeSet::new();
    let mut is_first = true;
    for line in trace.lines() {
        let Some((pid, call)) = line.split_once(' ') else { continue };
        let Some((name, rest)) = call.trim_start().split_once('(') else { continue };
        let path = rest.split('"').nth(1).unwrap_or_default().to_owned();
        if name.starts_with("exec") {
            let has_worked = rest.trim_end().ends_with("= 0");
            if has_worked && !others.contains(pid) {
                executed.insert(path);
                if !std::mem::take(&mut is_first) {
                    others.insert(pid);
                }
            }
        } else if (name.starts_with("open") || name == "creat") && !others.contains(pid) {
            let of_descriptor = |text: &str| {
                text.split_once('<').map_or("", |(_, rest)| rest.split('>').next().unwrap_or("")).to_owned()
            };
            let directory = rest
                .split('"')
                .next()
                .filter(|begin| !begin.starts_with("AT_FDCWD"))
                .map_or(String::new(), of_descriptor);
            let led_to = rest.rsplit_once("= ").map_or(String::new(), |(_, result)| of_descriptor(result));
            opened.insert(Opened { directory, path, led_to });
        }
    }
    (opened, executed)
}
