//! Streams that the user chooses by a pattern, or all there are: found by listening for a moment before anything is followed.

use super::Usage;
use anyhow::{bail, Context, Result};
use latpath_linux::monotonic;
use latpath_model::{Ns, StreamSpec};
use latpath_protocols::ProtocolId;
use latpath_traffic::{Discovery, Groups, Listen, PacketSocket, Received, Receiver};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::collections::BTreeSet;
use std::thread;

const LISTEN_FOR: Ns = 2_000_000_000;

/// Replaces each pattern by the streams of its name that pass a device now; with `all`, adds every stream that does. `devices`: where to
/// listen; with none, on all of this network namespace that are up.
pub fn choose(asked: &[StreamSpec], all: bool, devices: &[String]) -> Result<Vec<StreamSpec>> {
    let patterns = asked.iter().any(StreamSpec::is_pattern);
    if !patterns && !all {
        if !devices.is_empty() {
            let text = "-i says where to look for streams: give --all, or a pattern as --stream 'svid:MU*'";
            return Err(Usage(text.into()).into());
        }
        return Ok(asked.to_vec());
    }
    let devices = if devices.is_empty() { devices_up() } else { devices.to_vec() };
    let seen = listen(&devices)?;
    let place = devices.join(", ");
    let mut chosen: Vec<StreamSpec> = Vec::new();
    let add = |stream: StreamSpec, chosen: &mut Vec<StreamSpec>| {
        let is_new = !chosen.contains(&stream);
        is_new.then(|| chosen.push(stream.clone())).map(|()| stream.to_string())
    };
    for stream in asked {
        if !stream.is_pattern() {
            add(stream.clone(), &mut chosen);
            continue;
        }
        let those: BTreeSet<String> = seen.iter().filter_map(|s| add(stream.choose(s)?, &mut chosen)).collect();
        if those.is_empty() && !seen.iter().any(|s| stream.choose(s).is_some()) {
            bail!("no stream fits {stream} on {place} within 2 s; latpath streams -i IF lists what comes");
        }
        announce(&stream.to_string(), &place, &those);
    }
    if all {
        let those: BTreeSet<String> = seen.iter().filter_map(|s| add(s.by_name(), &mut chosen)).collect();
        if chosen.is_empty() {
            bail!("no stream passes {place} within 2 s: name one with --stream, as in --stream svid:MU01");
        }
        announce("--all", &place, &those);
    }
    Ok(chosen)
}

fn announce(what: &str, place: &str, streams: &BTreeSet<String>) {
    let list = streams.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    eprintln!("latpath: {what} on {place}: {list}");
}

/// Devices of this network namespace that are up, without the loopback.
fn devices_up() -> Vec<String> {
    let is_up = |f: InterfaceFlags| f.contains(InterfaceFlags::IFF_UP) && !f.contains(InterfaceFlags::IFF_LOOPBACK);
    let up = getifaddrs().into_iter().flatten().filter(|device| is_up(device.flags));
    let names: BTreeSet<String> = up.map(|device| device.interface_name).collect();
    names.into_iter().collect()
}

/// The streams that pass these devices, in either direction.
fn listen(devices: &[String]) -> Result<Vec<StreamSpec>> {
    let end = monotonic() + LISTEN_FOR;
    let one = |device: &String| -> Result<Discovery> {
        let socket = PacketSocket::open(device, Listen::Passing(ProtocolId::listed()))?;
        socket.join(&Groups::Everything)?;
        let mut receiver = Receiver::new(socket, true)?;
        let mut found = Discovery::default();
        while monotonic() < end {
            receiver.receive(&mut |r: Received<'_>| found.note(r.arrival.unwrap_or(r.had), r.frame, r.tag))?;
        }
        Ok(found)
    };
    let found: Vec<Result<Discovery>> = thread::scope(|scope| {
        let threads: Vec<_> = devices.iter().map(|device| scope.spawn(move || one(device))).collect();
        threads.into_iter().map(|t| t.join().expect("a listener does not panic")).collect()
    });
    let mut seen = Vec::new();
    for (device, found) in devices.iter().zip(found) {
        let found = found.with_context(|| format!("listening on {device}"))?;
        seen.extend(found.streams().into_iter().map(|s| s.stream.clone()));
    }
    Ok(seen)
}
