//! Generic netlink: requests to the families of the kernel's modules.

use crate::netlink::{find_attribute, u16_at, Message, Socket};
use crate::{Netns, Result};
use nix::sys::socket::SockProtocol;

/// include/uapi/linux/genetlink.h
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Size of struct genlmsghdr, with which each payload begins, bytes.
pub const GENERIC_HEADER: usize = 4;

/// Sends a request that lists objects to a family: `family` is its name with the final NUL, `rest` the payload after
/// the header. Returns an empty list if the kernel does not have the family.
///
/// # Errors
/// If the namespace cannot be entered, or the kernel rejects the request.
pub fn list_of_family(
    netns: &Netns,
    what: &'static str,
    family: &[u8],
    (command, version): (u8, u8),
    rest: &[u8],
) -> Result<Vec<Message>> {
    let socket = Socket::open(netns, SockProtocol::NetlinkGeneric, what)?;
    // All families are listed, because a request for a single one by name would make the kernel load its module.
    let families = socket.list(CONTROL, &header(GET_FAMILY, 2))?;
    let number = families.iter().find_map(|message| number_of(&message.payload, family));
    let Some(id) = number else { return Ok(Vec::new()) };
    let mut answer = socket.list(id, &[&header(command, version), rest].concat())?;
    answer.retain(|message| message.kind == id);
    Ok(answer)
}

/// struct genlmsghdr
fn header(command: u8, version: u8) -> [u8; GENERIC_HEADER] {
    [command, version, 0, 0]
}

/// The ID of the family, if this message describes it.
fn number_of(payload: &[u8], family: &[u8]) -> Option<u16> {
    let of = |kind| find_attribute(payload.get(GENERIC_HEADER..)?, kind);
    of(FAMILY_NAME).filter(|name| *name == family)?;
    of(FAMILY_ID).and_then(|value| u16_at(value, 0))
}
