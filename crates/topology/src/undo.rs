//! Removes a topology, in reverse order of creation; works after a kill at any step.

use crate::{
    builder::{change, current},
    check::not_a_name,
    guest, ovs,
    step::{Identity, Object, Setting, Step},
    xdp,
};
use latpath_net::{interfaces, Netns, Rtnetlink};
use latpath_undo::{Kind, Outcome, Undo};
use std::{fs, io, path::Path};

/// Removes topologies.
pub struct Topologies;

/// Result of removing an object: whether it was removed, or why it was left alone.
pub(crate) enum Removed {
    /// It was removed.
    Yes,
    /// It did not exist.
    Absent,
    /// Another object has its name, or another program has changed it since.
    LeftAlone(String),
}

impl Undo for Topologies {
    const KIND: Kind = Kind::Topology;
    type Step = Step;

    fn undo(&self, subject: &str, steps: &[Step]) -> Outcome {
        if not_a_name(subject).is_some() {
            return Outcome::Failed(vec!["it names no topology".into()]);
        }
        let (mut done, mut left_alone, mut problems) = (Vec::new(), Vec::new(), Vec::new());
        for (at, step) in steps.iter().enumerate().rev() {
            let (what, removed) = match step {
                Step::Make(object) => (object.to_string(), remove(subject, object, identity(&steps[at..], object))),
                Step::Set(setting) => (format!("{}: {}", setting.device, setting.before), restore(setting)),
                Step::SetOvs(setting) => {
                    let before = setting.before.as_deref().unwrap_or("not set");
                    (format!("Open vSwitch: {} {before}", setting.key), ovs::restore(setting))
                }
                Step::Made(..) | Step::Topology(_) | Step::Complete => continue,
            };
            match removed {
                Ok(Removed::Yes) => done.push(match step {
                    Step::Set(_) | Step::SetOvs(_) => format!("topology {subject}: {what} again"),
                    _ => format!("topology {subject}: {what} removed"),
                }),
                Ok(Removed::Absent) => {}
                Ok(Removed::LeftAlone(why)) => left_alone.push(format!("topology {subject}: {what}: {why}")),
                Err(why) => problems.push(format!("{what}: {why}")),
            }
        }
        match problems.is_empty() {
            true => Outcome::Undone { done, left_alone },
            false => Outcome::Failed(problems),
        }
    }
}

/// The identity recorded after an object was made; `None` if the process was killed before that.
pub(crate) fn identity<'a>(later: &'a [Step], object: &Object) -> Option<&'a Identity> {
    later.iter().find_map(|step| match step {
        Step::Made(made, identity) if made == object => Some(identity),
        _ => None,
    })
}

fn remove(topology: &str, object: &Object, identity: Option<&Identity>) -> Result<Removed, String> {
    match object {
        Object::Directory => remove_directory(&crate::directory(topology)).map_err(|e| e.to_string()),
        Object::Namespace { name } => namespace(name, identity),
        Object::Device { netns, name, kind } => device(*netns, name, kind, identity),
        Object::Node { ifindex, .. } => guest::remove_node(topology, *ifindex, identity),
        Object::Bpffs => xdp::unmount(),
        Object::Pins => xdp::remove_pins(topology),
        Object::Xdp { device, .. } => xdp::unpin(topology, device),
        Object::Guest { program, .. } => guest::end(program, identity),
        Object::OvsBridge { name, database } => ovs::remove_bridge(topology, name, database.as_deref()),
        Object::OvsPort { name, bridge, database } => ovs::remove_port(topology, name, bridge, database.as_deref()),
    }
}

fn namespace(name: &str, identity: Option<&Identity>) -> Result<Removed, String> {
    let there = Netns::named(name).ok();
    match (&there, identity) {
        (Some(netns), Some(Identity::Inode(inode))) if u64::from(netns.inode()) != *inode => {
            return Ok(Removed::LeftAlone("another namespace has its name".into()));
        }
        // After a kill between the creation of the namespace's file and its mount, only the file exists.
        (None, _) if !Path::new("/run/netns").join(name).exists() => return Ok(Removed::Absent),
        _ => {}
    }
    Netns::delete(name).map(|()| Removed::Yes).map_err(|e| e.to_string())
}

fn device(netns: u32, name: &str, kind: &str, identity: Option<&Identity>) -> Result<Removed, String> {
    let Ok(netns) = Netns::find(netns) else { return Ok(Removed::Absent) };
    let there = interfaces(&netns).map_err(|e| e.to_string())?;
    let Some(found) = there.iter().find(|device| device.name == name) else { return Ok(Removed::Absent) };
    let is_ours = match identity {
        Some(Identity::Ifindex(index)) => found.ifindex == *index,
        // latpath was killed before it recorded the identity; when it began, no device had this name.
        _ => true,
    };
    if !is_ours || found.kind.as_deref() != Some(kind) {
        return Ok(Removed::LeftAlone("another device has its name".into()));
    }
    let network = Rtnetlink::open(&netns).map_err(|e| e.to_string())?;
    network.delete_device(name).map(|()| Removed::Yes).map_err(|e| e.to_string())
}

/// Restores a device's old value, unless another program has changed it since.
fn restore(setting: &Setting) -> Result<Removed, String> {
    let Setting { netns, device, ifindex, before, set } = setting;
    let Ok(netns) = Netns::find(*netns) else { return Ok(Removed::Absent) };
    let there = interfaces(&netns).map_err(|e| e.to_string())?;
    let Some(found) = there.iter().find(|other| other.ifindex == *ifindex && other.name == *device) else {
        return Ok(Removed::Absent);
    };
    let now = current(found, set, &netns).map_err(|e| e.to_string())?;
    if now == *before {
        return Ok(Removed::Absent);
    }
    if now != *set {
        return Ok(Removed::LeftAlone(format!("stays {now}, which another program has set")));
    }
    let network = Rtnetlink::open(&netns).map_err(|e| e.to_string())?;
    network.set(device, &[change(before)]).map(|()| Removed::Yes).map_err(|e| e.to_string())
}

/// Removes a directory of latpath's, and its parent if that is then empty.
fn remove_directory(directory: &Path) -> io::Result<Removed> {
    let removed = match fs::remove_dir_all(directory) {
        Ok(()) => Removed::Yes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => Removed::Absent,
        Err(e) => return Err(e),
    };
    if let Some(above) = directory.parent() {
        // Fails if other topologies are up.
        let _ = fs::remove_dir(above);
    }
    Ok(removed)
}
