//! Session numbers in JSON: eight hexadecimal digits.

use serde::{de::Error, Deserialize, Deserializer, Serializer};

pub fn serialize<S: Serializer>(session: &u32, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{session:08x}"))
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    u32::from_str_radix(&String::deserialize(from)?, 16).map_err(D::Error::custom)
}
