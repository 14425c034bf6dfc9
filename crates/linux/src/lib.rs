//! What every part of latpath asks of the Linux that it runs on: its clocks, its CPU lists, its sockets and devices, `/proc`, and a
//! place in the background for latpath's own threads.

pub mod background;
mod clock;
pub mod confine;
mod cpus;
mod directory;
mod files;
mod map;
pub mod net;
mod private;
pub mod proc;

pub use clock::{monotonic, read_clock, realtime, utc_error};
pub use cpus::{BadCpus, Cpus};
pub use directory::Directory;
pub use files::{new_file, open_file, read_text, special, why_replaceable, why_shared};
pub use map::Map;
pub use private::{private_directory, RUN_DIRECTORY};
