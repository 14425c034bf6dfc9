//! Passes arbitrary messages from an agent through all of the host's processing: messages, clock, merge, joiner, route,
//! counters, summary, text. Checks that nothing panics, memory is bounded, time does not go back, and the output
//! contains no control characters.
//!
//! Input: steps of one byte each. 0: the host requests the time. 1: it requests a window. 2: it sees 16 packets at both
//! of its points. 3: it starts its next round. 4: the wait for windows expires. Above 4: a frame follows, whose length
//! in bytes is the step minus 5; from 250 on, a second byte adds to the length, in units of 8 bytes. Each step takes 1
//! ms.

use crate::wire::{bytes, frame, list, number, zigzag};
use latpath_agent::{Machine, ScriptedAgent};
use latpath_follow::{sum, Feed, Merge, Origin, Tables};
use latpath_journey::{segments::classic, Joiner, Journey, Options, RouteFinder};
use latpath_linux::monotonic;
use latpath_model::text::visible;
use latpath_model::{Counters, DropNote, Ns, Point, PointInfo, Sighting, Source, StreamId, StreamSpec, MAX_COUNT};
use latpath_report::text;
use latpath_run::{Manifest, Rows};
use latpath_stats::{summarise, units::CharacterSet, Aggregate, Batches, Facts, Setup, Summary};
use latpath_vms::{Role, Thread, Vm, VmsByMachine};
use std::sync::{Arc, Mutex};

const MS: Ns = 1_000_000;
/// Start of the guest's clock in the seeds.
const GUEST: Ns = 5_000_000 * MS;
const WINDOW: Ns = 50 * MS;

/// The host's own sightings, which are correct.
#[derive(Clone, Default)]
struct Host(Arc<Mutex<(Vec<Sighting>, Ns)>>);

impl Source for Host {
    fn points(&mut self) -> Vec<PointInfo> {
        let point = |text: &str| PointInfo::from(text.parse::<Point>().expect("a point"));
        ["host/nic-rx@eth0", "host/tx@vnet0"].map(point).to_vec()
    }

    fn drop_notes(&mut self) -> Vec<DropNote> {
        Vec::new()
    }

    fn drain(&mut self, out: &mut Vec<Sighting>) -> Ns {
        let (sightings, now) = &mut *self.0.lock().expect("one thread");
        out.append(sightings);
        *now
    }

    fn counters(&mut self) -> Counters {
        Counters { sightings: 1, dropped: 1, malformed: 1, packets_seen: 1, skipped: 1, ..Counters::default() }
    }
}

impl Origin for Host {
    fn stop(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// Processes the sightings of host and guest.
struct Following {
    merge: Merge,
    tables: Tables,
    joiner: Joiner,
    finder: RouteFinder,
    begin: Ns,
    reached: Ns,
    /// Sightings in the order in which they were joined.
    joined: Vec<Sighting>,
}

fn streams() -> Vec<StreamSpec> {
    vec![StreamSpec::svid("MU01"), StreamSpec::svid("MU02")]
}

fn joiner() -> Joiner {
    let options = Options { window: WINDOW, max_open: 1024, ..Options::default() };
    Joiner::new(streams().iter().map(|stream| stream.key), options)
}

impl Following {
    fn round(&mut self) {
        let (sightings, now) = self.merge.step(&mut self.tables, &mut None);
        assert!(now >= self.reached, "time went back");
        self.reached = now;
        self.joiner.set_points(&self.tables.points);
        assert!(sightings.is_sorted_by_key(|s| s.t));
        for s in sightings {
            assert!(usize::from(s.point) < self.tables.points.len());
            assert!(usize::from(s.note) <= self.tables.notes.len());
            self.joiner.push(s, &mut |j: &Journey| self.finder.observe(j));
            self.joined.push(*s);
        }
        self.joiner.advance(now, &mut |j: &Journey| self.finder.observe(j));
        assert!(self.joiner.open() <= 1024 && self.joiner.bytes() < 4 << 20, "{} bytes", self.joiner.bytes());
    }

    /// The figures over all journeys.
    fn summary(&mut self) -> Summary {
        self.joiner.finish(self.reached, &mut |j: &Journey| self.finder.observe(j));
        let points = &self.tables.points;
        let layout = classic(self.finder.route(points), points);
        let mut aggregate = Aggregate::new(Setup::new(streams().len(), points, &layout, MS, 10));
        let mut again = joiner();
        again.set_points(points);
        let mut rows = Rows::new(points.len());
        for s in &self.joined {
            again.push(s, &mut |j: &Journey| rows.push(j));
        }
        again.finish(self.reached, &mut |j: &Journey| rows.push(j));
        Batches::new(aggregate.setup()).each(&rows, |batch| aggregate.add(batch));
        let counters: Vec<_> = self.merge.feeds.iter_mut().map(|feed| feed.origin.counters()).collect();
        let record = |(feed, counters): (&Feed, &Counters)| feed.record(*counters, feed.origin.recorder());
        let manifest = Manifest {
            streams: streams(),
            points: points.clone(),
            drop_notes: self.tables.notes.clone(),
            machines: self.merge.feeds.iter().zip(&counters).map(record).collect(),
            counters: sum(&counters),
            joined: (0..streams().len()).map(|id| again.totals(id as StreamId)).collect(),
            notes: layout.notes,
            ..Manifest::default()
        };
        let counts = serde_json::to_string(&(&manifest.counters, counters)).expect("counts are JSON");
        let numbers = counts.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u64>().ok());
        assert!(numbers.max() <= Some(MAX_COUNT), "a run with such counts cannot be read: {counts}");
        let mut vms = VmsByMachine::default();
        for guest in self.merge.machines() {
            vms.set("guest0", guest.vms().map_or(Vec::new(), |(vms, _)| vms));
        }
        let facts = Facts {
            manifest: &manifest,
            points,
            route: &layout.route,
            before: &[],
            whole: true,
            vms: &vms,
            elapsed: self.reached.saturating_sub(self.begin),
        };
        summarise(&aggregate, &facts)
    }
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let summary = follow(bytes);
    let stray = |s: &latpath_stats::StreamFigures| {
        s.complete + s.incomplete + s.lost.iter().map(|lost| lost.count).sum::<u64>() > s.journeys
    };
    assert!(!summary.streams.iter().any(stray), "more became of packets than there were");
    clean(&text(
        &summary,
        None,
        &latpath_report::Options {
            style: CharacterSet::Unicode.into(),
            histograms: Vec::new(),
            covers: None,
            limits: Vec::new(),
        },
    ));
    clean(&serde_json::to_string_pretty(&summary).expect("figures are JSON"));
}

fn follow(bytes: &[u8]) -> Summary {
    let (machine, mut agent) = Machine::scripted("guest0", streams().len());
    let host = Host::default();
    // Once a machine's session has ended, its watermark is the current time.
    let begin = monotonic();
    let feeds = vec![Feed::new(host.clone()), Feed::new(machine)];
    let mut following = Following {
        merge: Merge::new(feeds, begin),
        tables: Tables::default(),
        joiner: joiner(),
        finder: RouteFinder::default(),
        begin,
        reached: Ns::MIN,
        joined: Vec::new(),
    };
    let (mut now, mut rest) = (begin, bytes);
    while let Some((step, tail)) = rest.split_first() {
        now += MS;
        rest = tail;
        match step {
            0 => agent.request_time(now),
            1 => {
                for guest in following.merge.machines() {
                    guest.request_window(now - 5 * MS, now);
                }
            }
            2 => host.0.lock().expect("one thread").0.extend((0..16).flat_map(|n| packet(begin, now, n))),
            3 => {
                host.0.lock().expect("one thread").1 = now;
                following.round();
            }
            4 => agent.expire(),
            short => rest = say(&mut agent, *short, rest, now),
        }
    }
    following.round();
    for guest in following.merge.machines() {
        let windows = guest.take_windows().into_iter();
        for name in windows.filter_map(|(_, window)| window.ok()).flat_map(|window| window.snapshot.threads) {
            assert!(!name.1.name.chars().any(char::is_control));
        }
        clean(&serde_json::to_string(&guest.vms()).expect("virtual machines are JSON"));
        clean(&guest.fault().map(|fault| fault.to_string()).unwrap_or_default());
    }
    following.summary()
}

/// The sightings, at both points, of the n-th packet in the millisecond before `now`.
fn packet(begin: Ns, now: Ns, n: Ns) -> [Sighting; 2] {
    let key = ((now - begin) / MS * 16 + n) as u32 & 0xffff;
    let at = |point: u16, t| Sighting { t, key, point, ..Sighting::default() };
    let t = now - MS + n * 62_000;
    [at(0, t), at(1, t + 9_000)]
}

/// Sends one frame from the agent to the host; returns the rest of the input.
pub(crate) fn say<'a>(agent: &mut ScriptedAgent, length: u8, rest: &'a [u8], now: Ns) -> &'a [u8] {
    let (more, rest) = match rest.split_first() {
        Some((more, rest)) if length >= 250 => (usize::from(*more) * 8, rest),
        _ => (0, rest),
    };
    let (content, rest) = rest.split_at((usize::from(length) - 5 + more).min(rest.len()));
    agent.send(&[&(content.len() as u32).to_le_bytes(), content].concat(), now);
    rest
}

/// Checks that the printed text contains no characters that control a terminal.
pub(crate) fn clean(text: &str) {
    let text = visible(text);
    let steers = |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
    assert!(!text.chars().any(steers), "{text:?}");
}

/// Handwritten frames of the protocol. Field tags never change their meaning, so the frames stay valid.
pub fn seeds() -> Vec<Vec<u8>> {
    let guest = |ms: i64| zigzag(GUEST + ms * MS);
    let hello = frame(2, &[number(1, 1), bytes(2, b"0.1.0"), bytes(3, b"6.1.0"), number(8, 1)]);
    let started = frame(4, &[]);
    let reply = |id: u64, ms: i64| frame(10, &[number(1, id), number(2, guest(ms)), number(3, guest(ms) + 2)]);
    let point = |kind: u64, device: &[u8]| {
        bytes(1, &[number(1, kind), bytes(2, device), number(4, 1), number(5, 2), bytes(6, b"kvm-clock")].concat())
    };
    let points = frame(5, &[point(1, b"eth1"), point(3, b"relay"), point(4, b"eth1")]);
    let notes = frame(6, &[bytes(1, &[bytes(1, b"FULL_RING"), bytes(2, b"tun_net_xmit")].concat())]);
    let context =
        |point: u64, note: u64| bytes(3, &[number(2, point), number(3, 1), number(4, 815), number(5, note)].concat());
    let batch = |ms: i64, keys: &[u64]| {
        let contexts: Vec<u64> = keys.iter().enumerate().map(|(n, _)| n as u64 % 2).collect();
        let later: Vec<u64> = keys.iter().map(|_| zigzag(31_000)).collect();
        let first = number(2, guest(ms));
        frame(
            7,
            &[
                number(1, guest(ms) + 2_000_000),
                first,
                context(0, 0),
                context(1, 0),
                list(4, &contexts),
                list(5, &later),
                list(6, keys),
            ],
        )
    };
    let totals = |n: u64| {
        frame(
            8,
            &[
                number(1, n),
                number(2, n),
                number(3, n),
                number(4, n),
                number(5, n),
                number(7, n),
                number(8, n),
                number(9, n),
                number(10, n),
            ],
        )
    };
    let recording = frame(17, &[bytes(2, b"no kvm tracepoints"), number(3, 7), number(5, 1 << 20)]);
    let window = |id: u64, chunk: &[u8], last: u64| frame(16, &[number(1, id), bytes(3, chunk), number(4, last)]);
    let greeted = [hello, vec![0, 0, 0], reply(1, 2), reply(2, 3), reply(3, 3), started, points, notes].concat();
    let keys = |first: u64| [vec![zigzag(first as i64); 2], vec![zigzag(1); 30]].concat();
    // The host sees its first 16 packets at this step.
    let joined = |step: u64| {
        let first = batch(step as i64 - 1, &keys(step * 16));
        [vec![2], first, vec![3, 2], batch(step as i64 + 2, &keys(33)), totals(90), vec![3]].concat()
    };
    let mut long = greeted.clone();
    for round in 0..80 {
        let step = zigzag(if round == 0 { 176 } else { 64 });
        let pause = if round % 9 == 0 { 0 } else { 3 };
        long.extend([vec![2, 3], batch(10 + round * 4, &[step, step]), vec![pause]].concat());
    }
    let pair = frame(11, &[number(1, guest(3)), number(2, zigzag(1_700_000_000_000_000_000)), number(3, zigzag(900))]);
    // Its vhost worker has the TID that the sightings contain.
    let worker = Thread { tid: 815, role: Role::Vhost, ..Thread::default() };
    let vm = Vm { name: "relay\u{1b}[2J".into(), threads: vec![worker], ..Vm::default() };
    let vm = serde_json::to_vec(&vm).expect("a virtual machine is JSON");
    let vms = frame(29, &[bytes(1, &vm), bytes(1, b"[[[["), number(2, 1), number(3, 5)]);
    let snapshot = crate::snapshot::some().encode();
    vec![
        [&greeted[..], &joined(11), &frame(14, &[])].concat(),
        [
            &greeted[..],
            &vms,
            &recording,
            &pair,
            &[1],
            &window(1, b"half", 0),
            &window(1, &snapshot, 1),
            &[1, 4],
            &joined(19),
        ]
        .concat(),
        [&greeted[..], &totals(u64::MAX), &joined(12), &frame(12, &[bytes(1, b"no \x1b[2J BTF")])].concat(),
        long,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_come_as_far_as_journeys_of_both_machines() {
        for (n, seed) in seeds().iter().enumerate() {
            let summary = follow(seed);
            let joined = summary.segments.iter().any(|s| s.from.starts_with("host/") && s.to.starts_with("guest0/"));
            assert!(
                joined && summary.complete > 0,
                "seed {n}: {:?} {:?} {:?}",
                summary.points,
                summary.journeys,
                summary.notes
            );
        }
    }
}
