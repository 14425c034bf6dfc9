//! Kernel modules: their files, dependencies and load order, read from the modules themselves (`depends=` in their
//! `.modinfo`, include/linux/module.h). Neither kmod nor depmod's tables are needed: an unpacked kernel package has
//! none.

use crate::{
    error::{Doing, Error, Result},
    process,
};
use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// The modules of one kernel, by name.
pub(crate) struct Modules {
    files: HashMap<String, PathBuf>,
    builtin: HashSet<String>,
}

/// One module, ready to load.
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

impl Modules {
    /// Lists the modules of `/lib/modules/RELEASE`.
    pub(crate) fn of(folder: &Path) -> Result<Self> {
        let mut files = HashMap::new();
        let mut folders = vec![folder.join("kernel")];
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(&next).doing(format!("read {}", next.display()))?.flatten() {
                let path = entry.path();
                if entry.file_type().is_ok_and(|t| t.is_dir()) {
                    folders.push(path);
                } else if let Some(name) = name_of(&path) {
                    files.insert(name, path);
                }
            }
        }
        // Without this list, no module counts as built in, so all must exist as files.
        let list = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
        let builtin = list.lines().filter_map(|line| name_of(Path::new(line))).collect();
        Ok(Self { files, builtin })
    }

    /// These modules and all their dependencies, each after those that it needs.
    pub(crate) fn load(&self, names: &[&str]) -> Result<Vec<Module>> {
        let mut order = Vec::new();
        let mut seen = HashSet::new();
        for name in names {
            self.add(name, &mut seen, &mut order)?;
        }
        Ok(order)
    }

    /// Whether a module of this name exists, as a file or built in.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.builtin.contains(name) || self.files.contains_key(name)
    }

    fn add(&self, name: &str, seen: &mut HashSet<String>, order: &mut Vec<Module>) -> Result<()> {
        if self.builtin.contains(name) || !seen.insert(name.into()) {
            return Ok(());
        }
        let lacks = || Error::NoKernel(format!("it has no module {name}"));
        let bytes = read(self.files.get(name).ok_or_else(lacks)?)?;
        for needed in depends(&bytes) {
            self.add(&needed, seen, order)?;
        }
        order.push(Module { name: name.into(), bytes });
        Ok(())
    }
}

/// The module's name: the file's without `.ko` and compression suffix, with `_` for `-`, as in the kernel.
fn name_of(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    let (stem, rest) = name.split_once(".ko")?;
    matches!(rest, "" | ".xz" | ".gz" | ".zst").then(|| stem.replace('-', "_"))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    let (program, package) = match file.extension().and_then(|e| e.to_str()) {
        Some("xz") => ("xz", "xz-utils"),
        Some("gz") => ("gzip", "gzip"),
        Some("zst") => ("zstd", "zstd"),
        _ => return fs::read(file).doing(format!("read {}", file.display())),
    };
    if crate::path_of(program).is_none() {
        return Err(Error::Missing { program, package });
    }
    process::run(Command::new(program).arg("-dc").arg(file), Duration::from_secs(30), &|| false)
}

/// The names after `depends=`, a NUL-terminated string of the module's `.modinfo`.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|w| w == KEY) else { return Vec::new() };
    let list = module[at + KEY.len()..].split(|b| *b == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(list);
    names.split(',').filter(|n| !n.is_empty()).map(|n| n.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &[u8])]) -> PathBuf {
        use std::sync::atomic::{AtomicU32, Ordering};
        static N: AtomicU32 = AtomicU32::new(0);
        let unique = format!("latpath-modules-{}-{}", std::process::id(), N.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(unique);
        for (name, bytes) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        folder
    }

    #[test]
    fn modules_load_after_what_they_depend_on_and_builtin_ones_not_at_all() {
        let folder = folder(&[
            ("kernel/net/virtio_net.ko", b"x\0license=GPL\0depends=net_failover,virtio\0y"),
            ("kernel/net/net-failover.ko", b"x\0depends=failover\0"),
            ("kernel/net/failover.ko", b"x\0depends=\0"),
            ("modules.builtin", b"kernel/drivers/virtio/virtio.ko\n"),
        ]);
        let modules = Modules::of(&folder).unwrap();
        let order = modules.load(&["virtio_net", "failover"]).unwrap();
        let names: Vec<_> = order.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["failover", "net_failover", "virtio_net"]);
        assert!(modules.has("virtio") && !modules.has("vhost"));
        let error = modules.load(&["vhost"]).err().unwrap().to_string();
        assert!(error.contains("no module vhost"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn modules_that_depend_on_each_other_do_not_hang() {
        let folder = folder(&[("kernel/a.ko", b"\0depends=b\0"), ("kernel/b.ko", b"\0depends=a\0")]);
        assert_eq!(Modules::of(&folder).unwrap().load(&["a"]).unwrap().len(), 2);
        fs::remove_dir_all(folder).unwrap();
    }
}
