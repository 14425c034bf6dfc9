//! Listens briefly on devices, also in other network namespaces, for the streams that pass them.

use super::ns;
use super::wire::{wire_times, WIRE};
use anyhow::{bail, Context, Result};
use latpath_linux::monotonic;
use latpath_model::text::printable;
use latpath_model::StreamSpec;
use latpath_net::{interfaces, namespace_names, Netns};
use latpath_protocols::ProtocolId;
use latpath_stats::units::number_of;
use latpath_traffic::{Discovery, WireCounts, WireTimes};
use latpath_wire::{Groups, Listen, PacketSocket, Received, Receiver};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Maximum number of devices with a mapped ring of 16 MiB each. With more devices, each uses its socket's buffer, whose
/// memory grows with the frames.
const RINGS: usize = 4;
/// Maximum number of devices that a description names.
const NAMED: u64 = 5;

/// Devices to listen on.
pub struct Places {
    all: Vec<Place>,
    /// Whether the user named the devices: then each of them must work.
    are_named: bool,
}

struct Place {
    netns: Netns,
    device: String,
    /// Name in messages: `eth0`, or `eth0%NAMESPACE` in another namespace.
    name: String,
}

/// Result of listening.
#[derive(Default)]
pub struct Heard {
    /// The streams, each with the index of its device in `devices`.
    pub found: Discovery,
    /// Names of the devices.
    pub devices: Vec<String>,
    /// Number of frames that the kernel dropped.
    pub dropped: u64,
    /// Use of the NICs' times; `None` if they were not requested.
    pub wire: Option<WireCounts>,
}

impl Places {
    /// The named devices: `eth0` in this namespace, `eth0%NAMESPACE` in another one.
    ///
    /// # Errors
    /// If a namespace does not exist, or does not have the device.
    pub fn named(texts: &[String]) -> Result<Self> {
        let place = |text: &String| -> Result<Place> {
            let (device, netns) = match text.split_once('%') {
                None => (text.clone(), Netns::own()?),
                Some(_) => {
                    let found = latpath_path::find_device(text)?;
                    (found.name, found.netns.map_or_else(Netns::own, Netns::find)?)
                }
            };
            Ok(Place { netns, device, name: text.clone() })
        };
        Ok(Self { all: texts.iter().map(place).collect::<Result<_>>()?, are_named: true })
    }

    /// All devices that are up in all namespaces, except loopbacks: those on which streams are followed. `other_users`:
    /// also in namespaces of other users.
    pub fn all_up(other_users: bool) -> Self {
        let names = namespace_names();
        let own = Netns::own().map_or(0, |own| own.inode());
        let (mut all, mut closed) = (Vec::new(), 0);
        for (inode, netns) in Netns::all() {
            if inode != own && !other_users && !netns.is_of_first_user_namespace() {
                continue;
            }
            let Ok(devices) = interfaces(&netns) else {
                closed += 1;
                continue;
            };
            let space = match names.get(&inode) {
                Some(name) => name.clone(),
                None => inode.to_string(),
            };
            let up = devices.into_iter().filter(|device| device.is_up() && !device.is_loopback());
            all.extend(up.map(|device| {
                let name = if inode == own { device.name.clone() } else { format!("{}%{space}", device.name) };
                Place { netns: netns.clone(), device: device.name, name }
            }));
        }
        if closed > 0 {
            let what = number_of(closed, "other network namespace");
            eprintln!("latpath: {what} cannot be entered, which needs root: devices there are left out");
        }
        all.sort_by_cached_key(|place| (place.netns.inode() != own, place.name.clone()));
        Self { all, are_named: false }
    }

    /// Describes the devices: `eth0, eth1%blue`, or their number.
    pub fn describe(&self) -> String {
        let spaces: BTreeSet<u32> = self.all.iter().map(|place| place.netns.inode()).collect();
        let names = || self.all.iter().map(|place| place.name.as_str()).collect::<Vec<_>>().join(", ");
        match self.all.len() as u64 {
            n if self.are_named || n <= NAMED => names(),
            n => format!("{} in {}", number_of(n, "device"), number_of(spaces.len() as u64, "network namespace")),
        }
    }

    /// Whether streams may come from several devices.
    pub fn are_several(&self) -> bool {
        self.all.len() > 1 || !self.are_named
    }

    /// Listens for `time`, or until `stop` is set. If a device fails, the result still has the frames until then.
    /// `nic_times`: also uses the NICs' timestamps of received frames; named devices must have these.
    pub fn listen(&self, time: Duration, nic_times: bool, stop: &AtomicBool) -> (Heard, Result<()>) {
        // A frame in a ring has only the kernel's time.
        let with_ring = self.all.len() <= RINGS && !nic_times;
        let are_named = self.are_named;
        let heard: Vec<(Discovery, u64, Option<WireCounts>, Result<()>)> = thread::scope(|scope| {
            let wants = nic_times.then_some(are_named);
            let listener = |place| move || listen_at(place, (with_ring, wants), time, stop);
            let threads: Vec<_> = self.all.iter().map(|place| scope.spawn(listener(place))).collect();
            threads.into_iter().map(|t| t.join().expect("a listener does not panic")).collect()
        });
        let (mut all, mut errors) = (Heard::default(), Vec::new());
        if nic_times {
            all.wire = Some(WireCounts::default());
        }
        for (at, (place, (found, dropped, wire, ended))) in self.all.iter().zip(heard).enumerate() {
            all.wire = all.wire.map(|counts| counts.plus(wire.unwrap_or_default()));
            all.found.add(found, at);
            all.devices.push(place.name.clone());
            all.dropped += dropped;
            errors.extend(ended.err().map(|error| (place, error)));
        }
        let ended = match errors.len() {
            0 if self.all.is_empty() => Err(anyhow::anyhow!("no device is up")),
            0 => Ok(()),
            n if self.are_named || n == self.all.len() => Err(errors.swap_remove(0).1),
            _ => {
                for (place, error) in errors {
                    eprintln!("latpath: {} is left out: {}", printable(&place.name), printable(&format!("{error:#}")));
                }
                Ok(())
            }
        };
        (all, ended)
    }
}

/// Listens on one device. Returns the streams, the number of dropped frames, the use of the NIC's times, and the error
/// if it ended early. `nic_times`: whether these are used, and whether the device must have them.
fn listen_at(
    place: &Place,
    (with_ring, nic_times): (bool, Option<bool>),
    time: Duration,
    stop: &AtomicBool,
) -> (Discovery, u64, Option<WireCounts>, Result<()>) {
    let (mut found, mut dropped, mut counts) = (Discovery::default(), 0, None);
    let mut listen = || -> Result<()> {
        let socket = PacketSocket::open(&place.device, Listen::Passing(ProtocolId::listed()))?;
        socket.join(&Groups::Everything)?;
        let mut wire = match nic_times {
            Some(true) => Some(wire_times(&place.device)?),
            Some(false) => WireTimes::begin(&place.device).ok().flatten(),
            None => None,
        };
        if wire.is_some() {
            socket.request_stamps(WIRE)?;
        }
        let mut receiver = Receiver::new(socket, with_ring)?;
        let end = monotonic().saturating_add(ns(time));
        let note = |found: &mut Discovery, r: Received<'_>, wire: &mut Option<WireTimes<StreamSpec>>| match wire {
            Some(wire) => found.note_received(&r, wire),
            None => found.note(r.arrival.unwrap_or(r.had), r.frame, r.tag),
        };
        let mut heard = Ok(());
        while heard.is_ok() && !stop.load(Ordering::Relaxed) && monotonic() < end {
            heard = receiver.receive(&mut |r| note(&mut found, r, &mut wire)).map(drop);
            if let Some(wire) = &mut wire {
                found.round(wire, false);
            }
        }
        let heard = heard.and_then(|()| receiver.drain(&mut |r| note(&mut found, r, &mut wire)));
        dropped = receiver.dropped();
        if let Some(mut wire) = wire {
            found.round(&mut wire, true);
            counts = Some(wire.counts());
            wire.notes().iter().for_each(|note| eprintln!("latpath: {note}"));
        }
        Ok(heard?)
    };
    let ended = match place.netns.inside(&mut listen) {
        Ok(ended) => ended,
        Err(error) => Err(error).with_context(|| format!("{}: its network namespace", place.name)),
    };
    (found, dropped, counts, ended)
}

/// The devices that the user named, or all that are up.
///
/// # Errors
/// If a named device does not exist, or no device is up.
pub fn places(named: &[String], other_users: bool) -> Result<Places> {
    let places = if named.is_empty() { Places::all_up(other_users) } else { Places::named(named)? };
    if places.all.is_empty() {
        bail!("no device is up");
    }
    Ok(places)
}
