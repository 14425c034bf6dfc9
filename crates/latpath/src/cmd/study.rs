//! `latpath study vhost`: one load on a VM in several configurations, measured by every command that shows what a VM costs, and
//! compared on one page.

mod folder;
mod guest;
mod lab;
mod setup;

use self::folder::{draw_differences, keep, kept, take_folder, write};
use self::guest::GuestQueues;
use super::interrupt::stop_flag;
use super::report::print_as;
use super::window::{Measured, Window};
use super::{exits, ladder, profile, queues, style, Outcome, Usage};
use anyhow::{bail, Context, Result};
use clap::{Args as ClapArgs, Subcommand};
use latpath_agent::{Address, CommandKey};
use latpath_counters::since;
use latpath_exits::Traffic;
use latpath_export::check_target;
use latpath_profile::FREQUENCY;
use latpath_report::study::{
    network_queues, study_of_vms_html, study_of_vms_text, Configuration, KeptProfile, Part, Work, VERSION,
};
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Measure a whole question at once, and compare the answers on one page.
#[derive(ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    study: Study,
}

#[derive(Subcommand)]
enum Study {
    Vhost(Vhost),
}

/// What does vhost change? One load on a VM without and with it (or any other configurations of it), measured and
/// compared
///
/// The load is run by itself three times, then once for each measurement, so that none disturbs another.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  latpath study vhost --lab
  latpath study vhost --measure standard=relay1 -o STUDY -- ssh relay1 iperf3 -c 10.0.0.1 -n 500M --json
  # stop relay1, switch vhost on, start it again
  latpath study vhost --measure vhost=relay1 -o STUDY -- ssh relay1 iperf3 -c 10.0.0.1 -n 500M --json
  latpath study vhost -o STUDY --html study.html")]
struct Vhost {
    /// Measure this VM as this configuration, as vhost=relay1; several are measured one after the other
    #[arg(long = "measure", value_name = "CONFIGURATION=VM", value_parser = configured)]
    vms: Vec<(String, String)>,
    /// Look into this machine too, a guest, as relay1=ssh:root@relay1 or relay1=vsock:CID:PORT: the VM's name, and where an agent runs in it; several
    /// are allowed
    #[arg(short, long = "machine", value_name = "NAME=ADDRESS", value_parser = super::following::machine)]
    machines: Vec<(String, Address)>,
    /// The key without which these agents run no command (latpath agent --allow-commands=KEYFILE)
    #[arg(long, value_name = "KEYFILE", requires = "machines")]
    agent_key: Option<PathBuf>,
    /// Make the VMs too: one without and one with vhost, in the lab (docs/lab.md)
    #[arg(long, conflicts_with_all = ["vms", "machines", "command"])]
    lab: bool,
    /// Keep what is measured in this directory, and compare with what it has already
    #[arg(short, long, value_name = "STUDY")]
    output: Option<PathBuf>,
    /// Run the load N times without instrumentation first
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = crate::cmd::values::whole::<u32>(1..=100))]
    repeat: u32,
    /// Also write an HTML page with charts to this file, which needs no other
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Replace files that exist: that of --html
    #[arg(long, requires = "html")]
    force: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
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
    let (configuration, vm) = text.split_once('=').ok_or("write CONFIGURATION=VM, as in standard=relay1")?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match !configuration.is_empty() && configuration.len() <= 64 && configuration.chars().all(is_plain) {
        true if !configuration.starts_with('.') => Ok((configuration.into(), vm.into())),
        _ => Err("a configuration's name has letters, digits, '-', '_' and '.', and names a file".into()),
    }
}

pub fn run(args: Args) -> Result<Outcome> {
    let Study::Vhost(args) = args.study;
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
    if args.lab {
        lab::from_outside(args.repeat, &stop)?.into_iter().try_for_each(&mut take)?;
    } else if args.in_lab {
        lab::inside(&stop, |name, vm, agent, command| {
            let emulated = args.emulated;
            let load = Load { name, vm, agent: Some(agent), key: None, command, stop: &stop, emulated };
            take(measure(&load, args.repeat)?)
        })?;
    }
    let key = args.agent_key.as_deref().map(CommandKey::read).transpose().map_err(anyhow::Error::msg)?;
    for (name, vm) in &args.vms {
        let agent = args.machines.iter().find(|(of, _)| of == vm).map(|(_, address)| address);
        let (key, command) = (key.as_ref(), &args.command[..]);
        take(measure(&Load { name, vm, agent, key, command, stop: &stop, emulated: false }, args.repeat)?)?;
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

fn say(line: &str) {
    eprintln!("latpath study: {line}");
}

/// Measures one configuration.
fn measure(load: &Load, repeat: u32) -> Result<Configuration> {
    let Load { name, vm, command, stop, .. } = *load;
    let mut one = Configuration {
        version: VERSION,
        name: name.into(),
        vm: vm.into(),
        kernel: latpath_bpf::release(),
        latpath: env!("CARGO_PKG_VERSION").into(),
        setup: Default::default(),
        command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        alone: Vec::new(),
        exits: None,
        ladder: None,
        queues: None,
        profile: None,
        notes: Vec::new(),
        emulated: load.emulated,
    };
    for turn in 1..=repeat {
        say(&format!("{name}: the load by itself, {turn} of {repeat}"));
        let ((), work) =
            load.under("the load by itself", |window| Ok(((), window.pass(stop, true, || {})?.outcome())))?;
        one.alone.push(work);
    }
    one.setup = setup::of(vm)?;
    one.exits = one_part(&mut one.notes, name, "exits", |notes| {
        let (document, work) = load.under("exits", |window| exits::measure(window, stop, Default::default(), true))?;
        notes.extend(document.notes());
        let figures = document.vms.into_iter().next().context("the VM made no exit")?;
        Ok(Part { work, figures })
    })?;
    one.ladder = one_part(&mut one.notes, name, "ladder", |notes| {
        let (figures, work) = load.under("ladder", |window| ladder::measure(window, stop, false, true))?;
        notes.extend(figures.notes.iter().cloned());
        Ok(Part { work, figures })
    })?;
    one.queues = one_part(&mut one.notes, name, "queues", |notes| {
        let guest = load.agent.map(|agent| GuestQueues::start(vm, agent, load.key.cloned())).transpose()?;
        let (host, work) = load.under("queues", |window| queues::measure(window, stop, false, true))?;
        let mut figures = Vec::new();
        for (of, document) in [("in the guest: ", guest.map(GuestQueues::end).transpose()?), ("", Some(host))] {
            let (devices, said) = document.map(network_queues).unwrap_or_default();
            figures.extend(devices);
            notes.extend(said.iter().map(|note| format!("{of}{note}")));
        }
        Ok(Part { work, figures })
    })?;
    let alone = one.clone();
    one.profile = one_part(&mut one.notes, name, "profile", |notes| {
        let (part, why) = profiled(load, &alone, FREQUENCY, notes)?;
        let Some(why) = why else { return Ok(part) };
        let again = FREQUENCY / LESS_OFTEN;
        say(&format!("{name}: profile: {why}; once more, with {again} samples a second"));
        notes.clear();
        let (part, still) = profiled(load, &alone, again, notes)?;
        let came = if still.is_some() { "and so it was the second time" } else { "the second time it was not" };
        notes.insert(0, format!("sampled {again} times a second, because of {FREQUENCY}: {why}; {came}"));
        Ok(part)
    })?;
    Ok(one)
}

/// Divisor of the sampling rate when a profile that broke off is repeated.
const LESS_OFTEN: u32 = 11;

/// Where the CPUs' time goes under the load; and what spoils that. `alone` has the load by itself.
fn profiled(
    load: &Load,
    alone: &Configuration,
    frequency: u32,
    notes: &mut Vec<String>,
) -> Result<(Part<KeptProfile>, Option<String>)> {
    let machines: Vec<_> = load.agent.map(|agent| (load.vm.to_owned(), agent.clone())).into_iter().collect();
    let (measured, work) = load.under("profile", |window| {
        let asked = profile::Asked {
            window,
            machines: &machines,
            frequency,
            cpus: None,
            syscalls: true,
            one_by_one: false,
            quiet: true,
        };
        profile::measure(&asked, load.stop)
    })?;
    let why = what_spoils(alone.is_starved(&work), measured.guest_fault(), load.emulated);
    notes.extend(measured.document.notes.iter().cloned());
    let figures = KeptProfile { kept: measured.profile.kept(), system_calls: measured.document.system_calls };
    Ok((Part { work, figures }, why))
}

/// Why a profile is not one of the load: the load was starved, or the guest's sampler ended early.
fn what_spoils(is_starved: bool, fault: Option<&str>, emulated: bool) -> Option<String> {
    let stalled = match emulated {
        true => "the guest stalled: in an emulated machine its sampler takes the CPU that the load needs",
        false => "the guest stalled, or sampling took the CPU that the load needs",
    };
    match (is_starved, fault) {
        (false, None) => None,
        (true, None) => Some(format!("the load ran at less than a tenth of its rate; {stalled}")),
        (true, Some(fault)) => Some(format!("the load ran at less than a tenth of its rate; {stalled} ({fault})")),
        (false, Some(fault)) => Some(format!("the guest's sampler ended early ({fault})")),
    }
}

/// One measurement, with what it says of its own figures. What it cannot do here is noted, and the others go on.
fn one_part<T>(
    notes: &mut Vec<String>,
    configuration: &str,
    what: &str,
    measure: impl FnOnce(&mut Vec<String>) -> Result<T>,
) -> Result<Option<T>> {
    say(&format!("{configuration}: {what}"));
    let mut said = Vec::new();
    let measured = measure(&mut said);
    notes.extend(said.into_iter().map(|note| format!("{what}: {note}")));
    match measured {
        Ok(measured) => Ok(Some(measured)),
        Err(error) if error.is::<Interrupted>() || error.is::<Usage>() => Err(error),
        Err(error) => {
            let why = format!("{what} was not measured: {error:#}");
            say(&format!("{configuration}: {why}"));
            notes.push(why);
            Ok(None)
        }
    }
}

/// The user has had enough.
#[derive(Debug, thiserror::Error)]
#[error("ended by Ctrl-C while {0} was measured; configurations that were complete are kept")]
struct Interrupted(String);

/// A load on a VM.
struct Load<'a> {
    name: &'a str,
    vm: &'a str,
    /// Where an agent runs in its guest.
    agent: Option<&'a Address>,
    key: Option<&'a CommandKey>,
    command: &'a [OsString],
    stop: &'a AtomicBool,
    /// This machine is emulated.
    emulated: bool,
}

impl Load<'_> {
    /// Runs it once while something is measured, and says what it did.
    fn under<T>(&self, what: &str, measured: impl FnOnce(&Window) -> Measured<T>) -> Result<(T, Work)> {
        let mut printed = tempfile::tempfile().context("a file for what the load prints")?;
        let variables = [("LATPATH_CONFIGURATION", self.name), ("LATPATH_VM", self.vm)];
        let variables = variables.map(|(name, value)| OsString::from(format!("{name}={value}")));
        let command = std::iter::once("env".into()).chain(variables).chain(self.command.iter().cloned());
        let mut window = Window {
            vms: vec![self.vm.into()],
            duration: None,
            command: command.collect(),
            output: Some(printed.try_clone().context("a file for what the load prints")?),
            inside: None,
            agent_key: None,
            at_border: None,
            machine: Default::default(),
        };
        let vms = window.vms()?;
        let borders = Rc::new(RefCell::new(Vec::new()));
        let (noted, watched) = (borders.clone(), vms.clone());
        window.at_border =
            Some(Box::new(move || noted.borrow_mut().push((Instant::now(), Traffic::counters(&watched)))));
        let result = measured(&window);
        if self.stop.load(Ordering::SeqCst) {
            return Err(Interrupted(format!("{what} of {}", self.name)).into());
        }
        let (result, outcome) = result?;
        outcome?;
        let borders = borders.take();
        let [(began, before), (ended, after)] = &borders[..] else { bail!("the load was not run") };
        let took_ns = super::ns(*ended - *began);
        let traffic = vms.first().and_then(|vm| Traffic::of(vm, &since(after, before))).unwrap_or_default();
        let mut text = String::new();
        printed.seek(SeekFrom::Start(0)).and_then(|_| (&mut printed).take(4 << 20).read_to_string(&mut text)).ok();
        Ok((result, Work { took_ns, traffic, reported_bits_per_second: Work::reported(&text) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_spoils_a_profile_is_named_with_its_cause() {
        assert_eq!(what_spoils(false, None, true), None);
        let why = what_spoils(true, Some("guest: the agent closed the stream"), true).unwrap();
        assert!(why.contains("in an emulated machine its sampler takes") && why.contains("closed the stream"), "{why}");
        assert!(what_spoils(true, None, false).unwrap().contains("less than a tenth"));
        assert!(what_spoils(false, Some("gone"), false).unwrap().contains("ended early (gone)"));
    }
}
