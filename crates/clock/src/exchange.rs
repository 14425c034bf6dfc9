//! Timed exchanges, the limits that they prove, and faults of clocks.

use latpath_model::Ns;
use std::fmt;

/// Upper limit of valid times, ns (73 years of uptime), so that no difference overflows.
pub(crate) const LATEST: Ns = 1 << 61;

/// A request and response between the host and another machine (called the guest here).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// When the host sent the request, host clock.
    pub t1: Ns,
    /// When the guest received the request, guest clock.
    pub t2: Ns,
    /// When the guest sent the response, guest clock.
    pub t3: Ns,
    /// When the host received the response, host clock.
    pub t4: Ns,
}

impl Exchange {
    /// Total time of both messages on the wire, ns.
    pub fn round_trip(&self) -> Ns {
        self.t4.saturating_sub(self.t1).saturating_sub(self.t3.saturating_sub(self.t2))
    }
}

/// The limits that one exchange proves for the offset θ = guest − host: a message cannot arrive before it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Guest time at which θ ≤ `upper`.
    pub upper_at: Ns,
    pub upper: Ns,
    /// Guest time at which θ ≥ `lower`.
    pub lower_at: Ns,
    pub lower: Ns,
}

impl Limits {
    /// The limits, or `None` if the times are not those of an exchange.
    pub fn of(e: &Exchange) -> Option<Self> {
        let sane = [e.t1, e.t2, e.t3, e.t4].iter().all(|t| (0..LATEST).contains(t));
        (sane && e.t1 <= e.t4 && e.t2 <= e.t3).then(|| Self {
            upper_at: e.t2,
            upper: e.t2 - e.t1,
            lower_at: e.t3,
            lower: e.t3 - e.t4,
        })
    }

    /// The limits of a simultaneous reading: θ(guest) = guest − host ± uncertainty.
    pub fn of_pair(guest: Ns, host: Ns, uncertainty: Ns) -> Option<Self> {
        let sane = [guest, host, uncertainty].iter().all(|t| (0..LATEST).contains(t));
        sane.then(|| Self {
            upper_at: guest,
            upper: guest - host + uncertainty,
            lower_at: guest,
            lower: guest - host - uncertainty,
        })
    }

    pub fn width(&self) -> Ns {
        self.upper - self.lower
    }
}

/// Why a clock is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The exchanges contradict each other: a clock stepped, stopped, or was steered more than assumed.
    Contradiction,
    /// The guest's clock went backward.
    WentBack,
    /// The four times cannot be those of an exchange, so they were ignored.
    Disordered,
}

/// A fault of a clock: when it was detected, and its minimum size. The estimate restarts afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// Time of detection, host clock.
    pub at_host: Ns,
    /// Time of detection, guest clock.
    pub at_guest: Ns,
    /// Distance between the contradicting limits, ns: the clock moved by at least this.
    pub gap_ns: Ns,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            FaultKind::Contradiction => {
                write!(
                    f,
                    "the clock jumped or was steered: by {} ns at least, against all exchanges before",
                    self.gap_ns
                )
            }
            FaultKind::WentBack => write!(f, "the clock went back by {} ns", self.gap_ns),
            FaultKind::Disordered => write!(f, "an exchange came with impossible times"),
        }
    }
}
