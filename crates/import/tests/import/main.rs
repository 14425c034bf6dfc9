//! Imports files, and compares the runs with the packets, times and counts of a slow joiner.

mod captures;
mod interfaces;
mod lans;
mod reference;
mod sampled;
mod traces;
mod wrong;

use latpath_import::{import, ImportError, Options, Source};
use latpath_journey::Journey;
use latpath_model::Ns;
use latpath_run::{Manifest, Run, Select};
use std::{path::Path, sync::atomic::AtomicBool};
use tempfile::TempDir;

pub(crate) const PUB: &str = "publisher/tx@eth0";
pub(crate) const SUB: &str = "relay/app-read@relay";

/// A journey that owns its times.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Packet {
    pub(crate) stream: u16,
    pub(crate) key: u32,
    pub(crate) t: Vec<Option<Ns>>,
    pub(crate) duplicates: u32,
    pub(crate) out_of_order: bool,
}

impl Packet {
    fn of(j: &Journey) -> Self {
        let t = (0..j.t.len()).map(|p| j.at(p as u16)).collect();
        Self { stream: j.stream, key: j.key, t, duplicates: j.duplicates, out_of_order: j.out_of_order }
    }
}

pub(crate) struct Bench(TempDir);

impl Bench {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    pub(crate) fn options(&self, sources: &[(&str, &str)]) -> Options {
        let source =
            |(point, file): &(&str, &str)| format!("{point}={}", self.path(file).display()).parse::<Source>().unwrap();
        Options::new(sources.iter().map(source).collect())
    }

    pub(crate) fn import(&self, options: &Options) -> Result<(Manifest, Vec<Packet>), ImportError> {
        let run = self.path("run");
        let manifest = import(options, &run, &AtomicBool::new(false), |_| {})?;
        let packets = packets(&run);
        std::fs::remove_dir_all(&run).unwrap();
        Ok((manifest, packets))
    }
}

fn packets(run: &Path) -> Vec<Packet> {
    let (mut all, run) = (Vec::new(), Run::open(run).unwrap());
    let damaged = run.for_each(&Select::default(), |journey| {
        all.push(Packet::of(journey));
        true
    });
    assert!(damaged.is_empty());
    all.sort_by_key(|packet| packet.t.iter().flatten().min().copied());
    all
}
