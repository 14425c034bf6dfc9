//! Both ends of the protocol against each other.

mod fake;

use fake::{agent, agent_with, drain, patient, request};
use latpath_agent::{
    listen, Attached, CommandKey, Commands, Ended, Facts, Hypervisor, Listen, Machine, ServeOptions, StartRequest,
    Stream,
};
use latpath_clock::ptp_kvm::{Reader, Reading};
use latpath_linux::monotonic;
use latpath_model::{Ns, Sender, SenderAt, Sighting, Source, SourceNote, SourceNoteKind};
use latpath_testkit::waits::until;
use latpath_vms::{Role, Thread, Vm};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

fn connected(clock: impl Fn() -> Ns + Send + 'static) -> (Machine, fake::Agent) {
    let (host, guest) = UnixStream::pair().unwrap();
    let agent = agent(guest, clock);
    let machine = Machine::on_stream("guest0", "socket pair", Stream::new(host).unwrap(), patient()).unwrap();
    (machine, agent)
}

#[test]
fn a_million_sightings_arrive_unchanged_and_in_order() {
    let (mut machine, agent) = connected(monotonic);
    machine.start(&request()).unwrap();
    let began = monotonic() - 2_000_000_000;
    let made: Vec<Sighting> = (0..1_000_000u32)
        .map(|i| Sighting {
            t: began + Ns::from(i) * 1500,
            key: i.wrapping_mul(2_654_435_761) >> (i % 20),
            tid: i % 1000,
            stream: (i % 2) as u16,
            point: (i % 5) as u16,
            cpu: (i % 64) as u16,
            note: (i % 2) as u16,
        })
        .collect();
    let into = agent.sightings.clone();
    let sent = made.clone();
    let sender = std::thread::spawn(move || {
        for part in sent.chunks(20_000) {
            into.send(part.to_vec()).unwrap();
            latpath_testkit::waits::pace(Duration::from_millis(10));
        }
    });
    let got = drain(&mut machine, made.len());
    sender.join().unwrap();
    assert_eq!(got.len(), made.len());
    let bound = machine.clock().max_error_bound_ns;
    for (got, made) in got.iter().zip(&made) {
        assert_eq!(Sighting { t: 0, ..*got }, Sighting { t: 0, ..*made });
        assert!((got.t - made.t).abs() <= bound, "{} ns off, bound {bound}", got.t - made.t);
    }
    assert!(got.is_sorted_by_key(|s| s.t));
    machine.stop().unwrap();
    let counters = machine.counters();
    assert_eq!((counters.sightings, counters.dropped), (1_000_000, 3));
    assert_eq!(agent.thread.join().unwrap().unwrap(), Ended::Stopped);
    assert!(!agent.attached.load(Ordering::SeqCst));
}

#[test]
fn notes_and_senders_reach_only_hosts_that_request_them_with_the_last_at_the_end() {
    let (mut machine, agent) = connected(monotonic);
    let request = StartRequest { options: [(StartRequest::NOTES.into(), "1".into())].into(), ..request() };
    machine.start(&request).unwrap();
    let sighting = Sighting { t: monotonic(), ..Sighting::default() };
    agent.sightings.send(vec![sighting; 7]).unwrap();
    drain(&mut machine, 7);
    machine.stop().unwrap();
    let note = SourceNote::new(SourceNoteKind::Fragments, "guest0: 7 packets in fragments");
    assert_eq!(machine.source_notes(), [note]);
    assert_eq!(machine.senders(), [SenderAt { stream: 1, sender: Sender::Mac([2, 0, 0, 0, 0, 1]), point: 3 }]);

    let (mut machine, _agent) = connected(monotonic);
    machine.start(&fake::request()).unwrap();
    machine.stop().unwrap();
    assert_eq!((machine.source_notes(), machine.senders(), machine.fault()), (vec![], vec![], None));
}

#[test]
fn times_of_a_machine_with_another_clock_are_within_the_bound() {
    // The guest's clock is 100 s ahead and 80 ppm fast.
    let began = monotonic();
    let guest = move |host: Ns| host + 100_000_000_000 + (host - began) * 80 / 1_000_000;
    let (mut machine, agent) = connected(move || guest(monotonic()));
    machine.start(&request()).unwrap();
    let mut seen = Vec::new();
    for _ in 0..40 {
        let host_times: Vec<Ns> = (0..20).map(|i| monotonic() - 25_000_000 + i * 1_000_000).collect();
        let sighting =
            |(i, &t): (usize, &Ns)| Sighting { t: guest(t), key: (seen.len() + i) as u32, ..Sighting::default() };
        agent.sightings.send(host_times.iter().enumerate().map(sighting).collect()).unwrap();
        seen.extend(host_times);
        latpath_testkit::waits::pace(Duration::from_millis(25));
    }
    let got = drain(&mut machine, seen.len());
    let clock = machine.clock();
    for s in &got {
        let off = s.t - seen[s.key as usize];
        assert!(off.abs() <= clock.max_error_bound_ns + 2, "{off} ns off, bound {}", clock.max_error_bound_ns);
    }
    // The error bounds grow while no exchanges take place, so wait until the clock is exact again.
    until("the clock is as it is", || {
        let (clock, now) = (machine.clock(), monotonic());
        let off = clock.offset_ns - (guest(now) - now);
        off.abs() <= clock.error_bound_ns + 10_000 && machine.clock_fault().is_none() && clock.exchanges > 30
    })
    .unwrap();
    assert_eq!(machine.clock().method.name(), "timed exchanges");
    assert!(machine.drain(&mut Vec::new()) <= monotonic());
}

#[test]
fn points_carry_the_name_that_the_user_gave_the_machine() {
    let (mut machine, agent) = connected(monotonic);
    machine.start(&request()).unwrap();
    agent.sightings.send(vec![Sighting { t: monotonic(), ..Sighting::default() }]).unwrap();
    drain(&mut machine, 1);
    let points = machine.points();
    assert_eq!(points.len(), 5);
    assert_eq!(points[1].point.to_string(), "guest0/nic-rx@eth1");
    assert_eq!(machine.drop_notes()[0].reason, "FULL_RING");
    assert!(!machine.facts().kernel.is_empty());
    assert_eq!(machine.settings(), None, "nobody asked for its settings");
}

#[test]
fn an_agent_reports_its_settings_to_a_host_that_requests_them() {
    let (mut machine, _agent) = connected(monotonic);
    let mut request = request();
    request.options.insert(StartRequest::SETTINGS.into(), "1".into());
    machine.start(&request).unwrap();
    let settings = machine.settings().expect("its settings, since they precede the start");
    assert!(settings.values.iter().any(|value| value.setting == "kernel-release"), "{settings:?}");
}

#[test]
fn an_agent_reports_its_virtual_machines_to_a_host_that_requests_them() {
    let connected = |vms: fn() -> Result<Vec<Vm>, String>| {
        let (host, guest) = UnixStream::pair().unwrap();
        let agent = agent_with(guest, ServeOptions { vms, ..ServeOptions::default() });
        (Machine::on_stream("b", "socket pair", Stream::new(host).unwrap(), patient()).unwrap(), agent)
    };
    fn relay() -> Vm {
        let threads = vec![Thread { tid: 7, role: Role::Vhost, ..Thread::default() }];
        Vm { name: "relay".into(), threads, ..Vm::default() }
    }
    let mut asked = request();
    asked.options.insert(StartRequest::VMS.into(), "1".into());
    let (mut machine, _agent) = connected(|| Ok(vec![relay()]));
    machine.start(&request()).unwrap();
    assert_eq!(machine.vms(), None, "nobody asked for them");
    let (mut machine, _agent) = connected(|| Ok(vec![relay()]));
    machine.start(&asked).unwrap();
    assert_eq!(machine.vms(), Some((vec![relay()], None)), "they precede the start");
    let (mut machine, _agent) = connected(|| Err("/proc cannot be read".into()));
    machine.start(&asked).unwrap();
    assert_eq!(machine.vms(), Some((Vec::new(), Some("/proc cannot be read".into()))));
}

#[test]
fn the_agent_detaches_when_its_host_goes_away() {
    let (mut machine, agent) = connected(monotonic);
    machine.start(&request()).unwrap();
    assert!(agent.attached.load(Ordering::SeqCst));
    drop(machine);
    assert_eq!(agent.thread.join().unwrap().unwrap(), Ended::HostGone);
    assert!(!agent.attached.load(Ordering::SeqCst));
}

#[test]
fn a_dead_machine_returns_its_received_sightings_and_delays_no_other() {
    let (host, guest) = UnixStream::pair().unwrap();
    let cut = guest.try_clone().unwrap();
    let agent = agent(guest, monotonic);
    let mut machine = Machine::on_stream("guest0", "socket pair", Stream::new(host).unwrap(), patient()).unwrap();
    machine.start(&request()).unwrap();
    let t = monotonic();
    agent.sightings.send((0..100).map(|i| Sighting { t: t + i, ..Sighting::default() }).collect()).unwrap();
    let mut got = drain(&mut machine, 1);
    cut.shutdown(std::net::Shutdown::Both).unwrap();
    until("the fault", || machine.fault().is_some()).unwrap();
    machine.drain(&mut got);
    assert_eq!(got.len(), 100);
    let fault = machine.fault().unwrap().to_string();
    assert_eq!(fault, "guest0 (socket pair): the agent closed the stream");
    assert!(machine.clock_fault().unwrap().contains("closed the stream"));
    let before = monotonic();
    assert!(machine.drain(&mut got) >= before);
    assert!(!machine.is_alive());
    assert!(machine.stop().is_ok());
}

#[test]
fn a_probe_that_cannot_be_attached_is_reported_with_its_cause() {
    let (host, guest) = UnixStream::pair().unwrap();
    let agent = std::thread::spawn(move || {
        let make = |_: &StartRequest| Err::<Attached<fake::FakeSource>, _>("no BTF in this kernel".to_string());
        latpath_agent::serve(&mut Stream::new(guest).unwrap(), &mut ServeOptions::default(), None, make)
    });
    let mut machine = Machine::on_stream("guest0", "socket pair", Stream::new(host).unwrap(), patient()).unwrap();
    let error = machine.start(&request()).unwrap_err().to_string();
    assert_eq!(error, "guest0 (socket pair): the agent gave up: no BTF in this kernel");
    assert!(agent.join().unwrap().is_err());
}

#[test]
fn a_probe_that_panics_while_attaching_is_an_error_of_that_machine() {
    let (host, guest) = UnixStream::pair().unwrap();
    std::thread::spawn(move || {
        let make = |_: &StartRequest| -> Result<Attached<fake::FakeSource>, String> { panic!("on purpose, in a test") };
        latpath_agent::serve(&mut Stream::new(guest).unwrap(), &mut ServeOptions::default(), None, make)
    });
    let mut machine = Machine::on_stream("guest0", "socket pair", Stream::new(host).unwrap(), patient()).unwrap();
    assert!(machine.start(&request()).unwrap_err().why.contains("a panic"));
}

#[test]
fn clock_exchanges_continue_while_the_probe_is_attached() {
    let (host, near) = UnixStream::pair().unwrap();
    let (far, guest) = UnixStream::pair().unwrap();
    let said = counted(near, far);
    let heard = said.clone();
    std::thread::spawn(move || {
        let make = move |_: &StartRequest| {
            let before = heard.load(Ordering::SeqCst);
            // A time reply has fewer than 50 bytes, and no other messages are sent in the meantime.
            until("ten answers", || heard.load(Ordering::SeqCst) > before + 500).unwrap();
            Err::<Attached<fake::FakeSource>, _>("slow".to_string())
        };
        latpath_agent::serve(&mut Stream::new(guest).unwrap(), &mut ServeOptions::default(), None, make)
    });
    let mut machine = Machine::on_stream("guest0", "socket pair", Stream::new(host).unwrap(), patient()).unwrap();
    let before = machine.clock().exchanges;
    assert_eq!(machine.start(&request()).unwrap_err().why, "the agent gave up: slow");
    assert!(machine.clock().exchanges >= before + 5);
}

/// Forwards bytes in both directions; returns a counter of the bytes sent by `far`.
fn counted(near: UnixStream, far: UnixStream) -> Arc<AtomicU64> {
    let said = Arc::new(AtomicU64::new(0));
    let (mut back, mut there) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    std::thread::spawn(move || std::io::copy(&mut back, &mut there));
    let (mut near, mut far, count) = (near, far, said.clone());
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = far.read(&mut bytes) {
            count.fetch_add(n as u64, Ordering::SeqCst);
            if near.write_all(&bytes[..n]).is_err() {
                return;
            }
        }
    });
    said
}

/// Forwards bytes with a delay of one millisecond.
fn forward_slowly(mut from: UnixStream, mut to: UnixStream) {
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            latpath_testkit::waits::pace(Duration::from_millis(1));
            if to.write_all(&bytes[..n]).is_err() {
                return;
            }
        }
    });
}

/// An exact reader of the hypervisor's clock: guest and host are the same machine here.
struct True;

impl Reader for True {
    fn read(&mut self) -> std::io::Result<Reading> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as Ns;
        Ok(Reading { host_realtime_ns: now, guest_realtime_ns: now })
    }
}

#[test]
fn the_hypervisors_clock_is_used_if_available() {
    let (host, guest) = UnixStream::pair().unwrap();
    let _agent = agent_with(guest, ServeOptions { hypervisor: Some(Box::new(True)), ..ServeOptions::default() });
    let machine = Machine::on_stream("guest0", "socket pair", Stream::new(host).unwrap(), patient()).unwrap();
    until("ptp_kvm", || machine.clock().method.name() == "ptp_kvm").unwrap();
    let clock = machine.clock();
    assert!(clock.offset_ns.abs() <= clock.error_bound_ns, "{clock:?}");
}

/// A reader of a hypervisor's clock that is 5 ms ahead of this host's.
struct Another;

impl Reader for Another {
    fn read(&mut self) -> std::io::Result<Reading> {
        let reading = True.read()?;
        Ok(Reading { host_realtime_ns: reading.host_realtime_ns + 5_000_000, ..reading })
    }
}

#[test]
fn the_clock_of_another_machines_guest_is_used_through_that_machine() {
    let hypervisor = Hypervisor::new("b");
    let connected = |reader: Box<dyn Reader>, is_of_b: bool| {
        let (host, near) = UnixStream::pair().unwrap();
        let (far, guest) = UnixStream::pair().unwrap();
        // The guest's own exchanges are slower than b's, so that the clock through b is more exact.
        forward_slowly(near.try_clone().unwrap(), far.try_clone().unwrap());
        forward_slowly(far, near);
        let agent = agent_with(guest, ServeOptions { hypervisor: Some(reader), ..ServeOptions::default() });
        let stream = Stream::new(host).unwrap();
        let machine = match is_of_b {
            true => Machine::guest_on_stream(&hypervisor, "relay", stream, patient()),
            false => Machine::on_stream("relay", "socket pair", stream, patient()),
        };
        (machine.unwrap(), agent)
    };
    let (mut b, _b) = self::connected(monotonic);
    b.publish_clock(&hypervisor);
    let mut asked = request();
    asked.options.insert(StartRequest::TIME_OF_DAY.into(), "1".into());
    b.start(&asked).unwrap();
    let (relay, _relay) = connected(Box::new(True), true);
    until("ptp_kvm through b", || relay.clock_method() == "ptp_kvm through b").unwrap();
    let clock = relay.clock();
    assert!(clock.offset_ns.abs() <= clock.error_bound_ns, "{clock:?}");
    // This guest reads a time of day that is neither b's nor this host's, so its pairs must be refused.
    for is_of_b in [true, false] {
        let (stranger, _stranger) = connected(Box::new(Another), is_of_b);
        until("the refusal", || stranger.clock().pairs_refused.is_some()).unwrap();
        let clock = stranger.clock();
        assert_eq!(clock.method.name(), "timed exchanges");
        assert!(clock.offset_ns.abs() <= clock.error_bound_ns, "{clock:?}");
    }
}

#[test]
fn both_ends_skip_leftovers_of_an_older_session() {
    let (mut host, mut guest) = UnixStream::pair().unwrap();
    let mut rubbish = vec![9, 0, 0, 0, 1, 2];
    rubbish.extend(b"\xfe\xffLATP\xfe\xff\xfe");
    host.write_all(&rubbish).unwrap();
    guest.write_all(b"Last login: Mon\r\n\xfe\xfflatpth12345678\x04\0\0\0zzzz").unwrap();
    let agent = agent(guest, monotonic);
    let mut machine = Machine::on_stream("guest0", "socket pair", Stream::new(host).unwrap(), patient()).unwrap();
    machine.start(&request()).unwrap();
    machine.stop().unwrap();
    assert_eq!(agent.thread.join().unwrap().unwrap(), Ended::Stopped);
}

fn fresh() -> impl FnOnce(&StartRequest) -> Result<Attached<fake::FakeSource>, String> + Clone + Send + 'static {
    |_: &StartRequest| {
        let from = std::sync::mpsc::channel().1;
        Ok(fake::FakeSource { from, points: 2, watermark: 0, made: 0, alive: Default::default() }.into())
    }
}

#[test]
fn a_socket_serves_successive_hosts_is_private_and_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    let (quit, tell_quit) = UnixStream::pair().unwrap();
    let at = Listen::Unix(path.clone());
    let agent = std::thread::spawn(move || {
        let mut options = ServeOptions { facts: Facts::default(), ..ServeOptions::default() };
        listen(&at, false, &mut options, Some(quit.as_fd()), &mut |_| {}, fresh())
    });
    // The host may try to connect before the agent listens; it then tries again.
    let address = format!("unix:{}", path.display()).parse().unwrap();
    for _ in 0..2 {
        let mut machine = Machine::connect("guest0", &address, patient()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        machine.start(&request()).unwrap();
        machine.stop().unwrap();
    }
    let second = listen(&Listen::Unix(path.clone()), true, &mut ServeOptions::default(), None, &mut |_| {}, fresh());
    assert!(second.unwrap_err().to_string().contains("another agent listens here"));
    drop(tell_quit);
    agent.join().unwrap().unwrap();
    assert!(!path.exists());
}

#[test]
fn a_silent_connection_does_not_lock_the_host_out() {
    for once in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let (quit, tell_quit) = UnixStream::pair().unwrap();
        let at = Listen::Unix(path.clone());
        let agent = std::thread::spawn(move || {
            let opening = Some(Duration::from_secs(2));
            let mut options = ServeOptions { facts: Facts::default(), opening, ..ServeOptions::default() };
            listen(&at, once, &mut options, Some(quit.as_fd()), &mut |_| {}, fresh())
        });
        let mut silent = None;
        until("the socket", || {
            silent = UnixStream::connect(&path).ok();
            silent.is_some()
        })
        .unwrap();
        let address = format!("unix:{}", path.display()).parse().unwrap();
        let mut machine = Machine::connect("guest0", &address, patient()).unwrap();
        machine.start(&request()).unwrap();
        machine.stop().unwrap();
        drop(tell_quit);
        agent.join().unwrap().unwrap();
    }
}

#[test]
fn opening_a_session_is_limited_in_time_on_sockets_and_not_on_devices() {
    let dir = tempfile::tempdir().unwrap();
    for (at, is_bounded) in
        [(Listen::Unix(dir.path().join("agent.sock")), true), (Listen::Device("/dev/null".into()), false)]
    {
        let (quit, tell_quit) = UnixStream::pair().unwrap();
        drop(tell_quit);
        let mut options = ServeOptions::default();
        listen(&at, false, &mut options, Some(quit.as_fd()), &mut |_| {}, fresh()).unwrap();
        assert_eq!(options.opening.is_some(), is_bounded, "{at}");
    }
}

#[test]
fn a_socket_left_by_a_killed_agent_is_replaced_and_any_other_file_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let (quit, tell_quit) = UnixStream::pair().unwrap();
    drop(tell_quit);
    let at = Listen::Unix(path.clone());
    listen(&at, false, &mut ServeOptions::default(), Some(quit.as_fd()), &mut |_| {}, fresh()).unwrap();
    std::fs::write(&path, "a letter").unwrap();
    let refused = listen(&at, false, &mut ServeOptions::default(), Some(quit.as_fd()), &mut |_| {}, fresh());
    assert!(refused.unwrap_err().to_string().contains("not a socket"));
    assert_eq!(std::fs::read(&path).unwrap(), b"a letter");
}

#[test]
fn a_missing_device_is_reported_by_name() {
    let at = Listen::Device("/dev/virtio-ports/latpath-none".into());
    let error = listen(&at, true, &mut ServeOptions::default(), None, &mut |_| {}, fresh()).unwrap_err().to_string();
    assert!(error.starts_with("/dev/virtio-ports/latpath-none: no such device"), "{error}");
}

#[test]
fn a_wrong_socket_path_is_reported_after_the_timeout() {
    let address = "unix:/nonexistent/agent.sock".parse().unwrap();
    let timeouts = latpath_agent::Timeouts { connect: Duration::from_millis(200), ..patient() };
    let error = Machine::connect("guest0", &address, timeouts).err().unwrap().to_string();
    assert!(error.starts_with("guest0 (unix:/nonexistent/agent.sock): no such socket"), "{error}");
}

#[test]
fn a_permitted_command_runs_and_ends_with_the_session() {
    let (host, guest) = UnixStream::pair().unwrap();
    let agent = agent_with(guest, ServeOptions { commands: Commands::Allowed, ..ServeOptions::default() });
    let mut machine = Machine::on_stream("guest0", "socket pair", Stream::new(host).unwrap(), patient()).unwrap();
    let mut printed = Vec::new();
    machine.run_command(["sh", "-c", "seq 1 200000; echo no >&2; exit 3"].map(String::from).into()).unwrap();
    until("it has ended", || {
        let news = machine.command();
        assert_eq!(news.left_out, 0);
        printed.extend(news.printed);
        news.end.is_some_and(|end| end == Ok(3))
    })
    .unwrap();
    let of = |is: bool| printed.iter().filter(|(of, _)| *of == is).flat_map(|(_, bytes)| bytes.clone()).collect();
    let (out, errors): (Vec<u8>, Vec<u8>) = (of(false), of(true));
    let numbers = String::from_utf8(out).unwrap().lines().filter_map(|n| n.parse::<u64>().ok()).sum::<u64>();
    assert_eq!(numbers, 20_000_100_000);
    assert_eq!(errors, b"no\n");

    machine.run_command(["sh", "-c", "echo $$; exec sleep 1000"].map(String::from).into()).unwrap();
    let mut pid = String::new();
    until("it has begun", || {
        let pieces = machine.command().printed.into_iter();
        pid += &pieces.map(|(_, bytes)| String::from_utf8(bytes).unwrap()).collect::<String>();
        pid.ends_with('\n')
    })
    .unwrap();
    drop(machine);
    agent.thread.join().unwrap().unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{}", pid.trim())).exists(), "it still runs");
}

#[test]
fn a_command_runs_on_no_other_agent() {
    let (mut machine, _agent) = connected(monotonic);
    let refused = machine.run_command(vec!["true".into()]).unwrap_err().to_string();
    assert!(refused.contains("latpath agent --allow-commands"), "{refused}");
    assert_eq!(machine.command().end, None);
}

#[test]
fn an_agent_with_a_key_runs_commands_of_hosts_with_the_key_only() {
    let folder = tempfile::tempdir().unwrap();
    let key = |text: &str| {
        let file = folder.path().join("key");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        CommandKey::read(&file).unwrap()
    };
    for (hosts, runs) in
        [(None, false), (Some("another secret of a host"), false), (Some("a secret of both ends"), true)]
    {
        let (host, guest) = UnixStream::pair().unwrap();
        let commands = Commands::WithKey(key("a secret of both ends"));
        let _agent = agent_with(guest, ServeOptions { commands, ..ServeOptions::default() });
        let mut machine = Machine::on_stream("guest0", "socket pair", Stream::new(host).unwrap(), patient()).unwrap();
        hosts.into_iter().for_each(|text| machine.set_command_key(key(text)));
        machine.run_command(vec!["true".into()]).unwrap();
        let mut end = None;
        until("it has ended", || {
            end = machine.command().end;
            end.is_some()
        })
        .unwrap();
        assert_eq!(end == Some(Ok(0)), runs, "{end:?}");
        assert!(runs || end.is_some_and(|end| end.is_err_and(|why| why.contains("--agent-key"))));
    }
}
