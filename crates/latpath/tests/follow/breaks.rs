//! Failures around a recording, and the data that remains.

use crate::{equal, own, publish, report, subscribe, until, Recorder, LIMIT, LONG_WRAP};
use latpath_lab::PUBLISHER;
use latpath_run::{Condition, Run};
use latpath_testkit::{bench, latpath, trial, Lack};
use latpath_testkit::{Failed, Trial};
use nix::mount::{mount, umount2, MntFlags, MsFlags};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial("kill_9_loses_nothing_that_was_on_the_disk", needs, kill_9),
        trial("a_full_disk_ends_the_recording_with_a_readable_run", needs, full_disk),
        trial("a_disk_with_no_room_for_a_run_is_said_and_has_nothing_of_it", needs, tiny_disk),
        trial("a_run_that_somebody_removes_ends_and_is_not_made_again", needs, removed),
        trial("a_run_of_the_same_name_is_left_alone", needs, in_the_way),
        trial("a_device_that_vanishes_does_not_end_the_recording", needs, vanished),
        trial("a_reader_that_ends_and_one_that_comes_back_are_reported", needs, reader_ends),
        trial("no_program_stays_in_the_kernel_after_kill_9", needs, nothing_stays),
        trial("a_machine_that_cannot_be_reached_is_named", needs, unreachable),
        trial("without_root_it_says_what_is_needed", needs, no_root),
        trial("without_btf_it_says_what_is_needed", needs, no_btf),
        trial("wrong_usage_ends_with_2_and_says_what_is_right", &[], usage),
    ]
}

/// Three recorders, killed at different times between two parts.
fn kill_9() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("killed");
    let words = format!("publish -i {PUBLISHER} --svid {svid} --duration 600s");
    let publisher = bench.start(&bench.path.publisher, latpath(&words))?;
    for round in 0..3 {
        let recorder = Recorder::start(&bench, &format!("run{round}"), &format!("--stream svid:{svid}"))?;
        recorder.has(4_000)?;
        latpath_testkit::waits::fault_for(Duration::from_millis(350) * round);
        let stored = Run::open(&recorder.run)?.journeys();
        kill(Pid::from_raw(recorder.process.pid() as i32), Signal::SIGKILL)?;
        let ended = recorder.process.finish(LIMIT)?;
        equal("exit code", ended.code, None)?;
        let run = Run::open(&recorder.run)?;
        equal("condition", run.condition(), &Condition::Killed)?;
        let settings: Vec<_> = run.settings().machines.iter().map(|m| (m.begin.is_some(), m.end.is_some())).collect();
        equal("settings of its beginning, and of its end", settings, vec![(true, false)])?;
        equal(&format!("{} journeys of {stored}", run.journeys()), run.journeys() >= stored, true)?;
        let figures = report(&recorder.run, "")?;
        equal("journeys", figures.summary.journeys, run.journeys())?;
        equal("state", figures.run.state.as_ref(), "killed")?;
    }
    publisher.interrupt();
    publisher.finish(LIMIT).map(drop)
}

/// A small file system, unmounted on drop.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    fn mount(at: &'a Path, size: &str) -> Result<Self, Failed> {
        std::fs::create_dir_all(at)?;
        let options = format!("size={size}");
        mount(Some("latpath-test"), at, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))?;
        Ok(Self(at))
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = umount2(self.0, MntFlags::MNT_DETACH);
    }
}

fn full_disk() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("full");
    let disk = bench.lab.folder().join("disk");
    let _small = Small::mount(&disk, "1m")?;
    let recorder = Recorder::start_at(&bench, disk.join("run"), &format!("--stream svid:{svid}"))?;
    let words = format!("publish -i {PUBLISHER} --svid {svid} --rate 20000 {LONG_WRAP} --duration 300s");
    let publisher = bench.start(&bench.path.publisher, latpath(&words))?;
    let run = recorder.run.clone();
    let ended = recorder.process.finish(LIMIT)?;
    publisher.interrupt();
    publisher.finish(LIMIT)?;
    equal("exit code", ended.code, Some(1))?;
    for part in ["No space left on device", &run.display().to_string()] {
        equal(&format!("{:?} names {part:?}", ended.stderr), ended.stderr.contains(part), true)?;
    }
    let opened = Run::open(&run)?;
    equal("something was kept", opened.journeys() > 0, true)?;
    let says_why = matches!(opened.condition(), Condition::Interrupted(why) if !why.is_empty());
    equal(&format!("{:?} says why", opened.condition()), says_why, true)?;
    equal("journeys", report(&run, "")?.summary.journeys, opened.journeys())
}

/// A disk of two pages, which is less than any run needs at first.
fn tiny_disk() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let disk = folder.path().join("disk");
    let _small = Small::mount(&disk, "8k")?;
    let run = disk.join("run");
    let output =
        latpath(&format!("record --stream svid:{} --duration 1s -o {}", own("tiny"), run.display())).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    equal("exit code", output.status.code(), Some(1))?;
    equal(&said, said.contains("No space left on device") && said.contains(&run.display().to_string()), true)?;
    equal("entries", std::fs::read_dir(&disk)?.count(), 0)
}

fn reader_ends() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("ends");
    let words = format!("publish -i {PUBLISHER} --svid {svid} --rate 1000 --duration 600s {LONG_WRAP}");
    let publisher = bench.start(&bench.path.publisher, latpath(&words))?;
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid}"))?;
    let more = |packets: u64| recorder.has(Run::open(&recorder.run)?.journeys() + packets);
    for _ in 0..2 {
        let application = subscribe(&bench, &svid)?;
        more(2000)?;
        application.interrupt();
        application.finish(LIMIT)?;
        more(2000)?;
    }
    let run = recorder.end()?;
    publisher.interrupt();
    publisher.finish(LIMIT)?;
    let figures = report(&run, "--limit lost<=1000000")?;
    let gaps = &figures.summary.reader_gaps;
    let ended = gaps.iter().filter(|gap| gap.has_read_before);
    let facts: Vec<_> = ended.map(|gap| [gap.is_closed, gap.reads_again]).collect();
    equal(&format!("{gaps:?}"), facts, vec![[true, true], [true, false]])?;
    let texts = ["subscribe ended (or closed its socket) at ", " and came back at ", " and has read nothing since"];
    let html = bench.lab.folder().join("report.html");
    let shown = latpath(&format!("report {} --html {}", run.display(), html.display())).output()?;
    equal(&String::from_utf8_lossy(&shown.stderr), shown.status.success(), true)?;
    let live = latpath(&format!("live --replay {} --speed max --plain", run.display())).output()?;
    let unwrapped = |bytes: &[u8]| String::from_utf8_lossy(bytes).split_whitespace().collect::<Vec<_>>().join(" ");
    for (what, text) in [
        ("JSON", figures.summary.notes.concat()),
        ("what weakens the verdict", figures.weaknesses.concat()),
        ("the HTML report", unwrapped(&std::fs::read(&html)?)),
        ("the text", unwrapped(&latpath(&format!("report {}", run.display())).output()?.stdout)),
        ("live", unwrapped(&live.stdout)),
    ] {
        texts.iter().try_for_each(|part| equal(&format!("{what}: {part}"), text.contains(part.trim()), true))?;
    }
    Ok(())
}

fn removed() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("removed");
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid}"))?;
    let words = format!("publish -i {PUBLISHER} --svid {svid} --duration 300s");
    let publisher = bench.start(&bench.path.publisher, latpath(&words))?;
    recorder.has(1_000)?;
    let run = recorder.run.clone();
    // The writer may create a part between the removal of the directory's other entries and of the directory itself.
    until("the run is removed", || std::fs::remove_dir_all(&run).is_ok() || !run.exists())?;
    let ended = recorder.process.finish(LIMIT)?;
    publisher.interrupt();
    publisher.finish(LIMIT)?;
    equal("exit code", ended.code, Some(1))?;
    let why = format!("somebody removed {} while it was recorded", run.display());
    equal(&ended.stderr, ended.stderr.contains(&why), true)?;
    equal("it is there again", run.exists(), false)
}

fn in_the_way() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("precious");
    std::fs::write(&file, "data")?;
    let words = format!("record --stream svid:{} --duration 1s -o {}", own("x"), folder.path().display());
    let output = latpath(&words).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    equal("exit code", output.status.code(), Some(1))?;
    equal(&said, said.contains("exists already") && said.contains(&folder.path().display().to_string()), true)?;
    equal("the file", std::fs::read_to_string(&file)?, "data".into())?;
    equal("files", std::fs::read_dir(folder.path())?.count(), 1)
}

fn vanished() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("vanish");
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid}"))?;
    publish(&bench, &format!("--svid {svid} --count 2000"))?;
    recorder.has(2000)?;
    // Removes the whole route to the application.
    let mut ip = Command::new("ip");
    ip.args(["link", "delete", "veth0"]);
    let deleted = bench.run(&bench.path.hypervisor, ip, LIMIT)?;
    equal("ip link delete", deleted.code, Some(0))?;
    publish(&bench, &format!("--svid {svid} --first 2000 --count 1000"))?;
    recorder.has(3000)?;
    let figures = report(&recorder.end()?, "")?.summary;
    equal("journeys and complete", (figures.journeys, figures.complete), (3000, 2000))?;
    let lost = figures.lost.first().map(|loss| (loss.place.as_str(), loss.count));
    equal("lost at the host's NIC", lost, Some(("host/nic-rx@nic0", 1000)))
}

/// IDs of the kernel programs that a process holds; other processes' programs come and go.
fn programs_of(pid: u32) -> Vec<u32> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let number = |text: String| text.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok());
    texts.filter_map(number).collect()
}

fn stands(program: u32) -> bool {
    // SAFETY: takes only an integer; the caller owns the returned descriptor.
    let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(program) };
    if fd >= 0 {
        // SAFETY: the descriptor has no other owner.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    fd >= 0
}

fn nothing_stays() -> Result<(), Failed> {
    let bench = bench()?;
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{}", own("stay")))?;
    let programs = programs_of(recorder.process.pid());
    equal("programs that it has", programs.len() > 1 && programs.iter().all(|p| stands(*p)), true)?;
    kill(Pid::from_raw(recorder.process.pid() as i32), Signal::SIGKILL)?;
    recorder.process.finish(LIMIT)?;
    let pinned = std::fs::read_dir("/sys/fs/bpf").into_iter().flatten().flatten();
    let ours = pinned.filter(|e| e.file_name().to_string_lossy().contains("latpath")).count();
    equal("pinned", ours, 0)?;
    until("the kernel frees the programs", || !programs.iter().any(|p| stands(*p)))
}

fn unreachable() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let run = folder.path().join("run");
    let words = format!("record --stream svid:a --machine guest0=unix:/nowhere/agent -o {}", run.display());
    let output = latpath(&words).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    equal("exit code", output.status.code(), Some(1))?;
    equal(&said, said.contains("guest0: waits up to 10 s for the socket /nowhere/agent, which is not there"), true)?;
    let last = said.lines().last().unwrap_or_default();
    equal(&said, last.contains("guest0") && last.contains("/nowhere/agent") && !last.contains("waits"), true)?;
    equal("a run was made", run.exists(), false)
}

fn no_root() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    // Copies the program into a directory where any user may run it.
    let program = folder.path().join("latpath");
    std::fs::copy(env!("CARGO_BIN_EXE_latpath"), &program)?;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    let output = Command::new(&program).args(["live", "--stream", "svid:a"]).uid(65534).gid(65534).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    equal("exit code", output.status.code(), Some(1))?;
    equal(&said, said.contains("needs root"), true)
}

fn no_btf() -> Result<(), Failed> {
    // Runs in its own mount namespace, without the kernel's type information (BTF).
    let words = [
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs none /sys/kernel/btf && exec \"$0\" live --stream svid:a",
        env!("CARGO_BIN_EXE_latpath"),
    ];
    let output = Command::new("unshare").args(words).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    equal("exit code", output.status.code(), Some(1))?;
    equal(&said, said.contains("/sys/kernel/btf/vmlinux") && said.contains("CONFIG_DEBUG_INFO_BTF"), true)
}

fn usage() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let run = folder.path().join("run");
    for (words, right) in [
        ("--stream MU01", "svid:ID"),
        ("--stream svid:a --stream svid:a", "named twice"),
        ("--stream svid:a --machine g=tcp:1.2.3.4:5", "unix:PATH"),
        ("--stream svid:a --machine host=unix:/x", "this machine"),
        ("--stream svid:a --window 9s", "1ms to 4s"),
        ("--stream svid:a --segment x", "NAME=FROM..TO"),
        ("--stream svid:a --match hash:0:999", "1 to 128"),
        (
            "--stream svid:a --segment lan=a/tx@b..c/tx@d --limit lan:max<=1ms --limit host/tx@a→host/tx@b:max<=1ms --limit Tfoo:max<=3ms",
            "\"Tfoo\": no such segment (there can be: Tmu, Tsend, Tnet, Thyp, Tsub, total, Treact, Tin, Tapp, Tout, Tupcall, Tskew, lan; or from one point to the next",
        ),
        ("", "--stream"),
    ] {
        let output = latpath(&format!("record {words} -o {}", run.display())).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        equal(&format!("{words:?}: {said}"), (output.status.code(), said.contains(right)), (Some(2), true))?;
    }
    equal("a run was made", run.exists(), false)
}
