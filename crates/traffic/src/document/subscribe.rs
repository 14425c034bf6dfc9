//! The JSON document of `latpath subscribe`.

use super::{unread_reasons, UnreadReason, WireToDriver};
use crate::{
    named_times, ArrivalOptions, Arrivals, LateFrame, Response, Responses, StreamReceived, Subscription, Times,
    WireCounts,
};
use latpath_model::Ns;
use latpath_protocols::ReactionRule;
use latpath_wire::SendClock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

named_times! {
    Interarrival: "interarrival", "Time from one arrival to the next, by the kernel's time of reception.";
    Delay: "delay", "Time from the kernel's reception to the application.";
    Latency: "latency", "Arrival minus send time.";
    SlotError: "error", "How far outside its slot a frame arrived: 0 in it, negative before it.";
}

/// The frames that arrived on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SubscribeDocument {
    /// The device.
    pub interface: String,
    /// How frames are read: copied from a socket, or in place from a memory-mapped ring.
    pub mode: ReadMode,
    /// Duration, ns.
    pub elapsed_ns: Ns,
    /// Frames of the streams, including duplicates.
    pub received: u64,
    /// Frames missing from the sequences.
    pub lost: u64,
    /// Duplicates of frames already received.
    pub duplicates: u64,
    /// Frames that arrived after a later one.
    pub out_of_order: u64,
    /// Frames that cannot be read.
    pub malformed: u64,
    /// The reasons, in descending order of their number of frames.
    pub malformed_reasons: Vec<UnreadReason>,
    /// Frames of other streams.
    pub other_frames: u64,
    /// Names of the first few of these streams.
    pub other_svids: Vec<String>,
    /// Frames that the kernel dropped because this program did not read them in time.
    pub socket_dropped: u64,
    /// Frames without a receive timestamp from the kernel: they have no delay.
    pub unstamped: u64,
    /// Counts of frames by the use of their NIC timestamps; null without `--stamps nic`.
    pub nic_times: Option<WireCounts>,
    /// How frames are judged by the send times in them; null without `--send-time`.
    pub send_times: Option<SendTimeOptions>,
    /// The messages sent because of `--trip`; absent without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trips: Option<Trips>,
    /// The streams.
    pub streams: Vec<ReceivedStream>,
}

/// Messages sent in response to events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trips {
    /// The rule: which event causes which message.
    pub rule: String,
    /// Number of messages with a new state that were sent in response to an event.
    pub sent: u64,
    /// Messages that the kernel rejected because a queue was full: lost.
    pub refused: u64,
    /// The first 65,536 of these messages, with times by CLOCK_MONOTONIC.
    pub each: Vec<Trip>,
}

/// A message that was sent in response to an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trip {
    /// Key of the received packet: smpCnt, or stNum:sqNum.
    pub cause: String,
    /// Key of the message: stNum:sqNum.
    pub effect: String,
    /// Time at which the application received the packet, ns.
    pub had_ns: Ns,
    /// Time just before the system call that sent the message, ns.
    pub sending_ns: Ns,
    /// Time just after that system call, ns.
    pub sent_ns: Ns,
}

impl Trips {
    fn of(responses: &Responses, rule: &ReactionRule) -> Self {
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReadMode {
    /// Copied from a socket.
    Copy,
    /// From a memory-mapped ring.
    Ring,
}

/// How frames are judged by the send times in them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SendTimeOptions {
    /// Position and format of the send time in a frame.
    pub send_time: String,
    /// Clock of the send times.
    pub clock: String,
    /// Maximum error of the receiver's clock relative to the sender's, ns; null if unknown.
    pub clock_error_ns: Option<Ns>,
    /// Length of a cycle, ns; null without `--cycle`.
    pub cycle_ns: Option<Ns>,
    /// Start of the slot after the send time, ns (inclusive); null without `--cycle`.
    pub slot_from_ns: Option<Ns>,
    /// End of the slot after the send time, ns (exclusive); null without `--cycle`.
    pub slot_to_ns: Option<Ns>,
    /// Latency above which a frame misses its deadline, ns; null without `--deadline`.
    pub deadline_ns: Option<Ns>,
}

/// A received stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReceivedStream {
    /// The stream, including its options.
    pub stream: String,
    /// Only the stream's name.
    pub svid: String,
    /// Frames, including duplicates.
    pub received: u64,
    /// Frames missing from the sequence.
    pub lost: u64,
    /// Gaps in the sequence.
    pub gaps: u64,
    /// Duplicates of frames already received.
    pub duplicates: u64,
    /// Frames that arrived after a later one.
    pub out_of_order: u64,
    /// Backward jumps of the sequence: the publisher restarted.
    pub restarts: u64,
    /// Value at which the sequence number starts again at 0; null if not seen yet.
    pub wrap: Option<u64>,
    /// Samples of the stream in the newest frame; 0 if its frames contain none.
    pub asdus: u16,
    /// Frames per second, from the first to the newest.
    pub rate_hz: f64,
    /// Negative delays, which occur if the system clock is set back.
    pub delay_negative: u64,
    /// Times between arrivals.
    #[serde(flatten)]
    pub interarrival: Times<Interarrival>,
    /// Times from the kernel to the application.
    #[serde(flatten)]
    pub delay: Times<Delay>,
    /// Times from the wire to the driver.
    #[serde(flatten)]
    pub wire_to_driver: Times<WireToDriver>,
    /// Arrivals relative to the send times; absent without `--send-time`.
    #[serde(flatten)]
    pub arrivals: Option<StreamArrivals>,
}

/// Arrivals of a stream's frames relative to their send times; absent without `--send-time`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StreamArrivals {
    /// Times from the send time to the arrival.
    #[serde(flatten)]
    pub latency: Times<Latency>,
    /// Frames that arrived before their send time: the clock error exceeds their true latency.
    pub latency_negative: u64,
    /// Frames without a send time or a receive timestamp.
    pub untimed: u64,
    /// Frames that missed their deadline; null without `--deadline`.
    pub deadline_missed: Option<u64>,
    /// Frames by their slot; null without `--cycle`.
    pub slots: Option<FramesBySlot>,
    /// Frames by the priority in their VLAN tag, for each priority that occurred.
    pub pcp: Vec<FramesByPcp>,
    /// Frames without a VLAN tag.
    pub untagged: u64,
    /// The frames with the longest latency, longest first; at most ten.
    pub latest: Vec<LateFrame>,
}

/// Frames by their slot: `in_slot` + `early` + `late` are the frames with a latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FramesBySlot {
    /// Frames in their slot.
    pub in_slot: u64,
    /// Frames before their slot.
    pub early: u64,
    /// Frames after their slot.
    pub late: u64,
    /// Late frames by whole cycles.
    pub late_by_cycles: Vec<LateByCycles>,
    /// Frames that could be in another class because of the clock error; null if that error is unknown.
    pub uncertain: Option<u64>,
    /// Distances of arrivals from their slots.
    #[serde(flatten)]
    pub error: Times<SlotError>,
}

/// Frames that are late by the same number of cycles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LateByCycles {
    /// Whole cycles after the slot: 0 if before the slot of the next cycle; 1000 means 1000 or more.
    pub cycles: u64,
    /// Number of frames.
    pub frames: u64,
}

/// Frames with one priority.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FramesByPcp {
    /// Priority in the VLAN tag.
    pub pcp: u8,
    /// Number of frames.
    pub frames: u64,
}

impl SubscribeDocument {
    /// The document of received frames. `measured`: measurements by send times, and their clock; `trips`: the messages
    /// sent, and the rule.
    pub fn of(
        s: &Subscription,
        (interface, mode): (&str, ReadMode),
        (elapsed_ns, socket_dropped): (Ns, u64),
        measured: Option<(&ArrivalOptions, SendClock)>,
        trips: Option<(&Responses, &ReactionRule)>,
    ) -> Self {
        let sum = |f: fn(&StreamReceived) -> u64| s.streams().iter().map(f).sum::<u64>();
        Self {
            interface: interface.into(),
            mode,
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
            send_times: measured.map(|(options, clock)| SendTimeOptions {
                send_time: options.send_time.to_string(),
                clock: clock.to_string(),
                clock_error_ns: options.bound,
                cycle_ns: options.slots.map(|slots| slots.cycle),
                slot_from_ns: options.slots.map(|slots| slots.from),
                slot_to_ns: options.slots.map(|slots| slots.to),
                deadline_ns: options.deadline,
            }),
            trips: trips.map(|(responses, rule)| Trips::of(responses, rule)),
            streams: s.streams().iter().map(|s| ReceivedStream::of(s, measured.map(|(options, _)| options))).collect(),
        }
    }
}

impl ReceivedStream {
    fn of(s: &StreamReceived, options: Option<&ArrivalOptions>) -> Self {
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
            rate_hz: s.rate_hz(),
            delay_negative: s.delay.negatives(),
            interarrival: (&s.interarrival).into(),
            delay: (&s.delay).into(),
            wire_to_driver: (&s.wire_to_driver).into(),
            arrivals: options.zip(s.arrivals.as_ref()).map(|(options, arrivals)| StreamArrivals::of(arrivals, options)),
        }
    }
}

impl StreamArrivals {
    fn of(arrivals: &Arrivals, options: &ArrivalOptions) -> Self {
        let slots = &arrivals.slots;
        let late_by = |(&cycles, &frames): (&u64, &u64)| LateByCycles { cycles, frames };
        let [pcp @ .., untagged] = arrivals.pcp;
        Self {
            latency: (&arrivals.latency).into(),
            latency_negative: arrivals.latency.negatives(),
            untimed: arrivals.untimed,
            deadline_missed: options.deadline.map(|_| arrivals.deadline_missed),
            slots: options.slots.map(|_| FramesBySlot {
                in_slot: slots.in_slot,
                early: slots.early,
                late: slots.late(),
                late_by_cycles: slots.late.iter().map(late_by).collect(),
                uncertain: options.bound.map(|_| slots.uncertain),
                error: (&arrivals.slot_error).into(),
            }),
            pcp: (0..).zip(pcp).filter(|(_, n)| *n > 0).map(|(pcp, frames)| FramesByPcp { pcp, frames }).collect(),
            untagged,
            latest: arrivals.latest.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::round_trip;
    use crate::SlotRule;
    use latpath_protocols::Tag;

    #[test]
    fn what_is_absent_is_none_when_read() {
        let subscription = Subscription::new(&["svid:MU01".parse().unwrap()]).unwrap();
        let rule: ReactionRule = "svid:MU01 -> goose:TRIP".parse().unwrap();
        let response = Response { cause: 7, effect: 0, had: 1, sending: 2, sent: 3 };
        let responses = Responses { all: vec![response], count: 1, refused: 0 };
        let slots = Some(SlotRule { cycle: 1000, from: 0, to: 500 });
        let send_time = "publish".parse().unwrap();
        let latency = ArrivalOptions { send_time, slots: None, deadline: None, bound: None };
        let all = ArrivalOptions { slots, deadline: Some(5), bound: Some(1), ..latency };
        for options in [None, Some(latency), Some(all)] {
            let measured = options.as_ref().map(|options| (options, SendClock::Tai));
            let trips = options.map(|_| (&responses, &rule));
            let mut document = SubscribeDocument::of(&subscription, ("eth1", ReadMode::Ring), (5, 0), measured, trips);
            document.nic_times = options.map(|_| WireCounts::default());
            document.streams[0].arrivals = options.map(|options| {
                let mut arrivals = Arrivals::default();
                arrivals.note(&options, Some((0, 2600)), 3, Some(Tag::new(7, 4)));
                StreamArrivals::of(&arrivals, &options)
            });
            let value = round_trip(&document);
            let is_there = [value.get("trips"), value["streams"][0].get("latency_count")].map(|of| of.is_some());
            assert_eq!(is_there, [options.is_some(); 2]);
        }
    }
}
