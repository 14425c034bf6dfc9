//! Agents in separate processes, over `exec:`.

mod fake;

use fake::{drain, patient, request};
use latpath_agent::{Address, Machine, Timeouts};
use latpath_model::Source;
use latpath_testkit::waits::until;
use std::time::Duration;

/// Command of the example `fake-agent`, which cargo builds with the tests.
fn fake_agent(args: &str) -> Address {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples/fake-agent");
    assert!(path.exists(), "{} is missing: run all of this package's tests", path.display());
    format!("exec:exec {} {args}", path.display()).parse().unwrap()
}

#[test]
fn sightings_come_from_another_process_until_it_is_stopped() {
    let mut machine = Machine::connect("guest0", &fake_agent(""), patient()).unwrap();
    machine.start(&request()).unwrap();
    let mut got = drain(&mut machine, 3000);
    machine.stop().unwrap();
    machine.drain(&mut got);
    assert!(got.is_sorted_by_key(|s| s.t));
    assert_eq!(machine.counters().sightings, got.len() as u64);
    assert_eq!(machine.fault(), None);
}

#[test]
fn a_killed_agent_is_a_fault_with_its_last_output_and_keeps_its_sightings() {
    let mut machine = Machine::connect("guest0", &fake_agent("die-after 100"), patient()).unwrap();
    machine.start(&request()).unwrap();
    let mut got = drain(&mut machine, 300);
    until("the fault", || machine.fault().is_some()).unwrap();
    machine.drain(&mut got);
    assert!(got.len() >= 300);
    let fault = machine.fault().unwrap().to_string();
    assert!(fault.contains("closed the stream; the command ended (signal: 6"), "{fault}");
    assert!(fault.contains("out of luck"), "{fault}");
}

#[test]
fn a_refusal_has_the_agents_own_text() {
    let mut machine = Machine::connect("guest0", &fake_agent("refuse 'not root'"), patient()).unwrap();
    let error = machine.start(&request()).unwrap_err().to_string();
    assert!(error.contains("the agent gave up: not root"), "{error}");
}

#[test]
fn a_failed_command_is_reported_with_its_output() {
    let address = "exec:echo 'permission denied (publickey)' >&2; exit 255".parse().unwrap();
    let error = Machine::connect("guest0", &address, patient()).err().unwrap().to_string();
    assert!(error.contains("exit status: 255) and printed: permission denied (publickey)"), "{error}");
}

#[test]
fn a_silent_command_is_killed_with_its_children() {
    let timeouts = Timeouts { connect: Duration::from_millis(400), ..patient() };
    let marker = format!("37{}", std::process::id());
    let address = format!("exec:sleep {marker} & sleep {marker}; true").parse().unwrap();
    let error = Machine::connect("guest0", &address, timeouts).err().unwrap().to_string();
    assert!(error.contains("no agent answered within 400ms"), "{error}");
    let asleep = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes
            .filter_map(|p| std::fs::read(p.path().join("cmdline")).ok())
            .any(|c| c == format!("sleep\0{marker}\0").as_bytes())
    };
    until("the end of the command's children", || !asleep()).unwrap();
}

#[test]
fn a_command_with_invalid_output_is_given_up() {
    let timeouts = Timeouts { connect: Duration::from_millis(400), ..patient() };
    let error = Machine::connect("guest0", &"exec:cat /dev/urandom".parse().unwrap(), timeouts).err().unwrap();
    assert!(error.why.contains("no agent answered"), "{error}");
}
