//! Runs a script in the lab's hypervisor: this machine's root and files on another kernel, with modules, Open vSwitch
//! and KVM. Only files written to `/out` reach this machine.
//!
//! ```text
//! cargo run --release -p latpath-lab --example hypervisor -- KERNEL SCRIPT [--limit SECONDS] [--out FOLDER] [--igb] [--stamping-nics] [--slow-idle] [--isolated] [ARGUMENT...]
//! ```
//!
//! KERNEL is a name of the matrix (6.1, 6.12, 6.1-rt, 6.12-rt; arm64: Linux 6.12 with a small userland of its own, this
//! machine's files in /host). Bash runs the script; its output is shown as it is printed. The exit status is the
//! script's, 124 after its time limit (600 s), or 125 if the hypervisor failed. With --igb, the two NICs are igb
//! instead of e1000e. With --stamping-nics, $STAMPING_NICS names a module for insmod that adds lpn0 and lpn1; with
//! --slow-idle, $SLOW_IDLE names one that adds idle states. With --isolated, the kernel isolates CPU 1.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

use latpath_lab::{Hypervisor, Lab, LabKernel, Nics, OwnModule, KERNELS};
use latpath_model::text::quoted;
use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

const NEVER: &dyn Fn() -> bool = &|| false;
const OPTIONS: &str = "[--limit SECONDS] [--out FOLDER] [--igb] [--stamping-nics] [--slow-idle] [--isolated]";

struct Request {
    kernel: LabKernel,
    script: PathBuf,
    limit: Duration,
    out: Option<PathBuf>,
    nics: Nics,
    modules: Vec<OwnModule>,
    is_isolated: bool,
    arguments: Vec<String>,
}

fn main() -> ExitCode {
    let request = match request() {
        Ok(request) => request,
        Err(why) => {
            let names: Vec<&str> = KERNELS.iter().map(|k| k.name).collect();
            eprintln!("{why}\nusage: hypervisor KERNEL SCRIPT {OPTIONS} [ARGUMENT...]");
            eprintln!("kernels: {}", names.join(" "));
            return ExitCode::from(2);
        }
    };
    match run(&request) {
        Ok(status) => ExitCode::from(status as u8),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(125)
        }
    }
}

fn request() -> Result<Request, String> {
    let mut words = std::env::args().skip(1);
    let name = words.next().ok_or("which kernel?")?;
    let kernel = LabKernel::named(&name).ok_or_else(|| format!("{name}: no such kernel"))?;
    let script = words.next().ok_or("which script?")?;
    let script = fs::canonicalize(&script).map_err(|e| format!("{script}: {e}"))?;
    let mut request = Request {
        kernel,
        script,
        limit: Duration::from_secs(600),
        out: None,
        nics: Nics::default(),
        modules: Vec::new(),
        is_isolated: false,
        arguments: Vec::new(),
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--limit" => {
                let seconds = words.next().and_then(|s| s.parse().ok()).ok_or("--limit needs seconds")?;
                request.limit = Duration::from_secs(seconds);
            }
            "--out" => request.out = Some(words.next().ok_or("--out needs a folder")?.into()),
            "--igb" => request.nics = Nics::Igb,
            "--stamping-nics" => request.modules.push(OwnModule::StampingNics),
            "--isolated" => request.is_isolated = true,
            "--slow-idle" => request.modules.push(OwnModule::SlowIdle),
            _ => request.arguments.push(word),
        }
    }
    Ok(request)
}

fn run(request: &Request) -> Result<i32, Box<dyn std::error::Error>> {
    let lab = Lab::new()?;
    let progress = &mut |line: &str| eprintln!("{line}");
    let mut export = String::new();
    for module in &request.modules {
        let file = request.kernel.own_module(*module, progress, NEVER)?;
        export += &format!("export {}={} && ", module.name().to_uppercase(), quoted(&file.display().to_string()));
    }
    let mut hypervisor =
        Hypervisor::boot_with(&lab, request.kernel, request.nics, request.is_isolated, progress, NEVER)?;
    eprintln!(
        "Linux {} is up after {:.1?}, {}",
        hypervisor.release(),
        hypervisor.boot_time(),
        hypervisor.acceleration()
    );
    let words: Vec<String> = request.arguments.iter().map(|a| quoted(a)).collect();
    let inside = hypervisor.path_of(&request.script);
    let folder = inside.parent().unwrap_or(Path::new("/")).display().to_string();
    let script = format!(
        "{export}cd {} && timeout {} bash {} {} >/out/.printed 2>&1",
        quoted(&folder),
        request.limit.as_secs(),
        quoted(&inside.display().to_string()),
        words.join(" ")
    );
    let printed = hypervisor.out().join(".printed");
    let limit = request.limit + Duration::from_secs(30);
    let ended = thread::scope(|scope| {
        let running = scope.spawn(|| hypervisor.run(&script, limit, NEVER));
        show(&printed, limit, || running.is_finished());
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    if let Some(out) = &request.out {
        fs::create_dir_all(out)?;
        let _ = fs::remove_file(&printed);
        let from = hypervisor.out().join(".");
        let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(out).status()?;
        if !copied.success() {
            return Err(format!("cannot copy what it wrote to {}", out.display()).into());
        }
    }
    match ended {
        Ok(output) => Ok(output.status),
        Err(error) => Err(format!("{error}; the end of the console:\n{}", hypervisor.console_tail()).into()),
    }
}

/// Prints a growing file until its writer ends.
fn show(file: &Path, limit: Duration, ended: impl Fn() -> bool) {
    let until = Instant::now() + limit;
    let mut opened: Option<File> = None;
    loop {
        let last = ended() || Instant::now() > until;
        opened = opened.or_else(|| File::open(file).ok());
        let mut bytes = Vec::new();
        if opened.as_mut().is_some_and(|f| f.read_to_end(&mut bytes).is_ok()) && !bytes.is_empty() {
            let mut stdout = std::io::stdout().lock();
            let _ = stdout.write_all(&bytes).and_then(|()| stdout.flush());
        }
        if last {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
}
