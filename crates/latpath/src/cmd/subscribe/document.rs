//! What `latpath subscribe --json` prints.

use latpath_model::Ns;
use latpath_protocols::ReactionRule;
use latpath_traffic::document::{unread_reasons, UnreadReason, WireToDriver};
use latpath_traffic::{
    named_times, ArrivalOptions, Arrivals, Response, Responses, StreamReceived, Subscription, Times, WireCounts,
};
use latpath_wire::SendClock;
use schemars::JsonSchema;
use serde::Serialize;

named_times! {
    Interarrival: "interarrival", "Time from one arrival to the next, by the kernel's time of reception.";
    Delay: "delay", "Time from the kernel's reception to the application.";
    Latency: "latency", "Arrival minus send time.";
    SlotError: "error", "How far outside its slot a frame arrived: 0 in it, negative before it.";
}

/// What arrived on a device.
#[derive(Serialize, JsonSchema)]
pub struct Document {
    /// The device.
    interface: String,
    /// How frames are read: copied from a socket, or from a memory-mapped ring.
    mode: Mode,
    /// Duration, ns.
    elapsed_ns: Ns,
    /// Frames of the streams, including duplicates.
    received: u64,
    /// Frames missing in the sequences.
    lost: u64,
    /// Frames seen before.
    duplicates: u64,
    /// Frames that arrived after a later one.
    out_of_order: u64,
    /// Frames that cannot be read.
    malformed: u64,
    /// The reasons, in descending order of frames.
    malformed_reasons: Vec<UnreadReason>,
    /// Frames of other streams.
    other_frames: u64,
    /// Names of the first of these streams.
    other_svids: Vec<String>,
    /// Frames that the kernel dropped because this program did not read them in time.
    socket_dropped: u64,
    /// Frames without the kernel's time of reception: they have no delay.
    unstamped: u64,
    /// What became of the NICs' times; null without `--stamps nic`.
    nic_times: Option<WireCounts>,
    /// How frames are judged by the send times in them; null without `--send-time`.
    send_times: Option<SendTimes>,
    /// What was sent because of `--trip`; absent without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    trips: Option<Trips>,
    /// The streams.
    streams: Vec<Stream>,
}

/// What was sent because of events.
#[derive(Serialize, JsonSchema)]
struct Trips {
    /// The rule.
    rule: String,
    /// Messages with a new state that were sent because of an event.
    sent: u64,
    /// Messages that the kernel rejected because a queue was full: lost.
    refused: u64,
    /// Each of them, with its times of CLOCK_MONOTONIC; the first 65,536.
    each: Vec<Trip>,
}

/// A message that was sent because of an event.
#[derive(Serialize, JsonSchema)]
struct Trip {
    /// Key of the packet that came in: smpCnt, or stNum:sqNum.
    cause: String,
    /// Key of the message: stNum:sqNum.
    effect: String,
    /// Time at which the application had the packet, ns.
    had_ns: Ns,
    /// Time directly before the system call that sent the message, ns.
    sending_ns: Ns,
    /// Time directly after it, ns.
    sent_ns: Ns,
}

impl Trips {
    fn new(responses: &Responses, rule: &ReactionRule) -> Self {
        let trip = |response: &Response| Trip {
            cause: rule.input.key.text(response.cause),
            effect: rule.output.key.text(response.effect),
            had_ns: response.had,
            sending_ns: response.sending,
            sent_ns: response.sent,
        };
        let (sent, refused, each) = (responses.count, responses.refused, responses.all.iter().map(trip).collect());
        Self { rule: rule.to_string(), sent, refused, each }
    }
}

/// How frames are read.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Mode {
    /// Copied from a socket.
    Copy,
    /// From a memory-mapped ring.
    Ring,
}

/// How frames are judged by the send times in them.
#[derive(Serialize, JsonSchema)]
struct SendTimes {
    /// Place of the send time in a frame.
    send_time: String,
    /// Clock of the send times.
    clock: String,
    /// Maximum error of the receiver's clock against the sender's, ns; null if not known.
    clock_error_ns: Option<Ns>,
    /// Length of a cycle, ns; null without `--cycle`.
    cycle_ns: Option<Ns>,
    /// Start of the slot after the send time, ns (inclusive); null without `--cycle`.
    slot_from_ns: Option<Ns>,
    /// End of the slot after the send time, ns (exclusive); null without `--cycle`.
    slot_to_ns: Option<Ns>,
    /// Latency above which a frame misses its deadline, ns; null without `--deadline`.
    deadline_ns: Option<Ns>,
}

/// A received stream.
#[derive(Serialize, JsonSchema)]
struct Stream {
    /// The stream, with its options.
    stream: String,
    /// Its name alone.
    svid: String,
    /// Frames, including duplicates.
    received: u64,
    /// Frames missing in the sequence.
    lost: u64,
    /// Gaps in the sequence.
    gaps: u64,
    /// Frames seen before.
    duplicates: u64,
    /// Frames that arrived after a later one.
    out_of_order: u64,
    /// Jumps back of the sequence: the publisher restarted.
    restarts: u64,
    /// Value at which the sequence returns to 0; null until seen.
    wrap: Option<u64>,
    /// Samples of the stream in the newest frame; 0 if its frames have none.
    asdus: u16,
    /// Frames per second, from the first to the newest.
    rate_hz: f64,
    /// Negative delays: the system clock was set back.
    delay_negative: u64,
    #[serde(flatten)]
    interarrival: Times<Interarrival>,
    #[serde(flatten)]
    delay: Times<Delay>,
    #[serde(flatten)]
    wire_to_driver: Times<WireToDriver>,
    #[serde(flatten)]
    arrivals: Option<ByArrival>,
}

/// Arrivals of a stream's frames after their send times; absent without `--send-time`.
#[derive(Serialize, JsonSchema)]
struct ByArrival {
    #[serde(flatten)]
    latency: Times<Latency>,
    /// Frames that arrived before their send time: the clocks differ by more than they took.
    latency_negative: u64,
    /// Frames without a send time or a time of reception.
    untimed: u64,
    /// Frames later than the deadline; null without `--deadline`.
    deadline_missed: Option<u64>,
    /// Frames by their slot; null without `--cycle`.
    slots: Option<Slots>,
    /// Frames by the priority in their VLAN tag, of priorities that arrived.
    pcp: Vec<Pcp>,
    /// Frames without a VLAN tag.
    untagged: u64,
    /// The frames with the longest latency, longest first; at most ten.
    latest: Vec<LateFrame>,
}

/// Frames by their slot: `in_slot` + `early` + `late` are the frames with a latency.
#[derive(Serialize, JsonSchema)]
struct Slots {
    /// Frames in their slot.
    in_slot: u64,
    /// Frames before their slot.
    early: u64,
    /// Frames after their slot.
    late: u64,
    /// Late frames by whole cycles.
    late_by_cycles: Vec<LateBy>,
    /// Frames that could be in another class because of the clocks' error; null if that error is not known.
    uncertain: Option<u64>,
    #[serde(flatten)]
    error: Times<SlotError>,
}

/// Frames that are late by the same number of cycles.
#[derive(Serialize, JsonSchema)]
struct LateBy {
    /// Whole cycles after the slot: 0 before the slot of the next cycle; 1000 means 1000 or more.
    cycles: u64,
    /// Number of frames.
    frames: u64,
}

/// Frames with one priority.
#[derive(Serialize, JsonSchema)]
struct Pcp {
    /// Priority in the VLAN tag.
    pcp: u8,
    /// Number of frames.
    frames: u64,
}

/// A frame with a long latency.
#[derive(Serialize, JsonSchema)]
struct LateFrame {
    /// Its number (smpCnt).
    key: u32,
    /// Its send time, ns of the sender's clock.
    send_time_ns: Ns,
    /// Arrival minus send time, ns.
    latency_ns: Ns,
}

impl Document {
    /// `measured`: what is measured by send times, and their clock; `trips`: what was sent, and why.
    pub(super) fn new(
        args: &super::Args,
        s: &Subscription,
        (elapsed_ns, socket_dropped): (Ns, u64),
        (measured, trips): (Option<(&ArrivalOptions, SendClock)>, Option<(&Responses, &ReactionRule)>),
    ) -> Self {
        let sum = |f: fn(&StreamReceived) -> u64| s.streams().iter().map(f).sum::<u64>();
        Self {
            interface: args.interface.clone(),
            mode: if args.ring { Mode::Ring } else { Mode::Copy },
            elapsed_ns,
            received: sum(|s| s.totals().received),
            lost: sum(|s| s.totals().lost),
            duplicates: sum(|s| s.totals().duplicates),
            out_of_order: sum(|s| s.totals().out_of_order),
            malformed: s.unread.total(),
            malformed_reasons: unread_reasons(&s.unread),
            other_frames: s.others,
            other_svids: s.other_names.clone(),
            socket_dropped,
            unstamped: s.unstamped,
            nic_times: s.wire().map(|wire| wire.counts()),
            send_times: measured.map(|(options, clock)| SendTimes {
                send_time: options.send_time.to_string(),
                clock: clock.to_string(),
                clock_error_ns: options.bound,
                cycle_ns: options.slots.map(|slots| slots.cycle),
                slot_from_ns: options.slots.map(|slots| slots.from),
                slot_to_ns: options.slots.map(|slots| slots.to),
                deadline_ns: options.deadline,
            }),
            trips: trips.map(|(responses, rule)| Trips::new(responses, rule)),
            streams: s.streams().iter().map(|s| Stream::new(s, measured.map(|(options, _)| options))).collect(),
        }
    }
}

impl Stream {
    fn new(s: &StreamReceived, options: Option<&ArrivalOptions>) -> Self {
        let totals = s.totals();
        Self {
            stream: s.stream.to_string(),
            svid: s.stream.short(),
            received: totals.received,
            lost: totals.lost,
            gaps: totals.gaps,
            duplicates: totals.duplicates,
            out_of_order: totals.out_of_order,
            restarts: totals.restarts,
            wrap: s.tracker.wrap(),
            asdus: s.samples,
            rate_hz: super::rate_hz(s),
            delay_negative: s.delay.negatives(),
            interarrival: (&s.interarrival).into(),
            delay: (&s.delay).into(),
            wire_to_driver: (&s.wire_to_driver).into(),
            arrivals: options.zip(s.arrivals.as_ref()).map(|(options, arrivals)| ByArrival::new(arrivals, options)),
        }
    }
}

impl ByArrival {
    fn new(arrivals: &Arrivals, options: &ArrivalOptions) -> Self {
        let slots = &arrivals.slots;
        let late_by = |(&cycles, &frames): (&u64, &u64)| LateBy { cycles, frames };
        let [pcp @ .., untagged] = arrivals.pcp;
        let latest = arrivals.latest.iter();
        Self {
            latency: (&arrivals.latency).into(),
            latency_negative: arrivals.latency.negatives(),
            untimed: arrivals.untimed,
            deadline_missed: options.deadline.map(|_| arrivals.deadline_missed),
            slots: options.slots.map(|_| Slots {
                in_slot: slots.in_slot,
                early: slots.early,
                late: slots.late(),
                late_by_cycles: slots.late.iter().map(late_by).collect(),
                uncertain: options.bound.map(|_| slots.uncertain),
                error: (&arrivals.slot_error).into(),
            }),
            pcp: (0..).zip(pcp).filter(|(_, n)| *n > 0).map(|(pcp, frames)| Pcp { pcp, frames }).collect(),
            untagged,
            latest: latest
                .map(|f| LateFrame { key: f.key, send_time_ns: f.send_time, latency_ns: f.latency })
                .collect(),
        }
    }
}
