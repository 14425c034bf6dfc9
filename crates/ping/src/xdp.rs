//! Probes in raw Ethernet frames that bypass the kernel's network stack: AF_XDP.
//!
//! An XDP program redirects latpath's frames to the socket of their receive queue, before the kernel allocates packets,
//! and passes all others to the kernel. Frames are in memory that the kernel and the process share, where polling reads
//! only the producer index of a ring. Sent frames use the first queue and bypass the queueing discipline.
//!
//! A device has at most one XDP program: one emitter or reflector using AF_XDP, and none besides another program. If a
//! NIC strips 802.1Q tags (`ethtool -K IF rxvlan off` disables that), XDP does not see them. Neither the kernel nor the
//! NIC stamps these frames. The XDP program can stamp received frames, in place of the kernel's receive stamp; a few
//! drivers have no room for its metadata (bpf_xdp_adjust_meta), so their frames have no stamp.

mod kernel;
mod program;
#[allow(clippy::all, unsafe_code, unused, reason = "generated from the eBPF object")]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/xsk.skel.rs"));
}

use crate::ethernet::{addresses, read, room, sender, write, Framing, Options, Peer, AROUND};
use crate::transaction::Stamp;
use crate::transport::{Arrived, Got, KernelClock, Sent, SentStamp, Transport, Wait};
use kernel::{Bind, Frames, Socket};
use latpath_wire::{BusyPoll, Device, DeviceError, Groups, Listen, PacketSocket};
use program::Program;
use std::fmt;
use std::io;

/// Maximum number of queues, as in bpf/xsk.bpf.c.
const MAX_QUEUES: usize = 64;
/// Maximum wait for a frame, so that callers check their stop flag and clock, ns.
const WAIT_NS: i64 = 50_000_000;
/// Number of polls of empty rings between two checks of whether the device exists.
const LOOKS: u32 = 1 << 16;

/// Place at which the XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the driver, before the kernel allocates a packet.
    Driver,
    /// After the driver, in generic code: works on any device, and copies frames.
    Generic,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Driver => "driver",
            Self::Generic => "generic",
        })
    }
}

/// Options of AF_XDP.
#[derive(Clone, Debug)]
pub struct XdpOptions {
    /// Device, session, groups and stamps. Of the stamps, only the kernel's receive stamp is taken, by the XDP program.
    pub frames: Options,
    /// Required place of the program; by default the best one that works.
    pub place: Option<Place>,
    /// Whether zero copy is required (`true`) or excluded (`false`); by default the best mode that works.
    pub zero_copy: Option<bool>,
    /// Busy polling of the NIC, in the system calls of this process.
    pub busy_poll: BusyPoll,
    /// Whether the frames' memory consists of huge pages.
    pub huge_pages: bool,
}

impl XdpOptions {
    /// Default options of a reflector on a device.
    pub fn new(device: &str) -> Self {
        Self {
            frames: Options::new(device),
            place: None,
            zero_copy: None,
            busy_poll: BusyPoll::default(),
            huge_pages: false,
        }
    }
}

/// Why AF_XDP cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A permission is missing.
    #[error("{0}: AF_XDP needs root, or CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF; try with sudo")]
    NotAllowed(String),
    /// The device already has an XDP program.
    #[error(
        "{device}: another XDP program{} is attached already, and there can be only one (bpftool net show dev {device}); stop the program that \
         attached it, or ping without AF_XDP", .id.map_or(String::new(), |id| format!(" (id {id})"))
    )]
    Taken {
        /// Name of the device.
        device: String,
        /// ID of the other program.
        id: Option<u32>,
    },
    /// The program cannot be attached at this place.
    #[error("{device}: no XDP program can be attached there ({place}): {cause}{}", hint(.cause))]
    NoPlace {
        /// Name of the device.
        device: String,
        /// The place that was requested.
        place: Place,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The kernel refused the socket for a queue.
    #[error("{device}: no AF_XDP socket on its queue {queue} ({how}): {cause}")]
    Queue {
        /// Name of the device.
        device: String,
        /// Index of the queue.
        queue: u32,
        /// Mode of the socket: with or without copies.
        how: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The kernel refused the memory.
    #[error("{device}: memory for frames{}: {cause}", if *.huge { " in huge pages (sysctl vm.nr_hugepages; some of 2 MiB for each queue)" } else { "" })]
    Memory {
        /// Name of the device.
        device: String,
        /// Whether huge pages were requested.
        huge: bool,
        /// The kernel's error.
        cause: io::Error,
    },
    /// Zero copy is impossible at the program's place.
    #[error("{0}: without copies the XDP program must be in the driver, and it is behind it")]
    NoZeroCopy(String),
    /// Another error.
    #[error("{device}: {doing}: {cause}")]
    Os {
        /// Name of the device.
        device: String,
        /// Operation that failed.
        doing: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
}

impl XdpError {
    /// Converts an error returned by libbpf.
    fn of(device: &str, doing: &'static str, cause: libbpf_rs::Error) -> Self {
        match cause.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => Self::NotAllowed(device.into()),
            _ => Self::Os { device: device.into(), doing, cause: io::Error::other(cause) },
        }
    }
}

/// A hint for the user if a driver rejects the program.
fn hint(cause: &io::Error) -> &'static str {
    match cause.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "; its driver has no XDP",
        Some(libc::ERANGE | libc::EINVAL) => "; a lower MTU, or fewer queues, may help",
        _ => "",
    }
}

/// The mode that was found to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Place of the XDP program.
    pub place: Place,
    /// Whether the NIC itself reads and writes the frames.
    pub zero_copy: bool,
    /// Number of receive queues, from queue 0.
    pub queues: usize,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let copies = if self.zero_copy { "zero copy" } else { "copies" };
        let many = if self.queues == 1 { "" } else { "s" };
        write!(f, "AF_XDP ({} XDP, {copies}, {} queue{many})", self.place, self.queues)
    }
}

/// Raw Ethernet frames by AF_XDP.
#[derive(Debug)]
pub struct Xdp {
    sockets: Vec<Socket>,
    /// Index of the socket to poll next.
    next: usize,
    /// Socket that holds the multicast memberships; it receives nothing.
    groups: PacketSocket,
    options: XdpOptions,
    program: Program,
    /// Maximum length of a frame, bytes.
    longest: usize,
    refused: Option<i32>,
    looks: u32,
}

impl Xdp {
    /// Opens a socket per queue and attaches the program.
    ///
    /// # Errors
    /// If the device, its queues, the program's place or the memory is unavailable, or permission is denied.
    pub fn open(options: XdpOptions) -> Result<Self, XdpError> {
        let XdpOptions { frames, .. } = &options;
        let name = frames.device.clone();
        let groups = PacketSocket::on(Device::open_ethernet(&name)?, Listen::No)?;
        let device = groups.device();
        let addresses = addresses(device, &frames.groups)?;
        groups.join(&Groups::These(frames.groups.clone()))?;
        let requested = options.place.or((options.zero_copy == Some(true)).then_some(Place::Driver));
        let program = Program::attach(device, &addresses, frames.session, frames.stamps.rx_kernel, requested)?;
        let how = match (options.zero_copy, program.place) {
            (Some(true), Place::Generic) => return Err(XdpError::NoZeroCopy(name)),
            (Some(true), Place::Driver) => Bind::ZeroCopy,
            (None, Place::Driver) => Bind::Any,
            // A zero-copy socket would receive nothing from a generic program.
            (Some(false), _) | (_, Place::Generic) => Bind::Copy,
        };
        // A received frame is preceded by headroom, and its memory must not cross a page boundary.
        let chunk = if device.mtu + AROUND + kernel::HEADROOM <= 2048 { 2048 } else { 4096 };
        let sockets = open_queues(device, &options, chunk, how)?;
        for (queue, socket) in sockets.iter().enumerate() {
            let handed = program.hand_over(queue as u32, socket.fd());
            handed.map_err(|e| XdpError::of(&name, "naming its sockets", e))?;
        }
        let longest = chunk - kernel::HEADROOM;
        Ok(Self { sockets, next: 0, groups, options, program, longest, refused: None, looks: 0 })
    }

    /// The device in use.
    pub fn device(&self) -> &Device {
        self.groups.device()
    }

    /// The mode of the sockets.
    pub fn mode(&self) -> Mode {
        let zero_copy = self.sockets.iter().all(Socket::zero_copy);
        Mode { place: self.program.place, zero_copy, queues: self.sockets.len() }
    }

    /// Maximum length of a message in a frame with this framing, bytes.
    pub fn room(&self, framing: Framing) -> usize {
        room(framing, self.device().mtu).min(self.longest - AROUND)
    }

    /// Polls each queue once until one has a message.
    #[inline]
    fn take_next(&mut self, buffer: &mut [u8]) -> Option<Arrived<Peer>> {
        let count = self.sockets.len();
        for _ in 0..count {
            let socket = &mut self.sockets[self.next];
            socket.wake_kernel();
            let arrived = socket.take(|frame, kernel| {
                // A malformed frame that passed the program becomes an empty message, so that it counts as foreign.
                let unread = || (sender(frame, None), &[][..]);
                let (from, message) = read(frame, None).map_or_else(unread, |(peer, at)| (peer, &frame[at]));
                let len = message.len().min(buffer.len());
                buffer[..len].copy_from_slice(&message[..len]);
                Arrived { from, len, kernel, nic: None }
            });
            if arrived.is_some() {
                return arrived;
            }
            self.next = (self.next + 1) % count;
        }
        None
    }

    /// Checks from time to time that the device still exists.
    fn alive(&mut self, slept: bool) -> Result<(), XdpError> {
        self.looks = self.looks.wrapping_add(1);
        if slept || self.looks.is_multiple_of(LOOKS) {
            // The kernel reports an error once when a device is removed, and none for a device that is down.
            if let Some(cause) = self.sockets.iter().find_map(Socket::error) {
                return Err(self.device().failed("receiving", cause).into());
            }
        }
        Ok(())
    }
}

/// Opens a socket for every queue of the device.
fn open_queues(device: &Device, options: &XdpOptions, chunk: usize, how: Bind) -> Result<Vec<Socket>, XdpError> {
    let name = || device.name.clone();
    let mut sockets = Vec::new();
    for queue in 0..MAX_QUEUES as u32 {
        // Most NICs deliver non-IP frames to the first queue, so it gets room for 20 ms at 100,000/s.
        let (incoming, outgoing) = if queue == 0 { (2048, 512) } else { (256, 2) };
        let opened = Socket::open(Frames { chunk, incoming, outgoing }, options.huge_pages);
        let mut socket = opened.map_err(|cause| match cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => XdpError::NotAllowed(name()),
            Some(libc::EAFNOSUPPORT | libc::ENOPROTOOPT) => {
                XdpError::Os { device: name(), doing: "opening an AF_XDP socket (CONFIG_XDP_SOCKETS)", cause }
            }
            _ => XdpError::Memory { device: name(), huge: options.huge_pages, cause },
        })?;
        let polls = options.busy_poll.set(socket.fd());
        polls.map_err(|e| XdpError::Os {
            device: name(),
            doing: "setting its socket up",
            cause: io::Error::other(e),
        })?;
        socket.polls = options.busy_poll != BusyPoll::default();
        match socket.bind(device.index, queue, how) {
            Ok(()) => sockets.push(socket),
            // EINVAL: the device has no further queue.
            Err(cause) if queue > 0 && cause.raw_os_error() == Some(libc::EINVAL) => break,
            Err(cause) if cause.raw_os_error() == Some(libc::ENETDOWN) => {
                return Err(DeviceError::Down(name()).into());
            }
            Err(cause) => {
                let how = match how {
                    Bind::Any => "with copies or without",
                    Bind::Copy => "with copies",
                    Bind::ZeroCopy => "without copies",
                };
                return Err(XdpError::Queue { device: name(), queue, how, cause });
            }
        }
    }
    Ok(sockets)
}

impl Transport for Xdp {
    type Peer = Peer;
    type Error = XdpError;

    fn are_of_one_host(a: &Peer, b: &Peer) -> bool {
        a.mac == b.mac
    }

    #[inline]
    fn send(&mut self, to: Peer, message: &[u8]) -> Result<Sent, XdpError> {
        let room = self.room(to.framing);
        let from = self.device().mac;
        if message.len() > room {
            return Err(DeviceError::TooLong { device: self.device().name.clone(), len: message.len(), room }.into());
        }
        let errno = match self.sockets[0].send(|frame| write(frame, &to, from, message)) {
            Ok(Some(_)) => return Ok(Sent::Taken),
            Ok(None) => libc::ENOBUFS,
            // A device that is down may come back, so this is a refusal rather than an error.
            Err(cause) => match cause.raw_os_error() {
                Some(libc::ENOBUFS) => libc::ENOBUFS,
                Some(errno @ (libc::ENETDOWN | libc::ENXIO)) if self.device().is_there() => errno,
                _ => return Err(self.device().failed("sending", cause).into()),
            },
        };
        self.refused = Some(errno);
        Ok(Sent::Refused)
    }

    fn is_of_message(error: &XdpError) -> bool {
        matches!(error, XdpError::Device(DeviceError::TooLong { .. }))
    }

    #[inline]
    fn receive(&mut self, buffer: &mut [u8], wait: Wait) -> Result<Got<Peer>, XdpError> {
        if let Some(arrived) = self.take_next(buffer) {
            return Ok(Got::Message(arrived));
        }
        let longest = match wait {
            Wait::No => 0,
            Wait::Some => WAIT_NS,
            Wait::Until(deadline) => deadline.saturating_sub(latpath_linux::monotonic()).clamp(0, WAIT_NS),
        };
        if longest > 0 {
            kernel::wait(&self.sockets, longest);
            if let Some(arrived) = self.take_next(buffer) {
                return Ok(Got::Message(arrived));
            }
        }
        self.alive(longest > 0)?;
        Ok(Got::Nothing)
    }

    fn left(&mut self, _: &mut dyn FnMut(SentStamp<'_>)) -> Result<(), XdpError> {
        Ok(())
    }

    fn takes(&self) -> u16 {
        if self.options.frames.stamps.rx_kernel {
            Stamp::T4Kernel.bit()
        } else {
            0
        }
    }

    fn kernel_clock(&self) -> KernelClock {
        KernelClock::Monotonic
    }

    fn dropped(&self) -> u64 {
        self.sockets.iter().map(Socket::dropped).sum()
    }

    fn last_refusal(&self) -> Option<io::Error> {
        self.refused.map(io::Error::from_raw_os_error)
    }
}
