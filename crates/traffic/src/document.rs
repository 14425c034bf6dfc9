//! The JSON documents of `latpath publish`, `latpath streams` and `latpath subscribe`.

mod publish;
mod streams;
mod subscribe;

pub use publish::{
    DroppedFrame, Pacing, PublishDocument, PublishedStream, ScheduleDocument, SentNicTimes, ToDriver, ToQdisc, WakeUp,
};
pub use streams::{Detail, StreamDocument, StreamsDocument};
pub use subscribe::{
    Delay, FramesByPcp, FramesBySlot, Interarrival, LateByCycles, Latency, ReadMode, ReceivedStream, SendTimeOptions,
    SlotError, StreamArrivals, SubscribeDocument, Trip, Trips,
};

use crate::named_times;
use latpath_protocols::UnreadFrames;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

named_times! {
    WireToDriver: "wire_to_driver", "Time from the arrival at the NIC, by the NIC's clock, to the kernel's reception.";
}

/// Number of frames that cannot be read for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnreadReason {
    /// The reason.
    pub reason: String,
    /// Number of frames.
    pub frames: u64,
}

/// Reasons why frames cannot be read, in descending order of their number of frames.
fn unread_reasons(unread: &UnreadFrames) -> Vec<UnreadReason> {
    let reasons = unread.reasons().into_iter();
    reasons.map(|(error, frames)| UnreadReason { reason: error.to_string(), frames }).collect()
}

/// Checks that a document, once printed, is read back unchanged and fits its schema. Returns the printed document.
#[cfg(test)]
fn round_trip<T>(document: &T) -> serde_json::Value
where
    T: Serialize + serde::de::DeserializeOwned + JsonSchema + PartialEq + std::fmt::Debug,
{
    let value = serde_json::to_value(document).unwrap();
    assert_eq!(&serde_json::from_str::<T>(&value.to_string()).unwrap(), document);
    let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
    let schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    assert_eq!(latpath_testkit::misfits(&schema, &value), [""; 0]);
    value
}
