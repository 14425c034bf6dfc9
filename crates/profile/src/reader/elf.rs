//! Functions of an ELF file, from its symbol tables. The file is untrusted: each length and offset in it is checked,
//! and each read has a bounded size.

use crate::slice::{MAX_BUILD_ID, MAX_NAME};
use latpath_model::text::{cut, printable};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Maximum number of symbols of a file.
const MAX_SYMBOLS: u64 = 4 << 20;
/// Maximum number of segments of a file, and of its sections.
const MAX_HEADERS: u64 = 1 << 16;
/// Maximum number of loaded segments of a file.
const MAX_SEGMENTS: usize = 64;
/// Maximum size of a note segment, bytes: the build-id is one of its few notes.
const MAX_NOTES: u64 = 64 << 10;
/// Maximum size of a name before it is demangled, bytes.
const MAX_MANGLED: usize = 4096;
/// Maximum number of symbols with the same start address that are compared.
const MAX_ALIASES: usize = 16;
/// Maximum number of functions before an address that are searched for the function around it.
const MAX_NESTED: usize = 64;
/// Size of one read, bytes.
const CHUNK: usize = 1 << 20;

const PT_LOAD: u64 = 1;
const PT_NOTE: u64 = 4;
const NT_GNU_BUILD_ID: u32 = 3;
const SHT_SYMTAB: u64 = 2;
const SHT_DYNSYM: u64 = 11;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;

/// Identity of a program or library: its build-id and segments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Image {
    /// The build-id; empty if the file has none.
    pub build_id: Vec<u8>,
    pub segments: Vec<Segment>,
}

/// A loaded segment of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    pub offset: u64,
    pub bytes: u64,
    pub address: u64,
}

impl Image {
    /// Whether a correct parser could have produced this value.
    pub fn is_sound(&self) -> bool {
        (1..=MAX_BUILD_ID).contains(&self.build_id.len()) && self.segments.len() <= MAX_SEGMENTS
    }

    /// The address of an offset in the file.
    pub fn address(&self, offset: u64) -> Option<u64> {
        let inside = |segment: &&Segment| offset >= segment.offset && offset - segment.offset < segment.bytes;
        let segment = self.segments.iter().find(inside)?;
        segment.address.checked_add(offset - segment.offset)
    }
}

/// Source of an ELF file.
pub(super) enum Source {
    File(File),
    Memory(Vec<u8>),
}

impl Source {
    /// Fills the buffer with the bytes from an offset on.
    pub fn read(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        match self {
            Self::File(file) => file.read_exact_at(into, at),
            Self::Memory(bytes) => {
                let from = usize::try_from(at).ok().and_then(|at| bytes.get(at..)?.get(..into.len()));
                into.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }

    /// Reads up to `most` bytes from an offset; fewer at the end of the file.
    fn some(&self, at: u64, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most];
        let length = match self {
            Self::File(file) => file.read_at(&mut bytes, at).unwrap_or(0),
            Self::Memory(memory) => {
                let from = usize::try_from(at).ok().and_then(|at| memory.get(at..)).unwrap_or_default();
                let length = from.len().min(most);
                bytes[..length].copy_from_slice(&from[..length]);
                length
            }
        };
        bytes.truncate(length);
        bytes
    }
}

/// Whether a file is 32-bit or 64-bit, which determines the offsets of fields in headers and symbols.
struct Class {
    is_64: bool,
}

impl Class {
    /// A field of 4 bytes at offset `at_32` of a 32-bit file, or of 8 bytes at offset `at_64` of a 64-bit file.
    fn word(&self, bytes: &[u8], at_32: usize, at_64: usize) -> u64 {
        if self.is_64 {
            number::<8>(bytes, at_64)
        } else {
            number::<4>(bytes, at_32)
        }
    }

    /// A field of 2 bytes, at offset `at_32` or `at_64`.
    fn half(&self, bytes: &[u8], at_32: usize, at_64: usize) -> u64 {
        number::<2>(bytes, if self.is_64 { at_64 } else { at_32 })
    }
}

/// Reads a little-endian number of `BYTES` bytes.
fn number<const BYTES: usize>(from: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes[..BYTES].copy_from_slice(&from[at..at + BYTES]);
    u64::from_le_bytes(bytes)
}

/// A file with its functions.
pub(super) struct Elf {
    source: Source,
    pub image: Image,
    functions: Vec<Function>,
    /// Offset and length of the names.
    strings: (u64, u64),
    /// Whether the functions come from the dynamic symbol table, in which case a function of unknown size does not
    /// extend to the next one.
    is_dynamic: bool,
}

/// A function. The order is by start address, and for equal addresses by size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Function {
    begin: u64,
    size: u64,
    is_global: bool,
    name: u32,
}

impl Elf {
    /// Reads a file; `None` if it is not a little-endian ELF file.
    pub fn read(source: Source) -> Option<Self> {
        const LITTLE_ENDIAN: u8 = 1;
        let mut header = [0; 64];
        source.read(&mut header[..52], 0).ok()?;
        let class = Class { is_64: header[4] == 2 };
        if header[..4] != *b"\x7fELF" || !matches!(header[4], 1 | 2) || header[5] != LITTLE_ENDIAN {
            return None;
        }
        if class.is_64 {
            source.read(&mut header, 0).ok()?;
        }
        let image = image(&source, &class, &header)?;
        let (functions, strings, is_dynamic) = functions(&source, &class, &header).unwrap_or_default();
        Some(Self { source, image, functions, strings, is_dynamic })
    }

    pub fn symbols(&self) -> usize {
        self.functions.len()
    }

    /// Returns the name of the function that contains an address of the file.
    pub fn name(&self, address: u64) -> Option<String> {
        let behind = self.functions.partition_point(|function| function.begin <= address);
        let before = self.functions[..behind].iter().rev().take(MAX_NESTED);
        let is_around = |function: &&Function| match function.size {
            0 => !self.is_dynamic || function.begin == address,
            size => address - function.begin < size,
        };
        let found = before.copied().find(|function| is_around(&function))?;
        let aliases = self.functions[..behind].iter().rev().skip_while(|function| **function != found);
        let aliases = aliases.take_while(|alias| (alias.begin, alias.size) == (found.begin, found.size));
        let names = aliases.take(MAX_ALIASES).filter_map(|alias| Some((alias.is_global, self.string(alias.name)?)));
        // Of a function's names, prefers the public one: `write` rather than `__write`.
        let underscores = |name: &str| name.bytes().take_while(|byte| *byte == b'_').count();
        let is_mangled = |name: &str| name.starts_with("_Z") || name.starts_with("_R");
        let rank = |(is_global, name): &(bool, String)| {
            (if is_mangled(name) { 0 } else { underscores(name) }, !is_global, name.len(), name.clone())
        };
        names.min_by_key(rank).map(|(_, name)| demangled(&name)).filter(|name| !name.is_empty())
    }

    fn string(&self, at: u32) -> Option<String> {
        let (offset, length) = self.strings;
        let left = length.checked_sub(at.into()).filter(|left| *left > 0)?;
        let bytes = self.source.some(offset.checked_add(at.into())?, MAX_MANGLED.min(left as usize));
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let name = std::str::from_utf8(&bytes[..end]).ok()?;
        // The version is not part of the name: `write@@GLIBC_2.2.5`.
        let name = name.split_once('@').map_or(name, |(name, _)| name);
        (!name.is_empty()).then(|| name.to_owned())
    }
}

fn image(source: &Source, class: &Class, header: &[u8]) -> Option<Image> {
    let table = class.word(header, 0x1c, 0x20);
    let (length, count) = (class.half(header, 0x2a, 0x36), class.half(header, 0x2c, 0x38));
    let mut image = Image::default();
    for n in 0..count.min(MAX_HEADERS) {
        let mut bytes = [0; 56];
        source.read(&mut bytes[..if class.is_64 { 56 } else { 32 }], table.checked_add(n * length)?).ok()?;
        let (offset, size) = (class.word(&bytes, 0x04, 0x08), class.word(&bytes, 0x10, 0x20));
        match number::<4>(&bytes, 0) {
            PT_LOAD if image.segments.len() < MAX_SEGMENTS => {
                image.segments.push(Segment { offset, bytes: size, address: class.word(&bytes, 0x08, 0x10) });
            }
            PT_NOTE if image.build_id.is_empty() => {
                image.build_id = build_id(&source.some(offset, size.min(MAX_NOTES) as usize)).unwrap_or_default();
            }
            _ => {}
        }
    }
    Some(image)
}

/// Finds the build-id among notes. A note consists of the length of its owner, the length of its content, its type, the
/// owner and the content; the last two are padded to 4 bytes.
fn build_id(mut notes: &[u8]) -> Option<Vec<u8>> {
    while notes.len() >= 12 {
        let word = |at| number::<4>(notes, at) as usize;
        let (owner, content, kind) = (word(0), word(4), word(8) as u32);
        let from = 12usize.checked_add(owner.checked_next_multiple_of(4)?)?;
        let until = from.checked_add(content)?;
        if kind == NT_GNU_BUILD_ID && notes.get(12..12 + owner.min(4)) == Some(b"GNU\0") {
            return notes.get(from..until).filter(|id| (1..=MAX_BUILD_ID).contains(&id.len())).map(<[u8]>::to_vec);
        }
        notes = notes.get(until.checked_next_multiple_of(4)?..)?;
    }
    None
}

type Functions = (Vec<Function>, (u64, u64), bool);

/// The functions of the file's symbol table, or of its dynamic symbol table if it has no other.
fn functions(source: &Source, class: &Class, header: &[u8]) -> Option<Functions> {
    let table = class.word(header, 0x20, 0x28);
    let (length, count) = (class.half(header, 0x2e, 0x3a), class.half(header, 0x30, 0x3c));
    let section = |n: u64| -> Option<[u8; 64]> {
        let mut bytes = [0; 64];
        let at = table.checked_add(n.checked_mul(length)?)?;
        source.read(&mut bytes[..if class.is_64 { 64 } else { 40 }], at).ok()?;
        Some(bytes)
    };
    let place = |bytes: &[u8]| (class.word(bytes, 0x10, 0x18), class.word(bytes, 0x14, 0x20));
    // A file with too many sections for this field stores their number in its first section header.
    let count = if count == 0 && table != 0 { place(&section(0)?).1 } else { count };
    let sections: Vec<[u8; 64]> = (0..count.min(MAX_HEADERS)).map_while(section).collect();
    let of_kind = |kind: u64| sections.iter().find(|bytes| number::<4>(&bytes[..], 4) == kind);
    let read = |kind: u64| {
        let bytes = of_kind(kind)?;
        let strings = number::<4>(&bytes[..], if class.is_64 { 0x28 } else { 0x18 });
        let strings = place(sections.get(usize::try_from(strings).ok()?)?);
        let functions = symbols(source, class, place(bytes));
        (!functions.is_empty()).then_some((functions, strings, kind == SHT_DYNSYM))
    };
    read(SHT_SYMTAB).or_else(|| read(SHT_DYNSYM))
}

fn symbols(source: &Source, class: &Class, (mut at, bytes): (u64, u64)) -> Vec<Function> {
    const LOCAL: u8 = 0;
    let length = if class.is_64 { 24 } else { 16 };
    let mut left = (bytes / length as u64).min(MAX_SYMBOLS) * length as u64;
    let mut functions = Vec::new();
    while left > 0 {
        let chunk = source.some(at, (left as usize).min(CHUNK / length * length));
        let whole = chunk.len() / length * length;
        if whole == 0 {
            break;
        }
        for symbol in chunk[..whole].chunks_exact(length) {
            let info = symbol[if class.is_64 { 4 } else { 12 }];
            let is_defined = class.half(symbol, 14, 6) != 0;
            if matches!(info & 0xf, STT_FUNC | STT_GNU_IFUNC) && is_defined {
                functions.push(Function {
                    begin: class.word(symbol, 4, 8),
                    size: class.word(symbol, 8, 16),
                    is_global: info >> 4 != LOCAL,
                    name: number::<4>(symbol, 0) as u32,
                });
            }
        }
        (at, left) = (at.saturating_add(whole as u64), left - whole as u64);
    }
    functions.sort_unstable();
    functions
}

/// Returns the name as in the program's source.
pub(super) fn demangled(name: &str) -> String {
    let rust = || rustc_demangle::try_demangle(name).ok().map(|name| format!("{name:#}"));
    let cpp = || cpp_demangle::Symbol::new(name).ok()?.demangle().ok();
    cut(&printable(&rust().or_else(cpp).unwrap_or_else(|| name.to_owned())), MAX_NAME).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").unwrap()
    }

    #[inline(never)]
    fn here() -> u64 {
        std::hint::black_box(here as *const () as u64)
    }

    /// Builds a file with these global symbols: start, size and name.
    fn file(symbols: &[(u64, u64, &str)]) -> Vec<u8> {
        let mut bytes = vec![0u8; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let mut put = |at: usize, value: u64, length: usize| {
            bytes[at..at + length].copy_from_slice(&value.to_le_bytes()[..length])
        };
        let strings: Vec<u8> =
            symbols.iter().flat_map(|(_, _, name)| [b"\0", name.as_bytes()].concat()).chain([0]).collect();
        let (table, length) = (64 + 2 * 64, symbols.len() as u64 * 24);
        [(0x28, 64, 8), (0x3a, 64, 2), (0x3c, 2, 2)].into_iter().for_each(|(at, value, bytes)| put(at, value, bytes));
        let mut section = |kind: u32, at: u64, length: u64, link: u32| {
            let mut header = [0u8; 64];
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[0x18..0x20].copy_from_slice(&at.to_le_bytes());
            header[0x20..0x28].copy_from_slice(&length.to_le_bytes());
            header[0x28..0x2c].copy_from_slice(&link.to_le_bytes());
            bytes.extend(header);
        };
        section(SHT_SYMTAB as u32, table, length, 1);
        section(3, table + length, strings.len() as u64, 0);
        let mut name = 1u32;
        for (begin, size, text) in symbols {
            bytes.extend(name.to_le_bytes());
            bytes.extend([0x12, 0, 1, 0]);
            bytes.extend(begin.to_le_bytes());
            bytes.extend(size.to_le_bytes());
            name += text.len() as u32 + 1;
        }
        bytes.extend(strings);
        bytes
    }

    fn names(bytes: Vec<u8>, addresses: &[u64]) -> Vec<Option<String>> {
        let elf = Elf::read(Source::Memory(bytes)).unwrap();
        addresses.iter().map(|address| elf.name(*address)).collect()
    }

    #[test]
    fn a_function_of_this_program_has_its_name_and_place() {
        let bytes = own();
        let (maps, here) = (std::fs::read_to_string("/proc/self/maps").unwrap(), here());
        let mapping = maps.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            let (from, until) = words.next()?.split_once('-')?;
            let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
            let offset = number(words.nth(1)?);
            (number(from)..number(until)).contains(&here).then(|| here - number(from) + offset)
        });
        let elf = Elf::read(Source::Memory(bytes)).unwrap();
        let name = elf.name(elf.image.address(mapping.unwrap()).unwrap() + 1).unwrap();
        assert!(name.ends_with("elf::tests::here"), "{name}");
        assert!(elf.image.is_sound(), "{:?}", elf.image);
    }

    #[test]
    fn the_innermost_function_around_an_address_names_it_by_its_public_name() {
        let symbols = [
            (0x100, 0x80, "outer"),
            (0x110, 0x10, "inner"),
            (0x200, 8, "__write"),
            (0x200, 8, "write@@V_2"),
            (0x300, 0, "open_end"),
        ];
        let found = names(file(&symbols), &[0xff, 0x100, 0x115, 0x120, 0x180, 0x207, 0x400]);
        let found: Vec<_> = found.iter().map(Option::as_deref).collect();
        assert_eq!(found, [None, Some("outer"), Some("inner"), Some("outer"), None, Some("write"), Some("open_end")]);
    }

    #[test]
    fn mangled_names_are_shown_as_in_the_source() {
        assert_eq!(demangled("_ZN7latpath4main17h0123456789abcdefE"), "latpath::main");
        assert_eq!(
            demangled("_ZNSt6vectorIiSaIiEE9push_backEOi"),
            "std::vector<int, std::allocator<int> >::push_back(int&&)"
        );
        assert_eq!((demangled("main"), demangled("a\x1b[2J")), ("main".into(), "a?[2J".into()));
        assert!(demangled(&"x".repeat(5000)).len() <= MAX_NAME);
    }

    #[test]
    fn segments_give_addresses_of_offsets() {
        let segment = |offset, bytes, address| Segment { offset, bytes, address };
        let image =
            Image { build_id: vec![1], segments: vec![segment(0, 0x100, 0x400000), segment(0x100, 0x80, 0x401100)] };
        let addresses = [0xff, 0x100, 0x17f, 0x180].map(|offset| image.address(offset));
        assert_eq!(addresses, [Some(0x4000ff), Some(0x401100), Some(0x40117f), None]);
    }

    #[test]
    fn a_build_id_is_found_behind_other_notes() {
        let note = |kind: u32, owner: &[u8], content: &[u8]| {
            let padded = |bytes: &[u8]| [bytes, &[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()]].concat();
            let lengths =
                [(owner.len() as u32).to_le_bytes(), (content.len() as u32).to_le_bytes(), kind.to_le_bytes()];
            [lengths.concat(), padded(owner), padded(content)].concat()
        };
        let notes = [note(5, b"GNU\0", b"property"), note(3, b"Go\0", b"x"), note(3, b"GNU\0", b"abcde")].concat();
        assert_eq!(build_id(&notes).as_deref(), Some(&b"abcde"[..]));
        assert_eq!(build_id(&note(3, b"GNU\0", &[7; 200])), None);
        assert_eq!(build_id(&u32::MAX.to_le_bytes().repeat(8)), None);
    }

    proptest! {
        #[test]
        fn no_file_makes_the_parser_panic(
            changes in prop::collection::vec((0usize..600, any::<u8>()), 0..30), cut in 0usize..700, address in any::<u64>(),
        ) {
            let mut bytes = file(&[(0x100, 0x80, "outer"), (u64::MAX - 3, u64::MAX, "_ZN1aE"), (0x200, 8, "_RNvC1a1b")]);
            let length = bytes.len();
            changes.into_iter().for_each(|(at, byte)| bytes[at % length] = byte);
            bytes.truncate(cut.max(16));
            if let Some(elf) = Elf::read(Source::Memory(bytes)) {
                [address, 0x100, u64::MAX].into_iter().for_each(|address| {
                    let _ = (elf.name(address), elf.image.address(address));
                });
            }
        }
    }
}
