//! Captures around late packets: requested from all machines, and assembled while following continues.

use latpath_agent::{GuestWindow, Machine};
use latpath_capture::{
    Capture, CaptureKind, CaptureRequest, CapturedPackets, LateCounts, LateDetector, LatenessRule, MachineSnapshot,
    Options as Choice, RankedCapture, RetentionLimits, RetentionPolicy,
};
use latpath_flight::{Figures, Ppm, Recorder, RecorderThread, Snapshot, DEFAULT_BUDGET};
use latpath_journey::Journey;
use latpath_model::{Ns, HOST};
use std::collections::VecDeque;
use std::time::Duration;

/// Maximum wait for this machine's records, ns; that for other machines is shorter.
const HOST_TIMEOUT: Ns = 6_000_000_000;
/// Maximum time for another machine's records.
pub(crate) const MACHINE_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of concurrent requests to another machine, so that it has time for its other work.
const ASKED: usize = 6;
/// Maximum number of captures waiting to be returned.
const WAITING: usize = 64;

/// Options of the flight recorders and captures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlightOptions {
    /// Memory for each CPU's events, bytes.
    pub bytes_per_cpu: usize,
    /// Maximum share of a machine's CPU time that its recorder may take.
    pub budget: Ppm,
    /// Rule by which packets are late.
    pub rule: LatenessRule,
    /// Maximum time to wait for packets in flight when a capture is requested, ns; limited by the window.
    pub max_wait: Ns,
    /// Limits on the captures that are kept.
    pub retention: RetentionLimits,
}

impl FlightOptions {
    /// Options for captures around packets slower than `threshold`, ns, with the command line's defaults.
    pub fn over(threshold: Ns) -> Self {
        Self {
            bytes_per_cpu: 4 << 20,
            budget: DEFAULT_BUDGET,
            rule: LatenessRule::Over(threshold),
            max_wait: 300_000_000,
            retention: RetentionLimits::default(),
        }
    }
}

/// Maximum memory of each other machine's records in incomplete captures, bytes.
const MAX_BYTES: usize = 16 << 20;

/// An incomplete capture.
struct UnderWay {
    request: CaptureRequest,
    /// This machine, then the others; `Err` with the ID of the request while it is pending.
    machines: Vec<Result<MachineSnapshot, u64>>,
    packets: Option<CapturedPackets>,
    deadline: Ns,
}

/// Memory of a machine's records in incomplete captures, bytes.
fn held(under_way: &[UnderWay], at: usize) -> usize {
    let records = under_way.iter().filter_map(|u| u.machines.get(at)?.as_ref().ok()?.record.as_ref().ok());
    records.map(Snapshot::bytes).sum()
}

/// Converts another machine's reply (index `at`) to its record; rejects records that exceed the memory limit.
fn of_answer(under_way: &[UnderWay], at: usize, machine: &str, answer: Result<GuestWindow, String>) -> MachineSnapshot {
    match answer {
        Ok(GuestWindow { snapshot, .. }) if snapshot.bytes() > MAX_BYTES.saturating_sub(held(under_way, at)) => {
            without(machine, "its records take too much of this machine's memory".into())
        }
        Ok(GuestWindow { offset_ns, error_bound_ns, snapshot }) => {
            MachineSnapshot { machine: machine.into(), offset_ns, error_bound_ns, record: Ok(snapshot) }
        }
        Err(why) => without(machine, why),
    }
}

fn without(machine: &str, why: String) -> MachineSnapshot {
    MachineSnapshot { machine: machine.into(), offset_ns: 0, error_bound_ns: 0, record: Err(why) }
}

/// Starts this machine's recorder.
fn start(options: &FlightOptions) -> Result<RecorderThread, String> {
    let mut recorder = Recorder::start(options.bytes_per_cpu).map_err(|e| e.to_string())?;
    recorder.set_budget(options.budget).map_err(|e| format!("the budget's thread: {e}"))?;
    recorder.learn();
    RecorderThread::start(Box::new(recorder), |snapshot| snapshot).map_err(|e| e.to_string())
}

/// The flight recorders and pending captures of all machines.
pub(crate) struct Flight {
    pub detector: LateDetector,
    pub retention: RetentionPolicy,
    recorder: Result<RecorderThread, String>,
    under_way: Vec<UnderWay>,
    done: VecDeque<RankedCapture>,
    /// The first request of each spike, for early notification.
    spotted: VecDeque<CaptureRequest>,
}

impl Flight {
    /// Starts this machine's recorder. If it cannot run, continues: other machines' records are still useful.
    pub fn start(options: &FlightOptions, window: Ns, streams: usize) -> Self {
        let max_wait = options.max_wait.min(window.saturating_add(200_000_000));
        let retention = RetentionPolicy::new(options.retention);
        Self {
            detector: LateDetector::new(
                Choice { rule: options.rule, max_wait, baselines: true },
                streams,
                retention.clone(),
            ),
            retention,
            recorder: start(options),
            under_way: Vec::new(),
            done: VecDeque::new(),
            spotted: VecDeque::new(),
        }
    }

    /// Figures of this machine's recorder, or why it does not run.
    pub fn figures(&self) -> Result<Figures, String> {
        self.recorder.as_ref().map(RecorderThread::figures).map_err(Clone::clone)
    }

    pub fn take(&mut self, journey: &Journey) {
        self.detector.take(journey);
    }

    /// Does one round: sends requests and collects results. All journeys that began before `reached` must have been
    /// added.
    pub fn round(&mut self, clock: Ns, reached: Ns, others: &mut [&mut Machine]) {
        self.detector.advance(clock, reached);
        self.request_captures(clock, others);
        self.collect(clock, reached, others);
    }

    fn request_captures(&mut self, clock: Ns, others: &mut [&mut Machine]) {
        while let Some(request) = self.detector.next_request() {
            let CaptureRequest { number, from, to, .. } = request;
            let mut machines = vec![match &self.recorder {
                Ok(recorder) => match recorder.request(number.into(), from, to) {
                    Ok(()) => Err(number.into()),
                    Err(why) => Ok(without(HOST, why.to_string())),
                },
                Err(why) => Ok(without(HOST, why.clone())),
            }];
            for (at, machine) in others.iter_mut().enumerate() {
                let asked = self.under_way.iter().filter(|u| matches!(u.machines.get(at + 1), Some(Err(_)))).count();
                machines.push(match asked {
                    ASKED.. => Ok(without(machine.name(), "it was still busy with other spikes".into())),
                    _ => Err(machine.request_window(from, to)),
                });
            }
            self.under_way.push(UnderWay {
                request,
                machines,
                packets: None,
                deadline: clock.saturating_add(HOST_TIMEOUT),
            });
            if request.kind == CaptureKind::Spike && self.spotted.len() < WAITING {
                self.spotted.push_back(request);
            }
        }
    }

    fn collect(&mut self, clock: Ns, reached: Ns, others: &mut [&mut Machine]) {
        if self.under_way.is_empty() {
            return;
        }
        while let Some(gathered) = self.detector.next_packets(reached) {
            if let Some(capture) = self.under_way.iter_mut().find(|u| u.request.number == gathered.number) {
                capture.packets = Some(gathered);
            }
        }
        let came = |under_way: &mut Vec<UnderWay>, at: usize, number: u64, record: MachineSnapshot| {
            let mut waiting = under_way.iter_mut().filter_map(|u| u.machines.get_mut(at));
            if let Some(waits) = waiting.find(|m| matches!(m, Err(n) if *n == number)) {
                *waits = Ok(record);
            }
        };
        while let Some((number, snapshot)) = self.recorder.as_ref().ok().and_then(|recorder| recorder.result().ok()?) {
            let record = MachineSnapshot { record: Ok(snapshot), ..without(HOST, String::new()) };
            came(&mut self.under_way, 0, number, record);
        }
        for (at, machine) in others.iter_mut().enumerate() {
            for (number, answer) in machine.take_windows() {
                let record = of_answer(&self.under_way, at + 1, machine.name(), answer);
                came(&mut self.under_way, at + 1, number, record);
            }
        }
        for capture in self.under_way.iter_mut().filter(|u| clock >= u.deadline) {
            let names = std::iter::once(HOST).chain(others.iter().map(|m| m.name()));
            for (machine, name) in capture.machines.iter_mut().zip(names).filter(|(m, _)| m.is_err()) {
                *machine = Ok(without(name, format!("no answer within {} s", HOST_TIMEOUT / 1_000_000_000)));
            }
        }
        // A later capture may be complete before an earlier one, and is then returned first.
        let is_whole = |u: &UnderWay| u.packets.is_some() && u.machines.iter().all(Result::is_ok);
        while let Some(at) = self.under_way.iter().position(is_whole) {
            let UnderWay { request, machines, packets, .. } = self.under_way.remove(at);
            let Some(CapturedPackets { packets, more_late, late, worst, .. }) = packets else { continue };
            let machines = machines.into_iter().flatten().collect();
            let (number, kind) = (request.number, request.kind);
            let capture = Capture { number, kind, from: request.from, to: request.to, machines, packets, more_late };
            if self.done.len() == WAITING {
                self.done.pop_front();
            }
            self.done.push_back(RankedCapture { capture, worst, late });
        }
    }

    /// Requests the remaining captures after the last journey. Afterwards call [`Self::round`] until [`Self::is_idle`],
    /// or until a time limit.
    pub fn finish(&mut self, clock: Ns, others: &mut [&mut Machine]) {
        self.detector.finish(clock);
        self.request_captures(clock, others);
    }

    /// Whether no capture is pending.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    pub fn next_capture(&mut self) -> Option<RankedCapture> {
        self.done.pop_front()
    }

    pub fn next_spotted(&mut self) -> Option<CaptureRequest> {
        self.spotted.pop_front()
    }

    pub fn counted(&self) -> &LateCounts {
        self.detector.counts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_flight::{CpuRecord, Event, Window};

    fn answer(bytes: usize) -> Result<GuestWindow, String> {
        let cpu = CpuRecord { events: Vec::with_capacity(bytes / size_of::<Event>()), ..CpuRecord::default() };
        let snapshot = Snapshot { window: Window { from: 0, to: 1, cpus: vec![cpu] }, ..Snapshot::default() };
        Ok(GuestWindow { offset_ns: 0, error_bound_ns: 0, snapshot })
    }

    #[test]
    fn pending_records_of_a_machine_are_bounded_in_memory() {
        let request =
            CaptureRequest { number: 1, kind: CaptureKind::Spike, from: 0, to: 1, worst: 0, stream: 0, packet: 0 };
        let mut under_way = Vec::new();
        let mut comes = |machine: usize, bytes| {
            let mut machines = vec![Err(1); 3];
            machines[machine] = Ok(of_answer(&under_way, machine, "guest0", answer(bytes)));
            let taken = machines[machine].as_ref().is_ok_and(|m: &MachineSnapshot| m.record.is_ok());
            under_way.push(UnderWay { request, machines, packets: None, deadline: 0 });
            taken
        };
        assert!(!comes(1, MAX_BYTES + 4096), "one alone");
        assert!(comes(1, MAX_BYTES * 3 / 4));
        assert!(!comes(1, MAX_BYTES / 2), "together with what waits");
        assert!(comes(1, MAX_BYTES / 8));
        assert!(comes(2, MAX_BYTES / 2), "another machine's own");
    }
}
