//! Faults on one machine, without a guest: the application is in a namespace.

use crate::{
    play::{Play, Reader, CPU, ITS_CPU, ROUNDS},
    support::{program, trial, Lack},
};
use latpath_lab::{PUBLISHER, VETH};
use libtest_mimic::{Failed, Trial};

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial("host_hog", needs, hog),
        trial("host_crowd", needs, crowd),
        trial("host_storm", needs, storm),
        trial("host_flood", needs, flood),
        trial("host_sleeper", needs, sleeper),
        trial("host_burst", needs, burst),
        trial("host_gate", needs, gate),
    ]
}

fn hog() -> Result<(), Failed> {
    let mut play = Play::lay(false)?;
    play.begin(&Reader::URGENT)?;
    let truth = play.fault(&format!("hog cpu={CPU} fifo=50 {ROUNDS}"))?;
    let (seen, _) = play.end()?;
    eprintln!("{}", seen.delayed(&truth));
    Ok(())
}

fn crowd() -> Result<(), Failed> {
    let mut play = Play::lay(false)?;
    play.begin(&Reader::MEEK)?;
    let truth = play.fault(&format!("crowd cpu={CPU} threads=6 {ROUNDS}"))?;
    let (seen, _) = play.end()?;
    eprintln!("{}", seen.delayed(&truth));
    Ok(())
}

fn storm() -> Result<(), Failed> {
    let mut play = Play::lay(false)?;
    play.begin(&Reader::URGENT)?;
    let truth = play.fault(&format!("storm cpu={CPU} {ROUNDS}"))?;
    let (seen, _) = play.end()?;
    eprintln!("{}", seen.delayed(&truth));
    Ok(())
}

/// Other frames, which keep the softirq of the application's CPU busy.
fn flood() -> Result<(), Failed> {
    let mut play = Play::lay(false)?;
    let space = &play.bench.path.hypervisor;
    for words in ["link add lpf0 type veth peer name lpf1", "link set lpf0 up", "link set lpf1 up"] {
        space.ip(words)?;
    }
    crate::play::write_sysfs(space, "/sys/class/net/lpf1/queues/rx-0/rps_cpus", &format!("{:x}", 1 << CPU))?;
    play.begin(&Reader::URGENT)?;
    let truth = play.fault(&format!("flood cpu={ITS_CPU} device=lpf0 at=lpf1 frames=150 cost=100 {ROUNDS}"))?;
    let (seen, _) = play.end()?;
    eprintln!("{}", seen.delayed(&truth));
    Ok(())
}

fn sleeper() -> Result<(), Failed> {
    let mut play = Play::lay(false)?;
    play.begin(&Reader { rounds: ROUNDS, ..Reader::URGENT })?;
    std::thread::sleep(std::time::Duration::from_secs(5));
    let (seen, truth) = play.end()?;
    eprintln!("{}", seen.delayed(&truth));
    Ok(())
}

fn burst() -> Result<(), Failed> {
    let mut play = Play::lay(false)?;
    let other = format!("{}b", play.svid);
    play.begin_with(&Reader { work: 30, ..Reader::URGENT }, &format!("--stream svid:{other}"))?;
    let words = format!("publish,-i,{PUBLISHER},--svid,{other},--cpu,{ITS_CPU},--rate,max,--count,500,--dst,01:0c:cd:04:00:77");
    let words = format!("burst program={} words={words} {ROUNDS}", program().display());
    let truth = play.fault_in(&play.bench.path.publisher.clone(), &words)?;
    let (seen, _) = play.end()?;
    eprintln!("{}", seen.delayed(&truth));
    Ok(())
}

fn gate() -> Result<(), Failed> {
    let mut play = Play::lay(false)?;
    let space = &play.bench.path.hypervisor;
    let words = format!("qdisc add dev {VETH} root tbf rate 10gbit burst 4000 limit 4000000");
    crate::play::tc(space, &words)?;
    play.begin(&Reader::URGENT)?;
    let truth = play.fault(&format!("gate device={VETH} {ROUNDS}"))?;
    let (seen, _) = play.end()?;
    eprintln!("{}", seen.delayed(&truth));
    Ok(())
}
