//! Packets of one stream that differ: in their sender, in their VLAN or address along the route, or in the layout of
//! their bytes in memory.

use crate::*;
use latpath_model::Sender;
use latpath_protocols::protocol::FrameLink;
use latpath_protocols::ProtocolId;
use latpath_testkit::{bench, equal, trial, Lack};
use latpath_wire::Receiver;

pub fn trials(needs: &[Lack]) -> Vec<latpath_testkit::Trial> {
    let mut needs_pages = needs.to_vec();
    needs_pages.push(no_pages());
    vec![
        trial("jumbo_frames_are_seen_at_every_point", &needs_pages, jumbo),
        trial("jumbo_frames_come_whole_through_a_mapped_ring", needs, jumbo_ring),
        trial("two_senders_of_one_name_are_told_apart_and_reported", needs, senders),
        trial("a_tag_that_is_taken_off_on_the_way_is_reported", needs, tag_taken_off),
        trial("an_address_that_is_changed_on_the_way_is_reported", needs, address_changed),
    ]
}

/// Why programs cannot read beyond a packet's linear part; `None` if they can. They cannot locate its pages on some
/// kernels before 6.11.
fn no_pages() -> Lack {
    let release = latpath_linux::proc::kernel_release();
    let numbers: Vec<u32> = release.split(['.', '-']).map_while(|n| n.parse().ok()).collect();
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let can = numbers >= vec![6, 11] || symbols.lines().any(|line| line.ends_with(" vmemmap_base"));
    (!can).then(|| "needs Linux 6.11, or CONFIG_KALLSYMS_ALL on x86".into())
}

/// Lets jumbo frames pass the whole path.
fn jumbo_mtu(bench: &Bench) -> Result<(), Failed> {
    for (space, devices) in [
        (&bench.path.publisher, &["lp-pub"][..]),
        (&bench.path.hypervisor, &["nic0", "veth0", "br0"][..]),
        (bench.application(), &["lp-app"][..]),
    ] {
        devices.iter().try_for_each(|device| space.ip(&format!("link set {device} mtu 9000")).map(drop))?;
    }
    Ok(())
}

/// A packet socket's frame of more than a page has only its Ethernet header in the linear part.
fn jumbo() -> Result<(), Failed> {
    let bench = bench()?;
    jumbo_mtu(&bench)?;
    let (one, last) = (own("jumbo"), own("last"));
    let mut frames = Vec::new();
    let mut want = Vec::new();
    for n in 0..40_u16 {
        let mut spec = frame(&one, n);
        spec.asdus[0].data = vec![0; [3000, 4090, 8000, 8900][usize::from(n % 4)]];
        frames.push(bytes(&if n % 3 == 0 { tagged(spec, 7) } else { spec }));
        want.push((0, u32::from(n)));
        let asdu = |i: u16| AsduSpec {
            svid: if i == 7 { last.clone().into() } else { "other".into() },
            smp_cnt: 8 * n + i,
            data: vec![0; 1000],
            ..frame(&one, 0).asdus[0].clone()
        };
        frames.push(bytes(&FrameSpec { asdus: (0..8).map(asdu).collect(), ..FrameSpec::default() }));
        want.push((1, u32::from(8 * n + 7)));
    }
    let seen = record(&bench, vec![StreamSpec::svid(&one), StreamSpec::svid(&last)], &frames)?;
    expect_everywhere(&seen, &want)?;
    equal("malformed and unreadable", (seen.counters.malformed, seen.counters.unreadable), (0, 0))
}

/// `streams`, stream patterns and `subscribe --ring` read jumbo frames through a ring.
fn jumbo_ring() -> Result<(), Failed> {
    let bench = bench()?;
    jumbo_mtu(&bench)?;
    let stream = own("ring");
    let frames: Vec<_> = [1000, 3000, 8000, 8900]
        .map(|data| {
            let mut spec = frame(&stream, data);
            spec.asdus[0].data = vec![0; data.into()];
            bytes(&spec)
        })
        .to_vec();
    let came = bench.application().inside(|| -> Result<Vec<Vec<u8>>, Failed> {
        let socket = PacketSocket::open("lp-app", Listen::Delivered(ProtocolId::Sv))?;
        let mut receiver = Receiver::new(socket, true)?;
        send(&bench, &frames)?;
        let mut came = Vec::new();
        until("the frames come", || {
            let received = receiver.receive(&mut |received| {
                let frame = received.frame.to_vec();
                came.extend(frames.contains(&frame).then_some(frame));
            });
            received.is_ok() && came.len() >= frames.len()
        })?;
        Ok(came)
    })??;
    equal("frames", came == frames, true)
}

/// Sends frames, and waits until the probe has a note that contains `words`.
fn note_of(bench: &Bench, stream: StreamSpec, frames: &[Vec<u8>], words: &str) -> Result<(Probe, String), Failed> {
    let mut probe = Probe::attach(ProbeOptions::new("host", vec![stream]))?;
    let (mut seen, mut note) = (Vec::new(), None);
    until(words, || {
        let sent = send(bench, frames);
        latpath_testkit::waits::pace(Duration::from_millis(20));
        probe.drain(&mut seen);
        note = probe.notes().into_iter().find(|note| note.contains(words));
        sent.is_ok() && note.is_some()
    })?;
    Ok((probe, note.unwrap_or_default()))
}

fn from(stream: &str, src: [u8; 6], n: u16) -> Vec<u8> {
    bytes(&FrameSpec { link: FrameLink { src, ..FrameLink::default() }, ..frame(stream, n) })
}

fn senders() -> Result<(), Failed> {
    let bench = bench()?;
    let stream = own("senders");
    let macs = [[2, 0xaa, 0, 0, 0, 1], [2, 0xbb, 0, 0, 0, 1]];
    let frames: Vec<_> = (0..100).map(|n| from(&stream, macs[usize::from(n % 2)], n / 2)).collect();
    let (mut probe, note) =
        note_of(&bench, StreamSpec::svid(&stream), &frames, &format!("2 senders of svid:{stream} meet"))?;
    let named = ["02:aa:00:00:00:01", "02:bb:00:00:00:01"].iter().all(|mac| note.contains(mac));
    equal(&note, named && note.contains("tx@lp-pub"), true)?;
    let mut found: Vec<_> = probe.senders().into_iter().map(|at| at.sender).collect();
    found.sort_unstable();
    found.dedup();
    equal("senders", found, macs.map(Sender::Mac).to_vec())?;
    drop(probe);
    // A single sender causes no note.
    let mut probe = Probe::attach(ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]))?;
    let mut seen = Vec::new();
    until("its sender is known", || {
        let sent = send(&bench, &[from(&stream, macs[0], 7)]);
        probe.drain(&mut seen);
        sent.is_ok() && !probe.senders().is_empty()
    })?;
    equal("notes of senders", probe.notes().iter().filter(|note| note.contains("senders of")).count(), 0)
}

/// The same packets with and without their VLAN tag, as at an access port.
fn tag_taken_off() -> Result<(), Failed> {
    let bench = bench()?;
    let name = own("access");
    let stream: StreamSpec = format!("svid:{name},vlan=7").parse()?;
    let frames: Vec<_> = (0..20).flat_map(|n| [bytes(&tagged(frame(&name, n), 7)), bytes(&frame(&name, n))]).collect();
    let (probe, note) = note_of(&bench, stream.clone(), &frames, "without a VLAN tag")?;
    let said = note.starts_with(&format!("{stream}: ")) && note.contains(&format!("name the stream svid:{name} to"));
    equal(&note, said && note.contains("lp-pub"), true)?;
    drop(probe);
    // Frames of another publisher with this name, in a VLAN of their own and with other counter values, do not count as
    // a change.
    let mut probe = Probe::attach(ProbeOptions::new("host", vec![stream]))?;
    let others: Vec<_> =
        (0..20).flat_map(|n| [bytes(&tagged(frame(&name, n), 7)), bytes(&tagged(frame(&name, 2000 + n), 8))]).collect();
    let mut seen = Vec::new();
    until("both are seen", || {
        let sent = send(&bench, &others);
        latpath_testkit::waits::pace(Duration::from_millis(20));
        probe.drain(&mut seen);
        sent.is_ok()
            && probe.remarks().iter().any(|r| r.what == latpath_probe::RemarkKind::OtherVlan(8) && r.count > 60)
    })?;
    equal("notes", probe.notes().iter().filter(|note| note.contains(&name)).count(), 0)
}

fn address_changed() -> Result<(), Failed> {
    let bench = bench()?;
    let stream: StreamSpec = "udp:10.0.0.1:4000>10.0.0.2:5000,seq=0:4".parse()?;
    // Packets before and after a router's address translation.
    let frames: Vec<_> =
        (0..20_u32).flat_map(|n| [5000, 6000].map(|port| recognise::udp(&n.to_be_bytes(), port, false))).collect();
    let (_probe, note) = note_of(&bench, stream, &frames, "to another destination (10.0.0.2)")?;
    equal(&note, note.contains("as two streams"), true)
}
