//! AF_PACKET sockets: opening, sending in batches, receiving copies.

#![allow(unsafe_code)]

use crate::control::{arrival, removed_tag, rx_stamps};
use crate::tx_stamps::{RequestMessage, TxStampCounts, TxStamps};
use crate::{ask_for, filter, message, Device, DeviceError, Stamps};
use latpath_linux::net::{self, set_buffers, set_option};
use latpath_linux::realtime;
use latpath_model::Ns;
use latpath_protocols::{ProtocolId, Tag};
use std::cell::Cell;
use std::io::{self, IoSlice};
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Maximum wait for a frame, ms; bounds the time between a caller's checks of its stop flag and clock.
pub(crate) const WAIT_MS: i32 = 100;

/// The frames that a socket receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// None: the socket only sends.
    No,
    /// Frames of this protocol that are delivered on the device: there are none on a bridge port, and a frame in a VLAN
    /// that the device does not have is delivered without its tag. The protocol must have only one ethertype.
    Delivered(ProtocolId),
    /// All frames of these protocols that the device receives, with their tags; works on a bridge port.
    Incoming(Vec<ProtocolId>),
    /// All frames of these protocols that pass through the device in either direction; works on a bridge port.
    Passing(Vec<ProtocolId>),
    /// All frames that the device receives and this classic BPF program accepts, with their tags and the timestamps
    /// that [`PacketSocket::request_stamps`] requests. Works on a bridge port; reads one frame per system call.
    Matching(Vec<libc::sock_filter>),
}

/// The group addresses accepted by the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Groups {
    /// Only these addresses.
    These(Vec<[u8; 6]>),
    /// All group addresses.
    All,
    /// Everything (promiscuous mode).
    Everything,
}

/// A packet socket bound to a device.
#[derive(Debug)]
pub struct PacketSocket {
    socket: net::PacketSocket,
    device: Device,
    /// Ethertype that it receives once started; 0 if it only sends.
    protocol: u16,
    headers: Headers,
    drops: Cell<u64>,
    tx_stamps: Option<Box<(TxStamps, message::Control)>>,
}

/// Memory for the headers of sent frames, whose pointers are valid only during [`PacketSocket::send`].
#[derive(Debug, Default)]
struct Headers(Vec<libc::mmsghdr>);

// SAFETY: no pointer is read outside `send`, which sets it first.
unsafe impl Send for Headers {}

/// Result of [`PacketSocket::send`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Number of frames that the kernel accepted.
    pub taken: usize,
    /// Whether the kernel rejected the next frame because a queue was full; that frame is lost.
    pub refused: bool,
}

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The bytes from the destination MAC on, excluding the tag that the kernel removed.
    pub frame: &'a [u8],
    /// The 802.1Q tag that the kernel removed.
    pub tag: Option<Tag>,
    /// Time of reception by the kernel, `CLOCK_REALTIME`, ns.
    pub arrival: Option<Ns>,
    /// Time of arrival at the NIC by its own clock, if [`PacketSocket::request_stamps`] requested it; `None` if read
    /// from a ring, which has only one timestamp per frame.
    pub nic: Option<Ns>,
    /// Time of reception by the application, `CLOCK_REALTIME`, ns.
    pub had: Ns,
}

impl PacketSocket {
    /// Opens a socket on `device`. A listening socket receives nothing until it is started.
    ///
    /// # Errors
    /// The device cannot be used, or the socket cannot be set up.
    pub fn open(device: &str, listen: Listen) -> Result<Self, DeviceError> {
        Self::on(Device::open(device)?, listen)
    }

    /// As [`Self::open`], for a device that has already been opened.
    ///
    /// # Errors
    /// The socket cannot be set up.
    pub fn on((device, socket): (Device, net::PacketSocket), listen: Listen) -> Result<Self, DeviceError> {
        let protocol = match &listen {
            Listen::No => 0,
            Listen::Delivered(protocol) => protocol.info().ethertypes[0],
            // A socket for a single protocol would miss the tags of VLANs unknown to the device, and all frames on a
            // bridge port.
            Listen::Incoming(_) | Listen::Passing(_) | Listen::Matching(_) => libc::ETH_P_ALL as u16,
        };
        let socket =
            Self { socket, device, protocol, headers: Headers::default(), drops: Cell::new(0), tx_stamps: None };
        // The larger receive buffer holds a burst of about 10,000 frames; beyond that the kernel drops and counts
        // frames.
        let (buffer, wait_ms) = match listen {
            Listen::No => (4 << 20, 1000),
            Listen::Matching(_) => (4 << 20, WAIT_MS / 2),
            _ => (16 << 20, WAIT_MS),
        };
        let (tv_sec, tv_usec) = ((wait_ms / 1000).into(), (wait_ms % 1000 * 1000).into());
        let wait = libc::timeval { tv_sec, tv_usec };
        set_buffers(socket.fd(), buffer).map_err(|e| socket.device.failed("setting its buffers", e))?;
        socket.option("setting its timeout", libc::SOL_SOCKET, libc::SO_RCVTIMEO, &wait)?;
        socket.option("setting its timeout", libc::SOL_SOCKET, libc::SO_SNDTIMEO, &wait)?;
        if listen != Listen::No {
            socket.option("asking for tags", libc::SOL_PACKET, libc::PACKET_AUXDATA, &1i32)?;
        }
        if matches!(listen, Listen::Incoming(_) | Listen::Matching(_)) {
            socket.option("leaving out what is sent", libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32)?;
        }
        let program = match listen {
            Listen::No => return Ok(socket),
            Listen::Matching(program) => Some(program),
            _ => {
                socket.option("asking for arrival times", libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1i32)?;
                match listen {
                    Listen::Incoming(protocols) | Listen::Passing(protocols) => Some(filter::program(&protocols)),
                    _ => None,
                }
            }
        };
        if let Some(mut program) = program {
            let attached = socket.socket.filter(&mut program);
            attached.map_err(|e| socket.device.failed("attaching a filter", e))?;
        }
        Ok(socket)
    }

    /// Starts receiving frames.
    ///
    /// # Errors
    /// The socket cannot be bound to the device.
    pub fn start(&self) -> Result<(), DeviceError> {
        self.socket.bind(self.device.index, self.protocol).map_err(|e| self.device.failed("binding", e))
    }

    /// Requests timestamps, as [`ask_for`].
    ///
    /// # Errors
    /// A privilege is missing, or the kernel lacks the option.
    pub fn request_stamps(&self, stamps: Stamps) -> Result<(), DeviceError> {
        ask_for(self.fd(), stamps).map_err(|cause| self.refused("setting its socket up", io::Error::other(cause)))
    }

    /// Sets the priority of sent frames (`SO_PRIORITY`), which determines a qdisc's queue.
    ///
    /// # Errors
    /// The kernel refuses the priority.
    pub fn set_priority(&self, priority: u8) -> Result<(), DeviceError> {
        let set = set_option(self.fd(), libc::SOL_SOCKET, libc::SO_PRIORITY, &i32::from(priority));
        set.map_err(|cause| self.refused("setting its priority", cause))
    }

    pub(crate) fn refused(&self, doing: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::Os { device: self.device.name.clone(), doing, cause }
    }

    /// The device's MAC address.
    pub fn mac(&self) -> [u8; 6] {
        self.device.mac
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The socket's descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn option<T: Copy>(&self, doing: &'static str, level: i32, name: i32, v: &T) -> Result<(), DeviceError> {
        set_option(self.fd(), level, name, v).map_err(|cause| self.device.failed(doing, cause))
    }

    /// Makes the device accept these group addresses, until the socket closes.
    ///
    /// # Errors
    /// The kernel refuses a group, e.g. because there are too many.
    pub fn join(&self, groups: &Groups) -> Result<(), DeviceError> {
        let add = |kind, mac| {
            let joined = self.socket.join(self.device.index, kind, mac);
            joined.map_err(|cause| self.device.failed("joining a group", cause))
        };
        match groups {
            Groups::These(macs) => macs.iter().try_for_each(|mac| add(libc::PACKET_MR_MULTICAST, Some(*mac))),
            Groups::All => add(libc::PACKET_MR_ALLMULTI, None),
            Groups::Everything => add(libc::PACKET_MR_PROMISC, None),
        }
    }

    /// Passes frames directly to the driver, bypassing the queueing discipline. The kernel then also bypasses its
    /// tracepoint `net_dev_start_xmit`, so latpath has no `tx` point on this device.
    ///
    /// # Errors
    /// The kernel refuses the option.
    pub fn bypass_qdisc(&self) -> Result<(), DeviceError> {
        self.option("passing by the queueing discipline", libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1i32)
    }

    /// Requests NIC timestamps of sent frames from now on, for one frame at a time. The NIC's timestamps must be
    /// switched on. The timestamps are used by other programs, which follow the packets; here they are only counted.
    ///
    /// # Errors
    /// The kernel refuses the option.
    pub fn sample_tx_stamps(&mut self) -> Result<(), DeviceError> {
        // The frame's bytes are not returned, and each frame requests its own timestamp.
        let flags = libc::SOF_TIMESTAMPING_RAW_HARDWARE | libc::SOF_TIMESTAMPING_OPT_TSONLY;
        self.option("asking for the NIC's times", libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &(flags as i32))?;
        self.tx_stamps = Some(Box::default());
        Ok(())
    }

    /// Counts of requested timestamps; `None` without [`Self::sample_tx_stamps`].
    pub fn tx_stamps(&self) -> Option<TxStampCounts> {
        self.tx_stamps.as_ref().map(|stamps| stamps.0.counts())
    }

    /// Sends frames in a single system call. The kernel may accept only some of them; call again with the rest.
    ///
    /// # Errors
    /// The device is down or has vanished, a frame is too long, or sending fails for another reason.
    pub fn send(&mut self, frames: &[IoSlice<'_>]) -> Result<Sent, DeviceError> {
        let headers = &mut self.headers.0;
        while headers.len() < frames.len() {
            // SAFETY: all zeros is a valid mmsghdr: no name, no data, no control.
            headers.push(unsafe { zeroed() });
        }
        for (header, frame) in headers.iter_mut().zip(frames) {
            // IoSlice has the layout of iovec; the kernel only reads the data.
            header.msg_hdr.msg_iov = std::ptr::from_ref(frame).cast_mut().cast();
            header.msg_hdr.msg_iovlen = 1;
            (header.msg_hdr.msg_control, header.msg_hdr.msg_controllen) = (std::ptr::null_mut(), 0);
        }
        let (mut message, mut has_request) = (RequestMessage::new(), false);
        if let (Some(stamps), Some(first)) = (&mut self.tx_stamps, headers.first_mut()) {
            has_request = stamps.0.is_next();
            if has_request {
                first.msg_hdr.msg_control = std::ptr::from_mut(&mut message).cast();
                first.msg_hdr.msg_controllen = size_of::<RequestMessage>() as _;
            }
        }
        let (fd, count) = (self.socket.as_fd().as_raw_fd(), frames.len() as u32);
        loop {
            // SAFETY: the first `count` headers point to `frames`, and one to `message`, which outlive the call.
            let n = unsafe { libc::sendmmsg(fd, headers.as_mut_ptr(), count, 0) };
            if n >= 0 {
                if let Some(stamps) = &mut self.tx_stamps {
                    let (stamps, control) = &mut **stamps;
                    stamps.sent(n as usize, has_request, 0);
                    stamps
                        .collect(self.socket.as_fd(), control)
                        .map_err(|e| self.device.failed("reading the NIC's times", e))?;
                }
                return Ok(Sent { taken: n as usize, refused: false });
            }
            match send_error(&self.device, io::Error::last_os_error(), frames.first().map_or(0, |f| f.len())) {
                None => continue,
                Some(result) => return result,
            }
        }
    }

    /// The error that a frame of `len` bytes is too long.
    pub fn too_long(&self, len: usize) -> DeviceError {
        self.device.too_long(len)
    }

    /// Number of frames that the kernel dropped since the socket was opened, because its buffer was full.
    pub fn dropped(&self) -> u64 {
        self.drops.set(self.drops.get() + self.socket.dropped());
        self.drops.get()
    }
}

/// Converts the error of a system call that failed to send a frame of `len` bytes; `None` if the call is to be
/// repeated.
pub(crate) fn send_error(device: &Device, e: io::Error, len: usize) -> Option<Result<Sent, DeviceError>> {
    Some(match e.raw_os_error() {
        Some(libc::EINTR) => return None,
        Some(libc::ENOBUFS | libc::EAGAIN) => Ok(Sent { taken: 0, refused: true }),
        Some(libc::EMSGSIZE) => Err(device.too_long(len)),
        _ => Err(device.failed("sending", e)),
    })
}

/// Maximum number of frames per system call.
const BATCH: usize = 32;
/// Maximum length of a frame, bytes; longer ones are truncated, and so count as malformed.
const SNAP: usize = 9216;
/// Size of the buffer for a timespec, a tpacket_auxdata and a scm_timestamping, including their headers, bytes.
const CONTROL: usize = 192;

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
    /// Creates a receiver for this socket.
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
    pub fn socket(&self) -> &PacketSocket {
        &self.socket
    }

    /// Waits at most 100 ms for frames, calls `take` with each, and returns their number.
    ///
    /// # Errors
    /// The device is down or has vanished, or receiving fails for another reason.
    pub fn receive(&mut self, take: &mut dyn FnMut(Received<'_>)) -> Result<usize, DeviceError> {
        let parts = self.vectors.iter_mut().zip(&mut self.control);
        for (header, (vector, control)) in self.headers.iter_mut().zip(parts) {
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL as _;
        }
        let fd = self.socket.fd().as_raw_fd();
        let (headers, flags) = (self.headers.as_mut_ptr(), libc::MSG_WAITFORONE as _);
        // SAFETY: each of the BATCH headers points to its own SNAP bytes of data and CONTROL bytes of control, all
        // owned by self and not moved: they are on the heap.
        let n = unsafe { libc::recvmmsg(fd, headers, BATCH as u32, flags, std::ptr::null_mut()) };
        let had = realtime();
        if n < 0 {
            let e = io::Error::last_os_error();
            return match e.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(0),
                _ => Err(self.socket.device.failed("receiving", e)),
            };
        }
        let received = self.headers[..n as usize].iter().zip(self.data.chunks_exact(SNAP)).zip(&self.control);
        for ((header, data), control) in received {
            let frame = &data[..(header.msg_len as usize).min(SNAP)];
            let control = &control.0[..header.msg_hdr.msg_controllen.min(CONTROL)];
            let (tag, arrival, nic) = (removed_tag(control), arrival(control), rx_stamps(control).nic);
            take(Received { frame, tag, arrival, nic, had });
        }
        Ok(n as usize)
    }
}
