//! A testbed of network namespaces, and commands that run in it.

use crate::{retried, Failed};
use latpath_lab::{Application, Guest, GuestPlan, Lab, LabPath, Namespace, Running};
use nix::sys::signal::Signal;
use serde::de::DeserializeOwned;
use std::{
    env,
    fs::{self, File},
    io,
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread::{self, JoinHandle},
    time::Duration,
};

/// Environment variable with the path of the program under test, if it is not the one that cargo built.
pub const PROGRAM: &str = "LATPATH_UNDER_TEST";

/// The path of the program under test. cargo puts it in the directory above that of this test program.
pub fn program() -> PathBuf {
    env::var_os(PROGRAM).map(PathBuf::from).unwrap_or_else(|| {
        let me = env::current_exe().expect("this program has a file");
        me.ancestors().nth(2).expect("it is in target/PROFILE/deps").join("latpath")
    })
}

/// A command that runs the program under test with these arguments.
pub fn latpath(words: &str) -> Command {
    let mut command = Command::new(program());
    // Tests must not contact servers that this machine's owner has configured.
    command.args(words.split_whitespace()).env_remove("DEBUGINFOD_URLS");
    command
}

/// A lab with a path on which several commands can run at the same time.
pub struct Bench {
    /// The namespaces.
    pub lab: Lab,
    /// The path from the publisher to the application.
    pub path: LabPath,
}

/// Sets up a lab without a guest.
///
/// # Errors
/// If the lab cannot be set up.
pub fn bench() -> Result<Bench, Failed> {
    let lab = Lab::new()?;
    let path = lab.lay(Application::Namespace)?;
    Ok(Bench { lab, path })
}

/// Boots a guest on the tap of a path. A second attempt is reported as a retry.
///
/// # Errors
/// If the guest does not boot.
pub fn boot(lab: &Lab, path: &LabPath, plan: &GuestPlan) -> latpath_lab::Result<Guest> {
    let guest = Guest::boot(lab, path, plan, &mut |line| eprintln!("{line}"), &|| false)?;
    if let Some(why) = guest.failed_boot() {
        retried(&format!("boot of {}", plan.name), why);
    }
    Ok(guest)
}

impl Bench {
    /// The application's namespace.
    pub fn application(&self) -> &Namespace {
        self.path.application.as_ref().expect("a bench has no guest")
    }

    /// Starts a command in a namespace, and keeps its output until [`Started::finish`].
    ///
    /// # Errors
    /// If the command cannot be started.
    pub fn start(&self, space: &Namespace, command: Command) -> Result<Started, Failed> {
        start(&self.lab, space, command)
    }

    /// Runs a command in a namespace until it exits.
    ///
    /// # Errors
    /// If the command cannot be started, or still runs after `limit`.
    pub fn run(&self, space: &Namespace, command: Command, limit: Duration) -> Result<Finished, Failed> {
        self.start(space, command)?.finish(limit)
    }
}

/// Starts a command in a namespace of a lab, and keeps its output until [`Started::finish`].
///
/// # Errors
/// If the command cannot be started.
pub fn start(lab: &Lab, space: &Namespace, mut command: Command) -> Result<Started, Failed> {
    let (stdout, stderr) = outputs(lab)?;
    command.stdin(Stdio::null()).stdout(File::create(&stdout)?).stderr(File::create(&stderr)?);
    Ok(Started { running: space.start(command, Signal::SIGKILL)?, stdout, stderr, terminal: None })
}

/// Starts a command with a terminal as its standard input and output.
///
/// # Errors
/// If the terminal cannot be opened, or the command cannot be started.
pub fn start_on_terminal(lab: &Lab, space: &Namespace, mut command: Command) -> Result<Started, Failed> {
    let (stdout, stderr) = outputs(lab)?;
    let (mut ours, its) = terminal()?;
    let mut kept = File::create(&stdout)?;
    command.env("TERM", "xterm").stdin(its.try_clone()?).stdout(its).stderr(File::create(&stderr)?);
    let running = space.start(command, Signal::SIGKILL)?;
    // Copies until reading fails, which happens when the other side is closed.
    let terminal = thread::spawn(move || drop(io::copy(&mut ours, &mut kept)));
    Ok(Started { running, stdout, stderr, terminal: Some(terminal) })
}

/// Paths for a command's standard output and standard error.
fn outputs(lab: &Lab) -> io::Result<(PathBuf, PathBuf)> {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let folder = lab.folder().join(format!("command-{}", STARTED.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir(&folder)?;
    Ok((folder.join("stdout"), folder.join("stderr")))
}

/// A terminal of 120 columns: the test's side, and the program's. Commands that other tests start do not inherit them.
fn terminal() -> io::Result<(File, File)> {
    let ours = File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/ptmx")?;
    let size = libc::winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    let unlocked: libc::c_int = 0;
    let done = |result: libc::c_int| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
    // SAFETY: the requests read an int and a winsize through the pointers (ioctl_tty(2)).
    done(unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCSPTLCK, &unlocked) })?;
    done(unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCSWINSZ, &size) })?;
    // SAFETY: the request takes flags of open(2), and returns a new file descriptor without another owner.
    let its = done(unsafe {
        libc::ioctl(ours.as_raw_fd(), libc::TIOCGPTPEER, libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC)
    })?;
    Ok((ours, unsafe { File::from_raw_fd(its) }))
}

/// A running command.
pub struct Started {
    running: Running,
    stdout: PathBuf,
    stderr: PathBuf,
    /// Thread that stores the terminal's output.
    terminal: Option<JoinHandle<()>>,
}

/// A finished command.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; `None` if a signal terminated the command.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Started {
    /// Sends SIGINT, as Ctrl-C does.
    pub fn interrupt(&self) {
        self.running.signal(Signal::SIGINT);
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }

    /// Its process ID.
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Whether it is still running.
    pub fn runs(&mut self) -> bool {
        matches!(self.running.ended(), Ok(None))
    }

    /// Its standard error so far.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Its standard output so far.
    pub fn printed(&self) -> String {
        fs::read_to_string(&self.stdout).unwrap_or_default()
    }

    /// Waits for the command to end; kills it after `limit`.
    ///
    /// # Errors
    /// If the command still runs after `limit`, or its output cannot be read.
    pub fn finish(mut self, limit: Duration) -> Result<Finished, Failed> {
        let status = self.running.wait(limit)?;
        if let Some(terminal) = self.terminal.take().filter(|_| status.is_some()) {
            terminal.join().map_err(|_| "what came on the terminal could not be kept")?;
        }
        let read = |file: &Path| fs::read(file).map(|b| String::from_utf8_lossy(&b).into_owned());
        let (stdout, stderr) = (read(&self.stdout)?, read(&self.stderr)?);
        match status {
            Some(status) => Ok(Finished { code: status.code(), stdout, stderr }),
            None => Err(format!("still runs after {limit:?}; it said: {stderr}").into()),
        }
    }
}

impl Finished {
    /// Parses the standard output as one JSON value.
    ///
    /// # Errors
    /// If the exit code is not 0, or the output is not the JSON of a `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failed> {
        if self.code != Some(0) {
            return Err(format!("exit code {:?}: {}", self.code, self.stderr).into());
        }
        serde_json::from_str(&self.stdout).map_err(|e| format!("{e} in {}", self.stdout).into())
    }
}
