//! Redundant networks (PRP, HSR): a publisher on two LANs, each with a switch, and a receiver's two ports, compared with
//! the kernel's counters of these ports.

use crate::{equal, number, own, report, LIMIT, LONG_WRAP, PATIENT};
use latpath_model::SegmentKind;
use latpath_run::Run;
use latpath_stats::{figures::packets, LanFigures, Summary};
use latpath_testkit::waits::{delivered, until};
use latpath_testkit::{latpath, trial, Failed, Lack, Space, Started, Trial};
use serde_json::Value;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial("losses_are_counted_by_lan_and_a_packet_that_came_by_the_other_one_is_not_lost", needs, || by_lan("prp")),
        trial("a_tag_of_hsr_hides_no_stream_and_its_losses_are_counted_too", needs, || by_lan("hsr")),
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

    /// Packets that the receiver's port has received, by the kernel's count.
    fn received(&self, port: &str) -> Result<u64, Failed> {
        Ok(self.receiver.counters_of(port)?.rx_packets)
    }

    fn publish(&self, method: &str, svid: &str, first: u32, count: u32) -> Result<(), Failed> {
        let words =
            format!("publish --{method} pa,pb --svid {svid} --first {first} --count {count} {LONG_WRAP} --json");
        let sent: Value = self.publisher.run(latpath(&words))?.json()?;
        equal("sent and refused", (number(&sent, "frames_sent")?, number(&sent, "refused")?), (count.into(), 0))?;
        delivered()
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
        equal("the kernel's count", kernel, 3 * each)?;
    }
    let first = at_receiver(&figures, "a", "ra")?.first + at_receiver(&figures, "b", "rb")?.first;
    equal("first copies", first, 4 * each)?;
    // At the receiver, both copies of two phases arrived.
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
