//! Compares latpath's explanation of a run with the injected faults.

use super::{blame::Blame, fault::Injection};
use latpath_capture::CaptureKind;
use latpath_cause::{Analyst, Attribution, Baseline, Cause, PacketTimeline, RunContext};
use latpath_model::{Ns, PointId};
use latpath_run::{Run, Select};
use latpath_testkit::Failed;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Minimum share of the packets delayed by faults that must be explained correctly, %.
const RIGHT: usize = 95;
/// Minimum share of the excess attributed to the fault, %.
const SHARE: Ns = 80;
/// Maximum median share of the excess that is unexplained, %.
const UNEXPLAINED: Ns = 10;
/// Minimum number of injections of a fault that delayed packets.
const TIMES: usize = 20;

/// A late packet and its attribution.
#[derive(Debug)]
pub struct Late {
    pub first: Ns,
    pub last: Ns,
    /// The part of its latency spent with ovs-vswitchd.
    pub with_daemon: Ns,
    pub attribution: Attribution,
}

/// Contents of a run.
pub struct Seen {
    pub journeys: u64,
    /// First and last sighting of all packets over the threshold.
    pub late: Vec<(Ns, Ns)>,
    /// The late packets in captures, explained.
    pub explained: Vec<Late>,
    pub captures: usize,
    pub on_time: u64,
    /// The guest's clock minus the host's.
    pub offset: Ns,
    /// Path of the run.
    pub run: PathBuf,
    /// Path of a copy of the run, if one is kept.
    pub kept: Option<PathBuf>,
}

impl Seen {
    /// Reads the run and explains its late packets.
    pub fn read(path: &Path) -> Result<Self, Failed> {
        let run = Run::open(path)?;
        let (mut late, mut journeys, threshold) = (Vec::new(), 0, run.manifest().threshold_ns);
        run.for_each(&Select::default(), |j| {
            journeys += 1;
            let times = (0..run.points().len()).filter_map(|p| j.at(p as u16));
            late.extend(times.clone().min().zip(times.max()).filter(|(a, b)| b - a > threshold));
            true
        });
        let offset = run.manifest().machines.iter().skip(1).map(|m| m.clock.offset_ns).next().unwrap_or(0);
        let place = |name: &String| run.points().iter().position(|p| p.point.to_string() == *name);
        let route: Vec<PointId> =
            run.manifest().route.iter().filter_map(|p| place(&p.to_string())).map(|p| p as PointId).collect();
        let context = RunContext { points: run.points().to_vec(), vms: run.vms(), ..RunContext::default() };
        let (mut packets, mut baseline) = (Vec::new(), Baseline::default());
        let files = run.spikes().files;
        for file in &files {
            let capture = run.capture(file.head.number)?.capture;
            let analyst = Analyst::new(&capture, &context);
            for packet in &capture.packets {
                if !packet.late && capture.kind != CaptureKind::Baseline {
                    continue;
                }
                let explained = PacketTimeline::of(&analyst, &capture, packet, &route, run.points());
                if capture.kind == CaptureKind::Baseline {
                    baseline.add(&explained);
                } else {
                    packets.push(explained);
                }
            }
        }
        let explained = packets.iter().filter_map(|packet| {
            let attribution = Attribution::of(packet, &route, &baseline, &context);
            let first = packet.begin()?;
            let with_daemon = packet.with_daemon(run.points());
            Some(Late { first, last: first + packet.time(), with_daemon, attribution })
        });
        let explained = explained.collect();
        let captures = files.iter().filter(|f| f.head.kind() != CaptureKind::Baseline).count();
        let run = path.to_owned();
        Ok(Self { journeys, late, explained, captures, on_time: baseline.packets(), offset, run, kept: None })
    }

    /// Expects [`RIGHT`] % of the packets that spent at least half of their time with ovs-vswitchd to have at least
    /// [`SHARE`] % of that time, or of their excess if that is shorter, attributed to its threads.
    pub fn expect_upcalls(&self, truth: &[Injection]) -> Result<(), Failed> {
        let asked: Vec<&Late> = self.explained.iter().filter(|p| p.with_daemon * 2 >= p.last - p.first).collect();
        let is_daemons =
            |name: &str| ["handler", "revalidator", "ovs-vswitchd"].iter().any(|own| name.starts_with(own));
        let is_right = |p: &&&Late| {
            let of_daemon =
                p.attribution.shares.iter().filter(|h| h.actor.as_ref().is_some_and(|a| is_daemons(&a.name)));
            of_daemon.map(|h| h.excess_ns).sum::<Ns>() * 100 >= p.attribution.excess_ns.min(p.with_daemon) * SHARE
        };
        let right = asked.iter().filter(is_right).count();
        let held = |i: &&Injection| asked.iter().any(|p| p.first < i.bounds().1 && p.last > i.bounds().0);
        let explained = truth.iter().filter(held).count();
        eprintln!("upcall: {right} of {} right; {explained} of {}; {}", asked.len(), truth.len(), self.delayed(truth));
        let listed = || Self::listed(asked.iter().filter(|p| !is_right(p)).copied());
        match explained >= TIMES && right * 100 >= asked.len() * RIGHT {
            true => Ok(()),
            false => Err(format!("upcall: {right} of {} right, of {explained} faults{}", asked.len(), listed()).into()),
        }
    }

    /// Converts times of the guest to the host's clock.
    pub fn in_host_time(&self, truth: &[Injection]) -> Vec<Injection> {
        truth.iter().map(|i| i.earlier_by(self.offset)).collect()
    }

    /// Latency of the slowest late packet in flight during an injection; `None` if there is none.
    fn worst(&self, injection: &Injection) -> Option<Ns> {
        let (begin, end) = injection.bounds();
        let under_way = self.late.iter().filter(|(first, last)| *first < end && *last > begin);
        under_way.map(|(first, last)| last - first).max()
    }

    /// Summary: how many injections delayed packets, and for how long.
    fn delayed(&self, truth: &[Injection]) -> String {
        let mut all: Vec<Ns> = truth.iter().filter_map(|i| self.worst(i)).collect();
        all.sort_unstable();
        let middle = all.get(all.len() / 2).copied().unwrap_or(0);
        format!(
            "{} journeys, {} late, {} captures with {} explained ({} on time); {} of {} faults held packets, for {:.1} ms in the middle",
            self.journeys,
            self.late.len(),
            self.captures,
            self.explained.len(),
            self.on_time,
            all.len(),
            truth.len(),
            middle as f64 / 1e6
        )
    }

    /// Causes of late packets, by excess in descending order.
    pub fn listed<'a>(packets: impl Iterator<Item = &'a Late>) -> String {
        let mut counts: BTreeMap<String, (u64, Ns)> = BTreeMap::new();
        for packet in packets {
            for held in &packet.attribution.shares {
                if held.excess_ns * 50 < packet.attribution.excess_ns {
                    continue;
                }
                let name = |m: &latpath_cause::Actor| m.name.clone();
                let first = if packet.attribution.first() == Some(held) { "" } else { "  also " };
                let what = format!(
                    "{first}{} of {} by {} on {} {:?}",
                    held.cause,
                    held.actor.as_ref().map_or("?".into(), name),
                    held.by
                        .iter()
                        .take(3)
                        .map(|(m, ns)| format!("{} {}us", m.name, ns / 1000))
                        .next()
                        .map_or("-".into(), |b| b.split(' ').next().unwrap_or("").to_owned()),
                    held.machine,
                    held.notes.iter().map(|(note, _)| note).find(|note| !note.is_of_times()),
                );
                let entry = counts.entry(what).or_default();
                *entry = (entry.0 + 1, entry.1 + held.excess_ns);
            }
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, (_, ns))| std::cmp::Reverse(*ns));
        let line =
            |(what, (n, ns)): &(String, (u64, Ns))| format!("\n    {n} packets, {:.1} ms: {what}", *ns as f64 / 1e6);
        counts.iter().take(10).map(line).collect()
    }

    /// Expects the explanation to blame the fault for its injections.
    pub fn expect(&self, truth: &[Injection], blame: &Blame) -> Result<(), Failed> {
        let name = blame.fault;
        if let Some(kept) = &self.kept {
            let lines: String = truth.iter().map(|i| format!("{i}\n")).collect();
            std::fs::write(kept.join("truth"), format!("{name}\n{lines}"))?;
        }
        // A packet belongs to the fault if the fault was active for 90 % of its excess. For other packets, the test
        // cannot expect [`SHARE`] % of the excess to be attributed to the fault.
        let during =
            |packet: &Late, i: &Injection| i.during(packet.first, packet.last) * 10 >= packet.attribution.excess_ns * 9;
        let injected: Vec<&Late> =
            self.explained.iter().filter(|packet| truth.iter().any(|i| during(packet, i))).collect();
        let is_right = |p: &&&Late| blame.is_first(&p.attribution) && blame.share(&p.attribution) >= SHARE;
        let right = injected.iter().filter(is_right).count();
        // Some injections delay no packet: the victim ran first, or something else delayed it too.
        let alone = |i: &Injection| self.late.iter().any(|(a, b)| i.during(*a, *b) * 10 >= (b - a) * 9);
        let held: Vec<&Injection> = truth.iter().filter(|i| alone(i)).collect();
        let is_explained = |i: &Injection| injected.iter().any(|packet| during(packet, i));
        let missed = held.iter().filter(|i| !is_explained(i)).count();
        let explained = truth.iter().filter(|i| is_explained(i)).count();
        let unexplained = |p: &&Late| {
            let of = p.attribution.shares.iter().filter(|h| h.cause == Cause::Unexplained).map(|h| h.excess_ns);
            of.sum::<Ns>() * 100 / p.attribution.excess_ns.max(1)
        };
        let mut dark: Vec<Ns> = injected.iter().map(unexplained).collect();
        dark.sort_unstable();
        let dark = dark.get(dark.len() / 2).copied().unwrap_or(0);
        let mut shares: Vec<Ns> = injected.iter().map(|p| blame.share(&p.attribution)).collect();
        shares.sort_unstable();
        let share = shares.get(shares.len() / 2).copied().unwrap_or(0);
        eprintln!(
            "{name}: {right} of {} right, {share} % of the excess in the middle, {dark} % unexplained; {}",
            injected.len(),
            self.delayed(truth)
        );
        let listed = || Self::listed(injected.iter().filter(|p| !is_right(p)).copied());
        if right < injected.len() {
            eprintln!("  the others:{}", listed());
        }
        if explained < TIMES || missed * 100 > held.len() * (100 - RIGHT) {
            let (held, all) = (held.len(), truth.len());
            return Err(format!(
                "{name}: {explained} of {all} faults are explained; of {held} that alone held packets {missed} are not"
            )
            .into());
        }
        if right * 100 < injected.len() * RIGHT || dark > UNEXPLAINED {
            return Err(format!("{name}: {right} of {} right; the others:{}", injected.len(), listed()).into());
        }
        Ok(())
    }

    /// For runs without a fault: expects that latpath blames no fault of the kinds that the tests inject.
    pub fn expect_no_fault(&self) -> Result<(), Failed> {
        use Cause::{PollInterval, QdiscHeld, Stopped, Throttled, Upcall};
        let injected = |p: &&Late| {
            let held = p.attribution.first();
            let named =
                held.and_then(|h| h.culprit()).is_some_and(|m| ["hog", "crowd", "flooder"].contains(&m.name.as_str()));
            let reader = |m: &latpath_cause::Actor| m.name == "relay";
            let slept = held.is_some_and(|h| h.cause == PollInterval && h.actor.as_ref().is_some_and(reader));
            named || slept || held.is_some_and(|h| [Stopped, Throttled, QdiscHeld, Upcall].contains(&h.cause))
        };
        let wrong: Vec<&Late> = self.explained.iter().filter(injected).collect();
        eprintln!("no fault: {} late, {} blamed; {}", self.explained.len(), wrong.len(), self.delayed(&[]));
        eprintln!("  held by:{}", Self::listed(self.explained.iter()));
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(format!("a fault is blamed that was not there:{}", Self::listed(wrong.into_iter())).into()),
        }
    }
}
