//! Checks which files root writes while another user, who owns the parent directory of the run, replaces the run's
//! directory with links.

use crate::{equal, own, publish, until, Recorder, LIMIT, PATIENT};
use latpath_run::{Run, JOURNEYS, MANIFEST, MARKS, SPIKES};
use latpath_testkit::{bench, need_tool, trial, Failed, Lack, Trial};
use std::collections::BTreeMap;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::{fs, io};

const NOBODY: u32 = 65534;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    let needs = [needs, &[need_tool("strace"), need_tool("setpriv")]].concat();
    vec![trial("nothing_is_written_outside_of_a_run_whose_directory_is_exchanged", &needs, exchanged)]
}

/// A process of another user that repeatedly swaps the run's directory and a link.
struct Exchanger(Child);

impl Exchanger {
    fn start(home: &Path, victim: &Path) -> io::Result<Self> {
        let turn =
            format!("mv -T run moved && ln -s {} run; sleep 0.1; rm run; mv -T moved run; sleep 0.1", victim.display());
        let mut command = Command::new("setpriv");
        let user = NOBODY.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "sh", "-c"]);
        command.arg(format!("while :; do {turn}; done")).current_dir(home).spawn().map(Self)
    }
}

impl Drop for Exchanger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn files(directory: &Path) -> io::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        match path.is_dir() {
            true => all.extend(files(&path)?),
            false => drop(all.insert(path.clone(), fs::read(&path)?)),
        }
    }
    Ok(all)
}

/// The system calls in a trace that create, change or remove a file by its path: the directory in which the path is
/// resolved, and the path.
fn writes(trace: &str) -> Vec<(String, String)> {
    let is_write = |call: &str| {
        !call.contains("openat(") || ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC"].iter().any(|flag| call.contains(flag))
    };
    let mut all = Vec::new();
    for call in trace.lines().filter(|call| call.contains('(') && call.contains('"') && is_write(call)) {
        let Some((_, arguments)) = call.split_once('(') else { continue };
        let directory = arguments.split_once('<').filter(|(before, _)| !before.contains('"'));
        let directory = directory.and_then(|(_, rest)| Some(rest.split_once('>')?.0)).unwrap_or_default();
        let path = arguments.split('"').nth(1).unwrap_or_default();
        all.push((directory.to_owned(), path.to_owned()));
    }
    all
}

fn exchanged() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("exchanged");
    let (home, victim) = (bench.lab.folder().join("home"), bench.lab.folder().join("victim"));
    let trace = bench.lab.folder().join("trace");
    fs::create_dir(&home)?;
    chown(&home, Some(NOBODY), Some(NOBODY))?;
    for folder in [JOURNEYS, SPIKES] {
        fs::create_dir_all(victim.join(folder))?;
    }
    let names = [MANIFEST, "clocks.jsonl", "sync.jsonl", MARKS, "vms.json", ".reserve", "trace.txt"].map(PathBuf::from);
    let parts = (0..60).map(|n| Path::new(JOURNEYS).join(format!("part-{n:08}.parquet")));
    for name in names.into_iter().chain(parts) {
        fs::write(victim.join(name), "mine")?;
    }
    let before = files(&victim)?;

    let run = home.join("run");
    let recorder = Recorder::start_at(&bench, run.clone(), &format!("--stream svid:{svid} {PATIENT} --duration 12s"))?;
    let mut tracer = Command::new("strace");
    let calls = "trace=openat,creat,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,link,linkat,symlink,symlinkat,truncate,chmod,fchmodat,execve";
    tracer.args(["-f", "-qq", "-y", "-e", calls, "-o"]).arg(&trace).args(["-p", &recorder.process.pid().to_string()]);
    let mut tracer = tracer.spawn()?;
    until("it is traced", || fs::metadata(&trace).is_ok())?;
    let exchanger = Exchanger::start(&home, &victim)?;
    publish(&bench, &format!("--svid {svid} --count 20000"))?;
    let ended = recorder.process.finish(LIMIT)?;
    drop(exchanger);
    tracer.wait()?;
    let is_told = ended.code == Some(0) || ended.stderr.contains("somebody renamed");
    equal(&format!("its end ({})", ended.stderr), is_told, true)?;

    equal("what the links led to is as it was", files(&victim)? == before, true)?;
    let moved = home.join("moved");
    let own = if moved.is_dir() { moved } else { run };
    let opened = Run::open(&own)?;
    equal("journeys", opened.journeys(), 20_000)?;
    let trace = fs::read_to_string(&trace)?;
    let home = home.display().to_string();
    // As docs/record.md states, root writes only its run, whose directory is always within `home`.
    let wrong = |(directory, path): &(String, String)| path.starts_with('/') || !directory.starts_with(&home);
    let writes = writes(&trace);
    let wrong: Vec<_> = writes.iter().filter(|write| wrong(write)).collect();
    equal(&format!("written by a path elsewhere: {wrong:?}"), wrong.is_empty(), true)?;
    equal("renamed within the run", writes.iter().any(|(_, path)| path.contains("manifest.json")), true)?;
    equal("programs that it started", trace.contains("execve("), false)
}
