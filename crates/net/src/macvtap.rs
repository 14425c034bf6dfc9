//! The character device of a macvtap.

use crate::{Error, Netns, Result, Rtnetlink};
use nix::sys::stat::makedev;
use std::{fs, io, os::fd::AsRawFd};

/// Returns the index of a macvtap in its namespace, and the device number of its character device. The file
/// `/dev/tapINDEX` may be missing, or belong to a macvtap of another namespace with the same index.
///
/// # Errors
/// If the device does not exist or is not a macvtap, or its namespace cannot be entered.
pub fn macvtap_device_number(netns: &Netns, name: &str) -> Result<(u32, u64)> {
    let ifindex = Rtnetlink::open(netns)?.device(name)?.ifindex;
    let read = || -> io::Result<String> {
        let sysfs = latpath_linux::sysfs_of_own_netns()?;
        fs::read_to_string(format!("/proc/self/fd/{}/class/net/{name}/tap{ifindex}/dev", sysfs.as_raw_fd()))
    };
    let refused =
        |source| Error::Refused { doing: format!("find the character device of {name}"), source, reason: None };
    let text = netns.inside(read)?.map_err(refused)?;
    let number = text.trim().split_once(':');
    let number = number.and_then(|(major, minor)| Some(makedev(major.parse().ok()?, minor.parse().ok()?)));
    Ok((ifindex, number.ok_or_else(|| refused(io::ErrorKind::InvalidData.into()))?))
}
