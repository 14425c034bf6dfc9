//! Emitter and reflector over a wire in memory with the faults of real wires, kernels and NICs, and worse ones: no loss
//! is silent, every count is right, and no run hangs.

mod ends;
mod hostile;
mod messages;
mod run;
mod stamps;
mod wire;
