//! Checks that all eBPF programs also compile for arm64, which has different registers and kernel addresses.

use std::{fs, path::Path, process::Command};

#[test]
fn every_program_compiles_for_arm64() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = fs::read_dir(&crates).expect("the crates").flatten().map(|c| c.path().join("bpf"));
    let files = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten().map(|file| file.path());
    let sources: Vec<_> = files.filter(|f| f.to_string_lossy().ends_with(".bpf.c")).collect();
    assert!(sources.len() >= 5, "{sources:?}");
    for source in sources {
        let mut clang = Command::new(env!("BPF_CLANG"));
        clang.args("-target bpf -D__TARGET_ARCH_arm64 -g -O2 -mcpu=v3 -Wall -Werror -Wno-unused-function".split(' '));
        if cfg!(not(target_arch = "aarch64")) {
            clang.arg("-include").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/include/arm64.h"));
        }
        // The generated headers come from this build; the C library's are the same on both architectures.
        for folder in [env!("BPF_LIBBPF"), env!("OUT_DIR"), concat!("/usr/include/", env!("BPF_MULTIARCH"))] {
            clang.arg("-I").arg(folder);
        }
        for folder in ["include", "protocols"] {
            clang.arg("-I").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
        }
        let object = Path::new(env!("CARGO_TARGET_TMPDIR")).join("arm64.o");
        let done = clang.arg("-c").arg(&source).arg("-o").arg(object).output().expect("clang runs");
        assert!(done.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&done.stderr));
    }
}
