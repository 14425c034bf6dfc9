//! Takes snapshots of the running kernel: decoding must restore them, and all names must be known.

use latpath_flight::{Doing, EventKind, IdleStates, Recorder, Snapshot, Timeline};
use latpath_testkit::{trial, waits::until, Failed};
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

type Outcome = Result<(), Failed>;

fn main() -> ExitCode {
    let lack = &[Recorder::start(Recorder::BYTES_PER_CPU).err().map(|e| e.to_string())];
    let tests = vec![
        trial("a_real_snapshot_is_the_same_when_it_has_been_bytes_and_so_are_its_rows", lack, same),
        trial("threads_functions_and_interrupts_of_a_snapshot_have_their_names", lack, named),
        trial("a_snapshot_waits_for_no_names", lack, at_once),
    ];
    latpath_testkit::main(tests)
}

fn start() -> Result<Recorder, Failed> {
    Ok(Recorder::start(16 << 20)?)
}

/// Wakes a thread and sends a packet to itself, `rounds` times: causes switches, wakeups, softirqs and timers.
fn busy(rounds: usize) {
    let (mut near, mut far) = UnixStream::pair().expect("a pair");
    let echo = std::thread::Builder::new().name("lp-echo".into());
    let echo = echo.spawn(move || {
        let mut byte = [0; 1];
        while far.read_exact(&mut byte).is_ok() && far.write_all(&byte).is_ok() {}
    });
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let here = socket.local_addr().expect("its address");
    let mut bytes = [0; 8];
    for _ in 0..rounds {
        near.write_all(b"x").and_then(|()| near.read_exact(&mut bytes[..1])).expect("an echo");
        socket.send_to(b"latpath", here).and_then(|_| socket.recv(&mut bytes)).expect("a packet");
        latpath_testkit::waits::pace(Duration::from_micros(50));
    }
    drop(near);
    echo.expect("a thread").join().expect("it ends");
}

fn frozen(recorder: &Recorder, rounds: usize) -> Snapshot {
    let from = latpath_linux::monotonic();
    busy(rounds);
    recorder.snapshot(from, latpath_linux::monotonic())
}

fn same() -> Outcome {
    let recorder = start()?;
    let snapshot = frozen(&recorder, 400);
    let events: usize = snapshot.window.cpus.iter().map(|cpu| cpu.events.len()).sum();
    let bytes = snapshot.encode();
    eprintln!("{events} events in {} bytes, {:.2} an event", bytes.len(), bytes.len() as f64 / events as f64);
    assert!(events > 1000, "{events} events");
    // An event takes 32 bytes unencoded.
    assert!(bytes.len() < events * 8, "{} bytes for {events} events", bytes.len());
    let again = Snapshot::decode(&bytes)?;
    assert_eq!(again, snapshot);
    let (ours, theirs) = (Timeline::of(&snapshot.window), Timeline::of(&again.window));
    let (from, to) = (snapshot.window.from, snapshot.window.to);
    for (a, b) in ours.cpus.iter().zip(&theirs.cpus) {
        assert_eq!(a.between(from, to), b.between(from, to));
    }
    for thread in snapshot.threads.keys() {
        assert_eq!(ours.thread(*thread), theirs.thread(*thread), "{thread}");
    }
    Ok(())
}

/// Whether this kernel permits reading its functions' names.
fn functions_are_known() -> bool {
    std::fs::read_to_string("/proc/kallsyms")
        .is_ok_and(|text| text.lines().any(|line| !line.starts_with("0000000000000000")))
}

fn named() -> Outcome {
    let recorder = start()?;
    recorder.learn();
    until("the kernel's names are read", || recorder.has_learnt())?;
    let snapshot = Snapshot::decode(&frozen(&recorder, 400).encode())?;
    // The name of this thread must be known although it has ended.
    let echo = snapshot.threads.values().find(|thread| thread.name == "lp-echo").ok_or("no lp-echo")?;
    assert_eq!(echo.tgid, std::process::id());
    let events = || snapshot.window.cpus.iter().flat_map(|cpu| &cpu.events);
    let names = snapshot.names();
    let softirqs = events().filter_map(|e| match e.what {
        EventKind::SoftirqEntry(vector) => Some(names.of(&Doing::Softirq(vector))),
        _ => None,
    });
    assert!(softirqs.into_iter().any(|name| name == "softirq NET_RX"));
    if functions_are_known() {
        let sleeps = events().filter_map(|e| match e.what {
            EventKind::HrtimerEntry(function) => snapshot.functions.get(&function),
            _ => None,
        });
        assert!(sleeps.into_iter().any(|name| name == "hrtimer_wakeup"), "{:?}", snapshot.functions);
    }
    for number in snapshot.irqs.keys() {
        assert_ne!(names.of(&Doing::Irq(*number)), format!("irq {number}"));
    }
    assert_eq!(snapshot.missing.len(), recorder.missing().len());
    assert_eq!(snapshot.idle_states, IdleStates::of_this_machine());
    Ok(())
}

fn at_once() -> Outcome {
    // If this thread is paused during a snapshot, the names may be known by then, but not every time.
    let taken = |_| -> Result<_, Failed> {
        let recorder = start()?;
        let snapshot = frozen(&recorder, 30);
        assert!(!snapshot.threads.is_empty(), "threads are known by the recorder itself");
        Ok((recorder, snapshot.functions.is_empty()))
    };
    let first = (0..5).map(taken).find(|taken| taken.as_ref().map_or(true, |(_, none)| *none));
    let (recorder, _) = first.ok_or("each snapshot had waited for the names")??;
    until("a later snapshot has them", || !functions_are_known() || !frozen(&recorder, 30).functions.is_empty())
}
