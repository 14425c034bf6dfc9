//! Tests whether latpath blames the actual culprit. The tests inject faults into normal traffic, each at least 20
//! times, and compare the causes that `latpath explain` gives for late packets with the injections, as recorded by the
//! fault itself.
//!
//! The test program also contains the faults ([`fault`]): it is started again for each of them, on the host or in
//! the guest.

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

/// Tests that need no virtual machine, or only the demo's guest. All take long, except those of advised commands.
pub fn trials() -> Vec<Trial> {
    let host = [need_lab(), need_btf(), need_two_cpus()];
    let guest = [&host[..], &[need_guest()]].concat();
    let faults = on_host::trials(&host).into_iter().chain(in_guest::trials(&guest)).chain(fixed::trials(&host, &guest));
    fixes::trials().into_iter().chain(faults.map(Trial::in_lab)).collect()
}

/// The publisher has one CPU, the victim and its fault the other.
fn need_two_cpus() -> Lack {
    let usable = |cpu: &usize| latpath_wire::thread::pin(*cpu).is_ok();
    let count = std::thread::spawn(move || [0, 1].iter().filter(|c| usable(c)).count()).join();
    (count.unwrap_or(0) < 2).then(|| "needs CPUs 0 and 1".into())
}
