//! What the ladder says in the end: for programs as it is, for people by way of the report.

use crate::event::Direction;
use crate::figures::{Group, Key, Lane};
use crate::ladder::Ladder;
use crate::step::{Step, Variant};
use crate::transfer::Stage;
use latpath_histogram::Histogram;
use latpath_model::text::printable;
use latpath_model::{Ns, Observation};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The figures of all queues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LadderFigures {
    /// Events that came.
    pub events: u64,
    /// Transfers that were given up because events are missing.
    pub ended_by_loss: u64,
    /// Transfers whose end was not seen.
    pub unfinished: u64,
    /// Packets that several transfers could have carried; they are in none.
    pub ambiguous_packets: u64,
    /// Effects that were seen before their cause. More than 0: the events' order or clock is wrong.
    pub causality_violations: u64,
    /// Kicks of queues that carry no packets: disks, consoles, a NIC's control queue.
    pub other_kicks: u64,
    /// Queues that carried packets, most packets first.
    pub queues: Vec<QueueReport>,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueReport {
    /// The tap, where it is known.
    pub device: Option<String>,
    /// The virtual machine, where it is known.
    pub vm: Option<String>,
    /// From or to the guest.
    pub direction: Direction,
    /// The register that the guest kicks, where it is known: `0xa003a50`, `port 0xc050`.
    pub doorbell: Option<String>,
    /// The number of the eventfd of its kicks, where that is known.
    pub kick_eventfd: Option<u64>,
    /// Whether vhost's worker carries its packets; otherwise QEMU does.
    pub by_vhost: bool,
    /// Kicks; 0 of packets to the guest, which nobody kicks.
    pub kicks: u64,
    /// Kicks (to the guest: packets) that came while an earlier one waited for the server: the transfer is the
    /// earlier one's.
    pub coalesced: u64,
    /// Kicks after which the server found nothing to carry: an earlier round had taken it.
    pub kicks_without_packet: u64,
    /// Packets.
    pub packets: u64,
    /// Packets that needed no kick, because the server was at work: suppressed kicks. 0 of packets to the guest.
    pub packets_without_kick: u64,
    /// Its transfers, by the means by which they went; most transfers first.
    pub ladders: Vec<MeansReport>,
}

/// The transfers of a queue that went by the same means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MeansReport {
    /// By which means. Interrupts of `no_vhost` and `vhost_relayed` may be posted too: then there is a rung
    /// `interrupt_posted`.
    pub variant: Variant,
    /// From the first step to the last.
    pub total: Times,
    /// The rungs, in order. Their sums add up to the total's.
    pub rungs: Vec<Rung>,
    /// Why vCPUs left the guest to kick, most frequent first.
    pub exit_reasons: Vec<ReasonCount>,
    /// From the moment that the guest has the interrupt to its next kick; not part of the total.
    pub next_kick: Times,
    /// One transfer, near the median.
    pub drawn: Vec<DrawnStep>,
}

/// The time that ends with a step, from the step before it that was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rung {
    /// The step.
    pub step: Step,
    /// Over the transfers that have it.
    pub time: Times,
}

/// Durations: count, sum, mean and extremes are exact, percentiles at most 0.2 % off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Times {
    pub count: u64,
    pub sum_ns: Ns,
    pub min_ns: Ns,
    pub mean_ns: Ns,
    pub p50_ns: Ns,
    pub p90_ns: Ns,
    pub p99_ns: Ns,
    pub p99_9_ns: Ns,
    pub max_ns: Ns,
}

/// How often a vCPU left its guest for a reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReasonCount {
    pub reason: String,
    pub count: u64,
}

/// A step of the transfer that is drawn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DrawnStep {
    /// The step.
    pub step: Step,
    /// Since the transfer's first step.
    pub at_ns: Ns,
    /// Since the step before.
    pub rung_ns: Ns,
    /// The thread that did it.
    pub thread: String,
    /// Its number.
    pub pid: u32,
    /// On which CPU.
    pub cpu: u32,
}

impl Times {
    fn of(histogram: &Histogram) -> Self {
        let [p50_ns, p90_ns, p99_ns, p99_9_ns] = histogram.percentiles([500_000, 900_000, 990_000, 999_000]);
        Self {
            count: histogram.count(),
            sum_ns: Ns::try_from(histogram.sum()).unwrap_or(Ns::MAX),
            min_ns: histogram.min(),
            mean_ns: histogram.mean(),
            p50_ns,
            p90_ns,
            p99_ns,
            p99_9_ns,
            max_ns: histogram.max(),
        }
    }
}

impl Ladder {
    /// Ends it: what is still going on is unfinished.
    pub fn finish(mut self) -> Observation<LadderFigures> {
        let injected = self.take(|open| matches!(open.stage, Stage::Injected | Stage::Posted));
        injected.iter().for_each(|open| self.close(open));
        let is_going_on = |stage: Stage| stage != Stage::Waiting;
        self.counts.unfinished += self.open.iter().filter(|open| is_going_on(open.stage)).count() as u64;
        let carries = |lane: &&Lane| lane.packets > 0 && lane.groups.values().any(|group| group.total.count() > 0);
        let others = self.lanes.iter().filter(|lane| !carries(lane));
        let other_kicks = others.map(|lane| lane.kicks).sum();
        let mut queues: Vec<QueueReport> = self.lanes.iter().filter(carries).map(|lane| self.queue(lane)).collect();
        queues.sort_by(|a, b| (b.packets, &a.device, &a.direction).cmp(&(a.packets, &b.device, &b.direction)));
        let counts = &self.counts;
        let figures = LadderFigures {
            events: counts.events,
            ended_by_loss: counts.ended_by_loss,
            unfinished: counts.unfinished,
            ambiguous_packets: counts.ambiguous,
            causality_violations: counts.violations,
            other_kicks,
            queues,
        };
        let (from_ns, window_ns) = self.covered();
        let (lost_events, notes) = (counts.lost_events, self.notes());
        Observation { from_ns, window_ns, lost_events, notes, figures, ..Observation::default() }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.counts.omitted_queues > 0 {
            notes.push(format!(
                "kicks and packets of queues beyond the first 512, left out: {}",
                self.counts.omitted_queues
            ));
        }
        if self.threads.forgotten > 0 {
            notes.push("there were more than 65536 threads: what was known of them was forgotten in between".into());
        }
        notes
    }

    fn queue(&self, lane: &Lane) -> QueueReport {
        let mut ladders: Vec<MeansReport> =
            lane.groups.iter().map(|(means, group)| self.means(*means, group)).collect();
        ladders.sort_by_key(|means| std::cmp::Reverse(means.total.count));
        let of_vm = |vm: u32| self.names.vms.get(&vm).cloned().unwrap_or_else(|| format!("process {vm}"));
        let of_doorbell = |doorbell: crate::event::Doorbell| match doorbell.is_port {
            true => format!("port {:#x}", doorbell.address),
            false => format!("{:#x}", doorbell.address),
        };
        QueueReport {
            device: lane.device.map(|device| self.device_name(device)),
            vm: lane.vm.map(of_vm),
            direction: lane.direction.unwrap_or(Direction::FromGuest),
            doorbell: lane.doorbell.map(of_doorbell),
            kick_eventfd: match lane.key {
                Some(Key::Kicks(eventfd)) => Some(eventfd),
                _ => None,
            },
            by_vhost: lane.server.is_some_and(|server| self.threads.is_vhost(server)),
            kicks: lane.kicks,
            coalesced: lane.coalesced,
            kicks_without_packet: lane.without_packet,
            packets: lane.packets,
            packets_without_kick: lane.packets_without_kick(),
            ladders,
        }
    }

    fn device_name(&self, device: crate::event::Device) -> String {
        let unnamed = || format!("interface {}", device.ifindex);
        self.names.devices.get(&device).map_or_else(unnamed, |name| printable(name))
    }

    fn means(&self, means: Variant, group: &Group) -> MeansReport {
        let rungs = Step::ALL.into_iter().zip(&group.rungs).filter(|(_, times)| times.count() > 0);
        let mut exit_reasons: Vec<ReasonCount> = group
            .reasons
            .iter()
            .map(|(reason, count)| ReasonCount {
                reason: self.reasons.get(usize::from(*reason)).map_or_else(|| "?".into(), |name| printable(name)),
                count: *count,
            })
            .collect();
        exit_reasons.sort_by_key(|reason| std::cmp::Reverse(reason.count));
        MeansReport {
            variant: means,
            total: Times::of(&group.total),
            rungs: rungs.map(|(step, times)| Rung { step, time: Times::of(times) }).collect(),
            exit_reasons,
            next_kick: Times::of(&group.next_kick),
            drawn: group.typical().map(|transfer| self.drawn(transfer)).unwrap_or_default(),
        }
    }

    fn drawn(&self, transfer: &crate::transfer::Transfer) -> Vec<DrawnStep> {
        let begin = transfer.steps.first().map_or(0, |(_, mark)| mark.t);
        let mut before = begin;
        let name = |pid: u32| match self.threads.get(pid) {
            _ if pid == 0 => "idle".into(),
            Some(thread) if !thread.identity.name.is_empty() => printable(&thread.identity.name),
            _ => format!("thread {pid}"),
        };
        let drawn = transfer.steps.iter().map(|(step, mark)| {
            let rung_ns = mark.t - before;
            before = mark.t;
            DrawnStep {
                step: *step,
                at_ns: mark.t - begin,
                rung_ns,
                thread: name(mark.pid),
                pid: mark.pid,
                cpu: mark.cpu,
            }
        });
        drawn.collect()
    }
}
