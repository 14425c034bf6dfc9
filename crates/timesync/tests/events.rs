//! The detector finds events in synthetic clock data within two seconds, and none in a day without events.

use latpath_model::Ns;
use latpath_testkit::Noise;
use latpath_timesync::{
    ClockIdentity, ClockReport, EventDetector, Link, LinkState, PortState, PtpInstance, PtpPort, SyncEvent,
    SyncEventKind, SYSTEM_CLOCK,
};

const S: Ns = 1_000_000_000;
/// Interval between two reports, ns; the same as in a recording.
const EVERY: Ns = S / 2;

/// Shape of the noise of measured offsets.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Gauss,
    Laplace,
}

/// A synthetic machine: ptp4l on a PHC, and a system clock that phc2sys steers.
struct World {
    noise: Noise,
    shape: Shape,
    /// Mean absolute value of the noise, ns.
    size: f64,
    sync_every: Ns,
    now: Ns,
    synced: Ns,
    wander: f64,
    /// Start of a fault, and the function that gives what it adds to the offset, ns, at a time after the start.
    fault: Option<(Ns, fn(Ns) -> Ns)>,
    instance: PtpInstance,
    utc_step: Ns,
}

impl World {
    fn new(seed: u64, shape: Shape, size: f64, sync_every: Ns) -> Self {
        let port = PtpPort {
            number: 1,
            device: "eth0".into(),
            state: PortState::Slave,
            in_hardware: Some(true),
            phc: Some(0),
            sync_interval_ns: sync_every,
            has_carrier: Some(true),
            rx_sync: Some(1),
            ..PtpPort::default()
        };
        let instance = PtpInstance {
            identity: ClockIdentity([1; 8]),
            grandmaster: ClockIdentity([9; 8]),
            state: LinkState::Following,
            ports: vec![port],
            ..PtpInstance::default()
        };
        Self {
            noise: Noise(seed),
            shape,
            size,
            sync_every,
            now: 100 * S,
            synced: 0,
            wander: 0.0,
            fault: None,
            instance,
            utc_step: 0,
        }
    }

    fn uniform(&mut self) -> f64 {
        self.noise.unit()
    }

    fn sample(&mut self) -> f64 {
        match self.shape {
            // A sum of twelve uniform numbers is nearly Gaussian; its mean absolute value is 0.8 of its standard
            // deviation.
            Shape::Gauss => ((0..12).map(|_| self.uniform()).sum::<f64>() - 6.0) * self.size / 0.8,
            Shape::Laplace => {
                let u = self.uniform() - 0.5;
                -self.size * u.signum() * (1.0 - 2.0 * u.abs()).max(1e-12).ln()
            }
        }
    }

    fn report(&mut self) -> ClockReport {
        self.now += EVERY;
        if self.now - self.synced >= self.sync_every {
            self.synced = self.now;
            // The crystal drifts slowly with temperature, and the servo lags behind.
            self.wander = self.wander * 0.999 + (self.uniform() - 0.5) * self.size * 0.1;
            let fault = self.fault.map_or(0, |(from, fault)| fault(self.now - from));
            let offset = (self.sample() + self.wander) as Ns + fault;
            self.instance.ingress_ns = self.now;
            self.instance.offset_ns = Some(offset);
            self.instance.bound_ns = Some(offset.abs() + 300);
            let port = &mut self.instance.ports[0];
            port.rx_sync = port.rx_sync.map(|n| n + 1);
        }
        let system = Link {
            clock: SYSTEM_CLOCK.into(),
            follows: "ptp0 (eth0)".into(),
            by: "phc2sys (process 7)".into(),
            state: LinkState::Following,
            offset_ns: Some(self.sample() as Ns),
            ..Link::default()
        };
        let tie_error_ns = 50 + (self.uniform() * 2_000.0) as Ns;
        let off = ((self.uniform() - 0.5) * tie_error_ns as f64) as Ns;
        ClockReport {
            monotonic_ns: self.now,
            utc_ns: self.now + 1_000_000 * S + off + self.utc_step,
            tai_ns: self.now + 1_000_037 * S + off + self.utc_step,
            tie_error_ns,
            links: vec![system],
            system_bound_ns: Some(500),
            ptp: vec![self.instance.clone()],
            ..ClockReport::default()
        }
    }
}

fn hours(world: &mut World, detector: &mut EventDetector, hours: Ns) -> Vec<SyncEvent> {
    (0..hours * 3600 * S / EVERY).flat_map(|_| detector.observe(&world.report())).collect()
}

#[test]
fn a_day_of_noise_and_wander_has_no_event() {
    for (seed, (shape, size, every)) in [
        (Shape::Gauss, 8.0, S),
        (Shape::Gauss, 60.0, S / 8),
        (Shape::Laplace, 30.0, S),
        (Shape::Laplace, 2_000.0, S / 2),
    ]
    .into_iter()
    .enumerate()
    {
        let mut detector = EventDetector::default();
        let events = hours(&mut World::new(seed as u64 + 1, shape, size, every), &mut detector, 24);
        assert_eq!(events, [], "{shape:?} of {size} ns");
    }
}

/// Runs ten quiet minutes, then `inject`, then `restore` and a quiet minute. Returns the first event after `inject`,
/// the time until it was noticed, and the events that ended.
fn after(inject: impl Fn(&mut World), restore: impl Fn(&mut World)) -> (SyncEvent, Ns, Vec<SyncEvent>) {
    let mut world = World::new(3, Shape::Gauss, 20.0, S);
    let mut detector = EventDetector::default();
    let before: Vec<_> = (0..1200).flat_map(|_| detector.observe(&world.report())).collect();
    assert_eq!(before, []);
    let at = world.now;
    inject(&mut world);
    let during: Vec<_> = (0..20).flat_map(|_| detector.observe(&world.report())).collect();
    let first = during.first().expect("the event is found").clone();
    restore(&mut world);
    let later: Vec<_> = (0..120).flat_map(|_| detector.observe(&world.report())).collect();
    assert_eq!(detector.open().count(), 0, "{:?}", detector.open().collect::<Vec<_>>());
    let ended = during.into_iter().chain(later).filter(|event| event.until_ns.is_some()).collect();
    (first.clone(), first.noticed_ns - at, ended)
}

fn expect(kind: SyncEventKind, (first, took, ended): (SyncEvent, Ns, Vec<SyncEvent>)) {
    assert_eq!(first.kind, kind, "{first:?}");
    assert!(took <= 2 * S, "noticed after {took} ns: {first:?}");
    let end = ended.iter().find(|event| event.number == first.number).unwrap_or_else(|| panic!("{first:?} never ends"));
    assert!(end.until_ns.is_some_and(|until| until >= end.from_ns) && end.from_ns <= first.noticed_ns, "{end:?}");
}

#[test]
fn events_are_found_soon_after_the_servo_has_settled() {
    let mut world = World::new(4, Shape::Gauss, 20.0, S / 2);
    let mut detector = EventDetector::default();
    world.fault = Some((world.now, |_| 400_000));
    let acquiring: Vec<_> = (0..40).flat_map(|_| detector.observe(&world.report())).collect();
    world.fault = None;
    let settled: Vec<_> = (0..30).flat_map(|_| detector.observe(&world.report())).collect();
    assert_eq!((acquiring, settled), (vec![], vec![]));
    world.fault = Some((world.now, |_| 9_000));
    let found: Vec<_> = (0..4).flat_map(|_| detector.observe(&world.report())).collect();
    assert_eq!(found.first().map(|event| event.kind), Some(SyncEventKind::Step), "{found:?}");
}

fn calm(world: &mut World) {
    world.fault = None;
}

#[test]
fn a_step_is_found() {
    let decays = |dt: Ns| 50_000 >> (dt / S).min(20);
    expect(SyncEventKind::Step, after(|world| world.fault = Some((world.now, decays)), calm));
    // ptp4l corrected the offset by stepping the clock, so a single measurement shows it.
    let once = |dt: Ns| if dt <= S { -30_000 } else { 0 };
    expect(SyncEventKind::Step, after(|world| world.fault = Some((world.now, once)), calm));
}

#[test]
fn a_step_of_the_system_clock_is_found() {
    expect(SyncEventKind::Step, after(|world| world.utc_step = 40_000, |_| {}));
}

#[test]
fn a_swinging_servo_is_found() {
    let swings = |dt: Ns| if (dt / S) % 2 == 0 { 420 + dt / S * 20 } else { -420 - dt / S * 20 };
    expect(SyncEventKind::ServoSwing, after(|world| world.fault = Some((world.now, swings)), calm));
    let lost = |world: &mut World| {
        world.instance.state = LinkState::Acquiring;
        world.instance.ports[0].state = PortState::Uncalibrated;
    };
    expect(SyncEventKind::ServoSwing, after(lost, follow));
}

fn follow(world: &mut World) {
    world.instance.state = LinkState::Following;
    world.instance.is_silent = false;
    world.instance.ports[0].state = PortState::Slave;
    world.instance.grandmaster = ClockIdentity([9; 8]);
}

#[test]
fn another_grandmaster_is_found() {
    expect(SyncEventKind::GrandmasterChange, after(|world| world.instance.grandmaster = ClockIdentity([8; 8]), |_| {}));
}

#[test]
fn starvation_is_told_from_a_lost_link_and_a_lost_master() {
    let faulty = |world: &mut World| {
        world.instance.state = LinkState::Faulty;
        world.instance.ports[0].state = PortState::Faulty;
    };
    expect(SyncEventKind::Starvation, after(faulty, follow));
    let unplugged = |world: &mut World| {
        faulty(world);
        world.instance.ports[0].has_carrier = Some(false);
    };
    expect(SyncEventKind::SyncLost, after(unplugged, follow));
    // With fault_reset_interval ASAP, the port is listening again by the next reading, and Sync messages arrive.
    let reset = |world: &mut World| {
        world.instance.state = LinkState::Acquiring;
        world.instance.ports[0].state = PortState::Listening;
        world.instance.grandmaster = world.instance.identity;
    };
    expect(SyncEventKind::Starvation, after(reset, follow));
    let silent = |world: &mut World| {
        reset(world);
        world.instance.ports[0].rx_sync = None;
    };
    expect(SyncEventKind::SyncLost, after(silent, follow));
    expect(SyncEventKind::Starvation, after(|world| world.instance.is_silent = true, follow));
}

#[test]
fn the_required_bound_is_watched() {
    let mut world = World::new(5, Shape::Gauss, 20.0, S);
    let mut detector = EventDetector::default();
    detector.require(1_000);
    assert_eq!(detector.observe(&world.report()), []);
    let mut report = world.report();
    report.system_bound_ns = Some(1_001);
    let begun = detector.observe(&report);
    assert_eq!(begun.len(), 1);
    assert!(begun[0].text.contains("1001 ns"), "{begun:?}");
    assert_eq!(detector.observe(&report), [], "reported once");
    let ended = detector.observe(&world.report());
    assert_eq!((ended.len(), ended[0].number), (1, begun[0].number));
}
