//! Names for functions of stripped programs, by build-id: from separate debugging information on this machine, and from
//! the servers of `DEBUGINFOD_URLS`. A guest's functions are named here too, so the guest needs neither the files nor a
//! network.

use crate::debuginfod::{self, FetchError};
use crate::reader::Reader;
use crate::samples::Samples;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Folders of separate debugging information.
const FOLDERS: [&str; 2] = ["/usr/lib/debug/.build-id", "/lib/debug/.build-id"];
/// Maximum wait for servers, for all files together.
pub const FETCH_WITHIN: Duration = Duration::from_secs(180);
/// Time for the client to react to a cancellation; after it, the client is abandoned.
const GRACE: Duration = Duration::from_secs(5);
/// A file is fetched only if at least one in this many samples is in it.
const MIN_SHARE: u64 = 100;
/// Maximum number of files named in a note.
const MAX_NAMED: usize = 3;

/// Whether this machine has a source of names for stripped programs.
pub fn has_debug_files() -> bool {
    debuginfod::is_requested() || FOLDERS.iter().any(|folder| Path::new(folder).is_dir())
}

/// A file with functions whose names are unknown.
struct Stripped {
    build_id: Vec<u8>,
    /// File name in brackets, e.g. `[libc.so.6]`.
    file: String,
    samples: u64,
    /// For each unnamed address: index of the machine, index of the substitute name, and address in the file.
    places: Vec<(usize, u32, u64)>,
}

/// Names functions whose names are unknown on their own machines, if debugging information is found. If
/// `DEBUGINFOD_URLS` is set, missing debugging information is fetched, for at most [`FETCH_WITHIN`] or until `stop` is
/// set; `begins` is called before the fetch, with the number of files. Returns notes on files for which the servers had
/// nothing usable, and on files that were not fetched.
pub fn name_by_debug_files(
    machines: &mut [&mut Samples],
    stop: &AtomicBool,
    begins: impl FnOnce(usize),
) -> Vec<String> {
    let mut files = stripped(machines);
    // Build-ids and files come from guests and servers, so they are not trusted: separate processes read the files.
    let mut reader = Reader::default();
    files.retain(|file| !local(&file.build_id).is_some_and(|path| give_names(machines, &mut reader, file, &path)));
    // Sample counts come from guests, so the product may overflow.
    let all: u64 = machines.iter().map(|samples| samples.samples).sum();
    files.retain(|file| file.samples.saturating_mul(MIN_SHARE) >= all);
    if files.is_empty() || !debuginfod::is_requested() {
        return Vec::new();
    }
    begins(files.len());
    let build_ids = files.iter().map(|file| file.build_id.clone()).collect();
    let mut fetched = Fetched { not_fetched: files.len(), ..Fetched::default() };
    let ended = fetch(build_ids, stop, |number, result| {
        let file = &files[number];
        fetched.not_fetched -= 1;
        match result {
            Ok(path) if give_names(machines, &mut reader, file, &path) => {}
            Ok(_) => fetched.useless.push(file.file.clone()),
            Err(FetchError::NotThere) => fetched.not_there.push(file.file.clone()),
            Err(FetchError::Server(error)) => {
                fetched.not_fetched += 1;
                fetched.failure = Some(error);
            }
        }
    });
    fetched.notes(ended, stop.load(Ordering::SeqCst))
}

/// Fetches files one by one in a separate thread, so that this function returns in time even if the client hangs.
fn fetch(
    build_ids: Vec<Vec<u8>>,
    stop: &AtomicBool,
    mut take: impl FnMut(usize, Result<PathBuf, FetchError>),
) -> Result<(), String> {
    let (sender, results) = channel();
    let work = move || {
        debuginfod::with_client(|client| {
            for (number, build_id) in build_ids.iter().enumerate() {
                let result = client.debug_file(build_id);
                // No further files are requested after a failure, because each request may take long.
                let is_last = matches!(result, Err(FetchError::Server(_)));
                if debuginfod::is_stopped() || sender.send((number, result)).is_err() || is_last {
                    return;
                }
            }
        })
    };
    let thread = std::thread::Builder::new().name("lp-debuginfod".into()).spawn(work);
    let thread = thread.map_err(|e| format!("no thread for it: {e}"))?;
    let (began, mut gives_up) = (Instant::now(), None);
    while gives_up.is_none_or(|at| Instant::now() < at) {
        match results.recv_timeout(Duration::from_millis(100)) {
            Ok((number, result)) => take(number, result),
            Err(RecvTimeoutError::Disconnected) => {
                return thread.join().unwrap_or_else(|_| Err("its client failed within latpath".into()))
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if gives_up.is_none() && (stop.load(Ordering::SeqCst) || began.elapsed() > FETCH_WITHIN) {
            debuginfod::stop();
            gives_up = Some(Instant::now() + GRACE);
        }
    }
    Ok(())
}

/// Results of fetching.
#[derive(Default)]
struct Fetched {
    /// Files that the servers do not have.
    not_there: Vec<String>,
    /// Files for which the server sent no usable debugging information.
    useless: Vec<String>,
    /// Error after which fetching stopped.
    failure: Option<io::Error>,
    not_fetched: usize,
}

impl Fetched {
    fn notes(self, ended: Result<(), String>, stopped: bool) -> Vec<String> {
        let mut notes = Vec::new();
        let files = |files: &[String]| {
            let mut text = files[..files.len().min(MAX_NAMED)].join(", ");
            if files.len() > MAX_NAMED {
                let _ = write!(text, " and {} more", files.len() - MAX_NAMED);
            }
            text
        };
        if !self.not_there.is_empty() {
            notes.push(format!("the servers of DEBUGINFOD_URLS have no symbols of {}", files(&self.not_there)));
        }
        if !self.useless.is_empty() {
            let useless = files(&self.useless);
            notes.push(format!("what the servers of DEBUGINFOD_URLS sent names no function that ran in {useless}"));
        }
        let why = match (ended, self.failure) {
            (Err(why), _) => format!(
                "{why}; DEBUGINFOD_URLS is set, for which libdebuginfod.so.1 must be installed (Debian: libdebuginfod1)"
            ),
            (_, Some(_)) if debuginfod::is_too_much() => {
                format!("they are longer than {} GiB together", debuginfod::MAX_BYTES >> 30)
            }
            (_, Some(error)) => format!("the servers of DEBUGINFOD_URLS failed: {error}"),
            _ if self.not_fetched == 0 => return notes,
            _ if stopped => "you ended it".into(),
            _ => format!("{} s were over", FETCH_WITHIN.as_secs()),
        };
        notes.push(format!("symbols of {} stripped files were not fetched: {why}", self.not_fetched));
        notes
    }
}

/// The file with a build-id's debugging information on this machine.
fn local(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    let mut name = format!("{first:02x}/");
    rest.iter().for_each(|byte| _ = write!(name, "{byte:02x}"));
    FOLDERS.iter().map(|folder| Path::new(folder).join(&name).with_extension("debug")).find(|path| path.is_file())
}

/// Files with unnamed functions, of all machines, by number of samples in descending order.
fn stripped(machines: &[&mut Samples]) -> Vec<Stripped> {
    let mut files: BTreeMap<&[u8], Stripped> = BTreeMap::new();
    for (machine, samples) in machines.iter().enumerate() {
        let counts = samples_of(samples);
        for place in samples.unnamed() {
            let file = files.entry(&place.build_id).or_insert_with(|| Stripped {
                build_id: place.build_id.clone(),
                file: samples.names[place.name as usize].clone(),
                samples: 0,
                places: Vec::new(),
            });
            file.samples += counts.get(&place.name).copied().unwrap_or(0);
            file.places.push((machine, place.name, place.address));
        }
    }
    let mut files: Vec<Stripped> = files.into_values().collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.samples));
    files
}

/// Number of samples with each substitute name.
fn samples_of(samples: &Samples) -> HashMap<u32, u64> {
    let mut counts: HashMap<u32, u64> = samples.unnamed().iter().map(|place| (place.name, 0)).collect();
    for ((_, _, _, stack), times) in &samples.counts {
        for frame in &samples.stack(*stack).frames {
            if let Some(count) = counts.get_mut(&(frame.name() as u32)) {
                *count += u64::from(*times);
            }
        }
    }
    counts
}

/// Names the places in a file by its debugging information. Returns false if no place gets a name.
fn give_names(machines: &mut [&mut Samples], reader: &mut Reader, file: &Stripped, path: &Path) -> bool {
    let addresses: Vec<u64> = file.places.iter().map(|(_, _, address)| *address).collect();
    // Reads only the file's symbol table: other debugging information may be compressed, and claim any size.
    let names = reader.names_in(path, &file.build_id, &addresses);
    let mut has_named = false;
    for ((machine, number, _), name) in file.places.iter().zip(names.unwrap_or_default()) {
        if let Some(name) = name {
            machines[*machine].rename(*number, &name);
            has_named = true;
        }
    }
    has_named
}
