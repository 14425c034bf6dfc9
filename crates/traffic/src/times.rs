//! Statistics of times; their JSON keys begin with the name of the times.

use latpath_histogram::Histogram;
use latpath_model::Ns;
use schemars::{json_schema, JsonSchema, Schema, SchemaGenerator};
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// Names and describes a kind of times.
pub trait NamedTimes {
    /// First part of the keys, e.g. `pacing`.
    const NAME: &'static str;
    /// Description of the times.
    const ABOUT: &'static str;
    /// Keys: the number of times, then the statistics.
    const KEYS: &'static [&'static str];
}

/// Defines kinds of times.
#[macro_export]
macro_rules! named_times {
    ($($name:ident: $text:literal, $about:literal;)*) => {
        $(
            #[doc = $about]
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $name;
            impl $crate::NamedTimes for $name {
                const NAME: &'static str = $text;
                const ABOUT: &'static str = $about;
                const KEYS: &'static [&'static str] = &[
                    concat!($text, "_count"),
                    concat!($text, "_min_ns"),
                    concat!($text, "_mean_ns"),
                    concat!($text, "_p50_ns"),
                    concat!($text, "_p90_ns"),
                    concat!($text, "_p99_ns"),
                    concat!($text, "_p99_9_ns"),
                    concat!($text, "_max_ns"),
                ];
            }
        )*
    };
}

/// Statistics of times, to be flattened into an object as `NAME_count`, `NAME_min_ns` etc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times<N> {
    /// Number of times.
    pub count: u64,
    /// The statistics in the order of [`FIGURES`], ns; 0 without times.
    values: [Ns; FIGURES.len()],
    name: PhantomData<N>,
}

impl<N> Times<N> {
    fn figure(&self, at: usize) -> Option<Ns> {
        (self.count > 0).then_some(self.values[at])
    }

    /// Minimum, ns; `None` without times.
    pub fn min_ns(&self) -> Option<Ns> {
        self.figure(0)
    }

    /// Maximum, ns; `None` without times.
    pub fn max_ns(&self) -> Option<Ns> {
        self.figure(FIGURES.len() - 1)
    }
}

/// Names of the statistics, in the order of their keys.
const FIGURES: [&str; 7] =
    ["Minimum", "Mean", "50th percentile", "90th percentile", "99th percentile", "99.9th percentile", "Maximum"];

impl<N> From<&Histogram> for Times<N> {
    fn from(times: &Histogram) -> Self {
        let [p50, p90, p99, p99_9] = times.percentiles([500_000, 900_000, 990_000, 999_000]);
        let values = [times.min(), times.mean(), p50, p90, p99, p99_9, times.max()];
        Self { count: times.count(), values, name: PhantomData }
    }
}

impl<N: NamedTimes> Serialize for Times<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(N::KEYS.len()))?;
        map.serialize_entry(N::KEYS[0], &self.count)?;
        for (at, key) in N::KEYS[1..].iter().enumerate() {
            map.serialize_entry(key, &self.figure(at))?;
        }
        map.end()
    }
}

impl<'de, N: NamedTimes> Deserialize<'de> for Times<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // As a struct, it consumes its keys when flattened; as a map, it would leave them to the object's other maps
        // too.
        deserializer.deserialize_struct(N::NAME, N::KEYS, TimesVisitor(PhantomData))
    }
}

struct TimesVisitor<N>(PhantomData<N>);

impl<'de, N: NamedTimes> Visitor<'de> for TimesVisitor<N> {
    type Value = Times<N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "figures of {}", N::NAME)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Times<N>, A::Error> {
        let (mut count, mut values) = (None, [0; FIGURES.len()]);
        while let Some(key) = map.next_key::<String>()? {
            match N::KEYS.iter().position(|known| *known == key) {
                Some(0) => count = Some(map.next_value()?),
                Some(at) => values[at - 1] = map.next_value::<Option<Ns>>()?.unwrap_or(0),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let count = count.ok_or_else(|| A::Error::missing_field(N::KEYS[0]))?;
        Ok(Times { count, values, name: PhantomData })
    }
}

impl<N: NamedTimes> JsonSchema for Times<N> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Times of {}", N::NAME).into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut properties = serde_json::Map::new();
        let about = format!("{} Number of them.", N::ABOUT);
        let count = json_schema!({ "type": "integer", "minimum": 0, "description": about });
        properties.insert(N::KEYS[0].into(), count.into());
        for (key, figure) in N::KEYS[1..].iter().zip(FIGURES) {
            let about = format!("{} {figure}, ns; null without any.", N::ABOUT);
            let value = json_schema!({ "type": ["integer", "null"], "description": about });
            properties.insert((*key).into(), value.into());
        }
        json_schema!({ "type": "object", "properties": properties, "required": N::KEYS })
    }
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
            let figures = Times::<Delay>::from(&times);
            let value = serde_json::to_value(&figures).unwrap();
            assert_eq!((&value["delay_count"], &value["delay_min_ns"]), (&count.into(), &serde_json::json!(min)));
            let schema = schemars::schema_for!(Times<Delay>).to_value();
            let keys = |of: &serde_json::Value| of.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
            assert_eq!(keys(&value), keys(&schema["properties"]));
            let mut expected = Delay::KEYS.to_vec();
            assert_eq!(schema["required"], serde_json::json!(expected));
            expected.sort_unstable();
            assert_eq!(keys(&value), expected);
            assert_eq!(serde_json::from_value::<Times<Delay>>(value).unwrap(), figures);
            assert_eq!((figures.min_ns(), figures.max_ns()), (min, min));
            times.record(7);
        }
    }
}
