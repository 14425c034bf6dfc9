//! The points that the kernel programs registered, with names.

use crate::layout::{PointEntry, MAX_POINTS};
use latpath_bpf::{namespaces, Mapped};
use latpath_counters::{interfaces, Interface, Netns};
use latpath_model::text::{of_field, printable};
use latpath_model::{Link, Point, PointId, PointInfo, PointKind};
use std::collections::BTreeMap;

/// The table of points as user space numbers it.
#[derive(Default)]
pub(crate) struct Points {
    known: Vec<PointInfo>,
    ids: [Option<PointId>; MAX_POINTS],
    /// A device without a link kind, as NICs are, sends packets of a stream.
    pub nic_sends: bool,
}

fn link_of(kind: PointKind, link: &str) -> Link {
    match (kind, link) {
        (PointKind::AppRead, _) => Link::Socket,
        (_, "bridge") => Link::Bridge,
        (_, "openvswitch") => Link::OvsInternal,
        (_, "tun" | "macvtap") => Link::Tap,
        (_, "veth") => Link::Veth,
        _ => Link::Nic,
    }
}

/// What enters the host by a tap, or leaves a macvtap, was written by a VM.
fn as_vms_see(kind: PointKind, link: &str) -> PointKind {
    match (kind, link) {
        (PointKind::NicRx, "tun") | (PointKind::Tx, "macvtap") => PointKind::VmWrite,
        _ => kind,
    }
}

/// The devices of a namespace; none where it is gone or may not be entered.
fn devices_of(netns: u32) -> Vec<Interface> {
    Netns::find(netns).and_then(|netns| interfaces(&netns)).unwrap_or_default()
}

impl Points {
    /// Takes over what the programs have registered since the last call.
    pub fn refresh(&mut self, machine: &str, table: &Mapped<PointEntry>) -> &[PointInfo] {
        let mut spaces = None;
        let mut devices = BTreeMap::new();
        for i in 0..MAX_POINTS {
            if self.ids[i].is_some() {
                continue;
            }
            let entry = table.get(i);
            let Some(kind) = PointKind::from_number(entry.key.kind).filter(|_| entry.valid != 0) else { continue };
            let link = of_field(&entry.link);
            self.nic_sends |= kind == PointKind::Tx && link.is_empty();
            let kind = as_vms_see(kind, &link);
            let device = match kind {
                PointKind::AppRead => of_field(&entry.key.comm),
                _ => of_field(&entry.device),
            };
            // Whoever may make a thread or a device may give it any name.
            let device = if device.is_empty() { "-".into() } else { printable(&device) };
            let mut point = Point { machine: machine.into(), kind, device };
            if self.known.iter().any(|k| k.point == point) {
                // The same name in another namespace: say which.
                let spaces = spaces.get_or_insert_with(namespaces);
                let space = spaces.get(&entry.key.netns).filter(|n| !n.is_empty());
                point.device += &match space {
                    Some(space) => format!("%{space}"),
                    None => format!("%{}", entry.key.netns),
                };
            }
            let peer = match link.as_ref() {
                "veth" => {
                    let devices = devices.entry(entry.key.netns).or_insert_with(|| devices_of(entry.key.netns));
                    devices.iter().find(|d| d.ifindex == entry.key.ifindex).and_then(|d| d.lower).unwrap_or(0)
                }
                _ => 0,
            };
            self.ids[i] = Some(self.known.len() as PointId);
            self.known.push(PointInfo {
                point,
                link: link_of(kind, &link),
                netns: entry.key.netns,
                ifindex: entry.key.ifindex,
                peer,
                clock: "CLOCK_MONOTONIC".into(),
            });
        }
        &self.known
    }

    /// The id of the kernel's point `i`, if user space knows it.
    pub fn id(&self, i: usize) -> Option<PointId> {
        self.ids.get(i).copied().flatten()
    }
}
