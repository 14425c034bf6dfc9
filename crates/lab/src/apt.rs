//! Debian packages, used without installing them: the machine's own apt resolves and fetches them, and they are
//! unpacked into a cache. The machine's package lists and dpkg state do not change.

use crate::{
    arch::Arch,
    error::{Doing, Error, Result},
    process, Progress, Stop,
};
use latpath_linux::{why_replaceable, why_shared};
use std::{
    env, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// Root's cache directory if its environment points to another user's, as with `sudo -E`.
const ROOTS: &str = "/var/cache/latpath";

/// The folder of files that outlive a run: `$LATPATH_CACHE`, `$XDG_CACHE_HOME/latpath` or `~/.cache/latpath`. No other
/// user may be able to change it, because latpath runs programs and kernels from it.
pub(crate) fn cache() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(folder) = set("LATPATH_CACHE") {
        return own_folder(&folder);
    }
    let of_home = || set("HOME").map(|h| h.join(".cache/latpath"));
    let folder = set("XDG_CACHE_HOME").map(|x| x.join("latpath")).or_else(of_home);
    let folder = folder.ok_or_else(|| Error::NoKernel("no folder to keep one in; set LATPATH_CACHE".into()))?;
    match own_folder(&folder) {
        Err(Error::Unsafe { .. }) if nix::unistd::geteuid().is_root() => own_folder(Path::new(ROOTS)),
        folder => folder,
    }
}

/// Creates the folder, or accepts an existing one if no other user can change it or its contents.
fn own_folder(folder: &Path) -> Result<PathBuf> {
    let is_unsafe = |why: String| Error::Unsafe { folder: folder.into(), why };
    // Checked before anything is created in another user's folder.
    let existing = folder.ancestors().find(|above| above.is_dir()).unwrap_or(Path::new("."));
    let existing = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
    let reading = || format!("read folder {}", folder.display());
    if let Some(why) = why_replaceable(existing).doing(reading())? {
        return Err(is_unsafe(why));
    }
    fs::create_dir_all(folder).doing(format!("make folder {}", folder.display()))?;
    let folder = fs::canonicalize(folder).doing(format!("open folder {}", folder.display()))?;
    let shared = why_shared(&folder).doing(reading())?.map(String::from);
    if let Some(why) = why_replaceable(&folder).doing(reading())?.or(shared) {
        return Err(is_unsafe(why));
    }
    for inner in [folder.clone(), folder.join("hypervisor")] {
        for entry in fs::read_dir(inner).into_iter().flatten().flatten() {
            let owner = entry.metadata().doing(reading())?.uid();
            if ![0, nix::unistd::geteuid().as_raw()].contains(&owner) {
                return Err(is_unsafe(format!("{} belongs to another user", entry.path().display())));
            }
        }
    }
    Ok(folder)
}

/// Files kept of a kernel's package: networking, virtual machines and tracing, with their dependencies. The rest
/// (sound, graphics, file systems) is nine tenths of the package.
pub(crate) const KEPT_OF_A_KERNEL: [&str; 22] = [
    "*/boot/vmlinuz-*",
    "*/boot/config-*",
    "*/modules.builtin*",
    "*/modules.order",
    "*/kernel/net/*",
    "*/kernel/lib/*",
    "*/kernel/crypto/*",
    "*/kernel/arch/*",
    "*/kernel/virt/*",
    "*/kernel/fs/9p/*",
    "*/kernel/fs/netfs/*",
    "*/kernel/fs/fscache/*",
    "*/kernel/fs/overlayfs/*",
    "*/kernel/drivers/virtio/*",
    "*/kernel/drivers/net/*",
    "*/kernel/drivers/char/*",
    "*/kernel/drivers/vhost/*",
    "*/kernel/drivers/ptp/*",
    "*/kernel/drivers/pps/*",
    "*/kernel/drivers/dca/*",
    "*/kernel/drivers/crypto/ccp/*",
    "*/kernel/drivers/i2c/algos/*",
];

/// The first missing program that fetching needs: its name and its package.
pub(crate) fn lacks() -> Option<(&'static str, &'static str)> {
    let needed = [("apt-get", "apt"), ("dpkg-deb", "dpkg"), ("tar", "tar")];
    needed.into_iter().find(|(program, _)| crate::path_of(program).is_none())
}

/// The package lists that apt uses.
pub(crate) struct View {
    options: Vec<String>,
    lists: Option<PathBuf>,
}

impl View {
    /// The machine's own lists, however old.
    pub(crate) fn machine() -> Self {
        Self { options: Vec::new(), lists: None }
    }

    /// The machine's sources with fresh private lists, which are removed when this value is dropped.
    fn private(work: &Work, more: Vec<String>, stop: Stop) -> Result<Self> {
        let lists = work.folder().join("apt-lists");
        fs::create_dir_all(lists.join("partial")).doing(format!("make folder {}", lists.display()))?;
        let mut options = vec![
            format!("Dir::State::Lists={}", lists.display()),
            "Dir::Cache::pkgcache=".into(),
            "Dir::Cache::srcpkgcache=".into(),
            "Acquire::Languages=none".into(),
        ];
        options.extend(more);
        let view = Self { options, lists: Some(lists) };
        view.apt("apt-get", &["update", "-q"], work, stop)?;
        Ok(view)
    }

    /// Only these suites (e.g. `bookworm-backports`) of the Debian mirror in the machine's sources; the first one has
    /// priority. For another architecture, no package counts as installed.
    pub(crate) fn suites(work: &Work, suites: &[&str], arch: Arch, stop: Stop) -> Result<Self> {
        let mirror = mirror(work, stop)?;
        let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let signed = if Path::new(keys).is_file() { format!("[signed-by={keys}] ") } else { String::new() };
        let list = work.folder().join("sources.list");
        let lines: String = suites.iter().map(|suite| format!("deb {signed}{mirror} {suite} main\n")).collect();
        fs::write(&list, lines).doing(format!("write {}", list.display()))?;
        let mut options =
            vec![format!("Dir::Etc::SourceList={}", list.display()), "Dir::Etc::SourceParts=/dev/null".into()];
        options.extend(suites.first().map(|suite| format!("APT::Default-Release={suite}")));
        if arch != Arch::OWN {
            let installed = work.folder().join("installed");
            fs::write(&installed, "").doing(format!("write {}", installed.display()))?;
            options.push(format!("Dir::State::status={}", installed.display()));
            options.extend(["APT::Architecture", "APT::Architectures"].map(|name| format!("{name}={}", arch.debian())));
        }
        Self::private(work, options, stop)
    }

    /// Calls `ask` with the machine's own lists, and with fresh lists if that fails.
    pub(crate) fn own_or_fresh<T>(
        work: &Work,
        progress: Progress,
        stop: Stop,
        ask: impl Fn(&Self) -> Result<T>,
    ) -> Result<T> {
        match ask(&Self::machine()) {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(_) => {
                progress("asking the package mirror what is newest");
                ask(&Self::private(work, Vec::new(), stop)?)
            }
            answered => answered,
        }
    }

    pub(crate) fn depends(&self, package: &str, work: &Work, stop: Stop) -> Result<Vec<String>> {
        let depends = self.apt("apt-cache", &["depends", package], work, stop)?;
        let text = String::from_utf8_lossy(&depends);
        Ok(text.lines().filter_map(|l| l.trim().strip_prefix("Depends: ")).map(str::to_owned).collect())
    }

    /// Downloads the kernel of a metapackage: its first dependency whose name continues with a number, which changes
    /// with every security update. If the name ends in a dot (`linux-image-6.18.`): the newest package whose name
    /// begins with it.
    pub(crate) fn download_kernel(&self, name: &str, arch: Arch, work: &Work, stop: Stop) -> Result<PathBuf> {
        let numbered =
            |p: &String| p.strip_prefix("linux-image-").is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit()));
        let none = || Error::NoKernel(format!("apt knows no package behind {name}"));
        let package = match name.ends_with('.') {
            true => newest(&self.named(name, work, stop)?, name, arch.debian()),
            false => self.depends(name, work, stop)?.into_iter().find(numbered),
        };
        let package = package.ok_or_else(none)?;
        let none = || Error::NoKernel(format!("apt-get download {package} left no file"));
        self.download_all(&[&package], work, stop)?.into_iter().next().ok_or_else(none)
    }

    /// The packages whose names have this prefix.
    fn named(&self, begin: &str, work: &Work, stop: Stop) -> Result<String> {
        let names = self.apt("apt-cache", &["pkgnames", begin], work, stop)?;
        Ok(String::from_utf8_lossy(&names).into_owned())
    }

    /// Downloads packages without their dependencies.
    pub(crate) fn download_all(&self, packages: &[&str], work: &Work, stop: Stop) -> Result<Vec<PathBuf>> {
        self.apt("apt-get", &[&["download", "-q"], packages].concat(), work, stop)?;
        packages_in(work.folder())
    }

    /// Downloads the packages that their installation would add to this machine: these packages and their missing
    /// dependencies.
    pub(crate) fn download_lacking(&self, packages: &[&str], work: &Work, stop: Stop) -> Result<Vec<PathBuf>> {
        let folder = work.folder().join("archives");
        fs::create_dir_all(folder.join("partial")).doing(format!("make folder {}", folder.display()))?;
        let archives = format!("Dir::Cache::archives={}", folder.display());
        // Nothing is installed, so dpkg's lock is not needed.
        let mut words = vec!["-o", &archives, "-o", "Debug::NoLocking=1", "-q", "-y", "--no-install-recommends"];
        words.extend(["--download-only", "install"]);
        words.extend(packages);
        self.apt("apt-get", &words, work, stop)?;
        packages_in(&folder)
    }

    fn apt(&self, program: &str, words: &[&str], work: &Work, stop: Stop) -> Result<Vec<u8>> {
        let mut command = Command::new(program);
        // apt's sandbox user may not write to root's cache.
        command.args(["-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=20"]);
        command.args(self.options.iter().flat_map(|o| ["-o", o])).args(words).current_dir(work.folder());
        process::run(&mut command, Duration::from_secs(600), stop).map_err(|error| match error {
            // The error omits the options above, which would hide the relevant words.
            Error::Command { why, .. } => Error::Command { command: format!("{program} {}", words.join(" ")), why },
            other => other,
        })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Some(lists) = &self.lists {
            let _ = fs::remove_dir_all(lists);
        }
    }
}

/// The Debian mirror of the machine's release, from its own sources.
fn mirror(work: &Work, stop: Stop) -> Result<String> {
    let words = ["indextargets", "--format", "$(COMPONENT) $(RELEASE) $(REPO_URI)", "Created-By: Packages"];
    let targets = View::machine().apt("apt-get", &words, work, stop)?;
    let none = || Error::NoKernel("this machine's apt has no Debian mirror among its sources".into());
    pick_mirror(&String::from_utf8_lossy(&targets)).ok_or_else(none)
}

/// The archive of a release (`bookworm`), not its security archive or a third party's: those have no plain suite with a
/// component main.
fn pick_mirror(targets: &str) -> Option<String> {
    let lines = targets.lines().filter_map(|l| l.strip_prefix("main "));
    let (_, uri) = lines.filter_map(|l| l.split_once(' ')).find(|(release, uri)| {
        !release.contains(['-', '/']) && !uri.contains("security") && uri.trim_end_matches('/').ends_with("debian")
    })?;
    Some(uri.to_owned())
}

/// The kernel package with the highest number after `begin`, from a list with one name per line. Other flavours (`-rt`,
/// `-cloud`) are omitted.
fn newest(names: &str, begin: &str, arch: &str) -> Option<String> {
    let number = |name: &str| {
        let rest = name.strip_prefix(begin)?.strip_suffix(arch)?.strip_suffix('-')?;
        rest.split('+').next().filter(|_| !rest.contains('-'))?.parse::<u32>().ok()
    };
    let numbered = names.lines().filter_map(|name| Some((number(name)?, name)));
    numbered.max().map(|(_, name)| name.to_owned())
}

fn packages_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let files = fs::read_dir(folder).doing("read the download")?.flatten().map(|e| e.path());
    Ok(files.filter(|f| f.extension().is_some_and(|e| e == "deb")).collect())
}

/// Unpacks whole packages into one root.
pub(crate) fn unpack_all(packages: &[PathBuf], work: &Work, stop: Stop) -> Result<PathBuf> {
    let root = work.folder().join("root");
    // The list of packages may be empty.
    fs::create_dir_all(&root).doing(format!("make folder {}", root.display()))?;
    packages.iter().try_for_each(|package| unpack(package, &root, &[], stop))?;
    Ok(root)
}

/// Unpacks the files of a package that match the patterns, or all files without patterns.
pub(crate) fn unpack(package: &Path, to: &Path, kept: &[&str], stop: Stop) -> Result<()> {
    fs::create_dir_all(to).doing(format!("make folder {}", to.display()))?;
    let tar = to.with_extension("tar");
    let file = fs::File::create(&tar).doing(format!("write {}", tar.display()))?;
    let mut command = Command::new("dpkg-deb");
    command.arg("--fsys-tarfile").arg(package).stdin(Stdio::null()).stdout(file);
    let mut running = process::Running::start(command, None, nix::sys::signal::Signal::SIGKILL)?;
    match running.wait(Duration::from_secs(300))? {
        Some(status) if status.success() => {}
        _ => return Err(Error::NoKernel(format!("{} cannot be unpacked", package.display()))),
    }
    let mut command = Command::new("tar");
    command.arg("-x").arg("-f").arg(&tar).arg("-C").arg(to);
    command.args(["--no-same-owner", "--exclude=*/drivers/net/wireless/*", "--wildcards"]).args(kept);
    let unpacked = process::run(&mut command, Duration::from_secs(300), stop).map(drop);
    let _ = fs::remove_file(&tar);
    match unpacked {
        // tar also fails if a pattern matches nothing, which differs between kernels. The unpacked files decide
        // whether the kernel is usable.
        Err(Error::Command { .. }) if to.join("boot").is_dir() => Ok(()),
        other => other,
    }
}

/// A folder for work in progress, on the cache's file system so that the result can be renamed into place.
pub(crate) struct Work(PathBuf);

impl Work {
    pub(crate) fn new(beside: &Path) -> Result<Self> {
        let folder = beside.join(format!(".{}", crate::namespace::LabId::next()));
        fs::create_dir_all(&folder).doing(format!("make folder {}", folder.display()))?;
        Ok(Self(folder))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// Moves a finished folder to its place in the cache.
    pub(crate) fn keep(&self, made: &Path, target: &Path) -> Result<()> {
        match fs::rename(made, target) {
            // Another latpath has fetched the same files meanwhile.
            Err(_) if target.is_dir() => Ok(()),
            other => other.doing(format!("keep {}", target.display())),
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::{newest, own_folder, pick_mirror};
    use std::{fs, os::unix::fs::chown};

    #[test]
    fn a_cache_that_another_user_can_change_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("a/cache");
        let kept = own_folder(&cache).unwrap();
        fs::create_dir_all(kept.join("hypervisor/6.12")).unwrap();
        assert_eq!(own_folder(&cache).unwrap(), kept);
        let another = |path: &str, owner| chown(folder.path().join(path), Some(owner), None).is_ok();
        for path in ["a", "a/cache", "a/cache/hypervisor", "a/cache/hypervisor/6.12"] {
            if another(path, 12345) {
                assert!(own_folder(&cache).unwrap_err().to_string().contains("belongs to another user"), "{path}");
                another(path, 0);
            }
        }
        if another("a", 12345) {
            fs::remove_dir_all(&cache).unwrap();
            assert!(own_folder(&cache).is_err() && !cache.exists(), "nothing is made in another user's folder");
        }
    }

    #[test]
    fn the_newest_kernel_of_a_version_is_that_of_the_highest_number() {
        let names = "linux-image-6.18.5+deb13-amd64\nlinux-image-6.18.15+deb13-amd64\nlinux-image-6.18.16+deb13-rt-amd64\n\
                     linux-image-6.18.17+deb13-cloud-amd64\nlinux-image-6.18.18+deb13-amd64-dbg\nlinux-image-6.19.1+deb13-amd64\n";
        assert_eq!(newest(names, "linux-image-6.18.", "amd64").as_deref(), Some("linux-image-6.18.15+deb13-amd64"));
        assert_eq!(newest(names, "linux-image-6.20.", "amd64"), None);
    }

    #[test]
    fn the_mirror_is_the_one_of_the_release_itself() {
        let targets = "main bookworm-security http://a.example/debian-security/\n\
                       main nodistro http://b.example/node/\n\
                       contrib bookworm http://c.example/debian/\n\
                       main bookworm-updates http://d.example/debian/\n\
                       main bookworm http://e.example/debian/\n";
        assert_eq!(pick_mirror(targets).as_deref(), Some("http://e.example/debian/"));
        assert_eq!(pick_mirror("main stable http://b.example/node/\n"), None);
    }
}
