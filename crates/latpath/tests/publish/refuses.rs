//! Errors: devices, permissions, ends of runs.

use crate::bench::{document, Pair, Result};
use crate::{Needs, Test};
use latpath_testkit::equal;
use latpath_testkit::waits::{until, LIMIT};
use latpath_traffic::document::PublishDocument;

pub const TESTS: &[Test] = &[
    ("a device that is not there is named, with those that are", Needs::Root, no_device),
    ("a device that vanishes ends each command with 1 and its name", Needs::Root, vanishes),
    ("a frame that does not fit the device says so", Needs::Root, too_long),
    ("a NIC without times of packets is refused where they are asked for", Needs::Root, no_nic_times),
    ("Ctrl-C ends a publisher with its summary", Needs::Root, interrupted),
    ("a cpu that is not there is named", Needs::Root, no_cpu),
    ("a rate beyond all reach ends after --duration all the same", Needs::Root, gives_up),
];

/// Waits until frames are published on lpa.
fn sends(pair: &Pair) -> Result<()> {
    until("the publisher to send", || pair.received("lpb").is_ok_and(|frames| frames > 0))
}

fn no_device() -> Result<()> {
    let pair = Pair::new()?;
    for command in ["publish", "subscribe", "streams"] {
        let out = {
            let name: &[&str] = if command == "publish" { &["--svid", "MU01"] } else { &[] };
            pair.latpath("lpa", &[&[command, "-i", "absent7"], name].concat())
        }?;
        equal("exit code", out.code, Some(1))?;
        equal(command, out.stderr.as_str(), "latpath: absent7: no such device (devices here: lo, lpa)\n")?;
    }
    Ok(())
}

fn vanishes() -> Result<()> {
    let pair = Pair::new()?;
    let subscribers = [
        &["subscribe", "-i", "lpb"][..],
        &["subscribe", "-i", "lpb", "--ring"],
        &["streams", "-i", "lpb", "--duration", "60s"],
    ];
    let mut running =
        subscribers.iter().map(|args| pair.listen("lpb", args).map(|r| (r, "lpb"))).collect::<Result<Vec<_>>>()?;
    let publisher = pair.start("lpa", &["publish", "-i", "lpa", "--svid", "MU01"])?;
    running.push((publisher, "lpa"));
    sends(&pair)?;
    pair.remove_devices()?;
    for (command, device) in running {
        let out = command.finish(LIMIT)?;
        equal("exit code", out.code, Some(1))?;
        equal("error", out.stderr.clone(), format!("latpath: {device}: the device vanished\n"))?;
        equal("the summary is there all the same", out.stdout.is_empty(), false)?;
    }
    Ok(())
}

fn no_nic_times() -> Result<()> {
    let pair = Pair::new()?;
    let publish = ["publish", "-i", "lpa", "--svid", "MU01", "--count", "1"];
    for pace in [["--cycle", "1ms"], ["--rate", "1000"]] {
        let out = pair.latpath("lpa", &[&publish[..], &pace, &["--stamps", "nic"]].concat())?;
        equal("exit code", out.code, Some(1))?;
        equal(&out.stderr, out.stderr.contains("--stamps nic: lpa: its driver has no times of sent"), true)?;
    }
    for command in ["subscribe", "streams"] {
        let out = pair.latpath("lpb", &[command, "-i", "lpb", "--stamps", "nic", "--duration", "1s"])?;
        equal("exit code", out.code, Some(1))?;
        equal(&out.stderr, out.stderr.contains("--stamps nic: lpb: its driver has no times of received"), true)?;
    }
    let out = pair.latpath("lpb", &["subscribe", "-i", "lpb", "--ring", "--stamps", "nic"])?;
    equal("exit code", out.code, Some(2))?;
    equal(&out.stderr, out.stderr.contains("--ring"), true)
}

fn too_long() -> Result<()> {
    let pair = Pair::new()?;
    let svid = "x".repeat(129);
    let out =
        pair.latpath("lpa", &["publish", "-i", "lpa", "--profile", "9-2le-50-meas", "--svid", &svid, "--count", "1"])?;
    equal("exit code", out.code, Some(1))?;
    equal(&out.stderr, out.stderr.contains("MTU"), true)
}

fn interrupted() -> Result<()> {
    let pair = Pair::new()?;
    let running = pair.start("lpa", &["publish", "-i", "lpa", "--svid", "MU01", "--json"])?;
    sends(&pair)?;
    running.interrupt();
    let sent: PublishDocument = document("publish", &running.finish(LIMIT)?.json()?)?;
    equal("frames", sent.frames_sent > 0, true)?;
    equal("no frame was sent before its deadline", sent.pacing.min_ns() >= Some(0), true)?;
    equal("each has a pacing error", sent.pacing.count, sent.frames_sent)
}

fn no_cpu() -> Result<()> {
    let pair = Pair::new()?;
    let out = pair.latpath("lpa", &["publish", "-i", "lpa", "--svid", "MU01", "--cpu", "1000", "--count", "1"])?;
    equal("exit code", out.code, Some(1))?;
    let error = out.stderr.clone();
    equal(&error, error.contains("CPU 1000: Invalid argument (CPUs that this process may use: "), true)?;
    equal("the cause is said once", error.matches("Invalid argument").count(), 1)
}

fn gives_up() -> Result<()> {
    let pair = Pair::new()?;
    let sent = pair.publish(&["--rate", "100000000", "--duration", "1s"])?;
    equal("gave up", sent.gave_up, true)?;
    equal("sent fewer than were due", sent.frames_sent < 100_000_000, true)
}
