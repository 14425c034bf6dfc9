//! What root opens and executes while others try to have it open and execute more: only what docs/security.md lists.

mod hostile;
mod trace;

use hostile::{Bait, Container, User};
use latpath_testkit::{equal, latpath, need_btf, need_root, need_tool, trial, Failed};
use std::process::ExitCode;
use trace::Traced;

fn main() -> ExitCode {
    let needs = || {
        let tools = ["strace", "gcc", "objcopy", "unshare"].map(need_tool);
        [&[need_root(), need_btf()][..], &tools].concat()
    };
    latpath_testkit::main(vec![
        trial("a_profile_opens_and_executes_only_what_the_page_lists", &needs(), profile).side_by_side(),
        trial("a_study_opens_and_executes_only_what_the_page_lists", &needs(), study).side_by_side(),
    ])
}

/// A profile of users whose programs name files of root's.
fn profile() -> Result<(), Failed> {
    let bait = Bait::new()?;
    let _users = User::all(&bait)?;
    let _container = Container::start(&bait, "lp-no-vm")?;
    let traced = Traced::run(latpath("profile --duration 2s --json"))?;
    let names: Vec<&str> = User::NAMES.into_iter().filter(|name| !traced.stdout.contains(name)).collect();
    equal("users that are not in the profile", names, vec![])?;
    traced.is_listed(&bait)
}

/// A study of a container that calls itself a VM.
fn study() -> Result<(), Failed> {
    let bait = Bait::new()?;
    let container = Container::start(&bait, "qemu-system-x86_64")?;
    let mut command = latpath("study vhost --repeat 1 --vm");
    command.arg(format!("a={}", container.vm)).args(["--", "sleep", "0.5"]);
    let traced = Traced::run(command)?;
    equal("the version is read", traced.stdout.contains(&format!("{} (made up)", hostile::VERSION)), true)?;
    traced.is_listed(&bait)
}
