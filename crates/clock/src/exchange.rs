//! A timed exchange, what it proves, and what proves a clock wrong.

use latpath_model::Ns;
use std::fmt;

/// Times beyond this (73 years of uptime) are refused, so that no difference of two can overflow.
pub(crate) const LATEST: Ns = 1 << 61;

/// One question and answer between the host and another machine (called guest here, whatever it is).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The host sends; host clock.
    pub t1: Ns,
    /// The guest has received; guest clock.
    pub t2: Ns,
    /// The guest answers; guest clock.
    pub t3: Ns,
    /// The host has received; host clock.
    pub t4: Ns,
}

impl Exchange {
    /// Time on the wire, of both messages together.
    pub fn round_trip(&self) -> Ns {
        self.t4.saturating_sub(self.t1).saturating_sub(self.t3.saturating_sub(self.t2))
    }
}

/// What one exchange proves of the offset θ = guest − host: a message cannot arrive before it was sent.
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
    /// The limits, or `None` if the times cannot be those of an exchange.
    pub fn of(e: &Exchange) -> Option<Self> {
        let sane = [e.t1, e.t2, e.t3, e.t4].iter().all(|t| (0..LATEST).contains(t));
        (sane && e.t1 <= e.t4 && e.t2 <= e.t3).then(|| Self {
            upper_at: e.t2,
            upper: e.t2 - e.t1,
            lower_at: e.t3,
            lower: e.t3 - e.t4,
        })
    }

    /// The limits of a pair of times of one moment: θ(guest) = guest − host ± uncertainty.
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
    /// What the exchanges prove cannot all be true: a clock stepped, stood still, or was steered harder than assumed.
    Contradiction,
    /// The guest's clock went back.
    WentBack,
    /// The four times are not those of an exchange. It was left out.
    Disordered,
}

/// A clock's fault: when it was noticed, and by how much the clock is known to be off. The fit starts again after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// When it was noticed, host clock.
    pub at_host: Ns,
    /// When it was noticed, guest clock.
    pub at_guest: Ns,
    /// How far the limits miss one another, in ns: the clock moved by at least this.
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
