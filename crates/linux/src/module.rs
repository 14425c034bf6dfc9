//! Kernel modules that a request would load.

use crate::proc::kernel_release;
use std::fs;

/// Whether a request that needs this module would make the kernel load it: the module exists and is not loaded.
pub fn would_load_module(module: &str) -> bool {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let folder = format!("/lib/modules/{}", kernel_release());
    let is = |line: &str| line.split(':').next().is_some_and(|file| file.contains(&format!("/{module}.ko")));
    let there = read(&format!("{folder}/modules.dep")).lines().any(is);
    there && !read("/proc/modules").lines().any(|line| line.split(' ').next() == Some(module))
}
