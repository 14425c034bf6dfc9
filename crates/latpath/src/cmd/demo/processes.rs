//! The processes of a demo: publisher, recorder, application and agent, each this program in its own namespace or in
//! the guest. All of them end with the demo.

use super::Args;
use anyhow::{anyhow, bail, Context, Result};
use latpath_lab::{Guest, Lab, LabPath, Namespace, Running, APPLICATION, GUEST_DEVICE, PUBLISHER};
use latpath_model::stream::format_mac;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::{
    ffi::OsStr,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Name of the receiving thread, and so of the last point: `app-read@relay`.
pub const RELAY: &str = "relay";
/// The guest's machine name.
pub const GUEST: &str = "guest0";
/// Maximum time in which a process must become ready. The recorder gives up earlier if an agent does not answer, and
/// reports it.
const BEGIN: Duration = Duration::from_secs(120);
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Scenario<'a> {
    pub args: &'a Args,
    pub program: &'a Path,
    pub run: &'a Path,
}

impl Scenario<'_> {
    /// A latpath command: `words` split at spaces, then `more` unchanged.
    fn command(&self, words: &str, more: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(self.program);
        command.args(words.split_whitespace()).args(more);
        command
    }

    /// The streams, in the format of `--stream`. Their group addresses are unique to this process: the probe watches
    /// all devices of the machine, and must not take the frames of another demo for this one's.
    pub fn streams(&self) -> Vec<String> {
        (0..self.args.streams).map(|n| format!("svid:MU{:02},mac={}", n + 1, format_mac(&group(n)))).collect()
    }
}

/// Group address of a stream: IEC 61850-8-1 Annex B reserves 01:0c:cd:04 for Sampled Values.
fn group(stream: u16) -> [u8; 6] {
    let [high, low] = (std::process::id() as u16).wrapping_add(stream).to_be_bytes();
    [0x01, 0x0c, 0xcd, 0x04, high, low]
}

pub struct DemoProcesses {
    recorder: DemoCommand,
    /// The application; `None` if it runs in the guest, which then manages it.
    application: Option<DemoCommand>,
    publisher: Option<DemoCommand>,
    folder: PathBuf,
    space: Namespace,
}

/// Final reports of the processes.
pub struct Ending {
    /// Output of `latpath publish --json`.
    pub published: Value,
    /// Output of `latpath subscribe --json`.
    pub application: Value,
}

impl DemoProcesses {
    /// Starts all processes except the publisher, and waits until they are ready.
    pub fn enter(
        scenario: &Scenario,
        lab: &Lab,
        path: &LabPath,
        mut guest: Option<&mut Guest>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Self> {
        let streams: String = scenario.streams().iter().map(|s| format!(" --stream {s}")).collect();
        let receive = |device: &str| format!("subscribe -i {device}{streams} --name {RELAY} --json");
        let mut machine = String::new();
        let application = match (&mut guest, &path.application) {
            (Some(guest), _) => {
                guest.start("agent", "latpath agent --device /dev/virtio-ports/latpath.agent", true, stop)?;
                guest.start("subscribe", &format!("latpath {}", receive(GUEST_DEVICE)), false, stop)?;
                machine = format!(" --machine {GUEST}=unix:{}", guest.agent_socket().display());
                None
            }
            (None, Some(space)) => {
                let command = scenario.command(&receive(APPLICATION), [""; 0]);
                Some(DemoCommand::start("subscribe", lab.folder(), space, command)?)
            }
            (None, None) => bail!("the path has no end"),
        };
        let (threshold, window) = (&scenario.args.threshold, &scenario.args.window);
        let force = if scenario.args.force { " --force" } else { "" };
        let words = format!(
            "record{streams}{machine} --threshold {threshold} --window {window} --capture-worst {CAPTURES}{force} -o"
        );
        let command = scenario.command(&words, [scenario.run]);
        let recorder = DemoCommand::start("record", lab.folder(), &path.hypervisor, command)?;
        let (folder, space) = (lab.folder().to_owned(), path.publisher.clone());
        let mut processes = Self { recorder, application, publisher: None, folder, space };
        processes.wait_until_ready(scenario, guest, stop)?;
        Ok(processes)
    }

    /// Waits until the run can be opened and the application listens, so that neither misses a frame.
    fn wait_until_ready(
        &mut self,
        scenario: &Scenario,
        mut guest: Option<&mut Guest>,
        stop: &dyn Fn() -> bool,
    ) -> Result<()> {
        let until = Instant::now() + BEGIN;
        while latpath_run::Run::open(scenario.run).is_err() {
            if self.recorder.ended()?.is_some() || Instant::now() >= until {
                let agent = guest.and_then(|g| g.file("/run/agent.err", stop).ok()).unwrap_or_default();
                let agent = if agent.is_empty() { agent } else { format!("\nthe guest's agent: {}", agent.trim()) };
                bail!("the recording did not begin: {}{agent}", self.recorder.last_words());
            }
            if stop() {
                bail!("interrupted");
            }
            thread::sleep(Duration::from_millis(50));
        }
        while self.queued(guest.as_deref_mut(), stop)?.is_none() {
            let ended = self.application.as_mut().map(DemoCommand::ended).transpose()?.flatten();
            if ended.is_some() || Instant::now() >= until {
                let said = match (&self.application, guest) {
                    (Some(command), _) => command.last_words(),
                    (None, Some(guest)) => guest.file("/run/subscribe.err", stop)?.trim().to_owned(),
                    (None, None) => String::new(),
                };
                bail!("the application does not listen: {said}");
            }
            if stop() {
                bail!("interrupted");
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Number of bytes queued in the application's socket; `None` while it does not listen.
    pub fn queued(&self, guest: Option<&mut Guest>, stop: &dyn Fn() -> bool) -> Result<Option<u64>> {
        let sockets = match (&self.application, guest) {
            (Some(command), _) => fs::read_to_string(format!("/proc/{}/net/packet", command.running.pid())),
            (None, Some(guest)) => Ok(guest.file("/proc/net/packet", stop)?),
            (None, None) => bail!("the path has no end"),
        };
        // A process that has just ended has no sockets.
        Ok(queued(&sockets.unwrap_or_default()))
    }

    /// Number of frames sent by the publisher, after its end.
    pub fn published(&self) -> Result<u64> {
        let publisher = self.publisher.as_ref().context("nothing was published")?;
        let text = fs::read_to_string(&publisher.stdout).unwrap_or_default();
        // A failed publisher has no report; `leave` returns its error.
        Ok(read_json("publish", &text).ok().and_then(|said| said["frames_sent"].as_u64()).unwrap_or(0))
    }

    pub fn publish(&mut self, scenario: &Scenario) -> Result<()> {
        let Args { streams, duration, profile, rate, .. } = scenario.args;
        let svid = if *streams == 1 { "MU01" } else { "MU" };
        let (group, time) = (format_mac(&group(0)), duration.as_nanos());
        let words = format!(
            "publish -i {PUBLISHER} --svid {svid} --streams {streams} --dst {group} --duration {time}ns --json --profile"
        );
        let mut command = scenario.command(&words, [profile]);
        if let Some(rate) = rate {
            command.args(["--rate", rate]);
        }
        self.publisher = Some(DemoCommand::start("publish", &self.folder, &self.space, command)?);
        Ok(())
    }

    /// Whether the publisher still sends; an error if the recorder or the application has ended.
    pub fn publishing(&mut self) -> Result<bool> {
        for command in [Some(&mut self.recorder), self.application.as_mut()].into_iter().flatten() {
            if let Some(status) = command.ended()? {
                bail!("latpath {} ended too early, {status}: {}", command.name, command.last_words());
            }
        }
        match &mut self.publisher {
            Some(publisher) => Ok(publisher.ended()?.is_none()),
            None => Ok(false),
        }
    }

    pub fn stop_publishing(&mut self) -> Result<()> {
        if let Some(publisher) = &mut self.publisher {
            publisher.wait_until_it_catches(Signal::SIGINT)?;
            publisher.running.signal(Signal::SIGINT);
        }
        Ok(())
    }

    /// Ends the publisher and the recorder when the other processes cannot continue: the recording so far is kept.
    pub fn keep_recording(mut self) -> Result<()> {
        self.stop_publishing()?;
        self.recorder.end().map(drop)
    }

    /// Ends all processes and collects their reports; the recorder ends before the application, while the guest's agent
    /// still answers.
    pub fn leave(self, guest: Option<&mut Guest>) -> Result<Ending> {
        let publisher = self.publisher.context("nothing was published")?;
        let published = publisher.finish(false)?;
        // The recorder's result is the run; its output is not needed.
        self.recorder.end()?;
        let application = match (self.application, guest) {
            (Some(command), _) => command.finish(true)?,
            (None, Some(guest)) => {
                let never = || false;
                let output = guest.end("subscribe", PATIENCE, &never)?;
                if output.status != 0 {
                    let said = guest.file("/run/subscribe.err", &never).unwrap_or_default();
                    bail!("latpath subscribe in the guest ended with status {}: {}", output.status, said.trim());
                }
                read_json("subscribe", &output.text)?
            }
            (None, None) => bail!("the path has no end"),
        };
        Ok(Ending { published, application })
    }
}

/// Number of captures per minute (`--capture-worst`): in an emulated guest, most packets exceed any threshold.
const CAPTURES: u32 = 20;

/// Runs `latpath report` or `latpath explain` on the run, and returns its output.
pub fn read_run(scenario: &Scenario, name: &str, flags: &[&str]) -> Result<String> {
    let mut command = scenario.command(&format!("{name} --worst 3"), flags);
    command.arg(scenario.run).args(scenario.args.json.then_some("--json"));
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("start latpath {name}"))?;
    if !output.status.success() {
        bail!("latpath {name} failed, {}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A running latpath command, with its output in files of the lab's folder.
struct DemoCommand {
    name: &'static str,
    running: Running,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl DemoCommand {
    fn start(name: &'static str, folder: &Path, space: &Namespace, mut command: Command) -> Result<Self> {
        let (stdout, stderr) = (folder.join(format!("{name}.out")), folder.join(format!("{name}.err")));
        let create = |path: &Path| File::create(path).with_context(|| format!("write {}", path.display()));
        command.stdin(Stdio::null()).stdout(create(&stdout)?).stderr(create(&stderr)?);
        // If the demo dies, a recorder ends as with Ctrl-C and completes its run.
        let running = space.start(command, Signal::SIGTERM)?;
        Ok(Self { name, running, stdout, stderr })
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.running.ended()?)
    }

    /// Waits until the program has a handler for the signal: without one, the signal would end it without a report.
    fn wait_until_it_catches(&mut self, signal: Signal) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let status = format!("/proc/{}/status", self.running.pid());
        while self.ended()?.is_none() && Instant::now() < until {
            let text = fs::read_to_string(&status).unwrap_or_default();
            let caught =
                text.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
            if caught.is_some_and(|set| set >> (signal as i32 - 1) & 1 == 1) {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.stderr).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        match lines.len() {
            0 => "it said nothing".into(),
            n => lines[n.saturating_sub(5)..].join("\n"),
        }
    }

    /// Ends the command with SIGINT; an error if it failed or had to be killed.
    fn end(mut self) -> Result<Self> {
        let name = self.name;
        match self.running.end(Signal::SIGINT, PATIENCE)? {
            Some(status) if status.success() => Ok(self),
            Some(status) => Err(anyhow!("latpath {name} failed, {status}: {}", self.last_words())),
            None => Err(anyhow!("latpath {name} did not end when asked, and was killed: {}", self.last_words())),
        }
    }

    /// Waits for the command's end, or with `ask` ends it at once, and parses its JSON output.
    fn finish(mut self, ask: bool) -> Result<Value> {
        if !ask {
            self.running.wait(PATIENCE)?;
        }
        let ended = self.end()?;
        let text = fs::read_to_string(&ended.stdout).with_context(|| format!("read {}", ended.stdout.display()))?;
        read_json(ended.name, &text)
    }
}

/// Bytes queued in the running packet socket for Sampled Values, from /proc/net/packet: address, references, type,
/// protocol, device, running, bytes, user, inode.
fn queued(sockets: &str) -> Option<u64> {
    sockets.lines().find_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, _, _, "88ba", _, "1", bytes, ..] => bytes.parse().ok(),
        _ => None,
    })
}

fn read_json(name: &str, text: &str) -> Result<Value> {
    serde_json::from_str(text).with_context(|| format!("read the JSON of latpath {name}: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_an_application_is_read_once_it_listens() {
        let heads = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n";
        let line = |proto: &str, runs: u8| {
            format!("000000002066e2e9 3      3    {proto}   5     {runs} 2304   0      211154\n")
        };
        assert_eq!(queued(&format!("{heads}{}", line("0000", 0))), None, "it is opened and not bound");
        assert_eq!(queued(&format!("{heads}{}{}", line("0806", 1), line("88ba", 1))), Some(2304));
    }
}
