//! Runs the commands of docs/hypervisor-guide.md on a hypervisor, in the order of the page.
//!
//! Each block of the page is a list of commands, except those after "*By hand:*" and that of `relay.toml`. Three things
//! differ from the page, because the emulated hypervisor is slow: the guest's files, the stream's rate, and the
//! threshold of `tune apply`. After the page's steps, a profile that stops the stream is applied, and must be reverted.

use crate::{expect::Report, Outcome, Scale, Test};
use anyhow::{ensure, Context};
use latpath_lab::{GuestFiles, Lab};
use latpath_tune::{Applied, StopCause};
use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

pub const TEST: Test = Test { name: "hypervisor_guide", smoke: false, only_whole: false, seconds: 1500, run };

const PAGE: &str = include_str!("../../../../../docs/hypervisor-guide.md");
const FOLDER: &str = "/srv/relay1";
/// Rate of the stream, frames/s: the maximum that an emulated hypervisor can carry while latpath follows them.
const RATE: &str = "--svid MU01 --rate 200";
/// Threshold that ordinary delays do not reach: emulated packets may take a tenth of a second even without a change,
/// while a setting that stalls a host delays them for seconds.
const THRESHOLD: &str = " --threshold 400ms --window 2s";
/// Maximum boot time of the page's guest.
const BOOT: Duration = Duration::from_secs(120);
/// A profile that stops the stream: the smallest MTU is shorter than its frames, so that none reaches the guest.
const STOPS: &str = "name = \"stops\"\nabout = \"A step that stops the stream.\"\n\
                     [[line]]\nsetting = \"device-gro-timeout\"\nat = \"interface\"\nvalue = \"1234\"\nwhy = \"\"\nsource = \"-\"\n\
                     [[line]]\nsetting = \"device-mtu\"\nat = \"interface\"\nvalue = \"68\"\nwhy = \"\"\nsource = \"-\"\n";
/// Applies a profile to the guest's tap; exit code 3 is expected.
const APPLY_STOPS: &str = "\
ip -j link show tap-relay1 > tap-before.json
status=0
latpath tune apply ./stops.toml -i tap-relay1 --stream svid:MU01 --threshold 3ms --yes --json > stops.json || status=$?
[ $status = 3 ]
latpath report after --json > after.json
ip -j link show tap-relay1 > tap-after.json
latpath tune verify
";
/// The page's last command.
const LAST: &str = "kill %1";

/// A block of the page.
#[derive(Debug, PartialEq, Eq)]
enum Block {
    Commands(String),
    File(String),
    ByHand,
}

/// Splits the page into its blocks: groups of lines that are indented by four spaces.
fn blocks(page: &str) -> Vec<Block> {
    let mut all = Vec::new();
    let mut before = "";
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(first) = line.strip_prefix("    ") else {
            if !line.is_empty() {
                before = line;
            }
            continue;
        };
        let mut text = format!("{first}\n");
        while let Some(next) = lines.next_if(|next| next.starts_with("    ") || next.is_empty()) {
            text += &format!("{}\n", next.trim_start_matches("    "));
        }
        let text = text.trim_end().to_owned() + "\n";
        all.push(match (before, text.starts_with("# relay.toml")) {
            ("*By hand:*", _) => Block::ByHand,
            (_, true) => Block::File(text),
            _ => Block::Commands(text),
        });
        before = "";
    }
    all
}

fn run(_: &Scale) -> Outcome {
    let lab = Lab::new()?;
    let files = GuestFiles::build(&lab, "relay1", &[], &mut |line| eprintln!("{line}"), &|| false)?;
    fs::create_dir_all(FOLDER)?;
    fs::copy(&files.kernel, Path::new(FOLDER).join("vmlinuz"))?;
    fs::copy(&files.initramfs, Path::new(FOLDER).join("initrd.img"))?;
    let all = blocks(PAGE);
    let count = |is: fn(&Block) -> bool| all.iter().filter(|block| is(block)).count();
    ensure!(count(|block| matches!(block, Block::File(_))) == 1, "{all:#?}");
    ensure!(count(|block| *block == Block::ByHand) == 2, "{all:#?}");
    ensure!(count(|block| matches!(block, Block::Commands(_))) >= 7, "{all:#?}");
    let (mut script, mut before_boot) = (String::new(), String::new());
    for block in all {
        match block {
            Block::Commands(commands) => {
                let further = if commands.starts_with(LAST) { APPLY_STOPS } else { "" };
                script += &format!("{further}{commands}")
                    .replace("--svid MU01", RATE)
                    .replace(" --threshold 3ms", THRESHOLD)
                    .replace("--yes --confirm 10m", "--yes --confirm 10m --json > apply.json");
                if commands.contains("net up") {
                    before_boot = std::mem::take(&mut script);
                }
            }
            Block::File(text) => {
                let arguments: Vec<String> = files.arguments.iter().map(|word| format!("{word:?}")).collect();
                let append = format!("append = {:?}\narguments = [{}]", files.append, arguments.join(", "));
                let own = text.replace("append = \"console=ttyS0 root=/dev/vda1\"", &append);
                ensure!(own != text, "the page's guest has another command line: {text}");
                fs::write(Path::new(FOLDER).join("relay.toml"), own)?;
            }
            Block::ByHand => {}
        }
    }
    fs::write(Path::new(FOLDER).join("stops.toml"), STOPS)?;
    let mut text = bash(&before_boot)?;
    files.shell(BOOT, &|| false)?;
    text += &bash(&script)?;
    fs::write("/out/guide.txt", text.as_bytes())?;
    for says in ["relay-net", "svid:MU01", "vhost"] {
        ensure!(text.contains(says), "the commands did not print {says:?}: {text}");
    }
    let read = |file: &str| -> anyhow::Result<String> {
        fs::copy(Path::new(FOLDER).join(file), Path::new("/out").join(file))?;
        Ok(fs::read_to_string(Path::new("/out").join(file))?)
    };
    // No step of the profile lost or delayed a packet of the stream.
    let Applied { steps, .. } = serde_json::from_str(&read("apply.json")?)?;
    let effects = steps.iter().filter_map(|step| step.effect.as_ref());
    let (packets, lost, late) =
        effects.fold((0, 0, 0), |sum, effect| (sum.0 + effect.packets, sum.1 + effect.lost, sum.2 + effect.late));
    eprintln!("{} steps of sv-hypervisor under {packets} packets: {lost} lost, {late} late", steps.len());
    ensure!(steps.len() >= 10 && packets > 1000 && (lost, late) == (0, 0), "{steps:#?}");
    let points = Report::parse(&read("after.json")?)?.points();
    ensure!(points.iter().any(|point| point == "host/vm-read@tap-relay1"), "the guest read no packet: {points:?}");
    // A step that stops the stream is reverted, together with the step before it.
    let Applied { stopped, reverted, .. } = serde_json::from_str(&read("stops.json")?)?;
    let stopped = stopped.context("nothing stopped it")?;
    ensure!(stopped.cause == StopCause::Traffic, "{stopped:?}");
    ensure!(stopped.step == "device-mtu of tap-relay1", "{stopped:?}");
    ensure!(reverted.len() == 2, "{reverted:?}");
    let shown = |file: &str| -> anyhow::Result<Value> { Ok(serde_json::from_str(&read(file)?)?) };
    ensure!(shown("tap-before.json")? == shown("tap-after.json")?, "the tap differs from before");
    let left = Command::new("ip").args(["netns", "list"]).output()?;
    let left = String::from_utf8_lossy(&left.stdout).into_owned();
    ensure!(!left.contains("relay-wire"), "left behind: {left}");
    Ok(())
}

/// Runs commands of the page, and returns their output.
fn bash(script: &str) -> anyhow::Result<String> {
    let latpath = Path::new(env!("CARGO_BIN_EXE_latpath")).parent().context("a folder")?;
    let path = format!("{}:{}", latpath.display(), std::env::var("PATH").unwrap_or_default());
    let mut bash = Command::new("bash");
    bash.args(["-c", &format!("set -ex\nPS4='$ '\n{script}")]).current_dir(FOLDER).env("PATH", path);
    let output = bash.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let end: Vec<&str> = text.lines().rev().take(60).collect();
    ensure!(output.status.success(), "{}: {}", output.status, end.into_iter().rev().collect::<Vec<_>>().join("\n"));
    Ok(text)
}
