//! Probes in UDP datagrams over IPv4 or IPv6.

use crate::transport::{asked_for, of_sending, Arrived, Got, Sent, SentStamp, Transport, Wait};
use crate::wire::{Header, CONTROL};
use latpath_linux::net::{set_buffers, set_option};
use latpath_wire::{
    ask_for, drops, local_address, receive, receive_from, rx_stamps, sent_stamps, BusyPoll, Control, SocketError,
    Stamps,
};
use nix::errno::Errno;
use nix::sys::socket::{recv, send, sendmsg, sendto, setsockopt, sockopt, ControlMessage, MsgFlags, SockaddrStorage};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Default port of a reflector.
pub const PORT: u16 = 6185;
/// Maximum wait for a message, so that callers check their stop flag and clock.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
/// Size of the receive buffer, bytes.
const BUFFER: i32 = 4 << 20;
/// Maximum number of stamps read per call.
const AT_ONCE: usize = 64;
/// Maximum length of headers before the message in a stamped packet, bytes: Ethernet with two tags, IPv6, UDP.
const HEADERS: usize = 14 + 8 + 40 + 8;

/// Errors of a UDP transport.
#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    /// The port is in use.
    #[error("{0}: another program listens there already; stop it, or take another with --port")]
    PortTaken(SocketAddr),
    /// The address does not belong to this machine.
    #[error("{}: not an address of this machine; ip -br address lists those that are", .0.ip())]
    NotOurs(SocketAddr),
    /// There is no route to the peer.
    #[error("{peer}: {cause}; is the address right, and does a device lead there (ip route get {})?", .peer.ip())]
    NoRoute {
        /// The peer.
        peer: SocketAddr,
        /// The kernel's error.
        cause: io::Error,
    },
    /// A message exceeds a datagram, or the MTU without fragmentation.
    #[error("{peer}: a message of {len} bytes does not fit; try a smaller --size")]
    TooLong {
        /// The peer.
        peer: SocketAddr,
        /// Length of the message, bytes.
        len: usize,
    },
    /// The kernel refused a socket option.
    #[error(transparent)]
    Option(#[from] SocketError),
    /// Another error.
    #[error("{at}: {doing}: {cause}")]
    Os {
        /// The local address; if sending failed, the peer's.
        at: SocketAddr,
        /// Operation that failed.
        doing: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
}

/// Options of a socket.
#[derive(Clone, Debug, Default)]
pub struct UdpOptions {
    /// Device to bind to (`SO_BINDTODEVICE`).
    pub device: Option<String>,
    /// Requested stamps.
    pub stamps: Stamps,
    /// Busy polling of the device's queue.
    pub busy_poll: BusyPoll,
    /// `SO_PRIORITY`, which selects the queue of a qdisc and the 802.1Q priority.
    pub priority: Option<u8>,
    /// DSCP, 0 to 63.
    pub dscp: Option<u8>,
}

/// Address of the peer, and the local address from which it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpPeer {
    /// The peer's address.
    pub address: SocketAddr,
    /// Local address to which the probe was sent, for a reflector that listens on all addresses.
    pub asked: Option<IpAddr>,
}

impl std::fmt::Display for UdpPeer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        SocketAddr::new(self.address.ip().to_canonical(), self.address.port()).fmt(f)
    }
}

/// A UDP socket of either end; the emitter's is connected.
pub struct Udp {
    socket: UdpSocket,
    /// Address that the socket listens on; for an emitter, the peer's address.
    at: SocketAddr,
    connected: bool,
    /// Whether it listens on all addresses of this machine.
    any: bool,
    takes: u16,
    stamps: Stamps,
    control: Control,
    queued: Vec<u8>,
    /// Offset of the message in the last packet read from the error queue.
    message_at: usize,
    refusal: Option<Errno>,
}

impl Udp {
    /// Creates an emitter's socket, connected to the reflector at `peer`, optionally from `local`.
    ///
    /// # Errors
    /// If there is no route, `local` is not an address of this machine, or the kernel refuses an option.
    pub fn connect(peer: SocketAddr, local: Option<IpAddr>, options: &UdpOptions) -> Result<Self, UdpError> {
        let any: IpAddr = if peer.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
        let udp = Self::open(SocketAddr::new(local.unwrap_or(any), 0), Some(peer), options)?;
        udp.socket.connect(peer).map_err(|cause| UdpError::NoRoute { peer, cause })?;
        Ok(udp)
    }

    /// Creates a reflector's socket that listens at this address; the unspecified address means all addresses of this
    /// machine.
    ///
    /// # Errors
    /// If the address is in use or does not belong to this machine, or the kernel refuses an option.
    pub fn listen(at: SocketAddr, options: &UdpOptions) -> Result<Self, UdpError> {
        Self::open(at, None, options)
    }

    fn open(local: SocketAddr, peer: Option<SocketAddr>, options: &UdpOptions) -> Result<Self, UdpError> {
        let socket = UdpSocket::bind(local).map_err(|cause| match cause.raw_os_error() {
            Some(libc::EADDRINUSE) => UdpError::PortTaken(local),
            Some(libc::EADDRNOTAVAIL) => UdpError::NotOurs(local),
            _ => UdpError::Os { at: local, doing: "opening a socket", cause },
        })?;
        let at = peer.or(socket.local_addr().ok()).unwrap_or(local);
        let (fd, any) = (socket.as_fd(), peer.is_none() && local.ip().is_unspecified());
        let os = |doing| move |cause| UdpError::Os { at, doing, cause };
        let set = |doing, level, name, value: i32| set_option(fd, level, name, &value).map_err(os(doing));
        if let Some(device) = &options.device {
            let bound = setsockopt(&socket, sockopt::BindToDevice, &device.into());
            bound.map_err(|e| os("staying on the device")(e.into()))?;
        }
        set_buffers(fd, BUFFER).map_err(os("setting its buffers"))?;
        if let Some(priority) = options.priority {
            set("setting its priority", libc::SOL_SOCKET, libc::SO_PRIORITY, priority.into())?;
        }
        let (tos, tos_level, asks) = match at {
            SocketAddr::V4(_) => (libc::IP_TOS, libc::IPPROTO_IP, libc::IP_PKTINFO),
            SocketAddr::V6(_) => (libc::IPV6_TCLASS, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
        };
        if let Some(dscp) = options.dscp {
            set("setting its DSCP", tos_level, tos, i32::from(dscp) << 2)?;
        }
        if any {
            set("asking which address was meant", tos_level, asks, 1)?;
        }
        options.busy_poll.set(fd)?;
        socket.set_read_timeout(Some(LONGEST_WAIT)).map_err(os("setting its timeout"))?;
        let stamps = options.stamps;
        if stamps != Stamps::default() {
            ask_for(fd, stamps)?;
        }
        Ok(Self {
            socket,
            at,
            connected: peer.is_some(),
            any,
            takes: asked_for(&stamps),
            stamps,
            control: Control::new(),
            queued: vec![0; HEADERS + CONTROL.max(2048)],
            message_at: 0,
            refusal: None,
        })
    }

    /// Address that the socket listens on; for an emitter, the peer's address.
    pub fn at(&self) -> SocketAddr {
        self.at
    }

    /// An emitter's peer, for [`crate::emit::emit`].
    pub fn peer(&self) -> UdpPeer {
        UdpPeer { address: self.at, asked: None }
    }

    fn send_once(&self, to: &UdpPeer, message: &[u8]) -> nix::Result<usize> {
        let (fd, flags) = (self.socket.as_raw_fd(), MsgFlags::MSG_NOSIGNAL);
        if self.connected {
            return send(fd, message, flags);
        }
        // On a dual-stack socket, IPv4 peers have IPv4-mapped addresses, and so do the source addresses of answers.
        let address = SockaddrStorage::from(to.address);
        let data = [IoSlice::new(message)];
        match to.asked {
            None => sendto(fd, message, &address, flags),
            Some(IpAddr::V4(ip)) => {
                let source = libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) };
                let none = libc::in_addr { s_addr: 0 };
                let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: source, ipi_addr: none };
                sendmsg(fd, &data, &[ControlMessage::Ipv4PacketInfo(&info)], flags, Some(&address))
            }
            Some(IpAddr::V6(ip)) => {
                let info = libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: ip.octets() }, ipi6_ifindex: 0 };
                sendmsg(fd, &data, &[ControlMessage::Ipv6PacketInfo(&info)], flags, Some(&address))
            }
        }
    }

    /// Reads a message that arrives within the socket's timeout.
    #[inline]
    fn read(&mut self, buffer: &mut [u8], flags: i32) -> io::Result<Option<Arrived<UdpPeer>>> {
        let fd = self.socket.as_fd();
        let has_control = self.any || self.stamps.rx_kernel || self.stamps.rx_nic;
        if self.connected && !has_control {
            let len = recv(fd.as_raw_fd(), buffer, MsgFlags::from_bits_retain(flags))?;
            return Ok(Some(Arrived { from: self.peer(), len, kernel: None, nic: None }));
        }
        if !has_control {
            let (len, from) = receive_from(fd, buffer, flags)?;
            let from = from.map(|address| UdpPeer { address, asked: None });
            return Ok(from.map(|from| Arrived { from, len, kernel: None, nic: None }));
        }
        let got = receive(fd, buffer, &mut self.control, flags)?;
        let stamps = rx_stamps(got.control);
        let asked = if self.any { local_address(got.control) } else { None };
        let from = if self.connected { Some(self.at) } else { got.from };
        let from = from.map(|address| UdpPeer { address, asked });
        Ok(from.map(|from| Arrived { from, len: got.len, kernel: stamps.kernel, nic: stamps.nic }))
    }
}

/// Offset of the message in a sent packet, after its headers. `guess` is the previous offset.
fn message_in(packet: &[u8], guess: usize) -> Option<usize> {
    let begins = |at: &usize| packet.get(*at..).is_some_and(|bytes| Header::read(bytes).is_some());
    Some(guess).filter(begins).or_else(|| (0..=HEADERS).find(begins))
}

impl Transport for Udp {
    type Peer = UdpPeer;
    type Error = UdpError;

    fn are_of_one_host(a: &UdpPeer, b: &UdpPeer) -> bool {
        a.address.ip() == b.address.ip()
    }

    #[inline]
    fn send(&mut self, to: UdpPeer, message: &[u8]) -> Result<Sent, UdpError> {
        let sent = match self.send_once(&to, message) {
            // The error is that of the previous message. This one was not sent, so send it again.
            Err(Errno::ECONNREFUSED) if self.connected => self.send_once(&to, message),
            sent => sent,
        };
        let Err(errno) = sent else { return Ok(Sent::Taken) };
        let peer = to.address;
        match errno {
            Errno::ENOBUFS
            | Errno::EAGAIN
            | Errno::EINTR
            | Errno::EPERM
            | Errno::ECONNREFUSED
            | Errno::EHOSTUNREACH
            | Errno::ENETUNREACH
            | Errno::ENETDOWN
            | Errno::EHOSTDOWN
            | Errno::EINVAL => {}
            // A failure to send to one emitter does not stop a reflector.
            _ if !self.connected => return Ok(Sent::Refused),
            Errno::EMSGSIZE => return Err(UdpError::TooLong { peer, len: message.len() }),
            _ => return Err(UdpError::Os { at: peer, doing: "sending", cause: errno.into() }),
        }
        self.refusal = Some(errno);
        Ok(Sent::Refused)
    }

    #[inline]
    fn receive(&mut self, buffer: &mut [u8], wait: Wait) -> Result<Got<UdpPeer>, UdpError> {
        let flags = wait.flags(self.socket.as_fd());
        let cause = match self.read(buffer, flags) {
            Ok(arrived) => return Ok(arrived.map_or(Got::Nothing, Got::Message)),
            Err(cause) => cause,
        };
        match cause.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(Got::Nothing),
            Some(libc::ECONNREFUSED) if self.connected => Ok(Got::NobodyThere),
            // For an emitter, the route is broken, perhaps temporarily: the caller measures the silence. For a
            // reflector, one emitter is gone, which does not affect the others.
            Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ENETDOWN | libc::EHOSTDOWN) => {
                Ok(Got::Nothing)
            }
            _ => Err(UdpError::Os { at: self.at, doing: "receiving", cause }),
        }
    }

    fn left(&mut self, each: &mut dyn FnMut(SentStamp<'_>)) -> Result<(), UdpError> {
        let message_at = &mut self.message_at;
        let read =
            sent_stamps(self.socket.as_fd(), &mut self.queued, &mut self.control, AT_ONCE, &mut |stamp, packet| {
                if let Some(at) = message_in(packet, *message_at) {
                    *message_at = at;
                    each(SentStamp { message: &packet[at..], stamp: of_sending(stamp.kind), time: stamp.time });
                }
            });
        read.map(drop).map_err(|cause| UdpError::Os { at: self.at, doing: "reading stamps", cause })
    }

    fn takes(&self) -> u16 {
        self.takes
    }

    fn dropped(&self) -> u64 {
        drops(self.socket.as_fd())
    }

    fn last_refusal(&self) -> Option<io::Error> {
        self.refusal.map(Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transaction::Stamp;
    use crate::wire::{other_version, Kind};

    #[test]
    fn a_message_is_found_behind_any_headers() {
        let mut message = [0u8; 96];
        Header { kind: Kind::Probe, session: 1, sequence: 2, first: 3, second: 4 }.write(&mut message);
        for headers in [0, 28, 42, 46, 62, HEADERS] {
            let mut packet = vec![0x45; headers];
            packet.extend(message);
            assert_eq!(message_in(&packet, 42), Some(headers));
        }
        assert_eq!(message_in(&[0; 20], 42), None);
        assert_eq!(other_version(&message), None);
    }

    #[test]
    fn two_ends_on_loopback_hear_each_other_with_the_kernels_stamps() {
        let options = UdpOptions { stamps: Stamps::SOFTWARE, ..UdpOptions::default() };
        for address in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0"] {
            let Ok(mut reflector) = Udp::listen(address.parse().unwrap(), &options) else { continue };
            let mut at = reflector.at();
            if at.ip().is_unspecified() {
                at.set_ip("127.0.0.9".parse().unwrap());
            }
            let mut emitter = Udp::connect(at, None, &options).unwrap();
            let mut message = [0u8; 96];
            Header { kind: Kind::Probe, session: 1, sequence: 2, first: 3, second: 4 }.write(&mut message);
            let mut buffer = [0; 300];
            // The kernel starts to timestamp received packets some time after the request.
            let came = (0..5000).find_map(|_| {
                std::thread::sleep(Duration::from_millis(1));
                emitter.left(&mut |_| ()).unwrap();
                assert_eq!(emitter.send(emitter.peer(), &message).unwrap(), Sent::Taken);
                let got = reflector.receive(&mut buffer, Wait::Some).unwrap();
                let Got::Message(came) = got else { panic!("nothing came") };
                assert_eq!(buffer[..came.len], message);
                came.kernel.is_some().then_some(came)
            });
            let came = came.expect("a stamp comes in the end");
            reflector.send(came.from, &message).unwrap();
            let Got::Message(back) = emitter.receive(&mut buffer, Wait::Some).unwrap() else { panic!("nothing back") };
            let mut sent = Vec::new();
            emitter.left(&mut |left| sent.push((left.stamp, left.time, left.message == message))).unwrap();
            let stamps: Vec<Stamp> = sent.iter().map(|s| s.0).collect();
            assert_eq!(stamps, [Stamp::T1Sched, Stamp::T1Driver]);
            assert!(sent.iter().all(|s| s.2));
            let order = [sent[0].1, sent[1].1, came.kernel.unwrap(), back.kernel.unwrap()];
            assert!(order.is_sorted(), "{order:?}");
        }
    }

    #[test]
    fn a_missing_listener_is_reported() {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut emitter = Udp::connect(free, None, &UdpOptions::default()).unwrap();
        emitter.send(emitter.peer(), &[0; 40]).unwrap();
        let got = emitter.receive(&mut [0; 40], Wait::Until(latpath_linux::monotonic() + 1_000_000_000)).unwrap();
        assert_eq!(got, Got::NobodyThere);
    }

    #[test]
    fn an_answer_comes_from_the_address_that_was_asked() {
        for (any, asked) in [("0.0.0.0:0", "127.0.0.7"), ("[::]:0", "::1")] {
            let Ok(mut server) = Udp::listen(any.parse().unwrap(), &UdpOptions::default()) else { continue };
            let asked: IpAddr = asked.parse().unwrap();
            let client =
                UdpSocket::bind(SocketAddr::new(if asked.is_ipv4() { "127.0.0.1" } else { "::1" }.parse().unwrap(), 0));
            let client = client.unwrap();
            client.connect((asked, server.at().port())).unwrap();
            let to = UdpPeer { address: client.local_addr().unwrap(), asked: Some(asked) };
            assert_eq!(server.send(to, b"hello").unwrap(), Sent::Taken);
            client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            assert_eq!(client.recv(&mut [0; 16]).unwrap(), 5, "a connected socket takes nothing from other addresses");
        }
    }
}
