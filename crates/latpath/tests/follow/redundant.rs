//! Redundant networks (PRP, HSR): a publisher on two LANs, each with a switch, and a receiver's two ports, compared with
//! the kernel's counters of these ports.

use crate::{equal, own, report, LIMIT, LONG_WRAP, PATIENT};
use latpath_model::SegmentKind;
use latpath_protocols::redundancy::{mark, CopyMark, Lan, Method};
use latpath_protocols::sv::{AsduSpec, FrameSpec};
use latpath_run::Run;
use latpath_stats::{figures::packets, LanFigures, Summary};
use latpath_testkit::waits::{delivered, pace, says, until, until_within};
use latpath_testkit::{latpath, need_tool, retried, trial, Failed, Lack, Space, Started, Trial};
use latpath_traffic::document::PublishDocument;
use latpath_wire::{Listen, PacketSocket};
use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::IoSlice;
use std::process::Command;
use std::time::{Duration, Instant};

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    let captures = [needs, &[need_tool("tcpdump")]].concat();
    vec![
        trial("losses_are_counted_by_lan_and_a_packet_that_came_by_the_other_one_is_not_lost", needs, || by_lan("prp")),
        trial("a_tag_of_hsr_hides_no_stream_and_its_losses_are_counted_too", needs, || by_lan("hsr")),
        trial("swapped_repeated_and_missing_copies_of_prp_are_counted_as_sent", &captures, || disordered(Method::Prp)),
        trial("swapped_repeated_and_missing_copies_of_hsr_are_counted_as_sent", &captures, || disordered(Method::Hsr)),
    ]
}

/// A publisher (ports `pa`, `pb`), the switches of LAN A and B, and a receiver (ports `ra`, `rb`).
struct Lans {
    publisher: Space,
    switches: Space,
    receiver: Space,
}

impl Lans {
    fn new() -> Result<Self, Failed> {
        let lans = Self { publisher: Space::new("pub")?, switches: Space::new("net")?, receiver: Space::new("sub")? };
        for lan in ["a", "b"] {
            lans.switches.ip(&format!("link add br{lan} type bridge"))?;
            lans.switches.ip(&format!("link set br{lan} up"))?;
            for (space, port, plug) in [(&lans.publisher, "p", "i"), (&lans.receiver, "r", "o")] {
                let (port, plug) = (format!("{port}{lan}"), format!("{plug}{lan}"));
                space.ip(&format!("link add {port} type veth peer name {plug} netns {}", lans.switches.name()))?;
                lans.switches.ip(&format!("link set {plug} master br{lan}"))?;
                lans.switches.ip(&format!("link set {plug} up"))?;
                space.ip(&format!("link set {port} up"))?;
                lans.is_up(space, &port)?;
            }
        }
        Ok(lans)
    }

    fn is_up(&self, space: &Space, device: &str) -> Result<(), Failed> {
        let shows_up = || -> Option<bool> {
            let shown: Value = serde_json::from_slice(&space.ip(&format!("-j link show dev {device}")).ok()?).ok()?;
            Some(shown[0]["operstate"] == "UP")
        };
        until(&format!("{device} has its link"), || shows_up().unwrap_or(false))
    }

    /// Connects or disconnects the receiver from a LAN's switch.
    fn connect(&self, lan: &str, is_connected: bool) -> Result<(), Failed> {
        let to = if is_connected { "up" } else { "down" };
        self.switches.ip(&format!("link set o{lan} {to}"))?;
        match is_connected {
            true => self.is_up(&self.receiver, &format!("r{lan}")),
            false => Ok(()),
        }
    }

    /// Number of packets that the receiver's port has received, according to the kernel.
    fn received(&self, port: &str) -> Result<u64, Failed> {
        Ok(self.receiver.counters_of(port)?.rx_packets)
    }

    fn publish(&self, method: &str, svid: &str, first: u32, count: u32) -> Result<(), Failed> {
        let words =
            format!("publish --{method} pa,pb --svid {svid} --first {first} --count {count} {LONG_WRAP} --json");
        let sent: PublishDocument = self.publisher.run(latpath(&words))?.json()?;
        equal("sent and refused", (sent.frames_sent, sent.refused), (count.into(), 0))?;
        delivered()
    }

    /// Sends groups of copies, each given by its LAN and packet number, in this order. Returns the time that the
    /// longest group took.
    fn send(&self, method: Method, svid: &str, copies: &[Vec<(Lan, u16)>]) -> Result<Duration, Failed> {
        let frame = |(lan, sequence): (Lan, u16)| -> Result<Vec<u8>, Failed> {
            let asdu = AsduSpec { svid: svid.into(), smp_cnt: sequence, data: vec![0; 64], ..AsduSpec::default() };
            let spec = FrameSpec { asdus: vec![asdu], ..FrameSpec::default() };
            let mut frame = spec.build().map_err(|error| error.to_string())?;
            mark(&mut frame, CopyMark { method, lan, sequence }).map_err(|error| error.to_string())?;
            Ok(frame)
        };
        let frames = copies.iter().flatten().map(|copy| frame(*copy)).collect::<Result<Vec<_>, _>>()?;
        let thread = Pid::from_raw(0);
        self.publisher.inside(|| -> Result<Duration, Failed> {
            // Pinned to one CPU: the kernel then delivers frames of several devices in the order in which they were
            // sent.
            let cpu = (0..CpuSet::count())
                .find(|cpu| sched_getaffinity(thread).is_ok_and(|set| set.is_set(*cpu) == Ok(true)));
            let mut set = CpuSet::new();
            set.set(cpu.ok_or("no CPU")?)?;
            sched_setaffinity(thread, &set)?;
            let open = |device| PacketSocket::open(device, Listen::No).map_err(|error| error.to_string());
            let mut sockets = [open("pa")?, open("pb")?];
            let (mut at, mut longest) = (0, Duration::ZERO);
            for copies in copies {
                let begun = Instant::now();
                for (lan, _) in copies {
                    let socket = &mut sockets[*lan as usize];
                    let sent = socket.send(&[IoSlice::new(&frames[at])]).map_err(|error| error.to_string())?;
                    equal("frames that the kernel took", sent.taken, 1)?;
                    at += 1;
                }
                longest = longest.max(begun.elapsed());
                pace(Duration::from_millis(1));
            }
            Ok(longest)
        })
    }

    /// Captures this many frames on a port of the receiver.
    fn capture(&self, port: &str, count: u64) -> Result<Started, Failed> {
        let mut command = Command::new("tcpdump");
        let words =
            format!("-i {port} --immediate-mode -U -B 65536 -s 2048 --time-stamp-precision=nano -Z root -c {count} -w");
        command.args(words.split(' ')).arg(self.receiver.folder().join(format!("{port}.pcap")));
        // Only Sampled Values and HSR: a frame sent by the kernel itself must not count as a copy.
        command.arg("ether proto 0x88ba or ether proto 0x892f");
        let mut tcpdump = self.receiver.start(command)?;
        says(&mut tcpdump, "listening on")?;
        Ok(tcpdump)
    }

    fn record(&self, svid: &str) -> Result<(Started, std::path::PathBuf), Failed> {
        let run = self.receiver.folder().join("run");
        let words = format!("record --stream svid:{svid} {PATIENT} -o {}", run.display());
        let mut process = self.receiver.start(latpath(&words))?;
        until("the recording begins", || Run::open(&run).is_ok() || !process.runs())?;
        Ok((process, run))
    }
}

/// The figures of a LAN at the receiver.
fn at_receiver<'a>(figures: &'a Summary, lan: &str, port: &str) -> Result<&'a LanFigures, Failed> {
    let point = format!("host/nic-rx@{port}:{}", lan.to_uppercase());
    let is_it = |row: &&LanFigures| row.lan == lan.to_uppercase() && row.points.contains(&point);
    figures.lans.iter().find(is_it).ok_or_else(|| format!("no {point} in {:?}", figures.lans).into())
}

/// Checks a port's count of received frames. The kernel may add a frame of its own each time that a device starts.
fn kernel_agrees(kernel: u64, copies: u64) -> Result<(), Failed> {
    let is_right = (copies..=copies + 2).contains(&kernel);
    equal(&format!("the kernel's count, {kernel}, is that of {copies} copies"), is_right, true)
}

fn by_lan(method: &str) -> Result<(), Failed> {
    let lans = Lans::new()?;
    let svid = own(method);
    let (process, run) = lans.record(&svid)?;
    let before = [lans.received("ra")?, lans.received("rb")?];
    // Both LANs, B alone, A alone, none, and both again.
    let phases = [(true, true), (false, true), (true, false), (false, false), (true, true)];
    const EACH: u32 = 500;
    for (phase, (a, b)) in (0..).zip(phases) {
        lans.connect("a", a)?;
        lans.connect("b", b)?;
        lans.publish(method, &svid, phase * EACH, EACH)?;
    }
    let kernel = [lans.received("ra")? - before[0], lans.received("rb")? - before[1]];
    until("the journeys are stored", || Run::open(&run).map_or(0, |run| run.journeys()) >= u64::from(5 * EACH))?;
    process.interrupt();
    let ended = process.finish(LIMIT)?;
    equal(&ended.stderr, ended.code, Some(0))?;
    let figures = report(&run, "")?.summary;
    let each = u64::from(EACH);
    equal("journeys and complete", (figures.journeys, figures.complete), (5 * each, 4 * each))?;
    equal(&format!("lost by both: {:?}", figures.lost), packets(&figures.lost), each)?;
    let others = [figures.duplicates, figures.out_of_order, figures.streams[0].never_seen];
    equal("duplicates, out of order, never seen", others, [0; 3])?;
    for ((lan, port), kernel) in [("a", "ra"), ("b", "rb")].into_iter().zip(kernel) {
        let row = at_receiver(&figures, lan, port)?;
        equal(&format!("LAN {lan}"), (row.packets, row.lost), (3 * each, 2 * each))?;
        kernel_agrees(kernel, 3 * each)?;
    }
    let first = at_receiver(&figures, "a", "ra")?.first + at_receiver(&figures, "b", "rb")?.first;
    equal("first copies", first, 4 * each)?;
    // Both copies reached the receiver in the two phases with both LANs; they reached the switches in all five.
    let skews: Vec<_> = figures.segments.iter().filter(|s| s.kind == SegmentKind::Tskew).collect();
    let of_ports = skews.iter().filter(|s| s.from.contains("/nic-rx@copy:first"));
    let mut counts: Vec<u64> = of_ports.map(|s| s.times.count).collect();
    counts.sort_unstable();
    equal("copies that both arrived at the receiver, and at the switches", counts, vec![2 * each, 5 * each])?;
    equal("negative", skews.iter().all(|s| s.times.negative == 0), true)?;
    let notes = figures.notes.concat();
    equal(&notes, notes.contains("two senders"), false)?;
    let limits = |limit: &str| -> Result<Option<i32>, Failed> {
        let words = format!("report {} --json --limit {limit}", run.display());
        Ok(latpath(&words).output()?.status.code())
    };
    equal("a limit of one LAN", (limits("lost_on_lan_a<=1000")?, limits("lost_on_lan_b<=999")?), (Some(0), Some(3)))
}

/// Number of packets in each phase of [`disordered`].
const PHASE: u16 = 400;
/// Number of copies of each packet in a storm.
const STORM: usize = 12;

/// The copies of a phase's packets, in the order in which they are sent.
type CopyOrder = fn(u16) -> Vec<(Lan, u16)>;

/// The phases, each for packets `n` and `n + 1`.
const PHASES: [CopyOrder; 8] = {
    use Lan::{A, B};
    [
        |n| vec![(A, n), (B, n), (A, n + 1), (B, n + 1)],
        // B before A.
        |n| vec![(B, n), (A, n), (B, n + 1), (A, n + 1)],
        // LAN A alone swaps the packets; the first copy of `n` arrives through B.
        |n| vec![(B, n), (A, n + 1), (A, n), (B, n + 1)],
        // Both LANs swap packets.
        |n| vec![(A, n + 1), (B, n + 1), (B, n), (A, n)],
        // A storm on LAN A, then on both.
        |n| [vec![(A, n); STORM], vec![(B, n), (A, n + 1), (B, n + 1)]].concat(),
        |n| [vec![(B, n); STORM], vec![(A, n); STORM], vec![(B, n + 1), (A, n + 1)]].concat(),
        // One LAN alone.
        |n| vec![(B, n), (B, n + 1)],
        |n| vec![(A, n), (A, n + 1)],
    ]
};

/// The figures expected at the receiver for the copies sent.
#[derive(Debug, Default, PartialEq, Eq)]
struct Expected {
    packets: [u64; 2],
    first: [u64; 2],
    copies: [u64; 2],
    both: u64,
    swapped: u64,
}

impl Expected {
    fn of(copies: &[Vec<(Lan, u16)>]) -> Self {
        let (mut of, mut seen) = (Self::default(), std::collections::BTreeMap::<u16, [bool; 2]>::new());
        let mut newest = None;
        for (lan, n) in copies.iter().flatten() {
            let lan = *lan as usize;
            let packet = seen.entry(*n).or_default();
            of.copies[lan] += 1;
            if *packet == [false; 2] {
                of.first[lan] += 1;
                of.swapped += u64::from(newest.is_some_and(|newest| *n < newest));
                newest = newest.max(Some(*n));
            }
            of.packets[lan] += u64::from(!packet[lan]);
            of.both += u64::from(!packet[lan] && packet[1 - lan]);
            packet[lan] = true;
        }
        of
    }
}

/// Maximum time to send a group; beyond it the test is repeated, since a copy that arrives 50 ms late counts as lost.
const STALL: Duration = Duration::from_millis(20);

fn disordered(method: Method) -> Result<(), Failed> {
    let mut last = String::new();
    for _ in 0..5 {
        match attempt(method)? {
            None => return Ok(()),
            Some(why) => last = why,
        }
        retried("copies in another order", &last);
    }
    Err(format!("five times: {last}").into())
}

/// Runs the test once; returns why it has to be repeated, if necessary.
fn attempt(method: Method) -> Result<Option<String>, Failed> {
    let lans = Lans::new()?;
    // PRP and HSR are tested at the same time; a shared name would appear to have two senders.
    let svid = own(&format!("disordered-{method:?}").to_lowercase());
    let (mut process, run) = lans.record(&svid)?;
    let before = [lans.received("ra")?, lans.received("rb")?];
    let mut copies = Vec::new();
    for (phase, order) in (0..).zip(PHASES) {
        copies.extend((0..PHASE).step_by(2).map(|n| order(phase * PHASE + n)));
    }
    let expected = Expected::of(&copies);
    let captures = [lans.capture("ra", expected.copies[0])?, lans.capture("rb", expected.copies[1])?];
    let longest = lans.send(method, &svid, &copies)?;
    if longest > STALL {
        return Ok(Some(format!("sending the copies of two packets took {longest:?}")));
    }
    delivered()?;
    let kernel = [lans.received("ra")? - before[0], lans.received("rb")? - before[1]];
    for (kernel, copies) in kernel.into_iter().zip(expected.copies) {
        kernel_agrees(kernel, copies)?;
    }
    let journeys = u64::from(PHASE) * PHASES.len() as u64;
    let stored = || Run::open(&run).map_or(0, |run| run.journeys());
    if until_within(Duration::from_secs(20), "the journeys are stored", || stored() >= journeys).is_err() {
        let (stored, was_running) = (stored(), process.runs());
        process.interrupt();
        let ended = process.finish(LIMIT)?;
        let (after, manifest) = (Run::open(&run)?.journeys(), Run::open(&run)?.manifest().clone());
        return Ok(Some(format!(
            "{stored} of {journeys} journeys were stored, {after} in the end; the recording ran: {was_running}, {:?} {}\n\
             joined {:?}\ncounted {:?}\n{}",
            ended.code,
            ended.stderr,
            manifest.joined,
            manifest.counters,
            [manifest.notes, manifest.footnotes].concat().join("\n")
        )));
    }
    process.interrupt();
    let ended = process.finish(LIMIT)?;
    equal(&ended.stderr, ended.code, Some(0))?;
    let figures = report(&run, "")?.summary;
    expected.is_reported(&figures, journeys)?;
    // Each sighting of a repeated copy is counted: at the sender, at both ports of the switches and the bridge's own
    // device, and at the receiver.
    let joined = Run::open(&run)?.manifest().joined.iter().map(|totals| totals.repeated).sum::<u64>();
    let repeated = expected.copies.iter().sum::<u64>() - expected.packets.iter().sum::<u64>();
    let points: usize = figures.lans.iter().filter(|row| row.lan == "A").map(|row| row.points.len()).sum();
    equal("repeated sightings", joined, repeated * points as u64)?;
    // Imported captures of the receiver's ports give the same result.
    let [a, b] = captures.map(|capture| capture.finish(LIMIT));
    equal("tcpdump", (&a?.code, &b?.code), (&Some(0), &Some(0)))?;
    let (folder, imported) = (lans.receiver.folder().display(), lans.receiver.folder().join("imported"));
    let files = format!("host/nic-rx@ra:A={folder}/ra.pcap host/nic-rx@rb:B={folder}/rb.pcap");
    let output = latpath(&format!("import {files} -o {}", imported.display())).output()?;
    equal(&String::from_utf8_lossy(&output.stderr), output.status.code(), Some(0))?;
    expected.is_reported(&report(&imported, "")?.summary, journeys)?;
    Ok(None)
}

impl Expected {
    /// Expects these figures at the receiver, of a recording or an import.
    fn is_reported(&self, figures: &Summary, journeys: u64) -> Result<(), Failed> {
        equal("journeys and complete", (figures.journeys, figures.complete), (journeys, journeys))?;
        let others = [figures.duplicates, packets(&figures.lost), figures.streams[0].never_seen];
        equal("duplicates, lost, never seen", others, [0; 3])?;
        equal("out of order", figures.out_of_order, self.swapped)?;
        let rows = [at_receiver(figures, "a", "ra")?, at_receiver(figures, "b", "rb")?];
        equal("packets by LAN", rows.map(|row| row.packets), self.packets)?;
        equal("lost by LAN", rows.map(|row| row.lost), self.packets.map(|packets| journeys - packets))?;
        equal("first by LAN", rows.map(|row| row.first), self.first)?;
        let skews: Vec<_> = figures.segments.iter().filter(|s| s.kind == SegmentKind::Tskew).collect();
        let at_ports = skews.iter().find(|s| s.from == "host/nic-rx@copy:first").ok_or("no Tskew at the receiver")?;
        equal("packets with both copies", (at_ports.times.count, at_ports.times.negative), (self.both, 0))
    }
}
