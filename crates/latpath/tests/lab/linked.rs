//! Two linked NICs, each in a namespace of the hypervisor, with a timestamping socket on each.
//!
//! ```text
//!  namespace pub           namespace app
//!  10.47.0.1, left ───────── right, 10.47.0.2
//! ```

use anyhow::{anyhow, bail, ensure, Context, Result};
use latpath_lab::Namespace;
use latpath_nic_timestamps::document::{CapsDocument, CheckState, StampDocument};
use latpath_nic_timestamps::HardwareStamps;
use latpath_testkit::Failed;
use latpath_testkit::{waits::until, Bench, Finished, Started};
use latpath_wire::{ask_for, from_error_queue, receive, rx_stamps, Control, Stamps, TxKind};
use std::{
    fs,
    net::{Ipv4Addr, UdpSocket},
    os::fd::AsFd,
    path::PathBuf,
    process::{Command, Output},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Waits until a device's link is up.
pub fn has_link(space: &Namespace, device: &str) -> Result<()> {
    let shown = || space.ip(&format!("link show {device}")).unwrap_or_default();
    let has_it = || String::from_utf8_lossy(&shown()).contains("LOWER_UP");
    until(&format!("{device} has its link"), has_it).map_err(plain)
}

/// Addresses of the two NICs.
pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 47, 0, 1), Ipv4Addr::new(10, 47, 0, 2)];

/// The two NICs. Dropping it returns them to the machine's initial namespace.
pub struct Linked {
    names: [String; 2],
    bench: Bench,
}

impl Linked {
    /// Moves the NICs to their namespaces, and waits for the link.
    pub fn new(names: [impl Into<String>; 2]) -> Result<Self> {
        let linked = Self { names: names.map(Into::into), bench: latpath_testkit::bench().map_err(plain)? };
        for (at, address) in ADDRESSES.iter().enumerate() {
            let (nic, space) = (&linked.names[at], linked.space(at));
            run(Command::new("ip").args(["link", "set", nic, "netns", space.name()]))?;
            space.ip(&format!("link set {nic} up"))?;
            space.ip(&format!("addr add {address}/24 dev {nic}"))?;
        }
        for at in [0, 1] {
            has_link(linked.space(at), &linked.names[at])?;
        }
        Ok(linked)
    }

    /// Name of a NIC.
    pub fn name(&self, nic: usize) -> &str {
        &self.names[nic]
    }

    /// Namespace of a NIC.
    pub fn space(&self, nic: usize) -> &Namespace {
        match nic {
            0 => &self.bench.path.publisher,
            _ => self.bench.application(),
        }
    }

    /// Starts `latpath WORDS…` in a NIC's namespace.
    pub fn start(&self, nic: usize, words: &str) -> Result<Started> {
        self.bench.start(self.space(nic), latpath_testkit::latpath(words)).map_err(plain)
    }

    /// Starts a command in a NIC's namespace.
    pub fn start_command(&self, nic: usize, command: Command) -> Result<Started> {
        self.bench.start(self.space(nic), command).map_err(plain)
    }

    /// Runs `latpath WORDS…` in a NIC's namespace and waits for its end.
    pub fn latpath(&self, nic: usize, words: &str, limit: Duration) -> Result<Finished> {
        self.start(nic, words)?.finish(limit).map_err(plain)
    }

    /// Runs a command in a NIC's namespace; it must succeed. Returns its output.
    pub fn run(&self, nic: usize, line: &str) -> Result<String> {
        let words = ["netns", "exec", self.space(nic).name()].into_iter().chain(line.split(' '));
        run(Command::new("ip").args(words))
    }

    /// A NIC's statistic of this name, such as `tx_stamps_lost`.
    pub fn count(&self, nic: usize, name: &str) -> Result<u64> {
        let all = self.run(nic, &format!("ethtool -S {}", self.name(nic)))?;
        let mut pairs = all.lines().filter_map(|l| l.trim().split_once(": "));
        let (_, value) = pairs.find(|(n, _)| *n == name).with_context(|| format!("no {name} in {all}"))?;
        Ok(value.parse()?)
    }

    /// Output of `ethtool -T` for a NIC.
    pub fn promises(&self, nic: usize) -> Result<String> {
        self.run(nic, &format!("ethtool -T {}", self.name(nic)))
    }

    /// Device of a NIC's PTP hardware clock.
    pub fn phc(&self, nic: usize) -> Result<PathBuf> {
        let said = self.promises(nic)?;
        let mut lines = said.lines().filter_map(|l| l.strip_prefix("PTP Hardware Clock: "));
        let number = lines.next().with_context(|| format!("no clock in {said}"))?;
        ensure!(number.parse::<u32>().is_ok(), "its clock is {number}");
        Ok(format!("/dev/ptp{number}").into())
    }

    /// Runs `phc_ctl WORDS` on a NIC's clock; returns its output.
    pub fn phc_ctl(&self, nic: usize, words: &str) -> Result<String> {
        run(Command::new("phc_ctl").arg(self.phc(nic)?).arg("--").args(words.split(' ')))
    }

    /// Reads a NIC's clock with `phc_ctl`; returns the seconds as text.
    pub fn phc_reading(&self, nic: usize) -> Result<String> {
        let said = self.phc_ctl(nic, "get")?;
        let shown = said.split("clock time is ").nth(1).and_then(|rest| rest.split(' ').next());
        Ok(shown.with_context(|| format!("no time in {said}"))?.to_owned())
    }
}

/// Output of `latpath ping caps` for a NIC: whether its clock and stamps work as its driver claims.
pub struct Caps(CapsDocument);

impl Caps {
    /// Runs the command while the other NIC sends frames.
    pub fn of(linked: &Linked, nic: usize) -> Result<Self> {
        let other = linked.space(1 - nic).inside(|| UdpSocket::bind((ADDRESSES[1 - nic], 0)))??;
        let asked = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !asked.load(Ordering::Relaxed) {
                    // No socket listens on this port: ignore the errors that result.
                    let _ = other.send_to(b"latpath", (ADDRESSES[nic], 9));
                    latpath_testkit::waits::pace(Duration::from_millis(10));
                }
            });
            let words = format!("ping caps -i {} --json", linked.name(nic));
            let said = linked.latpath(nic, &words, Duration::from_secs(30)).and_then(|said| said.json().map_err(plain));
            asked.store(true, Ordering::Relaxed);
            said.map(Self)
        })
    }

    /// Expects this state of `clock` or of a stamp such as `tx_nic`.
    pub fn expect(&self, what: &str, state: CheckState) -> Result<()> {
        let check = match what {
            "clock" => &self.0.phc.as_ref().context("no clock")?.check,
            stamp => &self.stamp(stamp)?.check,
        };
        ensure!(check.state == state, "{what} is not said to be {state:?}: {check:?}");
        Ok(())
    }

    /// Expects that stamps of this kind are used, or not.
    pub fn expect_used(&self, stamp: &str, used: bool) -> Result<()> {
        let found = self.stamp(stamp)?;
        ensure!(found.used == used, "{stamp}: {found:?}");
        Ok(())
    }

    fn stamp(&self, name: &str) -> Result<&StampDocument> {
        let stamps = &self.0.stamps;
        Ok(match name {
            "tx_sched" => &stamps.tx_sched,
            "tx_driver" => &stamps.tx_driver,
            "tx_nic" => &stamps.tx_nic,
            "rx_nic" => &stamps.rx_nic,
            _ => bail!("no stamp {name}"),
        })
    }
}

/// A socket at each end, with timestamping on.
pub struct Pair {
    sockets: [UdpSocket; 2],
    _on: [HardwareStamps; 2],
}

impl Pair {
    /// Switches timestamping on; dropping the pair restores the previous setting.
    pub fn open(linked: &Linked) -> Result<Self> {
        let (left, on_left) = Self::end(linked, 0)?;
        let (right, on_right) = Self::end(linked, 1)?;
        Ok(Self { sockets: [left, right], _on: [on_left, on_right] })
    }

    fn end(linked: &Linked, nic: usize) -> Result<(UdpSocket, HardwareStamps)> {
        let (socket, switched) = linked.space(nic).inside(|| -> Result<_> {
            let socket = UdpSocket::bind((ADDRESSES[nic], PORT))?;
            socket.connect((ADDRESSES[1 - nic], PORT))?;
            Ok((socket, HardwareStamps::switch_on(&latpath_nic_timestamps::Caps::of(linked.name(nic))?)?))
        })??;
        ask_for(socket.as_fd(), Stamps { tx_nic: true, rx_nic: true, ..Stamps::default() })?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok((socket, switched.context("it offers no stamps")?))
    }

    /// Sends a packet from left to right; returns its TX and RX stamps. On the lab's own NICs a TX stamp, if any,
    /// is available when the packet arrives.
    pub fn send(&self) -> Result<(Option<i64>, Option<i64>)> {
        let [left, right] = &self.sockets;
        left.send(b"latpath")?;
        let (mut data, mut control) = ([0; 64], Control::new());
        let got = receive(right.as_fd(), &mut data, &mut control, 0).context("the packet did not arrive")?;
        Ok((self.tx_stamp(), rx_stamps(got.control).nic))
    }

    /// Returns the oldest TX stamp that is available.
    pub fn tx_stamp(&self) -> Option<i64> {
        let (mut data, mut control) = ([0; 256], Control::new());
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        let got = receive(self.sockets[0].as_fd(), &mut data, &mut control, flags).ok()?;
        from_error_queue(got.control).filter(|stamp| stamp.kind == TxKind::Nic).map(|stamp| stamp.time)
    }

    /// Returns the oldest TX stamp, waiting for it up to `limit`.
    pub fn wait_for_tx_stamp(&self, limit: Duration) -> Option<i64> {
        let until = Instant::now() + limit;
        loop {
            match self.tx_stamp() {
                None if Instant::now() < until => latpath_testkit::waits::pace(Duration::from_millis(20)),
                stamp => return stamp,
            }
        }
    }
}

const PORT: u16 = 4700;

/// Loads the driver of NICs emulated by QEMU; returns the names of the two NICs.
pub fn emulated(driver: &str) -> Result<[String; 2]> {
    run(Command::new("modprobe").arg(driver))?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/class/net")?.flatten() {
        let its = fs::read_link(entry.path().join("device/driver"));
        if its.is_ok_and(|d| d.ends_with(driver)) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found.sort();
    <[String; 2]>::try_from(found).map_err(|found| anyhow!("not two NICs of {driver}: {found:?}"))
}

/// Runs a command that must succeed; returns its output.
pub fn run(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } = command.output().with_context(|| format!("{command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}: {}", String::from_utf8_lossy(&stderr).trim());
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// Converts a failure to an error.
pub fn plain(failed: Failed) -> anyhow::Error {
    anyhow!(failed.message().unwrap_or("failed").to_owned())
}
