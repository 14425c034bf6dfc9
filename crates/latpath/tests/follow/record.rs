//! The contents of a recording, compared with the counts of the publisher and the application.

use crate::{equal, own, publish, report, subscribe, until, Recorder, LIMIT, LONG_WRAP, PATIENT};
use latpath_lab::{APPLICATION, NIC, PUBLISHER, VETH};
use latpath_model::StreamId;
use latpath_report::Report;
use latpath_run::{Deficiency, DeficiencyKind, Run, Select, State};
use latpath_stats::figures::packets;
use latpath_testkit::waits::has_read;
use latpath_testkit::{bench, latpath, need_tool, trial, Lack};
use latpath_testkit::{Failed, Trial};
use latpath_traffic::document::{PublishDocument, SubscribeDocument};
use nix::sys::signal::Signal;
use pcap_file::pcap::PcapReader;
use serde_json::Value;
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial("every_frame_has_a_whole_journey", needs, every_frame),
        trial("segments_add_up_to_the_total", needs, adds_up),
        trial("streams_are_distinguished_and_so_are_asdus", needs, several_streams),
        trial("what_the_application_did_not_read_is_lost_where_it_waits", needs, lost_at_socket),
        trial("an_unused_svid_is_not_in_the_run", needs, other_streams),
        trial("the_events_of_guests_doors_change_no_journey_without_a_guest", needs, door),
        trial("what_waits_in_the_kernel_when_a_recorder_is_interrupted_is_recorded", needs, interrupted_late),
        trial("a_listener_that_joins_late_changes_no_count", needs, late_listener),
        trial("two_recorders_see_the_same", needs, two_at_once),
        trial("two_senders_whose_packets_never_meet_are_not_one_route", needs, two_senders),
        trial("points_narrows_the_route", needs, points),
        trial("a_pattern_of_points_that_fits_none_is_named_also_in_a_short_recording", needs, no_such_point),
        trial("fragments_weaken_a_verdict_unless_an_application_read_whole_packets", needs, fragments),
        trial("a_run_of_the_size_that_was_asked_for_ends_whole_and_says_why", needs, max_size),
        trial("what_was_under_way_when_it_began_is_not_incomplete", &[needs, &[need_tool("tc")]].concat(), under_way),
        trial("tcpdump_sees_each_frame_between_the_same_points", &[needs, &[need_tool("tcpdump")]].concat(), tcpdump),
    ]
}

/// Records published packets that an application reads.
fn record(name: &str, publishing: &str) -> Result<(PublishDocument, std::path::PathBuf), Failed> {
    let bench = bench()?;
    let svid = own(name);
    let application = subscribe(&bench, &svid)?;
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid} {PATIENT}"))?;
    let sent = publish(&bench, &format!("--svid {svid} {publishing} {LONG_WRAP}"))?;
    recorder.has(sent.frames_sent)?;
    let run = recorder.end()?;
    application.interrupt();
    let received = application.finish(LIMIT)?.json::<SubscribeDocument>()?.received;
    equal("received", received, sent.frames_sent)?;
    let kept = tempfile::tempdir()?.keep();
    let copied = Command::new("cp").arg("-r").arg(&run).arg(&kept).status()?;
    equal("cp", copied.success(), true)?;
    Ok((sent, kept.join("run")))
}

fn door() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("door");
    let application = subscribe(&bench, &svid)?;
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid} --door {PATIENT}"))?;
    let sent = publish(&bench, &format!("--svid {svid} --count 8000 {LONG_WRAP}"))?.frames_sent;
    recorder.has(sent)?;
    let run = recorder.end()?;
    application.interrupt();
    application.finish(LIMIT)?;
    let figures = report(&run, "")?.summary;
    equal("journeys, and complete ones", (figures.journeys, figures.complete), (sent, sent))?;
    equal("points", figures.points.len(), 5)?;
    let said = figures.notes.iter().any(|note| note.contains("--door: ") && note.contains(" events were recorded"));
    equal(&format!("{:?}", figures.notes), said, true)
}

/// Packets and SIGINT arrive while the recorder is stopped.
fn interrupted_late() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("late");
    let application = subscribe(&bench, &svid)?;
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid} {PATIENT}"))?;
    publish(&bench, &format!("--svid {svid} --count 4000 {LONG_WRAP}"))?;
    recorder.has(1)?;
    recorder.process.signal(Signal::SIGSTOP);
    publish(&bench, &format!("--svid {svid} --first 4000 --count 4000 {LONG_WRAP}"))?;
    has_read(&application)?;
    recorder.process.interrupt();
    recorder.process.signal(Signal::SIGCONT);
    let ended = recorder.process.finish(LIMIT)?;
    equal(&format!("exit code: {}", ended.stderr), ended.code, Some(0))?;
    let figures = report(&recorder.run, "")?.summary;
    equal("journeys and complete", (figures.journeys, figures.complete), (8000, 8000))
}

/// A listener, whose sockets copy each packet, begins while the stream pauses.
fn late_listener() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("listener");
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid} {PATIENT}"))?;
    publish(&bench, &format!("--svid {svid} --rate 1000 --count 6000 {LONG_WRAP}"))?;
    recorder.has(1)?;
    // With more than four devices, `streams` reads from its sockets' buffers instead of mapped rings.
    let devices = format!("-i {NIC} ").repeat(5);
    let listener = bench.start(&bench.path.hypervisor, latpath(&format!("streams {devices} --duration 4s")))?;
    latpath_testkit::waits::fault_for(Duration::from_secs(1));
    publish(&bench, &format!("--svid {svid} --rate 1000 --count 500 {LONG_WRAP}"))?;
    let listened = listener.finish(LIMIT)?;
    equal(&listened.stderr, listened.code, Some(0))?;
    let run = recorder.end()?;
    let figures = report(&run, "")?.summary;
    let points = Run::open(&run)?.manifest().points.iter().map(|info| info.point.to_string()).collect::<Vec<_>>();
    equal(
        &format!("{points:?} have the listener"),
        points.iter().any(|p| p.starts_with("host/app-read@latpath")),
        true,
    )?;
    equal(&format!("journeys: {:?}", figures.notes), figures.journeys, 6500)
}

fn two_senders() -> Result<(), Failed> {
    let (here, there) = (bench()?, bench()?);
    let svid = own("twice");
    let applications = [subscribe(&here, &svid)?, subscribe(&there, &svid)?];
    let recorder = Recorder::start(&here, "run", &format!("--stream svid:{svid} {PATIENT}"))?;
    let words = |first: u32| format!("publish -i lp-pub --svid {svid} --count 8000 --first {first} {LONG_WRAP}");
    let other = there.start(&there.path.publisher, latpath(&words(2000)))?;
    let sent = here.run(&here.path.publisher, latpath(&words(0)), LIMIT)?;
    equal("published", (sent.code, other.finish(LIMIT)?.code), (Some(0), Some(0)))?;
    recorder.has(8000)?;
    let run = recorder.end()?;
    applications.iter().for_each(|application| application.interrupt());
    let figures = report(&run, "")?.summary;
    equal("journeys and complete", (figures.journeys, figures.complete), (8000, 8000))?;
    equal("duplicates and never seen", (figures.duplicates, figures.streams[0].never_seen), (0, 0))?;
    equal("points", figures.points.len(), 5)?;
    let notes = figures.notes.concat();
    equal(&notes, notes.contains("two senders of svid:") && notes.contains("--points host/"), true)?;
    // The notes name both senders by their source MAC, and the packets without a journey are reported as a deficiency.
    for bench in [&here, &there] {
        let link = bench.path.publisher.ip(&format!("-br link show {PUBLISHER}"))?;
        let mac = String::from_utf8_lossy(&link).split_whitespace().nth(2).map(str::to_owned).ok_or("no MAC")?;
        equal(&format!("{mac} in {notes}"), notes.contains(&mac), true)?;
    }
    let lacks = figures.deficiencies.iter().any(|one| one.kind == DeficiencyKind::SenderNotFollowed);
    equal(&format!("{:?}", figures.deficiencies), lacks, true)
}

fn no_such_point() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("nowhere");
    let words = format!("publish -i {PUBLISHER} --svid {svid} --duration 600s");
    let publisher = bench.start(&bench.path.publisher, latpath(&words))?;
    let run = bench.lab.folder().join("run");
    let words = format!("record --stream svid:{svid} --points host/*@nope --duration 1s -o {}", run.display());
    let ended = bench.run(&bench.path.hypervisor, latpath(&words), LIMIT)?;
    publisher.interrupt();
    equal("exit code", ended.code, Some(0))?;
    let text = "latpath: --points host/*@nope: no packet was seen at such a point";
    equal(&ended.stderr, ended.stderr.matches(text).count(), 1)?;
    let output = latpath(&format!("report {} --limit lost<=0", run.display())).output()?;
    equal("the verdict's exit code", output.status.code(), Some(3))?;
    publisher.finish(LIMIT).map(drop)
}

fn fragments() -> Result<(), Failed> {
    const PACKETS: u32 = 200;
    let bench = bench()?;
    let (near, far) = (&bench.path.publisher, bench.application());
    for (space, device, end) in [(near, PUBLISHER, 1), (far, APPLICATION, 2)] {
        space.ip(&format!("addr add 10.79.0.{end}/24 dev {device}"))?;
    }
    let reader = far.inside(|| UdpSocket::bind("10.79.0.2:5000"))??;
    reader.set_read_timeout(Some(Duration::from_secs(1)))?;
    let sender = near.inside(|| UdpSocket::bind("10.79.0.1:4000"))??;
    let mut packet = vec![0; 3000];
    // The first packet waits for address resolution; later ones do not.
    sender.send_to(&packet, "10.79.0.2:5000")?;
    reader.recv(&mut [0; 4096])?;
    // One route ends at a point chosen by the user, the other at the reader.
    for (name, points, is_open) in [("device", "--points host/tx@lp-pub,host/nic-rx@nic0", true), ("reader", "", false)]
    {
        let stream = "udp:10.79.0.1:4000>10.79.0.2:5000,seq=0:4";
        let recorder = Recorder::start(&bench, name, &format!("--stream {stream} {points} {PATIENT}"))?;
        for n in 1..=PACKETS {
            packet[..4].copy_from_slice(&n.to_be_bytes());
            sender.send_to(&packet, "10.79.0.2:5000")?;
            reader.recv(&mut [0; 4096])?;
        }
        recorder.has(u64::from(PACKETS))?;
        let run = recorder.end()?;
        let words = format!("report {} --json --limit lost<=0 --limit total:max<=1000s", run.display());
        let output = latpath(&words).output()?;
        let shown: Report = serde_json::from_slice(&output.stdout)?;
        let lacks = &shown.summary.deficiencies;
        let is_fragments =
            |one: &Deficiency| one.kind == DeficiencyKind::Fragments && one.text.contains("in fragments");
        equal(&format!("{lacks:?}"), lacks.iter().any(is_fragments), true)?;
        // Without fentry, latpath cannot see which process reads from a UDP socket: the route's end stays open, and the
        // limits fail.
        let end = shown.summary.points.last().map(ToString::to_string).unwrap_or_default();
        let is_read = !is_open && end.starts_with("host/app-read@");
        equal(&format!("{:?}", shown.limits), output.status.code(), Some(if is_read { 0 } else { 3 }))?;
    }
    Ok(())
}

fn remove(run: &std::path::Path) {
    let _ = run.parent().map(std::fs::remove_dir_all);
}

fn every_frame() -> Result<(), Failed> {
    // smpCnt wraps during the test.
    let (sent, run) = record("whole", "--profile 9-2le-50 --first 63000 --count 6000")?;
    let figures = report(&run, "")?.summary;
    let frames = sent.frames_sent;
    equal("journeys and complete", (figures.journeys, figures.complete), (frames, frames))?;
    equal("lost", figures.lost.len(), 0)?;
    equal("sightings dropped", figures.tool.sightings_dropped, 0)?;
    let points: Vec<String> = figures.points.iter().map(ToString::to_string).collect();
    let route =
        ["host/tx@lp-pub", "host/nic-rx@nic0", "host/tx@veth0", "host/nic-rx@lp-app", "host/app-read@subscribe"];
    equal("points", points, route.map(String::from).to_vec())?;
    remove(&run);
    Ok(())
}

fn adds_up() -> Result<(), Failed> {
    let (_, run) = record("sum", "--count 3000")?;
    let opened = Run::open(&run)?;
    let point = |name: &str| {
        let at = opened.points().iter().position(|p| p.point.to_string() == name);
        at.map(|p| p as u16).ok_or_else(|| Failed::from(format!("no point {name}")))
    };
    let route = &opened.manifest().route;
    let ids: Vec<u16> = route.iter().map(|p| point(&p.to_string())).collect::<Result<_, _>>()?;
    let mut wrong = 0;
    opened.for_each(&Select::default(), |j| {
        let parts: Option<i64> = ids.windows(2).map(|ends| j.between(ends[0], ends[1])).sum();
        wrong += u64::from(parts.is_none() || parts != j.between(ids[0], ids[ids.len() - 1]));
        wrong += u64::from(ids.windows(2).any(|ends| j.between(ends[0], ends[1]).is_none_or(|t| t < 0)));
        true
    });
    equal("journeys whose parts do not add up, or go back in time", wrong, 0)?;
    let figures = report(&run, "")?.summary;
    let times = |name: &str| {
        let segment = figures.segments.iter().find(|s| s.name == name);
        segment.map(|s| &s.times).ok_or_else(|| Failed::from(format!("no {name} in {:?}", figures.segments)))
    };
    let (parts, total) = ([times("Tnet")?, times("Thyp")?, times("Tsub")?], times("total")?);
    equal("counts", parts.map(|part| part.count), [total.count; 3])?;
    // Each mean is rounded to 1 ns.
    let sum: i64 = parts.iter().map(|part| part.mean_ns).sum();
    equal("means within rounding", (sum - total.mean_ns).abs() <= 2, true)?;
    remove(&run);
    Ok(())
}

fn several_streams() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("many");
    let flags: String = (1..=4).map(|n| format!("--stream svid:{svid}0{n} ")).collect();
    let junit = bench.lab.folder().join("limits.xml");
    let limits = format!("--limit journeys>=8000 --limit never_seen<=0 --junit {}", junit.display());
    let recorder = Recorder::start(&bench, "run", &format!("{flags} {limits}"))?;
    let sent = publish(&bench, &format!("--profile 9-2le-50-meas --svid {svid} --streams 4 --count 8000 --rate 1600"))?;
    equal("frames", sent.frames_sent, 8000)?;
    recorder.has(8000)?;
    let run = recorder.end()?;
    let verdicts = std::fs::read_to_string(junit)?;
    equal(&verdicts, verdicts.contains("tests=\"2\" failures=\"0\""), true)?;
    let opened = Run::open(&run)?;
    let mut keys = vec![Vec::new(); 4];
    opened.for_each(&Select::default(), |j| {
        keys[usize::from(j.stream)].push((j.number, j.key));
        true
    });
    for (id, keys) in keys.iter_mut().enumerate() {
        keys.sort_unstable();
        // Each frame has eight ASDUs and is identified by the smpCnt of the first; there are 12,800 samples per second.
        let want: Vec<(u64, u32)> = (0..2000).map(|n| (n, (n * 8 % 12_800) as u32)).collect();
        equal(&format!("stream {id}"), keys == &want, true)?;
        let manifest = opened.manifest();
        equal("name", manifest.streams[id].to_string(), format!("svid:{svid}0{}", id + 1))?;
        let joined = manifest.joined[usize::from(id as StreamId)];
        equal("never seen, duplicates", (joined.never_seen, joined.duplicates), (0, 0))?;
    }
    Ok(())
}

fn lost_at_socket() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("stuck");
    let application = subscribe(&bench, &svid)?;
    // The buffer holds the kernel's events of 60,000 frames, even if the recorder does not read them in the meantime.
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid} {PATIENT} --buffer 64"))?;
    publish(&bench, &format!("--svid {svid} --count 2000 {LONG_WRAP}"))?;
    has_read(&application)?;
    // While the application is stopped, its socket's buffer fills up, and the kernel drops further packets.
    let pid = nix::unistd::Pid::from_raw(application.pid() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP)?;
    let sent = publish(&bench, &format!("--svid {svid} --first 2000 --count 60000 --rate max {LONG_WRAP}"))?;
    // Packets not read within the window count as lost, so the application resumes in time.
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT)?;
    recorder.has(2000 + sent.frames_sent)?;
    let run = recorder.end()?;
    application.interrupt();
    let SubscribeDocument { received, socket_dropped: dropped, .. } = application.finish(LIMIT)?.json()?;
    equal("something was dropped", dropped > 0, true)?;
    equal("received and dropped", received + dropped, 2000 + sent.frames_sent)?;
    let figures = report(&run, "")?.summary;
    let app_reads = {
        let opened = Run::open(&run)?;
        let name = "host/app-read@subscribe";
        let at = opened.points().iter().position(|p| p.point.to_string() == name);
        let at = at.ok_or("the application was not seen")?;
        let mut n = 0;
        opened.for_each(&Select::default(), |j| {
            n += j.seen >> at & 1;
            true
        });
        n
    };
    equal("app-read", app_reads, received)?;
    equal("lost", packets(&figures.lost), dropped)?;
    let at_nic = figures.lost.iter().all(|loss| loss.place == "host/nic-rx@lp-app");
    equal("all lost between the NIC and the application", at_nic, true)
}

fn other_streams() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("mine");
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid}"))?;
    publish(&bench, &format!("--svid {svid}x --count 500"))?;
    publish(&bench, &format!("--svid {svid} --count 500"))?;
    recorder.has(500)?;
    let run = recorder.end()?;
    equal("journeys", Run::open(&run)?.journeys(), 500)
}

fn two_at_once() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("both");
    let first = Recorder::start(&bench, "first", &format!("--stream svid:{svid}"))?;
    let second = Recorder::start(&bench, "second", &format!("--stream svid:{svid}"))?;
    publish(&bench, &format!("--svid {svid} --count 2000"))?;
    first.has(2000)?;
    second.has(2000)?;
    let (first, second) = (Run::open(&first.end()?)?, Run::open(&second.end()?)?);
    equal("journeys", (first.journeys(), second.journeys()), (2000, 2000))?;
    equal("route", &first.manifest().route, &second.manifest().route)
}

fn points() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("narrow");
    let words = format!(
        "--stream svid:{svid} --points host/tx@veth*,host/nic-rx@nic0 --segment bridge=host/nic-rx@*..host/tx@*"
    );
    let recorder = Recorder::start(&bench, "run", &words)?;
    publish(&bench, &format!("--svid {svid} --count 1000"))?;
    recorder.has(1000)?;
    let figures = report(&recorder.end()?, "")?.summary;
    let points: Vec<String> = figures.points.iter().map(ToString::to_string).collect();
    equal("points", points, vec!["host/nic-rx@nic0".into(), "host/tx@veth0".into()])?;
    let named = figures.segments.iter().find(|s| s.name == "bridge").ok_or("the named segment is missing")?;
    equal("count", named.times.count, 1000)
}

fn max_size() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("size");
    let publisher = latpath(&format!("publish -i {PUBLISHER} --svid {svid} --rate 4000"));
    let publisher = bench.start(&bench.path.publisher, publisher)?;
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid} --max-size 64KiB"))?;
    let ended = recorder.process.finish(LIMIT)?;
    equal("exit code", ended.code, Some(0))?;
    publisher.interrupt();
    let run = Run::open(&recorder.run)?;
    equal("state", run.manifest().state, State::Finished)?;
    let why = "it had reached its --max-size of 64.0 KiB";
    equal("why on stderr", ended.stderr.contains(why), true)?;
    equal("why in the notes", run.manifest().notes.iter().any(|note| note.contains(why)), true)?;
    equal("all there", report(&recorder.run, "")?.summary.journeys, run.manifest().journeys)
}

/// tcpdump's timestamp is taken when the frame enters the host, between the publisher's device and the next one. Both
/// programs take their times on the same machine, but by different means.
fn tcpdump() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("dump");
    let file = bench.lab.folder().join("nic0.pcap");
    let mut command = Command::new("tcpdump");
    // A short snapshot length and a large buffer (KiB), so that nothing is lost while tcpdump does not run.
    let words = "-s 512 -B 32768 -Q in -c 3000 --immediate-mode -Z root --time-stamp-precision nano";
    command.args(["-i", NIC]).args(words.split(' ')).arg("-w").arg(&file).args(["ether", "proto", "0x88ba"]);
    let mut tcpdump = bench.start(&bench.path.hypervisor, command)?;
    until("tcpdump listens", || tcpdump.said().contains("listening on"))?;
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid}"))?;
    publish(&bench, &format!("--svid {svid} --count 3000"))?;
    recorder.has(3000)?;
    let run = Run::open(&recorder.end()?)?;
    until("tcpdump has all frames", || !tcpdump.runs())?;

    let ahead = run.manifest().time_of_day().utc(0);
    let mut dumped = Vec::new();
    let mut reader = PcapReader::new(std::fs::File::open(&file)?).map_err(|e| e.to_string())?;
    while let Some(packet) = reader.next_packet() {
        let packet = packet.map_err(|e| e.to_string())?;
        let frame = latpath_protocols::sv::Frame::parse(&packet.data).map_err(|e| e.to_string())?;
        let key = frame.asdus().next().map(|asdu| u32::from(asdu.smp_cnt)).ok_or("a frame without ASDU")?;
        dumped.push((key, packet.timestamp.as_nanos() as i64 - ahead));
    }
    let point = |name: &str| {
        let at = run.points().iter().position(|p| p.point.to_string() == name);
        at.map(|p| p as u16).ok_or_else(|| Failed::from(format!("no point {name}")))
    };
    let (sent, passed_on) = (point("host/tx@lp-pub")?, point("host/tx@veth0")?);
    let mut journeys = std::collections::BTreeMap::new();
    run.for_each(&Select::default(), |j| {
        journeys.extend(j.at(sent).zip(j.at(passed_on)).map(|times| (j.key, times)));
        true
    });
    equal("journeys", journeys.len(), 3000)?;
    equal("frames that tcpdump has", dumped.len(), 3000)?;
    // Tolerance, ns: the offset between the two clocks was measured at the start of the recording, to within a few
    // hundred ns.
    let tie = 20_000;
    for (key, at) in dumped {
        let (from, to) = journeys.get(&key).copied().ok_or_else(|| format!("no journey {key}"))?;
        if !(from - tie..=to + tie).contains(&at) {
            let why = format!(
                "frame {key}: tcpdump saw it {} ns after it was sent, {} ns before it was passed on",
                at - from,
                to - at
            );
            return Err(why.into());
        }
    }
    Ok(())
}

/// Starts the recorder while hundreds of packets wait in a queue.
fn under_way() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("queue");
    let application = subscribe(&bench, &svid)?;
    let mut tc = Command::new("tc");
    tc.args(format!("qdisc add dev {VETH} root tbf rate 1mbit burst 4000 limit 37500").split(' '));
    equal("tc", bench.run(&bench.path.hypervisor, tc, LIMIT)?.code, Some(0))?;
    // Twice the rate at which packets leave the queue, so that it is always full.
    let publishing = format!("publish -i {PUBLISHER} --svid {svid} --rate 2000 --duration 300s {LONG_WRAP}");
    let publishing = bench.start(&bench.path.publisher, latpath(&publishing))?;
    let waiting = || -> Option<u64> {
        let mut tc = Command::new("tc");
        tc.args(format!("-s -j qdisc show dev {VETH} root").split(' '));
        let shown = bench.run(&bench.path.hypervisor, tc, LIMIT).and_then(|tc| tc.json::<Value>()).ok()?;
        shown[0]["qlen"].as_u64()
    };
    until("200 packets wait in the queue", || waiting() >= Some(200))?;
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid} {PATIENT}"))?;
    // Enough to include packets sent after the ones that were queued had finished.
    recorder.has(12_000)?;
    let run = recorder.end()?;
    for started in [publishing, application] {
        started.interrupt();
        started.finish(LIMIT)?;
    }
    let figures = report(&run, "")?.summary;
    // A kernel may hide threads from tracing, and with them the packets that a softirq dequeues while it interrupts
    // such a thread. Only the start of the route is therefore checked.
    let opened = Run::open(&run)?;
    let head = opened.points().iter().position(|p| p.point.to_string() == "host/tx@lp-pub").ok_or("no begin")?;
    let mut headless = 0;
    opened.for_each(&Select::default(), |j| {
        headless += usize::from(j.at(head as u16).is_none());
        true
    });
    equal("first seen in the middle of their route", headless, 0)?;
    equal("complete", figures.complete > 500, true)
}
