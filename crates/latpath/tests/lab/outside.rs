//! The outer part, which selects kernels and tests, boots a virtual machine for each kernel, and reports the results.

use crate::{arm64, module::MODULE, tests, Need, Test, INSIDE, WHOLE};
use latpath_lab::{
    complaints, missing, Application, Arch, Error, Hypervisor, Lab, LabKernel, Nics, Output, OwnModule, Progress,
    KERNELS,
};
use latpath_testkit::{trial, Failed, Tier, Trial, PROGRAM};
use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::{Arc, Mutex},
    time::Duration,
};

/// Environment variable with the names of the kernels to test at full length, or `all`.
const CHOICE: &str = "LATPATH_LAB";
/// The default kernel: later kernels' verifiers accept more.
const OLDEST: &str = "6.1";
const NEVER: &dyn Fn() -> bool = &|| false;

/// Runs `trials`, and the lab's tests on each requested kernel.
pub fn main(mut trials: Vec<Trial>) -> ExitCode {
    let arguments = latpath_testkit::arguments();
    let choice = env::var(CHOICE).ok().filter(|c| !c.is_empty());
    let kernels = match chosen(choice.as_deref().unwrap_or(OLDEST)) {
        Ok(kernels) => kernels,
        Err(why) => {
            eprintln!("{CHOICE}: {why}");
            return ExitCode::from(2);
        }
    };
    let whole = choice.is_some();
    let programs = match Programs::keep() {
        Ok(programs) => Arc::new(programs),
        Err(error) => {
            eprintln!("keep the programs under test: {error}");
            return ExitCode::FAILURE;
        }
    };
    let pool = Arc::new(Mutex::new(None));
    for kernel in kernels {
        if kernel.arch != Arch::OWN {
            let asked = !arguments.list && latpath_testkit::runs(&arguments, &arm64::name(kernel), Tier::Lab);
            trials.push(arm64::trial_on(kernel, asked));
            continue;
        }
        for (need, tests) in tests::ALL {
            let ordinary = tests.iter().filter(|t| whole || !t.only_whole);
            let named: Vec<(String, &Test)> = ordinary.map(|t| (format!("{}::{}", kernel.name, t.name), t)).collect();
            // A requirement is provided only if one of its tests was requested.
            let asked = |(name, test): &(String, &Test)| latpath_testkit::runs(&arguments, name, tier(test, &kernel));
            let mut home = Home { kernel, nics: Nics::default(), module: None, is_isolated: false };
            let asked = !arguments.list && named.iter().any(asked);
            let lack = if asked { home.provide(*need).err().map(|lack| format!("{need}: {lack}")) } else { None };
            trials.extend(named.into_iter().map(|(name, test)| {
                let (pool, programs, home) = (pool.clone(), programs.clone(), home.clone());
                let trial =
                    trial(&name, std::slice::from_ref(&lack), move || run(&pool, &programs, &home, test, whole));
                match tier(test, &kernel) {
                    Tier::Lab => trial.in_lab(),
                    _ => trial,
                }
            }));
        }
    }
    latpath_testkit::main(trials)
}

/// Tier of a test: `make test` boots the oldest kernel and checks there that all programs load.
fn tier(test: &Test, kernel: &LabKernel) -> Tier {
    match test.smoke && kernel.name == OLDEST {
        true => Tier::Test,
        false => Tier::Lab,
    }
}

fn chosen(choice: &str) -> Result<Vec<LabKernel>, String> {
    if choice == "all" {
        return Ok(KERNELS.into_iter().filter(|kernel| kernel.arch == Arch::OWN).collect());
    }
    let known = || KERNELS.map(|k| k.name).join(", ");
    let named = |name: &str| {
        LabKernel::named(name).ok_or_else(|| format!("{name}: no such kernel (there are: all, {})", known()))
    };
    choice.split(',').map(|name| named(name.trim())).collect()
}

/// Environment of a test.
#[derive(Clone)]
struct Home {
    kernel: LabKernel,
    nics: Nics,
    /// The lab's own module, for tests that need it.
    module: Option<PathBuf>,
    /// Whether the kernel isolates a CPU for a guest.
    is_isolated: bool,
}

impl Home {
    /// Provides a requirement of tests, or returns why it cannot be provided here.
    fn provide(&mut self, need: Need) -> Result<(), String> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err("these tests' hypervisor is x86-64".into());
        }
        let progress = &mut |line: &str| eprintln!("{line}");
        let provided = missing(Application::Guest).map_or_else(|| self.kernel.fetch(progress, NEVER), Err);
        let provided = provided.and_then(|()| match need {
            Need::Nothing | Need::Hsr => Ok(()),
            Need::StampingNics => self.build(OwnModule::StampingNics, progress),
            Need::SlowIdle => self.build(OwnModule::SlowIdle, progress),
            Need::Isolation => {
                self.is_isolated = true;
                Ok(())
            }
            Need::Igb => {
                self.nics = Nics::Igb;
                self.nics.fetch(progress, NEVER)
            }
        });
        provided.map_err(|e| e.to_string())?;
        let lacks_hsr =
            matches!(need, Need::Hsr) && !self.kernel.has_module("hsr", progress, NEVER).map_err(|e| e.to_string())?;
        if lacks_hsr {
            return Err(format!("Linux {} has no module hsr", self.kernel.name));
        }
        Ok(())
    }

    fn build(&mut self, module: OwnModule, progress: Progress) -> latpath_lab::Result<()> {
        self.module = Some(self.kernel.own_module(module, progress, NEVER)?);
        Ok(())
    }
}

/// Copies of this program and the program under test, since a build in the same tree may replace the originals while
/// tests run.
struct Programs {
    folder: PathBuf,
    me: PathBuf,
    latpath: PathBuf,
}

impl Programs {
    fn keep() -> io::Result<Self> {
        let all = evidence("programs");
        fs::create_dir_all(&all)?;
        // Remove what a killed run has left.
        for left in fs::read_dir(&all)?.flatten() {
            if !Path::new("/proc").join(left.file_name()).exists() {
                fs::remove_dir_all(left.path())?;
            }
        }
        let folder = all.join(std::process::id().to_string());
        fs::create_dir_all(&folder)?;
        let (me, latpath) = (folder.join("lab"), folder.join("latpath"));
        for (from, to) in [(env::current_exe()?, &me), (latpath_testkit::program(), &latpath)] {
            // A linker writes a new file, so the hard link keeps the old contents.
            fs::hard_link(&from, to).or_else(|_| fs::copy(&from, to).map(drop))?;
        }
        Ok(Self { folder, me, latpath })
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The virtual machine that runs now. It is replaced when another kernel is needed, and discarded when a test breaks
/// it.
type Pool = Mutex<Option<(Lab, Hypervisor)>>;

/// Runs a test. An emulated machine with a guest occasionally hangs without output, or crashes with [`EMULATION`]. On
/// an overloaded host it may also get no CPU for seconds, so that packets take longer than on any real machine. In
/// these cases the test is repeated in a new machine, and the repetition is reported.
fn run(pool: &Pool, programs: &Programs, home: &Home, test: &Test, whole: bool) -> Result<(), Failed> {
    let mut left = MAX_AGAIN;
    loop {
        match attempt(pool, programs, home, test, whole)? {
            Attempt::Done => return Ok(()),
            Attempt::Unsound(why) if left == 0 => return Err(why.into()),
            Attempt::Unsound(why) => latpath_testkit::retried(&format!("{}::{}", home.kernel.name, test.name), &why),
        }
        left -= 1;
    }
}

/// Maximum number of repetitions of a test.
const MAX_AGAIN: u32 = 2;

enum Attempt {
    Done,
    Unsound(String),
}

fn attempt(pool: &Pool, programs: &Programs, home: &Home, test: &Test, whole: bool) -> Result<Attempt, Failed> {
    let mut slot = pool.lock().unwrap_or_else(|broken| broken.into_inner());
    // The pool is empty while a test uses the machine.
    let fits = |h: &Hypervisor| (h.kernel(), h.nics(), h.is_isolated()) == (home.kernel, home.nics, home.is_isolated);
    let kept = slot.take().filter(|(_, hypervisor)| fits(hypervisor));
    let (lab, mut hypervisor) = match kept {
        Some(kept) => kept,
        None => {
            let lab = Lab::new()?;
            let progress = &mut |line: &str| eprintln!("{line}");
            let booted = Hypervisor::boot_with(&lab, home.kernel, home.nics, home.is_isolated, progress, NEVER);
            let hypervisor = match booted {
                Err(error) if error.to_string().contains(EMULATION) => {
                    return Ok(Attempt::Unsound(error.to_string()));
                }
                booted => booted?,
            };
            eprintln!("Linux {} is up after {:.1?}", hypervisor.release(), hypervisor.boot_time());
            (lab, hypervisor)
        }
    };
    hypervisor.complaints();
    for left in fs::read_dir(hypervisor.out())?.flatten() {
        match left.file_type()?.is_dir() {
            true => fs::remove_dir_all(left.path())?,
            false => fs::remove_file(left.path())?,
        }
    }
    let folder = env::current_dir()?;
    let length = if whole { WHOLE } else { "" };
    let script = format!(
        "cd '{}' && export {PROGRAM}='{}' {MODULE}='{}' && exec timeout -k 5 {} '{}' {INSIDE} {} {length}",
        folder.display(),
        programs.latpath.display(),
        home.module.as_deref().unwrap_or(Path::new("")).display(),
        test.seconds,
        programs.me.display(),
        test.name
    );
    let name = format!("{}-{}", home.kernel.name, test.name);
    let _ = fs::remove_dir_all(evidence(&name));
    let watch = hypervisor.watch();
    let ended = hypervisor.run(&script, Duration::from_secs(test.seconds + 30), NEVER);
    let starvation = watch.end();
    let mut complaints = hypervisor.complaints();
    complaints.extend(complaints_of_guests(hypervisor.out()));
    complaints.retain(|line| !KNOWN.iter().any(|(name, place)| test.name == *name && line.contains(place)));
    let failed = match &ended {
        Err(error) => {
            let place = |cpus: Vec<u64>| cpus.iter().map(|rip| format!("{rip:#x}")).collect::<Vec<_>>().join(", ");
            let stands = hypervisor.stands_at().map_or_else(|e| e.to_string(), place);
            Some(format!("{error}; its CPUs are at {stands}"))
        }
        Ok(output) => failure(output, test, &complaints),
    };
    let Some(failed) = failed else {
        let said = ended.map(|output| output.text).unwrap_or_default();
        if !said.trim().is_empty() {
            eprintln!("{}", said.trim());
        }
        eprintln!("{name}: {starvation}");
        *slot = Some((lab, hypervisor));
        return Ok(Attempt::Done);
    };
    let console = hypervisor.console_tail();
    let kept = match keep(&hypervisor, &name) {
        Ok(folder) => format!("its recordings and the console are in {}", folder.display()),
        Err(error) => format!("its recordings cannot be kept: {error}"),
    };
    // The most important part comes last, where it is visible.
    let report = format!("the end of the console:\n{console}\n{kept}\n{starvation}\n{failed}");
    let silent = matches!(ended, Err(Error::Silent { .. })) && complaints.is_empty();
    let tripped = fs::read(hypervisor.console()).is_ok_and(|text| String::from_utf8_lossy(&text).contains(EMULATION));
    let starved = starvation.is_severe() && complaints.is_empty();
    if silent || tripped || starved {
        return Ok(Attempt::Unsound(report));
    }
    // A machine that hangs or whose kernel complained must not affect the next test.
    if ended.is_ok_and(|output| !HUNG.contains(&output.status)) && complaints.is_empty() {
        *slot = Some((lab, hypervisor));
    }
    Err(report.into())
}

/// Message of a kernel that crashed because of QEMU's emulation. The kernel briefly puts breakpoints into its own code
/// when it attaches and detaches programs. When QEMU emulates two CPUs, it may still execute a breakpoint that has been
/// removed; the kernel then does not recognise it, or both CPUs hang on it.
const EMULATION: &str = "int3: 0000";

/// Known kernel warnings: test and text. Linux 6.12 warns when the runtime reserved for ordinary threads is changed
/// while such threads wait.
const KNOWN: [(&str, &str); 1] = [("cause_fixed_fair", "at kernel/sched/deadline.c:")];

/// Exit statuses of timeout(1) for a program that it killed.
const HUNG: [i32; 2] = [124, 137];

fn failure(output: &Output, test: &Test, complaints: &[String]) -> Option<String> {
    let said = output.text.trim();
    if !complaints.is_empty() {
        return Some(format!("the kernel complains:\n{}\nthe test said:\n{said}", complaints.join("\n")));
    }
    match output.status {
        0 => None,
        status if HUNG.contains(&status) => Some(format!("not done after {} s; it said:\n{said}", test.seconds)),
        status => Some(format!("exit status {status}; it said:\n{said}")),
    }
}

/// Kernel complaints in the guests' consoles, which are stored with the recordings.
fn complaints_of_guests(out: &Path) -> Vec<String> {
    let files = fs::read_dir(out).into_iter().flatten().flatten().map(|e| e.path());
    let consoles = files.filter(|f| f.extension().is_some_and(|e| e == "console"));
    let texts = consoles.filter_map(|f| fs::read(f).ok());
    texts.flat_map(|text| complaints(&String::from_utf8_lossy(&text))).map(|line| format!("guest: {line}")).collect()
}

/// Directory for the evidence of a failed test.
pub fn evidence(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("lab").join(name)
}

/// Saves the console, and the files that a failed test left in `/out`.
fn keep(hypervisor: &Hypervisor, name: &str) -> io::Result<PathBuf> {
    let folder = evidence(name);
    fs::create_dir_all(&folder)?;
    let copied = Command::new("cp").arg("-r").arg(hypervisor.out().join(".")).arg(&folder).status()?;
    if !copied.success() {
        return Err(io::Error::other(format!("cp: {copied}")));
    }
    fs::copy(hypervisor.console(), folder.join("console"))?;
    Ok(folder)
}
