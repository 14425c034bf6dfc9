//! `latpath ping caps` on devices that need no NIC: a veth pair, lo.

use latpath_testkit::waits::until;
use latpath_testkit::{equal, Failed, Trial};
use latpath_testkit::{latpath, need_lab, need_root, trial, Finished};
use serde_json::{json, Value};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

pub fn tests() -> Vec<Trial> {
    let needs = [need_root(), need_lab()];
    vec![
        trial("a_veth_has_the_kernels_stamps_which_are_tried", &needs, veth),
        trial("a_veth_has_no_clock_and_the_text_says_so", &needs, text),
        trial("nothing_is_sent_with_no_verify", &needs, no_verify),
        trial("lo_is_tried_too", &needs, lo),
        trial("a_device_that_is_down_is_not_tried_and_how_to_bring_it_up_is_said", &needs, down),
        trial("a_device_that_is_not_there_is_named_with_those_that_are", &[], no_device),
        trial("without_a_device_it_is_wrong_usage", &[], no_name),
    ]
}

/// A namespace with a veth pair, `lpa` and `lpb`, both up. Gone when dropped.
struct Space(String);

fn ip(words: &str) -> Result<String, Failed> {
    let output = Command::new("ip").args(words.split_whitespace()).stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

impl Space {
    fn new() -> Result<Self, Failed> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("latpath-caps-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        ip(&format!("netns add {name}"))?;
        let space = Self(name);
        // Nobody else is to send anything: no neighbour discovery. Where there is no IPv6 there is none of it.
        let quiet = "for i in all default; do echo 1 > /proc/sys/net/ipv6/conf/$i/disable_ipv6; done";
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &space.0, "sh", "-c", quiet]).stderr(Stdio::null()).status()?;
        space.ip("link add lpa type veth peer name lpb")?;
        for device in ["lo", "lpa", "lpb"] {
            space.ip(&format!("link set {device} up"))?;
        }
        space.link("lpa", true)?;
        Ok(space)
    }

    /// Waits until the kernel reports that a device has its link, or has none any more: a moment later, or more.
    fn link(&self, device: &str, is: bool) -> Result<(), Failed> {
        until(&format!("{device}'s link: {is}"), || {
            self.ip(&format!("link show {device}")).is_ok_and(|shown| shown.contains("state UP") == is)
        })
    }

    fn ip(&self, words: &str) -> Result<String, Failed> {
        ip(&format!("-n {} {words}", self.0))
    }

    fn caps(&self, words: &str) -> Result<Finished, Failed> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).arg(latpath_testkit::program());
        ends(command.args(["ping", "caps"]).args(words.split_whitespace()))
    }

    /// Frames that a device has sent.
    fn sent(&self, device: &str) -> Result<u64, Failed> {
        let all: Value = serde_json::from_str(&self.ip(&format!("-j -s link show {device}"))?)?;
        all[0]["stats64"]["tx"]["packets"].as_u64().ok_or_else(|| format!("no count in {all}").into())
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = ip(&format!("netns del {}", self.0));
    }
}

fn ends(command: &mut Command) -> Result<Finished, Failed> {
    let output = command.stdin(Stdio::null()).output()?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ok(Finished { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) })
}

fn veth() -> Result<(), Failed> {
    let said = Space::new()?.caps("-i lpa --json")?.json()?;
    equal("device", &said["device"], &json!("lpa"))?;
    equal("driver", &said["driver"], &json!("veth"))?;
    equal("up and linked", (&said["up"], &said["link"]), (&json!(true), &json!(true)))?;
    equal("clock", &said["phc"], &Value::Null)?;
    let works = json!({ "claimed": true, "used": true, "state": "works", "why": null });
    let none = json!({ "claimed": false, "used": false, "state": "not_offered", "why": null });
    equal("tx_sched", &said["stamps"]["tx_sched"], &works)?;
    equal("tx_driver", &said["stamps"]["tx_driver"], &works)?;
    equal("tx_nic", &said["stamps"]["tx_nic"], &none)?;
    equal("rx_nic", &said["stamps"]["rx_nic"], &none)?;
    equal("rx_kernel is used", &said["stamps"]["rx_kernel"]["used"], &json!(true))
}

fn text() -> Result<(), Failed> {
    let said = Space::new()?.caps("-i lpa")?;
    equal("exit code", said.code, Some(0))?;
    let lines: Vec<&str> = said.stdout.lines().collect();
    equal("first line", lines[0], "lpa: driver veth, up")?;
    equal("clock", lines[1], "  clock      none")?;
    equal("driver's", said.stdout.contains("  TX driver  yes      yes   works\n"), true)?;
    equal("NIC's", said.stdout.contains("  TX NIC     no       no    -\n"), true)?;
    equal("stderr", said.stderr.as_str(), "")
}

fn no_verify() -> Result<(), Failed> {
    let space = Space::new()?;
    let before = space.sent("lpa")?;
    let said = space.caps("-i lpa --json --no-verify")?.json()?;
    equal("frames sent", space.sent("lpa")? - before, 0)?;
    equal("tx_driver", &said["stamps"]["tx_driver"]["state"], &json!("not_tried"))?;
    equal("why", &said["stamps"]["tx_driver"]["why"], &json!("not asked for"))?;
    space.caps("-i lpa --json")?.json()?;
    equal("one frame is sent otherwise", space.sent("lpa")? - before, 1)
}

fn lo() -> Result<(), Failed> {
    let said = Space::new()?.caps("-i lo --json")?.json()?;
    equal("tx_sched", &said["stamps"]["tx_sched"]["state"], &json!("works"))?;
    equal("tx_driver", &said["stamps"]["tx_driver"]["state"], &json!("works"))
}

fn down() -> Result<(), Failed> {
    let space = Space::new()?;
    space.ip("link set lpa down")?;
    space.link("lpb", false)?;
    let said = space.caps("-i lpa --json")?.json()?;
    equal("up", &said["up"], &json!(false))?;
    let why = json!("the device is down; bring it up with: ip link set lpa up");
    equal("why", &said["stamps"]["tx_driver"]["why"], &why)?;
    let other_end = space.caps("-i lpb --json")?.json()?;
    equal("its other end", (&other_end["up"], &other_end["link"]), (&json!(true), &json!(false)))
}

fn no_device() -> Result<(), Failed> {
    let said = ends(&mut latpath("ping caps -i lp-none"))?;
    equal("exit code", said.code, Some(1))?;
    equal("stdout", said.stdout.as_str(), "")?;
    let error = said.stderr.as_str();
    equal(error, error.starts_with("latpath: lp-none: no such device (devices here: lo"), true)
}

fn no_name() -> Result<(), Failed> {
    equal("exit code", ends(&mut latpath("ping caps"))?.code, Some(2))
}
