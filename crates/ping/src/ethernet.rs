//! Probes in raw Ethernet frames over a packet socket: without IP, neighbour tables or a firewall.
//!
//! Both ends use the same kind of socket. An emitter's filter selects its session, so that answers to other emitters do
//! not wake it, and it sends to one peer ([`ToOne`]). A reflector answers the sender of a probe, in the same framing.
//! The kernel's filter discards frames to other addresses and of other protocols, and Sampled Values that are not
//! latpath's. The socket receives frames before a bridge or a VLAN device does, including their tags.

mod filter;
mod framing;
mod one;

pub use filter::MAX_ADDRESSES;
pub use framing::{read, room, svid, write, Framing, Peer, AROUND, OWN, SV, SVID};
pub use one::ToOne;

pub(crate) use framing::sender;

use crate::transport::{asked_for, of_sending, Arrived, Got, Sent, SentStamp, Transport, Wait};
use latpath_wire::{
    receive, removed_tag, rx_stamps, sent_stamps, Control, Device, DeviceError, Groups, Listen, PacketSocket, Stamps,
};
use nix::sys::socket::MsgFlags;
use std::io;
use std::os::fd::AsRawFd;

/// Maximum number of stamps per read, so that many stamps do not delay the caller.
const MAX_STAMPS: usize = 256;

/// Options of the socket.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the device.
    pub device: String,
    /// Session of an emitter, which receives only this session's messages; `None` for a reflector.
    pub session: Option<u32>,
    /// Group addresses to receive, besides the device's own address.
    pub groups: Vec<[u8; 6]>,
    /// Requested stamps.
    pub stamps: Stamps,
    /// `SO_PRIORITY`, which selects the queue of a qdisc.
    pub priority: Option<u8>,
    /// Whether frames bypass the queueing discipline; if so, there is no sched stamp.
    pub bypass_qdisc: bool,
}

impl Options {
    /// Default options of a reflector on a device.
    pub fn new(device: &str) -> Self {
        Self {
            device: device.into(),
            session: None,
            groups: Vec::new(),
            stamps: Stamps::default(),
            priority: None,
            bypass_qdisc: false,
        }
    }
}

/// Raw Ethernet frames over one device.
#[derive(Debug)]
pub struct Ethernet {
    socket: PacketSocket,
    options: Options,
    control: Control,
    /// Buffer for the frame to send.
    out: Box<[u8]>,
    /// Buffer for the received frame.
    seen: Box<[u8]>,
    refused: Option<i32>,
    /// Whether the device went down. It may also have been removed since.
    down: bool,
}

impl Ethernet {
    /// Opens a socket on the device.
    ///
    /// # Errors
    /// If the device does not exist or has no Ethernet addresses, a permission is missing, or a stamp is unavailable.
    pub fn open(options: Options) -> Result<Self, DeviceError> {
        let opened = Device::open_ethernet(&options.device)?;
        let addresses = addresses(&opened.0, &options.groups)?;
        let socket = PacketSocket::on(opened, Listen::Matching(filter::program(&addresses, options.session)))?;
        if options.bypass_qdisc {
            socket.bypass_qdisc()?;
        }
        if let Some(priority) = options.priority {
            socket.set_priority(priority)?;
        }
        let stamps = Stamps { tx_sched: options.stamps.tx_sched && !options.bypass_qdisc, ..options.stamps };
        socket.request_stamps(stamps)?;
        socket.join(&Groups::These(options.groups.clone()))?;
        socket.start()?;
        let longest = socket.device().mtu.max(1500) + AROUND;
        Ok(Self {
            out: vec![0; longest].into(),
            seen: vec![0; longest].into(),
            control: Control::new(),
            options: Options { stamps, ..options },
            refused: None,
            down: false,
            socket,
        })
    }

    /// The device in use.
    pub fn device(&self) -> &Device {
        self.socket.device()
    }

    /// Maximum length of a message in a frame, bytes.
    pub fn room(&self, framing: Framing) -> usize {
        room(framing, self.device().mtu)
    }

    /// Reads a waiting frame; `None` if there is none.
    fn take(&mut self, buffer: &mut [u8], flags: i32) -> Result<Option<Arrived<Peer>>, DeviceError> {
        let got = match receive(self.socket.fd(), &mut self.seen, &mut self.control, flags) {
            Ok(got) => got,
            Err(e) => return self.nothing(e).map(|()| None),
        };
        self.down = false;
        let (stamps, tag) = (rx_stamps(got.control), removed_tag(got.control));
        let frame = &self.seen[..got.len];
        let message = if got.cut { None } else { read(frame, tag) };
        // A malformed frame that passed the filter becomes an empty message, so that it counts as foreign.
        let (from, message) = message.map_or_else(|| (sender(frame, tag), &[][..]), |(p, at)| (p, &frame[at]));
        let len = message.len().min(buffer.len());
        buffer[..len].copy_from_slice(&message[..len]);
        Ok(Some(Arrived { from, len, kernel: stamps.kernel, nic: stamps.nic }))
    }

    /// Handles an error reported instead of a frame. That the device is down is not treated as an error, because it may
    /// come back; the caller measures the silence.
    fn nothing(&mut self, cause: io::Error) -> Result<(), DeviceError> {
        match cause.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) if !self.down => Ok(()),
            // The kernel reports ENETDOWN once, and does not report if the device is removed later.
            Some(libc::EAGAIN | libc::EINTR | libc::ENETDOWN) if self.device().is_there() => {
                self.down |= cause.raw_os_error() == Some(libc::ENETDOWN);
                Ok(())
            }
            Some(libc::EAGAIN | libc::EINTR) => Err(DeviceError::Vanished(self.device().name.clone())),
            _ => Err(self.device().failed("receiving", cause)),
        }
    }
}

/// Addresses to receive: the device's own, followed by the groups.
pub(crate) fn addresses(device: &Device, groups: &[[u8; 6]]) -> Result<Vec<[u8; 6]>, DeviceError> {
    if groups.len() >= MAX_ADDRESSES {
        return Err(DeviceError::Groups { count: groups.len(), most: MAX_ADDRESSES - 1 });
    }
    Ok([&[device.mac], groups].concat())
}

impl Transport for Ethernet {
    type Peer = Peer;
    type Error = DeviceError;

    fn are_of_one_host(a: &Peer, b: &Peer) -> bool {
        a.mac == b.mac
    }

    fn send(&mut self, to: Peer, message: &[u8]) -> Result<Sent, DeviceError> {
        let room = self.room(to.framing);
        let len = match write(&mut self.out, &to, self.socket.mac(), message) {
            Some(len) if message.len() <= room => len,
            _ => return Err(DeviceError::TooLong { device: self.device().name.clone(), len: message.len(), room }),
        };
        let fd = self.socket.fd().as_raw_fd();
        let sent = nix::sys::socket::send(fd, &self.out[..len], MsgFlags::MSG_NOSIGNAL);
        let Err(cause) = sent.map_err(io::Error::from) else { return Ok(Sent::Taken) };
        match cause.raw_os_error() {
            Some(errno @ (libc::ENOBUFS | libc::EAGAIN | libc::EINTR)) => self.refused = Some(errno),
            Some(libc::ENETDOWN) if self.device().is_there() => self.refused = Some(libc::ENETDOWN),
            _ => return Err(self.device().failed("sending", cause)),
        }
        Ok(Sent::Refused)
    }

    fn is_of_message(error: &DeviceError) -> bool {
        matches!(error, DeviceError::TooLong { .. })
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Wait) -> Result<Got<Peer>, DeviceError> {
        let flags = wait.flags(self.socket.fd());
        Ok(self.take(buffer, flags)?.map_or(Got::Nothing, Got::Message))
    }

    fn left(&mut self, each: &mut dyn FnMut(SentStamp<'_>)) -> Result<(), DeviceError> {
        let fd = self.socket.fd();
        let read = sent_stamps(fd, &mut self.seen, &mut self.control, MAX_STAMPS, &mut |stamp, frame| {
            if let Some((_, at)) = read(frame, None) {
                each(SentStamp { message: &frame[at], stamp: of_sending(stamp.kind), time: stamp.time });
            }
        });
        read.map(drop).map_err(|e| self.device().failed("reading stamps", e))
    }

    fn takes(&self) -> u16 {
        asked_for(&self.options.stamps)
    }

    fn dropped(&self) -> u64 {
        self.socket.dropped()
    }

    fn last_refusal(&self) -> Option<io::Error> {
        self.refused.map(io::Error::from_raw_os_error)
    }
}
