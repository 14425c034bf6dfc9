//! The guest: booted, asked to run scripts, and gone with its handle.

use crate::{
    error::{Doing, Error, Result},
    image, kernel,
    path::GUEST_DEVICE,
    process::Running,
    qemu::{Acceleration, Files, Start},
    Counters, Lab, LabPath, Progress, Stop,
};
use std::{
    fs,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::ExitStatus,
    thread,
    time::{Duration, Instant},
};

const TICK: Duration = Duration::from_millis(50);
/// More than any script of ours prints; a guest that sends more is refused.
const MOST_OUTPUT: usize = 64 << 20;
/// A line of the shell's protocol.
const MOST_LINE: usize = 4096;

/// What a guest is made of.
#[derive(Clone, Debug)]
pub struct GuestPlan {
    /// Its name: in QEMU's thread names and in the names of its files.
    pub name: String,
    /// Programs to put into it: the file here, the path there. Their shared libraries come along.
    pub programs: Vec<(PathBuf, String)>,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory beside that for its root.
    pub memory_mib: u64,
}

impl Default for GuestPlan {
    fn default() -> Self {
        Self { name: "guest0".into(), programs: Vec::new(), cpus: 2, memory_mib: 512 }
    }
}

/// What a script in the guest came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its exit status; 128 and the signal's number when it was killed.
    pub status: i32,
    /// What it printed, on stdout and stderr.
    pub text: String,
}

/// A running guest. It ends with this value.
#[derive(Debug)]
pub struct Guest {
    name: String,
    qemu: Running,
    shell: UnixStream,
    pending: Vec<u8>,
    requests: u64,
    agent: PathBuf,
    console: PathBuf,
    acceleration: Acceleration,
    release: String,
    boot: Duration,
    // Holds the folder of its sockets.
    _lab: Lab,
}

impl Guest {
    /// Boots a guest on the path's tap. Acceleration is tried first; a guest that does not come up is tried once more,
    /// with the kernel's messages on.
    pub fn boot(lab: &Lab, path: &LabPath, plan: &GuestPlan, progress: Progress, stop: Stop) -> Result<Self> {
        let kernel = kernel::find(progress, stop)?;
        let image = image::build(&kernel, &plan.programs)?;
        let image_mib = (image.len() as u64).div_ceil(1 << 20);
        let initramfs = lab.folder().join(format!("{}.initramfs", plan.name));
        fs::write(&initramfs, &image).doing(format!("write {}", initramfs.display()))?;
        drop(image);
        let files = Files::of(lab.folder(), &plan.name);
        let mut tries: Vec<_> = Acceleration::to_try().into_iter().map(|a| (a, false)).collect();
        tries.extend(tries.last().map(|(a, _)| (*a, true)));
        let mut failures = Vec::new();
        for (acceleration, verbose) in tries {
            progress(&format!("booting Linux {} under QEMU, {acceleration}", kernel.release));
            let start = Start {
                name: &plan.name,
                namespace: &path.hypervisor,
                acceleration,
                kernel: &kernel.image,
                initramfs: &initramfs,
                cpus: plan.cpus,
                // The archive and what is unpacked from it are both in memory for a while.
                memory_mib: plan.memory_mib + 2 * image_mib,
                files: &files,
                verbose,
            };
            match Self::try_boot(lab, &plan.name, &start, stop) {
                Ok(guest) => {
                    acceleration.remember();
                    let _ = fs::remove_file(&initramfs);
                    return Ok(guest);
                }
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => {
                    progress(&format!("{acceleration} does not boot a guest here: {error}"));
                    failures.push(format!("{acceleration}: {error}"));
                }
            }
        }
        Err(Error::Boot { why: failures.join("; "), console: tail(&files.console, 20) })
    }

    fn try_boot(lab: &Lab, name: &str, start: &Start, stop: Stop) -> Result<Self> {
        let began = Instant::now();
        let until = began + start.acceleration.boot_limit();
        let mut qemu = start.start()?;
        let fail = |why: String| Error::Guest { guest: name.into(), why };
        let died = |qemu: &mut Running| match qemu.ended()? {
            Some(status) => {
                Err(fail(format!("QEMU ended, {status}: {}", tail(&start.files.messages, 3).replace('\n', "; "))))
            }
            None => Ok(()),
        };
        let shell = loop {
            match UnixStream::connect(&start.files.shell) {
                Ok(shell) => break shell,
                Err(_) if stop() => return Err(Error::Interrupted),
                Err(_) if Instant::now() < until => {
                    died(&mut qemu)?;
                    thread::sleep(TICK);
                }
                Err(e) => return Err(fail(format!("QEMU opened no socket: {e}"))),
            }
        };
        let mut guest = Self {
            name: name.into(),
            qemu,
            shell,
            pending: Vec::new(),
            requests: 0,
            agent: start.files.agent.clone(),
            console: start.files.console.clone(),
            acceleration: start.acceleration,
            release: String::new(),
            boot: Duration::ZERO,
            _lab: lab.clone(),
        };
        guest.shell.set_read_timeout(Some(TICK)).doing("set a time limit on the guest's shell")?;
        guest.shell.set_write_timeout(Some(Duration::from_secs(10))).doing("set a time limit on the guest's shell")?;
        let ready = match guest.line(until, stop) {
            Ok(line) => line,
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => {
                // The socket closes a moment before the process has ended and said why.
                guest.qemu.wait(Duration::from_millis(500))?;
                died(&mut guest.qemu)?;
                return Err(error);
            }
        };
        let mut words = ready.split(' ');
        match (words.next(), words.next(), words.next()) {
            (Some("ready"), Some(_), Some(release)) => guest.release = release.into(),
            _ => return Err(fail(format!("says {ready:?} instead of being ready"))),
        }
        guest.boot = began.elapsed();
        Ok(guest)
    }

    /// What runs it.
    pub fn acceleration(&self) -> Acceleration {
        self.acceleration
    }

    /// Its kernel, as `uname -r` says it.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// From QEMU's start until its shell answered.
    pub fn boot_time(&self) -> Duration {
        self.boot
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.qemu.pid()
    }

    /// The unix socket behind the guest's port `/dev/virtio-ports/latpath.agent`.
    pub fn agent_socket(&self) -> &Path {
        &self.agent
    }

    /// How its QEMU ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.qemu.ended()
    }

    /// The last lines of its serial console.
    pub fn console_tail(&self) -> String {
        tail(&self.console, 20)
    }

    /// Runs a shell script in it and waits for its end. Only one runs at a time; what shall go on is put into the
    /// background ([`Guest::start`]).
    pub fn run(&mut self, script: &str, limit: Duration, stop: Stop) -> Result<Output> {
        self.requests += 1;
        let id = self.requests;
        let request = format!("{id} {}\n", base64(script.as_bytes()));
        let until = Instant::now() + limit;
        self.shell.write_all(request.as_bytes()).map_err(|e| self.fail(format!("takes no script: {e}")))?;
        loop {
            let line = self.line(until, stop)?;
            let bad = || self.fail(format!("answered {line:?}, which is no answer"));
            let numbers: Vec<u64> = line.split(' ').map_while(|w| w.parse().ok()).collect();
            let [answered, status, length] = numbers[..] else { return Err(bad()) };
            let (status, length) = (i32::try_from(status).map_err(|_| bad())?, length as usize);
            if length > MOST_OUTPUT || answered > id {
                return Err(bad());
            }
            let bytes = self.bytes(length, until, stop)?;
            // An answer to an earlier script whose time was over is passed by.
            if answered == id {
                return Ok(Output { status, text: String::from_utf8_lossy(&bytes).into_owned() });
            }
        }
    }

    /// [`Guest::run`] for a script that must succeed; returns what it printed.
    pub fn expect(&mut self, script: &str, stop: Stop) -> Result<String> {
        let output = self.run(script, Duration::from_secs(60), stop)?;
        match output.status {
            0 => Ok(output.text),
            status => Err(self.fail(format!("{script}: exit status {status}: {}", output.text.trim()))),
        }
    }

    /// Starts a command line that goes on after this call, under a name by which [`Guest::end`] and
    /// [`Guest::file`] find it. With `again` it is started anew whenever it ends.
    pub fn start(&mut self, name: &str, command: &str, again: bool, stop: Stop) -> Result<()> {
        let around = if again { ("while :; do", "sleep 1; done") } else { ("", "") };
        let script = format!(
            "( {} {command} >/run/{name}.out 2>/run/{name}.err </dev/null & echo $! >/run/{name}.pid; wait $!
               echo $? >/run/{name}.status\n {} ) >/dev/null 2>&1 &
             tries=0; until [ -s /run/{name}.pid ]; do usleep 10000; tries=$((tries+1)); [ $tries -lt 500 ]; done",
            around.0, around.1
        );
        self.expect(&script, stop).map(drop)
    }

    /// Ends what [`Guest::start`] started, by SIGTERM, and gives what it printed on stdout and its exit status. Its
    /// stderr is in [`Guest::file`] `/run/NAME.err`.
    pub fn end(&mut self, name: &str, limit: Duration, stop: Stop) -> Result<Output> {
        let tenths = limit.as_millis() / 100;
        let script = format!(
            "kill -TERM $(cat /run/{name}.pid) 2>/dev/null
             tries=0; until [ -s /run/{name}.status ]; do
                 usleep 100000; tries=$((tries+1)); [ $tries -lt {tenths} ] || {{ echo still runs >&2; exit 124; }}
             done
             cat /run/{name}.out; exit $(cat /run/{name}.status)"
        );
        self.run(&script, limit + Duration::from_secs(30), stop)
    }

    /// A file of it, as text.
    pub fn file(&mut self, path: &str, stop: Stop) -> Result<String> {
        self.expect(&format!("cat {path}"), stop)
    }

    /// What its kernel counted on its device.
    pub fn counters(&mut self, stop: Stop) -> Result<Counters> {
        let names = ["rx_packets", "rx_dropped", "rx_errors", "tx_packets", "tx_dropped", "tx_errors"];
        let text =
            self.expect(&format!("cd /sys/class/net/{GUEST_DEVICE}/statistics && cat {}", names.join(" ")), stop)?;
        let numbers: Vec<u64> = text.lines().map_while(|l| l.trim().parse().ok()).collect();
        let [rx_packets, rx_dropped, rx_errors, tx_packets, tx_dropped, tx_errors] = numbers[..] else {
            return Err(self.fail(format!("{GUEST_DEVICE} has no counters: {text:?}")));
        };
        let device = GUEST_DEVICE.to_owned();
        Ok(Counters { device, rx_packets, rx_dropped, rx_errors, tx_packets, tx_dropped, tx_errors })
    }

    fn fail(&self, why: String) -> Error {
        Error::Guest { guest: self.name.clone(), why }
    }

    /// The next line from the shell.
    fn line(&mut self, until: Instant, stop: Stop) -> Result<String> {
        loop {
            if let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.pending.len() > MOST_LINE {
                return Err(self.fail("sends a line without end".into()));
            }
            self.more(until, stop)?;
        }
    }

    /// The next so many bytes from the shell.
    fn bytes(&mut self, count: usize, until: Instant, stop: Stop) -> Result<Vec<u8>> {
        while self.pending.len() < count {
            self.more(until, stop)?;
        }
        Ok(self.pending.drain(..count).collect())
    }

    /// Waits for at least one more byte.
    fn more(&mut self, until: Instant, stop: Stop) -> Result<()> {
        let mut buffer = [0; 65536];
        loop {
            match self.shell.read(&mut buffer) {
                Ok(0) => return Err(self.fail("it is gone".into())),
                Ok(n) => {
                    self.pending.extend_from_slice(&buffer[..n]);
                    return Ok(());
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(self.fail(e.to_string())),
            }
            if stop() {
                return Err(Error::Interrupted);
            }
            if Instant::now() >= until {
                return Err(self.fail("no answer in time".into()));
            }
        }
    }
}

/// The last lines of a file that may not be there.
fn tail(file: &Path, lines: usize) -> String {
    let bytes = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().map(str::trim_end).filter(|l| !l.is_empty()).collect();
    match all.len() {
        0 => "(nothing)".into(),
        n => all[n.saturating_sub(lines)..].join("\n"),
    }
}

/// RFC 4648: the form in which a script of many lines travels in one.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let three = [chunk[0], chunk.get(1).copied().unwrap_or(0), chunk.get(2).copied().unwrap_or(0)];
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for n in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * n)) as usize & 63];
            text.push(if n <= chunk.len() { digit as char } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_agrees_with_the_vectors_of_rfc_4648() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }
}
