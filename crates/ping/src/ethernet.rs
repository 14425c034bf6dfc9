//! Probes in raw Ethernet frames, over a packet socket: no IP stack, no neighbours, no firewall.
//!
//! One kind of socket does for both ends. An emitter names its session, so that answers to others do not wake it, and speaks to one
//! ([`ToOne`]); a reflector answers in the framing in which it was asked, to the address that asked. What comes to other addresses,
//! is of other protocols, or is no session's Sampled Values, the kernel's filter keeps away. The socket hears frames before a bridge
//! or a VLAN device takes them, with their tag.

mod device;
mod filter;
mod framing;
mod kernel;
mod one;

pub use device::{Device, DeviceError};
pub use filter::MAX_ADDRESSES;
pub use framing::{room, svid, Framing, Peer, OWN, SV, SVID};
pub use one::ToOne;

pub(crate) use device::socket_for;
pub(crate) use framing::{read, write, AROUND};
pub(crate) use kernel::PacketSocket;

use crate::kernel::{send, set_option, wait_until};
use crate::transport::{asked_for, of_sending, Arrived, Got, Left, Sent, Transport, Wait};
use latpath_nic_timestamps::{
    ask_for, control_messages, from_error_queue, receive, rx_stamps, Control, Queued, Stamps,
};
use latpath_protocols::Tag;
use latpath_traffic::kernel::tag_of;
use std::cell::Cell;
use std::io;

/// Longest wait, for a frame or for room to send one, so that callers can look at their stop flag and clock.
const WAIT: libc::timeval = libc::timeval { tv_sec: 0, tv_usec: 50_000 };
/// Stamps that are read at once, so that a flood of them does not keep the caller.
const MOST_STAMPS: usize = 256;
/// Bytes of frames that may wait on either side: the kernel counts what it drops beyond.
const BUFFER: i32 = 4 << 20;

/// How to send and receive frames.
#[derive(Clone, Debug)]
pub struct Options {
    /// The device.
    pub device: String,
    /// An emitter's session: nothing else is received. `None` for a reflector.
    pub session: Option<u32>,
    /// Groups whose frames are received besides those to the device's own address.
    pub groups: Vec<[u8; 6]>,
    /// smpCnt of Sampled Values begins again at 0 after so many: 1 to 65536.
    pub wrap: u32,
    /// Stamps to ask for.
    pub stamps: Stamps,
    /// `SO_PRIORITY`: which queue of a qdisc.
    pub priority: Option<u8>,
    /// Hand frames straight to the driver, past the queueing discipline: there is no stamp before it then.
    pub bypass_qdisc: bool,
}

impl Options {
    /// The defaults for a device: a reflector's.
    pub fn new(device: &str) -> Self {
        Self {
            device: device.into(),
            session: None,
            groups: Vec::new(),
            wrap: 65536,
            stamps: Stamps::default(),
            priority: None,
            bypass_qdisc: false,
        }
    }
}

/// Raw Ethernet frames by one device.
#[derive(Debug)]
pub struct Ethernet {
    socket: PacketSocket,
    device: Device,
    options: Options,
    control: Control,
    /// A frame to be sent.
    out: Box<[u8]>,
    /// A frame that came in.
    seen: Box<[u8]>,
    refused: Option<i32>,
    dropped: Cell<u64>,
    /// The device went down, and may be gone by now.
    down: bool,
}

impl Ethernet {
    /// Opens the device.
    pub fn open(options: Options) -> Result<Self, DeviceError> {
        let socket = device::socket_for(&options.device)?;
        let device = Device::find_by(&socket, &options.device)?;
        let addresses: Vec<[u8; 6]> = [&[device.mac], &options.groups[..]].concat();
        if addresses.len() > MAX_ADDRESSES {
            return Err(DeviceError::Groups { count: options.groups.len(), most: MAX_ADDRESSES - 1 });
        }
        let name = &options.device;
        let os = |doing| move |cause| DeviceError::Os { device: name.clone(), doing, cause };
        let fd = socket.fd();
        let set = |doing, level, name, value: i32| set_option(fd, level, name, &value).map_err(os(doing));
        set("asking for tags", libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
        set("leaving out what is sent", libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        if options.bypass_qdisc {
            set("passing by the queueing discipline", libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        }
        if let Some(priority) = options.priority {
            set("setting its priority", libc::SOL_SOCKET, libc::SO_PRIORITY, priority.into())?;
        }
        for (forced, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
            if set("setting its buffers", libc::SOL_SOCKET, forced, BUFFER).is_err() {
                set("setting its buffers", libc::SOL_SOCKET, plain, BUFFER)?;
            }
        }
        set_option(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &WAIT).map_err(os("setting its timeouts"))?;
        set_option(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &WAIT).map_err(os("setting its timeouts"))?;
        let stamps = Stamps { tx_sched: options.stamps.tx_sched && !options.bypass_qdisc, ..options.stamps };
        ask_for(fd, stamps).map_err(|cause| DeviceError::Option { device: name.clone(), cause })?;
        let requested = filter::FrameSelector { addresses: &addresses, framing: None, session: options.session };
        socket.filter(&mut filter::program(&requested)).map_err(os("attaching a filter"))?;
        for group in &options.groups {
            socket.join(device.index, *group).map_err(os("joining a group"))?;
        }
        // All protocols, since a socket of one alone sees no tags of VLANs that the device does not know, and nothing on a
        // bridge's port. The filter is what chooses.
        socket.hear(device.index, libc::ETH_P_ALL as u16).map_err(|e| device.failed("binding", e))?;
        let longest = device.mtu.max(1500) + AROUND;
        Ok(Self {
            out: vec![0; longest].into(),
            seen: vec![0; longest].into(),
            control: Control::new(),
            options: Options { stamps, ..options },
            refused: None,
            dropped: Cell::new(0),
            down: false,
            socket,
            device,
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Most bytes of a message that a frame carries.
    pub fn room(&self, framing: Framing) -> usize {
        room(framing, self.device.mtu)
    }

    /// Reads a frame that is there; `None` where there is none.
    fn take(&mut self, buffer: &mut [u8], flags: i32) -> Result<Option<Arrived<Peer>>, DeviceError> {
        let got = match receive(self.socket.fd(), &mut self.seen, &mut self.control, flags) {
            Ok(got) => got,
            Err(e) => return self.nothing(e).map(|()| None),
        };
        self.down = false;
        let (stamps, tag) = (rx_stamps(got.control), removed_tag(got.control));
        let frame = &self.seen[..got.len];
        let message = if got.cut { None } else { read(frame, tag) };
        // A frame that passed the filter and is malformed is shown as an empty message, so that it is counted as foreign.
        let (from, message) = match message {
            Some((from, at)) => (from, &frame[at]),
            None => {
                let mac = frame.get(6..).and_then(|f| f.first_chunk()).copied().unwrap_or_default();
                (Peer { mac, framing: Framing::Own, tag }, &[][..])
            }
        };
        let len = message.len().min(buffer.len());
        buffer[..len].copy_from_slice(&message[..len]);
        Ok(Some(Arrived { from, len, kernel: stamps.kernel, nic: stamps.nic }))
    }

    /// What an error means that came instead of a frame. A device that is down may come back: silence is what the caller counts.
    fn nothing(&mut self, cause: io::Error) -> Result<(), DeviceError> {
        match cause.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) if !self.down => Ok(()),
            // The kernel says it once; that the device is then removed it says no more.
            Some(libc::EAGAIN | libc::EINTR | libc::ENETDOWN) if self.device.is_there() => {
                self.down |= cause.raw_os_error() == Some(libc::ENETDOWN);
                Ok(())
            }
            Some(libc::EAGAIN | libc::EINTR) => Err(DeviceError::Vanished(self.device.name.clone())),
            _ => Err(self.device.failed("receiving", cause)),
        }
    }
}

/// The 802.1Q tag that the kernel took off (`struct tpacket_auxdata` of linux/if_packet.h).
fn removed_tag(control: &[u8]) -> Option<Tag> {
    let (_, data) = control_messages(control).find(|(kind, _)| *kind == (libc::SOL_PACKET, libc::PACKET_AUXDATA))?;
    let half = |at: usize| data.get(at..)?.first_chunk().map(|b| u16::from_ne_bytes(*b));
    tag_of(u32::from_ne_bytes(*data.first_chunk()?), half(16)?, half(18)?)
}

impl Transport for Ethernet {
    type Peer = Peer;
    type Error = DeviceError;

    fn send(&mut self, to: Peer, message: &[u8]) -> Result<Sent, DeviceError> {
        let room = self.room(to.framing);
        let len = match write(&mut self.out, &to, self.device.mac, self.options.wrap, message) {
            Some(len) if message.len() <= room => len,
            _ => return Err(DeviceError::TooLong { device: self.device.name.clone(), len: message.len(), room }),
        };
        let Err(cause) = send(self.socket.fd(), &self.out[..len]) else { return Ok(Sent::Taken) };
        match cause.raw_os_error() {
            Some(errno @ (libc::ENOBUFS | libc::EAGAIN | libc::EINTR)) => self.refused = Some(errno),
            Some(libc::ENETDOWN) if self.device.is_there() => self.refused = Some(libc::ENETDOWN),
            _ => return Err(self.device.failed("sending", cause)),
        }
        Ok(Sent::Refused)
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Wait) -> Result<Got<Peer>, DeviceError> {
        let flags = match wait {
            Wait::Some => 0,
            Wait::No => libc::MSG_DONTWAIT,
            Wait::Until(deadline) => {
                wait_until(self.socket.fd(), deadline);
                libc::MSG_DONTWAIT
            }
        };
        Ok(self.take(buffer, flags)?.map_or(Got::Nothing, Got::Message))
    }

    fn left(&mut self, each: &mut dyn FnMut(Left<'_>)) -> Result<(), DeviceError> {
        for _ in 0..MOST_STAMPS {
            let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
            let got = match receive(self.socket.fd(), &mut self.seen, &mut self.control, flags) {
                Ok(got) => got,
                Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => return Ok(()),
                Err(e) => return Err(self.device.failed("reading stamps", e)),
            };
            let Some(Queued::Stamp(stamp)) = from_error_queue(got.control) else { continue };
            let frame = &self.seen[..got.len];
            if let Some((_, at)) = read(frame, None) {
                each(Left { message: &frame[at], stamp: of_sending(stamp.kind), time: stamp.time });
            }
        }
        Ok(())
    }

    fn takes(&self) -> u16 {
        asked_for(&self.options.stamps)
    }

    fn dropped(&self) -> u64 {
        self.dropped.set(self.dropped.get() + self.socket.dropped());
        self.dropped.get()
    }

    fn last_refusal(&self) -> Option<io::Error> {
        self.refused.map(io::Error::from_raw_os_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn auxdata(status: u32, tci: u16, tpid: u16) -> Vec<u8> {
        let data = [&status.to_ne_bytes()[..], &[0; 12], &tci.to_ne_bytes(), &tpid.to_ne_bytes()].concat();
        [&(16 + data.len()).to_ne_bytes()[..], &263i32.to_ne_bytes(), &8i32.to_ne_bytes(), &data, &[0xee; 4]].concat()
    }

    #[test]
    fn a_tag_that_the_kernel_took_off_is_found_behind_other_messages() {
        let other = [&24usize.to_ne_bytes()[..], &[1; 8], &[0; 8]].concat();
        let (valid, tpid_valid) = (libc::TP_STATUS_VLAN_VALID, libc::TP_STATUS_VLAN_TPID_VALID);
        let tag = |status| removed_tag(&[other.clone(), auxdata(status, 0x8007, 0x88a8)].concat());
        assert_eq!(tag(valid | tpid_valid), Some(Tag { tpid: 0x88a8, tci: 0x8007 }));
        assert_eq!(tag(valid), Some(Tag { tpid: 0x8100, tci: 0x8007 }));
        assert_eq!(tag(0), None);
        assert_eq!(removed_tag(&other), None);
    }

    proptest! {
        #[test]
        fn any_control_data_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..300), len: usize) {
            removed_tag(&bytes);
            let mut spoilt = auxdata(libc::TP_STATUS_VLAN_VALID, 1, 2);
            spoilt[..8].copy_from_slice(&len.to_ne_bytes());
            removed_tag(&spoilt);
        }
    }
}
