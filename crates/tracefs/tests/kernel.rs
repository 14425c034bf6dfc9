//! Uses the kernel's own tracefs: instances are removed, settings are restored, and tracefs is found even if hidden.

use latpath_linux::Directory;
use latpath_testkit::{trial, waits::until, Failed};
use latpath_tracefs::{Error, Instance, Instances, Options, Saved, Tracefs};
use latpath_undo::Journal;
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Output, Stdio},
    sync::OnceLock,
};

const ROLE: &str = "LATPATH_TEST_ROLE";
const NAME: &str = "LATPATH_TEST_NAME";

type Outcome = Result<(), Failed>;
type Test = fn() -> Outcome;

fn main() -> ExitCode {
    let name = std::env::var(NAME).unwrap_or_default();
    match std::env::var(ROLE).as_deref() {
        Ok("hold") => return hold(&name),
        Ok("mark") => return mark_once(&name),
        _ => {}
    }
    let probed = Instance::open_or_make(&unique("probe"), &Options { snapshot: true, ..Options::default() });
    let why = probed.as_ref().err().map(|e| format!("no tracefs instance can be made: {e}"));
    let snapshots = probed.as_ref().is_ok_and(|i| i.snapshot().is_ok_and(|taken| taken));
    drop(probed);
    let in_namespaces =
        in_namespaces("true", &unique("probe")).and_then(|mut o| Ok(o.status().map(|s| s.success())?));
    let isolate = matches!(in_namespaces, Ok(true));
    let no_snapshot = (!snapshots).then(|| "the kernel takes no snapshots (CONFIG_TRACER_SNAPSHOT)".to_owned());
    let no_isolation = (!isolate).then(|| "mount and PID namespaces cannot be made".to_owned());
    let trials: Vec<(&str, Test, Option<String>)> = vec![
        ("an_instance_is_made_marked_stopped_saved_and_removed", made, None),
        ("an_instance_of_the_users_is_put_back", theirs, None),
        ("what_a_kill_left_goes_with_the_next_start", killed, None),
        ("an_instance_has_one_user", one_user, None),
        ("what_the_buffers_lost_is_counted", overruns, None),
        ("what_the_kernel_refuses_is_named_and_leaves_nothing", refused, None),
        ("a_snapshot_holds_what_came_before_it", snapshot, no_snapshot),
        ("tracefs_is_found_where_sys_is_hidden", hidden, no_isolation.clone()),
        ("tracefs_is_reached_where_it_is_mounted_nowhere", nowhere, no_isolation),
    ];
    let trials = trials.into_iter().map(|(name, test, lack)| trial(name, &[why.clone(), lack], test));
    latpath_testkit::main(trials.collect())
}

fn unique(what: &str) -> String {
    format!("latpath-test-{}-{what}", std::process::id())
}

/// The directory of the instances. If tracefs is not mounted, a mount is kept open until the tests end.
fn instances() -> Result<PathBuf, Failed> {
    static HELD: OnceLock<Tracefs> = OnceLock::new();
    let tracefs = HELD.get_or_init(|| Tracefs::open().expect("it was opened before"));
    Ok(tracefs.path().join("instances"))
}

/// Compares device and inode numbers, because the paths through two mounts may differ.
fn is_same(a: &Path, b: &Path) -> bool {
    let number = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    number(a).is_some() && number(a) == number(b)
}

fn read(path: &Path) -> Result<String, Failed> {
    Ok(fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?.trim().to_owned())
}

fn sched() -> Options {
    Options { events: vec!["sched:sched_switch".into()], buffer_kb: Some(64), ..Options::default() }
}

fn made() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("trace.txt");
    let name = unique("made");
    let instance = Instance::open_or_make(&name, &sched())?;
    assert!(instance.made() && instance.notes().is_empty(), "{:?}", instance.notes());
    let path = instance.path().to_owned();
    assert!(read(&path.join("trace_clock"))?.contains("[mono]"));
    assert_eq!(read(&path.join("events/sched/sched_switch/enable"))?, "1");
    instance.mark("first mark\nsecond mark")?;
    until("a switch is traced", || read(&path.join("trace")).is_ok_and(|text| text.contains("sched_switch: ")))?;
    instance.stop()?;
    let refused = instance.mark("too late").unwrap_err().to_string();
    assert!(refused.contains("tracing is off"), "{refused}");
    let saved = save(&instance, &file, 1 << 24)?;
    let text = read(&file)?;
    assert!(text.starts_with("# tracer: nop"), "{text}");
    let at = |what: &str| text.find(what).ok_or_else(|| format!("no {what:?} in the trace"));
    assert!(at("first mark")? < at("second mark")?);
    assert!(text.contains("sched_switch: "), "{text}");
    assert!(!text.contains("too late"));
    assert!(saved.files[0].events.is_some_and(|n| n >= 3), "{saved:?}");
    instance.close()?;
    assert!(!path.exists(), "what was made is removed");
    assert!(!Path::new("/run/latpath/journal").join(format!("tracefs-{name}")).exists());
    Ok(())
}

fn save(instance: &Instance, file: &Path, most: u64) -> Result<Saved, Failed> {
    let (directory, name) = Directory::of_file(file)?;
    Ok(instance.save((&directory, &name), most)?)
}

/// An instance made by the user, removed when dropped.
struct Users(PathBuf);

impl Users {
    fn make(what: &str) -> Result<Self, Failed> {
        let path = instances()?.join(unique(what));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn set(&self, file: &str, value: &str) -> Outcome {
        Ok(fs::write(self.0.join(file), value)?)
    }

    /// The values of all settings that a test changes.
    fn settings(&self) -> Result<Vec<String>, Failed> {
        ["buffer_size_kb", "tracing_cpumask", "trace_clock", "tracing_on", "current_tracer", "set_event"]
            .iter()
            .map(|file| read(&self.0.join(file)))
            .collect()
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        // A process forked by another test may briefly have its files open.
        for _ in 0..400 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            latpath_testkit::waits::fault_for(std::time::Duration::from_millis(5));
        }
    }
}

fn theirs() -> Outcome {
    let users = Users::make("theirs")?;
    users.set("buffer_size_kb", "128")?;
    users.set("tracing_on", "0")?;
    users.set("events/sched/sched_wakeup/enable", "1")?;
    let before = users.settings()?;
    let options = Options { events: vec!["sched".into()], buffer_kb: Some(64), cpus: vec![0], ..Options::default() };
    let instance = Instance::open_or_make(&unique("theirs"), &options)?;
    assert!(!instance.made());
    assert!(is_same(instance.path(), &users.0), "{}", instance.path().display());
    let during = users.settings()?;
    assert!(during[5].lines().count() > 3, "the whole of sched is enabled: {during:?}");
    assert_eq!((during[1].as_str(), during[2] == before[2], during[3].as_str()), ("1", true, "1"));
    instance.stop()?;
    drop(instance);
    assert_eq!(users.settings()?, before);
    Ok(())
}

/// Opens an instance, prints its path, and waits to be killed.
fn hold(name: &str) -> ExitCode {
    let opened = Instance::open_or_make(name, &sched());
    println!("{}", opened.as_ref().map_or_else(ToString::to_string, |i| i.path().display().to_string()));
    latpath_testkit::waits::fault_for(std::time::Duration::from_secs(60));
    ExitCode::FAILURE
}

fn role(name: &str, instance: &str) -> Result<Command, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ROLE, name).env(NAME, instance);
    Ok(command)
}

/// Starts a process that opens the instance, and kills it.
fn open_and_kill(name: &str) -> Outcome {
    let mut child = role("hold", name)?.stdout(Stdio::piped()).spawn()?;
    let mut said = String::new();
    let read = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut said));
    child.kill()?;
    child.wait()?;
    assert!(matches!(read, Some(Ok(_))) && said.contains(name) && instances()?.join(name).is_dir(), "{said}");
    Ok(())
}

fn killed() -> Outcome {
    let users = Users::make("killed-theirs")?;
    let before = users.settings()?;
    let (theirs, ours) = (unique("killed-theirs"), unique("killed"));
    open_and_kill(&ours)?;
    open_and_kill(&theirs)?;
    // Any start of latpath sweeps the journal, including one in another test.
    Journal::of_this_machine().sweep(&[&Instances]);
    assert!(!instances()?.join(&ours).exists(), "the killed process's own instance is gone");
    assert_eq!(users.settings()?, before);
    // An instance with the name of the removed one can be opened again.
    open_and_kill(&ours)?;
    assert!(Instance::is_there(&theirs) && !Instance::is_there(&ours));
    let again = Instance::open_or_make(&ours, &Options::default())?;
    assert!(again.made());
    Ok(())
}

fn one_user() -> Outcome {
    let name = unique("one");
    let _first = Instance::open_or_make(&name, &Options::default())?;
    let error = Instance::open_or_make(&name, &Options::default()).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    Ok(())
}

fn overruns() -> Outcome {
    let folder = tempfile::tempdir()?;
    let options = Options { buffer_kb: Some(4), ..Options::default() };
    let instance = Instance::open_or_make(&unique("small"), &options)?;
    let line = "x".repeat(500);
    for n in 0..200 {
        instance.mark(&format!("{n} {line}"))?;
    }
    instance.stop()?;
    let saved = save(&instance, &folder.path().join("trace.txt"), 1 << 24)?;
    let lost: u64 = saved.lost.iter().map(|l| l.overwritten).sum();
    assert!(lost > 0, "{saved:?}");
    let held = saved.files[0].events.unwrap_or_default();
    assert_eq!(held + lost, 200, "what is held and what is lost is what was written: {saved:?}");
    assert_eq!(saved.files[0].overwritten, Some(lost));
    // A file of limited size keeps the newest events.
    let bounded = save(&instance, &folder.path().join("short.txt"), 2000)?;
    let text = read(&folder.path().join("short.txt"))?;
    assert!(bounded.files[0].left_out > 0 && text.contains(": 199 xxx"), "{bounded:?}");
    Ok(())
}

fn refused() -> Outcome {
    let name = unique("refused");
    let options = Options { tracer: Some("no-such-tracer".into()), ..Options::default() };
    let error = Instance::open_or_make(&name, &options).unwrap_err().to_string();
    assert!(error.contains("no-such-tracer") && error.contains("nop"), "{error}");
    assert!(!instances()?.join(&name).exists());
    let events = vec!["sched:no_such_event".into(), "sched:sched_switch".into()];
    let instance = Instance::open_or_make(&name, &Options { events, ..Options::default() })?;
    let notes = instance.notes();
    assert!(notes.len() == 1 && notes[0].contains("sched:no_such_event"), "{notes:?}");
    assert_eq!(read(&instance.path().join("set_event"))?, "sched:sched_switch");
    Ok(())
}

fn snapshot() -> Outcome {
    let folder = tempfile::tempdir()?;
    let options = Options { buffer_kb: Some(64), snapshot: true, ..Options::default() };
    let instance = Instance::open_or_make(&unique("snapshot"), &options)?;
    instance.mark("before")?;
    assert!(instance.snapshot()?);
    instance.mark("after")?;
    instance.stop()?;
    let file = folder.path().join("trace.txt");
    let saved = save(&instance, &file, 1 << 20)?;
    let (trace, snapshot) = (read(&file)?, read(&saved.files[1].path)?);
    assert!(snapshot.contains("before") && !snapshot.contains("after"), "{snapshot}");
    assert!(trace.contains("after") && !trace.contains("before"), "{trace}");
    Ok(())
}

/// Runs this program in its own mount and PID namespaces, so that other processes' mounts are not visible.
fn in_namespaces(script: &str, name: &str) -> Result<Command, Failed> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script]);
    command.env(ROLE, "mark").env(NAME, name).env("SELF", std::env::current_exe()?);
    Ok(command)
}

/// Makes an instance, writes a mark, saves the trace, and prints the path of tracefs.
fn mark_once(name: &str) -> ExitCode {
    let marked = || -> Result<String, Failed> {
        let folder = tempfile::tempdir()?;
        let instance = Instance::open_or_make(name, &Options::default())?;
        instance.mark("seen")?;
        let path = instance.path().to_owned();
        assert!(path.is_dir(), "{}: the user can reach it", path.display());
        let file = folder.path().join("trace.txt");
        save(&instance, &file, 1 << 20)?;
        assert!(read(&file)?.contains("seen"));
        instance.close()?;
        Ok(path.display().to_string())
    };
    match marked() {
        Ok(path) => println!("{path}"),
        Err(error) => {
            eprintln!("{error:?}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn said(output: &Output) -> Result<String, Failed> {
    let error = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() {
        Ok(said)
    } else {
        Err(format!("{said}\n{error}").into())
    }
}

fn hidden() -> Outcome {
    let name = unique("hidden");
    // Like `ip netns exec`, hides tracefs by mounting another /sys.
    let script = "umount -l /sys && mount -t sysfs none /sys && exec \"$SELF\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "sh", "-c", script]);
    command.env(ROLE, "mark").env(NAME, &name).env("SELF", std::env::current_exe()?);
    let path = said(&command.output()?)?;
    let seen_above = fs::read_to_string("/proc/self/mountinfo")?.contains(" - tracefs ");
    assert_eq!(path.contains("/root/"), seen_above, "{path}");
    assert!(!instances()?.join(&name).exists());
    Ok(())
}

fn nowhere() -> Outcome {
    let name = unique("nowhere");
    let script = "umount -l /sys && \"$SELF\" && ! grep tracefs /proc/self/mountinfo";
    let path = said(&in_namespaces(script, &name)?.output()?)?;
    assert!(path.contains("/fd/"), "{path}");
    assert!(!instances()?.join(&name).exists());
    Ok(())
}
