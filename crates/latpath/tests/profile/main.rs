//! `latpath profile` from the command line.

mod calls;
mod debug_files;
mod frozen;
mod others;

use debug_files::need_debuginfod;
use latpath_model::{Ns, Observation};
use latpath_observe::profile::{Diff, Moved, ProfileFigures};
use latpath_testkit::{
    busy, equal, latpath, need_btf, need_root, need_tool, retried, trace_processor, trace_processor::Processor, trial,
    Failed, Trial,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};

fn main() -> ExitCode {
    busy::run_if_asked();
    others::run_if_asked();
    let root = || [need_root(), need_btf()];
    let builds = || [need_root(), need_btf(), need_tool("gcc"), need_tool("objcopy"), need_tool("readelf")];
    let compiles = || [need_root(), need_btf(), need_tool("gcc")];
    let with_perfetto = || [need_root(), need_btf(), trace_processor::lack()];
    let fetches = || [&builds()[..], &[need_debuginfod()]].concat();
    let tests = vec![
        trial("a_function_moves_from_one_context_to_another", &[], moved),
        trial("what_makes_no_sense_is_refused_with_the_next_step", &[], refused),
        trial("files_for_other_tools_hold_the_same_profile", &root(), files),
        trial("perfetto_reads_what_is_written_for_it", &with_perfetto(), perfetto),
        trial("a_cpu_by_itself_and_a_command_that_fails", &root(), one_cpu),
        trial(
            "a_users_files_cost_the_names_of_their_own_functions_and_nothing_else",
            &builds(),
            others::cost_names_only,
        ),
        trial("what_is_printed_is_what_the_schema_describes", &root(), schema),
        trial(
            "calls_of_threads_that_end_are_counted_and_leave_room_for_others",
            &compiles(),
            calls::of_threads_that_end,
        ),
    ];
    let freezes = || [&compiles()[..], &[frozen::need_fuse()]].concat();
    // These tests run alone: they identify their processes by name, and their loops must be busy for a known part of
    // the time.
    let alone = [
        trial("the_total_is_all_cpus_time_and_busy_loops_are_found", &root(), loops),
        trial("a_file_system_that_does_not_answer_costs_names_and_nothing_else", &freezes(), frozen::costs_names_only),
        trial("a_file_system_that_does_not_answer_holds_no_agent", &freezes(), frozen::holds_no_agent),
        trial("a_stripped_programs_functions_are_named_by_a_server", &fetches(), debug_files::by_a_server),
        trial("a_bad_server_costs_names_and_nothing_else", &fetches(), debug_files::by_bad_servers),
        trial("a_server_that_never_answers_is_left_by_ctrl_c", &fetches(), debug_files::by_nobody_any_more),
        trial("debugging_information_on_this_machine_is_found_by_build_id", &builds(), debug_files::on_this_machine),
    ];
    latpath_testkit::main(tests.into_iter().map(Trial::side_by_side).chain(alone).collect())
}

type Profile = Observation<ProfileFigures>;

/// Output of a successful command.
fn json<T: DeserializeOwned>(output: &Output) -> Result<T, Failed> {
    let said = String::from_utf8_lossy(&output.stderr);
    equal("the exit code", output.status.code(), Some(0)).map_err(|_| Failed::from(said.into_owned()))?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Time of all processes with this name.
fn of_process(profile: &Profile, name: &str) -> f64 {
    let processes = profile.figures.processes.iter().filter(|process| process.process == name);
    processes.map(|process| process.total_ns).sum::<Ns>() as f64
}

fn of_function(profile: &Profile, end: &str) -> f64 {
    let functions = profile.figures.functions.iter().filter(|function| function.function.ends_with(end));
    functions.map(|function| function.total_ns).sum::<Ns>() as f64
}

/// Expects the modes to add up to the window on all CPUs.
fn adds_up(profile: &Profile) -> Result<(), Failed> {
    let sum = profile.figures.modes.total_ns();
    let all = profile.figures.cpu_count as Ns * profile.window_ns;
    match (sum - all).abs() <= all / 1000 {
        true => Ok(()),
        false => Err(format!("{sum} ns of {all} ns: {:?}", profile.figures.modes).into()),
    }
}

fn within(what: &str, part: f64, truth: f64) -> Result<(), Failed> {
    match (part - truth).abs() <= 2.0 {
        true => Ok(()),
        false => Err(format!("{what}: {part:.2} %, its own clock says {truth:.2} %").into()),
    }
}

/// Sampled shares scatter if other programs or virtual machines share the CPUs, so the test fails only if a share is
/// wrong twice.
fn loops() -> Result<(), Failed> {
    loops_once().or_else(|why| {
        retried("the_total_is_all_cpus_time_and_busy_loops_are_found", why.message().unwrap_or_default());
        loops_once()
    })
}

fn loops_once() -> Result<(), Failed> {
    const SECONDS: u32 = 8;
    let twenty = busy::command(20, SECONDS + 4)?.stdout(Stdio::piped()).spawn()?;
    let fifty = busy::command(50, SECONDS)?;
    // The window is the lifetime of the 50 % loop.
    let mut profile = latpath("profile --json --");
    profile.arg(fifty.get_program()).envs(fifty.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = profile.output()?;
    let twenty = twenty.wait_with_output()?;
    let said = String::from_utf8(output.stdout.clone())?;
    // The command's output precedes the document on standard output.
    let (line, document) = said.split_once('\n').ok_or("two lines")?;
    let profile = json(&Output { stdout: document.as_bytes().to_vec(), ..output })?;
    adds_up(&profile)?;
    let window = profile.window_ns as f64;
    let clock = |line: &str| -> Result<(f64, f64), Failed> {
        let (cpu, wall) = line.trim().split_once(' ').ok_or("two numbers")?;
        Ok((cpu.parse()?, wall.parse()?))
    };
    let ((cpu, wall), (slow_cpu, slow_wall)) = (clock(line)?, clock(&String::from_utf8(twenty.stdout)?)?);
    equal("a window as long as its command, or longer", window >= wall, true)?;
    within("busy50", of_process(&profile, "busy50") * 100.0 / window, cpu * 100.0 / window)?;
    within("busy_fifty", of_function(&profile, "busy_fifty") * 100.0 / window, cpu * 100.0 / window)?;
    // The loop's load is steady, so its share in this window equals that in its lifetime.
    let steady = slow_cpu * 100.0 / slow_wall;
    within("busy20", of_process(&profile, "busy20") * 100.0 / window, steady)?;
    within("busy_twenty", of_function(&profile, "busy_twenty") * 100.0 / window, steady)
}

fn files() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let text = |name: &str| std::fs::read_to_string(path(name));
    let mut busy = busy::command(50, 30)?.stdout(Stdio::null()).spawn()?;
    let mut command = latpath("profile --duration 2s --json");
    for name in ["svg", "folded", "firefox", "output"] {
        command.arg(format!("--{name}")).arg(path(name));
    }
    let output = command.output();
    busy.kill()?;
    busy.wait()?;
    let profile = json(&output?)?;
    adds_up(&profile)?;
    let folded = text("folded")?;
    let sum = folded
        .lines()
        .try_fold(0, |sum, line| Ok::<i64, Failed>(sum + line.rsplit_once(' ').ok_or(line)?.1.parse::<i64>()?))?;
    let busy = profile.figures.modes.busy_ns();
    equal("all but idle time", sum, busy - profile.figures.header.unattributed_ns)?;
    equal(
        "a loop's chain",
        folded.lines().any(|line| line.starts_with("busy50;") && line.contains("busy_fifty")),
        true,
    )?;
    self_contained(&text("svg")?, "busy_fifty")?;
    let kept = text("output")?;
    equal("what is kept", kept.split_once('\n').map(|(_, lines)| lines), Some(folded.as_str()))?;
    let firefox: Value = serde_json::from_str(&text("firefox")?)?;
    let threads = firefox["threads"].as_array().ok_or("no threads")?;
    let samples: usize = threads
        .iter()
        .filter_map(|thread| thread["samples"]["time"].as_array().or(thread["samples"]["timeDeltas"].as_array()))
        .map(Vec::len)
        .sum();
    equal("a loop's samples among all", samples > 50 && samples as u64 <= profile.figures.header.samples, true)?;
    equal("the loop's thread", threads.iter().any(|thread| thread["name"] == "busy50"), true)?;
    // A profile has no differences from itself.
    let out = path("output");
    let diff = latpath("profile --json --diff").args([&out, &out]).arg("--svg").arg(path("diff")).output()?;
    let moved = json::<Diff>(&diff)?.moved;
    equal("functions", moved.is_empty(), false)?;
    equal("what moved", moved.iter().any(|moved| moved.before_ns_per_s != moved.after_ns_per_s), false)?;
    self_contained(&text("diff")?, "busy_fifty")
}

/// Perfetto's file contains a loop's samples with its process and function.
fn perfetto() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("perfetto");
    let mut busy = busy::command(50, 30)?.stdout(Stdio::null()).spawn()?;
    let output = latpath("profile --duration 2s --json --perfetto").arg(&file).output();
    busy.kill()?;
    busy.wait()?;
    let profile: Profile = json(&output?)?;
    let mut processor = Processor::load(&std::fs::read(&file)?)?;
    equal("errors", processor.errors()?, Vec::new())?;
    let all = processor.number("select count(*) from perf_sample")?;
    equal("samples, none of idle CPUs", all > 0 && all <= profile.figures.header.samples as i64, true)?;
    let of_loop = "select count(*) from perf_sample join stack_profile_callsite as site on site.id = callsite_id \
        join stack_profile_frame as frame on frame.id = site.frame_id join thread using (utid) join process using (upid) \
        where frame.name glob '*busy_fifty*' and process.name = 'busy50'";
    let of_loop = processor.number(of_loop)?;
    equal(&format!("{of_loop} samples of a loop among {all}"), of_loop > 0 && of_loop <= all, true)
}

/// Expects an SVG file to contain this function and to load nothing from elsewhere.
fn self_contained(svg: &str, function: &str) -> Result<(), Failed> {
    roxmltree::Document::parse(svg)?;
    for elsewhere in
        ["<!DOCTYPE", "<image", "<link", "@import", "url(http", "src=", "href=\"http", "fetch(", "XMLHttpRequest"]
    {
        equal(elsewhere, svg.contains(elsewhere), false)?;
    }
    equal(function, svg.contains(function), true)
}

fn one_cpu() -> Result<(), Failed> {
    let output = latpath("profile --cpus 0 --duration 1s --json -- false").output()?;
    equal("the exit code of a command's failure", output.status.code(), Some(1))?;
    equal("its cause", String::from_utf8(output.stderr)?.contains("the command failed (exit status: 1)"), true)?;
    let profile: Profile = serde_json::from_slice(&output.stdout)?;
    let figures = &profile.figures;
    equal("CPUs", (figures.header.cpus.to_string().as_str(), figures.cpu_count), ("0", 1))?;
    adds_up(&profile)?;
    let output = latpath("profile --cpus 8000 --duration 1s").output()?;
    let said = String::from_utf8(output.stderr)?;
    equal(&said, output.status.code() == Some(1) && said.contains("none of the CPUs 8000 is online"), true)
}

fn schema() -> Result<(), Failed> {
    let profile: Value = json(&latpath("profile --duration 1s --syscalls --json").output()?)?;
    let schema: Value = json(&latpath("schema profile").output()?)?;
    let known = schema["properties"].as_object().ok_or("no properties")?;
    for key in profile.as_object().ok_or("no object")?.keys() {
        equal(key, known.contains_key(key), true)?;
    }
    Ok(())
}

/// As in the vhost study, the same function is first found under QEMU's writev, and then under vhost's handle_tx.
fn moved() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let header = r#"# latpath profile 1 {"window_ns":1000000000,"cpus":"0-1","idle_ns":1500000000}"#;
    let qemu = "vm (qemu);main;writev;do_syscall_64_[k];__x64_sys_writev_[k];tun_get_user_[k] 485000000\n";
    let vhost = "vhost of vm;ret_from_fork_[k];vhost_task_fn_[k];handle_tx_[k];tun_get_user_[k] 15000000\n";
    let without = format!("{header}\n{qemu}{vhost}");
    let with = format!("{header}\n{}", vhost.replace("15000000", "500000000"));
    let [before, after, svg] = ["before", "after", "svg"].map(|name| folder.path().join(name));
    std::fs::write(&before, without)?;
    std::fs::write(&after, with)?;
    let output = latpath("profile --json --diff").args([&before, &after]).arg("--svg").arg(&svg).output()?;
    let moved = json::<Diff>(&output)?.moved;
    let shares = |under: &str| {
        let is = |moved: &&Moved| moved.function == "tun_get_user" && moved.under.as_deref() == Some(under);
        moved.iter().find(is).map(|moved| (moved.share_before, moved.share_after))
    };
    equal("under writev", shares("writev"), Some((Some(0.97), Some(0.0))))?;
    equal("under handle_tx", shares("handle_tx"), Some((Some(0.03), Some(1.0))))?;
    self_contained(&std::fs::read_to_string(&svg)?, "handle_tx")?;
    let page = latpath("profile --diff").args([&before, &after]).output()?;
    equal("the page", String::from_utf8(page.stdout)?.contains("97 %"), true)
}

fn refused() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let other = folder.path().join("other");
    std::fs::write(&other, "a;b 3\n")?;
    let fails = |command: &mut Command, code: i32, why: &str| {
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        equal(&said, output.status.code() == Some(code) && said.contains(why), true)
    };
    fails(latpath("profile --diff").args([&other, &other]), 1, "not a profile of latpath's (latpath profile -o FILE")?;
    fails(latpath("profile --diff").args([Path::new("/no/file"), &other]), 1, "/no/file: No such file")?;
    fails(latpath("profile --diff").arg(&other), 2, "2 values required")?;
    fails(&mut latpath("profile --duration 0s"), 2, "--duration 0s leaves nothing to watch")?;
    fails(&mut latpath("profile --frequency 0"), 2, "--frequency")?;
    fails(&mut latpath("profile --cpus x"), 2, "not a list of CPUs")?;
    fails(&mut latpath("profile --vm no-such-vm"), 2, "no such VM")?;
    fails(latpath("profile --duration 1s --svg").arg(folder.path()), 1, "is a directory")?;
    fails(&mut latpath("profile --machine a=unix:/x --machine a=unix:/y"), 2, "named twice")
}
