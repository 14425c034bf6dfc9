//! Names for addresses: functions of the kernel, of programs and their libraries, of code that was made at run time (perf-PID.map).

use blazesym::symbolize::source::{Process, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use blazesym::Pid;
use latpath_bpf::Functions;
use latpath_linux::proc::Root;
use latpath_model::text::{cut, printable};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use crate::slice::MAX_NAME;

/// Addresses of a process whose names are kept.
const MOST_OF_PROCESS: usize = 1 << 16;
/// Processes whose addresses are kept.
const MOST_PROCESSES: usize = 1 << 10;

/// What stands for a function whose name nobody knows.
pub const UNKNOWN: &str = "[unknown]";

/// Whether a frame's name is a function's: not an address, nor the file that it lies in.
pub fn is_named(name: &str) -> bool {
    !name.starts_with('[') && !name.starts_with("0x")
}

/// Finds names, and keeps them.
pub(crate) struct Symbols {
    kernel: Functions,
    user: Symbolizer,
    /// By process and its name: a process that starts another program has other functions.
    known: HashMap<(u32, String), Known>,
    /// Frames of processes that were gone before their names were looked up.
    pub too_late: u64,
}

/// What is known of a process.
#[derive(Default)]
struct Known {
    code: Vec<Code>,
    names: HashMap<u64, String>,
}

impl Symbols {
    pub fn new() -> Self {
        let user = Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false).build();
        Self { kernel: Functions::read(), user, known: HashMap::new(), too_late: 0 }
    }

    /// The kernel's function that an address lies in; modules that were loaded since have none.
    pub fn kernel(&self, address: u64) -> &str {
        self.kernel.find(address).unwrap_or(UNKNOWN)
    }

    /// Names of a process's functions, for each address up to the first that is no code: behind that is what a program without frame
    /// pointers left in the register.
    pub fn user(&mut self, tgid: u32, process: &str, addresses: &[u64]) -> Vec<&str> {
        if self.known.len() > MOST_PROCESSES {
            self.known.clear();
        }
        let key = (tgid, process.to_owned());
        let known = self.known.entry(key.clone()).or_default();
        if known.names.len() > MOST_OF_PROCESS {
            known.names.clear();
        }
        // A library that was loaded since has its code where there was none.
        if addresses.first().is_some_and(|first| find(&known.code, *first).is_none()) {
            known.code = code_of(tgid);
        }
        let is_code = |address: &&u64| known.names.contains_key(address) || find(&known.code, **address).is_some();
        let addresses: Vec<u64> =
            addresses.iter().enumerate().take_while(|(at, a)| *at == 0 || is_code(a)).map(|(_, a)| *a).collect();
        let new: BTreeSet<u64> = addresses.iter().copied().filter(|a| !known.names.contains_key(a)).collect();
        if !new.is_empty() {
            let new: Vec<u64> = new.into_iter().collect();
            let found = self.look_up(tgid, &new);
            let known = self.known.get_mut(&key).expect("it was made above");
            let file =
                |code: &[Code], address: u64| find(code, address).map_or(UNKNOWN.into(), |code| code.file.clone());
            match found {
                Some(names) => {
                    for (address, name) in new.into_iter().zip(names) {
                        let name = name.unwrap_or_else(|| file(&known.code, address));
                        known.names.insert(address, name);
                    }
                }
                None => self.too_late += new.len() as u64,
            }
        }
        let known = &self.known[&key].names;
        addresses.iter().map(|address| known.get(address).map_or(UNKNOWN, String::as_str)).collect()
    }

    /// Names of a process's functions; `None` where it is gone.
    fn look_up(&self, tgid: u32, addresses: &[u64]) -> Option<Vec<Option<String>>> {
        let clean = |name: &str| cut(&printable(name), MAX_NAME).to_owned();
        let find = |source: Process, addresses: &[u64]| {
            let found = self.user.symbolize(&Source::Process(source), Input::AbsAddr(addresses)).ok()?;
            let name = |found: &Symbolized<'_>| found.as_sym().map(|symbol| clean(&symbol.name));
            Some(found.iter().map(name).collect::<Vec<Option<String>>>())
        };
        let mut source = Process::new(Pid::from(tgid));
        // Symbols of the files say `a::b::c` where debugging information says `c`.
        source.debug_syms = false;
        let mut names = find(source, addresses)?;
        let unnamed: Vec<usize> = (0..names.len()).filter(|at| names[*at].is_none()).collect();
        if !unnamed.is_empty() {
            let addresses: Vec<u64> = unnamed.iter().map(|at| addresses[*at]).collect();
            let more = find(Process::new(Pid::from(tgid)), &addresses).unwrap_or_default();
            unnamed.iter().zip(more).for_each(|(at, name)| names[*at] = name);
        }
        Some(names)
    }
}

/// Code of a process.
#[derive(Debug)]
struct Code {
    from: u64,
    until: u64,
    /// `[libc.so.6]`
    file: String,
}

/// Where a process has code, in order.
fn code_of(tgid: u32) -> Vec<Code> {
    let text = Root::of(Path::new("/")).text(&format!("proc/{tgid}/maps")).unwrap_or_default();
    text.lines().filter_map(line).collect()
}

fn find(code: &[Code], address: u64) -> Option<&Code> {
    let after = code.partition_point(|code| code.from <= address);
    code.get(after.checked_sub(1)?).filter(|code| address < code.until)
}

/// `55d0c0a00000-55d0c0a28000 r-xp 00000000 fe:00 123   /usr/bin/cat`, if it may be run.
fn line(line: &str) -> Option<Code> {
    let (from, rest) = line.split_once('-')?;
    let mut words = rest.splitn(5, ' ');
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (from, until) = (number(from)?, number(words.next()?)?);
    words.next().filter(|rights| rights.as_bytes().get(2) == Some(&b'x'))?;
    let path = words.nth(2)?.split_once(' ').map_or("", |(_, path)| path.trim());
    let name = path.rsplit('/').next().unwrap_or(path).trim_matches(['[', ']']);
    // Memory without a file: a compiler at run time.
    let name = if name.is_empty() { "JIT".into() } else { printable(name) };
    Some(Code { from, until, file: format!("[{}]", cut(&name, MAX_NAME - 2)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_function_bears_its_files_name() {
        let text = "1000-2000 r-xp 00000000 fe:00 12   /usr/lib/a b.so\n2000-3000 rw-p 00000000 00:00 0 \n\
                    3000-4000 r-xp 00000000 00:00 0    [vdso]\n4000-5000 rwxp 00000000 00:00 0 \nrubbish\n";
        let code: Vec<Code> = text.lines().filter_map(line).collect();
        let names = [0xfff, 0x1fff, 0x2000, 0x3000, 0x4000, 0x5000].map(|address| find(&code, address));
        let names = names.map(|code| code.map(|code| code.file.as_str()));
        assert_eq!(names, [None, Some("[a b.so]"), None, Some("[vdso]"), Some("[JIT]"), None]);
        assert!(names.iter().flatten().all(|name| !is_named(name)) && is_named("main"));
    }

    #[inline(never)]
    fn here() -> u64 {
        std::hint::black_box(here as *const () as u64)
    }

    #[test]
    fn functions_of_this_process_have_their_names() {
        let mut symbols = Symbols::new();
        let names = symbols.user(std::process::id(), "me", &[here() + 1, here() + 2, 8]);
        assert!(names[0].contains("symbols::tests::here"), "{names:?}");
        assert_eq!((names.len(), names[0]), (2, names[1]), "what is no code ends the chain");
        let gone = symbols.user(u32::MAX >> 1, "gone", &[4096]);
        assert_eq!(gone, [UNKNOWN]);
        assert_eq!(symbols.too_late, 1);
    }
}
