//! AF_PACKET sockets: opening, sending in batches, receiving copies.

use super::{filter, set_option};
use latpath_linux::realtime;
use latpath_model::Ns;
use latpath_protocols::{ProtocolId, Tag};
use nix::net::if_::{if_nameindex, if_nametoindex};
use std::io::{self, IoSlice};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Between a device going down and its name being gone lies less, also on a busy machine: the kernel waits for its CPUs in between.
const VANISHING: Duration = Duration::from_secs(1);

/// Longest wait for a frame, so that callers can look at their stop flag and clock.
pub(super) const WAIT_MS: i32 = 100;

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is none of this name.
    #[error("{device}: no such device (devices here: {here})")]
    NoDevice {
        /// The name.
        device: String,
        /// Those that there are.
        here: String,
    },
    /// Raw sockets are not allowed.
    #[error("{0}: raw packets need root or CAP_NET_RAW; try with sudo")]
    NotAllowed(String),
    /// The device is down.
    #[error("{0}: the device is down; bring it up with: ip link set {0} up")]
    Down(String),
    /// The device went away while it was used.
    #[error("{0}: the device vanished")]
    Vanished(String),
    /// A frame does not fit.
    #[error(
        "{device}: a frame of {len} bytes is longer than the device's MTU allows; use fewer ASDUs or a shorter svID"
    )]
    TooLong {
        /// The device.
        device: String,
        /// The frame's length.
        len: usize,
    },
    /// Anything else.
    #[error("{device}: {doing}: {cause}")]
    Os {
        /// The device.
        device: String,
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        cause: io::Error,
    },
}

/// What a socket receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nothing: the socket only sends.
    No,
    /// Frames of this protocol that are delivered on the device. On a port of a bridge nothing is; and where a frame carries a VLAN
    /// that the device does not know, the kernel delivers it without its tag. The protocol must have one ethertype.
    Delivered(ProtocolId),
    /// All frames of these protocols that the device receives, with their tags, also where it is a port of a bridge.
    Incoming(Vec<ProtocolId>),
    /// All frames of these protocols that pass the device in either direction, also where it is a port of a bridge.
    Passing(Vec<ProtocolId>),
}

/// Which group addresses the device lets in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Groups {
    /// These.
    These(Vec<[u8; 6]>),
    /// All group addresses.
    All,
    /// Everything (promiscuous mode).
    Everything,
}

/// A packet socket bound to one device.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    device: String,
    ifindex: i32,
    mac: [u8; 6],
    /// What it receives once it is started; 0 for nothing.
    protocol: u16,
    headers: Vec<libc::mmsghdr>,
    drops: u64,
}

/// How far [`PacketSocket::send`] came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames that the kernel took.
    pub taken: usize,
    /// The kernel refused the frame after those, because a queue was full: it is lost.
    pub refused: bool,
}

/// One frame as it was received.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The bytes from the destination MAC on, without the tag that the kernel took off.
    pub frame: &'a [u8],
    /// The 802.1Q tag that the kernel took off.
    pub tag: Option<Tag>,
    /// When the kernel received it, `CLOCK_REALTIME`.
    pub arrival: Option<Ns>,
    /// When the application had it, `CLOCK_REALTIME`.
    pub had: Ns,
}

/// Devices of this namespace, as an error names them: `lo, eth0`.
pub fn device_list() -> String {
    let names = if_nameindex()
        .map(|all| all.into_iter().map(|i| i.name().to_string_lossy().into_owned()).collect::<Vec<_>>().join(", "));
    names.unwrap_or_else(|e| format!("cannot be listed: {e}"))
}

impl PacketSocket {
    /// Opens a socket on `device`. One that listens receives nothing before a receiver is made of it.
    pub fn open(device: &str, listen: Listen) -> Result<Self, DeviceError> {
        let os = |doing, cause| DeviceError::Os { device: device.into(), doing, cause };
        // SAFETY: no pointers. Protocol 0 receives nothing until bind names one, so that options come first.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            let e = io::Error::last_os_error();
            return Err(match e.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => DeviceError::NotAllowed(device.into()),
                _ => os("opening a packet socket", e),
            });
        }
        // SAFETY: `fd` is a new descriptor that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let ifindex = if_nametoindex(device)
            .map_err(|_| DeviceError::NoDevice { device: device.into(), here: device_list() })?
            as i32;
        let protocol = match &listen {
            Listen::No => 0,
            Listen::Delivered(protocol) => protocol.info().ethertypes[0],
            Listen::Incoming(_) | Listen::Passing(_) => libc::ETH_P_ALL as u16,
        };
        let mut socket =
            Self { fd, device: device.into(), ifindex, mac: [0; 6], protocol, headers: Vec::new(), drops: 0 };
        if listen != Listen::No {
            socket.option("asking for tags", libc::SOL_PACKET, libc::PACKET_AUXDATA, &1i32)?;
            socket.option("asking for arrival times", libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1i32)?;
            // A burst of some 10,000 frames fits; beyond that the kernel counts what it drops.
            let size = 16i32 << 20;
            if socket.option("receive buffer", libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &size).is_err() {
                socket.option("receive buffer", libc::SOL_SOCKET, libc::SO_RCVBUF, &size)?;
            }
            let wait = libc::timeval { tv_sec: 0, tv_usec: libc::suseconds_t::from(WAIT_MS) * 1000 };
            socket.option("receive timeout", libc::SOL_SOCKET, libc::SO_RCVTIMEO, &wait)?;
        } else {
            let wait = libc::timeval { tv_sec: 1, tv_usec: 0 };
            socket.option("send timeout", libc::SOL_SOCKET, libc::SO_SNDTIMEO, &wait)?;
            let size = 4i32 << 20;
            if socket.option("send buffer", libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &size).is_err() {
                socket.option("send buffer", libc::SOL_SOCKET, libc::SO_SNDBUF, &size)?;
            }
        }
        if let Listen::Incoming(protocols) | Listen::Passing(protocols) = &listen {
            let mut program = filter::program(protocols);
            let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
            socket.option("attaching a filter", libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
        }
        if matches!(listen, Listen::Incoming(_)) {
            socket.option("leaving out what is sent", libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32)?;
        }
        socket.bind(0)?;
        Ok(socket)
    }

    /// From now on what passes the device is received.
    pub(crate) fn start(&mut self) -> Result<(), DeviceError> {
        self.bind(self.protocol)
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The device's own MAC.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn option<T: Copy>(&self, doing: &'static str, level: i32, name: i32, v: &T) -> Result<(), DeviceError> {
        set_option(self.fd(), level, name, v).map_err(|cause| DeviceError::Os {
            device: self.device.clone(),
            doing,
            cause,
        })
    }

    fn bind(&mut self, protocol: u16) -> Result<(), DeviceError> {
        // SAFETY: all zeros is a valid sockaddr_ll.
        let mut addr: libc::sockaddr_ll = unsafe { zeroed() };
        addr.sll_family = libc::AF_PACKET as u16;
        addr.sll_protocol = protocol.to_be();
        addr.sll_ifindex = self.ifindex;
        let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `addr` is a sockaddr_ll of `len` bytes.
        if unsafe { libc::bind(self.fd.as_raw_fd(), std::ptr::from_ref(&addr).cast(), len) } != 0 {
            return Err(self.failed("binding", io::Error::last_os_error()));
        }
        // SAFETY: the kernel writes at most `len` bytes, the size of `addr`.
        if unsafe { libc::getsockname(self.fd.as_raw_fd(), std::ptr::from_mut(&mut addr).cast(), &mut len) } == 0
            && addr.sll_halen == 6
        {
            self.mac.copy_from_slice(&addr.sll_addr[..6]);
        }
        Ok(())
    }

    /// Makes the device let in these group addresses; undone when the socket closes.
    pub fn join(&self, groups: &Groups) -> Result<(), DeviceError> {
        let add = |kind: i32, mac: Option<&[u8; 6]>| {
            // SAFETY: all zeros is a valid packet_mreq.
            let mut request: libc::packet_mreq = unsafe { zeroed() };
            request.mr_ifindex = self.ifindex;
            request.mr_type = kind as u16;
            if let Some(mac) = mac {
                request.mr_alen = 6;
                request.mr_address[..6].copy_from_slice(mac);
            }
            self.option("joining a group", libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
        };
        match groups {
            Groups::These(macs) => macs.iter().try_for_each(|m| add(libc::PACKET_MR_MULTICAST, Some(m))),
            Groups::All => add(libc::PACKET_MR_ALLMULTI, None),
            Groups::Everything => add(libc::PACKET_MR_PROMISC, None),
        }
    }

    /// Hands frames straight to the driver, past the queueing discipline. The kernel then also passes by its tracepoint
    /// `net_dev_start_xmit`: latpath has no `tx` point on this device.
    pub fn bypass_qdisc(&self) -> Result<(), DeviceError> {
        self.option("passing by the queueing discipline", libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1i32)
    }

    /// Hands over frames in one system call. Fewer may be taken than given: call again with the rest.
    pub fn send(&mut self, frames: &[IoSlice<'_>]) -> Result<Sent, DeviceError> {
        while self.headers.len() < frames.len() {
            // SAFETY: all zeros is a valid mmsghdr: no name, no data, no control.
            self.headers.push(unsafe { zeroed() });
        }
        for (header, frame) in self.headers.iter_mut().zip(frames) {
            // IoSlice has the layout of iovec; the kernel only reads what it points to.
            header.msg_hdr.msg_iov = std::ptr::from_ref(frame).cast_mut().cast();
            header.msg_hdr.msg_iovlen = 1;
        }
        let (fd, count) = (self.fd.as_raw_fd(), frames.len() as u32);
        loop {
            // SAFETY: the first `count` headers point to `frames`, which outlive the call.
            let n = unsafe { libc::sendmmsg(fd, self.headers.as_mut_ptr(), count, 0) };
            if n >= 0 {
                return Ok(Sent { taken: n as usize, refused: false });
            }
            let e = io::Error::last_os_error();
            return match e.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::ENOBUFS | libc::EAGAIN) => Ok(Sent { taken: 0, refused: true }),
                Some(libc::EMSGSIZE) => {
                    let len = frames.first().map_or(0, |f| f.len());
                    Err(DeviceError::TooLong { device: self.device.clone(), len })
                }
                _ => Err(self.failed("sending", e)),
            };
        }
    }

    /// Says what an error of a bound socket means.
    pub(super) fn failed(&self, doing: &'static str, cause: io::Error) -> DeviceError {
        let device = self.device.clone();
        let is_there = || if_nametoindex(device.as_str()).is_ok_and(|i| i as i32 == self.ifindex);
        let mut there = is_there();
        if there && cause.raw_os_error() == Some(libc::ENETDOWN) {
            // A device goes down a moment before it vanishes.
            let until = Instant::now() + VANISHING;
            while there && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
                there = is_there();
            }
        }
        match cause.raw_os_error() {
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) if !there => DeviceError::Vanished(device),
            Some(libc::ENETDOWN) => DeviceError::Down(device),
            _ => DeviceError::Os { device, doing, cause },
        }
    }

    /// Frames that the kernel dropped since the socket was opened, because its buffer was full.
    pub fn dropped(&mut self) -> u64 {
        // SAFETY: all zeros is a valid tpacket_stats.
        let mut stats: libc::tpacket_stats = unsafe { zeroed() };
        let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        let at = std::ptr::from_mut(&mut stats).cast();
        // SAFETY: the kernel writes at most `len` bytes, the size of `stats`. Reading sets its count to 0.
        let got =
            unsafe { libc::getsockopt(self.fd.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, at, &mut len) };
        if got == 0 {
            self.drops += u64::from(stats.tp_drops);
        }
        self.drops
    }
}

/// Frames that one system call may bring.
const BATCH: usize = 32;
/// Longest frame that is received whole; longer ones are cut, and then malformed.
const SNAP: usize = 9216;
/// Room for a timespec and a tpacket_auxdata with their headers.
const CONTROL: usize = 128;

#[repr(C, align(16))]
struct Control([u8; CONTROL]);

/// Receives copies of frames (`recvmmsg`).
pub struct CopyReceiver {
    socket: PacketSocket,
    data: Box<[u8]>,
    control: Box<[Control]>,
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
}

impl CopyReceiver {
    /// Receives from this socket.
    pub fn new(socket: PacketSocket) -> Self {
        let mut data = vec![0u8; BATCH * SNAP].into_boxed_slice();
        let control = (0..BATCH).map(|_| Control([0; CONTROL])).collect();
        let vectors = data.chunks_exact_mut(SNAP);
        let vectors = vectors.map(|d| libc::iovec { iov_base: d.as_mut_ptr().cast(), iov_len: SNAP }).collect();
        // SAFETY: all zeros is a valid mmsghdr; the pointers are set before each call.
        let headers = (0..BATCH).map(|_| unsafe { zeroed() }).collect();
        Self { socket, data, control, vectors, headers }
    }

    /// The socket.
    pub fn socket(&mut self) -> &mut PacketSocket {
        &mut self.socket
    }

    /// Waits at most 100 ms for frames, hands each to `take` and returns how many there were.
    pub fn receive(&mut self, take: &mut dyn FnMut(Received<'_>)) -> Result<usize, DeviceError> {
        let parts = self.vectors.iter_mut().zip(&mut self.control);
        for (header, (vector, control)) in self.headers.iter_mut().zip(parts) {
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL as _;
        }
        let fd = self.socket.fd.as_raw_fd();
        let (headers, flags) = (self.headers.as_mut_ptr(), libc::MSG_WAITFORONE as _);
        // SAFETY: each of the BATCH headers points to its own SNAP bytes of data and CONTROL bytes of control, all owned
        // by self and not moved: they are on the heap.
        let n = unsafe { libc::recvmmsg(fd, headers, BATCH as u32, flags, std::ptr::null_mut()) };
        let had = realtime();
        if n < 0 {
            let e = io::Error::last_os_error();
            return match e.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(0),
                _ => Err(self.socket.failed("receiving", e)),
            };
        }
        for (header, data) in self.headers[..n as usize].iter().zip(self.data.chunks_exact(SNAP)) {
            let frame = &data[..(header.msg_len as usize).min(SNAP)];
            let (tag, arrival) = control_messages(&header.msg_hdr);
            take(Received { frame, tag, arrival, had });
        }
        Ok(n as usize)
    }
}

/// The tag and the arrival time that came with a frame.
fn control_messages(header: &libc::msghdr) -> (Option<Tag>, Option<Ns>) {
    let (mut tag, mut arrival) = (None, None);
    // SAFETY: the kernel filled the control buffer that `header` points to and set its length.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !message.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return null or a whole header inside the buffer.
        let m = unsafe { &*message };
        // SAFETY: the data follows the header; it is read unaligned and only where the kernel says it is long enough.
        let (data, len) = unsafe { (libc::CMSG_DATA(message), m.cmsg_len as usize - libc::CMSG_LEN(0) as usize) };
        match (m.cmsg_level, m.cmsg_type) {
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS) if len >= size_of::<libc::timespec>() => {
                // SAFETY: as above.
                let t = unsafe { data.cast::<libc::timespec>().read_unaligned() };
                arrival = Some(t.tv_sec * 1_000_000_000 + t.tv_nsec);
            }
            (libc::SOL_PACKET, libc::PACKET_AUXDATA) if len >= size_of::<libc::tpacket_auxdata>() => {
                // SAFETY: as above.
                let aux = unsafe { data.cast::<libc::tpacket_auxdata>().read_unaligned() };
                tag = tag_of(aux.tp_status, aux.tp_vlan_tci, aux.tp_vlan_tpid);
            }
            _ => {}
        }
        // SAFETY: `message` is a header inside the control buffer of `header`.
        message = unsafe { libc::CMSG_NXTHDR(header, message) };
    }
    (tag, arrival)
}

/// The tag that the kernel took off, by a ring's header (`struct tpacket2_hdr`, `tpacket3_hdr`) or what comes beside a frame
/// (`struct tpacket_auxdata`). `None` where there was none.
pub fn tag_of(status: u32, tci: u16, tpid: u16) -> Option<Tag> {
    let tpid = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { tpid } else { 0x8100 };
    (status & libc::TP_STATUS_VLAN_VALID != 0).then_some(Tag { tpid, tci })
}
