//! Socket options: timestamps, and busy polling of the NIC.

use latpath_linux::net::set_option;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Why a socket option cannot be set.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A privilege is missing.
    #[error("{0} needs root or CAP_NET_ADMIN; try with sudo")]
    NotAllowed(&'static str),
    /// The kernel lacks the option.
    #[error("{what}: this kernel does not have it ({needs})")]
    Missing {
        /// The socket option.
        what: &'static str,
        /// Kernel version or configuration that has it.
        needs: &'static str,
    },
    /// Any other error.
    #[error("{what}: {cause}")]
    Os {
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
}

impl SocketError {
    fn of(what: &'static str, needs: &'static str, cause: io::Error) -> Self {
        match cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotAllowed(what),
            Some(libc::ENOPROTOOPT) => Self::Missing { what, needs },
            _ => Self::Os { what, cause },
        }
    }
}

/// The flags of `SO_TIMESTAMPING` that make the kernel record timestamps of sent packets
/// (`SOF_TIMESTAMPING_TX_RECORD_MASK`); they can also be set for a single packet.
pub(crate) const RECORDING: u32 =
    libc::SOF_TIMESTAMPING_TX_SCHED | libc::SOF_TIMESTAMPING_TX_SOFTWARE | libc::SOF_TIMESTAMPING_TX_HARDWARE;

/// Timestamps that a socket requests. Timestamps that the device does not support are missing, which is not an error
/// here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// Before the queueing discipline; `CLOCK_REALTIME`.
    pub tx_sched: bool,
    /// When the driver passes the packet to the NIC; `CLOCK_REALTIME`.
    pub tx_driver: bool,
    /// When the NIC sends the packet; the NIC's clock.
    pub tx_nic: bool,
    /// When the kernel receives the packet; `CLOCK_REALTIME`.
    pub rx_kernel: bool,
    /// When the NIC receives the packet; the NIC's clock.
    pub rx_nic: bool,
}

impl Stamps {
    /// All timestamps.
    pub const ALL: Self = Self { tx_sched: true, tx_driver: true, tx_nic: true, rx_kernel: true, rx_nic: true };
    /// All timestamps taken by the kernel.
    pub const SOFTWARE: Self = Self { tx_nic: false, rx_nic: false, ..Self::ALL };

    /// The flags of `SO_TIMESTAMPING` (Documentation/networking/timestamping.rst).
    ///
    /// `OPT_ID` is not used because its counter restarts and skips numbers. `OPT_TSONLY` is not used, so that a sent
    /// packet is returned with its bytes, which identify it. `OPT_TX_SWHW` delivers the driver's timestamp in addition
    /// to the NIC's.
    pub(crate) fn flags(self) -> u32 {
        let each = [
            (self.tx_sched, libc::SOF_TIMESTAMPING_TX_SCHED),
            (self.tx_driver, libc::SOF_TIMESTAMPING_TX_SOFTWARE),
            (self.tx_nic, libc::SOF_TIMESTAMPING_TX_HARDWARE),
            (self.rx_kernel, libc::SOF_TIMESTAMPING_RX_SOFTWARE),
            (self.rx_nic, libc::SOF_TIMESTAMPING_RX_HARDWARE),
            (self.tx_sched || self.tx_driver || self.rx_kernel, libc::SOF_TIMESTAMPING_SOFTWARE),
            (self.tx_nic || self.rx_nic, libc::SOF_TIMESTAMPING_RAW_HARDWARE),
            (self.tx_driver && self.tx_nic, libc::SOF_TIMESTAMPING_OPT_TX_SWHW),
        ];
        each.iter().filter(|(requested, _)| *requested).fold(0, |flags, (_, flag)| flags | flag)
    }
}

/// Sets the timestamps that a socket requests from now on.
///
/// The kernel's receive timestamps may start shortly afterwards: if no other socket has requested them, the kernel
/// enables them in the background, and packets that arrive before that have none.
///
/// A sent packet is returned on the error queue with its bytes. If an administrator has disabled that (sysctl
/// net.core.tstamp_allow_data), a program without CAP_NET_RAW receives no timestamps of sent packets.
///
/// # Errors
/// A privilege is missing, or the kernel lacks the option.
pub fn ask_for(fd: BorrowedFd<'_>, stamps: Stamps) -> Result<(), SocketError> {
    let set = set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &(stamps.flags() as i32));
    set.map_err(|cause| SocketError::of("timestamps (SO_TIMESTAMPING)", "Linux 5.15", cause))
}

/// Busy polling: the socket polls the NIC itself instead of waiting for its interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyPoll {
    /// How long a blocking call polls, in whole µs; `None` for the default (sysctl net.core.busy_read).
    pub time: Option<Duration>,
    /// Whether the kernel keeps the NIC's interrupts off while the program polls (requires the device's
    /// `napi_defer_hard_irqs` and `gro_flush_timeout` to be set).
    pub prefer: bool,
    /// Maximum number of packets per round.
    pub budget: Option<u16>,
}

impl BusyPoll {
    /// Sets these options on a socket.
    ///
    /// # Errors
    /// A privilege is missing, or the kernel lacks an option.
    pub fn set(self, fd: BorrowedFd<'_>) -> Result<(), SocketError> {
        const NEEDS: &str = "CONFIG_NET_RX_BUSY_POLL";
        const NEWER: &str = "Linux 5.11 with CONFIG_NET_RX_BUSY_POLL";
        let set = |what, needs, name, value: i32| {
            set_option(fd, libc::SOL_SOCKET, name, &value).map_err(|cause| SocketError::of(what, needs, cause))
        };
        if let Some(time) = self.time {
            let us = i32::try_from(time.as_micros()).unwrap_or(i32::MAX);
            set("busy polling (SO_BUSY_POLL)", NEEDS, libc::SO_BUSY_POLL, us)?;
        }
        if self.prefer {
            set("preferring busy polling (SO_PREFER_BUSY_POLL)", NEWER, libc::SO_PREFER_BUSY_POLL, 1)?;
        }
        if let Some(budget) = self.budget {
            set("a budget for busy polling (SO_BUSY_POLL_BUDGET)", NEWER, libc::SO_BUSY_POLL_BUDGET, budget.into())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{from_error_queue, receive, rx_stamps, Control, TxKind};
    use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
    use std::os::fd::AsFd;

    /// Sends a packet to the socket itself over lo; returns its timestamps, from the error queue and as received.
    fn to_itself(socket: &UdpSocket) -> (Vec<(TxKind, usize)>, crate::RxStamps) {
        ask_for(socket.as_fd(), Stamps::ALL).unwrap();
        socket.connect(socket.local_addr().unwrap()).unwrap();
        socket.send(b"latpath!").unwrap();
        let (mut data, mut control) = ([0; 256], Control::new());
        let mut queued = Vec::new();
        while let Ok(got) = receive(socket.as_fd(), &mut data, &mut control, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) {
            let Some(stamp) = from_error_queue(got.control) else { panic!("{:?}", got.control) };
            assert!(stamp.time > 1_600_000_000_000_000_000, "{stamp:?}");
            queued.push((stamp.kind, got.len));
            assert!(data[..got.len].ends_with(b"latpath!"), "the packet's own bytes are last");
        }
        let got = receive(socket.as_fd(), &mut data, &mut control, 0).unwrap();
        (queued, rx_stamps(got.control))
    }

    #[test]
    fn a_packet_over_lo_is_stamped_before_the_queue_at_the_driver_and_on_arrival() {
        let sockets = [UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)), UdpSocket::bind((Ipv6Addr::LOCALHOST, 0))];
        let mut tried = 0;
        for socket in sockets.into_iter().flatten() {
            let (queued, mut rx) = to_itself(&socket);
            // The kernel starts to timestamp received packets only shortly after the request.
            let limit = std::time::Instant::now() + Duration::from_secs(10);
            while rx.kernel.is_none() && std::time::Instant::now() < limit {
                rx = to_itself(&socket).1;
            }
            let kinds: Vec<TxKind> = queued.iter().map(|(kind, _)| *kind).collect();
            assert_eq!(kinds, [TxKind::Sched, TxKind::Driver]);
            assert!(rx.kernel.is_some() && rx.nic.is_none(), "{rx:?}");
            tried += 1;
        }
        assert!(tried > 0, "neither IPv4 nor IPv6 on lo");
    }

    #[test]
    fn a_closed_port_gives_no_stamp() {
        let closed = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_RECVERR, &1i32).unwrap();
        socket.connect(closed).unwrap();
        socket.send(b"x").unwrap();
        let (mut data, mut control) = ([0; 256], Control::new());
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        let got = receive(socket.as_fd(), &mut data, &mut control, flags).unwrap();
        assert_eq!(from_error_queue(got.control), None);
    }

    #[test]
    fn only_what_is_asked_for_is_switched_on() {
        assert_eq!(Stamps::default().flags(), 0);
        let rx = Stamps { rx_kernel: true, ..Stamps::default() };
        assert_eq!(rx.flags(), libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE);
        assert_eq!(Stamps::SOFTWARE.flags() & libc::SOF_TIMESTAMPING_RAW_HARDWARE, 0);
        assert_ne!(Stamps::ALL.flags() & libc::SOF_TIMESTAMPING_OPT_TX_SWHW, 0);
    }

    #[test]
    fn a_socket_option_that_cannot_be_set_is_named() {
        let pipe = std::fs::File::open("/dev/null").unwrap();
        let error = ask_for(pipe.as_fd(), Stamps::ALL).unwrap_err().to_string();
        assert!(error.starts_with("timestamps (SO_TIMESTAMPING): Socket operation on non-socket"), "{error}");
        let denied = SocketError::of("busy polling", "", io::Error::from_raw_os_error(libc::EPERM)).to_string();
        assert_eq!(denied, "busy polling needs root or CAP_NET_ADMIN; try with sudo");
        let missing = SocketError::of("busy polling", "Linux 9", io::Error::from_raw_os_error(libc::ENOPROTOOPT));
        assert_eq!(missing.to_string(), "busy polling: this kernel does not have it (Linux 9)");
    }
}
