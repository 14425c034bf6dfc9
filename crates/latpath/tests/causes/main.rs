//! Does latpath blame the right one? Faults are made on purpose among normal traffic, each at least 20 times, and what
//! `latpath explain` says of the late packets is compared with what was really done, which the fault itself wrote down.
//!
//! This program is also each of the faults ([`fault`]): started anew, on the host or in the guest.

#[path = "../support/mod.rs"]
mod support;

mod application;
// The lab's tests use these too.
#[allow(dead_code)]
mod blame;
mod cures;
#[allow(dead_code)]
mod fault;
mod group;
mod in_guest;
mod on_host;
mod play;
mod storm;
#[allow(dead_code)]
mod verdict;

use std::process::ExitCode;
use support::{need_btf, need_guest, need_lab, Lack};

fn main() -> ExitCode {
    if let Some(code) = fault::main() {
        return code;
    }
    let host = [need_lab(), need_btf(), need_two_cpus()];
    let mut tests = on_host::trials(&host);
    let guest = [&host[..], &[need_guest()]].concat();
    tests.extend(in_guest::trials(&guest));
    tests.extend(cures::trials());
    support::main(tests)
}

/// The publisher keeps one, the victim and its fault are on the other.
fn need_two_cpus() -> Lack {
    let usable = |cpu: &usize| latpath_traffic::kernel::pin(*cpu).is_ok();
    let count = std::thread::spawn(move || [0, 1].iter().filter(|c| usable(c)).count()).join();
    (count.unwrap_or(0) < 2).then(|| "needs CPUs 0 and 1".into())
}
