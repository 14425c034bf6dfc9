//! `latpath profile`: shows host and guest CPU time in one profile.

use super::report::print_as;
use super::window::{show, Window};
use super::{style, Outcome};
use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use latpath_agent::Address;
use latpath_export::{check_target, write_file};
use latpath_linux::Cpus;
use latpath_observe::profile::{of_one_vm, Diff, Recorded};
use latpath_observe::{ProfileOptions, Profiler};
use latpath_perfetto::{write_profile, SampledMachine};
use latpath_profile::{Profile, FETCH_WITHIN, FREQUENCY};
use latpath_report::cpu_profile::{diff_text, firefox, flame_graph, flame_graph_of_difference, text, Machine};
use latpath_stats::units::number_of;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Show where the CPUs spend their time: host and guests, by process and function, in one profile.
#[derive(ClapArgs)]
pub struct Args {
    #[command(flatten)]
    window: Window,
    /// Also watch this guest, e.g. guest0=ssh:root@guest, guest0=unix:PATH or guest0=vsock:CID:PORT: the VM's name
    /// (latpath vms), and the address of the agent in it; can be repeated
    #[arg(short, long = "machine", value_name = "NAME=ADDRESS", value_parser = super::following::machine)]
    machines: Vec<(String, Address)>,
    /// Samples per second on each CPU
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = FREQUENCY, value_parser = crate::cmd::values::whole::<u32>(1..=10_000))]
    frequency: u32,
    /// Only these CPUs, e.g. 0-3,8 [default: all that are online]
    #[arg(long, value_name = "LIST")]
    cpus: Option<Cpus>,
    /// Count the system calls of the VMs' processes, and their time (sleep included)
    #[arg(long)]
    syscalls: bool,
    /// Show the contexts in which this function runs, e.g. tun_get_user; can be repeated
    #[arg(long = "function", value_name = "NAME")]
    functions: Vec<String>,
    /// Show N rows of each table: processes, functions and system calls
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
    /// Write the flame graph to this file; with --diff, the differential one
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the call chains to this file in the folded format of flame graphs: one per line, with its time in ns
    #[arg(long, value_name = "FILE")]
    folded: Option<PathBuf>,
    /// Write each sample to this file, for profiler.firefox.com
    #[arg(long, value_name = "FILE", conflicts_with = "diff")]
    firefox: Option<PathBuf>,
    /// Write each sample to this file, for the Perfetto UI
    #[arg(long, value_name = "FILE", conflicts_with = "diff")]
    perfetto: Option<PathBuf>,
    /// Keep the profile in this file, for --diff
    #[arg(short, long, value_name = "FILE", conflicts_with = "diff")]
    output: Option<PathBuf>,
    /// Replace existing files
    #[arg(long)]
    force: bool,
    /// Compare two kept profiles, the earlier one first
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"],
          conflicts_with_all = ["vms", "duration", "command", "machines", "cpus", "syscalls", "frequency", "folded", "functions"])]
    diff: Vec<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    for path in [&args.svg, &args.folded, &args.firefox, &args.perfetto, &args.output].into_iter().flatten() {
        check_target(path, args.force).map_err(anyhow::Error::msg)?;
    }
    match &args.diff[..] {
        [before, after] => compare(&args, before, after),
        _ => record(&args),
    }
}

fn compare(args: &Args, before: &Path, after: &Path) -> Result<Outcome> {
    let (before, after, names) = of_one_vm(Profile::read(before)?, Profile::read(after)?);
    if let Some((a, b)) = names {
        eprintln!("latpath: the VMs {a} and {b} are compared as one: VM");
    }
    let diff = Diff::new(&before, &after);
    if let Some(path) = &args.svg {
        let svg = flame_graph_of_difference(&before, &after).context("drawing the flame graph")?;
        write(path, args.force, |out| out.write_all(svg.as_bytes()))?;
    }
    print_as(args.json, || &diff, || diff_text(&diff, args.rows, style()))?;
    Ok(Outcome::Done)
}

fn record(args: &Args) -> Result<Outcome> {
    let stop = args.window.prepare()?;
    let options = ProfileOptions {
        frequency: args.frequency,
        cpus: args.cpus.clone(),
        syscalls: args.syscalls,
        one_by_one: args.firefox.is_some() || args.perfetto.is_some(),
        machines: args.machines.clone(),
        fetching: Box::new(fetching),
        ..ProfileOptions::default()
    };
    let measured = args.window.observe::<Profiler>(&stop, options, args.json)?;
    files(args, &measured.0.figures.recorded)?;
    show(measured, args.json, |seen| text(seen, args.rows, &args.functions, style()))
}

/// Prints that the symbols of this many files are being fetched, which may take a while.
pub(super) fn fetching(files: usize) {
    let (most, files) = (FETCH_WITHIN.as_secs(), number_of(files as u64, "file"));
    eprintln!("latpath: fetching symbols of {files} (DEBUGINFOD_URLS), {most} s at most; Ctrl-C goes on without");
}

fn files(args: &Args, recorded: &Recorded) -> Result<()> {
    let Recorded { profile, samples, guests } = recorded;
    if let Some(path) = &args.output {
        write(path, args.force, |out| profile.write(out))?;
    }
    if let Some(path) = &args.folded {
        write(path, args.force, |out| profile.folded().try_for_each(|line| writeln!(out, "{line}")))?;
    }
    if let Some(path) = &args.svg {
        match profile.stacks.is_empty() {
            true => eprintln!("latpath: no CPU had anything to do: there is no flame graph"),
            false => {
                let svg = flame_graph(profile).context("drawing the flame graph")?;
                write(path, args.force, |out| out.write_all(svg.as_bytes()))?;
            }
        }
    }
    if let Some(path) = &args.firefox {
        let mut machines = vec![Machine { guest: None, samples, offset_ns: 0 }];
        let named = profile.header.guests.iter().zip(guests);
        machines.extend(named.map(|(header, guest)| Machine {
            guest: Some(header.name.clone()),
            samples: &guest.samples,
            offset_ns: guest.offset_ns,
        }));
        write(path, args.force, |out| firefox(&profile.header, &machines, out))?;
    }
    if let Some(path) = &args.perfetto {
        let mut machines = vec![SampledMachine { samples, offset_ns: 0, prefix: String::new() }];
        machines.extend(profile.header.guests.iter().zip(guests).map(|(header, guest)| SampledMachine {
            samples: &guest.samples,
            offset_ns: guest.offset_ns,
            prefix: format!("{}:", header.name),
        }));
        write(path, args.force, |out| write_profile(args.frequency, &machines, out))?;
    }
    if let Some(path) = args.firefox.as_ref().or(args.perfetto.as_ref()) {
        if samples.raw_left_out > 0 {
            let left_out = number_of(samples.raw_left_out, "sample");
            eprintln!("latpath: {}: the last {left_out} of the window left out", path.display());
        }
    }
    Ok(())
}

/// Writes a file that appears only when complete; an error names the file.
fn write(path: &Path, force: bool, content: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    write_file(path, force, content).with_context(|| format!("{}", path.display()))
}
