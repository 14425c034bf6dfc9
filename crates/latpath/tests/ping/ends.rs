//! How runs end: on a breach, on Ctrl-C, or because the other end died or never existed. In each case the results so
//! far are printed first.

use crate::link::{adds_up, is, need, Link, Says, ANSWER_WITHIN};
use crate::relay;
use latpath_ping::document::{ReflectDocument, SessionEnd};
use latpath_ping::{Source, Stamp};
use latpath_testkit::waits::{sent, until};
use latpath_testkit::{equal, Failed, Trial};
use latpath_testkit::{need_tool, program, trial, PROGRAM};
use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

pub fn tests() -> Vec<Trial> {
    let needs = need();
    let tools = ["make", "objcopy", "readelf"].map(need_tool);
    let mut tests = vec![
        trial("a_reflector_that_stands_still_breaks_the_threshold_and_the_part_is_named", &needs, breach),
        trial("a_breach_can_be_counted_and_the_run_goes_on", &needs, keeps_going),
        trial("a_reflector_has_a_threshold_of_its_own", &needs, slow_reflector),
        trial("a_reflector_judges_a_probe_from_its_arrival_in_the_kernel", &needs, held_before_the_application),
        trial("a_reflector_shows_its_times_draws_them_and_judges_them_by_limits", &needs, reflector_limits),
        trial("a_reflector_that_is_killed_ends_the_run_with_results_and_an_error", &needs, killed),
        trial("a_reflector_that_is_started_again_is_found", &needs, restarted),
        trial("a_reflector_that_starts_after_its_emitter_is_found", &needs, later),
        trial("no_listener_and_no_answer_are_distinguished", &needs, nobody),
        trial("ctrl_c_ends_both_ends_with_what_they_have", &needs, interrupted),
        trial("ctrl_c_ends_an_emitter_that_has_found_nobody", &needs, interrupted_early),
        trial("a_closed_stdout_is_no_error_and_a_full_one_is", &needs, stdout),
        trial("limits_become_tests_of_a_ci_server_and_only_what_was_measured_is_kept", &needs, limits),
        trial("a_host_alone_is_emit_and_the_manual_is_complete", &[], alone),
        trial("what_is_installed_is_stripped_and_has_its_debug_information_beside_it", &tools, installed),
    ];
    tests.extend(relay::tests(&needs));
    tests
}

fn breach() -> Result<(), Failed> {
    let link = Link::new()?;
    let mut reflector = link.reflect("")?;
    // Longer than delays caused by a busy machine.
    let emitter = link.start_emit("10.77.0.2 --rate 200 --threshold 4s")?;
    reflector.answers(100)?;
    reflector.stands_still()?;
    reflector.is_waited_for()?;
    latpath_testkit::waits::fault_for(Duration::from_secs(5));
    reflector.goes_on();
    let said = emitter.finish(ANSWER_WITHIN)?;
    equal(&said.stderr, said.code, Some(3))?;
    let session = said.session()?;
    adds_up(&session)?;
    equal("ended", session.ended, SessionEnd::Breach)?;
    is("it is counted", session.report.over_threshold >= 1)?;
    let worst = &session.report.worst[0];
    is("it is the worst", worst.round_trip_ns > 4_000_000_000)?;
    equal("the part that was long", worst.longest.as_deref(), Some("reflector kernel → app"))?;
    let reflector = reflector.ends()?;
    is("the reflector learns it", reflector.stderr.contains("broke the emitter's threshold"))
}

fn limits() -> Result<(), Failed> {
    let link = Link::new()?;
    let _reflector = link.reflect("")?;
    let folder = tempfile::tempdir()?;
    let (xml, profile) = (folder.path().join("limits.xml"), folder.path().join("limits.toml"));
    std::fs::write(&profile, "[[limit]]\nname = 'a'\nsource = 'b'\nlimit = 'malformed<=0'\n")?;
    let limits = "--limit round_trip:max<=9s --limit journeys>=101 --limit consecutive<=0 --limit consecutive(1ns)<=99";
    let files = format!("--limits {} --junit {}", profile.display(), xml.display());
    let said = link.emit(&format!("10.77.0.2 --count 100 {limits} {files}"))?;
    equal(&said.stderr, said.code, Some(3))?;
    let xml = std::fs::read_to_string(xml)?;
    let document = roxmltree::Document::parse(&xml).map_err(|e| e.to_string())?;
    let cases = document.descendants().filter(|node| node.has_tag_name("testcase"));
    let kind = |case: roxmltree::Node| {
        let failure = case.children().find(|node| node.has_tag_name("failure"));
        failure.and_then(|failure| failure.attribute("type")).map(String::from)
    };
    let kinds: Vec<Option<String>> = cases.map(kind).collect();
    let expected = [None, Some("broken"), None, Some("broken"), Some("cannot-be-judged")];
    equal(&xml, kinds, expected.map(|kind| kind.map(String::from)).to_vec())
}

fn keeps_going() -> Result<(), Failed> {
    let link = Link::new()?;
    let _reflector = link.reflect("")?;
    let said = link.emit("10.77.0.2 --count 100 --threshold 1ns --keep-going")?;
    equal("exit code", said.code, Some(3))?;
    let session = said.session()?;
    adds_up(&session)?;
    equal("all of them", [session.report.counts.sent, session.report.over_threshold], [100, 100])?;
    equal("ended", session.ended, SessionEnd::Done)
}

fn slow_reflector() -> Result<(), Failed> {
    let link = Link::new()?;
    let reflector = link.reflect("--threshold 1ns")?;
    let emitter = link.start_emit("10.77.0.2 --timeout 5s --lost-after 50ms")?;
    let said = reflector.0.finish(ANSWER_WITHIN)?;
    equal("exit code", said.code, Some(3))?;
    is(&said.stderr, said.stderr.contains("was held here for"))?;
    is("it reports a breach", said.document::<ReflectDocument>()?.sum.breached)?;
    equal("its emitter has lost it", emitter.finish(ANSWER_WITHIN)?.code, Some(1))
}

/// The application answers at once, after the kernel kept the probe for seconds.
fn held_before_the_application() -> Result<(), Failed> {
    let link = Link::new()?;
    // Longer than delays caused by a busy machine.
    let mut reflector = link.reflect("--threshold 4s")?;
    let emitter = link.start_emit("10.77.0.2 --rate 200")?;
    reflector.answers(100)?;
    reflector.stands_still()?;
    reflector.is_waited_for()?;
    latpath_testkit::waits::fault_for(Duration::from_secs(5));
    reflector.goes_on();
    let said = reflector.0.finish(ANSWER_WITHIN)?;
    equal(&said.stderr, said.code, Some(3))?;
    is(&said.stderr, said.stderr.contains("T2 kernel → T3 app"))?;
    let ReflectDocument { held, times, .. } = said.document()?;
    equal("the stamps", (held[0].held.from, held[0].clock), (Stamp::T2Kernel, Source::Kernel))?;
    is("the time is the kernel's", held[0].held.time_ns > 4_000_000_000)?;
    let app = times.figures.turnaround.ok_or("no times of the application")?;
    is("the application's is short", app.max_ns < 4_000_000_000)?;
    equal("judged", times.judged.as_str(), "kernel_turnaround")?;
    emitter.interrupt();
    emitter.finish(ANSWER_WITHIN).map(drop)
}

fn reflector_limits() -> Result<(), Failed> {
    let link = Link::new()?;
    let words = "--bucket 1ms --overflow 1s --limit turnaround:max<=9s --limit kernel_turnaround:p50<=1ns";
    let reflector = link.reflect(&format!("{words} --limit duplicates<=0 --limit journeys>=100"))?;
    let emitted = link.emit("10.77.0.2 --count 200")?;
    equal(&emitted.stderr, emitted.code, Some(0))?;
    let said = reflector.ends()?;
    equal(&said.stderr, said.code, Some(3))?;
    let broken: Vec<&str> = said.stderr.lines().filter(|line| line.contains("limit ")).collect();
    is(&format!("{broken:?}"), broken.len() == 1 && broken[0].contains("kernel_turnaround:p50<=1ns broken"))?;
    let ReflectDocument { sessions, times, .. } = said.document()?;
    equal("one session is all of them", &times.figures, &sessions[0].times)?;
    let (kernel, app) = times.figures.kernel_turnaround.zip(times.figures.turnaround).ok_or("times are missing")?;
    equal("probes", kernel.count, 200)?;
    is("the numbers of the extremes", kernel.max_sequence.max(kernel.min_sequence).is_some_and(|n| n < 200))?;
    let drawn: u64 = times.histogram.iter().map(|bucket| bucket.count).sum();
    equal("drawn", drawn + times.overflown, 200)?;
    // The kernel's time ends with the driver's stamp, so it is never shorter than the application's.
    is("the outer time", kernel.mean_ns >= app.mean_ns)
}

fn killed() -> Result<(), Failed> {
    let mut left = Vec::new();
    for pacing in ["", "--rate 1000", "--flood"] {
        let link = Link::new()?;
        let mut reflector = link.reflect("")?;
        let emitter = link.start_emit(&format!("10.77.0.2 {pacing} --timeout 5s --lost-after 500ms"))?;
        reflector.answers(200)?;
        reflector.kill()?;
        left.push((emitter, link));
    }
    for (emitter, _link) in left {
        // The emitter ends by itself: the test does not stop it.
        let said = emitter.finish(ANSWER_WITHIN)?;
        equal("exit code", said.code, Some(1))?;
        let session = said.session()?;
        adds_up(&session)?;
        equal("ended", session.ended, SessionEnd::Dead)?;
        is("what was measured is there", session.report.round_trip.count > 0)?;
        equal("where the rest was lost nobody knows", session.report.lost_there, None)?;
        for part in [
            "latpath: 10.77.0.2:6185: no answer any more, after ",
            "was the reflector stopped, or the route to it cut?",
        ] {
            is(&format!("{part:?} in {}", said.stderr), said.stderr.contains(part))?;
        }
    }
    Ok(())
}

fn restarted() -> Result<(), Failed> {
    let link = Link::new()?;
    let mut reflector = link.reflect("")?;
    let emitter = link.start_emit("10.77.0.2 --rate 500 --lost-after 5s")?;
    reflector.answers(300)?;
    reflector.kill()?;
    let mut another = link.reflect("")?;
    another.answers(300)?;
    emitter.interrupt();
    let said = emitter.finish(ANSWER_WITHIN)?;
    equal(&said.stderr, said.code, Some(0))?;
    let session = said.session()?;
    adds_up(&session)?;
    equal("restarts", session.reflector_restarts, 1)?;
    equal("what it saw before is not known", session.report.reflector, None)?;
    is(&format!("it answers again: {session:?}"), session.report.counts.answered > 400)
}

fn later() -> Result<(), Failed> {
    let link = Link::of_ipv4()?;
    let before = link.there.counters_of("lpr")?.tx_packets;
    let emitter = link.start_emit("10.77.0.2 --count 20")?;
    // The first packet from the other end is its kernel's report that the port is unreachable, since the address has
    // already been resolved.
    let mut refused = || link.there.counters_of("lpr").is_ok_and(|now| now.tx_packets > before);
    until("the emitter learns that nobody listens", &mut refused)?;
    let _reflector = link.reflect("")?;
    let said = emitter.finish(ANSWER_WITHIN)?;
    equal(&said.stderr, said.code, Some(0))?;
    equal("answered", said.session()?.report.counts.answered, 20)
}

fn nobody() -> Result<(), Failed> {
    let link = Link::new()?;
    let cases = [
        ("10.77.0.2", SessionEnd::NobodyListens, "10.77.0.2:6185: nobody listens there"),
        ("10.77.0.2:7", SessionEnd::NobodyListens, "start there: latpath ping reflect"),
        ("fd77::2", SessionEnd::NobodyListens, "[fd77::2]:6185: nobody listens there"),
        ("10.77.0.99", SessionEnd::NobodyAnswers, "10.77.0.99:6185: no answer"),
    ];
    for (address, ended, error) in cases {
        let said = link.emit(&format!("{address} --timeout 300ms"))?;
        equal("exit code", said.code, Some(1))?;
        equal(address, said.session()?.ended, ended)?;
        is(&format!("{error:?} in {}", said.stderr), said.stderr.contains(error))?;
    }
    // If one of several targets cannot start, the whole run ends long before its time limit.
    let said = link.emit("10.77.0.2 192.0.2.1 --timeout 10m --duration 10m")?;
    equal("exit code", said.code, Some(1))?;
    is(
        &said.stderr,
        said.stderr.contains("192.0.2.1:6185: Network is unreachable")
            && said.stderr.contains("ip route get 192.0.2.1"),
    )
}

fn interrupted() -> Result<(), Failed> {
    let link = Link::new()?;
    let mut reflector = link.reflect("")?;
    let emitter = link.start_emit("10.77.0.2 --rate 1000")?;
    reflector.answers(300)?;
    emitter.interrupt();
    let said = emitter.finish(ANSWER_WITHIN)?;
    equal(&said.stderr, said.code, Some(0))?;
    let session = said.session()?;
    adds_up(&session)?;
    equal("ended", session.ended, SessionEnd::Stopped)?;
    let received = session.report.reflector.map(|seen| seen.received);
    is("the reflector was still asked what it saw", received > Some(0))?;
    let reflected: ReflectDocument = reflector.ends()?.json()?;
    equal("received", Some(reflected.sessions[0].received), received)
}

fn interrupted_early() -> Result<(), Failed> {
    let link = Link::of_ipv4()?;
    let before = link.here.counters_of("lpe")?.tx_packets;
    let emitter = link.start_emit("10.77.0.99 --timeout 10m")?;
    until("it asks for 10.77.0.99", || sent(emitter.pid(), "lpe") > before)?;
    emitter.interrupt();
    let said = emitter.finish(ANSWER_WITHIN)?;
    equal(&said.stderr, said.code, Some(0))?;
    let session = said.session()?;
    equal("ended and sent", (session.ended, session.report.counts.sent), (SessionEnd::Stopped, 0))
}

fn stdout() -> Result<(), Failed> {
    let link = Link::new()?;
    let _reflector = link.reflect("")?;
    let run = |stdout: Stdio| -> Result<std::process::Output, Failed> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", link.here.name()]).arg(latpath_testkit::program());
        command.args(["ping", "emit", "10.77.0.2", "--count", "20", "--timeout", "60s"]).env_remove(PROGRAM);
        Ok(command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).spawn()?.wait_with_output()?)
    };
    let (read, write) = std::io::pipe()?;
    drop(read);
    let closed = run(write.into())?;
    equal("closed", (closed.status.code(), closed.stderr.len()), (Some(0), 0))?;
    let full = run(OpenOptions::new().write(true).open("/dev/full")?.into())?;
    equal("full", full.status.code(), Some(1))?;
    let error = String::from_utf8_lossy(&full.stderr).into_owned();
    is(&error, error.contains("No space left on device"))?;
    Ok(())
}

fn installed() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let (built, root) = (directory.path().join("latpath"), directory.path().join("root"));
    // A program built by `make` has its debug information next to it.
    std::fs::copy(program(), &built)?;
    let _ = std::fs::copy(program().with_extension("debug"), built.with_extension("debug"));
    let words = [("LATPATH", &built), ("DESTDIR", &root)].map(|(name, path)| format!("{name}={}", path.display()));
    let mut make = Command::new("make");
    make.args(["-s", "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."), "install", "PREFIX=/usr"]).args(words);
    let made = make.output()?;
    is(&String::from_utf8_lossy(&made.stderr), made.status.success())?;
    let program = root.join("usr/bin/latpath");
    let sections = |file: &Path| -> Result<String, Failed> {
        let read = Command::new("readelf").args(["-S", "--wide"]).arg(file).output()?;
        Ok(String::from_utf8_lossy(&read.stdout).into_owned())
    };
    let stripped = sections(&program)?;
    is(
        &stripped,
        stripped.contains(".gnu_debuglink") && ![".debug_line", ".symtab"].iter().any(|s| stripped.contains(s)),
    )?;
    let debug = sections(&root.join("usr/bin/.debug/latpath.debug"))?;
    is(&debug, debug.contains(".debug_line"))?;
    let manual = std::fs::read_to_string(root.join("usr/share/man/man1/latpath-record.1"))?;
    is(&manual, ["EXAMPLES", "EXIT STATUS", "SEE ALSO"].iter().all(|section| manual.contains(section)))?;
    for file in ["record.md", "LICENSE", "NOTICE", "THIRD-PARTY.txt", "licences/LGPL-3.0.txt", "licences/GPL-3.0.txt"] {
        is(file, root.join("usr/share/doc/latpath").join(file).exists())?;
    }
    let completions = std::fs::read_to_string(root.join("usr/share/bash-completion/completions/latpath"))?;
    is("completions", completions.contains("--threshold"))?;
    is("it runs", Command::new(program).arg("--version").output()?.status.success())
}

fn alone() -> Result<(), Failed> {
    let latpath = |words: &[&str]| std::process::Command::new(env!("CARGO_BIN_EXE_latpath")).args(words).output();
    for host in ["127.0.0.1:9", "localhost:9"] {
        let said = latpath(&["ping", host, "--count", "1"])?;
        let text = String::from_utf8_lossy(&said.stderr);
        is(&text, text.contains("nobody listens there") && said.status.code() == Some(1))?;
    }
    let directory = tempfile::tempdir()?;
    let written = latpath(&["man", &directory.path().display().to_string()])?;
    is("the manual is written", written.status.success() && directory.path().join("latpath-ping-emit.1").exists())?;
    let completions = latpath(&["completions", "bash"])?;
    is("completions are printed", String::from_utf8_lossy(&completions.stdout).contains("--threshold"))?;
    let script = directory.path().join("completions");
    std::fs::write(&script, completions.stdout)?;
    std::fs::write(directory.path().join("own.toml"), "")?;
    let complete = |words: &str| -> Result<Vec<String>, Failed> {
        let last = words.split(' ').count() - 1;
        let text = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD={last}; _latpath latpath \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{}]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script.display(),
            last - 1
        );
        let output = std::process::Command::new("bash").arg("-c").arg(text).current_dir(directory.path()).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(Into::into).collect())
    };
    equal("devices", complete("latpath publish -i l")?.contains(&"lo".to_owned()), true)?;
    equal("devices of the long flag", complete("latpath live --interface lo")?, vec!["lo".to_owned()])?;
    let profiles = complete("latpath report --limits iec")?;
    equal("profiles", profiles, ["iec61850-8-1", "iec61850-9-2"].map(String::from).to_vec())?;
    // File names are never evaluated by a shell.
    std::fs::write(directory.path().join("own$(touch evaluated)"), "")?;
    complete("latpath report --limits own")?;
    is("nothing was evaluated", !directory.path().join("evaluated").exists())?;
    std::fs::remove_file(directory.path().join("own$(touch evaluated)"))?;
    equal("files beside them", complete("latpath report --limits ow")?, vec!["own.toml".to_owned()])?;
    equal("a publisher's", complete("latpath publish --profile f14")?, vec!["f14400s6".to_owned()])
}
