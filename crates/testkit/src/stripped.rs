//! A program without symbols, and its separate debug information, for tests of profiles. Needs gcc, objcopy and
//! readelf.

use libtest_mimic::Failed;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the program's file and of its process.
pub const NAME: &str = "stripped";
/// The function in which the program spends most of its time; only the debug information contains its name.
pub const FUNCTION: &str = "hidden_work";

/// A stripped program.
pub struct Stripped {
    /// Path of the program.
    pub program: PathBuf,
    /// Path of its debug information.
    pub debug_file: PathBuf,
    /// Build ID of both files, hexadecimal.
    pub build_id: String,
}

impl Stripped {
    /// Builds the program in a directory. After each call of [`FUNCTION`], the program sleeps: 500 µs, or the number of
    /// µs given as its argument.
    ///
    /// # Errors
    /// If a tool is missing or fails.
    pub fn build(folder: &Path) -> Result<Self, Failed> {
        let (program, source, debug_file) = (folder.join(NAME), folder.join("program.c"), folder.join("debug"));
        let text = format!(
            "#include <stdlib.h>
             #include <unistd.h>
             __attribute__((noinline)) static void {FUNCTION}(void) {{ for (volatile long n = 0; n < 500000; n++); }}
             int main(int argc, char **argv) {{ for (;;) {{ {FUNCTION}(); usleep(argc > 1 ? atoi(argv[1]) : 500); }} }}"
        );
        std::fs::write(&source, text)?;
        let options = ["-O1", "-g", "-fno-omit-frame-pointer", "-Wl,--build-id=sha1", "-o"].map(OsStr::new);
        does("gcc", options.into_iter().chain([program.as_os_str(), source.as_os_str()]))?;
        does("objcopy", [OsStr::new("--only-keep-debug"), program.as_os_str(), debug_file.as_os_str()])?;
        does("objcopy", [OsStr::new("--strip-all"), program.as_os_str()])?;
        let notes = String::from_utf8(does("readelf", [OsStr::new("-n"), program.as_os_str()])?)?;
        let build_id = notes.split("Build ID: ").nth(1).and_then(|rest| rest.lines().next()).ok_or("no build-id")?;
        Ok(Self { build_id: build_id.trim().to_owned(), program, debug_file })
    }

    /// The path below `/usr/lib/debug` at which a machine would store the debug information.
    pub fn place(&self) -> String {
        let (first, rest) = self.build_id.split_at(2);
        format!(".build-id/{first}/{rest}.debug")
    }
}

fn does<'a>(program: &str, words: impl IntoIterator<Item = &'a OsStr>) -> Result<Vec<u8>, Failed> {
    let output = Command::new(program).args(words).output()?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}
