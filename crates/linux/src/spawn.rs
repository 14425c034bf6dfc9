//! Processes that die with latpath.

use std::io;
use std::process::{Child, Command};
use std::sync::{mpsc, Mutex, OnceLock};
use std::thread;

/// Starts a command on a thread that never ends and forks for all, because the kernel ties the parent-death signal
/// (`PR_SET_PDEATHSIG`) to the forking thread, not to the process.
///
/// # Errors
/// If the command cannot be started.
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
