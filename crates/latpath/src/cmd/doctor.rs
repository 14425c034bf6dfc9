//! `latpath doctor`: shows faults of this machine that can delay packets.

mod commands;

use super::report::print_as;
use super::{quoted, style, Outcome, Usage};
use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use latpath_caps::Caps;
use latpath_doctor::{profile_of, Diagnosis, DoctorDocument, Machine, RunCost};
use latpath_linux::monotonic;
use latpath_run::{MANIFEST, SPIKES};
use latpath_tune::Profile;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Maximum number of runs in the current directory whose causes are read although the user named none.
const MAX_RUNS: usize = 3;
/// Maximum size of the captures of such a run, bytes: explaining a megabyte takes tens of milliseconds.
const MAX_BYTES: u64 = 8 << 20;

/// Find faults of this machine that can delay packets: settings, and the CPUs of threads and interrupts. Shows the cost
/// of each fault in recordings, and the commands that fix it and undo the fix.
///
/// Changes nothing, and disturbs no device or isolated CPU. Any user may run it; it lists what only root can read.
#[derive(ClapArgs)]
#[command(
    after_help = "Examples:\n  latpath doctor\n  latpath doctor --run RUN              # the faults that cost most in this recording first\n  latpath doctor --strict               # for scripts: exit code 3 if something is found\n  latpath doctor --need exits           # exit code 3 unless latpath exits works here"
)]
pub struct Args {
    /// Recording to read: ranks faults by their cost in it; can be repeated [default: the newest recordings in the
    /// current directory, if they are small]
    #[arg(long, value_name = "RUN")]
    run: Vec<PathBuf>,
    /// Judge the machine by this profile of latpath tune, or by one in a file; "none" judges only its structure
    /// [default: sv-hypervisor on a machine with virtual machines or KVM, sv-guest in a virtual machine]
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
    /// Show the details of each finding, and the checks that do not apply
    #[arg(long)]
    details: bool,
    /// Exit with code 3 if there is a finding
    #[arg(long)]
    strict: bool,
    /// Also test which commands of latpath work on this machine, what they lack, and what would help (1 to 2 s)
    #[arg(long)]
    commands: bool,
    /// Exit with code 3 if this command does not work at all; can be repeated
    #[arg(long, value_name = "COMMAND")]
    need: Vec<String>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    commands::check(&args.need)?;
    let runs = match args.run.as_slice() {
        [] => of_directory(Path::new(".")),
        paths => named(paths)?,
    };
    let begin = monotonic();
    let machine = Machine::here();
    let profile = match args.profile.as_deref().or_else(|| profile_of(&machine)) {
        None | Some("none") => None,
        Some(name) => Some(Profile::find(name).map_err(|e| Usage(format!("--profile {e}")))?),
    };
    let mut diagnosis = Diagnosis::of(&machine, profile.as_ref(), &runs);
    diagnosis.took_ns = monotonic().saturating_sub(begin);
    let capabilities = (args.commands || !args.need.is_empty()).then(Caps::of_this_machine);
    let is_missing = capabilities.as_ref().is_some_and(|caps| commands::is_missing(caps, &args.need));
    let is_ill = args.strict && !diagnosis.findings.is_empty();
    let document = DoctorDocument { diagnosis, capabilities };
    let text = || {
        let more = document.capabilities.as_ref().map(commands::text).unwrap_or_default();
        latpath_report::doctor::text(&document.diagnosis, args.details, style()) + &more
    };
    print_as(args.json, || &document, text)?;
    Ok(if is_missing || is_ill { Outcome::LimitBroken } else { Outcome::Done })
}

/// The causes of the runs that the user names.
fn named(paths: &[PathBuf]) -> Result<Vec<RunCost>> {
    let mut runs = Vec::new();
    for path in paths {
        match RunCost::read(path).with_context(|| format!("--run {}", path.display()))? {
            Some(run) => runs.push(run),
            None => eprintln!(
                "latpath: {0}: it has no record of what the machine did, so it shows no cost; record again as root and \
                 without --no-flight",
                quoted(path)
            ),
        }
    }
    Ok(runs)
}

/// The causes of the newest runs in a directory, which may be a run itself. Runs that cannot be read, and large ones,
/// are left out.
fn of_directory(directory: &Path) -> Vec<RunCost> {
    let begun = |path: &Path| path.join(MANIFEST).metadata().and_then(|manifest| manifest.modified()).ok();
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let paths = entries.take(10_000).chain([directory.to_owned()]);
    let mut found: Vec<(SystemTime, PathBuf)> = paths.filter_map(|path| Some((begun(&path)?, path))).collect();
    found.sort();
    let mut runs = Vec::new();
    for (_, path) in found.iter().rev().take(MAX_RUNS) {
        if captured(path) > MAX_BYTES {
            let path = quoted(path);
            eprintln!(
                "latpath: {path} is not read, because its captures are large; to do so: latpath doctor --run {path}"
            );
            continue;
        }
        runs.extend(RunCost::read(path).ok().flatten());
    }
    runs
}

/// The size of a run's captures, bytes.
fn captured(run: &Path) -> u64 {
    let files = std::fs::read_dir(run.join(SPIKES)).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}
