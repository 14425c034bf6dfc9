//! Figures of times, whose keys in JSON begin with the name of the times; frames that cannot be read.

use latpath_histogram::Histogram;
use latpath_model::Ns;
use latpath_protocols::UnreadFrames;
use latpath_stats::units::duration;
use schemars::{json_schema, JsonSchema, Schema, SchemaGenerator};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::marker::PhantomData;

/// The name of times, and their description.
pub(super) trait Named {
    /// First part of the keys: `pacing`.
    const NAME: &'static str;
    /// What the times are.
    const ABOUT: &'static str;
}

/// Defines names of times.
macro_rules! named_times {
    ($($name:ident: $text:literal, $about:literal;)*) => {
        $(
            #[doc = $about]
            pub(super) struct $name;
            impl crate::cmd::times::Named for $name {
                const NAME: &'static str = $text;
                const ABOUT: &'static str = $about;
            }
        )*
    };
}
pub(super) use named_times;

/// Figures of times, to be flattened into an object: `NAME_count`, `NAME_min_ns` and others.
pub(super) struct Times<N> {
    count: u64,
    values: [Ns; FIGURES.len()],
    name: PhantomData<N>,
}

/// The figures, in the order of [`Times::values`].
const FIGURES: [(&str, &str); 7] = [
    ("min", "Minimum"),
    ("mean", "Mean"),
    ("p50", "50th percentile"),
    ("p90", "90th percentile"),
    ("p99", "99th percentile"),
    ("p99_9", "99.9th percentile"),
    ("max", "Maximum"),
];

impl<N: Named> Times<N> {
    fn keys() -> impl Iterator<Item = String> {
        FIGURES.iter().map(|(figure, _)| format!("{}_{figure}_ns", N::NAME))
    }
}

impl<N> From<&Histogram> for Times<N> {
    fn from(times: &Histogram) -> Self {
        let [p50, p90, p99, p99_9] = times.percentiles([500_000, 900_000, 990_000, 999_000]);
        let values = [times.min(), times.mean(), p50, p90, p99, p99_9, times.max()];
        Self { count: times.count(), values, name: PhantomData }
    }
}

impl<N: Named> Serialize for Times<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1 + FIGURES.len()))?;
        map.serialize_entry(&format!("{}_count", N::NAME), &self.count)?;
        for (key, value) in Self::keys().zip(self.values) {
            map.serialize_entry(&key, &(self.count > 0).then_some(value))?;
        }
        map.end()
    }
}

impl<N: Named> JsonSchema for Times<N> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Times of {}", N::NAME).into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let count = format!("{}_count", N::NAME);
        let mut properties = serde_json::Map::new();
        let about = format!("{} Number of them.", N::ABOUT);
        properties.insert(count, json_schema!({ "type": "integer", "minimum": 0, "description": about }).into());
        for (key, (_, figure)) in Self::keys().zip(FIGURES) {
            let about = format!("{} {figure}, ns; null without any.", N::ABOUT);
            properties.insert(key, json_schema!({ "type": ["integer", "null"], "description": about }).into());
        }
        let required: Vec<String> = properties.keys().cloned().collect();
        json_schema!({ "type": "object", "properties": properties, "required": required })
    }
}

/// Percentiles and maximum of these times as text; `None` without times.
pub(super) fn times_text(times: &Histogram) -> Option<String> {
    let [p50, p99, p99_9] = times.percentiles([500_000, 990_000, 999_000]).map(duration);
    (times.count() > 0).then(|| format!("p50 {p50}, p99 {p99}, p99.9 {p99_9}, max {}", duration(times.max())))
}

/// Frames that cannot be read for one reason.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct UnreadReason {
    /// The reason.
    reason: String,
    /// Number of frames.
    frames: u64,
}

/// Reasons why frames cannot be read, in descending order of frames.
pub(super) fn unread_reasons(unread: &UnreadFrames) -> Vec<UnreadReason> {
    let reasons = unread.reasons().into_iter();
    reasons.map(|(error, frames)| UnreadReason { reason: error.to_string(), frames }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    named_times! {
        Delay: "delay", "Time to the reader.";
    }

    #[test]
    fn keys_begin_with_the_name_and_the_schema_has_all_of_them() {
        let mut times = Histogram::default();
        for (count, min) in [(0, None), (1, Some(7))] {
            let value = serde_json::to_value(Times::<Delay>::from(&times)).unwrap();
            assert_eq!((&value["delay_count"], &value["delay_min_ns"]), (&count.into(), &serde_json::json!(min)));
            let schema = schemars::schema_for!(Times<Delay>).to_value();
            let keys = |of: &serde_json::Value| of.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
            let mut required: Vec<_> =
                schema["required"].as_array().unwrap().iter().map(|k| k.as_str().unwrap()).collect();
            required.sort_unstable();
            let (mut of_value, mut of_schema) = (keys(&value), keys(&schema["properties"]));
            of_value.sort_unstable();
            of_schema.sort_unstable();
            assert_eq!(of_value, of_schema);
            assert_eq!(of_value, required);
            times.record(7);
        }
    }
}
