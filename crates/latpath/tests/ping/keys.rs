//! The keys of `--json` equal those described in docs/json.md.

use crate::link::{is, need, Link};
use latpath_ping::document::{EmitDocument, ReflectDocument, SweepDocument};
use latpath_testkit::{equal, latpath, misfits, trial, Failed, Trial};
use serde::{de::DeserializeOwned, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub fn tests() -> Vec<Trial> {
    vec![trial("the_keys_of_json_are_those_in_the_docs", &need(), keys)]
}

/// Keys of objects by the object's path; "" is the root.
type Keys = BTreeMap<String, BTreeSet<String>>;

/// Returns the keys in the first columns of a section's tables, by path. The heading above a table names the paths that
/// the table describes.
fn described(title: &str) -> Result<Keys, Failed> {
    let docs = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md"))?;
    let (_, section) = docs.split_once(&format!("## `{title}`\n")).ok_or_else(|| format!("no section {title}"))?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let named = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_string).collect::<Vec<_>>();
    let (mut all, mut paths) = (Keys::new(), vec![String::new()]);
    for line in section.lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            paths = named(heading);
        } else if let Some(cell) = line.strip_prefix("| `").and_then(|l| l.split(" | ").next()) {
            let keys = named(&format!("`{cell}"));
            paths.iter().for_each(|path| all.entry(path.clone()).or_default().extend(keys.clone()));
        }
    }
    Ok(all)
}

/// Keys of an object and of the objects in it.
fn printed(value: &Value, at: &str, into: &mut Keys) {
    match value {
        Value::Object(all) => {
            // Paths are relative to the session.
            let within = at.strip_prefix("sessions[].").unwrap_or(at);
            into.entry(within.into()).or_default().extend(all.keys().cloned());
            for (key, value) in all {
                printed(value, &if at.is_empty() { key.clone() } else { format!("{at}.{key}") }, into);
            }
        }
        Value::Array(all) => all.iter().for_each(|value| printed(value, &format!("{at}[]"), into)),
        _ => {}
    }
}

/// Checks the output of a command, which is of type `T`, against the section `title` of the docs and against `latpath
/// schema SCHEMA`.
fn agree<T: Serialize + DeserializeOwned>(
    (title, schema): (&str, &str),
    text: &str,
    shared: &Keys,
) -> Result<(), Failed> {
    let (described, mut keys) = (described(title)?, Keys::new());
    let value: Value = serde_json::from_str(text)?;
    let schema: Value = serde_json::from_slice(&latpath(&format!("schema {schema}")).output()?.stdout)?;
    equal("deviations from the schema", misfits(&schema, &value), vec![])?;
    equal("read and printed again", &serde_json::to_value(serde_json::from_str::<T>(text)?)?, &value)?;
    printed(&value, "", &mut keys);
    for (path, printed) in &keys {
        let described =
            described.get(path).or_else(|| shared.get(path)).ok_or_else(|| format!("{title}: no table of {path}"))?;
        let (undescribed, unprinted): (Vec<_>, Vec<_>) =
            (printed.difference(described).collect(), described.difference(printed).collect());
        is(
            &format!("{title}, {path}: {undescribed:?} are not in the docs, {unprinted:?} only there"),
            undescribed.is_empty() && unprinted.is_empty(),
        )?;
    }
    is("there are keys", keys.len() > 2)
}

/// The keys of the same objects within a cell of a sweep, whose times lack the probes' sequence numbers.
fn within_cells(emitted: &Keys) -> Keys {
    let mut all: Keys = emitted.iter().map(|(path, keys)| (format!("cells[].{path}"), keys.clone())).collect();
    if let Some(keys) = all.get_mut("cells[].round_trip") {
        keys.retain(|key| !key.ends_with("_sequence"));
    }
    all
}

fn keys() -> Result<(), Failed> {
    let link = Link::new()?;
    let reflector =
        link.reflect("--stamps all --threshold 1ns --keep-going --bucket 1us --overflow 1ns --on-spike true")?;
    let log = link.lab.folder().join("log.csv");
    // Includes everything optional: a detail, a breach, a histogram with overflow, a log.
    let words = format!(
        "10.77.0.2 --count 50 --stamps all --detail --threshold 1ns --keep-going --bucket 1us --overflow 20us --on-spike true --log {}",
        log.display()
    );
    let emitted = described("latpath ping emit --json")?;
    agree::<EmitDocument>(("latpath ping emit --json", "ping-emit"), &link.emit(&words)?.stdout, &Keys::new())?;
    let sweep = link.emit("10.77.0.2 --count 5 --sweep-size 64,128 --sweep-rate 1k --sweep-rounds 1")?;
    let title = "latpath ping emit --sweep-size … --sweep-rate … --json";
    agree::<SweepDocument>((title, "ping-sweep"), &sweep.stdout, &within_cells(&emitted))?;
    agree::<ReflectDocument>(("latpath ping reflect --json", "ping-reflect"), &reflector.ends()?.stdout, &emitted)
}
