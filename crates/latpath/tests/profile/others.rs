//! Obstacles that other users may prepare for programs that read their symbols.

use crate::{json, of_process, Profile};
use latpath_testkit::{equal, latpath, Failed};
use nix::fcntl::{fallocate, FallocateFlags};
use nix::mount::{mount, umount2, MntFlags, MsFlags};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ASKED: &str = "LATPATH_TEST_JIT";
/// UID without privileges.
const NOBODY: u32 = 65534;
/// Machine code of a jump to itself.
#[cfg(target_arch = "x86_64")]
const LOOP: &[u8] = &[0xeb, 0xfe];
#[cfg(target_arch = "aarch64")]
const LOOP: &[u8] = &[0, 0, 0, 0x14];

/// To be called first in the test's `main`. If the environment requests it, this process runs code in anonymous memory
/// forever.
pub fn run_if_asked() {
    if std::env::var_os(ASKED).is_none() {
        return;
    }
    let (rights, flags) =
        (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh page, as long as the code copied to it. The call never returns, because a signal ends the
    // process.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"jit".as_ptr());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let page = libc::mmap(std::ptr::null_mut(), 4096, rights, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        std::ptr::copy_nonoverlapping(LOOP.as_ptr(), page.cast(), LOOP.len());
        std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(page)();
    }
}

/// A process that ends with the test.
struct Process(std::process::Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file in `/tmp` that is removed at the end of the test.
struct Map(String);

impl Drop for Map {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A file system of 4 MiB in memory.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf) -> Result<Self, Failed> {
        fs::create_dir(&at)?;
        mount(Some("latpath-test"), &at, Some("tmpfs"), MsFlags::empty(), Some("size=4m,mode=755"))?;
        Ok(Self(at))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

fn run(words: &mut Command) -> Result<(), Failed> {
    let output = words.output()?;
    equal(&String::from_utf8_lossy(&output.stderr), output.status.success(), true)
}

/// A number in an ELF file, in this machine's byte order.
fn number(bytes: &[u8], at: usize, length: usize) -> usize {
    bytes[at..at + length].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// Offsets of an ELF file's section headers. Within a header, the type is at 4, the flags at 8, the offset at 24 and
/// the size at 32.
fn sections(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let (table, count) = (number(bytes, 0x28, 8), number(bytes, 0x3c, 2));
    (0..count).map(move |n| table + n * 64)
}

/// A program whose symbols are a hole in its file, on a full file system: a process that maps the file and reads them
/// gets SIGBUS, as from a file that is truncated during the read.
fn holed(folder: &Path) -> Result<(Small, Command), Failed> {
    const SYMBOLS: usize = 2;
    const PAGE: usize = 4096;
    let (source, built) = (folder.join("holed.c"), folder.join("holed"));
    let mut text = String::from("int main(void) { volatile long n = 0; for (;;) n++; }\n");
    (0..2_000).try_for_each(|n| writeln!(text, "void f{n}(void) {{}}"))?;
    fs::write(&source, text)?;
    run(Command::new("gcc").args(["-O1", "-o"]).args([&built, &source]))?;
    let bytes = fs::read(&built)?;
    let symbols = sections(&bytes).find(|header| number(&bytes, header + 4, 4) == SYMBOLS).ok_or("no symbols")?;
    let (from, length) = (number(&bytes, symbols + 24, 8), number(&bytes, symbols + 32, 8));
    let (first, last) = (from.next_multiple_of(PAGE), (from + length) / PAGE * PAGE);
    equal("whole pages of symbols", last > first, true)?;
    let disk = Small::mount(folder.join("disk"))?;
    let program = disk.0.join("holed");
    fs::copy(&built, &program)?;
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(File::options().write(true).open(&program)?, hole, first as i64, (last - first) as i64)?;
    let full = std::io::copy(&mut std::io::repeat(1), &mut File::create(disk.0.join("rest"))?);
    equal("the disk is full", full.err().and_then(|e| e.raw_os_error()), Some(libc::ENOSPC))?;
    Ok((disk, Command::new(program)))
}

/// A program without symbols but with debug information whose uncompressed length is forged.
fn endless(folder: &Path) -> Result<Command, Failed> {
    let (source, program) = (folder.join("endless.c"), folder.join("endless"));
    fs::write(&source, "int main(void) { volatile long n = 0; for (;;) n++; }\n")?;
    run(Command::new("gcc").args(["-g", "-gz", "-O1", "-o"]).args([&program, &source]))?;
    run(Command::new("objcopy").args(["--strip-all", "--keep-section=.debug_*"]).arg(&program))?;
    let mut bytes = fs::read(&program)?;
    // SHF_COMPRESSED is 1 << 11. A compressed section starts with its type and, at 8, its length.
    let compressed: Vec<usize> = sections(&bytes)
        .filter(|header| number(&bytes, header + 8, 8) & 1 << 11 != 0)
        .map(|header| number(&bytes, header + 24, 8))
        .collect();
    equal("compressed sections", compressed.is_empty(), false)?;
    compressed.iter().for_each(|at| bytes[at + 8..at + 16].copy_from_slice(&(1u64 << 62).to_le_bytes()));
    fs::write(&program, bytes)?;
    Ok(Command::new(program))
}

pub fn cost_names_only() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    std::os::unix::fs::chown(folder.path(), Some(NOBODY), None)?;
    let own = folder.path().join("jit");
    fs::copy(std::env::current_exe()?, &own)?;
    let jit = || {
        let mut command = Command::new(&own);
        command.env(ASKED, "1");
        command
    };
    let start = |mut command: Command| -> Result<Process, Failed> {
        Ok(Process(command.uid(NOBODY).stdin(Stdio::null()).current_dir("/").spawn()?))
    };
    let profile = |name: &str| -> Result<String, Failed> {
        let profile: Profile = json(&latpath("profile --duration 2s --json").output()?)?;
        let notes = profile.notes.concat();
        equal(&format!("{name} is in the profile: {notes}"), of_process(&profile, name) > 0.0, true)?;
        Ok(notes)
    };
    // Symbol files of generated code: one with a size that extends beyond the last address, and a FIFO without a
    // writer.
    for is_pipe in [false, true] {
        let process = start(jit())?;
        let map = Map(format!("/tmp/perf-{}.map", process.0.id()));
        match is_pipe {
            true => nix::unistd::mkfifo(Path::new(&map.0), nix::sys::stat::Mode::from_bits_truncate(0o666))?,
            false => fs::write(&map.0, "1000 ffffffffffffffff x\n")?,
        }
        std::os::unix::fs::chown(&map.0, Some(NOBODY), None)?;
        profile("jit")?;
    }
    // Symbols in a hole of a full file system, or debug information of a forged length, may cost only the names of
    // functions in these files: no note reports that files could not be read.
    let named = |name: &str| {
        let notes = profile(name)?;
        equal(&notes, notes.contains("could not be read"), false)
    };
    let process = start(endless(folder.path())?)?;
    named("endless")?;
    drop(process);
    let (_disk, holed) = holed(folder.path())?;
    let _process = start(holed)?;
    named("holed")
}
