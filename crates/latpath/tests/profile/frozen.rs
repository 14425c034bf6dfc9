//! A program whose file is in a file system that no longer answers: every process that accesses the file waits in the
//! kernel, and cannot be killed.

use crate::{json, of_process, Profile};
use latpath_agent::{Address, Machine, Timeouts};
use latpath_testkit::{equal, latpath, program, waits, Failed, Lack};
use nix::mount::{mount, MsFlags};
use nix::poll::{poll, PollFd, PollFlags};
use nix::sched::{unshare, CloneFlags};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

const DEVICE: &str = "/dev/fuse";
const NAME: &str = "lp-frozen";

/// The kernel's FUSE device.
pub fn need_fuse() -> Lack {
    File::open(DEVICE).err().map(|e| format!("needs {DEVICE}: {e}"))
}

/// A file system with one file, a program that runs forever (include/uapi/linux/fuse.h). It is mounted in its own
/// namespace, so that no other process accesses it.
struct FrozenProgram {
    process: Child,
    frozen: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    /// Number of requests that were read but not answered.
    held: Arc<AtomicU32>,
    server: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl FrozenProgram {
    fn start() -> Result<Self, Failed> {
        let folder = tempfile::tempdir()?;
        let (source, built, root) =
            (folder.path().join("busy.c"), folder.path().join(NAME), folder.path().join("root"));
        fs::write(&source, "int main(void) { volatile long n = 0; for (;;) n++; }\n")?;
        let gcc = Command::new("gcc").args(["-O1", "-static", "-s", "-o"]).args([&built, &source]).output()?;
        equal(&String::from_utf8_lossy(&gcc.stderr), gcc.status.success(), true)?;
        fs::create_dir(&root)?;
        let (file, device) = (fs::read(&built)?, File::options().read(true).write(true).open(DEVICE)?);
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let [frozen, ended] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let held = Arc::new(AtomicU32::new(0));
        let mut server = Server { device, file, frozen: frozen.clone(), ended: ended.clone(), held: held.clone() };
        let server = std::thread::spawn(move || server.serve());
        // The namespace belongs to this thread and its child.
        let start = move || -> Result<Child, String> {
            unshare(CloneFlags::CLONE_NEWNS).map_err(|e| e.to_string())?;
            let nothing = None::<&str>;
            mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).map_err(|e| e.to_string())?;
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            mount(Some(NAME), &root, Some("fuse"), flags, Some(&*options)).map_err(|e| format!("mount: {e}"))?;
            Command::new(root.join(NAME)).stdin(Stdio::null()).current_dir("/").spawn().map_err(|e| e.to_string())
        };
        let process = std::thread::spawn(start).join().map_err(|_| "a panic")??;
        let program = Self { process, frozen, ended, held, server: Some(server), _folder: folder };
        waits::until("the program runs", || program.cpu_ticks() > 5)?;
        program.frozen.store(true, Ordering::SeqCst);
        Ok(program)
    }

    /// User CPU time, ticks.
    fn cpu_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap_or_default();
        let fields = stat.rsplit(") ").next().unwrap_or_default();
        fields.split(' ').nth(11).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
    }

    fn held(&self) -> u32 {
        self.held.load(Ordering::SeqCst)
    }
}

impl Drop for FrozenProgram {
    fn drop(&mut self) {
        let _ = self.process.kill();
        self.ended.store(true, Ordering::SeqCst);
        // The kernel aborts all requests once the device is closed everywhere.
        let _ = self.server.take().map(JoinHandle::join);
        let _ = self.process.wait();
    }
}

struct Server {
    device: File,
    file: Vec<u8>,
    frozen: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    held: Arc<AtomicU32>,
}

const ROOT: u64 = 1;
const PROGRAM: u64 = 2;

impl Server {
    fn serve(&mut self) {
        // At least the buffer size that the kernel requires of a reader.
        let mut request = vec![0; 1 << 18];
        while !self.ended.load(Ordering::SeqCst) {
            let mut fds = [PollFd::new(self.device.as_fd(), PollFlags::POLLIN)];
            if poll(&mut fds, 50u8).unwrap_or(0) == 0 {
                continue;
            }
            // Reading fails for a request that its process abandoned, or after the file system was unmounted.
            let Ok(length) = self.device.read(&mut request) else { continue };
            if let Some(answer) = self.answer(&request[..length]) {
                let _ = self.device.write(&answer);
            }
        }
    }

    /// The answer to a request: its length, opcode, unique number and inode come first, its arguments start at byte 40.
    fn answer(&self, request: &[u8]) -> Option<Vec<u8>> {
        let number = |at: usize, length: usize| {
            let bytes = request.get(at..at + length).unwrap_or_default();
            bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let (opcode, unique, inode) = (number(4, 4) as u32, number(8, 8), number(16, 8));
        // FORGET, INTERRUPT and BATCH_FORGET have no answer.
        if [2, 36, 42].contains(&opcode) {
            return None;
        }
        if self.frozen.load(Ordering::SeqCst) {
            self.held.fetch_add(1, Ordering::SeqCst);
            return None;
        }
        let content = match opcode {
            // LOOKUP: the inode, which may not be cached.
            1 if request[40..].starts_with(NAME.as_bytes()) => {
                Ok([&PROGRAM.to_le_bytes()[..], &[0; 32], &self.attributes(PROGRAM)].concat())
            }
            1 => Err(libc::ENOENT),
            // GETATTR.
            3 => Ok([&[0; 16][..], &self.attributes(inode)].concat()),
            // OPEN, OPENDIR.
            14 | 27 => Ok(vec![0; 16]),
            // READ: this many bytes from this offset.
            15 => {
                let (from, length) = (number(48, 8) as usize, number(56, 4) as usize);
                let rest = self.file.get(from..).unwrap_or_default();
                Ok(rest[..rest.len().min(length)].to_vec())
            }
            // RELEASE, FLUSH, RELEASEDIR.
            18 | 25 | 29 => Ok(Vec::new()),
            // INIT: version 7.31, and the maximum write.
            26 => {
                let mut init =
                    [7u32.to_le_bytes(), 31u32.to_le_bytes(), [0; 4], [0; 4], [0; 4], 4096u32.to_le_bytes()].concat();
                init.resize(64, 0);
                Ok(init)
            }
            _ => Err(libc::ENOSYS),
        };
        let (error, content) = content.map_or_else(|error| (-error, Vec::new()), |content| (0, content));
        let length = 16 + content.len() as u32;
        Some([&length.to_le_bytes()[..], &error.to_le_bytes(), &unique.to_le_bytes(), &content].concat())
    }

    /// `struct fuse_attr`.
    fn attributes(&self, inode: u64) -> [u8; 88] {
        let (mode, size) = match inode {
            ROOT => (libc::S_IFDIR | 0o755, 0),
            _ => (libc::S_IFREG | 0o755, self.file.len() as u64),
        };
        let mut all = [0; 88];
        all[..8].copy_from_slice(&inode.to_le_bytes());
        all[8..16].copy_from_slice(&size.to_le_bytes());
        all[60..64].copy_from_slice(&mode.to_le_bytes());
        all[64..68].copy_from_slice(&1u32.to_le_bytes());
        all
    }
}

/// Expects the profile to be complete, with the program's time but without its functions.
fn is_complete(output: &Output) -> Result<(), Failed> {
    let profile: Profile = json(output)?;
    equal("the program is in the profile", of_process(&profile, NAME) > 0.0, true)?;
    let notes = profile.notes.concat();
    equal(&notes, notes.contains("could not be read, or not in time"), true)
}

/// Stops a command with SIGINT once its reader waits for the file.
fn interrupted(frozen: &FrozenProgram, mut command: Command) -> Result<Output, Failed> {
    let held = frozen.held();
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut child = Guarded(Some(child));
    waits::until("somebody waits for the file", || frozen.held() > held)?;
    let running = child.0.as_mut().ok_or("it is gone")?;
    kill(Pid::from_raw(running.id() as i32), Signal::SIGINT)?;
    waits::until("it ends", || running.try_wait().is_ok_and(|status| status.is_some()))?;
    Ok(child.0.take().ok_or("it is gone")?.wait_with_output()?)
}

/// A process that is killed on drop unless it has ended.
struct Guarded(Option<Child>);

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn costs_names_only() -> Result<(), Failed> {
    let frozen = FrozenProgram::start()?;
    is_complete(&latpath("profile --duration 2s --json").output()?)?;
    equal("somebody waited for the file", frozen.held() > 0, true)?;
    is_complete(&interrupted(&frozen, latpath("profile --json"))?)
}

/// An agent delivers its samples and ends, even if the file system does not answer.
pub fn holds_no_agent() -> Result<(), Failed> {
    let frozen = FrozenProgram::start()?;
    let folder = tempfile::tempdir()?;
    let socket: PathBuf = folder.path().join("agent");
    let mut agent = Command::new(program());
    agent.arg("agent").arg("--unix").arg(&socket).stdin(Stdio::null()).stderr(Stdio::null());
    let mut agent = Guarded(Some(agent.spawn()?));
    waits::until("the agent listens", || Path::new(&socket).exists())?;
    let long = waits::LIMIT;
    let timeouts = Timeouts { connect: long, start: long, profile: long, ..Timeouts::default() };
    let mut machine = Machine::connect("here", &Address::Unix(socket), timeouts)?;
    machine.start_profile(99, false)?;
    waits::until("somebody waits for the file", || frozen.held() > 0)?;
    machine.stop()?;
    equal("samples come", machine.take_profile()?.samples > 0, true)?;
    let running = agent.0.as_mut().ok_or("it is gone")?;
    kill(Pid::from_raw(running.id() as i32), Signal::SIGINT)?;
    waits::until("the agent ends", || running.try_wait().is_ok_and(|status| status.is_some()))
}
