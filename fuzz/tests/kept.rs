//! Runs each target on all of its stored inputs, and on hundreds to thousands of variations of these, the same on each
//! run. An input that makes a target fail is written to target/tmp, and its path is reported.

use latpath_fuzz::TARGETS;
use latpath_testkit::Noise;
use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

/// Number of variations for each target; lower for slow ones: an emitter waits occasionally, and an import writes to
/// disk.
fn made(name: &str) -> usize {
    match name {
        "import" => 500,
        "kept" | "ping" | "profile" => 4_000,
        _ => 20_000,
    }
}

/// Maximum length of an input, bytes.
const LONGEST: usize = 1 << 16;

/// A stored input with one to four changes.
fn change(noise: &mut Noise, kept: &[Vec<u8>]) -> Vec<u8> {
    let mut below = |end: usize| noise.below(end as u32) as usize;
    let mut input = kept[below(kept.len())].clone();
    for _ in 0..=below(4) {
        let (at, other) = (below(input.len()), &kept[below(kept.len())]);
        match below(6) {
            0 if !input.is_empty() => input[at] ^= 1 << below(8),
            1 if !input.is_empty() => input[at] = [0, 1, 0x7f, 0x80, 0xff][below(5)],
            2 => input.truncate(at),
            3 => input.insert(at, below(256) as u8),
            4 => drop(input.drain(at..(at + below(16)).min(input.len()))),
            // A piece of another input.
            _ => {
                let from = below(other.len());
                let piece = other[from..(from + below(64)).min(other.len())].to_vec();
                input.splice(at..at, piece);
            }
        }
        input.truncate(LONGEST);
    }
    input
}

fn kept_for(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
    let mut files: Vec<_> = fs::read_dir(&folder).into_iter().flatten().flatten().map(|file| file.path()).collect();
    files.sort();
    let read = files.iter().map(|file| fs::read(file).expect("a kept input can be read"));
    read.chain(latpath_fuzz::seeds(name)).collect()
}

fn feed(name: &str) {
    let (_, run) = TARGETS.into_iter().find(|target| target.0 == name).expect("a target of that name");
    let kept = kept_for(name);
    assert!(!kept.is_empty(), "no inputs in seeds/{name}");
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let made = (0..made(name)).map(|_| change(&mut noise, &kept));
    for input in kept.iter().cloned().chain(made) {
        if catch_unwind(|| run(&input)).is_err() {
            let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}"));
            fs::write(&file, &input).expect("the input can be kept");
            panic!("{name} does not bear {}; when it is fixed, keep it in fuzz/seeds/{name}", file.display());
        }
    }
}

/// Defines a test for each target; a target without a test does not compile.
macro_rules! targets {
    ($($name:ident),*) => {
        $(#[test] fn $name() { feed(stringify!($name)) })*
        const _: () = assert!([$(stringify!($name)),*].len() == TARGETS.len());
    };
}

targets!(
    agent,
    capture,
    import,
    joiner,
    kept,
    kernel_parser,
    pcap_file,
    perfetto,
    ping,
    profile,
    received,
    run_directory,
    snapshot,
    sv_frame,
    trace_text
);
