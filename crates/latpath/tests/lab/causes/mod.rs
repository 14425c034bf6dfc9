//! Does latpath blame the right one? Faults are made on purpose among normal traffic, each at least 20 times, and what
//! `latpath explain` says of the late packets is compared with what was really done, which the fault itself wrote down.
//!
//! The test program is also each of the faults ([`fault`]): started again, on the host or in the guest.

pub mod application;
pub mod blame;
pub mod fault;
pub mod fixed;
mod fixes;
pub mod group;
mod in_guest;
mod on_host;
mod scenario;
mod stalls;
pub mod storm;
pub mod verdict;

use latpath_testkit::{need_btf, need_guest, need_lab, Lack, Trial};

/// Tests that need no virtual machine, or the guest of the demo. But for those of commands that are advised, they take long.
pub fn trials() -> Vec<Trial> {
    let host = [need_lab(), need_btf(), need_two_cpus()];
    let guest = [&host[..], &[need_guest()]].concat();
    let faults = on_host::trials(&host).into_iter().chain(in_guest::trials(&guest)).chain(fixed::trials(&host, &guest));
    fixes::trials().into_iter().chain(faults.map(Trial::in_lab)).collect()
}

/// The publisher keeps one, the victim and its fault are on the other.
fn need_two_cpus() -> Lack {
    let usable = |cpu: &usize| latpath_traffic::kernel::pin(*cpu).is_ok();
    let count = std::thread::spawn(move || [0, 1].iter().filter(|c| usable(c)).count()).join();
    (count.unwrap_or(0) < 2).then(|| "needs CPUs 0 and 1".into())
}
