//! An instrument attached by an agent, from its start to the observation that the host reads.

use latpath_agent::{
    serve, Address, Attached, FindObserver, Machine, MakeObserver, Observer, ServeOptions, StartRequest, Stream,
};
use latpath_model::Observation;
use latpath_observe::queues::{Device, QueuesFigures};
use latpath_observe::{InGuest, Queues, StartError};
use std::os::unix::net::UnixListener;
use std::sync::atomic::AtomicBool;

/// An observer that sends these bytes instead of an observation.
struct Sends(Vec<u8>);

impl Observer for Sends {
    fn step(&mut self) {}

    fn end(self: Box<Self>, _: &AtomicBool) -> Vec<u8> {
        self.0
    }
}

/// What the host gets from an agent that runs no commands and sends these bytes.
fn observed(sent: Vec<u8>) -> Result<Observation<QueuesFigures>, StartError> {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("agent");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let agent = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a host");
        let find: FindObserver = Box::new(move |name| {
            let sent = sent.clone();
            let make: MakeObserver = Box::new(move || Ok(Box::new(Sends(sent))));
            (name == "queues").then_some(make)
        });
        let mut options = ServeOptions { observers: Some(find), ..ServeOptions::default() };
        let no_source = |_: &StartRequest| Err::<Attached<Machine>, _>("no packets are followed here".into());
        // The test checks the host's side only, not the agent's result.
        drop(serve(&mut Stream::new(stream).expect("a stream"), &mut options, None, no_source));
    });
    let observed = InGuest::<Queues>::start("relay1", &Address::Unix(socket)).and_then(InGuest::end);
    agent.join().expect("the agent ends with its host");
    observed
}

#[test]
fn what_a_guest_observes_reaches_the_host_as_figures() {
    let device = Device { name: Some("virtio0".into()), ..Device::default() };
    let figures = QueuesFigures { devices: vec![device], ..QueuesFigures::default() };
    let sent = Observation { window_ns: 5, notes: vec!["a note".into()], figures, ..Observation::default() };
    let read = observed(serde_json::to_vec(&sent).expect("JSON")).expect("an observation");
    assert_eq!((read.window_ns, read.notes), (5, sent.notes));
    assert_eq!(read.figures.devices[0].name.as_deref(), Some("virtio0"));
}

#[test]
fn what_is_no_observation_names_the_guest_and_the_instrument() {
    for sent in [&b"{}"[..], b"\xff\xfe", br#"{"from_ns":18446744073709551615}"#] {
        let why = observed(sent.to_vec()).expect_err("it is none").to_string();
        assert!(why.starts_with("relay1: its observation (queues) cannot be read: "), "{why}");
    }
}
