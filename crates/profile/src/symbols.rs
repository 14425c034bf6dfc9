//! Names for addresses: functions of the kernel, of programs and their libraries, of code that was made at run time
//! (perf-PID.map).

use crate::apart::{Reader, Unread};
use crate::slice::MAX_NAME;
use latpath_bpf::Functions;
use latpath_linux::proc::Root;
use latpath_model::text::{cut, printable};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;

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
    reader: Reader,
    /// Processes whose files could not be read.
    given_up: HashSet<Owner>,
    /// By process and its name: a process that starts another program has other functions.
    known: HashMap<(u32, String), Known>,
    /// Where functions without a name lie is looked up too.
    places: bool,
    /// Frames of processes that were gone before their names were looked up.
    pub too_late: u64,
    /// Frames of processes whose files could not be read.
    pub unreadable: u64,
}

#[derive(Default)]
struct Known {
    code: Vec<Code>,
    functions: HashMap<u64, UserFunction>,
}

/// A function of a program, or what stands for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserFunction {
    pub name: String,
    /// Where it lies, if it has no name.
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
            given_up: HashSet::new(),
            known: HashMap::new(),
            places,
            too_late: 0,
            unreadable: 0,
        }
    }

    /// The kernel's function that an address lies in; modules that were loaded since have none.
    pub fn kernel(&self, address: u64) -> &str {
        self.kernel.find(address).unwrap_or(UNKNOWN)
    }

    /// A process's functions, for each address up to the first that is no code: behind that is what a program without
    /// frame pointers left in the register.
    pub fn user(&mut self, tgid: u32, process: &str, addresses: &[u64]) -> Vec<UserFunction> {
        if self.known.len() > MOST_PROCESSES {
            self.known.clear();
        }
        let key = (tgid, process.to_owned());
        let known = self.known.entry(key.clone()).or_default();
        if known.functions.len() > MOST_OF_PROCESS {
            known.functions.clear();
        }
        // A library that was loaded since has its code where there was none.
        if addresses.first().is_some_and(|first| find(&known.code, *first).is_none()) {
            known.code = code_of(tgid);
        }
        let is_code = |address: &&u64| known.functions.contains_key(address) || find(&known.code, **address).is_some();
        let addresses: Vec<u64> =
            addresses.iter().enumerate().take_while(|(at, a)| *at == 0 || is_code(a)).map(|(_, a)| *a).collect();
        let new: BTreeSet<u64> = addresses.iter().copied().filter(|a| !known.functions.contains_key(a)).collect();
        if !new.is_empty() {
            let new: Vec<u64> = new.into_iter().collect();
            let found = self.look_up(tgid, &new);
            let known = self.known.get_mut(&key).expect("it was made above");
            match found {
                Ok(names) => {
                    for (address, name) in new.into_iter().zip(names) {
                        let function = match name {
                            Some(name) => UserFunction { name, place: None },
                            None => {
                                without_name(&mut known.code, tgid, address, self.places.then_some(&mut self.reader))
                            }
                        };
                        known.functions.insert(address, function);
                    }
                }
                Err(Unread::Gone) => self.too_late += new.len() as u64,
                Err(Unread::Unreadable | Unread::Failed) => self.unreadable += new.len() as u64,
            }
        }
        let known = &self.known[&key].functions;
        addresses.iter().map(|address| known.get(address).cloned().unwrap_or_else(UserFunction::unknown)).collect()
    }

    /// Names of a process's functions. Of users whose files could not be read once, and of such a process of root's, none are read again:
    /// each time may last.
    fn look_up(&mut self, tgid: u32, addresses: &[u64]) -> Result<Vec<Option<String>>, Unread> {
        let owner = Owner::of(tgid).ok_or(Unread::Gone)?;
        if self.given_up.contains(&owner) {
            return Err(Unread::Unreadable);
        }
        let names = self.reader.names(tgid, addresses);
        if names == Err(Unread::Failed) {
            self.given_up.insert(owner);
        }
        names
    }
}

/// The user whose files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    /// A process of root's.
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

/// What stands for a function without a name: its file, and with `reader` its place there.
fn without_name(code: &mut [Code], tgid: u32, address: u64, reader: Option<&mut Reader>) -> UserFunction {
    let Some(at) = position(code, address) else { return UserFunction::unknown() };
    let Code { from, until, offset, file, image } = &mut code[at];
    let place = reader.and_then(|reader| {
        let image =
            image.get_or_insert_with(|| reader.image(tgid, *from, *until).map(Image::from).map(Rc::new)).clone()?;
        let address = image.address((address - *from).checked_add(*offset)?)?;
        Some(Place { build_id: image.build_id.clone(), address })
    });
    UserFunction { name: file.clone(), place }
}

#[derive(Debug)]
struct Code {
    from: u64,
    until: u64,
    /// Where it begins in its file.
    offset: u64,
    /// `[libc.so.6]`
    file: String,
    /// What the file is, once it was looked at; `None` in it where it is of no use.
    image: Option<Option<Rc<Image>>>,
}

/// A program or library: what tells it from all others, and where its parts lie.
#[derive(Debug)]
struct Image {
    build_id: Rc<[u8]>,
    /// Offset in the file, length there, and address.
    segments: Vec<(u64, u64, u64)>,
}

impl From<crate::apart::Image> for Image {
    fn from(read: crate::apart::Image) -> Self {
        Self { build_id: read.build_id.into(), segments: read.segments }
    }
}

impl Image {
    /// The address of a place in the file.
    fn address(&self, offset: u64) -> Option<u64> {
        let inside = |(from, bytes, _): &&(u64, u64, u64)| offset >= *from && offset - from < *bytes;
        let (from, _, address) = self.segments.iter().find(inside)?;
        address.checked_add(offset - from)
    }
}

/// Where a process has code, in order.
fn code_of(tgid: u32) -> Vec<Code> {
    let text = Root::of(Path::new("/")).text(&format!("proc/{tgid}/maps")).unwrap_or_default();
    text.lines().filter_map(line).collect()
}

fn find(code: &[Code], address: u64) -> Option<&Code> {
    position(code, address).map(|at| &code[at])
}

fn position(code: &[Code], address: u64) -> Option<usize> {
    let before = code.partition_point(|code| code.from <= address).checked_sub(1)?;
    (address < code[before].until).then_some(before)
}

/// `55d0c0a00000-55d0c0a28000 r-xp 00000000 fe:00 123   /usr/bin/cat`, if it may be run.
fn line(line: &str) -> Option<Code> {
    let (from, rest) = line.split_once('-')?;
    let mut words = rest.splitn(5, ' ');
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (from, until) = (number(from)?, number(words.next()?)?);
    words.next().filter(|rights| rights.as_bytes().get(2) == Some(&b'x'))?;
    let offset = number(words.next()?)?;
    let path = words.nth(1)?.split_once(' ').map_or("", |(_, path)| path.trim());
    let name = path.rsplit('/').next().unwrap_or(path).trim_matches(['[', ']']);
    // Memory without a file: a compiler at run time.
    let name = if name.is_empty() { "JIT".into() } else { printable(name) };
    Some(Code { from, until, offset, file: format!("[{}]", cut(&name, MAX_NAME - 2)), image: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use blazesym::helper::read_elf_build_id;
    use blazesym::symbolize::source::Source;
    use blazesym::symbolize::{Input, Symbolizer};

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
        let mut symbols = Symbols::new(true);
        let functions = symbols.user(std::process::id(), "me", &[here() + 1, here() + 2, 8]);
        assert!(functions[0].name.contains("symbols::tests::here"), "{functions:?}");
        assert_eq!((functions.len(), &functions[0]), (2, &functions[1]), "what is no code ends the chain");
        let gone = symbols.user(u32::MAX >> 1, "gone", &[4096]);
        assert_eq!(gone, [UserFunction::unknown()]);
        assert_eq!(symbols.too_late, 1);
    }

    #[test]
    fn a_place_in_a_file_is_told_as_its_symbols_have_it() {
        // Where the test's own program lies, a symbol is at a known distance from the program's begin.
        let mut code = code_of(std::process::id());
        let function = without_name(&mut code, std::process::id(), here(), Some(&mut Reader::default()));
        let place = function.place.expect("this program has a build-id");
        let own = std::env::current_exe().unwrap();
        assert_eq!(Some(&*place.build_id), read_elf_build_id(&own).unwrap().as_deref());
        let symbolizer = Symbolizer::new();
        let source = Source::Elf(blazesym::symbolize::source::Elf::new(own));
        let found = symbolizer.symbolize(&source, Input::VirtOffset(&[place.address])).unwrap();
        let name = found[0].as_sym().map(|symbol| symbol.name.to_string()).unwrap_or_default();
        assert!(name.contains("here"), "{name}");
        assert_eq!(without_name(&mut code, std::process::id(), here(), None).place, None);
    }

    #[test]
    fn an_address_is_of_the_segment_that_its_place_lies_in() {
        let segments = vec![(0, 0x100, 0x400000), (0x100, 0x80, 0x401100)];
        let image = Image { build_id: vec![1].into(), segments };
        let addresses = [0xff, 0x100, 0x17f, 0x180].map(|offset| image.address(offset));
        assert_eq!(addresses, [Some(0x4000ff), Some(0x401100), Some(0x40117f), None]);
    }
}
