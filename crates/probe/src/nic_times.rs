//! NIC timestamps of packets: enables them, and maps them to the machine's clock.

use latpath_linux::monotonic;
use latpath_model::text::printable;
use latpath_model::{Ns, PointInfo, Sighting};
use latpath_net::{interfaces, Netns};
use latpath_nic_timestamps::{Caps, Current, HardwareStamps, NicClock, RxHardware};
use std::collections::VecDeque;
use std::time::Duration;

/// Maximum time from a packet's arrival at the NIC to its entry into the stack by which the watermark is held back, ns.
/// Sightings of packets that take longer are joined late, and counted as such.
const IN_THE_NIC: Ns = 20_000_000;
/// Maximum number of sightings that wait for clock readings; further ones are counted as unmapped.
const MAX_WAITING: usize = 1 << 20;
/// Interval between the last clock readings, after the programs have been detached.
const LAST_PAUSE: Duration = Duration::from_millis(1);

/// A sighting whose NIC timestamp has not yet been mapped to the machine's clock.
#[derive(Clone, Copy)]
struct Waiting {
    /// Its `t` is the time at which the kernel received the NIC's timestamp.
    sighting: Sighting,
    nic_time: Ns,
    clock: usize,
}

/// A NIC whose timestamps are used.
struct Nic {
    netns: u32,
    ifindex: u32,
    name: String,
    clock: usize,
}

/// The NICs of this machine; their timestamps are enabled until this is dropped.
#[derive(Default)]
pub(crate) struct NicTimes {
    nics: Vec<Nic>,
    clocks: Vec<NicClock>,
    waiting: VecDeque<Waiting>,
    /// Number of sightings discarded because [`MAX_WAITING`] sightings were already waiting.
    unmapped: u64,
    notes: Vec<String>,
    _on: Vec<HardwareStamps>,
}

impl NicTimes {
    /// Enables the timestamps of all NICs that are up and have a clock, in all network namespaces. `other_users`: also
    /// in those of other user namespaces.
    pub fn begin(other_users: bool) -> Self {
        let mut all = Self::default();
        let own = Netns::own().map_or(0, |own| own.inode());
        for (inode, netns) in Netns::all() {
            if inode != own && !other_users && !netns.is_of_first_user_namespace() {
                continue;
            }
            let devices = interfaces(&netns).unwrap_or_default();
            for device in devices.iter().filter(|device| device.is_up() && !device.is_loopback()) {
                let prepared = netns.inside(|| all.prepare(inode, &device.name));
                if let Err(why) = prepared.unwrap_or_else(|error| Err(error.to_string())) {
                    all.notes.push(format!("--stamps nic: {why}"));
                }
            }
        }
        if all.nics.is_empty() {
            all.notes.push(
                "--stamps nic: no NIC that is up has timestamps and a clock (latpath ping caps -i IF says what one has)"
                    .into(),
            );
        }
        all
    }

    /// Enables the timestamps of a device in this thread's network namespace, and opens its clock; does nothing if the
    /// device has no timestamps.
    fn prepare(&mut self, netns: u32, name: &str) -> Result<(), String> {
        let Ok(caps) = Caps::of(name) else { return Ok(()) };
        let Some(index) = caps.phc else { return Ok(()) };
        if !caps.tx_nic() && caps.rx_nic() == RxHardware::Nothing {
            return Ok(());
        }
        let shown = printable(name);
        let clock = match self.clocks.iter().position(|clock| clock.index == index) {
            Some(known) => known,
            None => {
                self.clocks.extend(NicClock::open(&caps).map_err(|why| format!("{shown}: {why}"))?);
                self.clocks.len() - 1
            }
        };
        let Some(on) = HardwareStamps::switch_on(&caps).map_err(|error| error.to_string())? else { return Ok(()) };
        if let (Current::Set(before), now) = (&caps.current, on.config()) {
            if *before != now {
                self.notes.push(format!("--stamps nic: {shown}: timestamps set from {before} to {now}, until the end"));
            }
        }
        if !on.rx() {
            self.notes.push(format!("--stamps nic: {shown}: its NIC stamps no received frames but those of PTP"));
        }
        self.nics.push(Nic { netns, ifindex: caps.ifindex, name: shown, clock });
        self._on.push(on);
        Ok(())
    }

    /// Whether a point of NIC timestamps is at one of these NICs. A forwarded packet keeps its timestamp, so it may
    /// also be seen at other devices.
    pub fn has(&self, info: &PointInfo) -> bool {
        self.clock_of(info).is_some()
    }

    fn clock_of(&self, info: &PointInfo) -> Option<usize> {
        let is_it = |nic: &&Nic| (nic.netns, nic.ifindex) == (info.netns, info.ifindex);
        self.nics.iter().find(is_it).map(|nic| nic.clock)
    }

    /// Sets the clock of a point at one of these NICs.
    pub fn describe(&self, info: &mut PointInfo) {
        if let Some(clock) = self.clock_of(info) {
            info.clock = format!("/dev/ptp{}", self.clocks[clock].index);
        }
    }

    /// Adds a sighting at a point of one of these NICs, with the NIC's timestamp.
    pub fn push(&mut self, sighting: Sighting, nic_time: Ns, info: &PointInfo) {
        let Some(clock) = self.clock_of(info) else { return };
        if self.waiting.len() == MAX_WAITING {
            self.unmapped += 1;
            return;
        }
        self.waiting.push_back(Waiting { sighting, nic_time, clock });
    }

    /// Reads the clocks that are due, and passes on the sightings whose timestamps can be mapped, with the error bounds
    /// of the mapped times. Returns the watermark: later sightings are not older. `is_last`: no further sightings will
    /// be added.
    pub fn round(&mut self, watermark: Ns, is_last: bool, mut each: impl FnMut(Sighting, Ns)) -> Ns {
        let now = monotonic();
        if is_last && !self.waiting.is_empty() {
            for pause in [Duration::ZERO, LAST_PAUSE, LAST_PAUSE] {
                std::thread::sleep(pause);
                self.clocks.iter_mut().for_each(|clock| clock.read(monotonic()));
            }
        }
        self.clocks.iter_mut().filter(|clock| now >= clock.due).for_each(|clock| clock.read(now));
        let clocks = &mut self.clocks;
        // The queue is in the order of the kernel's times.
        while let Some(first) = self.waiting.front().copied() {
            let clock = &mut clocks[first.clock];
            if !is_last && !clock.has_failed(now) && !clock.is_known_at(first.sighting.t) {
                break;
            }
            self.waiting.pop_front();
            if let Some((t, bound)) = clock.place(first.nic_time, first.sighting.t) {
                each(Sighting { t, ..first.sighting }, bound);
            }
        }
        if is_last {
            return watermark;
        }
        let settled = clocks.iter().filter(|clock| !clock.has_failed(now));
        let settled = settled.map(|clock| clock.settled());
        settled.min().map_or(watermark, |settled| watermark.min(settled.saturating_sub(IN_THE_NIC)))
    }

    /// Notes for the user. `of_driver`: number of packets whose timestamps only the driver can read.
    pub fn notes(&self, of_driver: u64) -> Vec<String> {
        let mut notes = self.notes.clone();
        for (at, clock) in self.clocks.iter().enumerate() {
            let nics: Vec<&str> = self.nics.iter().filter(|nic| nic.clock == at).map(|nic| nic.name.as_str()).collect();
            notes.extend(clock.notes(&nics.join(", "), monotonic()));
        }
        if of_driver > 0 {
            notes.push(format!(
                "{of_driver} received packets have times that only their driver can read (igc and tsnep keep them so)"
            ));
        }
        if self.unmapped > 0 {
            notes.push(format!("{} times of NICs are left out, because too many waited to be mapped", self.unmapped));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_clock::phc::{Reader, Reading};
    use latpath_model::Point;
    use std::io;
    use std::sync::{Arc, Mutex};

    const AHEAD: Ns = 37_000_000_000;
    const INDEX: u32 = 3;

    /// A clock that is ahead of `CLOCK_MONOTONIC` by this time, ns; if it is `None`, the clock cannot be read.
    struct Simulated(Arc<Mutex<Option<Ns>>>);

    impl Reader for Simulated {
        fn read(&mut self) -> io::Result<Reading> {
            let ahead = self.0.lock().unwrap().ok_or(io::ErrorKind::NotFound)?;
            let now = monotonic();
            Ok(Reading { phc_ns: now + ahead, monotonic_ns: now, uncertainty_ns: 100 })
        }
    }

    fn one_nic() -> (NicTimes, PointInfo, Arc<Mutex<Option<Ns>>>) {
        let ahead = Arc::new(Mutex::new(Some(AHEAD)));
        let clock = NicClock::new(INDEX, Box::new(Simulated(ahead.clone())));
        let nic = Nic { netns: 7, ifindex: 2, name: "eth0".into(), clock: 0 };
        let times = NicTimes { nics: vec![nic], clocks: vec![clock], ..NicTimes::default() };
        let point: Point = "host/nic-hw-rx@eth0".parse().unwrap();
        (times, PointInfo { netns: 7, ifindex: 2, ..point.into() }, ahead)
    }

    /// Reads the clock now, whether or not a reading is due.
    fn round(times: &mut NicTimes, is_last: bool) -> (Vec<(Ns, Ns)>, Ns) {
        std::thread::sleep(Duration::from_millis(1));
        times.clocks[0].due = 0;
        let mut mapped = Vec::new();
        let watermark = times.round(monotonic(), is_last, |sighting, bound| mapped.push((sighting.t, bound)));
        (mapped, watermark)
    }

    fn seen(t: Ns) -> Sighting {
        Sighting { t, ..Sighting::default() }
    }

    #[test]
    fn times_wait_for_two_later_readings_and_the_watermark_waits_too() {
        let (mut times, info, _) = one_nic();
        (0..3).for_each(|_| drop(round(&mut times, false)));
        let now = monotonic();
        times.push(seen(now), AHEAD + now - 5_000, &info);
        assert_eq!(round(&mut times, false).0, []);
        let (mapped, watermark) = round(&mut times, false);
        let [(t, bound)] = mapped[..] else { panic!("{mapped:?}") };
        assert!((t - (now - 5_000)).abs() <= bound && bound < 1_000, "{t} {now} {bound}");
        assert!(watermark < now, "a packet may still be in the NIC");
        assert_eq!(times.notes(0), Vec::<String>::new());
    }

    #[test]
    fn the_last_times_are_mapped_at_the_end() {
        let (mut times, info, _) = one_nic();
        let _ = round(&mut times, false);
        let now = monotonic();
        times.push(seen(now), AHEAD + now, &info);
        assert_eq!(round(&mut times, true).0.len(), 1);
    }

    #[test]
    fn a_nic_that_lies_is_noticed() {
        let (mut times, info, _) = one_nic();
        (0..3).for_each(|_| drop(round(&mut times, false)));
        let now = monotonic();
        // A time of another clock, a time after the kernel received the packet, and a plausible time.
        for time in [12_345, AHEAD + now + 400_000, AHEAD + now - 1_000] {
            times.push(seen(now), time, &info);
        }
        (0..2).for_each(|_| drop(round(&mut times, false)));
        let clock = &times.clocks[0];
        assert_eq!((clock.implausible, clock.mapped), (2, 1));
        let notes = times.notes(0);
        assert!(notes[0].starts_with("eth0: the NIC's clock /dev/ptp3: 2 of 3 times are left out"), "{notes:?}");
    }

    #[test]
    fn a_clock_that_is_set_or_vanishes_leaves_times_out_and_blocks_nothing() {
        let (mut times, info, ahead) = one_nic();
        (0..3).for_each(|_| drop(round(&mut times, false)));
        let now = monotonic();
        times.push(seen(now), AHEAD + now, &info);
        *ahead.lock().unwrap() = Some(AHEAD + 50_000_000);
        (0..3).for_each(|_| drop(round(&mut times, false)));
        assert_eq!((times.clocks[0].disturbed, times.clocks[0].disturbances), (1, 1));
        *ahead.lock().unwrap() = None;
        let now = monotonic();
        times.push(seen(now), AHEAD + now, &info);
        let _ = round(&mut times, false);
        assert_eq!(times.waiting.len(), 1, "one failure is no end");
        times.clocks[0].failing = times.clocks[0].failing.take().map(|(since, why)| (since - 2_000_000_000, why));
        let (mapped, watermark) = round(&mut times, false);
        assert!(mapped.is_empty() && times.waiting.is_empty() && watermark > now);
        assert!(times.notes(5).iter().any(|note| note.contains("can no longer be read")), "{:?}", times.notes(5));
        assert!(times.notes(5).last().unwrap().starts_with("5 received packets"));
    }

    #[test]
    fn only_the_nics_own_points_have_its_times() {
        let (times, info, _) = one_nic();
        assert!(times.has(&info));
        assert!(!times.has(&PointInfo { ifindex: 3, ..info.clone() }), "a veth that a stamped packet passes");
        let mut described = info;
        times.describe(&mut described);
        assert_eq!(described.clock, "/dev/ptp3");
    }
}
