//! Selects the streams to import, and names them uniformly: the same stream must have the same name in all files, so
//! that its packets can be joined.

use latpath_model::{stream::MAX_STREAMS, StreamId, StreamSpec};

/// The name of a stream in a file.
pub(crate) enum StreamName<'a> {
    /// Exact, from the frames of a capture.
    Exact(&'a StreamSpec),
    /// A name only, as in logs.
    Name(&'a StreamSpec),
}

/// The requested streams; empty for all.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamSelection(pub Vec<StreamSpec>);

impl StreamSelection {
    /// The requested stream as which these packets are imported; `None` if they are not requested.
    pub fn stream(&self, seen: &StreamName) -> Option<StreamSpec> {
        let (StreamName::Exact(found) | StreamName::Name(found)) = seen;
        if self.0.is_empty() {
            return Some(found.by_name());
        }
        self.0.iter().find_map(|asked| match seen {
            // Logs contain neither tags nor addresses nor APPIDs.
            StreamName::Name(_) if asked.is_pattern() => {
                asked.by_name().choose(found).map(|named| StreamSpec { link: asked.link, key: asked.key, ..named })
            }
            StreamName::Name(_) => (asked.by_name() == found.by_name()).then(|| asked.clone()),
            StreamName::Exact(_) if asked.is_pattern() => asked.choose(found),
            StreamName::Exact(_) => asked.includes(found).then(|| asked.clone()),
        })
    }

    /// The requested streams, as a comma-separated list.
    pub fn text(&self) -> String {
        self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

/// The streams of all files, in order of appearance.
#[derive(Default)]
pub(crate) struct Streams {
    pub all: Vec<StreamSpec>,
}

impl Streams {
    /// Number of a stream in the run; `None` if the run already has the maximum number of streams.
    pub fn number(&mut self, stream: StreamSpec) -> Option<StreamId> {
        if let Some(known) = self.all.iter().position(|s| *s == stream) {
            return Some(known as StreamId);
        }
        (self.all.len() < MAX_STREAMS).then(|| {
            self.all.push(stream);
            self.all.len() as StreamId - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> StreamSpec {
        text.parse().unwrap()
    }

    #[test]
    fn a_log_and_a_capture_name_a_stream_alike() {
        let exact = spec("svid:MU01,appid=0x4000,vlan=7,mac=01:0c:cd:04:00:01");
        let named = spec("svid:MU01");
        for (asked, found) in [
            ("", Some("svid:MU01")),
            ("svid:MU01", Some("svid:MU01")),
            ("svid:MU*", Some("svid:MU01")),
            ("svid:MU01,vlan=7", Some("svid:MU01,vlan=7")),
            ("svid:MU02", None),
        ] {
            let chosen = StreamSelection(if asked.is_empty() { Vec::new() } else { vec![spec(asked)] });
            let found = found.map(spec);
            assert_eq!(chosen.stream(&StreamName::Exact(&exact)), found, "{asked} in a capture");
            assert_eq!(chosen.stream(&StreamName::Name(&named)), found, "{asked} in a log");
        }
    }
}
