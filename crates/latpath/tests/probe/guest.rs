//! The kernel programs in a guest with another kernel than this machine's: they load there, and recognise the same
//! packets.

use crate::*;
use latpath_agent::{Address, Machine, StartRequest, Timeouts};
use latpath_lab::{Application, GuestPlan, Lab, GUEST_DEVICE};
use latpath_testkit::{boot, trial, Lack};
use std::time::Instant;

/// Time limit, for a guest emulated on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
const NEVER: &dyn Fn() -> bool = &|| false;

pub fn trials(needs: &[Lack]) -> Vec<latpath_testkit::Trial> {
    vec![trial("a_guests_kernel_takes_the_programs_and_recognises_the_same", needs, recognises)]
}

/// Frames of each shape that takes its own path through the programs, and the expected sightings.
fn shapes() -> (Vec<Vec<u8>>, Vec<(u16, u32)>) {
    let (long, longest_short) = ("x".repeat(60), "y".repeat(32));
    let mut two = frame("first", 20);
    two.asdus.push(AsduSpec { svid: longest_short.clone().into(), smp_cnt: 21, ..two.asdus[0].clone() });
    let mut paged = frame("MU01", 30);
    paged.asdus[0].data = vec![1; 1200];
    let specs = [
        frame("MU01", 1),
        tagged(frame("MU01", 2), 7),
        frame(&longest_short, 3),
        tagged(frame(&longest_short, 4), 7),
        frame(&long, 5),
        tagged(frame("filtered", 6), 8),
        tagged(frame("filtered", 7), 9),
        frame("nobody", 8),
        two,
        paged,
    ];
    let asked = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (3, 7), (1, 21), (0, 30)];
    (specs.iter().map(bytes).collect(), asked.to_vec())
}

fn recognises() -> Result<(), Failed> {
    let lab = Lab::new()?;
    let path = lab.lay(Application::Guest)?;
    let program = env!("CARGO_BIN_EXE_latpath").into();
    let plan = GuestPlan { programs: vec![(program, "/bin/latpath".into())], ..Default::default() };
    let mut guest = boot(&lab, &path, &plan)?;
    // Unless it is promiscuous, a virtual NIC delivers only multicast groups that have been joined.
    guest.expect(&format!("ip link set {GUEST_DEVICE} promisc on"), NEVER)?;
    guest.start("agent", "latpath agent --device /dev/virtio-ports/latpath.agent", false, NEVER)?;
    let timeouts = Timeouts { connect: PATIENCE, start: PATIENCE, ..Default::default() };
    let mut machine = Machine::connect("guest0", &Address::Unix(guest.agent_socket().into()), timeouts)?;
    let long = format!("svid:{}", "x".repeat(60));
    let asked = ["svid:MU01", &format!("svid:{}", "y".repeat(32)), &long, "svid:filtered,vlan=9"];
    machine.start(&StartRequest { streams: streams(&asked), options: Default::default() })?;

    let (frames, want) = shapes();
    let sent = path.publisher.inside(|| -> Result<(), String> {
        let mut socket = PacketSocket::open(PUBLISHER, Listen::No).map_err(|e| e.to_string())?;
        for frame in frames {
            socket.send(&[IoSlice::new(&frame)]).map_err(|e| e.to_string())?;
            // One at a time: the rate does not matter here, and an emulated NIC loses bursts.
            latpath_testkit::waits::pace(Duration::from_millis(5));
        }
        Ok(())
    })?;
    sent?;
    let nic_rx = format!("guest0/nic-rx@{GUEST_DEVICE}");
    let (mut sightings, mut got) = (Vec::new(), Vec::new());
    let until = Instant::now() + PATIENCE;
    while got.len() < want.len() && Instant::now() < until {
        latpath_testkit::waits::pace(Duration::from_millis(50));
        machine.drain(&mut sightings);
        let points = machine.points();
        let there = sightings.iter().filter(|s| points[usize::from(s.point)].point.to_string() == nic_rx);
        got = there.map(|s| (s.stream, s.key)).collect();
    }
    let counters = machine.counters();
    assert_eq!(got, want, "Linux {}: {counters:?}", guest.release());
    assert_eq!((counters.malformed, counters.unreadable, counters.dropped), (0, 0, 0));
    machine.stop()?;
    // Live mode uses different programs.
    let live = guest.run("latpath live --stream svid:MU01 --duration 1s --json", PATIENCE, NEVER)?;
    assert_eq!(live.status, 0, "{}", live.text);
    Ok(())
}
