//! Emitter and reflector over an in-memory wire with the faults of real wires, kernels and NICs, and with worse ones:
//! no loss goes unnoticed, every count is right, and no run hangs.

mod ends;
mod hostile;
mod messages;
mod run;
mod stamps;
mod wire;
