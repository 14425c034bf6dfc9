//! Network namespaces, found by inode number and entered by threads of their own.

use crate::{Error, Result};
use latpath_linux::{net::owner_of, proc::Mount};
use nix::sched::{setns, CloneFlags};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
};

/// A network namespace's inode number, as `/proc/PID/ns/net` shows it.
pub type Inode = u32;

/// Where `ip netns` mounts namespaces.
const NAMED: [&str; 2] = ["/run/netns", "/var/run/netns"];
/// Inode number of the first user namespace (include/linux/proc_ns.h, PROC_USER_INIT_INO).
const FIRST_USER_NAMESPACE: u64 = 0xefff_fffd;
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace that can be entered.
#[derive(Clone, Debug)]
pub struct Netns {
    inode: Inode,
    /// Where it was found; `None` for the calling thread's own. A machine may have more namespaces than a process may have files.
    path: Option<PathBuf>,
}

impl Netns {
    /// The namespace of the calling thread.
    pub fn own() -> Result<Self> {
        let inode = inode_of(Path::new(OWN)).map_err(|source| Error::Ask { what: OWN, source })?;
        Ok(Self { inode, path: None })
    }

    /// The namespace with this number: ours, one that is mounted somewhere (`ip netns`, containers), or some process's.
    pub fn find(inode: Inode) -> Result<Self> {
        match Self::own() {
            Ok(own) if own.inode == inode => Ok(own),
            _ => match found().find(|(i, _)| *i == inode) {
                Some((_, path)) => Ok(Self { inode, path: Some(path) }),
                None => Err(Error::NoNamespace(inode)),
            },
        }
    }

    pub fn inode(&self) -> Inode {
        self.inode
    }

    /// The name that `ip netns` has for it, where it has one.
    pub fn name(&self) -> Option<&str> {
        let path = self.path.as_deref()?;
        let name = NAMED.iter().find_map(|folder| path.strip_prefix(folder).ok())?;
        name.to_str().filter(|name| !name.is_empty() && !name.contains('/'))
    }

    /// Where it was found; `None` for our own.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Whether it belongs to the system's first user namespace: not to one that some user has made, as for a rootless container.
    pub fn is_of_first_user_namespace(&self) -> bool {
        // Where the kernel does not say, nobody else can have made it.
        self.file().is_none_or(|file| owner_of(&file).map_or(true, |owner| owner == FIRST_USER_NAMESPACE))
    }

    /// Its file, open; `None` where it is gone.
    pub(crate) fn file(&self) -> Option<File> {
        open(self.path.as_deref().unwrap_or(Path::new(OWN)), self.inode)
    }

    /// Calls a function in it: sockets that the function opens belong to this namespace, and so does
    /// `/proc/thread-self/net`. Unless it is the caller's own, this is done by another thread.
    pub fn inside<T: Send>(&self, call: impl FnOnce() -> T + Send) -> Result<T> {
        let Some(path) = &self.path else { return Ok(call()) };
        let file = open(path, self.inode).ok_or(Error::NoNamespace(self.inode))?;
        let entered = thread::scope(|scope| {
            let thread = scope.spawn(|| setns(&file, CloneFlags::CLONE_NEWNET).map(|()| call()));
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        entered.map_err(|e| Error::Enter { inode: self.inode, source: e.into() })
    }

    /// All namespaces that can be found from here, ours among them. One that goes in between is not found any more when it
    /// is entered.
    pub fn all() -> BTreeMap<Inode, Netns> {
        let mut all = BTreeMap::new();
        all.extend(Self::own().ok().map(|own| (own.inode, own)));
        for (inode, path) in found() {
            all.entry(inode).or_insert(Self { inode, path: Some(path) });
        }
        all
    }
}

fn inode_of(path: &Path) -> io::Result<Inode> {
    // The kernel numbers namespaces with 32 bits (struct ns_common, inum).
    fs::metadata(path).map(|meta| meta.ino() as Inode)
}

/// Opens the namespace file, if it still is the namespace with this number.
fn open(path: &Path, inode: Inode) -> Option<File> {
    let file = File::open(path).ok()?;
    (file.metadata().ok()?.ino() as Inode == inode).then_some(file)
}

/// `net:[4026531840]`, as links and mounts of namespaces read.
fn inode_in(text: &str) -> Option<Inode> {
    text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// Network namespaces that are mounted as files.
fn mounts() -> Vec<(Inode, PathBuf)> {
    let mounts = Mount::all_of("thread-self").into_iter();
    mounts.filter_map(|mount| Some((inode_in(&mount.root)?, mount.at))).collect()
}

/// Namespaces and where they were found, the mounted ones first.
fn found() -> impl Iterator<Item = (Inode, PathBuf)> {
    let of_processes = processes().filter_map(|folder| {
        let path = folder.join("ns/net");
        Some((inode_in(fs::read_link(&path).ok()?.to_str()?)?, path))
    });
    mounts().into_iter().chain(of_processes)
}

fn processes() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter(|e| e.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit)).map(|e| e.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_namespace_is_known_by_the_root_of_its_mount() {
        assert_eq!(inode_in("net:[4026532281]"), Some(4_026_532_281));
        assert_eq!((inode_in("/"), inode_in("mnt:[4026531841]")), (None, None));
    }

    #[test]
    fn our_own_namespace_is_found_by_its_number() {
        let own = Netns::own().unwrap();
        assert_eq!(Netns::all()[&own.inode()].inode(), own.inode());
        assert_eq!(own.inside(|| 7).unwrap(), 7);
    }

    #[test]
    fn a_namespace_that_is_gone_is_an_error_that_names_it() {
        let error = Netns { inode: 1, path: Some(OWN.into()) }.inside(|| ()).unwrap_err().to_string();
        assert!(error.starts_with("network namespace 1: not found"), "{error}");
    }
}
