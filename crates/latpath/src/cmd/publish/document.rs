//! What `latpath publish --json` prints.

use super::SentStream;
use latpath_model::Ns;
use latpath_traffic::document::{unread_reasons, UnreadReason};
use latpath_traffic::{named_times, Punctuality, Talked, TalkerStream, Times};
use latpath_wire::TxStampCounts;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;

named_times! {
    Pacing: "pacing", "Time directly before the system call, minus the time at which the frame was due.";
    WakeUp: "wakeup", "The same, of frames that the thread waited for.";
    ToQdisc: "to_qdisc", "Time from the system call to the queueing discipline, of sampled frames.";
    ToDriver: "to_driver", "Time from the system call to the driver, of sampled frames.";
}

/// What was sent, and how punctually.
#[derive(Serialize, JsonSchema)]
pub struct Document {
    /// The device; null with `--prp` and `--hsr`.
    interface: Option<String>,
    /// The devices of LAN A and LAN B (PRP).
    prp: Option<[String; 2]>,
    /// The devices of port A and port B (HSR).
    hsr: Option<[String; 2]>,
    /// svID of each stream; empty for other streams and files.
    svids: Vec<String>,
    /// The stream of `--stream`.
    stream: Option<String>,
    /// The file of `--pcap`.
    replay: Option<PathBuf>,
    /// Frames that the kernel accepted; of two copies those of LAN A.
    frames_sent: u64,
    /// Frames that the kernel rejected because a queue was full: lost.
    refused: u64,
    /// Frames sent more than one interval after they were due.
    late: u64,
    /// Frames were still overdue a second after the end, and not sent.
    gave_up: bool,
    /// Packets of the file that are not sent.
    skipped: u64,
    /// Frames of the file that cannot be read; they are sent unchanged.
    malformed: u64,
    /// The reasons, in descending order of frames.
    malformed_reasons: Vec<UnreadReason>,
    /// Frames of the file that the capture truncated.
    frames_cut: u64,
    /// Time from the first to the last frame, ns.
    elapsed_ns: Ns,
    /// Requested frames per second of all streams; null for as fast as possible.
    target_rate_hz: Option<f64>,
    /// Frames per second that were sent.
    rate_hz: f64,
    #[serde(flatten)]
    pacing: Times<Pacing>,
    #[serde(flatten)]
    wakeup: Times<WakeUp>,
    /// Times of sent frames that the NIC took; absent without `--stamps nic`.
    #[serde(skip_serializing_if = "Option::is_none")]
    nic_times: Option<NicTimes>,
    /// The schedule; absent without `--cycle` and `--schedule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<Schedule>,
    /// The streams of the schedule; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    streams: Option<Vec<Stream>>,
}

/// Times of sent frames that the NIC took.
#[derive(Serialize, JsonSchema)]
struct NicTimes {
    /// Frames whose time was requested.
    requested: u64,
    /// Frames whose time arrived.
    received: u64,
    /// Frames whose time was not requested, because that of an earlier one was on its way.
    skipped: u64,
}

/// Send times: base time + n cycles + the stream's offset.
#[derive(Serialize, JsonSchema)]
struct Schedule {
    /// Clock of the send times.
    clock: String,
    /// A time at which a cycle begins, ns of the clock.
    base_time_ns: Ns,
    /// Length of a cycle, ns.
    cycle_ns: Ns,
}

/// A stream of a schedule, and what became of its frames.
#[derive(Serialize, JsonSchema)]
struct Stream {
    /// svID.
    svid: String,
    /// VLAN; null without a tag.
    vlan: Option<u16>,
    /// Priority in the VLAN tag; null without a tag.
    pcp: Option<u8>,
    /// Priority of the packets (SO_PRIORITY); null for the default.
    priority: Option<u8>,
    /// Send time within the cycle, ns.
    offset_ns: Ns,
    /// Time before its send time at which a frame is handed to the kernel, ns.
    advance_ns: Ns,
    /// How the queueing discipline uses the send time, `strict` or `deadline`; null if frames carry none for it.
    txtime: Option<String>,
    /// Frames that the kernel accepted.
    frames_sent: u64,
    /// Frames that the kernel rejected because a queue was full: lost.
    refused: u64,
    /// Frames handed over more than one cycle late.
    late: u64,
    /// Frames handed over after their send time.
    after_send_time: u64,
    /// Frames that etf discarded: `dropped_missed` + `dropped_invalid`.
    dropped_by_etf: u64,
    /// Frames whose send time passed in the queue of etf.
    dropped_missed: u64,
    /// Frames that etf discarded on arrival: too late for it, or with another clock.
    dropped_invalid: u64,
    /// The first 100 discarded frames.
    dropped_frames: Vec<DroppedFrame>,
    /// Send time of the first frame, ns of the schedule's clock.
    first_send_time_ns: Ns,
    /// Send time of the last frame, ns of the schedule's clock.
    last_send_time_ns: Ns,
    /// Sampled frames whose times never arrived.
    unstamped: u64,
    #[serde(flatten)]
    to_qdisc: Times<ToQdisc>,
    #[serde(flatten)]
    to_driver: Times<ToDriver>,
}

/// A frame that etf discarded.
#[derive(Serialize, JsonSchema)]
struct DroppedFrame {
    /// Number of the frame in its stream, from 0.
    frame: u64,
    /// Its send time, ns of the schedule's clock.
    send_time_ns: Ns,
}

impl Document {
    pub(super) fn new(
        args: &super::Args,
        what: &SentStream,
        target_rate_hz: Option<f64>,
        sent: &Punctuality,
        stamps: Option<TxStampCounts>,
    ) -> Self {
        Self {
            interface: args.copies().is_none().then(|| args.interface.clone()),
            prp: args.prp.clone(),
            hsr: args.hsr.clone(),
            svids: what.svids.clone(),
            stream: args.stream.as_ref().map(ToString::to_string),
            replay: args.pcap.clone(),
            frames_sent: sent.sent,
            refused: sent.refused,
            late: sent.late,
            gave_up: sent.gave_up,
            skipped: what.skipped,
            malformed: what.unread.total(),
            malformed_reasons: unread_reasons(&what.unread),
            frames_cut: what.cut,
            elapsed_ns: sent.last - sent.first,
            target_rate_hz,
            rate_hz: sent.rate_hz(),
            pacing: (&sent.error).into(),
            wakeup: (&sent.wakeup).into(),
            nic_times: stamps.map(|TxStampCounts { requested, received, skipped }| NicTimes {
                requested,
                received,
                skipped,
            }),
            schedule: None,
            streams: None,
        }
    }

    /// Adds a schedule and its streams.
    pub(super) fn with_schedule<'a>(
        self,
        schedule: latpath_traffic::Schedule,
        streams: impl Iterator<Item = (&'a TalkerStream, &'a Talked)>,
    ) -> Self {
        let latpath_traffic::Schedule { clock, base, cycle } = schedule;
        Self {
            schedule: Some(Schedule { clock: clock.to_string(), base_time_ns: base, cycle_ns: cycle }),
            streams: Some(streams.map(|(stream, talked)| Stream::new(stream, talked)).collect()),
            ..self
        }
    }
}

impl Stream {
    fn new(stream: &TalkerStream, talked: &Talked) -> Self {
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
