//! Every script in scripts/benches completes and prints figures. With SMOKE=1 each does little work, and its limits are
//! not judged, since other work disturbs the measurements.

use latpath_testkit::{need_root, need_tool, program, trial, Failed, Lack};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

/// Time limit of a script on a busy machine, s.
const LIMIT: &str = "180";
const TRIES: usize = 3;

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/benches");
    let mut scripts: Vec<PathBuf> = fs::read_dir(folder).expect("the scripts").flatten().map(|e| e.path()).collect();
    scripts.sort();
    let trials = scripts.into_iter().map(|script| {
        let name = script.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let test = format!("bench_{name}_prints_figures");
        let (needs, alone) = (needs(&script), needs_the_machine(&script));
        let trial = trial(&test.clone(), &needs, move || in_some_try(&test, &script));
        if alone {
            trial
        } else {
            trial.side_by_side()
        }
    });
    latpath_testkit::main(trials.collect())
}

/// The requirements that a script states in a line such as `needs root jq`; every script also needs `ip`.
fn needs(script: &Path) -> Vec<Lack> {
    let text = fs::read_to_string(script).unwrap_or_default();
    let words = text.lines().filter_map(|line| line.strip_prefix("needs ")).flat_map(str::split_whitespace);
    let named = words.map(|word| match word {
        "root" => need_root(),
        file if file.starts_with('/') => (!Path::new(file).is_file()).then(|| format!("needs {file}")),
        tool => need_tool(tool),
    });
    named.chain([need_tool("ip")]).collect()
}

/// Whether a script changes a kernel setting or boots a machine.
fn needs_the_machine(script: &Path) -> bool {
    let text = fs::read_to_string(script).unwrap_or_default();
    ["sysctl -qw", "examples/hypervisor"].iter().any(|words| text.contains(words))
}

/// Runs a script up to `TRIES` times: on a busy machine, it may not collect enough data to print figures.
fn in_some_try(test: &str, script: &Path) -> Result<(), Failed> {
    for _ in 1..TRIES {
        match runs(script) {
            Ok(()) => return Ok(()),
            Err(why) => {
                latpath_testkit::retried(test, why.message().and_then(|m| m.lines().last()).unwrap_or_default())
            }
        }
    }
    runs(script)
}

fn runs(script: &Path) -> Result<(), Failed> {
    let target = program().ancestors().nth(2).map(Path::to_owned).unwrap_or_default();
    let mut command = Command::new("timeout");
    command.args(["-k", "10", LIMIT]).arg(script).env("SMOKE", "1").env("CARGO_TARGET_DIR", target);
    let ended = command.output()?;
    let (printed, said) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    let rows = printed.lines().filter_map(|line| line.strip_prefix("bar: "));
    let figures = rows.filter(|row| row.split('|').nth(1).is_some_and(|figure| !figure.trim().is_empty())).count();
    match (ended.status.success(), figures) {
        (true, 1..) => Ok(()),
        _ => Err(format!("{}, {figures} figures\n{printed}\n{said}", ended.status).into()),
    }
}
