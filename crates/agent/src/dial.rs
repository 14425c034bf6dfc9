//! Connects to an agent.

use crate::stream::Stream;
use crate::Address;
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{kill, Signal};
use nix::sys::socket::{
    bind, connect, getsockopt, socket, sockopt::SocketError, AddressFamily, SockFlag, SockType, SockaddrLike, UnixAddr,
    VsockAddr,
};
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Lowest vsock port that does not require root (`LAST_RESERVED_PORT` in net/vmw_vsock/af_vsock.c).
pub(crate) const RESERVED: u32 = 1024;
/// First reserved port to try.
const FIRST_RESERVED: u32 = 512;
/// Any context identifier of this machine (`VMADDR_CID_ANY`).
pub(crate) const CID_ANY: u32 = u32::MAX;

/// Interval between attempts to connect.
const RETRY: Duration = Duration::from_millis(100);
/// Maximum number of lines of a command's standard error that an error message quotes, and their maximum length.
const TAIL_LINES: usize = 5;
const TAIL_LINE: u64 = 300;

/// A stream to an agent, with the command that carries it, if any.
pub(crate) struct Line {
    pub stream: Stream,
    pub command: Option<Carrier>,
}

/// Connects to an agent. An agent started over ssh may run commands only with `runs_commands`, so that a forced command
/// or a sudo rule can permit agents without permitting commands.
///
/// # Errors
/// The agent cannot be started or reached; the error names the reason and the next step.
pub(crate) fn dial(address: &Address, timeout: Duration, runs_commands: bool) -> Result<Line, String> {
    match address {
        Address::Unix(path) => {
            let to = UnixAddr::new(path).map_err(|e| e.desc().to_string())?;
            let stream = reach(AddressFamily::Unix, &to, timeout).map_err(|e| match e {
                Errno::ENOENT => "no such socket; is the agent (or the VM) running?".into(),
                Errno::ECONNREFUSED => "no process listens on this socket; is the agent (or the VM) running?".into(),
                Errno::EACCES => "permission denied; latpath must run as the socket's owner or as root".into(),
                e => e.desc().to_string(),
            })?;
            Ok(Line { stream, command: None })
        }
        Address::Vsock { cid, port } => {
            let stream = reach(AddressFamily::Vsock, &VsockAddr::new(*cid, *port), timeout).map_err(|e| match e {
                Errno::EAFNOSUPPORT => "this kernel has no vsock; load vhost_vsock, or use ssh: or unix:".to_string(),
                Errno::ENODEV | Errno::ENETUNREACH => format!("no guest has the context identifier {cid}"),
                Errno::ECONNRESET | Errno::ECONNREFUSED | Errno::ETIMEDOUT => {
                    format!(
                        "no process listens on port {port} of context {cid}; is the guest up, and 'latpath agent --vsock {port}' in it?"
                    )
                }
                e => e.desc().to_string(),
            })?;
            Ok(Line { stream, command: None })
        }
        Address::Ssh { user, host, port } => {
            let mut command = Command::new("ssh");
            command.args(ssh_options());
            command.args(["-o", &format!("ConnectTimeout={}", timeout.as_secs().max(1))]);
            if let Some(port) = port {
                command.args(["-p", &port.to_string()]);
            }
            if let Some(user) = user {
                command.args(["-l", user]);
            }
            command.args(["--", host]).args(agent_of_ssh(runs_commands));
            spawn(command)
        }
        Address::Exec(text) => {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", text]);
            spawn(command)
        }
    }
}

/// Command line of the agent for ssh.
fn agent_of_ssh(runs_commands: bool) -> impl Iterator<Item = &'static str> {
    ["latpath", "agent", "--stdio"].into_iter().chain(runs_commands.then_some("--allow-commands"))
}

/// ssh options that prevent agent, X11 and port forwarding to the guest, which root's configuration may enable.
fn ssh_options() -> [&'static str; 7] {
    ["-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes"]
}

/// Connects, with retries until the timeout.
fn reach(family: AddressFamily, to: &dyn SockaddrLike, timeout: Duration) -> Result<Stream, Errno> {
    let began = Instant::now();
    loop {
        let left = timeout.saturating_sub(began.elapsed());
        match attempt(family, to, left) {
            Ok(fd) => return Stream::new(fd).map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0))),
            Err(e @ (Errno::ENOENT | Errno::ECONNREFUSED | Errno::ECONNRESET | Errno::EAGAIN | Errno::ENODEV)) => {
                if began.elapsed() + RETRY >= timeout {
                    return Err(e);
                }
            }
            Err(e) => return Err(e),
        }
        std::thread::sleep(RETRY);
    }
}

/// Binds a reserved port if this user is root. The agent accepts commands only from such ports.
fn reserve(fd: &OwnedFd) {
    let bound = |port: &u32| bind(fd.as_raw_fd(), &VsockAddr::new(CID_ANY, *port));
    // If no reserved port is free, the kernel chooses another port.
    let _ = (FIRST_RESERVED..RESERVED).map(|port| bound(&port)).find(|bound| *bound != Err(Errno::EADDRINUSE));
}

fn attempt(family: AddressFamily, to: &dyn SockaddrLike, timeout: Duration) -> Result<OwnedFd, Errno> {
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    if family == AddressFamily::Vsock {
        reserve(&fd);
    }
    match connect(fd.as_raw_fd(), to) {
        Ok(()) => return Ok(fd),
        Err(Errno::EINPROGRESS) => {}
        Err(e) => return Err(e),
    }
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLOUT)];
    let ms = timeout.as_millis().clamp(1, 60_000) as u16;
    if poll(&mut fds, PollTimeout::from(ms))? == 0 {
        return Err(Errno::ETIMEDOUT);
    }
    match getsockopt(&fd, SocketError)? {
        0 => Ok(fd),
        error => Err(Errno::from_raw(error)),
    }
}

/// A command that carries the stream. It runs in its own process group, so that Ctrl-C does not kill it before the last
/// sightings have arrived. Dropping it kills the whole group.
pub(crate) struct Carrier {
    child: Child,
    tail: Arc<Mutex<VecDeque<String>>>,
    tail_thread: Option<std::thread::JoinHandle<()>>,
}

fn spawn(mut command: Command) -> Result<Line, String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let name = command.get_program().to_string_lossy().into_owned();
    latpath_linux::background::leave_at_exec(&mut command);
    let mut child = command.spawn().map_err(|e| format!("{name} cannot be started: {e}"))?;
    let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let stderr = child.stderr.take().expect("piped");
    let tail = Arc::new(Mutex::new(VecDeque::new()));
    let kept = tail.clone();
    let reading = std::thread::Builder::new().name("lp-stderr".into()).spawn(move || {
        let mut stderr = BufReader::new(stderr);
        let mut line = Vec::new();
        while matches!(stderr.by_ref().take(TAIL_LINE).read_until(b'\n', &mut line), Ok(n) if n > 0) {
            let text = crate::message::printable(String::from_utf8_lossy(&line).trim_end());
            line.clear();
            let mut kept = kept.lock().unwrap_or_else(|e| e.into_inner());
            if !text.is_empty() {
                kept.push_back(text);
            }
            if kept.len() > TAIL_LINES {
                kept.pop_front();
            }
        }
    });
    let mut carrier = Carrier { child, tail, tail_thread: None };
    carrier.tail_thread = Some(reading.map_err(|e| format!("no thread to read {name}'s errors: {e}"))?);
    let stream = Stream::from_pair(stdout, stdin).map_err(|e| e.to_string())?;
    Ok(Line { stream, command: Some(carrier) })
}

impl Carrier {
    /// Returns the last lines of the command's standard error, and its exit status if it has ended. Waits up to `wait`
    /// for the end.
    pub fn last_words(&mut self, wait: Duration) -> String {
        let began = Instant::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(None) if began.elapsed() < wait => std::thread::sleep(Duration::from_millis(10)),
                Ok(status) => break status,
                Err(_) => break None,
            }
        };
        // The last output may still be in the pipe.
        while status.is_some()
            && began.elapsed() < wait
            && self.tail_thread.as_ref().is_some_and(|thread| !thread.is_finished())
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        let tail = self.tail.lock().unwrap_or_else(|e| e.into_inner());
        let said = tail.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
        match (status, said.is_empty()) {
            (Some(status), true) => format!("the command ended ({status})"),
            (Some(status), false) => format!("the command ended ({status}) and printed: {said}"),
            (None, true) => String::new(),
            (None, false) => format!("the command printed: {said}"),
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        // Most commands end by themselves once their streams are closed.
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(500) {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let group = Pid::from_raw(-(self.child.id() as i32));
        let _ = kill(group, Signal::SIGTERM);
        std::thread::sleep(Duration::from_millis(100));
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill(group, Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_agent_over_ssh_permits_commands_only_if_one_is_to_run() {
        let line = |runs_commands| super::agent_of_ssh(runs_commands).collect::<Vec<_>>().join(" ");
        assert_eq!(line(false), "latpath agent --stdio");
        assert_eq!(line(true), "latpath agent --stdio --allow-commands");
    }

    #[test]
    fn a_guest_gets_neither_the_keys_of_roots_ssh_agent_nor_its_forwardings() {
        let options = super::ssh_options();
        assert!(["-a", "-x", "ClearAllForwardings=yes"].iter().all(|option| options.contains(option)));
    }
}
