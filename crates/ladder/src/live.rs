//! The live ladder, from the flight recorder's events.

use crate::event::{Device, Direction, Doorbell, Event, EventKind, Line};
use crate::ladder::{Join, Ladder};
use crate::report::LadderFigures;
use crate::threads::{is_worker, Identity};
use latpath_flight::{
    Event as Recorded, EventKind as RecordedKind, Left, Missing, Recorder, Scope, Sleep, StartError, Tail, Tailed,
    Transfer,
};
use latpath_model::{cost_per_event, Observation};
use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Memory for each CPU's events, bytes: a tenth of a second of a CPU that does nothing but record.
const BYTES_PER_CPU: usize = 2 << 20;
/// Maximum number of exit reasons with names.
const REASONS: usize = 1024;

/// Returns the name of an exit reason, from the ISA that defines it and its number.
pub type NameReason = Box<dyn Fn(u32, u32) -> String>;

/// Follows transfers until [`Live::finish`].
pub struct Live {
    recorder: Recorder,
    tail: Tail,
    follower: Follower,
    /// While open, the kernel measures the programs' run time.
    measuring: Option<OwnedFd>,
}

/// Converts the recorder's events into the ladder's.
struct Follower {
    ladder: Ladder,
    name_reason: NameReason,
    reasons: HashMap<(u32, u32), u16>,
    /// The virtual machines to follow, by their processes; empty: all.
    only: BTreeSet<u32>,
    taps: BTreeSet<Device>,
}

impl Live {
    /// Starts to follow transfers. `only` and `taps`: the processes of the virtual machines to follow, and their taps;
    /// if empty, all are followed. With `cost`, the kernel measures the programs' run time, which adds two clock
    /// readings to each run.
    ///
    /// # Errors
    /// If the kernel or the user's rights do not allow tracing.
    pub fn start(
        name_reason: NameReason,
        only: BTreeSet<u32>,
        taps: BTreeSet<Device>,
        cost: bool,
    ) -> Result<Self, StartError> {
        let measuring = if cost { Some(latpath_bpf::measure()?) } else { None };
        let recorder = Recorder::start_for(Scope::Transfers, BYTES_PER_CPU)?;
        // Without vhost, only QEMU serves queues, so vhost's events are not needed.
        let is_vhost_seen = recorder.has("vhost_tx_kick") || !Path::new("/sys/module/vhost_net").exists();
        let join = match recorder.has("eventfd_read") && is_vhost_seen {
            true => Join::Eventfds,
            false => Join::Wakeups,
        };
        let ladder = Ladder::new(join);
        let follower = Follower { ladder, name_reason, reasons: HashMap::new(), only, taps };
        Ok(Self { recorder, tail: Tail::new(), follower, measuring })
    }

    /// Processes the events since the last call. Call it about ten times a second.
    pub fn step(&mut self) {
        let (recorder, follower) = (&self.recorder, &mut self.follower);
        self.tail.read(recorder, &mut |tailed| follower.take(recorder, tailed));
    }

    /// The ladder, for setting the names of devices and virtual machines.
    pub fn ladder(&mut self) -> &mut Ladder {
        &mut self.follower.ladder
    }

    /// Hooks that this kernel lacks.
    pub fn missing(&self) -> Vec<Missing> {
        self.recorder.missing()
    }

    /// Ends the window and calls `at_end` after its last event; names set by `at_end` are used too.
    pub fn finish(mut self, at_end: impl FnOnce(&mut Ladder)) -> Observation<LadderFigures> {
        let (recorder, follower) = (&self.recorder, &mut self.follower);
        self.tail.finish(recorder, &mut |tailed| follower.take(recorder, tailed));
        at_end(&mut follower.ladder);
        let join = self.follower.ladder.join;
        let mut report = self.follower.ladder.finish();
        if join == Join::Wakeups {
            let note = "queues are matched by wake-ups, not by eventfds: functions of this kernel cannot be watched";
            report.notes.push(note.into());
        }
        let missing = self.recorder.missing();
        let others = missing.iter().filter(|missing| join == Join::Eventfds || !missing.is_function);
        report.not_shown = others.map(ToString::to_string).collect();
        let costs = self.measuring.is_some().then(|| self.recorder.programs());
        let sum = |(runs, ns), cost: &latpath_flight::ProgramCost| (runs + cost.runs, ns + cost.ns);
        report.cost_per_event_ns = cost_per_event(costs.map(|costs| costs.iter().fold((0, 0), sum)));
        report.notes.extend(late_exits(&self.follower.reasons, &latpath_bpf::release()));
        let missed = self.recorder.figures().missed;
        if missed > 0 {
            report
                .notes
                .push(format!("events missed, because the same program was running already on their CPU: {missed}"));
        }
        report
    }
}

/// A note if this kernel reports exits late: arch/x86/kvm/svm/svm.c reports an exit before it handles interrupts only
/// since Linux 6.5.
fn late_exits(reasons: &HashMap<(u32, u32), u16>, release: &str) -> Option<String> {
    const SVM: u32 = 2;
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let is_old = (numbers.next()?, numbers.next()?) < (6, 5);
    let is_late = is_old && reasons.keys().any(|(isa, _)| *isa == SVM);
    let note = "this kernel reports exits only after it has served interrupts (AMD, before Linux 6.5): kicks begin a little late";
    is_late.then(|| note.to_owned())
}

impl Follower {
    fn take(&mut self, recorder: &Recorder, tailed: &Tailed) {
        match tailed {
            Tailed::Lost(cpu, events, t) => {
                self.ladder.push(&Event { t: *t, cpu: *cpu, pid: 0, what: EventKind::Lost(*events) });
            }
            Tailed::Event(cpu, event) => {
                if let Some(what) = self.what(recorder, event) {
                    self.ladder.push(&Event { t: event.t, cpu: *cpu, pid: event.pid, what });
                }
            }
        }
    }

    fn what(&mut self, recorder: &Recorder, event: &Recorded) -> Option<EventKind> {
        Some(match event.what {
            RecordedKind::Switch { next, left, .. } => {
                // In uninterruptible sleep, a server waits for memory or a lock: its round has not ended.
                let asleep = matches!(left, Left::Asleep(Sleep::Interruptible | Sleep::Idle));
                EventKind::Switch { next, asleep }
            }
            RecordedKind::Waking { pid, .. } => EventKind::Waking { pid },
            RecordedKind::KvmEntry { .. } => EventKind::Entry,
            RecordedKind::KvmExit { reason, isa, .. } => {
                self.identify(recorder, event.pid);
                EventKind::Exit(self.reason(isa, reason.unwrap_or(u32::MAX)))
            }
            RecordedKind::KvmInjVirq(vector) => EventKind::Inject { vector },
            RecordedKind::Transfer(transfer) => {
                if event.pid != 0 {
                    self.identify(recorder, event.pid);
                }
                return self.part(event.pid, transfer);
            }
            _ => return None,
        })
    }

    fn part(&mut self, pid: u32, transfer: Transfer) -> Option<EventKind> {
        let packet = |direction, device| EventKind::Packet { direction, device: Some(device) };
        Some(match transfer {
            Transfer::Signal(eventfd) => {
                let is_others = self.ladder.is_vcpu(pid) && !self.follows(pid);
                (!is_others).then_some(EventKind::Signal(eventfd.into()))?
            }
            Transfer::Read(eventfd) => EventKind::Take(eventfd.into()),
            Transfer::Round { kick, call, to_guest } => {
                let direction = if to_guest { Direction::ToGuest } else { Direction::FromGuest };
                EventKind::Serve { kick: kick.into(), call: call.into(), direction }
            }
            Transfer::Irqfd(eventfd) => EventKind::Irqfd(eventfd.into()),
            Transfer::RegisterRead => EventKind::Read,
            Transfer::RegisterWrite { is_port, address, value } => {
                EventKind::Write(Doorbell { is_port, address, value })
            }
            Transfer::RaiseLine(number) => EventKind::Raise(Line::Wire(number.into())),
            Transfer::RaiseMessage(data) => EventKind::Raise(Line::Message(data)),
            Transfer::Accept { vector, .. } => EventKind::Accept { vector },
            Transfer::Posted { vector, .. } => EventKind::Posted { vector },
            Transfer::End(vector) => EventKind::Eoi { vector },
            Transfer::TapArrive(ifindex, netns) => EventKind::Arrive(self.tap(ifindex, netns)?),
            Transfer::TapRead(ifindex, netns) => packet(Direction::ToGuest, self.tap(ifindex, netns)?),
            Transfer::TapWrite(ifindex, netns) => packet(Direction::FromGuest, self.tap(ifindex, netns)?),
        })
    }

    fn follows(&self, pid: u32) -> bool {
        self.only.is_empty() || self.ladder.process(pid).is_none_or(|process| self.only.contains(&process))
    }

    fn tap(&self, ifindex: u32, netns: u32) -> Option<Device> {
        let device = Device { ifindex, netns };
        (self.only.is_empty() || self.taps.contains(&device)).then_some(device)
    }

    fn identify(&mut self, recorder: &Recorder, pid: u32) {
        if self.ladder.is_identified(pid) {
            return;
        }
        if let Some(thread) = recorder.thread(pid) {
            let is_vhost = is_worker(&thread.name);
            self.ladder.identify(pid, Identity { name: thread.name, process: Some(thread.tgid), is_vhost });
        }
    }

    fn reason(&mut self, isa: u32, reason: u32) -> u16 {
        if let Some(known) = self.reasons.get(&(isa, reason)) {
            return *known;
        }
        let number = self.ladder.reason(&(self.name_reason)(isa, reason));
        if self.reasons.len() < REASONS {
            self.reasons.insert((isa, reason), number);
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_are_said_to_be_late_on_old_kernels_of_amd_alone() {
        let of = |isa: u32, release: &str| late_exits(&HashMap::from([((isa, 0x400), 0)]), release).is_some();
        assert!(of(2, "6.1.0-50-amd64") && of(2, "5.15.0"));
        assert!(!of(1, "6.1.0-50-amd64") && !of(2, "6.12.1") && !of(2, "6.5.0") && !of(2, "?"));
    }
}
