//! Users who try to make root open or execute files that they name.

use latpath_testkit::{equal, waits, Failed};
use nix::sys::stat::Mode;
use std::fs;
use std::os::unix::fs::{chown, symlink, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub const VERSION: &str = "QEMU emulator version 9.9.9";
const NOBODY: u32 = 65534;

/// Files that belong to root, in a directory that only these tests use and that no other user may access.
pub struct Bait {
    pub folder: tempfile::TempDir,
    shared: tempfile::TempDir,
}

impl Bait {
    pub fn new() -> Result<Self, Failed> {
        let bait = Self { folder: tempfile::Builder::new().prefix("bait-").tempdir()?, shared: tempfile::tempdir()? };
        nix::unistd::mkfifo(&bait.fifo(), Mode::S_IRUSR | Mode::S_IWUSR)?;
        fs::write(bait.folder.path().join("file"), "secret")?;
        fs::set_permissions(bait.shared.path(), PermissionsExt::from_mode(0o755))?;
        Ok(bait)
    }

    pub fn fifo(&self) -> PathBuf {
        self.folder.path().join("fifo")
    }

    /// Builds a busy program, which creates a file next to the bait if it is started with `--version`.
    fn build(&self, name: &str) -> Result<PathBuf, Failed> {
        let (source, program) = (self.shared.path().join("busy.c"), self.shared.path().join(name));
        let mark = self.folder.path().join("executed");
        let text = format!(
            "#include <fcntl.h>\n#include <stdio.h>\n#include <string.h>\n\
             const char version[] = \"{VERSION} (made up)\\n\";\n\
             int main(int argc, char **argv) {{\n\
             if (argc > 1 && !strcmp(argv[1], \"--version\")) return open(\"{}\", O_CREAT | O_WRONLY, 0600) < 0 || puts(version) < 0;\n\
             volatile long n = 0; for (;;) n++; }}\n",
            mark.display()
        );
        fs::write(&source, text)?;
        run(Command::new("gcc").args(["-O1", "-static", "-o"]).args([&program, &source]))?;
        Ok(program)
    }

    /// Adds a section to a program, and removes its symbols.
    fn replace_symbols(&self, program: &Path, section: &str, content: &[u8]) -> Result<(), Failed> {
        let added = self.shared.path().join("section");
        fs::write(&added, content)?;
        let section = format!("{section}={}", added.display());
        run(Command::new("objcopy").args(["--strip-all", "--add-section", &section]).arg(program))
    }
}

/// A section that names the file with the symbols, followed by a checksum.
fn debug_link(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0; 4][..4 - name.len() % 4], &[1; 4]].concat()
}

fn run(command: &mut Command) -> Result<(), Failed> {
    let output = command.output()?;
    equal(&String::from_utf8_lossy(&output.stderr), output.status.success(), true)
}

pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An unprivileged user whose program names a file that belongs to root.
pub struct User {
    _process: Running,
    map: PathBuf,
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.map);
    }
}

impl User {
    /// Names of the programs, one for each way of naming a file.
    pub const NAMES: [&'static str; 4] = ["lp-absolute", "lp-relative", "lp-alternative", "lp-supplement"];

    pub fn all(bait: &Bait) -> Result<Vec<Self>, Failed> {
        let fifo = bait.fifo().to_string_lossy().into_owned();
        let relative = format!("{}{fifo}", "../".repeat(8).trim_end_matches('/'));
        // Contents of `.gnu_debugaltlink`: name and build ID; of `.debug_sup`: version, flag, name, length of the build
        // ID, and build ID.
        let alternative = [fifo.as_bytes(), &[0], &[7; 20]].concat();
        let supplement = [&[5, 0, 0][..], fifo.as_bytes(), &[0, 20], &[7; 20]].concat();
        let sections = [
            (".gnu_debuglink", debug_link(&fifo)),
            (".gnu_debuglink", debug_link(&relative)),
            (".gnu_debugaltlink", alternative),
            (".debug_sup", supplement),
        ];
        Self::NAMES
            .into_iter()
            .zip(sections)
            .map(|(name, (section, content))| Self::start(bait, name, section, &content))
            .collect()
    }

    fn start(bait: &Bait, name: &str, section: &str, content: &[u8]) -> Result<Self, Failed> {
        let program = bait.build(name)?;
        bait.replace_symbols(&program, section, content)?;
        let mut command = Command::new(&program);
        let process = Running(command.uid(NOBODY).gid(NOBODY).current_dir("/").stdin(Stdio::null()).spawn()?);
        // A link to a file that belongs to root, at the path where the symbol file of the program's generated code is
        // looked up.
        let map = PathBuf::from(format!("/tmp/perf-{}.map", process.0.id()));
        symlink(bait.folder.path().join("file"), &map)?;
        std::os::unix::fs::lchown(&map, Some(NOBODY), None)?;
        chown(&program, Some(NOBODY), None)?;
        Ok(Self { _process: process, map })
    }
}

/// A trap that a container sets for processes that read its files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Trap {
    /// The container's `/tmp` is a link to a directory that belongs to root.
    Link,
    /// The symbol file of the program's generated code is a FIFO without a writer.
    Fifo,
    /// The symbol file of the program's generated code is 1 TiB long.
    HugeMap,
    /// The program file is 1 TiB long.
    HugeProgram,
}

impl Trap {
    pub const ALL: [Self; 4] = [Self::Link, Self::Fifo, Self::HugeMap, Self::HugeProgram];

    fn program(self) -> &'static str {
        match self {
            Self::Link => "lp-link",
            Self::Fifo => "lp-fifo",
            Self::HugeMap => "lp-huge-map",
            Self::HugeProgram => "lp-huge",
        }
    }

    /// Shell commands that run in the container's root. `$$` is also the PID of the container's program, which replaces
    /// the shell.
    fn commands(self) -> &'static str {
        match self {
            Self::Link => "ln -s \"$bait\" tmp",
            Self::Fifo => "mkdir tmp && mkfifo \"tmp/perf-$$.map\"",
            Self::HugeMap => "mkdir tmp && truncate -s 1T \"tmp/perf-$$.map\"",
            Self::HugeProgram => "mkdir tmp && truncate -s 1T \"bin/$name\"",
        }
    }
}

/// A container: a process with a root file system of its own, whose program has no symbols and names root's password
/// file as its symbol file.
pub struct Container {
    process: Running,
    trap: Trap,
    /// Name of the container's program.
    pub name: String,
    /// The name that the program's command line gives to the VM.
    pub vm: String,
}

impl Container {
    /// Containers of an unprivileged user of this machine.
    pub fn all(bait: &Bait) -> Result<Vec<Self>, Failed> {
        Trap::ALL.into_iter().map(|trap| Self::start(bait, trap.program(), trap, true)).collect()
    }

    /// A container of this machine's root, whose program has QEMU's name.
    pub fn vm(bait: &Bait) -> Result<Self, Failed> {
        Self::start(bait, "qemu-system-x86_64", Trap::Link, false)
    }

    fn start(bait: &Bait, name: &str, trap: Trap, is_users: bool) -> Result<Self, Failed> {
        let program = bait.build(name)?;
        bait.replace_symbols(&program, ".gnu_debuglink", &debug_link("/etc/shadow"))?;
        let vm = format!("lp-hostile-{}", std::process::id());
        let root = bait.shared.path().join("root");
        fs::create_dir_all(&root)?;
        let script = format!(
            "mount -t tmpfs none \"$root\" && cd \"$root\" && mkdir bin && cp \"$program\" bin/ && {} && \
             exec chroot . \"/bin/$name\" -name \"$vm\" -machine q35",
            trap.commands()
        );
        let mut command = Command::new("unshare");
        if is_users {
            command.args(["--user", "--map-root-user"]).uid(NOBODY).gid(NOBODY).current_dir("/");
        }
        command.args(["--mount", "--net", "--ipc", "--uts", "sh", "-c", &script]).stdin(Stdio::null());
        command.env("root", &root).env("program", &program).env("name", name).env("vm", &vm);
        command.env("bait", bait.folder.path());
        let container = Self { process: Running(command.spawn()?), trap, name: name.into(), vm };
        let exe = format!("/proc/{}/exe", container.process.0.id());
        let runs = || fs::read_link(&exe).is_ok_and(|exe| exe.file_name() == Path::new(name).file_name());
        waits::until("the container's program runs", runs)?;
        Ok(container)
    }

    /// The path of the container's FIFO, if it has one; root may only identify it as a FIFO.
    pub fn fifo(&self) -> Option<String> {
        (self.trap == Trap::Fifo).then(|| format!("/perf-{}.map", self.process.0.id()))
    }
}
