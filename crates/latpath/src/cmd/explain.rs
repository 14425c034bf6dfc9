//! `latpath explain`: why packets of a recording were late.

use super::report::print;
use super::{Outcome, Usage};
use anyhow::{bail, Result};
use clap::{Args as ClapArgs, ValueEnum};
use latpath_report::{
    explanation_json, explanation_text, packet_text, Candidate, Explainer, Explanation, Head, Scenery, Wanted,
};
use latpath_run::{Condition, Run, SpikeFiles};
use latpath_spike::{Kind, Packet, Scene};
use latpath_stats::units::{duration, Letters};
use std::path::PathBuf;

/// Explain why packets of a recording were late: what held them, who did it, and what would cure it.
#[derive(ClapArgs)]
pub struct Args {
    /// The recording: a directory made by latpath record
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Tell so many of the worst spikes one by one; with --json so many of the worst packets
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=10_000))]
    worst: u16,
    /// Show one packet from point to point: its number in the list of the worst, "worst", or STREAM:KEY@TIME, as
    /// MU01:1234@03:04:05.593 (UTC) or MU01:1234@12.5s (since the run's start)
    #[arg(long, value_name = "PACKET", conflicts_with = "worst")]
    packet: Option<Wanted>,
    /// Rank causes by this
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = By::Delay)]
    by: By,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// All delay that a cause made beyond the usual
    Delay,
    /// The number of packets of which it is the first cause
    Count,
}

/// Runs the command.
pub fn run(args: Args) -> Result<Outcome> {
    let run = Run::open(&args.run)?;
    let files = run.spikes();
    let manifest = run.manifest();
    let name = args.run.display();
    // What is recorded first says so only with its first second.
    if files.files.is_empty() && manifest.spikes.is_none() && *run.condition() != Condition::Recording {
        bail!(
            "{name}: it has no record of what the machines did, so nothing tells why packets were late; record again with the \
             flight recorder (without --no-flight, as root). latpath report {name} --worst 10 shows where they were late"
        );
    }
    let mut explainer = Explainer::new(Scenery::of_run(&run), args.worst.into());
    let mut scenes = Scenes { run: &run, files, unread: 0 };
    scenes.learn(&mut explainer);
    let explanation = match &args.packet {
        Some(wanted) => {
            let (scene, packet) = scenes.find(wanted, &explainer)?;
            let told = explainer.one(&scene, &packet);
            if !args.json {
                print(&packet_text(&told, explainer.scenery(), Letters::from_env()))?;
                return Ok(Outcome::Done);
            }
            Explanation { worst: vec![told], ..explainer.explanation() }
        }
        None => {
            scenes.each(Kind::Spike, |scene| explainer.add(scene));
            explainer.explanation()
        }
    };
    let explanation = ranked(explanation, args.by);
    if args.json {
        print(&(explanation_json(Some((&run, &scenes.files)), &explanation, explainer.scenery())? + "\n"))?;
    } else {
        let head = Head { run: &run, files: &scenes.files };
        print(&explanation_text(&head, &explanation, explainer.scenery(), Letters::from_env()))?;
    }
    if explanation.late == 0 && args.packet.is_none() {
        if scenes.unread > 0 {
            bail!("{name}: none of its spikes can be read");
        }
        let so_far = if *run.condition() == Condition::Recording { " so far" } else { "" };
        eprintln!(
            "latpath: {name}: no packet was late{so_far}: none took longer than {}. Record with a lower --threshold, or with \
             --worst N for the worst of each minute, whatever they take",
            duration(manifest.threshold_ns)
        );
    }
    Ok(Outcome::Done)
}

fn ranked(mut explanation: Explanation, by: By) -> Explanation {
    if by == By::Count {
        let is_last = |r: &latpath_report::Ranked| r.row.cause == latpath_cause::Cause::Unexplained;
        explanation
            .ranking
            .sort_by_key(|r| (is_last(r), std::cmp::Reverse((r.row.first, r.row.packets, r.row.excess_ns))));
    }
    explanation
}

/// A run's scenes, read one by one: they are too large to be held together.
struct Scenes<'a> {
    run: &'a Run,
    files: SpikeFiles,
    unread: usize,
}

impl Scenes<'_> {
    fn each(&mut self, kind: Kind, mut take: impl FnMut(&Scene)) {
        let numbers: Vec<u32> =
            self.files.files.iter().filter(|f| f.head.kind == kind).map(|f| f.head.number).collect();
        for number in numbers {
            match self.run.spike(number) {
                Ok(frozen) => take(&frozen.scene),
                // Of a recording that goes on it may just have made room for a worse one.
                Err(latpath_run::RunError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                    self.files.files.retain(|f| f.head.number != number);
                }
                Err(error) => {
                    self.unread += 1;
                    self.files.notes.push(error.to_string());
                }
            }
        }
    }

    /// What is usual; from scenes with late packets where there are no others.
    fn learn(&mut self, explainer: &mut Explainer) {
        self.each(Kind::OnTime, |scene| explainer.learn(scene));
        if explainer.learnt() > 0 {
            return;
        }
        self.each(Kind::Spike, |scene| explainer.learn(scene));
        if explainer.learnt() > 0 {
            let note = "what is usual is known from packets beside late ones alone: the run has no moment in which all were on time";
            self.files.notes.push(note.into());
        }
    }

    fn find(&mut self, wanted: &Wanted, explainer: &Explainer) -> Result<(Scene, Packet)> {
        let scenery = explainer.scenery();
        // Of a packet that is in two scenes the one that has all of its way comes first.
        let (mut candidates, mut cut): (Vec<Candidate>, Vec<Candidate>) = (Vec::new(), Vec::new());
        for kind in [Kind::Spike, Kind::OnTime] {
            self.each(kind, |scene| {
                for packet in &scene.packets {
                    let Some(one) = candidate(scene, packet, scenery).filter(|c| wanted.may_be(c, scenery)) else {
                        continue;
                    };
                    let whole = packet.sightings.iter().all(|s| s.t < scene.to);
                    if whole { &mut candidates } else { &mut cut }.push(one);
                }
            });
        }
        candidates.append(&mut cut);
        let chosen = wanted.choose(&candidates, scenery).map_err(|e| Usage(e.to_string()))?;
        let scene = self.run.spike(chosen.scene)?.scene;
        let is_it = |p: &&Packet| (p.stream, p.number) == (chosen.stream, chosen.number);
        let packet = scene.packets.iter().find(is_it).cloned();
        match packet {
            Some(packet) => Ok((scene, packet)),
            None => bail!("scene {} changed while it was read; try again", chosen.scene),
        }
    }
}

/// A packet, as far as is told of it in a list.
fn candidate(scene: &Scene, packet: &Packet, scenery: &Scenery) -> Option<Candidate> {
    let way = scenery.line(packet.stream);
    let on_way = || packet.sightings.iter().filter(|s| way.is_empty() || way.contains(&s.point)).map(|s| s.t);
    let (first, last) = (on_way().min()?, on_way().max()?);
    Some(Candidate {
        scene: scene.number,
        stream: packet.stream,
        key: packet.key,
        number: packet.number,
        t: first,
        time_ns: last.saturating_sub(first),
        late: packet.late,
    })
}
