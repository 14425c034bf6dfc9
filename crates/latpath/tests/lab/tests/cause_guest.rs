//! Causes of late packets in a guest under KVM: faults in the guest.

use crate::{
    blame::{self, Blame},
    faults::{all, goes_on, in_guest, listen, listen_no_more, myself, record_during, IN_GUEST, ROUNDS, THRESHOLD},
    stage::{Reach, Stage},
    Outcome, Scale, Test,
};
use latpath_lab::Switch;
use std::time::Duration;

pub const TEST: Test = Test { name: "cause_guest", smoke: false, only_whole: true, seconds: 700, run };

fn run(_: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.boot_guest_with(Reach::Serial, vec![(myself()?, IN_GUEST.into())])?;
    let mut outcomes = Vec::new();

    listen(&mut stage, "fifo=0 nice=0 work=0 times=0 busy=0 every=0 after=1")?;
    let (seen, _) = record_during(&mut stage, THRESHOLD, |stage| goes_on(stage, 2_500).map(|()| Vec::new()))?;
    outcomes.push(seen.expect_no_fault());
    let mut fault = |stage: &mut Stage, words: &str, blame: &Blame| -> Outcome {
        let (seen, truth) = record_during(stage, THRESHOLD, |stage| in_guest(stage, words))?;
        outcomes.push(seen.expect(&seen.in_host_time(&truth), blame));
        Ok(())
    };
    fault(&mut stage, "hog cpu=0 fifo=50", &blame::GUEST_HOG)?;
    fault(&mut stage, "crowd cpu=0 threads=6", &blame::GUEST_CROWD)?;
    fault(&mut stage, "storm cpu=0 period=1000 piece=20000", &blame::GUEST_STORM)?;
    listen_no_more(&mut stage)?;

    listen(&mut stage, &format!("fifo=10 nice=0 work=0 {ROUNDS} after=5"))?;
    let (seen, _) = record_during(&mut stage, THRESHOLD, |_| {
        // The application's faults take this long in total.
        latpath_testkit::waits::fault_for(Duration::from_secs(25));
        Ok(Vec::new())
    })?;
    let truth = listen_no_more(&mut stage)?;
    outcomes.push(seen.expect(&seen.in_host_time(&truth), &blame::GUEST_SLEEPER));
    all(outcomes)
}
