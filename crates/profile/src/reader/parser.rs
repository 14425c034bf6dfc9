//! The process that parses files of observed processes. It is confined: it has access only to the files passed to it.

use super::elf::{Elf, Source};
use super::messages::{receive, send, Answer, Opened, ParserReply, Query};
use crate::slice::MAX_NAME;
use latpath_linux::confine::confine;
use latpath_model::text::{cut, printable};
use nix::sys::resource::{setrlimit, Resource};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

/// Maximum memory of the process beyond its parent's, bytes.
const MAX_MEMORY: u64 = 1 << 30;
/// Maximum number of bytes read from a perf map.
const MAX_PERF_MAP: u64 = 64 << 20;
/// Maximum number of functions of a perf map.
const MAX_PERF_FUNCTIONS: usize = 1 << 19;
/// Maximum number of files with cached functions.
const MAX_FILES: usize = 64;
/// Maximum number of cached functions of all files.
const MAX_FUNCTIONS: usize = 8 << 20;
/// Maximum number of bytes of a file that are searched for a string.
const MAX_SEARCHED: u64 = 512 << 20;

/// Answers requests until the requesting side closes the stream.
pub(super) fn serve(mut files: UnixStream, mut answers: UnixStream, parent: libc::pid_t) -> io::Result<()> {
    let vdso = vdso().and_then(|bytes| Elf::read(Source::Memory(bytes)));
    limit_memory()?;
    confine(parent)?;
    let mut parser = Parser { vdso, elves: HashMap::new(), perf_maps: HashMap::new() };
    while let Some((opened, file)) = receive::<Opened>(&mut files)? {
        send(&mut answers, &parser.answer(opened, file), None)?;
    }
    Ok(())
}

fn limit_memory() -> io::Result<()> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    // SAFETY: takes and returns a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let data = statm.split(' ').nth(5).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * page;
    setrlimit(Resource::RLIMIT_DATA, data + MAX_MEMORY, data + MAX_MEMORY)?;
    Ok(())
}

/// The kernel's code (vDSO) in this process, identical in all processes of the same architecture.
fn vdso() -> Option<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let range = maps.lines().find(|line| line.ends_with("[vdso]"))?.split(' ').next()?;
    let (from, until) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (from, until) = (number(from)?, number(until)?);
    let mut bytes = vec![0; usize::try_from(until.checked_sub(from)?).ok()?];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, from).ok()?;
    Some(bytes)
}

struct Parser {
    vdso: Option<Elf>,
    /// Parsed ELF files by device, inode, length and time of change; `None` if the file is not an ELF file.
    elves: HashMap<[i64; 5], Option<Elf>>,
    perf_maps: HashMap<[i64; 5], PerfMap>,
}

/// End address and name of functions, by start address.
type PerfMap = BTreeMap<u64, (u64, String)>;

impl Parser {
    fn answer(&mut self, Opened { query, file: identity, is_vdso }: Opened, file: Option<File>) -> Answer {
        let opened = identity.zip(file);
        let found = match query {
            Query::Offsets(offsets) => {
                let elf = if is_vdso { self.vdso.as_ref() } else { self.elf(opened?) };
                let Some(elf) = elf else {
                    return Some(ParserReply { names: vec![None; offsets.len()], ..ParserReply::default() });
                };
                let name = |offset| elf.name(elf.image.address(offset)?);
                let names: Vec<_> = offsets.into_iter().map(name).collect();
                let image = names.contains(&None).then(|| elf.image.clone()).filter(|image| !image.build_id.is_empty());
                ParserReply { names, image, text: None }
            }
            Query::Addresses { build_id, addresses } => {
                let elf = self.elf(opened?).filter(|elf| elf.image.build_id == build_id)?;
                ParserReply {
                    names: addresses.into_iter().map(|address| elf.name(address)).collect(),
                    ..ParserReply::default()
                }
            }
            Query::PerfMap(addresses) => {
                let functions = self.perf_map(opened?);
                let name = |address: u64| {
                    let (_, (end, name)) = functions.range(..=address).next_back()?;
                    (address < *end).then(|| name.clone())
                };
                ParserReply { names: addresses.into_iter().map(name).collect(), ..ParserReply::default() }
            }
            Query::Text(begin) => ParserReply { text: text(&opened?.1, begin.as_bytes()), ..ParserReply::default() },
        };
        Some(found)
    }

    fn elf(&mut self, (identity, file): ([i64; 5], File)) -> Option<&Elf> {
        if !self.elves.contains_key(&identity) {
            let kept = self.elves.values().flatten().map(Elf::symbols).sum::<usize>();
            if self.elves.len() >= MAX_FILES || kept > MAX_FUNCTIONS {
                self.elves.clear();
            }
            self.elves.insert(identity, Elf::read(Source::File(file)));
        }
        self.elves[&identity].as_ref()
    }

    fn perf_map(&mut self, (identity, file): ([i64; 5], File)) -> &PerfMap {
        if !self.perf_maps.contains_key(&identity) {
            // A process appends to its map, so parsed earlier states of the same file are obsolete.
            self.perf_maps.retain(|known, _| known[..2] != identity[..2]);
            if self.perf_maps.len() >= MAX_FILES {
                self.perf_maps.clear();
            }
            self.perf_maps.insert(identity, perf_map(BufReader::new(file.take(MAX_PERF_MAP))));
        }
        &self.perf_maps[&identity]
    }
}

/// Parses the functions of a perf map: `START SIZE NAME`, the numbers in hexadecimal. Other lines are skipped.
fn perf_map(map: impl BufRead) -> PerfMap {
    let line = |line: Vec<u8>| {
        let line = String::from_utf8_lossy(&line);
        let mut words = line.splitn(3, ' ');
        let mut number = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
        let (begin, size) = (number()?, number()?);
        Some((begin, (begin.checked_add(size)?, cut(&printable(words.next()?), MAX_NAME).to_owned())))
    };
    map.split(b'\n').map_while(Result::ok).filter_map(line).take(MAX_PERF_FUNCTIONS).collect()
}

/// Returns the first line of text in a file that begins with this string.
fn text(file: &File, begin: &[u8]) -> Option<String> {
    const CHUNK: usize = 1 << 20;
    let mut bytes = vec![0; CHUNK + begin.len() + MAX_NAME];
    let mut at = 0;
    while at < MAX_SEARCHED {
        let length = file.read_at(&mut bytes, at).ok().filter(|length| *length > 0)?;
        let chunk = &bytes[..length];
        if let Some(from) = chunk.windows(begin.len()).take(CHUNK).position(|window| window == begin) {
            let line = chunk[from..].split(|byte| matches!(byte, 0 | b'\n')).next()?;
            return Some(cut(&printable(&String::from_utf8_lossy(line)), MAX_NAME).to_owned());
        }
        at += CHUNK as u64;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_map_of_code_made_at_run_time_may_contain_anything() {
        let map = "1000 10 f one\n0x2000 0x20 two\n3000 ffffffffffffffff over\nzz 1 bad\n4000\n\n5000 1 \u{fffd}\n";
        let read = perf_map(map.as_bytes());
        let names: Vec<_> = read.iter().map(|(begin, (end, name))| (*begin, *end, name.as_str())).collect();
        assert_eq!(names, [(0x1000, 0x1010, "f one"), (0x2000, 0x2020, "two"), (0x5000, 0x5001, "\u{fffd}")]);
        assert!(perf_map(&b"\xff\xfe 1 \x00\n"[..]).is_empty());
    }

    #[test]
    fn a_text_is_found_wherever_it_is_in_the_file() {
        for before in [0, 5, (1 << 20) - 3, (1 << 20) + 7, 3 << 20] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&vec![b'.'; before]).unwrap();
            file.write_all(b"Emulator version 7.2\x1b (Debian)\nCopyright").unwrap();
            let found = text(&file, b"Emulator version ");
            assert_eq!(found.as_deref(), Some("Emulator version 7.2? (Debian)"), "{before}");
            assert_eq!(text(&file, b"Other"), None);
        }
    }
}
