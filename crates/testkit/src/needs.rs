//! What a machine must offer for a test to run.

use latpath_lab::Application;
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// What a test lacks here; `None` when it can run.
pub type Lack = Option<String>;

/// Root, for namespaces, packet sockets and eBPF.
pub fn need_root() -> Lack {
    (!nix::unistd::geteuid().is_root()).then(|| "needs root".into())
}

/// A program in `PATH`.
pub fn need_tool(program: &str) -> Lack {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).any(|folder| folder.join(program).is_file());
    (!found).then(|| format!("needs {program}, which is not installed"))
}

/// The kernel's own types, without which no eBPF program of latpath loads.
pub fn need_btf() -> Lack {
    let there = Path::new("/sys/kernel/btf/vmlinux").exists();
    (!there).then(|| "needs a kernel with BTF (/sys/kernel/btf/vmlinux)".into())
}

/// The Python that `scripts/deps install test` gave the tests' packages, or else the one in `PATH`.
pub fn python() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| crate::pages::path("target"), PathBuf::from);
    let own = target.join("python/bin/python3");
    if own.is_file() {
        own
    } else {
        "python3".into()
    }
}

/// Packages that [`python`] finds, as `import` takes them.
pub fn need_python(packages: &str) -> Lack {
    let found = Command::new(python()).args(["-c", &format!("import {packages}")]).output();
    let is_there = found.is_ok_and(|out| out.status.success());
    (!is_there).then(|| format!("needs python3 with {packages} (make deps)"))
}

/// Root and `ip`: [`crate::bench`] works.
pub fn need_lab() -> Lack {
    latpath_lab::missing(Application::Namespace).map(|e| e.to_string()).or_else(|| need_tool("ip"))
}

/// QEMU and what else a guest is made of. A kernel that must be fetched first shows only when it is.
pub fn need_guest() -> Lack {
    latpath_lab::missing(Application::Guest).map(|e| e.to_string())
}
