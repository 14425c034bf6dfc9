//! Reading symbols in a process of its own. The files belong to those who are watched, and may be anything: a parser that panics, asks for
//! more memory than there is, or waits for ever then costs names, not the profile.

use crate::slice::{MAX_BUILD_ID, MAX_NAME};
use blazesym::helper::read_elf_build_id;
use blazesym::symbolize::source::{Process, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use blazesym::Pid;
use latpath_linux::proc::Root;
use latpath_model::text::{cut, printable};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a request may take: the symbols of a large program are read within a second or two.
const WITHIN: Duration = Duration::from_secs(5);
/// Bytes of memory that the process may take beside what it has from ours; files that it maps are not counted.
const MOST_MEMORY: u64 = 1 << 30;
/// Bytes of an answer: 2^16 names of 256 bytes, as JSON.
const MOST_ANSWER: u64 = 64 << 20;
/// Bytes of a `perf-PID.map`.
const MOST_MAP: u64 = 64 << 20;
/// Processes whose maps are kept.
const MOST_MAPS: usize = 64;

#[derive(Serialize, Deserialize)]
enum Request {
    /// Names of a process's functions.
    Names(u32, Vec<u64>),
    /// What the file is that a process has mapped from one address to another.
    Image(u32, u64, u64),
}

/// A program or library: what tells it from all others, and where its parts lie.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Image {
    pub build_id: Vec<u8>,
    /// Offset in the file, length there, and address.
    pub segments: Vec<(u64, u64, u64)>,
}

/// Why there are no names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The process has ended.
    Gone,
    /// What it has cannot be read.
    Unreadable,
    /// Whoever reads did not survive it, or not in time.
    Failed,
}

/// The process that reads, while there is one.
#[derive(Default)]
pub(crate) struct Reader {
    child: Option<Child>,
}

struct Child {
    pid: libc::pid_t,
    stream: BufReader<UnixStream>,
}

impl Reader {
    /// Names of a process's functions.
    pub fn names(&mut self, tgid: u32, addresses: &[u64]) -> Result<Vec<Option<String>>, Unread> {
        let answer = self.ask(&Request::Names(tgid, addresses.to_vec()));
        let names: Option<Vec<Option<String>>> = answer.map_err(|_| Unread::Failed)?;
        match names.filter(|names| names.len() == addresses.len()) {
            Some(names) => {
                let clean = |name: String| cut(&printable(&name), MAX_NAME).to_owned();
                Ok(names.into_iter().map(|name| name.map(clean).filter(|name| !name.is_empty())).collect())
            }
            None if is_running(tgid) => Err(Unread::Unreadable),
            None => Err(Unread::Gone),
        }
    }

    /// What the file is that a process has mapped from one address to another; `None` where that is of no use.
    pub fn image(&mut self, tgid: u32, from: u64, until: u64) -> Option<Image> {
        let image: Option<Image> = self.ask(&Request::Image(tgid, from, until)).ok()?;
        image.filter(|image| (1..=MAX_BUILD_ID).contains(&image.build_id.len()))
    }

    fn ask<T: for<'de> Deserialize<'de>>(&mut self, request: &Request) -> io::Result<T> {
        let mut child = match self.child.take() {
            Some(child) => child,
            None => Child::start()?,
        };
        let answer = child.ask(request)?;
        // One that has failed is ended, and its successor begins with nothing of what it had read.
        self.child = Some(child);
        Ok(serde_json::from_slice(&answer)?)
    }
}

/// Whether it is there, and not only its number, which its parent still keeps.
fn is_running(tgid: u32) -> bool {
    fs::read_to_string(format!("/proc/{tgid}/maps")).is_ok_and(|maps| !maps.is_empty())
}

impl Child {
    fn start() -> io::Result<Self> {
        let (ours, its) = UnixStream::pair()?;
        // SAFETY: the child calls nothing but `serve`, and ends with it. Of what other threads may hold at this moment it needs the
        // allocator alone, which glibc and musl make usable in the child; where it hangs all the same it is ended like any that hangs.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let _ = catch_unwind(AssertUnwindSafe(|| serve(its)));
                // SAFETY: ends this process, without what the parent has left to be done at its end.
                unsafe { libc::_exit(0) }
            }
            pid => Ok(Self { pid, stream: BufReader::new(ours) }),
        }
    }

    fn ask(&mut self, request: &Request) -> io::Result<Vec<u8>> {
        let until = Instant::now() + WITHIN;
        let left = || Some(until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));
        let stream = self.stream.get_mut();
        stream.set_write_timeout(left())?;
        stream.write_all(&[serde_json::to_vec(request)?, b"\n".to_vec()].concat())?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\n") {
            if Instant::now() >= until || answer.len() as u64 > MOST_ANSWER {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.get_ref().set_read_timeout(left())?;
            let more = self.stream.fill_buf()?;
            if more.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let taken = more.iter().position(|byte| *byte == b'\n').map_or(more.len(), |at| at + 1);
            answer.extend(&more[..taken]);
            self.stream.consume(taken);
        }
        Ok(answer)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: it is our child, which nobody has waited for: the number is its own.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// The child: answers until its parent is gone.
fn serve(stream: UnixStream) -> io::Result<()> {
    confine(stream.as_raw_fd())?;
    let user = Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false).build();
    let mut maps = Maps::default();
    let (mut lines, mut out) = (BufReader::new(stream.try_clone()?), stream);
    let mut line = String::new();
    while { &mut lines }.take(MOST_ANSWER).read_line(&mut line)? > 0 {
        let answer = match serde_json::from_str(&line)? {
            Request::Names(tgid, addresses) => serde_json::to_vec(&names(&user, &mut maps, tgid, &addresses)),
            Request::Image(tgid, from, until) => serde_json::to_vec(&image(tgid, from, until)),
        };
        out.write_all(&[answer?, b"\n".to_vec()].concat())?;
        line.clear();
    }
    Ok(())
}

/// Leaves it nothing of ours but the stream, little memory, and no life beyond ours.
fn confine(stream: i32) -> io::Result<()> {
    let done = |result: libc::c_long| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    let stream = stream as libc::c_uint;
    let statm = fs::read_to_string("/proc/self/statm")?;
    // SAFETY: takes a number, returns one.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let data = statm.split(' ').nth(5).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * page;
    let most = libc::rlimit { rlim_cur: data + MOST_MEMORY, rlim_max: data + MOST_MEMORY };
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: numbers, names that live for ever, and structs that live during their calls. What is closed belongs to the parent, none of
    // whose objects is dropped here; /dev/null takes the place of what a panic would be printed to.
    unsafe {
        done(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL).into())?;
        libc::prctl(libc::PR_SET_NAME, c"lp-symbols".as_ptr());
        // Ctrl-C is the parent's.
        libc::setpgid(0, 0);
        done(libc::setrlimit(libc::RLIMIT_DATA, &most).into())?;
        done(libc::setrlimit(libc::RLIMIT_CORE, &none).into())?;
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        done(null.into())?;
        (0..3).for_each(|fd| _ = libc::dup2(null, fd));
        if stream > 3 {
            done(libc::syscall(libc::SYS_close_range, 3, stream - 1, 0))?;
        }
        done(libc::syscall(libc::SYS_close_range, stream + 1, libc::c_uint::MAX, 0))
    }
}

/// Names of a process's functions; `None` where it cannot be read.
fn names(user: &Symbolizer, maps: &mut Maps, tgid: u32, addresses: &[u64]) -> Option<Vec<Option<String>>> {
    let find = |mut source: Process, addresses: &[u64]| {
        source.perf_map = false;
        let found = user.symbolize(&Source::Process(source), Input::AbsAddr(addresses)).ok()?;
        let name = |found: &Symbolized<'_>| found.as_sym().map(|symbol| symbol.name.to_string());
        Some(found.iter().map(name).collect::<Vec<Option<String>>>())
    };
    let mut source = Process::new(Pid::from(tgid));
    // Symbols of the files say `a::b::c` where debugging information says `c`.
    source.debug_syms = false;
    let mut names = find(source, addresses)?;
    let unnamed = |names: &[Option<String>]| (0..names.len()).filter(|at| names[*at].is_none()).collect::<Vec<usize>>();
    for at in unnamed(&names) {
        names[at] = maps.name(tgid, addresses[at]);
    }
    let unnamed = unnamed(&names);
    if !unnamed.is_empty() {
        let addresses: Vec<u64> = unnamed.iter().map(|at| addresses[*at]).collect();
        let more = find(Process::new(Pid::from(tgid)), &addresses).unwrap_or_default();
        unnamed.iter().zip(more).for_each(|(at, name)| names[*at] = name);
    }
    Some(names)
}

/// What processes say of code that they made at run time (`perf-PID.map`, tools/perf/Documentation/jit-interface.txt).
#[derive(Default)]
struct Maps(HashMap<u32, Map>);

struct Map {
    /// When it was written, and its length: what changes with it.
    state: (i64, i64, u64),
    /// By begin: end, and name.
    functions: BTreeMap<u64, (u64, String)>,
}

impl Maps {
    fn name(&mut self, tgid: u32, address: u64) -> Option<String> {
        let (file, state) = open_map(tgid)?;
        if self.0.get(&tgid).is_none_or(|known| known.state != state) {
            if self.0.len() >= MOST_MAPS {
                self.0.clear();
            }
            self.0.insert(tgid, Map { state, functions: functions(BufReader::new(file.take(MOST_MAP))) });
        }
        let (_, (end, name)) = self.0[&tgid].functions.range(..=address).next_back()?;
        (address < *end).then(|| name.clone())
    }
}

/// A process's map, where it is a file of the process's own user: anybody can make a file in `/tmp`.
fn open_map(tgid: u32) -> Option<(File, (i64, i64, u64))> {
    // Its number in its own namespace stands last.
    let status = Root::of(Path::new("/")).text(&format!("proc/{tgid}/status"))?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let number = field("NSpid:").split_whitespace().next_back()?;
    let user: u32 = field("Uid:").split_whitespace().nth(1)?.parse().ok()?;
    let path = format!("/proc/{tgid}/root/tmp/perf-{number}.map");
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path).ok()?;
    let found = file.metadata().ok()?;
    (found.is_file() && found.uid() == user).then(|| (file, (found.mtime(), found.mtime_nsec(), found.len())))
}

/// The functions of a map: `START SIZE NAME`, in hexadecimal. Lines that say anything else are passed over.
fn functions(map: impl BufRead) -> BTreeMap<u64, (u64, String)> {
    let line = |line: Vec<u8>| {
        let line = String::from_utf8_lossy(&line);
        let mut words = line.splitn(3, ' ');
        let mut number = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
        let (begin, size) = (number()?, number()?);
        Some((begin, (begin.checked_add(size)?, cut(words.next()?, MAX_NAME).to_owned())))
    };
    map.split(b'\n').map_while(Result::ok).filter_map(line).collect()
}

/// A file of this machine's own kind, 64 bits; `None` also where it has no build-id.
fn image(tgid: u32, from: u64, until: u64) -> Option<Image> {
    // Also a file that was deleted since, or that lies in a container.
    let path = format!("/proc/{tgid}/map_files/{from:x}-{until:x}");
    let build_id = read_elf_build_id(Path::new(&path)).ok().flatten()?;
    let file = File::open(path).ok()?;
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0).ok()?;
    if header[..5] != *b"\x7fELF\x02" {
        return None;
    }
    let (table, count) = (number::<8>(&header, 0x20), number::<2>(&header, 0x38));
    let segments = (0..count).map(|n| {
        let mut program_header = [0; 56];
        file.read_exact_at(&mut program_header, table.checked_add(n * 56)?).ok()?;
        let field = |at| number::<8>(&program_header, at);
        Some((number::<4>(&program_header, 0), (field(0x08), field(0x20), field(0x10))))
    });
    let segments = segments.collect::<Option<Vec<_>>>()?;
    let segments = segments.into_iter().filter(|(kind, _)| *kind == LOADED).map(|(_, segment)| segment).collect();
    Some(Image { build_id: build_id.into_owned(), segments })
}

/// `PT_LOAD`, a kind of segment.
const LOADED: u64 = 1;

/// A number of so many bytes in the file's order, which is this machine's.
fn number<const BYTES: usize>(from: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes[..BYTES].copy_from_slice(&from[at..at + BYTES]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_of_code_made_at_run_time_may_say_anything() {
        let map = "1000 10 f one\n0x2000 0x20 two\n3000 ffffffffffffffff over\nzz 1 bad\n4000\n\n5000 1 \u{fffd}\n";
        let read = functions(map.as_bytes());
        let names: Vec<_> = read.iter().map(|(begin, (end, name))| (*begin, *end, name.as_str())).collect();
        assert_eq!(names, [(0x1000, 0x1010, "f one"), (0x2000, 0x2020, "two"), (0x5000, 0x5001, "\u{fffd}")]);
        assert!(functions(&b"\xff\xfe 1 \x00\n"[..]).is_empty());
    }

    #[test]
    fn one_that_is_killed_costs_one_answer_and_the_next_is_another() {
        let mut reader = Reader::default();
        let (own, address) = (std::process::id(), Child::start as *const () as u64);
        let names = |reader: &mut Reader| reader.names(own, &[address]);
        assert!(names(&mut reader).unwrap()[0].as_ref().is_some_and(|name| name.contains("start")));
        let pid = reader.child.as_ref().unwrap().pid;
        // SAFETY: it is our own child.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        assert_eq!(names(&mut reader), Err(Unread::Failed));
        assert!(names(&mut reader).is_ok());
        assert_ne!(reader.child.as_ref().unwrap().pid, pid);
        // The one that has ended has no files, and no number any more.
        assert_eq!(reader.names(pid as u32, &[address]), Err(Unread::Gone));
        assert!(reader.image(own, 1, 2).is_none(), "nothing lies there");
    }
}
