//! `latpath study vhost`: one load on a VM in several configurations, measured by every instrument for VMs, and
//! compared on one page.

use super::folder::{draw_differences, keep, kept, take_folder, write};
use super::{lab, say};
use crate::cmd::interrupt::stop_flag;
use crate::cmd::report::print_as;
use crate::cmd::window::usage;
use crate::cmd::{style, Outcome, Usage};
use anyhow::{bail, Result};
use clap::Args as ClapArgs;
use latpath_agent::Address;
use latpath_export::check_target;
use latpath_observe::study::{Configuration, Progress, Study as Measurement, StudyError};
use latpath_report::study::{study_of_vms_html, study_of_vms_text};
use std::ffi::OsString;
use std::path::PathBuf;
use std::rc::Rc;

/// Compare a VM without and with vhost, or in other configurations, under one load
///
/// The load runs three times without instruments, then once with each instrument, so that none disturbs another.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  latpath study vhost --lab
  latpath study vhost --measure standard=relay1 -o STUDY -- ssh relay1 iperf3 -c 10.0.0.1 -n 500M --json
  # stop relay1, switch vhost on, start it again
  latpath study vhost --measure vhost=relay1 -o STUDY -- ssh relay1 iperf3 -c 10.0.0.1 -n 500M --json
  latpath study vhost -o STUDY --html study.html")]
pub struct Args {
    /// Measure this VM as this configuration, e.g. vhost=relay1; can be repeated, for one measurement after the other
    #[arg(long = "measure", value_name = "CONFIGURATION=VM", value_parser = configured)]
    vms: Vec<(String, String)>,
    /// Also watch this guest, e.g. relay1=ssh:root@relay1 or relay1=vsock:CID:PORT: the VM's name, and the address of
    /// the agent in it; can be repeated
    #[arg(short, long = "machine", value_name = "NAME=ADDRESS", value_parser = crate::cmd::following::machine)]
    machines: Vec<(String, Address)>,
    /// Also create the VMs: one without and one with vhost, in the lab (docs/lab.md)
    #[arg(long, conflicts_with_all = ["vms", "machines", "command"])]
    lab: bool,
    /// Keep the measurements in this directory, and compare them with those in it
    #[arg(short, long, value_name = "STUDY")]
    output: Option<PathBuf>,
    /// Run the load N times without instrumentation first
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = crate::cmd::values::whole::<u32>(1..=100))]
    repeat: u32,
    /// Also write a self-contained HTML page with charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Replace existing files: that of --html
    #[arg(long, requires = "html")]
    force: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Show no progress on stderr
    #[arg(short, long)]
    quiet: bool,
    /// The load; with LATPATH_CONFIGURATION and LATPATH_VM in its environment
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// The lab's VMs are made on this machine, which is the lab's hypervisor.
    #[arg(long, hide = true)]
    in_lab: bool,
    /// This machine is emulated.
    #[arg(long, hide = true, requires = "in_lab")]
    emulated: bool,
}

fn configured(text: &str) -> Result<(String, String), String> {
    let (configuration, vm) = text.split_once('=').ok_or("write CONFIGURATION=VM, e.g. standard=relay1")?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match !configuration.is_empty() && configuration.len() <= 64 && configuration.chars().all(is_plain) {
        true if !configuration.starts_with('.') => Ok((configuration.into(), vm.into())),
        _ => Err("a configuration's name has letters, digits, '-', '_' and '.', and names a file".into()),
    }
}

pub fn run(args: Args) -> Result<Outcome> {
    if !args.vms.is_empty() && args.command.is_empty() {
        bail!(Usage("a load is missing: latpath study vhost --measure standard=VM -- COMMAND".into()));
    }
    if args.vms.is_empty() && !args.lab && !args.in_lab && (!args.command.is_empty() || args.output.is_none()) {
        bail!(Usage(
            "nothing to measure: say --measure CONFIGURATION=VM, or --lab; or -o STUDY to compare what it has".into()
        ));
    }
    if let Some(file) = &args.html {
        check_target(file, args.force).map_err(anyhow::Error::msg)?;
    }
    let stop = stop_flag()?;
    let folder = match &args.output {
        Some(path) if !args.vms.is_empty() || args.lab || args.in_lab => Some(take_folder(path)?),
        _ => None,
    };
    let mut all = match &args.output {
        Some(folder) => kept(folder)?,
        None => Vec::new(),
    };
    let mut take = |one: Configuration| -> Result<()> {
        if let Some(folder) = &folder {
            keep(folder, &one)?;
        }
        all.retain(|known| known.name != one.name);
        all.push(one);
        Ok(())
    };
    let measure = |name: &str, vm: &str, agent: Option<&Address>, command: &[OsString]| {
        let (configuration, emulated) = (name.to_owned(), args.emulated);
        let quiet = args.quiet;
        let progress = Rc::new(move |progress: Progress<'_>| show(&configuration, progress, quiet));
        let study = Measurement { name, vm, agent, command, repeat: args.repeat, emulated, stop: &stop, progress };
        study.measure().map_err(studied)
    };
    if args.lab {
        lab::from_outside(args.repeat, args.quiet, &stop)?.into_iter().try_for_each(&mut take)?;
    } else if args.in_lab {
        lab::inside(args.quiet, &stop, |name, vm, agent, command| take(measure(name, vm, Some(agent), command)?))?;
    }
    for (name, vm) in &args.vms {
        let agent = args.machines.iter().find(|(of, _)| of == vm).map(|(_, address)| address);
        take(measure(name, vm, agent, &args.command)?)?;
    }
    if all.is_empty() {
        bail!("{}: no configuration was kept there yet", args.output.unwrap_or_default().display());
    }
    if let Some(file) = &args.html {
        write(file, args.force, &study_of_vms_html(&all))?;
    }
    if let Some(folder) = folder.map_or_else(|| args.output.as_deref().map(take_folder).transpose(), |f| Ok(Some(f)))? {
        draw_differences(&folder, &all)?;
    }
    print_as(args.json, || &all, || study_of_vms_text(&all, style()))?;
    Ok(Outcome::Done)
}

/// Prints the progress of this configuration; if `quiet`, only missing and repeated measurements.
fn show(configuration: &str, progress: Progress<'_>, quiet: bool) {
    let what = match progress {
        Progress::Alone(..) | Progress::Observing(_) | Progress::Fetching(_) if quiet => return,
        Progress::Alone(turn, of) => format!("the load by itself, {turn} of {of}"),
        Progress::Observing(instrument) => instrument.into(),
        Progress::NotMeasured(instrument, why) => format!("{instrument} was not measured: {why}"),
        Progress::ProfileAgain(frequency, why) => {
            format!("profile: {why}; once more, with {frequency} samples a second")
        }
        Progress::Fetching(files) => return crate::cmd::profile::fetching(files),
    };
    say(&format!("{configuration}: {what}"));
}

fn studied(error: StudyError) -> anyhow::Error {
    match error {
        StudyError::Start(error) => usage(error),
        error => error.into(),
    }
}
