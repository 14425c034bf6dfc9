//! Streams whose names are in their frames, after the link layer of IEC 61850: Sampled Values and GOOSE.

use crate::escape::{bytes, text};
use crate::options::{bad, number_u16, BadStream, Options};
use crate::protocol::{Field, KernelMatch, ProtocolBytes, Value};
use std::fmt;

/// Parses a name of at most `most` bytes, and the option `appid`.
pub(crate) fn parse(
    name: &str,
    what: &'static str,
    most: usize,
    options: &mut Options<'_>,
) -> Result<(Vec<u8>, Option<u16>), BadStream> {
    let bytes = bytes(name)
        .ok_or_else(|| bad(name, "two hexadecimal digits must follow \\x; a comma or another \\ must follow \\"))?;
    if bytes.is_empty() || bytes.len() > most {
        return Err(BadStream::Name { name: name.into(), what, most });
    }
    Ok((bytes, options.take("appid", "an APPID is 0 to 0xffff", number_u16)?))
}

pub(crate) fn write(f: &mut fmt::Formatter<'_>, name: &[u8], appid: Option<u16>) -> fmt::Result {
    write!(f, "{}", text(name).replace(',', "\\,"))?;
    match appid {
        Some(appid) => write!(f, ",appid={appid:#06x}"),
        None => Ok(()),
    }
}

/// Encodes `struct iec61850_conf` of the kernel programs.
pub(crate) fn kernel(name: &[u8], appid: Option<u16>) -> KernelMatch {
    KernelMatch { name: Some(name.to_vec()), protocol_bytes: ProtocolBytes::default().put_optional(appid) }
}

/// The name of a stream and its APPID, as fields for lists of streams.
pub(crate) fn fields(title: &'static str, json: &'static str, name: &[u8], appid: Option<u16>) -> Vec<Field> {
    let appid =
        Field { title: "APPID", json: "appid", value: Value::Hex { number: appid.unwrap_or(0).into(), bytes: 2 } };
    vec![Field { title, json, value: Value::text(name) }, appid]
}
