//! Access to the running Linux: clocks, CPU lists, sockets and devices, `/proc`, and background scheduling of latpath's
//! own threads.

pub mod background;
mod clock;
pub mod confine;
mod cpus;
mod directory;
mod files;
pub mod interrupts;
mod map;
mod module;
pub mod net;
mod owner;
mod private;
pub mod proc;
mod scheduling;
mod spawn;
mod sysfs;

pub use clock::{monotonic, read_clock, realtime, utc_error, KernelTime};
pub use cpus::{BadCpus, Cpus};
pub use directory::Directory;
pub use files::{new_file, open_file, read_text, special, why_replaceable, why_shared};
pub use map::Map;
pub use module::would_load_module;
pub use owner::{Owner, Runtime};
pub use private::{private_directory, RUN_DIRECTORY};
pub use scheduling::{set_affinity, set_scheduling};
pub use spawn::{die_with_parent, spawn_on_lasting_thread};
pub use sysfs::{sysfs_of_own_netns, writable_sysfs_of_own_netns};
