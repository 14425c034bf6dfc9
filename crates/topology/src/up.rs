//! Making, removing and listing topologies.

use crate::{
    builder::{Builder, Event},
    devices::{self, Host},
    file::{Topology, Way},
    guest, libvirt, ovs,
    step::Step,
    undo::Topologies,
    xdp, Error, Result,
};
use latpath_undo::{Entry, Journal, Lifetime, Outcome, Undo};

/// A topology that was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Up {
    /// Notes for the user, including steps left to the user.
    pub notes: Vec<String>,
}

/// A topology that was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Down {
    /// Objects that were removed, and settings that were restored.
    pub done: Vec<String>,
    /// Objects and settings that were left alone because another program has changed them since.
    pub left_alone: Vec<String>,
}

/// Makes a topology, which outlives this process until [`down`]. `progress` is called before and after each change.
/// `stop` is called before each change; once it returns true, everything is removed again.
///
/// # Errors
/// The topology is already up, an object cannot be made, or the user requests a stop. The objects made so far are
/// removed again.
pub fn up(topology: &Topology, progress: &mut dyn FnMut(Event<'_>), stop: &dyn Fn() -> bool) -> Result<Up> {
    topology.check()?;
    let entry = begin(&Journal::of_this_machine(), topology)?;
    let mut builder = Builder::new(entry, progress, stop);
    match build(&mut builder, topology) {
        Ok(up) => builder.complete().map(|()| up),
        Err(error) => Err(builder.undo(error)),
    }
}

fn begin(journal: &Journal, topology: &Topology) -> Result<Entry<Step>> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::NotRoot);
    }
    let turn = journal.turn()?;
    let name = &topology.name;
    if let Some(entry) = turn.needed(&Topologies, name)? {
        return Err(match entry.header().lifetime {
            Lifetime::Process => Error::Busy(name.clone()),
            _ => Error::IsUp(name.clone()),
        });
    }
    Ok(turn.begin::<Topologies>(name, Lifetime::Process, &format!("a way into VMs: {}", topology.way))?)
}

fn build(builder: &mut Builder, topology: &Topology) -> Result<Up> {
    let mut up = Up::default();
    builder.note(Step::Topology(Box::new(topology.clone())))?;
    let adopted = libvirt::running(topology)?;
    devices::directory(builder, topology)?;
    let host = Host::make(builder, topology)?;
    match (topology.way, topology.bridge_name()) {
        (Way::Bridge, Some(bridge)) => {
            host.bridge(builder, topology, &bridge)?;
            for guest in &topology.guests {
                let tap = adopted.tap_or(guest, &host.netns, || host.tap(builder, guest))?;
                host.port(builder, &tap, &bridge)?;
            }
        }
        (Way::Ovs | Way::OvsAfxdp, Some(bridge)) => ovs::build(builder, topology, &host, &adopted, &bridge, &mut up)?,
        (Way::Xdp, _) => {
            for guest in &topology.guests {
                let tap = adopted.tap_or(guest, &host.netns, || host.tap(builder, guest))?;
                xdp::build(builder, topology, &host, &tap, &mut up)?;
            }
        }
        _ => {
            adopted.refuse("a macvtap belongs to the guest that libvirt starts on it: use its XML fragment")?;
            for guest in &topology.guests {
                host.macvtap(builder, topology, guest)?;
                let node = guest::make_node(builder, topology, &host, guest)?;
                if guest.qemu.is_none() && guest.domain.is_none() {
                    up.notes.push(format!("guest {}: {} is the file of {}", guest.name, node.display(), guest.tap()));
                }
            }
        }
    }
    for guest in &topology.guests {
        match &guest.qemu {
            Some(qemu) => guest::start(builder, topology, &host, guest, qemu)?,
            None if adopted.has(guest) => {}
            None => up.notes.extend(libvirt::next_step(topology, guest)),
        }
    }
    Ok(up)
}

/// Removes a topology: undoes its steps in reverse order.
///
/// # Errors
/// The topology is not up, another process is making it, or an object cannot be removed; the other objects are still
/// removed.
pub fn down(name: &str) -> Result<Down> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::NotRoot);
    }
    let journal = Journal::of_this_machine();
    let turn = journal.turn()?;
    let not_up = || Error::NotUp { name: name.into(), up: list(names(&journal)) };
    let Some(entry) = turn.find::<Topologies>(name)? else { return Err(not_up()) };
    if entry.header().lifetime == Lifetime::Process && entry.header().is_needed() {
        return Err(Error::Busy(name.into()));
    }
    match turn.end(&Topologies, name)? {
        None => Err(not_up()),
        Some(Outcome::Undone { done, left_alone }) => Ok(Down { done, left_alone }),
        Some(Outcome::Failed(problems)) => Err(Error::NotUndone { name: name.into(), problems }),
        Some(Outcome::OutOfReach) => {
            Err(Error::NotUndone { name: name.into(), problems: vec!["it cannot be reached from here".into()] })
        }
    }
}

/// Names of the topologies in the journal.
pub fn names(journal: &Journal) -> Vec<String> {
    let entries = journal.entries().into_iter().flatten();
    let ours = entries.filter(|header| header.kind == Topologies::KIND.name() && header.is_of_this_boot());
    ours.map(|header| header.subject).collect()
}

fn list(names: Vec<String>) -> String {
    match names.is_empty() {
        true => "none".into(),
        false => names.join(", "),
    }
}

/// The steps of a topology that is up.
///
/// # Errors
/// The topology is not up, or the journal cannot be read.
pub(crate) fn steps(name: &str) -> Result<Vec<Step>> {
    let journal = Journal::of_this_machine();
    let found = journal.turn()?.find::<Topologies>(name)?;
    match found.filter(|entry| entry.header().is_of_this_boot()) {
        Some(entry) => Ok(entry.steps().to_vec()),
        None => Err(Error::NotUp { name: name.into(), up: list(names(&journal)) }),
    }
}
