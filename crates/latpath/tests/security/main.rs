//! Root opens and executes only the files that docs/security.md lists, even while others try to make it open and
//! execute more.

mod guest;
mod hostile;
mod trace;

use guest::Guest;
use hostile::{Bait, Container, User};
use latpath_run::Run;
use latpath_testkit::{equal, latpath, need_btf, need_root, need_tool, trial, Failed};
use std::path::Path;
use std::process::ExitCode;
use trace::Traced;

fn main() -> ExitCode {
    guest::run_if_asked();
    let needs = || {
        let tools = ["strace", "gcc", "objcopy", "unshare"].map(need_tool);
        [&[need_root(), need_btf()][..], &tools].concat()
    };
    // They run alone: ten hostile processes use all CPUs, and strace slows latpath down.
    latpath_testkit::main(vec![
        trial("a_profile_opens_and_executes_only_what_the_page_lists", &needs(), profile),
        trial("a_study_opens_and_executes_only_what_the_page_lists", &needs(), study),
        trial("a_recording_of_a_hostile_guest_opens_and_executes_only_what_the_page_lists", &needs(), record),
        trial("live_in_a_hostile_guest_opens_and_executes_only_what_the_page_lists", &needs(), live),
    ])
}

/// A profile of users and containers whose programs name files that belong to root, and of a guest that does the same.
fn profile() -> Result<(), Failed> {
    let bait = Bait::new()?;
    let _users = User::all(&bait)?;
    let containers = Container::all(&bait)?;
    let vm = Container::vm(&bait)?;
    let guest = Guest::start(&bait)?;
    let mut command = latpath("profile --json --machine");
    command.arg(format!("{}={}", vm.vm, guest.address)).arg("--in").arg(format!("{}={}", vm.vm, guest.address));
    let traced = Traced::run(command.args(["--", "lp-load"]))?;
    let names = User::NAMES.into_iter().chain(containers.iter().map(|container| &*container.name));
    let missing: Vec<&str> = names.filter(|name| !traced.stdout.contains(name)).collect();
    equal("processes that are not in the profile", missing, vec![])?;
    equal("what the guest prints is shown", traced.stdout.contains("$(touch"), true)?;
    traced.reads_files_of_others()?;
    traced.is_listed(&bait, &containers, &[])
}

/// A study of a container that pretends to be a VM, and of its guest.
fn study() -> Result<(), Failed> {
    let bait = Bait::new()?;
    let vm = Container::vm(&bait)?;
    let guest = Guest::start(&bait)?;
    let mut command = latpath("study vhost --repeat 1 --measure");
    command.arg(format!("a={}", vm.vm)).arg("--machine").arg(format!("{}={}", vm.vm, guest.address));
    let traced = Traced::run(command.args(["--", "sleep", "0.5"]))?;
    equal("the version is read", traced.stdout.contains(&format!("{} (made up)", hostile::VERSION)), true)?;
    traced.reads_files_of_others()?;
    traced.is_listed(&bait, &[], &[])
}

/// A recording of packets that only the guest sees, and the commands that read it.
fn record() -> Result<(), Failed> {
    let bait = Bait::new()?;
    let guest = Guest::start(&bait)?;
    let folder = tempfile::tempdir()?;
    let run = folder.path().join("run");
    let mut command = latpath("record --stream svid:lp-hostile --threshold 1ms --duration 4s --quiet -o");
    command.arg(&run).arg("--machine").arg(format!("guest0={}", guest.address));
    Traced::run(&mut command)?.is_listed(&bait, &[], &[&run])?;
    let recorded = Run::open(&run)?;
    equal(
        "journeys in the guest, and captures of it",
        recorded.journeys() > 100 && !recorded.spikes().files.is_empty(),
        true,
    )?;
    for words in ["report", "report --json", "explain"] {
        let traced = Traced::run(latpath(words).arg(&run))?;
        equal("what the guest names is in it", traced.stdout.contains("$(touch"), true)?;
        traced.is_listed(&bait, &[], &[&run])?;
    }
    let mut export = latpath("export perfetto");
    export.arg(&run).arg("-o").arg(folder.path().join("run.perfetto"));
    Traced::run(&mut export)?.is_listed(&bait, &[], &[folder.path()])
}

fn live() -> Result<(), Failed> {
    let bait = Bait::new()?;
    let guest = Guest::start(&bait)?;
    let mut command = latpath("live --json --stream svid:lp-hostile --threshold 1ms --duration 4s --machine");
    let traced = Traced::run(command.arg(format!("guest0={}", guest.address)))?;
    equal("what the guest names is shown", traced.stdout.contains("$(touch"), true)?;
    traced.is_listed(&bait, &[], &[] as &[&Path])
}
