//! Transfers between a guest and its host, step by step: the guest kicks a queue (the vCPU leaves the guest); a vhost
//! worker or QEMU is woken, runs, and carries the packet; the interrupt is raised, reaches the vCPU, and is injected;
//! the guest's handler runs. In the other direction, a transfer begins when a packet reaches the tap.
//!
//! [`Ladder`] is a state machine over one stream of [`Event`]s in order of time, independent of their source: [`Live`]
//! takes them from the flight recorder, [`trace_text`] from the output of `trace-cmd report` and `perf script`. The
//! rungs of each transfer sum exactly to its time. Steps are joined to their transfer by causality: the signalled
//! eventfd, the wakeup, the interrupt vector. Events that cannot be joined are counted, not guessed.
//!
//! Several kicks before the server turns to the queue form one transfer, which begins with the first; the others are
//! counted as coalesced. Memory is bounded for any input.

pub mod door;
mod event;
mod figures;
mod interrupts;
mod kicks;
mod ladder;
mod live;
mod packets;
#[cfg(test)]
mod properties;
mod report;
mod step;
mod threads;
pub mod trace_text;
mod transfer;

pub use event::{Device, Direction, Doorbell, Event, EventKind, Eventfd, Line};
pub use figures::Counts;
pub use ladder::{Join, Ladder};
pub use live::{Live, NameReason};
pub use report::{DrawnStep, LadderFigures, MeansReport, QueueReport, ReasonCount, Rung, Times};
pub use step::{Step, Variant};
pub use threads::{Identity, Mark};
pub use transfer::Transfer;
