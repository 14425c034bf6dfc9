//! A single network namespace.

use crate::{start, waits::LIMIT, Failed, Finished, Started};
use latpath_lab::{Lab, Namespace};
use std::{ops::Deref, path::PathBuf, process::Command};

/// A test's network namespace, without IPv6, so that it carries only the test's own packets. It is removed when this
/// value is dropped.
pub struct Space {
    namespace: Namespace,
    lab: Lab,
}

impl Space {
    /// Creates a namespace; its name ends in `role`.
    ///
    /// # Errors
    /// If the namespace cannot be created.
    pub fn new(role: &str) -> Result<Self, Failed> {
        let lab = Lab::new()?;
        Ok(Self { namespace: lab.namespace(role)?, lab })
    }

    /// Path of the namespace's file, for setns(2).
    pub fn file(&self) -> PathBuf {
        format!("/run/netns/{}", self.name()).into()
    }

    /// The namespace's inode number.
    pub fn inode(&self) -> u32 {
        self.netns().inode()
    }

    /// The index of a device in the namespace.
    pub fn ifindex(&self, device: &str) -> u32 {
        self.inside(|| nix::net::if_::if_nametoindex(device).expect("the device is there"))
    }

    /// Calls a function in the namespace: sockets that the function opens belong to it.
    pub fn inside<T: Send>(&self, call: impl FnOnce() -> T + Send) -> T {
        self.namespace.inside(call).expect("root may enter it")
    }

    /// Starts a command in the namespace.
    ///
    /// # Errors
    /// If the command cannot be started.
    pub fn start(&self, command: Command) -> Result<Started, Failed> {
        start(&self.lab, &self.namespace, command)
    }

    /// Runs a command in the namespace until it exits.
    ///
    /// # Errors
    /// If the command cannot be started, or runs for longer than [`LIMIT`].
    pub fn run(&self, command: Command) -> Result<Finished, Failed> {
        self.start(command)?.finish(LIMIT)
    }

    /// A directory for files; it is removed with the namespace.
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
