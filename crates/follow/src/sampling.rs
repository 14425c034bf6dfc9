//! Tmu for this host's probes: the error of the host's clock against UTC, and what is known of the samples' times.

use latpath_clock::{ClockTie, RealtimeWatch};
use latpath_journey::{Joiner, Journey, Sampling};
use latpath_linux::utc_error;
use latpath_model::{Ns, PointInfo, StreamSpec, SynchChange, MERGING_UNIT};
use latpath_run::{MachineFigures, MachineRecord};

/// Computes sample times by this host's UTC.
pub struct HostSampling {
    sampling: Sampling,
    realtime: RealtimeWatch,
    /// Maximum error of this host's UTC stated by the user, ns.
    stated: Option<Ns>,
    /// The greatest bound so far, ns.
    bound: Ns,
    is_known: bool,
    is_missed: bool,
}

impl HostSampling {
    /// `stated`: maximum error of this host's UTC, ns; `None` for the kernel's value.
    pub fn new(stated: Option<Ns>) -> Self {
        let realtime = RealtimeWatch::new(&ClockTie::read());
        let sampling = Sampling::default();
        let mut new = Self { sampling, realtime, stated, bound: 0, is_known: false, is_missed: false };
        new.read_clock_error();
        new
    }

    /// Checks the synchronisation of this host's clock, and records the states that senders report. Returns the
    /// changes, each with the previous state. Adds the point of the sampling to `points` once a sender's clock and this
    /// host's are synchronised.
    pub fn update(
        &mut self,
        said: Vec<SynchChange>,
        joiner: &Joiner,
        points: &mut Vec<PointInfo>,
    ) -> Vec<(u8, SynchChange)> {
        if self.sampling.point().is_none() && said.is_empty() {
            return Vec::new();
        }
        self.realtime.observe(&ClockTie::read());
        self.read_clock_error();
        if said.iter().any(SynchChange::is_global) {
            self.is_missed = !self.is_known;
            if self.is_known {
                self.sampling.add_point(points);
            }
        }
        let news = self.sampling.take(said);
        self.sampling.learn(joiner);
        news
    }

    fn read_clock_error(&mut self) {
        let tie = self.realtime.to_monotonic(0).1;
        let error = self.stated.or_else(utc_error);
        self.is_known = error.is_some();
        self.bound = self.bound.max(error.map_or(0, |error| error.saturating_add(tie)));
    }

    /// Passes a journey on, with the time of its sample if known.
    pub fn with_sample(&mut self, j: &Journey, call: impl FnOnce(&Journey)) {
        let offset = self.is_known.then(|| self.realtime.to_monotonic(0).0);
        self.sampling.with_sample(j, offset, call);
    }

    /// The run's record of the sampling's clock.
    pub fn record(&self) -> Option<MachineRecord> {
        let method = if self.stated.is_some() { "UTC as stated" } else { "UTC by the kernel" };
        let (machine, method, error_bound_ns) = (MERGING_UNIT.into(), method.into(), self.bound);
        let fault = (!self.is_known).then(|| "this host's clock is not synchronised any more".into());
        let clock = MachineFigures { machine, method, error_bound_ns, fault, ..MachineFigures::default() };
        self.sampling.point().map(|_| MachineRecord { clock, ..MachineRecord::default() })
    }

    /// Notes for the user: on senders that gained or lost synchronisation, and why the time of sampling is unknown if
    /// it could be known.
    pub fn notes(&self, streams: &[StreamSpec]) -> Vec<String> {
        let missed = self.is_missed.then(|| {
            "Tmu: the samples are taken by UTC (smpSynch is 2), but this host's clock is not synchronised, as the kernel says; \
             if it is synchronised by other means, state its error with --clock-error"
                .into()
        });
        self.sampling.notes(streams).into_iter().chain(missed).collect()
    }
}
