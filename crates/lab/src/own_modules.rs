//! The lab's own kernel modules (crates/lab/module), built for a kernel of the matrix by this machine's compiler with
//! Debian's headers, which are unpacked in the cache. Only the hypervisor loads them, never this machine.

use crate::{
    apt::{self, View, Work},
    error::{Doing, Error, Result},
    layers::{self, Layers},
    process, LabKernel, Progress, Stop,
};
use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const SOURCES: [(&str, &str); 6] = [
    ("Kbuild", include_str!("../module/Kbuild")),
    ("kernels.h", include_str!("../module/kernels.h")),
    ("nics.c", include_str!("../module/nics.c")),
    ("phc.c", include_str!("../module/phc.c")),
    ("phc.h", include_str!("../module/phc.h")),
    ("slow_idle.c", include_str!("../module/slow_idle.c")),
];

/// One of the lab's own kernel modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnModule {
    /// Two NICs with a cable between them and known stamps.
    StampingNics,
    /// Idle states, one of them with a long exit latency.
    SlowIdle,
}

impl OwnModule {
    /// All modules.
    pub const ALL: [Self; 2] = [Self::StampingNics, Self::SlowIdle];

    /// The module's name in the kernel.
    pub fn name(self) -> &'static str {
        match self {
            Self::StampingNics => "stamping_nics",
            Self::SlowIdle => "slow_idle",
        }
    }

    fn file(self) -> String {
        format!("{}.ko", self.name())
    }
}

impl LabKernel {
    /// The file of a module for this kernel, for `insmod` in its hypervisor. Fetches and builds what the cache lacks.
    ///
    /// # Errors
    /// If the headers cannot be fetched, or the module cannot be built.
    pub fn own_module(self, module: OwnModule, progress: Progress, stop: Stop) -> Result<PathBuf> {
        let cache = layers::cache()?;
        let release = Layers::of(self, progress, stop)?.kernel()?.release;
        let mut hasher = DefaultHasher::new();
        SOURCES.hash(&mut hasher);
        let kept = cache.join(format!("own-modules-{release}-{:016x}", hasher.finish()));
        if !kept.is_dir() {
            let headers = Headers::of(self, &release, &cache, progress, stop)?;
            progress(&format!("building the lab's modules for Linux {release}"));
            let work = Work::new(&cache)?;
            build(&headers, work.folder(), stop)?;
            work.keep(work.folder(), &kept)?;
        }
        Ok(kept.join(module.file()))
    }
}

/// The headers that modules of a kernel are built with.
struct Headers {
    /// A folder laid out as a root.
    root: PathBuf,
    release: String,
}

impl Headers {
    fn of(kernel: LabKernel, release: &str, cache: &Path, progress: Progress, stop: Stop) -> Result<Self> {
        let headers = Self { root: cache.join(format!("headers-{release}")), release: release.into() };
        if !headers.root.is_dir() {
            progress(&format!("fetching the headers of Linux {release} (15 MB, once)"));
            // The mirror only has headers of its newest kernel; the cached kernel may be older.
            let what = format!("{}; or, for the mirror's newest kernel, remove {}", headers.package(), kernel.name);
            layers::fetch(cache, |work| headers.fetch(kernel, work, stop), &what)?;
        }
        Ok(headers)
    }

    fn package(&self) -> String {
        format!("linux-headers-{}", self.release)
    }

    fn fetch(&self, kernel: LabKernel, work: &Work, stop: Stop) -> Result<()> {
        let view = View::suites(work, &[kernel.suite], kernel.arch, stop)?;
        let package = self.package();
        // The dependencies on the compiler and the kernel are omitted.
        let mut all = view.depends(&package, work, stop)?;
        all.retain(|p| p.starts_with("linux-headers-") || p.starts_with("linux-kbuild-"));
        all.push(package);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let root = apt::unpack_all(&view.download_all(&all, work, stop)?, work, stop)?;
        // The makefile includes others by their installed paths, which are replaced by those in the cache.
        let makefile = root.join("usr/src").join(self.package()).join("Makefile");
        let text = fs::read_to_string(&makefile).doing(format!("read {}", makefile.display()))?;
        let moved = text.replace("/usr/src/", &format!("{}/usr/src/", self.root.display()));
        fs::write(&makefile, moved).doing(format!("write {}", makefile.display()))?;
        work.keep(&root, &self.root)
    }
}

fn build(headers: &Headers, folder: &Path, stop: Stop) -> Result<()> {
    for (name, text) in SOURCES {
        fs::write(folder.join(name), text).doing(format!("write {name}"))?;
    }
    // The compiler that built the kernel is preferred.
    let compilers = ["gcc-12", "gcc"].into_iter().find(|c| crate::path_of(c).is_some());
    let compiler = compilers.ok_or(Error::Missing { program: "gcc", package: "gcc" })?;
    crate::path_of("make").ok_or(Error::Missing { program: "make", package: "make" })?;
    let mut command = Command::new("make");
    command.arg("-C").arg(headers.root.join("usr/src").join(headers.package()));
    command.arg(format!("M={}", folder.display())).arg(format!("CC={compiler}"));
    // BTF is disabled, because it would need pahole.
    command.args(["CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"]);
    process::run(&mut command, Duration::from_secs(300), stop)?;
    match OwnModule::ALL.into_iter().find(|module| !folder.join(module.file()).is_file()) {
        None => Ok(()),
        Some(lacking) => {
            Err(Error::Command { command: "make modules".into(), why: format!("made no {}", lacking.file()) })
        }
    }
}
