//! Names for addresses: functions of the kernel, of programs and their libraries, and of code generated at run time
//! (perf-PID.map).

use crate::code::{Code, CodeMap, Kind};
use crate::reader::{Image, Mapped, Names, Reader, Unread};
use latpath_bpf::Functions;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of cached addresses per process.
const MAX_OF_PROCESS: usize = 1 << 16;
/// Maximum number of cached processes.
const MAX_PROCESSES: usize = 1 << 10;
/// Maximum number of cached mappings, of all processes.
const MAX_CODE: usize = 1 << 20;

/// Name of functions of which neither name nor file is known.
pub const UNKNOWN: &str = "[unknown]";

/// Whether a frame's name is a function's, rather than an address or a file's name.
pub fn is_named(name: &str) -> bool {
    !name.starts_with('[') && !name.starts_with("0x")
}

/// Finds and caches names.
pub(crate) struct Symbols {
    kernel: Arc<Functions>,
    reader: Reader,
    /// The pending request.
    asked: Option<PendingRequest>,
    /// Whether no more files are read.
    is_closed: bool,
    /// Owners whose files are no longer read.
    given_up: HashSet<Owner>,
    /// Known code of a process, by TGID and process name: a process that executes another program has other functions.
    known: HashMap<Key, Known>,
    /// Whether places of functions without a name are looked up too.
    places: bool,
    /// Number of addresses not resolved because the process ended before they were looked up.
    pub too_late: u64,
    /// Number of addresses not resolved because the process's files could not be read.
    pub unreadable: u64,
    /// Processes with more code mappings than the maximum.
    cut: HashSet<u32>,
}

type Key = (u32, String);

#[derive(Default)]
struct Known {
    code: CodeMap,
    functions: HashMap<u64, UserFunction>,
}

/// A request for names: first from the mapped file, then, for addresses that the file does not name, from the process's
/// perf map.
struct PendingRequest {
    key: Key,
    owner: Owner,
    addresses: Vec<u64>,
    is_perf_map: bool,
    image: Option<Rc<Image>>,
}

/// A function of a program, or a substitute for it if its name is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserFunction {
    pub name: String,
    /// Its place in a file, if its name is unknown.
    pub place: Option<Place>,
}

impl UserFunction {
    fn unknown() -> Self {
        Self { name: UNKNOWN.into(), place: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub build_id: Rc<[u8]>,
    pub address: u64,
}

impl Symbols {
    pub fn new(places: bool) -> Self {
        Self {
            kernel: Functions::read(),
            reader: Reader::default(),
            asked: None,
            is_closed: false,
            given_up: HashSet::new(),
            known: HashMap::new(),
            places,
            too_late: 0,
            unreadable: 0,
            cut: HashSet::new(),
        }
    }

    /// The kernel's function at an address; functions of modules that were loaded later are unknown.
    pub fn kernel(&self, address: u64) -> &str {
        self.kernel.find(address).unwrap_or(UNKNOWN)
    }

    /// Number of processes with more code mappings than the maximum.
    pub fn cut(&self) -> usize {
        self.cut.len()
    }

    /// Stops reading files: functions that are still unknown remain without a name.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Returns a process's functions, for each address up to the first that is not code: later addresses are values
    /// that a program without frame pointers left in the register. `None` while the names are being looked up; each
    /// such call waits for at most `wait`.
    pub fn user(&mut self, tgid: u32, process: &str, addresses: &[u64], wait: Duration) -> Option<Vec<UserFunction>> {
        let key = (tgid, process.to_owned());
        loop {
            self.take_answers(wait)?;
            let chain = self.chain(&key, addresses);
            let functions = &self.known[&key].functions;
            let new: BTreeSet<u64> = chain.iter().copied().filter(|a| !functions.contains_key(a)).collect();
            // The process's mappings were read very recently; they will be read again soon.
            let is_open = |first: &u64| {
                let code = &self.known[&key].code;
                new.contains(first) && code.find(*first).is_none() && !code.is_absent(*first)
            };
            if chain.first().is_some_and(is_open) {
                return Some(vec![UserFunction::unknown()]);
            }
            if new.is_empty() {
                return Some(chain.iter().map(|address| functions[address].clone()).collect());
            }
            self.ask(&key, new);
        }
    }

    /// Returns the first address, and its callers up to the first one that is not code.
    fn chain<'a>(&mut self, key: &Key, addresses: &'a [u64]) -> &'a [u64] {
        if self.known.len() > MAX_PROCESSES
            || self.known.values().map(|known| known.code.len()).sum::<usize>() > MAX_CODE
        {
            self.known.clear();
        }
        let known = self.known.entry(key.clone()).or_default();
        if known.functions.len() > MAX_OF_PROCESS {
            known.functions.clear();
        }
        // A library loaded since the last reading has code at addresses that had none.
        if addresses.first().is_some_and(|first| !known.functions.contains_key(first)) {
            known.code.look_for(key.0, addresses[0]);
            if known.code.is_cut() {
                self.cut.insert(key.0);
            }
        }
        let is_code = |address: &u64| known.functions.contains_key(address) || known.code.find(*address).is_some();
        let end = addresses.iter().skip(1).position(|address| !is_code(address)).map_or(addresses.len(), |at| at + 1);
        &addresses[..end]
    }

    /// Requests the names of the addresses that are in the same mapping as the first.
    fn ask(&mut self, key: &Key, new: BTreeSet<u64>) {
        let tgid = key.0;
        let known = &self.known[key];
        let first = *new.first().expect("there is one");
        let owner = match Owner::of(tgid) {
            Some(_) if known.code.is_empty() => Err(Unread::Gone),
            Some(owner) if self.is_closed || self.given_up.contains(&owner) => Err(Unread::Unreadable),
            Some(owner) => Ok(owner),
            None => Err(Unread::Gone),
        };
        let Some(code) = known.code.find(first) else {
            // The address is not code, or no longer: it has no name.
            return self.fail(key, vec![first], owner.err().filter(|why| *why == Unread::Gone));
        };
        let owner = match owner {
            Ok(owner) => owner,
            Err(why) => return self.fail(key, new.into_iter().collect(), Some(why)),
        };
        let addresses: Vec<u64> = new.into_iter().take_while(|address| *address < code.until).collect();
        let offsets = |from: u64| addresses.iter().map(|address| address - code.from + from).collect::<Vec<u64>>();
        let (is_perf_map, result) = match code.kind {
            Kind::File => {
                let mapped = Mapped::File { from: code.from, until: code.until };
                (false, self.reader.ask_mapped(tgid, mapped, offsets(code.offset)))
            }
            Kind::Vdso => (false, self.reader.ask_mapped(tgid, Mapped::Vdso, offsets(0))),
            Kind::Memory => (true, self.reader.ask_perf_map(tgid, addresses.clone())),
        };
        match result {
            Ok(()) => {
                self.asked = Some(PendingRequest { key: key.clone(), owner, addresses, is_perf_map, image: None })
            }
            Err(why) => self.fail_of(owner, key, addresses, why),
        }
    }

    /// Processes the answers to all requests. Returns `None` while an answer is pending.
    fn take_answers(&mut self, wait: Duration) -> Option<()> {
        while let Some(asked) = self.asked.take() {
            if self.is_closed {
                self.fail(&asked.key, asked.addresses, Some(Unread::Failed));
                continue;
            }
            self.take_answer(asked, wait)?;
        }
        Some(())
    }

    fn take_answer(&mut self, asked: PendingRequest, wait: Duration) -> Option<()> {
        let Some(answer) = self.reader.answer(wait) else {
            self.asked = Some(asked);
            return None;
        };
        match answer {
            Ok(names) => self.take_names(asked, names),
            // Most processes have no perf map, so its absence is not a failure.
            Err(Unread::Unreadable) if asked.is_perf_map => {
                let names = vec![None; asked.addresses.len()];
                self.take_names(asked, Names { names, image: None });
            }
            Err(why) => self.fail_of(asked.owner, &asked.key, asked.addresses, why),
        }
        Some(())
    }

    fn take_names(&mut self, asked: PendingRequest, names: Names) {
        let PendingRequest { key, owner, addresses, is_perf_map, .. } = asked;
        let image = names.image.map(Rc::new).or(asked.image).filter(|_| self.places);
        let known = self.known.entry(key.clone()).or_default();
        let mut unnamed = Vec::new();
        for (address, name) in addresses.into_iter().zip(names.names) {
            match name {
                Some(name) => drop(known.functions.insert(address, UserFunction { name, place: None })),
                None => unnamed.push(address),
            }
        }
        if unnamed.is_empty() {
            return;
        }
        if !is_perf_map && self.reader.ask_perf_map(key.0, unnamed.clone()).is_ok() {
            self.asked = Some(PendingRequest { key, owner, addresses: unnamed, is_perf_map: true, image });
            return;
        }
        for address in unnamed {
            let function = without_name(&known.code, address, image.as_deref());
            known.functions.insert(address, function);
        }
    }

    /// Marks the addresses as unknown. If the reading failed, no more files of that user (for root: of that process)
    /// are read, because each failure may take long.
    fn fail_of(&mut self, owner: Owner, key: &Key, addresses: Vec<u64>, why: Unread) {
        if why == Unread::Failed {
            self.given_up.insert(owner);
        }
        self.fail(key, addresses, Some(why));
    }

    fn fail(&mut self, key: &Key, addresses: Vec<u64>, why: Option<Unread>) {
        match why {
            Some(Unread::Gone) => self.too_late += addresses.len() as u64,
            Some(Unread::Unreadable | Unread::Failed) => self.unreadable += addresses.len() as u64,
            None => {}
        }
        let known = self.known.entry(key.clone()).or_default();
        known.functions.extend(addresses.into_iter().map(|address| (address, UserFunction::unknown())));
    }
}

/// Owner of the files being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    /// One process of root (TGID).
    Root(u32),
    User(u32),
}

impl Owner {
    fn of(tgid: u32) -> Option<Self> {
        match std::fs::metadata(format!("/proc/{tgid}")).ok()?.uid() {
            0 => Some(Self::Root(tgid)),
            user => Some(Self::User(user)),
        }
    }
}

/// Returns a substitute for a function without a name: its file, and its place in the file if known.
fn without_name(code: &CodeMap, address: u64, image: Option<&Image>) -> UserFunction {
    let Some(code) = code.find(address) else { return UserFunction::unknown() };
    let Code { from, offset, file, .. } = code;
    let place = image.and_then(|image| {
        let address = image.address((address - from).checked_add(*offset)?)?;
        Some(Place { build_id: image.build_id.as_slice().into(), address })
    });
    UserFunction { name: file.to_string(), place }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn here() -> u64 {
        std::hint::black_box(here as *const () as u64)
    }

    impl Symbols {
        fn wait_for(&mut self, tgid: u32, addresses: &[u64]) -> Vec<UserFunction> {
            self.user(tgid, "it", addresses, Duration::from_secs(60)).expect("no answer may take as long as this")
        }
    }

    #[test]
    fn functions_of_this_process_have_their_names() {
        let mut symbols = Symbols::new(true);
        let functions = symbols.wait_for(std::process::id(), &[here() + 1, here() + 2, 8]);
        assert!(functions[0].name.contains("symbols::tests::here"), "{functions:?}");
        assert_eq!((functions.len(), &functions[0]), (2, &functions[1]), "what is no code ends the chain");
        let gone = symbols.wait_for(u32::MAX >> 1, &[4096]);
        assert_eq!(gone, [UserFunction::unknown()]);
        assert_eq!((symbols.too_late, symbols.unreadable), (1, 0));
    }

    #[test]
    fn code_without_a_name_is_no_fault() {
        let mut symbols = Symbols::new(true);
        // SAFETY: a new page that nothing else uses.
        let page = unsafe {
            let rights = libc::PROT_READ | libc::PROT_EXEC;
            libc::mmap(std::ptr::null_mut(), 4096, rights, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        // SAFETY: the function has no preconditions. The vDSO begins with a header, which is not a function.
        let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
        let functions = symbols.wait_for(std::process::id(), &[page as u64 + 8, here(), vdso]);
        let names: Vec<_> = functions.iter().map(|function| function.name.as_str()).collect();
        assert!(names[0] == "[JIT]" && names[1].ends_with("here") && names[2] == "[vdso]", "{names:?}");
        let mut of_kernel = (0..4096).step_by(16).flat_map(|at| symbols.wait_for(std::process::id(), &[vdso + at]));
        assert!(of_kernel.any(|function| function.name.contains("gettime")));
        assert_eq!((symbols.too_late, symbols.unreadable), (0, 0));
    }

    #[test]
    fn once_closed_nothing_is_read() {
        let mut symbols = Symbols::new(true);
        symbols.close();
        assert_eq!(symbols.wait_for(std::process::id(), &[here()]), [UserFunction::unknown()]);
        assert_eq!(symbols.unreadable, 1);
    }

    #[test]
    fn a_function_without_a_name_has_the_name_of_its_file_and_its_place_there() {
        let mut code = CodeMap::default();
        code.look_for(std::process::id(), here());
        let image = Image {
            build_id: vec![7],
            segments: vec![crate::reader::Segment { offset: 0, bytes: u64::MAX, address: 0x1000 }],
        };
        let function = without_name(&code, here(), Some(&image));
        let (mapping, place) = (code.find(here()).unwrap(), function.place.unwrap());
        assert_eq!((&*place.build_id, place.address), (&[7][..], here() - mapping.from + mapping.offset + 0x1000));
        assert!(function.name.starts_with("[latpath_profile-"), "{}", function.name);
        assert_eq!(without_name(&code, here(), None).place, None);
        assert_eq!(without_name(&code, 8, Some(&image)), UserFunction::unknown());
    }

    #[test]
    fn a_frame_without_a_function_is_not_named() {
        assert!(is_named("main") && !is_named("[libc.so.6]") && !is_named(UNKNOWN) && !is_named("0x12"));
    }
}
