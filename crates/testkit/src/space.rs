//! A network namespace by itself.

use crate::{start, waits::LIMIT, Failed, Finished, Started};
use latpath_lab::{Lab, Namespace};
use std::{ops::Deref, path::PathBuf, process::Command};

/// A network namespace of a test, without IPv6, so that nothing passes but what the test sends. It goes with this value.
pub struct Space {
    namespace: Namespace,
    lab: Lab,
}

impl Space {
    pub fn new(role: &str) -> Result<Self, Failed> {
        let lab = Lab::new()?;
        Ok(Self { namespace: lab.namespace(role)?, lab })
    }

    /// Its file, which setns(2) takes.
    pub fn file(&self) -> PathBuf {
        format!("/run/netns/{}", self.name()).into()
    }

    /// By which number the kernel names it.
    pub fn inode(&self) -> u32 {
        self.netns().inode()
    }

    /// The number of a device in it.
    pub fn ifindex(&self, device: &str) -> u32 {
        self.inside(|| nix::net::if_::if_nametoindex(device).expect("the device is there"))
    }

    /// Calls a function in it: what the function opens belongs to this namespace.
    pub fn inside<T: Send>(&self, call: impl FnOnce() -> T + Send) -> T {
        self.namespace.inside(call).expect("root may enter it")
    }

    /// Starts a command in it.
    pub fn start(&self, command: Command) -> Result<Started, Failed> {
        start(&self.lab, &self.namespace, command)
    }

    /// Runs a command in it to its end.
    pub fn run(&self, command: Command) -> Result<Finished, Failed> {
        self.start(command)?.finish(LIMIT)
    }

    /// A folder for files, which goes with it.
    pub fn folder(&self) -> &std::path::Path {
        self.lab.folder()
    }
}

impl Deref for Space {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        &self.namespace
    }
}
