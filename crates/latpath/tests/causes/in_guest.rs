//! Faults on the way into a guest and in it.

use crate::{
    play::{need_group, Group, Play, Reader, CPU, ITS_CPU, ROUNDS},
    support::{trial, Lack},
};
use libtest_mimic::{Failed, Trial};

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    let _ = need_group();
    vec![trial("guest_all", needs, all)]
}

fn all() -> Result<(), Failed> {
    let mut play = Play::lay(true)?;
    let qemu = play.qemu()?;
    let pid = qemu.pid;
    qemu.pin(CPU, ITS_CPU)?;
    qemu.urgent(10)?;
    for (name, words) in [
        ("hog", format!("hog cpu={CPU} fifo=50 {ROUNDS}")),
        ("stop", format!("stop pid={pid} {ROUNDS}")),
        ("vcpu", format!("hog cpu={ITS_CPU} fifo=50 {ROUNDS}")),
    ] {
        play.begin(&Reader::URGENT)?;
        let truth = play.fault(&words)?;
        let (seen, _) = play.end()?;
        eprintln!("{name}: {}", seen.delayed(&truth));
    }
    for (name, words) in [
        ("guest hog", format!("hog cpu={CPU} fifo=50 {ROUNDS}")),
        ("guest crowd", format!("crowd cpu={CPU} threads=4 {ROUNDS}")),
    ] {
        play.begin(if name == "guest hog" { &Reader::URGENT } else { &Reader::MEEK })?;
        let truth = play.fault_in_guest(&words)?;
        let (seen, _) = play.end()?;
        eprintln!("{name}: {}", seen.delayed(&seen.in_host_time(&truth)));
    }
    qemu.urgent(0)?;
    let group = Group::new()?;
    group.take(pid)?;
    play.begin(&Reader::URGENT)?;
    let truth = play.fault(&format!("throttle group={} {ROUNDS}", group.path().display()))?;
    let (seen, _) = play.end()?;
    eprintln!("throttle: {}", seen.delayed(&truth));
    Ok(())
}
