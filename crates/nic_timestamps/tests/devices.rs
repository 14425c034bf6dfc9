//! Tests with devices that every machine has or can create. They need root for packet sockets and namespaces, and are
//! otherwise skipped.

use latpath_nic_timestamps::{verify, Caps, Check, Trial};
use latpath_testkit::{need_root, trial, waits::until, Failed};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

type Result = std::result::Result<(), Failed>;

fn main() -> std::process::ExitCode {
    let test = |name: &str, run: fn() -> Result| trial(name, &[need_root()], run);
    let tests = vec![
        test("on_lo_a_test_frame_is_stamped_before_the_queue_and_by_the_driver", lo),
        test("a_veth_has_the_kernels_stamps_and_no_others", veth),
        test("a_nic_whose_setting_cannot_be_read_is_not_switched_on_but_its_driver_is_tried", unreadable),
        test("a_device_that_takes_no_ethernet_frames_is_not_sent_any", no_ethernet),
    ];
    latpath_testkit::main(tests)
}

const SEND: Trial = Trial { send: true, listen: Duration::ZERO };
/// Listening time that exceeds any timeout in these tests.
const LISTEN: Duration = Duration::from_secs(3600);

fn is(check: &Check, expected: &Check) -> Result {
    if check == expected {
        return Ok(());
    }
    Err(format!("{check:?}, should be {expected:?}").into())
}

fn untried(check: &Check, because: &str) -> Result {
    match check {
        Check::Untried(why) if why.contains(because) => Ok(()),
        other => Err(format!("{other:?}, should be untried, as {because}").into()),
    }
}

/// Moves the test's thread into a new namespace; the devices in it are removed with it.
fn enter() -> Result {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
    ip("link set lo up")
}

fn ip(words: &str) -> Result {
    let output = Command::new("ip").args(words.split(' ')).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// Waits until the kernel reports that the device has a link, or has none, as `running` requires.
fn with_link(device: &str, running: bool) -> std::result::Result<Caps, Failed> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let caps = Caps::of(device)?;
        match caps.running == running {
            true => return Ok(caps),
            false if Instant::now() > until => return Err(format!("{device}: not as it should be: {caps:?}").into()),
            false => {}
        }
    }
}

fn lo() -> Result {
    enter()?;
    let verified = verify(&Caps::of("lo")?, SEND);
    is(&verified.tx_sched, &Check::Works)?;
    is(&verified.tx_driver, &Check::Works)?;
    is(&verified.clock, &Check::NotOffered)
}

fn veth() -> Result {
    enter()?;
    ip("link add lpa type veth peer name lpb")?;
    untried(&verify(&Caps::of("lpa")?, SEND).tx_sched, "down; bring it up with: ip link set lpa up")?;
    ip("link set lpa up")?;
    untried(&verify(&with_link("lpa", false)?, SEND).tx_sched, "no link")?;
    ip("link set lpb up")?;
    let caps = with_link("lpa", true)?;
    let verifying = thread::spawn(move || verify(&caps, Trial { listen: LISTEN, ..SEND }));
    // A veth has no NIC receive stamps, so `verify` must not listen for the full hour of `LISTEN`.
    until("it is verified long before it has listened", || verifying.is_finished())?;
    let verified = verifying.join().map_err(|_| "a panic")?;
    is(&verified.tx_sched, &Check::Works)?;
    is(&verified.tx_driver, &Check::Works)?;
    is(&verified.tx_nic, &Check::NotOffered)?;
    is(&verified.rx_nic, &Check::NotOffered)?;
    let asked = verified.worth_asking();
    if asked.tx_nic || asked.rx_nic || !asked.rx_kernel {
        return Err(format!("{asked:?}").into());
    }
    Ok(())
}

fn unreadable() -> Result {
    enter()?;
    let claims_all = Caps { socket_flags: u32::MAX, tx_types: 3, rx_filters: 3, ..Caps::of("lo")? };
    let verified = verify(&claims_all, Trial { send: true, listen: Duration::from_secs(60) });
    untried(&verified.tx_nic, "could not be put back")?;
    untried(&verified.rx_nic, "could not be put back")?;
    is(&verified.tx_sched, &Check::Works)?;
    is(&verified.tx_driver, &Check::Works)
}

fn no_ethernet() -> Result {
    enter()?;
    ip("tuntap add mode tun lptun")?;
    ip("link set lptun up")?;
    // A tun device has no link while no program has it open, so pretend that it has one.
    let linked = Caps { running: true, ..Caps::of("lptun")? };
    untried(&verify(&linked, SEND).tx_sched, "no MAC address")
}
