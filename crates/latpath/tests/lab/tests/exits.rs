//! Exits of a guest that makes a known number of them are counted exactly, as KVM itself counts them, and its vCPU's time is tiled
//! without gap or overlap.

use crate::{Outcome, Scale, Test};
use anyhow::{ensure, Context};
use latpath_lab::BareGuest;
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
};

pub const TEST: Test = Test { name: "exits", smoke: true, only_whole: false, seconds: 120, run };

const CPUIDS: u16 = 300;

fn run(scale: &Scale) -> Outcome {
    let outs = scale.frames(1000, 60_000) as u16;
    // Known beforehand, and made while it is watched.
    for known in [true, false] {
        let guest = known.then(BareGuest::new).transpose()?;
        let mut watching = Watching::start()?;
        let (ran, has_run) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        // The thread stays until all is read: KVM names the VM after it.
        let vcpu = thread::spawn(move || -> anyhow::Result<()> {
            let mut guest = guest.map_or_else(BareGuest::new, Ok)?;
            ran.send(guest.run(outs, CPUIDS)?)?;
            let _ = ended.recv();
            Ok(())
        });
        let returns = has_run.recv().map_err(|_| anyhow::anyhow!("the guest did not run to its end"));
        let seen = watching.end()?;
        drop(end);
        vcpu.join().map_err(|_| anyhow::anyhow!("the guest's thread panicked"))??;
        check(&seen, outs.into(), returns?.into()).with_context(|| format!("known beforehand: {known}: {seen}"))?;
    }
    Ok(())
}

fn check(seen: &Value, outs: u64, returns: u64) -> Outcome {
    let vms = seen["vms"].as_array().context("no list of VMs")?;
    let vm = vms.iter().find(|vm| vm["pid"] == std::process::id()).context("this VM is not among them")?;
    let all = &vm["all"];
    let count = |name: &str| {
        let reasons = all["reasons"].as_array().into_iter().flatten();
        reasons
            .filter(|reason| reason["reason"] == name)
            .map(|reason| reason["count"].as_u64().unwrap_or(0))
            .sum::<u64>()
    };
    ensure!(count("io") == outs, "{} exits for I/O, not {outs}", count("io"));
    ensure!(count("cpuid") == u64::from(CPUIDS), "{} exits for CPUID", count("cpuid"));
    // The guest's first instructions are fetched through its nested pages, which are empty.
    ensure!(count("npf") > 0, "no nested page fault");
    let number = |name: &str| all[name].as_u64().with_context(|| format!("no {name}"));
    ensure!(number("exits_to_qemu")? >= returns, "{} returns to user space", number("exits_to_qemu")?);
    ensure!(number("exits")? == number("entries")?, "{} exits of {} entries", number("exits")?, number("entries")?);
    let kvms = vm["kvm"]["exits"].as_u64().context("KVM's own counters are missing")?;
    ensure!(kvms == number("exits")?, "KVM counted {kvms} exits, latpath {}", number("exits")?);
    let vcpu = &vm["vcpus"][0];
    let tiles = vcpu["tiles"].as_object().context("no tiles")?;
    let sum: i64 = tiles.values().filter_map(Value::as_i64).sum();
    ensure!(Some(sum) == vcpu["window_ns"].as_i64(), "the tiles are {sum} ns of {}", vcpu["window_ns"]);
    for tile in ["guest_ns", "kvm_ns", "qemu_ns"] {
        ensure!(tiles[tile].as_i64() > Some(0), "no time for {tile}");
    }
    ensure!(seen["events_missed"] == 0 && seen["entries_without_room"] == 0, "events are missing");
    Ok(())
}

/// `latpath exits --json`, which watches.
struct Watching {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Watching {
    fn start() -> anyhow::Result<Self> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_latpath"))
            .args(["exits", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stderr = BufReader::new(child.stderr.take().context("no stderr")?);
        let mut said = String::new();
        while !said.contains("watching") {
            ensure!(stderr.read_line(&mut said)? > 0, "it ended: {said}");
        }
        Ok(Self { child, stderr })
    }

    fn end(&mut self) -> anyhow::Result<Value> {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), nix::sys::signal::Signal::SIGINT)?;
        let mut stdout = self.child.stdout.take().context("no stdout")?;
        let document = std::io::read_to_string(&mut stdout)?;
        let status = self.child.wait()?;
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.stderr, &mut said)?;
        ensure!(status.success(), "{status}: {said}");
        serde_json::from_str(&document).with_context(|| document)
    }
}
