//! Two namespaces joined by a veth pair, and the commands that run in them.

use latpath_testkit::Failed;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Beyond this nothing here can still be at work.
const LIMIT: Duration = Duration::from_secs(60);

/// The result of a test or of a step of it.
pub type Result<T> = std::result::Result<T, Failed>;

/// Two namespaces: `lpa` in the first is joined to `lpb` in the second. Gone when dropped.
pub struct Pair {
    name: String,
    /// Files of this test.
    pub dir: tempfile::TempDir,
}

/// A command in the background; killed when dropped.
pub struct Running {
    child: Child,
}

fn ip(args: &[&str]) -> Result<()> {
    let out = Command::new("ip").args(args).output()?;
    match out.status.success() {
        true => Ok(()),
        false => Err(format!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr)).into()),
    }
}

/// Why namespaces cannot be made here, if so.
pub fn why_no_namespaces() -> Option<String> {
    clean_up_after_the_dead();
    Pair::new()
        .err()
        .map(|e| format!("network namespaces and packet sockets: {}", e.message().unwrap_or("not allowed")))
}

/// Why a tool cannot be used, if so.
pub fn why_no_tool(tool: &str) -> Option<String> {
    let ran = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    ran.err().map(|e| format!("{tool}: {e}; install it with: apt install {tool}"))
}

/// Removes namespaces that a killed run of these tests has left.
fn clean_up_after_the_dead() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for name in entries.flatten().filter_map(|e| e.file_name().into_string().ok()) {
        let pid = name.strip_prefix("latpath-pub-").and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

/// Waits until something is so.
pub fn until(what: &str, mut so: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !so() {
        if start.elapsed() > LIMIT {
            return Err(format!("waited {LIMIT:?} for {what}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl Pair {
    pub fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("latpath-pub-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let pair = Self { name, dir: tempfile::tempdir()? };
        let (a, b) = (pair.namespace("lpa"), pair.namespace("lpb"));
        ip(&["netns", "add", &a])?;
        ip(&["netns", "add", &b])?;
        ip(&["-n", &a, "link", "add", "lpa", "type", "veth", "peer", "name", "lpb", "netns", &b])?;
        for (namespace, device) in [(&a, "lpa"), (&b, "lpb")] {
            // No neighbour discovery in the captures.
            let _ = Command::new("ip")
                .args(["netns", "exec", namespace, "sh", "-c"])
                .arg("echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6")
                .stderr(Stdio::null())
                .status();
            ip(&["-n", namespace, "link", "set", device, "up"])?;
        }
        // What is sent before the kernel has brought a device up is dropped silently; a busy machine does so late.
        for device in ["lpa", "lpb"] {
            until(&format!("{device} to have its link"), || pair.link(device).is_ok_and(|l| l["operstate"] == "UP"))?;
        }
        Ok(pair)
    }

    /// A device as `ip` shows it, with what it has counted.
    fn link(&self, device: &str) -> Result<Value> {
        let shown = ["-n", &self.namespace(device), "-j", "-s", "link", "show", "dev", device];
        let all: Value = serde_json::from_slice(&Command::new("ip").args(shown).output()?.stdout)?;
        Ok(all[0].clone())
    }

    /// Frames that a device has received.
    pub fn received(&self, device: &str) -> Result<u64> {
        let link = self.link(device)?;
        link["stats64"]["rx"]["packets"].as_u64().ok_or_else(|| "no statistics of the device".into())
    }

    pub fn namespace(&self, device: &str) -> String {
        format!("{}-{}", self.name, device)
    }

    /// Takes the first device away, and with it the second.
    pub fn remove_devices(&self) -> Result<()> {
        ip(&["-n", &self.namespace("lpa"), "link", "del", "lpa"])
    }

    fn inside(&self, device: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(device), program]).stdin(Stdio::null());
        command
    }

    /// Runs latpath next to a device (`lpa` or `lpb`) until it ends.
    pub fn latpath(&self, device: &str, args: &[&str]) -> Result<Output> {
        self.start(device, args)?.wait()
    }

    /// Starts latpath next to a device.
    pub fn start(&self, device: &str, args: &[&str]) -> Result<Running> {
        let mut command = self.inside(device, env!("CARGO_BIN_EXE_latpath"));
        let child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        Ok(Running { child })
    }

    /// Starts latpath next to a device, and waits until its packet socket listens there.
    pub fn listen(&self, device: &str, args: &[&str]) -> Result<Running> {
        let running = self.start(device, args)?;
        until("its packet socket", || {
            let r = &running;
            // Protocol 88ba or all (0003): a socket that is bound. The list is the namespace's, so it must be one of that process.
            let sockets = std::fs::read_to_string(format!("/proc/{}/net/packet", r.pid())).unwrap_or_default();
            let own = r.sockets();
            sockets.lines().skip(1).any(|l| {
                let mut words = l.split_whitespace();
                matches!(words.nth(3), Some("88ba" | "0003"))
                    && words.last().is_some_and(|inode| own.iter().any(|o| o == inode))
            })
        })?;
        // The socket is bound before the thread is ready to read: all that comes now waits in its buffer.
        Ok(running)
    }

    /// Publishes on lpa and returns the summary.
    pub fn publish(&self, args: &[&str]) -> Result<Value> {
        let named = ["--svid", "--stream", "--replay"].iter().any(|name| args.contains(name));
        let name: &[&str] = if named { &[] } else { &["--svid", "MU01"] };
        let args = [&["publish", "-i", "lpa", "--json"], name, args].concat();
        json(&self.latpath("lpa", &args)?)
    }

    /// Captures on lpb while `during` runs, until there are `count` frames; returns the file.
    pub fn capture<T>(&self, count: usize, during: impl FnOnce() -> Result<T>) -> Result<(PathBuf, T)> {
        let file = self.dir.path().join("capture.pcap");
        let mut command = self.inside("lpb", "tcpdump");
        command.args([
            "-i",
            "lpb",
            "--immediate-mode",
            "-U",
            "-B",
            "65536",
            "-s",
            "2048",
            "-Z",
            "root",
            "-c",
            &count.to_string(),
            "-w",
        ]);
        let mut child = command.arg(&file).stderr(Stdio::piped()).spawn()?;
        // tcpdump says "listening on …" when its socket is there.
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let ready = lines.by_ref().map_while(std::result::Result::ok).any(|l| l.contains("listening on"));
        let mut running = Running { child };
        if !ready {
            return Err("tcpdump did not start".into());
        }
        let result = during()?;
        if let Err(e) = running.end() {
            running.signal("INT")?;
            let said: Vec<String> = lines.map_while(std::result::Result::ok).collect();
            return Err(format!("waiting for {count} frames: {e:?}; tcpdump: {}", said.join(", ")).into());
        }
        Ok((file, result))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for device in ["lpa", "lpb"] {
            let _ = ip(&["netns", "del", &self.namespace(device)]);
        }
    }
}

impl Running {
    /// `ip netns exec` becomes the command itself: the process is the same.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Inodes of its sockets.
    fn sockets(&self) -> Vec<String> {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).into_iter().flatten().flatten();
        let links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()?.to_str().map(str::to_string));
        links.filter_map(|l| Some(l.strip_prefix("socket:[")?.strip_suffix(']')?.to_string())).collect()
    }

    /// Waits until it stands in this state: S for asleep, T for stopped.
    pub fn is_in_state(&self, state: char) -> Result<()> {
        until(&format!("it to be in state {state}"), || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(state))
        })
    }

    /// Sends a signal by its name: INT.
    pub fn signal(&self, name: &str) -> Result<()> {
        let signal: Signal = format!("SIG{name}").parse()?;
        Ok(kill(Pid::from_raw(i32::try_from(self.pid())?), signal)?)
    }

    fn end(&mut self) -> Result<()> {
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            if start.elapsed() > LIMIT {
                return Err("the command did not end in time".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Result<Output> {
        // Both pipes are read while waiting: a full one would keep the command from ending.
        let mut streams = (self.child.stdout.take(), self.child.stderr.take());
        let err = std::thread::spawn(move || read(&mut streams.1));
        let out = std::thread::spawn(move || read(&mut streams.0));
        self.end()?;
        let status = self.child.wait()?;
        let done = |t: std::thread::JoinHandle<Vec<u8>>| t.join().unwrap_or_default();
        Ok(Output { status, stdout: done(out), stderr: done(err) })
    }

    /// Ends it as Ctrl-C does, and returns its summary.
    pub fn interrupt(self) -> Result<Value> {
        self.signal("INT")?;
        json(&self.wait()?)
    }
}

fn read(stream: &mut Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(s) = stream {
        let _ = s.read_to_end(&mut bytes);
    }
    bytes
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The JSON that a command printed; an error if it failed.
pub fn json(out: &Output) -> Result<Value> {
    if !out.status.success() {
        return Err(format!("{}: {}", out.status, String::from_utf8_lossy(&out.stderr)).into());
    }
    Ok(serde_json::from_slice(&out.stdout)?)
}

/// One line a frame: the fields that tshark shows, several values of one field joined by commas, fields by tabs.
pub fn tshark(file: &Path, fields: &[&str]) -> Result<Vec<Vec<String>>> {
    let fields = fields.iter().flat_map(|f| ["-e", f]);
    let out = Command::new("tshark")
        .args(["-n", "-o", "sv.decode_data_as_phsmeas:TRUE", "-T", "fields", "-r"])
        .arg(file)
        .args(fields)
        .output()?;
    if !out.status.success() {
        return Err(format!("tshark: {}", String::from_utf8_lossy(&out.stderr)).into());
    }
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    Ok(text.lines().map(|l| l.split('\t').map(String::from).collect()).collect())
}

/// Frames of which tshark says anything at all against: malformed, warnings, notes.
pub fn complaints(file: &Path) -> Result<Vec<String>> {
    let out = Command::new("tshark")
        .args([
            "-n",
            "-o",
            "sv.decode_data_as_phsmeas:TRUE",
            "-Y",
            "_ws.expert || _ws.malformed || !(sv || goose || ptp)",
            "-V",
            "-r",
        ])
        .arg(file)
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    Ok(text
        .lines()
        .filter(|l| l.contains("Expert") || l.contains("Malformed") || l.contains("Frame "))
        .map(String::from)
        .collect())
}

/// Fails with both values unless they are the same.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, expected: T) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(format!("{what}: {got:?}, expected {expected:?}").into())
}

/// A file of the data that lies beside the workspace.
pub fn shared(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name)
}

/// Why the shared captures cannot be used, if so.
pub fn why_not_shared() -> Option<String> {
    let missing = ["sv-50hz-1stream.pcap", "sv-60hz-8streams-vlan.pcap"].into_iter().find(|f| !shared(f).exists());
    missing.map(|f| format!("../shared/data/{f} is not there"))
}

/// Writes frames as a capture, `interval` ns apart.
pub fn write_pcap(path: &Path, frames: &[Vec<u8>], interval: u64) -> Result<()> {
    use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
    let header = PcapHeader { ts_resolution: pcap_file::TsResolution::NanoSecond, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(std::fs::File::create(path)?, header).map_err(|e| e.to_string())?;
    for (i, frame) in frames.iter().enumerate() {
        let t = Duration::from_nanos(1_000_000_000 + i as u64 * interval);
        writer.write_packet(&PcapPacket::new(t, frame.len() as u32, frame)).map_err(|e| e.to_string())?;
    }
    Ok(())
}
