//! The commands of docs/hypervisor-guide.md, run on a hypervisor in the order of the page.
//!
//! A block of the page is a list of commands, except a block after "*By hand:*" and the block of `relay.toml`.
//! Two things differ from the page: the guest's files, and the threshold of `tune apply`, which would judge the emulated
//! hypervisor's own delays.

use crate::{Outcome, Scale, Test};
use anyhow::{ensure, Context};
use latpath_lab::{GuestFiles, Lab};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

pub const TEST: Test = Test { name: "hypervisor_guide", smoke: false, only_whole: false, seconds: 600, run };

const PAGE: &str = include_str!("../../../../../docs/hypervisor-guide.md");
const FOLDER: &str = "/srv/relay1";

/// A block of the page.
#[derive(Debug, PartialEq, Eq)]
enum Block {
    Commands(String),
    File(String),
    ByHand,
}

/// The blocks of the page: groups of lines that are indented by four spaces.
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
    let mut script = "set -e\nexport PS4='$ '\nset -x\n".to_owned();
    let all = blocks(PAGE);
    let count = |is: fn(&Block) -> bool| all.iter().filter(|block| is(block)).count();
    ensure!(count(|block| matches!(block, Block::File(_))) == 1, "{all:#?}");
    ensure!(count(|block| *block == Block::ByHand) == 2, "{all:#?}");
    ensure!(count(|block| matches!(block, Block::Commands(_))) >= 7, "{all:#?}");
    for block in all {
        match block {
            Block::Commands(commands) => {
                script += &commands.replace("--threshold 3ms", "--threshold 1s");
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
    let latpath = Path::new(env!("CARGO_BIN_EXE_latpath")).parent().context("a folder")?;
    let path = format!("{}:{}", latpath.display(), std::env::var("PATH").unwrap_or_default());
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).current_dir(FOLDER).env("PATH", path).stdin(Stdio::null());
    let output = bash.stdout(Stdio::piped()).stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    fs::write("/out/guide.txt", text.as_bytes())?;
    ensure!(
        output.status.success(),
        "{}: {}",
        output.status,
        text.lines().rev().take(60).collect::<Vec<_>>().join("\n")
    );
    for says in ["relay-net", "svid:MU01", "vhost"] {
        ensure!(text.contains(says), "the commands did not print {says:?}: {text}");
    }
    let left = Command::new("ip").args(["netns", "list"]).output()?;
    let left = String::from_utf8_lossy(&left.stdout).into_owned();
    ensure!(!left.contains("relay-wire"), "left behind: {left}");
    Ok(())
}
