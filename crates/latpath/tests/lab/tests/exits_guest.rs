//! Exits of a Linux guest that receives a stream through vhost while loops keep its vCPUs and the host's CPUs busy. The
//! intervals of each vCPU's time have no gap and agree with the kernel scheduler's figures for the same threads; the
//! number of exits equals KVM's counters, and the counts by reason equal those of `perf kvm stat`. QEMU is stopped at
//! the begin and the end of the window, so that all of these count the same exits.

use crate::{
    stage::{plain, Reach, Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context, Result};
use latpath_lab::Switch;
use latpath_model::Observation;
use latpath_observe::exits::{ExitsFigures, VcpuExits, VmExits};
use latpath_testkit::{busy, waits, Started};
use nix::{
    sys::signal::{kill, Signal},
    unistd::Pid,
};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

pub const TEST: Test = Test { name: "exits_guest", smoke: false, only_whole: false, seconds: 1500, run };

const PATIENCE: Duration = Duration::from_secs(120);

fn run(scale: &Scale) -> Outcome {
    let seconds = scale.frames(10, 600);
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.cpus = 2;
    stage.boot_guest_with(Reach::Serial, vec![(std::env::current_exe()?, "/bin/busy".into())])?;
    let stream = Stream::sv("MU01", 1000 * (seconds + 600));
    stage.subscribe(&stream)?;
    let publishing = stage.start_publishing(&stream)?;
    // The guest must not report a stall because QEMU is stopped for seconds.
    let quiet = "echo 0 >/proc/sys/kernel/watchdog; echo 1 >/sys/module/rcupdate/parameters/rcu_cpu_stall_suppress";
    stage.guest()?.expect(quiet, &|| false)?;
    let load = seconds as u32 + 900;
    let in_guest = busy::script("busy", 50, load);
    stage.guest()?.start("loop", &format!("sh -c '{in_guest}'"), false, &|| false)?;
    let in_host = stage.start_command(&stage.path().hypervisor, busy::command(40, load)?)?;

    // A perf file of ten minutes would not fit into memory.
    let perf = Recorded::start(&stage)?;
    let seen = watched(&mut stage, Duration::from_secs(seconds.min(20)), Some(perf))?;
    check(&seen).and_then(|()| seen.expect_reasons_of_perf()).with_context(|| format!("{:#?}", seen.document))?;
    let seen = watched(&mut stage, Duration::from_secs(seconds), None)?;
    check(&seen).with_context(|| format!("{:#?}", seen.document))?;
    let page = stage.latpath("exits --duration 2s --each")?;
    eprintln!("{page}");
    in_host.interrupt();
    publishing.interrupt();
    publishing.finish(PATIENCE).map_err(plain)?;
    Ok(())
}

/// Figures of latpath, the kernel's scheduler and perf for the same window.
struct Seen {
    document: Observation<ExitsFigures>,
    /// The scheduler's figures for each vCPU thread, by TID.
    accounts: BTreeMap<u32, Account>,
    perf: Option<Reported>,
}

/// Runs `latpath exits` for `window`, which begins and ends while QEMU is stopped.
fn watched(stage: &mut Stage, window: Duration, mut perf: Option<Recorded>) -> Result<Seen> {
    let space = stage.path().hypervisor.clone();
    let frozen = Frozen::now(stage.guest()?.pid())?;
    let mut watching = stage.start(&space, "exits --events --json")?;
    let begins = |watching: &mut Started| watching.said().contains("watching") || !watching.runs();
    waits::until_within(PATIENCE, "latpath exits watches", || begins(&mut watching)).map_err(plain)?;
    perf.iter_mut().try_for_each(|perf| perf.control("enable"))?;
    let before = frozen.accounts()?;
    let begun = Instant::now();
    let vcpus = frozen.thaw()?;
    latpath_testkit::waits::fault_for(window.saturating_sub(begun.elapsed()));
    let frozen = Frozen::now(stage.guest()?.pid())?;
    let after = frozen.accounts()?;
    watching.interrupt();
    let ended = watching.finish(PATIENCE).map_err(plain)?;
    perf.iter_mut().try_for_each(|perf| perf.control("disable"))?;
    frozen.thaw()?;
    let perf = perf.map(Recorded::end).transpose()?;
    ensure!(ended.code == Some(0), "latpath exits: {:?}: {}", ended.code, ended.stderr);
    let accounts = vcpus.iter().filter_map(|tid| Some((*tid, after.get(tid)?.since(before.get(tid)?)))).collect();
    Ok(Seen { document: serde_json::from_str(&ended.stdout)?, accounts, perf })
}

/// A QEMU that is stopped with all its vCPUs: they cause no exits, and the scheduler's figures for them do not change.
struct Frozen {
    qemu: u32,
    vcpus: Vec<u32>,
}

impl Frozen {
    fn now(qemu: u32) -> Result<Self> {
        let mut vcpus = Vec::new();
        for entry in fs::read_dir(format!("/proc/{qemu}/task"))? {
            let thread = entry?.path();
            if fs::read_to_string(thread.join("comm"))?.starts_with("CPU ") {
                vcpus.push(thread.file_name().and_then(|tid| tid.to_str()?.parse().ok()).context("a thread's number")?);
            }
        }
        ensure!(!vcpus.is_empty(), "QEMU has no vCPUs");
        kill(Pid::from_raw(qemu as i32), Signal::SIGSTOP)?;
        let frozen = Self { qemu, vcpus };
        let stopped = |tid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{qemu}/task/{tid}/stat"));
            stat.is_ok_and(|text| text.contains(") T "))
        };
        waits::until_within(PATIENCE, "QEMU stops", || frozen.vcpus.iter().all(stopped)).map_err(plain)?;
        Ok(frozen)
    }

    /// Resumes QEMU; returns the TIDs of its vCPU threads.
    fn thaw(self) -> Result<Vec<u32>> {
        kill(Pid::from_raw(self.qemu as i32), Signal::SIGCONT)?;
        Ok(self.vcpus)
    }

    fn accounts(&self) -> Result<BTreeMap<u32, Account>> {
        let of = |tid: &u32| {
            let text = fs::read_to_string(format!("/proc/{}/task/{tid}/schedstat", self.qemu))?;
            let numbers: Vec<i64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
            let [ran_ns, ready_ns, switches] = numbers[..] else { anyhow::bail!("schedstat: {text}") };
            Ok((*tid, Account { ran_ns, ready_ns, switches }))
        };
        self.vcpus.iter().map(of).collect()
    }
}

/// The scheduler's figures for a thread.
#[derive(Clone, Copy, Debug)]
struct Account {
    ran_ns: i64,
    /// Time waiting for a CPU.
    ready_ns: i64,
    switches: i64,
}

impl Account {
    fn since(&self, before: &Self) -> Self {
        Self {
            ran_ns: self.ran_ns - before.ran_ns,
            ready_ns: self.ready_ns - before.ready_ns,
            switches: self.switches - before.switches,
        }
    }
}

/// Output of `perf kvm stat report`.
struct Reported {
    /// Exits by reason.
    exits: BTreeMap<String, u64>,
    /// Total time from all exits to the next entry.
    outside_ns: i64,
}

/// A running `perf kvm stat record` on all CPUs, controlled through FIFOs.
struct Recorded {
    perf: Started,
    folder: tempfile::TempDir,
    commands: File,
    answers: BufReader<File>,
}

impl Recorded {
    fn start(stage: &Stage) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let [commands, answers] = ["commands", "answers"].map(|name| folder.path().join(name));
        for fifo in [&commands, &answers] {
            nix::unistd::mkfifo(fifo, nix::sys::stat::Mode::S_IRWXU)?;
        }
        let mut command = Command::new("perf");
        command.args(["kvm", "stat", "record", "-a", "-D", "-1", "-o"]).arg(folder.path().join("perf.data"));
        command.arg(format!("--control=fifo:{},{}", commands.display(), answers.display()));
        let perf = stage.start_command(&stage.path().hypervisor, command)?;
        // Opening a FIFO for reading and writing does not block.
        let open = |path: &Path| File::options().read(true).write(true).open(path);
        Ok(Self { perf, commands: open(&commands)?, answers: BufReader::new(open(&answers)?), folder })
    }

    /// Sends a command to perf, and waits for the acknowledgement.
    fn control(&mut self, word: &str) -> Outcome {
        writeln!(self.commands, "{word}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        ensure!(answer.trim_matches(['\n', '\0']) == "ack", "perf answers {answer:?}: {}", self.perf.said());
        Ok(())
    }

    fn end(self) -> Result<Reported> {
        self.perf.interrupt();
        self.perf.finish(PATIENCE).map_err(plain)?;
        let mut command = Command::new("perf");
        command.args(["kvm", "-i"]).arg(self.folder.path().join("perf.data")).args([
            "stat",
            "report",
            "--event=vmexit",
        ]);
        let report = command.output()?;
        // Depending on its version, perf prints the table to stdout or stderr.
        let text = String::from_utf8_lossy(&[report.stdout, report.stderr].concat()).into_owned();
        ensure!(report.status.success() && !text.to_lowercase().contains("lost"), "perf kvm stat report: {text}");
        let exits: BTreeMap<String, u64> = text.lines().filter_map(row).collect();
        ensure!(!exits.is_empty(), "perf kvm stat report: {text}");
        let total =
            text.split("handled time:").nth(1).and_then(|rest| rest.split("us").next()).context("no total time")?;
        Ok(Reported { exits, outside_ns: (total.parse::<f64>()? * 1000.0) as i64 })
    }
}

/// Parses a line such as `PF excp   12   0.40%   1.02%   …`: the name, which may contain spaces, and the number before
/// the first percentage.
fn row(line: &str) -> Option<(String, u64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let percent = words.iter().position(|word| word.ends_with('%'))?;
    let count = words.get(percent.checked_sub(1)?)?.parse().ok()?;
    Some((words[..percent - 1].join(" "), count))
}

impl Seen {
    fn vm(&self) -> Result<&VmExits> {
        self.document.figures.vms.first().context("no VM")
    }

    /// Both latpath and perf count an exit at the entry that ends it.
    fn expect_reasons_of_perf(&self) -> Outcome {
        let perf = self.perf.as_ref().context("perf ran beside it")?;
        let reasons = &self.vm()?.all.reasons;
        let counted = reasons.iter().filter(|reason| reason.times.count > 0);
        let ours: BTreeMap<String, u64> =
            counted.filter_map(|reason| Some((reason.reason.clone()?, reason.times.count))).collect();
        ensure!(ours == perf.exits, "perf kvm stat counted {:?}, latpath {ours:?}", perf.exits);
        let exits: u64 = ours.values().sum();
        let outside: i64 = reasons.iter().map(|reason| reason.sum_ns).sum();
        eprintln!("perf kvm stat: the same {exits} exits for the same {} reasons: {ours:?}", ours.len());
        eprintln!("outside the guest for {outside} ns, by perf {} ns", perf.outside_ns);
        let apart = (outside - perf.outside_ns).abs();
        ensure!(apart <= outside / 20, "outside for {outside} ns, by perf {} ns", perf.outside_ns);
        Ok(())
    }
}

fn check(seen: &Seen) -> Outcome {
    let document = &seen.document;
    let vm = seen.vm()?;
    ensure!(document.lost_events == 0 && document.figures.events_without_room == 0, "events are missing");
    let vcpus = &vm.vcpus;
    ensure!(vcpus.len() == 2 && seen.accounts.len() == 2, "two vCPUs: {} and {:?}", vcpus.len(), seen.accounts);
    for vcpu in vcpus {
        expect_tiles(vcpu, document, &seen.accounts).with_context(|| format!("{vcpu:#?}"))?;
    }
    let all = &vm.all;
    let (ours, kvms) = (all.exits, vm.kvm.context("KVM's own counters are missing")?.exits);
    eprintln!("exits: {ours}, KVM's own counter: {kvms}");
    ensure!(ours > 100 && kvms == ours, "KVM counted {kvms} exits, latpath {ours}");
    // No vCPU is in its guest at the begin or the end of the window.
    ensure!(all.entries == ours, "{ours} exits of {} entries", all.entries);
    ensure!(all.halts > 0, "the guest had nothing to do at times");
    let apic = all.apic.as_ref().context("no interrupts")?;
    let accepted = apic.accepted;
    let by_vector: u64 = apic.vectors.iter().map(|vector| vector.accepted).sum();
    ensure!(accepted > 100 && accepted == by_vector, "{accepted} interrupts, by vector {by_vector}");
    let event = |name: &str| vm.events.iter().find(|event| event.event == name).map(|event| event.count);
    ensure!(event("kvm_exit") == Some(ours), "the event kvm_exit came {:?} times", event("kvm_exit"));
    // KVM's event does not identify the VM: events that occur while the CPU is idle or runs another process are counted
    // separately.
    let others = document.figures.other_events.as_ref();
    let idle = others.and_then(|others| others.counts.get("kvm_apic_accept_irq")).unwrap_or(&0);
    let shown = event("kvm_apic_accept_irq").unwrap_or(0) + idle;
    let taken = accepted + apic.nmis + apic.other;
    ensure!(shown.abs_diff(taken) <= taken / 20, "APICs took {taken}, KVM showed {shown}");
    let reasons: Vec<&str> = all.reasons.iter().filter_map(|reason| reason.reason.as_deref()).collect();
    for reason in ["hlt", "interrupt"] {
        ensure!(reasons.contains(&reason), "no exit for {reason}: {reasons:?}");
    }
    let traffic = vm.traffic.context("no traffic")?;
    ensure!(traffic.to_guest_packets > 1000, "the stream passed the tap: {traffic:?}");
    ensure!(vm.per_work.as_ref().is_some_and(|work| work.exits_per_packet > 0.0), "no exits for each packet");
    Ok(())
}

/// Expects the intervals to add up to the window exactly, and to agree with the scheduler's figures for the thread.
fn expect_tiles(vcpu: &VcpuExits, document: &Observation<ExitsFigures>, accounts: &BTreeMap<u32, Account>) -> Outcome {
    let (tiles, window) = (vcpu.figures.tiles, vcpu.window_ns);
    let sum = tiles.sum();
    ensure!(sum == window, "the tiles are {sum} ns of {window}");
    ensure!(window == document.window_ns, "a vCPU that was there all the time has the whole window");
    // An interrupt during a program's update counts towards the interval that it interrupted.
    let (skipped, exits) = (vcpu.figures.events_skipped, vcpu.figures.exits);
    ensure!(skipped <= exits / 100, "{skipped} events were skipped, of {exits} exits");
    let account = accounts.get(&vcpu.tid).context("no account of this thread")?;
    let ran = tiles.guest_ns + tiles.kvm_ns + tiles.qemu_ns + tiles.polling_ns + tiles.interrupted_ns;
    let ready = tiles.ready_ns;
    eprintln!("of {window} ns: tiles {tiles:?}; the scheduler: {account:?}; {skipped} events skipped");
    for (what, ours, kernels) in [("ran", ran, account.ran_ns), ("was ready", ready, account.ready_ns)] {
        let apart = (ours - kernels).abs();
        eprintln!("{what}: {ours} ns, by the scheduler {kernels} ns, {} ns a switch", apart / account.switches.max(1));
        // latpath and the scheduler read their clocks one after the other at each switch; an emulated CPU may stall in
        // between.
        ensure!(ours > 0 && apart <= ours / 20, "it {what} for {ours} ns, by the scheduler {kernels} ns");
    }
    Ok(())
}
