//! `latpath tune` from the command line: on network devices of the lab's namespaces, under a stream.

use latpath_lab::{APPLICATION, NIC, PUBLISHER};
use latpath_testkit::names::own;
use latpath_testkit::waits::{listens, until, LIMIT};
use latpath_testkit::{bench, equal, latpath, need_btf, need_lab, need_root, trial, Bench, Failed, Finished, Started};
use latpath_tune::{Applied, Plan, StopCause};
use serde_json::Value;
use std::fs;
use std::process::{Command, ExitCode};

/// Flags for a busy machine: only packets that are really lost count as a disturbance.
const PATIENT: &str = "--threshold 10s --window 3s --baseline 1s --settle 1s";

fn main() -> ExitCode {
    let needs = [need_root(), need_btf(), need_lab()];
    latpath_testkit::main(vec![
        trial("wrong_usage_names_what_to_mend", &[], wrong_usage),
        trial("a_plan_changes_nothing_and_has_a_schema", &[], planned),
        trial("a_change_under_a_stream_is_verified_and_undone_but_for_what_others_changed", &needs, under_a_stream),
        trial("a_step_that_stops_a_stream_is_taken_back_with_the_steps_before_it", &needs, disturbed),
        trial("a_change_that_is_not_confirmed_is_taken_back_also_if_its_guard_is_killed", &needs, confirmed),
    ])
}

fn wrong_usage() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let broken = folder.path().join("broken.toml");
    fs::write(&broken, "name = \"broken\"\nabout = \"A test.\"\n[[line]]\nsetting = \"swapines\"\nat = \"machine\"\nvalue = \"1\"\nwhy = \"\"\nsource = \"\"\n")?;
    for (words, text) in [
        ("plan no-such-profile".to_owned(), "no such profile (latpath has sv-hypervisor"),
        ("plan sv-hypervisor --isolated 60000".into(), "isolated CPUs 60000: this machine's CPUs are"),
        ("plan sv-guest --interface no-such-if".into(), "no-such-if: no such network device"),
        ("plan sv-guest --set isolated=1".into(), "isolated has a flag of its own: --isolated"),
        (format!("plan {}", broken.display()), "broken.toml:4: swapines: no such setting"),
        ("apply sv-guest --yes".into(), "--no-watch"),
    ] {
        let output = latpath(&format!("tune {words}")).output()?;
        let said = String::from_utf8(output.stderr)?;
        equal(&format!("{words}: {said}"), (output.status.code(), said.contains(text)), (Some(2), true))?;
    }
    Ok(())
}

fn planned() -> Result<(), Failed> {
    let plan = || -> Result<Plan, Failed> {
        let output = latpath("tune plan sv-guest --json").output()?;
        equal("the exit code", output.status.code(), Some(0))?;
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    let (first, second) = (plan()?, plan()?);
    equal("the profile", first.profile.as_str(), "sv-guest")?;
    equal("the number of steps of a second plan", second.steps.len(), first.steps.len())?;
    let script = latpath("tune plan sv-guest --export shell").output()?;
    let parsed = Command::new("sh").args(["-n", "-c"]).arg(String::from_utf8(script.stdout)?).output()?;
    equal("a shell parses the script", parsed.status.success(), true)?;
    let schema: Value = serde_json::from_slice(&latpath("schema tune").output()?.stdout)?;
    equal("the schema describes steps", schema["$defs"]["Planned"]["properties"]["places"].is_object(), true)
}

/// A lab with a stream, and the publisher and the application at its ends.
struct Scene {
    bench: Bench,
    svid: String,
    publisher: Started,
    application: Started,
}

impl Scene {
    fn new(name: &str) -> Result<Self, Failed> {
        let (bench, svid) = (bench()?, own(name));
        let command = latpath(&format!("subscribe -i {APPLICATION} --stream svid:{svid} --json"));
        let mut application = bench.start(bench.application(), command)?;
        listens(&mut application)?;
        let words = format!("publish -i {PUBLISHER} --svid {svid} --rate 1000 --wrap 65536 --duration 600s");
        let publisher = bench.start(&bench.path.publisher, latpath(&words))?;
        Ok(Self { bench, svid, publisher, application })
    }

    /// Writes a profile with these settings and values for [`NIC`]; returns the file.
    fn profile(&self, name: &str, lines: &[(&str, &str)]) -> Result<String, Failed> {
        let mut text = format!("name = \"{name}\"\nabout = \"A test.\"\n");
        for (setting, value) in lines {
            text += &format!(
                "[[line]]\nsetting = \"{setting}\"\nat = \"interface\"\nvalue = \"{value}\"\nwhy = \"A test.\"\nsource = \"-\"\n"
            );
        }
        let file = self.bench.lab.folder().join(format!("{name}.toml"));
        fs::write(&file, text)?;
        Ok(file.display().to_string())
    }

    fn tune(&self, words: &str) -> Result<Finished, Failed> {
        self.bench.run(&self.bench.path.hypervisor, latpath(&format!("tune {words}")), LIMIT)
    }

    /// State of [`NIC`] as shown by ip(8).
    fn shown(&self) -> Result<(Option<u64>, Option<u64>), Failed> {
        let mut command = Command::new("ip");
        command.args(["-j", "link", "show", "dev", NIC]);
        let shown: Value = self.bench.run(&self.bench.path.hypervisor, command, LIMIT)?.json::<Value>()?;
        Ok((shown[0]["mtu"].as_u64(), shown[0]["txqlen"].as_u64()))
    }

    fn end(self) -> Result<(), Failed> {
        self.publisher.interrupt();
        self.publisher.finish(LIMIT)?;
        self.application.interrupt();
        self.application.finish(LIMIT).map(drop)
    }
}

fn under_a_stream() -> Result<(), Failed> {
    let scene = Scene::new("quiet")?;
    let before = scene.shown()?;
    let name = own("quiet").to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let file = scene.profile(&name, &[("device-queue-length", "1234"), ("device-gro-timeout", "20000")])?;
    let words = format!("apply {file} -i {NIC} --stream svid:{} {PATIENT} --yes --json", scene.svid);
    let applied = scene.tune(&words)?;
    equal(&format!("apply: {}", applied.stderr), applied.code, Some(0))?;
    let Applied { steps, subject, .. } = applied.json()?;
    equal("steps", steps.len(), 2)?;
    for step in &steps {
        let effect = step.effect.as_ref().ok_or("no effect")?;
        equal(&format!("{effect:?}"), effect.packets > 100 && effect.lost == 0, true)?;
        equal("it is compared with before", effect.before.p50 > Some(0), true)?;
    }
    equal("ip shows it", scene.shown()?, (before.0, Some(1234)))?;
    equal("verify", scene.tune(&format!("verify {subject}"))?.code, Some(0))?;

    let mut command = Command::new("ip");
    command.args(["link", "set", "dev", NIC, "txqueuelen", "777"]);
    scene.bench.run(&scene.bench.path.hypervisor, command, LIMIT)?;
    let drifted = scene.tune(&format!("verify {subject}"))?;
    equal(&drifted.stdout, (drifted.code, drifted.stdout.contains("device-queue-length")), (Some(3), true))?;
    let undone = scene.tune(&format!("undo {subject}"))?;
    let left = "left at 777: another program has changed it since latpath set 1234";
    equal(&undone.stdout, (undone.code, undone.stdout.contains(left)), (Some(0), true))?;
    equal("ip shows the other program's value", scene.shown()?, (before.0, Some(777)))?;
    let again = scene.tune(&format!("undo {subject}"))?;
    equal(&again.stderr, (again.code, again.stderr.contains("not applied")), (Some(1), true))?;
    scene.end()
}

fn disturbed() -> Result<(), Failed> {
    let scene = Scene::new("loud")?;
    let before = scene.shown()?;
    let name = own("loud").to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    // Frames of the stream are longer than the smallest MTU, so that none arrives any more.
    let file = scene.profile(&name, &[("device-queue-length", "1234"), ("device-mtu", "68")])?;
    let words = format!("apply {file} -i {NIC} --stream svid:{} {PATIENT} --yes --json", scene.svid);
    let applied = scene.tune(&words)?;
    equal(&format!("apply: {}", applied.stderr), applied.code, Some(3))?;
    let Applied { stopped, reverted, .. } = serde_json::from_str(&applied.stdout)?;
    let stopped = stopped.ok_or("nothing stopped it")?;
    equal("what stopped it", stopped.cause, StopCause::Traffic)?;
    equal("the step", stopped.step, format!("device-mtu of {NIC}"))?;
    equal("both steps were taken back", reverted.len(), 2)?;
    equal("ip shows the old values", scene.shown()?, before)?;
    let verified = scene.tune(&format!("undo {name}"))?;
    equal(&verified.stderr, (verified.code, verified.stderr.contains("not applied")), (Some(1), true))?;
    scene.end()
}

/// Kills the process that waits for the confirmation of a change, and any such process of an earlier change that has
/// not ended yet.
fn kill_guards(subject: &str) -> Result<(), Failed> {
    let is_its = |pid: &i32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&str> = line.split('\0').collect();
        words.get(1..4) == Some(&["tune", "guard", subject])
    };
    let numbers = fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let guards: Vec<i32> = numbers.filter(is_its).collect();
    equal("a process waits for the confirmation", guards.is_empty(), false)?;
    for guard in &guards {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*guard), nix::sys::signal::Signal::SIGKILL);
    }
    let is_gone = |guard: &i32| fs::read_to_string(format!("/proc/{guard}/cmdline")).unwrap_or_default().is_empty();
    until("the guards are gone", || guards.iter().all(is_gone))
}

fn confirmed() -> Result<(), Failed> {
    let scene = Scene::new("kept")?;
    let before = scene.shown()?;
    let name = own("kept").to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let file = scene.profile(&name, &[("device-queue-length", "1234")])?;
    let apply = |time: &str| scene.tune(&format!("apply {file} -i {NIC} --no-watch --yes --confirm {time}"));
    let is_old = || scene.shown().is_ok_and(|now| now == before);

    equal("apply", apply("1s")?.code, Some(0))?;
    until("the time is over and the change is taken back", is_old)?;

    equal("apply, for longer", apply("600s")?.code, Some(0))?;
    equal("ip shows it", scene.shown()?.1, Some(1234))?;
    equal("confirm", scene.tune(&format!("confirm {name}"))?.code, Some(0))?;
    equal("nothing waits any more", scene.tune(&format!("confirm {name}"))?.code, Some(1))?;
    equal("the change stays", scene.shown()?.1, Some(1234))?;
    equal("undo", scene.tune(&format!("undo {name}"))?.code, Some(0))?;
    equal("ip shows the old value", scene.shown()?, before)?;

    equal("apply, with a guard", apply("600s")?.code, Some(0))?;
    let subject = format!("{name}-{NIC}");
    kill_guards(&subject)?;
    until("the next command takes the change back", || {
        let listed = scene.tune("list");
        listed.is_ok_and(|listed| listed.stderr.contains("device-queue-length")) || is_old()
    })?;
    equal("ip shows the old value again", scene.shown()?, before)?;
    scene.end()
}
