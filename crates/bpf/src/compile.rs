//! For build scripts: compiles eBPF programs with clang and writes the skeleton that embeds the object.

use latpath_model::point::{FrameAt, KindInfo, NamedBy, PointKind};
use latpath_protocols::ProtocolId;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs, process::Command};

/// Names of the clang executable in Debian, in order of preference. Some kernels refuse objects built by versions
/// before 16.
const CLANGS: [&str; 6] = ["clang-19", "clang-20", "clang-18", "clang-17", "clang-16", "clang"];

fn works(clang: &str) -> bool {
    Command::new(clang).arg("--version").output().is_ok_and(|o| o.status.success())
}

fn clang() -> String {
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").ok().or_else(|| CLANGS.iter().find(|c| works(c)).map(|c| c.to_string()));
    clang.expect("no clang found: install clang-19 (Debian: apt install clang-19), or set CLANG to its path")
}

/// Compiles a C file with the programs' headers for user space, and links it into the crate, for tests and fuzzing.
#[allow(dead_code)] // this crate's own build script has none
pub fn compile_for_user_space(source: &str) {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (include, protocols) = (shared.join("include"), shared.join("protocols"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for path in [Path::new(source), &include, &protocols] {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    write(&out.join("protocols.h"), &dispatch(&protocols));
    let name = Path::new(source).file_stem().expect("a file has a name").to_string_lossy();
    let (object, library) = (out.join(format!("{name}.o")), out.join(format!("lib{name}.a")));
    let mut compile = Command::new(clang());
    compile.args(["-O2", "-g", "-fPIC", "-Wall", "-Wno-unused-function", "-c", source, "-o"]).arg(&object);
    if let (Ok(target), Ok(host)) = (env::var("TARGET"), env::var("HOST")) {
        if target != host {
            compile.arg(format!("--target={target}"));
        }
    }
    compile.args([Path::new("bpf"), &include, &protocols, &out].map(|folder| format!("-I{}", folder.display())));
    for command in [&mut compile, Command::new("ar").arg("crs").arg(&library).arg(&object)] {
        assert!(command.status().is_ok_and(|status| status.success()), "{command:?} failed");
    }
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static={name}");
}

/// Compiles `bpf/NAME.bpf.c` into the skeleton `NAME.skel.rs` in `OUT_DIR`, and writes `constants.rs` beside it: the
/// constants of the headers in `bpf`.
pub fn compile(name: &str) {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (include, protocols) = (shared.join("include"), shared.join("protocols"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for folder in [Path::new("bpf"), &include, &protocols] {
        println!("cargo:rerun-if-changed={}", folder.display());
    }
    let clang = clang();
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let (bpf_arch, multiarch) = match arch.as_str() {
        "x86_64" => ("x86", "x86_64-linux-gnu"),
        "aarch64" => ("arm64", "aarch64-linux-gnu"),
        other => panic!("no eBPF build for {other}: x86_64 and aarch64 are known"),
    };
    write(&out.join("protocols.h"), &dispatch(&protocols));
    write(&out.join("point_kinds.h"), &point_kinds());
    // True for the crate bpf itself, which contains the shared headers.
    let folders = if Path::new("include").exists() { vec![Path::new("bpf"), &include] } else { vec![Path::new("bpf")] };
    write(&out.join("constants.rs"), &constants(&folders));
    // libbpf-sys builds libbpf and exports its header path.
    let libbpf = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys sets it");
    // For tests that call clang themselves.
    for (name, value) in [("CLANG", clang.as_str()), ("LIBBPF", &libbpf), ("MULTIARCH", multiarch)] {
        println!("cargo:rustc-env=BPF_{name}={value}");
    }
    let args = [
        format!("-I{libbpf}"),
        format!("-I/usr/include/{multiarch}"),
        // Debian's header path for another architecture.
        format!("-idirafter/usr/{multiarch}/include"),
        format!("-I{}", include.display()),
        format!("-I{}", protocols.display()),
        format!("-I{}", out.display()),
        format!("-D__TARGET_ARCH_{bpf_arch}"),
        "-Wall".into(),
        "-Wno-unused-function".into(),
        "-mcpu=v3".into(),
    ];
    let source = format!("bpf/{name}.bpf.c");
    libbpf_cargo::SkeletonBuilder::new()
        .source(&source)
        // Kept, so that `llvm-objdump -d` shows what the verifier sees.
        .obj(out.join(format!("{name}.bpf.o")))
        .clang(clang)
        .clang_args(args)
        .build_and_generate(out.join(format!("{name}.skel.rs")))
        .unwrap_or_else(|e| {
            let said = format!("{e:?}");
            eprintln!("{said}\n\n{}", summary(&source, &said));
            // Exits instead of panicking, because a backtrace would hide clang's messages.
            std::process::exit(1);
        });
}

/// The errors in clang's output, without its notes on macros; adds advice if a kernel type lacks a field.
fn summary(source: &str, said: &str) -> String {
    let errors: Vec<&str> = said.lines().filter(|line| line.contains(" error: ")).map(str::trim).collect();
    let mut text = format!("{source} did not compile:\n{}", errors.join("\n"));
    let lacks = ["no member named", "incomplete definition of type", "has incomplete type", "in forward declaration"];
    if errors.iter().any(|error| lacks.iter().any(|lack| error.contains(lack))) {
        text += "\nKernel types are cut down by hand, and there is no vmlinux.h behind them: add the field to \
                 crates/bpf/include/kernel.h, with the kernel's name and type; CO-RE finds where it lies";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_a_kernel_type_lacks_is_said_with_the_file_that_it_goes_into() {
        let said =
            "bpf/probe.bpf.c:9:3: error: no member named 'qdisc' in 'struct net_device'\nnote: expanded from macro";
        let text = summary("bpf/probe.bpf.c", said);
        assert!(text.contains("no member named 'qdisc'") && text.contains("crates/bpf/include/kernel.h"), "{text}");
        assert!(!text.contains("expanded from macro"), "{text}");
        assert!(!summary("bpf/probe.bpf.c", "x.c:1:1: error: expected ';'").contains("kernel.h"));
    }
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Generates the header that includes all protocols and passes a frame to those that its ethertype fits.
fn dispatch(protocols: &Path) -> String {
    let files = fs::read_dir(protocols).unwrap_or_else(|e| panic!("{}: {e}", protocols.display()));
    for file in files.flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let known = ProtocolId::ALL.iter().any(|p| name == format!("{}.h", p.module()));
        assert!(known, "crates/bpf/protocols/{name}: the table in crates/protocols/src/lib.rs has no such protocol");
    }
    let (mut numbers, mut includes, mut calls) = (String::new(), String::new(), String::new());
    for protocol in ProtocolId::ALL {
        let (module, number) = (protocol.module(), *protocol as u8);
        let upper = module.to_uppercase();
        let is = |e: &u16| format!("f->ethertype == {e:#06x}");
        let any = protocol.info().ethertypes.iter().map(is).collect::<Vec<_>>().join(" || ");
        let fits = if any.is_empty() { "1".into() } else { any };
        numbers += &format!("#define PROTOCOL_{upper} {number}\n");
        includes += &format!("#include \"{module}.h\"\n");
        calls += &format!(
            "\tif (selection.streams[PROTOCOL_{upper}].count && ({fits}))\n\t\tbad |= match_{module}(f, payload, out);\n"
        );
    }
    format!(
        "/* Made by crates/bpf/src/compile.rs. */\n#ifndef LATPATH_PROTOCOLS_H\n#define LATPATH_PROTOCOLS_H\n\n\
         #include \"kernel.h\"\n#include \"common.h\"\n#include \"frame.h\"\n#include \"streams.h\"\n\n{numbers}\n{includes}\n\
         /* Finds the streams of a frame whose payload begins at `payload`. Not 0 for a malformed frame. */\n\
         static __always_inline int match_frame(struct frame *f, __u32 payload, struct found *out)\n{{\n\tint bad = 0;\n\n\
         {calls}\treturn bad;\n}}\n\n#endif\n"
    )
}

/// Properties of point kinds for the programs: each property is a bit set of the kinds that have it, by kind number.
const SETS: [(&str, fn(&KindInfo) -> bool); 7] = [
    ("HEADER_AT_DATA", |kind| matches!(kind.frame, FrameAt::Data)),
    ("HAVE_LINK_HEADER", |kind| matches!(kind.frame, FrameAt::Data | FrameAt::Mac)),
    ("RECEIVED", |kind| matches!(kind.frame, FrameAt::Received)),
    ("PROTOCOL_IS_SET", |kind| kind.protocol_is_set),
    ("NOTE_SENDERS", |kind| kind.notes_senders),
    ("NAMED_BY_THREAD", |kind| matches!(kind.named_by, NamedBy::Thread)),
    ("NEED_NO_DEVICE", |kind| matches!(kind.named_by, NamedBy::DeviceIfAny)),
];

/// Generates the header with the numbers of the point kinds, and with the sets of [`SETS`].
fn point_kinds() -> String {
    let mut text =
        String::from("/* Made by crates/bpf/src/compile.rs of crates/model/src/point.rs. */\n#pragma once\n");
    for kind in PointKind::ALL {
        let name = kind.name().replace('-', "_").to_uppercase();
        text += &format!("#define POINT_{name} {}\n", kind.number());
    }
    assert!(PointKind::ALL.len() <= 32, "a set of kinds of points has 32 bits");
    for (set, has) in SETS {
        let bits =
            PointKind::ALL.iter().filter(|kind| has(kind.info())).fold(0u32, |set, kind| set | 1 << kind.number());
        text += &format!("#define POINTS_{set} {bits:#x}u\n");
    }
    text += "#define IS_POINT_OF(kind, set) (1u << (kind) & POINTS_##set)\n";
    text + &format!("#define POINT_KINDS {}\n", PointKind::ALL.len())
}

/// Generates Rust constants from `#define NAME 1` and `NAME = 1,` in headers.
fn constants(folders: &[&Path]) -> String {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let headers = folders.iter().flat_map(|f| fs::read_dir(f).into_iter().flatten().flatten());
    for header in headers.filter(|h| h.path().extension().is_some_and(|e| e == "h" || e == "c")) {
        let text = fs::read_to_string(header.path()).unwrap_or_else(|e| panic!("{}: {e}", header.path().display()));
        for line in text.lines() {
            let words: Vec<&str> =
                line.split(|c: char| c.is_whitespace() || c == ',').filter(|w| !w.is_empty()).collect();
            for three in words.windows(3) {
                let (name, value) = match three {
                    ["#define", name, value] | [name, "=", value] => (*name, *value),
                    _ => continue,
                };
                let is_name = name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
                let digits = value.strip_prefix("0x").unwrap_or(value);
                if !is_name
                    || usize::from_str_radix(digits, 16).is_err()
                    || !value.starts_with(|c: char| c.is_ascii_digit())
                {
                    continue;
                }
                let before = found.insert(name.into(), value.into());
                assert!(before.is_none_or(|b| b == value), "{name} has two values, one in {}", header.path().display());
            }
        }
    }
    let mut text = String::from("// Made by crates/bpf/src/compile.rs.\n");
    for (name, value) in &found {
        text += &format!("#[allow(dead_code)]\npub const {name}: usize = {value};\n");
    }
    let all: Vec<_> = found.keys().map(|name| format!("(\"{name}\", {name})")).collect();
    text + &format!("#[allow(dead_code)]\npub const ALL: &[(&str, usize)] = &[{}];\n", all.join(", "))
}
