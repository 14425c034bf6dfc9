//! Functions of a stripped program have names if its debug information is found, on this machine or on a server.
//! Whatever the server does, the profile is complete.

use crate::{json, of_function, of_process, Profile};
use latpath_testkit::stripped::{Stripped, FUNCTION, NAME};
use latpath_testkit::{equal, latpath, Failed, Lack};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// Requires elfutils' client library, which latpath loads at run time.
pub fn need_debuginfod() -> Lack {
    // SAFETY: the name is a C string; the library does nothing until it is called.
    let library = unsafe { libc::dlopen(c"libdebuginfod.so.1".as_ptr(), libc::RTLD_NOW) };
    library.is_null().then(|| "needs libdebuginfod.so.1, which is not installed (libdebuginfod1)".into())
}

/// The server's response to a request for the program's debug information.
#[derive(Clone, Debug)]
enum Answer {
    File(Vec<u8>),
    /// Announces this content's length, and sends half of it.
    Half(Vec<u8>),
    /// Sends a byte now and then, without end.
    Slow,
    /// Announces 3 GiB, and sends a byte now and then.
    Long,
    Nothing,
    NotFound,
    Error,
}

/// A server of the program's debug information on the loopback device. It has no information about other programs.
struct Server {
    port: u16,
    /// Number of requests for the program's information.
    asked: Arc<AtomicUsize>,
    answer: Arc<Mutex<Answer>>,
}

impl Server {
    fn start(build_id: &str) -> Result<Self, Failed> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let server = Self {
            port: listener.local_addr()?.port(),
            asked: Arc::default(),
            answer: Arc::new(Mutex::new(Answer::NotFound)),
        };
        let (asked, answer, path) =
            (server.asked.clone(), server.answer.clone(), format!("/buildid/{build_id}/debuginfo"));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (asked, answer, path) = (asked.clone(), answer.clone(), path.clone());
                // A client that disconnects is no failure.
                std::thread::spawn(move || _ = serve(stream, &path, &asked, &answer));
            }
        });
        Ok(server)
    }

    fn answers(&self, answer: Answer) {
        *self.answer.lock().unwrap_or_else(|e| e.into_inner()) = answer;
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

fn serve(mut stream: TcpStream, path: &str, asked: &AtomicUsize, answer: &Mutex<Answer>) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut bytes = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            n => request.extend(&bytes[..n]),
        }
    }
    let is_ours = String::from_utf8_lossy(&request).split(' ').nth(1) == Some(path);
    let answer = match is_ours {
        true => answer.lock().unwrap_or_else(|e| e.into_inner()).clone(),
        false => Answer::NotFound,
    };
    asked.fetch_add(is_ours.into(), Ordering::SeqCst);
    let mut head = |status: &str, length: usize| {
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")
    };
    match answer {
        Answer::NotFound => head("404 Not Found", 0),
        Answer::Error => head("500 Internal Server Error", 0),
        Answer::File(file) => {
            head("200 OK", file.len())?;
            stream.write_all(&file)
        }
        Answer::Half(file) => {
            head("200 OK", file.len())?;
            stream.write_all(&file[..file.len() / 2])
        }
        Answer::Slow | Answer::Long => {
            head("200 OK", if matches!(answer, Answer::Long) { 3 << 30 } else { 1 << 30 })?;
            loop {
                stream.write_all(b"\x7f")?;
                latpath_testkit::waits::pace(Duration::from_millis(50));
            }
        }
        // Sends nothing, and waits until the client disconnects.
        Answer::Nothing => stream.read(&mut bytes).map(drop),
    }
}

/// A running stripped program.
struct Program {
    folder: TempDir,
    build_id: String,
    debug_file: PathBuf,
    /// Path of the program's debug information below /usr/lib/debug.
    place: String,
    runs: Child,
}

impl Program {
    fn start() -> Result<Self, Failed> {
        let folder = tempfile::tempdir()?;
        let built = Stripped::build(folder.path())?;
        let runs = Command::new(&built.program).stdin(Stdio::null()).spawn()?;
        let place = built.place();
        Ok(Self { folder, build_id: built.build_id, debug_file: built.debug_file, place, runs })
    }

    fn cache(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Profiles the program with latpath and these environment variables; returns the profile and the share of the
    /// program's time in its function.
    fn profile(&self, variables: &[(&str, &OsStr)]) -> Result<(Profile, f64), Failed> {
        self.profile_by(latpath("profile --duration 500ms --json"), variables)
    }

    fn profile_by(&self, mut command: Command, variables: &[(&str, &OsStr)]) -> Result<(Profile, f64), Failed> {
        let output = command.envs(variables.iter().copied()).output()?;
        let profile: Profile = json(&output)?;
        let all = of_process(&profile, NAME);
        if all == 0.0 {
            return Err(format!("the program is not in the profile: {:?}", profile.figures.processes).into());
        }
        let part = of_function(&profile, FUNCTION) / all;
        Ok((profile, part))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.runs.kill();
        let _ = self.runs.wait();
    }
}

fn is_named(part: f64) -> Result<(), Failed> {
    equal(&format!("{FUNCTION} has {part} of the program's time, most of it"), part > 0.5, true)
}

fn has_note(profile: &Profile, words: &str) -> Result<(), Failed> {
    let with_them = profile.notes.iter().filter(|note| note.contains(words)).count();
    equal(&format!("{words:?} in {:?}", profile.notes), with_them, 1)
}

pub fn by_a_server() -> Result<(), Failed> {
    let program = Program::start()?;
    let server = Server::start(&program.build_id)?;
    let asked = || server.asked.load(Ordering::SeqCst);
    let (url, cache) = (server.url(), program.cache("cache"));
    let with = [("DEBUGINFOD_URLS", OsStr::new(&url)), ("DEBUGINFOD_CACHE_PATH", cache.as_os_str())];
    server.answers(Answer::File(fs::read(&program.debug_file)?));
    // No server is queried unless the user named one.
    for urls in [None, Some("  ")] {
        let urls = urls.map(|urls| ("DEBUGINFOD_URLS", OsStr::new(urls)));
        let (_, part) = program.profile(&urls.into_iter().chain([with[1]]).collect::<Vec<_>>())?;
        equal("without a server", (part, asked()), (0.0, 0))?;
    }
    let (_, part) = program.profile(&with)?;
    is_named(part)?;
    equal("requests", asked(), 1)?;
    // The location that gdb, perf and others use.
    let kept = cache.join(&program.build_id).join("debuginfo");
    equal("what is kept", fs::read(kept)? == fs::read(&program.debug_file)?, true)?;
    server.answers(Answer::Error);
    let (_, part) = program.profile(&with)?;
    is_named(part)?;
    equal("requests, of what is kept", asked(), 1)?;
    // Without `DEBUGINFOD_CACHE_PATH`, latpath uses the user's cache directory.
    let home = program.cache("home");
    server.answers(Answer::File(fs::read(&program.debug_file)?));
    fs::create_dir(&home)?;
    let mut command = latpath("profile --duration 500ms --json");
    command.env_remove("DEBUGINFOD_CACHE_PATH").env_remove("XDG_CACHE_HOME");
    let (_, part) = program.profile_by(command, &[with[0], ("HOME", home.as_os_str())])?;
    is_named(part)?;
    equal("in the usual place", home.join(".cache/debuginfod_client").join(&program.build_id).is_dir(), true)
}

pub fn by_bad_servers() -> Result<(), Failed> {
    let program = Program::start()?;
    let server = Server::start(&program.build_id)?;
    let debug_file = fs::read(&program.debug_file)?;
    // Debug information with another build ID, as if of another program.
    let mut other = debug_file.clone();
    let id = (0..program.build_id.len() / 2).map(|n| u8::from_str_radix(&program.build_id[2 * n..2 * n + 2], 16));
    let id: Vec<u8> = id.collect::<Result<_, _>>()?;
    let place =
        other.windows(id.len()).position(|bytes| bytes == id).ok_or("no build-id in the debugging information")?;
    other[place] ^= 1;
    // Debug information of this program, damaged everywhere after its header.
    let mut damaged = debug_file.clone();
    damaged[0x28..].iter_mut().enumerate().filter(|(n, _)| n % 3 == 0).for_each(|(n, byte)| *byte ^= n as u8);
    let (asked_for_nothing, names_nothing, failed) = ("have no symbols of", "names no function", "failed: ");
    let answers = [
        (Answer::NotFound, Some(asked_for_nothing)),
        (Answer::Error, None),
        (Answer::Half(debug_file.clone()), None),
        (Answer::File(b"<html>Log in, please</html>".to_vec()), Some(names_nothing)),
        (Answer::File(Vec::new()), None),
        (Answer::File(other), Some(names_nothing)),
        (Answer::File(damaged), Some(names_nothing)),
        (Answer::Nothing, Some(failed)),
        (Answer::Slow, Some(failed)),
        (Answer::Long, Some("they are longer than 2 GiB together")),
    ];
    for (number, (answer, note)) in answers.into_iter().enumerate() {
        let kind = format!("{answer:?}").chars().take(20).collect::<String>();
        server.answers(answer);
        let (url, cache) = (server.url(), program.cache(&number.to_string()));
        let with = [
            ("DEBUGINFOD_URLS", url.as_str()),
            ("DEBUGINFOD_CACHE_PATH", cache.to_str().ok_or("a path")?),
            ("DEBUGINFOD_TIMEOUT", "1"),
        ];
        let (profile, part) = program.profile(&with.map(|(name, value)| (name, OsStr::new(value))))?;
        equal(&format!("{kind}: the part with a name"), part, 0.0)?;
        note.map_or(Ok(()), |note| has_note(&profile, note)).map_err(|e| format!("{kind}: {e:?}"))?;
    }
    // No server listens.
    let cache = program.cache("refused");
    let with = [("DEBUGINFOD_URLS", OsStr::new("http://127.0.0.1:1")), ("DEBUGINFOD_CACHE_PATH", cache.as_os_str())];
    let (profile, _) = program.profile(&with)?;
    has_note(&profile, "stripped files were not fetched: the servers of DEBUGINFOD_URLS failed")
}

/// Ctrl-C ends a download that would take ten minutes.
pub fn by_nobody_any_more() -> Result<(), Failed> {
    let program = Program::start()?;
    let server = Server::start(&program.build_id)?;
    server.answers(Answer::Nothing);
    let (url, cache) = (server.url(), program.cache("cache"));
    let mut command = latpath("profile --duration 500ms --json");
    command.env("DEBUGINFOD_URLS", url).env("DEBUGINFOD_CACHE_PATH", cache).env("DEBUGINFOD_TIMEOUT", "600");
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut said = BufReader::new(process.stderr.take().ok_or("its stderr")?).lines();
    let is_fetching = said.any(|line| line.is_ok_and(|line| line.contains("fetching symbols of")));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(process.id() as i32), nix::sys::signal::Signal::SIGINT)?;
    equal("it fetches", is_fetching, true)?;
    let profile: Profile = json(&process.wait_with_output()?)?;
    has_note(&profile, "stripped files were not fetched: you ended it")
}

/// Finds debug information on this machine. Runs in its own mount namespace, so that this machine's directory does not
/// change.
pub fn on_this_machine() -> Result<(), Failed> {
    let program = Program::start()?;
    let place = Path::new("/usr/lib/debug").join(&program.place);
    let words = latpath("profile --duration 500ms --json");
    // /usr/lib may lack the directory, so an overlay provides it.
    let script = format!(
        "mkdir -p $0/debug/$(dirname {0}) && cp $1 $0/debug/{0} && mount -t overlay -o lowerdir=$0:/usr/lib overlay /usr/lib &&
         test -f /usr/lib/debug/{0} && shift && exec \"$@\"",
        program.place
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]).arg(program.cache("layer")).arg(&program.debug_file);
    command.arg(words.get_program()).args(words.get_args());
    let (_, part) = program.profile_by(command, &[])?;
    is_named(part)?;
    equal("this machine has it still not", place.exists(), false)
}
