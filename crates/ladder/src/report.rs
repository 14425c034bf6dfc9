//! Results of the ladder: programs use them directly, the report shows them.

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
    /// Number of events received.
    pub events: u64,
    /// Number of transfers abandoned because of lost events.
    pub ended_by_loss: u64,
    /// Number of transfers whose end was not seen.
    pub unfinished: u64,
    /// Number of packets that several transfers could have carried; assigned to none.
    pub ambiguous_packets: u64,
    /// Number of effects seen before their cause. If above 0, the order or the clock of the events is wrong.
    pub causality_violations: u64,
    /// Number of kicks of queues without packets: disks, consoles, a NIC's control queue.
    pub other_kicks: u64,
    /// Queues that carried packets, by number of packets in descending order.
    pub queues: Vec<QueueReport>,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueReport {
    /// The tap, if known.
    pub device: Option<String>,
    /// The virtual machine, if known.
    pub vm: Option<String>,
    /// Direction of its packets.
    pub direction: Direction,
    /// The register that the guest kicks, if known: `0xa003a50`, `port 0xc050`.
    pub doorbell: Option<String>,
    /// Number of the eventfd of its kicks, if known.
    pub kick_eventfd: Option<u64>,
    /// Whether a vhost worker carries its packets; otherwise QEMU does.
    pub by_vhost: bool,
    /// Number of kicks; 0 for packets to the guest, which need none.
    pub kicks: u64,
    /// Number of kicks (to the guest: packets) that came while an earlier one waited for the server; they belong to the
    /// earlier one's transfer.
    pub coalesced: u64,
    /// Number of kicks after which the server found no packet, because an earlier round had taken it.
    pub kicks_without_packet: u64,
    /// Number of packets.
    pub packets: u64,
    /// Number of packets without a kick because the server was active (suppressed kicks); 0 for packets to the guest.
    pub packets_without_kick: u64,
    /// Its transfers by variant, by number of transfers in descending order.
    pub ladders: Vec<MeansReport>,
}

/// Transfers of a queue with the same variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MeansReport {
    /// The variant. Interrupts of `no_vhost` and `vhost_relayed` may be posted too: then the rung `interrupt_posted`
    /// exists.
    pub variant: Variant,
    /// Time from the first step to the last.
    pub total: Times,
    /// The rungs, in order. The sums of their times add up to the total's sum.
    pub rungs: Vec<Rung>,
    /// Exit reasons of the kicks, most frequent first.
    pub exit_reasons: Vec<ReasonCount>,
    /// Time from the guest's interrupt to its next kick; not part of the total.
    pub next_kick: Times,
    /// One transfer, near the median.
    pub drawn: Vec<DrawnStep>,
}

/// Time from the previous observed step to this step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rung {
    /// The step.
    pub step: Step,
    /// Its times in the transfers that have this rung.
    pub time: Times,
}

/// Durations, ns: count, sum, mean and extremes are exact, the error of percentiles is at most 0.2 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Times {
    /// Number of durations.
    pub count: u64,
    /// Sum.
    pub sum_ns: Ns,
    /// Minimum.
    pub min_ns: Ns,
    /// Mean.
    pub mean_ns: Ns,
    /// Median.
    pub p50_ns: Ns,
    /// 90th percentile.
    pub p90_ns: Ns,
    /// 99th percentile.
    pub p99_ns: Ns,
    /// 99.9th percentile.
    pub p99_9_ns: Ns,
    /// Maximum.
    pub max_ns: Ns,
}

/// Number of exits of vCPUs for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReasonCount {
    /// The reason.
    pub reason: String,
    /// Number of exits.
    pub count: u64,
}

/// A step of the drawn transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DrawnStep {
    /// The step.
    pub step: Step,
    /// Time since the transfer's first step, ns.
    pub at_ns: Ns,
    /// Time since the previous step, ns.
    pub rung_ns: Ns,
    /// The thread that performed the step.
    pub thread: String,
    /// The thread's TID.
    pub pid: u32,
    /// The CPU that it ran on.
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
    /// Ends the ladder; open transfers count as unfinished.
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
