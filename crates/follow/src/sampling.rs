//! Tmu and Tsend for this host's probes: the error of the host's clock against UTC, and records of the times of samples
//! and of planned send times.

use latpath_clock::{ClockTie, RealtimeWatch};
use latpath_journey::{Joiner, Journey, Sampling, SendPlan};
use latpath_linux::utc_error;
use latpath_model::{Ns, PlannedSend, PointInfo, StreamSpec, SynchChange, MERGING_UNIT, TALKER};
use latpath_run::{MachineFigures, MachineRecord};

/// Computes the times of samples, and planned send times, based on this host's UTC.
pub struct HostSampling {
    sampling: Sampling,
    send_plan: SendPlan,
    realtime: RealtimeWatch,
    /// Maximum error of this host's UTC stated by the user, ns.
    stated: Option<Ns>,
    /// Largest error bound so far, ns.
    bound: Ns,
    is_known: bool,
    is_missed: bool,
    /// Whether packets contain send times in UTC or TAI but this host's clock is not synchronised.
    is_plan_missed: bool,
    /// Whether some send times are in UTC or TAI.
    is_plan_by_utc: bool,
}

impl HostSampling {
    /// `stated`: maximum error of this host's UTC, ns; `None` for the kernel's value.
    pub fn new(stated: Option<Ns>) -> Self {
        let realtime = RealtimeWatch::new(&ClockTie::read());
        let mut new = Self {
            sampling: Sampling::default(),
            send_plan: SendPlan::default(),
            realtime,
            stated,
            bound: 0,
            is_known: false,
            is_missed: false,
            is_plan_missed: false,
            is_plan_by_utc: false,
        };
        new.read_clock_error();
        new
    }

    /// Checks the synchronisation of this host's clock, and records the states that senders report. Returns the
    /// changes, each with the previous state. Adds the sampling point to `points` once both a sender's clock and this
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

    /// Takes send times read from packets, and adds their point to `points`. Times in UTC or TAI are only taken while
    /// this host's clock is synchronised.
    pub fn plan(&mut self, sends: Vec<PlannedSend>, points: &mut Vec<PointInfo>) {
        if sends.is_empty() {
            return;
        }
        self.realtime.observe(&ClockTie::read());
        self.read_clock_error();
        let (own, by_utc): (Vec<_>, Vec<_>) = sends.into_iter().partition(|send| send.is_own_clock);
        if !by_utc.is_empty() {
            self.is_plan_missed = !self.is_known;
            self.is_plan_by_utc |= self.is_known;
        }
        let known = if self.is_known { by_utc } else { Vec::new() };
        for sends in [own, known].into_iter().filter(|sends| !sends.is_empty()) {
            self.send_plan.add_point(points);
            self.send_plan.take(sends);
        }
    }

    fn read_clock_error(&mut self) {
        let tie = self.realtime.to_monotonic(0).1;
        let error = self.stated.or_else(utc_error);
        self.is_known = error.is_some();
        self.bound = self.bound.max(error.map_or(0, |error| error.saturating_add(tie)));
    }

    /// Calls `call` with a journey, extended by the time of its sample and its planned send time, if known.
    pub fn with_sample(&mut self, j: &Journey, call: impl FnOnce(&Journey)) {
        let offset = self.is_known.then(|| self.realtime.to_monotonic(0).0);
        let Self { sampling, send_plan, .. } = self;
        sampling.with_sample(j, offset, |j| send_plan.with_send_time(j, call));
    }

    /// Calls `call` with a journey, extended by its planned send time, if known.
    pub fn with_send_time(&self, j: &Journey, call: impl FnOnce(&Journey)) {
        self.send_plan.with_send_time(j, call);
    }

    /// The run's records of the clocks of the sample times and of the send times.
    pub fn records(&self) -> impl Iterator<Item = MachineRecord> + '_ {
        let points = [(MERGING_UNIT, self.sampling.point()), (TALKER, self.send_plan.point())];
        let record = |(machine, _): (&str, _)| {
            if machine == TALKER && !self.is_plan_by_utc {
                let (machine, method) = (machine.into(), "this host's CLOCK_MONOTONIC".into());
                let clock = MachineFigures { machine, method, ..MachineFigures::default() };
                return MachineRecord { clock, ..MachineRecord::default() };
            }
            let method = if self.stated.is_some() { "UTC as stated" } else { "UTC by the kernel" };
            let (machine, method, error_bound_ns) = (machine.into(), method.into(), self.bound);
            let fault = (!self.is_known).then(|| "this host's clock is not synchronised any more".into());
            let clock = MachineFigures { machine, method, error_bound_ns, fault, ..MachineFigures::default() };
            MachineRecord { clock, ..MachineRecord::default() }
        };
        points.into_iter().filter(|(_, point)| point.is_some()).map(record)
    }

    /// Notes for the user: on senders that gained or lost synchronisation, and on what is missing if the times of
    /// samples or send times could be known but are not.
    pub fn notes(&self, streams: &[StreamSpec]) -> Vec<String> {
        let missed = self.is_missed.then(|| {
            "Tmu: the samples are taken by UTC (smpSynch is 2), but this host's clock is not synchronised, as the kernel says; \
             if it is synchronised by other means, state its error with --clock-error"
                .into()
        });
        let plan_missed = self.is_plan_missed.then(|| {
            "Tsend: packets have their send times, but this host's clock is not synchronised, as the kernel says; state its \
             error against the talker's clock with --clock-error (0s if the talker runs on this machine)"
                .into()
        });
        self.sampling.notes(streams).into_iter().chain(missed).chain(plan_missed).collect()
    }
}
