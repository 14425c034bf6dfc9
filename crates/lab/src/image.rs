//! The guest's root: busybox, modules, the requested programs with their shared libraries, and an init that offers a
//! shell on a virtio-serial port.

use crate::{
    error::{Doing, Error, Result},
    initramfs::Initramfs,
    kernel::{Kernel, MODULES},
    process,
};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const INIT: &str = concat!(include_str!("init.sh"), include_str!("shell.sh"));
const FIRST: &str = include_str!("hypervisor.sh");
const SECOND: &str = concat!(include_str!("second.sh"), include_str!("shell.sh"));
/// Optional modules, loaded if the kernel has them.
const WELCOME: [&str; 2] = ["8021q", "virtio_rng"];

/// Builds the guest's archive. `programs`: file on the host, path in the guest. `modules`: in addition to those of
/// every guest.
pub(crate) fn build(kernel: &Kernel, modules: &[&str], programs: &[(PathBuf, String)]) -> Result<Vec<u8>> {
    let mut names = [&MODULES, modules].concat();
    names.extend(WELCOME.iter().filter(|m| kernel.modules.has(m)));
    let mut image = small_root(kernel, &names, INIT, &busybox()?)?;
    let mut libraries = BTreeSet::new();
    for (file, inside) in programs {
        image.file(inside, 0o755, &read(file)?);
        libraries.extend(libraries_of(file)?);
    }
    for library in libraries {
        image.file(&library, 0o755, &read(Path::new(&library))?);
    }
    Ok(image.finish())
}

/// Builds the hypervisor's archive. It only mounts the root for the second stage: this machine's root, or the userland
/// among the tools, in which this machine's root is `/host`.
pub(crate) fn build_hypervisor(kernel: &Kernel, busybox: &Path, has_own_userland: bool) -> Result<Vec<u8>> {
    let names = ["virtio_pci", "virtio_console", "virtio_rng", "9pnet_virtio", "9p", "overlay"];
    let mut image = small_root(kernel, &names, FIRST, busybox)?;
    if has_own_userland {
        image.file("/own-userland", 0o644, &[]);
    }
    image.file("/second", 0o755, SECOND.as_bytes());
    Ok(image.finish())
}

fn small_root(kernel: &Kernel, modules: &[&str], init: &str, busybox: &Path) -> Result<Initramfs> {
    let mut image = Initramfs::default();
    for folder in ["bin", "dev", "etc", "proc", "root", "run", "sys", "tmp"] {
        image.folder(folder);
    }
    image.character_device("/dev/console", 5, 1);
    image.file("/init", 0o755, init.as_bytes());
    image.file("/bin/busybox", 0o755, &read(busybox)?);
    image.link("/bin/sh", "busybox");
    for (n, module) in kernel.modules.load(modules)?.iter().enumerate() {
        // The numbers make the shell's `*` list the files in load order.
        image.file(&format!("/modules/{n:02}-{}.ko", module.name), 0o644, &module.bytes);
    }
    Ok(image)
}

/// A statically linked busybox.
pub(crate) fn busybox() -> Result<PathBuf> {
    let missing = Error::Missing { program: "busybox (static)", package: "busybox-static" };
    let found = crate::path_of("busybox").ok_or(missing)?;
    match libraries_of(&found)?.is_empty() {
        true => Ok(found),
        false => Err(Error::Missing { program: "busybox (static)", package: "busybox-static" }),
    }
}

/// The shared libraries that this machine's loader would load for a program, and the loader.
fn libraries_of(program: &Path) -> Result<Vec<String>> {
    match process::run(Command::new("ldd").arg(program), Duration::from_secs(20), &|| false) {
        Ok(printed) => read_ldd(&String::from_utf8_lossy(&printed), program),
        // For a static program, ldd fails with this message.
        Err(Error::Command { why, .. }) if why.contains("not a dynamic executable") => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

fn read_ldd(printed: &str, program: &Path) -> Result<Vec<String>> {
    let mut libraries = Vec::new();
    for line in printed.lines() {
        let path = match line.split_once("=>") {
            Some((name, found)) if found.contains("not found") => {
                let (command, why) = (format!("ldd {}", program.display()), format!("{} not found", name.trim()));
                return Err(Error::Command { command, why });
            }
            Some((_, found)) => found,
            None => line,
        };
        let path = path.split('(').next().unwrap_or_default().trim();
        if path.starts_with('/') {
            libraries.push(path.to_owned());
        }
    }
    Ok(libraries)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).doing(format!("read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_ldd() {
        let printed = "\tlinux-vdso.so.1 (0x1)\n\tlibm.so.6 => /lib/x/libm.so.6 (0x2)\n\t/lib64/ld.so (0x3)\n";
        assert_eq!(read_ldd(printed, Path::new("p")).unwrap(), ["/lib/x/libm.so.6", "/lib64/ld.so"]);
        assert_eq!(read_ldd("\tstatically linked\n", Path::new("p")).unwrap(), Vec::<String>::new());
        let error = read_ldd("\tlibq.so => not found\n", Path::new("p")).unwrap_err().to_string();
        assert_eq!(error, "ldd p: libq.so not found");
    }
}
