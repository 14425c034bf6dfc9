//! The JSON document of `latpath streams`.

use super::{unread_reasons, UnreadReason, WireToDriver};
use crate::{Discovery, FoundStream, Times, WireCounts};
use latpath_model::stream::format_mac;
use latpath_model::StreamSpec;
use latpath_protocols::protocol::Value;
use latpath_protocols::Tag;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Output of `latpath streams --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StreamsDocument {
    /// Streams, sorted by protocol, name and interface.
    pub streams: Vec<StreamDocument>,
    /// Number of frames.
    pub frames: u64,
    /// Frames of a listed protocol that cannot be read.
    pub malformed: u64,
    /// The reasons, in descending order of their number of frames.
    pub malformed_reasons: Vec<UnreadReason>,
    /// Frames of protocols that are not listed.
    pub other_frames: u64,
    /// Frames of streams beyond the first 4096, which are not listed.
    pub streams_overflow: u64,
    /// Frames dropped by the kernel because the ring was full.
    pub socket_dropped: u64,
    /// Counts of frames by the use of their NIC timestamps; null without `--stamps nic`.
    pub nic_times: Option<WireCounts>,
}

/// A stream in traffic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StreamDocument {
    /// Protocol: the prefix of `stream`.
    pub protocol: String,
    /// The stream, as accepted by `--stream`.
    pub stream: String,
    /// VLAN of the newest frame; null without a tag.
    pub vlan: Option<u16>,
    /// Priority in the VLAN tag of the newest frame; null without a tag.
    pub pcp: Option<u8>,
    /// Destination MAC; null in a Linux cooked capture.
    pub dst: Option<String>,
    /// Source MAC of the newest frame.
    pub src: String,
    /// Name of the device, or of the interface in a file; null if unknown.
    pub interface: Option<String>,
    /// Number of frames.
    pub frames: u64,
    /// Frames per second; null with fewer than two frames.
    pub rate_hz: Option<f64>,
    /// Value at which the sequence number starts again at 0; null if not seen yet.
    pub wrap: Option<u64>,
    /// Lower bound of the number of frames lost.
    pub lost: u64,
    /// Duplicate frames.
    pub duplicates: u64,
    /// Frames that arrived after a later one.
    pub out_of_order: u64,
    /// Restarts of the publisher.
    pub restarts: u64,
    /// Times from the wire to the driver; absent without `--stamps nic`.
    #[serde(flatten)]
    pub wire_to_driver: Option<Times<WireToDriver>>,
    /// Names of the protocol's fields, with their values in the newest frame.
    #[serde(flatten)]
    pub details: BTreeMap<String, Detail>,
}

/// A field of a protocol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Detail {
    /// A number.
    Number(u64),
    /// A rate, per second.
    Rate(f64),
    /// A string, with special characters escaped.
    Text(String),
    /// Missing from the frame, or not yet known.
    Unknown,
}

impl Detail {
    fn of(value: Value, frames_hz: Option<f64>) -> Self {
        match value {
            Value::Text(text) => Self::Text(text),
            Value::Number(n) => Self::Number(n),
            Value::Hex { number, .. } => Self::Number(number.into()),
            Value::PerFrame(n) => frames_hz.map_or(Self::Unknown, |hz| Self::Rate(hz * f64::from(n))),
            Value::Unknown => Self::Unknown,
        }
    }
}

impl StreamsDocument {
    /// The document of the streams found on these devices. `dropped`: frames dropped by the kernel; `wire`: counts of
    /// NIC timestamps, if they were used.
    pub fn of(found: &Discovery, devices: &[String], dropped: u64, wire: Option<WireCounts>) -> Self {
        let row = |s: &&FoundStream| StreamDocument::of(s, devices, wire.is_some());
        Self {
            streams: found.streams().iter().map(row).collect(),
            frames: found.frames,
            malformed: found.unread.total(),
            malformed_reasons: unread_reasons(&found.unread),
            other_frames: found.other_protocols,
            streams_overflow: found.beyond,
            socket_dropped: dropped,
            nic_times: wire,
        }
    }
}

impl StreamDocument {
    fn of(s: &FoundStream, devices: &[String], has_nic_times: bool) -> Self {
        let (totals, rate_hz) = (s.tracker.totals(), s.frames_hz());
        let details = s.stream.matcher.details(&s.newest);
        let fields = details.name.into_iter().chain(details.newest);
        Self {
            protocol: s.stream.matcher.protocol().info().prefix.into(),
            stream: StreamSpec::new(s.stream.matcher.clone()).to_string(),
            vlan: s.tag.map(Tag::vlan),
            pcp: s.tag.map(Tag::priority),
            dst: s.destination(),
            src: format_mac(&s.src),
            interface: devices.get(s.interface).cloned(),
            frames: s.frames,
            rate_hz,
            wrap: s.tracker.wrap(),
            lost: totals.lost,
            duplicates: totals.duplicates,
            out_of_order: totals.out_of_order,
            restarts: totals.restarts,
            wire_to_driver: has_nic_times.then(|| (&s.wire_to_driver).into()),
            details: fields.map(|field| (field.json.into(), Detail::of(field.value, rate_hz))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::round_trip;

    #[test]
    fn times_and_details_of_a_stream_are_separate_when_read() {
        let details = [
            ("svid", Detail::Text("MU01".into())),
            ("appid", Detail::Number(0x4000)),
            ("samples_per_s", Detail::Rate(4000.0)),
            ("conf_rev", Detail::Unknown),
        ];
        let mut stream = StreamDocument {
            protocol: "svid".into(),
            stream: "svid:MU01".into(),
            vlan: None,
            pcp: None,
            dst: None,
            src: "02:00:00:00:00:09".into(),
            interface: None,
            frames: 2,
            rate_hz: Some(4000.0),
            wrap: None,
            lost: 0,
            duplicates: 0,
            out_of_order: 0,
            restarts: 0,
            wire_to_driver: None,
            details: details.map(|(key, detail)| (key.into(), detail)).into(),
        };
        for times in [None, Some((&latpath_histogram::Histogram::default()).into())] {
            stream.wire_to_driver = times;
            let value = round_trip(&stream);
            assert_eq!(value.get("wire_to_driver_count").is_some(), stream.wire_to_driver.is_some());
        }
    }
}
