//! The state of a topology: which of its objects exist, which have changed since, and where latpath sees packets on its
//! way.

use crate::{
    builder::current,
    file::Topology,
    guest, ovs,
    points::{gaps, points, Gap, Modes, PointOnWay},
    step::{Identity, Object, OvsSetting, Setting, Step},
    undo::identity,
    up::steps,
    xdp, Error, Result, Way,
};
use latpath_net::{interfaces, Netns};
use schemars::JsonSchema;
use serde::Serialize;
use std::{fs, os::unix::fs::MetadataExt};

/// A topology's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Status {
    /// The topology's name.
    pub name: String,
    /// Its way.
    pub way: Way,
    /// Whether it was made completely.
    pub complete: bool,
    /// Its objects and the devices that it changed, in order of creation.
    pub objects: Vec<ObjectStatus>,
    /// The host's points that packets pass on its way.
    pub points: Vec<PointOnWay>,
    /// Parts of the way that no point on the host shows.
    pub gaps: Vec<Gap>,
}

impl Status {
    /// Whether the topology is complete and unchanged.
    pub fn is_whole(&self) -> bool {
        self.complete && self.objects.iter().all(|object| object.state == Presence::Present)
    }
}

/// The state of one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ObjectStatus {
    /// The object.
    pub object: String,
    /// Its state.
    pub state: Presence,
    /// Further details: process ID, where a program runs, changes.
    pub detail: Option<String>,
}

/// State of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// The object exists, unchanged.
    Present,
    /// It does not exist.
    Missing,
    /// A different object has its name.
    Replaced,
    /// Another program has changed it.
    Changed,
}

/// The state of a topology that is up.
///
/// # Errors
/// The topology is not up, or the journal cannot be read.
pub fn status(name: &str) -> Result<Status> {
    let steps = steps(name)?;
    let topology = steps.iter().find_map(|step| match step {
        Step::Topology(topology) => Some(topology.as_ref().clone()),
        _ => None,
    });
    let topology =
        topology.ok_or_else(|| Error::NotUp { name: name.into(), up: "its making has just begun".into() })?;
    let objects = steps.iter().enumerate().filter_map(|(at, step)| match step {
        Step::Make(object) => Some(of_object(name, object, identity(&steps[at..], object))),
        Step::Set(setting) => Some(of_setting(setting)),
        Step::SetOvs(setting) => Some(of_ovs(setting)),
        Step::Topology(_) | Step::Made(..) | Step::Complete => None,
    });
    let taps = taps(&topology);
    let modes = modes(&topology, &steps, &taps);
    Ok(Status {
        name: name.into(),
        way: topology.way,
        complete: steps.contains(&Step::Complete),
        objects: objects.collect(),
        points: points(&topology, &taps, modes),
        gaps: gaps(&topology, modes),
    })
}

/// The guests with their taps.
fn taps(topology: &Topology) -> Vec<(String, String)> {
    let found = topology.guests.iter().any(|guest| guest.domain.is_some()).then(latpath_vms::find).and_then(|f| f.ok());
    let of_domain = |domain: &str| {
        let vm = found.as_ref()?.vms.iter().find(|vm| vm.name == domain)?;
        vm.taps.first().map(|tap| tap.device.clone())
    };
    let tap = |guest: &crate::Guest| match (&guest.tap, &guest.domain) {
        (None, Some(domain)) => of_domain(domain).unwrap_or_else(|| guest.tap()),
        _ => guest.tap(),
    };
    topology.guests.iter().map(|guest| (guest.name.clone(), tap(guest))).collect()
}

/// Where the topology's XDP programs run, as recorded when they were attached.
fn modes(topology: &Topology, steps: &[Step], taps: &[(String, String)]) -> Modes {
    let mut modes = Modes::default();
    for step in steps {
        if let Step::Made(Object::Xdp { device, .. }, Identity::Link { mode, .. }) = step {
            if *device == topology.uplink.device {
                modes.uplink = *mode;
            } else if taps.iter().any(|(_, tap)| tap == device) {
                modes.tap = *mode;
            }
        }
    }
    modes
}

fn of_object(topology: &str, object: &Object, identity: Option<&Identity>) -> ObjectStatus {
    let there = |is: bool| if is { Presence::Present } else { Presence::Missing };
    let mut detail = None;
    let state = match (object, identity) {
        (_, None) => {
            detail = Some("its making was interrupted".into());
            Presence::Missing
        }
        (Object::Directory, _) => there(crate::directory(topology).is_dir()),
        (Object::Namespace { name }, Some(Identity::Inode(inode))) => match Netns::named(name) {
            Ok(netns) if u64::from(netns.inode()) == *inode => Presence::Present,
            Ok(_) => Presence::Replaced,
            Err(_) => Presence::Missing,
        },
        (Object::Device { netns, name, .. }, Some(Identity::Ifindex(index))) => device(*netns, name, *index),
        (Object::Node { ifindex, .. }, Some(Identity::Inode(inode))) => {
            match fs::metadata(guest::node(topology, *ifindex)).map(|found| found.ino()) {
                Ok(found) if found == *inode => Presence::Present,
                Ok(_) => Presence::Replaced,
                Err(_) => Presence::Missing,
            }
        }
        (Object::Bpffs, _) => there(xdp::is_mounted()),
        (Object::Pins, _) => there(xdp::has_pins(topology)),
        (Object::Xdp { device, .. }, Some(Identity::Link { id, mode })) => {
            detail = Some(match mode {
                crate::XdpMode::Generic => "in the stack (generic)".into(),
                _ => "in the driver (native)".into(),
            });
            match xdp::pinned(topology, device) {
                Some(found) if found == *id => Presence::Present,
                Some(_) => Presence::Replaced,
                None => Presence::Missing,
            }
        }
        (Object::Guest { .. }, Some(Identity::Process { pid, start_ticks })) => {
            detail = Some(format!("process {pid}"));
            there(guest::is_running(*pid, *start_ticks))
        }
        (Object::OvsBridge { name, database }, _) => there(ovs::exists("Bridge", name, topology, database.as_deref())),
        (Object::OvsPort { name, database, .. }, _) => there(ovs::exists("Port", name, topology, database.as_deref())),
        _ => Presence::Missing,
    };
    ObjectStatus { object: object.to_string(), state, detail }
}

fn device(netns: u32, name: &str, index: u32) -> Presence {
    let there = Netns::find(netns).and_then(|netns| interfaces(&netns)).unwrap_or_default();
    match there.iter().find(|device| device.name == name) {
        Some(device) if device.ifindex == index => Presence::Present,
        Some(_) => Presence::Replaced,
        None => Presence::Missing,
    }
}

fn of_setting(setting: &Setting) -> ObjectStatus {
    let object = format!("{}: {}", setting.device, setting.set);
    let found = Netns::find(setting.netns).and_then(|netns| {
        let all = interfaces(&netns)?;
        Ok(all
            .into_iter()
            .find(|device| device.ifindex == setting.ifindex && device.name == setting.device)
            .map(|device| current(&device, &setting.set, &netns)))
    });
    let (state, detail) = match found {
        Ok(Some(Ok(now))) if now == setting.set => (Presence::Present, format!("before: {}", setting.before)),
        Ok(Some(Ok(now))) => (Presence::Changed, format!("now: {now}")),
        Ok(Some(Err(error))) => (Presence::Changed, error.to_string()),
        Ok(None) | Err(_) => (Presence::Missing, "the device is gone".into()),
    };
    ObjectStatus { object, state, detail: Some(detail) }
}

fn of_ovs(setting: &OvsSetting) -> ObjectStatus {
    let (state, detail) = match ovs::value_now(setting) {
        Ok(Some(now)) if now == setting.set => {
            (Presence::Present, format!("before: {}", setting.before.as_deref().unwrap_or("not set")))
        }
        Ok(now) => (Presence::Changed, format!("now: {}", now.as_deref().unwrap_or("not set"))),
        Err(error) => (Presence::Missing, error),
    };
    ObjectStatus { object: format!("Open vSwitch: {} {}", setting.key, setting.set), state, detail: Some(detail) }
}
