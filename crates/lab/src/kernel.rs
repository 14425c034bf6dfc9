//! The guest's kernel: one that is installed here, or Debian's own, fetched by apt into a cache and unpacked there.
//! Nothing is installed, and apt's own lists stay as they are.

use crate::{
    error::{Doing, Error, Result},
    modules::Modules,
    process, Progress, Stop,
};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// Without these a guest has no NIC, no serial ports and no packet sockets.
pub(crate) const MODULES: [&str; 4] = ["virtio_pci", "virtio_net", "virtio_console", "af_packet"];

/// What is kept of a kernel package: the image, and the modules that a lab may want. The rest (sound, graphics, file
/// systems) is nine tenths of it.
const KEPT: [&str; 9] = [
    "*/boot/vmlinuz-*",
    "*/modules.builtin",
    "*/kernel/net/*",
    "*/kernel/drivers/virtio/*",
    "*/kernel/drivers/net/*",
    "*/kernel/drivers/char/*",
    "*/kernel/drivers/vhost/*",
    "*/kernel/drivers/ptp/*",
    "*/kernel/lib/*",
];

/// Where apt's lists are while they are needed.
const LISTS: &str = "apt-lists";

/// A kernel that the guest can boot.
pub(crate) struct Kernel {
    /// As `uname -r` says it.
    pub(crate) release: String,
    /// The image to boot.
    pub(crate) image: PathBuf,
    /// Its modules.
    pub(crate) modules: Modules,
}

/// Finds a kernel on this machine or in the cache, and fetches one when there is none.
pub(crate) fn find(progress: Progress, stop: Stop) -> Result<Kernel> {
    let cache = cache()?;
    if let Some(kernel) = newest(Path::new("/boot"), Path::new("/lib/modules")) {
        return Ok(kernel);
    }
    let kept = cache.join("kernel");
    if let Some(kernel) = kept_in(&kept) {
        return Ok(kernel);
    }
    fetch(&cache, &kept, progress, stop)?;
    kept_in(&kept).ok_or_else(|| Error::NoKernel(format!("the one fetched to {} lacks virtio", kept.display())))
}

/// Where files that outlive a run are kept: `$LATPATH_CACHE`, `$XDG_CACHE_HOME/latpath` or `~/.cache/latpath`.
fn cache() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let folder = set("LATPATH_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|x| x.join("latpath")))
        .or_else(|| set("HOME").map(|h| h.join(".cache/latpath")))
        .ok_or_else(|| Error::NoKernel("no folder to keep one in; set LATPATH_CACHE".into()))?;
    fs::create_dir_all(&folder).doing(format!("make folder {}", folder.display()))?;
    fs::canonicalize(&folder).doing(format!("open folder {}", folder.display()))
}

/// The newest kernel in the cache. Each has a folder of its own, laid out as its package is.
fn kept_in(kept: &Path) -> Option<Kernel> {
    let folders = fs::read_dir(kept).ok()?.flatten().filter(|e| !e.file_name().to_string_lossy().starts_with('.'));
    let kernels = folders.filter_map(|e| {
        let root = e.path();
        let modules = [root.join("lib/modules"), root.join("usr/lib/modules")].into_iter().find(|m| m.is_dir())?;
        newest(&root.join("boot"), &modules)
    });
    kernels.max_by_key(|k| by_number(&k.release))
}

/// The running kernel, else the newest, of those that have an image, modules, and all that a guest needs.
fn newest(boot: &Path, modules: &Path) -> Option<Kernel> {
    let running = nix::sys::utsname::uname().ok().map(|u| u.release().to_string_lossy().into_owned());
    let names = fs::read_dir(boot).ok()?.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let mut releases: Vec<_> = names.filter_map(|n| n.strip_prefix("vmlinuz-").map(str::to_owned)).collect();
    releases.sort_by_key(|r| (Some(r) == running.as_ref(), by_number(r)));
    releases.into_iter().rev().find_map(|release| {
        let found = Modules::of(&modules.join(&release)).ok()?;
        let image = boot.join(format!("vmlinuz-{release}"));
        MODULES.iter().all(|m| found.has(m)).then_some(Kernel { release, image, modules: found })
    })
}

/// Orders `6.1.0-9` before `6.1.0-10`: the numbers in a release, as numbers.
fn by_number(release: &str) -> Vec<u64> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

fn fetch(cache: &Path, kept: &Path, progress: Progress, stop: Stop) -> Result<()> {
    for (program, package) in [("apt-get", "apt"), ("dpkg-deb", "dpkg"), ("tar", "tar")] {
        if crate::path_of(program).is_none() {
            let why = format!(
                "none in /boot with its modules in /lib/modules, and no {program} ({package}) to fetch Debian's; \
                 install a distribution kernel"
            );
            return Err(Error::NoKernel(why));
        }
    }
    fs::create_dir_all(kept).doing(format!("make folder {}", kept.display()))?;
    let work = Work::new(kept)?;
    progress("fetching Debian's kernel for the guest (70 MB, once)");
    let package = match download(&[], &work.0, stop) {
        Ok(package) => package,
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        Err(_) => {
            // No lists yet, or lists that name a package since replaced. Lists of our own leave the machine's alone.
            progress("asking the package mirror for its newest kernel");
            let view = private_view(cache)?;
            let words: Vec<&str> = view.iter().map(String::as_str).collect();
            let updated = apt("apt-get", &words, &["update", "-q"], &work.0, stop);
            let offline = |second: Error| {
                match second {
                Error::Interrupted => second,
                second => Error::NoKernel(format!(
                    "none in /boot with its modules in /lib/modules, none in {}, and Debian's cannot be fetched \
                     ({second}). Either connect this machine to a Debian mirror, or install a kernel (apt-get install {}), \
                     or do without a guest: latpath demo --no-guest",
                    kept.display(),
                    meta_package()
                )),
            }
            };
            let package = updated.and_then(|_| download(&words, &work.0, stop)).map_err(offline);
            let _ = fs::remove_dir_all(cache.join(LISTS));
            package?
        }
    };
    progress("unpacking the guest's kernel");
    let name = package.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let unpacked = work.0.join("root");
    unpack(&package, &unpacked, stop)?;
    let target = kept.join(name.trim_end_matches(".deb"));
    match fs::rename(&unpacked, &target) {
        // Another latpath fetched the same one meanwhile.
        Err(_) if target.is_dir() => Ok(()),
        other => other.doing(format!("keep kernel in {}", target.display())),
    }
}

/// Debian's package that depends on the newest kernel.
fn meta_package() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "linux-image-arm64"
    } else {
        "linux-image-amd64"
    }
}

/// Names the real package (it changes with every security update) and downloads it.
fn download(view: &[&str], work: &Path, stop: Stop) -> Result<PathBuf> {
    let meta = meta_package();
    let depends = apt("apt-cache", view, &["depends", meta], work, stop)?;
    let text = String::from_utf8_lossy(&depends);
    let package = text
        .lines()
        .filter_map(|l| l.trim().strip_prefix("Depends: "))
        .find(|p| p.strip_prefix("linux-image-").is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit())))
        .ok_or_else(|| Error::NoKernel(format!("apt knows no package behind {meta}")))?;
    apt("apt-get", view, &["download", "-q", package], work, stop)?;
    let file = fs::read_dir(work).doing("read the download")?.flatten().map(|e| e.path());
    let mut packages = file.filter(|f| f.extension().is_some_and(|e| e == "deb"));
    packages.next().ok_or_else(|| Error::NoKernel(format!("apt-get download {package} left no file")))
}

fn apt(program: &str, view: &[&str], words: &[&str], work: &Path, stop: Stop) -> Result<Vec<u8>> {
    let mut command = Command::new(program);
    // apt's own user may not write to root's cache.
    command.args(["-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=20"]);
    command.args(view).args(words).current_dir(work);
    process::run(&mut command, Duration::from_secs(600), stop).map_err(|error| match error {
        // The options above would only hide what matters.
        Error::Command { why, .. } => Error::Command { command: format!("{program} {}", words.join(" ")), why },
        other => other,
    })
}

/// Options that give apt lists in our cache instead of the machine's.
fn private_view(cache: &Path) -> Result<Vec<String>> {
    let lists = cache.join(LISTS);
    fs::create_dir_all(lists.join("partial")).doing(format!("make folder {}", lists.display()))?;
    let options = [
        format!("Dir::State::Lists={}", lists.display()),
        "Dir::Cache::pkgcache=".into(),
        "Dir::Cache::srcpkgcache=".into(),
        "Acquire::Languages=none".into(),
    ];
    Ok(options.into_iter().flat_map(|o| ["-o".to_owned(), o]).collect())
}

fn unpack(package: &Path, to: &Path, stop: Stop) -> Result<()> {
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
    command.args(["--no-same-owner", "--exclude=*/drivers/net/wireless/*", "--wildcards"]).args(KEPT);
    let unpacked = process::run(&mut command, Duration::from_secs(300), stop).map(drop);
    let _ = fs::remove_file(&tar);
    match unpacked {
        // tar also fails when one of the patterns matched nothing, which differs between kernels; whether the
        // kernel will do is decided by what came out.
        Err(Error::Command { .. }) if to.join("boot").is_dir() => Ok(()),
        other => other,
    }
}

/// A folder for the work in progress, on the cache's own file system so that the result can be renamed into place.
struct Work(PathBuf);

impl Work {
    fn new(beside: &Path) -> Result<Self> {
        let folder = beside.join(format!(".{}", crate::namespace::LabId::next()));
        fs::create_dir_all(&folder).doing(format!("make folder {}", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_ordered_by_number() {
        assert!(by_number("6.1.0-9-amd64") < by_number("6.1.0-10-amd64"));
        assert!(by_number("6.1.0-10-amd64") < by_number("6.12.1-1-amd64"));
    }

    #[test]
    fn an_image_without_its_modules_is_no_kernel() {
        let folder = std::env::temp_dir().join(format!("latpath-kernel-{}", std::process::id()));
        let (boot, modules) = (folder.join("boot"), folder.join("modules"));
        fs::create_dir_all(&boot).unwrap();
        for release in ["6.1.0-9-amd64", "6.1.0-10-amd64", "6.12.0-1-amd64"] {
            fs::write(boot.join(format!("vmlinuz-{release}")), "").unwrap();
        }
        for release in ["6.1.0-9-amd64", "6.1.0-10-amd64"] {
            let kernel = modules.join(release).join("kernel");
            fs::create_dir_all(&kernel).unwrap();
            for module in MODULES {
                fs::write(kernel.join(format!("{module}.ko")), "").unwrap();
            }
        }
        fs::create_dir_all(modules.join("6.12.0-1-amd64/kernel")).unwrap();
        assert_eq!(newest(&boot, &modules).unwrap().release, "6.1.0-10-amd64");
        fs::remove_dir_all(folder).unwrap();
    }
}
