//! `latpath ping caps` on devices that need no NIC: a veth pair and lo.

use latpath_nic_timestamps::document::{CapsDocument, CheckDocument, CheckState, StampDocument, StampsDocument};
use latpath_testkit::waits::until;
use latpath_testkit::{equal, Failed, Trial};
use latpath_testkit::{latpath, misfits, need_lab, need_root, trial, Finished, Space};
use latpath_undo::{Journal, Kind, Lifetime, Outcome, Undo};
use serde_json::{json, Value};
use std::process::{Command, Stdio};

pub fn tests() -> Vec<Trial> {
    let needs = [need_root(), need_lab()];
    vec![
        trial("a_veth_has_the_kernels_stamps_which_are_tried", &needs, veth),
        trial("a_veth_has_no_clock_and_the_text_says_so", &needs, text),
        trial("nothing_is_sent_with_no_verify", &needs, no_verify),
        trial("lo_is_tried_too", &needs, lo),
        trial("what_a_killed_ping_noted_of_a_nic_any_other_command_undoes", &needs, left),
        trial("a_device_that_is_down_is_not_tried_and_how_to_bring_it_up_is_said", &needs, down),
        trial("a_device_that_is_not_there_is_named_with_those_that_are", &[], no_device),
        trial("without_a_device_it_is_wrong_usage", &[], no_name),
    ]
}

/// A namespace with a veth pair, `lpa` and `lpb`, both up. Dropping it removes the namespace.
struct Pair(Space);

impl Pair {
    fn new() -> Result<Self, Failed> {
        let pair = Self(Space::new("caps")?);
        pair.0.ip("link add lpa type veth peer name lpb")?;
        for device in ["lpa", "lpb"] {
            pair.0.ip(&format!("link set {device} up"))?;
        }
        pair.link("lpa", true)?;
        Ok(pair)
    }

    /// Waits until the kernel reports that a device has a link, or has none; it may do so with a delay.
    fn link(&self, device: &str, is: bool) -> Result<(), Failed> {
        until(&format!("{device}'s link: {is}"), || {
            let shown = self.0.ip(&format!("link show {device}")).unwrap_or_default();
            String::from_utf8_lossy(&shown).contains("state UP") == is
        })
    }

    fn caps(&self, words: &str) -> Result<Finished, Failed> {
        self.0.run(latpath(&format!("ping caps {words}")))
    }

    /// Number of frames that a device has sent.
    fn sent(&self, device: &str) -> Result<u64, Failed> {
        Ok(self.0.counters_of(device)?.tx_packets)
    }
}

fn ends(command: &mut Command) -> Result<Finished, Failed> {
    let output = command.stdin(Stdio::null()).output()?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ok(Finished { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) })
}

fn veth() -> Result<(), Failed> {
    let said = Pair::new()?.caps("-i lpa --json")?;
    let works = json!({ "claimed": true, "used": true, "state": "works", "why": null });
    let printed: Value = said.json()?;
    equal("keys", &printed["stamps"]["tx_sched"], &works)?;
    let schema: Value = serde_json::from_slice(&latpath("schema ping-caps").output()?.stdout)?;
    equal("deviations from the schema", misfits(&schema, &printed), vec![])?;
    let caps: CapsDocument = said.json()?;
    equal("read and printed again", &serde_json::to_value(&caps)?, &printed)?;
    equal("device", caps.device.as_str(), "lpa")?;
    equal("driver", caps.driver.as_deref(), Some("veth"))?;
    equal("up and linked", (caps.up, caps.link), (true, true))?;
    equal("clock", caps.phc, None)?;
    let stamp = |claimed, state| StampDocument { claimed, used: claimed, check: CheckDocument { state, why: None } };
    let (works, none) = (stamp(true, CheckState::Works), stamp(false, CheckState::NotOffered));
    let StampsDocument { tx_sched, tx_driver, tx_nic, rx_nic, rx_kernel } = caps.stamps;
    equal("of every device", [&tx_sched, &tx_driver], [&works; 2])?;
    equal("of NICs", [&tx_nic, &rx_nic], [&none; 2])?;
    equal("rx_kernel is used", rx_kernel.used, true)
}

fn text() -> Result<(), Failed> {
    let said = Pair::new()?.caps("-i lpa")?;
    equal("exit code", said.code, Some(0))?;
    let lines: Vec<&str> = said.stdout.lines().collect();
    equal("first line", lines[0], "lpa: driver veth, up")?;
    equal("clock", lines[1], "  clock      none")?;
    equal("driver's", said.stdout.contains("  TX driver  yes      yes   works\n"), true)?;
    equal("NIC's", said.stdout.contains("  TX NIC     no       no    -\n"), true)?;
    equal("stderr", said.stderr.as_str(), "")
}

fn no_verify() -> Result<(), Failed> {
    let pair = Pair::new()?;
    let before = pair.sent("lpa")?;
    let caps: CapsDocument = pair.caps("-i lpa --json --no-verify")?.json()?;
    equal("frames sent", pair.sent("lpa")? - before, 0)?;
    equal("tx_driver", caps.stamps.tx_driver.check, not_tried("not asked for"))?;
    pair.caps("-i lpa --json")?.json::<CapsDocument>()?;
    equal("one frame is sent otherwise", pair.sent("lpa")? - before, 1)
}

fn not_tried(why: &str) -> CheckDocument {
    CheckDocument { state: CheckState::NotTried, why: Some(why.into()) }
}

fn lo() -> Result<(), Failed> {
    let StampsDocument { tx_sched, tx_driver, .. } = Pair::new()?.caps("-i lo --json")?.json::<CapsDocument>()?.stamps;
    equal("TX", (tx_sched.check.state, tx_driver.check.state), (CheckState::Works, CheckState::Works))
}

fn down() -> Result<(), Failed> {
    let pair = Pair::new()?;
    pair.0.ip("link set lpa down")?;
    pair.link("lpb", false)?;
    let caps: CapsDocument = pair.caps("-i lpa --json")?.json()?;
    equal("up", caps.up, false)?;
    let why = "the device is down; bring it up with: ip link set lpa up";
    equal("tx_driver", caps.stamps.tx_driver.check, not_tried(why))?;
    let other_end: CapsDocument = pair.caps("-i lpb --json")?.json()?;
    equal("its other end", (other_end.up, other_end.link), (true, false))
}

/// Stamping settings of a NIC, as stored in the journal.
struct Stamps;

impl Undo for Stamps {
    const KIND: Kind = Kind::NicTimestamps;
    type Step = Value;
    fn undo(&self, _: &str, _: &[Value]) -> Outcome {
        Outcome::OutOfReach
    }
}

/// The journal contains the settings of a NIC that no longer exists, in another namespace than the command's. An
/// existing virtual device cannot be used, since it does not permit settings that it lacks.
fn left() -> Result<(), Failed> {
    let space = Space::new("left")?;
    let subject = format!("{}-999", space.inode());
    let config = json!({ "tx_type": 0, "rx_filter": 0, "flags": 0 });
    let turn = Journal::of_this_machine().turn()?;
    let mut entry = turn.begin::<Stamps>(&subject, Lifetime::Process, "a test")?;
    entry.add_within(&turn, json!({ "device": "lpgone", "before": config, "after": null }))?;
    drop(turn);
    entry.abandon()?;
    let ran = ends(&mut latpath("vms"))?;
    let note = Journal::of_this_machine().path().join(format!("nic-timestamps-{subject}"));
    equal(&ran.stderr, note.exists(), false)
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
