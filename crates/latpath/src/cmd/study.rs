//! `latpath study vhost`: one load on a VM in several configurations, measured by every command that shows what a VM costs, and
//! compared on one page.

mod lab;
mod setup;

use super::interrupt::stop_flag;
use super::report::print_as;
use super::window::{Measured, Window};
use super::{exits, ladder, profile, queues, style, Outcome, Usage};
use anyhow::{anyhow, bail, Context, Result};
use clap::{Args as ClapArgs, Subcommand};
use latpath_agent::{Address, Machine, Timeouts};
use latpath_counters::since;
use latpath_exits::Traffic;
use latpath_linux::{make_private, read_text, why_shared};
use latpath_model::text::printable;
use latpath_profile::FREQUENCY;
use latpath_report::cpu_profile::{flame_graph, flame_graph_of_difference};
use latpath_report::export::{check_target, write_file};
use latpath_report::queues::Document as SeenQueues;
use latpath_report::study::{
    figures_add_up, network_queues, study_of_vms_html, study_of_vms_text, Configuration, KeptProfile, Part, Work,
    MOST_OF_GUEST, VERSION,
};
use std::cell::RefCell;
use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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
  latpath study vhost --vm standard=relay1 -o STUDY -- ssh relay1 iperf3 -c 10.0.0.1 -n 500M --json
  # stop relay1, switch vhost on, start it again
  latpath study vhost --vm vhost=relay1 -o STUDY -- ssh relay1 iperf3 -c 10.0.0.1 -n 500M --json
  latpath study vhost -o STUDY --html study.html")]
struct Vhost {
    /// Measure this VM as this configuration; several are measured one after the other
    #[arg(long = "vm", value_name = "CONFIGURATION=VM", value_parser = configured)]
    vms: Vec<(String, String)>,
    /// Look into the guest of this configuration too, as vhost=ssh:root@relay1 or vhost=vsock:CID:PORT; an agent runs
    /// there
    #[arg(long = "machine", value_name = "CONFIGURATION=ADDRESS", value_parser = super::following::machine)]
    machines: Vec<(String, Address)>,
    /// Make the VMs too: one without and one with vhost, in the lab (docs/lab.md)
    #[arg(long, conflicts_with_all = ["vms", "machines", "command"])]
    lab: bool,
    /// Keep what is measured in this directory, and compare with what it has already
    #[arg(short, long, value_name = "STUDY")]
    output: Option<PathBuf>,
    /// Run the load so often with nothing attached
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Write the page as HTML too: one file that needs nothing else
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Replace FILE of --html if it exists
    #[arg(long, requires = "html")]
    force: bool,
    /// Print all figures as JSON
    #[arg(long)]
    json: bool,
    /// The load; with LATPATH_CONFIGURATION and LATPATH_VM in its environment
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// The lab's VMs are made on this machine, which is the lab's hypervisor.
    #[arg(long, hide = true)]
    in_lab: bool,
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
        bail!(Usage("a load is missing: latpath study vhost --vm standard=VM -- COMMAND".into()));
    }
    if args.vms.is_empty() && !args.lab && !args.in_lab && (!args.command.is_empty() || args.output.is_none()) {
        bail!(Usage(
            "nothing to measure: say --vm CONFIGURATION=VM, or --lab; or -o STUDY to compare what it has".into()
        ));
    }
    if let Some(file) = &args.html {
        check_target(file, args.force).map_err(anyhow::Error::msg)?;
    }
    let stop = stop_flag()?;
    if let Some(folder) = args.output.as_ref().filter(|_| !args.vms.is_empty() || args.lab || args.in_lab) {
        take_folder(folder)?;
    }
    let mut all = match &args.output {
        Some(folder) => kept(folder)?,
        None => Vec::new(),
    };
    let mut take = |one: Configuration| -> Result<()> {
        if let Some(folder) = &args.output {
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
            let load = Load { name, vm, agent: Some(agent), command, stop: &stop };
            take(measure(&load, args.repeat)?)
        })?;
    }
    for (name, vm) in &args.vms {
        let agent = args.machines.iter().find(|(of, _)| of == name).map(|(_, address)| address);
        take(measure(&Load { name, vm, agent, command: &args.command, stop: &stop }, args.repeat)?)?;
    }
    if all.is_empty() {
        bail!("{}: no configuration was kept there yet", args.output.unwrap_or_default().display());
    }
    if let Some(file) = &args.html {
        write(file, args.force, &study_of_vms_html(&all))?;
    }
    if let Some(folder) = &args.output {
        draw_differences(folder, &all)?;
    }
    print_as(args.json, || &all, || study_of_vms_text(&all, style()))?;
    Ok(Outcome::Done)
}

fn say(line: &str) {
    eprintln!("latpath study: {line}");
}

/// The longest file of a configuration that is read.
const MOST_BYTES: u64 = 64 << 20;

/// What an earlier study has left, in the order in which it was measured.
fn kept(folder: &Path) -> Result<Vec<Configuration>> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut files: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
        .collect();
    files.sort();
    let read = |(_, path): (_, PathBuf)| {
        let text = read_text(&path, MOST_BYTES).with_context(|| format!("{}", path.display()))?;
        Configuration::read(&text).map_err(|why| anyhow!("{} is no configuration of a study: {why}", path.display()))
    };
    files.into_iter().map(read).collect()
}

/// Makes the directory, or takes one that is there and in which nobody else may write.
fn take_folder(folder: &Path) -> Result<()> {
    let why = match make_private(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => why_shared(folder),
        made => made.map(|()| None),
    };
    match why.with_context(|| format!("{}", folder.display()))? {
        Some(why) => {
            bail!("{}: {why}, who could put links into it: name another directory with -o", folder.display())
        }
        None => Ok(()),
    }
}

/// Keeps a configuration: its figures, and its profile for other tools.
fn keep(folder: &Path, one: &Configuration) -> Result<()> {
    let file = |extension: &str| folder.join(format!("{}.{extension}", one.name));
    if let Some(part) = &one.profile {
        write(&file("profile"), true, &part.figures.kept)?;
    }
    if let Some(profile) = one.profile().filter(|profile| !profile.stacks.is_empty()) {
        write(&file("svg"), true, &flame_graph(&profile).context("drawing the flame graph")?)?;
    }
    write(&file("json"), true, &(serde_json::to_string(one)? + "\n"))
}

/// Differential flame graphs of the first configuration and each other one, both ways round: a call chain that one
/// side does not have has no width there.
fn draw_differences(folder: &Path, all: &[Configuration]) -> Result<()> {
    let profiles = all.iter().filter_map(|one| Some((&one.name, one.profile().filter(|p| !p.stacks.is_empty())?)));
    let profiles: Vec<_> = profiles.collect();
    let Some((first, others)) = profiles.split_first() else { return Ok(()) };
    for (before, after) in others.iter().flat_map(|other| [(first, other), (other, first)]) {
        let svg = flame_graph_of_difference(&before.1, &after.1).context("drawing the flame graph")?;
        write(&folder.join(format!("{}-to-{}.svg", before.0, after.0)), true, &svg)?;
    }
    Ok(())
}

fn write(file: &Path, force: bool, text: &str) -> Result<()> {
    write_file(file, force, |out| out.write_all(text.as_bytes())).with_context(|| format!("{}", file.display()))
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
        let guest = load.agent.map(|agent| GuestQueues::start(vm, agent)).transpose()?;
        let (host, work) = load.under("queues", |window| queues::measure(window, stop, false, true))?;
        let mut figures = Vec::new();
        for (of, document) in [("in the guest: ", guest.map(GuestQueues::end).transpose()?), ("", Some(host))] {
            let (devices, said) = document.map(network_queues).unwrap_or_default();
            figures.extend(devices);
            notes.extend(said.iter().map(|note| format!("{of}{note}")));
        }
        Ok(Part { work, figures })
    })?;
    one.profile = one_part(&mut one.notes, name, "profile", |notes| {
        let machines: Vec<_> = load.agent.map(|agent| (vm.to_owned(), agent.clone())).into_iter().collect();
        let (measured, work) = load.under("profile", |window| {
            let asked = profile::Asked {
                window,
                machines: &machines,
                frequency: FREQUENCY,
                cpus: None,
                syscalls: true,
                one_by_one: false,
                quiet: true,
            };
            profile::measure(&asked, stop)
        })?;
        notes.extend(measured.document.notes.iter().cloned());
        let figures = KeptProfile { kept: measured.profile.kept(), system_calls: measured.document.system_calls };
        Ok(Part { work, figures })
    })?;
    Ok(one)
}

/// `latpath queues` in the guest.
struct GuestQueues(Machine);

/// How long it may take to begin there, and to end.
const BEGIN: Duration = Duration::from_secs(60);

impl GuestQueues {
    fn start(vm: &str, agent: &Address) -> Result<Self> {
        let mut machine = Machine::connect(vm, agent, Timeouts::default())?;
        machine.run_command(["latpath", "queues", "--json"].map(String::from).into())?;
        let (mut printed, began) = (Printed::default(), Instant::now());
        while !printed.said().contains(queues::BEGUN) {
            let news = machine.command();
            printed.take(news.printed)?;
            if news.end.is_some() || began.elapsed() > BEGIN {
                bail!("latpath queues in the guest did not begin: {}", printable(printed.said().trim()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self(machine))
    }

    fn end(mut self) -> Result<SeenQueues> {
        self.0.end_command();
        let (mut printed, began) = (Printed::default(), Instant::now());
        loop {
            let news = self.0.command();
            printed.take(news.printed)?;
            match news.end {
                Some(Ok(0)) => break,
                Some(end) => {
                    bail!("latpath queues in the guest ended with {end:?}: {}", printable(printed.said().trim()))
                }
                None if began.elapsed() > BEGIN => bail!("latpath queues in the guest does not end"),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        let text = String::from_utf8(printed.out).context("what latpath queues in the guest printed")?;
        figures_add_up(&text, MOST_OF_GUEST)
            .map_err(|why| anyhow!("what latpath queues in the guest printed: {why}"))?;
        serde_json::from_str(&text).context("what latpath queues in the guest printed")
    }
}

/// What a command in a guest has printed.
#[derive(Default)]
struct Printed {
    out: Vec<u8>,
    error: Vec<u8>,
}

impl Printed {
    /// No guest has so many virtqueues that it is more.
    const MOST_BYTES: usize = 1 << 20;

    /// Adds pieces, and whether each is of the standard error.
    fn take(&mut self, pieces: Vec<(bool, Vec<u8>)>) -> Result<()> {
        for (is_error, bytes) in pieces {
            if self.out.len() + self.error.len() + bytes.len() > Self::MOST_BYTES {
                bail!("latpath queues in the guest printed more than {} bytes", Self::MOST_BYTES);
            }
            if is_error { &mut self.error } else { &mut self.out }.extend(bytes);
        }
        Ok(())
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&self.error).into_owned()
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
    command: &'a [OsString],
    stop: &'a AtomicBool,
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
    fn a_guest_that_prints_without_end_is_left_after_a_mebibyte() {
        let mut printed = Printed::default();
        printed.take(vec![(true, b"watching".to_vec()), (false, b"{}".to_vec())]).unwrap();
        assert_eq!((printed.said().as_str(), &printed.out[..]), ("watching", &b"{}"[..]));
        let mut flood = (0..).map(|n| printed.take(vec![(n % 2 == 0, vec![b'x'; 8192]); 16]));
        let taken = flood.by_ref().take_while(Result::is_ok).count();
        assert!(taken <= 8, "{taken}");
        assert!(printed.out.len() + printed.error.len() <= Printed::MOST_BYTES);
    }
}
