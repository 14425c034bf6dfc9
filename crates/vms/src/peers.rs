//! Finds the programs at the other ends of guests' vhost-user sockets: the kernel lists unix sockets with their peers
//! (sock_diag(7)), and processes' descriptors identify their sockets.

use crate::{
    text::plain,
    vm::{Peer, Vm},
};
use latpath_linux::{proc::Root, would_load_module};
use latpath_net::{
    netlink::{find_attribute, u32_at, Socket},
    Netns,
};
use nix::sys::socket::SockProtocol;
use std::collections::HashMap;

/// include/uapi/linux/sock_diag.h, unix_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SHOW_NAME_AND_PEER: u32 = 1 | 4;
const NAME: u16 = 0;
const PEER: u16 = 2;
/// Size of struct unix_diag_msg, bytes.
const MESSAGE: usize = 16;
const MAX_PROCESSES: usize = 4 << 20;
const MAX_DESCRIPTORS: usize = 1 << 16;

/// A unix socket: its path, if it has one, and the inode number of its peer.
type UnixSocket = (Option<String>, Option<u32>);

/// Finds the programs that serve the guests' NICs. None are found without permission, or if the kernel would have to
/// load a module.
pub fn find(root: &Root, vms: &mut [Vm]) {
    if vms.iter().all(|vm| vm.vhost_user.is_empty()) || would_load_module("unix_diag") {
        return;
    }
    let sockets: HashMap<u32, UnixSocket> =
        Netns::all().values().flat_map(|netns| list(netns).unwrap_or_default()).collect();
    let mut owners: Option<HashMap<u32, u32>> = None;
    for vm in vms.iter_mut().filter(|vm| !vm.vhost_user.is_empty()) {
        let own = inodes(root, vm.pid);
        for nic in &mut vm.vhost_user {
            let Some(inode) = other_end(&own, &sockets, &nic.socket) else { continue };
            let owners = owners.get_or_insert_with(|| all_owners(root));
            nic.peer = owners.get(&inode).map(|pid| Peer { pid: *pid, program: program(root, *pid) });
        }
    }
}

/// The peer of the process's socket that is connected through this path. Only the accepted end of a connection has the
/// path as its name, and that end may be either socket.
fn other_end(own: &[u32], sockets: &HashMap<u32, UnixSocket>, path: &str) -> Option<u32> {
    let is_at = |inode: &u32| sockets.get(inode).is_some_and(|(name, _)| name.as_deref() == Some(path));
    own.iter().find_map(|inode| {
        let peer = sockets.get(inode)?.1?;
        (is_at(inode) || is_at(&peer)).then_some(peer)
    })
}

/// The unix sockets that belong to a namespace, by inode number.
fn list(netns: &Netns) -> Option<Vec<(u32, UnixSocket)>> {
    let socket = Socket::open(netns, SockProtocol::NetlinkSockDiag, "list unix sockets (sock_diag)").ok()?;
    // struct unix_diag_req: family and protocol, states, inode, requested information, cookie.
    let request: Vec<u8> = [nix::libc::AF_UNIX as u32, u32::MAX, 0, SHOW_NAME_AND_PEER, u32::MAX, u32::MAX]
        .into_iter()
        .flat_map(u32::to_ne_bytes)
        .collect();
    let answer = socket.list(SOCK_DIAG_BY_FAMILY, &request).ok()?;
    Some(answer.iter().filter_map(|message| read(&message.payload)).collect())
}

fn read(payload: &[u8]) -> Option<(u32, UnixSocket)> {
    let attributes = payload.get(MESSAGE..)?;
    let name = find_attribute(attributes, NAME).map(|name| {
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        plain(&String::from_utf8_lossy(&name[..end]))
    });
    Some((u32_at(payload, 4)?, (name, find_attribute(attributes, PEER).and_then(|peer| u32_at(peer, 0)))))
}

/// The inode numbers of a process's sockets.
fn inodes(root: &Root, pid: u32) -> Vec<u32> {
    let descriptors = root.numbers(&format!("proc/{pid}/fd"), MAX_DESCRIPTORS).unwrap_or_default();
    let inode = |fd: u32| {
        root.link(&format!("proc/{pid}/fd/{fd}")).ok()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    descriptors.into_iter().filter_map(inode).collect()
}

/// Process ID by inode number of each socket.
fn all_owners(root: &Root) -> HashMap<u32, u32> {
    let processes = root.numbers("proc", MAX_PROCESSES).unwrap_or_default().into_iter();
    processes.flat_map(|pid| inodes(root, pid).into_iter().map(move |inode| (inode, pid))).collect()
}

fn program(root: &Root, pid: u32) -> String {
    plain(root.text(&format!("proc/{pid}/comm")).unwrap_or_default().trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        os::unix::fs::MetadataExt,
        os::unix::net::{UnixListener, UnixStream},
        path::Path,
    };

    #[test]
    fn the_other_end_of_a_socket_is_this_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vhost");
        let listener = UnixListener::bind(&path).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let (server, _) = listener.accept().unwrap();
        let inode = |stream: &UnixStream| {
            let fd = std::os::fd::AsRawFd::as_raw_fd(stream);
            std::fs::metadata(format!("/proc/self/fd/{fd}")).unwrap().ino() as u32
        };
        let sockets: HashMap<u32, UnixSocket> = list(&Netns::own().unwrap()).unwrap().into_iter().collect();
        let path = path.display().to_string();
        assert_eq!(other_end(&[inode(&server)], &sockets, &path), Some(inode(&client)));
        assert_eq!(other_end(&[inode(&client)], &sockets, &path), Some(inode(&server)));
        assert_eq!(other_end(&[inode(&client)], &sockets, "/other"), None);
        let owners = all_owners(&Root::of(Path::new("/")));
        assert_eq!(owners.get(&inode(&client)), Some(&std::process::id()));
    }
}
