//! Shared by emitter and reflector: their stamps, their clocks, and how their threads wait.

use crate::cmd::Usage;
use anyhow::{Context, Result};
use clap::{Args as ClapArgs, ValueEnum};
use latpath_clock::phc::{ClockFault, Phc, PhcWatch, Reader};
use latpath_linux::monotonic;
use latpath_model::Ns;
use latpath_nic_timestamps::{verify, Caps, Check, HardwareStamps, RxHardware, Trial};
use latpath_ping::clocks::{Clocks, NicClockSource};
use latpath_ping::ethernet;
use latpath_ping::timeline::Disturbance;
use latpath_ping::udp::UdpOptions;
use latpath_ping::wire::NicReading;
use latpath_ping::xdp::{Place, Xdp, XdpOptions};
use latpath_wire::{BusyPoll, Stamps};
use nix::ifaddrs::getifaddrs;
use std::net::IpAddr;
use std::time::Duration;

/// Which stamps are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StampChoice {
    /// Only latpath's own, which delay packets least
    App,
    /// Also the kernel's: at the handover to the driver, and at reception
    Kernel,
    /// Also the NIC's, if it has any; some drivers restart the NIC's queues when they are enabled
    Auto,
    /// Also the NIC's; fails if it has none
    Nic,
    /// All of them: as auto, and before the queueing discipline
    All,
}

/// Place of an XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum XdpPlace {
    /// In the driver
    Driver,
    /// In the network stack: works on any device, and copies each frame
    Generic,
}

/// Flags of both ends.
#[derive(ClapArgs, Debug)]
pub struct Link {
    /// Timestamps to take
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = StampChoice::Kernel)]
    pub stamps: StampChoice,
    /// Poll for messages without sleeping: fastest, and occupies a whole CPU
    #[arg(long)]
    pub spin: bool,
    /// Let the kernel poll the NIC this long in each wait (SO_BUSY_POLL), e.g. 50us
    #[arg(long, value_name = "TIME", value_parser = crate::cmd::values::time)]
    busy_poll: Option<Duration>,
    /// Keep the NIC's interrupts off while polling (SO_PREFER_BUSY_POLL)
    #[arg(long)]
    prefer_busy_poll: bool,
    /// Maximum number of packets per poll (SO_BUSY_POLL_BUDGET)
    #[arg(long, value_name = "N")]
    busy_poll_budget: Option<u16>,
    /// Priority of sent packets (SO_PRIORITY): the qdisc's traffic class, the 802.1Q priority
    #[arg(long, value_name = "N")]
    pub priority: Option<u8>,
    /// Pass frames directly to the driver, without the queueing discipline (Ethernet)
    #[arg(long)]
    pub bypass_qdisc: bool,
    /// Bypass the kernel's network stack with AF_XDP (Ethernet); one emitter or reflector per device
    #[arg(long)]
    pub xdp: bool,
    /// Where the XDP program runs [default: in the driver, if it supports XDP]
    #[arg(long, value_name = "WHERE", value_enum, requires = "xdp")]
    xdp_place: Option<XdpPlace>,
    /// Whether the NIC accesses frames without a copy [default: if the driver supports it]
    #[arg(long, value_name = "BOOL", requires = "xdp")]
    zero_copy: Option<bool>,
    /// DSCP of sent packets
    #[arg(long, value_name = "N", value_parser = crate::cmd::values::whole::<u8>(0..=63))]
    pub dscp: Option<u8>,
}

/// The setup of a device and the clocks; undone on drop.
pub struct Prepared {
    /// Stamps to request from a socket.
    pub stamps: Stamps,
    /// The watched clocks of this machine.
    pub clocks: Clocks,
    /// Notes for the user.
    pub notes: Vec<String>,
    _hardware: Option<HardwareStamps>,
}

impl Link {
    /// The polling that the flags request.
    fn busy_poll(&self) -> BusyPoll {
        BusyPoll { time: self.busy_poll, prefer: self.prefer_busy_poll, budget: self.busy_poll_budget }
    }

    /// Options of the UDP socket, bound to the device if one is named.
    pub fn udp(&self, device: Option<&str>, prepared: &Prepared) -> UdpOptions {
        UdpOptions {
            device: device.map(ToOwned::to_owned),
            stamps: prepared.stamps,
            busy_poll: self.busy_poll(),
            priority: self.priority,
            dscp: self.dscp,
        }
    }

    /// Opens AF_XDP on this device; with `session`, for the frames of this emitter's session only.
    pub fn open_xdp(
        &self,
        device: &str,
        session: Option<u32>,
        groups: &[[u8; 6]],
        huge_pages: bool,
    ) -> Result<(Xdp, Prepared)> {
        if self.stamps == StampChoice::Nic {
            return Err(
                Usage("--stamps nic: the NIC stamps no frames that go by AF_XDP; leave out --xdp".into()).into()
            );
        }
        let place = self.xdp_place.map(|place| match place {
            XdpPlace::Driver => Place::Driver,
            XdpPlace::Generic => Place::Generic,
        });
        let xdp = Xdp::open(XdpOptions {
            frames: ethernet::Options {
                session,
                groups: groups.to_vec(),
                stamps: if self.stamps == StampChoice::App { Stamps::default() } else { Stamps::SOFTWARE },
                ..ethernet::Options::new(device)
            },
            place,
            zero_copy: self.zero_copy,
            busy_poll: self.busy_poll(),
            huge_pages,
        })?;
        let notes = vec![xdp.mode().to_string()];
        Ok((xdp, Prepared { stamps: Stamps::default(), clocks: Clocks::watch(None), notes, _hardware: None }))
    }

    /// Switches on the stamps that the device supports, and starts to watch the clocks.
    pub fn prepare(&self, device: Option<&str>) -> Result<Prepared> {
        let mut notes = Vec::new();
        let software = Stamps { tx_sched: self.stamps == StampChoice::All, ..Stamps::SOFTWARE };
        let none = |stamps| Prepared { stamps, clocks: Clocks::watch(None), notes: Vec::new(), _hardware: None };
        match self.stamps {
            StampChoice::App => return Ok(none(Stamps::default())),
            StampChoice::Kernel => return Ok(none(software)),
            _ => {}
        }
        let must = self.stamps == StampChoice::Nic;
        let Some(device) = device else {
            anyhow::ensure!(!must, "--stamps nic: name the device with -i, so that its NIC can be asked");
            return Ok(none(software));
        };
        let caps = Caps::of(device)?;
        if !caps.tx_nic() && caps.rx_nic() == RxHardware::Nothing {
            anyhow::ensure!(
                !must,
                "{device}: its driver makes no hardware stamps (latpath ping caps -i {device} says what it can)"
            );
            return Ok(none(software));
        }
        let hardware = match HardwareStamps::switch_on(&caps) {
            Ok(Some(hardware)) => hardware,
            Ok(None) => return Ok(none(software)),
            Err(e) if !must => {
                notes.push(format!("{e}; going on with the kernel's stamps"));
                return Ok(Prepared { notes, ..none(software) });
            }
            Err(e) => return Err(e.into()),
        };
        // Some drivers claim stamps that never arrive; latpath must not wait for those.
        let verified = verify(&caps, Trial { send: true, listen: Duration::ZERO });
        let worth = verified.worth_asking();
        let tried = [
            ("clock", &verified.clock),
            ("stamps of packets sent", &verified.tx_nic),
            ("stamps of packets received", &verified.rx_nic),
        ];
        for (what, check) in tried {
            if let Check::Failed(why) = check {
                notes.push(format!("{device}: its NIC's {what}: {why}"));
            }
        }
        let (tx_nic, rx_nic) = (hardware.tx() && worth.tx_nic, hardware.rx() && worth.rx_nic);
        if !tx_nic && !rx_nic {
            anyhow::ensure!(!must, "--stamps nic: {}", notes.join("; "));
            return Ok(Prepared { notes, ..none(software) });
        }
        let source = match caps.phc {
            Some(index) => {
                let phc = Phc::open(index).with_context(|| format!("{device}: reading its NIC's clock"))?;
                Some(Box::new(NicWatch::new(phc)) as Box<dyn NicClockSource>)
            }
            None => {
                notes.push(format!(
                    "{device}: its NIC stamps packets but its clock cannot be read: the stamps are unused"
                ));
                None
            }
        };
        let stamps = Stamps { tx_nic, rx_nic, ..software };
        Ok(Prepared { stamps, clocks: Clocks::watch(source), notes, _hardware: Some(hardware) })
    }
}

/// Watches a NIC's clock.
struct NicWatch {
    phc: Phc,
    watch: PhcWatch,
    failed: bool,
    /// The clock's last reading.
    last: Option<Ns>,
}

impl NicWatch {
    fn new(phc: Phc) -> Self {
        Self { phc, watch: PhcWatch::default(), failed: false, last: None }
    }
}

impl NicClockSource for NicWatch {
    fn finish(&mut self) -> Vec<Disturbance> {
        self.watch.finish().into_iter().map(|d| disturbance(d, d.until_ns)).collect()
    }

    fn read(&mut self) -> (Option<NicReading>, Vec<Disturbance>) {
        let reading = match self.phc.read() {
            Ok(reading) => reading,
            Err(_) if self.failed => return (None, Vec::new()),
            Err(e) => {
                self.failed = true;
                let what = format!("the NIC's clock (/dev/ptp{}) can no longer be read: {e}", self.phc.index());
                return (None, vec![Disturbance::new(monotonic(), what)]);
            }
        };
        self.failed = false;
        let found = self.watch.observe(reading).into_iter();
        // A stopped clock has no offset; when it resumes, that is a step.
        let stands_still = self.last.replace(reading.phc_ns) == Some(reading.phc_ns);
        let clock = self.watch.offset_at(reading.monotonic_ns).filter(|_| !stands_still);
        let clock = clock.map(|offset| NicReading {
            index: self.phc.index() as i32,
            at: reading.monotonic_ns,
            offset: offset.offset_ns,
            bound: offset.bound_ns,
            drift_ppb: self.watch.drift_ppb().unwrap_or(0),
        });
        (clock, found.map(|d| disturbance(d, reading.monotonic_ns)).collect())
    }
}

/// A disturbance detected at reading `shown`: a step is detected one reading late, so stamps converted in between are
/// useless.
fn disturbance(d: latpath_clock::phc::Disturbance, shown: Ns) -> Disturbance {
    let set = matches!(d.trouble, ClockFault::Step { .. }).then_some((d.after_ns, shown));
    Disturbance { nic_set_between: set, ..Disturbance::new(d.until_ns, format!("the NIC's clock {}", d.trouble)) }
}

/// The device that has this address.
pub fn device_of(address: IpAddr) -> Option<String> {
    let has = |a: &nix::ifaddrs::InterfaceAddress| {
        let a = a.address.as_ref()?;
        let ip: IpAddr = match (a.as_sockaddr_in(), a.as_sockaddr_in6()) {
            (Some(four), _) => four.ip().into(),
            (_, Some(six)) => six.ip().into(),
            _ => return None,
        };
        (ip == address).then_some(())
    };
    getifaddrs().ok()?.find(|a| has(a).is_some()).map(|a| a.interface_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Words {
        #[command(flatten)]
        link: Link,
    }

    #[test]
    fn a_nics_stamps_are_switched_on_only_where_they_are_asked_for() {
        let words = <Words as clap::Parser>::parse_from(["ping"]);
        assert_eq!(words.link.stamps, StampChoice::Kernel);
    }
}
