//! latpath under strace: what it opened and executed.

use crate::hostile::Bait;
use latpath_testkit::{equal, Failed};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md");

pub struct Traced {
    pub stdout: String,
    /// All paths that were asked for, as they were named, and what each led to.
    opened: BTreeSet<(String, String)>,
    executed: BTreeSet<String>,
    program: String,
}

impl Traced {
    pub fn run(command: Command) -> Result<Self, Failed> {
        let trace = tempfile::NamedTempFile::new()?;
        let mut strace = Command::new("strace");
        strace
            .args(["-f", "-y", "-s", "4096", "-e", "trace=?open,openat,openat2,?creat,execve,execveat", "-o"])
            .arg(trace.path());
        // Of cargo's: where the toolchain's libraries are.
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

    /// Whether the page lists all of it, and nothing led to the bait.
    pub fn is_listed(&self, bait: &Bait) -> Result<(), Failed> {
        let patterns = patterns(&fs::read_to_string(PAGE)?);
        let is_listed = |path: &str| {
            patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(begin) => path.starts_with(begin) || path == begin.trim_end_matches('/'),
                None => path == pattern,
            })
        };
        let folder = bait.folder.path().to_string_lossy().into_owned();
        let is_wrong = |(path, led_to): &&(String, String)| {
            !is_listed(path) || path.contains("..") || path.contains(&folder) || led_to.contains(&folder)
        };
        let wrong: Vec<_> = self.opened.iter().filter(is_wrong).collect();
        let has_files = self.opened.iter().any(|(path, _)| path.ends_with("/exe") || path.contains("/map_files/"));
        equal("files of others are in the trace", has_files, true)?;
        equal("opened, and not listed", wrong, vec![])?;
        let named = ["env", "sleep"];
        let is_named = |path: &&String| {
            **path != self.program && !named.iter().any(|name| Path::new(path.as_str()).ends_with(name))
        };
        equal("executed, and not listed", self.executed.iter().filter(is_named).collect::<Vec<_>>(), vec![])?;
        equal("the hostile program ran as root", bait.folder.path().join("executed").exists(), false)
    }
}

/// Paths in the first columns of the page's first table.
fn patterns(page: &str) -> Vec<String> {
    let section = page.split("\n## ").find(|section| section.starts_with("What root opens")).unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    rows.flat_map(|cell| cell.split('`').step_by(2).map(str::to_owned).collect::<Vec<_>>())
        .filter(|path| !path.is_empty())
        .collect()
}

type Calls = (BTreeSet<(String, String)>, BTreeSet<String>);

/// What latpath's own processes did: those that have executed something else are the user's command.
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
            let led_to = rest.rsplit_once("= ").map_or("", |(_, result)| result);
            opened.insert((path, led_to.split_once('<').map_or("", |(_, path)| path.trim_end_matches('>')).to_owned()));
        }
    }
    (opened, executed)
}
