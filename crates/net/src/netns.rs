//! Network namespaces: found by inode number, entered by separate threads, created and deleted by name.

use crate::{Error, Result};
use latpath_linux::{
    net::owner_of,
    proc::{Mount, Root},
    Owner,
};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    mount::{mount, umount2, MntFlags, MsFlags},
    sched::{setns, unshare, CloneFlags},
};
use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, DirBuilder, DirEntry, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
};

/// A network namespace's inode number, as in `/proc/PID/ns/net`.
pub type Inode = u32;

/// Directories in which `ip netns` mounts namespaces.
const NAMED: [&str; 2] = ["/run/netns", "/var/run/netns"];
/// Maximum number of named namespaces that are read.
const MAX_NAMED: usize = 4096;
/// Maximum number of threads per process whose names are read.
const MAX_THREADS: usize = 4096;
/// Inode number of the first user namespace (include/linux/proc_ns.h, PROC_USER_INIT_INO).
const FIRST_USER_NAMESPACE: u64 = 0xefff_fffd;
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace that can be entered.
#[derive(Clone, Debug)]
pub struct Netns {
    inode: Inode,
    /// Path of the namespace's file; `None` for the calling thread's own. The file is not kept open, because a machine
    /// may have more namespaces than a process may have open files.
    path: Option<PathBuf>,
}

impl Netns {
    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// If /proc does not show the namespace.
    pub fn own() -> Result<Self> {
        let inode = inode_of(Path::new(OWN)).map_err(|source| Error::Ask { what: OWN, source })?;
        Ok(Self { inode, path: None })
    }

    /// The namespace with this inode number: this process's own, a mounted one (`ip netns`, containers), or another
    /// process's.
    ///
    /// # Errors
    /// If no process, mount or name refers to the namespace.
    pub fn find(inode: Inode) -> Result<Self> {
        match Self::own() {
            Ok(own) if own.inode == inode => Ok(own),
            _ => match found().find(|(i, _)| *i == inode) {
                Some((_, path)) => Ok(Self { inode, path: Some(path) }),
                None => Err(Error::NoNamespace(inode)),
            },
        }
    }

    /// The namespace's inode number.
    pub fn inode(&self) -> Inode {
        self.inode
    }

    /// The namespace's name in `ip netns`, if it has one.
    pub fn name(&self) -> Option<&str> {
        let path = self.path.as_deref()?;
        let name = NAMED.iter().find_map(|folder| path.strip_prefix(folder).ok())?;
        name.to_str().filter(|name| !name.is_empty() && !name.contains('/'))
    }

    /// Path of the namespace's file; `None` for the own namespace.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Whether the namespace belongs to the initial user namespace, not to one that a user created, e.g. for a rootless
    /// container.
    pub fn is_of_first_user_namespace(&self) -> bool {
        // A kernel that does not report the owner does not let users create namespaces, so the owner is the initial
        // one.
        self.open().map_or(true, |file| owner_of(&file).map_or(true, |owner| owner == FIRST_USER_NAMESPACE))
    }

    /// Opens the namespace's file, for setns(2).
    ///
    /// # Errors
    /// If the namespace no longer exists, or its path now belongs to another one.
    pub fn open(&self) -> Result<File> {
        let file = open(self.path.as_deref().unwrap_or(Path::new(OWN)), self.inode);
        file.ok_or(Error::NoNamespace(self.inode))
    }

    /// Calls a function in the namespace: sockets that the function opens belong to it, as does
    /// `/proc/thread-self/net`. A separate thread calls the function, unless the namespace is the caller's own.
    ///
    /// # Errors
    /// If the namespace no longer exists, or this process may not enter it.
    pub fn inside<T: Send>(&self, call: impl FnOnce() -> T + Send) -> Result<T> {
        if self.path.is_none() {
            return Ok(call());
        }
        let file = self.open()?;
        let entered = thread::scope(|scope| {
            let thread = scope.spawn(|| setns(&file, CloneFlags::CLONE_NEWNET).map(|()| call()));
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        entered.map_err(|e| Error::Enter { inode: self.inode, source: e.into() })
    }

    /// Finds a namespace by its name in `ip netns`.
    ///
    /// # Errors
    /// If no namespace has this name.
    pub fn named(name: &str) -> Result<Self> {
        let path = named_path(name)?;
        let inode = inode_of(&path).map_err(|source| refused(format!("find network namespace {name}"), source))?;
        Ok(Self { inode, path: Some(path) })
    }

    /// Creates a namespace with this name, as `ip netns add` does: mounts it on a file in /run/netns.
    ///
    /// # Errors
    /// If the name exists, or this process may not mount.
    pub fn create(name: &str) -> Result<Self> {
        let path = named_path(name)?;
        let make = || -> io::Result<()> {
            let _one_at_a_time = mounted_directory()?;
            OpenOptions::new().write(true).create_new(true).mode(0o444).open(&path)?;
            let mounted = thread::scope(|scope| {
                let bind = || -> nix::Result<()> {
                    unshare(CloneFlags::CLONE_NEWNET)?;
                    mount(Some(OWN), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                };
                scope.spawn(bind).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            if mounted.is_err() {
                let _ = fs::remove_file(&path);
            }
            Ok(mounted?)
        };
        make().map_err(|source| refused(format!("make network namespace {name}"), source))?;
        Self::named(name)
    }

    /// Removes a namespace's name. The namespace itself exists until no process or descriptor uses it.
    ///
    /// # Errors
    /// If no namespace has this name, or this process may not unmount it.
    pub fn delete(name: &str) -> Result<()> {
        let path = named_path(name)?;
        let delete = || match umount2(&path, MntFlags::MNT_DETACH) {
            // EINVAL: nothing is mounted on the file.
            Ok(()) | Err(Errno::EINVAL) => fs::remove_file(&path),
            Err(error) => Err(error.into()),
        };
        delete().map_err(|source| refused(format!("delete network namespace {name}"), source))
    }

    /// All namespaces that this process can find, including its own. Entering one that has since ended is an error.
    pub fn all() -> BTreeMap<Inode, Netns> {
        let mut all = BTreeMap::new();
        all.extend(Self::own().ok().map(|own| (own.inode, own)));
        for (inode, path) in found() {
            all.entry(inode).or_insert(Self { inode, path: Some(path) });
        }
        all
    }
}

/// Names of network namespaces in `ip netns`, by inode number; this process's own namespace has the empty name.
pub fn namespace_names() -> HashMap<Inode, String> {
    let mut names: HashMap<Inode, String> = named().collect();
    names.extend(Netns::own().ok().map(|own| (own.inode, String::new())));
    names
}

/// The namespaces that have a name in `ip netns`.
fn named() -> impl Iterator<Item = (Inode, String)> {
    let entries = fs::read_dir(NAMED[0]).into_iter().flatten().flatten().take(MAX_NAMED);
    let named = entries.filter_map(|entry| Some((inode_of(&entry.path()).ok()?, entry.file_name())));
    named.map(|(inode, name)| (inode, name.to_string_lossy().into_owned()))
}

/// The name in `ip netns` of the namespace with this inode number, which may also be the process's own.
pub fn namespace_name(inode: Inode) -> Option<String> {
    named().find(|(known, _)| *known == inode).map(|(_, name)| name)
}

/// Name of the owner (container, pod or unit) of a process in the namespace with this inode number. Reads the links of
/// all processes until the first one in the namespace.
pub fn namespace_owner(inode: Inode) -> Option<String> {
    owners_in(inode, |_| true).next().map(|owner| owner.name())
}

/// The distinct owners of threads with this name in the namespace with this inode number. Reads the links of all
/// processes, and the thread names of those in the namespace.
pub fn owners_of_threads(inode: Inode, name: &str) -> Vec<Owner> {
    let comm = |thread: DirEntry| fs::read_to_string(thread.path().join("comm"));
    let is_named = |thread| comm(thread).is_ok_and(|comm| comm.trim_end_matches('\n') == name);
    let has_one = |folder: &Path| {
        let threads = fs::read_dir(folder.join("task"));
        threads.into_iter().flatten().flatten().take(MAX_THREADS).any(is_named)
    };
    let mut owners: Vec<Owner> = Vec::new();
    for owner in owners_in(inode, has_one) {
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }
    owners
}

/// The owners of those processes in this namespace whose folder in /proc `select` accepts.
fn owners_in(inode: Inode, select: impl Fn(&Path) -> bool) -> impl Iterator<Item = Owner> {
    let root = Root::of(Path::new("/"));
    let is_there = move |folder: &PathBuf| {
        let link = fs::read_link(folder.join("ns/net"));
        link.is_ok_and(|link| link.to_str().and_then(inode_in) == Some(inode)) && select(folder)
    };
    processes().filter(is_there).filter_map(move |folder| Owner::of(&root, folder.file_name()?.to_str()?.parse().ok()?))
}

fn refused(doing: String, source: io::Error) -> Error {
    Error::Refused { doing, source, reason: None }
}

/// The path at which a namespace with this name is mounted.
fn named_path(name: &str) -> Result<PathBuf> {
    let is_name = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
    let invalid = || refused(format!("network namespace {name:?}"), io::ErrorKind::InvalidInput.into());
    is_name.then(|| Path::new(NAMED[0]).join(name)).ok_or_else(invalid)
}

/// Creates the directory of named namespaces if it does not exist, and makes it a mount point with shared propagation.
/// Locks it, so that it is mounted only once, even with a concurrent `ip netns`.
fn mounted_directory() -> io::Result<Flock<File>> {
    let folder = NAMED[0];
    DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    let lock = Flock::lock(File::open(folder)?, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
    let none = None::<&str>;
    let share = || mount(none, folder, none, MsFlags::MS_SHARED | MsFlags::MS_REC, none);
    match share() {
        // The directory is not a mount point yet.
        Err(Errno::EINVAL) => {
            mount(Some(folder), folder, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)?;
            share()?;
        }
        shared => shared?,
    }
    Ok(lock)
}

fn inode_of(path: &Path) -> io::Result<Inode> {
    // The kernel's inode numbers of namespaces have 32 bits (struct ns_common, inum).
    fs::metadata(path).map(|meta| meta.ino() as Inode)
}

/// Opens a namespace's file; `None` if the path no longer exists or now belongs to another namespace.
fn open(path: &Path, inode: Inode) -> Option<File> {
    let file = File::open(path).ok()?;
    (file.metadata().ok()?.ino() as Inode == inode).then_some(file)
}

/// Parses `net:[4026531840]`: the target of a namespace's link, and the root of its mount.
fn inode_in(text: &str) -> Option<Inode> {
    text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// Mounted network namespaces.
fn mounts() -> Vec<(Inode, PathBuf)> {
    let mounts = Mount::all_of("thread-self").into_iter();
    mounts.filter_map(|mount| Some((inode_in(&mount.root)?, mount.at))).collect()
}

/// Namespaces and their paths, the mounted ones first.
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
    fn a_thread_belongs_to_the_owner_of_its_process() {
        let (tell, wait) = std::sync::mpsc::channel::<()>();
        let named = thread::Builder::new().name("lp net's owner".into()).spawn(move || wait.recv()).unwrap();
        let owner = Owner::of(&Root::of(Path::new("/")), std::process::id());
        let own = Netns::own().unwrap().inode();
        let found = |name| owners_of_threads(own, name);
        // The thread sets its name only after it has started.
        latpath_testkit::waits::until("the thread has its name", || {
            let comm = |entry: DirEntry| fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            fs::read_dir("/proc/self/task").unwrap().flatten().any(|entry| comm(entry) == "lp net's owner\n")
        })
        .unwrap();
        assert_eq!(found("lp net's owner"), Vec::from_iter(owner));
        assert_eq!((found("lp net's own"), owners_of_threads(1, "lp net's owner")), (vec![], vec![]));
        drop(tell);
        let _ = named.join();
    }

    #[test]
    fn a_namespace_that_is_gone_is_an_error_that_names_it() {
        let error = Netns { inode: 1, path: Some(OWN.into()) }.inside(|| ()).unwrap_err().to_string();
        assert!(error.starts_with("network namespace 1: not found"), "{error}");
    }
}
