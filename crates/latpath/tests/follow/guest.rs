//! `latpath live` into a guest: two machines with two clocks, in one line of figures.

use crate::{equal, own, LIMIT};
use latpath_lab::{Application, GuestPlan, Lab, GUEST_DEVICE, PUBLISHER};
use latpath_stats::Summary;
use latpath_testkit::waits::until_within;
use latpath_testkit::{boot, latpath, trial, Lack};
use latpath_testkit::{Failed, Trial};
use nix::sys::signal::Signal;
use std::fs::{self, File};
use std::process::Stdio;
use std::time::Duration;

const NEVER: &dyn Fn() -> bool = &|| false;
/// Time limit, for a guest emulated on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![trial("live_follows_into_the_guest_and_says_when_it_cannot_any_more", needs, into_the_guest)]
}

fn into_the_guest() -> Result<(), Failed> {
    let lab = Lab::new()?;
    let path = lab.lay(Application::Guest)?;
    let program = env!("CARGO_BIN_EXE_latpath").into();
    let plan = GuestPlan { programs: vec![(program, "/bin/latpath".into())], ..GuestPlan::default() };
    let mut guest = boot(&lab, &path, &plan)?;
    let svid = own("deep");
    guest.start("agent", "latpath agent --device /dev/virtio-ports/latpath.agent", true, NEVER)?;
    guest.start("subscribe", &format!("latpath subscribe -i {GUEST_DEVICE} --stream svid:{svid}"), false, NEVER)?;

    let (stdout, stderr) = (lab.folder().join("live.out"), lab.folder().join("live.err"));
    let agent = guest.agent_socket().display();
    let mut live = latpath(&format!("live --json --stream svid:{svid} --machine guest0=unix:{agent}"));
    live.stdin(Stdio::null()).stdout(File::create(&stdout)?).stderr(File::create(&stderr)?);
    let mut live = path.hypervisor.start(live, Signal::SIGKILL)?;
    // A rate low enough for any machine that emulates the guest.
    let mut publish = latpath(&format!("publish -i {PUBLISHER} --svid {svid} --rate 500 --duration 1000s"));
    publish.stdout(Stdio::null()).stderr(Stdio::null());
    let publish = path.publisher.start(publish, Signal::SIGKILL)?;

    let last = || -> Option<Summary> {
        let text = fs::read_to_string(&stdout).ok()?;
        // The last line may be incomplete.
        serde_json::from_str(text.rsplit_once('\n')?.0.lines().last()?).ok()
    };
    let said = || fs::read_to_string(&stderr).unwrap_or_default();
    let route = [
        "host/tx@lp-pub".to_string(),
        "host/nic-rx@nic0".into(),
        "host/tx@vnet0".into(),
        "host/vm-read@vnet0".into(),
        format!("guest0/nic-rx@{GUEST_DEVICE}"),
        "guest0/app-read@subscribe".into(),
    ];
    let mut shown = None;
    until_within(PATIENCE, "the route into the guest is known and packets are counted", || {
        shown = last().filter(|f| f.complete > 1000 && f.points.iter().map(ToString::to_string).eq(route.clone()));
        shown.is_some()
    })
    .map_err(|e| Failed::from(format!("{e:?}; live said: {}; it printed last: {:?}", said(), last())))?;
    let figures = shown.ok_or("live printed nothing")?;
    let clock = figures.machines.iter().find(|m| m.machine == "guest0").ok_or("guest0's clock is not shown")?;
    let of = |name: &str| figures.segments.iter().find(|s| s.name == name).ok_or(format!("no {name}"));
    // A time across two machines has the clock's error bound; a time on one machine has none.
    let bounds = [of("Thyp")?, of("Tnet")?, of("Tsub")?].map(|segment| segment.error_bound_ns);
    equal("bounds of Thyp, Tnet and Tsub", bounds, [clock.error_bound_ns, 0, 0])?;
    equal("journeys of total", of("total")?.times.count, figures.complete)?;

    // After the guest has ended, live reports that and continues with the remaining points.
    drop(guest);
    until_within(PATIENCE, "live says that the guest is gone", || {
        last().is_some_and(|f| f.machines.iter().any(|m| m.machine == "guest0" && m.fault.is_some()))
    })?;
    let before = last().ok_or("nothing printed")?.elapsed_ns;
    until_within(PATIENCE, "live goes on", || last().is_some_and(|f| f.elapsed_ns != before))?;
    live.signal(Signal::SIGINT);
    let ended = live.wait(LIMIT)?;
    drop(publish);
    equal("live's exit code", ended.and_then(|s| s.code()), Some(0))?;
    Ok(())
}
