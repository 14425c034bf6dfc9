//! Reads files of observed processes: symbols of their programs, their perf maps, a program's version. The files are
//! untrusted and their owners may be hostile, so two separate processes read them. One only opens files; the other
//! parses them, without privileges ([`latpath_linux::confine`]). A file that crashes these processes costs names, not
//! the profile.

mod elf;
mod messages;
mod opener;
mod parser;

pub(crate) use elf::Image;
#[cfg(test)]
pub(crate) use elf::Segment;

use crate::slice::MAX_NAME;
use latpath_model::text::cut;
use messages::{send, settle, Answer, Open, ParserReply, Query, Request, MAX_MESSAGE};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum duration of a request: the symbols of a large program are read within a second or two.
const WITHIN: Duration = Duration::from_secs(5);
/// Maximum total duration of all failed requests.
const FAIL_WITHIN: Duration = Duration::from_secs(30);
/// Number of killed reading processes, still blocked in the kernel by a file system, from which no more are started.
const MAX_STUCK: usize = 8;
/// Beginning of QEMU's version string.
const QEMU_VERSION: &str = "QEMU emulator version ";

/// Reasons for which no names are available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The process has ended.
    Gone,
    /// Its files cannot be read.
    Unreadable,
    /// A reading process crashed or timed out.
    Failed,
}

/// A mapping of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapped {
    File {
        from: u64,
        until: u64,
    },
    /// The kernel's code (vDSO).
    Vdso,
}

/// Names of functions, and the file's identity if it does not name all of them.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub names: Vec<Option<String>>,
    pub image: Option<Image>,
}

/// Reads files, one request at a time.
pub(crate) struct Reader {
    processes: Option<Processes>,
    pending: Option<Pending>,
    /// Total duration of failed requests.
    failed: Duration,
    within: Duration,
    /// Killed processes that still exist.
    ending: Vec<libc::pid_t>,
}

struct Pending {
    since: Instant,
    tgid: u32,
    names: usize,
}

struct Processes {
    pids: [libc::pid_t; 2],
    requests: UnixStream,
    answers: UnixStream,
    answer: Vec<u8>,
}

impl Default for Reader {
    fn default() -> Self {
        let (failed, ending) = (Duration::ZERO, Vec::new());
        Self { processes: None, pending: None, failed, within: WITHIN, ending }
    }
}

impl Reader {
    /// Requests the names at some offsets in a mapping of a process.
    ///
    /// # Errors
    /// If the reading processes are unavailable or busy.
    pub fn ask_mapped(&mut self, tgid: u32, mapped: Mapped, offsets: Vec<u64>) -> Result<(), Unread> {
        let open = match mapped {
            Mapped::File { from, until } => Open::Mapping { tgid, from, until },
            Mapped::Vdso => Open::Vdso,
        };
        self.ask(tgid, open, Query::Offsets(offsets))
    }

    /// Requests the names of code that a process generated at run time.
    ///
    /// # Errors
    /// If the reading processes are unavailable or busy.
    pub fn ask_perf_map(&mut self, tgid: u32, addresses: Vec<u64>) -> Result<(), Unread> {
        self.ask(tgid, Open::PerfMap { tgid }, Query::PerfMap(addresses))
    }

    /// Returns the answer to the last request, after waiting for at most `wait`; `None` while it is pending.
    pub fn answer(&mut self, wait: Duration) -> Option<Result<Names, Unread>> {
        let pending = self.pending.as_ref()?;
        let left = self.within.saturating_sub(pending.since.elapsed());
        let answer = match self.processes.as_mut()?.receive(wait.min(left)) {
            Ok(None) if pending.since.elapsed() < self.within => return None,
            Ok(None) => Err(Unread::Failed),
            Ok(Some(answer)) => Ok(answer),
            Err(_) => Err(Unread::Failed),
        };
        let Pending { since, tgid, names } = self.pending.take()?;
        Some(match answer {
            Ok(Some(found)) if found.names.len() == names => Ok(Names {
                names: found.names.into_iter().map(clean).collect(),
                image: found.image.filter(Image::is_sound),
            }),
            Ok(_) if is_running(tgid) => Err(Unread::Unreadable),
            Ok(_) => Err(Unread::Gone),
            Err(why) => {
                self.failed += since.elapsed();
                self.end();
                Err(why)
            }
        })
    }

    /// Returns the names of the functions at addresses of a file on this machine; `None` if its build-id differs or it
    /// cannot be read.
    pub fn names_in(&mut self, path: &Path, build_id: &[u8], addresses: &[u64]) -> Option<Vec<Option<String>>> {
        let query = Query::Addresses { build_id: build_id.into(), addresses: addresses.into() };
        let found = self.wait_for(Open::Path(path.into()), query)?;
        (found.names.len() == addresses.len()).then(|| found.names.into_iter().map(clean).collect())
    }

    fn wait_for(&mut self, open: Open, query: Query) -> Option<ParserReply> {
        self.ask(0, open, query).ok()?;
        let until = self.pending.take()?.since + self.within;
        while Instant::now() < until {
            match self.processes.as_mut()?.receive(until - Instant::now()) {
                Ok(Some(answer)) => return answer,
                Ok(None) => {}
                Err(_) => break,
            }
        }
        self.failed += self.within;
        self.end();
        None
    }

    fn ask(&mut self, tgid: u32, open: Open, query: Query) -> Result<(), Unread> {
        let names = match &query {
            Query::Offsets(of) | Query::PerfMap(of) | Query::Addresses { addresses: of, .. } => of.len(),
            Query::Text(_) => 0,
        };
        if self.failed >= FAIL_WITHIN || self.pending.is_some() {
            return Err(Unread::Unreadable);
        }
        if self.processes.is_none() {
            self.ending.retain(|pid| !has_ended(*pid));
            if self.ending.len() >= MAX_STUCK {
                return Err(Unread::Unreadable);
            }
            self.processes = Some(Processes::start().map_err(|_| Unread::Unreadable)?);
        }
        let since = Instant::now();
        let sent = self.processes.as_mut().map(|processes| processes.request(&Request { open, query }, self.within));
        if !matches!(sent, Some(Ok(()))) {
            self.failed += since.elapsed();
            self.end();
            return Err(Unread::Failed);
        }
        self.pending = Some(Pending { since, tgid, names });
        Ok(())
    }

    /// Ends both processes; the next ones share no state with them.
    fn end(&mut self) {
        if let Some(processes) = self.processes.take() {
            // SAFETY: our children, not yet waited for, so their PIDs are not reused.
            processes.pids.iter().for_each(|pid| unsafe { _ = libc::kill(*pid, libc::SIGKILL) });
            self.ending.extend(processes.pids);
        }
        self.ending.retain(|pid| !has_ended(*pid));
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.end();
        for pid in std::mem::take(&mut self.ending) {
            // A process that a file system blocks may never end, so a detached thread waits for it.
            let wait = move || {
                // SAFETY: plain numbers; a null status pointer is allowed.
                unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
            };
            let _ = std::thread::Builder::new().name("lp-reap".into()).spawn(wait);
        }
    }
}

/// Reaps a child if it has ended.
fn has_ended(pid: libc::pid_t) -> bool {
    // SAFETY: plain numbers; a null status pointer is allowed.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) != 0 }
}

fn clean(name: Option<String>) -> Option<String> {
    name.map(|name| cut(&latpath_model::text::printable(&name), MAX_NAME).to_owned()).filter(|name| !name.is_empty())
}

/// Whether a process is alive and not a zombie.
fn is_running(tgid: u32) -> bool {
    let first = std::fs::File::open(format!("/proc/{tgid}/maps")).and_then(|mut maps| maps.read(&mut [0]));
    first.is_ok_and(|bytes| bytes > 0)
}

/// The version of QEMU in a process's program file; `None` if the file contains none or cannot be read. The file is not
/// executed.
pub fn qemu_version(pid: u32) -> Option<String> {
    let found = Reader::default().wait_for(Open::Program { tgid: pid }, Query::Text(QEMU_VERSION.into()))?;
    clean(found.text)
}

impl Processes {
    fn start() -> io::Result<Self> {
        let (requests, its_requests) = UnixStream::pair()?;
        let (answers, its_answers) = UnixStream::pair()?;
        let (to_parser, from_opener) = UnixStream::pair()?;
        // SAFETY: takes and returns numbers.
        let own = unsafe { libc::getpid() };
        let parser = fork(|| {
            let [files, answers] = settle(c"lp-symbols", own, [from_opener.try_clone()?, its_answers.try_clone()?])?;
            parser::serve(files, answers, own)
        })?;
        let opener = fork(|| {
            let [requests, parser] = settle(c"lp-open", own, [its_requests.try_clone()?, to_parser.try_clone()?])?;
            latpath_linux::confine::keep_opening_of_mapped_files()?;
            opener::serve(requests, parser)
        });
        match opener {
            Ok(opener) => Ok(Self { pids: [opener, parser], requests, answers, answer: Vec::new() }),
            Err(e) => {
                // SAFETY: our child, not yet waited for.
                unsafe {
                    libc::kill(parser, libc::SIGKILL);
                    libc::waitpid(parser, std::ptr::null_mut(), 0);
                }
                Err(e)
            }
        }
    }

    fn request(&mut self, request: &Request, within: Duration) -> io::Result<()> {
        self.requests.set_write_timeout(Some(within))?;
        send(&mut self.requests, request, None)
    }

    /// The answer, once it is complete.
    fn receive(&mut self, wait: Duration) -> io::Result<Option<Answer>> {
        let until = Instant::now() + wait;
        loop {
            if let Some(length) = self.answer.first_chunk() {
                let length = u32::from_le_bytes(*length) as usize;
                if length > MAX_MESSAGE {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                if self.answer.len() >= 4 + length {
                    let answer = serde_json::from_slice(&self.answer[4..4 + length]);
                    self.answer.clear();
                    return Ok(Some(answer?));
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            let left = PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.answers.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, left) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(nix::Error::EINTR) => continue,
                Err(e) => return Err(e.into()),
            }
            let mut chunk = [0; 1 << 14];
            match self.answers.read(&mut chunk)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => self.answer.extend(&chunk[..length]),
            }
        }
    }
}

/// Runs `work` in a child process; returns the child's PID.
fn fork(work: impl FnOnce() -> io::Result<()>) -> io::Result<libc::pid_t> {
    // SAFETY: the child calls only `work`, and ends when `work` returns. Of the locks that other threads may hold at
    // this moment, it needs only the allocator's, which glibc and musl make usable in the child; a child that hangs
    // nevertheless is killed like any other.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let _ = catch_unwind(AssertUnwindSafe(work));
            // SAFETY: ends this process without running the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
        pid => Ok(pid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> (u32, std::path::PathBuf) {
        (std::process::id(), std::env::current_exe().unwrap())
    }

    /// Requests a name in this program's own file, and waits.
    fn ask(reader: &mut Reader) -> Result<Names, Unread> {
        let mut code = crate::code::CodeMap::default();
        let here = ask as *const () as u64;
        code.look_for(own().0, here);
        let code = code.find(here).unwrap();
        let mapped = Mapped::File { from: code.from, until: code.until };
        reader.ask_mapped(own().0, mapped, vec![here - code.from + code.offset])?;
        loop {
            if let Some(answer) = reader.answer(Duration::from_secs(1)) {
                return answer;
            }
        }
    }

    fn status(pid: libc::pid_t, field: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        latpath_linux::proc::field(&status, field).unwrap_or_default().to_owned()
    }

    #[test]
    fn a_reader_that_is_killed_costs_one_answer_and_its_successor_works() {
        let mut reader = Reader::default();
        let name = ask(&mut reader).unwrap().names[0].clone().unwrap();
        assert!(name.contains("reader::tests::ask"), "{name}");
        for which in [0, 1] {
            let pid = reader.processes.as_ref().unwrap().pids[which];
            // SAFETY: our own child.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            assert_eq!(ask(&mut reader).map(drop), Err(Unread::Failed));
            assert!(ask(&mut reader).is_ok());
            assert_ne!(reader.processes.as_ref().unwrap().pids[which], pid);
        }
        let gone = reader.ask_mapped(u32::MAX >> 1, Mapped::File { from: 0, until: 4096 }, vec![0]);
        assert_eq!(gone, Ok(()));
        assert_eq!(reader.answer(WITHIN).unwrap().map(drop), Err(Unread::Gone));
    }

    #[test]
    fn the_parser_has_no_rights_and_the_opener_those_that_it_needs() {
        let mut reader = Reader::default();
        ask(&mut reader).unwrap();
        let [opener, parser] = reader.processes.as_ref().unwrap().pids;
        assert_eq!(
            (status(parser, "CapEff").as_str(), status(parser, "CapPrm").as_str()),
            ("0000000000000000", "0000000000000000")
        );
        assert_eq!((status(parser, "NoNewPrivs").as_str(), status(opener, "NoNewPrivs").as_str()), ("1", "1"));
        assert_eq!(status(parser, "Seccomp"), "2");
        if nix::unistd::geteuid().is_root() {
            assert!(status(parser, "Uid").starts_with("65534"), "{}", status(parser, "Uid"));
        }
        // CAP_NET_ADMIN and CAP_SYS_MODULE, two of root's capabilities.
        let kept = u64::from_str_radix(&status(opener, "CapEff"), 16).unwrap();
        assert_eq!(kept & (1 << 12 | 1 << 16), 0);
    }

    #[test]
    fn those_who_do_not_answer_have_a_common_budget_of_time_and_are_not_waited_for() {
        let mut reader = Reader::default();
        for failures in 1..=10 {
            reader.within = WITHIN;
            ask(&mut reader).unwrap();
            let pid = reader.processes.as_ref().unwrap().pids[1];
            // SAFETY: our own child.
            unsafe { libc::kill(pid, libc::SIGSTOP) };
            reader.within = Duration::from_millis(50);
            assert_eq!(ask(&mut reader).map(drop), Err(Unread::Failed));
            assert!(reader.failed >= reader.within * failures);
        }
        reader.failed = FAIL_WITHIN;
        assert_eq!(ask(&mut reader).map(drop), Err(Unread::Unreadable));
        assert!(reader.processes.is_none());
        // A full list of killed processes, all of which have been reaped.
        reader.failed = Duration::ZERO;
        reader.ending = vec![0; MAX_STUCK];
        assert!(ask(&mut reader).is_ok(), "those that have ended are forgotten");
    }

    #[test]
    fn a_line_of_a_program_is_read_and_its_build_id_must_be_the_one_that_is_asked_for() {
        let (pid, path) = own();
        let mut reader = Reader::default();
        let query = || Query::Text("a_line_of_a_program_is_".into());
        let found = reader.wait_for(Open::Program { tgid: pid }, query()).unwrap();
        assert!(found.text.unwrap().starts_with("a_line_of_a_program_is_"));
        assert_eq!(reader.wait_for(Open::Path("/dev/null".into()), query()), None);
        assert_eq!(reader.names_in(&path, &[1, 2, 3], &[8]), None);
    }
}
