//! The code mappings of a process.

use crate::slice::MAX_NAME;
use latpath_model::text::{cut, printable};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Maximum number of code mappings of one process: the kernel's default limit for mappings of all kinds
/// (`vm.max_map_count`).
const MAX_MAPPINGS: usize = 1 << 16;
/// Minimum interval between readings of a process's mappings, or `READ_SHARE` times the duration of a reading if that
/// is longer.
const READ_EVERY: Duration = Duration::from_millis(100);
const READ_SHARE: u32 = 20;

/// Code mappings, sorted by address.
#[derive(Default)]
pub(crate) struct CodeMap {
    mappings: Vec<Code>,
    is_cut: bool,
    /// The address for which these mappings were read, if they do not contain it.
    absent: Option<u64>,
    read_again: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct Code {
    pub from: u64,
    pub until: u64,
    /// Offset of the mapping in its file.
    pub offset: u64,
    /// File name in brackets, e.g. `[libc.so.6]`.
    pub file: Rc<str>,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    /// Code that the kernel maps into each process (vdso(7)).
    Vdso,
    /// Memory without a file, e.g. code from a JIT compiler.
    Memory,
}

impl CodeMap {
    /// Reads the mappings again if they do not contain this address, unless they were read for this address or very
    /// recently.
    pub fn look_for(&mut self, tgid: u32, address: u64) {
        let is_early = self.read_again.is_some_and(|at| Instant::now() < at);
        if self.find(address).is_some() || is_early || self.absent == Some(address) {
            return;
        }
        let began = Instant::now();
        let read = File::open(format!("/proc/{tgid}/maps"));
        (self.mappings, self.is_cut) = read.map(|maps| mappings(BufReader::new(maps))).unwrap_or_default();
        self.read_again = Some(Instant::now() + READ_EVERY.max(began.elapsed() * READ_SHARE));
        self.absent = self.find(address).is_none().then_some(address);
    }

    /// Whether the mappings were read for this address and do not contain it.
    pub fn is_absent(&self, address: u64) -> bool {
        self.absent == Some(address)
    }

    pub fn find(&self, address: u64) -> Option<&Code> {
        let before = self.mappings.partition_point(|code| code.from <= address).checked_sub(1)?;
        Some(&self.mappings[before]).filter(|code| address < code.until)
    }

    pub fn len(&self) -> usize {
        self.mappings.len()
    }

    /// Whether no mapping is known; also true after the process has ended.
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// Whether the process has more code mappings than the maximum.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }
}

/// Parses the code mappings of `/proc/PID/maps`; also returns whether there are more than the maximum.
fn mappings(maps: impl BufRead) -> (Vec<Code>, bool) {
    let mut mappings: Vec<Code> = Vec::new();
    for text in maps.split(b'\n').map_while(Result::ok) {
        let last = mappings.last().map(|code| code.file.clone());
        let Some(code) = mapping(&String::from_utf8_lossy(&text), last) else { continue };
        if mappings.len() >= MAX_MAPPINGS {
            return (mappings, true);
        }
        mappings.push(code);
    }
    (mappings, false)
}

/// Parses `55d0c0a00000-55d0c0a28000 r-xp 00000000 fe:00 123   /usr/bin/cat`; `None` if the mapping is not executable.
fn mapping(line: &str, last: Option<Rc<str>>) -> Option<Code> {
    let (from, rest) = line.split_once('-')?;
    let mut words = rest.splitn(5, ' ');
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (from, until) = (number(from)?, number(words.next()?)?);
    words.next().filter(|rights| rights.as_bytes().get(2) == Some(&b'x'))?;
    let offset = number(words.next()?)?;
    let path = words.nth(1)?.split_once(' ').map_or("", |(_, path)| path.trim());
    let kind = match path {
        "[vdso]" => Kind::Vdso,
        path if path.starts_with('/') => Kind::File,
        _ => Kind::Memory,
    };
    let name = path.rsplit('/').next().unwrap_or(path).trim_matches(['[', ']']);
    let name = if name.is_empty() { "JIT".into() } else { printable(name) };
    let file = format!("[{}]", cut(&name, MAX_NAME - 2));
    let file = last.filter(|last| **last == file).unwrap_or_else(|| file.into());
    Some(Code { from, until, offset, file, kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    #[test]
    fn an_address_without_a_function_has_its_files_name() {
        let text = "1000-2000 r-xp 00000000 fe:00 12   /usr/lib/a b.so\n2000-3000 rw-p 00000000 00:00 0 \n\
                    3000-4000 r-xp 00000000 00:00 0    [vdso]\n4000-5000 rwxp 00000000 00:00 0 \nrubbish\n";
        let code = CodeMap { mappings: mappings(text.as_bytes()).0, ..CodeMap::default() };
        let found = [0xfff, 0x1fff, 0x2000, 0x3000, 0x4000, 0x5000].map(|address| code.find(address));
        let found = found.map(|code| code.map(|code| (&*code.file, code.kind)));
        let (file, vdso, memory) = (("[a b.so]", Kind::File), ("[vdso]", Kind::Vdso), ("[JIT]", Kind::Memory));
        assert_eq!(found, [None, Some(file), None, Some(vdso), Some(memory), None]);
    }

    #[test]
    fn code_behind_many_mappings_is_found_and_too_many_are_reported() {
        let mut text = String::new();
        (0..60_000).for_each(|n| _ = writeln!(text, "{:x}-{:x} rw-p 00000000 00:00 0 ", n * 8192, n * 8192 + 4096));
        text += "7f0000000000-7f0000001000 r-xp 00000000 fe:00 12   /usr/lib/libc.so.6\n";
        assert!(text.len() > 2 << 20);
        let (read, is_cut) = mappings(text.as_bytes());
        assert_eq!((read.len(), &*read[0].file, is_cut), (1, "[libc.so.6]", false));
        let many: String = (0..MAX_MAPPINGS + 1)
            .map(|n| format!("{:x}-{:x} r-xp 0 fe:00 1 /a\n", n * 8192, n * 8192 + 4096))
            .collect();
        let (read, is_cut) = mappings(many.as_bytes());
        assert_eq!((read.len(), is_cut), (MAX_MAPPINGS, true));
    }

    #[test]
    fn an_address_that_is_no_code_is_looked_for_once() {
        let mut code = CodeMap::default();
        code.look_for(std::process::id(), 8);
        let read_again = code.read_again;
        assert!(read_again.is_some() && !code.is_empty());
        code.read_again = None;
        code.look_for(std::process::id(), 8);
        assert_eq!(code.read_again, None);
    }
}
