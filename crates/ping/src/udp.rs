//! Probes in UDP datagrams over IPv4 or IPv6.

use crate::kernel;
use crate::transport::{asked_for, of_sending, Arrived, Got, Left, Sent, Transport, Wait};
use crate::wire::{Header, CONTROL};
use latpath_nic_timestamps::{from_error_queue, local_address, rx_stamps, Control, Queued, Stamps};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The port of a reflector where none is said.
pub const PORT: u16 = 6185;
/// Longest wait for a message, so that callers can look at their stop flag and clock.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
/// Room for messages that nobody has read yet.
const BUFFER: i32 = 4 << 20;
/// Stamps that one call hands over at most.
const AT_ONCE: usize = 64;
/// Bytes of a stamped packet that can stand before its message: headers of Ethernet with two tags, IPv6 and UDP.
const HEADERS: usize = 14 + 8 + 40 + 8;

/// Why there is no socket, or no longer one.
#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    /// The port is taken.
    #[error("{0}: another program listens there already; stop it, or take another with --port")]
    PortTaken(SocketAddr),
    /// The address is none of this machine's.
    #[error("{}: not an address of this machine; ip -br address lists those that are", .0.ip())]
    NotOurs(SocketAddr),
    /// There is no way to it.
    #[error("{peer}: {cause}; is the address right, and does a device lead there (ip route get {})?", .peer.ip())]
    NoRoute {
        /// The other end.
        peer: SocketAddr,
        /// The kernel's answer.
        cause: io::Error,
    },
    /// A message does not fit into a datagram, or into the MTU where it may not be cut.
    #[error("{peer}: a message of {len} bytes does not fit; try a smaller --size")]
    TooLong {
        /// The other end.
        peer: SocketAddr,
        /// Its length.
        len: usize,
    },
    /// A socket option.
    #[error(transparent)]
    Option(#[from] latpath_nic_timestamps::SocketError),
    /// Anything else.
    #[error("{at}: {doing}: {cause}")]
    Os {
        /// The address.
        at: SocketAddr,
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        cause: io::Error,
    },
}

/// How a socket is set up.
#[derive(Clone, Debug, Default)]
pub struct UdpOptions {
    /// Only over this device (`SO_BINDTODEVICE`).
    pub device: Option<String>,
    /// Which stamps to ask for.
    pub stamps: Stamps,
    /// Polling of the NIC.
    pub busy_poll: latpath_nic_timestamps::BusyPoll,
    /// `SO_PRIORITY`: which queue of a qdisc, and the 802.1Q priority.
    pub priority: Option<u8>,
    /// DSCP, 0 to 63.
    pub dscp: Option<u8>,
}

/// What both ends' sockets are.
struct Socket {
    socket: UdpSocket,
    takes: u16,
    with_control: bool,
    control: Control,
    queued: Vec<u8>,
    /// Where the message began in the last packet of the error queue.
    message_at: usize,
    refusal: Option<i32>,
}

impl Socket {
    fn new(socket: UdpSocket, at: SocketAddr, options: &UdpOptions, with_control: bool) -> Result<Self, UdpError> {
        let os = |doing| move |cause| UdpError::Os { at, doing, cause };
        if let Some(device) = &options.device {
            let name = device.as_bytes();
            let mut room = [0u8; libc::IFNAMSIZ];
            let len = name.len().min(room.len() - 1);
            room[..len].copy_from_slice(&name[..len]);
            kernel::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &room)
                .map_err(os("staying on the device"))?;
        }
        let fd = socket.as_fd();
        for (force, name) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
            if kernel::set_option(fd, libc::SOL_SOCKET, force, &BUFFER).is_err() {
                kernel::set_option(fd, libc::SOL_SOCKET, name, &BUFFER).map_err(os("setting its buffers"))?;
            }
        }
        if let Some(priority) = options.priority {
            let priority = i32::from(priority);
            kernel::set_option(fd, libc::SOL_SOCKET, libc::SO_PRIORITY, &priority)
                .map_err(os("setting its priority"))?;
        }
        if let Some(dscp) = options.dscp {
            let (level, name) = match at {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            };
            kernel::set_option(fd, level, name, &(i32::from(dscp) << 2)).map_err(os("setting its DSCP"))?;
        }
        options.busy_poll.set(fd)?;
        socket.set_read_timeout(Some(LONGEST_WAIT)).map_err(os("setting its timeout"))?;
        let s = options.stamps;
        if s != Stamps::default() {
            latpath_nic_timestamps::ask_for(fd, s)?;
        }
        Ok(Self {
            socket,
            takes: asked_for(&s),
            with_control: with_control || s.rx_kernel || s.rx_nic,
            control: Control::new(),
            queued: vec![0; HEADERS + CONTROL.max(2048)],
            message_at: 0,
            refusal: None,
        })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// How to call the kernel for this wait.
    #[inline]
    fn flags(&self, wait: Wait) -> i32 {
        match wait {
            Wait::No => libc::MSG_DONTWAIT,
            Wait::Some => 0,
            Wait::Until(deadline) => {
                kernel::wait_until(self.fd(), deadline);
                libc::MSG_DONTWAIT
            }
        }
    }

    /// What a failed call for a message means; an error that ends it all is left.
    fn nothing<P>(cause: io::Error) -> Result<Got<P>, io::Error> {
        match cause.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(Got::Nothing),
            Some(libc::ECONNREFUSED) => Ok(Got::NobodyThere),
            // The way there is broken, for now at least: silence is what the caller counts.
            Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ENETDOWN | libc::EHOSTDOWN) => Ok(Got::Nothing),
            _ => Err(cause),
        }
    }

    /// What a failed send means.
    fn refused(&mut self, cause: io::Error, peer: SocketAddr, len: usize) -> Result<Sent, UdpError> {
        match cause.raw_os_error() {
            Some(libc::EMSGSIZE) => Err(UdpError::TooLong { peer, len }),
            Some(
                errno @ (libc::ENOBUFS
                | libc::EAGAIN
                | libc::EINTR
                | libc::EPERM
                | libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::ENETDOWN
                | libc::EHOSTDOWN
                | libc::EINVAL),
            ) => {
                self.refusal = Some(errno);
                Ok(Sent::Refused)
            }
            _ => Err(UdpError::Os { at: peer, doing: "sending", cause }),
        }
    }

    fn left(&mut self, each: &mut dyn FnMut(Left<'_>)) -> io::Result<()> {
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        for _ in 0..AT_ONCE {
            let received = match latpath_nic_timestamps::receive(
                self.socket.as_fd(),
                &mut self.queued,
                &mut self.control,
                flags,
            ) {
                Ok(received) => received,
                Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => return Ok(()),
                Err(e) => return Err(e),
            };
            let Some(Queued::Stamp(stamp)) = from_error_queue(received.control) else { continue };
            let packet = &self.queued[..received.len];
            let Some(at) = message_in(packet, self.message_at) else { continue };
            self.message_at = at;
            each(Left { message: &packet[at..], stamp: of_sending(stamp.kind), time: stamp.time });
        }
        Ok(())
    }

    fn last_refusal(&self) -> Option<io::Error> {
        self.refusal.map(io::Error::from_raw_os_error)
    }
}

/// Where the message begins in a packet that was sent, behind whatever headers. `guess` is where it did before.
fn message_in(packet: &[u8], guess: usize) -> Option<usize> {
    let begins = |at: &usize| packet.get(*at..).is_some_and(|bytes| Header::read(bytes).is_some());
    Some(guess).filter(begins).or_else(|| (0..=HEADERS).find(begins))
}

/// The emitter's end: a connected socket.
pub struct UdpEmitter {
    socket: Socket,
    peer: SocketAddr,
}

impl UdpEmitter {
    /// A socket to the reflector at `peer`, from `local` where that is given.
    pub fn connect(peer: SocketAddr, local: Option<IpAddr>, options: &UdpOptions) -> Result<Self, UdpError> {
        let any: IpAddr = if peer.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
        let from = SocketAddr::new(local.unwrap_or(any), 0);
        let socket = bind(from)?;
        let socket = Socket::new(socket, peer, options, false)?;
        socket.socket.connect(peer).map_err(|cause| UdpError::NoRoute { peer, cause })?;
        Ok(Self { socket, peer })
    }
}

fn bind(at: SocketAddr) -> Result<UdpSocket, UdpError> {
    UdpSocket::bind(at).map_err(|cause| match cause.raw_os_error() {
        Some(libc::EADDRINUSE) => UdpError::PortTaken(at),
        Some(libc::EADDRNOTAVAIL) => UdpError::NotOurs(at),
        _ => UdpError::Os { at, doing: "opening a socket", cause },
    })
}

impl Transport for UdpEmitter {
    type Peer = ();
    type Error = UdpError;

    #[inline]
    fn send(&mut self, (): (), message: &[u8]) -> Result<Sent, UdpError> {
        match kernel::send(self.socket.fd(), message) {
            Ok(_) => Ok(Sent::Taken),
            Err(e) if e.raw_os_error() == Some(libc::ECONNREFUSED) => {
                // That was the answer to the message before; this one was not sent, and is now.
                let again = kernel::send(self.socket.fd(), message);
                again.map(|_| Sent::Taken).or_else(|e| self.socket.refused(e, self.peer, message.len()))
            }
            Err(e) => self.socket.refused(e, self.peer, message.len()),
        }
    }

    #[inline]
    fn receive(&mut self, buffer: &mut [u8], wait: Wait) -> Result<Got<()>, UdpError> {
        let flags = self.socket.flags(wait);
        let Socket { socket, with_control, control, .. } = &mut self.socket;
        let got = if *with_control {
            latpath_nic_timestamps::receive(socket.as_fd(), buffer, control, flags)
                .map(|r| (r.len, rx_stamps(r.control)))
        } else {
            kernel::receive(socket.as_fd(), buffer, flags).map(|len| (len, Default::default()))
        };
        match got {
            Ok((len, stamps)) => Ok(Got::Message(Arrived { from: (), len, kernel: stamps.kernel, nic: stamps.nic })),
            Err(e) => Socket::nothing(e).map_err(|cause| UdpError::Os { at: self.peer, doing: "receiving", cause }),
        }
    }

    fn left(&mut self, each: &mut dyn FnMut(Left<'_>)) -> Result<(), UdpError> {
        let at = self.peer;
        self.socket.left(each).map_err(|cause| UdpError::Os { at, doing: "reading stamps", cause })
    }

    fn takes(&self) -> u16 {
        self.socket.takes
    }

    fn dropped(&self) -> u64 {
        kernel::drops(self.socket.fd())
    }

    fn last_refusal(&self) -> Option<io::Error> {
        self.socket.last_refusal()
    }
}

/// Who asks a reflector, and by which of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpPeer {
    /// The emitter's address.
    pub address: SocketAddr,
    /// The reflector's, where it listens on all of them.
    pub asked: Option<IpAddr>,
}

impl std::fmt::Display for UdpPeer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        SocketAddr::new(self.address.ip().to_canonical(), self.address.port()).fmt(f)
    }
}

/// The reflector's end.
pub struct UdpReflector {
    socket: Socket,
    at: SocketAddr,
    any: bool,
}

impl UdpReflector {
    /// A socket that listens at this address; the unspecified one is any of this machine's.
    pub fn listen(at: SocketAddr, options: &UdpOptions) -> Result<Self, UdpError> {
        let any = at.ip().is_unspecified();
        let socket = Socket::new(bind(at)?, at, options, any)?;
        if any {
            let (level, name) = match at {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
            };
            kernel::set_option(socket.fd(), level, name, &1i32).map_err(|cause| UdpError::Os {
                at,
                doing: "asking which address was meant",
                cause,
            })?;
        }
        let at = socket.socket.local_addr().unwrap_or(at);
        Ok(Self { socket, at, any })
    }

    /// Where it listens.
    pub fn local(&self) -> SocketAddr {
        self.at
    }
}

impl Transport for UdpReflector {
    type Peer = UdpPeer;
    type Error = UdpError;

    #[inline]
    fn send(&mut self, to: UdpPeer, message: &[u8]) -> Result<Sent, UdpError> {
        // An IPv4 peer of a socket of both families has a mapped address, and is answered from one.
        let asked = to.asked;
        match kernel::send_to(self.socket.fd(), message, &to.address, asked) {
            Ok(_) => Ok(Sent::Taken),
            // A reflector goes on, whatever becomes of one emitter.
            Err(e) => self.socket.refused(e, to.address, message.len()).or(Ok(Sent::Refused)),
        }
    }

    #[inline]
    fn receive(&mut self, buffer: &mut [u8], wait: Wait) -> Result<Got<UdpPeer>, UdpError> {
        let flags = self.socket.flags(wait);
        let Socket { socket, with_control, control, .. } = &mut self.socket;
        match kernel::receive_from(socket.as_fd(), buffer, with_control.then_some(&mut *control), flags) {
            Ok((Some(address), len, filled)) => {
                let control = if *with_control { control.filled(filled) } else { &[] };
                let stamps = rx_stamps(control);
                let asked = if self.any { local_address(control) } else { None };
                let from = UdpPeer { address, asked };
                Ok(Got::Message(Arrived { from, len, kernel: stamps.kernel, nic: stamps.nic }))
            }
            Ok((None, ..)) => Ok(Got::Nothing),
            Err(e) => match Socket::nothing::<()>(e) {
                // An emitter went away: that concerns nobody else.
                Ok(_) => Ok(Got::Nothing),
                Err(cause) => Err(UdpError::Os { at: self.at, doing: "receiving", cause }),
            },
        }
    }

    fn left(&mut self, each: &mut dyn FnMut(Left<'_>)) -> Result<(), UdpError> {
        let at = self.at;
        self.socket.left(each).map_err(|cause| UdpError::Os { at, doing: "reading stamps", cause })
    }

    fn takes(&self) -> u16 {
        self.socket.takes
    }

    fn dropped(&self) -> u64 {
        kernel::drops(self.socket.fd())
    }

    fn last_refusal(&self) -> Option<io::Error> {
        self.socket.last_refusal()
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
            let Ok(mut reflector) = UdpReflector::listen(address.parse().unwrap(), &options) else { continue };
            let mut at = reflector.local();
            if at.ip().is_unspecified() {
                at.set_ip("127.0.0.9".parse().unwrap());
            }
            let mut emitter = UdpEmitter::connect(at, None, &options).unwrap();
            let mut message = [0u8; 96];
            Header { kind: Kind::Probe, session: 1, sequence: 2, first: 3, second: 4 }.write(&mut message);
            let mut buffer = [0; 300];
            // The kernel begins to stamp what it receives a moment after it was asked to.
            let came = (0..5000).find_map(|_| {
                std::thread::sleep(Duration::from_millis(1));
                emitter.left(&mut |_| ()).unwrap();
                assert_eq!(emitter.send((), &message).unwrap(), Sent::Taken);
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
    fn nobody_there_is_said_so() {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut emitter = UdpEmitter::connect(free, None, &UdpOptions::default()).unwrap();
        emitter.send((), &[0; 40]).unwrap();
        let got = emitter.receive(&mut [0; 40], Wait::Until(latpath_linux::monotonic() + 1_000_000_000)).unwrap();
        assert_eq!(got, Got::NobodyThere);
    }
}
