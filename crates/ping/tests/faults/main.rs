//! Emitter and reflector over a wire in memory that does what real wires, kernels and NICs do, and worse: nothing is lost
//! silently, every count is right, and no run hangs.

mod ends;
mod hostile;
mod messages;
mod run;
mod stamps;
mod wire;
