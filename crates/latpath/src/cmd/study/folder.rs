//! The directory of a study's measurements.

use anyhow::{anyhow, bail, Context, Result};
use latpath_export::{write_file, write_file_in};
use latpath_linux::{read_text, why_shared, Directory};
use latpath_observe::study::Configuration;
use latpath_report::cpu_profile::{flame_graph, flame_graph_of_difference};
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Maximum size of a configuration's file, bytes.
const MAX_BYTES: u64 = 64 << 20;

/// The configurations of an earlier study, in the order of measurement.
pub fn kept(folder: &Path) -> Result<Vec<Configuration>> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut files: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
        .collect();
    files.sort();
    let read = |(_, path): (_, PathBuf)| {
        let text = read_text(&path, MAX_BYTES).with_context(|| format!("{}", path.display()))?;
        Configuration::read(&text).map_err(|why| anyhow!("{} is no configuration of a study: {why}", path.display()))
    };
    files.into_iter().map(read).collect()
}

/// Creates the directory, or opens an existing one in which no other user can write.
pub fn take_folder(path: &Path) -> Result<Directory> {
    let taken = || match Directory::make(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => match why_shared(path)? {
            Some(why) => Ok(Err(why)),
            None => {
                let folder = Directory::open(path)?;
                // Checks again: the path may be another directory by now.
                Ok(folder.why_shared()?.map_or(Ok(folder), Err))
            }
        },
        made => made.map(Ok),
    };
    match taken().with_context(|| format!("{}", path.display()))? {
        Err(why) => bail!("{}: {why}, who could put links into it: name another directory with -o", path.display()),
        Ok(folder) => Ok(folder),
    }
}

/// Writes a configuration: its figures, and its profile for other tools.
pub fn keep(folder: &Directory, one: &Configuration) -> Result<()> {
    let write = |extension: &str, text: &str| write_in(folder, &format!("{}.{extension}", one.name), text);
    if let Some(part) = &one.profile {
        write("profile", &part.figures.kept)?;
    }
    if let Some(profile) = one.profile().filter(|profile| !profile.stacks.is_empty()) {
        write("svg", &flame_graph(&profile).context("drawing the flame graph")?)?;
    }
    write("json", &(serde_json::to_string(one)? + "\n"))
}

/// Draws differential flame graphs of the first configuration and each other one, in both directions, because a call
/// chain has no width on a side that lacks it.
pub fn draw_differences(folder: &Directory, all: &[Configuration]) -> Result<()> {
    let profiles = all.iter().filter_map(|one| Some((&one.name, one.profile().filter(|p| !p.stacks.is_empty())?)));
    let profiles: Vec<_> = profiles.collect();
    let Some((first, others)) = profiles.split_first() else { return Ok(()) };
    for (before, after) in others.iter().flat_map(|other| [(first, other), (other, first)]) {
        let svg = flame_graph_of_difference(&before.1, &after.1).context("drawing the flame graph")?;
        write_in(folder, &format!("{}-to-{}.svg", before.0, after.0), &svg)?;
    }
    Ok(())
}

fn write_in(folder: &Directory, name: &str, text: &str) -> Result<()> {
    let written = write_file_in(folder, OsStr::new(name), true, |out| out.write_all(text.as_bytes()));
    written.with_context(|| format!("{}", folder.join(name).display()))
}

pub fn write(file: &Path, force: bool, text: &str) -> Result<()> {
    write_file(file, force, |out| out.write_all(text.as_bytes())).with_context(|| format!("{}", file.display()))
}
