//! Checks that are made on an agent before it is followed.

use latpath_agent::{serve, Address, Attached, Facts, ServeOptions, Stream};
use latpath_follow::{Follow, FollowError, Options};
use latpath_model::StreamSpec;
use latpath_probe::Probe;
use std::os::unix::net::UnixListener;

/// Returns the error for an agent that reports these facts about its machine, and whose probe cannot be attached.
fn error_with(facts: Facts) -> FollowError {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("agent");
    let listener = UnixListener::bind(&socket).unwrap();
    let agent = std::thread::spawn(move || {
        let mut options = ServeOptions { facts, ..ServeOptions::default() };
        let mut stream = Stream::new(listener.accept().unwrap().0).unwrap();
        let _ = serve(&mut stream, &mut options, None, |_| Err::<Attached<Probe>, _>("no probe".into()));
    });
    let options = Options {
        machines: vec![("guest0".into(), Address::Unix(socket))],
        window: 500_000_000,
        ring_bytes: 1 << 20,
        ..Options::new(vec![StreamSpec::svid("MU01")])
    };
    let error = Follow::over::<latpath_probe::Probe>(options, |_| unreachable!("no agent is followed")).err().unwrap();
    agent.join().unwrap();
    error
}

#[test]
fn an_agent_on_this_machines_own_kernel_is_refused() {
    let error = error_with(Facts::of_this_machine());
    assert!(matches!(&error, FollowError::SameKernel(name) if name == "guest0"), "{error}");
    assert!(error.to_string().contains("guest0 runs on this machine's own kernel"), "{error}");
}

#[test]
fn an_agent_on_another_kernel_or_an_older_one_is_asked_to_start() {
    for boot_id in ["b0a7", ""] {
        let error = error_with(Facts { boot_id: boot_id.into(), ..Facts::of_this_machine() });
        assert!(error.to_string().contains("no probe"), "{error}");
    }
}
