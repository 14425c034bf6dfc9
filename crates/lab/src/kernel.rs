//! The guest's kernel: an installed one, or Debian's, which apt fetches into a cache, where it is unpacked. Nothing is
//! installed, and apt's own lists do not change.

use crate::{
    apt::{self, View, Work},
    arch::Arch,
    error::{Doing, Error, Result},
    modules::Modules,
    Progress, Stop,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Required modules: the guest's NIC, serial ports and packet sockets.
pub(crate) const MODULES: [&str; 4] = ["virtio_pci", "virtio_net", "virtio_console", "af_packet"];

/// A bootable kernel of a guest.
pub(crate) struct Kernel {
    /// The output of `uname -r`.
    pub(crate) release: String,
    pub(crate) image: PathBuf,
    pub(crate) modules: Modules,
}

/// Finds a kernel on this machine or in the cache, and otherwise fetches one.
pub(crate) fn find(progress: Progress, stop: Stop) -> Result<Kernel> {
    if let Some(kernel) = newest(Path::new("/boot"), Path::new("/lib/modules")) {
        return Ok(kernel);
    }
    let kept = apt::cache()?.join("kernel");
    if let Some(kernel) = kept_in(&kept) {
        return Ok(kernel);
    }
    fetch(&kept, progress, stop)?;
    kept_in(&kept).ok_or_else(|| Error::NoKernel(format!("the one fetched to {} lacks virtio", kept.display())))
}

/// The newest kernel in the cache. Each kernel has its own folder, laid out like its package.
fn kept_in(kept: &Path) -> Option<Kernel> {
    let folders = fs::read_dir(kept).ok()?.flatten().filter(|e| !e.file_name().to_string_lossy().starts_with('.'));
    let kernels = folders.filter_map(|e| {
        let root = e.path();
        let modules = [root.join("lib/modules"), root.join("usr/lib/modules")].into_iter().find(|m| m.is_dir())?;
        newest(&root.join("boot"), &modules)
    });
    kernels.max_by_key(|k| by_number(&k.release))
}

/// The running kernel, otherwise the newest, among those with an image and all modules that a guest needs.
pub(crate) fn newest(boot: &Path, modules: &Path) -> Option<Kernel> {
    let running = latpath_linux::proc::kernel_release();
    let names = fs::read_dir(boot).ok()?.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let mut releases: Vec<_> = names.filter_map(|n| n.strip_prefix("vmlinuz-").map(str::to_owned)).collect();
    releases.sort_by_key(|r| (*r == running, by_number(r)));
    releases.into_iter().rev().find_map(|release| {
        let found = Modules::of(&modules.join(&release)).ok()?;
        let image = boot.join(format!("vmlinuz-{release}"));
        MODULES.iter().all(|m| found.has(m)).then_some(Kernel { release, image, modules: found })
    })
}

/// The numbers in a release, as a sort key: `6.1.0-9` precedes `6.1.0-10`.
fn by_number(release: &str) -> Vec<u64> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

fn fetch(kept: &Path, progress: Progress, stop: Stop) -> Result<()> {
    if let Some((program, package)) = apt::lacks() {
        let why = format!(
            "none in /boot with its modules in /lib/modules, and no {program} ({package}) to fetch Debian's; \
             install a distribution kernel"
        );
        return Err(Error::NoKernel(why));
    }
    fs::create_dir_all(kept).doing(format!("make folder {}", kept.display()))?;
    let work = Work::new(kept)?;
    progress("fetching Debian's kernel for the guest (70 MB, once)");
    let package =
        View::own_or_fresh(&work, progress, stop, |view| view.download_kernel(meta_package(), Arch::OWN, &work, stop));
    let package = package.map_err(|error| match error {
        Error::Interrupted => error,
        error => Error::NoKernel(format!(
            "none in /boot with its modules in /lib/modules, none in {}, and Debian's cannot be fetched \
             ({error}). Either connect this machine to a Debian mirror, or install a kernel (apt-get install {}), \
             or do without a guest: latpath demo --no-guest",
            kept.display(),
            meta_package()
        )),
    })?;
    progress("unpacking the guest's kernel");
    let name = package.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let unpacked = work.folder().join("root");
    apt::unpack(&package, &unpacked, &apt::KEPT_OF_A_KERNEL, stop)?;
    work.keep(&unpacked, &kept.join(name.trim_end_matches(".deb")))
}

/// Debian metapackage that depends on the newest kernel.
fn meta_package() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "linux-image-arm64"
    } else {
        "linux-image-amd64"
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
