//! Part of build scripts: compiles eBPF programs with clang and writes their skeleton, which embeds the object.

use std::{env, path::PathBuf, process::Command};

/// clang as Debian packages it, newest first; clang before 16 made objects that some kernels refused.
const CLANGS: [&str; 6] = ["clang-19", "clang-20", "clang-18", "clang-17", "clang-16", "clang"];

fn works(clang: &str) -> bool {
    Command::new(clang).arg("--version").output().is_ok_and(|o| o.status.success())
}

/// Compiles `bpf/NAME.bpf.c` into the skeleton `NAME.skel.rs` in cargo's folder.
pub fn compile(name: &str) {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").ok().or_else(|| CLANGS.iter().find(|c| works(c)).map(|c| c.to_string()));
    let Some(clang) = clang else {
        panic!("no clang found: install clang-19 (Debian: apt install clang-19), or set CLANG to its path")
    };
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let (bpf_arch, multiarch) = match arch.as_str() {
        "x86_64" => ("x86", "x86_64-linux-gnu"),
        "aarch64" => ("arm64", "aarch64-linux-gnu"),
        other => panic!("no eBPF build for {other}: x86_64 and aarch64 are known"),
    };
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join(format!("{name}.skel.rs"));
    // libbpf-sys builds libbpf and says where its headers are.
    let libbpf = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys sets it");
    let args = [
        format!("-I{libbpf}"),
        format!("-I/usr/include/{multiarch}"),
        format!("-D__TARGET_ARCH_{bpf_arch}"),
        "-Wall".into(),
        "-Wno-unused-function".into(),
        "-mcpu=v3".into(),
    ];
    let source = format!("bpf/{name}.bpf.c");
    libbpf_cargo::SkeletonBuilder::new()
        .source(&source)
        .clang(clang)
        .clang_args(args)
        .build_and_generate(&out)
        .unwrap_or_else(|e| panic!("{source} did not compile: {e:?}"));
}
