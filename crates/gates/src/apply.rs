//! Applies a schedule to a device, recorded in the journal, and undoes it.

use crate::{Error, Result, Schedule};
use latpath_net::{interfaces, qdiscs, Interface, Netns, Qdisc, Rtnetlink, Shaping, ROOT};
use latpath_undo::{Journal, Kind, Lifetime, Outcome, Undo};
use serde::{Deserialize, Serialize};

/// The kind of a schedule's queueing discipline.
const TAPRIO: &str = "taprio";

/// A change of a device's queueing discipline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The device's name.
    pub device: String,
}

/// A schedule that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Number of queues that have `etf`.
    pub etf_queues: u32,
}

/// Removes schedules that latpath has applied.
pub struct Gated;

/// Namespace and interface index from a subject in the journal.
fn place(subject: &str) -> Option<(u32, u32)> {
    let (netns, ifindex) = subject.split_once('-')?;
    Some((netns.parse().ok()?, ifindex.parse().ok()?))
}

fn root(netns: &Netns, ifindex: u32) -> Result<Option<Qdisc>> {
    Ok(qdiscs(netns)?.into_iter().find(|qdisc| (qdisc.ifindex, qdisc.parent) == (ifindex, ROOT)))
}

impl Undo for Gated {
    const KIND: Kind = Kind::Gates;
    type Step = Step;

    fn undo(&self, subject: &str, steps: &[Step]) -> Outcome {
        let Some((netns, ifindex)) = place(subject) else {
            return Outcome::Failed(vec!["it names no device".into()]);
        };
        let Some(step) = steps.last() else { return Outcome::nothing() };
        let Ok(netns) = Netns::find(netns) else { return Outcome::OutOfReach };
        let restored = || -> Result<Outcome> {
            let all = interfaces(&netns)?;
            let is_it = |device: &&Interface| device.ifindex == ifindex && device.name == step.device;
            if all.iter().find(is_it).is_none() {
                return Ok(Outcome::nothing());
            }
            match root(&netns, ifindex)? {
                Some(qdisc) if qdisc.kind == TAPRIO => {
                    Rtnetlink::open(&netns)?.delete_qdisc(&step.device, ROOT)?;
                    Ok(Outcome::undone(format!("{}: gates removed", step.device)))
                }
                Some(qdisc) if qdisc.handle != 0 => {
                    let why = format!("{}: it has {} now: another program has set it since", step.device, qdisc.kind);
                    Ok(Outcome::Undone { done: Vec::new(), left_alone: vec![why] })
                }
                _ => Ok(Outcome::nothing()),
            }
        };
        restored().unwrap_or_else(|error| Outcome::Failed(vec![error.to_string()]))
    }
}

/// Finds a device in this process's network namespace. Returns it with its subject in the journal.
fn find(netns: &Netns, device: &str) -> Result<(Interface, String)> {
    let found = interfaces(netns)?.into_iter().find(|found| found.name == device);
    let found = found.ok_or_else(|| Error::NoDevice { device: device.into() })?;
    let subject = format!("{}-{}", netns.inode(), found.ifindex);
    Ok((found, subject))
}

/// Applies a schedule to its device, in this process's network namespace. It remains until [`undo`] or the next boot.
///
/// # Errors
/// The device does not exist or has a configured queueing discipline, or the kernel refuses the schedule. In these
/// cases the device is left unchanged.
pub fn apply(schedule: &Schedule, journal: &Journal) -> Result<Applied> {
    let netns = Netns::own()?;
    let device = &schedule.device;
    let (found, subject) = find(&netns, device)?;
    let mut entry = {
        let turn = journal.turn()?;
        if turn.needed(&Gated, &subject)?.is_some() {
            return Err(Error::AppliedAlready { device: device.clone() });
        }
        // The kernel's default disciplines have no handle, and return when a configured one is deleted, so they may be
        // replaced.
        if let Some(qdisc) = root(&netns, found.ifindex)?.filter(|qdisc| qdisc.handle != 0) {
            return Err(Error::Configured { device: device.clone(), kind: qdisc.kind });
        }
        turn.begin::<Gated>(&subject, Lifetime::Process, &format!("latpath gates apply: {device}"))?
    };
    entry.add(Step { device: device.clone() })?;
    let made = make(schedule, &netns, found.ifindex);
    if made.is_ok() {
        entry.set_lifetime(Lifetime::Request)?;
    }
    entry.leave(&Gated)?;
    made
}

fn make(schedule: &Schedule, netns: &Netns, ifindex: u32) -> Result<Applied> {
    let net = Rtnetlink::open(netns)?;
    net.set_qdisc(&schedule.device, ROOT, &schedule.taprio())?;
    let Some(etf) = schedule.etf() else { return Ok(Applied { etf_queues: 0 }) };
    let handle = root(netns, ifindex)?.map_or(0, |qdisc| qdisc.handle);
    for queue in 1..=schedule.queues() {
        net.set_qdisc(&schedule.device, handle | queue, &etf)?;
    }
    Ok(Applied { etf_queues: schedule.queues() })
}

/// Removes the schedule that [`apply`] set on a device of this process's network namespace. Returns messages for the
/// user.
///
/// # Errors
/// latpath has applied no schedule, or it cannot be removed.
pub fn undo(device: &str, journal: &Journal) -> Result<Vec<String>> {
    let (_, subject) = find(&Netns::own()?, device)?;
    let not_undone = |why: String| Error::NotUndone { device: device.into(), why };
    match journal.turn()?.end(&Gated, &subject)? {
        None => Err(Error::NotApplied { device: device.into() }),
        Some(Outcome::Undone { done, left_alone }) => Ok(done.into_iter().chain(left_alone).collect()),
        Some(Outcome::Failed(problems)) => Err(not_undone(problems.join("; "))),
        Some(Outcome::OutOfReach) => Err(not_undone("it cannot be reached from here".into())),
    }
}

/// Whether a queueing discipline schedules or shapes traffic classes.
pub(crate) fn is_scheduler(shaping: &Shaping) -> bool {
    matches!(shaping, Shaping::Taprio { .. } | Shaping::Etf { .. } | Shaping::Mqprio(_) | Shaping::Cbs { .. })
}
