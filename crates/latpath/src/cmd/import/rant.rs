//! `latpath import --format rant`: creates a log of round trips from rant's logs.

use super::{refuse, Args};
use crate::cmd::interrupt::stop_flag;
use crate::cmd::{quoted, Outcome, Usage};
use anyhow::{bail, Context, Result};
use latpath_export::check_target;
use latpath_linux::Directory;
use latpath_ping::log::{import_rant, Summary};
use latpath_stats::units::number_of;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Name of the format.
pub const NAME: &str = "rant";

const FORM: &str = "name rant's logs emit=FILE and reflect=FILE (the client's and the server's, of --log)";

pub fn run(args: &Args) -> Result<Outcome> {
    let (mut emit, mut reflect) = (None, None);
    for given in &args.sources {
        let (end, path) = match given.split_once('=') {
            Some(("emit", path)) => (&mut emit, path),
            Some(("reflect", path)) => (&mut reflect, path),
            _ => bail!(Usage(format!("{given:?}: {FORM}"))),
        };
        if path.is_empty() || end.replace(Path::new(path)).is_some() {
            bail!(Usage(format!("{given:?}: {FORM}, each once")));
        }
    }
    let Some(emit) = emit else {
        bail!(Usage(format!("{FORM}: round trips are in the emitter's")));
    };
    let unfit = [
        ("--stream", !args.streams.is_empty()),
        ("--offset", !args.offsets.is_empty()),
        ("--estimate-offset", !args.estimates.is_empty()),
        ("--trace", !args.traces.is_empty()),
        ("--clock-error", args.clock_error.is_some()),
        ("--segment", !args.joining.segments.is_empty()),
        ("--threshold", args.joining.threshold().is_some()),
        ("--json", args.json),
    ];
    refuse(&unfit, "of rant's logs a log of round trips is made, not a run")?;
    let stop = stop_flag()?;
    let made = match args.force {
        true => replace(emit, reflect, &args.output, &stop)?,
        false => import_rant(emit, reflect, &args.output, &stop)?,
    };
    if !args.quiet {
        made.notes.iter().for_each(|note| eprintln!("latpath: {note}"));
        let path = args.output.display();
        eprintln!(
            "imported {} into {path}; compare logs with: latpath compare {} --against LOG",
            number_of(made.rows, "transaction"),
            quoted(&args.output)
        );
    }
    Ok(Outcome::Done)
}

/// Creates the log beside the file that it replaces, and gives it that file's name once it is whole.
fn replace(emit: &Path, reflect: Option<&Path>, output: &Path, stop: &AtomicBool) -> Result<Summary> {
    check_target(output, true).map_err(anyhow::Error::msg)?;
    let (directory, name) = Directory::of_file(output).with_context(|| format!("{}", output.display()))?;
    // The end of the name states the format.
    let mut new = OsString::from(format!(".new-{}-", std::process::id()));
    new.push(&name);
    let made = import_rant(emit, reflect, &directory.join(&new), stop)?;
    if let Err(why) = directory.rename(&new, &name) {
        let _ = directory.remove(&new);
        return Err(why).with_context(|| format!("{}: cannot be replaced", output.display()));
    }
    Ok(Summary { files: vec![output.to_owned()], ..made })
}
