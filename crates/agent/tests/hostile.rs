//! Peers that lie, stall or die cause an error in bounded time and memory, never a panic or a hang.

mod fake;

use fake::{agent_with, patient, request, LIMIT};
use latpath_agent::{Ended, Machine, MachineError, ServeError, ServeOptions, Stream, Timeouts};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The bytes of an agent's reply to a host's preamble and of its hello, with this protocol version. Written by hand,
/// because the wire format is fixed.
fn greeting(preamble: &[u8], version: u8) -> Vec<u8> {
    let mut bytes = b"\xfe\xfflatpth".to_vec();
    bytes.extend(&preamble[8..16]);
    bytes.extend([4, 0, 0, 0, 0x12, 2, 0x08, version]);
    bytes
}

const SOON: Duration = Duration::from_millis(600);

/// Connects to an agent, which `peer` plays at the other end of the stream.
fn host_against(peer: impl FnOnce(UnixStream) + Send + 'static) -> Result<Machine, MachineError> {
    host_that_waits(patient(), peer)
}

fn host_that_waits(
    timeouts: Timeouts,
    peer: impl FnOnce(UnixStream) + Send + 'static,
) -> Result<Machine, MachineError> {
    let (host, guest) = UnixStream::pair().unwrap();
    guest.set_read_timeout(Some(LIMIT)).unwrap();
    std::thread::spawn(move || peer(guest));
    Machine::on_stream("guest0", "socket pair", Stream::new(host).unwrap(), timeouts)
}

/// Keeps the stream open until the other end closes it.
fn hold(mut stream: UnixStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

fn why(result: Result<Machine, MachineError>) -> String {
    result.err().expect("a hostile agent is refused").to_string()
}

fn knock(guest: &mut UnixStream) -> [u8; 16] {
    let mut preamble = [0; 16];
    guest.read_exact(&mut preamble).unwrap();
    preamble
}

#[test]
fn an_agent_that_never_answers_is_disconnected() {
    let error = why(host_that_waits(Timeouts { connect: SOON, ..patient() }, hold));
    assert!(
        error.contains("guest0 (socket pair): no agent answered within 600ms; is 'latpath agent' running"),
        "{error}"
    );
}

#[test]
fn an_agent_that_stalls_after_its_greeting_is_disconnected() {
    let error = why(host_that_waits(Timeouts { silence: SOON, ..patient() }, |mut guest| {
        let preamble = knock(&mut guest);
        guest.write_all(&greeting(&preamble, 1)).unwrap();
        hold(guest);
    }));
    // The error contains the duration.
    assert!(error.contains("no answer for ") && error.contains(" s: considered dead"), "{error}");
}

#[test]
fn an_agent_of_another_version_is_refused_with_advice() {
    let error = why(host_against(|mut guest| {
        let preamble = knock(&mut guest);
        guest.write_all(&greeting(&preamble, 9)).unwrap();
        hold(guest);
    }));
    assert!(error.contains("chose protocol 9") && error.contains("install the same latpath on both"), "{error}");
}

#[test]
fn an_agent_that_announces_an_endless_frame_is_refused() {
    let error = why(host_against(|mut guest| {
        let preamble = knock(&mut guest);
        guest.write_all(&greeting(&preamble, 1)).unwrap();
        guest.write_all(&[0xff; 4]).unwrap();
        hold(guest);
    }));
    assert!(error.contains("a frame of 4294967295 bytes (limit: 1048576)"), "{error}");
}

#[test]
fn an_agent_that_observes_without_being_asked_is_refused() {
    let error = why(host_against(|mut guest| {
        let preamble = knock(&mut guest);
        guest.write_all(&greeting(&preamble, 1)).unwrap();
        // The message `Observing`: the window has begun.
        guest.write_all(&[3, 0, 0, 0, 0xc2, 1, 0]).unwrap();
        hold(guest);
    }));
    assert!(error.contains("an observation that was not asked for"), "{error}");
}

#[test]
fn an_agent_that_replaces_a_dead_one_is_reported_at_once() {
    let error = why(host_against(|mut guest| {
        let preamble = knock(&mut guest);
        guest.write_all(&greeting(&preamble, 1)).unwrap();
        guest.write_all(b"\xfe\xfflatpth\0\0\0\0\0\0\0\0").unwrap();
        hold(guest);
    }));
    assert!(error.contains("another agent took over in the middle of the session"), "{error}");
}

#[test]
fn an_agent_that_dies_within_a_frame_is_a_closed_stream() {
    let error = why(host_against(|mut guest| {
        let preamble = knock(&mut guest);
        guest.write_all(&greeting(&preamble, 1)).unwrap();
        guest.write_all(&[200, 0, 0, 0, 1, 2, 3]).unwrap();
        // Reads everything from the host; otherwise, closing this end would reset the stream.
        guest.shutdown(std::net::Shutdown::Write).unwrap();
        hold(guest);
    }));
    assert!(error.contains("the agent closed the stream"), "{error}");
}

#[test]
fn an_agent_that_floods_before_its_greeting_wastes_the_timeout_but_no_memory() {
    let flood = |mut guest: UnixStream| while guest.write_all(&[0xfe; 65536]).is_ok() {};
    let error = why(host_that_waits(Timeouts { connect: SOON, ..patient() }, flood));
    assert!(error.contains("no agent answered"), "{error}");
}

/// Serves a host played by `peer`, which disconnects when the closure's result is dropped.
fn serve_against<T>(options: ServeOptions, peer: impl FnOnce(UnixStream) -> T) -> Result<Ended, ServeError> {
    let (host, guest) = UnixStream::pair().unwrap();
    host.set_read_timeout(Some(LIMIT)).unwrap();
    let agent = agent_with(guest, options);
    let kept = peer(host);
    let result = agent.thread.join().expect("no panic");
    assert!(!agent.attached.load(std::sync::atomic::Ordering::SeqCst), "the source is detached");
    drop(kept);
    result
}

fn waits_long() -> ServeOptions {
    ServeOptions { silence: LIMIT, opening: Some(LIMIT), ..ServeOptions::default() }
}

const OPEN: &[u8] = b"\xfe\xffLATPTH\x01\x02\x03\x04\x05\x06\x07\x08";
/// HostHello with oldest and newest version 1.
const HELLO: &[u8] = &[6, 0, 0, 0, 0x0a, 4, 0x08, 1, 0x10, 1];

#[test]
fn waiting_for_a_host_ends_at_the_requested_timeout() {
    let error = serve_against(ServeOptions { opening: Some(SOON), ..waits_long() }, |host| host).unwrap_err();
    assert!(matches!(error, ServeError::NobodyCame(_)), "{error}");
}

#[test]
fn a_host_that_falls_silent_ends_the_session() {
    let error = serve_against(ServeOptions { silence: SOON, ..waits_long() }, |mut host| {
        host.write_all(OPEN).unwrap();
        host.write_all(HELLO).unwrap();
        host
    })
    .unwrap_err();
    assert!(matches!(error, ServeError::Silent(_)), "{error}");
}

#[test]
fn a_host_of_another_version_gets_advice() {
    let mut said = Vec::new();
    let error = serve_against(waits_long(), |mut host| {
        host.write_all(OPEN).unwrap();
        host.write_all(&[6, 0, 0, 0, 0x0a, 4, 0x08, 7, 0x10, 9]).unwrap();
        host.read_to_end(&mut said).unwrap();
    })
    .unwrap_err();
    assert!(matches!(error, ServeError::Version(_)), "{error}");
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("speaks protocol 1 to 1") && said.contains("7 to 9: install the same latpath"), "{said}");
}

#[test]
fn a_new_session_on_the_same_stream_ends_the_old_one() {
    let ended = serve_against(waits_long(), |mut host| {
        host.write_all(OPEN).unwrap();
        host.write_all(HELLO).unwrap();
        host.write_all(b"\xfe\xffLATPTH\x01\x02\x03\x04\x05\x06\x07\xff").unwrap();
        host
    });
    assert_eq!(ended.unwrap(), Ended::NewSession);
}

#[test]
fn a_host_that_never_reads_is_disconnected() {
    let error = serve_against(ServeOptions { silence: SOON, ..waits_long() }, |mut host| {
        host.write_all(OPEN).unwrap();
        host.write_all(HELLO).unwrap();
        // Endless time requests: the replies fill the stream, because they are not read.
        let question = [4, 0, 0, 0, 0x4a, 2, 0x08, 1].repeat(100);
        host.set_write_timeout(Some(LIMIT)).unwrap();
        while host.write_all(&question).is_ok() {}
        host
    })
    .unwrap_err();
    let gave_up = matches!(error, ServeError::Stuck(_) | ServeError::Protocol(_) | ServeError::Io(_));
    // If the test's thread is paused for longer than the timeout, the host counts as silent instead.
    assert!(gave_up || matches!(error, ServeError::Silent(_)), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn no_bytes_of_a_host_make_the_agent_panic_or_hang(
        greets in any::<bool>(),
        frames in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), any::<bool>(), 1..20u8), 0..20),
    ) {
        let result = serve_against(waits_long(), |mut host| {
            let mut bytes = OPEN.to_vec();
            if greets {
                bytes.extend(HELLO);
            }
            bytes.extend(framed(&frames));
            let _ = host.write_all(&bytes);
        });
        let _ = result;
    }

    #[test]
    fn no_bytes_of_an_agent_make_the_host_panic_or_hang(
        frames in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), any::<bool>(), 1..20u8), 0..20),
    ) {
        let result = host_against(move |mut guest| {
            let preamble = knock(&mut guest);
            let mut bytes = greeting(&preamble, 1);
            bytes.extend(framed(&frames));
            let _ = guest.write_all(&bytes);
        });
        prop_assert!(result.is_err());
    }
}

/// Frames with random contents; in some, the content follows the tag and length of an existing message.
fn framed(frames: &[(Vec<u8>, bool, u8)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (content, like_a_message, tag) in frames {
        let mut frame = content.clone();
        if *like_a_message {
            // Tags above 15 take a second byte.
            let head = match *tag {
                tag @ ..16 => vec![tag << 3 | 2],
                tag => vec![(tag << 3 | 2) | 0x80, tag >> 4],
            };
            frame.insert(0, content.len() as u8);
            frame.splice(0..0, head);
        }
        bytes.extend((frame.len() as u32).to_le_bytes());
        bytes.extend(frame);
    }
    bytes
}

#[test]
fn a_start_without_streams_is_refused_before_it_is_sent() {
    let (host, guest) = UnixStream::pair().unwrap();
    let _agent = agent_with(guest, ServeOptions::default());
    let mut machine = Machine::on_stream("guest0", "socket pair", Stream::new(host).unwrap(), patient()).unwrap();
    let nothing = latpath_agent::StartRequest::default();
    assert!(machine.start(&nothing).unwrap_err().why.contains("no stream"));
    assert!(machine.start(&request()).is_ok());
    assert!(machine.is_alive());
}
