//! Those who would have root open or execute what they name.

use latpath_testkit::{equal, waits, Failed};
use nix::sys::stat::Mode;
use std::fs;
use std::os::unix::fs::{chown, symlink, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub const VERSION: &str = "QEMU emulator version 9.9.9";
const NOBODY: u32 = 65534;

/// Files of root's that nobody else may reach, in a folder that only these tests name.
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

    /// Builds a busy program; started with `--version` it leaves a file beside the bait.
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
}

fn run(command: &mut Command) -> Result<(), Failed> {
    let output = command.output()?;
    equal(&String::from_utf8_lossy(&output.stderr), output.status.success(), true)
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A user without rights whose program names a file of root's.
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
    /// Names of the programs, one for each way to name a file.
    pub const NAMES: [&'static str; 4] = ["lp-absolute", "lp-relative", "lp-alternative", "lp-supplement"];

    pub fn all(bait: &Bait) -> Result<Vec<Self>, Failed> {
        let fifo = bait.fifo().to_string_lossy().into_owned();
        let relative = format!("{}{fifo}", "../".repeat(8).trim_end_matches('/'));
        // A name and a checksum; a name and a build-id; version, flag, name, length and build-id.
        let link = |name: &str| [name.as_bytes(), &[0; 4][..4 - name.len() % 4], &[1; 4]].concat();
        let alternative = [fifo.as_bytes(), &[0], &[7; 20]].concat();
        let supplement = [&[5, 0, 0][..], fifo.as_bytes(), &[0, 20], &[7; 20]].concat();
        let sections = [
            (".gnu_debuglink", link(&fifo)),
            (".gnu_debuglink", link(&relative)),
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
        let (program, added) = (bait.build(name)?, bait.shared.path().join("section"));
        fs::write(&added, content)?;
        run(Command::new("objcopy")
            .arg("--strip-all")
            .arg("--add-section")
            .arg(format!("{section}={}", added.display()))
            .arg(&program))?;
        let mut command = Command::new(&program);
        let process = Running(command.uid(NOBODY).gid(NOBODY).current_dir("/").stdin(Stdio::null()).spawn()?);
        // Links to files of root's where names of its code are looked for.
        let map = PathBuf::from(format!("/tmp/perf-{}.map", process.0.id()));
        symlink(bait.folder.path().join("file"), &map)?;
        std::os::unix::fs::lchown(&map, Some(NOBODY), None)?;
        chown(&program, Some(NOBODY), None)?;
        Ok(Self { _process: process, map })
    }
}

/// A container: root with a root of its own, whose program has the name of QEMU's.
pub struct Container {
    process: Running,
    /// The name that it gives itself as a VM.
    pub vm: String,
}

impl Container {
    pub fn start(bait: &Bait, name: &str) -> Result<Self, Failed> {
        let program = bait.build(name)?;
        let vm = format!("lp-hostile-{}", std::process::id());
        let root = bait.shared.path().join("root");
        fs::create_dir(&root)?;
        // Its /tmp is a link to a folder of root's.
        let script =
            "mount -t tmpfs none \"$1\" && mkdir \"$1/bin\" && cp \"$2\" \"$1/bin/\" && ln -s \"$3\" \"$1/tmp\" && \
             exec chroot \"$1\" \"/bin/$4\" -name \"$5\" -machine q35";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "--ipc", "--uts", "sh", "-c", script, "sh"]);
        command.args([&root, &program, &bait.folder.path().to_path_buf()]).args([name, &vm]).stdin(Stdio::null());
        let container = Self { process: Running(command.spawn()?), vm };
        let exe = format!("/proc/{}/exe", container.process.0.id());
        let runs = || fs::read_link(&exe).is_ok_and(|exe| exe.file_name() == Path::new(name).file_name());
        waits::until("the container's program runs", runs)?;
        Ok(container)
    }
}
