//! Layers over this machine's root for the lab's hypervisor: a kernel of the matrix with its modules, and tools that
//! need not be installed on this machine. Each is a folder in the cache, laid out as a root and fetched once.

use crate::{
    apt::{self, View, Work},
    arch::Arch,
    error::{Doing, Error, Result},
    kernel, process, Progress, Stop,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// A kernel that the lab's hypervisor can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabKernel {
    /// Name in LATPATH_LAB and in reports.
    pub name: &'static str,
    /// Debian metapackage of the newest kernel; if it ends in a dot, the prefix of the packages of one version.
    package: &'static str,
    pub(crate) suite: &'static str,
    /// Whether it is built with PREEMPT_RT.
    pub real_time: bool,
    /// Architecture.
    pub arch: Arch,
}

/// The matrix. One line adds a kernel.
pub const KERNELS: [LabKernel; 6] = [
    x86("6.1", "linux-image-amd64", "bookworm"),
    x86("6.12", "linux-image-amd64", "bookworm-backports"),
    x86("6.18", "linux-image-6.18.", "trixie-backports"),
    LabKernel { real_time: true, ..x86("6.1-rt", "linux-image-rt-amd64", "bookworm") },
    LabKernel { real_time: true, ..x86("6.12-rt", "linux-image-rt-amd64", "bookworm-backports") },
    LabKernel { arch: Arch::Arm, ..x86("arm64", "linux-image-arm64", "bookworm-backports") },
];

const fn x86(name: &'static str, package: &'static str, suite: &'static str) -> LabKernel {
    LabKernel { name, package, suite, real_time: false, arch: Arch::X86 }
}

/// Packages unpacked for the hypervisor, with their dependencies that this machine lacks.
const TOOLS: [&str; 8] =
    ["openvswitch-switch", "kmod", "trace-cmd", "linuxptp", "ethtool", "linux-cpupower", "iperf3", "chrony"];

/// Packages of a small userland of another architecture, with a QEMU that runs guests by KVM. This machine's programs
/// do not run there.
const USERLAND: [&str; 14] = [
    "base-files",
    "bash",
    "busybox-static",
    "coreutils",
    "cpio",
    "dash",
    "grep",
    "hostname",
    "iproute2",
    "kmod",
    "libelf1",
    "mount",
    "qemu-system-arm",
    "sed",
];

impl LabKernel {
    /// The kernel with this name in the matrix.
    pub fn named(name: &str) -> Option<Self> {
        KERNELS.into_iter().find(|k| k.name == name)
    }

    /// Fetches this kernel and the tools into the cache, unless they are already cached.
    ///
    /// # Errors
    /// If the package mirror cannot be reached, or does not have them.
    pub fn fetch(self, progress: Progress, stop: Stop) -> Result<()> {
        Layers::of(self, progress, stop).map(drop)
    }

    /// Whether this kernel has a module of this name, as a file or built in.
    ///
    /// # Errors
    /// As for [`Self::fetch`].
    pub fn has_module(self, name: &str, progress: Progress, stop: Stop) -> Result<bool> {
        Ok(Layers::of(self, progress, stop)?.kernel()?.modules.has(name))
    }
}

/// Folders to mount over this machine's root.
pub(crate) struct Layers {
    pub(crate) kernel: PathBuf,
    pub(crate) tools: PathBuf,
}

impl Layers {
    /// The layers from the cache, fetched if missing.
    pub(crate) fn of(kernel: LabKernel, progress: Progress, stop: Stop) -> Result<Self> {
        let cache = cache()?;
        // Each list of tools has its own folder, so a changed list is fetched again.
        let own_tools = cache.join(TOOLS.join("+"));
        if !own_tools.is_dir() {
            progress("fetching tools for the lab's hypervisor (5 MB, once)");
            fetch(&cache, |work| tools(work, &own_tools, progress, stop), "Open vSwitch and kmod")?;
        }
        let tools = match kernel.arch == Arch::OWN {
            true => own_tools.clone(),
            false => cache.join(format!("{}-{}", kernel.arch.debian(), USERLAND.join("+"))),
        };
        if !tools.is_dir() {
            progress(&format!("fetching programs for {} (60 MB, once)", kernel.arch.debian()));
            fetch(&cache, |work| userland(kernel.arch, work, &tools, stop), "a userland")?;
        }
        let layers = Self { kernel: cache.join(kernel.name), tools };
        if !layers.kernel.is_dir() {
            progress(&format!("fetching Linux {} for the lab's hypervisor (70 MB, once)", kernel.name));
            fetch(
                &cache,
                |work| one_kernel(kernel, work, (&layers.kernel, &own_tools), progress, stop),
                kernel.package,
            )?;
        }
        Ok(layers)
    }

    pub(crate) fn kernel(&self) -> Result<kernel::Kernel> {
        let none = || Error::NoKernel(format!("{} lacks virtio; remove it", self.kernel.display()));
        kernel::newest(&self.kernel.join("boot"), &self.kernel.join("usr/lib/modules")).ok_or_else(none)
    }
}

/// The cache folder of hypervisors.
pub(crate) fn cache() -> Result<PathBuf> {
    let cache = apt::cache()?.join("hypervisor");
    fs::create_dir_all(&cache).doing(format!("make folder {}", cache.display()))?;
    Ok(cache)
}

pub(crate) fn fetch(cache: &Path, by: impl FnOnce(&Work) -> Result<()>, what: &str) -> Result<()> {
    let lacks = apt::lacks().map(|(program, package)| Error::Missing { program, package });
    let fetched = lacks.map_or_else(|| Work::new(cache).and_then(|work| by(&work)), Err);
    fetched.map_err(|error| match error {
        Error::Interrupted => error,
        error => Error::Fetch { what: what.into(), why: error.to_string() },
    })
}

fn tools(work: &Work, target: &Path, progress: Progress, stop: Stop) -> Result<()> {
    let packages = View::own_or_fresh(work, progress, stop, |view| view.download_lacking(&TOOLS, work, stop))?;
    let root = apt::unpack_all(&packages, work, stop)?;
    merge_usr(&root)?;
    // Debian's alternatives create this link when the package is installed.
    if root.join("usr/lib/openvswitch-switch/ovs-vswitchd").is_file() {
        let link = root.join("usr/sbin/ovs-vswitchd");
        std::os::unix::fs::symlink("../lib/openvswitch-switch/ovs-vswitchd", &link).doing("link ovs-vswitchd")?;
    }
    work.keep(&root, target)
}

/// Fetches a complete root of another architecture.
fn userland(arch: Arch, work: &Work, target: &Path, stop: Stop) -> Result<()> {
    let view = View::suites(work, &["bookworm"], arch, stop)?;
    let root = apt::unpack_all(&view.download_lacking(&USERLAND, work, stop)?, work, stop)?;
    merge_usr(&root)?;
    for name in MERGED.into_iter().filter(|name| root.join("usr").join(name).is_dir()) {
        std::os::unix::fs::symlink(Path::new("usr").join(name), root.join(name)).doing(format!("link {name}"))?;
    }
    work.keep(&root, target)
}

fn one_kernel(
    kernel: LabKernel,
    work: &Work,
    (target, tools): (&Path, &Path),
    progress: Progress,
    stop: Stop,
) -> Result<()> {
    let view = View::suites(work, &[kernel.suite], kernel.arch, stop)?;
    let package = view.download_kernel(kernel.package, kernel.arch, work, stop)?;
    progress(&format!("unpacking Linux {}", kernel.name));
    let root = work.folder().join("root");
    apt::unpack(&package, &root, &apt::KEPT_OF_A_KERNEL, stop)?;
    merge_usr(&root)?;
    let modules = root.join("usr/lib/modules");
    let release = fs::read_dir(&modules).doing(format!("read {}", modules.display()))?.flatten().next();
    let release = release.ok_or_else(|| Error::NoKernel(format!("{} has no modules", package.display())))?;
    depmod(&root, &release.file_name().to_string_lossy(), work, tools, stop)?;
    work.keep(&root, target)
}

/// Writes the module tables, without which modprobe and the kernel find no module.
fn depmod(root: &Path, release: &str, work: &Work, tools: &Path, stop: Stop) -> Result<()> {
    let program = match crate::path_of("depmod") {
        Some(own) => own,
        None => {
            // kmod acts as the tool under whose name it is run.
            let link = work.folder().join("depmod");
            std::os::unix::fs::symlink(tools.join("usr/bin/kmod"), &link).doing("link depmod")?;
            link
        }
    };
    let libraries = tools.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let mut command = Command::new("env");
    command.arg(format!("LD_LIBRARY_PATH={}", libraries.display())).arg(program);
    command.arg("-b").arg(root.join("usr")).arg(release);
    process::run(&mut command, Duration::from_secs(120), stop).map(drop)
}

/// Root folders that are links into /usr.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// Moves /bin, /lib and /sbin of unpacked packages into /usr, because they are links in the root below.
fn merge_usr(root: &Path) -> Result<()> {
    for name in MERGED {
        let from = root.join(name);
        if from.is_dir() {
            merge(&from, &root.join("usr").join(name))?;
        }
    }
    Ok(())
}

fn merge(from: &Path, to: &Path) -> Result<()> {
    if !to.exists() {
        let parent = to.parent().unwrap_or(to);
        fs::create_dir_all(parent).doing(format!("make folder {}", parent.display()))?;
        return fs::rename(from, to).doing(format!("move {}", from.display()));
    }
    for entry in fs::read_dir(from).doing(format!("read {}", from.display()))?.flatten() {
        let target = to.join(entry.file_name());
        if target.is_dir() {
            merge(&entry.path(), &target)?;
        } else {
            fs::rename(entry.path(), &target).doing(format!("move {}", entry.path().display()))?;
        }
    }
    fs::remove_dir(from).doing(format!("remove {}", from.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_have_names_of_their_own() {
        for (n, kernel) in KERNELS.iter().enumerate() {
            assert_eq!(KERNELS.iter().position(|k| k.name == kernel.name), Some(n));
            assert_eq!(LabKernel::named(kernel.name), Some(*kernel));
            assert_eq!(kernel.real_time, kernel.package.contains("-rt"));
        }
        assert_eq!(LabKernel::named("2.4"), None);
    }

    #[test]
    fn what_is_unpacked_beside_usr_is_moved_into_it() {
        let root = std::env::temp_dir().join(format!("latpath-layers-{}", std::process::id()));
        for folder in ["lib/modules/6", "usr/lib/x", "sbin"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("lib/modules/6/a.ko"), "").unwrap();
        fs::write(root.join("sbin/depmod"), "").unwrap();
        merge_usr(&root).unwrap();
        for there in ["usr/lib/modules/6/a.ko", "usr/lib/x", "usr/sbin/depmod"] {
            assert!(root.join(there).exists(), "{there}");
        }
        assert!(!root.join("lib").exists() && !root.join("sbin").exists());
        fs::remove_dir_all(root).unwrap();
    }
}
