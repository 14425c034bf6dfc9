//! A path to measure, on one machine: publisher ─ veth ─ bridge ─ tap ─ QEMU guest. It consists of network namespaces
//! that this process owns, and a guest that boots in seconds from Debian's kernel and a root of a few files.
//!
//! Nothing remains afterwards: namespaces, processes and files are removed with their handles; the kernel ends the
//! children of a process that dies; and the next latpath removes the remains of a killed process ([`Labs`]).
//!
//! ```text
//!  namespace pub          namespace hyp                     guest
//!  lp-pub ────veth──── nic0 ── br0 ── vnet0 ── QEMU ── eth0 ── application
//!                                       or: veth0 ──veth── lp-app, in namespace app, without a guest
//! ```
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

mod acceleration;
mod apt;
mod arch;
mod bare_guest;
mod constant_tsc;
mod debugger;
mod devices;
mod emulator;
mod error;
mod files;
mod guest;
mod guest_files;
mod hypervisor;
mod image;
mod initramfs;
mod kernel;
mod layers;
mod machine;
mod modules;
mod namespace;
mod nics;
mod open_vswitch;
mod own_modules;
mod path;
mod process;
mod qemu;
mod shell;
mod starvation;
mod undo;

pub use acceleration::Acceleration;
pub use arch::Arch;
pub use bare_guest::{BareGuest, Interrupt};
pub use devices::{APPLICATION, BRIDGE, GUEST_ADDRESS, GUEST_DEVICE, NIC, PUBLISHER, PUBLISHER_ADDRESS, TAP, VETH};
pub use error::{Error, Result};
pub use guest::{Guest, GuestPlan, NicService};
pub use guest_files::{GuestFiles, GuestShell};
pub use hypervisor::{complaints, Hypervisor};
pub use layers::{LabKernel, KERNELS};
pub use machine::Machine;
pub use namespace::Namespace;
pub use nics::Nics;
pub use open_vswitch::{Lookups, OpenVswitch, WITH_DPDK};
pub use own_modules::OwnModule;
pub use path::{Application, Lab, LabPath, Switch};
pub use process::Running;
pub use shell::Output;
pub use starvation::{Starvation, Watch};
pub use undo::{Labs, Step};

/// Returns whether the user has requested a stop; called during every wait.
pub type Stop<'a> = &'a dyn Fn() -> bool;

/// Receives one line at the start of each step that takes time.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

/// The first requirement of a lab that this machine lacks, as an error; `None` if it has all. A missing network is only
/// noticed when a kernel has to be fetched.
pub fn missing(application: Application) -> Option<Error> {
    if !nix::unistd::geteuid().is_root() {
        return Some(Error::NotRoot);
    }
    if application == Application::Namespace {
        return None;
    }
    let programs = [(Arch::OWN.emulator(), Arch::OWN.package()), ("ldd", "libc-bin")];
    let lacks = programs.into_iter().find(|(program, _)| path_of(program).is_none());
    if let Some((program, package)) = lacks {
        return Some(Error::Missing { program, package });
    }
    image::busybox().err()
}

/// The path of a program, searched in `PATH` and the folders of root's programs.
pub fn path_of(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(Into::into));
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}
