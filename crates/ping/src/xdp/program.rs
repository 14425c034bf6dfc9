//! The XDP program that selects latpath's frames, and its attachment to a device.

use super::kernel;
use super::skel::XskSkelBuilder;
use super::{Place, XdpError};
use crate::ethernet::MAX_ADDRESSES;
use latpath_wire::Device;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Xdp, XdpFlags};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The program attached to a device. It is detached when this is dropped, and also when the process is killed, because
/// the kernel then closes the link.
#[derive(Debug)]
pub(super) struct Program {
    sockets: MapHandle,
    _link: OwnedFd,
    pub place: Place,
}

impl Program {
    /// Loads the program for frames to these addresses, optionally of only one session, and attaches it to the device
    /// at the place `requested`; by default in the driver if possible. With `stamps`, the program stamps received
    /// frames.
    pub fn attach(
        device: &Device,
        addresses: &[[u8; 6]],
        session: Option<u32>,
        stamps: bool,
        requested: Option<Place>,
    ) -> Result<Self, XdpError> {
        let refused = |doing| move |cause| XdpError::of(&device.name, doing, cause);
        // Suppress libbpf's messages; the error contains the reason.
        let printed = libbpf_rs::set_print(None);
        let mut storage = MaybeUninit::uninit();
        let loaded = XskSkelBuilder::default().open(&mut storage).and_then(|mut open| {
            let consts = open.maps.rodata_data.as_deref_mut().expect("the program has constants");
            for (to, mac) in consts.addresses.iter_mut().zip(addresses.iter().take(MAX_ADDRESSES)) {
                to.first = u32::from_ne_bytes([mac[0], mac[1], mac[2], mac[3]]);
                to.last = u16::from_ne_bytes([mac[4], mac[5]]);
            }
            consts.address_count = addresses.len().min(MAX_ADDRESSES) as u32;
            consts.stamps = stamps.into();
            if let Some(session) = session {
                consts.one_session = 1;
                consts.session = session.to_be();
                consts.session_name.copy_from_slice(format!("{session:08x}").as_bytes());
            }
            open.load()
        });
        libbpf_rs::set_print(printed);
        let skel = loaded.map_err(refused("loading its XDP program"))?;
        let sockets = MapHandle::try_from(&skel.maps.sockets).map_err(refused("sharing its XDP program's table"))?;
        let (link, place) = stand(device, skel.progs.choose.as_fd(), requested)?;
        Ok(Self { sockets, _link: link, place })
    }

    /// Redirects the frames of this queue to this socket.
    pub fn hand_over(&self, queue: u32, socket: BorrowedFd<'_>) -> libbpf_rs::Result<()> {
        let socket = (socket.as_raw_fd() as u32).to_ne_bytes();
        self.sockets.update(&queue.to_ne_bytes(), &socket, MapFlags::ANY)
    }
}

fn stand(device: &Device, program: BorrowedFd<'_>, requested: Option<Place>) -> Result<(OwnedFd, Place), XdpError> {
    let attempts = match requested {
        Some(Place::Driver) => &[Place::Driver][..],
        Some(Place::Generic) => &[Place::Generic],
        None => &[Place::Driver, Place::Generic],
    };
    let mut last = None;
    for place in attempts {
        let cause = match kernel::attach(program, device.index, *place == Place::Generic) {
            Ok(link) => return Ok((link, *place)),
            Err(cause) => cause,
        };
        let name = device.name.clone();
        match cause.raw_os_error() {
            // A device has at most one program per place, and does not have programs at several places at a time.
            Some(libc::EBUSY | libc::EEXIST) => {
                let other = Xdp::new(program).query_id(device.index as i32, XdpFlags::NONE).ok();
                return Err(XdpError::Taken { device: name, id: other.filter(|id| *id != 0) });
            }
            Some(libc::EPERM | libc::EACCES) => return Err(XdpError::NotAllowed(name)),
            _ => last = Some(XdpError::NoPlace { device: name, place: *place, cause }),
        }
    }
    Err(last.expect("at least one place was tried"))
}
