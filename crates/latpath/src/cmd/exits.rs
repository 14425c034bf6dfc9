//! `latpath exits`: why vCPUs leave their guests, for how long, and where their threads' time goes.

use super::command::Workload;
use super::interrupt::stop_flag;
use super::progress::Progress;
use super::report::print;
use super::{style, Outcome, Usage};
use anyhow::{bail, Result};
use clap::Args as ClapArgs;
use latpath_exits::{KvmCounters, Traffic, Watch};
use latpath_report::exits::{text, About, Document};
use latpath_stats::units::number_of;
use latpath_vms::{exit_reason::Names, Role, Vm};
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often it is looked whether the window is over.
const STEP: Duration = Duration::from_millis(50);

/// Show why vCPUs leave their guests, for how long, and where their threads' time goes.
#[derive(ClapArgs)]
pub struct Args {
    /// Watch this VM alone (a name or process of latpath vms); several are allowed [default: all VMs, also those that start later]
    #[arg(long = "vm", value_name = "NAME")]
    vms: Vec<String>,
    /// Stop after this time (10s, 1h 30m) [default: until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Show every vCPU's exits too, not only all of a VM's together
    #[arg(long)]
    each: bool,
    /// Let the kernel measure what watching costs (which costs a little more)
    #[arg(long)]
    cost: bool,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    /// Run this command, and watch for as long as it runs
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub fn run(args: Args) -> Result<Outcome> {
    if args.duration == Some(Duration::ZERO) {
        bail!(Usage("--duration 0s leaves nothing to watch".into()));
    }
    let vms = chosen(latpath_vms::find()?.vms, &args.vms)?;
    let stop = stop_flag()?;
    let watch = Watch::start_measuring(&vms, !args.vms.is_empty(), args.cost)?;
    let before = Counted::of(&vms);
    let known: usize = vms.iter().map(|vm| vm.threads.iter().filter(|thread| thread.role == Role::Vcpu).count()).sum();
    let end = if args.command.is_empty() && args.duration.is_none() { "; Ctrl-C ends it" } else { "" };
    eprintln!("latpath: watching {}{end}", number_of(known as u64, "vCPU"));
    let mut workload = Workload::start(&args.command)?;
    let (began, mut progress) = (Instant::now(), Progress::begin(args.json && !args.command.is_empty()));
    let mut ended = None;
    while !stop.load(Ordering::SeqCst) && args.duration.is_none_or(|time| began.elapsed() < time) {
        ended = workload.as_mut().map(Workload::ended).transpose()?.flatten();
        if ended.is_some() {
            break;
        }
        progress.show(|elapsed| anyhow::Ok(format!("watching for {} s", elapsed.as_secs())))?;
        let left = args.duration.map_or(STEP, |time| time.saturating_sub(began.elapsed()));
        std::thread::sleep(left.min(STEP));
    }
    let (exits, mut after) = watch.end_and(|| Counted::of(&vms));
    progress.end();
    if let Some(workload) = &mut workload {
        workload.end();
    }
    // Some VMs may have started since.
    let vms = latpath_vms::find().map(|found| found.vms).unwrap_or(vms);
    after.complete(&vms);
    let document = Document::new(&exits, &Names::of_kernel(), |pid| after.about(pid, &before, &vms));
    print(&match args.json {
        true => serde_json::to_string(&document)? + "\n",
        false => text(&document, args.each, style()),
    })?;
    notes(&document);
    Workload::verdict(ended)
}

/// The VMs that the user means.
pub(super) fn chosen(vms: Vec<Vm>, names: &[String]) -> Result<Vec<Vm>> {
    let is = |vm: &Vm, name: &String| vm.name == *name || vm.pid.to_string() == *name;
    if let Some(unknown) = names.iter().find(|name| !vms.iter().any(|vm| is(vm, name))) {
        let known: Vec<&str> = vms.iter().map(|vm| vm.name.as_str()).collect();
        let known = if known.is_empty() { "none runs here".into() } else { known.join(", ") };
        bail!(Usage(format!("--vm {unknown}: no such VM ({known})")));
    }
    Ok(vms.into_iter().filter(|vm| names.is_empty() || names.iter().any(|name| is(vm, name))).collect())
}

/// What the kernel had counted at a moment.
struct Counted {
    kvm: HashMap<u32, KvmCounters>,
    taps: HashMap<(u32, u32), latpath_counters::Statistics>,
}

impl Counted {
    fn of(vms: &[Vm]) -> Self {
        let kvm = vms.iter().filter_map(|vm| Some((vm.pid, KvmCounters::of(vm.pid)?))).collect();
        Self { kvm, taps: Traffic::counters(vms) }
    }

    /// Adds VMs that it lacks, which were made while it was watched.
    fn complete(&mut self, vms: &[Vm]) {
        let unknown: Vec<Vm> = vms.iter().filter(|vm| !self.kvm.contains_key(&vm.pid)).cloned().collect();
        let more = Self::of(&unknown);
        self.kvm.extend(more.kvm);
        self.taps.extend(more.taps);
    }

    fn about(&self, pid: u32, before: &Self, vms: &[Vm]) -> About {
        let vm = vms.iter().find(|vm| vm.pid == pid);
        let kvm = self.kvm.get(&pid).map(|now| now.since(before.kvm.get(&pid).copied().unwrap_or_default()));
        let traffic = vm.and_then(|vm| Traffic::between(vm, &before.taps, &self.taps));
        About { name: vm.map(|vm| vm.name.clone()), kvm, traffic }
    }
}

fn notes(document: &Document) {
    let say = |note: String| eprintln!("latpath: {note}");
    document.not_shown.iter().for_each(|line| say(line.clone()));
    if document.entries_without_room > 0 {
        say("there was no room for some vCPUs that appeared while it watched: they are missing".into());
    }
    if document.events_missed > 0 {
        say(format!(
            "the kernel skipped {} events: times of their exits are counted with others",
            document.events_missed
        ));
    }
    let silent =
        |vm: &&latpath_report::exits::VmExits| vm.all.exits == 0 && vm.all.entries == 0 && vm.all.exits_to_qemu > 0;
    for vm in document.vms.iter().filter(silent) {
        say(format!(
            "{}: KVM here does not say when it enters and leaves guests (no kvm_entry, no kvm_exit came), so guest time is not told from KVM's",
            vm.name.clone().unwrap_or_else(|| format!("process {}", vm.pid))
        ));
    }
}
