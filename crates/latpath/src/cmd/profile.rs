//! `latpath profile`: host and guest CPU time in one profile.

mod guests;

use super::report::print_as;
use super::window::Window;
use super::{style, Outcome, Usage};
use anyhow::{bail, Context, Result};
use clap::Args as ClapArgs;
use guests::{GuestTimes, Guests};
use latpath_agent::Address;
use latpath_export::{check_target, write_file};
use latpath_linux::proc::{CpuAccount, Root};
use latpath_linux::{realtime, Cpus};
use latpath_model::Ns;
use latpath_perfetto::{write_profile, SampledMachine};
use latpath_profile::{
    has_debug_files, is_of_vm, name_by_debug_files, weigh, CallFigures, Frame, Guest, Header, Kind, Options, Profile,
    Recorder, Samples, Spent, FETCH_WITHIN, FREQUENCY,
};
use latpath_report::cpu_profile::{
    diff_text, firefox, flame_graph, flame_graph_of_difference, of_one_vm, text, CallLine, Diff, Document,
    KernelAccount, Machine,
};
use latpath_stats::units::number_of;
use latpath_vms::{Role, Vm};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often guest times are read, and processes of VMs that are new.
const READ_EVERY: Duration = Duration::from_millis(100);

/// Show where the CPUs spend their time: host and guests, by process and function, in one profile.
#[derive(ClapArgs)]
pub struct Args {
    #[command(flatten)]
    window: Window,
    /// Look into this machine too, a guest, as guest0=ssh:root@guest, guest0=unix:PATH or guest0=vsock:CID:PORT: the VM's name
    /// (latpath vms), and where an agent runs in it; several are allowed
    #[arg(short, long = "machine", value_name = "NAME=ADDRESS", value_parser = super::following::machine)]
    machines: Vec<(String, Address)>,
    /// Samples a second, of each CPU
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = FREQUENCY, value_parser = crate::cmd::values::whole::<u32>(1..=10_000))]
    frequency: u32,
    /// Only these CPUs, as 0-3,8 [default: all that are online]
    #[arg(long, value_name = "LIST")]
    cpus: Option<Cpus>,
    /// Count the system calls of the VMs' processes, and their time (sleep included)
    #[arg(long)]
    syscalls: bool,
    /// Show under what this function runs, as tun_get_user; several are allowed
    #[arg(long = "function", value_name = "NAME")]
    functions: Vec<String>,
    /// Show N rows of each table: processes, functions and system calls
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
    /// Write the flame graph to this file; with --diff, the differential one
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the call chains to this file, as flame graphs take them: a line each, with its ns
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
    /// Replace files that exist
    #[arg(long)]
    force: bool,
    /// Compare two profiles that were kept, the earlier one first
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
    for (at, (name, _)) in args.machines.iter().enumerate() {
        if args.machines[..at].iter().any(|(other, _)| other == name) {
            bail!(Usage(format!("machine {name:?} is named twice")));
        }
    }
    let asked = Asked {
        window: &args.window,
        machines: &args.machines,
        frequency: args.frequency,
        cpus: args.cpus.clone(),
        syscalls: args.syscalls,
        one_by_one: args.firefox.is_some() || args.perfetto.is_some(),
        quiet: args.json,
    };
    let (measured, outcome) = measure(&asked, &stop)?;
    let Measured { document, profile, samples, inside } = measured;
    files(args, &profile, &samples, &inside)?;
    print_as(args.json, || &document, || text(&document, args.rows, &args.functions, style()))?;
    document.notes.iter().for_each(|note| eprintln!("latpath: {note}"));
    outcome
}

/// What is sampled.
pub(super) struct Asked<'a> {
    pub window: &'a Window,
    pub machines: &'a [(String, Address)],
    pub frequency: u32,
    pub cpus: Option<Cpus>,
    pub syscalls: bool,
    /// Each sample's time is kept too.
    pub one_by_one: bool,
    pub quiet: bool,
}

/// What a window was.
pub(super) struct Measured {
    pub document: Document,
    pub profile: Profile,
    samples: Samples,
    inside: Vec<Guest>,
}

impl Measured {
    /// Why a guest's samples ended before the window did, if they did.
    pub fn guest_fault(&self) -> Option<&str> {
        self.inside.iter().find_map(|guest| guest.fault.as_deref())
    }
}

/// The profile of a window, and what the end of its command makes of ours.
pub(super) fn measure(asked: &Asked, stop: &AtomicBool) -> Result<(Measured, Result<Outcome>)> {
    let Asked { window, machines, frequency, one_by_one, .. } = *asked;
    let vms = window.vms()?;
    let mut guests = Guests::connect(machines, &vms, frequency, one_by_one)?;
    let calls_of = asked.syscalls.then(|| vms.iter().map(|vm| vm.pid).collect());
    let places = has_debug_files();
    let mut times = GuestTimes::of(&vms);
    let absences_of = guests.vcpus();
    // Programs at KVM's events run at every exit of every VM of this host: only where a guest's samples need them.
    let vcpus = if absences_of.is_empty() { Vec::new() } else { times.threads() };
    let options = Options { frequency, cpus: asked.cpus.clone(), calls_of, vcpus, absences_of, places };
    let mut recorder = Recorder::start(&options)?;
    guests.begin(&recorder);
    times.read(&recorder);
    let (utc_ns, cpus) = (realtime(), recorder.cpus().clone());
    let root = Root::of(Path::new("/"));
    let before = CpuAccount::read(&root, &cpus);
    let end = window.end();
    eprintln!("latpath: sampling CPUs {cpus} {frequency} times a second{end}");
    let mut samples = Samples::new(one_by_one);
    // Once there is too much, the figures are those of the time until then: all of them.
    let (mut full, mut read) = (None, Instant::now());
    let passed = window.pass(stop, asked.quiet, || {
        if let Some(Err(why)) = recorder.step().map(|slice| samples.take(slice)) {
            full.get_or_insert_with(|| (why, CpuAccount::read(&root, &cpus), recorder.calls()));
        }
        if read.elapsed() >= READ_EVERY {
            read = Instant::now();
            times.read(&recorder);
            guests.check(&mut recorder);
        }
    })?;
    // Ctrl-C ended the window, maybe; the next one ends the look-up of names.
    let was_stopped = stop.swap(false, Ordering::SeqCst);
    let last = samples.take(recorder.end(stop));
    stop.fetch_or(was_stopped, Ordering::SeqCst);
    times.read(&recorder);
    let now = || (CpuAccount::read(&root, &cpus), recorder.calls());
    let (after, counted) = match (full, last) {
        (Some((why, after, counted)), _) => {
            eprintln!("latpath: {why}: what came after is missing");
            (after, counted)
        }
        (None, Err(why)) => {
            eprintln!("latpath: {why}: the last second is missing");
            now()
        }
        (None, Ok(())) => now(),
    };
    let outcome = passed.outcome();
    let (from, until) = samples.span().unwrap_or_default();
    let mut inside = guests.end(until, &mut recorder);
    let unnamed = name_the_rest(&mut samples, &mut inside, stop);
    // Some VMs may have started since.
    let mut known = vms.clone();
    for vm in latpath_vms::find().map(|found| found.vms).unwrap_or_default() {
        if !known.iter().any(|other| other.pid == vm.pid) {
            known.push(vm);
        }
    }
    let header = Header {
        latpath: env!("CARGO_PKG_VERSION").into(),
        kernel: latpath_bpf::release(),
        utc_ns,
        window_ns: until - from,
        cpus,
        frequency,
        ..Header::default()
    };
    let mut profile = weigh(&samples, &times.finish(), &inside, &known, header);
    if !window.vms.is_empty() {
        only(&mut profile, &vms);
    }
    let mut document = Document::new(&profile);
    document.kernel_account = before.zip(after).map(|(before, after)| account(before, after));
    document.system_calls = calls(counted, &known, &vms);
    document.notes = notes(&recorder, &profile, [guests.notes(&known, &inside), unnamed].concat());
    Ok((Measured { document, profile, samples, inside }, outcome))
}

/// Names functions of stripped programs, where debugging information is found. Returns what of it is missing.
fn name_the_rest(samples: &mut Samples, inside: &mut [Guest], stop: &AtomicBool) -> Vec<String> {
    // Ctrl-C ended the window, maybe; the next one ends this.
    let was_stopped = stop.swap(false, Ordering::SeqCst);
    let mut machines: Vec<&mut Samples> = vec![samples];
    machines.extend(inside.iter_mut().map(|guest| &mut guest.samples));
    let notes = name_by_debug_files(&mut machines, stop, |files| {
        let most = FETCH_WITHIN.as_secs();
        let files = number_of(files as u64, "file");
        eprintln!("latpath: fetching symbols of {files} (DEBUGINFOD_URLS), {most} s at most; Ctrl-C goes on without");
    });
    stop.fetch_or(was_stopped, Ordering::SeqCst);
    notes
}

fn account(before: CpuAccount, after: CpuAccount) -> KernelAccount {
    let ns = |of: fn(&CpuAccount) -> u64| of(&after).saturating_sub(of(&before)) as Ns;
    KernelAccount {
        user_ns: ns(|account| account.user),
        system_ns: ns(|account| account.system),
        guest_ns: ns(|account| account.guest),
        idle_ns: ns(|account| account.idle),
        steal_ns: ns(|account| account.steal),
    }
}

/// Leaves the time of these VMs; that of all other processes becomes one.
fn only(profile: &mut Profile, vms: &[Vm]) {
    let is_theirs = |process: &Frame| vms.iter().any(|vm| is_of_vm(process, vm));
    for (frames, ns) in std::mem::take(&mut profile.stacks) {
        let frames = match frames.first().is_some_and(is_theirs) {
            true => frames,
            false => {
                let what = match latpath_profile::spent(&frames) {
                    Spent::HostSys => Frame::new("[not shown]", Kind::Kernel),
                    Spent::HostUsr => Frame::new("[not shown]", Kind::User),
                    Spent::NotSampled => Frame::new(latpath_profile::NOT_SAMPLED, Kind::User),
                    Spent::GuestSys | Spent::GuestUsr | Spent::GuestUnseen => Frame::new("[guest others]", Kind::Guest),
                };
                vec![Frame::new("other processes", Kind::Process), what]
            }
        };
        profile.add(frames, ns);
    }
}

fn calls(mut calls: Vec<CallFigures>, known: &[Vm], vms: &[Vm]) -> Vec<CallLine> {
    calls.sort_by_key(|call| std::cmp::Reverse(call.ns));
    let line = |call: &CallFigures| {
        let vm = known.iter().chain(vms).find(|vm| vm.pid == call.tgid);
        let thread = vm.and_then(|vm| vm.threads.iter().find(|thread| thread.tid == call.tid));
        let does = thread.map_or_else(
            || call.comm.clone(),
            |thread| match (thread.role, thread.vcpu) {
                (Role::Vcpu, Some(number)) => format!("vCPU {number}"),
                (Role::Other, _) => call.comm.clone(),
                (role, _) => role.name().into(),
            },
        );
        CallLine::new(call, vm.map_or_else(|| format!("process {}", call.tgid), |vm| vm.name.clone()), does)
    };
    calls.iter().map(line).collect()
}

fn notes(recorder: &Recorder, profile: &Profile, of_guests: Vec<String>) -> Vec<String> {
    let mut notes: Vec<String> = recorder.missing().iter().map(ToString::to_string).collect();
    let header = &profile.header;
    if header.lost > 0 {
        notes.push(format!("samples lost: {}; times are exact, their call chains are less so", header.lost));
    }
    if header.unattributed_ns > 0 {
        notes.push("there were too many threads: the time of some is counted as not sampled".into());
    }
    if recorder.calls_lost() > 0 {
        notes.push(format!("system calls that are missing, because the table was full: {}", recorder.calls_lost()));
    }
    if recorder.too_late() > 0 {
        notes.push(format!("[unknown] addresses, since their processes had ended: {}", recorder.too_late()));
    }
    if recorder.unreadable() > 0 {
        notes.push(format!(
            "[unknown] addresses, since the files of their processes could not be read, or not in time: {}",
            recorder.unreadable()
        ));
    }
    if recorder.cut_maps() > 0 {
        notes.push(format!(
            "processes with more than 65536 mappings of code, of which the first are read, so that call chains may end early: {}",
            recorder.cut_maps()
        ));
    }
    notes.extend(of_guests);
    notes
}

fn files(args: &Args, profile: &Profile, samples: &Samples, inside: &[Guest]) -> Result<()> {
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
        let named = profile.header.guests.iter().zip(inside);
        machines.extend(named.map(|(header, guest)| Machine {
            guest: Some(header.name.clone()),
            samples: &guest.samples,
            offset_ns: guest.offset_ns,
        }));
        write(path, args.force, |out| firefox(&profile.header, &machines, out))?;
    }
    if let Some(path) = &args.perfetto {
        let mut machines = vec![SampledMachine { samples, offset_ns: 0, prefix: String::new() }];
        machines.extend(profile.header.guests.iter().zip(inside).map(|(header, guest)| SampledMachine {
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

/// Writes a file that appears when it is whole; says which where that fails.
fn write(path: &Path, force: bool, content: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    write_file(path, force, content).with_context(|| format!("{}", path.display()))
}
