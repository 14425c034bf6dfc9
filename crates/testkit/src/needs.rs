//! Requirements of tests.

use latpath_lab::Application;
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// Description of a requirement that this machine does not meet; `None` if the test can run.
pub type Lack = Option<String>;

/// Requires root, for namespaces, packet sockets and eBPF.
pub fn need_root() -> Lack {
    (!nix::unistd::geteuid().is_root()).then(|| "needs root".into())
}

/// Requires a program in `PATH`.
pub fn need_tool(program: &str) -> Lack {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).any(|folder| folder.join(program).is_file());
    (!found).then(|| format!("needs {program}, which is not installed"))
}

/// Name of the first NIC with the driver igb; `None` if there is none.
pub fn igb_device() -> Option<String> {
    let names = std::fs::read_dir("/sys/class/net").ok()?.flatten();
    let mut names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    let is_it = |name: &String| {
        let driver = std::fs::read_link(format!("/sys/class/net/{name}/device/driver"));
        driver.is_ok_and(|driver| driver.ends_with("igb"))
    };
    names.into_iter().find(is_it)
}

/// Requires a NIC with the driver igb.
pub fn need_igb() -> Lack {
    igb_device().is_none().then(|| "needs a NIC of igb, which the lab emulates".into())
}

/// Requires the kernel's BTF: without it, none of latpath's eBPF programs can be loaded.
pub fn need_btf() -> Lack {
    let there = Path::new("/sys/kernel/btf/vmlinux").exists();
    (!there).then(|| "needs a kernel with BTF (/sys/kernel/btf/vmlinux)".into())
}

/// Path of the Python interpreter for which `scripts/deps install test` installed the tests' packages, or else of the
/// one in `PATH`.
pub fn python() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| crate::pages::path("target"), PathBuf::from);
    let own = target.join("python/bin/python3");
    if own.is_file() {
        own
    } else {
        "python3".into()
    }
}

/// Requires packages in [`python`], separated by commas as for `import`.
pub fn need_python(packages: &str) -> Lack {
    let found = Command::new(python()).args(["-c", &format!("import {packages}")]).output();
    let is_there = found.is_ok_and(|out| out.status.success());
    (!is_there).then(|| format!("needs python3 with {packages} (make deps)"))
}

/// Requires root and `ip`, which [`crate::bench`] needs.
pub fn need_lab() -> Lack {
    latpath_lab::missing(Application::Namespace).map(|e| e.to_string()).or_else(|| need_tool("ip"))
}

/// Requires QEMU and the other parts of a guest. Whether a missing kernel can be fetched is not checked.
pub fn need_guest() -> Lack {
    latpath_lab::missing(Application::Guest).map(|e| e.to_string())
}
