//! Processes that die with latpath.

use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{mpsc, Mutex, OnceLock};
use std::thread;

/// Makes the kernel send this signal to the command when the thread that starts it ends, and thus also when latpath is
/// killed. To start a command that must outlive the calling thread, use [`spawn_on_lasting_thread`].
pub fn die_with_parent(command: &mut Command, signal: Signal) {
    let parent = getpid();
    let before_exec = move || {
        nix::sys::prctl::set_pdeathsig(signal)?;
        // If the parent died between fork and prctl, no signal will arrive.
        match getppid() == parent {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::Interrupted)),
        }
    };
    // SAFETY: between fork and exec, the closure makes two system calls and allocates nothing: an `io::Error` made from
    // an errno or a kind does not allocate.
    unsafe { command.pre_exec(before_exec) };
}

/// Starts a command from a thread that never ends and starts all such commands, because the kernel ties the
/// parent-death signal (`PR_SET_PDEATHSIG`) to the forking thread, not to the process.
///
/// # Errors
/// The command cannot be started.
pub fn spawn_on_lasting_thread(command: Command) -> io::Result<Child> {
    type Job = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, inbox) = mpsc::channel::<Job>();
        thread::spawn(move || {
            for (mut command, reply) in inbox {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(jobs)
    });
    let (reply, answer) = mpsc::channel();
    let gone = || io::Error::other("the spawning thread is gone");
    spawner.lock().map_err(|_| gone())?.send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}
