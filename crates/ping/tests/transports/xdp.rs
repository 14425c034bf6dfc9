//! Tests AF_XDP against itself, and against packet sockets.

use crate::space::{Pair, HERE, HERE_MAC, THERE, THERE_MAC};
use crate::wires::{hear_all, receive_of, send_frame};
use crate::{answers_on, equal, exchange, hear, hear_stamped, message, peers, ping, silent, GROUP, LIMIT, SV};
use latpath_linux::monotonic;
use latpath_ping::ethernet::{Ethernet, Framing, Options, Peer};
use latpath_ping::transport::{Got, Sent, Transport, Wait};
use latpath_ping::wire::Kind;
use latpath_ping::xdp::{Place, Xdp, XdpError, XdpOptions};
use latpath_ping::{Route, Stamp};
use latpath_protocols::protocol::FrameLink;
use latpath_protocols::sv::{AsduSpec, FrameSpec};
use latpath_testkit::Failed;
use latpath_wire::Stamps;
use std::net::UdpSocket;
use std::time::Instant;

const PLACES: [Place; 2] = [Place::Driver, Place::Generic];
const OWN: Peer = Peer { mac: THERE_MAC, framing: Framing::Own, tag: None };

/// Why AF_XDP cannot be tested here; `None` if it can.
pub fn lack() -> Option<String> {
    let pair = Pair::new(1).ok()?;
    let opened = pair.there.inside(|| Xdp::open(XdpOptions::new(THERE)));
    opened.err().map(|e| format!("needs AF_XDP on a veth device: {e}"))
}

fn open(pair: &Pair, place: Place) -> Result<(Xdp, Xdp), Failed> {
    let options = |device| XdpOptions { place: Some(place), ..XdpOptions::new(device) };
    let frames = Options { session: Some(7), ..Options::new(HERE) };
    let here = pair.here.inside(|| Xdp::open(XdpOptions { frames, ..options(HERE) }))?;
    Ok((here, pair.there.inside(|| Xdp::open(options(THERE)))?))
}

fn software(stamps: bool) -> Stamps {
    if stamps {
        Stamps::SOFTWARE
    } else {
        Default::default()
    }
}

pub fn there_and_back() -> Result<(), Failed> {
    for place in PLACES {
        let pair = Pair::new(1)?;
        let (mut here, mut there) = open(&pair, place)?;
        equal("where its program stands", here.mode().place, place)?;
        for peer in peers() {
            let room = here.room(peer.framing);
            exchange(&mut here, &mut there, peer, room)?;
            equal("more than there is room for", here.send(peer, &vec![0; room + 1]).is_err(), true)?;
            // A message of another session is ignored.
            there.send(Peer { mac: HERE_MAC, ..peer }, &message(Kind::Answer, 8, 1, 96))?;
            silent(&mut here)?;
        }
    }
    Ok(())
}

pub fn with_packet_sockets() -> Result<(), Failed> {
    for place in PLACES {
        let pair = Pair::new(1)?;
        let mut packets = pair.here.inside(|| Ethernet::open(Options { session: Some(7), ..Options::new(HERE) }))?;
        let mut xdp = pair.there.inside(|| Xdp::open(XdpOptions { place: Some(place), ..XdpOptions::new(THERE) }))?;
        for peer in peers() {
            let room = packets.room(peer.framing);
            exchange(&mut packets, &mut xdp, peer, room)?;
        }
    }
    Ok(())
}

pub fn groups() -> Result<(), Failed> {
    let pair = Pair::new(1)?;
    let mut here = pair.here.inside(|| Ethernet::open(Options::new(HERE)))?;
    let to = Peer { mac: GROUP, framing: SV, tag: None };
    for (groups, hears) in [(vec![], false), (vec![GROUP], true)] {
        let mut there = pair.there.inside(|| {
            Xdp::open(XdpOptions { frames: Options { groups, ..Options::new(THERE) }, ..XdpOptions::new(THERE) })
        })?;
        here.send(to, &message(Kind::Probe, 7, 1, 96))?;
        if hears {
            let (from, _) = hear(&mut there)?;
            equal("who asked", from.mac, HERE_MAC)?;
        } else {
            silent(&mut there)?;
        }
    }
    Ok(())
}

pub fn foreign() -> Result<(), Failed> {
    for place in PLACES {
        let pair = Pair::new(1)?;
        let (mut here, mut there) = open(&pair, place)?;
        // The kernel's own traffic still passes; it begins with ARP.
        let server = pair.there.inside(|| UdpSocket::bind("10.77.0.2:7000"))?;
        let client = pair.here.inside(|| UdpSocket::bind("10.77.0.1:7001"))?;
        for socket in [&server, &client] {
            socket.set_read_timeout(Some(LIMIT))?;
        }
        client.send_to(b"there", "10.77.0.2:7000")?;
        let mut data = [0; 100];
        let (len, from) = server.recv_from(&mut data)?;
        equal("a datagram", &data[..len], b"there")?;
        server.send_to(b"back", from)?;
        equal("its answer", client.recv(&mut data)?, 4)?;
        // Frames of a merging unit, of another experiment, of another session, and to another address: none is
        // redirected.
        let wire = pair.there.inside(|| hear_all(THERE));
        let asdu = AsduSpec { svid: b"latpath-pong-00000007".to_vec(), data: vec![0; 64], ..AsduSpec::default() };
        let link = FrameLink { dst: Some(THERE_MAC), ..FrameLink::default() };
        let unit = FrameSpec { link, asdus: vec![asdu], ..FrameSpec::default() }.build()?;
        let mut experiment = [0; 60];
        experiment[..6].copy_from_slice(&THERE_MAC);
        experiment[12..14].copy_from_slice(&[0x88, 0xb5]);
        for frame in [&unit[..], &experiment] {
            pair.here.inside(|| send_frame(HERE, frame));
            equal("a frame that passed", receive_of(&wire, &frame[12..14])?, frame.to_vec())?;
        }
        let other = Peer { mac: [1, 0x0c, 0xcd, 4, 0, 9], ..OWN };
        here.send(other, &message(Kind::Probe, 7, 1, 96))?;
        equal("a frame to a group", receive_of(&wire, &[0x88, 0xb5])?[..6].to_vec(), other.mac.to_vec())?;
        silent(&mut there)?;
    }
    Ok(())
}

pub fn taken() -> Result<(), Failed> {
    let pair = Pair::new(1)?;
    let open = |place| pair.there.inside(|| Xdp::open(XdpOptions { place, ..XdpOptions::new(THERE) }));
    for place in PLACES {
        let first = open(Some(place))?;
        for second in PLACES {
            match open(Some(second)) {
                Err(XdpError::Taken { id: Some(_), .. }) => {}
                other => return Err(format!("{:?}", other.map(|x| x.mode())).into()),
            }
        }
        let said = open(None).err().map(|e| e.to_string()).unwrap_or_default();
        equal(&said, said.starts_with("lpthere: another XDP program (id "), true)?;
        drop(first);
    }
    open(None).map(drop).map_err(Into::into)
}

pub fn queues() -> Result<(), Failed> {
    let pair = Pair::new(3)?;
    let (here, there) = open(&pair, Place::Driver)?;
    equal("queues", (here.mode().queues, there.mode().queues), (3, 3))?;
    equal("in words", there.mode().to_string(), "AF_XDP (driver XDP, copies, 3 queues)".into())?;
    drop(here);
    // Frames arrive regardless of the queue that sends them.
    let mut there = there;
    for queue in 0..3 {
        let mut here = pair.here.inside(|| Ethernet::open(Options::new(HERE)))?;
        crate::wires::on_cpu(queue);
        for sequence in 0..20 {
            let probe = message(Kind::Probe, 7, sequence, 96);
            here.send(OWN, &probe)?;
            equal("the probe", hear(&mut there)?.1, probe)?;
        }
    }
    crate::wires::on_any_cpu();
    Ok(())
}

pub fn dropped() -> Result<(), Failed> {
    const SENT: u64 = 5000;
    let pair = Pair::new(1)?;
    let options = XdpOptions { place: Some(Place::Generic), ..XdpOptions::new(THERE) };
    let mut there = pair.there.inside(|| Xdp::open(options))?;
    let mut here = pair.here.inside(|| Ethernet::open(Options::new(HERE)))?;
    for sequence in 0..SENT {
        here.send(OWN, &message(Kind::Probe, 7, sequence, 96))?;
    }
    let mut received = 0;
    while let Got::Message(_) = there.receive(&mut [0; 4000], Wait::Until(monotonic() + 30_000_000))? {
        received += 1;
    }
    equal("it was too much", received < SENT, true)?;
    equal("received and dropped", received + there.dropped(), SENT)?;
    // The frames that were read are reused.
    here.send(OWN, &message(Kind::Probe, 7, SENT, 96))?;
    hear(&mut there).map(drop)
}

pub fn too_long() -> Result<(), Failed> {
    let pair = Pair::new(1)?;
    let there = pair.there.inside(|| Xdp::open(XdpOptions::new(THERE)))?;
    let room = there.room(OWN.framing);
    answers_on(&pair, there, room)
}

pub fn down() -> Result<(), Failed> {
    for place in PLACES {
        let pair = Pair::new(1)?;
        let (mut here, mut there) = open(&pair, place)?;
        let probe = message(Kind::Probe, 7, 1, 96);
        pair.there.ip(&format!("link set {THERE} down"))?;
        let sent = pair.there.inside(|| there.send(Peer { mac: HERE_MAC, ..OWN }, &probe));
        equal("sending by it", sent?, Sent::Refused)?;
        equal("why", there.last_refusal().and_then(|e| e.raw_os_error()), Some(libc::ENETDOWN))?;
        pair.there.inside(|| silent(&mut there))?;
        pair.there.ip(&format!("link set {THERE} up"))?;
        let until = Instant::now() + LIMIT;
        while silent(&mut there).is_ok() {
            equal("it comes back in time", Instant::now() < until, true)?;
            here.send(OWN, &probe)?;
        }
        let (received, _) = exchange_once(&mut there, &mut here)?;
        equal("the first that comes is sent after it came back", received, 2)?;
        pair.there.ip(&format!("link del {THERE}"))?;
        let gone = pair.there.inside(|| silent(&mut there).and_then(|()| silent(&mut there)));
        let gone = gone.err().and_then(|e| e.message().map(String::from)).unwrap_or_default();
        equal(&gone, gone.contains("lpthere: the device vanished"), true)?;
        // A thread that never sleeps must notice the removal too.
        let (mut reads, until) = (0u64, Instant::now() + LIMIT);
        let noticed = pair.here.inside(|| loop {
            reads += 1;
            match here.receive(&mut [0; 4000], Wait::No) {
                Err(e) => break Some(e.to_string()),
                Ok(_) if reads.is_multiple_of(1000) && Instant::now() > until => break None,
                Ok(_) => {}
            }
        });
        equal("the other end of the pair", noticed, Some("lphere: the device vanished".into()))?;
    }
    Ok(())
}

/// Sends message 2, and returns the sequence number of the first message that arrives, with its sender.
fn exchange_once(from: &mut Xdp, to: &mut Xdp) -> Result<(u64, Peer), Failed> {
    from.send(Peer { mac: HERE_MAC, ..OWN }, &message(Kind::Answer, 7, 2, 96))?;
    let (peer, message) = hear(to)?;
    Ok((message[15].into(), peer))
}

pub fn cannot() -> Result<(), Failed> {
    let pair = Pair::new(1)?;
    let said =
        |options: XdpOptions| pair.there.inside(|| Xdp::open(options)).err().map(|e| e.to_string()).unwrap_or_default();
    let options = || XdpOptions::new(THERE);
    let zero_copy = said(XdpOptions { zero_copy: Some(true), ..options() });
    equal(
        &format!("without copies: {zero_copy}"),
        zero_copy.starts_with("lpthere: no AF_XDP socket on its queue 0 (without copies): "),
        true,
    )?;
    let both = said(XdpOptions { zero_copy: Some(true), place: Some(Place::Generic), ..options() });
    equal(&both, both.contains("must be in the driver"), true)?;
    let none = said(XdpOptions::new("lpnone"));
    equal(&none, none.starts_with("lpnone: no such device"), true)?;
    // The failed attempts leave nothing behind.
    equal("afterwards", said(options()), String::new())?;
    pair.there.ip(&format!("link set {THERE} down"))?;
    let down = said(options());
    equal(&format!("on a device that is down: {down}"), down.starts_with("lpthere: the device is down"), true)
}

pub fn many() -> Result<(), Failed> {
    for place in PLACES {
        let pair = Pair::new(1)?;
        let (mut here, mut there) = open(&pair, place)?;
        for sequence in 0..5000u64 {
            let probe = message(Kind::Probe, 7, sequence, 96);
            equal("sending", here.send(OWN, &probe)?, Sent::Taken)?;
            equal("the probe", hear(&mut there)?.1, probe)?;
        }
        equal("dropped", there.dropped(), 0)?;
    }
    Ok(())
}

pub fn stamps() -> Result<(), Failed> {
    for (place, stamps) in PLACES.into_iter().flat_map(|place| [(place, false), (place, true)]) {
        let pair = Pair::new(1)?;
        let mut here = pair.here.inside(|| Ethernet::open(Options::new(HERE)))?;
        let frames = Options { stamps: software(stamps), ..Options::new(THERE) };
        let options = XdpOptions { place: Some(place), frames, ..XdpOptions::new(THERE) };
        let mut there = pair.there.inside(|| Xdp::open(options))?;
        equal("what it says that it takes", there.takes() == Stamp::T4Kernel.bit(), stamps)?;
        // More frames than the ring has entries.
        for sequence in 0..5000 {
            let before = monotonic();
            here.send(OWN, &message(Kind::Probe, 7, sequence, 96))?;
            let (arrived, _) = hear_stamped(&mut there)?;
            let after = monotonic();
            match arrived.kernel {
                Some(time) => equal("its stamp's place", stamps && [before, time, after].is_sorted(), true)?,
                None => equal("a stamp", stamps, false)?,
            }
        }
    }
    Ok(())
}

pub fn session() -> Result<(), Failed> {
    for (place, stamps) in PLACES.into_iter().flat_map(|place| [(place, false), (place, true)]) {
        let pair = Pair::new(1)?;
        for peer in [OWN, Peer { framing: SV, ..OWN }] {
            let options = |device, session| {
                let frames = Options { session, stamps: software(stamps), ..Options::new(device) };
                XdpOptions { place: Some(place), frames, ..XdpOptions::new(device) }
            };
            let here = pair.here.inside(|| Xdp::open(options(HERE, Some(7))))?;
            let there = pair.there.inside(|| Xdp::open(options(THERE, None)))?;
            let kept = ping(&pair, here, there, peer)?;
            let route = Route::detailed(kept.line);
            equal("segments", route.segments().len(), if stamps { 5 } else { 3 })?;
            for t in &kept.answered {
                equal("the sum of its parts", Some(t.segments(&route).flatten().sum()), t.round_trip())?;
            }
        }
    }
    Ok(())
}
