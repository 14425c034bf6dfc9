//! One transfer between a guest and its host, step by step: the guest kicks a queue (the vCPU leaves the guest),
//! vhost's worker or QEMU is woken, runs, carries the packet; the interrupt is raised, the vCPU reached, the
//! interrupt injected, the guest's handler runs. In the other direction a transfer begins when the packet is handed
//! to the tap.
//!
//! [`Ladder`] is a state machine over one stream of [`Event`]s in the order of their times. It does not know where
//! they come from: [`Live`] takes them from the flight recorder, [`trace_text`] from what `trace-cmd report` and
//! `perf script` print. Each transfer's rungs sum to its time, exactly. A step is joined to its transfer by what
//! caused it: who signalled which eventfd, who woke whom, which interrupt vector. What cannot be joined is counted,
//! not guessed.
//!
//! Several kicks before the server turns to the queue make one transfer, which begins with the first; the others are
//! counted as coalesced. Memory is bounded, whatever events come.

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

pub use event::{Device, Direction, Doorbell, Event, Eventfd, Line, What};
pub use figures::Counts;
pub use ladder::{Join, Ladder};
pub use live::{Live, NameReason};
pub use report::{DrawnStep, LadderFigures, MeansReport, QueueReport, ReasonCount, Rung, Times};
pub use step::{Step, Variant};
pub use threads::{Identity, Mark};
pub use transfer::Transfer;
