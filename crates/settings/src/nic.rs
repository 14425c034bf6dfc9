//! A network device that answers requests: a device of the running kernel, or files in a directory tree.

use latpath_linux::net::Device as Socket;
use latpath_linux::proc::Root;
use latpath_net::Netns;
use std::io;
use std::path::Path;

/// Why a device rejected a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The device, its driver or this kernel lacks the option.
    NotOffered(String),
    /// The value is invalid, or the kernel rejected it.
    Failed(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotOffered(why) | Self::Failed(why) => f.pad(why),
        }
    }
}

impl std::error::Error for Refusal {}

/// Result of a change.
pub type Written = Result<(), Refusal>;

/// A network device in its network namespace.
pub struct Nic {
    name: String,
    /// The root below which /proc is read.
    root: Root,
    sysfs: Root,
    answers: Answers,
}

/// Where the responses to a device's requests come from.
pub(crate) enum Answers {
    /// The running kernel, through ioctl(2) and rtnetlink.
    Kernel {
        /// The socket for the ioctls.
        socket: Socket,
        /// The device's network namespace.
        netns: Netns,
    },
    /// Files in a directory tree: see [`Nic::answer_file`].
    Folder,
}

impl Nic {
    /// A device of the running kernel. The calling thread must be in the device's namespace, and `sysfs` must be that
    /// namespace's `/sys`.
    ///
    /// # Errors
    /// If no device can have this name.
    pub(crate) fn of_kernel(name: &str, netns: &Netns, sysfs: &Root) -> io::Result<Self> {
        let answers = Answers::Kernel { socket: Socket::named(name)?, netns: netns.clone() };
        Ok(Self { name: name.into(), root: Root::of(Path::new("/")), sysfs: sysfs.clone(), answers })
    }

    /// A device of a machine that is a directory tree.
    pub(crate) fn of_folder(name: &str, root: &Root) -> Self {
        let sysfs = Root::of(&root.path("sys"));
        Self { name: name.into(), root: root.clone(), sysfs, answers: Answers::Folder }
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The `/sys` in which the device appears.
    pub fn sysfs(&self) -> &Root {
        &self.sysfs
    }

    /// The directory that contains `proc` and `sys`.
    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    pub(crate) fn answers(&self) -> &Answers {
        &self.answers
    }

    /// The device's driver.
    pub fn driver(&self) -> Option<String> {
        let link = self.sysfs.link(&format!("class/net/{}/device/driver", self.name)).ok()?;
        link.rsplit('/').next().map(str::to_owned)
    }

    /// In a directory tree, the path of the file with the response to a request: `ethtool/rings`, `netlink/addresses`.
    pub(crate) fn answer_file(&self, name: &str) -> std::path::PathBuf {
        self.sysfs.path(&format!("class/net/{}/{name}", self.name))
    }

    /// In a directory tree, the text of the response to a request.
    pub(crate) fn answer(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.answer_file(name)).ok()
    }

    /// Converts the error of a request; `doing` is the equivalent command.
    pub(crate) fn refusal(&self, doing: &str, error: &io::Error) -> Refusal {
        let device = &self.name;
        match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => {
                let driver = self.driver().map_or("its driver".into(), |name| format!("its driver {name}"));
                Refusal::NotOffered(format!("{doing}: {device} does not offer it ({driver})"))
            }
            Some(libc::ENODEV) => Refusal::Failed(format!("{doing}: {device} does not exist")),
            Some(libc::EPERM) => Refusal::Failed(format!("{doing}: {error} (needs root)")),
            _ => Refusal::Failed(format!("{doing}: {error}")),
        }
    }
}
