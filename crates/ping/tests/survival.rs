//! Data that survives a kill and a full disk, and the files that a breach leaves behind. Each case runs in its own
//! process: this program, started again.

use latpath_ping::{
    breach::{BreachOptions, BreachTrace, BreachedProbe, Edge},
    log::{Keep, Log, LogOptions},
    Route, Stamp, Transaction,
};
use latpath_testkit::{trial, Failed};
use latpath_tracefs::{Instance, Options, Tracefs};
use nix::{
    mount::{mount, MsFlags},
    sched::{unshare, CloneFlags},
};
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

const ROLE: &str = "LATPATH_TEST_ROLE";
const FOLDER: &str = "LATPATH_TEST_FOLDER";

type Outcome = Result<(), Failed>;
type Test = fn() -> Outcome;

fn main() -> ExitCode {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from).unwrap_or_default();
    let done = match std::env::var(ROLE).as_deref() {
        Ok("log") => log_for_ever(&folder),
        Ok("small-disk") => small_disk(&folder),
        Ok("fill") => small_disk(&folder).and_then(|()| fill(&folder)),
        Ok("hold") => hold(&folder),
        _ => return tests(),
    };
    done.map_or_else(
        |e| {
            eprintln!("{e:?}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

fn tests() -> ExitCode {
    let disk = tempfile::tempdir().is_ok_and(|f| role("small-disk", f.path()).status().is_ok_and(|s| s.success()));
    let no_disk = (!disk).then(|| "a small file system needs root to mount".to_owned());
    let probe = Instance::open_or_make(&unique("probe"), &Options::default());
    let no_tracefs = probe.err().map(|e| format!("no tracefs instance can be made: {e}"));
    let trials: Vec<(&str, Test, Option<String>)> = vec![
        ("a_log_that_was_killed_can_be_read_up_to_its_last_seconds", killed, None),
        ("a_full_disk_ends_a_log_and_is_named", full_disk, no_disk),
        ("a_breach_is_marked_frozen_and_saved", frozen, no_tracefs.clone()),
        ("breaches_are_marked_where_the_run_goes_on", going_on, no_tracefs.clone()),
        ("begin_and_end_of_a_measurement_are_marked_unless_the_trace_is_frozen", marked, no_tracefs.clone()),
        ("a_run_without_a_breach_leaves_nothing", nothing_happened, no_tracefs.clone()),
        ("a_breach_is_held_until_enter", held, no_tracefs),
    ];
    latpath_testkit::main(trials.into_iter().map(|(name, test, lack)| trial(name, &[lack], test)).collect())
}

fn role(name: &str, folder: &Path) -> Command {
    let this = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let mut command = Command::new(this);
    command.env(ROLE, name).env(FOLDER, folder);
    command
}

fn unique(what: &str) -> String {
    format!("latpath-test-{}-{what}", std::process::id())
}

fn route() -> Route {
    Route::detailed(u16::MAX)
}

fn transaction(sequence: u64) -> Transaction {
    let mut t = Transaction { sequence, ..Transaction::default() };
    // Noise, so that the log does not compress.
    let noise = (sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as i64;
    for (at, stamp) in Stamp::ALL.into_iter().enumerate() {
        t.mapped.set(stamp, sequence as i64 * 20_000_000 + at as i64 * noise);
    }
    t.raw = t.mapped;
    t
}

/// Logs in both formats until killed, and prints the number of transactions that are safe in each.
fn log_for_ever(folder: &Path) -> Outcome {
    let open = |name: &str| Log::open(&folder.join(name), Keep::All, &LogOptions::default());
    let mut logs = [open("log.csv")?, open("log.parquet")?];
    logs.iter_mut().for_each(|log| log.begin(&route()));
    for n in 0.. {
        logs.iter_mut().for_each(|log| log.push(&transaction(n)));
        latpath_testkit::waits::pace(Duration::from_micros(500));
        if n % 100 == 0 {
            println!("{} {}", logs[0].rows(), logs[1].rows());
        }
    }
    Ok(())
}

fn killed() -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut child = role("log", folder.path()).stdout(Stdio::piped()).spawn()?;
    let said = BufReader::new(child.stdout.take().ok_or("no pipe")?);
    let (mut csv, mut parquet) = (0, 0);
    let until = Instant::now() + Duration::from_secs(60);
    for line in said.lines() {
        let line = line?;
        let (a, b) = line.split_once(' ').ok_or("two numbers")?;
        (csv, parquet) = (a.parse::<usize>()?, b.parse::<usize>()?);
        if csv > 0 && parquet > 0 || Instant::now() > until {
            break;
        }
    }
    child.kill()?;
    child.wait()?;
    assert!(csv > 0 && parquet > 0, "{csv} {parquet}");
    let text = fs::read_to_string(folder.path().join("log.csv"))?;
    let columns = text.lines().next().ok_or("a heading")?.split(',').count();
    let rows = text.lines().skip(1).take_while(|l| l.split(',').count() == columns);
    let numbers: Vec<u64> = rows.filter_map(|l| l.split(',').next()?.parse().ok()).collect();
    assert!(numbers.len() >= csv && numbers.iter().enumerate().all(|(at, n)| at as u64 == *n), "{}", numbers.len());
    let mut rows = 0;
    for entry in fs::read_dir(folder.path())? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        if name.starts_with("log.part-") {
            let reader = SerializedFileReader::new(File::open(folder.path().join(name))?)?;
            rows += reader.metadata().file_metadata().num_rows() as usize;
        }
    }
    assert!(rows >= parquet, "{rows} of {parquet}");
    Ok(())
}

/// Mounts a file system of 1 MiB in a separate mount namespace.
fn small_disk(folder: &Path) -> Outcome {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("tmpfs"), folder, Some("tmpfs"), MsFlags::empty(), Some("size=1m"))?;
    Ok(())
}

fn full_disk() -> Outcome {
    let folder = tempfile::tempdir()?;
    let output = role("fill", folder.path()).output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn fill(folder: &Path) -> Outcome {
    for name in ["log.csv", "log.parquet"] {
        let path = folder.join(name);
        let mut log = Log::open(&path, Keep::All, &LogOptions::default())?;
        log.begin(&route());
        let until = Instant::now() + Duration::from_secs(30);
        let mut pushed = 0;
        while !log.failed() && Instant::now() < until {
            for _ in 0..1000 {
                log.push(&transaction(pushed));
                pushed += 1;
            }
            latpath_testkit::waits::pace(Duration::from_millis(5));
        }
        let summary = log.finish();
        let error = summary.error.as_ref().ok_or("a full disk is an error")?.to_string();
        assert!(error.contains("/log.") && error.contains("No space left"), "{error}");
        assert_eq!(summary.rows + summary.dropped, pushed);
        if name == "log.csv" {
            let text = fs::read_to_string(&path)?;
            assert!(text.ends_with('\n'), "whole lines only");
            assert_eq!(text.lines().count() as u64, summary.rows + 1);
        }
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            assert!(!entry.file_name().to_string_lossy().starts_with('.'), "{entry:?}");
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn options(folder: &Path, what: &str, freeze: bool) -> BreachOptions {
    BreachOptions {
        instance: unique(what),
        record: Options { buffer_kb: Some(64), snapshot: true, ..Options::default() },
        save: folder.join("breach.trace"),
        most_bytes: BreachOptions::MAX_BYTES,
        freeze,
    }
}

fn instance(what: &str) -> Result<PathBuf, Failed> {
    Ok(Tracefs::open()?.path().join("instances").join(unique(what)))
}

/// Concatenates all saved text.
fn text(folder: &Path) -> Result<String, Failed> {
    let read = |name| fs::read_to_string(folder.join(name));
    Ok(read("breach.trace")? + &read("breach.trace.snapshot").unwrap_or_default())
}

fn frozen() -> Outcome {
    let folder = tempfile::tempdir()?;
    let breach = BreachTrace::prepare(options(folder.path(), "frozen", true))?;
    assert!(breach.path().is_some_and(Path::is_dir));
    for n in [7, 8] {
        breach.breach(&BreachedProbe::of(0xabc, &transaction(n), &route(), &[1; 13]));
    }
    let report = breach.end(None, &mut std::io::sink());
    assert_eq!((report.breaches, report.breached.len(), report.breached[0].sequence), (2, 2, 7));
    let text = text(folder.path())?;
    assert!(text.contains("latpath breach: session 00000abc sequence 7 round_trip_ns "), "{text}");
    assert!(!text.contains("sequence 8"), "the first breach froze the trace");
    assert!(report.saved.is_some_and(|s| s.files[0].path.is_file()));
    assert!(!instance("frozen")?.exists());
    let again = BreachTrace::prepare(options(folder.path(), "frozen", true)).err().ok_or("the file is there")?;
    assert!(again.to_string().contains("exists already"), "{again}");
    // An empty file, as a killed run leaves it, is no obstacle.
    fs::write(folder.path().join("breach.trace"), "")?;
    let _ = fs::remove_file(folder.path().join("breach.trace.snapshot"));
    BreachTrace::prepare(options(folder.path(), "frozen", true))?;
    Ok(())
}

fn going_on() -> Outcome {
    let folder = tempfile::tempdir()?;
    let breach = BreachTrace::prepare(options(folder.path(), "going-on", false))?;
    (0..150).for_each(|n| breach.breach(&BreachedProbe::of(1, &transaction(n), &route(), &[])));
    let report = breach.end(None, &mut std::io::sink());
    assert_eq!((report.breaches, report.breached.len()), (150, 100));
    assert!(text(folder.path())?.contains("sequence 149 "), "every breach left its mark");
    Ok(())
}

fn marked() -> Outcome {
    for freeze in [false, true] {
        let folder = tempfile::tempdir()?;
        let breach = BreachTrace::prepare(options(folder.path(), "marked", freeze))?;
        breach.mark(Edge::Begin, "session 00000abc");
        breach.breach(&BreachedProbe::of(0xabc, &transaction(7), &route(), &[]));
        breach.mark(Edge::End, "session 00000abc");
        let report = breach.end(None, &mut std::io::sink());
        let text = text(folder.path())?;
        let marks = ["latpath begin: session 00000abc", "latpath breach: ", "latpath end: session 00000abc"];
        let at = marks.map(|mark| text.find(mark));
        assert!(at[0].is_some() && at[0] < at[1], "{text}");
        assert_eq!(at[2].is_some(), !freeze, "a frozen trace takes no mark: {text}");
        assert_eq!(report.breaches, 1);
    }
    Ok(())
}

fn nothing_happened() -> Outcome {
    let folder = tempfile::tempdir()?;
    let breach = BreachTrace::prepare(options(folder.path(), "nothing", true))?;
    let report = breach.end(Some(&AtomicBool::new(false)), &mut std::io::sink());
    assert!(report.breaches == 0 && report.saved.is_none());
    drop(BreachTrace::prepare(options(folder.path(), "nothing", true))?);
    assert_eq!(fs::read_dir(folder.path())?.count(), 0);
    assert!(!instance("nothing")?.exists());
    Ok(())
}

/// Keeps a breach for inspection until a line arrives on standard input.
fn hold(folder: &Path) -> Outcome {
    let breach = BreachTrace::prepare(options(folder, "hold", true))?;
    breach.breach(&BreachedProbe::of(1, &transaction(1), &route(), &[]));
    breach.end(Some(&AtomicBool::new(false)), &mut std::io::stderr());
    Ok(())
}

fn held() -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut child = role("hold", folder.path()).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let said = read_to_prompt(&mut child)?;
    let path = said.lines().find_map(|l| l.split_once("stopped: ")).ok_or_else(|| format!("where is it? {said}"))?.1;
    assert_eq!(fs::read_to_string(Path::new(path).join("tracing_on"))?.trim(), "0");
    let file = folder.path().join("breach.trace");
    assert!(said.contains(&format!("saved: {}", file.display())), "{said}");
    child.stdin.take().ok_or("no pipe")?.write_all(b"\n")?;
    assert!(child.wait()?.success());
    assert!(!Path::new(path).exists() && file.is_file());
    Ok(())
}

fn read_to_prompt(child: &mut Child) -> Result<String, Failed> {
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().ok_or("no pipe")?).lines() {
        said += &(line? + "\n");
        if said.contains("Enter or Ctrl-C") {
            break;
        }
    }
    Ok(said)
}
