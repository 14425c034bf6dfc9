//! Tests of a device's claims. Some devices claim every stamp and make none; the clocks of some do not run.

use crate::caps::{Caps, RxHardware};
use crate::HardwareStamps;
use latpath_clock::phc::{Method, Phc, Reader, Reading};
use latpath_linux::monotonic;
use latpath_linux::net::{set_option, PacketSocket};
use latpath_model::Ns;
use latpath_wire::{ask_for, receive, rx_stamps, sent_stamps, wait_for, Control, Stamps, TxKind};
use nix::poll::PollFlags;
use nix::sys::socket::MsgFlags;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Time between two readings of the NIC's clock.
const PAUSE: Duration = Duration::from_millis(25);
/// Maximum wait for the stamps of a test frame.
const PATIENCE: Duration = Duration::from_millis(100);
/// Maximum number of test frames: a NIC that is busy stamping another frame may skip one.
const TRIES: u8 = 3;
/// Maximum number of timestamps read from the error queue at once.
const MAX_STAMPS: usize = 16;
/// Ethertype of test frames: IEEE Std 802, Local Experimental Ethertype 1.
const EXPERIMENTAL: [u8; 2] = [0x88, 0xB5];
/// The nearest bridge's group address (IEEE 802.1Q, 8.6.3), which no bridge forwards.
const NEAREST_BRIDGE: [u8; 6] = [0x01, 0x80, 0xC2, 0, 0, 0x0E];

/// Result of the test of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// The claim holds.
    Works,
    /// The claim is false, for this reason.
    Failed(String),
    /// The claim could not be tested, for this reason.
    Untried(String),
    /// The device does not make the claim.
    NotOffered,
}

impl Check {
    /// Whether the device makes the claim, and no test has failed.
    pub fn hopeful(&self) -> bool {
        matches!(self, Self::Works | Self::Untried(_))
    }
}

/// A reading of a NIC's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockRead {
    /// The clock's name, from its driver.
    pub name: Option<String>,
    /// How the clock was read.
    pub method: Method,
    /// The reading, with the system's clocks.
    pub reading: Reading,
}

/// Extent of the tests of a device; the default only reads the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trial {
    /// Whether to switch the NIC's stamps on briefly, and send up to three frames that no bridge forwards (ethertype
    /// 0x88B5).
    pub send: bool,
    /// Maximum time to listen for arriving frames, to see whether they have the NIC's stamps.
    pub listen: Duration,
}

/// Results of a device's tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Whether the NIC's clock runs.
    pub clock: Check,
    /// Reading of the clock, if it could be read.
    pub clock_read: Option<ClockRead>,
    /// Stamps of sent packets before the queueing discipline.
    pub tx_sched: Check,
    /// The driver's stamps of sent packets.
    pub tx_driver: Check,
    /// The NIC's stamps of sent packets.
    pub tx_nic: Check,
    /// The NIC's stamps of all received packets.
    pub rx_nic: Check,
    /// Further notes for the user.
    pub notes: Vec<String>,
}

impl Verified {
    /// The stamps worth requesting: those that work, and claimed ones that could not be tested.
    pub fn worth_asking(&self) -> Stamps {
        Stamps {
            tx_sched: self.tx_sched.hopeful(),
            tx_driver: self.tx_driver.hopeful(),
            tx_nic: self.tx_nic.hopeful() && !matches!(self.clock, Check::Failed(_)),
            rx_kernel: true,
            rx_nic: self.rx_nic.hopeful() && !matches!(self.clock, Check::Failed(_)),
        }
    }
}

/// Tests a device. Takes at most half a second plus the listening time.
pub fn verify(caps: &Caps, trial: Trial) -> Verified {
    let (clock, clock_read, mut phc) = try_clock(caps);
    let untried = || Check::Untried("not asked for".into());
    let claimed = |claim: bool, check: Check| if claim { check } else { Check::NotOffered };
    let mut verified = Verified {
        clock,
        clock_read,
        tx_sched: untried(),
        tx_driver: claimed(caps.tx_driver(), untried()),
        tx_nic: claimed(caps.tx_nic(), untried()),
        rx_nic: claimed(caps.rx_nic() == RxHardware::AllFrames, untried()),
        notes: Vec::new(),
    };
    if !trial.send && trial.listen.is_zero() {
        return verified;
    }
    if let Some(why) = no_use(caps) {
        verified.set_all(&Check::Untried(why));
        return verified;
    }
    // Kept until the end of the function; the drop restores the setting.
    let switched_on = HardwareStamps::switch_on(caps);
    let on = match &switched_on {
        Ok(Some(on)) => (on.tx(), on.rx()),
        Ok(None) => (false, false),
        Err(e) => {
            let why = Check::Untried(e.to_string());
            verified.tx_nic = claimed(caps.tx_nic(), why.clone());
            verified.rx_nic = claimed(caps.rx_nic() == RxHardware::AllFrames, why);
            (false, false)
        }
    };
    let refused = || Check::Failed("the driver claims it, but did not switch it on".into());
    if switched_on.is_ok() && !on.0 {
        verified.tx_nic = claimed(caps.tx_nic(), refused());
    }
    if switched_on.is_ok() && !on.1 {
        verified.rx_nic = claimed(caps.rx_nic() == RxHardware::AllFrames, refused());
    }
    if trial.send {
        let phc = phc.as_mut().map(|phc| phc as &mut dyn Reader);
        match send(caps, on.0, phc) {
            Ok(came) => verified.take_in(caps, came, on.0),
            Err(e) => verified.set_tx(&Check::Untried(said(e, "sending a test frame"))),
        }
    }
    if !trial.listen.is_zero() && on.1 {
        verified.rx_nic =
            listen(caps, trial.listen).unwrap_or_else(|e| Check::Untried(said(e, "listening for frames")));
    }
    verified
}

fn said(e: io::Error, doing: &str) -> String {
    match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!("{doing} needs root or CAP_NET_RAW; try with sudo"),
        _ => format!("{doing}: {e}"),
    }
}

/// Why no frames can be sent or received on the device; `None` if they can.
fn no_use(caps: &Caps) -> Option<String> {
    match (caps.up, caps.running) {
        (false, _) => Some(format!("the device is down; bring it up with: ip link set {} up", caps.device)),
        (_, false) => Some("the device has no link; check the cable, or that the other end is up".into()),
        _ => None,
    }
}

impl Verified {
    fn set_tx(&mut self, check: &Check) {
        for each in [&mut self.tx_sched, &mut self.tx_driver, &mut self.tx_nic] {
            if matches!(each, Check::Untried(_)) {
                *each = check.clone();
            }
        }
    }

    fn set_all(&mut self, check: &Check) {
        self.set_tx(check);
        if matches!(self.rx_nic, Check::Untried(_)) {
            self.rx_nic = check.clone();
        }
    }

    fn take_in(&mut self, caps: &Caps, came: TestStamps, nic_is_on: bool) {
        let missing = || Check::Failed(format!("none came within {} ms", PATIENCE.as_millis()));
        let came_or = |time: Option<Ns>, otherwise: Check| time.map_or(otherwise, |_| Check::Works);
        self.tx_sched = came_or(came.sched, missing());
        self.tx_driver = came_or(came.driver, if caps.tx_driver() { missing() } else { Check::NotOffered });
        if nic_is_on {
            self.tx_nic = match (came.nic, came.clock) {
                (None, _) => {
                    Check::Failed(format!("none came within {} ms, of {} frames", PATIENCE.as_millis(), came.sent))
                }
                (Some(time), Some((from, _))) if time < from => Check::Failed(format!(
                    "it is {} ns before the frame was sent, by the NIC's own clock",
                    from.saturating_sub(time)
                )),
                (Some(time), Some((_, until))) if time > until => Check::Failed(format!(
                    "it is {} ns after the frame was gone, by the NIC's own clock",
                    time.saturating_sub(until)
                )),
                _ => Check::Works,
            };
        }
    }
}

fn try_clock(caps: &Caps) -> (Check, Option<ClockRead>, Option<Phc>) {
    let Some(index) = caps.phc else { return (Check::NotOffered, None, None) };
    let mut phc = match Phc::open(index) {
        Ok(phc) => phc,
        Err(e) => return (Check::Untried(e.to_string()), None, None),
    };
    match runs(&mut phc, || std::thread::sleep(PAUSE)) {
        Ok((check, reading)) => {
            let read = ClockRead { name: phc.name(), method: phc.method(), reading };
            (check, Some(read), Some(phc))
        }
        Err(e) => (Check::Failed(format!("reading it failed: {e}")), None, None),
    }
}

/// Checks whether a clock runs at roughly the right rate; also returns the second reading.
fn runs(phc: &mut dyn Reader, pause: impl FnOnce()) -> io::Result<(Check, Reading)> {
    let first = phc.read()?;
    pause();
    let second = phc.read()?;
    let ran = second.phc_ns.saturating_sub(first.phc_ns);
    let passed = second.monotonic_ns.saturating_sub(first.monotonic_ns);
    let unsure = first.uncertainty_ns.saturating_add(second.uncertainty_ns);
    let check = match ran {
        0 => Check::Failed("it stands still".into()),
        // No clock drifts so far that it runs at half or twice the rate. A step by a servo between the readings also
        // fails.
        _ if ran < (passed / 2).saturating_sub(unsure) || ran > passed.saturating_mul(2).saturating_add(unsure) => {
            Check::Failed(format!("it ran {ran} ns while {passed} ns passed"))
        }
        _ => Check::Works,
    };
    Ok((check, second))
}

/// Results of the test frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TestStamps {
    sent: u8,
    sched: Option<Ns>,
    driver: Option<Ns>,
    nic: Option<Ns>,
    /// The NIC's clock before the stamped frame was sent and after its stamp arrived; the interval includes the
    /// readings' uncertainty.
    clock: Option<(Ns, Ns)>,
}

impl TestStamps {
    fn all(&self, caps: &Caps, nic: bool) -> bool {
        self.sched.is_some() && (self.driver.is_some() || !caps.tx_driver()) && (self.nic.is_some() || !nic)
    }
}

fn frame(source: [u8; 6], number: u8) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&NEAREST_BRIDGE);
    frame[6..12].copy_from_slice(&source);
    frame[12..14].copy_from_slice(&EXPERIMENTAL);
    let text = b"latpath: is this frame stamped?";
    frame[14..14 + text.len()].copy_from_slice(text);
    frame[59] = number;
    frame
}

/// Opens a packet socket on the device; it does not receive frames yet.
fn open(caps: &Caps) -> io::Result<PacketSocket> {
    let socket = PacketSocket::open(libc::SOCK_NONBLOCK)?;
    socket.bind(caps.ifindex, 0)?;
    Ok(socket)
}

fn send(caps: &Caps, nic: bool, mut phc: Option<&mut dyn Reader>) -> io::Result<TestStamps> {
    let socket = open(caps)?;
    let Some(mac) = socket.mac()? else {
        return Err(io::Error::other("the device has no MAC address, so it takes no Ethernet frames"));
    };
    ask_for(socket.as_fd(), Stamps { tx_nic: nic, rx_kernel: false, rx_nic: false, ..Stamps::ALL })
        .map_err(io::Error::other)?;
    let mut came = TestStamps::default();
    for number in 0..TRIES {
        let before = phc.as_mut().and_then(|phc| phc.read().ok());
        let frame = frame(mac, number);
        nix::sys::socket::send(socket.as_fd().as_raw_fd(), &frame, MsgFlags::empty())?;
        came.sent += 1;
        let limit = monotonic() + PATIENCE.as_nanos() as Ns;
        loop {
            let is_over = monotonic() >= limit;
            // Read again even after the timeout, because this thread may have been preempted.
            stamps_of(&socket, &frame, &mut came)?;
            if came.all(caps, nic) || is_over {
                break;
            }
            wait_for(socket.as_fd(), PollFlags::empty(), limit);
        }
        if came.nic.is_some() {
            let after = phc.as_mut().and_then(|phc| phc.read().ok());
            came.clock = before.zip(after).map(|(before, after)| {
                let (from, until) = (before.phc_ns.saturating_sub(before.uncertainty_ns), after.phc_ns);
                (from, until.saturating_add(after.uncertainty_ns))
            });
        }
        if came.all(caps, nic) {
            break;
        }
    }
    Ok(came)
}

/// Reads this frame's stamps from the error queue.
fn stamps_of(socket: &PacketSocket, frame: &[u8], came: &mut TestStamps) -> io::Result<()> {
    let (mut data, mut control) = ([0; 256], Control::new());
    let read = sent_stamps(socket.as_fd(), &mut data, &mut control, MAX_STAMPS, &mut |stamp, packet| {
        // Ignore late stamps of earlier frames.
        if packet.ends_with(frame) {
            match stamp.kind {
                TxKind::Sched => came.sched = Some(stamp.time),
                TxKind::Driver => came.driver = Some(stamp.time),
                TxKind::Nic => came.nic = Some(stamp.time),
            }
        }
    })?;
    // Woken without a message: the socket itself has an error, which would wake this thread again and again.
    match nix::sys::socket::getsockopt(socket, nix::sys::socket::sockopt::SocketError) {
        Ok(error) if read == 0 && error != 0 => Err(io::Error::from_raw_os_error(error)),
        _ => Ok(()),
    }
}

fn listen(caps: &Caps, at_most: Duration) -> io::Result<Check> {
    let socket = open(caps)?;
    ask_for(socket.as_fd(), Stamps { rx_nic: true, ..Stamps::default() }).map_err(io::Error::other)?;
    set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32)?;
    socket.bind(caps.ifindex, libc::ETH_P_ALL as u16)?;
    let limit = monotonic().saturating_add(Ns::try_from(at_most.as_nanos()).unwrap_or(Ns::MAX));
    let (mut data, mut control) = ([0; 64], Control::new());
    let mut frames = 0u32;
    loop {
        match receive(socket.as_fd(), &mut data, &mut control, libc::MSG_DONTWAIT) {
            Ok(got) if rx_stamps(got.control).nic.is_some() => return Ok(Check::Works),
            Ok(_) => frames += 1,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        if monotonic() >= limit {
            break;
        }
        wait_for(socket.as_fd(), PollFlags::POLLIN, limit);
    }
    Ok(match frames {
        0 => Check::Untried(format!("no frame came within {} ms", at_most.as_millis())),
        n => Check::Failed(format!("none of the {n} frames that came bore one")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(Vec<(Ns, Ns)>);

    impl Reader for Fake {
        fn read(&mut self) -> io::Result<Reading> {
            let (phc_ns, monotonic_ns) = self.0.remove(0);
            Ok(Reading { phc_ns, monotonic_ns, uncertainty_ns: 500 })
        }
    }

    #[test]
    fn a_clock_that_stands_still_or_runs_wild_is_found_out() {
        const MS: Ns = 1_000_000;
        let check = |phc: [Ns; 2]| {
            let mut clock = Fake(vec![(phc[0], 100 * MS), (phc[1], 125 * MS)]);
            runs(&mut clock, || {}).unwrap().0
        };
        assert_eq!(check([7 * MS, 32 * MS]), Check::Works);
        assert_eq!(check([7 * MS, 7 * MS]), Check::Failed("it stands still".into()));
        assert_eq!(check([7 * MS, 8 * MS]), Check::Failed("it ran 1000000 ns while 25000000 ns passed".into()));
        assert_eq!(check([7 * MS, 6 * MS]), Check::Failed("it ran -1000000 ns while 25000000 ns passed".into()));
        assert_eq!(check([7 * MS, 107 * MS]), Check::Failed("it ran 100000000 ns while 25000000 ns passed".into()));
    }

    fn liar() -> Caps {
        Caps { socket_flags: u32::MAX, tx_types: 3, rx_filters: 3, ..Caps::of("lo").unwrap() }
    }

    fn judged(came: TestStamps) -> Verified {
        let caps = liar();
        let mut verified = verify(&caps, Trial::default());
        verified.take_in(&caps, came, true);
        verified
    }

    #[test]
    fn a_nic_that_claims_all_and_stamps_nothing_is_not_asked_for_any() {
        let all = TestStamps { sent: 1, sched: Some(1), driver: Some(2), nic: Some(3), clock: None };
        let verified = judged(TestStamps { sent: 3, nic: None, ..all });
        assert_eq!(verified.tx_nic, Check::Failed("none came within 100 ms, of 3 frames".into()));
        assert!(!verified.worth_asking().tx_nic && verified.worth_asking().tx_driver);
        let silent = judged(TestStamps { sent: 3, ..TestStamps::default() });
        assert_eq!(silent.worth_asking(), Stamps { rx_kernel: true, rx_nic: true, ..Stamps::default() });
        let mut still = judged(all);
        assert!(still.worth_asking().tx_nic && still.worth_asking().rx_nic);
        still.clock = Check::Failed("it stands still".into());
        assert!(!still.worth_asking().tx_nic && !still.worth_asking().rx_nic);
    }

    #[test]
    fn a_stamp_of_another_time_than_the_nics_clock_is_not_believed() {
        let judged = |time| {
            judged(TestStamps { sent: 1, sched: Some(1), driver: Some(1), nic: Some(time), clock: Some((100, 200)) })
                .tx_nic
        };
        assert_eq!(judged(150), Check::Works);
        let before = "it is 95 ns before the frame was sent, by the NIC's own clock";
        assert_eq!(judged(5), Check::Failed(before.into()));
        let after = "it is 1 ns after the frame was gone, by the NIC's own clock";
        assert_eq!(judged(201), Check::Failed(after.into()));
    }

    #[test]
    fn nothing_is_sent_to_a_device_that_is_down_or_without_a_link() {
        let all = Trial { send: true, listen: Duration::from_secs(60) };
        for (up, running, why) in [(false, true, "the device is down"), (true, false, "the device has no link")] {
            let verified = verify(&Caps { up, running, ..liar() }, all);
            for check in [verified.tx_sched, verified.tx_driver, verified.tx_nic, verified.rx_nic] {
                assert!(matches!(&check, Check::Untried(because) if because.starts_with(why)), "{check:?}");
            }
        }
    }
}
