//! The table of points: which packets add entries, when entries are released, and which packets do not count.

use crate::readers::{call_me, packet_socket, take};
use crate::*;
use latpath_probe::Accept;
use latpath_testkit::{bench, trial, Lack};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::Arc;

pub fn trials(needs: &[Lack]) -> Vec<latpath_testkit::Trial> {
    vec![
        trial("a_refused_point_takes_no_place_and_others_are_seen", needs, refused),
        trial("a_thread_that_renames_itself_leaves_room_for_others", needs, renamed),
        trial("a_reader_that_is_named_has_a_place_whatever_other_threads_do", needs, named),
        trial("a_device_that_is_made_again_and_again_keeps_its_point", needs, made_again),
        trial("without_a_nic_that_has_times_packets_are_seen_as_ever_and_a_note_says_so", needs, no_nic),
        trial("namespaces_of_other_users_count_only_where_they_are_asked_for", needs, others),
    ]
}

/// Tests during which no other process may create a namespace.
pub fn alone(needs: &[Lack]) -> Vec<latpath_testkit::Trial> {
    vec![trial("a_namespace_with_the_number_of_one_that_ended_has_points_of_its_own", needs, same_number)]
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.is_ok_and(|s| s.success()), "ip {words}");
}

/// Sends a frame over the bench, and adds the probe's sightings so far to `into`.
fn step(bench: &Bench, probe: &mut Probe, stream: &str, n: u16, into: &mut Vec<Sighting>) -> Result<(), Failed> {
    send(bench, &[bytes(&frame(stream, n))])?;
    let before = into.len();
    until("the frame is seen", || {
        probe.drain(into);
        into.len() > before
    })?;
    Ok(())
}

fn refused() -> Result<(), Failed> {
    let bench = bench()?;
    let stream = own("refused");
    let mut options = ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]);
    options.accept = Accept(Arc::new(|point| point.point.to_string() == LINE[1]));
    let mut probe = Probe::attach(options)?;
    let mut seen = Vec::new();
    for n in 0..50 {
        step(&bench, &mut probe, &stream, n, &mut seen)?;
    }
    let names: Vec<String> = probe.points().iter().map(|p| p.point.to_string()).collect();
    assert_eq!(names, [LINE[1]]);
    let keys: Vec<u32> = seen.iter().map(|s| s.key).collect();
    assert_eq!(keys, (0..50).collect::<Vec<_>>(), "the point that counts saw each frame once");
    let counters = probe.counters();
    assert_eq!(counters.points_overflow, 0);
    // A point was rejected after its first packets had been seen; from then on its packets cost nothing.
    assert!(counters.sightings < 50 * 3, "{counters:?}");
    Ok(())
}

fn no_nic() -> Result<(), Failed> {
    let bench = bench()?;
    let stream = own("no-nic");
    let options = ProbeOptions { nic_times: true, ..ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]) };
    let mut probe = Probe::attach(options)?;
    let mut seen = Vec::new();
    for n in 0..5 {
        step(&bench, &mut probe, &stream, n, &mut seen)?;
    }
    let points = probe.points();
    assert!(points.len() >= 3 && points.iter().all(|info| !info.point.kind.is_by_nic()), "{points:?}");
    let has_clocks = std::fs::read_dir("/sys/class/ptp").is_ok_and(|clocks| clocks.count() > 0);
    let notes = probe.notes();
    assert!(has_clocks || notes.iter().any(|note| note.contains("no NIC that is up has timestamps")), "{notes:?}");
    Ok(())
}

fn renamed() -> Result<(), Failed> {
    let bench = bench()?;
    let stream = own("renamed");
    let mut probe = Probe::attach(ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]))?;
    let mut seen = Vec::new();
    bench.application().inside(|| -> Result<(), Failed> {
        let socket = packet_socket("lp-app", 0x88ba);
        for n in 0..60 {
            call_me(&format!("reader\x1b{n}"));
            step(&bench, &mut probe, &stream, n, &mut seen)?;
            until("the frame has come", || take(&socket, 0).is_some())?;
        }
        Ok(())
    })??;
    // A device that appears after all these names must still get a point.
    bench.path.hypervisor.inside(|| {
        ip("link add late0 type veth peer name late1");
        ip("link set late1 up");
        ip("link set late0 master br0 up");
    })?;
    until("a device that came last has a point", || {
        step(&bench, &mut probe, &stream, 99, &mut seen).is_ok()
            && probe.points().iter().any(|p| p.point.to_string() == "host/nic-rx@late1")
    })?;
    let points = probe.points();
    let spaces = spaces(&bench)?;
    let readers = points.iter().filter(|p| p.point.device.starts_with("reader") && spaces.contains(&p.netns));
    assert!((1..=16).contains(&readers.clone().count()));
    assert!(readers.clone().all(|p| p.point.device.starts_with("reader?")), "a name cannot command the terminal");
    assert!(probe.counters().points_overflow > 0, "names that found no room are counted");
    Ok(())
}

/// Another process cannot exhaust the table: here it changes its name with each frame that it reads, far more often
/// than the table has entries.
fn named() -> Result<(), Failed> {
    const NAMES: u16 = 400;
    const READ: u16 = 20;
    let bench = bench()?;
    let stream = own("named");
    let mut options = ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]);
    options.readers = vec!["relay".into()];
    options.accept = Accept(Arc::new(|point| point.point.to_string() == "host/app-read@relay"));
    let mut probe = Probe::attach(options)?;
    let mut seen = Vec::new();
    bench.application().inside(|| -> Result<(), Failed> {
        let socket = packet_socket("lp-app", 0x88ba);
        for n in 0..NAMES + READ {
            call_me(&if n < NAMES { format!("other{n}") } else { "relay".into() });
            send(&bench, &[bytes(&frame(&stream, n))])?;
            until("the frame has come", || take(&socket, 0).is_some())?;
            probe.drain(&mut seen);
        }
        Ok(())
    })??;
    until("all that relay read are seen", || {
        probe.drain(&mut seen);
        seen.len() >= usize::from(READ)
    })?;
    let points: Vec<String> = probe.points().iter().map(|p| p.point.to_string()).collect();
    assert_eq!(points, ["host/app-read@relay"]);
    let keys: Vec<u32> = seen.iter().map(|s| s.key).collect();
    assert_eq!(keys, (u32::from(NAMES)..u32::from(NAMES + READ)).collect::<Vec<_>>());
    Ok(())
}

fn made_again() -> Result<(), Failed> {
    let bench = bench()?;
    let stream = own("again");
    let mut probe = Probe::attach(ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]))?;
    let mut seen = Vec::new();
    // More devices than the table would have entries for if none were released; releasing an entry takes the programs
    // two seconds.
    let begin = latpath_linux::monotonic();
    for n in 0..120 {
        if n == 60 {
            until("places are given back", || {
                probe.drain(&mut seen);
                latpath_linux::monotonic() > begin + 4_000_000_000
            })?;
        }
        bench.path.hypervisor.inside(|| {
            ip("link add vm0 type veth peer name vm1");
            ip("link set vm1 up");
            ip("link set vm0 master br0 up");
        })?;
        step(&bench, &mut probe, &stream, n, &mut seen)?;
        bench.path.hypervisor.inside(|| ip("link del vm0"))?;
    }
    let spaces = spaces(&bench)?;
    let points = probe.points();
    let ours: Vec<String> = points.iter().filter(|p| spaces.contains(&p.netns)).map(|p| p.point.to_string()).collect();
    assert!(ours.len() <= 10, "{ours:?}");
    assert!(ours.iter().any(|p| p == "host/nic-rx@vm1"), "{ours:?}");
    assert_eq!(probe.counters().points_overflow, 0);
    Ok(())
}

/// Calls `call` in a temporary namespace with the namespace's inode number; returns its result.
fn in_a_new_namespace<T: Send>(call: impl FnOnce(u32) -> T + Send) -> Result<T, Failed> {
    let called = std::thread::scope(|scope| {
        let thread = scope.spawn(|| -> Result<T, std::io::Error> {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
            Ok(call(std::fs::metadata("/proc/thread-self/ns/net")?.ino() as u32))
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    Ok(called?)
}

/// Creates a device in this namespace with an ifindex that earlier devices also had, and sends a frame from it.
fn send_from(device: &str, frame: &[u8]) {
    ip(&format!("link add {device} index 77 type veth peer name peer"));
    ip("link set peer up");
    ip(&format!("link set {device} up"));
    let mut socket = PacketSocket::open(device, Listen::No).expect("a packet socket");
    assert!(socket.send(&[IoSlice::new(frame)]).is_ok_and(|sent| sent.taken == 1));
}

fn same_number() -> Result<(), Failed> {
    let stream = own("number");
    let mut probe = Probe::attach(ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]))?;
    let frame = bytes(&frame(&stream, 1));
    let mut seen = Vec::new();
    let number = in_a_new_namespace(|number| {
        send_from("old0", &frame);
        number
    })?;
    // The kernel assigns the lowest free inode number, which will soon be this one again, unless another process takes
    // it.
    let taken = until("the number is given again", || {
        let again = in_a_new_namespace(|again| {
            (again == number).then(|| send_from("new0", &frame));
            again == number
        });
        again.is_ok_and(|again| again)
    });
    if taken.is_err() {
        return Err("another one on this machine has that namespace's number now".into());
    }
    until("both devices have points", || {
        probe.drain(&mut seen);
        let points = probe.points();
        let of_number = |name: &str| points.iter().any(|p| p.netns == number && p.point.to_string() == name);
        of_number("host/tx@old0") && of_number("host/tx@new0")
    })
}

fn others() -> Result<(), Failed> {
    let _bench = bench()?;
    let stream = own("others");
    let latpath = env!("CARGO_BIN_EXE_latpath");
    let script = format!(
        "ip link add veth0 type veth peer name veth1 && ip link set veth0 up && ip link set veth1 up && \
         exec {latpath} publish -i veth0 --svid {stream} --rate 100 --count 30"
    );
    for other_users in [false, true] {
        let options = ProbeOptions { other_users, ..ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]) };
        let mut probe = Probe::attach(options)?;
        let out = Command::new("unshare").args(["-Urn", "sh", "-c", &script]).output().map_err(|e| e.to_string())?;
        if !out.status.success() {
            return Err(format!("unshare -Urn: {}", String::from_utf8_lossy(&out.stderr)).into());
        }
        let mut seen = Vec::new();
        let ended = latpath_linux::monotonic();
        until("all is read up to the publisher's end", || probe.drain(&mut seen) > ended)?;
        let points = probe.points().len();
        assert_eq!((seen.len() >= 60, points >= 2), (other_users, other_users), "{} at {points}", seen.len());
        let noted = probe.notes().iter().any(|note| note.contains("--other-users"));
        assert_eq!(noted, !other_users);
    }
    Ok(())
}
