//! What goes wrong: devices, rights, ends.

use crate::bench::{json, same, until, Pair, Result};
use crate::{Needs, Test};
use serde_json::json;
use std::process::Output;

pub const TESTS: &[Test] = &[
    ("a device that is not there is named, with those that are", Needs::Root, no_device),
    ("a device that vanishes ends each command with 1 and its name", Needs::Root, vanishes),
    ("a frame that does not fit the device says so", Needs::Root, too_long),
    ("Ctrl-C ends a publisher with its summary", Needs::Root, interrupted),
    ("a cpu that is not there is named", Needs::Root, no_cpu),
    ("a rate beyond all reach ends after --duration all the same", Needs::Root, gives_up),
];

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Waits until something is published on lpa.
fn sends(pair: &Pair) -> Result<()> {
    until("the publisher to send", || pair.received("lpb").is_ok_and(|frames| frames > 0))
}

fn no_device() -> Result<()> {
    let pair = Pair::new()?;
    for command in ["publish", "subscribe", "streams"] {
        let out = {
            let name: &[&str] = if command == "publish" { &["--svid", "MU01"] } else { &[] };
            pair.latpath("lpa", &[&[command, "-i", "vnet7"], name].concat())
        }?;
        same("exit code", out.status.code(), Some(1))?;
        same(command, stderr(&out).as_str(), "latpath: vnet7: no such device (devices here: lo, lpa)\n")?;
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
        let out = command.wait()?;
        same("exit code", out.status.code(), Some(1))?;
        same("error", stderr(&out), format!("latpath: {device}: the device vanished\n"))?;
        same("the summary is there all the same", out.stdout.is_empty(), false)?;
    }
    Ok(())
}

fn too_long() -> Result<()> {
    let pair = Pair::new()?;
    let svid = "x".repeat(129);
    let out =
        pair.latpath("lpa", &["publish", "-i", "lpa", "--profile", "9-2le-50-meas", "--svid", &svid, "--count", "1"])?;
    same("exit code", out.status.code(), Some(1))?;
    same(&stderr(&out), stderr(&out).contains("MTU"), true)
}

fn interrupted() -> Result<()> {
    let pair = Pair::new()?;
    let running = pair.start("lpa", &["publish", "-i", "lpa", "--svid", "MU01", "--json"])?;
    sends(&pair)?;
    running.signal("INT")?;
    let sent = json(&running.wait()?)?;
    same("frames", sent["frames_sent"].as_u64() > Some(0), true)?;
    same("no frame was sent before its deadline", sent["pacing_min_ns"].as_i64() >= Some(0), true)?;
    same("each has a pacing error", &sent["pacing_count"], &json!(sent["frames_sent"]))
}

fn no_cpu() -> Result<()> {
    let pair = Pair::new()?;
    let out = pair.latpath("lpa", &["publish", "-i", "lpa", "--svid", "MU01", "--cpu", "1000", "--count", "1"])?;
    same("exit code", out.status.code(), Some(1))?;
    let error = stderr(&out);
    same(&error, error.contains("CPU 1000: Invalid argument (os error 22) (CPUs that this process may use: "), true)?;
    same("the cause is said once", error.matches("Invalid argument").count(), 1)
}

fn gives_up() -> Result<()> {
    let pair = Pair::new()?;
    let sent = pair.publish(&["--rate", "100000000", "--duration", "1s"])?;
    same("gave up", &sent["gave_up"], &json!(true))?;
    same("sent fewer than were due", sent["frames_sent"].as_u64() < Some(100_000_000), true)
}
