//! A program without symbols, and the debugging information that it was built with: what a profile has to bring together again. It needs
//! gcc, objcopy and readelf.

use libtest_mimic::Failed;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program's file, and so its process.
pub const NAME: &str = "stripped";
/// The function in which it is busy for most of its time; only its debugging information has the name.
pub const FUNCTION: &str = "hidden_work";

pub struct Stripped {
    pub program: PathBuf,
    /// Its debugging information.
    pub debug_file: PathBuf,
    /// What both have in common, in hexadecimal digits.
    pub build_id: String,
}

impl Stripped {
    /// Builds it in a folder. It sleeps 500 us after each call of its function, or as long as its argument says.
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

    /// Where a machine keeps its debugging information, below `/usr/lib/debug`.
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
