//! Tests the frame transports against each other, over a veth pair between two namespaces.
//!
//! Needs root and `ip`; where XDP cannot be attached to a veth device, those tests are skipped.

mod space;
mod wires;
mod xdp;

use latpath_linux::monotonic;
use latpath_ping::clocks::Clocks;
use latpath_ping::emit::{emit, EndReason, Observer, Pacing, Plan};
use latpath_ping::ethernet::{svid, Ethernet, Framing, Options, Peer, ToOne};
use latpath_ping::reflect::{reflect, ReflectPlan, Witness};
use latpath_ping::session::Session;
use latpath_ping::table::End;
use latpath_ping::transport::{Arrived, Got, Transport, Wait};
use latpath_ping::turnaround::Turnaround;
use latpath_ping::wire::{Header, Kind, Welcome, CONTROL};
use latpath_ping::{Route, Stamp, Transaction};
use latpath_protocols::{
    protocol::FrameLink,
    sv::{AsduSpec, FrameSpec},
    Tag,
};
use latpath_testkit::{equal, need_root, need_tool, trial, Failed};
use latpath_wire::{DeviceError, Stamps};
use space::{Pair, HERE, HERE_MAC, THERE, THERE_MAC};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use wires::{capture, hear_all, send_frame};

const GROUP: [u8; 6] = [1, 0x0c, 0xcd, 4, 0, 1];
const SV: Framing = Framing::Sv { appid: 0x4000 };
/// Longer than any step of these tests takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let lack = [lack()];
    let tests = vec![
        trial("frames_carry_messages_there_and_back_in_every_framing", &lack, there_and_back),
        trial("members_hear_a_group_and_the_answer_goes_to_the_sender", &lack, groups),
        trial("what_is_not_ours_wakes_nobody", &lack, foreign),
        trial("malformed_frames_of_ours_are_shown_as_empty_messages", &lack, malformed),
        trial("the_kernel_stamps_frames_in_the_order_of_their_route", &lack, stamps),
        trial("frames_that_do_not_fit_are_counted", &lack, dropped),
        trial("a_probe_whose_answer_does_not_fit_does_not_end_a_reflector", &lack, too_long),
        trial("a_device_that_goes_down_is_silence_and_one_that_vanishes_an_end", &lack, down),
        trial("wrong_devices_are_named", &lack, wrong),
        trial("tshark_reads_a_session_as_sampled_values", &[lack[0].clone(), need_tool("tshark")], tshark),
        trial("a_session_in_frames_adds_up", &lack, session),
    ];
    let no_xdp = [lack[0].clone().or_else(xdp::lack)];
    let xdp = [
        trial("xdp_carries_messages_there_and_back_wherever_its_program_stands", &no_xdp, xdp::there_and_back),
        trial("xdp_and_packet_sockets_understand_each_other", &no_xdp, xdp::with_packet_sockets),
        trial("xdp_hears_groups_that_it_joined", &no_xdp, xdp::groups),
        trial("xdp_passes_on_what_is_not_ours", &no_xdp, xdp::foreign),
        trial("xdp_refuses_a_device_that_is_taken_and_gives_it_back", &no_xdp, xdp::taken),
        trial("xdp_covers_every_queue", &no_xdp, xdp::queues),
        trial("xdp_counts_frames_that_do_not_fit", &no_xdp, xdp::dropped),
        trial("a_probe_whose_answer_does_not_fit_does_not_end_a_reflector_by_xdp", &no_xdp, xdp::too_long),
        trial("xdp_survives_a_device_that_goes_down_and_reports_one_that_vanishes", &no_xdp, xdp::down),
        trial("xdp_says_what_a_device_cannot_do", &no_xdp, xdp::cannot),
        trial("xdp_sends_more_frames_than_it_has", &no_xdp, xdp::many),
        trial("xdp_stamps_what_comes_where_it_is_asked_to", &no_xdp, xdp::stamps),
        trial("a_session_by_xdp_adds_up", &no_xdp, xdp::session),
    ];
    latpath_testkit::main(tests.into_iter().chain(xdp).collect())
}

fn lack() -> Option<String> {
    let pair = || Pair::new(1).err().map(|e| e.message().unwrap_or("?").to_owned());
    let lacks = || pair().map(|e| format!("needs two network namespaces and a veth pair: {e}"));
    need_root().or_else(|| need_tool("ip")).or_else(lacks)
}

fn message(kind: Kind, session: u32, sequence: u64, len: usize) -> Vec<u8> {
    let mut message: Vec<u8> = (0..len).map(|i| i as u8).collect();
    Header { kind, session, sequence, first: 1, second: 2 }.write(&mut message);
    message
}

/// Waits for a message, and returns it with its sender.
fn hear<T: Transport>(transport: &mut T) -> Result<(T::Peer, Vec<u8>), Failed> {
    hear_stamped(transport).map(|(arrived, message)| (arrived.from, message))
}

/// Waits for a message, and returns it with its stamps.
fn hear_stamped<T: Transport>(transport: &mut T) -> Result<(Arrived<T::Peer>, Vec<u8>), Failed> {
    let (mut buffer, until) = (vec![0; 10_000], Instant::now() + LIMIT);
    while Instant::now() < until {
        if let Got::Message(arrived) = transport.receive(&mut buffer, Wait::Some)? {
            buffer.truncate(arrived.len);
            return Ok((arrived, buffer));
        }
    }
    Err("nothing came".into())
}

/// Checks that nothing arrives for a while.
fn silent<T: Transport>(transport: &mut T) -> Result<(), Failed> {
    match transport.receive(&mut [0; 4000], Wait::Until(monotonic() + 30_000_000))? {
        Got::Nothing => Ok(()),
        got => Err(format!("{got:?} came").into()),
    }
}

fn open(pair: &Pair, here: Options, there: Options) -> Result<(Ethernet, Ethernet), Failed> {
    Ok((pair.here.inside(|| Ethernet::open(here))?, pair.there.inside(|| Ethernet::open(there))?))
}

/// Addresses and framings under which a reflector at the other end can be reached.
fn peers() -> impl Iterator<Item = Peer> {
    let tags = [None, Some(Tag::new(7, 4)), Some(Tag::new(0, 5))];
    let framings = [Framing::Own, SV].into_iter().flat_map(move |framing| tags.map(|tag| (framing, tag)));
    framings.map(|(framing, tag)| Peer { mac: THERE_MAC, framing, tag })
}

fn exchange<A, B>(here: &mut A, there: &mut B, peer: Peer, room: usize) -> Result<(), Failed>
where
    A: Transport<Peer = Peer>,
    B: Transport<Peer = Peer>,
{
    for (sequence, len) in [32, 33, 96, 240, room].into_iter().enumerate() {
        let probe = message(Kind::Probe, 7, sequence as u64, len);
        here.send(peer, &probe)?;
        let (from, got) = hear(there)?;
        equal("who asked", from, Peer { mac: HERE_MAC, ..peer })?;
        equal("the probe", got, probe)?;
        let answer = message(Kind::Answer, 7, sequence as u64, len);
        there.send(from, &answer)?;
        let (from, got) = hear(here)?;
        equal("who answered", from, peer)?;
        equal("the answer", got, answer)?;
    }
    Ok(())
}

fn there_and_back() -> Result<(), Failed> {
    let pair = Pair::new(1)?;
    for bypass_qdisc in [false, true] {
        let options = |device| Options { bypass_qdisc, ..Options::new(device) };
        let (mut here, mut there) = open(&pair, Options { session: Some(7), ..options(HERE) }, options(THERE))?;
        for peer in peers() {
            let room = here.room(peer.framing);
            exchange(&mut here, &mut there, peer, room)?;
            let too_long = here.send(peer, &vec![0; room + 1]);
            equal("more than there is room for", matches!(too_long, Err(DeviceError::TooLong { .. })), true)?;
        }
    }
    Ok(())
}

fn groups() -> Result<(), Failed> {
    let pair = Pair::new(1)?;
    let (mut here, mut joined) =
        open(&pair, Options::new(HERE), Options { groups: vec![GROUP], ..Options::new(THERE) })?;
    let mut not_joined = pair.there.inside(|| Ethernet::open(Options::new(THERE)))?;
    here.send(Peer { mac: GROUP, framing: SV, tag: None }, &message(Kind::Probe, 7, 1, 96))?;
    let (from, probe) = hear(&mut joined)?;
    silent(&mut not_joined)?;
    joined.send(from, &probe)?;
    let (answerer, _) = hear(&mut here)?;
    equal("who answered", answerer.mac, THERE_MAC)?;

    // The first peer that answers becomes the emitter's peer.
    let mut emitter = ToOne::new(here, Peer { mac: GROUP, framing: Framing::Own, tag: None });
    emitter.send((), &message(Kind::Probe, 7, 2, 96))?;
    let (from, probe) = hear(&mut joined)?;
    joined.send(from, &probe)?;
    equal("bytes of its answer", hear(&mut emitter)?.1.len(), 96)?;
    let other = Peer { mac: HERE_MAC, framing: Framing::Own, tag: None };
    pair.there.ip(&format!("link set {THERE} address 02:00:00:00:00:33"))?;
    let mut renamed = pair.there.inside(|| Ethernet::open(Options::new(THERE)))?;
    renamed.send(other, &probe)?;
    equal("bytes of another's", hear(&mut emitter)?.1.len(), 0)
}

fn foreign() -> Result<(), Failed> {
    let pair = Pair::new(1)?;
    let own = message(Kind::Answer, 8, 1, 96);
    let (mut here, mut there) = open(&pair, Options { session: Some(7), ..Options::new(HERE) }, Options::new(THERE))?;
    // A message of another session is ignored, one of this session is not.
    for framing in [Framing::Own, SV] {
        let to = Peer { mac: HERE_MAC, framing, tag: None };
        there.send(to, &own)?;
        silent(&mut here)?;
        there.send(to, &message(Kind::Answer, 7, 1, 96))?;
        hear(&mut here)?;
    }
    // Frames of a merging unit, of another experiment, and to another address: none is received.
    let asdu = AsduSpec { svid: b"MU01".to_vec(), data: vec![0; 64], ..AsduSpec::default() };
    let link = FrameLink { dst: Some(THERE_MAC), ..FrameLink::default() };
    let unit = FrameSpec { link, asdus: vec![asdu], ..FrameSpec::default() }.build()?;
    let mut experiment = [0; 60];
    experiment[..6].copy_from_slice(&THERE_MAC);
    experiment[12..14].copy_from_slice(&[0x88, 0xb5]);
    pair.here.inside(|| [&unit[..], &experiment].map(|frame| send_frame(HERE, frame)));
    here.send(Peer { mac: [2, 0, 0, 0, 0, 0x99], framing: SV, tag: None }, &own)?;
    silent(&mut there)?;
    equal("what a reflector itself sends comes back to it", silent(&mut there).is_err(), false)
}

fn malformed() -> Result<(), Failed> {
    let pair = Pair::new(1)?;
    let (_, mut there) = open(&pair, Options::new(HERE), Options::new(THERE))?;
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&THERE_MAC);
    frame[6..12].copy_from_slice(&HERE_MAC);
    // The length field points beyond the end of the frame.
    frame[12..18].copy_from_slice(&[0x88, 0xb5, 0xff, 0xff, b'L', b'P']);
    pair.here.inside(|| send_frame(HERE, &frame));
    let (from, message) = hear(&mut there)?;
    equal("who sent it", from.mac, HERE_MAC)?;
    equal("its message", message.len(), 0)
}

fn stamps() -> Result<(), Failed> {
    let pair = Pair::new(1)?;
    let (mut here, mut there) = open(
        &pair,
        Options { stamps: Stamps::SOFTWARE, ..Options::new(HERE) },
        Options { stamps: Stamps::SOFTWARE, ..Options::new(THERE) },
    )?;
    // The kernel starts to timestamp received packets some time after the request (net_enable_timestamp).
    let until = Instant::now() + LIMIT;
    loop {
        equal("stamps come in time", Instant::now() < until, true)?;
        here.send(peers().next().expect("there is one"), &message(Kind::Hello, 7, 0, 96))?;
        let stamped = hear_stamped(&mut there)?.0.kernel.is_some();
        here.left(&mut |_| ())?;
        if stamped {
            break;
        }
    }
    for (sequence, peer) in peers().enumerate() {
        let before = realtime();
        let probe = message(Kind::Probe, 7, sequence as u64, 96);
        here.send(peer, &probe)?;
        let (arrived, _) = hear_stamped(&mut there)?;
        let after = realtime();
        let mut left = Vec::new();
        here.left(&mut |l| left.push((l.stamp, l.time, l.message == probe)))?;
        let names: Vec<_> = left.iter().map(|l| (l.0, l.2)).collect();
        equal("stamps of a sent frame", &names[..], &[(Stamp::T1Sched, true), (Stamp::T1Driver, true)])?;
        let received = arrived.kernel.ok_or("no stamp of the received frame")?;
        let times = [before, left[0].1, left[1].1, received, after];
        equal(&format!("the order of {times:?}"), times.is_sorted(), true)?;
        equal("a stamp of a NIC that is none", arrived.nic, None)?;
    }
    let mask = [Stamp::T1Sched, Stamp::T1Driver, Stamp::T4Kernel].iter().fold(0, |m, s| m | s.bit());
    equal("what it says that it takes", here.takes(), mask)
}

fn realtime() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |t| t.as_nanos() as i64)
}

fn dropped() -> Result<(), Failed> {
    const SENT: u64 = 30_000;
    let pair = Pair::new(1)?;
    let (mut here, mut there) = open(&pair, Options::new(HERE), Options::new(THERE))?;
    let peer = Peer { mac: THERE_MAC, framing: Framing::Own, tag: None };
    for sequence in 0..SENT {
        here.send(peer, &message(Kind::Probe, 7, sequence, 96))?;
    }
    let mut received = 0;
    while let Got::Message(_) = there.receive(&mut [0; 4000], Wait::Until(monotonic() + 30_000_000))? {
        received += 1;
    }
    let dropped = there.dropped();
    equal("it was too much", dropped > 0, true)?;
    equal("received and dropped", received + dropped, SENT)?;
    equal("asked again", there.dropped(), dropped)
}

/// Checks that a probe from a device with a larger MTU than the reflector's does not stop the reflector.
fn answers_on<T: Transport<Peer = Peer> + Send>(pair: &Pair, mut there: T, room: usize) -> Result<(), Failed> {
    pair.here.ip(&format!("link set {HERE} mtu 1504"))?;
    let mut here = pair.here.inside(|| Ethernet::open(Options { session: Some(7), ..Options::new(HERE) }))?;
    let peer = Peer { mac: THERE_MAC, framing: Framing::Own, tag: None };
    equal("the longer probe", here.room(peer.framing) > room, true)?;
    let (stop, clocks) = (AtomicBool::new(false), Clocks::watch(None));
    thread::scope(|scope| {
        let reflector = scope.spawn(|| {
            pair.there.inside(|| reflect(&mut there, &ReflectPlan::default(), &clocks, &mut NoReflector, &stop))
        });
        let mut hello = || -> Result<Welcome, Failed> {
            here.send(peer, &message(Kind::Hello, 7, 1, CONTROL))?;
            let welcome = hear(&mut here)?.1;
            here.send(peer, &message(Kind::Probe, 7, 1, room + 1))?;
            Ok(Welcome::read(&welcome).ok_or("no welcome")?)
        };
        let seen = hello().and_then(|_| hello()).map(|welcome| welcome.seen);
        stop.store(true, Ordering::Relaxed);
        reflector.join().expect("no panic").map_err(|(e, _)| e)?;
        equal("probes, and answers that did not leave", seen.map(|seen| (seen.received, seen.refused))?, (1, 1))
    })
}

fn too_long() -> Result<(), Failed> {
    let pair = Pair::new(1)?;
    let there = pair.there.inside(|| Ethernet::open(Options::new(THERE)))?;
    let room = there.room(Framing::Own);
    answers_on(&pair, there, room)
}

fn down() -> Result<(), Failed> {
    let pair = Pair::new(1)?;
    let (mut here, mut there) = open(&pair, Options::new(HERE), Options::new(THERE))?;
    let peer = Peer { mac: THERE_MAC, framing: Framing::Own, tag: None };
    let probe = message(Kind::Probe, 7, 1, 96);
    pair.there.ip(&format!("link set {THERE} down"))?;
    let still = pair.there.inside(|| silent(&mut there).and_then(|()| silent(&mut there)));
    still.map_err(|e| format!("while it is down: {e:?}"))?;
    let refused = pair.there.inside(|| there.send(Peer { mac: HERE_MAC, ..peer }, &probe));
    equal("sending by it", refused.ok(), Some(latpath_ping::transport::Sent::Refused))?;
    equal("why", there.last_refusal().and_then(|e| e.raw_os_error()), Some(libc::ENETDOWN))?;
    pair.there.ip(&format!("link set {THERE} up"))?;
    // The device's queues start some time after the device is up.
    let until = Instant::now() + LIMIT;
    while pair.there.inside(|| silent(&mut there)).is_ok() {
        equal("it comes back in time", Instant::now() < until, true)?;
        here.send(peer, &probe)?;
    }
    pair.there.ip(&format!("link del {THERE}"))?;
    let gone = pair.there.inside(|| silent(&mut there).and_then(|()| silent(&mut there)));
    let gone = gone.err().and_then(|e| e.message().map(String::from)).unwrap_or_default();
    equal("when it is gone", gone.contains("lpthere: the device vanished"), true)
}

fn wrong() -> Result<(), Failed> {
    let pair = Pair::new(1)?;
    let said = |device: &str| pair.there.inside(|| Ethernet::open(Options::new(device))).err().map(|e| e.to_string());
    let there = said("lpnone").unwrap_or_default();
    equal(&there, there.starts_with("lpnone: no such device (devices here: ") && there.contains(THERE), true)?;
    let many = Options { groups: vec![GROUP; 40], ..Options::new(THERE) };
    let many = pair.there.inside(|| Ethernet::open(many)).err().map(|e| e.to_string());
    equal("too many groups", many, Some("40 groups: at most 31 can be joined".into()))?;
    pair.there.ip(&format!("link set {THERE} down"))?;
    equal(
        "one that is down",
        said(THERE),
        Some(format!("{THERE}: the device is down; bring it up with: ip link set {THERE} up")),
    )
}

fn tshark() -> Result<(), Failed> {
    let pair = Pair::new(1)?;
    let (mut here, _there) = open(&pair, Options::new(HERE), Options::new(THERE))?;
    let wire = pair.there.inside(|| hear_all(THERE));
    for (i, tag) in [None, Some(Tag::new(7, 4))].into_iter().enumerate() {
        let peer = Peer { mac: GROUP, framing: SV, tag };
        for (kind, len) in [(Kind::Probe, 32), (Kind::Answer, 96), (Kind::Hello, 240), (Kind::Probe, 1400)] {
            here.send(peer, &message(kind, 0xcafe, 65535 + i as u64, len))?;
        }
    }
    let file = std::env::temp_dir().join(format!("latpath-ping-{}.pcap", std::process::id()));
    capture(&wire, 8, &file)?;
    let fields = "-T fields -e sv.svID -e sv.smpCnt -e sv.appid -e _ws.expert.message -e _ws.malformed";
    let output = Command::new("tshark").arg("-r").arg(&file).args(fields.split(' ')).output()?;
    let _ = std::fs::remove_file(&file);
    let lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(|l| l.trim_end().into()).collect();
    let names = [Kind::Probe, Kind::Answer, Kind::Hello, Kind::Probe].map(|kind| svid(0xcafe, kind));
    let expected: Vec<String> =
        [65535, 0].iter().flat_map(|n| names.iter().map(move |name| format!("{name}\t{n}\t0x4000"))).collect();
    equal("what tshark reads", lines, expected)
}

#[derive(Default)]
struct Closed {
    line: u16,
    answered: Vec<Transaction>,
    lost: usize,
}

impl Observer for Closed {
    fn closed(&mut self, transaction: &Transaction, _: End) {
        match transaction.round_trip() {
            Some(_) => self.answered.push(*transaction),
            None => self.lost += 1,
        }
    }
    fn breach(&mut self, _: &Transaction) {}
    fn route(&mut self, taken: u16) {
        self.line = taken;
    }
}

struct NoReflector;

impl<P> Witness<P> for NoReflector {
    fn begins(&mut self, _: &P, _: u32) {}
    fn ends(&mut self, _: &P, _: &Session) {}
    fn breach(&mut self, _: &P, _: &Session, _: u64) {}
    fn slow(&mut self, _: &P, _: u32, _: &Turnaround) {}
}

/// Runs an emitter against a reflector with 500 probes, one after another. All must be answered, and none counted
/// twice.
fn ping<T: Transport<Peer = Peer> + Send>(pair: &Pair, here: T, there: T, peer: Peer) -> Result<Closed, Failed> {
    let (mut here, mut there) = (ToOne::new(here, peer), there);
    let (stop, clocks) = (AtomicBool::new(false), Clocks::watch(None));
    let plan = Plan {
        session: 7,
        size: 128,
        pacing: Pacing::AsAnswersCome,
        spin: false,
        warm_up: 10,
        count: Some(500),
        duration: None,
        lost_after: 10_000_000_000,
        timeout: 30_000_000_000,
        by_ptp: false,
        threshold: None,
        stop_on_breach: false,
    };
    let mut kept = Closed::default();
    let (ended, reflected) = thread::scope(|scope| {
        let reflector = scope.spawn(|| {
            pair.there.inside(|| reflect(&mut there, &ReflectPlan::default(), &clocks, &mut NoReflector, &stop))
        });
        let never = AtomicBool::new(false);
        let ended = pair.here.inside(|| emit(&mut here, (), &plan, &clocks, &mut kept, &never));
        stop.store(true, Ordering::Relaxed);
        (ended, reflector.join().expect("no panic"))
    });
    equal("why it ended", ended.why?, EndReason::Done)?;
    let reflected = reflected.map_err(|(e, _)| e)?;
    equal("foreign messages", (ended.counts.foreign, reflected.foreign), (0, 0))?;
    equal("what the reflector received", ended.seen.map(|s| s.received), Some(500))?;
    equal("lost", kept.lost, 0)?;
    Ok(kept)
}

fn session() -> Result<(), Failed> {
    let pair = Pair::new(1)?;
    for peer in peers() {
        let options = |device| Options { stamps: Stamps::SOFTWARE, ..Options::new(device) };
        let (here, there) = open(&pair, Options { session: Some(7), ..options(HERE) }, options(THERE))?;
        let kept = ping(&pair, here, there, peer)?;
        let route = Route::detailed(kept.line);
        let complete = kept.answered.iter().filter(|t| route.stamps().iter().all(|s| t.mapped.get(*s).is_some()));
        let mut count = 0;
        for t in complete {
            let sum: i64 = t.segments(&route).flatten().sum();
            equal("the sum of its parts", Some(sum), t.round_trip())?;
            count += 1;
        }
        // The stamps of the last answers may arrive too late to be reported.
        equal(&format!("{count} of 500 have all stamps"), count >= 490, true)?;
        equal("segments", route.segments().len(), 9)?;
    }
    Ok(())
}
