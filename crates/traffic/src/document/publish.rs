//! The JSON document of `latpath publish`.

use super::{unread_reasons, UnreadReason};
use crate::{named_times, Punctuality, Schedule, Talked, TalkerStream, Times};
use latpath_model::Ns;
use latpath_protocols::UnreadFrames;
use latpath_wire::TxStampCounts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

named_times! {
    Pacing: "pacing", "Time directly before the system call, minus the time at which the frame was due.";
    WakeUp: "wakeup", "The same, of frames that the thread waited for.";
    ToQdisc: "to_qdisc", "Time from the system call to the queueing discipline, of sampled frames.";
    ToDriver: "to_driver", "Time from the system call to the driver, of sampled frames.";
}

/// The sent frames, and their punctuality.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PublishDocument {
    /// The device; null with `--prp` and `--hsr`.
    pub interface: Option<String>,
    /// The devices of LAN A and LAN B (PRP).
    pub prp: Option<[String; 2]>,
    /// The devices of port A and port B (HSR).
    pub hsr: Option<[String; 2]>,
    /// svID of each stream; empty for other streams and files.
    pub svids: Vec<String>,
    /// The stream given by `--stream`.
    pub stream: Option<String>,
    /// The file given by `--pcap`.
    pub replay: Option<PathBuf>,
    /// Frames that the kernel accepted; with two copies, only those of LAN A are counted.
    pub frames_sent: u64,
    /// Frames that the kernel rejected because a queue was full: lost.
    pub refused: u64,
    /// Frames sent more than one interval after they were due.
    pub late: u64,
    /// Whether frames were still overdue a second after the end, and so were not sent.
    pub gave_up: bool,
    /// Packets of the file that are not sent.
    pub skipped: u64,
    /// Frames of the file that cannot be read; they are sent unchanged.
    pub malformed: u64,
    /// The reasons, in descending order of their number of frames.
    pub malformed_reasons: Vec<UnreadReason>,
    /// Frames of the file that the capture truncated.
    pub frames_cut: u64,
    /// Time from the first to the last frame, ns.
    pub elapsed_ns: Ns,
    /// Requested frames per second of all streams; null for as fast as possible.
    pub target_rate_hz: Option<f64>,
    /// Frames sent per second.
    pub rate_hz: f64,
    /// Times of all frames.
    #[serde(flatten)]
    pub pacing: Times<Pacing>,
    /// Times of frames whose deadline the thread waited for.
    #[serde(flatten)]
    pub wakeup: Times<WakeUp>,
    /// NIC timestamps of sent frames; absent without `--stamps nic`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nic_times: Option<SentNicTimes>,
    /// The schedule; absent without `--cycle` and `--schedule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleDocument>,
    /// The streams of the schedule; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<Vec<PublishedStream>>,
}

/// Counts of NIC timestamps for sent frames.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SentNicTimes {
    /// Frames for which a timestamp was requested.
    pub requested: u64,
    /// Frames whose timestamp arrived.
    pub received: u64,
    /// Frames for which no timestamp was requested, because that of an earlier frame was pending.
    pub skipped: u64,
}

/// Send times: base time + n cycles + the stream's offset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleDocument {
    /// Clock of the send times.
    pub clock: String,
    /// A time at which a cycle begins, by that clock, ns.
    pub base_time_ns: Ns,
    /// Length of a cycle, ns.
    pub cycle_ns: Ns,
}

/// A stream of a schedule, and the outcomes of its frames.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PublishedStream {
    /// svID.
    pub svid: String,
    /// VLAN; null without a tag.
    pub vlan: Option<u16>,
    /// Priority in the VLAN tag; null without a tag.
    pub pcp: Option<u8>,
    /// Priority of the packets (SO_PRIORITY); null for the default.
    pub priority: Option<u8>,
    /// Send time, relative to the start of the cycle, ns.
    pub offset_ns: Ns,
    /// How long before its send time a frame is handed to the kernel, ns.
    pub advance_ns: Ns,
    /// How the queueing discipline uses the send time, `strict` or `deadline`; null if it does not get the send time.
    pub txtime: Option<String>,
    /// Frames that the kernel accepted.
    pub frames_sent: u64,
    /// Frames that the kernel rejected because a queue was full: lost.
    pub refused: u64,
    /// Frames handed over more than one cycle late.
    pub late: u64,
    /// Frames handed over after their send time.
    pub after_send_time: u64,
    /// Frames that etf discarded: `dropped_missed` + `dropped_invalid`.
    pub dropped_by_etf: u64,
    /// Frames whose send time passed while they were in etf's queue.
    pub dropped_missed: u64,
    /// Frames that etf discarded on arrival, because they were too late or used another clock.
    pub dropped_invalid: u64,
    /// The first 100 discarded frames.
    pub dropped_frames: Vec<DroppedFrame>,
    /// Send time of the first frame, ns of the schedule's clock.
    pub first_send_time_ns: Ns,
    /// Send time of the last frame, ns of the schedule's clock.
    pub last_send_time_ns: Ns,
    /// Sampled frames whose timestamps never arrived.
    pub unstamped: u64,
    /// Times from the application to the queueing discipline, of sampled frames.
    #[serde(flatten)]
    pub to_qdisc: Times<ToQdisc>,
    /// Times from the application to the driver, of sampled frames.
    #[serde(flatten)]
    pub to_driver: Times<ToDriver>,
}

/// A frame that etf discarded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DroppedFrame {
    /// Index of the frame in its stream, from 0.
    pub frame: u64,
    /// Its send time, ns of the schedule's clock.
    pub send_time_ns: Ns,
}

impl PublishDocument {
    /// The document of sent frames, without the fields of the command's flags and of a file's packets. `stamps`: counts
    /// of NIC timestamps, if they were requested.
    pub fn of(
        sent: &Punctuality,
        target_rate_hz: Option<f64>,
        unread: &UnreadFrames,
        stamps: Option<TxStampCounts>,
    ) -> Self {
        Self {
            interface: None,
            prp: None,
            hsr: None,
            svids: Vec::new(),
            stream: None,
            replay: None,
            frames_sent: sent.sent,
            refused: sent.refused,
            late: sent.late,
            gave_up: sent.gave_up,
            skipped: 0,
            malformed: unread.total(),
            malformed_reasons: unread_reasons(unread),
            frames_cut: 0,
            elapsed_ns: sent.last - sent.first,
            target_rate_hz,
            rate_hz: sent.rate_hz(),
            pacing: (&sent.error).into(),
            wakeup: (&sent.wakeup).into(),
            nic_times: stamps.map(|TxStampCounts { requested, received, skipped }| SentNicTimes {
                requested,
                received,
                skipped,
            }),
            schedule: None,
            streams: None,
        }
    }

    /// Adds a schedule and its streams.
    #[must_use]
    pub fn with_schedule<'a>(
        self,
        schedule: Schedule,
        streams: impl Iterator<Item = (&'a TalkerStream, &'a Talked)>,
    ) -> Self {
        let Schedule { clock, base, cycle } = schedule;
        Self {
            schedule: Some(ScheduleDocument { clock: clock.to_string(), base_time_ns: base, cycle_ns: cycle }),
            streams: Some(streams.map(|(stream, talked)| PublishedStream::of(stream, talked)).collect()),
            ..self
        }
    }
}

impl PublishedStream {
    fn of(stream: &TalkerStream, talked: &Talked) -> Self {
        let tag = stream.header.link.tags.last();
        let discarded = talked.discarded.iter();
        Self {
            svid: String::from_utf8_lossy(&stream.svid).into_owned(),
            vlan: tag.map(|tag| tag.vlan()),
            pcp: tag.map(|tag| tag.priority()),
            priority: stream.priority,
            offset_ns: stream.offset,
            advance_ns: stream.advance,
            txtime: stream.txtime.map(|mode| mode.to_string()),
            frames_sent: talked.sent,
            refused: talked.refused,
            late: talked.late,
            after_send_time: talked.after_send_time,
            dropped_by_etf: talked.missed + talked.invalid,
            dropped_missed: talked.missed,
            dropped_invalid: talked.invalid,
            dropped_frames: discarded
                .map(|(frame, time)| DroppedFrame { frame: *frame, send_time_ns: *time })
                .collect(),
            first_send_time_ns: talked.first,
            last_send_time_ns: talked.last,
            unstamped: talked.unstamped,
            to_qdisc: (&talked.to_queue).into(),
            to_driver: (&talked.to_driver).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::round_trip;
    use latpath_protocols::sv::FrameSpec;
    use latpath_wire::{SendClock, TxTimeMode};

    #[test]
    fn what_is_absent_is_none_when_read() {
        let (mut sent, mut talked) = (Punctuality::default(), Talked::default());
        let stream = TalkerStream {
            header: FrameSpec::default(),
            svid: "RT".into(),
            smp_synch: 1,
            first: 0,
            wrap: 4000,
            offset: 7,
            advance: 0,
            priority: Some(3),
            txtime: Some(TxTimeMode::Strict),
        };
        let schedule = Schedule { clock: SendClock::Tai, base: 0, cycle: 1_000_000 };
        let without = PublishDocument::of(&sent, None, &UnreadFrames::default(), None);
        sent.error.record(9);
        talked.to_queue.record(70);
        talked.discarded.push((3, 7));
        let stamps = TxStampCounts { requested: 3, received: 2, skipped: 1 };
        let with = PublishDocument {
            prp: Some(["eth1", "eth2"].map(String::from)),
            replay: Some("in.pcap".into()),
            ..PublishDocument::of(&sent, Some(4000.0), &UnreadFrames::default(), Some(stamps))
        };
        let with = with.with_schedule(schedule, [(&stream, &talked)].into_iter());
        for (document, is_there) in [(without, false), (with, true)] {
            let value = round_trip(&document);
            assert_eq!(["nic_times", "schedule", "streams"].map(|key| value.get(key).is_some()), [is_there; 3]);
        }
    }
}
