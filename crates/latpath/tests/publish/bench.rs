//! Two namespaces joined by a veth pair, and the commands that run in them.

use latpath_testkit::waits::{listens, until, LIMIT};
use latpath_testkit::{equal, latpath, misfits, Failed, Finished, Space, Started};
use latpath_traffic::document::{PublishDocument, SubscribeDocument};
use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The result of a test or of a step of it.
pub type Result<T> = std::result::Result<T, Failed>;

/// Two namespaces joined by a veth pair: `lpa` in the first, `lpb` in the second. Dropping it removes them.
pub struct Pair {
    first: Space,
    second: Space,
    /// Temporary directory of this test.
    pub dir: tempfile::TempDir,
}

impl Pair {
    pub fn new() -> Result<Self> {
        let pair = Self { first: Space::new("a")?, second: Space::new("b")?, dir: tempfile::tempdir()? };
        pair.add_link("lpa", "lpb")?;
        Ok(pair)
    }

    /// Adds another veth pair between the namespaces: `first` in lpa's, `second` in lpb's.
    pub fn add_link(&self, first: &str, second: &str) -> Result<()> {
        let (here, there) = (&self.first, &self.second);
        here.ip(&format!("link add {first} type veth peer name {second} netns {}", there.name()))?;
        for (space, device) in [(here, first), (there, second)] {
            space.ip(&format!("link set {device} up"))?;
        }
        // Frames sent before the kernel has brought a device up are dropped silently, and a busy machine brings it up
        // late.
        for (space, device) in [(here, first), (there, second)] {
            until(&format!("{device} has its link"), || is_up(space, device).is_ok_and(|up| up))?;
        }
        Ok(())
    }

    /// The namespace of a device.
    fn beside(&self, device: &str) -> &Space {
        if device == "lpa" {
            &self.first
        } else {
            &self.second
        }
    }

    /// The name of a device's namespace.
    pub fn name(&self, device: &str) -> &str {
        self.beside(device).name()
    }

    /// Number of frames that a device has received.
    pub fn received(&self, device: &str) -> Result<u64> {
        Ok(self.beside(device).counters_of(device)?.rx_packets)
    }

    /// Removes the first device, and with it the second.
    pub fn remove_devices(&self) -> Result<()> {
        self.first.ip("link del lpa")?;
        Ok(())
    }

    /// Runs latpath in the namespace of a device (`lpa` or `lpb`) to completion.
    pub fn latpath(&self, device: &str, args: &[&str]) -> Result<Finished> {
        self.start(device, args)?.finish(LIMIT)
    }

    /// Starts latpath in the namespace of a device.
    pub fn start(&self, device: &str, args: &[&str]) -> Result<Started> {
        let mut command = latpath("");
        command.args(args);
        self.beside(device).start(command)
    }

    /// Starts latpath in the namespace of a device, and waits until its packet socket is bound. The thread may not be
    /// ready to read yet, but from now on frames are queued in the socket's buffer.
    pub fn listen(&self, device: &str, args: &[&str]) -> Result<Started> {
        let mut started = self.start(device, args)?;
        listens(&mut started)?;
        Ok(started)
    }

    /// Publishes on lpa; returns the summary.
    pub fn publish(&self, args: &[&str]) -> Result<PublishDocument> {
        let named = ["--svid", "--stream", "--pcap"].iter().any(|name| args.contains(name));
        let name: &[&str] = if named { &[] } else { &["--svid", "MU01"] };
        let sent = self.latpath("lpa", &[&["publish", "-i", "lpa", "--json"], name, args].concat())?;
        document("publish", &sent.json()?)
    }

    /// Captures on lpb while `during` runs, until the file has `count` frames; returns the file.
    pub fn capture<T>(&self, count: usize, during: impl FnOnce() -> Result<T>) -> Result<(PathBuf, T)> {
        self.capture_on("lpb", count, during)
    }

    /// Captures on a device of the second namespace.
    pub fn capture_on<T>(
        &self,
        device: &str,
        count: usize,
        during: impl FnOnce() -> Result<T>,
    ) -> Result<(PathBuf, T)> {
        let file = self.dir.path().join(format!("{device}.pcap"));
        let mut command = Command::new("tcpdump");
        let words = format!("-i {device} --immediate-mode -U -B 65536 -s 2048 -Z root -c {count} -w");
        command.args(words.split(' ')).arg(&file);
        let mut tcpdump = self.second.start(command)?;
        until("tcpdump listens", || tcpdump.said().contains("listening on") || !tcpdump.runs())?;
        let result = during()?;
        match tcpdump.finish(LIMIT)? {
            Finished { code: Some(0), .. } => Ok((file, result)),
            ended => Err(format!("tcpdump: {}", ended.stderr).into()),
        }
    }
}

/// Compares the output of a command with the schema that latpath prints.
pub fn fits_its_schema(command: &str, printed: &Value) -> Result<()> {
    let schema: Value = serde_json::from_slice(&latpath("schema").arg(command).output()?.stdout)?;
    equal(&format!("deviations of {command} --json from its schema"), misfits(&schema, printed), vec![])
}

/// Parses the document that a command printed; checks that its type and its schema have all of its keys.
pub fn document<T: Serialize + DeserializeOwned>(command: &str, printed: &Value) -> Result<T> {
    fits_its_schema(command, printed)?;
    let document = T::deserialize(printed)?;
    equal("read and printed again", &serde_json::to_value(&document)?, printed)?;
    Ok(document)
}

fn is_up(space: &Space, device: &str) -> Result<bool> {
    let shown: Value = serde_json::from_slice(&space.ip(&format!("-j link show dev {device}"))?)?;
    Ok(shown[0]["operstate"] == "UP")
}

/// Stops a subscriber with SIGINT; returns its summary.
pub fn summary(started: Started) -> Result<SubscribeDocument> {
    started.interrupt();
    document("subscribe", &started.finish(LIMIT)?.json()?)
}

/// The fields that tshark shows, one line per frame: values of a field are separated by commas, fields by tabs.
pub fn tshark(file: &Path, fields: &[&str]) -> Result<Vec<Vec<String>>> {
    let fields = fields.iter().flat_map(|f| ["-e", f]);
    let out = Command::new("tshark")
        .args(["-n", "-o", "sv.decode_data_as_phsmeas:TRUE", "--enable-protocol", "prp", "-T", "fields", "-r"])
        .arg(file)
        .args(fields)
        .output()?;
    if !out.status.success() {
        return Err(format!("tshark: {}", String::from_utf8_lossy(&out.stderr)).into());
    }
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    Ok(text.lines().map(|l| l.split('\t').map(String::from).collect()).collect())
}

/// Frames for which tshark reports malformed data, warnings or notes.
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

/// Path of a file in the data directory next to the workspace.
pub fn shared(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name)
}

/// Why the shared captures cannot be used; `None` if they can.
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
